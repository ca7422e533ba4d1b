/*
 * slice.h - how long the kernel lets the calling thread run at a stretch among equals.
 */
#ifndef BASE_SLICE_H
#define BASE_SLICE_H

#include <stdint.h>

/* A thread that works for microseconds at a time asks for a short slice: since Linux 6.12 it then
 * gets a processor as soon as it wakes, although threads that compute hold all of them. Its share
 * of the processors stays what it was and no privilege is needed. Threads created by the calling
 * one begin with its slice. ns: 0 = the kernel's own choice. Nothing happens where the kernel does
 * not know of it, or the thread has a real-time policy. */
void slice_set(int64_t ns);

#endif
