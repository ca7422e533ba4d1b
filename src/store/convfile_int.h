/* convfile_int.h - the head of a conversation file, as the two sides share it. Pure. */
#ifndef STORE_CONVFILE_INT_H
#define STORE_CONVFILE_INT_H

#include <endian.h>

#include "store/convfile.h"

#define CONV_WHERE "conversation"
#define CONV_MAGIC "QUERNCV\n"

enum { CONV_HEAD = 72, CONV_DRAFT = 40, CONV_ROW = 24, CONV_SUM = 16 };

static inline uint64_t conv_align(uint64_t n)
{
    return (n + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
}

/* Where the line about the model begins. */
static inline uint64_t conv_about_off(uint64_t n_draft_record)
{
    return CONV_HEAD + (n_draft_record ? CONV_DRAFT : 0);
}

static inline uint64_t conv_head_bytes(uint64_t n_record, uint64_t n_draft_record, uint64_t about)
{
    return conv_about_off(n_draft_record) + about + CONV_ROW * (n_record + n_draft_record) +
           CONV_SUM;
}

static inline void conv_sum_text(struct hash128 sum, char out[33])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        out[15 - i] = digits[sum.hi >> 4 * i & 15];
        out[31 - i] = digits[sum.lo >> 4 * i & 15];
    }
    out[32] = 0;
}

#endif
