/*
 * test_moe.c - routed experts of exec.h: which experts a row gets (ties forced), their weights, and
 * the sum of their outputs against the plain formula in double; the same bits alone, in company and
 * on several threads; experts that nobody chose are not read.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "exec/exec_int.h"

enum { E = 7, K = 3, HID = 64, FF = 24, ROWS = 70, POISONED = 5 };

struct rig {
    struct exec *ex;
    struct moe *moe;
    struct tensor *x, *logits, *y;
    struct experts w;
    float *m[3], *b[3]; /* gate, up, down */
};

static uint32_t seed = 11;

static float rnd(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (float)(1 << 23) - 1;
}

/* A stack [E, n, k]; the poisoned expert is all NaN. */
static float *stack(struct rig *r, int32_t n, int32_t k, struct weight **out, bool vector)
{
    size_t each = (size_t)n * (size_t)k;
    float *p = malloc(E * each * sizeof *p);
    for (size_t i = 0; i < E * each; i++)
        p[i] = i / each == POISONED ? NAN : rnd();
    struct weight_src s = {.name = "stack", .format = WEIGHT_F32, .data = (const uint8_t *)p};
    struct qn_err err;
    s.n = vector ? E : n;
    s.k = vector ? n : k;
    s.n_stack = vector ? 0 : E;
    s.active = vector ? 0 : K;
    CHECK_OK((vector ? weight_load_vec : weight_load)(r->ex, &s, out, &err), err);
    return p;
}

static struct rig *make_rig(int n_thread)
{
    struct rig *r = calloc(1, sizeof *r);
    struct exec_params p = {.n_thread = n_thread, .max_rows = ROWS, .n_ctx = 64};
    struct moe_shape shape = {E, K, HID, FF};
    struct qn_err err;
    seed = 11;
    CHECK_OK(cpu_isa_parse(NULL, &p.isa, &err), err);
    CHECK_OK(exec_create(&p, &r->ex, &err), err);
    CHECK_OK(exec_reserve(r->ex, 1 << 20, &err), err);
    CHECK_OK(moe_create(r->ex, &shape, &r->moe, &err), err);
    CHECK_OK(tensor_create(r->ex, HID, &r->x, &err), err);
    CHECK_OK(tensor_create(r->ex, HID, &r->y, &err), err);
    CHECK_OK(tensor_create(r->ex, E, &r->logits, &err), err);
    struct weight *w[6];
    for (int i = 0; i < 3; i++) {
        r->m[i] = stack(r, i < 2 ? FF : HID, i < 2 ? HID : FF, &w[i], false);
        r->b[i] = stack(r, i < 2 ? FF : HID, 1, &w[3 + i], true);
    }
    r->w = (struct experts){w[0], w[1], w[2], w[3], w[4], w[5], GLU_SILU};
    return r;
}

static void free_rig(struct rig *r)
{
    exec_free(r->ex);
    for (int i = 0; i < 3; i++) {
        free(r->m[i]);
        free(r->b[i]);
    }
    free(r);
}

/* Row i of the inputs, the same whatever else is there; few distinct logits, so many ties. */
static void put_row(struct rig *r, int32_t at, int32_t i)
{
    seed = 1000u + (uint32_t)i;
    for (int32_t c = 0; c < HID; c++)
        r->x->p[at * HID + c] = rnd();
    for (int32_t e = 0; e < E; e++)
        r->logits->p[at * E + e] = e == POISONED ? -100 : rintf(rnd() * 1.5f);
}

static void run(struct rig *r, int32_t n, enum route_weights kind)
{
    r->x->rows = r->logits->rows = n;
    op_route(r->ex, r->moe, r->logits, kind);
    op_experts(r->ex, r->y, r->x, r->moe, &r->w);
}

/* Whether e is among the K best: fewer than K beat it, by value, then by higher index. */
static bool chosen(const float *x, int32_t e)
{
    int32_t better = 0;
    for (int32_t i = 0; i < E; i++)
        better += x[i] > x[e] || (x[i] == x[e] && i > e);
    return better < K;
}

static double dot(const float *w, const double *x, int32_t k)
{
    double s = 0;
    for (int32_t i = 0; i < k; i++)
        s += (double)w[i] * x[i];
    return s;
}

/* out += weight * expert e of x */
static void add_expert(const struct rig *r, int32_t e, const float *x, double weight, double *out)
{
    double in[HID], act[FF];
    for (int32_t i = 0; i < HID; i++)
        in[i] = (double)x[i];
    for (int32_t f = 0; f < FF; f++) {
        int32_t row = e * FF + f;
        double g = dot(r->m[0] + row * HID, in, HID) + (double)r->b[0][row];
        double u = dot(r->m[1] + row * HID, in, HID) + (double)r->b[1][row];
        act[f] = g / (1 + exp(-g)) * u;
    }
    for (int32_t i = 0; i < HID; i++)
        out[i] +=
            weight * (dot(r->m[2] + (e * HID + i) * FF, act, FF) + (double)r->b[2][e * HID + i]);
}

static void check_row(const struct rig *r, int32_t row, enum route_weights kind)
{
    const float *l = r->logits->p + row * E;
    double out[HID] = {0}, sum = 0;
    int32_t n = 0;
    for (int32_t e = 0; e < E; e++)
        sum += kind == ROUTE_OF_ALL || chosen(l, e) ? exp((double)l[e]) : 0;
    for (int32_t e = 0; e < E; e++) {
        if (!chosen(l, e))
            continue;
        assert_int_equal(r->moe->ids[row * K + n++], e);
        add_expert(r, e, r->x->p + row * HID, exp((double)l[e]) / sum, out);
    }
    assert_int_equal(n, K);
    for (int32_t i = 0; i < HID; i++)
        if (!(fabs((double)r->y->p[row * HID + i] - out[i]) <= 2e-3))
            fail_msg("row %d, value %d: %g, expected %g", row, i, (double)r->y->p[row * HID + i],
                     out[i]);
}

static void test_formula(void **state)
{
    for (int t = 1; t <= 3; t++) {
        struct rig *r = make_rig(t);
        for (int32_t i = 0; i < ROWS; i++)
            put_row(r, i, i);
        for (int kind = ROUTE_OF_CHOSEN; kind <= ROUTE_OF_ALL; kind++) {
            run(r, ROWS, (enum route_weights)kind);
            for (int32_t i = 0; i < ROWS; i++)
                check_row(r, i, (enum route_weights)kind);
        }
        free_rig(r);
    }
}

static void test_company(void **state)
{
    struct rig *one = make_rig(1), *many = make_rig(3);
    for (int32_t i = 0; i < ROWS; i++)
        put_row(many, i, ROWS - 1 - i);
    run(many, ROWS, ROUTE_OF_CHOSEN);
    for (int32_t i = 0; i < ROWS; i++) {
        put_row(one, 0, i);
        run(one, 1, ROUTE_OF_CHOSEN);
        assert_memory_equal(one->y->p, many->y->p + (ROWS - 1 - i) * HID, HID * sizeof(float));
    }
    free_rig(one);
    free_rig(many);
}

/* Logits that are not numbers still choose K different experts, and nothing goes out of bounds. */
static void test_not_numbers(void **state)
{
    struct rig *r = make_rig(1);
    put_row(r, 0, 0);
    for (int32_t e = 0; e < E; e++)
        r->logits->p[e] = NAN;
    run(r, 1, ROUTE_OF_CHOSEN);
    for (int32_t s = 1; s < K; s++)
        assert_true(r->moe->ids[s] > r->moe->ids[s - 1]);
    assert_true(r->moe->ids[0] >= 0 && r->moe->ids[K - 1] < E);
    run(r, 0, ROUTE_OF_CHOSEN); /* no rows: nothing happens */
    assert_int_equal(r->y->rows, 0);
    free_rig(r);
}

/* Rows that chose the same expert go through its matrices together, and nobody goes through those
 * that were not chosen: the matrices read (gate, up, down of each expert) are counted. */
static void test_reads(void **state)
{
    static const struct {
        int32_t n_row, n_choice; /* rows, and how many different choices they make in turn */
    } cases[] = {{1, 1}, {2, 1}, {ROWS, 1}, {2, 2}, {ROWS, 2}};
    /* choices {0,1,2} and {2,3,4} */
    static const float logits[2][E] = {{9, 8, 7, 0, 0, -100, 0}, {0, 0, 7, 8, 9, -100, 0}};
    for (int t = 1; t <= 3; t++) {
        struct rig *r = make_rig(t);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            for (int32_t row = 0; row < cases[i].n_row; row++) {
                put_row(r, row, row);
                memcpy(r->logits->p + row * E, logits[row % cases[i].n_choice], sizeof logits[0]);
            }
            int64_t before = r->moe->n_read;
            run(r, cases[i].n_row, ROUTE_OF_CHOSEN);
            int64_t experts = cases[i].n_choice == 1 ? K : 5;
            assert_int_equal(r->moe->n_read - before, 3 * experts);
        }
        free_rig(r);
    }
}

static void test_refused(void **state)
{
    static const struct moe_shape bad[] = {
        {0, 1, HID, FF}, {4, 5, HID, FF}, {4, 0, HID, FF}, {MOE_EXPERT_MAX + 1, 1, HID, FF}};
    struct rig *r = make_rig(1);
    struct moe *moe;
    struct qn_err err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(moe_create(r->ex, &bad[i], &moe, &err), QN_UNSUPPORTED);
    free_rig(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),     cmocka_unit_test(test_company),
        cmocka_unit_test(test_not_numbers), cmocka_unit_test(test_reads),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
