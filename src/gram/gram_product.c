/*
 * gram_product.c - the texts that several expressions match together (and others do not), as rules:
 * one for each reachable combination of their machines' states from which an end can be reached.
 *
 * Used where a JSON Schema asks for two things of one string or number at once. Bounded by
 * PRODUCT_STATES and by the work of all products of a grammar.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "gram/gram_int.h"

#define STEPS_MAX 4000000 /* of all products of one grammar */

void product_init(struct product *p, struct gb *b, const char *keyword)
{
    *p = (struct product){.keyword = keyword};
    gb_init(&p->src, b->err, b->fault);
    p->src.st = b->st;
}

void product_add(struct product *p, int32_t x, bool no)
{
    if (p->n == PRODUCT_MAX) {
        gb_fail(&p->src, QN_UNSUPPORTED, p->keyword, "more than %d conditions on one value",
                PRODUCT_MAX);
        return;
    }
    p->x[p->n] = x;
    p->no[p->n++] = no;
}

struct tuple {
    int32_t at[PRODUCT_MAX];
};

struct explorer {
    struct product *p;
    struct gb *b;
    struct prog prog[PRODUCT_MAX];
    struct machine m[PRODUCT_MAX];
    int32_t n_made, n_class;
    uint8_t class_of[256], byte_of[256];
    int16_t to[256][256]; /* pair of classes to joint class */
    VEC(int32_t) tuples;  /* p->n each */
    VEC(int32_t) next;    /* n_class each */
    int32_t n;            /* tuples */
    struct itab tab;
    uint8_t *live, *accept;
    bool failed;
};

static void stop(struct explorer *e, const char *why)
{
    e->failed = true;
    gb_fail(e->b, QN_UNSUPPORTED, e->p->keyword, "%s", why);
}

/* ---- setting up ------------------------------------------------------------------------------ */

static void join_classes(struct explorer *e)
{
    int16_t(*to)[256] = e->to;
    e->n_class = 1;
    for (int32_t i = 0; i < e->n_made; i++) {
        int32_t n = 0;
        memset(e->to, 0xFF, sizeof e->to);
        for (int c = 0; c < 256; c++) {
            int16_t *slot = &to[e->class_of[c]][e->prog[i].class_of[c]];
            if (*slot < 0)
                *slot = (int16_t)n++;
            e->class_of[c] = (uint8_t)*slot;
        }
        e->n_class = n;
    }
    for (int c = 255; c >= 0; c--)
        e->byte_of[e->class_of[c]] = (uint8_t)c;
}

/* Machines of all factors. False when nothing can match, or after a failure. */
static bool start(struct explorer *e, struct tuple *first)
{
    struct product *p = e->p;
    for (int32_t i = 0; i < p->n; i++) {
        if (prog_build(&p->src, p->x[i], &e->prog[i]) != QN_OK)
            return false;
        e->n_made = i + 1;
        first->at[i] = 0;
        if (e->prog[i].start == N_DEAD) {
            if (!p->no[i])
                return false;
            first->at[i] = STATE_DEAD;
            continue;
        }
        struct qn_err err = {0};
        if (machine_init(&e->m[i], &e->prog[i], &err) != QN_OK) {
            e->n_made = i + 1;
            stop(e, err.msg);
            return false;
        }
        e->m[i].steps_max = STEPS_MAX;
    }
    join_classes(e);
    return true;
}

/* ---- exploring ------------------------------------------------------------------------------- */

static uint64_t tuple_hash(const void *arg, int32_t i)
{
    const struct explorer *e = arg;
    return hash64(&e->tuples.v[i * e->p->n], (size_t)e->p->n * sizeof(int32_t), 0);
}

static bool tuple_accepts(const struct explorer *e, const int32_t *at)
{
    for (int32_t i = 0; i < e->p->n; i++) {
        bool yes = at[i] >= 0 && e->m[i].states.v[at[i]].accept;
        if (yes == e->p->no[i])
            return false;
    }
    return true;
}

/* The number of a tuple, made when new; -1 after a failure. */
static int32_t tuple_id(struct explorer *e, const struct tuple *t)
{
    int32_t k = e->p->n;
    size_t size = (size_t)k * sizeof(int32_t);
    /* room first: rehashing reads the tuples */
    if ((e->tab.n + 1) * 2 > e->tab.cap) {
        int32_t cap = e->tab.cap ? e->tab.cap * 2 : 256;
        int32_t *v = calloc((size_t)cap, sizeof *v);
        if (!v) {
            gb_no_memory(e->b);
            return -1;
        }
        for (int32_t i = 0; i < e->n; i++) {
            uint64_t h = tuple_hash(e, i);
            while (v[h & (uint64_t)(cap - 1)])
                h++;
            v[h & (uint64_t)(cap - 1)] = i + 1;
        }
        free(e->tab.v);
        e->tab.v = v;
        e->tab.cap = cap;
    }
    for (uint64_t h = hash64(t->at, size, 0);; h++) {
        int32_t *slot = &e->tab.v[h & (uint64_t)(e->tab.cap - 1)];
        if (*slot) {
            if (memcmp(&e->tuples.v[(*slot - 1) * k], t->at, size) == 0)
                return *slot - 1;
            continue;
        }
        if (e->n >= PRODUCT_STATES) {
            stop(e, "too complex together with the other limits on this value; loosen or drop one");
            return -1;
        }
        if (!VEC_ROOM(&e->tuples, k) || !VEC_ROOM(&e->next, e->n_class)) {
            gb_no_memory(e->b);
            return -1;
        }
        memcpy(&e->tuples.v[e->n * k], t->at, size);
        e->tuples.n += k;
        e->next.n += e->n_class;
        *slot = ++e->n;
        e->tab.n++;
        return e->n - 1;
    }
}

/* The tuple after a byte; false when no text can go on this way. */
static bool tuple_step(struct explorer *e, int32_t from, int cls, struct tuple *to)
{
    int32_t k = e->p->n;
    for (int32_t i = 0; i < k; i++) {
        int32_t s = e->tuples.v[from * k + i];
        s = s >= 0 ? machine_step(&e->m[i], s, e->byte_of[cls]) : STATE_DEAD;
        if (s >= 0 || !e->m[i].failed) {
            to->at[i] = s;
        } else {
            stop(e, e->m[i].failed);
            return false;
        }
        if (s < 0 && !e->p->no[i])
            return false;
    }
    return true;
}

static void explore(struct explorer *e, const struct tuple *first)
{
    tuple_id(e, first);
    for (int32_t i = 0; i < e->n && e->b->st == QN_OK; i++) {
        for (int32_t c = 0; c < e->n_class && e->b->st == QN_OK; c++) {
            struct tuple to;
            int32_t id = tuple_step(e, i, c, &to) ? tuple_id(e, &to) : -1;
            e->next.v[i * e->n_class + c] = id;
        }
        e->b->steps += (int64_t)e->n_class * e->p->n;
        if (e->b->steps > STEPS_MAX)
            stop(e, "the limits on strings and numbers of this schema are too complex together");
    }
}

/* States from which an accepting one can be reached: backwards passes until nothing changes. */
static bool mark_live(struct explorer *e)
{
    e->live = calloc((size_t)e->n + 1, 1);
    e->accept = calloc((size_t)e->n + 1, 1);
    int32_t *first = calloc((size_t)e->n + 2, sizeof *first), *todo = NULL, *back = NULL;
    size_t edges = (size_t)e->n * (size_t)e->n_class;
    back = malloc((edges + 1) * sizeof *back);
    todo = malloc(((size_t)e->n + 1) * sizeof *todo);
    bool ok = e->live && e->accept && first && back && todo;
    int32_t n = 0;
    for (size_t i = 0; ok && i < edges; i++)
        if (e->next.v[i] >= 0)
            first[e->next.v[i] + 1]++;
    for (int32_t i = 0; ok && i <= e->n; i++)
        first[i + 1] += first[i];
    for (size_t i = edges; ok && i-- > 0;) /* fills each list from its end */
        if (e->next.v[i] >= 0)
            back[--first[e->next.v[i] + 1]] = (int32_t)(i / (size_t)e->n_class);
    for (int32_t i = 0; ok && i < e->n; i++)
        if ((e->accept[i] = tuple_accepts(e, &e->tuples.v[i * e->p->n]))) {
            e->live[i] = 1;
            todo[n++] = i;
        }
    while (ok && n > 0) {
        int32_t s = todo[--n];
        for (int32_t k = first[s + 1]; k < first[s + 2]; k++) {
            if (e->live[back[k]])
                continue;
            e->live[back[k]] = 1;
            todo[n++] = back[k];
        }
    }
    free(first);
    free(back);
    free(todo);
    if (!ok)
        gb_no_memory(e->b);
    return ok;
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* One byte of a set, spelled. */
static int32_t spelled(struct gb *b, const struct byteset *s, enum gx_enc enc)
{
    struct byteset raw = *s;
    int32_t x = X_NONE;
    for (int c = 0; c < 0x80 && enc == ENC_JSON; c++) {
        if ((c >= 0x20 && c != '"' && c != '\\') || !byteset_has(s, c))
            continue;
        raw.w[c >> 6] &= ~((uint64_t)1 << (c & 63));
        x = X_ALT(b, x, x_cps(b, &(struct cprange){(uint32_t)c, (uint32_t)c}, 1, enc));
    }
    return X_ALT(b, x_set(b, &raw), x);
}

static int32_t state_rule(struct explorer *e, int32_t i, int32_t base, enum gx_enc enc)
{
    struct gb *b = e->b;
    int32_t v[257], n = 0;
    bool done[256] = {false};
    const int32_t *next = &e->next.v[(size_t)i * (size_t)e->n_class];
    if (e->accept[i])
        v[n++] = X_EMPTY;
    for (int32_t c = 0; c < e->n_class; c++) {
        struct byteset set = {0};
        if (done[c] || next[c] < 0 || !e->live[next[c]])
            continue;
        for (int byte = 0; byte < 256; byte++)
            if (next[e->class_of[byte]] == next[c])
                byteset_add(&set, byte);
        for (int32_t d = c; d < e->n_class; d++)
            done[d] |= next[d] == next[c];
        v[n++] = X_SEQ(b, spelled(b, &set, enc), x_ref(b, base + next[c]));
    }
    return x_alt(b, v, n);
}

static int32_t emit_rules(struct explorer *e, enum gx_enc enc)
{
    struct gb *b = e->b;
    if (b->st != QN_OK || e->n == 0 || !mark_live(e) || !e->live[0])
        return X_NONE;
    int32_t base = b->rules.n;
    for (int32_t i = 0; i < e->n; i++)
        x_rule(b);
    for (int32_t i = 0; i < e->n && b->st == QN_OK; i++)
        if (e->live[i])
            x_rule_set(b, base + i, state_rule(e, i, base, enc));
    return x_ref(b, base);
}

static void finish(struct explorer *e)
{
    for (int32_t i = 0; i < e->n_made; i++) {
        machine_free(&e->m[i]);
        prog_free(&e->prog[i]);
    }
    free(e->tuples.v);
    free(e->next.v);
    free(e->tab.v);
    free(e->live);
    free(e->accept);
    free(e);
}

int32_t product_end(struct product *p, struct gb *b, enum gx_enc enc)
{
    struct explorer *e = calloc(1, sizeof *e);
    struct tuple first;
    int32_t x = X_NONE;
    if (!e)
        gb_no_memory(b);
    if (p->src.st != QN_OK && b->st == QN_OK)
        b->st = p->src.st;
    if (e && b->st == QN_OK) {
        e->p = p;
        e->b = b;
        if (start(e, &first)) {
            explore(e, &first);
            x = emit_rules(e, enc);
        }
        if (p->src.st != QN_OK && b->st == QN_OK)
            b->st = p->src.st;
    }
    if (e)
        finish(e);
    gb_free(&p->src);
    return b->st == QN_OK ? x : X_NONE;
}

bool product_has(struct product *p, struct str text)
{
    bool yes = true;
    for (int32_t i = 0; i < p->n && yes && p->src.st == QN_OK; i++) {
        struct prog prog;
        struct machine m;
        int32_t s = 0;
        if (prog_build(&p->src, p->x[i], &prog) != QN_OK)
            return false;
        bool ok = prog.start != N_DEAD && machine_init(&m, &prog, NULL) == QN_OK;
        if (prog.start != N_DEAD) {
            m.steps_max = STEPS_MAX;
            for (size_t k = 0; ok && k < text.n && s >= 0; k++)
                s = machine_step(&m, s, (uint8_t)text.p[k]);
            ok = ok && s >= 0 && m.states.v[s].accept;
            machine_free(&m);
        }
        prog_free(&prog);
        yes = ok != p->no[i];
    }
    return yes;
}
