/*
 * test_gguf.c - the reader refuses files that lie, by name, and survives every truncation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "gguf_make.h"
#include "import/gguf.h"

static enum qn_status open_buf(struct buf *b, struct gguf *g, struct qn_err *err)
{
    *err = (struct qn_err){0};
    return gguf_open_mem((const uint8_t *)b->p, b->n, "t.gguf", g, err);
}

static void expect(struct buf *b, enum qn_status want, const char *text)
{
    struct gguf g;
    struct qn_err err;
    enum qn_status st = open_buf(b, &g, &err);
    if (st != want || (st != QN_OK && !strstr(err.msg, text)))
        fail_msg("status %d, message: %s; expected %d, ...%s", st, err.msg, want, text);
    if (st == QN_OK)
        gguf_close(&g);
    buf_free(b);
}

static void whole_file(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    struct gguf g;
    struct qn_err err;
    struct str s, *v;
    size_t n;
    int64_t i;
    mk_llama_file(&b, &(struct mk_llama){.arch = "llama", .pre = "smollm", .scale = 0x3c00});
    assert_int_equal(open_buf(&b, &g, &err), QN_OK);
    assert_int_equal(g.n_tensor, 11);
    assert_int_equal(gguf_str(&g, "general.architecture", STR_LIT(""), &s, &err), QN_OK);
    assert_true(str_eqz(s, "llama"));
    assert_int_equal(gguf_i64(&g, "llama.block_count", 0, 1, 9, &i, &err), QN_OK);
    assert_int_equal(i, 1);
    assert_int_equal(gguf_i64(&g, "llama.block_count", 0, 2, 9, &i, &err), QN_BAD_INPUT);
    assert_int_equal(gguf_i64(&g, "general.architecture", 0, 0, 9, &i, &err), QN_BAD_INPUT);
    assert_int_equal(gguf_strs(&g, "tokenizer.ggml.tokens", &v, &n, &err), QN_OK);
    assert_int_equal(n, MK_VOCAB);
    assert_true(str_eqz(v[4], "ab"));
    free(v);
    gguf_close(&g);
    for (size_t cut = 0; cut < b.n; cut++) { /* no prefix of the file is a valid file */
        uint8_t *p = malloc(cut + 1);
        memcpy(p, b.p, cut);
        if (gguf_open_mem(p, cut, "cut", &g, &err) == QN_OK) {
            assert_true(b.n - cut < 32); /* only the padding after the last tensor may go */
            gguf_close(&g);
        }
        free(p);
    }
    buf_free(&b);
}

static void lying_counts(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    mk_head(&b, 3, 1ull << 60, 0);
    expect(&b, QN_BAD_INPUT, "the tensor count is");
    mk_head(&b, 3, 0, UINT64_MAX);
    expect(&b, QN_BAD_INPUT, "the metadata count is");
    mk_head(&b, 0x03000000, 0, 0);
    expect(&b, QN_UNSUPPORTED, "big-endian");
    mk_head(&b, 1, 0, 0);
    expect(&b, QN_UNSUPPORTED, "version is 1");
    buf_addz(&b, "GGML and more bytes here");
    expect(&b, QN_BAD_INPUT, "not a GGUF file");
    mk_head(&b, 3, 0, 1);
    mk_str(&b, "k");
    mk_u32(&b, 8);
    mk_u64(&b, UINT64_MAX - 3);
    expect(&b, QN_BAD_INPUT, "claims");
    mk_head(&b, 3, 0, 1);
    mk_str(&b, "k");
    mk_u32(&b, 9);
    mk_u32(&b, 5);
    mk_u64(&b, 1ull << 62);
    expect(&b, QN_BAD_INPUT, "claims 4611686018427387904 values of int32");
    mk_head(&b, 3, 0, 1);
    mk_str(&b, "k");
    mk_u32(&b, 9);
    mk_u32(&b, 9);
    mk_u64(&b, 1);
    expect(&b, QN_UNSUPPORTED, "array of arrays");
    mk_head(&b, 3, 0, 1);
    mk_str(&b, "key");
    mk_u32(&b, 77);
    mk_u32(&b, 0);
    expect(&b, QN_BAD_INPUT, "key has value type 77");
    mk_head(&b, 3, 0, 2);
    mk_kv_u32(&b, "same", 1);
    mk_kv_u32(&b, "same", 2);
    expect(&b, QN_BAD_INPUT, "same appears twice");
}

/* One or two tensors of 64 F32 values over `data` bytes. */
static void tensors(struct buf *b, uint32_t align, uint64_t off_b, size_t data)
{
    mk_head(b, 3, 2, 1);
    mk_kv_u32(b, "general.alignment", align);
    mk_tensor(b, "a", 64, 0, 0, 0);
    mk_tensor(b, "b", 64, 0, 0, off_b);
    mk_pad(b, 64);
    for (size_t i = 0; i < data; i++)
        buf_addc(b, 0);
}

static void lying_tensors(void **state)
{
    (void)state;
    struct buf b = BUF_INIT;
    tensors(&b, 64, 256, 512);
    expect(&b, QN_OK, "");
    tensors(&b, 64, 192, 512);
    expect(&b, QN_BAD_INPUT, "a and b overlap");
    tensors(&b, 64, 260, 512);
    expect(&b, QN_BAD_INPUT, "offset 260 is not a multiple of the alignment 64");
    tensors(&b, 64, 256, 511);
    expect(&b, QN_BAD_INPUT, "tensor b needs bytes");
    tensors(&b, 64, UINT64_MAX - 63, 512);
    expect(&b, QN_BAD_INPUT, "tensor b needs bytes");
    tensors(&b, 48, 256, 512);
    expect(&b, QN_BAD_INPUT, "expected a power of two");
    mk_head(&b, 3, 1, 0);
    mk_tensor(&b, "t", 1u << 30, 0, 99, 0);
    expect(&b, QN_UNSUPPORTED, "type 99");
    mk_head(&b, 3, 1, 0);
    mk_tensor(&b, "t", 33, 0, 8, 0);
    expect(&b, QN_BAD_INPUT, "not whole Q8_0 blocks");
    mk_head(&b, 3, 1, 0);
    mk_tensor(&b, "t", 1ull << 40, 0, 0, 0);
    expect(&b, QN_BAD_INPUT, "dimension 0 is");
    mk_head(&b, 3, 1, 0);
    mk_tensor(&b, "t\xff", 32, 0, 0, 0);
    expect(&b, QN_BAD_INPUT, "not UTF-8");
    mk_head(&b, 3, 1, 0);
    mk_str(&b, "t");
    mk_u32(&b, 5);
    for (int i = 0; i < 8; i++)
        mk_u64(&b, 1);
    expect(&b, QN_BAD_INPUT, "5 dimensions");
    mk_head(&b, 3, 1, 0);
    mk_str(&b, "t");
    mk_u32(&b, 4);
    for (int i = 0; i < 4; i++)
        mk_u64(&b, 1u << 30);
    mk_u64(&b, 0);
    mk_u64(&b, 0);
    expect(&b, QN_BAD_INPUT, "product below 2^63");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_file),
        cmocka_unit_test(lying_counts),
        cmocka_unit_test(lying_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
