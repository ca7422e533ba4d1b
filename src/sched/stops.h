/*
 * stops.h - stop strings in a stream of text, wherever the pieces are cut.
 *
 * Which match ends the text: the one that begins first; of two that begin at the same place the
 * shorter (it is complete first, and the text before it is the same); of equal strings the first
 * listed. A complete match waits only while a stop that began earlier may still complete. So the
 * result is a function of the whole text, never of its cuts.
 *
 * Text leaves as soon as no stop can contain it. Pieces in and out are valid UTF-8: stops are whole
 * characters, so every cut falls between characters. One owner, no locking.
 */
#ifndef SCHED_STOPS_H
#define SCHED_STOPS_H

#include "base/buf.h"

struct stops;

/* Copies the strings (each non-empty). n = 0 is fine: everything passes. */
enum qn_status stops_create(const struct str *strings, int32_t n, struct stops **out,
                            struct qn_err *err);
void stops_free(struct stops *st); /* NULL is fine */
/* Takes the next piece and appends to out what became certain. Returns the index of the stop that
 * ended the text (everything before it has then been delivered; nothing more may be pushed), or -1.
 * A failed allocation shows in out->failed or stops_failed. */
int32_t stops_push(struct stops *st, struct str piece, struct buf *out);
/* No more text comes: delivers what was held, or ends at a match that was waiting (its index). */
int32_t stops_end(struct stops *st, struct buf *out);
bool stops_failed(const struct stops *st);

#endif
