/*
 * test_bad_model.c - model folders that lie: each must be refused with the right status and a
 * message that names the thing, without a crash and without a large allocation (address space is
 * limited in a child process), and a good model must still open afterwards. Also what looks odd but
 * is allowed.
 */
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../check.h"
#include "base/file.h"
#include "fake_model.h"
#include "quern.h"

static char *good_dir, *dir;

/* ---- opening in a child ---------------------------------------------------------------------- */

struct outcome {
    enum qn_status status;
    struct qn_err err;
    bool good_opens;
    int32_t n_eos, eos[8];
};

static enum qn_status open_dir(const char *path, bool weights_only, struct outcome *o)
{
    struct qn_engine_params p = {
        .model_dir = path, .n_thread = 1, .weights_only = weights_only, .isa = "generic"};
    struct qn_engine *e = NULL;
    enum qn_status st = qn_engine_open(&p, &e, &o->err);
    if (st == QN_OK) {
        const struct qn_model_info *info = qn_engine_info(e);
        o->n_eos = info->n_eos;
        for (int32_t i = 0; i < info->n_eos && i < 8; i++)
            o->eos[i] = info->eos_ids[i];
    }
    qn_engine_free(e);
    return st;
}

static void limit_memory(void)
{
#if !SANITIZED
    struct rlimit r = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    setrlimit(RLIMIT_AS, &r);
#endif
}

static struct outcome try_open(const char *name, bool weights_only)
{
    struct outcome o = {0}, scrap = {0};
    int fd[2], status;
    assert_int_equal(pipe(fd), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        limit_memory();
        o.status = open_dir(dir, weights_only, &o);
        o.err.where = NULL;
        o.good_opens = open_dir(good_dir, true, &scrap) == QN_OK;
        ssize_t n = write(fd[1], &o, sizeof o);
        _exit(n == (ssize_t)sizeof o ? 0 : 1);
    }
    close(fd[1]);
    ssize_t n = read(fd[0], &o, sizeof o);
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (n != (ssize_t)sizeof o || status != 0)
        fail_msg("%s: the process died: wait status %d", name, status);
    if (!o.good_opens)
        fail_msg("%s: a good model does not open afterwards", name);
    return o;
}

static void expect(const char *name, enum qn_status want, const char *part)
{
    struct outcome o = try_open(name, true);
    if (o.status != want || (want != QN_OK && !strstr(o.err.msg, part)))
        fail_msg("%s: status %d (expected %d), message \"%s\" (expected \"%s\" in it)", name,
                 o.status, want, o.err.msg, part);
    if (want != QN_OK)
        assert_int_equal(o.err.code, want);
}

static int set_up(void **state)
{
    dir = check_tmp_dir();
    return 0;
}

static int tear_down(void **state)
{
    struct qn_err err;
    int failed = dir_remove(dir, &err) != QN_OK;
    free(dir);
    return failed;
}

/* ---- config.json ----------------------------------------------------------------------------- */

static const struct {
    const char *key, *json; /* NULL removes the key */
    enum qn_status want;
    const char *part;
} configs[] = {
    {"model_type", "\"unheard_of\"", QN_UNSUPPORTED, "known are deepseek_v3, kimi_k2, "},
    {"model_type", "\"unheard_of\"", QN_UNSUPPORTED, "\"unheard_of\""},
    {"model_type", NULL, QN_BAD_INPUT, "model_type is missing"},
    {"model_type", "17", QN_BAD_INPUT, "model_type"},
    {"model_type", "\"mistral\"", QN_OK, ""},
    {"hidden_size", NULL, QN_BAD_INPUT, "hidden_size"},
    {"hidden_size", "\"64\"", QN_BAD_INPUT, "hidden_size"},
    {"hidden_size", "-64", QN_BAD_INPUT, "hidden_size"},
    {"hidden_size", "1e30", QN_BAD_INPUT, "hidden_size"},
    {"hidden_size", "64.5", QN_BAD_INPUT, "hidden_size"},
    {"hidden_size", "128", QN_BAD_INPUT,
     "input_layernorm.weight: found shape [64], expected [128]"},
    {"hidden_size", "80", QN_BAD_INPUT, "model.embed_tokens"},
    {"num_hidden_layers", "0", QN_BAD_INPUT, "num_hidden_layers"},
    {"num_hidden_layers", "1000000000", QN_BAD_INPUT, "num_hidden_layers"},
    {"num_hidden_layers", "2", QN_BAD_INPUT, "model.layers.1.input_layernorm.weight is missing"},
    {"intermediate_size", "97", QN_BAD_INPUT, "mlp.gate_proj"},
    {"num_attention_heads", "0", QN_BAD_INPUT, "num_attention_heads"},
    {"num_attention_heads", "5", QN_BAD_INPUT, "5 is not a multiple of num_key_value_heads 2"},
    {"num_key_value_heads", "3", QN_BAD_INPUT, "4 is not a multiple of num_key_value_heads 3"},
    {"num_key_value_heads", "4", QN_BAD_INPUT, "k_proj"},
    {"head_dim", "0", QN_BAD_INPUT, "head_dim"},
    {"head_dim", "24", QN_UNSUPPORTED, "24"},
    {"head_dim", "100000", QN_BAD_INPUT, "head_dim"},
    {"head_dim", "32", QN_BAD_INPUT, "q_proj"},
    {"vocab_size", "0", QN_BAD_INPUT, "vocab_size"},
    {"vocab_size", "-1", QN_BAD_INPUT, "vocab_size"},
    {"vocab_size", "200", QN_BAD_INPUT, "expected U32 [200, 8]"},
    {"vocab_size", "16000000", QN_BAD_INPUT, "model.embed_tokens"},
    {"rms_norm_eps", "-1", QN_BAD_INPUT, "rms_norm_eps"},
    {"rms_norm_eps", "\"small\"", QN_BAD_INPUT, "rms_norm_eps"},
    {"rms_norm_eps", "1e999", QN_BAD_INPUT, "rms_norm_eps"},
    {"rope_theta", "0", QN_BAD_INPUT, "rope_theta"},
    {"rope_theta", "1", QN_BAD_INPUT, "rope_theta"},
    {"max_position_embeddings", "0", QN_BAD_INPUT, "max_position_embeddings"},
    {"max_position_embeddings", "-5", QN_BAD_INPUT, "max_position_embeddings"},
    {"max_position_embeddings", "99999999999", QN_BAD_INPUT, "max_position_embeddings"},
    {"max_position_embeddings", "16777216", QN_OK, ""},
    {"tie_word_embeddings", "\"yes\"", QN_BAD_INPUT, "tie_word_embeddings"},
    {"tie_word_embeddings", "false", QN_BAD_INPUT, "lm_head.weight is missing"}, /* 28c */
    {"attention_bias", "true", QN_BAD_INPUT, "q_proj.bias is missing"},
    {"mlp_bias", "true", QN_BAD_INPUT, "gate_proj.bias is missing"},
    {"hidden_act", "\"gelu\"", QN_UNSUPPORTED, "hidden_act \"gelu\""},
    {"hidden_act", "\"swish\"", QN_OK, ""},
    {"rope_scaling", "{\"rope_type\": \"spiral\"}", QN_UNSUPPORTED, "\"spiral\""},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": 0}", QN_BAD_INPUT, "factor"},
    {"rope_scaling", "{\"type\": \"linear\", \"factor\": \"x\"}", QN_BAD_INPUT, "factor"},
    {"rope_scaling", "{\"type\": \"longrope\"}", QN_BAD_INPUT, "long_factor has 0"},
    {"rope_scaling", "{\"type\": \"longrope\", \"long_factor\": [1,1,1,1,1,1,1,-1]}", QN_BAD_INPUT,
     "long_factor[7]"},
    {"rope_scaling", "{\"rope_type\": \"llama3\", \"low_freq_factor\": 4, \"high_freq_factor\": 4}",
     QN_BAD_INPUT, "high_freq_factor"},
    {"rope_scaling", "{\"type\": \"yarn\", \"factor\": 4}", QN_OK, ""},
    {"rope_scaling", "null", QN_OK, ""},
    {"rope_scaling", "5", QN_BAD_INPUT, "rope_scaling is of type integer"},
    {"rope_scaling", "{\"type\": 5}", QN_BAD_INPUT, "type is 5"},
    {"rope_scaling", "{\"rope_type\": [\"yarn\"]}", QN_BAD_INPUT, "rope_type is"},
    {"layer_types", "[\"full_attention\", \"full_attention\"]", QN_BAD_INPUT,
     "layer_types has 2 entries for 1 layers"},
    {"layer_types", "[\"sliding_attention\"]", QN_UNSUPPORTED, "sliding_window 0"},
    {"layer_types", "[\"chunked\"]", QN_UNSUPPORTED, "\"chunked\""},
    {"layer_types", "[17]", QN_UNSUPPORTED, "layer_types[0]"},
    {"layer_types", "[\"full_attention\"]", QN_OK, ""},
    {"quantization", "{\"group_size\": 32, \"bits\": 4, \"model.embed_tokens\": {\"bits\": 5}}",
     QN_BAD_INPUT, "embed_tokens"},
    {"quantization",
     "{\"model.embed_tokens\": {\"bits\": 4, \"group_size\": 32, \"mode\": \"nf4\"}}",
     QN_UNSUPPORTED, "\"nf4\""},
    {"quantization", "{\"model.embed_tokens\": {\"bits\": 7, \"group_size\": 32}}", QN_BAD_INPUT,
     "embed_tokens"},
    {"quantization", "{\"model.embed_tokens\": {\"bits\": 4, \"group_size\": 48}}", QN_BAD_INPUT,
     "embed_tokens"},
    {"quantization", "{\"model.embed_tokens\": {\"bits\": 4, \"group_size\": 0}}", QN_BAD_INPUT,
     "group_size"},
    {"quantization", "{\"model.embed_tokens\": {\"bits\": -4, \"group_size\": 32}}", QN_BAD_INPUT,
     "bits"},
    {"quantization", "{\"model.embed_tokens\": false}", QN_BAD_INPUT, "embed_tokens.weight"},
    {"quantization", "{}", QN_OK, ""}, /* inferred from the shapes */
    {"quantization", "[1]", QN_BAD_INPUT, "quantization is of type array"}, /* likewise */
    {"quantization", NULL, QN_OK, ""},                                      /* likewise */
};

static void test_config(void **state)
{
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct fake f;
        char name[256];
        fake_init(&f);
        fake_set(&f, configs[i].key, configs[i].json);
        fake_write(&f, dir);
        snprintf(name, sizeof name, "%s = %s", configs[i].key,
                 configs[i].json ? configs[i].json : "(absent)");
        expect(name, configs[i].want, configs[i].part);
        fake_free(&f);
    }
}

static void test_config_text(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "config.json"},
        {"{\"model_type\": \"llama\"", "config.json"},
        {"not json", "config.json"},
        {"[]", "model_type is missing"},
        {"null", "model_type is missing"},
        {"{\"model_type\": \"llama\"} trailing", "config.json"},
        {"{\"model_type\": \"\xff\"}", "config.json"},
    };
    struct fake f;
    fake_init(&f);
    fake_write(&f, dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_write_text(dir, "config.json", cases[i].text);
        expect(cases[i].text, QN_BAD_INPUT, cases[i].part);
    }
    fake_free(&f);
}

/* ---- the header of a tensor file ------------------------------------------------------------- */

static const struct {
    const char *entry, *part; /* in place of model.norm.weight's entry: BF16 [64], 128 bytes */
} entries[] = {
    {"{\"dtype\":\"BF16\",\"shape\":[-64],\"data_offsets\":[0,128]}", "size 0 of its shape"},
    {"{\"dtype\":\"BF16\",\"shape\":[64.5],\"data_offsets\":[0,128]}", "size 0 of its shape"},
    {"{\"dtype\":\"BF16\",\"shape\":[\"64\"],\"data_offsets\":[0,128]}", "size 0 of its shape"},
    {"{\"dtype\":\"BF16\",\"shape\":[4611686018427387904],\"data_offsets\":[0,128]}",
     "of its shape"},
    {"{\"dtype\":\"BF16\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,128]}",
     "size 1 of its shape"},
    {"{\"dtype\":\"BF16\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]}",
     "size 1 of its shape"},
    {"{\"dtype\":\"BF16\",\"shape\":[1e400],\"data_offsets\":[0,128]}", "model.norm.weight"},
    {"{\"dtype\":\"BF16\",\"shape\":64,\"data_offsets\":[0,128]}", "shape must be an array"},
    {"{\"dtype\":\"BF16\",\"data_offsets\":[0,128]}", "shape must be an array"},
    {"{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1,64],\"data_offsets\":[0,128]}", "at most 8"},
    {"{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[0,99999999]}", "data_offsets"},
    {"{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[128,0]}", "data_offsets"},
    {"{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[-128,0]}", "data_offsets"},
    {"{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[18446744073709551488,128]}",
     "data_offsets"},
    {"{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[128]}", "data_offsets"},
    {"{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":\"0,128\"}", "data_offsets"},
    {"{\"dtype\":\"BF16\",\"shape\":[64]}", "data_offsets"},
    {"{\"dtype\":\"BF16\",\"shape\":[64],\"data_offsets\":[0,127]}", "127 bytes of data"},
    {"{\"dtype\":\"BF16\",\"shape\":[65],\"data_offsets\":[0,128]}", "need 130"},
    {"{\"dtype\":\"BF16\",\"shape\":[32],\"data_offsets\":[0,64]}", "expected [64]"},
    {"{\"dtype\":\"BF16\",\"shape\":[8,8],\"data_offsets\":[0,128]}", "expected [64]"},
    {"{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]}", "expected [64]"},
    {"{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[0,0]}", "expected [64]"},
    {"{\"dtype\":\"F4\",\"shape\":[64],\"data_offsets\":[0,32]}", "dtype \"F4\" is not known"},
    {"{\"dtype\":7,\"shape\":[64],\"data_offsets\":[0,128]}", "dtype"},
    {"{\"shape\":[64],\"data_offsets\":[0,128]}", "dtype"},
    {"{\"dtype\":\"I16\",\"shape\":[64],\"data_offsets\":[0,128]}", "dtype I16"},
    {"{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[0,64]}", "dtype U8"},
    {"[1,2]", "not an object"},
    {"null", "not an object"},
};

static void test_header(void **state)
{
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        struct fake f;
        fake_init(&f);
        snprintf(fake_find(&f, "model.norm.weight")->entry, 256, "%s", entries[i].entry);
        fake_write(&f, dir);
        expect(entries[i].entry, QN_BAD_INPUT, entries[i].part);
        fake_free(&f);
    }
}

static void write_file(const char *file, const void *p, size_t n)
{
    struct buf path = BUF_INIT;
    path_join(&path, dir, file);
    FILE *out = fopen(buf_z(&path), "wb");
    assert_non_null(out);
    fwrite(p, 1, n, out);
    fclose(out);
    buf_free(&path);
}

static void resize(const char *file, off_t n)
{
    struct buf path = BUF_INIT;
    path_join(&path, dir, file);
    assert_int_equal(truncate(buf_z(&path), n), 0);
    buf_free(&path);
}

static off_t size_of(const char *file)
{
    struct stat s;
    struct buf path = BUF_INIT;
    path_join(&path, dir, file);
    assert_int_equal(stat(buf_z(&path), &s), 0);
    buf_free(&path);
    return s.st_size;
}

static void test_file(void **state)
{
    static const char st[] = "model.safetensors";
    struct fake f;
    fake_init(&f);
    fake_write(&f, dir);
    off_t whole = size_of(st);
    static const off_t cuts[] = {1, 2, 100, 5000};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        fake_write(&f, dir);
        resize(st, whole - cuts[i]);
        expect("cut at the end", QN_BAD_INPUT, "cut short");
    }
    static const off_t keeps[] = {0, 4, 8, 9, 300};
    for (size_t i = 0; i < sizeof keeps / sizeof keeps[0]; i++) {
        fake_write(&f, dir);
        resize(st, keeps[i]);
        expect("cut in the header", QN_BAD_INPUT, st);
    }
    static const uint64_t lengths[] = {0x7fffffff, 200 << 20, (uint64_t)1 << 40, UINT64_MAX,
                                       UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_file(st, &lengths[i], 8);
        resize(st, 300 << 20); /* sparse: a long header would even fit */
        expect("header above the limit", QN_BAD_INPUT, "header of");
    }
    static const char *const heads[] = {
        "", "[]", "null", "\"x\"", "{\"a\":", "7", "{\"a\":{\"dtype\":\"F32\"}}"};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        char raw[64] = {0};
        uint64_t n = strlen(heads[i]);
        memcpy(raw, &n, 8);
        memcpy(raw + 8, heads[i], n);
        write_file(st, raw, 8 + n);
        expect(heads[i], QN_BAD_INPUT, st);
    }
    fake_free(&f);
}

/* ---- which tensors --------------------------------------------------------------------------- */

static void test_missing(void **state)
{
    struct fake f;
    fake_init(&f);
    int n = f.n;
    fake_free(&f);
    for (int i = 0; i < n; i++) { /* any of them */
        fake_init(&f);
        char name[96];
        snprintf(name, sizeof name, "%s", f.t[i].name);
        fake_drop(&f, name);
        fake_write(&f, dir);
        /* without scales a U32 matrix has no meaning: the message names its weight */
        char *end = strstr(name, ".scales");
        if (end)
            snprintf(end, sizeof name - (size_t)(end - name), ".weight");
        expect(name, QN_BAD_INPUT, name);
        fake_free(&f);
    }
}

static void test_extra(void **state)
{
    struct fake f;
    fake_init(&f);
    fake_put(&f, "model.layers.1.input_layernorm.weight", "BF16", (int64_t[]){64, 0});
    fake_write(&f, dir);
    expect("extra tensor", QN_BAD_INPUT,
           "model.layers.1.input_layernorm.weight in model.safetensors");
    fake_free(&f);
    fake_init(&f); /* a known leftover */
    fake_put(&f, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", (int64_t[]){8, 0});
    fake_write(&f, dir);
    expect("inv_freq", QN_OK, "");
    fake_free(&f);
    fake_init(&f); /* 28b: tied, and yet a head */
    fake_put_affine(&f, "lm_head", FAKE_VOCAB, FAKE_HIDDEN, 4, 32);
    fake_write(&f, dir);
    expect("tied, with lm_head", QN_OK, "");
    fake_set(&f, "tie_word_embeddings", "false");
    fake_write(&f, dir);
    expect("untied", QN_OK, "");
    fake_free(&f);
}

static void test_shards(void **state)
{
    struct fake f;
    fake_init(&f);
    fake_write_config(&f, dir);
    fake_write_tensors(&f, dir, "model-00001-of-00002.safetensors", 0, 10);
    fake_write_tensors(&f, dir, "model-00002-of-00002.safetensors", 10, f.n);
    expect("two shards", QN_OK, "");
    fake_write_text(
        dir, "model.safetensors.index.json",
        "{\"weight_map\": {\"model.norm.weight\": \"model-00009-of-00009.safetensors\"}}");
    expect("stale index file", QN_OK, "");
    fake_write_text(dir, "optiq_vision.safetensors", "not a tensor file");
    expect("other tensor files", QN_OK, "");
    fake_write_tensors(&f, dir, "model-00002-of-00002.safetensors", 9, f.n);
    expect("a tensor in both", QN_BAD_INPUT, f.t[9].name);
    expect("a tensor in both", QN_BAD_INPUT, "model-00002-of-00002.safetensors");
    fake_free(&f);
}

static void test_folder(void **state)
{
    char path[1024];
    struct fake f;
    fake_init(&f);
    expect("empty folder", QN_NOT_FOUND, "config.json");
    fake_write_config(&f, dir);
    expect("no tensors", QN_NOT_FOUND, "no model*.safetensors");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    expect("tensor file is a folder", QN_BAD_INPUT, "model.safetensors");
    rmdir(path);
    assert_int_equal(symlink("/nowhere/at/all", path), 0);
    expect("dangling link", QN_NOT_FOUND, "model.safetensors");
    unlink(path);
    fake_write(&f, dir);
    if (geteuid() != 0) { /* root may read anything */
        chmod(path, 0);
        expect("unreadable", QN_IO, "model.safetensors");
        chmod(path, 0600);
    }
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    struct outcome o = try_open("config.json is a folder", true);
    assert_true(o.status == QN_IO || o.status == QN_BAD_INPUT);
    assert_non_null(strstr(o.err.msg, "config.json"));
    fake_free(&f);
}

/* ---- quantization ---------------------------------------------------------------------------- */

static const char DOWN[] = "model.layers.0.mlp.down_proj";

static void wide(struct fake *f, int bits)
{
    fake_init(f);
    fake_set(f, "intermediate_size", "5120");
    fake_put_affine(f, "model.layers.0.mlp.gate_proj", 5120, 64, 4, 64);
    fake_put_affine(f, "model.layers.0.mlp.up_proj", 5120, 64, 4, 64);
    fake_put_affine(f, DOWN, 64, 5120, bits, 64);
}

/* 5120 inputs: 960 words a row at 6 bits, 640 at 4. */
static void test_per_layer_bits(void **state)
{
    struct fake f;
    wide(&f, 6);
    fake_put(&f, "model.layers.0.self_attn.o_proj.weight", "BF16", (int64_t[]){64, 64, 0});
    fake_drop(&f, "model.layers.0.self_attn.o_proj.scales");
    fake_drop(&f, "model.layers.0.self_attn.o_proj.biases");
    fake_set(&f, "quantization",
             "{\"group_size\": 64, \"bits\": 4, \"model.layers.0.self_attn.o_proj\": false,"
             " \"model.layers.0.mlp.down_proj\": {\"group_size\": 64, \"bits\": 6}}");
    fake_write(&f, dir);
    expect("override", QN_OK, "");
    fake_set(&f, "quantization", "{\"group_size\": 64, \"bits\": 4}");
    fake_write(&f, dir);
    expect("unlisted: the shapes say 6 bits", QN_OK, "");
    fake_set(&f, "quantization",
             "{\"group_size\": 64, \"bits\": 4,"
             " \"model.layers.0.mlp.down_proj\": {\"group_size\": 64, \"bits\": 4}}");
    fake_write(&f, dir);
    expect("listed wrongly", QN_BAD_INPUT,
           "down_proj.weight: found U32 [64, 960], expected U32 [64, 640]");
    fake_set(&f, "quantization",
             "{\"model.layers.0.mlp.down_proj\": {\"group_size\": 128, \"bits\": 6}}");
    fake_write(&f, dir);
    expect("wrong group", QN_BAD_INPUT,
           "down_proj.scales: found BF16 [64, 80], expected BF16 [64, 40]");
    static const char *const odd[][2] = {
        {"5", "quantization is of type integer"},
        {"{\"group_size\": 64, \"bits\": 4, \"mode\": \"foo\"}", "mode \"foo\" is not known"},
        {"{\"model.layers.0.mlp.down_proj\": \"6\"}", "down_proj is of type string"},
    };
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        fake_set(&f, "quantization", odd[i][0]);
        fake_write(&f, dir);
        struct outcome o = try_open(odd[i][0], true);
        if (o.status == QN_OK || !strstr(o.err.msg, odd[i][1]))
            fail_msg("%s: %s", odd[i][0], o.err.msg);
    }
    fake_put(&f, "model.layers.0.mlp.down_proj.weight", "U32", (int64_t[]){64, 961, 0});
    fake_set(&f, "quantization", "{\"group_size\": 64, \"bits\": 4}");
    fake_write(&f, dir);
    expect("words that fit no bits", QN_BAD_INPUT, "961 words and 80 scales a row do not fit 5120");
    fake_free(&f);
}

static void test_quant_tensors(void **state)
{
    static const struct {
        const char *name, *dtype;
        int64_t dims[3];
        const char *part;
    } cases[] = {
        {"model.embed_tokens.scales", "U8", {128, 2}, "embed_tokens.biases"}, /* mxfp4 */
        {"model.embed_tokens.scales", "U8", {128, 1}, "byte scales is no known format"},
        {"model.embed_tokens.biases", "F16", {128, 2}, "embed_tokens.biases: found F16"},
        {"model.embed_tokens.biases", "BF16", {128, 1}, "embed_tokens.biases"},
        {"model.embed_tokens.biases", "BF16", {64, 2}, "embed_tokens.biases"},
        {"model.embed_tokens.scales", "BF16", {128, 3}, "3 scales a row do not fit 64"},
        {"model.embed_tokens.scales", "BF16", {256}, "embed_tokens"},
        {"model.embed_tokens.weight", "U32", {127, 8}, "embed_tokens.weight"},
        {"model.embed_tokens.weight", "U32", {1024}, "embed_tokens"},
        {"model.embed_tokens.weight", "F32", {128, 8}, "embed_tokens"},
        {"model.embed_tokens.weight", "U32", {128, 14}, "embed_tokens"}, /* 7 bits */
        {"model.embed_tokens.weight", "U32", {128, 2}, "embed_tokens"},  /* 1 bit */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fake f;
        fake_init(&f);
        fake_put(&f, cases[i].name, cases[i].dtype, cases[i].dims);
        fake_write(&f, dir);
        struct outcome o = try_open(cases[i].part, true);
        if ((o.status != QN_BAD_INPUT && o.status != QN_UNSUPPORTED) ||
            !strstr(o.err.msg, cases[i].part))
            fail_msg("%s %s: status %d, \"%s\"; expected \"%s\"", cases[i].name, cases[i].dtype,
                     o.status, o.err.msg, cases[i].part);
        fake_free(&f);
    }
}

/* ---- what ends an answer --------------------------------------------------------------------- */

static void expect_eos(const char *name, const int32_t *want, int32_t n)
{
    struct outcome o = try_open(name, false);
    if (o.status != QN_OK)
        fail_msg("%s: %s", name, o.err.msg);
    assert_int_equal(o.n_eos, n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(o.eos[i], want[i]);
}

static void test_eos(void **state)
{
    struct fake f;
    fake_init(&f);
    fake_write(&f, dir);
    fake_write_text(
        dir, "tokenizer.json",
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":5,\"content\":\"<end_of_turn>\","
        "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
        "\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":null,"
        "\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":\"BPE\","
        "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4},\"merges\":[]}}");
    fake_write_text(dir, "tokenizer_config.json", "{\"eos_token\": \"<end_of_turn>\"}");
    expect_eos("config.json and tokenizer", (int32_t[]){1, 5}, 2);
    fake_write_text(dir, "generation_config.json", "{\"eos_token_id\": [1, 106]}");
    expect_eos("generation_config.json's list", (int32_t[]){1, 106, 5}, 3);
    fake_write_text(dir, "generation_config.json", "{\"eos_token_id\": 106}");
    expect_eos("generation_config.json wins over config.json", (int32_t[]){106, 5}, 2);
    fake_write_text(dir, "generation_config.json", "{\"eos_token_id\": null}");
    expect_eos("null counts as absent", (int32_t[]){1, 5}, 2);
    fake_write_text(dir, "generation_config.json",
                    "{\"eos_token_id\": [-1, 128, 1e30, \"x\", 5, 5, 7]}");
    expect_eos("ids outside the vocabulary", (int32_t[]){5, 7}, 2);
    fake_write_text(dir, "generation_config.json", "{\"eos_token_id\": ");
    expect("broken generation_config.json", QN_BAD_INPUT, "generation_config.json");
    fake_free(&f);
}

int main(void)
{
    struct fake f;
    fake_init(&f);
    good_dir = check_tmp_dir();
    fake_write(&f, good_dir);
    fake_free(&f);
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_config), CASE(test_config_text),   CASE(test_header),
        CASE(test_file),   CASE(test_missing),       CASE(test_extra),
        CASE(test_shards), CASE(test_folder),        CASE(test_per_layer_bits),
        CASE(test_eos),    CASE(test_quant_tensors),
    };
    int failed = cmocka_run_group_tests_name("bad_model", tests, NULL, NULL);
    struct qn_err err;
    dir_remove(good_dir, &err);
    free(good_dir);
    return failed;
}
