/*
 * test_tok_image.c - the compiled vocabulary: made once, opened after that, refused and made anew
 * when it is cut, damaged or of another tokenizer; hostile ones with valid checksums; refusals of
 * tokenizer.json by name; the shared word cache under threads.
 */
#include "tok_fixture.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "tok/tok_int.h"

static char root[] = "/tmp/quern-tok-XXXXXX";

static int make_root(void **state)
{
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
    return dir_remove(root, NULL) == QN_OK ? 0 : -1;
}

static void path(struct buf *b, const char *dir, const char *name)
{
    path_join(b, dir, name);
    assert_false(b->failed);
}

/* root/NAME with tokenizer.json; the folder's path in *dir. */
static void model_dir(const char *name, struct buf *dir)
{
    struct buf text = BUF_INIT, file = BUF_INIT;
    struct qn_err err;
    path(dir, root, name);
    CHECK_OK(dir_make(buf_z(dir), &err), err);
    fixture_text("bytes.json", &text);
    path(&file, buf_z(dir), "tokenizer.json");
    CHECK_OK(file_write_atomic(buf_z(&file), buf_str(&text), &err), err);
    buf_free(&text);
    buf_free(&file);
}

static void check_works(const struct tok *t)
{
    struct ids ids = {0};
    struct qn_err err;
    struct buf out = BUF_INIT;
    CHECK_OK(
        tok_encode(t, STR_LIT("the function returns <|im_end|>"), TOK_PARSE_SPECIAL, &ids, &err),
        err);
    assert_int_equal(ids.v[ids.n - 1], 2);
    tok_decode(t, ids.v, ids.n, true, &out);
    CHECK_STR(buf_str(&out), "the function returns <|im_end|>");
    buf_free(&out);
    ids_free(&ids);
}

/* The one file in the cache folder. */
static void only_file(const char *cache, struct buf *out)
{
    char **names;
    size_t n;
    struct qn_err err;
    CHECK_OK(dir_list(cache, &names, &n, &err), err);
    assert_int_equal(n, 1);
    path(out, cache, names[0]);
    names_free(names, n);
}

static void kept_and_rebuilt(void **state)
{
    struct buf dir = BUF_INIT, cache = BUF_INIT, file = BUF_INIT, image = BUF_INIT, bad = BUF_INIT;
    struct tok *t;
    struct qn_err err;
    model_dir("kept", &dir);
    path(&cache, root, "kept-cache");
    CHECK_OK(tok_open(buf_z(&dir), buf_z(&cache), &t, &err), err);
    assert_non_null(t->owned);
    check_works(t);
    tok_free(t);
    only_file(buf_z(&cache), &file);
    CHECK_OK(file_read(buf_z(&file), 1 << 30, &image, &err), err);
    CHECK_OK(tok_open(buf_z(&dir), buf_z(&cache), &t, &err), err);
    assert_null(t->owned); /* mapped this time */
    check_works(t);
    tok_free(t);
    for (uint64_t k = 0; k < 40; k++) {
        buf_clear(&bad);
        buf_add_str(&bad, buf_str(&image));
        if (k % 2)
            bad.n = rng_u64(5, k, 0) % image.n; /* cut */
        else
            bad.p[k ? rng_u64(5, k, 0) % image.n : 0] ^= (char)(1 << k % 8); /* one bit */
        CHECK_OK(file_write_atomic(buf_z(&file), buf_str(&bad), &err), err);
        CHECK_OK(tok_open(buf_z(&dir), buf_z(&cache), &t, &err), err);
        assert_non_null(t->owned); /* refused, made anew */
        check_works(t);
        tok_free(t);
        CHECK_OK(file_read(buf_z(&file), 1 << 30, &bad, &err), err);
        assert_true(str_eq(buf_str(&bad), buf_str(&image)));
    }
    buf_free(&dir);
    buf_free(&cache);
    buf_free(&file);
    buf_free(&image);
    buf_free(&bad);
}

/* Another tokenizer.json, or another config, is another vocabulary. */
static void keyed_by_content(void **state)
{
    struct buf dir = BUF_INIT, cache = BUF_INIT, file = BUF_INIT;
    struct tok *t;
    struct qn_err err;
    char **names;
    size_t n;
    model_dir("keyed", &dir);
    path(&cache, root, "keyed-cache");
    CHECK_OK(tok_open(buf_z(&dir), buf_z(&cache), &t, &err), err);
    assert_int_equal(tok_eos(t), -1);
    tok_free(t);
    path(&file, buf_z(&dir), "tokenizer_config.json");
    CHECK_OK(file_write_atomic(buf_z(&file), STR_LIT("{\"eos_token\":\"<|im_end|>\"}"), &err), err);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tok_open(buf_z(&dir), buf_z(&cache), &t, &err), err);
        assert_int_equal(tok_eos(t), 2);
        CHECK_STR(json_str(json_get(tok_config(t), "eos_token")), "<|im_end|>");
        tok_free(t);
    }
    CHECK_OK(dir_list(buf_z(&cache), &names, &n, &err), err);
    assert_int_equal(n, 2);
    names_free(names, n);
    /* a cache that cannot be written is no error */
    CHECK_OK(tok_open(buf_z(&dir), "/dev/null/x", &t, &err), err);
    check_works(t);
    tok_free(t);
    CHECK_FAILS(tok_open(root, NULL, &t, &err), QN_NOT_FOUND, err, "tokenizer.json");
    buf_free(&dir);
    buf_free(&cache);
    buf_free(&file);
}

/* Enemies can compute checksums: any bytes of the head or body changed, then sealed again, must be
 * refused or give a tokenizer whose ids and reads stay in bounds (the sanitizers watch). */
static void hostile_images(void **state)
{
    struct buf text = BUF_INIT;
    struct qn_err err;
    uint8_t *image;
    size_t n;
    int opened = 0;
    fixture_text("spm.json", &text);
    struct tok_source src = {buf_str(&text), {NULL, 0}, {NULL, 0}};
    CHECK_OK(tok_compile(&src, NULL, &image, &n, &err), err);
    uint8_t *bad = malloc(n);
    assert_non_null(bad);
    for (uint64_t k = 0; k < 1500; k++) {
        memcpy(bad, image, n);
        struct tok_head *h = (struct tok_head *)bad;
        for (uint64_t j = 0; j < 1 + k % 4; j++) {
            uint64_t r = rng_u64(9, k, j);
            size_t span = k % 3 ? n : sizeof *h;
            uint32_t v = (uint32_t[]){0, UINT32_MAX, 0x7FFFFFFF, (uint32_t)r}[r >> 40 & 3];
            memcpy(bad + 16 + (r >> 8) % (span / 4 - 8) * 4, &v, 4);
        }
        h->body_sum = tok_image_sum(bad + sizeof *h, n - sizeof *h);
        h->head_sum = tok_image_sum(bad, offsetof(struct tok_head, head_sum));
        struct tok *t;
        if (tok_from_image((struct str){(char *)bad, n}, &t, &err) != QN_OK)
            continue;
        struct ids ids = {0};
        struct buf out = BUF_INIT;
        opened++;
        if (tok_encode(t, STR_LIT(" the size_t <s> \U0001F642 returns"), 3, &ids, &err) == QN_OK)
            for (size_t i = 0; i < ids.n; i++)
                assert_in_range(ids.v[i], 0, tok_size(t) - 1);
        tok_decode(t, ids.v, ids.n, true, &out);
        for (int32_t id = -1; id <= tok_size(t) && id < 3000; id++)
            tok_bytes(t, id, &out);
        tok_id(t, STR_LIT("the"));
        buf_free(&out);
        ids_free(&ids);
        tok_free(t);
    }
    assert_true(opened > 100); /* else the test would look at nothing */
    free(bad);
    free(image);
    buf_free(&text);
}

static void refusals(void **state)
{
    static const struct {
        const char *with, *part;
        enum qn_status st;
    } cases[] = {
        {"{\"normalizer\": {\"type\": \"BertNormalizer\"}}", "BertNormalizer", QN_UNSUPPORTED},
        {"{\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}", "UnicodeScripts", QN_UNSUPPORTED},
        {"{\"decoder\": {\"type\": \"WordPiece\"}}", "WordPiece", QN_UNSUPPORTED},
        {"{\"post_processor\": {\"type\": \"Odd\"}}", "Odd", QN_UNSUPPORTED},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", "Unigram", QN_UNSUPPORTED},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": "
         "0.1}}",
         "dropout", QN_UNSUPPORTED},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"end_of_word_suffix\": \"</w>\"}}",
         "end_of_word_suffix", QN_UNSUPPORTED},
        {"{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", "share id",
         QN_BAD_INPUT},
        {"{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", "the id of", QN_BAD_INPUT},
        {"{\"model\": {\"vocab\": {\"a\": 99999999}, \"merges\": []}}", "the id of", QN_BAD_INPUT},
        {"{\"model\": {\"vocab\": {}, \"merges\": []}, \"added_tokens\": []}", "empty",
         QN_BAD_INPUT},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}}", "merges[0]", QN_BAD_INPUT},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}}", "merges[0]", QN_BAD_INPUT},
        {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [[\"a\", 3]]}}", "merges[0]",
         QN_BAD_INPUT},
        {"{\"model\": 3}", "model", QN_BAD_INPUT},
        {"{\"added_tokens\": [{\"content\": 3}]}", "content", QN_BAD_INPUT},
        {"{\"added_tokens\": [{\"content\": \"x\", \"special\": 3}]}", "special", QN_BAD_INPUT},
        {"{\"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 9999999], \"sep\": "
         "[\"b\", 1]}}",
         "9999999", QN_BAD_INPUT},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": "
         "\"Isolated\", \"invert\": false}}",
         "regular expression", QN_BAD_INPUT},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, "
         "\"behavior\": \"Odd\"}}",
         "Odd", QN_UNSUPPORTED},
        {"{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": "
         "\"Metaspace\"}]}}",
         "Metaspace", QN_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *with;
        struct buf text = BUF_INIT;
        struct tok *t;
        struct qn_err err;
        CHECK_OK(json_parse(str_of(cases[i].with), "case", JSON_DEPTH_MAX, &with, &err), err);
        fixture_variant(STR_LIT("bytes"), with, NULL, &text);
        CHECK_FAILS(tok_from_json(buf_str(&text), (struct str){NULL, 0}, &t, &err), cases[i].st,
                    err, cases[i].part);
        assert_null(t);
        json_free(with);
        buf_free(&text);
    }
}

struct job {
    const struct tok *t;
    uint64_t seed;
    bool ok;
};

/* Words of three letters in a small alphabet collide in the cache all the time. */
static void *encode_many(void *arg)
{
    struct job *j = arg;
    struct ids ids = {0}, plain = {0};
    j->ok = true;
    for (uint64_t k = 0; k < 4000 && j->ok; k++) {
        char w[12];
        size_t n = 1 + rng_u64(j->seed, k, 0) % 12;
        for (size_t i = 0; i < n; i++)
            w[i] = (char)("aeinorst"[rng_u64(j->seed, k, 1 + i) % 8]);
        ids.n = plain.n = 0;
        j->ok = tok_word(j->t, w, n, &ids, NULL) == QN_OK &&
                tok_word_merge(j->t, w, n, &plain, NULL) == QN_OK && ids.n == plain.n &&
                memcmp(ids.v, plain.v, ids.n * sizeof *ids.v) == 0;
    }
    ids_free(&ids);
    ids_free(&plain);
    return NULL;
}

static void threads_share_the_cache(void **state)
{
    struct tok *t = fixture_tok("bytes", NULL);
    pthread_t th[4];
    struct job jobs[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){t, 20 + (uint64_t)i / 2, false};
        assert_int_equal(pthread_create(&th[i], NULL, encode_many, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(th[i], NULL);
        assert_true(jobs[i].ok);
    }
    tok_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_and_rebuilt),        cmocka_unit_test(keyed_by_content),
        cmocka_unit_test(hostile_images),          cmocka_unit_test(refusals),
        cmocka_unit_test(threads_share_the_cache),
    };
    return cmocka_run_group_tests(tests, make_root, drop_root);
}
