/*
 * test_real.c - real models against float32 results of mlx-lm on the same weights: token ids,
 * greedy continuations up to the first near-tie, log-probabilities, likelihood of a text, and the
 * divergence of the canonical from the reference arithmetic. The table below says where models and
 * results are; what is absent is left out with the reason, and with nothing to check the test is
 * skipped. `test_real FOLDER GOLDEN.json` checks any other pair.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "base/file.h"
#include "base/json.h"
#include "quern.h"

enum { PROMPTS_MAX = 8, GREEDY = 64, KL_TOKENS = 24, CHUNK = 64 };
static const double MARGIN = 0.05; /* docs/numerics.md, gate 2 */

static char model_dir[1024];
static struct json *golden;
static struct qn_engine *engine;

static struct qn_engine *open_engine(enum qn_arith arith, bool weights_only)
{
    struct qn_engine_params p = {
        .model_dir = model_dir, .n_ctx = 1024, .arith = arith, .weights_only = weights_only};
    struct qn_engine *e = NULL;
    struct qn_err err;
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    return e;
}

static int32_t ids_of(const struct json *v, int32_t *out, int32_t cap)
{
    int32_t n = (int32_t)json_len(v);
    assert_true(n > 0 && n <= cap);
    for (int32_t i = 0; i < n; i++)
        out[i] = (int32_t)json_real(json_at(v, (size_t)i));
    return n;
}

/* log(sum(exp(x))) */
static double log_sum(const float *x, int32_t n)
{
    double m = (double)x[0], s = 0;
    for (int32_t i = 1; i < n; i++)
        m = fmax(m, (double)x[i]);
    for (int32_t i = 0; i < n; i++)
        s += exp((double)x[i] - m);
    return m + log(s);
}

static int32_t arg_max(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

static void check_ids(const struct json *v)
{
    struct str text = json_str(json_get(v, "text"));
    int32_t want[512], n = ids_of(json_get(v, "ids"), want, 512), n_got, *got;
    struct qn_err err;
    CHECK_OK(qn_tokenize(engine, text.p, text.n, QN_TOK_ADD_SPECIAL | QN_TOK_PARSE_SPECIAL, &got,
                         &n_got, &err),
             err);
    if (n_got != n || memcmp(got, want, (size_t)n * sizeof *want) != 0)
        fail_msg("\"%.40s\": %d ids, expected %d, or they differ", text.p, n_got, n);
    qn_free(got);
}

static void test_ids(void **state)
{
    const struct json *prompts = json_get(golden, "prompts");
    for (size_t i = 0; i < json_len(prompts); i++)
        check_ids(json_at(prompts, i));
    check_ids(json_get(golden, "text"));
}

/* ---- greedy ---------------------------------------------------------------------------------- */

static void check_top8(const struct json *top, const float *logits, int32_t vocab, int prompt)
{
    double sum = log_sum(logits, vocab);
    for (size_t i = 0; i < json_len(top); i++) {
        int32_t id = (int32_t)json_real(json_at(json_at(top, i), 0));
        double want = json_real(json_at(json_at(top, i), 1)), got = (double)logits[id] - sum;
        if (!(fabs(got - want) < 0.05))
            fail_msg("prompt %d, id %d: log-probability %g, expected %g", prompt, id, got, want);
    }
}

struct run {
    struct qn_seq *seq;
    int32_t want[GREEDY], next, agreed;
    double margins[GREEDY];
    bool diverged; /* past the first near-tie that went the other way */
    float *row;
};

static void run_start(struct run *r, const struct json *p, int prompt)
{
    int32_t ids[512], n = ids_of(json_get(p, "ids"), ids, 512);
    int32_t vocab = qn_engine_info(engine)->n_vocab;
    struct qn_err err;
    assert_int_equal(ids_of(json_get(p, "greedy_ids"), r->want, GREEDY), GREEDY);
    for (size_t j = 0; j < GREEDY; j++)
        r->margins[j] = json_real(json_at(json_get(p, "margins"), j));
    r->row = malloc((size_t)vocab * sizeof *r->row);
    CHECK_OK(qn_seq_create(engine, &r->seq, &err), err);
    struct qn_step_item it = {r->seq, ids, n, 1, r->row};
    CHECK_OK(qn_engine_step(engine, &it, 1, &err), err);
    check_top8(json_get(p, "top8"), r->row, vocab, prompt);
}

/* The id after the logits in r->row, judged against step j. */
static void run_judge(struct run *r, int prompt, int32_t j)
{
    r->next = arg_max(r->row, qn_engine_info(engine)->n_vocab);
    if (r->diverged)
        return;
    if (r->next == r->want[j])
        r->agreed = j + 1;
    else if (r->margins[j] >= MARGIN)
        fail_msg("prompt %d, step %d: id %d, expected %d (margin %g)", prompt, j, r->next,
                 r->want[j], r->margins[j]);
    else
        r->diverged = true;
}

static void test_greedy(void **state)
{
    static struct run runs[PROMPTS_MAX];
    memset(runs, 0, sizeof runs);
    const struct json *prompts = json_get(golden, "prompts");
    struct qn_err err;
    int n = (int)json_len(prompts);
    assert_true(n > 0 && n <= PROMPTS_MAX);
    for (int i = 0; i < n; i++)
        run_start(&runs[i], json_at(prompts, (size_t)i), i);
    int total = 0;
    for (int32_t j = 0; j < GREEDY; j++) {
        struct qn_step_item items[PROMPTS_MAX];
        for (int i = 0; i < n; i++) {
            run_judge(&runs[i], i, j);
            items[i] = (struct qn_step_item){runs[i].seq, &runs[i].next, 1, 1, runs[i].row};
        }
        CHECK_OK(qn_engine_step(engine, items, n, &err), err);
    }
    for (int i = 0; i < n; i++) {
        total += runs[i].agreed;
        qn_seq_free(runs[i].seq);
        free(runs[i].row);
    }
    print_message("greedy: %d of %d ids equal\n", total, n * GREEDY);
}

/* ---- likelihood and divergence --------------------------------------------------------------- */

/* Logits of n tokens, chunk by chunk, into out[n, vocab]. */
static void feed(struct qn_engine *e, struct qn_seq *s, const int32_t *ids, int32_t n, float *out)
{
    int32_t vocab = qn_engine_info(e)->n_vocab;
    struct qn_err err;
    for (int32_t i = 0; i < n; i += CHUNK) {
        int32_t m = n - i < CHUNK ? n - i : CHUNK;
        struct qn_step_item it = {s, ids + i, m, m, out + (size_t)i * (size_t)vocab};
        CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
    }
}

static void test_likelihood(void **state)
{
    const struct json *text = json_get(golden, "text"), *nll = json_get(text, "nll");
    int32_t ids[512], n = ids_of(json_get(text, "ids"), ids, 512);
    int32_t vocab = qn_engine_info(engine)->n_vocab;
    float *out = malloc((size_t)n * (size_t)vocab * sizeof *out);
    struct qn_seq *s;
    struct qn_err err;
    CHECK_OK(qn_seq_create(engine, &s, &err), err);
    feed(engine, s, ids, n, out);
    qn_seq_free(s);
    double sum = 0, want_sum = 0, worst = 0;
    assert_int_equal(json_len(nll), n - 1);
    for (int32_t i = 0; i < n - 1; i++) {
        const float *row = out + (size_t)i * (size_t)vocab;
        double got = log_sum(row, vocab) - (double)row[ids[i + 1]];
        double want = json_real(json_at(nll, (size_t)i));
        sum += got;
        want_sum += want;
        worst = fmax(worst, fabs(got - want));
    }
    free(out);
    double mean = sum / (n - 1), want = want_sum / (n - 1);
    print_message("text: %.6f nats per token, float32 says %.6f; worst token off by %.4f\n", mean,
                  want, worst);
    assert_true(fabs(mean - want) < 3e-3 && worst < 0.12);
}

/* sum of p log(p/q) over the vocabulary */
static double divergence(const float *p, const float *q, int32_t n)
{
    double sp = log_sum(p, n), sq = log_sum(q, n), kl = 0;
    for (int32_t i = 0; i < n; i++) {
        double lp = (double)p[i] - sp;
        kl += exp(lp) * (lp - ((double)q[i] - sq));
    }
    return kl;
}

static void test_divergence(void **state)
{
    int32_t ids[512], vocab = qn_engine_info(engine)->n_vocab;
    ids_of(json_get(json_get(golden, "text"), "ids"), ids, 512);
    size_t bytes = (size_t)KL_TOKENS * (size_t)vocab * sizeof(float);
    float *p = malloc(bytes), *q = malloc(bytes);
    struct qn_seq *s;
    struct qn_err err;
    CHECK_OK(qn_seq_create(engine, &s, &err), err);
    feed(engine, s, ids, KL_TOKENS, q);
    qn_seq_free(s);
    struct qn_engine *truth = open_engine(QN_ARITH_REFERENCE, true);
    CHECK_OK(qn_seq_create(truth, &s, &err), err);
    feed(truth, s, ids, KL_TOKENS, p);
    qn_seq_free(s);
    qn_engine_free(truth);
    const struct json *nll = json_get(json_get(golden, "text"), "nll");
    double kl = 0, off = 0;
    for (int32_t i = 0; i < KL_TOKENS; i++) {
        const float *row = p + (size_t)i * (size_t)vocab;
        double got = log_sum(row, vocab) - (double)row[ids[i + 1]];
        off = fmax(off, fabs(got - json_real(json_at(nll, (size_t)i))));
        kl += divergence(row, q + (size_t)i * (size_t)vocab, vocab) / KL_TOKENS;
    }
    free(p);
    free(q);
    print_message(
        "KL(reference || canonical) %.3g nats per token over %d tokens; reference off the "
        "golden by at most %.2g nats\n",
        kl, KL_TOKENS, off);
    assert_true(kl <= 1e-4 && off < 1e-3);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static const struct real {
    const char *name;
    const char *env, *folder; /* the model: $env, else folder below the cache folder */
    const char *hint;
    const char *shared, *tree; /* the results: below QUERN_SHARED or below this project's goldens */
} models[] = {
    {"smollm2", "QUERN_SMOLLM2", "models/smollm2", "`quern get smollm2` fetches it",
     "goldens/real/smollm2-135m-instruct.json", NULL},
    {"gemma3-270m", "QUERN_GEMMA3", "models/gemma3-270m",
     "`quern convert` makes it of the Q4_K_M GGUF file (docs/families/gemma3.md)", NULL,
     "real/gemma3-270m.json"},
};

static bool find_model(const struct real *r)
{
    const char *env = getenv(r->env);
    struct buf b = BUF_INIT;
    struct qn_err err;
    model_dir[0] = 0;
    if (env && *env)
        snprintf(model_dir, sizeof model_dir, "%s", env);
    else if (cache_dir(&b, &err) == QN_OK)
        snprintf(model_dir, sizeof model_dir, "%s/%s", buf_z(&b), r->folder);
    buf_free(&b);
    if (dir_exists(model_dir))
        return true;
    printf("skipped: %s is not in %s; %s, %s names another folder\n", r->name, model_dir, r->hint,
           r->env);
    return false;
}

/* Checks the model in model_dir against the results in a file; failures, or -1. */
static int check_model(const char *name, const char *path)
{
    struct buf text = BUF_INIT;
    struct qn_err err;
    enum qn_status st = file_read(path, 64 << 20, &text, &err);
    if (st == QN_OK)
        st = json_parse(buf_str(&text), path, JSON_DEPTH_MAX, &golden, &err);
    buf_free(&text);
    if (st != QN_OK) {
        printf("FAILED: %s\n", err.msg);
        return -1;
    }
    engine = open_engine(QN_ARITH_CANONICAL, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_likelihood),
        cmocka_unit_test(test_divergence),
    };
    int failed = _cmocka_run_group_tests(name, tests, sizeof tests / sizeof tests[0], NULL, NULL);
    qn_engine_free(engine);
    json_free(golden);
    return failed;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3) {
        snprintf(model_dir, sizeof model_dir, "%s", argv[1]);
        return check_model(argv[1], argv[2]) != 0;
    }
    int checked = 0, failed = 0;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct buf path = BUF_INIT;
        bool have = find_model(&models[i]);
        if (have && models[i].shared)
            have = check_shared(&path, models[i].shared);
        else
            path_join(&path, GOLDEN_DIR, models[i].tree ? models[i].tree : "");
        if (have) {
            checked++;
            failed += check_model(models[i].name, buf_z(&path)) != 0;
        }
        buf_free(&path);
    }
    return failed ? 1 : checked ? 0 : 77;
}
