/*
 * test_detok.c - streamed text: scalars split over tokens never show as U+FFFD, nothing complete is
 * held back, joined pieces equal the whole for any cut of any bytes, and the strip rules.
 */
#include "tok_fixture.h"

#include "base/rng.h"
#include "base/utf8.h"

/* The ids of raw bytes: each byte one token. */
static void byte_ids(const struct tok *t, bool spm, struct str text, struct ids *out)
{
    out->v = malloc((text.n + 1) * sizeof *out->v);
    assert_non_null(out->v);
    out->n = 0;
    for (size_t i = 0; i < text.n; i++) {
        unsigned char c = (unsigned char)text.p[i];
        char name[8];
        struct buf b = BUF_INIT;
        if (spm) {
            snprintf(name, sizeof name, "<0x%02X>", c);
            buf_addz(&b, name);
        } else if ((c >= 33 && c <= 126) || (c >= 161 && c != 173)) {
            buf_add_utf8(&b, c);
        } else {
            buf_add_utf8(&b, c <= 32 ? 256u + c : c <= 160 ? 256u + 33 + c - 127 : 256u + 67);
        }
        out->v[out->n] = tok_id(t, buf_str(&b));
        assert_true(out->v[out->n] >= 0);
        out->n++;
        buf_free(&b);
    }
}

static void scalar_by_scalar(void **state)
{
    /* 🙂, e + acute + x, heart + selector, ideographs, a flag with joiners */
    struct str text = STR_LIT("\xF0\x9F\x99\x82"
                              "e\u0301x\u2764\uFE0F\u6F22\u5B57\U0001F3F3\uFE0F\u200D\U0001F308");
    for (int spm = 0; spm < 2; spm++) {
        struct tok *t = fixture_tok(spm ? "spm" : "bytes", NULL);
        struct detok *d = detok_create(t, false);
        struct ids ids;
        struct buf out = BUF_INIT;
        byte_ids(t, spm, text, &ids);
        for (size_t i = 0; i < ids.n; i++) {
            detok_push(d, ids.v[i], &out);
            /* what left is the text's whole characters so far: nothing early, nothing late */
            struct str so_far = {text.p, i + 1};
            so_far.n -= utf8_tail(so_far);
            assert_true(str_eq(buf_str(&out), so_far));
        }
        detok_end(d, &out);
        assert_true(str_eq(buf_str(&out), text));
        buf_free(&out);
        free(ids.v);
        detok_free(d);
        tok_free(t);
    }
}

static void unfinished(void **state)
{
    for (int spm = 0; spm < 2; spm++) {
        struct tok *t = fixture_tok(spm ? "spm" : "bytes", NULL);
        struct detok *d = detok_create(t, false);
        struct ids ids;
        struct buf out = BUF_INIT;
        byte_ids(t, spm, STR_LIT("A\xE2\x82"), &ids);
        for (size_t i = 0; i < ids.n; i++)
            detok_push(d, ids.v[i], &out);
        CHECK_STR(buf_str(&out), "A");
        detok_end(d, &out);
        CHECK_STR(buf_str(&out), "A\uFFFD");
        buf_clear(&out); /* after the end it is as new */
        detok_push(d, ids.v[1], &out);
        detok_reset(d);
        detok_push(d, ids.v[0], &out);
        detok_end(d, &out);
        CHECK_STR(buf_str(&out), "A");
        buf_free(&out);
        free(ids.v);
        detok_free(d);
        tok_free(t);
    }
}

/* Random ids, among them many byte tokens: every piece is valid UTF-8, all joined are the whole. */
static void random_ids(void **state)
{
    static const struct {
        const char *base, *with;
    } kinds[] = {
        {"bytes", NULL},
        {"spm", NULL},
        {"bytes", "{\"decoder\": null}"},
        {"spm", "{\"decoder\": {\"type\": \"Metaspace\", \"replacement\": \"\u2581\", "
                "\"prepend_scheme\": \"always\"}}"},
        {"spm",
         "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}, "
         "{\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \"\u2581\", \"start\": 3, "
         "\"stop\": 2}]}}"},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct tok *t = fixture_tok(kinds[k].base, kinds[k].with);
        struct detok *d = detok_create(t, true);
        for (uint64_t round = 0; round < 2000; round++) {
            int32_t ids[24];
            size_t n = rng_u64(1, round, 0) % 24;
            struct buf whole = BUF_INIT, joined = BUF_INIT;
            for (size_t i = 0; i < n; i++) {
                uint64_t r = rng_u64(2, round, i);
                ids[i] = (int32_t)(r % 3 ? (r >> 8) % 262 : (r >> 8) % (uint64_t)tok_size(t));
            }
            tok_decode(t, ids, n, true, &whole);
            for (size_t i = 0; i < n; i++) {
                size_t at = joined.n;
                detok_push(d, ids[i], &joined);
                assert_true(utf8_valid((struct str){buf_z(&joined) + at, joined.n - at}));
            }
            detok_end(d, &joined);
            assert_true(str_eq(buf_str(&whole), buf_str(&joined)));
            assert_true(utf8_valid(buf_str(&whole)));
            buf_free(&whole);
            buf_free(&joined);
        }
        detok_free(d);
        tok_free(t);
    }
}

static void strips(void **state)
{
    struct tok *t = fixture_tok("spm", NULL);
    struct buf out = BUF_INIT;
    int32_t sp = tok_id(t, STR_LIT("\u2581")), a = tok_id(t, STR_LIT("a"));
    assert_true(sp >= 0 && a >= 0);
    const int32_t ids[] = {sp, sp, a, sp, a, sp};
    tok_decode(t, ids, 6, false, &out);
    CHECK_STR(buf_str(&out), " a a ");
    tok_free(t);
    t = fixture_tok("spm",
                    "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
                    "\"Replace\", \"pattern\": {\"String\": \"\u2581\"}, \"content\": \" \"}, "
                    "{\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", "
                    "\"start\": 9, \"stop\": 1}]}}");
    buf_clear(&out);
    tok_decode(t, ids, 6, false, &out);
    CHECK_STR(buf_str(&out), "a a");
    struct detok *d = detok_create(t, false);
    buf_clear(&out);
    for (int i = 0; i < 4; i++)
        detok_push(d, ids[i], &out);
    CHECK_STR(buf_str(&out), "a"); /* the space waits: it may be the last */
    detok_push(d, a, &out);
    CHECK_STR(buf_str(&out), "a a");
    detok_free(d);
    buf_free(&out);
    tok_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_by_scalar),
        cmocka_unit_test(unfinished),
        cmocka_unit_test(random_ids),
        cmocka_unit_test(strips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
