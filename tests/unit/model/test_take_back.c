/*
 * test_take_back.c - windows of guesses against single steps: over random patterns of guesses made
 * and guesses right (all, none, alternating, any), from page to page and past windows, two answers
 * side by side, the memory a sequence is left with has the bits of plain decoding: every full page
 * of every group, the recurrent state, and the logits after its last token.
 *
 * TAKE_BACK=1000 in the environment: so many patterns for each model.
 */
#include <string.h>

#include "../check.h"
#include "base/rng.h"
#include "exec/kv.h"
#include "model/engine.h"

enum { PAGE = 64, LINE = 5 * PAGE, WALK = 2 * PAGE, MOST = QN_ROLLBACK };

/* Plain decoding of one line: after each token its logits and state, and each page once full. */
struct truth {
    int32_t ids[LINE + 1], n_vocab;
    struct qn_checkpoint *at[LINE / PAGE]; /* at the beginning of each page */
    float *logits;                         /* [LINE + 1, n_vocab] after the first n tokens */
    void *state[LINE + 1];                 /* NULL = the model has none */
    size_t state_bytes;
    struct {
        void *p;
        size_t n;
    } pages[KV_SHAPE_GROUPS][LINE / PAGE];
};

static struct qn_engine *engine;
static struct truth plain;
static int64_t n_window, n_page;

static void *copy_of(const struct iovec *v)
{
    void *p = malloc(v->iov_len);
    assert_non_null(p);
    memcpy(p, v->iov_base, v->iov_len);
    return p;
}

/* What is to be done with the memory of a sequence of n tokens. */
typedef void piece_fn(int32_t n, int32_t group, int32_t page, const struct iovec *v);

static void each_piece(struct qn_seq *s, piece_fn *fn)
{
    struct exec *ex = engine_exec(engine);
    int32_t n = qn_seq_len(s), n_piece, k = 0;
    struct kv_prefix *p;
    struct kv_export *x;
    struct kv_shape shape;
    struct qn_err err;
    CHECK_OK(kv_prefix_create(ex, engine_seq_kv(s), 0, n, &p, &err), err);
    kv_prefix_shape(p, &shape);
    CHECK_OK(kv_export_create(ex, p, &x, &err), err);
    const struct iovec *v = kv_export_parts(x, &n_piece);
    for (int32_t g = 0; g < KV_SHAPE_GROUPS; g++)
        for (int32_t i = 0; i < shape.runs[g].n; i++)
            fn(n, g, shape.runs[g].first + i, &v[k++]);
    if (shape.state)
        fn(n, -1, 0, &v[k++]);
    assert_int_equal(k, n_piece);
    kv_export_free(ex, x);
    kv_prefix_free(ex, p);
}

static void keep_piece(int32_t n, int32_t group, int32_t page, const struct iovec *v)
{
    if (group < 0) {
        plain.state[n] = copy_of(v);
        plain.state_bytes = v->iov_len;
    } else if ((page + 1) * PAGE <= n && !plain.pages[group][page].p) {
        plain.pages[group][page].p = copy_of(v);
        plain.pages[group][page].n = v->iov_len;
    }
}

static void same_piece(int32_t n, int32_t group, int32_t page, const struct iovec *v)
{
    if (group < 0) {
        assert_int_equal(v->iov_len, plain.state_bytes);
        if (memcmp(v->iov_base, plain.state[n], v->iov_len) != 0)
            fail_msg("after %d tokens: another recurrent state", n);
    } else if ((page + 1) * PAGE <= n) {
        assert_int_equal(v->iov_len, plain.pages[group][page].n);
        if (memcmp(v->iov_base, plain.pages[group][page].p, v->iov_len) != 0)
            fail_msg("after %d tokens: page %d of group %d has other bits", n, page, group);
        n_page++;
    }
}

static float *logits_after(int32_t n)
{
    return plain.logits + (size_t)n * (size_t)plain.n_vocab;
}

static void decode_plainly(void)
{
    struct qn_seq *s;
    struct qn_err err;
    plain.n_vocab = qn_engine_info(engine)->n_vocab;
    plain.logits = malloc((size_t)(LINE + 1) * (size_t)plain.n_vocab * sizeof(float));
    for (int32_t i = 0; i <= LINE; i++)
        plain.ids[i] = (int32_t)(rng_u64(3, (uint64_t)i, 0) % (uint64_t)plain.n_vocab);
    CHECK_OK(qn_seq_create(engine, &s, &err), err);
    for (int32_t n = 0; n < LINE; n++) {
        if (n % PAGE == 0)
            CHECK_OK(qn_checkpoint_create(s, &plain.at[n / PAGE], &err), err);
        struct qn_step_item it = {s, &plain.ids[n], 1, 1, logits_after(n + 1)};
        CHECK_OK(qn_engine_step(engine, &it, 1, &err), err);
        each_piece(s, keep_piece);
    }
    qn_seq_free(s);
}

/* One of two answers on their way along the line. */
struct walker {
    struct qn_seq *s;
    uint64_t pattern;
    int32_t end, right, n_ids, ids[MOST];
    float *logits;
};

static uint32_t pick(const struct walker *w, uint64_t what, uint32_t n)
{
    return (uint32_t)(rng_u64(w->pattern, (uint64_t)qn_seq_len(w->s), what) % n);
}

/* The next token and guesses, of which the first `right` are: by the walk's pattern. */
static struct qn_step_item window(struct walker *w)
{
    int32_t at = qn_seq_len(w->s), left = w->end - at;
    int32_t guesses = (int32_t)pick(w, 0, MOST), most;
    w->right = w->pattern % 4 == 0   ? guesses
               : w->pattern % 4 == 1 ? 0
               : w->pattern % 4 == 2 ? (at % 2 ? guesses : 0)
                                     : (int32_t)pick(w, 1, (uint32_t)guesses + 1);
    most = LINE - at - 1; /* wrong ones may reach behind the walk's end, not behind the context */
    guesses = guesses < most ? guesses : most;
    w->right = w->right < guesses ? w->right : guesses;
    w->right = w->right < left - 1 ? w->right : left - 1;
    w->n_ids = 1 + guesses;
    for (int32_t j = 0; j < w->n_ids; j++)
        w->ids[j] = (plain.ids[at + j] + (j > w->right)) % plain.n_vocab;
    return (struct qn_step_item){w->s, w->ids, w->n_ids, w->n_ids, w->logits};
}

static void settle(struct walker *w, int32_t at)
{
    struct qn_err err;
    int32_t n = at + 1 + w->right;
    CHECK_OK(qn_seq_truncate(w->s, n, &err), err);
    for (int32_t j = 0; j <= w->right; j++)
        if (memcmp(w->logits + (size_t)j * (size_t)plain.n_vocab, logits_after(at + j + 1),
                   (size_t)plain.n_vocab * sizeof(float)) != 0)
            fail_msg("pattern %d: other logits after %d tokens", (int)w->pattern, at + j + 1);
    each_piece(w->s, same_piece);
    n_window++;
}

static void begin(struct walker *w, uint64_t pattern)
{
    int32_t page = (int32_t)(rng_u64(9, pattern, 0) % (uint64_t)((LINE - WALK) / PAGE + 1));
    struct qn_err err;
    w->pattern = pattern;
    CHECK_OK(qn_seq_from(plain.at[page], &w->s, &err), err);
    w->end = qn_seq_len(w->s) + WALK;
}

/* Patterns k and k+1 side by side, until both are through. */
static void walk(uint64_t k)
{
    static float *logits[2];
    struct walker w[2] = {0};
    for (int i = 0; i < 2; i++) {
        logits[i] = malloc((size_t)MOST * (size_t)plain.n_vocab * sizeof(float));
        w[i].logits = logits[i];
        begin(&w[i], k + (uint64_t)i);
    }
    for (;;) {
        struct qn_step_item items[2];
        struct walker *who[2];
        int32_t at[2], n = 0;
        struct qn_err err;
        for (int i = 0; i < 2; i++)
            if (qn_seq_len(w[i].s) < w[i].end) {
                at[n] = qn_seq_len(w[i].s);
                who[n] = &w[i];
                items[n++] = window(&w[i]);
            }
        if (n == 0)
            break;
        CHECK_OK(qn_engine_step(engine, items, n, &err), err);
        for (int32_t i = 0; i < n; i++)
            settle(who[i], at[i]);
    }
    for (int i = 0; i < 2; i++) {
        qn_seq_free(w[i].s);
        free(logits[i]);
    }
}

static void forget(void)
{
    for (int32_t i = 0; i < LINE / PAGE; i++)
        qn_checkpoint_free(plain.at[i]);
    for (int32_t n = 0; n <= LINE; n++)
        free(plain.state[n]);
    for (int32_t g = 0; g < KV_SHAPE_GROUPS; g++)
        for (int32_t i = 0; i < LINE / PAGE; i++)
            free(plain.pages[g][i].p);
    free(plain.logits);
    memset(&plain, 0, sizeof plain);
}

static void check_model(const char *name, const char *kv_quant)
{
    const char *env = getenv("TAKE_BACK");
    int n = env ? atoi(env) : FEWER ? 2 : 6;
    char dir[600];
    struct qn_err err;
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = 2, .n_ctx = LINE, .weights_only = true, .kv_quant = kv_quant};
    snprintf(dir, sizeof dir, "%s/tiny/%s", GOLDEN_DIR, name);
    CHECK_OK(qn_engine_open(&p, &engine, &err), err);
    n_window = n_page = 0;
    decode_plainly();
    for (int k = 0; k < n; k += 2)
        walk((uint64_t)k);
    assert_true(n_window > n && n_page > n);
    print_message("%s, %s: %d patterns, %lld windows, %lld full pages compared\n", name,
                  kv_quant ? kv_quant : "as loaded", n, (long long)n_window, (long long)n_page);
    forget();
    assert_int_equal(qn_kv_bytes_used(engine), 0);
    qn_engine_free(engine);
}

static void test_pages(void **state)
{
    check_model("llama-tied-llama3-q4", NULL);
    check_model("llama-tied-llama3-q4", "8");
    check_model("llama-tied-llama3-q4", "turbo");
}

static void test_windows(void **state)
{
    check_model("gemma3_text-q4", NULL);
    check_model("gpt_oss-mxfp4-experts", NULL);
}

static void test_latents(void **state)
{
    check_model("glm_moe_dsa-shared-q4", NULL);
    check_model("deepseek_v3-q4", NULL);
}

static void test_states(void **state)
{
    check_model("qwen3_next-q4", NULL);
    check_model("qwen3_5-moe-q4", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_latents),
        cmocka_unit_test(test_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
