/*
 * test_formats.c - every weight format in every place a matrix has: linear layers, an embedding
 * table, that table as the head, and stacks of experts. A made-up qwen3_moe of one layer in the
 * format against the same weights, decoded here by the format's description, as plain float32: in
 * reference arithmetic nearly equal, in canonical arithmetic as near as its KV memory (bf16)
 * allows. Also what config.json may say, or leave unsaid, about a module.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "../tmp_dir.h"
#include "base/file.h"
#include "fake_model.h"
#include "quern.h"

enum { HID = 128, EXPERTS = 4, TOKENS = 6 };

/* ---- numbers of the formats ------------------------------------------------------------------ */

static float bf16_of(const uint8_t *p)
{
    uint32_t u = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void put_bf16(uint8_t *p, float f)
{
    uint8_t b[4];
    memcpy(b, &f, 4);
    p[0] = b[2];
    p[1] = b[3];
}

static double e2m1(uint32_t c)
{
    static const double v[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return c & 8 ? -v[c & 7] : v[c & 7];
}

static double e4m3(uint32_t c)
{
    int e = (int)(c >> 3 & 15), m = (int)(c & 7);
    double v = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
    return c & 0x80 ? -v : v;
}

/* Bits [at, at + n) of a stream, least significant first. */
static uint32_t code_at(const uint8_t *p, size_t at, int n)
{
    uint32_t c = 0;
    for (int i = 0; i < n; i++, at++)
        c |= (uint32_t)(p[at / 8] >> at % 8 & 1) << i;
    return c;
}

/* ---- a matrix in a format -------------------------------------------------------------------- */

struct format {
    const char *mode; /* "affine", "mxfp4", ...; NULL: plain, of dtype */
    const char *dtype;
    int bits, group;
    bool global; /* nvfp4's further factor */
};

static const struct format formats[] = {
    {"affine", NULL, 2, 32, false}, {"affine", NULL, 2, 64, false}, {"affine", NULL, 2, 128, false},
    {"affine", NULL, 3, 32, false}, {"affine", NULL, 3, 64, false}, {"affine", NULL, 3, 128, false},
    {"affine", NULL, 4, 32, false}, {"affine", NULL, 4, 64, false}, {"affine", NULL, 4, 128, false},
    {"affine", NULL, 5, 32, false}, {"affine", NULL, 5, 64, false}, {"affine", NULL, 5, 128, false},
    {"affine", NULL, 6, 32, false}, {"affine", NULL, 6, 64, false}, {"affine", NULL, 6, 128, false},
    {"affine", NULL, 8, 32, false}, {"affine", NULL, 8, 64, false}, {"affine", NULL, 8, 128, false},
    {"mxfp4", NULL, 4, 32, false},  {"mxfp8", NULL, 8, 32, false},  {"nvfp4", NULL, 4, 16, false},
    {"nvfp4", NULL, 4, 16, true},   {NULL, "BF16", 0, 0, false},    {NULL, "F16", 0, 0, false},
    {NULL, "F32", 0, 0, false},
};

struct shape {
    const char *module;
    int64_t stack, n, k; /* stack 0 = two dimensions */
};
static const struct shape shapes[] = {
    {"model.embed_tokens", 0, 128, HID},
    {"model.layers.0.self_attn.q_proj", 0, 128, HID},
    {"model.layers.0.self_attn.k_proj", 0, 64, HID},
    {"model.layers.0.self_attn.v_proj", 0, 64, HID},
    {"model.layers.0.self_attn.o_proj", 0, HID, 128},
    {"model.layers.0.mlp.switch_mlp.gate_proj", EXPERTS, 128, HID},
    {"model.layers.0.mlp.switch_mlp.up_proj", EXPERTS, 128, HID},
    {"model.layers.0.mlp.switch_mlp.down_proj", EXPERTS, HID, 128},
};

static struct fake_tensor *put(struct fake *f, const struct shape *s, const char *what,
                               const char *dtype, int64_t cols)
{
    char name[128];
    int64_t dims[4] = {0};
    int d = 0;
    snprintf(name, sizeof name, "%s.%s", s->module, what);
    if (s->stack)
        dims[d++] = s->stack;
    dims[d++] = s->n;
    dims[d] = cols;
    fake_put(f, name, dtype, dims);
    return fake_find(f, name);
}

/* Random codes are there; scales and biases get sizes that make weights of about 0.1. */
static void put_quantized(struct fake *f, const struct shape *s, const struct format *t)
{
    bool affine = strcmp(t->mode, "affine") == 0;
    struct fake_tensor *w = put(f, s, "weight", "U32", s->k * t->bits / 32);
    struct fake_tensor *sc = put(f, s, "scales", affine ? "BF16" : "U8", s->k / t->group);
    for (size_t i = 0; i < w->bytes && strcmp(t->mode, "mxfp8") == 0; i++)
        w->data[i] &= 0xBF; /* no NaN */
    for (size_t i = 0; i < sc->bytes && !affine; i++)
        sc->data[i] = strcmp(t->mode, "nvfp4") == 0 ? (uint8_t)(0x10 + sc->data[i] % 16)
                                                    : (uint8_t)(121 + sc->data[i] % 3);
    if (t->global && s->stack) {
        char name[128];
        snprintf(name, sizeof name, "%s.global_scale", s->module);
        fake_put(f, name, "F32", (int64_t[]){s->stack, 0});
        for (int64_t i = 0; i < s->stack; i++) {
            float g = 2688.0f * (1 + 0.5f * (float)i);
            memcpy(fake_find(f, name)->data + 4 * i, &g, 4);
        }
    }
    if (!affine)
        return;
    struct fake_tensor *b = put(f, s, "biases", "BF16", s->k / t->group);
    sc = put(f, s, "scales", "BF16", s->k / t->group);
    for (size_t i = 0; i + 1 < sc->bytes; i += 2) {
        float step = 0.2f * (1 + 5 * fabsf(bf16_of(sc->data + i))) / (float)(1 << t->bits);
        put_bf16(sc->data + i, i % 4 ? step : -step);
        put_bf16(b->data + i, (i % 4 ? -0.1f : 0.1f) + 0.2f * bf16_of(b->data + i));
    }
}

/* A module's tensors. */
struct parts {
    const uint8_t *codes, *scales, *biases;
};

static const uint8_t *data_of(struct fake *f, const char *module, const char *what)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", module, what);
    return fake_find(f, name)->data;
}

/* What value i of row r means. */
static double value(const struct parts *p, const struct shape *s, const struct format *t, int64_t r,
                    int64_t i)
{
    uint32_t c = code_at(p->codes, (size_t)((r * s->k + i) * t->bits), t->bits);
    size_t g = (size_t)((r * s->k + i) / t->group);
    switch (t->mode[0] == 'm' ? t->bits : t->mode[0]) {
    case 4: /* mxfp4 */
        return e2m1(c) * ldexp(1, p->scales[g] - 127);
    case 8: /* mxfp8 */
        return e4m3(c) * ldexp(1, p->scales[g] - 127);
    case 'n':
        return e2m1(c) * e4m3(p->scales[g]) *
               (t->global && s->stack ? 1 + 0.5 * (double)(r / s->n) : 1);
    default:
        return c * (double)bf16_of(p->scales + 2 * g) + (double)bf16_of(p->biases + 2 * g);
    }
}

/* The module of `from`, which is in format t, as float32 into `to`. */
static void put_decoded(struct fake *to, struct fake *from, const struct shape *s,
                        const struct format *t)
{
    struct fake_tensor *w = put(to, s, "weight", "F32", s->k);
    int64_t rows = s->n * (s->stack ? s->stack : 1);
    struct parts p = {data_of(from, s->module, "weight"), data_of(from, s->module, "scales"), NULL};
    if (t->mode[0] == 'a')
        p.biases = data_of(from, s->module, "biases");
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < s->k; i++) {
            float v = (float)value(&p, s, t, r, i);
            memcpy(w->data + 4 * (r * s->k + i), &v, 4);
        }
}

/* ---- the model ------------------------------------------------------------------------------- */

static void start(struct fake *f)
{
    static const char *const cfg[][2] = {
        {"model_type", "\"qwen3_moe\""},
        {"hidden_size", "128"},
        {"num_attention_heads", "4"},
        {"head_dim", "32"},
        {"intermediate_size", "128"},
        {"moe_intermediate_size", "128"},
        {"num_experts", "4"},
        {"num_experts_per_tok", "2"},
        {"norm_topk_prob", "true"},
        {"decoder_sparse_step", "1"},
        {"mlp_only_layers", "[]"},
        {"rope_theta", "10000.0"},
        {"quantization", NULL},
    };
    static const char *const norms[] = {"model.norm.weight",
                                        "model.layers.0.input_layernorm.weight",
                                        "model.layers.0.post_attention_layernorm.weight"};
    fake_init(f);
    while (f->n)
        fake_drop(f, f->t[0].name);
    for (size_t i = 0; i < sizeof cfg / sizeof cfg[0]; i++)
        fake_set(f, cfg[i][0], cfg[i][1]);
    for (int i = 0; i < 3; i++)
        fake_put(f, norms[i], "F32", (int64_t[]){HID, 0});
    fake_put(f, "model.layers.0.self_attn.q_norm.weight", "F32", (int64_t[]){32, 0});
    fake_put(f, "model.layers.0.self_attn.k_norm.weight", "F32", (int64_t[]){32, 0});
    fake_put(f, "model.layers.0.mlp.gate.weight", "F32", (int64_t[]){EXPERTS, HID, 0});
    for (int i = 0; i < f->n; i++)
        for (size_t j = 0; j + 3 < f->t[i].bytes && f->t[i].n_dim == 1; j += 4) {
            float v;
            memcpy(&v, f->t[i].data + j, 4);
            v += 1;
            memcpy(f->t[i].data + j, &v, 4);
        }
}

static void set_format(struct fake *f, const struct format *t)
{
    char text[128];
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (t->mode)
            put_quantized(f, &shapes[i], t);
        else
            put(f, &shapes[i], "weight", t->dtype, shapes[i].k);
    if (!t->mode)
        return;
    snprintf(text, sizeof text, "{\"group_size\": %d, \"bits\": %d, \"mode\": \"%s\"}", t->group,
             t->bits, t->mode);
    fake_set(f, "quantization", text);
}

/* A plain tensor's values in float32; F16 codes stay those that mean ordinary numbers. */
static void plain_decoded(struct fake *to, struct fake *from, const struct shape *s,
                          const char *dtype)
{
    struct fake_tensor *w = put(to, s, "weight", "F32", s->k);
    char name[128];
    snprintf(name, sizeof name, "%s.weight", s->module);
    struct fake_tensor *src = fake_find(from, name);
    for (size_t i = 0; i < w->bytes / 4; i++) {
        float v;
        if (strcmp(dtype, "F32") == 0) {
            memcpy(&v, src->data + 4 * i, 4);
        } else if (strcmp(dtype, "BF16") == 0) {
            v = bf16_of(src->data + 2 * i);
        } else {
            uint8_t *h = src->data + 2 * i;
            h[1] = (uint8_t)((h[1] & 0x83) | 0x2C); /* exponent 11 of bias 15: 0.06 to 0.12 */
            v = (float)ldexp(1 + ((h[1] & 3) * 256 + h[0]) / 1024.0, -4) * (h[1] & 0x80 ? -1 : 1);
        }
        memcpy(w->data + 4 * i, &v, 4);
    }
}

static void logits_of(const struct fake *f, enum qn_arith arith, const char *what, float *out)
{
    static const int32_t ids[TOKENS] = {3, 77, 120, 0, 64, 31};
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = 1, .arith = arith, .weights_only = true};
    struct qn_engine *e = NULL;
    struct qn_seq *s;
    struct qn_err err;
    fake_write(f, dir);
    if (qn_engine_open(&p, &e, &err) != QN_OK)
        fail_msg("%s: %s", what, err.msg);
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    struct qn_step_item it = {s, ids, TOKENS, TOKENS, out};
    CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
    qn_seq_free(s);
    qn_engine_free(e);
}

static double distance(const float *a, const float *b)
{
    double worst = 0;
    for (int i = 0; i < TOKENS * FAKE_VOCAB; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= worst))
            worst = fabs((double)a[i] - (double)b[i]);
    return worst;
}

static void test_formats(void **state)
{
    static float truth[TOKENS * FAKE_VOCAB], ref[TOKENS * FAKE_VOCAB], can[TOKENS * FAKE_VOCAB];
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const struct format *t = &formats[i];
        struct fake f, plain;
        char what[64];
        double size = 0;
        snprintf(what, sizeof what, "%s %d bits, groups of %d%s", t->mode ? t->mode : t->dtype,
                 t->bits, t->group, t->global ? ", global scale" : "");
        start(&f);
        start(&plain);
        set_format(&f, t);
        for (size_t m = 0; m < sizeof shapes / sizeof shapes[0]; m++)
            if (t->mode)
                put_decoded(&plain, &f, &shapes[m], t);
            else
                plain_decoded(&plain, &f, &shapes[m], t->dtype);
        logits_of(&plain, QN_ARITH_REFERENCE, what, truth);
        logits_of(&f, QN_ARITH_REFERENCE, what, ref);
        logits_of(&f, QN_ARITH_CANONICAL, what, can);
        for (int j = 0; j < TOKENS * FAKE_VOCAB; j++)
            size = fmax(size, fabs((double)truth[j]));
        double a = distance(truth, ref), b = distance(truth, can);
        if (!(size > 0.05 && a <= 1e-5 * size && b <= 0.02 * size))
            fail_msg("%s: logits up to %g; reference arithmetic off by %g, canonical by %g", what,
                     size, a, b);
        fake_free(&f);
        fake_free(&plain);
    }
}

/* ---- what config.json says of a module ------------------------------------------------------- */

/* The same tensors whatever words lead to their format: the same logits. */
static void test_said(void **state)
{
    static const struct format affine = {"affine", NULL, 4, 32, false};
    static const struct {
        const char *quantization, *part; /* part NULL: loads, and gives the same logits */
    } cases[] = {
        {"{\"group_size\": 32, \"bits\": 4}", NULL},                      /* no mode: affine */
        {"{\"group_size\": 64, \"bits\": 8, \"mode\": \"mxfp8\"}", NULL}, /* the shapes win */
        {NULL, NULL},                                                     /* nothing said */
        /* a listed module without a mode is affine, whatever the top says */
        {"{\"group_size\": 32, \"bits\": 4, \"mode\": \"mxfp4\","
         " \"model.embed_tokens\": {\"group_size\": 32, \"bits\": 4}}",
         NULL},
        {"{\"model.embed_tokens\": {\"group_size\": 32, \"bits\": 4, \"mode\": \"affine\"}}", NULL},
        {"{\"model.embed_tokens\": true}", NULL}, /* no opinion */
        {"{\"model.layers.9.mlp.gate_proj\": false}", NULL},
        {"{\"model.embed_tokens\": false}", "model.embed_tokens.weight"},
        {"{\"model.embed_tokens\": {\"mode\": \"mxfp4\"}}", "model.embed_tokens.scales"},
        {"{\"model.embed_tokens\": {\"mode\": \"mxfp4\", \"bits\": 8}}",
         "mode mxfp4 has 4 bits in groups of 32, not 8 in 32"},
        {"{\"model.embed_tokens\": {\"bits\": 3, \"group_size\": 32}}",
         "model.embed_tokens.weight: found U32 [128, 16], expected U32 [128, 12]"},
        {"{\"model.layers.0.mlp.switch_mlp.up_proj\": {\"bits\": 8, \"group_size\": 32}}",
         "up_proj.weight: found U32 [4, 128, 16], expected U32 [4, 128, 32]"},
        {"{\"model.layers.0.mlp.switch_mlp.up_proj\": {\"bits\": 4, \"group_size\": 64}}",
         "up_proj.scales: found BF16 [4, 128, 4], expected BF16 [4, 128, 2]"},
    };
    static float want[TOKENS * FAKE_VOCAB], got[TOKENS * FAKE_VOCAB];
    struct fake f;
    start(&f);
    set_format(&f, &affine);
    logits_of(&f, QN_ARITH_CANONICAL, "affine", want);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_set(&f, "quantization", cases[i].quantization);
        if (!cases[i].part) {
            logits_of(&f, QN_ARITH_CANONICAL, cases[i].quantization, got);
            assert_memory_equal(want, got, sizeof want);
            continue;
        }
        struct qn_engine_params p = {.model_dir = dir, .n_thread = 1, .weights_only = true};
        struct qn_engine *e = NULL;
        struct qn_err err;
        fake_write(&f, dir);
        CHECK_FAILS(qn_engine_open(&p, &e, &err), QN_BAD_INPUT, err, cases[i].part);
    }
    fake_free(&f);
}

/* A list: every module of its own width, one plain. */
static void test_mixed(void **state)
{
    static float truth[TOKENS * FAKE_VOCAB], ref[TOKENS * FAKE_VOCAB];
    static const struct format plain_bf16 = {NULL, "BF16", 0, 0, false};
    struct fake f, plain;
    struct buf list = BUF_INIT;
    start(&f);
    start(&plain);
    buf_addz(&list, "{\"group_size\": 64, \"bits\": 4");
    for (size_t m = 0; m < sizeof shapes / sizeof shapes[0]; m++) {
        const struct format *t = m == 3 ? &plain_bf16 : &formats[(m * 5 + 1) % 18];
        if (t->mode) {
            put_quantized(&f, &shapes[m], t);
            put_decoded(&plain, &f, &shapes[m], t);
            buf_addf(&list, ", \"%s\": {\"group_size\": %d, \"bits\": %d}", shapes[m].module,
                     t->group, t->bits);
        } else {
            put(&f, &shapes[m], "weight", t->dtype, shapes[m].k);
            plain_decoded(&plain, &f, &shapes[m], t->dtype);
            buf_addf(&list, ", \"%s\": false", shapes[m].module);
        }
    }
    buf_addz(&list, "}");
    fake_set(&f, "quantization", buf_z(&list));
    logits_of(&plain, QN_ARITH_REFERENCE, "plain", truth);
    logits_of(&f, QN_ARITH_REFERENCE, "mixed", ref);
    double size = 0;
    for (int j = 0; j < TOKENS * FAKE_VOCAB; j++)
        size = fmax(size, fabs((double)truth[j]));
    assert_true(distance(truth, ref) <= 1e-5 * size);
    buf_free(&list);
    fake_free(&f);
    fake_free(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_said),
        cmocka_unit_test(test_mixed),
    };
    return cmocka_run_group_tests_name("formats", tests, make_dir, drop_dir);
}
