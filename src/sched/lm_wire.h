/*
 * lm_wire.h - what the two sides of a language model in another process share: a memory region and
 * a socket. lm_remote.c (the program) and lm_serve.c (the process with the model) alone.
 *
 * The model's process makes the region once the model is loaded and passes it with its hello. A
 * call: the program fills `call`, the ids and items, sends one byte; the answer is one byte back.
 * A closed socket ends either side. The region holds, one behind the other:
 *
 *     struct wire, int64 seq_bytes [wire_pages], int32 ids [wire_n_ids],
 *     float logits [max_rows, n_vocab]
 *
 * Logits of a step lie one row behind the other, item by item. The region is sparse: rows that no
 * step asks for cost nothing.
 */
#ifndef SCHED_LM_WIRE_H
#define SCHED_LM_WIRE_H

#include "base/err.h"
#include "cache/cache_file.h"
#include "quern.h"

enum { WIRE_ITEMS_MAX = 512, WIRE_EOS_MAX = 64, WIRE_ROWS_MAX = 1 << 16 };
enum { WIRE_NS_MAX = 64, WIRE_GUESSES_MAX = 64 };
enum { WIRE_PAGE = 64 }; /* seq_bytes[i]: of a sequence of i * WIRE_PAGE tokens */

enum wire_op {
    WIRE_SEQ_CREATE,
    WIRE_SEQ_FREE,
    WIRE_SEQ_TRUNCATE,
    WIRE_SEQ_FORK,
    WIRE_STEP,
    WIRE_CACHE_SEQ, /* the line: ns and the first n of ids */
    WIRE_CACHE_KEEP,
    WIRE_CACHE_TRIM,
    WIRE_MTP_OPEN,
    WIRE_MTP_STEP,      /* n items, with guesses */
    WIRE_CACHE_TICK,    /* n: busy; n_have: the answer, as that of the next two */
    WIRE_CACHE_LOADING, /* the line */
    WIRE_CACHE_FLUSH,   /* n: begin */
    WIRE_CACHE_FILE,    /* file, and what it asks for; n_have: it has ended */
};

struct wire_facts {
    int32_t n_vocab, n_ctx, max_rows, n_eos, n_thread;
    int32_t eos_ids[WIRE_EOS_MAX];
    int64_t n_param, weight_bytes, kv_token_bytes, seq_state_bytes;
    int64_t step_bytes[2]; /* of none, of one row of logits */
    int32_t cache_interval, cache_reach;
    bool plans, forks, caches, drafts; /* has seq_bytes, seq_fork, a prompt cache, a draft head */
    bool disk;                         /* the prompt cache has a tier on disk */
    bool files;                        /* it has files of single conversations */
    uint8_t fingerprint[32];           /* with disk or files */
    char name[256], family[64], isa[32], arith[32], kv_format[32];
};

/* The first message of the model's process, with the region's descriptor when status is QN_OK. */
struct wire_hello {
    enum qn_status status;
    struct qn_err err; /* `where` means nothing on the other side */
    size_t bytes;      /* of the region */
    struct wire_facts facts;
};

struct wire_call {
    enum wire_op op;
    uint64_t seq;            /* handle: 0 = none */
    int32_t n;               /* truncate: tokens; step: items; cache: tokens of the line */
    int32_t n_have, n_match; /* answer of WIRE_CACHE_SEQ */
    int64_t bytes;           /* WIRE_CACHE_TRIM; WIRE_CACHE_FILE: room */
    enum { WIRE_FILE_GO_ON, WIRE_FILE_SAVE, WIRE_FILE_RESTORE } file;
    char name[CACHE_FILE_NAME_MAX + 1]; /* of the file */
    char ns[WIRE_NS_MAX + 1];
    enum qn_status status;
    struct qn_err err;
};

/* Guesses for one line of WIRE_MTP_STEP; its ids are items[i].n_ids from token `from` on. */
struct wire_guess {
    int32_t from, n_draft;
    int32_t drafts[QN_MTP_DRAFT_MAX];
    float probs[QN_MTP_DRAFT_MAX];
    bool stops; /* has odds, and least */
    float odds[QN_MTP_LEVELS], least;
};

struct wire_item {
    uint64_t seq;
    int32_t n_ids, n_logits;
};

struct wire {
    struct wire_call call;
    struct qn_cache_stats cache; /* after each call, where there is a prompt cache */
    struct qn_cache_flush flush; /* answer of WIRE_CACHE_FLUSH */
    struct cache_file_told file; /* answer of WIRE_CACHE_FILE */
    struct wire_item items[WIRE_ITEMS_MAX];
    struct wire_guess guesses[WIRE_GUESSES_MAX];
};

/* Room for a step's ids, or a whole line's. */
static inline size_t wire_n_ids(const struct wire_facts *f)
{
    return (size_t)((f->caches || f->drafts) && f->n_ctx > f->max_rows ? f->n_ctx : f->max_rows);
}

/* Entries of seq_bytes. */
static inline size_t wire_pages(int32_t n_ctx)
{
    return n_ctx < 0 ? 1 : (size_t)n_ctx / WIRE_PAGE + 2;
}

/* Bytes of a region; 0 = the numbers do not fit. */
static inline size_t wire_region(const struct wire_facts *f)
{
    size_t n;
    if (f->max_rows < 1 || f->max_rows > WIRE_ROWS_MAX || f->n_vocab < 1 || f->n_ctx < 1 ||
        __builtin_mul_overflow((size_t)f->max_rows * sizeof(float), (size_t)f->n_vocab, &n) ||
        __builtin_add_overflow(n,
                               sizeof(struct wire) + wire_pages(f->n_ctx) * sizeof(int64_t) +
                                   wire_n_ids(f) * sizeof(int32_t),
                               &n))
        return 0;
    return n;
}

static inline int64_t *wire_seq_bytes(struct wire *w)
{
    return (int64_t *)(w + 1);
}

static inline int32_t *wire_ids(struct wire *w, const struct wire_facts *f)
{
    return (int32_t *)(wire_seq_bytes(w) + wire_pages(f->n_ctx));
}

static inline float *wire_logits(struct wire *w, const struct wire_facts *f)
{
    return (float *)(wire_ids(w, f) + wire_n_ids(f));
}

#endif
