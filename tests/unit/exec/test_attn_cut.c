/*
 * test_attn_cut.c - attention of few rows deep in a sequence, which is cut along the tokens they
 * see: the bits of one thread, which never cuts, for any number of threads, rows in the step and
 * company.
 */
#include <string.h>

#include "../check.h"
#include "exec/exec_int.h"
#include "kernels/kernels.h"

enum { ROWS = 40, DEEP = 2000, N_CTX = 2304 };

struct shape {
    int32_t n_head, n_kv, d, window;
};

struct view { /* one layer, two sequences */
    struct exec *ex;
    struct kv_seq *deep, *shallow;
    struct tensor *qkv, *q, *out;
};

static struct view make_view(const struct shape *s, int n_thread)
{
    struct view v = {0};
    struct exec_params p = {
        .n_thread = n_thread, .isa = cpu_best(), .max_rows = ROWS, .n_ctx = N_CTX};
    struct kv_layer l = {.n_head = s->n_kv, .dk = s->d, .dv = s->d, .window = s->window};
    struct qn_err err;
    CHECK_OK(exec_create(&p, &v.ex, &err), err);
    CHECK_OK(kv_setup(v.ex, &l, 1, &err), err);
    CHECK_OK(kv_seq_create(v.ex, &v.deep, &err), err);
    CHECK_OK(kv_seq_create(v.ex, &v.shallow, &err), err);
    CHECK_OK(tensor_create(v.ex, (s->n_head + 2 * s->n_kv) * s->d, &v.qkv, &err), err);
    CHECK_OK(tensor_create(v.ex, s->n_head * s->d, &v.q, &err), err);
    CHECK_OK(tensor_create(v.ex, s->n_head * s->d, &v.out, &err), err);
    return v;
}

static void free_view(struct view *v)
{
    kv_seq_free(v->ex, v->deep);
    kv_seq_free(v->ex, v->shallow);
    exec_free(v->ex);
}

/* What a token's row holds: a function of its sequence and place alone. */
static void fill(float *x, int32_t cols, uint32_t seq, int32_t pos)
{
    uint32_t u = seq * 7919u + (uint32_t)pos * 104729u + 1;
    for (int32_t i = 0; i < cols; i++) {
        u = u * 1664525u + 1013904223u;
        x[i] = ((float)(u >> 8) / (float)(1 << 24) - 0.5f) * 4;
    }
}

/* n more tokens of the deep sequence beside m of the shallow one; `look`: with their attention. */
static void add(struct view *v, const struct shape *s, int32_t n, int32_t m, bool look)
{
    static const int32_t ids[ROWS];
    struct attn_op a = {.n_head = s->n_head,
                        .n_kv = s->n_kv,
                        .dk = s->d,
                        .dv = s->d,
                        .window = s->window,
                        .scale = 0.3f};
    struct exec_span spans[] = {{v->shallow, ids, m, 0}, {v->deep, ids, n, 0}};
    struct qn_err err;
    CHECK_OK(exec_begin(v->ex, m ? spans : spans + 1, m ? 2 : 1, &err), err);
    v->qkv->rows = m + n;
    for (int32_t i = 0; i < m + n; i++)
        fill(v->qkv->p + (size_t)i * (size_t)v->qkv->cols, v->qkv->cols, i < m,
             i < m ? v->shallow->len + i : v->deep->len + i - m);
    op_rope_append(v->ex, v->q, v->qkv, &a);
    if (look)
        op_attn(v->ex, v->out, v->q, &a);
    exec_commit(v->ex);
}

static void check_shape(const struct shape *s)
{
    static const struct {
        int32_t n, m;
    } steps[] = {{1, 0}, {1, 1}, {2, 3}, {5, 1}, {9, 4}, {12, 0}, {33, 1}};
    static const int threads[] = {1, 2, 3, 5};
    float *want = NULL;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct view v = make_view(s, threads[t]);
        size_t cols = (size_t)v.out->cols, at = 0;
        float *got = malloc(sizeof *got * cols * 100);
        while (v.deep->len < DEEP)
            add(&v, s, ROWS, 0, false);
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            add(&v, s, steps[i].n, steps[i].m, true);
            memcpy(got + at * cols, v.out->p, (size_t)v.out->rows * cols * sizeof *got);
            at += (size_t)v.out->rows;
        }
        assert_true((v.ex->attn_parts != NULL) == (threads[t] > 1));
        if (t > 0)
            assert_memory_equal(got, want, at * cols * sizeof *got);
        else
            want = got;
        if (got != want)
            free(got);
        free_view(&v);
    }
    free(want);
}

static void test_bits(void **state)
{
    static const struct shape shapes[] = {{6, 2, 32, 0}, {4, 1, 64, 1700}, {40, 1, 16, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(&shapes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits)};
    return cmocka_run_group_tests_name("attn_cut", tests, NULL, NULL);
}
