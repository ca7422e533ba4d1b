/*
 * gram_run.c - compiled grammars and the state of one answer. See gram.h.
 *
 * What a machine has learnt may grow too large: the grammar then starts a new one for later runs,
 * and a run that still uses a full one moves over with the states it remembers.
 */
#include <stdio.h>
#include <stdlib.h>

#include "gram/gram_int.h"

#define WHERE      "grammar"
#define LAZY_BYTES ((int64_t)24 << 20) /* of states and masks, before a fresh start */
#define ENDED      (-3)                /* the state after EOS */

struct gram_run {
    struct gram *g;
    struct lazy *z;
    int32_t state;
    int32_t back[GRAM_ROLLBACK_MAX]; /* states before the last tokens, a ring */
    int32_t n_back, at_back;
    int32_t n_eos;
    int32_t *eos;
    uint64_t *bits; /* the mask handed out, with EOS */
};

/* ---- compiling ------------------------------------------------------------------------------- */

static int by_choice(struct gb *b, const struct json *list)
{
    size_t n = json_len(list);
    if (json_type(list) != JSON_ARR || n == 0)
        return gb_fail(b, QN_BAD_INPUT, NULL,
                       "expected a non-empty array of strings to choose from");
    struct str *v = malloc(n * sizeof *v);
    if (!v)
        return gb_no_memory(b);
    for (size_t i = 0; i < n; i++) {
        v[i] = json_str(json_at(list, i));
        if (json_type(json_at(list, i)) != JSON_STR)
            gb_fail(b, QN_BAD_INPUT, NULL, "choice %zu is of type %s; expected a string", i,
                    json_type_name(json_at(list, i)));
    }
    int32_t x = b->st == QN_OK ? x_strset(b, v, n, ENC_RAW) : X_NONE;
    free(v);
    return x;
}

static int32_t answer_of(struct gb *b, const struct gram_spec *s)
{
    switch (s->kind) {
    case GRAM_JSON_OBJECT:
        return x_json_object(b);
    case GRAM_JSON_SCHEMA:
        return x_schema(b, s->json);
    case GRAM_REGEX:
        return x_regex(b, s->text, true, ENC_RAW);
    case GRAM_CHOICE:
        return by_choice(b, s->json);
    case GRAM_GBNF:
        return x_gbnf(b, s->text);
    case GRAM_TAGS:
        return x_tags(b, s->tags);
    }
    return X_NONE;
}

static int32_t root_of(struct gb *b, const struct gram_spec *s)
{
    int32_t x = X_SEQ(b, x_markup(b, s->lead), answer_of(b, s));
    return s->kind == GRAM_TAGS || !s->tags ? x : X_ALT(b, x, x_tags(b, s->tags));
}

/* A text as it is, or as the one control token of that name. */
static int32_t marked(struct gb *b, struct str s)
{
    char mark = (char)SPECIAL_BYTE;
    int32_t text = x_lit(b, s);
    return X_ALT(b, text, X_SEQ(b, x_lit(b, (struct str){&mark, 1}), text));
}

/* Thinking before the answer. */
static int32_t after(struct gb *b, const struct gram_spec *s, int32_t x)
{
    struct byteset ws = {0};
    byteset_add(&ws, ' ');
    byteset_add(&ws, '\n');
    byteset_add(&ws, '\r');
    if (s->after.n == 0)
        return x;
    int32_t space = x_rep(b, x_set(b, &ws), 0, 4);
    int32_t thought = X_SEQ(b, x_search(b, s->after, SEARCH_FREE), space, x);
    if (s->open.n == 0)
        return thought;
    return X_ALT(b, x, X_SEQ(b, marked(b, s->open), thought));
}

/* Says why nothing can be said, before anyone waits for a token. */
static enum qn_status check_start(struct gram *g, const struct gb *b, struct qn_err *err)
{
    struct machine m;
    if (g->prog.start == N_DEAD) {
        if (b->fault)
            *b->fault = b->none;
        if (b->none.keyword[0])
            QN_FAIL(err, QN_BAD_INPUT, WHERE, "%s: %s; nothing can satisfy that", b->none.keyword,
                    b->none_why);
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "nothing can satisfy it: no text is allowed");
    }
    enum qn_status st = machine_init(&m, &g->prog, err);
    machine_free(&m);
    return st;
}

enum qn_status gram_compile(const struct gram_spec *spec, struct gram **out,
                            struct gram_fault *fault, struct qn_err *err)
{
    struct gb b;
    *out = NULL;
    if (fault)
        memset(fault, 0, sizeof *fault);
    struct gram *g = calloc(1, sizeof *g);
    if (!g)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a grammar");
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->mu, NULL);
    gb_init(&b, err, fault);
    b.compact = spec->compact;
    b.lenient = spec->lenient;
    int32_t root = after(&b, spec, root_of(&b, spec));
    enum qn_status st = prog_build(&b, root, &g->prog);
    if (st == QN_OK)
        st = check_start(g, &b, err);
    gb_free(&b);
    if (st != QN_OK) {
        if (fault && !fault->keyword[0] && spec->kind == GRAM_GBNF)
            snprintf(fault->keyword, sizeof fault->keyword, "grammar");
        gram_unref(g);
        return st;
    }
    *out = g;
    return QN_OK;
}

struct gram *gram_ref(struct gram *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void gram_unref(struct gram *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    lazy_unref(g->current);
    prog_free(&g->prog);
    pthread_mutex_destroy(&g->mu);
    free(g);
}

/* ---- which machine --------------------------------------------------------------------------- */

static bool is_full(struct lazy *z)
{
    pthread_mutex_lock(&z->mu);
    bool full = z->m.bytes + z->mask_bytes > LAZY_BYTES;
    pthread_mutex_unlock(&z->mu);
    return full;
}

/* The grammar's machine for this vocabulary, a reference of it. `not`: one that is full. */
static enum qn_status take_lazy(struct gram *g, struct gram_vocab *v, const struct lazy * not,
                                struct lazy **out, struct qn_err *err)
{
    enum qn_status st = QN_OK;
    pthread_mutex_lock(&g->mu);
    struct lazy *z = g->current;
    if (!z || z == not || z->vocab != v || is_full(z)) {
        st = lazy_create(g, v, &z, err);
        if (st == QN_OK) {
            lazy_unref(g->current);
            g->current = z;
        }
    }
    if (st == QN_OK) {
        atomic_fetch_add(&z->refs, 1);
        *out = z;
    }
    pthread_mutex_unlock(&g->mu);
    return st;
}

/* Moves the run to a machine with room, with everything it remembers. */
static enum qn_status move(struct gram_run *r, struct qn_err *err)
{
    struct lazy *to = NULL, *from = r->z;
    QN_TRY(take_lazy(r->g, from->vocab, from, &to, err));
    pthread_mutex_lock(&to->mu);
    pthread_mutex_lock(&from->mu);
    to->m.failed = NULL;
    int32_t state = r->state >= 0 ? machine_import(&to->m, &from->m, r->state) : r->state;
    for (int32_t i = 0; i < r->n_back; i++) {
        int32_t *s = &r->back[(r->at_back - 1 - i + 2 * GRAM_ROLLBACK_MAX) % GRAM_ROLLBACK_MAX];
        *s = machine_import(&to->m, &from->m, *s);
    }
    bool failed = to->m.failed != NULL;
    pthread_mutex_unlock(&from->mu);
    pthread_mutex_unlock(&to->mu);
    r->state = state;
    r->z = to;
    lazy_unref(from);
    if (failed)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the grammar's states");
    return QN_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

enum qn_status gram_run_create(struct gram *g, struct gram_vocab *v, const int32_t *eos,
                               int32_t n_eos, struct gram_run **out, struct qn_err *err)
{
    *out = NULL;
    struct gram_run *r = calloc(1, sizeof *r);
    if (!r)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory to follow a grammar");
    r->g = gram_ref(g);
    r->eos = malloc(((size_t)n_eos + 1) * sizeof *r->eos);
    r->bits = malloc((size_t)v->n_words * sizeof *r->bits);
    enum qn_status st = QN_OK;
    if (!r->eos || !r->bits)
        st = err_set(err, QN_NO_MEMORY, WHERE, "no memory to follow a grammar");
    for (int32_t i = 0; st == QN_OK && i < n_eos; i++)
        if (eos[i] >= 0 && eos[i] < v->n_vocab)
            r->eos[r->n_eos++] = eos[i];
    if (st == QN_OK)
        st = take_lazy(g, v, NULL, &r->z, err);
    if (st != QN_OK) {
        gram_run_free(r);
        return st;
    }
    *out = r;
    return QN_OK;
}

void gram_run_free(struct gram_run *r)
{
    if (!r)
        return;
    lazy_unref(r->z);
    gram_unref(r->g);
    free(r->eos);
    free(r->bits);
    free(r);
}

bool gram_run_complete(const struct gram_run *r)
{
    if (r->state == ENDED)
        return true;
    pthread_mutex_lock(&r->z->mu);
    bool accept = r->z->m.states.v[r->state].accept;
    pthread_mutex_unlock(&r->z->mu);
    return accept;
}

bool gram_run_must_stop(const struct gram_run *r)
{
    if (r->state == ENDED)
        return true;
    pthread_mutex_lock(&r->z->mu);
    const struct mstate *s = &r->z->m.states.v[r->state];
    bool stop = s->accept && s->n == 0;
    pthread_mutex_unlock(&r->z->mu);
    return stop;
}

static bool is_eos(const struct gram_run *r, int32_t id)
{
    for (int32_t i = 0; i < r->n_eos; i++)
        if (r->eos[i] == id)
            return true;
    return false;
}

/* Under the lazy's lock. */
static enum qn_status copy_mask(struct gram_run *r, struct qn_err *err)
{
    struct lazy *z = r->z;
    const struct mask *m = lazy_mask(z, r->state);
    if (!m)
        QN_FAIL(err, z->m.failed ? QN_UNSUPPORTED : QN_NO_MEMORY, WHERE, "%s",
                z->m.failed ? z->m.failed : "no memory for a mask of tokens");
    bool accept = z->m.states.v[r->state].accept;
    if (!m->any && !(accept && r->n_eos))
        QN_FAIL(err, QN_UNSUPPORTED, WHERE,
                "no token of the model can continue the text as the grammar asks");
    memcpy(r->bits, m->bits, (size_t)z->vocab->n_words * sizeof *r->bits);
    for (int32_t i = 0; i < r->n_eos; i++) {
        uint64_t bit = (uint64_t)1 << (r->eos[i] & 63);
        if (accept)
            r->bits[r->eos[i] >> 6] |= bit;
        else
            r->bits[r->eos[i] >> 6] &= ~bit;
    }
    return QN_OK;
}

enum qn_status gram_run_mask(struct gram_run *r, const uint64_t **bits, struct qn_err *err)
{
    *bits = r->bits;
    if (r->state == ENDED)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "the answer has ended");
    if (is_full(r->z))
        QN_TRY(move(r, err));
    pthread_mutex_lock(&r->z->mu);
    enum qn_status st = copy_mask(r, err);
    pthread_mutex_unlock(&r->z->mu);
    return st;
}

/* The state after a token; STATE_DEAD when it is not allowed. Under the lock. */
static int32_t after_token(struct gram_run *r, int32_t id)
{
    const struct gram_vocab *v = r->z->vocab;
    struct machine *m = &r->z->m;
    int32_t s = r->state;
    m->failed = NULL;
    m->steps = 0;
    if (id < 0 || id >= v->n_vocab || v->begin[id] == v->begin[id + 1])
        return STATE_DEAD;
    for (int32_t i = v->begin[id]; i < v->begin[id + 1] && s >= 0; i++)
        s = machine_step(m, s, (uint8_t)v->text[i]);
    return s;
}

static void remember(struct gram_run *r)
{
    r->back[r->at_back] = r->state;
    r->at_back = (r->at_back + 1) % GRAM_ROLLBACK_MAX;
    if (r->n_back < GRAM_ROLLBACK_MAX)
        r->n_back++;
}

enum qn_status gram_run_accept(struct gram_run *r, int32_t id, struct qn_err *err)
{
    const char *failed = NULL;
    int32_t to = STATE_DEAD;
    if (r->state == ENDED)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "the answer has ended");
    if (is_eos(r, id)) {
        if (gram_run_complete(r))
            to = ENDED;
    } else {
        pthread_mutex_lock(&r->z->mu);
        to = after_token(r, id);
        failed = r->z->m.failed;
        pthread_mutex_unlock(&r->z->mu);
    }
    if (failed)
        QN_FAIL(err, QN_UNSUPPORTED, WHERE, "%s", failed);
    if (to == STATE_DEAD)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "the grammar does not allow token %d here", id);
    remember(r);
    r->state = to;
    return QN_OK;
}

bool gram_run_rollback(struct gram_run *r, int32_t n)
{
    if (n < 0 || n > r->n_back)
        return false;
    for (int32_t i = 0; i < n; i++) {
        r->at_back = (r->at_back + GRAM_ROLLBACK_MAX - 1) % GRAM_ROLLBACK_MAX;
        r->state = r->back[r->at_back];
    }
    r->n_back -= n;
    return true;
}

/* ---- for tests ------------------------------------------------------------------------------- */

size_t gram_match(struct gram *g, struct str text, bool *complete)
{
    struct machine m;
    size_t i = 0;
    int32_t s = 0;
    *complete = false;
    if (machine_init(&m, &g->prog, NULL) != QN_OK) {
        machine_free(&m);
        return SIZE_MAX;
    }
    m.steps_max = INT64_MAX;
    for (; i < text.n; i++) {
        int32_t to = machine_step(&m, s, (uint8_t)text.p[i]);
        if (to < 0)
            break;
        s = to;
    }
    *complete = i == text.n && m.states.v[s].accept;
    machine_free(&m);
    return i;
}

void gram_stats(struct gram *g, struct gram_stats *out)
{
    *out = (struct gram_stats){.nodes = g->prog.n.n};
    pthread_mutex_lock(&g->mu);
    struct lazy *z = g->current;
    if (z) {
        pthread_mutex_lock(&z->mu);
        out->states = z->m.states.n;
        out->frames = z->m.frames.n;
        out->masks = z->n_masks;
        out->bytes = z->m.bytes + z->mask_bytes;
        out->mask_hits = z->hits;
        pthread_mutex_unlock(&z->mu);
    }
    pthread_mutex_unlock(&g->mu);
}
