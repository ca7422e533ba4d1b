/*
 * dspark.c - a block drafter (DSpark) beside the model whose tokens it guesses: loading its folder,
 * and its steps. It is a decoder whose layers see what its target left of the tokens before,
 *
 *     c = rms( fc( states of the target's layers target_layer_ids, side by side ) )
 *
 * whose keys and values are its memory, and a block of rows that see each other: the last token and
 * block_size-1 masks. Row k guesses the token k+1 behind the last, its logits corrected by the
 * token before: + w2( w1[token] ); how sure it is: sigmoid( proj( row | w1[token] ) ).
 *
 * Contexts, states and positions are mtp.c's. A block never stays in memory. The scheduler's
 * thread alone.
 */
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "model/decoder.h"
#include "model/engine_int.h"
#include "model/logits.h"

static const char CFG[] = "config.json of the draft model";
static const char WHERE[] = "dspark";

struct dspark {
    int32_t block, mask, rank; /* rows; token of the masks; of w1 and w2, 0 = there are none */
    bool sure, sure_of_token;  /* proj is there; it sees w1[token] too */
    struct weight *fc, *norm, *w1, *w2, *proj, *proj_bias;
    struct tensor *fused, *context, *kv;            /* of rows of states */
    struct tensor *row, *prev, *bias, *pair, *odds; /* of one place in the blocks */
    float *logits, *more;                           /* [n_vocab] of one row */
};

/* ---- config.json ----------------------------------------------------------------------------- */

/* What says that a folder holds such a drafter, and one that is known here. */
static enum qn_status check_kind(const struct json *c, struct qn_err *err)
{
    static const char *const others[] = {"speculators_config",      "speculators_model_type",
                                         "dflash_config",           "dflash_query_causal",
                                         "log_snr_conditioning",    "attention_sink_bias",
                                         "sliding_window_causal",   "enable_qwen35_gated_q_proj",
                                         "final_logit_softcapping", "logits_start"};
    static const char *const needed[] = {"target_layer_ids", "block_size", "mask_token_id"};
    struct str type = json_str(json_get(c, "model_type")), head;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const struct json *v = json_has(c, others[i]) ? json_get(c, others[i]) : NULL;
        if (v && !(json_type(v) == JSON_BOOL && !json_bool(v)) &&
            !(json_type(v) == JSON_INT && json_real(v) == 0))
            QN_FAIL(err, QN_UNSUPPORTED, WHERE,
                    "%s: %s is set, which changes the maths; block drafters are supported without "
                    "it",
                    CFG, others[i]);
    }
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!json_has(c, needed[i]))
            QN_FAIL(err, QN_BAD_INPUT, WHERE,
                    "%s: %s is missing, so this is no block drafter (dspark); a model's own draft "
                    "head goes with --draft-kind mtp, a smaller model with two-model",
                    CFG, needed[i]);
    if (!str_eqz(type, "qwen3"))
        QN_FAIL(err, QN_UNSUPPORTED, WHERE,
                "%s: model_type \"" STR_FMT "\"; block drafters are supported with the layers of "
                "qwen3",
                CFG, STR_ARG(type));
    QN_TRY(json_opt_str(c, CFG, "markov_head_type", STR_LIT("vanilla"), &head, err));
    if (!str_eqz(head, "vanilla"))
        QN_FAIL(err, QN_UNSUPPORTED, WHERE,
                "%s: markov_head_type \"" STR_FMT "\"; vanilla is supported", CFG, STR_ARG(head));
    return QN_OK;
}

static enum qn_status read_taps(struct model *m, const struct json *c, struct qn_err *err)
{
    const struct json *ids = json_get(c, "target_layer_ids");
    size_t n = json_len(ids);
    if (json_type(ids) != JSON_ARR || n < 1 || n > TAPS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%s: target_layer_ids has %zu entries; expected 1 to %d",
                CFG, n, TAPS_MAX);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!json_i64(json_at(ids, i), &id) || id < -1 || id >= m->n_layer)
            QN_FAIL(err, QN_BAD_INPUT, WHERE,
                    "%s: target_layer_ids[%zu] is %lld; the model has layers 0 to %d (-1: its "
                    "embeddings)",
                    CFG, i, (long long)id, m->n_layer - 1);
        m->taps.layer[i] = (int32_t)id;
    }
    m->taps.n = (int32_t)n;
    return QN_OK;
}

/* The drafter has to be this model's. */
static enum qn_status check_target(const struct model *d, const struct model *m,
                                   const struct json *c, struct qn_err *err)
{
    int32_t vocab, layers;
    QN_TRY(json_opt_i32(c, CFG, "draft_vocab_size", d->n_vocab, 1, 1 << 24, &vocab, err));
    QN_TRY(json_opt_i32(c, CFG, "num_target_layers", m->n_layer, 1, 1024, &layers, err));
    if (d->n_vocab != m->n_vocab)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%s: vocab_size %d; the model's is %d, and they have to be the same", CFG,
                d->n_vocab, m->n_vocab);
    if (vocab != d->n_vocab)
        QN_FAIL(err, QN_UNSUPPORTED, WHERE,
                "%s: draft_vocab_size %d of %d; drafters of the whole vocabulary are supported",
                CFG, vocab, d->n_vocab);
    if (layers != m->n_layer)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%s: made for a model of num_target_layers %d; this one has %d", CFG, layers,
                m->n_layer);
    if (d->n_embd != m->n_embd)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%s: hidden_size %d; the model's is %d, and they have to be the same", CFG,
                d->n_embd, m->n_embd);
    return QN_OK;
}

static enum qn_status read_config(struct qn_engine *e, const struct json *c, struct qn_err *err)
{
    struct dspark *s = e->dspark;
    struct model *d = &e->draft;
    QN_TRY(check_kind(c, err));
    d->family = family_find(STR_LIT("qwen3"));
    QN_TRY(d->family->config(d, c, err));
    QN_TRY(check_target(d, &e->model, c, err));
    QN_TRY(read_taps(&e->model, c, err));
    QN_TRY(json_req_i32(c, CFG, "block_size", 1, QN_MTP_DRAFT_MAX, &s->block, err));
    QN_TRY(json_req_i32(c, CFG, "mask_token_id", 0, d->n_vocab - 1, &s->mask, err));
    QN_TRY(json_opt_i32(c, CFG, "markov_rank", 0, 0, 1 << 14, &s->rank, err));
    QN_TRY(json_opt_bool(c, CFG, "enable_confidence_head", false, &s->sure, err));
    QN_TRY(json_opt_bool(c, CFG, "confidence_head_with_markov", false, &s->sure_of_token, err));
    s->sure_of_token &= s->sure;
    if (s->sure_of_token && !s->rank)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%s: confidence_head_with_markov without a markov_rank",
                CFG);
    struct decoder *dec = d->state;
    for (int32_t i = 0; i < d->n_layer; i++)
        if (dec->layers[i].window)
            QN_FAIL(err, QN_UNSUPPORTED, WHERE,
                    "%s: layer_types[%d] is sliding_attention; block drafters are supported with "
                    "full_attention",
                    CFG, i);
    dec->sees = SEES_SPAN;
    d->hidden_normed = true; /* what proj reads */
    return QN_OK;
}

/* ---- weights --------------------------------------------------------------------------------- */

static enum qn_status load_heads(struct dspark *s, const struct model *d, struct loader *l,
                                 struct qn_err *err)
{
    int32_t v = d->n_vocab, h = d->n_embd, seen = h + (s->sure_of_token ? s->rank : 0);
    if (s->rank) {
        QN_TRY(load_table(l, &s->w1, v, s->rank, err, "markov_head.markov_w1"));
        QN_TRY(load_matrix(l, &s->w2, v, s->rank, err, "markov_head.markov_w2"));
    }
    if (!s->sure)
        return QN_OK;
    QN_TRY(load_matrix(l, &s->proj, 1, seen, err, "confidence_head.proj"));
    if (loader_has(l, "confidence_head.proj.bias"))
        QN_TRY(load_vec(l, &s->proj_bias, 1, err, "confidence_head.proj.bias"));
    return QN_OK;
}

static enum qn_status create_tensors(struct qn_engine *e, struct qn_err *err)
{
    struct dspark *s = e->dspark;
    struct model *d = &e->draft, *m = &e->model;
    const struct decoder *dec = d->state;
    int32_t wide = m->taps.n * m->n_embd, h = d->n_embd;
    const struct {
        struct tensor **t;
        int32_t cols;
        bool on;
    } list[] = {{&d->hidden_in, wide, true},
                {&s->fused, h, true},
                {&s->context, h, true},
                {&s->kv, 2 * dec->n_kv * dec->d_head, true},
                {&s->row, h, s->sure},
                {&s->prev, s->rank, s->rank > 0},
                {&s->bias, d->n_vocab, s->rank > 0},
                {&s->pair, h + s->rank, s->sure_of_token},
                {&s->odds, 1, s->sure}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].on)
            QN_TRY(tensor_create(d->ex, list[i].cols, list[i].t, err));
    QN_TRY(tensor_create(m->ex, wide, &m->taps.t, err));
    s->logits = calloc((size_t)d->n_vocab, sizeof *s->logits);
    s->more = calloc((size_t)d->n_vocab, sizeof *s->more);
    if (!s->logits || !s->more)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory for %d logits", d->n_vocab);
    e->state_cols = wide;
    return QN_OK;
}

static enum qn_status load_weights(struct qn_engine *e, struct loader *l, const struct json *c,
                                   struct qn_err *err)
{
    static const char *const names[][2] = {{"model.layers.", "layers."},
                                           {"model.norm.", "norm."},
                                           {"model.embed_tokens", "embed_tokens"}};
    struct dspark *s = e->dspark;
    struct model *d = &e->draft;
    int32_t h = d->n_embd;
    QN_TRY(load_matrix(l, &s->fc, h, e->model.taps.n * h, err, "fc"));
    QN_TRY(load_vec(l, &s->norm, h, err, "hidden_norm.weight"));
    QN_TRY(load_heads(s, d, l, err));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        loader_alias(l, names[i][0], names[i][1]);
    enum qn_status st = d->family->load(d, l, err);
    loader_alias(l, NULL, NULL);
    QN_TRY(st);
    return create_tensors(e, err);
}

static enum qn_status load_folder(struct qn_engine *e, const char *dir, const struct json *c,
                                  struct qn_err *err)
{
    struct model *d = &e->draft;
    QN_TRY(read_config(e, c, err));
    QN_TRY(exec_create_beside(e->ex, e->info.n_ctx + QN_MTP_DRAFT_MAX, &d->ex, err));
    QN_TRY(kv_setup(d->ex, d->kv, d->n_layer, err));
    return draft_load_folder(e, dir, c, load_weights, err);
}

enum qn_status dspark_load(struct qn_engine *e, const struct qn_engine_params *p,
                           struct qn_err *err)
{
    struct json *c = NULL;
    if (!p->draft_dir)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "a block drafter needs draft_dir");
    QN_TRY(engine_json(p->draft_dir, "config.json", &c, err));
    e->dspark = calloc(1, sizeof *e->dspark);
    enum qn_status st = e->dspark ? load_folder(e, p->draft_dir, c, err)
                                  : err_set(err, QN_NO_MEMORY, WHERE, "out of memory");
    json_free(c);
    return st;
}

void dspark_unload(struct qn_engine *e)
{
    if (!e->dspark)
        return;
    free(e->dspark->logits);
    free(e->dspark->more);
    free(e->dspark);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Keys and values of the rows of states that are in hidden_in. */
static void append(struct dspark *s, struct model *d)
{
    const struct decoder *dec = d->state;
    int32_t k = dec->n_kv * dec->d_head;
    op_linear(d->ex, &(struct linear){s->fused, 0, s->fc, NULL}, 1, d->hidden_in);
    op_rmsnorm(d->ex, s->context, s->fused, s->norm, 0, (float)dec->eps);
    for (int32_t i = 0; i < d->n_layer; i++) {
        struct linear parts[] = {{s->kv, 0, dec->layers[i].k, NULL},
                                 {s->kv, k, dec->layers[i].v, NULL}};
        struct attn_op a = decoder_attn(dec, i);
        a.n_head = 0;
        op_linear(d->ex, parts, 2, s->context);
        op_rope_append(d->ex, NULL, s->kv, &a);
    }
}

/* The items' states into their memory, in as many runs as it takes. */
static enum qn_status take_states(struct qn_engine *e, struct qn_mtp_item *items, int32_t n,
                                  struct qn_err *err)
{
    struct model *d = &e->draft;
    struct exec_span spans[MAX_ROWS];
    for (int32_t at = 0, k; at < n; at += k) {
        int32_t rows = 0;
        for (k = 0; at + k < n && rows + items[at + k].n_ids <= MAX_ROWS; k++) {
            const struct qn_mtp_item *it = &items[at + k];
            spans[k] = (struct exec_span){it->mtp->kv, it->ids, it->n_ids, 0};
            kept_get(it->mtp->states, mtp_next_state(it->mtp), it->n_ids, d->hidden_in, rows);
            rows += it->n_ids;
        }
        QN_TRY(exec_begin(d->ex, spans, k, err));
        append(e->dspark, d);
        exec_commit(d->ex);
        for (int32_t i = 0; i < k; i++) {
            struct qn_mtp *m = items[at + i].mtp;
            m->next = mtp_next_state(m) + items[at + i].n_ids;
            m->n_true = kv_seq_len(m->kv);
        }
    }
    return QN_OK;
}

/* Items that want guesses, with their blocks' first rows. */
struct blocks {
    struct qn_mtp_item *it[MAX_ROWS];
    int32_t row[MAX_ROWS], n;
};

/* Guess k of every one of b, whose logits and rows are there. */
static void guess_one(struct qn_engine *e, const struct blocks *b, const struct tensor *logits,
                      int32_t k)
{
    struct dspark *s = e->dspark;
    struct model *d = &e->draft;
    int32_t prev[MAX_ROWS], row[MAX_ROWS], v = d->n_vocab;
    for (int32_t i = 0; i < b->n; i++) {
        prev[i] = k ? b->it[i]->drafts[k - 1] : b->it[i]->ids[b->it[i]->n_ids - 1];
        row[i] = b->row[i] + k;
    }
    exec_begin_rows(d->ex, prev, b->n);
    if (s->rank) {
        op_embed(d->ex, s->prev, s->w1, 1);
        op_linear(d->ex, &(struct linear){s->bias, 0, s->w2, NULL}, 1, s->prev);
    }
    if (s->sure) {
        op_pick(d->ex, s->row, d->hidden, row, b->n);
        if (s->sure_of_token)
            op_join(d->ex, s->pair, s->row, s->prev);
        op_linear(d->ex, &(struct linear){s->odds, 0, s->proj, s->proj_bias}, 1,
                  s->sure_of_token ? s->pair : s->row);
    }
    for (int32_t i = 0; i < b->n; i++) {
        struct qn_mtp_item *it = b->it[i];
        float odds;
        tensor_read(d->ex, logits, row[i], 1, s->logits);
        if (s->rank)
            tensor_read(d->ex, s->bias, i, 1, s->more);
        for (int32_t j = 0; s->rank && j < v; j++)
            s->logits[j] += s->more[j];
        it->drafts[k] = logits_best(s->logits, v);
        if (!it->probs)
            continue;
        it->probs[k] = s->sure ? 0 : logits_best_prob(s->logits, v, it->drafts[k]);
        if (!s->sure)
            continue;
        tensor_read(d->ex, s->odds, i, 1, &odds);
        it->probs[k] = (float)(1 / (1 + exp(-(double)odds)));
    }
}

/* One run over the blocks of as many of items[n] as fit; how many. */
static enum qn_status guess_some(struct qn_engine *e, struct qn_mtp_item *items, int32_t n,
                                 int32_t *did, struct qn_err *err)
{
    struct dspark *s = e->dspark;
    struct model *d = &e->draft;
    struct exec_span spans[MAX_ROWS];
    int32_t ids[MAX_ROWS], depth = 0;
    struct blocks b = {.n = 0};
    for (*did = 0; *did < n && (b.n + 1) * s->block <= MAX_ROWS; ++*did) {
        struct qn_mtp_item *it = &items[*did];
        int32_t *own = ids + b.n * s->block;
        if (it->n_draft == 0)
            continue;
        it->n_draft = it->n_draft < s->block ? it->n_draft : s->block;
        depth = it->n_draft > depth ? it->n_draft : depth;
        own[0] = it->ids[it->n_ids - 1];
        for (int32_t j = 1; j < s->block; j++)
            own[j] = s->mask;
        spans[b.n] = (struct exec_span){it->mtp->kv, own, s->block, s->block};
        b.row[b.n] = b.n * s->block;
        b.it[b.n++] = it;
    }
    if (b.n == 0)
        return QN_OK;
    QN_TRY(exec_begin(d->ex, spans, b.n, err));
    const struct tensor *logits = d->family->forward(d);
    exec_cancel(d->ex);
    for (int32_t k = 0; k < depth; k++) {
        int32_t left = 0;
        for (int32_t i = 0; i < b.n; i++)
            if (b.it[i]->n_draft > k) {
                b.row[left] = b.row[i];
                b.it[left++] = b.it[i];
            }
        b.n = left;
        guess_one(e, &b, logits, k);
    }
    return QN_OK;
}

enum qn_status dspark_step(struct qn_engine *e, struct qn_mtp_item *items, int32_t n,
                           struct qn_err *err)
{
    QN_TRY(take_states(e, items, n, err));
    for (int32_t at = 0, did; at < n; at += did)
        QN_TRY(guess_some(e, items + at, n - at, &did, err));
    return QN_OK;
}
