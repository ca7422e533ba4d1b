/*
 * kern_generic.c - the canonical arithmetic in portable C: the fallback for machines without AVX2
 * and the judge of every faster set (they must give the same bits; tests/kcheck).
 */
#include "kernels/kern_isa.h"

#include "kernels/tmpl/vec_generic.h"

#include "kernels/tmpl/ops_tmpl.h"

#include "kernels/tmpl/kvq_generic.h"

#include "kernels/tmpl/kvq_tmpl.h"

#include "kernels/tmpl/attn_tmpl.h"

#include "kernels/tmpl/latent_tmpl.h"

#include "kernels/tmpl/delta_tmpl.h"

static float scale_at(const uint8_t *p, enum scale_type t, int i)
{
    uint16_t h;
    float f;
    if (t == SCALE_F32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&h, p + 2 * i, 2);
    if (t == SCALE_F16)
        return vec_half_to_float(h);
    uint32_t u = (uint32_t)h << 16;
    memcpy(&f, &u, 4);
    return f;
}

static int32_t group_dot(const uint8_t *lines, const struct packed *w, int row, const int16_t *a)
{
    uint8_t code[GROUP_MAX];
    int32_t sum = 0;
    pack_codes(w->kind, lines, row, w->group, code);
    for (int32_t i = 0; i < w->group; i++)
        sum += (int32_t)code[i] * a[i];
    return sum;
}

/* y over ascending groups: t = scale*as;  y = fma(t, dot, y);  y = fma(bias, asum, y) */
static float row_q(const struct packed *w, int32_t row, const struct qact *x, int32_t m)
{
    const uint8_t *p = w->p + (size_t)(row / PACK_ROWS) * w->block_bytes;
    size_t scales = PACK_ROWS * pack_scale_bytes(w->scale);
    size_t head = pack_head_bytes(w->kind, w->scale, w->centred);
    size_t group_bytes = pack_group_bytes(w);
    float centre = (float)pack_centre(w->kind);
    int32_t n_group = w->k / w->group;
    const int16_t *a = x->a + (size_t)m * (size_t)x->k;
    float y = 0;
    for (int32_t g = 0; g < n_group; g++, p += group_bytes, a += w->group) {
        float as = x->scale[(size_t)m * (size_t)n_group + (size_t)g];
        float asum = x->sum[(size_t)m * (size_t)n_group + (size_t)g];
        float scale = scale_at(p, w->scale, row % PACK_ROWS), t = scale * as;
        float bias =
            head == scales ? -centre * scale : scale_at(p + scales, w->scale, row % PACK_ROWS);
        y = fmaf(t, (float)group_dot(p + head, w, row % PACK_ROWS, a), y);
        y = fmaf(bias, asum, y);
    }
    return y;
}

static void gemm_q(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x, int32_t m0,
                   int32_t nm, float *dst, size_t ldd, void *scratch)
{
    int32_t end = b1 * PACK_ROWS < w->n ? b1 * PACK_ROWS : w->n;
    for (int32_t m = 0; m < nm; m++)
        for (int32_t row = b0 * PACK_ROWS; row < end; row++)
            dst[(size_t)m * ldd + (size_t)(row - b0 * PACK_ROWS)] = row_q(w, row, x, m0 + m);
}

static void gemm_f(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                   int32_t nm, float *dst, size_t ldd, void *scratch)
{
    size_t elem = w->kind == PACK_F32 ? 4 : 2;
    for (int32_t b = b0; b < b1; b++)
        for (int32_t m = 0; m < nm; m++) {
            const uint8_t *p = w->p + (size_t)b * w->block_bytes;
            vf acc = vf_set1(0);
            for (int32_t k = 0; k < w->k; k++, p += PACK_ROWS * elem) {
                vf v = w->kind == PACK_F32    ? vf_load((const float *)p)
                       : w->kind == PACK_BF16 ? vf_load_bf16(p)
                                              : vf_load_f16(p);
                acc = vf_fma(v, vf_set1(x[(size_t)m * ldx + (size_t)k]), acc);
            }
            int32_t left = w->n - b * PACK_ROWS;
            vf_storen(dst + (size_t)m * ldd + (size_t)(b - b0) * PACK_ROWS, acc,
                      left < PACK_ROWS ? left : PACK_ROWS);
        }
}

void kern_generic_init(struct kernels *t)
{
    *t = (struct kernels){
        .isa = CPU_GENERIC,
        .quantize = tmpl_quantize,
        .gemm_q = gemm_q,
        .gemm_f = gemm_f,
        .rmsnorm = tmpl_rmsnorm,
        .swiglu = tmpl_swiglu,
        .geglu = tmpl_geglu,
        .swiglu_clamped = tmpl_swiglu_clamped,
        .add = tmpl_add,
        .scale = tmpl_scale,
        .softcap = tmpl_softcap,
        .rope = tmpl_rope,
        .kv_put = tmpl_kv_put,
        .kv_code = tmpl_kv_code,
        .attn = tmpl_attn,
        .attn_part = tmpl_attn_part,
        .attn_merge = tmpl_attn_merge,
        .latent_put = tmpl_latent_put,
        .latent_attn = tmpl_latent_attn,
        .index_score = tmpl_index_score,
        .sigmul = tmpl_sigmul,
        .l2norm = tmpl_l2norm,
        .conv_silu = tmpl_conv_silu,
        .delta_gates = tmpl_delta_gates,
        .delta = tmpl_delta,
    };
}
