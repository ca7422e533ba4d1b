/*
 * model.h - what a model family is: a table of four functions over a struct model. Everything that
 * families share (reading the folder, quantization rules, rotary types, the step) is in loader.c,
 * rope_config.c and engine.c; a family's file holds only its maths.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/json.h"
#include "exec/exec.h"

struct loader;

/* States between layers, for a draft model that wants them: what these layers leave (-1: the
 * embeddings), side by side in one tensor [rows, n * n_embd]. Taken of every row of a step that has
 * `on` set, so keep_hidden must be too when the last layer is among them. */
enum { TAPS_MAX = 16 };
struct taps {
    bool on;
    int32_t n, layer[TAPS_MAX];
    struct tensor *t;
};

struct model {
    const struct family *family;
    struct exec *ex;
    void *state; /* the family's own, from calloc; freed by family->free */

    /* set by family->config */
    int32_t n_vocab, n_layer, n_embd;
    int32_t n_ctx_max;         /* max_position_embeddings */
    const struct kv_layer *kv; /* [n_kv], lives in state */
    int32_t n_kv;              /* layers of KV memory; 0 = n_layer */

    /* The state of a row is what goes into the final norm, or with hidden_normed what comes out.
     * forward sets `hidden`: with keep_hidden of every row of the step, else of the wanted ones. */
    bool keep_hidden, hidden_normed;
    const struct tensor *hidden;
    struct taps taps;

    /* A draft head (MTP) is a model of its own, of one layer, guessing the token after the next:
     *     x = fc( norm_e(embed(next token)) | norm_h(state of `target` at this one) ),  the layer
     * with the target's table and head. The same functions serve it; target is set before config.
     */
    struct model *target;     /* NULL = not a draft head */
    struct tensor *hidden_in; /* created by load; the step's rows of it are filled before forward */

    /* A draft model of queries only (gemma4): its layers read the keys and values of the lender's
     * last layer of their type, and begin with hidden_in, which is created before load. Set before
     * config. no_logits: forward ends with `hidden`. */
    const struct model *lender; /* NULL = it has its own */
    bool no_logits;
};

struct family {
    const char *name;               /* as shown to users */
    const char *const *model_types; /* config.json model_type values, NULL-terminated */
    /* Reads config.json into m->state and the common fields. */
    enum qn_status (*config)(struct model *m, const struct json *cfg, struct qn_err *err);
    /* Loads weights and creates tensors; m->ex exists. */
    enum qn_status (*load)(struct model *m, struct loader *ld, struct qn_err *err);
    /* One step over the rows exec_begin stated. Returns the logits of the wanted rows,
     * [exec_wanted, n_vocab], or NULL when none are wanted. Cannot fail. */
    const struct tensor *(*forward)(struct model *m);
    void (*free)(struct model *m);
    /* Whether these tensors hold a draft head for the model m. NULL = the family has none. */
    bool (*has_draft)(const struct model *m, const struct loader *l);
};

/* forward.c: for forward, after the embeddings and after each layer: h is what it left. */
void taps_take(struct model *m, int32_t layer, const struct tensor *h);

/* The end of forward: the states h of the last layer and n, what the final norm made of them, of
 * every row of the step or of the wanted ones alone; the head; where logits and, with every_row,
 * the wanted rows of n go. Notes m->hidden; returns what forward does. */
struct forward_end {
    const struct tensor *h, *n;
    bool every_row;
    struct tensor *wanted, *logits;
    const struct weight *head;
};
const struct tensor *forward_end(struct model *m, const struct forward_end *e);

/* registry.c: the only list of families. NULL when unknown. */
const struct family *family_find(struct str model_type);
/* "llama, mistral, ..." for messages. */
void family_list(struct buf *out);

#endif
