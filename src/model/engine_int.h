/*
 * engine_int.h - the engine's structs, for the files that quern.h's functions are spread over:
 * engine.c, mtp.c, dspark.c and assistant.c.
 */
#ifndef MODEL_ENGINE_INT_H
#define MODEL_ENGINE_INT_H

#include "model/engine.h"
#include "model/model.h"

enum { MAX_ROWS = 256, EOS_MAX = 64 };

struct dspark;
struct assistant;

struct qn_engine {
    struct exec *ex;
    struct model model;
    struct model draft;          /* the draft head or model; ex NULL = none */
    struct dspark *dspark;       /* of a block drafter: what it has beside its layers */
    struct assistant *assistant; /* of a query-only draft model, likewise */
    int32_t state_cols;          /* of the model's states that it takes */
    int32_t state_rows;          /* of them, as many as a context keeps */
    float *draft_logits;         /* [n_vocab]: of one row, for choosing */
    struct tok *tok;
    struct chat_tmpl *chat;
    struct qn_model_info info;
    struct json *cfg;
    char *name;
    char kv_format[24]; /* kv_format.h: KV_FORMAT_ID_MAX */
    char *dir;          /* of the checkpoint */
    char *draft_dir;    /* of a draft model in a folder of its own; NULL = none */
    int32_t eos[EOS_MAX];
};

struct qn_seq {
    struct qn_engine *e;
    struct kv_seq *kv;
    struct qn_mtp *mtp; /* takes this sequence's states; NULL = none */
};

/* A draft context. */
struct qn_mtp {
    struct qn_seq *seq;
    struct kv_seq *kv;   /* NULL: a query-only draft model has none */
    struct kept *states; /* of the target, by position */
    struct kept *own;    /* the head's, of its last row; position 0 */
    int32_t next;        /* position of the state of the next row */
    int32_t n_true;
};

/* engine.c: a folder's JSON file. */
enum qn_status engine_json(const char *dir, const char *name, struct json **out,
                           struct qn_err *err);

/* ---- mtp.c ----------------------------------------------------------------------------------- */

/* Loads the draft head when params ask for it and the folder has one. */
enum qn_status mtp_load(struct qn_engine *e, const struct qn_engine_params *p, struct qn_err *err);
void mtp_unload(struct qn_engine *e);
/* Around a step's forward: states are kept for sequences with a draft context. */
void mtp_before(struct qn_engine *e, const struct qn_step_item *items, int32_t n);
void mtp_after(struct qn_engine *e, const struct qn_step_item *items, int32_t n);
/* s now holds its first n tokens only. */
void mtp_cut(struct qn_seq *s, int32_t n);
/* The state that m's next row takes: those that are gone before their token came are left out. */
int32_t mtp_next_state(const struct qn_mtp *m);

/* Draft models in folders of their own: opens dir's tensors for e->draft, whose exec and memory are
 * set up, has `fill` load all of them, refuses what is left over, and counts the bytes kept. c: the
 * folder's config.json. */
struct loader;
typedef enum qn_status draft_fill(struct qn_engine *e, struct loader *l, const struct json *c,
                                  struct qn_err *err);
enum qn_status draft_load_folder(struct qn_engine *e, const char *dir, const struct json *c,
                                 draft_fill *fill, struct qn_err *err);

/* draft_vocab.c: QN_BAD_INPUT when dir's tokenizer, where there is one, has another token than the
 * model's at the same id; the message has the first. */
enum qn_status draft_vocab_check(const struct qn_engine *e, const char *dir, struct qn_err *err);

/* ---- dspark.c -------------------------------------------------------------------------------- */

/* Loads the block drafter in params' draft_dir. */
enum qn_status dspark_load(struct qn_engine *e, const struct qn_engine_params *p,
                           struct qn_err *err);
void dspark_unload(struct qn_engine *e);
/* qn_mtp_step of checked items. */
enum qn_status dspark_step(struct qn_engine *e, struct qn_mtp_item *items, int32_t n,
                           struct qn_err *err);

/* ---- assistant.c ----------------------------------------------------------------------------- */

/* Loads the query-only draft model in params' draft_dir. */
enum qn_status assistant_load(struct qn_engine *e, const struct qn_engine_params *p,
                              struct qn_err *err);
void assistant_unload(struct qn_engine *e);
/* qn_mtp_step of checked items. */
void assistant_step(struct qn_engine *e, struct qn_mtp_item *items, int32_t n);

#endif
