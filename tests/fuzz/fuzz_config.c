/*
 * fuzz_config.c - any JSON as config.json: the family's config function, the rotary frequencies and
 * the quantization rule. They refuse or give values that are safe to use.
 */
#include <math.h>

#include "model/loader.h"
#include "model/model.h"
#include "model/rope_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void family(const struct json *cfg)
{
    struct model m = {0};
    struct qn_err err;
    struct str type = json_str(json_get(cfg, "model_type"));
    m.family = type.p ? family_find(type) : NULL;
    if (!m.family)
        m.family = family_find(STR_LIT("llama"));
    if (m.family->config(&m, cfg, &err) == QN_OK) {
        QN_ASSERT(m.n_vocab >= 1 && m.n_layer >= 1 && m.n_embd >= 1 && m.n_ctx_max >= 1 && m.kv);
        for (int32_t i = 0; i < m.n_layer; i++)
            QN_ASSERT(m.kv[i].n_head >= 1 && m.kv[i].dk >= 1 && m.kv[i].dv >= 1);
    }
    m.family->free(&m);
}

static void rope(const struct json *cfg)
{
    double inv[HEAD_DIM_MAX / 2], mscale;
    int32_t dims, max_pos;
    double theta;
    struct qn_err err;
    if (json_opt_i32(cfg, "c", "head_dim", 64, -1, 4096, &dims, &err) != QN_OK ||
        json_opt_i32(cfg, "c", "max_position_embeddings", 4096, 1, 1 << 24, &max_pos, &err) !=
            QN_OK ||
        json_opt_real(cfg, "c", "rope_theta", 1e4, -1e30, 1e30, &theta, &err) != QN_OK)
        return;
    struct rope_params p = {.scaling = json_get(cfg, "rope_scaling"),
                            .what = "rope_scaling",
                            .theta = theta,
                            .dims = dims,
                            .max_pos = max_pos};
    if (rope_frequencies(&p, inv, &mscale, &err) != QN_OK)
        return;
    QN_ASSERT(isfinite(mscale));
    for (int32_t i = 0; i < dims / 2; i++)
        QN_ASSERT(isfinite(inv[i]));
}

static void quant(const struct json *cfg)
{
    static const enum st_dtype dtypes[] = {ST_U32, ST_BF16, ST_OTHER};
    struct st_tensor w = {.dtype_name = "?", .n_dim = 2, .shape = {64, 8}};
    struct st_tensor s = {.dtype = ST_BF16, .dtype_name = "BF16", .n_dim = 2, .shape = {64, 2}};
    struct quant_spec q;
    struct qn_err err;
    for (int i = 0; i < 6; i++) {
        w.dtype = dtypes[i % 3];
        if (quant_resolve(cfg, STR_LIT("model.embed_tokens"), &w, i < 3 ? &s : NULL, 64, &q, &err))
            continue;
        QN_ASSERT(q.bits >= 0 && q.bits <= 8 && q.group >= 0 && q.group <= 128);
        QN_ASSERT((q.bits == 0) == (q.group == 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct json *cfg = NULL;
    struct qn_err err;
    if (json_parse((struct str){(const char *)p, n}, "config.json", JSON_DEPTH_MAX, &cfg, &err))
        return 0;
    family(cfg);
    rope(cfg);
    quant(cfg);
    json_free(cfg);
    return 0;
}
