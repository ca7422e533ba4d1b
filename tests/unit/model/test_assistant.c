/*
 * test_assistant.c - draft models of queries only: guesses and probabilities against goldens worked
 * out elsewhere, with a tied head and with ordered embeddings; the same bits however the model's
 * tokens are cut into steps and whatever other contexts are in a call; going back, forks, rows
 * without a state, and folders that do not fit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../check.h"
#include "base/file.h"
#include "base/json.h"
#include "model/engine.h"
#include "pair.h"
#include "quern.h"

enum { GUESSES = 6, LINE = 45, VOCAB = 64, WIDTH = 64 };

struct kind {
    const char *target, *drafter;
};
static const struct kind kinds[] = {
    {GOLDEN_DIR "/tiny/gemma4-ple-q4", GOLDEN_DIR "/draft/assistant-q4"},
    {GOLDEN_DIR "/tiny/gemma4-experts-q4", GOLDEN_DIR "/draft/assistant-ordered"},
};
enum { N_KIND = sizeof kinds / sizeof kinds[0] };

struct guesses {
    int32_t n, ids[QN_MTP_DRAFT_MAX];
    float p[QN_MTP_DRAFT_MAX];
};

static struct qn_engine *open_engine(const struct kind *k, enum qn_arith arith)
{
    struct qn_engine_params p = {.model_dir = k->target,
                                 .n_thread = 2,
                                 .arith = arith,
                                 .weights_only = true,
                                 .draft_kind = k->drafter ? QN_DRAFT_ASSISTANT : QN_DRAFT_NONE,
                                 .draft_dir = k->drafter};
    struct qn_engine *e = NULL;
    struct qn_err err;
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    return e;
}

static struct json *golden_of(const struct kind *k)
{
    struct buf path = BUF_INIT, text = BUF_INIT;
    struct json *doc = NULL;
    struct qn_err err;
    buf_addf(&path, "%s/golden.json", k->drafter);
    CHECK_OK(file_read(buf_z(&path), 1 << 20, &text, &err), err);
    CHECK_OK(json_parse(buf_str(&text), "golden", 8, &doc, &err), err);
    buf_free(&text);
    buf_free(&path);
    return doc;
}

static int32_t line[LINE]; /* the same in all goldens */

static int setup(void **state)
{
    struct json *doc = golden_of(&kinds[0]);
    const struct json *ids = json_get(doc, "ids");
    assert_int_equal(json_len(ids), LINE);
    for (size_t i = 0; i < LINE; i++)
        line[i] = (int32_t)json_real(json_at(ids, i));
    json_free(doc);
    return 0;
}

/* ---- running --------------------------------------------------------------------------------- */

static void step(struct pair *p, const int32_t *ids, int32_t n, int32_t n_logits)
{
    float logits[LINE * VOCAB];
    pair_step(p, ids, n, n_logits, logits);
}

/* Behind the tokens of the sequence and the next of ids; states but the last are taken before. */
static struct guesses guess(struct pair *p, const int32_t *ids, int32_t n)
{
    struct guesses g = {.n = n};
    struct qn_err err;
    int32_t left = qn_mtp_waiting(p->m) - 1;
    if (left > 0) {
        struct qn_mtp_item it = {.mtp = p->m, .ids = ids + qn_mtp_next(p->m), .n_ids = left};
        CHECK_OK(qn_mtp_step(p->e, &it, 1, &err), err);
    }
    assert_int_equal(qn_mtp_next(p->m), qn_seq_len(p->s));
    struct qn_mtp_item it = {.mtp = p->m,
                             .ids = ids + qn_mtp_next(p->m),
                             .n_ids = 1,
                             .n_draft = n,
                             .drafts = g.ids,
                             .probs = g.p};
    CHECK_OK(qn_mtp_step(p->e, &it, 1, &err), err);
    g.n = it.n_draft;
    assert_int_equal(qn_mtp_waiting(p->m), 0);
    return g;
}

/* Behind the first n tokens of the line, of which the model reads all but the last in steps of at
 * most `chunk`. */
static struct guesses guess_at(struct qn_engine *e, int32_t n, int32_t chunk, int32_t want)
{
    struct pair p = pair_of(e);
    for (int32_t at = 0, k; at < n - 1; at += k) {
        k = n - 1 - at < chunk ? n - 1 - at : chunk;
        step(&p, line + at, k, at + k == n - 1);
    }
    struct guesses g = guess(&p, line, want);
    pair_free(&p);
    return g;
}

static void same(const struct guesses *a, const struct guesses *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof a->ids[0]);
    assert_memory_equal(a->p, b->p, (size_t)a->n * sizeof a->p[0]);
}

/* ---- guesses --------------------------------------------------------------------------------- */

/* Up to the first choice that is too close to call. */
static void check_golden(const struct kind *kind, enum qn_arith arith, double lead, double off)
{
    struct qn_engine *e = open_engine(kind, arith);
    struct json *doc = golden_of(kind);
    const struct json *cases = json_get(doc, "cases");
    int32_t checked = 0;
    for (size_t i = 0; i < json_len(cases); i++) {
        const struct json *c = json_at(cases, i);
        int32_t n = (int32_t)json_real(json_get(c, "n"));
        struct guesses g = guess_at(e, n, 64, GUESSES);
        assert_int_equal(g.n, GUESSES);
        for (size_t k = 0; k < GUESSES; k++, checked++) {
            if (json_real(json_at(json_get(c, "leads"), k)) < lead)
                break;
            double p = json_real(json_at(json_get(c, "probs"), k));
            assert_int_equal(g.ids[k], (int32_t)json_real(json_at(json_get(c, "drafts"), k)));
            if (!(fabs((double)g.p[k] - p) <= off))
                fail_msg("%s, %d tokens, guess %zu: p %.9g, expected %.9g", kind->drafter, n, k,
                         (double)g.p[k], p);
        }
    }
    print_message("%d guesses checked\n", checked);
    assert_true(checked >= 12);
    json_free(doc);
    qn_engine_free(e);
}

static void test_golden(void **state)
{
    for (int i = 0; i < N_KIND; i++) {
        check_golden(&kinds[i], QN_ARITH_REFERENCE, 0, 2e-5);
        check_golden(&kinds[i], QN_ARITH_CANONICAL, 0.1, 0.05);
    }
}

static void test_any_cut(void **state)
{
    for (int i = 0; i < N_KIND; i++) {
        struct qn_engine *e = open_engine(&kinds[i], QN_ARITH_CANONICAL);
        struct guesses all = guess_at(e, LINE, 64, QN_MTP_DRAFT_MAX);
        assert_int_equal(all.n, QN_MTP_DRAFT_MAX);
        for (int32_t chunk = 1; chunk < 30; chunk += 7) {
            struct guesses g = guess_at(e, LINE, chunk, QN_MTP_DRAFT_MAX);
            same(&all, &g);
        }
        for (int32_t n = 1; n < QN_MTP_DRAFT_MAX; n += 3) { /* fewer are the first of them */
            struct guesses g = guess_at(e, LINE, 64, n);
            all.n = n;
            same(&all, &g);
        }
        qn_engine_free(e);
    }
}

/* Contexts of different lengths that want different numbers of guesses, in one call. */
static void check_together(const struct kind *kind)
{
    enum { N = 20 };
    struct qn_engine *e = open_engine(kind, QN_ARITH_CANONICAL);
    struct pair p[N];
    struct guesses g[N];
    struct qn_mtp_item items[N];
    struct qn_err err;
    for (int32_t i = 0; i < N; i++) {
        int32_t len = 2 + 2 * i;
        p[i] = pair_of(e);
        step(&p[i], line, len - 1, 1);
        g[i].n = i % 5;
        items[i] = (struct qn_mtp_item){.mtp = p[i].m,
                                        .ids = line + len - 1,
                                        .n_ids = 1,
                                        .n_draft = g[i].n,
                                        .drafts = g[i].ids,
                                        .probs = g[i].p};
    }
    CHECK_OK(qn_mtp_step(e, items, N, &err), err);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(items[i].n_draft, i % 5);
        if (g[i].n) {
            struct guesses alone = guess_at(e, 2 + 2 * i, 64, g[i].n);
            same(&alone, &g[i]);
        }
        pair_free(&p[i]);
    }
    qn_engine_free(e);
}

static void test_together(void **state)
{
    for (int i = 0; i < N_KIND; i++)
        check_together(&kinds[i]);
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* Guesses and wrong tokens leave nothing behind; a fork guesses as its source. */
static void test_back(void **state)
{
    struct qn_engine *e = open_engine(&kinds[0], QN_ARITH_CANONICAL);
    struct guesses want = guess_at(e, 30, 64, GUESSES);
    struct pair p = pair_of(e), fork = {.e = e};
    struct qn_err err;
    int32_t wrong[LINE];
    memcpy(wrong, line, sizeof wrong);
    step(&p, line, 20, 1);
    guess(&p, line, GUESSES);
    step(&p, line + 20, 2, 2);
    guess(&p, line, 3);
    for (int32_t i = 22; i < 32; i++)
        wrong[i] = (line[i] + 1) % VOCAB;
    step(&p, wrong + 22, 10, 10);
    CHECK_OK(qn_seq_truncate(p.s, 25, &err), err); /* a window of which three held */
    guess(&p, wrong, GUESSES);
    CHECK_OK(qn_seq_truncate(p.s, 22, &err), err);
    step(&p, line + 22, 7, 7);
    CHECK_OK(qn_seq_fork(p.s, 29, &fork.s, &err), err);
    CHECK_OK(engine_mtp_fork(p.s, fork.s, &err), err);
    fork.m = qn_seq_mtp(fork.s);
    struct guesses g = guess(&p, line, GUESSES), h = guess(&fork, line, GUESSES);
    same(&want, &g);
    same(&want, &h);
    pair_free(&fork);
    pair_free(&p);
    qn_engine_free(e);
}

/* Rows whose logits nobody asked for have no state, and there are guesses at the end only. */
static void test_states(void **state)
{
    struct qn_engine *e = open_engine(&kinds[0], QN_ARITH_CANONICAL);
    struct pair p = pair_of(e);
    struct guesses g = {.n = 3};
    struct qn_err err;
    struct qn_mtp_item it = {.mtp = p.m, .ids = line, .n_ids = 1, .n_draft = 3, .drafts = g.ids};
    step(&p, line, 9, 0);
    assert_int_equal(qn_mtp_waiting(p.m), 0);
    CHECK_FAILS(qn_mtp_step(e, &it, 1, &err), QN_BAD_INPUT, err, "wait for theirs");
    step(&p, line + 9, 9, 4);
    assert_int_equal(qn_mtp_waiting(p.m), 4);
    assert_int_equal(qn_mtp_next(p.m), 15);
    CHECK_OK(qn_mtp_step(e, &it, 1, &err), err); /* not at the end */
    assert_int_equal(it.n_draft, 0);
    g = guess(&p, line, 3);
    struct guesses want = guess_at(e, 19, 64, 3);
    same(&want, &g);
    step(&p, line + 18, 1, 1);
    step(&p, line + 19, 1, 0); /* what waited is no longer the end */
    assert_int_equal(qn_mtp_waiting(p.m), 0);
    step(&p, line + 20, LINE - 21, LINE - 21);
    int32_t waiting = qn_mtp_waiting(p.m);
    assert_int_equal(waiting, LINE - 21);
    g = guess(&p, line, 0);
    assert_int_equal(g.n, 0);
    assert_true(qn_mtp_bytes(e, 1000) == qn_mtp_bytes(e, 1)); /* no memory of its own */
    assert_true(qn_mtp_bytes(e, 1) > 0 && qn_mtp_bytes(e, 1) < 64 * WIDTH * 4);
    pair_free(&p);
    qn_engine_free(e);
}

/* What the model says does not depend on whether its states are taken. */
static void test_logits(void **state)
{
    static float a[LINE * VOCAB], b[LINE * VOCAB];
    for (int i = 0; i < N_KIND; i++) {
        struct kind plain = {.target = kinds[i].target};
        struct qn_engine *e = open_engine(&kinds[i], QN_ARITH_CANONICAL);
        struct qn_engine *f = open_engine(&plain, QN_ARITH_CANONICAL);
        struct qn_err err;
        for (int32_t n = 1; n <= LINE; n += 11) {
            struct pair p = pair_of(e);
            struct qn_seq *s = NULL;
            CHECK_OK(qn_seq_create(f, &s, &err), err);
            struct qn_step_item x = {p.s, line, LINE, n, a}, y = {s, line, LINE, n, b};
            CHECK_OK(qn_engine_step(e, &x, 1, &err), err);
            CHECK_OK(qn_engine_step(f, &y, 1, &err), err);
            assert_memory_equal(a, b, (size_t)n * VOCAB * sizeof *a);
            qn_seq_free(s);
            pair_free(&p);
        }
        qn_engine_free(e);
        qn_engine_free(f);
    }
}

/* ---- folders that do not fit ------------------------------------------------------------------
 */

static void write_file(const char *dir, const char *name, const void *p, size_t n)
{
    struct buf path = BUF_INIT;
    buf_addf(&path, "%s/%s", dir, name);
    FILE *f = fopen(buf_z(&path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    buf_free(&path);
}

/* The drafter's file, and where `from`, which may end with a 0, stands in it. */
static char *read_part(const char *drafter, const char *name, const char *from, struct buf *text)
{
    struct buf path = BUF_INIT;
    struct qn_err err;
    buf_addf(&path, "%s/%s", drafter, name);
    CHECK_OK(file_read(buf_z(&path), 1 << 20, text, &err), err);
    buf_free(&path);
    char *at = memmem(text->p, text->n, from, strlen(from));
    if (!at)
        fail_msg("%s of %s has no %s", name, drafter, from);
    return at;
}

/* A copy of the drafter's folder with one piece of its config.json replaced. */
static char *drafter_with(const char *drafter, const char *from, const char *to)
{
    struct buf text = BUF_INIT, out = BUF_INIT, path = BUF_INIT, link = BUF_INIT;
    char *dir = check_tmp_dir();
    const char *at = read_part(drafter, "config.json", from, &text);
    size_t head = (size_t)(at - (const char *)text.p);
    buf_add(&out, text.p, head);
    buf_addz(&out, to);
    buf_add(&out, at + strlen(from), text.n - head - strlen(from));
    write_file(dir, "config.json", out.p, out.n);
    buf_addf(&path, "%s/model.safetensors", drafter);
    buf_addf(&link, "%s/model.safetensors", dir);
    assert_int_equal(symlink(buf_z(&path), buf_z(&link)), 0);
    buf_free(&path);
    buf_free(&link);
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

static void refuse(const char *target, const char *dir, const char *part)
{
    struct qn_engine_params p = {.model_dir = target,
                                 .n_thread = 1,
                                 .weights_only = true,
                                 .draft_kind = QN_DRAFT_ASSISTANT,
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
        int kind;
        const char *from, *to, *part;
    } cases[] = {
        {0, "\"gemma4_assistant\"", "\"gemma4\"", "no draft model that reads the model's keys"},
        {0, "\"text_config\"", "\"text\"", "text_config is missing"},
        {0, "\"backbone_hidden_size\": 64", "\"backbone_hidden_size\": 128",
         "backbone_hidden_size 128; the model's hidden_size is 64"},
        {0, "\"backbone_hidden_size\": 64", "\"backbone\": 64", "backbone_hidden_size"},
        {0, "\"vocab_size\": 64", "\"vocab_size\": 65", "vocab_size 65; the model's is 64"},
        {0, "\"head_dim\": 16", "\"head_dim\": 32",
         "sliding_attention layers read 1 heads of 32; the model's have 1 heads of 16"},
        {0, "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2", "read 2 heads"},
        {1, "\"num_global_key_value_heads\": 1", "\"num_global_key_value_heads\": 2",
         "full_attention layers read 2 heads of 32; the model's have 1 heads of 32"},
        {0, "\"sliding_window\": 12", "\"sliding_window\": 13",
         "sliding_window 13; the model keeps 12 tokens"},
        {0, "\"num_kv_shared_layers\": 3", "\"num_kv_shared_layers\": 2",
         "num_kv_shared_layers 2 of 3 layers"},
        {0, "\"use_double_wide_mlp\": false", "\"use_double_wide_mlp\": true",
         "use_double_wide_mlp is set"},
        {0, "\"hidden_size_per_layer_input\": 0,\n  \"vocab_size_per_layer_input\": 0",
         "\"hidden_size_per_layer_input\": 32, \"vocab_size_per_layer_input\": 64",
         "hidden_size_per_layer_input is set"},
        {0, "\"enable_moe_block\": false",
         "\"enable_moe_block\": true, \"num_experts\": 2, \"top_k_experts\": 1, "
         "\"moe_intermediate_size\": 32",
         "enable_moe_block is set"},
        {0, "\"intermediate_size\": 32", "\"intermediate_size\": 64", "mlp.gate_proj"},
        {0, "\"use_ordered_embeddings\": false",
         "\"use_ordered_embeddings\": true, \"num_centroids\": 8, \"centroid_intermediate_top_k\": "
         "3",
         "masked_embedding.centroids"},
        {1, "\"use_ordered_embeddings\": true", "\"use_ordered_embeddings\": false",
         "masked_embedding."},
        {1, "\"num_centroids\": 8", "\"num_centroids\": 7", "multiple of num_centroids 7"},
        {1, "\"num_centroids\": 8", "\"num_centroids\": 16", "masked_embedding.centroids"},
        {1, "\"centroid_intermediate_top_k\": 3", "\"centroid_intermediate_top_k\": 9",
         "centroid_intermediate_top_k"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kind *k = &kinds[cases[i].kind];
        char *dir = drafter_with(k->drafter, cases[i].from, cases[i].to);
        refuse(k->target, dir, cases[i].part);
        refuse(k->target, dir, "draft model: ");
        drop_dir(dir);
    }
    refuse(kinds[0].target, kinds[0].target, "no draft model that reads");
    refuse(kinds[0].target, "/nowhere", "/nowhere");
    refuse(kinds[1].target, kinds[0].drafter, "heads");
    refuse(GOLDEN_DIR "/tiny/qwen3_next-q4", kinds[0].drafter, "guesses for gemma4 models");
}

/* The tokens of clusters that are none. */
static void test_bad_order(void **state)
{
    static const struct {
        const char *from, *to, *part;
        bool data; /* not the header: the first entry */
    } cases[] = {{"\"I64\"", "\"F64\"", "dtype F64; expected I64", false},
                 {"\"I64\"", "\"I64\"", "expected 0 to 63", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf text = BUF_INIT;
        struct json *header = NULL;
        struct qn_err err;
        uint64_t n;
        char *dir = drafter_with(kinds[1].drafter, "\"num_centroids\"", "\"num_centroids\"");
        char *at = read_part(kinds[1].drafter, "model.safetensors", cases[i].from, &text);
        memcpy(&n, text.p, sizeof n);
        CHECK_OK(
            json_parse((struct str){(char *)text.p + 8, (size_t)n}, "header", 8, &header, &err),
            err);
        const struct json *t = json_get(header, "masked_embedding.token_ordering");
        size_t first = (size_t)json_real(json_at(json_get(t, "data_offsets"), 0));
        if (cases[i].data)
            memcpy((char *)text.p + 8 + n + first, &(int64_t){64}, 8);
        else
            memcpy(at, cases[i].to, strlen(cases[i].to));
        struct buf path = BUF_INIT;
        buf_addf(&path, "%s/model.safetensors", dir);
        assert_int_equal(unlink(buf_z(&path)), 0);
        write_file(dir, "model.safetensors", text.p, text.n);
        refuse(kinds[1].target, dir, cases[i].part);
        json_free(header);
        buf_free(&path);
        buf_free(&text);
        drop_dir(dir);
    }
}

static void test_refused_calls(void **state)
{
    struct qn_engine *e = open_engine(&kinds[0], QN_ARITH_CANONICAL);
    struct pair p = pair_of(e);
    float logits[VOCAB];
    struct qn_err err;
    step(&p, line, 2, 2);
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
        cmocka_unit_test(test_states),        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_bad_order),
        cmocka_unit_test(test_refused_calls),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
