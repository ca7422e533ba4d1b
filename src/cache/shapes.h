/*
 * shapes.h - what records of KV memory have in common, wherever they are kept: which pages a record
 * need not have because those before it do, and the note that says what it is. Any thread.
 */
#ifndef CACHE_SHAPES_H
#define CACHE_SHAPES_H

#include "exec/kv.h"

enum { SHAPES_NS_MAX = 64, SHAPES_NOTE_MAX = KV_SHAPE_BYTES + 1 + SHAPES_NS_MAX };

struct shapes_note {
    struct kv_shape shape;
    bool tail; /* the record has one */
    char ns[SHAPES_NS_MAX + 1];
};
/* A record's note, in `out`: its shape, whether it has a tail (NULL: records of this kind have
 * none, and no byte for it), then the namespace (at most SHAPES_NS_MAX bytes; NULL = ""). */
struct str shapes_note(uint8_t out[SHAPES_NOTE_MAX], const struct kv_shape *s, const bool *tail,
                       const char *ns);
/* Back; tails: there is a byte for it. False when no prefix of this exec can be so. */
bool shapes_note_read(const struct exec *ex, struct str note, bool tails, struct shapes_note *out);

/* Takes those pages of windows out of s that the n shapes before it, from token 0 on, have. */
void shapes_leave_out(const struct exec *ex, const struct kv_shape *before, int32_t n,
                      struct kv_shape *s);
/* Takes the page in which s ends, and which is not full there, out of it where the shape that goes
 * on behind it has that page too: with all that s has of it, and more. */
void shapes_leave_last(const struct exec *ex, const struct kv_shape *next, struct kv_shape *s);
/* Of the pieces of an export of shape `all`, those of s, which is a part of it; how many. */
int32_t shapes_choose(const struct exec *ex, const struct kv_shape *all, const struct kv_shape *s,
                      const struct iovec *from, struct iovec *out);

#endif
