/*
 * test_hash.c - SHA-256 against the vectors of FIPS 180-2, XXH3 against its published empty-input
 * values and its use as a table hash.
 */
#include "../check.h"

#include "base/file.h"
#include "base/hash.h"

static void sha256_vectors(void **state)
{
    static const struct {
        const char *in, *want;
    } cases[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char hex[65];
        sha256(cases[i].in, strlen(cases[i].in), hex);
        assert_string_equal(hex, cases[i].want);
    }
}

static void sha256_of_a_file(void **state)
{
    char *dir = check_tmp_dir();
    struct buf p = BUF_INIT, million = BUF_INIT;
    struct qn_err err = {0};
    char hex[65];
    for (int i = 0; i < 1000000; i++)
        buf_addc(&million, 'a');
    path_join(&p, dir, "f");
    CHECK_OK(file_write_atomic(buf_z(&p), buf_str(&million), &err), err);
    CHECK_OK(sha256_file(buf_z(&p), hex, &err), err);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    CHECK_FAILS(sha256_file(dir, hex, &err), QN_IO, err, "cannot read");
    CHECK_OK(dir_remove(dir, &err), err);
    CHECK_FAILS(sha256_file(buf_z(&p), hex, &err), QN_NOT_FOUND, err, buf_z(&p));
    buf_free(&p);
    buf_free(&million);
    free(dir);
}

static void xxh3(void **state)
{
    assert_true(hash64("", 0, 0) == 0x2D06800538D394C2u);
    assert_true(hash64(NULL, 0, 0) == 0x2D06800538D394C2u);
    struct hash128 h = hash128("", 0);
    assert_true(h.hi == 0x99AA06D3014798D8u && h.lo == 0x6001C324468D497Fu);
    struct hash128_run *run = hash128_run_create();
    for (int i = 0; i < 3; i++) {
        char long_text[1000];
        memset(long_text, 'a' + i, sizeof long_text);
        for (size_t at = 0, n = 1; at < sizeof long_text; at += n, n = 2 * n + 1) {
            n = n < sizeof long_text - at ? n : sizeof long_text - at;
            hash128_run_add(run, long_text + at, n);
        }
        struct hash128 got = hash128_run_end(run);
        h = hash128(long_text, sizeof long_text);
        assert_true(got.lo == h.lo && got.hi == h.hi);
    }
    hash128_run_free(run);
    char text[300];
    uint64_t seen[600];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)i;
    for (size_t n = 0; n < 300; n++) {
        seen[2 * n] = hash64(text, n, 0);
        seen[2 * n + 1] = hash64(text, n, 1);
    }
    for (size_t a = 0; a < 600; a++) {
        for (size_t b = 0; b < a; b++)
            assert_true(seen[a] != seen[b]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_vectors),
        cmocka_unit_test(sha256_of_a_file),
        cmocka_unit_test(xxh3),
    };
    return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
