/*
 * engine_int.h - the engine's structs, for the files that quern.h's functions are spread over:
 * engine.c and mtp.c.
 */
#ifndef MODEL_ENGINE_INT_H
#define MODEL_ENGINE_INT_H

#include "model/engine.h"
#include "model/model.h"

enum { MAX_ROWS = 256, EOS_MAX = 64 };

struct qn_engine {
    struct exec *ex;
    struct model model;
    struct model draft;  /* the draft head; ex NULL = none */
    float *draft_logits; /* [n_vocab]: of one row, for choosing */
    struct tok *tok;
    struct chat_tmpl *chat;
    struct qn_model_info info;
    struct json *cfg;
    char *name;
    char kv_format[24]; /* kv_format.h: KV_FORMAT_ID_MAX */
    char *dir;          /* of the checkpoint */
    int32_t eos[EOS_MAX];
};

struct qn_seq {
    struct qn_engine *e;
    struct kv_seq *kv;
    struct qn_mtp *mtp; /* takes this sequence's states; NULL = none */
};

/* ---- mtp.c ----------------------------------------------------------------------------------- */

/* Loads the draft head when params ask for it and the folder has one. */
enum qn_status mtp_load(struct qn_engine *e, const struct qn_engine_params *p, struct qn_err *err);
void mtp_unload(struct qn_engine *e);
/* Around a step's forward: states are kept for sequences with a draft context. */
void mtp_before(struct qn_engine *e, const struct qn_step_item *items, int32_t n);
void mtp_after(struct qn_engine *e, const struct qn_step_item *items, int32_t n);
/* s now holds its first n tokens only. */
void mtp_cut(struct qn_seq *s, int32_t n);

#endif
