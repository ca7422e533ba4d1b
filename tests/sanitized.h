/*
 * sanitized.h - what a test has to know of a build with a sanitizer. Freed memory is kept there for
 * a while and address space cannot be limited (SANITIZED). The thread sanitizer cannot know of a
 * pool's late workers, who read what the leader already writes anew and drop what they make of it
 * (base/pool.h): one thread has to do (RACES). Arithmetic is slow: a few of many like cases stand
 * for all (FEWER); `make sanitize-all` builds with FEWER=0.
 */
#ifndef TESTS_SANITIZED_H
#define TESTS_SANITIZED_H

#if defined(__SANITIZE_THREAD__)
#define RACES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RACES 1
#endif
#endif
#ifndef RACES
#define RACES 0
#endif

#if defined(__SANITIZE_ADDRESS__) || RACES
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#ifndef FEWER
#define FEWER SANITIZED
#endif

#endif
