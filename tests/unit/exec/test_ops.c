/*
 * test_ops.c - every operation of exec.h, in the canonical arithmetic, against the plain formula in
 * double on the same random data, within bounds derived from 16-bit activations and bf16 KV. Then
 * KV memory: growing, truncating, reusing pages after NaN.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "exec/exec_int.h"
#include "kernels/ref/ref.h"

enum { ROWS = 48, VOCAB = 64, HID = 128, HEADS = 6, KV = 2, D = 32, N_CTX = 640 };
enum { Q = HEADS * D, QKV = (HEADS + 2 * KV) * D };

struct rig {
    struct exec *ex;
    struct weight *table, *norm, *wide, *bias, *plain;
    struct tensor *h, *s, *n, *qkv, *q, *att, *out, *act, *taken;
    struct rope *rope;
    struct kv_seq *seq[2];
    uint8_t *codes, *scales, *biases;
    float *norm_f, *bias_f, *plain_f;
    double inv[D / 2];
};

static uint32_t seed = 5;

static float rnd(float size)
{
    seed = seed * 1664525u + 1013904223u;
    return ((float)(seed >> 8) / (float)(1 << 24) - 0.5f) * 2 * size;
}

static float *randoms(size_t n, float size)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = rnd(size);
    return p;
}

static struct weight *vec(struct rig *r, float **data, int32_t n, float size)
{
    *data = randoms((size_t)n, size);
    struct weight_src s = {
        .name = "v", .format = WEIGHT_F32, .n = 1, .k = n, .data = (const uint8_t *)*data};
    struct weight *w = NULL;
    struct qn_err err;
    CHECK_OK(weight_load_vec(r->ex, &s, &w, &err), err);
    return w;
}

static struct tensor *tensor(struct rig *r, int32_t cols)
{
    struct tensor *t = NULL;
    struct qn_err err;
    CHECK_OK(tensor_create(r->ex, cols, &t, &err), err);
    return t;
}

static void load_weights(struct rig *r)
{
    struct qn_err err;
    size_t ng = (size_t)QKV * HID / 64;
    r->codes = malloc((size_t)QKV * HID / 2);
    for (size_t i = 0; i < (size_t)QKV * HID / 2; i++)
        r->codes[i] = (uint8_t)(seed = seed * 1664525u + 1013904223u, seed >> 24);
    r->scales = (uint8_t *)randoms(ng, 0.02f);
    r->biases = (uint8_t *)randoms(ng, 0.1f);
    struct weight_src s = {.name = "wide",
                           .format = WEIGHT_AFFINE,
                           .n = QKV,
                           .k = HID,
                           .bits = 4,
                           .group = 64,
                           .scale_type = SCALE_F32,
                           .data = r->codes,
                           .scales = r->scales,
                           .biases = r->biases};
    CHECK_OK(weight_load(r->ex, &s, &r->wide, &err), err);
    r->plain_f = randoms(VOCAB * HID, 1);
    s = (struct weight_src){.name = "plain",
                            .format = WEIGHT_F32,
                            .n = VOCAB,
                            .k = HID,
                            .data = (const uint8_t *)r->plain_f};
    CHECK_OK(weight_load(r->ex, &s, &r->plain, &err), err);
    r->table = r->plain;
    r->norm = vec(r, &r->norm_f, HID, 1);
    r->bias = vec(r, &r->bias_f, QKV, 1);
}

static struct rig *make_rig(int n_thread)
{
    struct rig *r = calloc(1, sizeof *r);
    struct exec_params p = {.n_thread = n_thread, .max_rows = ROWS, .n_ctx = N_CTX};
    static const struct kv_layer layers[] = {
        {.n_head = 1, .dk = 16, .dv = 16}, {.n_head = KV, .dk = D, .dv = D}}; /* layer 1 is used */
    struct qn_err err;
    CHECK_OK(cpu_isa_parse(NULL, &p.isa, &err), err);
    CHECK_OK(exec_create(&p, &r->ex, &err), err);
    CHECK_OK(exec_reserve(r->ex, 64 << 20, &err), err);
    CHECK_OK(kv_setup(r->ex, layers, 2, &err), err);
    load_weights(r);
    struct tensor **hid[] = {&r->h, &r->s, &r->n, &r->taken};
    for (int i = 0; i < 4; i++)
        *hid[i] = tensor(r, HID);
    r->qkv = tensor(r, QKV);
    r->q = tensor(r, Q);
    r->att = tensor(r, Q);
    r->out = tensor(r, VOCAB);
    r->act = tensor(r, QKV / 2);
    for (int i = 0; i < D / 2; i++)
        r->inv[i] = pow(10000, -2.0 * i / D);
    CHECK_OK(rope_create(r->ex, r->inv, D, 1.25, false, &r->rope, &err), err);
    for (int i = 0; i < 2; i++)
        CHECK_OK(kv_seq_create(r->ex, &r->seq[i], &err), err);
    return r;
}

static void free_rig(struct rig *r)
{
    for (int i = 0; i < 2; i++)
        kv_seq_free(r->ex, r->seq[i]);
    exec_free(r->ex);
    free(r->codes);
    free(r->scales);
    free(r->biases);
    free(r->norm_f);
    free(r->bias_f);
    free(r->plain_f);
    free(r);
}

static void near(const char *what, double got, double want, double slack)
{
    if (!(fabs(got - want) <= slack))
        fail_msg("%s: %.9g, expected %.9g (within %.2g)", what, got, want, slack);
}

static int32_t ids[ROWS];

/* Two spans: n0 rows of sequence 0, n1 of sequence 1; the last row of each is wanted. */
static void begin(struct rig *r, int32_t n0, int32_t n1)
{
    struct qn_err err;
    for (int i = 0; i < ROWS; i++)
        ids[i] = (i * 13 + 5) % VOCAB;
    struct exec_span spans[2] = {{r->seq[0], ids, n0, 1}, {r->seq[1], ids + n0, n1, 1}};
    CHECK_OK(exec_begin(r->ex, spans, n1 ? 2 : 1, &err), err);
}

static float *row(const struct tensor *t, int32_t i)
{
    return t->p + (size_t)i * (size_t)t->cols;
}

static void fill(struct tensor *t, int32_t rows, float size)
{
    t->rows = rows;
    for (int32_t i = 0; i < rows * t->cols; i++)
        t->p[i] = rnd(size);
}

/* ---- operations on rows --------------------------------------------------------------------- */

static void check_norms(struct rig *r, int32_t rows)
{
    float want[HID], sum[HID];
    fill(r->s, rows, 3);
    op_rmsnorm(r->ex, r->n, r->s, r->norm, 1, 1e-5f);
    assert_int_equal(tensor_rows(r->n), rows);
    for (int32_t i = 0; i < rows; i++) {
        ref_rmsnorm(want, row(r->s, i), r->norm_f, 1, 1e-5f, HID);
        for (int k = 0; k < HID; k++)
            near("rmsnorm", row(r->n, i)[k], want[k], 2e-6 * (1 + fabs(want[k])));
    }
    fill(r->h, rows, 2);
    op_add_rmsnorm(r->ex, r->taken, r->n, r->h, r->s, NULL, 0, 1e-6f);
    for (int32_t i = 0; i < rows; i++) {
        for (int k = 0; k < HID; k++)
            sum[k] = row(r->h, i)[k] + row(r->s, i)[k];
        assert_memory_equal(sum, row(r->taken, i), sizeof sum);
        ref_rmsnorm(want, sum, NULL, 0, 1e-6f, HID);
        for (int k = 0; k < HID; k++)
            near("add_rmsnorm", row(r->n, i)[k], want[k], 2e-6 * (1 + fabs(want[k])));
    }
}

static void check_linear(struct rig *r, int32_t rows)
{
    float w[HID];
    fill(r->n, rows, 2);
    op_linear(r->ex, (struct linear[]){{r->qkv, 0, r->wide, r->bias}, {r->out, 0, r->plain, NULL}},
              2, r->n);
    assert_int_equal(tensor_rows(r->qkv), rows);
    for (int32_t i = 0; i < rows; i++)
        for (int part = 0; part < 2; part++)
            for (int32_t o = 0; o < (part ? VOCAB : QKV); o++) {
                const float *x = row(r->n, i);
                double sum = 0, size = 0;
                pack_row_f32(part ? &r->plain->pk : &r->wide->pk, o, w);
                for (int k = 0; k < HID; k++) {
                    sum += (double)w[k] * x[k];
                    size += fabs((double)w[k] * x[k]);
                }
                /* half a unit of 32512 of the largest of each group, and float32 sums */
                double slack = part ? 1e-6 * size : 0.5 / 32512 * 2 * 0.5 * HID + 2e-6 * size;
                near(part ? "linear, float" : "linear, 4 bits",
                     part ? row(r->out, i)[o] : row(r->qkv, i)[o], sum + (part ? 0 : r->bias_f[o]),
                     slack);
            }
}

static void check_swiglu(struct rig *r, int32_t rows)
{
    float want[QKV / 2];
    fill(r->qkv, rows, 12);
    op_glu(r->ex, r->act, r->qkv, GLU_SILU);
    for (int32_t i = 0; i < rows; i++) {
        ref_swiglu(want, row(r->qkv, i), row(r->qkv, i) + QKV / 2, QKV / 2);
        for (int k = 0; k < QKV / 2; k++)
            near("swiglu", row(r->act, i)[k], want[k], 1e-6 * (1e-3 + fabs(want[k])));
    }
}

static void test_rows(void **state)
{
    static const int32_t sizes[] = {1, 2, 3, 15, 16, 17, ROWS};
    for (int nth = 1; nth <= 3; nth++) {
        struct rig *r = make_rig(nth);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            check_norms(r, sizes[i]);
            check_linear(r, sizes[i]);
            check_swiglu(r, sizes[i]);
        }
        free_rig(r);
    }
}

static void test_embed_take(void **state)
{
    struct rig *r = make_rig(2);
    static const int32_t sizes[][2] = {{1, 0}, {5, 3}, {20, 28}};
    for (int c = 0; c < 3; c++) {
        int32_t n0 = sizes[c][0], n1 = sizes[c][1];
        begin(r, n0, n1);
        op_embed(r->ex, r->h, r->table, 2);
        for (int32_t i = 0; i < n0 + n1; i++)
            for (int k = 0; k < HID; k++)
                assert_true(row(r->h, i)[k] == 2 * r->plain_f[ids[i] * HID + k]);
        op_take(r->ex, r->taken, r->h);
        assert_int_equal(exec_wanted(r->ex), n1 ? 2 : 1);
        assert_int_equal(tensor_rows(r->taken), n1 ? 2 : 1);
        assert_memory_equal(row(r->taken, 0), row(r->h, n0 - 1), HID * 4);
        if (n1)
            assert_memory_equal(row(r->taken, 1), row(r->h, n0 + n1 - 1), HID * 4);
        float copy[HID];
        tensor_read(r->ex, r->h, n0 - 1, 1, copy);
        assert_memory_equal(copy, row(r->h, n0 - 1), sizeof copy);
    }
    free_rig(r);
}

/* ---- attention over KV memory --------------------------------------------------------------- */

/* What was appended, kept by the test: rotated keys and values as bf16 holds them. */
struct shadow {
    float k[N_CTX][KV][D], v[N_CTX][KV][D];
    int32_t n;
};
static struct shadow shadows[2];

static void rotate(const struct rig *r, const float *x, int32_t pos, double *y)
{
    for (int i = 0; i < D / 2; i++) {
        double c = cos(pos * r->inv[i]) * 1.25, s = sin(pos * r->inv[i]) * 1.25;
        y[i] = x[i] * c - x[i + D / 2] * s;
        y[i + D / 2] = x[i] * s + x[i + D / 2] * c;
    }
}

static void shadow_add(const struct rig *r, struct shadow *s, const float *qkv)
{
    double y[D];
    for (int h = 0; h < KV; h++) {
        rotate(r, qkv + Q + h * D, s->n, y);
        for (int d = 0; d < D; d++) {
            s->k[s->n][h][d] = ref_bf16(ref_to_bf16((float)y[d]));
            s->v[s->n][h][d] = ref_bf16(ref_to_bf16(qkv[Q + KV * D + h * D + d]));
        }
    }
    s->n++;
}

static void check_query(const struct rig *r, const struct shadow *s, int32_t pos, int32_t at,
                        const struct attn_op *a)
{
    static double p[N_CTX];
    for (int h = 0; h < HEADS; h++) {
        double q[D], sum = 0, o[D] = {0}, top = -1e300;
        rotate(r, row(r->qkv, at) + h * D, pos, q);
        int32_t lo = a->window && pos >= a->window ? pos - a->window + 1 : 0;
        for (int32_t t = lo; t <= pos; t++) {
            p[t] = 0;
            for (int d = 0; d < D; d++)
                p[t] += q[d] * s->k[t][h / (HEADS / KV)][d] * (double)a->scale;
            top = fmax(top, p[t]);
        }
        for (int32_t t = lo; t <= pos; t++) {
            double e = exp(p[t] - top);
            sum += e;
            for (int d = 0; d < D; d++)
                o[d] += e * s->v[t][h / (HEADS / KV)][d];
        }
        /* a key may round to the other of two bf16 neighbours: 2^-9 of one of D products */
        for (int d = 0; d < D; d++)
            near("attention", row(r->att, at)[h * D + d], o[d] / sum, 2e-3);
    }
}

/* n0 and n1 more tokens of the two sequences, all checked. */
static void attend(struct rig *r, int32_t n0, int32_t n1, int32_t window)
{
    struct attn_op a = {.layer = 1,
                        .n_head = HEADS,
                        .n_kv = KV,
                        .dk = D,
                        .dv = D,
                        .window = window,
                        .scale = 0.17f,
                        .rope = r->rope};
    int32_t pos[2] = {shadows[0].n, shadows[1].n};
    begin(r, n0, n1);
    fill(r->qkv, n0 + n1, 1);
    op_rope_append(r->ex, r->q, r->qkv, &a);
    op_attn(r->ex, r->att, r->q, &a);
    for (int32_t i = 0; i < n0 + n1; i++)
        shadow_add(r, &shadows[i >= n0], row(r->qkv, i));
    for (int32_t i = 0; i < n0 + n1; i++)
        check_query(r, &shadows[i >= n0], pos[i >= n0] + (i >= n0 ? i - n0 : i), i, &a);
    exec_commit(r->ex);
    assert_int_equal(kv_seq_len(r->seq[0]), shadows[0].n);
}

static void truncate_to(struct rig *r, int i, int32_t n)
{
    kv_seq_truncate(r->ex, r->seq[i], n);
    shadows[i].n = n;
    assert_int_equal(r->seq[i]->tables[0].n, (n + KV_PAGE - 1) / KV_PAGE);
}

static void test_attention(void **state)
{
    for (int nth = 1; nth <= 3; nth += 2)
        for (int32_t window = 0; window <= 40; window += 20) {
            struct rig *r = make_rig(nth);
            shadows[0].n = shadows[1].n = 0;
            attend(r, 1, 7, window);
            attend(r, 17, 31, window);
            while (shadows[0].n < 300) /* beyond one block of 256 */
                attend(r, 40, 1, window);
            attend(r, 1, 1, window);
            truncate_to(r, 0, 65);
            attend(r, 3, 2, window);
            truncate_to(r, 0, 64);
            truncate_to(r, 1, 0);
            attend(r, 3, 5, window);
            free_rig(r);
        }
}

/* Pages full of NaN go back and come again: nothing of it may be seen, not even multiplied by 0. */
static void test_no_stale_nan(void **state)
{
    struct rig *r = make_rig(2);
    struct attn_op a = {.layer = 1, .n_head = HEADS, .n_kv = KV, .dk = D, .dv = D, .scale = 1};
    shadows[0].n = shadows[1].n = 0;
    for (int i = 0; i < 6; i++) {
        begin(r, ROWS / 2, ROWS / 2);
        r->qkv->rows = ROWS;
        for (int32_t j = 0; j < ROWS * QKV; j++)
            r->qkv->p[j] = NAN;
        op_rope_append(r->ex, r->q, r->qkv, &a);
        exec_commit(r->ex);
    }
    truncate_to(r, 0, 0);
    truncate_to(r, 1, 0);
    assert_true(r->ex->kv.groups[0].n_free >= 6); /* reused from here on */
    int32_t free_before = r->ex->kv.groups[0].n_free;
    attend(r, 5, 1, 0);
    attend(r, 1, 33, 0);
    assert_true(r->ex->kv.groups[0].n_free < free_before);
    /* within a kept page as well: NaN behind the end of a truncated sequence */
    begin(r, 3, 0);
    r->qkv->rows = 3;
    for (int32_t j = 0; j < 3 * QKV; j++)
        r->qkv->p[j] = NAN;
    op_rope_append(r->ex, r->q, r->qkv, &a);
    exec_commit(r->ex);
    truncate_to(r, 0, 6);
    attend(r, 1, 1, 0);
    free_rig(r);
}

static void test_setup_refused(void **state)
{
    static const int32_t sizes[][2] = {{0, 16}, {16, 8}, {24, 24}, {HEAD_DIM_MAX + 16, 16}};
    for (int i = 0; i < 4; i++) {
        struct exec_params p = {.n_thread = 1, .max_rows = 4, .n_ctx = 64};
        struct kv_layer l = {.n_head = 1, .dk = sizes[i][0], .dv = sizes[i][1]};
        struct exec *ex = NULL;
        struct qn_err err;
        CHECK_OK(exec_create(&p, &ex, &err), err);
        CHECK_FAILS(kv_setup(ex, &l, 1, &err), QN_UNSUPPORTED, err, "multiples of 16");
        exec_free(ex);
    }
}

/* More (tile, head) pairs than one region of the pool holds: 5 tiles of 1024 heads. Keys are zero:
 * a head's answer is the mean of its values, which are all alike. */
static void test_many_heads(void **state)
{
    enum { N = 130, H = 1024, W = 16 };
    for (int nth = 1; nth <= 2; nth++) {
        struct exec_params p = {.n_thread = nth, .max_rows = N, .n_ctx = N};
        struct kv_layer l = {.n_head = H, .dk = W, .dv = W};
        struct attn_op a = {.n_head = H, .n_kv = H, .dk = W, .dv = W, .scale = 1};
        struct exec *ex = NULL;
        struct kv_seq *seq = NULL;
        struct tensor *qkv = NULL, *q = NULL, *att = NULL;
        struct qn_err err;
        CHECK_OK(cpu_isa_parse(NULL, &p.isa, &err), err);
        CHECK_OK(exec_create(&p, &ex, &err), err);
        CHECK_OK(kv_setup(ex, &l, 1, &err), err);
        CHECK_OK(kv_seq_create(ex, &seq, &err), err);
        CHECK_OK(tensor_create(ex, 3 * H * W, &qkv, &err), err);
        CHECK_OK(tensor_create(ex, H * W, &q, &err), err);
        CHECK_OK(tensor_create(ex, H * W, &att, &err), err);
        int32_t zeros[N] = {0};
        struct exec_span span = {seq, zeros, N, 0};
        CHECK_OK(exec_begin(ex, &span, 1, &err), err);
        qkv->rows = N;
        for (int32_t i = 0; i < N; i++)
            for (int32_t h = 0; h < H; h++)
                for (int32_t d = 0; d < W; d++)
                    row(qkv, i)[(2 * H + h) * W + d] = (float)(h % 127 + 1);
        op_rope_append(ex, q, qkv, &a);
        op_attn(ex, att, q, &a);
        for (int32_t i = 0; i < N; i++)
            for (int32_t h = 0; h < H; h++)
                near("a head's answer", row(att, i)[h * W + i % W], h % 127 + 1, 1e-4);
        kv_seq_free(ex, seq);
        exec_free(ex);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),          cmocka_unit_test(test_embed_take),
        cmocka_unit_test(test_attention),     cmocka_unit_test(test_no_stale_nan),
        cmocka_unit_test(test_setup_refused), cmocka_unit_test(test_many_heads)};
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
