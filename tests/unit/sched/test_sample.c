/*
 * test_sample.c - the sampler against vectors from an independent numpy version (see
 * tests/oracle/sample_golden.py), against sorting on real vocabulary sizes, and its draws against
 * their exact probabilities.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "sched/sample.h"

static struct sample_params plain(float temperature)
{
    struct sample_params p = sample_params_default();
    p.temperature = temperature;
    return p;
}

static struct sampler *make(struct sample_params p, int32_t n)
{
    struct sampler *s = NULL;
    struct qn_err err;
    if (sampler_create(&p, n, NULL, 0, &s, &err) != QN_OK)
        fail_msg("%s", err.msg);
    return s;
}

/* Draws from a copy, since drawing destroys the row. */
static struct sampled draw(struct sampler *s, const float *x, int32_t n, int64_t position)
{
    struct sampled out;
    struct qn_err err;
    float *row = malloc((size_t)n * sizeof *row);
    assert_non_null(row);
    memcpy(row, x, (size_t)n * sizeof *row);
    if (sampler_draw(s, row, position, &out, &err) != QN_OK)
        fail_msg("%s", err.msg);
    free(row);
    return out;
}

/* Makes `id` the next token of the answer's history. */
static void force(struct sampler *s, int32_t n, int32_t id)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int32_t i = 0; i < n; i++)
        x[i] = -1e6f;
    x[id] = 1e6f;
    assert_int_equal(draw(s, x, n, 1000).id, id);
    free(x);
}

/* ---- vectors ------------------------------------------------------------------------------- */

static float real_of(const struct json *c, const char *key)
{
    return (float)json_real(json_get(c, key));
}

static int32_t int_of(const struct json *c, const char *key)
{
    int64_t v = 0;
    json_i64(json_get(c, key), &v);
    return (int32_t)v;
}

static int32_t int_at(const struct json *arr, size_t i)
{
    int64_t v = -1;
    assert_true(json_i64(json_at(arr, i), &v));
    return (int32_t)v;
}

static struct sampler *golden_sampler(const struct json *c, int32_t n)
{
    const struct json *bias = json_get(c, "bias"), *spared = json_get(c, "no_xtc");
    struct logit_bias b[8];
    int32_t keep[8], n_keep = (int32_t)json_len(spared);
    struct sample_params p = {.temperature = real_of(c, "temperature"),
                              .top_p = real_of(c, "top_p"),
                              .min_p = real_of(c, "min_p"),
                              .top_k = int_of(c, "top_k"),
                              .xtc_probability = real_of(c, "xtc_probability"),
                              .xtc_threshold = real_of(c, "xtc_threshold"),
                              .repetition_penalty = real_of(c, "repetition_penalty"),
                              .repetition_window = int_of(c, "repetition_window"),
                              .presence_penalty = real_of(c, "presence_penalty"),
                              .frequency_penalty = real_of(c, "frequency_penalty"),
                              .bias = b,
                              .n_bias = (int32_t)json_len(bias),
                              .n_top = 5};
    for (size_t i = 0; i < json_len(bias); i++)
        b[i] = (struct logit_bias){int_at(json_at(bias, i), 0),
                                   (float)json_real(json_at(json_at(bias, i), 1))};
    for (int32_t i = 0; i < n_keep; i++)
        keep[i] = int_at(spared, (size_t)i);
    struct sampler *s = NULL;
    struct qn_err err;
    if (sampler_create(&p, n, keep, n_keep, &s, &err) != QN_OK)
        fail_msg("%s", err.msg);
    return s;
}

static void golden_case(const struct json *c, int number)
{
    const struct json *row = json_get(c, "logits_x64"), *dist = json_get(c, "dist");
    const struct json *prompt = json_get(c, "prompt"), *made = json_get(c, "made");
    const struct json *top = json_get(c, "top");
    float x[512], copy[512], prob[512], want[512] = {0};
    int32_t n = (int32_t)json_len(row);
    assert_in_range(n, 1, 512);
    for (int32_t i = 0; i < n; i++)
        x[i] = copy[i] = (float)int_at(row, (size_t)i) / 64;
    for (size_t i = 0; i < json_len(dist); i++)
        want[int_at(json_at(dist, i), 0)] = (float)json_real(json_at(json_at(dist, i), 1));

    struct sampler *s = golden_sampler(c, n);
    for (size_t i = 0; i < json_len(prompt); i++)
        sampler_prompt(s, &(int32_t){int_at(prompt, i)}, 1);
    for (size_t i = 0; i < json_len(made); i++)
        force(s, n, int_at(made, i));
    assert_int_equal(sampler_dist(s, copy, 7, prob, NULL), QN_OK);
    for (int32_t i = 0; i < n; i++)
        if (fabsf(prob[i] - want[i]) > 2e-5f * want[i] + 1e-9f || (prob[i] > 0) != (want[i] > 0))
            fail_msg("case %d: token %d has %g, expected %g", number, i, (double)prob[i],
                     (double)want[i]);
    struct sampled out = draw(s, x, n, 7);
    assert_true(want[out.id] > 0);
    assert_int_equal(out.n_top, 5);
    for (size_t i = 0; i < 5; i++) {
        float lp = (float)json_real(json_at(json_at(top, i), 1));
        assert_int_equal(out.top[i].id, int_at(json_at(top, i), 0));
        assert_true(fabsf(out.top[i].logprob - lp) <= 1e-5f * fabsf(lp) + 2e-6f);
    }
    sampler_free(s);
}

static void test_golden(void **state)
{
    struct buf text = BUF_INIT;
    struct json *doc = NULL;
    struct qn_err err;
    if (file_read(SAMPLE_GOLDEN, 1 << 20, &text, &err) != QN_OK ||
        json_parse(buf_str(&text), "sample_golden.json", JSON_DEPTH_MAX, &doc, &err) != QN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(json_len(doc), 90);
    for (size_t i = 0; i < json_len(doc); i++)
        golden_case(json_at(doc, i), (int)i);
    json_free(doc);
    buf_free(&text);
}

/* ---- real sizes, against sorting ----------------------------------------------------------- */

static const float *sort_row;

static int by_value(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sort_row[i] != sort_row[j])
        return sort_row[i] < sort_row[j] ? 1 : -1;
    return (i > j) - (i < j);
}

/* Random numbers of roughly normal shape. */
static float normal(uint64_t stream, uint64_t i)
{
    double v = 0;
    for (uint64_t k = 0; k < 6; k++)
        v += rng_unit(11, stream, i * 6 + k) - 0.5;
    return (float)(v * 1.414);
}

/* How many tokens top_p, min_p and top_k leave, the plain way. order: ids by falling logit. */
static int32_t plain_kept(const struct sample_params *p, const float *x, const int32_t *order,
                          int32_t n)
{
    double total = 0, before = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        total += exp((double)x[i] - (double)x[order[0]]);
    for (; kept < n; kept++) {
        double w = exp((double)x[order[kept]] - (double)x[order[0]]);
        bool tie = kept > 0 && x[order[kept]] == x[order[kept - 1]];
        if (p->top_p < 1 && before >= (double)p->top_p * total && !tie)
            break;
        if (w < (double)p->min_p || (p->top_k > 0 && kept == p->top_k))
            break;
        before += w;
    }
    return kept;
}

static void check_kept(const struct sample_params *p, const float *x, const int32_t *order,
                       int32_t n)
{
    float *prob = malloc((size_t)n * sizeof *prob), *copy = malloc((size_t)n * sizeof *copy);
    assert_true(prob && copy);
    memcpy(copy, x, (size_t)n * sizeof *copy);
    struct sampler *s = make(*p, n);
    assert_int_equal(sampler_dist(s, copy, 0, prob, NULL), QN_OK);
    int32_t want = plain_kept(p, x, order, n), got = 0;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        got += prob[order[i]] > 0;
        sum += (double)prob[i];
        if (i > 0) /* survivors are the upper part */
            assert_true(prob[order[i]] <= prob[order[i - 1]]);
    }
    /* one token next to the bar may fall either way by rounding */
    if (abs(got - want) > (p->top_k ? 0 : 1 + want / 10000))
        fail_msg("%d tokens: %d kept, expected %d", n, got, want);
    assert_true(fabs(sum - 1) < 1e-4);
    sampler_free(s);
    free(prob);
    free(copy);
}

static void check_size(int32_t n, float spread, uint64_t stream)
{
    static const struct {
        float top_p, min_p;
        int32_t top_k;
    } c[] = {{0.9f, 0, 0}, {1, 0.05f, 0}, {1, 0, 40}, {1, 0, 100000}, {0.95f, 0.01f, 100}};
    float *x = malloc((size_t)n * sizeof *x);
    int32_t *order = malloc((size_t)n * sizeof *order);
    assert_true(x && order);
    for (int32_t i = 0; i < n; i++) {
        x[i] = spread * normal(stream, (uint64_t)i);
        order[i] = i;
    }
    sort_row = x;
    qsort(order, (size_t)n, sizeof *order, by_value);
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct sample_params p = plain(1);
        p.top_p = c[i].top_p;
        p.min_p = c[i].min_p;
        p.top_k = c[i].top_k;
        check_kept(&p, x, order, n);
    }
    free(x);
    free(order);
}

static void test_sizes(void **state)
{
    static const int32_t size[] = {1, 2, 255, 256, 257, 4096, 49152};
    static const float spread[] = {0, 0.5f, 3, 10};
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 4; j++)
            check_size(size[i], spread[j], (uint64_t)(i * 4 + j));
    check_size(151936, 3, 100);
}

/* ---- draws --------------------------------------------------------------------------------- */

/* What a grammar shuts out has no probability, also where the row's likeliest token is among it. */
static void test_dist_under_a_mask(void **state)
{
    float logits[70], prob[70];
    uint64_t bits[2] = {(uint64_t)1 << 3 | (uint64_t)1 << 60, 1 << 2};
    for (int temperature = 0; temperature < 2; temperature++) {
        for (int k = 0; k < 2; k++) {
            struct sample_params p = sample_params_default();
            struct sampler *s = NULL;
            p.temperature = (float)temperature;
            p.top_k = k ? 2 : 0;
            for (int i = 0; i < 70; i++)
                logits[i] = (float)(i == 5 ? 9 : i == 66 ? 2 : i == 60 ? 1 : 0);
            assert_int_equal(sampler_create(&p, 70, NULL, 0, &s, NULL), QN_OK);
            sampler_allow(s, bits);
            assert_int_equal(sampler_dist(s, logits, 0, prob, NULL), QN_OK);
            double sum = 0, e = exp(1), all = e * e + e + (k ? 0 : 1);
            for (int i = 0; i < 70; i++) {
                assert_true(prob[i] == 0 || i == 3 || i == 60 || i == 66);
                sum += (double)prob[i];
            }
            assert_true(fabs(sum - 1) < 1e-6);
            assert_true(fabs((double)prob[66] - (temperature ? e * e / all : 1)) < 1e-6);
            sampler_free(s);
        }
    }
}

/* Chi-square of 20,000 draws at positions 0, 1, 2... against the exact distribution. */
static void chi_square(struct sample_params p, const float *x, int32_t n)
{
    enum { DRAWS = 20000 };
    struct sampler *s = make(p, n);
    float *copy = malloc((size_t)n * sizeof *copy), *prob = malloc((size_t)n * sizeof *prob);
    int32_t *count = calloc((size_t)n, sizeof *count);
    assert_true(copy && prob && count);
    memcpy(copy, x, (size_t)n * sizeof *copy);
    assert_int_equal(sampler_dist(s, copy, 0, prob, NULL), QN_OK);
    for (int64_t i = 0; i < DRAWS; i++)
        count[draw(s, x, n, i).id]++;
    double chi = 0, rest_want = 0, rest_got = 0;
    int bins = 0;
    for (int32_t i = 0; i < n; i++) {
        double want = (double)prob[i] * DRAWS;
        assert_true(prob[i] > 0 || count[i] == 0);
        if (want < 8) {
            rest_want += want;
            rest_got += count[i];
            continue;
        }
        chi += (count[i] - want) * (count[i] - want) / want;
        bins++;
    }
    if (rest_want > 8) {
        chi += (rest_got - rest_want) * (rest_got - rest_want) / rest_want;
        bins++;
    }
    double limit = bins + 4 * sqrt(2.0 * bins); /* about 1 in 10,000; the seed is fixed */
    if (chi > limit)
        fail_msg("chi-square %g over %d bins, limit %g", chi, bins, limit);
    sampler_free(s);
    free(copy);
    free(prob);
    free(count);
}

static void test_draws(void **state)
{
    float x[700];
    for (int i = 0; i < 700; i++)
        x[i] = 2 * normal(99, (uint64_t)i);
    for (uint64_t seed = 1; seed < 3; seed++) {
        struct sample_params p = plain(0.7f);
        p.seed = seed;
        chi_square(p, x, 700);
        p.temperature = 2;
        chi_square(p, x, 257);
        p.top_p = 0.8f;
        chi_square(p, x, 700);
        p.min_p = 0.1f;
        p.top_k = 7;
        chi_square(p, x, 700);
    }
    x[3] = -INFINITY; /* never drawn */
    x[4] = 0;
    chi_square(plain(1), x, 6);
}

/* A draw is a function of seed and position: not of what was drawn before. */
static void test_positions(void **state)
{
    float x[64];
    int32_t forth[50], same = 0;
    for (int i = 0; i < 64; i++)
        x[i] = normal(5, (uint64_t)i);
    struct sample_params p = plain(1);
    p.seed = 42;
    struct sampler *a = make(p, 64), *b = make(p, 64);
    p.seed = 43;
    struct sampler *c = make(p, 64);
    for (int i = 0; i < 50; i++)
        forth[i] = draw(a, x, 64, i).id;
    for (int i = 49; i >= 0; i--) {
        assert_int_equal(draw(b, x, 64, i).id, forth[i]);
        same += draw(c, x, 64, i).id == forth[i];
    }
    assert_true(same < 20);
    sampler_free(a);
    sampler_free(b);
    sampler_free(c);
}

/* The coin of xtc falls as often as it should, and then the top goes. */
static void test_xtc_coin(void **state)
{
    const float x[4] = {2, 2.5f, 1.9f, -8};
    struct sample_params p = plain(1);
    p.xtc_probability = 0.3f;
    p.xtc_threshold = 0.1f;
    struct sampler *s = make(p, 4);
    int gone = 0;
    for (int64_t i = 0; i < 10000; i++) {
        float copy[4], prob[4];
        memcpy(copy, x, sizeof copy);
        assert_int_equal(sampler_dist(s, copy, i, prob, NULL), QN_OK);
        assert_true((prob[1] > 0) == (prob[0] > 0)); /* together, or neither */
        assert_true(prob[2] > 0 && prob[3] > 0);
        gone += prob[1] == 0;
    }
    assert_in_range(gone, 2850, 3150);
    sampler_free(s);
}

/* ---- edges --------------------------------------------------------------------------------- */

static void test_ties(void **state)
{
    float x[600];
    for (int i = 0; i < 600; i++)
        x[i] = i == 17 || i == 300 || i == 599 ? 3 : -1;
    struct sample_params p = plain(0);
    p.n_top = 4;
    struct sampler *s = make(p, 600);
    struct sampled out = draw(s, x, 600, 0);
    assert_int_equal(out.id, 17); /* the lowest of equals */
    const int32_t want[4] = {17, 300, 599, 0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(out.top[i].id, want[i]);
    sampler_free(s);
    p = plain(1);
    p.top_k = 2; /* ties go to the lowest ids */
    s = make(p, 600);
    for (int i = 0; i < 200; i++)
        assert_true(draw(s, x, 600, i).id != 599 && draw(s, x, 600, i).id < 301);
    sampler_free(s);
    p.top_k = 0;
    p.top_p = 0.01f; /* the threshold form keeps them all */
    float prob[600];
    s = make(p, 600);
    assert_int_equal(sampler_dist(s, x, 0, prob, NULL), QN_OK);
    assert_true(prob[17] > 0.33f && prob[300] > 0.33f && prob[599] > 0.33f && prob[0] == 0);
    sampler_free(s);
}

/* top_p looks at the mass before min_p and top_k, and before temperature. */
static void test_order(void **state)
{
    float x[4], copy[4], prob[4];
    const float share[4] = {0.4f, 0.3f, 0.2f, 0.1f};
    for (int i = 0; i < 4; i++)
        x[i] = logf(share[i]);
    struct {
        float top_p, min_p, temperature, xtc;
        int32_t top_k, kept;
    } c[] = {
        {0.65f, 0, 1, 0, 0, 3 - 1}, /* 0.4 + 0.3 hold 0.65 */
        {0.65f, 0, 2, 0, 0, 2},     /* a flatter temperature changes nothing */
        {0.75f, 0, 1, 0, 0, 3},     {0.65f, 0, 1, 0, 3, 2},
        {0.75f, 0.6f, 1, 0, 0, 2},  {1, 0.2f, 2, 0, 0, 4},
        {1, 0.3f, 0.1f, 0, 0, 3},   {1, 0, 1, 0.15f, 0, 2}, /* xtc drops 0.4 and 0.3 */
        {0.75f, 0, 1, 0.25f, 0, 2}, /* of 3 left, 0.44 0.33 0.22: only the first two are above */
        {1, 0, 1, 0.15f, 1, 1},     /* top_k comes after xtc: 0.2 alone is left */
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct sample_params p = plain(c[i].temperature);
        p.top_p = c[i].top_p;
        p.min_p = c[i].min_p;
        p.top_k = c[i].top_k;
        p.xtc_probability = c[i].xtc > 0;
        p.xtc_threshold = c[i].xtc;
        struct sampler *s = make(p, 4);
        memcpy(copy, x, sizeof x);
        assert_int_equal(sampler_dist(s, copy, 0, prob, NULL), QN_OK);
        int kept = 0;
        for (int k = 0; k < 4; k++)
            kept += prob[k] > 0;
        if (kept != c[i].kept)
            fail_msg("row %zu: %d kept, expected %d", i, kept, c[i].kept);
        if (i == 9)
            assert_true(prob[2] == 1);
        sampler_free(s);
    }
}

static void test_penalties(void **state)
{
    const float x[4] = {2, -2, 1, 1.5f};
    float copy[4], prob[4];
    const int32_t prompt[3] = {0, 1, 0};
    struct sample_params p = plain(1);
    p.repetition_penalty = 2;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.25f;
    struct sampler *s = make(p, 4);
    sampler_prompt(s, prompt, 3);
    force(s, 4, 2);
    force(s, 4, 2);
    force(s, 4, 1);
    memcpy(copy, x, sizeof x);
    assert_int_equal(sampler_dist(s, copy, 0, prob, NULL), QN_OK);
    /* once per distinct token; presence once, frequency per occurrence, for the answer only */
    const float want[4] = {2 / 2.0f, -2 * 2.0f - 0.5f - 0.25f, 1 / 2.0f - 0.5f - 0.5f, 1.5f};
    for (int i = 0; i < 4; i++)
        assert_true(copy[i] == want[i]);
    sampler_free(s);
    p = plain(1);
    p.repetition_penalty = 2;
    p.repetition_window = 2; /* 0 1 0 then 2: looks at 0 2 */
    s = make(p, 4);
    sampler_prompt(s, prompt, 3);
    force(s, 4, 2);
    memcpy(copy, x, sizeof x);
    assert_int_equal(sampler_dist(s, copy, 0, prob, NULL), QN_OK);
    assert_true(copy[0] == 1 && copy[1] == -2 && copy[2] == 0.5f && copy[3] == 1.5f);
    sampler_free(s);
    p.repetition_penalty = 1e-30f; /* must not overflow into an error */
    s = make(p, 4);
    sampler_prompt(s, (int32_t[]){0, 2}, 2);
    draw(s, x, 4, 0);
    draw(s, (float[]){1e20f, 3e20f, 1e30f, 0}, 4, 1);
    sampler_free(s);
}

static void test_bad_logits(void **state)
{
    static const struct {
        float a, b;
        const char *says;
    } c[] = {
        {NAN, 1, "NaN"},
        {INFINITY, 1, "infinite"},
        {-INFINITY, -INFINITY, "no finite"},
        {-NAN, INFINITY, "NaN"},
    };
    for (int greedy = 0; greedy < 2; greedy++) {
        for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
            float x[300];
            struct sampled out;
            struct qn_err err;
            for (int k = 0; k < 300; k++)
                x[k] = -INFINITY;
            x[3] = c[i].a;
            x[299] = c[i].b;
            struct sampler *s = make(plain(greedy ? 0 : 1), 300);
            assert_int_equal(sampler_draw(s, x, 0, &out, &err), QN_INTERNAL);
            assert_non_null(strstr(err.msg, c[i].says));
            sampler_free(s);
        }
    }
}

/* What cannot go into JSON never comes out. */
static void test_floor(void **state)
{
    float x[4] = {0, -INFINITY, -30000, 1};
    struct sample_params p = plain(0);
    struct sampled out;
    p.n_top = 4;
    p.bias = &(struct logit_bias){0, -100};
    p.n_bias = 1;
    struct sampler *s = make(p, 4);
    assert_int_equal(sampler_score(s, x, 1, &out, NULL), QN_OK);
    assert_true(out.logprob == -9999);
    assert_true(out.top[2].id == 2 && out.top[2].logprob == -9999);
    assert_true(fabsf(out.top[1].logprob + 1.3132617f) < 1e-5f); /* score: without the bias */
    out = draw(s, x, 4, 0);
    assert_int_equal(out.id, 3);
    assert_true(out.logprob == 0); /* never above 0 */
    assert_true(fabsf(out.top[1].logprob + 101) < 1e-3f);
    sampler_free(s);
    p = plain(0); /* no logprobs asked: none given */
    s = make(p, 4);
    out = draw(s, x, 4, 0);
    assert_int_equal(out.n_top, -1);
    assert_true(out.logprob == 0);
    sampler_free(s);
    p.n_top = 20; /* more than there are tokens */
    s = make(p, 4);
    assert_int_equal(draw(s, x, 4, 0).n_top, 4);
    sampler_free(s);
}

static void test_limits(void **state)
{
    const struct sample_params ok = plain(1);
    struct {
        struct sample_params p;
        const char *says;
    } c[24];
    int n = 0;
#define BAD(field, value, text)                                                                    \
    do {                                                                                           \
        c[n].p = ok;                                                                               \
        c[n].p.field = (value);                                                                    \
        c[n++].says = (text);                                                                      \
    } while (0)
    BAD(temperature, -0.1f, "temperature is -0.1; expected a number of at least 0 and at most 2");
    BAD(temperature, 2.5f, "temperature is 2.5");
    BAD(temperature, NAN, "temperature is nan");
    BAD(top_p, 0, "top_p is 0; expected a number above 0 and at most 1");
    BAD(top_p, 1.5f, "top_p is 1.5");
    BAD(min_p, -1, "min_p is -1; expected a number of at least 0 and at most 1");
    BAD(min_p, 1.5f, "min_p is 1.5");
    BAD(top_k, -1, "top_k is -1; expected a number of at least 0");
    BAD(xtc_probability, 2, "xtc_probability is 2");
    BAD(xtc_threshold, 0.75f,
        "xtc_threshold is 0.75; expected a number of at least 0 and at most 0.5");
    BAD(repetition_penalty, 0, "repetition_penalty is 0; expected a number above 0");
    BAD(repetition_penalty, -1, "repetition_penalty is -1");
    BAD(repetition_penalty, INFINITY, "repetition_penalty is inf");
    BAD(repetition_window, -1, "repetition_window is -1");
    BAD(presence_penalty, 3,
        "presence_penalty is 3; expected a number of at least -2 and at most 2");
    BAD(frequency_penalty, -3, "frequency_penalty is -3");
    BAD(n_top, 21, "top_logprobs is 21");
    BAD(n_top, -2, "top_logprobs is -2");
#undef BAD
    const struct logit_bias bad[] = {{100, 1}, {-1, 1}, {5, 101}, {5, NAN}};
    const char *const says[] = {"names token 100; the model's ids are 0 to 99", "names token -1",
                                "of token 5 is 101; expected -100 to 100", "of token 5 is nan"};
    for (int i = 0; i < 4; i++) {
        c[n].p = ok;
        c[n].p.bias = &bad[i];
        c[n].p.n_bias = 1;
        c[n++].says = says[i];
    }
    for (int i = 0; i < n; i++) {
        struct qn_err err;
        struct sampler *s = NULL;
        assert_int_equal(sampler_create(&c[i].p, 100, NULL, 0, &s, &err), QN_BAD_INPUT);
        if (!strstr(err.msg, c[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.msg, c[i].says);
        assert_null(s);
    }
    assert_int_equal(sample_params_check(&ok, 100, NULL), QN_OK);
}

static void test_bias(void **state)
{
    float x[3] = {1, 0, 0.5f};
    struct sample_params p = plain(0);
    p.bias = (struct logit_bias[]){{1, 100}, {0, -100}};
    p.n_bias = 2;
    struct sampler *s = make(p, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(draw(s, x, 3, i).id, 1);
    sampler_free(s);
    p = plain(1);
    p.bias = &(struct logit_bias){0, -100};
    p.n_bias = 1;
    s = make(p, 3);
    for (int i = 0; i < 2000; i++)
        assert_true(draw(s, x, 3, i).id != 0);
    sampler_free(s);
}

/* ---- restricted draws ---------------------------------------------------------------------- */

/* Only what is allowed comes, whatever the filters; the logprobs are those of the whole row; the
 * restriction is for one draw. */
static void test_allow(void **state)
{
    enum { N = 700 };
    float x[N];
    uint64_t bits[(N + 63) / 64] = {0};
    for (int i = 0; i < N; i++)
        x[i] = (float)(6 * rng_unit(1, 2, (uint64_t)i));
    x[5] = 20;
    bits[3] = 0xF0; /* 196 to 199 */
    bits[10] = 1;   /* 640 */
    for (int k = 0; k < 6; k++) {
        struct sample_params p = plain(k % 2 ? 1.5f : 0);
        p.top_p = k == 3 ? 0.5f : 1;
        p.top_k = k == 5 ? 3 : 0;
        p.n_top = 2;
        struct sampler *s = make(p, N);
        for (int64_t at = 0; at < 40; at++) {
            sampler_allow(s, bits);
            struct sampled t = draw(s, x, N, at);
            assert_true((t.id >= 196 && t.id < 200) || t.id == 640);
            assert_int_equal(t.top[0].id, 5);
            assert_true(t.logprob < -10 && t.logprob > SAMPLE_LOGPROB_FLOOR);
        }
        assert_int_equal(draw(s, x, N, 41).id, 5);
        sampler_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dist_under_a_mask),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_xtc_coin),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_allow),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_bad_logits),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_bias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
