/*
 * assistant.c - a query-only draft model (Gemma 4's "assistant") beside the model whose tokens it
 * guesses: loading its folder, and its steps. A guess behind n-1 tokens that the model has read and
 * one that it has not:
 *
 *     x = pre( embedding of the last token | normed state of the one before )    the model's table
 *     h = the layers over x, at position n-1: they see keys and values of the model's own layers
 *     guess = the likeliest of head(rms(h));  post(rms(h)) is the state for the next guess
 *
 * at the same position. With ordered embeddings only tokens of the best clusters are looked at:
 * centroids rms(h) says which clusters, token_ordering which tokens. Contexts are mtp.c's; there is
 * no memory of its own. The scheduler's thread alone.
 */
#include <math.h>
#include <stdlib.h>

#include "model/decoder.h"
#include "model/engine_int.h"
#include "model/guess_stop.h"
#include "model/logits.h"

static const char CFG[] = "config.json";
static const char WHERE[] = "assistant";

struct assistant {
    struct weight *pre, *post;
    struct tensor *token, *state, *joined, *next; /* [n_embd of the model]; joined twice */
    /* Ordered embeddings; n_cluster 0 = every token is looked at. */
    int32_t n_cluster, n_best, size; /* of them looked at; tokens of one */
    struct weight *centroids;
    struct tensor *scores, *rows; /* of clusters; of the head */
    int32_t *order;               /* [n_vocab] tokens, cluster by cluster */
    int32_t *ids;                 /* [n_best * size] those looked at */
    float *score, *hidden, *copy; /* [n_cluster]; [n_embd]; [MAX_ROWS, n_embd] */
    float *logits;                /* [n_vocab], or of ids */
};

/* ---- config.json ----------------------------------------------------------------------------- */

static enum qn_status check_kind(const struct model *m, const struct json *c, struct qn_err *err)
{
    struct str type = json_str(json_get(c, "model_type"));
    if (!str_eqz(type, "gemma4_assistant") && !str_eqz(type, "gemma4_unified_assistant"))
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%s: model_type \"" STR_FMT "\" is no draft model that reads the model's keys and "
                "values (gemma4_assistant); a smaller model goes with --draft-kind two-model",
                CFG, STR_ARG(type));
    if (m->family != family_find(STR_LIT("gemma4")))
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%s: " STR_FMT " guesses for gemma4 models; this one is %s", CFG, STR_ARG(type),
                m->family->name);
    if (json_type(json_get(c, "text_config")) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%s: text_config is missing", CFG);
    return QN_OK;
}

static enum qn_status read_config(struct qn_engine *e, const struct json *c, struct qn_err *err)
{
    struct model *d = &e->draft;
    const struct model *m = &e->model;
    int32_t backbone;
    QN_TRY(check_kind(m, c, err));
    *d = (struct model){.family = m->family, .lender = m, .hidden_normed = true};
    QN_TRY(d->family->config(d, json_get(c, "text_config"), err));
    QN_TRY(json_req_i32(c, CFG, "backbone_hidden_size", 1, WEIGHT_DIM_MAX, &backbone, err));
    if (backbone != m->n_embd)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%s: backbone_hidden_size %d; the model's hidden_size is %d, and they have to be "
                "the same",
                CFG, backbone, m->n_embd);
    if (d->n_vocab != m->n_vocab)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%s: vocab_size %d; the model's is %d, and they have to be the same", CFG,
                d->n_vocab, m->n_vocab);
    struct decoder *dec = d->state;
    return json_opt_bool(c, CFG, "tie_word_embeddings", true, &dec->tied, err);
}

/* ---- weights --------------------------------------------------------------------------------- */

static enum qn_status load_clusters(struct qn_engine *e, struct loader *l, const struct json *c,
                                    struct qn_err *err)
{
    struct assistant *s = e->assistant;
    struct model *d = &e->draft;
    int32_t v = d->n_vocab;
    bool on = loader_has(l, "masked_embedding.centroids.weight");
    QN_TRY(json_opt_bool(c, CFG, "use_ordered_embeddings", on, &on, err));
    if (!on)
        return QN_OK;
    QN_TRY(json_opt_i32(c, CFG, "num_centroids", 2048, 1, v, &s->n_cluster, err));
    QN_TRY(
        json_opt_i32(c, CFG, "centroid_intermediate_top_k", 32, 1, s->n_cluster, &s->n_best, err));
    if (s->n_best > s->n_cluster) /* by default */
        s->n_best = s->n_cluster;
    if (v % s->n_cluster)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%s: vocab_size %d is not a multiple of num_centroids %d",
                CFG, v, s->n_cluster);
    s->size = v / s->n_cluster;
    s->order = calloc((size_t)v, sizeof *s->order);
    s->ids = calloc((size_t)s->n_best * (size_t)s->size, sizeof *s->ids);
    s->score = calloc((size_t)s->n_cluster, sizeof *s->score);
    s->hidden = calloc((size_t)d->n_embd, sizeof *s->hidden);
    s->copy = calloc((size_t)MAX_ROWS * (size_t)d->n_embd, sizeof *s->copy);
    if (!s->order || !s->ids || !s->score || !s->hidden || !s->copy)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory for %d clusters", s->n_cluster);
    d->no_logits = true;
    QN_TRY(tensor_create(d->ex, s->n_cluster, &s->scores, err));
    QN_TRY(tensor_create(d->ex, d->n_embd, &s->rows, err));
    QN_TRY(
        load_matrix(l, &s->centroids, s->n_cluster, d->n_embd, err, "masked_embedding.centroids"));
    return load_ids(l, s->order, v, v, err, "masked_embedding.token_ordering");
}

static enum qn_status load_weights(struct qn_engine *e, struct loader *l, const struct json *c,
                                   struct qn_err *err)
{
    struct assistant *s = e->assistant;
    struct model *d = &e->draft;
    int32_t wide = e->model.n_embd;
    QN_TRY(load_matrix(l, &s->pre, d->n_embd, 2 * wide, err, "pre_projection"));
    QN_TRY(load_matrix(l, &s->post, wide, d->n_embd, err, "post_projection"));
    QN_TRY(load_clusters(e, l, c, err));
    QN_TRY(d->family->load(d, l, err));
    QN_TRY(tensor_create(d->ex, d->n_embd, &d->hidden_in, err));
    QN_TRY(tensor_create(d->ex, wide, &s->token, err));
    QN_TRY(tensor_create(d->ex, wide, &s->state, err));
    QN_TRY(tensor_create(d->ex, wide, &s->next, err));
    QN_TRY(tensor_create(d->ex, 2 * wide, &s->joined, err));
    s->logits = calloc((size_t)d->n_vocab, sizeof *s->logits);
    if (!s->logits)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory for %d logits", d->n_vocab);
    return QN_OK;
}

static enum qn_status load_folder(struct qn_engine *e, const char *dir, const struct json *c,
                                  struct qn_err *err)
{
    struct model *d = &e->draft;
    QN_TRY(read_config(e, c, err));
    QN_TRY(exec_create_beside(e->ex, e->info.n_ctx, &d->ex, err));
    QN_TRY(kv_borrow(d->ex, e->ex, err));
    return draft_load_folder(e, dir, c, load_weights, err);
}

enum qn_status assistant_load(struct qn_engine *e, const struct qn_engine_params *p,
                              struct qn_err *err)
{
    struct json *c = NULL;
    if (!p->draft_dir)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "a draft model needs draft_dir");
    QN_TRY(engine_json(p->draft_dir, "config.json", &c, err));
    e->assistant = calloc(1, sizeof *e->assistant);
    e->state_cols = e->model.n_embd;
    e->state_rows = 2 * QN_ROLLBACK;
    e->model.hidden_normed = true;
    enum qn_status st = e->assistant ? load_folder(e, p->draft_dir, c, err)
                                     : err_set(err, QN_NO_MEMORY, WHERE, "out of memory");
    json_free(c);
    if (st != QN_OK && err)
        err_prefix(err, "draft model"); /* the model's files have the same names */
    return st;
}

void assistant_unload(struct qn_engine *e)
{
    struct assistant *s = e->assistant;
    if (!s)
        return;
    free(s->order);
    free(s->ids);
    free(s->score);
    free(s->hidden);
    free(s->copy);
    free(s->logits);
    free(s);
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The tokens of the clusters with the largest scores, among equals the lower ones, into s->ids. */
static int32_t shortlist(struct assistant *s)
{
    int32_t n = 0;
    for (int32_t b = 0; b < s->n_best; b++) {
        int32_t k = logits_best(s->score, s->n_cluster);
        s->score[k] = -INFINITY;
        for (int32_t j = 0; j < s->size; j++)
            s->ids[n++] = s->order[k * s->size + j];
    }
    return n;
}

/* Always summed in the same order. */
static double dot(const float *a, const float *b, int32_t n)
{
    double part[8] = {0}, sum = 0;
    for (int32_t i = 0; i < n; i++)
        part[i % 8] += (double)a[i] * (double)b[i];
    for (int i = 0; i < 8; i++)
        sum += part[i];
    return sum;
}

/* Logits of s->ids[n], by the rows of the head. */
static void score_list(struct qn_engine *e, int32_t n)
{
    struct assistant *s = e->assistant;
    struct model *d = &e->draft;
    const struct decoder *dec = d->state;
    for (int32_t at = 0, k; at < n; at += k) {
        k = n - at < MAX_ROWS ? n - at : MAX_ROWS;
        exec_begin_rows(d->ex, s->ids + at, k);
        op_embed(d->ex, s->rows, dec->head, 1);
        tensor_read(d->ex, s->rows, 0, k, s->copy);
        for (int32_t i = 0; i < k; i++)
            s->logits[at + i] =
                (float)dot(s->hidden, s->copy + (size_t)i * (size_t)d->n_embd, d->n_embd);
    }
}

/* The likeliest of a list, among equals the lowest id; its place. */
static int32_t best_listed(const struct assistant *s, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (s->logits[i] > s->logits[best] ||
            (s->logits[i] == s->logits[best] && s->ids[i] < s->ids[best]))
            best = i;
    return best;
}

/* The guess from a row of the step; p NULL = nobody asks how likely it is. */
static void choose(struct qn_engine *e, const struct tensor *logits, int32_t row, int32_t *id,
                   float *p)
{
    struct assistant *s = e->assistant;
    struct model *d = &e->draft;
    int32_t n = d->n_vocab, best;
    if (s->n_cluster) {
        tensor_read(d->ex, s->scores, row, 1, s->score);
        tensor_read(d->ex, d->hidden, row, 1, s->hidden);
        n = shortlist(s);
        score_list(e, n);
        best = best_listed(s, n);
        *id = s->ids[best];
    } else {
        tensor_read(d->ex, logits, row, 1, s->logits);
        *id = best = logits_best(s->logits, n);
    }
    if (p)
        *p = logits_best_prob(s->logits, n, best);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Items that want a guess more: the tokens it follows; their states are rows of s->state. */
struct round {
    struct qn_mtp_item *it[MAX_ROWS];
    struct kv_seq *seqs[MAX_ROWS];
    int32_t ids[MAX_ROWS], n;
};

/* Guess k of all; those that want another stay, with the states for it. */
static void guess(struct qn_engine *e, struct round *r, int32_t k)
{
    struct assistant *s = e->assistant;
    struct model *d = &e->draft;
    const struct decoder *of = e->model.state;
    int32_t rows[MAX_ROWS], left = 0;
    exec_begin_past(d->ex, r->seqs, r->ids, r->n);
    op_embed(d->ex, s->token, of->embed, of->embed_scale);
    op_join(d->ex, s->joined, s->token, s->state);
    op_linear(d->ex, &(struct linear){d->hidden_in, 0, s->pre, NULL}, 1, s->joined);
    const struct tensor *logits = d->family->forward(d);
    if (s->n_cluster)
        op_linear(d->ex, &(struct linear){s->scores, 0, s->centroids, NULL}, 1, d->hidden);
    for (int32_t i = 0; i < r->n; i++) {
        struct qn_mtp_item *it = r->it[i];
        choose(e, logits, i, &it->drafts[k], it->probs ? &it->probs[k] : NULL);
        if (!guess_goes_on(it->odds, it->least, it->probs, k + 1))
            it->n_draft = k + 1;
        if (it->n_draft <= k + 1)
            continue;
        rows[left] = i;
        r->it[left] = it;
        r->seqs[left] = r->seqs[i];
        r->ids[left++] = it->drafts[k];
    }
    r->n = left;
    if (!left)
        return;
    op_linear(d->ex, &(struct linear){s->next, 0, s->post, NULL}, 1, d->hidden);
    op_pick(d->ex, s->state, s->next, rows, left);
}

void assistant_step(struct qn_engine *e, struct qn_mtp_item *items, int32_t n)
{
    struct round r = {.n = 0};
    for (int32_t i = 0; i < n; i++) {
        struct qn_mtp_item *it = &items[i];
        struct qn_mtp *m = it->mtp;
        m->next = mtp_next_state(m) + it->n_ids;
        if (m->next != qn_seq_len(m->seq))
            it->n_draft = 0;
        if (!it->n_draft)
            continue;
        kept_get(m->states, m->next - 1, 1, e->assistant->state, r.n);
        r.it[r.n] = it;
        r.seqs[r.n] = m->seq->kv;
        r.ids[r.n++] = it->ids[it->n_ids - 1];
    }
    for (int32_t k = 0; r.n > 0; k++)
        guess(e, &r, k);
}
