/*
 * scripted.h - a language model that says what a test tells it to, and the toy tokenizer that goes
 * with it. For tests of everything above the engine: the scheduler, the server, the clients.
 *
 * Tokens. Ids 0..255 are the bytes themselves; SCRIPTED_EOS, _BOS, _IM_START, _IM_END are special
 * ("<eos>", "<bos>", "<|im_start|>", "<|im_end|>"; the first and last end an answer); from
 * SCRIPTED_PIECE on come the pieces that the test names: any bytes as one token, also parts of
 * characters. Encoding never makes pieces, only bytes and specials.
 */
/*
 * What it answers. The prompt is all tokens up to the first wanted logits. Its text is searched for
 * directives, applied in order, the later ones over the earlier (so the last user message wins):
 *     [[say:The qui|ck br|own]]  answers this, then EOS. Parts between | that equal a piece are one
 *                                token, all else is bytes; \xHH is a byte
 *     [[loop:abc]]               answers abcabcabc... without end
 *     [[fail:3]]                 the step that would give answer token 3 fails (tokens count from
 * 0, which cannot fail so)
 *     [[nan:3]]                  its logits are NaN
 * say and loop reset fail and nan. Without a directive, the longest registered key (scripted_say)
 * that the prompt contains decides; without any, the answer is "ok".
 *
 * Logits. The token meant has `peak`, all others something in [-5, 0] that depends on every token
 * before: text that a neighbour in the batch leaked into shows. peak 20 makes sampling follow the
 * script at ordinary temperatures; a low peak makes text that depends on the seed. A token that the
 * sampler chose instead takes the script's place: it goes on with the next one.
 *
 * Threads: the lm is called from the scheduler's thread; scripted_counts and scripted_call from
 * any.
 */
#ifndef TEST_SCRIPTED_H
#define TEST_SCRIPTED_H

#include "sched/lm.h"
#include "tok/tok.h"

enum {
    SCRIPTED_EOS = 256,
    SCRIPTED_BOS,
    SCRIPTED_IM_START,
    SCRIPTED_IM_END,
    SCRIPTED_PIECE, /* first piece */
};

struct scripted;

struct scripted_params {
    int32_t n_ctx;             /* 0 = 2048 */
    int32_t max_rows;          /* 0 = 64 */
    int32_t step_us, token_us; /* a step sleeps step_us + rows * token_us */
    float peak;                /* 0 = 20 */
    const struct str *pieces;  /* copied; raw bytes, two or more, all different */
    int32_t n_piece;
    int32_t n_record;    /* calls kept for scripted_call; 0 = 4096, later ones are dropped */
    int64_t token_bytes; /* what a sequence of n tokens is said to take is n of it; 0 = not told */
    bool fork;           /* sequences can be copied */
    /* A new sequence that begins with a prompt answered before and goes on is that answer, read
     * again. Prompts of such a test must not begin with one another. */
    bool resumes;
    /* A step of an answer may be a window: all its rows have logits, the script's. No echo then. */
    bool windows;
};

enum qn_status scripted_create(const struct scripted_params *p, struct scripted **out,
                               struct qn_err *err);
void scripted_free(struct scripted *sc);
struct lm scripted_lm(struct scripted *sc); /* borrowed */

/* tokenizer.json and tokenizer_config.json (with a ChatML template), for tok_from_json or a folder.
 */
void scripted_tok_json(const struct scripted_params *p, struct buf *out);
struct str scripted_tok_config(void);

/* Prompts that contain `key` ("" = any) answer `text` cut into bytes, or these ids; then EOS.
 * Before the scheduler starts. */
void scripted_say(struct scripted *sc, const char *key, struct str text);
void scripted_say_ids(struct scripted *sc, const char *key, const int32_t *ids, int32_t n);
/* Fault switches, any thread: the step with this number (from 0) fails as a whole when it has more
 * than one item or `alone`; sequences beyond `max_seq` alive cannot be made (QN_NO_MEMORY). -1 =
 * off. */
void scripted_fail_step(struct scripted *sc, int64_t step, bool alone);
void scripted_max_seq(struct scripted *sc, int32_t max_seq);
/* Steps that would make all sequences together hold more tokens are QN_NO_MEMORY. -1 = off. */
void scripted_max_tokens(struct scripted *sc, int64_t max_tokens);

struct scripted_counts {
    int64_t steps, rows, logit_rows, created, freed, truncated;
    int64_t forked;          /* of those created */
    int64_t held, held_most; /* tokens of all sequences alive */
    int32_t alive;           /* sequences made and not yet freed */
    int32_t alive_most;      /* most at a time */
    int32_t items_most;      /* most sequences in one step */
    int32_t rows_most;       /* most tokens in one step */
};
void scripted_counts(struct scripted *sc, struct scripted_counts *out);

struct scripted_call {
    enum { SCRIPTED_CREATE, SCRIPTED_FREE, SCRIPTED_TRUNCATE, SCRIPTED_STEP_ITEM } kind;
    int64_t step;     /* number of the step it belongs to or follows */
    int32_t seq;      /* sequences are numbered from 0 in order of creation */
    int32_t n_ids;    /* TRUNCATE: the new length */
    int32_t first_id; /* STEP_ITEM: ids[0] */
    int32_t n_logits;
    int32_t len; /* tokens held afterwards */
};
/* The i-th recorded call; false past the end. */
bool scripted_call(struct scripted *sc, int64_t i, struct scripted_call *out);

#endif
