/*
 * test_dspark.c - block drafters: guesses and sureness against a golden worked out elsewhere, the
 * same bits however states are cut into calls and whatever else is in them, going back, targets of
 * other families, and folders that do not fit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../check.h"
#include "base/file.h"
#include "base/json.h"
#include "pair.h"
#include "quern.h"

enum { BLOCK = 7, LINE = 45 };

#define TARGET  GOLDEN_DIR "/tiny/qwen3_next-q4"
#define DRAFTER GOLDEN_DIR "/draft/dspark-q4"

struct guesses {
    int32_t n, ids[QN_MTP_DRAFT_MAX];
    float p[QN_MTP_DRAFT_MAX];
};

static struct qn_engine *open_engine(const char *target, const char *drafter, enum qn_arith arith)
{
    struct qn_engine_params p = {.model_dir = target,
                                 .n_thread = 2,
                                 .arith = arith,
                                 .weights_only = true,
                                 .draft_kind = drafter ? QN_DRAFT_DSPARK : QN_DRAFT_NONE,
                                 .draft_dir = drafter};
    struct qn_engine *e = NULL;
    struct qn_err err;
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    return e;
}

static int32_t line[LINE];
static struct json *golden;

static int setup(void **state)
{
    struct buf text = BUF_INIT;
    struct qn_err err;
    CHECK_OK(file_read(DRAFTER "/golden.json", 1 << 20, &text, &err), err);
    CHECK_OK(json_parse(buf_str(&text), "golden", 8, &golden, &err), err);
    buf_free(&text);
    const struct json *ids = json_get(golden, "ids");
    assert_int_equal(json_len(ids), LINE);
    for (size_t i = 0; i < LINE; i++)
        line[i] = (int32_t)json_real(json_at(ids, i));
    return 0;
}

static int teardown(void **state)
{
    json_free(golden);
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

/* The states that wait, but for the last, in calls of at most `chunk`; then guesses. */
static struct guesses guess(struct pair *p, const int32_t *ids, int32_t chunk, int32_t n)
{
    struct guesses g = {.n = n};
    struct qn_err err;
    for (int32_t left; (left = qn_mtp_waiting(p->m) - 1) > 0;) {
        struct qn_mtp_item it = {.mtp = p->m, .ids = ids + qn_mtp_next(p->m)};
        it.n_ids = left < chunk ? left : chunk;
        CHECK_OK(qn_mtp_step(p->e, &it, 1, &err), err);
    }
    struct qn_mtp_item it = {.mtp = p->m,
                             .ids = ids + qn_mtp_next(p->m),
                             .n_ids = 1,
                             .n_draft = n,
                             .drafts = g.ids,
                             .probs = g.p};
    CHECK_OK(qn_mtp_step(p->e, &it, 1, &err), err);
    g.n = it.n_draft;
    return g;
}

/* Behind the first n tokens of the line, the model having seen all but the last. */
static struct guesses guess_at(struct qn_engine *e, int32_t n, int32_t chunk, int32_t want)
{
    struct pair p = pair_of(e);
    pair_step(&p, line, n - 1, 0, NULL);
    struct guesses g = guess(&p, line, chunk, want);
    pair_free(&p);
    return g;
}

static void same(const struct guesses *a, const struct guesses *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof a->ids[0]);
    assert_memory_equal(a->p, b->p, (size_t)a->n * sizeof a->p[0]);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Up to the first choice that is too close to call. */
static void check_golden(enum qn_arith arith, double lead, double off)
{
    struct qn_engine *e = open_engine(TARGET, DRAFTER, arith);
    const struct json *cases = json_get(golden, "cases");
    int32_t checked = 0;
    for (size_t i = 0; i < json_len(cases); i++) {
        const struct json *c = json_at(cases, i);
        int32_t n = (int32_t)json_real(json_get(c, "n"));
        struct guesses g = guess_at(e, n, 64, QN_MTP_DRAFT_MAX);
        assert_int_equal(g.n, BLOCK);
        for (size_t k = 0; k < BLOCK; k++, checked++) {
            double sure = json_real(json_at(json_get(c, "sure"), k));
            if (!(fabs((double)g.p[k] - sure) <= off))
                fail_msg("%d tokens, guess %zu: sure %g, expected %g", n, k, (double)g.p[k], sure);
            if (json_real(json_at(json_get(c, "leads"), k)) < lead)
                break;
            assert_int_equal(g.ids[k], (int32_t)json_real(json_at(json_get(c, "drafts"), k)));
        }
    }
    print_message("%d guesses checked\n", checked);
    assert_true(checked >= 15);
    qn_engine_free(e);
}

static void test_golden(void **state)
{
    check_golden(QN_ARITH_REFERENCE, 0, 2e-5);
    check_golden(QN_ARITH_CANONICAL, 0.1, 0.02);
}

static void test_any_cut(void **state)
{
    struct qn_engine *e = open_engine(TARGET, DRAFTER, QN_ARITH_CANONICAL);
    struct guesses all = guess_at(e, LINE, 64, BLOCK);
    for (int32_t chunk = 1; chunk < 30; chunk += 7) {
        struct guesses g = guess_at(e, LINE, chunk, BLOCK);
        same(&all, &g);
    }
    for (int32_t n = 1; n < BLOCK; n++) { /* fewer guesses are the first of them */
        struct guesses g = guess_at(e, LINE, 64, n);
        assert_int_equal(g.n, n);
        all.n = n;
        same(&all, &g);
    }
    qn_engine_free(e);
}

/* Contexts of different lengths that want different numbers of guesses, in one call. */
static void test_together(void **state)
{
    enum { N = 40 };
    struct qn_engine *e = open_engine(TARGET, DRAFTER, QN_ARITH_CANONICAL);
    struct pair p[N];
    struct guesses g[N];
    struct qn_mtp_item items[N];
    struct qn_err err;
    for (int32_t i = 0; i < N; i++) { /* more blocks than one run takes */
        int32_t len = 2 + i;
        p[i] = pair_of(e);
        pair_step(&p[i], line, len - 1, 0, NULL);
        g[i].n = i % (BLOCK + 2);
        items[i] = (struct qn_mtp_item){.mtp = p[i].m,
                                        .ids = line + 1,
                                        .n_ids = len - 1,
                                        .n_draft = g[i].n,
                                        .drafts = g[i].ids,
                                        .probs = g[i].p};
    }
    CHECK_OK(qn_mtp_step(e, items, N, &err), err);
    for (int32_t i = 0; i < N; i++) {
        int32_t want = g[i].n < BLOCK ? g[i].n : BLOCK;
        g[i].n = items[i].n_draft;
        assert_int_equal(g[i].n, want);
        if (want) {
            struct guesses alone = guess_at(e, 2 + i, 64, want);
            same(&alone, &g[i]);
        }
        pair_free(&p[i]);
    }
    qn_engine_free(e);
}

/* Guesses and wrong tokens leave nothing behind. */
static void test_back(void **state)
{
    struct qn_engine *e = open_engine(TARGET, DRAFTER, QN_ARITH_CANONICAL);
    struct guesses want = guess_at(e, 30, 64, BLOCK);
    struct pair p = pair_of(e);
    struct qn_err err;
    int32_t wrong[40];
    memcpy(wrong, line, sizeof wrong);
    pair_step(&p, line, 20, 0, NULL);
    guess(&p, line, 64, BLOCK);
    pair_step(&p, line + 20, 2, 0, NULL);
    guess(&p, line, 64, 3);
    for (int32_t i = 22; i < 32; i++)
        wrong[i] = (line[i] + 1) % 64;
    pair_step(&p, wrong + 22, 10, 0, NULL);
    guess(&p, wrong, 64, BLOCK);
    CHECK_OK(qn_seq_truncate(p.s, 22, &err), err);
    pair_step(&p, line + 22, 7, 0, NULL);
    struct guesses g = guess(&p, line, 64, BLOCK);
    same(&want, &g);
    pair_free(&p);
    qn_engine_free(e);
}

/* What the model says does not depend on whether its states are taken. */
static void logits_of(struct qn_engine *e, bool taken, int32_t n_logits, float *out)
{
    struct qn_seq *s = NULL;
    struct qn_mtp *m = NULL;
    struct qn_err err;
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    if (taken)
        CHECK_OK(qn_mtp_create(s, &m, &err), err);
    struct qn_step_item it = {s, line, LINE, n_logits, out};
    CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
    qn_mtp_free(m);
    qn_seq_free(s);
}

/* A copy of the drafter's folder with one piece of its config.json replaced. */
static char *drafter_with(const char *from, const char *to)
{
    struct buf text = BUF_INIT, out = BUF_INIT, path = BUF_INIT;
    struct qn_err err;
    char *dir = check_tmp_dir();
    CHECK_OK(file_read(DRAFTER "/config.json", 1 << 20, &text, &err), err);
    const char *z = buf_z(&text), *at = strstr(z, from);
    if (!at)
        fail_msg("the drafter's config.json has no %s", from);
    buf_add(&out, z, (size_t)(at - z));
    buf_addz(&out, to);
    buf_addz(&out, at + strlen(from));
    buf_addf(&path, "%s/config.json", dir);
    FILE *f = fopen(buf_z(&path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(buf_z(&out), 1, out.n, f), out.n);
    assert_int_equal(fclose(f), 0);
    buf_clear(&path);
    buf_addf(&path, "%s/model.safetensors", dir);
    assert_int_equal(symlink(DRAFTER "/model.safetensors", buf_z(&path)), 0);
    buf_free(&path);
    buf_free(&out);
    buf_free(&text);
    return dir;
}

static void drop_dir(char *dir)
{
    struct qn_err err;
    CHECK_OK(dir_remove(dir, &err), err);
    free(dir);
}

/* Targets whose last layers drop rows nobody asked for; layers before the last. */
static void test_targets(void **state)
{
    static const struct {
        const char *target, *layers, *taps;
    } cases[] = {{"gemma4-ple-q4", "\"num_target_layers\": 6", "-1,\n  1,\n  4"},
                 {"gemma4-experts-q4", "\"num_target_layers\": 3", "0,\n  1,\n  2"},
                 {"qwen3_next-q4", "\"num_target_layers\": 3", "-1,\n  0,\n  1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf target = BUF_INIT, from = BUF_INIT, to = BUF_INIT;
        buf_addf(&target, "%s/tiny/%s", GOLDEN_DIR, cases[i].target);
        buf_addz(&from, "-1,\n  0,\n  2\n ],\n \"num_target_layers\": 3");
        buf_addf(&to, "%s\n ],\n %s", cases[i].taps, cases[i].layers);
        char *dir = drafter_with(buf_z(&from), buf_z(&to));
        struct qn_engine *e = open_engine(buf_z(&target), dir, QN_ARITH_CANONICAL);
        size_t v = (size_t)qn_engine_info(e)->n_vocab;
        float *a = malloc(LINE * v * sizeof *a), *b = malloc(LINE * v * sizeof *b);
        for (int32_t n = 1; n <= LINE; n += 11) {
            logits_of(e, false, n, a);
            logits_of(e, true, n, b);
            assert_memory_equal(a, b, (size_t)n * v * sizeof *a);
        }
        struct guesses g = guess_at(e, LINE, 64, BLOCK), h = guess_at(e, LINE, 5, BLOCK);
        same(&g, &h);
        free(a);
        free(b);
        qn_engine_free(e);
        drop_dir(dir);
        buf_free(&target);
        buf_free(&from);
        buf_free(&to);
    }
}

static void refuse(const char *target, const char *dir, const char *part)
{
    struct qn_engine_params p = {.model_dir = target,
                                 .n_thread = 1,
                                 .weights_only = true,
                                 .draft_kind = QN_DRAFT_DSPARK,
                                 .draft_dir = dir};
    struct qn_engine *e = NULL;
    struct qn_err err = {0};
    enum qn_status st = qn_engine_open(&p, &e, &err);
    if (st == QN_OK)
        fail_msg("opened; expected \"%s\"", part);
    if (!strstr(err.msg, part))
        fail_msg("message is \"%s\"; expected \"%s\" in it", err.msg, part);
}

static void test_refused(void **state)
{
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        {"\"vocab_size\": 64", "\"vocab_size\": 65", "vocab_size 65; the model's is 64"},
        {"\"num_target_layers\": 3", "\"num_target_layers\": 4", "num_target_layers 4"},
        {"\"hidden_size\": 64", "\"hidden_size\": 128", "hidden_size 128; the model's is 64"},
        {"  2\n ]", "  3\n ]", "target_layer_ids[2] is 3; the model has layers 0 to 2"},
        {"  2\n ]", "  1.5\n ]", "target_layer_ids[2]"},
        {",\n  0,\n  2\n ]", "\n ]", "fc"},
        {"\"target_layer_ids\"", "\"layer_ids\"", "target_layer_ids is missing"},
        {"\"block_size\": 7", "\"block_size\": 17", "block_size"},
        {"\"block_size\": 7", "\"block_sizes\": 7", "no block drafter"},
        {"\"mask_token_id\": 3", "\"mask_token_id\": 64", "mask_token_id"},
        {"\"markov_rank\": 64", "\"markov_rank\": 32", "markov_head.markov_w1"},
        {"\"markov_rank\": 64", "\"markov_rank\": 0", "confidence_head_with_markov"},
        {"\"vanilla\"", "\"gated\"", "markov_head_type \"gated\""},
        {"\"enable_confidence_head\": true", "\"enable_confidence_head\": false",
         "confidence_head.proj"},
        {"\"model_type\": \"qwen3\"", "\"model_type\": \"gemma4_text\"", "gemma4_text"},
        {"\"markov_rank\": 64", "\"markov_rank\": 64, \"draft_vocab_size\": 32",
         "draft_vocab_size 32"},
        {"\"markov_rank\": 64", "\"markov_rank\": 64, \"dflash_query_causal\": true",
         "dflash_query_causal is set"},
        {"\"intermediate_size\": 64", "\"intermediate_size\": 96", "layers.0.mlp"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *dir = drafter_with(cases[i].from, cases[i].to);
        refuse(TARGET, dir, cases[i].part);
        drop_dir(dir);
    }
    refuse(TARGET, TARGET, "no block drafter");
    refuse(TARGET, "/nowhere", "/nowhere");
    refuse(GOLDEN_DIR "/tiny/llama-swa-q4", DRAFTER, "vocab_size 64; the model's is 512");
}

static void test_refused_calls(void **state)
{
    struct qn_engine *e = open_engine(TARGET, DRAFTER, QN_ARITH_CANONICAL);
    struct pair p = pair_of(e);
    float logits[64];
    struct qn_err err;
    pair_step(&p, line, 2, 0, NULL);
    struct qn_mtp_item it = {
        .mtp = p.m, .ids = line + 1, .n_ids = 1, .n_logits = 1, .logits = logits};
    CHECK_FAILS(qn_mtp_step(e, &it, 1, &err), QN_UNSUPPORTED, err, "no logits");
    it = (struct qn_mtp_item){.mtp = p.m, .ids = line + 1, .n_ids = 3};
    CHECK_FAILS(qn_mtp_step(e, &it, 1, &err), QN_BAD_INPUT, err, "wait for theirs");
    pair_free(&p);
    qn_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_any_cut),
        cmocka_unit_test(test_together),      cmocka_unit_test(test_back),
        cmocka_unit_test(test_targets),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
