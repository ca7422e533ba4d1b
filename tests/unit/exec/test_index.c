/*
 * test_index.c - sparse attention's index: each row's choice against the words of exec.h, by
 * counting who beats whom (ties forced by relu); the same choice token by token and on threads; and
 * attention that sees what was chosen only.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "exec/exec_int.h"

enum { T = 90, H = 3, D = 16, TOP = 20, DV = 16, DR = 16, NOPE = 16 };

static uint32_t seed;

static float rnd(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (float)(1 << 23) - 1;
}

struct rig {
    struct exec *ex;
    struct index *ix;
    struct kv_seq *kv;
    struct tensor *q, *k, *w, *lat, *qn, *kv_in, *aq, *out;
    struct index_op op;
    struct latent_op latent;
    float norm[D], bias[D];
};

static struct weight *vec(struct rig *r, const float *p)
{
    struct weight_src s = {
        .name = "v", .format = WEIGHT_F32, .n = 1, .k = D, .data = (const uint8_t *)p};
    struct weight *w;
    struct qn_err err;
    CHECK_OK(weight_load_vec(r->ex, &s, &w, &err), err);
    return w;
}

static void make_rig(struct rig *r, int n_thread, bool reference)
{
    static const struct kv_layer layers[] = {
        {.n_head = 1, .dk = D}, {.n_head = 1, .latent = true, .dk = DV + DR, .dv = DV}};
    static const double still[D / 2] = {0};
    struct exec_params p = {
        .n_thread = n_thread, .max_rows = T, .n_ctx = T, .reference = reference};
    struct qn_err err;
    struct rope *rope;
    memset(r, 0, sizeof *r);
    seed = 3;
    for (int i = 0; i < D; i++) {
        r->norm[i] = 1 + rnd() / 4;
        r->bias[i] = rnd() / 4;
    }
    CHECK_OK(cpu_isa_parse(NULL, &p.isa, &err), err);
    CHECK_OK(exec_create(&p, &r->ex, &err), err);
    CHECK_OK(kv_setup(r->ex, layers, 2, &err), err);
    CHECK_OK(kv_seq_create(r->ex, &r->kv, &err), err);
    CHECK_OK(rope_create(r->ex, still, D, 1, false, &rope, &err), err);
    CHECK_OK(index_create(r->ex, TOP, H * D, &r->ix, &err), err);
    CHECK_OK(tensor_create(r->ex, H * D, &r->q, &err), err);
    CHECK_OK(tensor_create(r->ex, D, &r->k, &err), err);
    CHECK_OK(tensor_create(r->ex, H, &r->w, &err), err);
    CHECK_OK(tensor_create(r->ex, DV, &r->lat, &err), err);
    CHECK_OK(tensor_create(r->ex, NOPE + DR, &r->qn, &err), err);
    CHECK_OK(tensor_create(r->ex, DV + DR, &r->kv_in, &err), err);
    CHECK_OK(tensor_create(r->ex, DV + DR, &r->aq, &err), err);
    CHECK_OK(tensor_create(r->ex, DV, &r->out, &err), err);
    r->op = (struct index_op){.n_head = H,
                              .d_head = D,
                              .scale = 0.25f,
                              .norm_eps = 1e-5f,
                              .rope = rope,
                              .norm = vec(r, r->norm),
                              .norm_bias = vec(r, r->bias),
                              .q = r->q,
                              .k = r->k,
                              .w = r->w};
    r->latent = (struct latent_op){.layer = 1,
                                   .n_head = 1,
                                   .d_latent = DV,
                                   .d_nope = NOPE,
                                   .d_rope = DR,
                                   .rope = rope,
                                   .norm = r->op.norm,
                                   .norm_eps = 1e-6f};
}

static void free_rig(struct rig *r)
{
    kv_seq_free(r->ex, r->kv);
    exec_free(r->ex);
}

static void put_token(struct rig *r, int32_t at, int32_t t)
{
    seed = 500u + (uint32_t)t;
    for (int i = 0; i < H * D; i++)
        r->q->p[at * H * D + i] = rnd();
    for (int i = 0; i < D; i++)
        r->k->p[at * D + i] = rnd();
    for (int i = 0; i < H; i++)
        r->w->p[at * H + i] = t % 7 == 0 ? 0 : rnd(); /* some rows: all scores equal */
    for (int i = 0; i < DV; i++)
        r->lat->p[at * DV + i] = rnd();
    for (int i = 0; i < NOPE + DR; i++)
        r->qn->p[at * (NOPE + DR) + i] = rnd();
    for (int i = 0; i < DV + DR; i++)
        r->kv_in->p[at * (DV + DR) + i] = rnd();
}

/* Tokens from t0 on in one step; what they chose into bits[t], their attention into out[t]. */
static void step(struct rig *r, int32_t t0, int32_t n, bool (*bits)[T], float (*out)[DV])
{
    static const int32_t ids[T];
    struct exec_span span = {r->kv, ids, n, 0};
    struct attn_op a = {
        .layer = 1, .n_head = 1, .n_kv = 1, .dk = DV + DR, .dv = DV, .scale = 1, .index = r->ix};
    struct qn_err err;
    CHECK_OK(exec_begin(r->ex, &span, 1, &err), err);
    for (int32_t i = 0; i < n; i++)
        put_token(r, i, t0 + i);
    r->q->rows = r->k->rows = r->w->rows = n;
    r->lat->rows = r->qn->rows = r->kv_in->rows = n;
    op_index(r->ex, r->ix, &r->op);
    op_latent_append(r->ex, r->aq, r->lat, r->qn, r->kv_in, &r->latent);
    op_attn(r->ex, r->out, r->aq, &a);
    for (int32_t i = 0; i < n; i++) {
        const int32_t *list = r->ix->lists + i * r->ix->row_list;
        for (int32_t t = 0; t <= t0 + i; t++)
            bits[t0 + i][t] = r->ix->all;
        for (int32_t k = 1; !r->ix->all && k <= list[0]; k++) {
            assert_true(list[k] <= t0 + i && (k == 1 || list[k] > list[k - 1]));
            bits[t0 + i][list[k]] = true;
        }
        memcpy(out[t0 + i], r->out->p + i * DV, sizeof out[0]);
    }
    exec_commit(r->ex);
}

/* ---- the plain formulas ---- */

static double score_of(const struct rig *r, int32_t row, int32_t t)
{
    double mean = 0, var = 0, key[D], sum = 0;
    const float *k = r->k->p + t * D;
    for (int i = 0; i < D; i++)
        mean += (double)k[i] / D;
    for (int i = 0; i < D; i++)
        var += ((double)k[i] - mean) * ((double)k[i] - mean) / D;
    for (int i = 0; i < D; i++)
        key[i] = ((double)k[i] - mean) / sqrt(var + 1e-5) * (double)r->norm[i] + (double)r->bias[i];
    for (int h = 0; h < H; h++) {
        double dot = 0;
        for (int i = 0; i < D; i++)
            dot += (double)r->q->p[(row * H + h) * D + i] * key[i];
        sum += (double)r->w->p[row * H + h] * 0.25 * (dot > 0 ? dot : 0);
    }
    return sum;
}

/* Token t's key of attention, whose first DV are its value too. */
static void latent_of(const struct rig *r, int32_t t, double key[DV + DR])
{
    const float *x = r->kv_in->p + t * (DV + DR);
    double sum = 0;
    for (int i = 0; i < DV; i++)
        sum += (double)x[i] * (double)x[i] / DV;
    for (int i = 0; i < DV + DR; i++)
        key[i] = (double)x[i] * (i < DV ? (double)r->norm[i] / sqrt(sum + 1e-6) : 1);
}

static void check_row(const struct rig *r, int32_t row, const bool *bits, const float *out)
{
    double s[T], l = 0, o[DV] = {0};
    int32_t n = 0;
    for (int32_t t = 0; t <= row; t++)
        s[t] = score_of(r, row, t);
    for (int32_t t = 0; t <= row; t++) {
        int32_t better = 0;
        for (int32_t i = 0; i <= row; i++)
            better += s[i] > s[t] || (s[i] == s[t] && i > t);
        if (bits[t] != (better < TOP))
            fail_msg("row %d, token %d: %s, %d are better", row, t, bits[t] ? "chosen" : "left out",
                     better);
        n += bits[t];
    }
    assert_int_equal(n, row + 1 < TOP ? row + 1 : TOP);
    for (int32_t t = 0; t <= row; t++) {
        double key[DV + DR], dot = 0;
        latent_of(r, t, key);
        for (int i = 0; i < DV; i++)
            dot += (double)r->lat->p[row * DV + i] * key[i];
        for (int i = 0; i < DR; i++)
            dot += (double)r->qn->p[row * (NOPE + DR) + NOPE + i] * key[DV + i];
        double p = bits[t] ? exp(dot) : 0;
        l += p;
        for (int i = 0; i < DV; i++)
            o[i] += p * key[i];
    }
    for (int i = 0; i < DV; i++)
        if (!(fabs((double)out[i] - o[i] / l) <= 1e-5))
            fail_msg("row %d: attention %g, expected %g", row, (double)out[i], o[i] / l);
}

static void test_choice(void **state)
{
    static bool bits[T][T];
    static float out[T][DV];
    struct rig r;
    make_rig(&r, 1, true);
    step(&r, 0, T, bits, out);
    for (int32_t row = 0; row < T; row++)
        check_row(&r, row, bits[row], out[row]);
    free_rig(&r);
}

static void test_company(void **state)
{
    static bool want[T][T], got[T][T];
    static float want_out[T][DV], got_out[T][DV];
    static const int32_t cuts[] = {1, 7, 33};
    struct rig r;
    make_rig(&r, 3, false);
    step(&r, 0, T, want, want_out);
    free_rig(&r);
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        make_rig(&r, 1, false);
        for (int32_t t = 0; t < T; t += cuts[c])
            step(&r, t, T - t < cuts[c] ? T - t : cuts[c], got, got_out);
        assert_memory_equal(want, got, sizeof want);
        assert_memory_equal(want_out, got_out, sizeof want_out);
        free_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
