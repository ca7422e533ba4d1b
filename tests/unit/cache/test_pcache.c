/*
 * test_pcache.c - the prompt cache of an engine, for families with every kind of memory: whatever a
 * sequence took from the cache, after hits, partial hits and evictions, alone and beside three
 * others, its logits have the bits of one plain pass. The second turn of a conversation computes
 * its own tokens and no more. Memory that fails during a keep loses the entry and nothing else.
 */
#include <stdio.h>
#include <string.h>

#include "../check.h"
#include "base/fault.h"
#include "quern.h"

enum { N = 330, LINES = 4, SEQS = 4, INTERVAL = 64 };

/* Lines that part from the first one at some token. */
struct rig {
    struct qn_engine *e;
    struct qn_cache *c;
    int32_t v;
    int32_t ids[LINES][N];
    float *truth[LINES]; /* [N, v] */
    struct qn_seq *seq[SEQS];
    int line[SEQS];
    int64_t reused, partial;
};

static uint32_t seed;

static int32_t rnd(int32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(seed >> 4) * (uint64_t)n >> 28);
}

static void make_truth(struct rig *r, int line)
{
    struct qn_seq *s;
    struct qn_err err;
    r->truth[line] = malloc((size_t)N * (size_t)r->v * sizeof(float));
    CHECK_OK(qn_seq_create(r->e, &s, &err), err);
    for (int32_t at = 0; at < N; at += N / 2) {
        struct qn_step_item it = {s, r->ids[line] + at, N / 2, N / 2,
                                  r->truth[line] + (size_t)at * (size_t)r->v};
        CHECK_OK(qn_engine_step(r->e, &it, 1, &err), err);
    }
    qn_seq_free(s);
}

static struct rig *rig_up(const char *name, int64_t bytes)
{
    static const int32_t parts[LINES] = {0, 200, 97, 301};
    struct rig *r = calloc(1, sizeof *r);
    char dir[1024];
    struct qn_err err;
    snprintf(dir, sizeof dir, "%s/tiny/%s", GOLDEN_DIR, name);
    struct qn_engine_params p = {.model_dir = dir, .n_thread = 2, .n_ctx = N, .weights_only = true};
    CHECK_OK(qn_engine_open(&p, &r->e, &err), err);
    r->v = qn_engine_info(r->e)->n_vocab;
    const struct qn_cache_params cp = {.bytes = bytes ? bytes : qn_seq_bytes(r->e, N) * 3,
                                       .interval = INTERVAL};
    CHECK_OK(qn_cache_create(r->e, &cp, &r->c, &err), err);
    seed = 77;
    for (int l = 0; l < LINES; l++) {
        memcpy(r->ids[l], r->ids[0], sizeof r->ids[l]);
        for (int32_t i = parts[l]; i < N; i++)
            r->ids[l][i] = rnd(r->v);
    }
    return r;
}

static void rig_down(struct rig *r)
{
    for (int i = 0; i < SEQS; i++)
        qn_seq_free(r->seq[i]);
    for (int l = 0; l < LINES; l++)
        free(r->truth[l]);
    qn_cache_free(r->c);
    assert_int_equal(qn_kv_bytes_used(r->e), 0);
    qn_engine_free(r->e);
    free(r);
}

/* ---- random histories ------------------------------------------------------------------------ */

/* Slot i begins a line anew, with what the cache has of it. */
static void begin(struct rig *r, int i)
{
    struct qn_err err;
    int32_t match, n = rnd(3) ? N : 1 + rnd(N);
    qn_seq_free(r->seq[i]);
    r->line[i] = rnd(LINES);
    const struct qn_line line = {NULL, r->ids[r->line[i]], n};
    CHECK_OK(qn_cache_seq(r->c, &line, &r->seq[i], &match, &err), err);
    int32_t len = qn_seq_len(r->seq[i]);
    assert_true(len <= match && match <= n - 1);
    r->reused += len;
    r->partial += len > 0 && len < match;
}

/* The first n_seq slots go on by some tokens, in one step. */
static void go_on(struct rig *r, int n_seq, float *const *out)
{
    struct qn_step_item items[SEQS];
    struct qn_err err;
    int n = 0;
    for (int i = 0; i < n_seq; i++) {
        int32_t len = r->seq[i] ? qn_seq_len(r->seq[i]) : N, k = 1 + rnd(rnd(2) ? 4 : 62);
        k = k < N - len ? k : N - len;
        if (k > 0)
            items[n++] = (struct qn_step_item){r->seq[i], r->ids[r->line[i]] + len, k, k, out[i]};
    }
    if (!n)
        return;
    CHECK_OK(qn_engine_step(r->e, items, n, &err), err);
    for (int i = 0, k = 0; i < n; k++) {
        if (r->seq[k] != items[i].seq)
            continue;
        int32_t at = qn_seq_len(items[i].seq) - items[i].n_ids;
        if (memcmp(items[i].logits, r->truth[r->line[k]] + (size_t)at * (size_t)r->v,
                   (size_t)items[i].n_ids * (size_t)r->v * sizeof(float)) != 0)
            fail_msg("%s: tokens %d.. of line %d have other logits", qn_engine_info(r->e)->name, at,
                     r->line[k]);
        i++;
    }
}

static void keep(struct rig *r, int i)
{
    struct qn_err err;
    if (!r->seq[i] || !qn_seq_len(r->seq[i]))
        return;
    const struct qn_line line = {NULL, r->ids[r->line[i]], qn_seq_len(r->seq[i])};
    CHECK_OK(qn_cache_keep(r->c, &line, r->seq[i], &err), err);
}

static void wander(const char *name, int n_seq, int ops)
{
    struct rig *r = rig_up(name, 0);
    struct qn_cache_stats st;
    float *out[SEQS];
    for (int l = 0; l < LINES; l++)
        make_truth(r, l);
    for (int i = 0; i < SEQS; i++)
        out[i] = malloc((size_t)64 * (size_t)r->v * sizeof(float));
    for (int op = 0; op < ops; op++) {
        int what = rnd(8), i = rnd(n_seq);
        if (what == 0)
            begin(r, i);
        else if (what < 4)
            go_on(r, n_seq, out);
        else if (what < 7)
            keep(r, i);
        else if (rnd(6) == 0)
            qn_cache_trim(r->c, qn_seq_bytes(r->e, N) / 2);
    }
    qn_cache_stats(r->c, &st);
    assert_true(st.bytes <= st.bytes_max);
    assert_int_equal(st.reused_tokens, r->reused);
    assert_true(r->reused > (FEWER ? 0 : 300));
    for (int i = 0; i < SEQS; i++)
        free(out[i]);
    rig_down(r);
}

static const char *const models[] = {
    "gemma3_text-q4", /* windows */
    "qwen3_5-moe-q4", /* a recurrent state */
#if !FEWER
    "llama-tied-llama3-q4",                    /* everything kept */
    "gemma4-ple-q4",                           /* windows, shared layers */
    "gpt_oss-mxfp4-experts", "deepseek_v3-q4", /* latents */
    "glm_moe_dsa-shared-q4",                   /* latents and an index */
    "qwen3_next-q4",
#endif
};
enum { MODELS = sizeof models / sizeof *models, OPS = FEWER ? 36 : 100 };

static void test_bits_alone(void **state)
{
    for (int i = 0; i < MODELS; i++)
        wander(models[i], 1, OPS);
}

static void test_bits_beside_others(void **state)
{
    for (int i = 0; i < MODELS; i++)
        wander(models[i], SEQS, OPS);
}

/* ---- conversations --------------------------------------------------------------------------- */

/* Steps s to n tokens of a line, keeping where the scheduler would; returns tokens computed. */
static int32_t read_to(struct rig *r, struct qn_seq *s, int line, int32_t n, float *last)
{
    struct qn_err err;
    int32_t began = qn_seq_len(s);
    for (int32_t at = began; at < n; at = qn_seq_len(s)) {
        int32_t k = INTERVAL - at % INTERVAL;
        k = k < n - at ? k : n - at;
        struct qn_step_item it = {s, r->ids[line] + at, k, 1, last};
        CHECK_OK(qn_engine_step(r->e, &it, 1, &err), err);
        const struct qn_line l = {NULL, r->ids[line], at + k};
        CHECK_OK(qn_cache_keep(r->c, &l, s, &err), err);
    }
    return n - began;
}

static struct qn_seq *take(struct rig *r, int line, int32_t n, int32_t *match)
{
    struct qn_seq *s;
    struct qn_err err;
    const struct qn_line l = {NULL, r->ids[line], n};
    CHECK_OK(qn_cache_seq(r->c, &l, &s, match, &err), err);
    return s;
}

/* A prompt of 200 tokens and an answer of 40; then turn 2 with 20 more. Line 1 parts from it at
 * token 200: another answer. Line 2 at 97: an earlier message was changed. */
static void converse(const char *name)
{
    struct rig *r = rig_up(name, (int64_t)1 << 30);
    float *a = malloc((size_t)r->v * sizeof *a), *b = malloc((size_t)r->v * sizeof *b);
    int32_t match, reach = qn_cache_reach(r->c);
    struct qn_cache_stats st;
    struct qn_seq *s = take(r, 0, 200, &match);
    assert_int_equal(qn_seq_len(s), 0);
    read_to(r, s, 0, 199, a); /* as with a recurrent state: the prompt but for its last token */
    read_to(r, s, 0, 240, a);
    qn_seq_free(s);

    s = take(r, 0, 260, &match); /* the next turn: prompt and answer are there */
    assert_int_equal(match, 240);
    assert_int_equal(qn_seq_len(s), 240);
    assert_int_equal(read_to(r, s, 0, 260, a), 20);
    qn_seq_free(s);

    s = take(r, 0, 200, &match); /* the first prompt again: all but its last token */
    assert_int_equal(qn_seq_len(s), 199);
    qn_seq_free(s);

    s = take(r, 1, 230, &match); /* another answer: the place before it, or near it */
    assert_int_equal(match, 200);
    assert_in_range(qn_seq_len(s), reach == INT32_MAX ? 200 : 199, 200);
    qn_seq_free(s);

    s = take(r, 2, 150, &match); /* changed: up to there, or the interval's end before */
    assert_int_equal(match, 97);
    int32_t had = qn_seq_len(s);
    assert_in_range(had, reach == INT32_MAX ? 97 : 64, 97);
    read_to(r, s, 2, 97, a); /* kept where the lines part: the next one begins there */
    read_to(r, s, 2, 150, a);
    qn_seq_free(s);
    s = take(r, 2, 120, &match);
    assert_in_range(qn_seq_len(s), 97, 119);
    qn_seq_free(s);

    qn_cache_trim(r->c, 0); /* nothing is left; the same tokens have the same bits */
    qn_cache_stats(r->c, &st);
    assert_int_equal(st.bytes, 0);
    s = take(r, 2, 150, &match);
    assert_int_equal(qn_seq_len(s) + match, 0);
    read_to(r, s, 2, 150, b);
    assert_memory_equal(a, b, (size_t)r->v * sizeof *a);
    qn_seq_free(s);
    free(a);
    free(b);
    rig_down(r);
}

static void test_turns(void **state)
{
    for (int i = 0; i < MODELS; i++)
        converse(models[i]);
}

/* Many conversations with one beginning hold it once. */
static void test_held_once(void **state)
{
    for (int m = 0; m < MODELS; m++) {
        struct rig *r = rig_up(models[m], (int64_t)1 << 30);
        float *a = malloc((size_t)r->v * sizeof *a);
        struct qn_seq *s[8];
        int32_t match;
        s[0] = take(r, 0, N, &match);
        read_to(r, s[0], 0, 256, a);
        int64_t one = qn_kv_bytes_used(r->e);
        for (int i = 1; i < 8; i++) {
            s[i] = take(r, 0, N, &match);
            assert_int_equal(qn_seq_len(s[i]), 256);
        }
        assert_int_equal(qn_kv_bytes_used(r->e), one);
        for (int i = 0; i < 8; i++)
            qn_seq_free(s[i]);
        free(a);
        rig_down(r);
    }
}

static void test_namespaces(void **state)
{
    struct rig *r = rig_up(models[0], (int64_t)1 << 30);
    float *a = malloc((size_t)r->v * sizeof *a);
    struct qn_err err;
    int32_t match;
    struct qn_seq *s = take(r, 0, N, &match), *t;
    read_to(r, s, 0, 128, a);
    const struct qn_line other = {"other", r->ids[0], N};
    CHECK_OK(qn_cache_seq(r->c, &other, &t, &match, &err), err);
    assert_int_equal(qn_seq_len(t) + match, 0);
    const struct qn_line wrong = {NULL, r->ids[0], 100};
    CHECK_FAILS(qn_cache_keep(r->c, &wrong, s, &err), QN_BAD_INPUT, err, "holds 128");
    qn_seq_free(s);
    qn_seq_free(t);
    free(a);
    rig_down(r);
}

/* ---- memory that fails ----------------------------------------------------------------------- */

/* Every allocation of a keep, a lookup and a split fails once: the sequences go on as if nothing
 * had happened. */
static void walk_faults(const char *name, const char *point)
{
    struct qn_err err;
    for (int64_t nth = 1;; nth += FEWER ? 4 : 1) {
        struct rig *r = rig_up(name, (int64_t)1 << 30);
        float *a = malloc((size_t)r->v * sizeof *a), *b = malloc((size_t)r->v * sizeof *b);
        int32_t match, failed = 0;
        static const int lines[] = {0, 2, 1};
        fault_arm(point, nth);
        for (int i = 0; i < 3; i++) {
            struct qn_seq *s = NULL;
            const struct qn_line l = {NULL, r->ids[lines[i]], 150};
            if (qn_cache_seq(r->c, &l, &s, &match, &err) != QN_OK)
                CHECK_OK(qn_cache_seq(r->c, &l, &s, &match, &err), err);
            int32_t len = qn_seq_len(s);
            struct qn_step_item it = {s, r->ids[lines[i]] + len, 150 - len, 1, i == 1 ? a : b};
            CHECK_OK(qn_engine_step(r->e, &it, 1, &err), err);
            enum qn_status st = qn_cache_keep(r->c, &l, s, &err);
            assert_true(st == QN_OK || st == QN_NO_MEMORY);
            failed += st != QN_OK;
            qn_seq_free(s);
        }
        int64_t hits = fault_disarm();
        struct qn_cache_stats st;
        qn_cache_stats(r->c, &st);
        assert_int_equal(st.failed_keeps, failed);
        qn_cache_trim(r->c, 0);
        struct qn_seq *s = take(r, 2, 150, &match);
        struct qn_step_item it = {s, r->ids[2], 150, 1, b};
        CHECK_OK(qn_engine_step(r->e, &it, 1, &err), err);
        assert_memory_equal(a, b, (size_t)r->v * sizeof *a);
        qn_seq_free(s);
        free(a);
        free(b);
        rig_down(r);
        if (hits < nth)
            break;
    }
}

static void test_faults(void **state)
{
    walk_faults("gemma3_text-q4", "kv.alloc");
    if (FEWER)
        return;
    walk_faults("gemma3_text-q4", "cache.alloc");
    walk_faults("qwen3_5-moe-q4", "kv.alloc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_alone), cmocka_unit_test(test_bits_beside_others),
        cmocka_unit_test(test_turns),      cmocka_unit_test(test_held_once),
        cmocka_unit_test(test_namespaces), cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
