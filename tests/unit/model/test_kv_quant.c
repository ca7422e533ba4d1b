/*
 * test_kv_quant.c - KV formats through quern.h: for every kind of cache and every format the logits
 * have the bits of one plain pass whatever way they came about (chunks, neighbours, threads,
 * instruction sets, forks, cuts, checkpoints); they stay near those without a format, nearer with
 * more bits; amounts are exact; what a model or a format cannot do is refused with the reason.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "base/cpu.h"
#include "quern.h"

enum { N = 140, VOCAB_MAX = 512 };

struct run {
    const char *name, *format, *isa;
    enum qn_arith arith;
    int32_t threads;
};

static struct qn_engine *open_engine(const struct run *r)
{
    char dir[1024];
    struct qn_err err;
    struct qn_engine *e = NULL;
    snprintf(dir, sizeof dir, "%s/tiny/%s", GOLDEN_DIR, r->name);
    struct qn_engine_params p = {.model_dir = dir,
                                 .n_thread = r->threads ? r->threads : 1,
                                 .n_ctx = N + 8,
                                 .isa = r->isa,
                                 .arith = r->arith,
                                 .kv_quant = r->format,
                                 .weights_only = true};
    if (qn_engine_open(&p, &e, &err) != QN_OK)
        fail_msg("%s %s: %s", r->name, r->format, err.msg);
    assert_true(qn_engine_info(e)->n_vocab <= VOCAB_MAX);
    return e;
}

static int32_t token(int line, int32_t i)
{
    uint32_t x = (uint32_t)(i + 1000 * line) * 2654435761u;
    return (int32_t)(x >> 8) % 64; /* the smallest vocabulary among the models */
}

/* Tokens [from, to) of a line in chunks; their logits at out. */
static void feed(struct qn_engine *e, struct qn_seq *s, int line, int32_t to, int32_t chunk,
                 float *out)
{
    struct qn_err err;
    int32_t v = qn_engine_info(e)->n_vocab, ids[N];
    while (qn_seq_len(s) < to) {
        int32_t at = qn_seq_len(s), n = to - at < chunk ? to - at : chunk;
        for (int32_t i = 0; i < n; i++)
            ids[i] = token(line, at + i);
        struct qn_step_item it = {s, ids, n, n, out + (size_t)at * (size_t)v};
        CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
    }
}

static float *plain_pass(struct qn_engine *e, int line, int32_t n, int32_t chunk)
{
    struct qn_seq *s;
    struct qn_err err;
    float *out = malloc((size_t)n * VOCAB_MAX * sizeof *out);
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    feed(e, s, line, n, chunk, out);
    assert_int_equal(qn_seq_bytes_held(s), qn_kv_bytes_used(e));
    assert_true(qn_seq_bytes_held(s) <= qn_seq_bytes(e, n));
    qn_seq_free(s);
    return out;
}

static void same(const struct run *r, const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s %s: %s: value %zu differs: %.9g and %.9g", r->name, r->format, what, i,
                     (double)a[i], (double)b[i]);
}

/* ---- ways to the same tokens ----------------------------------------------------------------- */

/* Two lines in one step, in different heads. */
static void check_batch(const struct run *r, struct qn_engine *e, const float *want)
{
    struct qn_seq *s[2];
    struct qn_err err;
    size_t v = (size_t)qn_engine_info(e)->n_vocab;
    float *out = malloc(2 * (size_t)N * v * sizeof *out);
    int32_t ids[2][N];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(qn_seq_create(e, &s[i], &err), err);
        for (int32_t t = 0; t < N; t++)
            ids[i][t] = token(i, t);
    }
    for (int step = 0; qn_seq_len(s[0]) < N; step++) {
        struct qn_step_item it[2];
        int32_t n = 0;
        for (int i = 0; i < 2; i++) {
            int32_t at = qn_seq_len(s[i]), m = 1 + (step + i * 2) % 5;
            m = m > N - at ? N - at : m;
            if (m)
                it[n++] = (struct qn_step_item){s[i], ids[i] + at, m, m,
                                                out + ((size_t)(i * N) + (size_t)at) * v};
        }
        CHECK_OK(qn_engine_step(e, it, n, &err), err);
    }
    same(r, "batch", want, out, (size_t)N * v);
    qn_seq_free(s[0]);
    qn_seq_free(s[1]);
    free(out);
}

/* Forks, cuts and a checkpoint at tokens that are no multiple of anything. */
static void check_sharing(const struct run *r, struct qn_engine *e, const float *want)
{
    struct qn_seq *a, *b;
    struct qn_checkpoint *c;
    struct qn_err err;
    size_t v = (size_t)qn_engine_info(e)->n_vocab;
    float *out = malloc((size_t)N * v * sizeof *out);
    CHECK_OK(qn_seq_create(e, &a, &err), err);
    feed(e, a, 0, 77, 11, out);
    CHECK_OK(qn_checkpoint_create(a, &c, &err), err);
    CHECK_OK(qn_seq_fork(a, 77, &b, &err), err);
    feed(e, b, 1, 90, 4, out); /* another line goes on in the shared page */
    memset(out, 0, (size_t)N * v * sizeof *out);
    feed(e, a, 0, 101, 5, out);
    same(r, "beside a fork", want + 77 * v, out + 77 * v, 24 * v);
    if (qn_seq_can_truncate(a, 93)) { /* a wrong guess of 7 tokens */
        CHECK_OK(qn_seq_truncate(a, 93, &err), err);
        feed(e, a, 1, 100, 7, out);
        CHECK_OK(qn_seq_truncate(a, 93, &err), err);
        feed(e, a, 0, N, 9, out);
        same(r, "after a cut", want + 93 * v, out + 93 * v, (N - 93) * v);
    }
    qn_seq_rewind(b, c);
    feed(e, b, 0, N, 63, out);
    same(r, "from a checkpoint", want + 77 * v, out + 77 * v, (N - 77) * v);
    qn_seq_free(a);
    qn_seq_free(b);
    qn_checkpoint_free(c);
    assert_int_equal(qn_kv_bytes_used(e), 0);
    free(out);
}

static void check_way(const struct run *r, const char *what, const float *want, int32_t n)
{
    struct qn_engine *e = open_engine(r);
    float *got = plain_pass(e, 0, n, 64);
    same(r, what, want, got, (size_t)n * (size_t)qn_engine_info(e)->n_vocab);
    free(got);
    qn_engine_free(e);
}

static double mean_off(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += fabs((double)a[i] - (double)b[i]);
    return sum / (double)n;
}

/* Returns the mean distance from the logits without a format. */
static double check_format(struct run r, const float *plain)
{
    struct qn_engine *e = open_engine(&r);
    size_t v = (size_t)qn_engine_info(e)->n_vocab;
    float *want = plain_pass(e, 0, N, 100), *got = plain_pass(e, 0, N, 1);
    same(&r, "one by one", want, got, (size_t)N * v);
    free(got);
    check_batch(&r, e, want);
    check_sharing(&r, e, want);
    qn_engine_free(e);
    struct run way = r;
    way.threads = 3;
    check_way(&way, "threads", want, N);
    way.threads = 1;
    way.isa = "generic";
    check_way(&way, "generic", want, 33);
    enum cpu_isa isa;
    if (cpu_isa_parse("avx512", &isa, NULL) == QN_OK) { /* the best is checked already */
        way.isa = "avx2";
        check_way(&way, "avx2", want, N);
    }
    double off = mean_off(want, plain, (size_t)N * v);
    free(want);
    return off;
}

/* Under a sanitizer, where arithmetic is slow and memory is what is watched: one family of each
 * kind of cache, every other format against the reference, a soak just past where it is full. */
enum { FAMILIES = FEWER ? 3 : 6, REFERENCES = FEWER ? 2 : 1, SOAK_TOKENS = FEWER ? 1200 : 2500 };

/* Full, sliding with full, gated beside a recurrent state, sinks, a window alone, latents with
 * an index. Eight bits are near the truth, and more bits never farther. */
static void test_same_bits(void **state)
{
    static const char *const names[] = {"gemma3_text-q4",        "qwen3_5-moe-q4",
                                        "glm_moe_dsa-shared-q4", "llama-mixed",
                                        "gpt_oss-mxfp4-experts", "llama-swa-q4"};
    static const char *const formats[] = {"8", "4", "turbo:k8v3"};
    for (size_t i = 0; i < FAMILIES; i++) {
        struct run r = {.name = names[i]};
        struct qn_engine *e = open_engine(&r);
        float *plain = plain_pass(e, 0, N, 64);
        qn_engine_free(e);
        double off[3];
        for (size_t f = 0; f < 3; f++) {
            r.format = formats[f];
            off[f] = check_format(r, plain);
        }
        print_message("%-24s mean difference: 8 %.4f, 4 %.4f, k8v3 %.4f\n", names[i], off[0],
                      off[1], off[2]);
        assert_true(off[0] > 0 && off[0] < off[1] && off[0] < off[2]);
        free(plain);
    }
}

/* The packed products give what the reference kernels say of the same codes. */
static void test_reference(void **state)
{
    static const char *const formats[] = {"8", "4", "turbo:k4v3", "turbo:k5v5", "turbo:k2v8"};
    struct run r = {.name = "llama-mixed"};
    struct qn_engine *e = open_engine(&r);
    size_t v = (size_t)qn_engine_info(e)->n_vocab;
    float *plain = plain_pass(e, 0, 70, 64);
    qn_engine_free(e);
    for (size_t f = 0; f < 5; f += REFERENCES) {
        r = (struct run){.name = "llama-mixed", .format = formats[f]};
        e = open_engine(&r);
        float *fast = plain_pass(e, 0, 70, 64);
        qn_engine_free(e);
        r.arith = QN_ARITH_REFERENCE;
        e = open_engine(&r);
        float *truth = plain_pass(e, 0, 70, 64);
        qn_engine_free(e);
        double off = mean_off(fast, truth, 70 * v), all = mean_off(fast, plain, 70 * v);
        print_message("%-12s canonical off by %.4f, the format by %.4f\n", formats[f], off, all);
        /* a code at a boundary may fall otherwise: more than rounding, less than the format */
        assert_true(off < all / 2);
        free(fast);
        free(truth);
    }
    free(plain);
}

/* ---- amounts --------------------------------------------------------------------------------- */

static int64_t token_bytes(const char *name, const char *format, const char *id)
{
    struct run r = {.name = name, .format = format};
    struct qn_engine *e = open_engine(&r);
    int64_t n = qn_engine_info(e)->kv_token_bytes;
    assert_string_equal(qn_engine_info(e)->kv_format, id);
    if (!strcmp(name, "llama-mixed")) /* full attention: whole pages of it, nothing else */
        assert_int_equal(qn_seq_bytes(e, 65), 128 * n);
    qn_engine_free(e);
    return n;
}

static void test_amounts(void **state)
{
    int64_t plain = token_bytes("llama-mixed", "off", "bf16");
    assert_int_equal(token_bytes("llama-mixed", "8", "kv8") * 16, plain * 17 / 2);
    assert_int_equal(token_bytes("llama-mixed", "4", "kv4") * 32, plain * 9);
    assert_int_equal(token_bytes("llama-mixed", "turbo", "turbo-k8v4") * 64, plain * 27);
    assert_int_equal(token_bytes("llama-mixed", "turbo:k8v3", "turbo-k8v3") * 64, plain * 25);
    assert_int_equal(token_bytes("llama-mixed", "turbo:k4v3", "turbo-k4v3") * 64, plain * 17);
}

/* A folder that is the model's but for its kv_config.json. */
static void config_dir(char *dir, size_t n, const char *name, const char *config)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    char from[1024], to[1100];
    char *tmp = check_tmp_dir();
    snprintf(dir, n, "%s", tmp);
    free(tmp);
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/tiny/%s/%s", GOLDEN_DIR, name, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof to, "%s/kv_config.json", dir);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs(config, f);
    fclose(f);
}

static void config_gone(const char *dir)
{
    static const char *const files[] = {"config.json", "model.safetensors", "kv_config.json"};
    char path[1100];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* ---- a long conversation --------------------------------------------------------------------- */

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int64_t resident_bytes(void)
{
    long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lld %lld", &size, &resident), 2);
    fclose(f);
    return resident * sysconf(_SC_PAGESIZE);
}

static const char windowed[] =
    "{\"model_type\": \"llama\", \"head_dim\": 64, \"hidden_size\": 128,"
    " \"intermediate_size\": 256, \"num_attention_heads\": 4, \"num_hidden_layers\": 4,"
    " \"num_key_value_heads\": 2, \"vocab_size\": 512, \"max_position_embeddings\": 200000,"
    " \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, \"sliding_window\": 96,"
    " \"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"sliding_attention\","
    " \"sliding_attention\"], \"quantization\": {\"group_size\": 64, \"bits\": 4}}";

/* Greedy answers of QUERN_SOAK_TOKENS tokens, one step each: once warm nothing grows, neither what
 * the engine counts nor what the process holds. */
static void soak(const char *format, int32_t tokens)
{
    char dir[600];
    struct qn_engine *e;
    struct qn_seq *s;
    struct qn_err err;
    float logits[VOCAB_MAX];
    int64_t most = 0, resident = 0;
    int32_t id = 7;
    config_dir(dir, sizeof dir, "llama-swa-q4", "[]");
    write_file(dir, "config.json", windowed);
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = 1, .kv_quant = format, .weights_only = true};
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    int64_t transient = qn_transient_bytes(e, 1);
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    for (int32_t i = 0; i < tokens; i++) {
        struct qn_step_item it = {s, &id, 1, 1, logits};
        CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
        for (int32_t k = id = 0; k < 512; k++)
            id = logits[k] > logits[id] ? k : id;
        int64_t used = qn_kv_bytes_used(e);
        if (i < 1000)
            most = used > most ? used : most;
        else if (used > most)
            fail_msg("%s: %lld bytes at token %d, %lld before", format, (long long)used, i,
                     (long long)most);
        if (i == 1000)
            resident = resident_bytes();
    }
    int64_t grown = resident_bytes() - resident;
    print_message("%-10s %d tokens: %lld KV bytes at most, process grown by %lld\n", format, tokens,
                  (long long)most, (long long)grown);
    assert_int_equal(qn_seq_len(s), tokens);
    assert_true(most <= qn_seq_bytes(e, tokens) && qn_kv_bytes_free(e) <= most);
    assert_int_equal(qn_seq_bytes(e, tokens), qn_seq_bytes(e, 1000));
    assert_int_equal(qn_transient_bytes(e, 1), transient);
    assert_true(grown < (2 << 20)); /* the page table is as long as the context, once */
    qn_seq_free(s);
    qn_engine_free(e);
    config_gone(dir);
}

static void test_soak(void **state)
{
    const char *n = getenv("QUERN_SOAK_TOKENS");
    int32_t tokens = n ? atoi(n) : SOAK_TOKENS;
    soak("off", tokens);
    soak("8", tokens);
    soak("turbo:k8v3", tokens);
}

/* ---- kv_config.json and refusals ------------------------------------------------------------- */

static void test_config(void **state)
{
    char dir[600];
    struct qn_engine *e;
    struct qn_err err;
    config_dir(dir, sizeof dir, "llama-mixed",
               "[{\"layer_idx\": 0, \"bits\": 8, \"group_size\": 64},"
               " {\"layer_idx\": 1, \"bits\": 5, \"group_size\": 32}]");
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = 1, .n_ctx = N, .kv_quant = "config", .weights_only = true};
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    assert_memory_equal(qn_engine_info(e)->kv_format, "config-", 7);
    char id[32];
    snprintf(id, sizeof id, "%s", qn_engine_info(e)->kv_format);
    float *got = plain_pass(e, 0, N, 100), *again = plain_pass(e, 0, N, 7);
    size_t v = (size_t)qn_engine_info(e)->n_vocab;
    assert_memory_equal(got, again, (size_t)N * v * sizeof *got);
    int64_t mixed = qn_engine_info(e)->kv_token_bytes;
    int32_t layers = qn_engine_info(e)->n_layer;
    qn_engine_free(e);
    free(got);
    free(again);
    config_gone(dir);
    int64_t plain = token_bytes("llama-mixed", NULL, "bf16") / layers; /* of a layer */
    assert_int_equal(mixed, plain * 17 / 32 + plain * 6 / 16 + plain * (layers - 2));
    config_dir(dir, sizeof dir, "llama-mixed", "[{\"layer_idx\": 1, \"bits\": 8}]");
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    assert_string_not_equal(qn_engine_info(e)->kv_format, id);
    qn_engine_free(e);
    config_gone(dir);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *model, *format, *config;
        enum qn_status status;
        const char *part;
    } t[] = {
        {"llama-mixed", "7", NULL, QN_BAD_INPUT, "possible are off, 8, 4"},
        {"llama-mixed", "turbo:k3v4", NULL, QN_BAD_INPUT, "2, 4, 5 or 8 bits of keys"},
        {"llama-mixed", "turbo:k8v4x", NULL, QN_BAD_INPUT, "e.g. turbo:k8v4"},
        {"gemma4-ple-q4", "8", NULL, QN_UNSUPPORTED, "keep this model's KV memory unquantized"},
        {"llama-mixed", "config", NULL, QN_NOT_FOUND, "kv_config.json"},
        {"llama-mixed", "config", "{}", QN_BAD_INPUT, "expected a list"},
        {"llama-mixed", "config", "[{\"bits\": 8}]", QN_BAD_INPUT, "layer_idx"},
        {"llama-mixed", "config", "[{\"layer_idx\": 99, \"bits\": 8}]", QN_BAD_INPUT, "layer_idx"},
        {"llama-mixed", "config", "[{\"layer_idx\": 0, \"bits\": 7}]", QN_UNSUPPORTED, "7"},
        {"llama-mixed", "config", "[{\"layer_idx\": 0, \"bits\": 8, \"group_size\": 48}]",
         QN_UNSUPPORTED, "48"},
        {"llama-mixed", "config", "[{\"layer_idx\": 0, \"bits\": 8, \"group_size\": 128}]",
         QN_UNSUPPORTED, "no multiples"},
        {"llama-mixed", "config",
         "[{\"layer_idx\": 0, \"bits\": 8}, {\"layer_idx\": 0, \"bits\": 4}]", QN_BAD_INPUT,
         "twice"},
        {"qwen3_5-moe-q4", "config", "[{\"layer_idx\": 0, \"bits\": 8}]", QN_BAD_INPUT,
         "keeps no keys"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char dir[600];
        struct qn_engine *e = NULL;
        struct qn_err err;
        config_dir(dir, sizeof dir, t[i].model, t[i].config ? t[i].config : "");
        if (!t[i].config) {
            char path[700];
            snprintf(path, sizeof path, "%s/kv_config.json", dir);
            unlink(path);
        }
        struct qn_engine_params p = {
            .model_dir = dir, .n_thread = 1, .kv_quant = t[i].format, .weights_only = true};
        CHECK_FAILS(qn_engine_open(&p, &e, &err), t[i].status, err, t[i].part);
        config_gone(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_reference),
        cmocka_unit_test(test_amounts),   cmocka_unit_test(test_config),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_soak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
