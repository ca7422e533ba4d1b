/*
 * test_latent.c - what attention over a latent and its experts add to exec.h: a product per head
 * against the plain formula, alone and in company; the choice of experts by groups (ties forced),
 * by counting who beats whom.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "exec/exec_int.h"

enum { H = 5, N = 40, KIN = 48, SLOT = 56, ROWS = 150, E = 12, G = 4, PER = E / G, TOP = 3 };

static uint32_t seed = 7;

static float rnd(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (float)(1 << 23) - 1;
}

static struct exec *make_exec(int n_thread, bool reference)
{
    struct exec_params p = {
        .n_thread = n_thread, .max_rows = ROWS, .n_ctx = 64, .reference = reference};
    struct exec *ex;
    struct qn_err err;
    CHECK_OK(cpu_isa_parse(NULL, &p.isa, &err), err);
    CHECK_OK(exec_create(&p, &ex, &err), err);
    CHECK_OK(exec_reserve(ex, 1 << 20, &err), err);
    return ex;
}

/* ---- a product per head ---------------------------------------------------------------------- */

struct heads {
    struct exec *ex;
    struct weight *w;
    struct tensor *x, *y;
    float *m;       /* [H, N, KIN], exactly what w holds */
    uint8_t *codes; /* 8 bits */
    float *scales, *biases;
};

/* Integer weights are one group of 32 inputs wide, float ones KIN: never the whole slot. */
static void make_heads(struct heads *t, int n_thread, bool integer, bool reference)
{
    enum { K8 = 32 };
    int32_t k = integer ? K8 : KIN;
    size_t n = (size_t)H * N * (size_t)k, ng = n / K8;
    struct qn_err err;
    *t = (struct heads){.ex = make_exec(n_thread, reference)};
    t->m = malloc(n * sizeof *t->m);
    t->codes = malloc(n);
    t->scales = malloc((ng + 1) * sizeof *t->scales);
    t->biases = malloc((ng + 1) * sizeof *t->biases);
    seed = 7;
    for (size_t i = 0; i < ng; i++) {
        t->scales[i] = (rnd() + 2) / 256;
        t->biases[i] = -1 + rnd() / 8;
    }
    for (size_t i = 0; i < n; i++) {
        float v = rnd();
        t->codes[i] = (uint8_t)(int)((v + 1) * 127);
        t->m[i] = integer ? (float)t->codes[i] * t->scales[i / K8] + t->biases[i / K8] : v;
    }
    struct weight_src s = {.name = "heads",
                           .format = integer ? WEIGHT_AFFINE : WEIGHT_F32,
                           .n = N,
                           .k = k,
                           .bits = integer ? 8 : 0,
                           .group = integer ? K8 : 0,
                           .scale_type = SCALE_F32,
                           .data = integer ? t->codes : (const uint8_t *)t->m,
                           .scales = integer ? (const uint8_t *)t->scales : NULL,
                           .biases = integer ? (const uint8_t *)t->biases : NULL,
                           .n_stack = H,
                           .active = H};
    CHECK_OK(weight_load(t->ex, &s, &t->w, &err), err);
    CHECK_OK(tensor_create(t->ex, H * SLOT, &t->x, &err), err);
    CHECK_OK(tensor_create(t->ex, H * N, &t->y, &err), err);
}

static void free_heads(struct heads *t)
{
    exec_free(t->ex);
    free(t->m);
    free(t->codes);
    free(t->scales);
    free(t->biases);
}

static void put_row(struct heads *t, int32_t at, int32_t i)
{
    seed = 1000u + (uint32_t)i;
    for (int32_t c = 0; c < H * SLOT; c++)
        t->x->p[at * H * SLOT + c] = rnd();
}

static void run_heads(struct heads *t, int32_t n)
{
    t->x->rows = n;
    op_linear_heads(t->ex, t->y, t->w, t->x);
}

static void check_heads(const struct heads *t, int32_t row, double within)
{
    int32_t k = t->w->pk.k;
    for (int32_t h = 0; h < H; h++)
        for (int32_t i = 0; i < N; i++) {
            double sum = 0;
            for (int32_t j = 0; j < k; j++)
                sum +=
                    (double)t->m[(h * N + i) * k + j] * (double)t->x->p[(row * H + h) * SLOT + j];
            double got = (double)t->y->p[row * H * N + h * N + i];
            if (!(fabs(got - sum) <= within))
                fail_msg("row %d, head %d, value %d: %g, expected %g", row, h, i, got, sum);
        }
}

static void test_heads(void **state)
{
    for (int i = 0; i < 8; i++) { /* float or integer weights, reference or not, 1 or 3 threads */
        struct heads t;
        make_heads(&t, i & 4 ? 3 : 1, i & 1, i & 2);
        for (int32_t r = 0; r < ROWS; r++)
            put_row(&t, r, r);
        run_heads(&t, ROWS);
        for (int32_t r = 0; r < ROWS; r++)
            check_heads(&t, r, i & 2 ? 2e-6 : i & 1 ? 2e-3 : 2e-5);
        free_heads(&t);
    }
}

static void test_heads_company(void **state)
{
    for (int integer = 0; integer <= 1; integer++) {
        struct heads one, many;
        make_heads(&one, 1, integer, false);
        make_heads(&many, 3, integer, false);
        for (int32_t r = 0; r < ROWS; r++)
            put_row(&many, r, ROWS - 1 - r);
        run_heads(&many, ROWS);
        for (int32_t r = 0; r < ROWS; r++) {
            put_row(&one, 0, r);
            run_heads(&one, 1);
            assert_memory_equal(one.y->p, many.y->p + (ROWS - 1 - r) * H * N, H * N * 4);
        }
        run_heads(&one, 0);
        assert_int_equal(one.y->rows, 0);
        free_heads(&one);
        free_heads(&many);
    }
}

/* ---- choosing by groups ---------------------------------------------------------------------- */

static double sigmoid(float x)
{
    return (double)(float)(1 / (1 + exp(-(double)x)));
}

static float two_best(const float *b)
{
    float best = -1e9f;
    for (int i = 0; i < PER; i++)
        for (int j = i + 1; j < PER; j++)
            best = b[i] + b[j] > best ? b[i] + b[j] : best;
    return best;
}

/* Whether e is chosen, by the words of exec.h. */
static bool chosen(const float *all, int32_t e, const struct route_groups *g)
{
    float b[E];
    int32_t better = 0;
    for (int32_t i = 0; i < E; i++) {
        int32_t mine = i / PER, above = 0;
        float score = two_best(all + mine * PER);
        for (int32_t o = 0; o < G; o++) {
            float other = two_best(all + o * PER);
            above += other > score || (other == score && o > mine);
        }
        b[i] = g->n_group == 1 || above < g->n_keep ? all[i] : 0;
    }
    for (int32_t i = 0; i < E; i++)
        better += b[i] > b[e] || (b[i] == b[e] && i < e);
    return better < TOP;
}

static void check_choice(const struct moe *moe, const float *x, int32_t row,
                         const struct route_groups *g)
{
    float b[E];
    double sum = 0;
    int32_t n = 0;
    for (int32_t e = 0; e < E; e++)
        b[e] = (float)sigmoid(x[e]) + g->bias->vec[e];
    for (int32_t e = 0; e < E; e++)
        sum += chosen(b, e, g) ? sigmoid(x[e]) : 0;
    for (int32_t e = 0; e < E; e++) {
        if (!chosen(b, e, g))
            continue;
        double want = sigmoid(x[e]) / (g->normed ? sum : 1) * (double)g->scale;
        assert_true(n < TOP);
        assert_int_equal(moe->ids[row * TOP + n], e);
        assert_true(fabs((double)moe->weights[row * TOP + n] - want) <= 1e-6);
        n++;
    }
    assert_int_equal(n, TOP);
}

static void test_groups(void **state)
{
    static const struct {
        int32_t n_group, n_keep;
        bool normed, biased;
    } cases[] = {{1, 1, true, false}, {G, 2, true, true},   {G, 1, false, false},
                 {G, 4, true, true},  {G, 2, false, false}, {1, 1, false, true}};
    struct exec *ex = make_exec(1, false);
    struct moe_shape shape = {E, TOP, 16, 16};
    struct moe *moe;
    struct tensor *logits;
    struct weight *bias;
    float b[E] = {0};
    struct weight_src s = {
        .name = "bias", .format = WEIGHT_F32, .n = 1, .k = E, .data = (const uint8_t *)b};
    struct qn_err err;
    CHECK_OK(moe_create(ex, &shape, &moe, &err), err);
    CHECK_OK(tensor_create(ex, E, &logits, &err), err);
    CHECK_OK(weight_load_vec(ex, &s, &bias, &err), err);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct route_groups g = {bias, cases[c].n_group, cases[c].n_keep, cases[c].normed, 2.5f};
        /* a bias below -1 makes sums negative, so that the 0 of groups left out wins */
        for (int32_t e = 0; e < E; e++)
            bias->vec[e] = cases[c].biased ? rintf(2 * rnd()) / 2 - 0.75f : 0;
        for (int32_t i = 0; i < ROWS * E; i++)
            logits->p[i] = rintf(rnd() * 1.6f); /* few values: many ties */
        logits->rows = ROWS;
        op_route_groups(ex, moe, logits, &g);
        for (int32_t r = 0; r < ROWS; r++)
            check_choice(moe, logits->p + r * E, r, &g);
    }
    for (int32_t e = 0; e < E; e++)
        logits->p[e] = NAN; /* still TOP different experts */
    logits->rows = 1;
    op_route_groups(ex, moe, logits, &(struct route_groups){bias, G, 2, true, 1});
    for (int32_t i = 0; i < TOP; i++)
        assert_true(moe->ids[i] >= 0 && moe->ids[i] < E && (!i || moe->ids[i] > moe->ids[i - 1]));
    exec_free(ex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_heads_company),
        cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
