/*
 * str.h - a view of bytes: pointer and length, not NUL-terminated, never owning.
 */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct str {
    const char *p;
    size_t n;
};

#define STR_LIT(s) ((struct str){"" s, sizeof(s) - 1})
#define STR_FMT    "%.*s"
#define STR_ARG(s) (int)((s).n > 4096 ? 4096 : (s).n), (s).p

static inline struct str str_of(const char *z)
{
    return (struct str){z, z ? strlen(z) : 0};
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool str_eqz(struct str a, const char *z)
{
    return str_eq(a, str_of(z));
}

static inline bool str_starts(struct str a, struct str prefix)
{
    return a.n >= prefix.n && (prefix.n == 0 || memcmp(a.p, prefix.p, prefix.n) == 0);
}

static inline bool str_ends(struct str a, struct str tail)
{
    return a.n >= tail.n && (tail.n == 0 || memcmp(a.p + a.n - tail.n, tail.p, tail.n) == 0);
}

/* Byte offset of needle in hay at or after `from`, or SIZE_MAX. */
static inline size_t str_find(struct str hay, struct str needle, size_t from)
{
    if (from > hay.n || hay.n - from < needle.n) /* also: memmem wants no NULL */
        return (size_t)-1;
    if (needle.n == 0)
        return from;
    const char *hit = (const char *)memmem(hay.p + from, hay.n - from, needle.p, needle.n);
    return hit ? (size_t)(hit - hay.p) : (size_t)-1;
}

#endif
