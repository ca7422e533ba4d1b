/*
 * gram_machine.c - runs a program: a state is the set of all (node, stack) places that the bytes so
 * far can have led to. States, stacks and transitions are found when first needed and kept, each
 * once (interned), so that the same question later is one look into a table.
 *
 * Stacks are lists that share their tails. One user at a time. Work is counted: past steps_max, or
 * past a limit of places or depth, `failed` says why and everything answers STATE_DEAD.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "gram/gram_int.h"

#define WHERE       "grammar"
#define DEPTH_MAX   600   /* frames; deeper places are given up */
#define CONFIGS_MAX 20000 /* places of one state */
#define STATES_MAX  (1 << 24)

/* ---- interning ------------------------------------------------------------------------------- */

static bool itab_room(struct itab *t, uint64_t (*hash)(const void *, int32_t), const void *arg)
{
    if ((t->n + 1) * 2 <= t->cap)
        return true;
    int32_t cap = t->cap ? t->cap * 2 : 256;
    int32_t *v = calloc((size_t)cap, sizeof *v);
    if (!v)
        return false;
    for (int32_t i = 0; i < t->cap; i++) {
        if (!t->v[i])
            continue;
        uint64_t h = hash(arg, t->v[i] - 1);
        while (v[h & (uint64_t)(cap - 1)])
            h++;
        v[h & (uint64_t)(cap - 1)] = t->v[i];
    }
    free(t->v);
    t->v = v;
    t->cap = cap;
    return true;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 29;
    h = (h + b) * 0x94D049BB133111EBu;
    return h ^ h >> 32;
}

static uint64_t frame_mix(const struct frame *f)
{
    return mix(mix((uint64_t)(uint32_t)f->parent << 32 | (uint32_t)f->node, 7), (uint32_t)f->count);
}

static uint64_t frame_hash(const void *arg, int32_t i)
{
    const struct machine *m = arg;
    return frame_mix(&m->frames.v[i]);
}

static uint64_t state_hash(const void *arg, int32_t i)
{
    const struct machine *m = arg;
    return m->states.v[i].hash;
}

static int32_t fail(struct machine *m, const char *why)
{
    if (!m->failed)
        m->failed = why;
    return -1;
}

static const char no_memory[] = "no memory for the grammar's states";

/* The frame on top of parent; -1 when it would be too deep or memory is out. */
static int32_t push_frame(struct machine *m, int32_t parent, int32_t node, int32_t count)
{
    struct frame f = {parent, node, count, m->frames.v[parent].depth + 1};
    if (f.depth > DEPTH_MAX)
        return -1;
    if (!itab_room(&m->frame_tab, frame_hash, m))
        return fail(m, no_memory);
    uint64_t h = frame_mix(&f);
    for (;; h++) {
        int32_t *slot = &m->frame_tab.v[h & (uint64_t)(m->frame_tab.cap - 1)];
        if (!*slot) {
            if (!VEC_ROOM(&m->frames, 1))
                return fail(m, no_memory);
            m->frames.v[m->frames.n++] = f;
            m->frame_tab.n++;
            m->bytes += (int64_t)sizeof f + 8;
            *slot = m->frames.n;
            return m->frames.n - 1;
        }
        const struct frame *o = &m->frames.v[*slot - 1];
        if (o->parent == parent && o->node == node && o->count == count)
            return *slot - 1;
    }
}

/* ---- closure --------------------------------------------------------------------------------- */

static bool seen_room(struct machine *m)
{
    if ((m->seen_n + 1) * 2 <= m->seen_cap)
        return true;
    int32_t cap = m->seen_cap ? m->seen_cap * 2 : 256;
    uint64_t *v = malloc((size_t)cap * sizeof *v);
    uint32_t *e = calloc((size_t)cap, sizeof *e);
    if (!v || !e) {
        free(v);
        free(e);
        return false;
    }
    for (int32_t i = 0; i < m->seen_cap; i++) {
        if (m->seen_epoch[i] != m->epoch)
            continue;
        uint64_t h = mix(m->seen[i], 1);
        while (e[h & (uint64_t)(cap - 1)] == m->epoch)
            h++;
        v[h & (uint64_t)(cap - 1)] = m->seen[i];
        e[h & (uint64_t)(cap - 1)] = m->epoch;
    }
    free(m->seen);
    free(m->seen_epoch);
    m->seen = v;
    m->seen_epoch = e;
    m->seen_cap = cap;
    return true;
}

/* True the first time in this closure. */
static bool first_visit(struct machine *m, struct config c)
{
    uint64_t key = (uint64_t)(uint32_t)c.node << 32 | (uint32_t)c.stack, h = mix(key, 1);
    if (!seen_room(m)) {
        fail(m, no_memory);
        return false;
    }
    for (;; h++) {
        size_t i = h & (uint64_t)(m->seen_cap - 1);
        if (m->seen_epoch[i] != m->epoch) {
            m->seen_epoch[i] = m->epoch;
            m->seen[i] = key;
            m->seen_n++;
            return true;
        }
        if (m->seen[i] == key)
            return false;
    }
}

static void go(struct machine *m, int32_t node, int32_t stack)
{
    if (stack < 0 || node == N_DEAD)
        return;
    if (!VEC_ROOM(&m->work, 1)) {
        fail(m, no_memory);
        return;
    }
    m->work.v[m->work.n++] = (struct config){node, stack};
}

static void look_at(struct machine *m, int32_t depth)
{
    if (depth < m->low)
        m->low = depth;
}

/* After `count` whole rounds of repetition rep over the stack `below`. */
static void rounds(struct machine *m, int32_t rep, int32_t count, int32_t below)
{
    const struct gnode *n = &m->p->n.v[rep];
    int32_t min = n->b, max = n->c;
    if (max < 0 && count > min)
        count = min; /* nothing tells them apart */
    if (max < 0 || count < max)
        go(m, n->a, push_frame(m, below, rep, count));
    if (count >= min)
        go(m, n->next, below);
}

static void visit(struct machine *m, struct config c)
{
    const struct gnode *n = &m->p->n.v[c.node];
    struct frame f = m->frames.v[c.stack];
    switch (n->op) {
    case GN_BYTES:
        if (m->out.n >= CONFIGS_MAX || !VEC_ROOM(&m->out, 1))
            fail(m, "the grammar is too ambiguous: too many ways to read the text so far");
        else
            m->out.v[m->out.n++] = c;
        break;
    case GN_SPLIT:
        for (int32_t i = n->b - 1; i >= 0; i--)
            go(m, m->p->kids.v[n->a + i], c.stack);
        break;
    case GN_JUMP:
        go(m, m->p->rule_start[n->a], c.stack);
        break;
    case GN_CALL:
        go(m, m->p->rule_start[n->a], push_frame(m, c.stack, n->next, 0));
        break;
    case GN_RET:
        look_at(m, f.depth - 1);
        if (c.stack == 0)
            m->accept = true;
        else
            go(m, f.node, f.parent);
        break;
    case GN_REP:
        rounds(m, c.node, 0, c.stack);
        break;
    case GN_LOOP:
        look_at(m, f.depth - 1);
        rounds(m, n->a, f.count + 1, f.parent);
        break;
    default:
        break;
    }
}

static void closure_begin(struct machine *m)
{
    if (++m->epoch == 0) {
        memset(m->seen_epoch, 0, (size_t)m->seen_cap * sizeof *m->seen_epoch);
        m->epoch = 1;
    }
    m->seen_n = 0;
    m->work.n = m->out.n = 0;
    m->accept = false;
    m->low = DEPTH_MAX + 1;
}

static void closure_run(struct machine *m)
{
    while (m->work.n && !m->failed) {
        struct config c = m->work.v[--m->work.n];
        if (++m->steps > m->steps_max)
            fail(m, "the grammar is too ambiguous: it takes too long to follow");
        if (first_visit(m, c))
            visit(m, c);
    }
}

/* ---- states ---------------------------------------------------------------------------------- */

static int by_config(const void *a, const void *b)
{
    const struct config *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return x->stack < y->stack ? -1 : x->stack > y->stack;
}

static void sort_configs(struct config *v, int32_t n)
{
    if (n > 24) {
        qsort(v, (size_t)n, sizeof *v, by_config);
        return;
    }
    for (int32_t i = 1; i < n; i++) {
        struct config c = v[i];
        int32_t k = i;
        for (; k > 0 && by_config(&c, &v[k - 1]) < 0; k--)
            v[k] = v[k - 1];
        v[k] = c;
    }
}

static int32_t new_state(struct machine *m, uint64_t hash)
{
    int32_t n = m->out.n, top = 0;
    if (m->states.n >= STATES_MAX || !VEC_ROOM(&m->states, 1) || !VEC_ROOM(&m->configs, n))
        return fail(m, no_memory);
    int32_t first = m->configs.n;
    if (n)
        memcpy(m->configs.v + first, m->out.v, (size_t)n * sizeof *m->out.v);
    m->configs.n += n;
    for (int32_t i = 0; i < n; i++)
        if (m->frames.v[m->out.v[i].stack].depth > top)
            top = m->frames.v[m->out.v[i].stack].depth;
    m->states.v[m->states.n++] = (struct mstate){.first = first,
                                                 .n = n,
                                                 .plain = STATE_UNKNOWN,
                                                 .low = m->low,
                                                 .top = top,
                                                 .accept = m->accept,
                                                 .hash = hash};
    m->bytes += (int64_t)sizeof(struct mstate) + n * (int64_t)sizeof(struct config) + 8;
    return m->states.n - 1;
}

/* The state of the closure just computed. */
static int32_t intern_state(struct machine *m)
{
    if (m->failed)
        return STATE_DEAD;
    if (m->out.n == 0 && !m->accept)
        return STATE_DEAD;
    sort_configs(m->out.v, m->out.n);
    uint64_t h0 = hash64(m->out.v, (size_t)m->out.n * sizeof *m->out.v, m->accept);
    if (!itab_room(&m->state_tab, state_hash, m))
        return fail(m, no_memory);
    for (uint64_t h = h0;; h++) {
        int32_t *slot = &m->state_tab.v[h & (uint64_t)(m->state_tab.cap - 1)];
        if (!*slot) {
            int32_t s = new_state(m, h0);
            if (s < 0)
                return STATE_DEAD;
            *slot = s + 1;
            m->state_tab.n++;
            return s;
        }
        struct mstate *o = &m->states.v[*slot - 1];
        if (o->hash == h0 && o->n == m->out.n && o->accept == m->accept &&
            (o->n == 0 ||
             memcmp(&m->configs.v[o->first], m->out.v, (size_t)o->n * sizeof *m->out.v) == 0)) {
            if (m->low < o->low)
                o->low = m->low;
            return *slot - 1;
        }
    }
}

int32_t machine_step_slow(struct machine *m, int32_t state, int cls)
{
    struct mstate *s = &m->states.v[state];
    int32_t n_class = m->p->n_class;
    if (!s->next) {
        s->next = malloc((size_t)n_class * sizeof *s->next);
        if (!s->next)
            return fail(m, no_memory);
        for (int32_t i = 0; i < n_class; i++)
            s->next[i] = STATE_UNKNOWN;
        m->bytes += n_class * (int64_t)sizeof *s->next + 16;
    }
    if (s->next[cls] != STATE_UNKNOWN)
        return s->next[cls];
    closure_begin(m);
    int byte = m->p->byte_of[cls];
    for (int32_t i = 0; i < s->n; i++) {
        struct config c = m->configs.v[s->first + i];
        const struct gnode *g = &m->p->n.v[c.node];
        if (byteset_has(&m->p->sets[g->a], byte))
            go(m, g->next, c.stack);
    }
    m->steps += s->n / 4;
    closure_run(m);
    int32_t to = intern_state(m);
    if (!m->failed)
        m->states.v[state].next[cls] = to;
    return to;
}

enum qn_status machine_init(struct machine *m, const struct prog *p, struct qn_err *err)
{
    *m = (struct machine){.p = p, .steps_max = INT64_MAX};
    if (!VEC_ROOM(&m->frames, 1))
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "%s", no_memory);
    m->frames.v[m->frames.n++] = (struct frame){.parent = 0};
    closure_begin(m);
    m->steps_max = 2000000;
    go(m, p->start, 0);
    closure_run(m);
    m->accept |= false;
    if (m->out.n || m->accept || m->failed)
        intern_state(m);
    else
        m->failed = "nothing can match it";
    if (m->failed)
        QN_FAIL(err, m->failed == no_memory ? QN_NO_MEMORY : QN_UNSUPPORTED, WHERE, "%s",
                m->failed);
    return QN_OK;
}

void machine_free(struct machine *m)
{
    for (int32_t i = 0; i < m->states.n; i++)
        free(m->states.v[i].next);
    free(m->frames.v);
    free(m->configs.v);
    free(m->states.v);
    free(m->frame_tab.v);
    free(m->state_tab.v);
    free(m->work.v);
    free(m->out.v);
    free(m->seen);
    free(m->seen_epoch);
    *m = (struct machine){0};
}

/* A stack of another machine, frame by frame from the bottom. */
static int32_t import_stack(struct machine *to, const struct machine *from, int32_t stack)
{
    int32_t path[DEPTH_MAX + 1], n = 0, here = 0;
    for (; stack != 0 && n < DEPTH_MAX; stack = from->frames.v[stack].parent)
        path[n++] = stack;
    while (n > 0 && here >= 0) {
        const struct frame *f = &from->frames.v[path[--n]];
        here = push_frame(to, here, f->node, f->count);
    }
    return here;
}

int32_t machine_import(struct machine *to, const struct machine *from, int32_t state)
{
    const struct mstate *s = &from->states.v[state];
    closure_begin(to);
    for (int32_t i = 0; i < s->n && !to->failed; i++) {
        struct config c = from->configs.v[s->first + i];
        c.stack = import_stack(to, from, c.stack);
        if (c.stack < 0 || !VEC_ROOM(&to->out, 1))
            fail(to, no_memory);
        else
            to->out.v[to->out.n++] = c;
    }
    to->accept = s->accept;
    to->low = s->low;
    return intern_state(to);
}

/* ---- plain characters ------------------------------------------------------------------------ */

/* lead, then `n` continuation bytes of which the first lies in lo..hi. */
struct span {
    uint8_t lead_lo, lead_hi, lo, hi, n;
};
static const struct span spans[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2}, {0xE1, 0xEC, 0x80, 0xBF, 2},
    {0xED, 0xED, 0x80, 0x9F, 2}, {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3},
    {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3},
};

static bool same_tail(struct machine *m, int32_t s, int lo, int hi, int n, int32_t want);

static bool same_after(struct machine *m, int32_t s, int n, int32_t want)
{
    if (n == 0)
        return s == want;
    if (s < 0)
        return want == STATE_DEAD;
    return same_tail(m, s, 0x80, 0xBF, n, want);
}

/* Every continuation from s leads to `want`. */
static bool same_tail(struct machine *m, int32_t s, int lo, int hi, int n, int32_t want)
{
    int last = -1;
    int32_t tried[2] = {STATE_UNKNOWN, STATE_UNKNOWN};
    for (int c = lo; c <= hi; c++) {
        if (m->p->class_of[c] == last)
            continue;
        last = m->p->class_of[c];
        int32_t to = machine_step(m, s, (uint8_t)c);
        if (to == tried[0] || to == tried[1])
            continue;
        if (!same_after(m, to, n - 1, want))
            return false;
        tried[1] = tried[0];
        tried[0] = to;
    }
    return true;
}

static bool same_ascii(struct machine *m, int32_t s, int32_t want)
{
    int last = m->p->class_of[0x20];
    for (int c = 0x21; c < 0x80; c++) {
        if (c == '"' || c == '\\' || m->p->class_of[c] == last)
            continue;
        last = m->p->class_of[c];
        if (machine_step(m, s, (uint8_t)c) != want)
            return false;
    }
    return true;
}

static bool same_wide(struct machine *m, int32_t s, int32_t want)
{
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        int last = -1;
        for (int lead = spans[i].lead_lo; lead <= spans[i].lead_hi; lead++) {
            if (m->p->class_of[lead] == last)
                continue;
            last = m->p->class_of[lead];
            int32_t to = machine_step(m, s, (uint8_t)lead);
            if (to < 0 ? want != STATE_DEAD
                       : !same_tail(m, to, spans[i].lo, spans[i].hi, spans[i].n, want))
                return false;
        }
    }
    return true;
}

int32_t machine_plain(struct machine *m, int32_t state)
{
    if (m->states.v[state].plain == STATE_UNKNOWN) {
        int32_t to = machine_step(m, state, ' ');
        bool same = same_ascii(m, state, to) && same_wide(m, state, to);
        if (m->failed)
            return STATE_MIXED;
        m->states.v[state].plain = same ? to : STATE_MIXED;
    }
    return m->states.v[state].plain;
}

/* ---- keys ------------------------------------------------------------------------------------ */

void machine_key(const struct machine *m, int32_t state, int32_t k, uint64_t key[2])
{
    const struct mstate *s = &m->states.v[state];
    uint64_t a = (uint64_t)(uint32_t)s->n, z = (uint64_t)(uint32_t)k;
    for (int32_t i = 0; i < s->n; i++) {
        struct config c = m->configs.v[s->first + i];
        uint64_t h = mix((uint32_t)c.node, 11), g = mix((uint32_t)c.node, 13);
        int32_t at = c.stack;
        for (int32_t d = 0; at != 0 && (k < 0 || d < k); d++) {
            const struct frame *f = &m->frames.v[at];
            uint64_t w = (uint64_t)(uint32_t)f->node << 32 | (uint32_t)f->count;
            h = mix(h, w);
            g = mix(g ^ w, 17);
            at = f->parent;
        }
        if (at == 0) {
            h = mix(h, 3);
            g = mix(g, 5);
        }
        a += h; /* the order of places does not matter */
        z += g;
    }
    key[0] = a;
    key[1] = z;
}
