/*
 * test_step.c - what qn_engine_step and the sequence functions refuse, and that a refusal leaves
 * every sequence as it was: bad ids, duplicates, too many rows, a full context. Truncating and
 * going on gives the same bits as never having been there.
 */
#include <string.h>

#include "../check.h"
#include "base/file.h"
#include "fake_model.h"
#include "quern.h"

enum { N_CTX = 200, V = FAKE_VOCAB };

static char *dir;
static struct qn_engine *engine, *other;

static struct qn_engine *open_engine(int32_t n_ctx)
{
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = 2, .n_ctx = n_ctx, .weights_only = true};
    struct qn_engine *e = NULL;
    struct qn_err err;
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    return e;
}

static struct qn_seq *make_seq(struct qn_engine *e)
{
    struct qn_seq *s = NULL;
    struct qn_err err;
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    assert_int_equal(qn_seq_len(s), 0);
    return s;
}

static void step(struct qn_seq *s, const int32_t *ids, int32_t n, int32_t n_logits, float *logits)
{
    struct qn_step_item it = {s, ids, n, n_logits, logits};
    struct qn_err err;
    CHECK_OK(qn_engine_step(engine, &it, 1, &err), err);
}

static int32_t ids[1024]; /* i * 7 % V */

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_bad_items(void **state)
{
    static float out[V * 8];
    struct qn_seq *s = make_seq(engine), *foreign = make_seq(other);
    int32_t low = -1, high = V, ok[2] = {3, V - 1};
    const struct {
        struct qn_step_item it;
        const char *part;
    } cases[] = {
        {{s, &low, 1, 0, NULL}, "token id -1; ids are 0 to 127"},
        {{s, &high, 1, 0, NULL}, "token id 128"},
        {{s, (int32_t[]){1, 2, INT32_MAX}, 3, 0, NULL}, "token id 2147483647"},
        {{s, ok, 0, 0, NULL}, "0 ids"},
        {{s, ok, -1, 0, NULL}, "-1 ids"},
        {{s, ok, 2, 3, out}, "3 rows of logits"},
        {{s, ok, 2, -1, out}, "-1 rows of logits"},
        {{s, ok, 2, 1, NULL}, "item 0"},
        {{NULL, ok, 2, 1, out}, "item 0"},
        {{foreign, ok, 2, 1, out}, "item 0"},
        {{s, ids, 257, 0, NULL}, "257 ids"},
    };
    struct qn_err err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct qn_step_item it = cases[i].it;
        CHECK_FAILS(qn_engine_step(engine, &it, 1, &err), QN_BAD_INPUT, err, cases[i].part);
        assert_int_equal(qn_seq_len(s), 0);
    }
    struct qn_step_item it = {s, ok, 2, 1, out};
    CHECK_FAILS(qn_engine_step(engine, &it, 0, &err), QN_BAD_INPUT, err, "0 items");
    CHECK_FAILS(qn_engine_step(engine, &it, -3, &err), QN_BAD_INPUT, err, "-3 items");
    qn_seq_free(s);
    qn_seq_free(foreign);
    qn_seq_free(NULL);
}

static void test_batches(void **state)
{
    struct qn_seq *a = make_seq(engine), *b = make_seq(engine);
    struct qn_err err;
    step(a, ids, 5, 0, NULL);
    struct qn_step_item twice[] = {
        {a, ids, 1, 0, NULL}, {b, ids, 1, 0, NULL}, {a, ids, 1, 0, NULL}};
    CHECK_FAILS(qn_engine_step(engine, twice, 3, &err), QN_BAD_INPUT, err, "items 0 and 2");
    struct qn_step_item bad_last[] = {{a, ids, 9, 0, NULL}, {b, &(int32_t){V}, 1, 0, NULL}};
    CHECK_FAILS(qn_engine_step(engine, bad_last, 2, &err), QN_BAD_INPUT, err, "item 1");
    int32_t max = qn_step_max_rows(engine);
    struct qn_step_item many[] = {{a, ids, max / 2, 0, NULL}, {b, ids, max / 2 + 1, 0, NULL}};
    CHECK_FAILS(qn_engine_step(engine, many, 2, &err), QN_BAD_INPUT, err, "at most 256");
    assert_int_equal(qn_seq_len(a), 5);
    assert_int_equal(qn_seq_len(b), 0);
    qn_seq_free(a);
    qn_seq_free(b);
}

/* The sequence that does not fit changes nothing, not even in the others of its step. */
static void test_context_full(void **state)
{
    static float want[V], got[V];
    struct qn_seq *a = make_seq(engine), *b = make_seq(engine), *c = make_seq(engine);
    struct qn_err err;
    assert_int_equal(qn_engine_info(engine)->n_ctx, N_CTX);
    step(a, ids, 100, 0, NULL);
    step(a, ids + 100, 98, 0, NULL);
    step(b, ids, 63, 0, NULL);
    step(c, ids, 63, 0, NULL);
    struct qn_step_item items[] = {{b, ids + 63, 70, 0, NULL}, {a, ids + 198, 3, 0, NULL}};
    CHECK_FAILS(qn_engine_step(engine, items, 2, &err), QN_BAD_INPUT, err,
                "198 tokens held and 3 more; one sequence holds 200");
    assert_int_equal(qn_seq_len(a), 198);
    assert_int_equal(qn_seq_len(b), 63);
    step(b, ids + 63, 1, 1, got);
    step(c, ids + 63, 1, 1, want);
    assert_memory_equal(got, want, sizeof want);
    step(a, ids + 198, 2, 1, got); /* exactly full */
    assert_int_equal(qn_seq_len(a), N_CTX);
    struct qn_step_item one = {a, ids, 1, 0, NULL};
    CHECK_FAILS(qn_engine_step(engine, &one, 1, &err), QN_BAD_INPUT, err, "context full");
    CHECK_OK(qn_seq_truncate(a, N_CTX - 1, &err), err);
    step(a, ids + N_CTX - 1, 1, 1, want);
    assert_memory_equal(got, want, sizeof want);
    qn_seq_free(a);
    qn_seq_free(b);
    qn_seq_free(c);
}

static void test_truncate(void **state)
{
    static float want[V], got[V];
    struct qn_seq *s = make_seq(engine), *clean = make_seq(engine);
    struct qn_err err;
    step(clean, ids, 150, 1, want);
    static const int32_t keeps[] = {149, 128, 127, 65, 64, 63, 16, 1, 0};
    for (size_t i = 0; i < sizeof keeps / sizeof keeps[0]; i++) {
        int32_t k = keeps[i];
        step(s, ids + 500, 190, 0, NULL); /* other tokens */
        CHECK_OK(qn_seq_truncate(s, 0, &err), err);
        if (k)
            step(s, ids, k, 0, NULL);
        step(s, ids + 600, 20, 0, NULL);
        CHECK_OK(qn_seq_truncate(s, k, &err), err);
        step(s, ids + k, 150 - k, 1, got);
        assert_memory_equal(got, want, sizeof want);
        CHECK_OK(qn_seq_truncate(s, 0, &err), err);
    }
    CHECK_FAILS(qn_seq_truncate(s, 1, &err), QN_BAD_INPUT, err, "the sequence holds 0");
    CHECK_FAILS(qn_seq_truncate(s, -1, &err), QN_BAD_INPUT, err, "truncate to -1");
    qn_seq_free(s);
    qn_seq_free(clean);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void test_params(void **state)
{
    struct qn_engine *e = NULL;
    struct qn_err err;
    struct qn_engine_params p = {.model_dir = dir, .weights_only = true, .n_thread = 1};
    CHECK_FAILS(qn_engine_open(NULL, &e, &err), QN_BAD_INPUT, err, "model_dir");
    p.n_ctx = 257;
    CHECK_FAILS(qn_engine_open(&p, &e, &err), QN_BAD_INPUT, err, "max_position_embeddings 256");
    p.n_ctx = -1;
    CHECK_FAILS(qn_engine_open(&p, &e, &err), QN_BAD_INPUT, err, "-1");
    p.n_ctx = 0;
    p.isa = "quantum";
    CHECK_FAILS(qn_engine_open(&p, &e, &err), QN_BAD_INPUT, err, "quantum");
    p.isa = NULL;
    p.n_thread = 100000;
    CHECK_FAILS(qn_engine_open(&p, &e, &err), QN_BAD_INPUT, err, "100000");
    p.n_thread = -2;
    CHECK_FAILS(qn_engine_open(&p, &e, &err), QN_BAD_INPUT, err, "-2");
    p.n_thread = 1;
    p.model_dir = "/nowhere/at/all";
    CHECK_FAILS(qn_engine_open(&p, &e, &err), QN_NOT_FOUND, err, "/nowhere/at/all");
    assert_null(e);
}

static void test_info(void **state)
{
    const struct qn_model_info *i = qn_engine_info(engine);
    assert_string_equal(i->family, "llama");
    assert_int_equal(i->n_vocab, V);
    assert_int_equal(i->n_layer, 1);
    assert_int_equal(i->n_embd, FAKE_HIDDEN);
    /* embedding, q, k, v, o, gate, up, down, three norms */
    assert_int_equal(i->n_param, 128 * 64 + 64 * 64 * 2 + 32 * 64 * 2 + 3 * 96 * 64 + 3 * 64);
    assert_true(i->bits_per_weight > 4.9 && i->bits_per_weight < 5.2); /* 4 + 2*16/32, norms 16 */
    assert_int_equal(i->kv_token_bytes, 2 * 2 * 16 * 2); /* K, V; 2 heads of 16; bf16 */
    int32_t *v, n;
    char *text;
    size_t len;
    struct qn_err err;
    CHECK_FAILS(qn_tokenize(engine, "a", 1, 0, &v, &n, &err), QN_UNSUPPORTED, err, "weights_only");
    CHECK_FAILS(qn_detokenize(engine, ids, 1, false, &text, &len, &err), QN_UNSUPPORTED, err,
                "weights_only");
    CHECK_FAILS(qn_detokenize(engine, ids, -1, false, &text, &len, &err), QN_BAD_INPUT, err,
                "-1 token ids");
    CHECK_FAILS(qn_chat_render(engine, "{}", 2, &text, &len, &err), QN_UNSUPPORTED, err,
                "template");
}

/* The name is the folder's, however the path is written. */
static void test_name(void **state)
{
    const char *want = strrchr(dir, '/') + 1;
    static const char *const ends[] = {"", "/", "/.", "/./"};
    for (int i = 0; i < 4; i++) {
        char path[4096];
        struct qn_engine *e = NULL;
        struct qn_err err;
        snprintf(path, sizeof path, "%s%s", dir, ends[i]);
        struct qn_engine_params p = {.model_dir = path, .n_thread = 1, .weights_only = true};
        CHECK_OK(qn_engine_open(&p, &e, &err), err);
        assert_string_equal(qn_engine_info(e)->name, want);
        qn_engine_free(e);
    }
}

int main(void)
{
    struct fake f;
    struct qn_err err;
    fake_init(&f);
    dir = check_tmp_dir();
    fake_write(&f, dir);
    fake_free(&f);
    for (int i = 0; i < 1024; i++)
        ids[i] = i * 7 % V;
    engine = open_engine(N_CTX);
    other = open_engine(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_items),    cmocka_unit_test(test_batches),
        cmocka_unit_test(test_context_full), cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_params),       cmocka_unit_test(test_info),
        cmocka_unit_test(test_name),
    };
    int failed = cmocka_run_group_tests_name("step", tests, NULL, NULL);
    qn_engine_free(engine);
    qn_engine_free(other);
    dir_remove(dir, &err);
    free(dir);
    return failed;
}
