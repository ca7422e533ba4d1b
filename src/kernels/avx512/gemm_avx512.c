/*
 * gemm_avx512.c - packed weights times activations with AVX-512 VNNI.
 *
 * A 64-byte line is one register, a lane is a row. Integer products are vpdpwssd: two neighbouring
 * 16-bit activations (broadcast from memory) times two codes widened to 16 bits. Sums inside a
 * group are exact in int32; groups are combined in ascending order with the canonical three float
 * operations (kern_generic.c: row_q).
 *
 * Rows go FEW at a time over one block, which then lies in the first-level cache; codes are
 * unpacked as they are used, a fifth of the work at 8 rows. (A panel of unpacked codes was half as
 * fast.)
 */
#include "kernels/avx512/gemm_avx512.h"

#include "kernels/avx512/codes_avx512.h"

enum {
    FEW = GEMM_AVX512_FEW,
    PREFETCH = 8192 /* bytes ahead */
};

/* acc += codes . (a[0], a[1]), the pair broadcast from memory. Written out because GCC 12 loads the
 * pair into a register of its own and copies every sum twice per product. */
struct pair {
    int16_t a[2];
};
INLINE void dot_mem(__m512i *acc, __m512i codes, const int16_t *a)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(codes), "m"(*(const struct pair *)a));
}

INLINE __m512 drain(__m512 y, __m512i dot, __m512 scale, __m512 bias, float as, float asum)
{
    __m512 t = _mm512_mul_ps(scale, _mm512_set1_ps(as));
    y = _mm512_fmadd_ps(t, _mm512_cvtepi32_ps(dot), y);
    return _mm512_fmadd_ps(bias, _mm512_set1_ps(asum), y);
}

/* The outputs of block b that exist. */
INLINE __mmask16 block_mask(const struct packed *w, int32_t b)
{
    int32_t n = w->n - b * PACK_ROWS;
    return (__mmask16)(n >= PACK_ROWS ? 0xFFFF : (1u << n) - 1);
}

/* ---- integer weights ------------------------------------------------------------------------- */

struct few { /* up to FEW rows */
    const struct packed *w;
    const struct qact *x;
    int32_t m0;
    float *dst; /* of the block */
    size_t ldd;
};

/* Sums per row, so that a chain of vpdpwssd does not wait for itself. */
INLINE int n_sum(int nm)
{
    return nm <= 2 ? 4 : nm <= 6 ? 2 : 1;
}

/* A run of lines times nm rows. */
INLINE void run_few(__m512i *acc, const uint8_t *p, const int16_t *a, size_t lda,
                    enum pack_kind kind, int nm)
{
    const int ns = n_sum(nm);
    UNROLL for (int j = 0; j < run_inputs(kind) / 2; j++)
    {
        __m512i c = codes(p, kind, j);
        UNROLL for (int m = 0; m < nm; m++)
            dot_mem(&acc[m * ns + j % ns], c, a + (size_t)m * lda + 2 * j);
    }
}

INLINE __m512i sum_few(const __m512i *acc, int m, int nm)
{
    acc += m * n_sum(nm);
    if (n_sum(nm) == 1)
        return acc[0];
    if (n_sum(nm) == 2)
        return _mm512_add_epi32(acc[0], acc[1]);
    return _mm512_add_epi32(_mm512_add_epi32(acc[0], acc[1]), _mm512_add_epi32(acc[2], acc[3]));
}

INLINE void block_few(const struct few *f, int32_t b, enum pack_kind kind, int nm)
{
    const struct packed *w = f->w;
    const int32_t n_group = w->k / w->group, run = run_inputs(kind);
    const size_t run_bytes = (size_t)(run * pack_bits(kind) * 2);
    const int n_acc = nm * n_sum(nm);
    const enum scale_type st = w->scale;
    const size_t head = pack_head_bytes(kind, st, w->centred), lda = (size_t)w->k;
    const uint8_t *p = w->p + (size_t)b * w->block_bytes;
    const int16_t *a = f->x->a + (size_t)f->m0 * lda;
    const float *as = f->x->scale + (size_t)f->m0 * (size_t)n_group;
    const float *asum = f->x->sum + (size_t)f->m0 * (size_t)n_group;
    __m512 y[FEW];
    UNROLL for (int m = 0; m < nm; m++) y[m] = _mm512_setzero_ps();
    for (int32_t g = 0; g < n_group; g++, a += w->group) {
        const uint8_t *scales = p;
        __m512i acc[2 * FEW];
        UNROLL for (int i = 0; i < n_acc; i++) acc[i] = _mm512_setzero_si512();
        for (size_t i = 0; i < head; i += 64)
            _mm_prefetch((const char *)p + PREFETCH + i, _MM_HINT_T0);
        p += head;
        for (int32_t k = 0; k < w->group; k += run, p += run_bytes) {
            for (size_t i = 0; i < run_bytes; i += 64)
                _mm_prefetch((const char *)p + PREFETCH + i, _MM_HINT_T0);
            run_few(acc, p, a + k, lda, kind, nm);
        }
        __m512 s = scale16(scales, st), bias = bias16(scales, s, kind, st, w->centred);
        UNROLL for (int m = 0; m < nm; m++)
        {
            size_t at = (size_t)m * (size_t)n_group + (size_t)g;
            y[m] = drain(y[m], sum_few(acc, m, nm), s, bias, as[at], asum[at]);
        }
    }
    __mmask16 mask = block_mask(w, b);
    UNROLL for (int m = 0; m < nm; m++)
        _mm512_mask_storeu_ps(f->dst + (size_t)m * f->ldd, mask, y[m]);
}

#define FEW_FN(kind, nm)                                                                           \
    static void few_##kind##_##nm(const struct few *f, int32_t b)                                  \
    {                                                                                              \
        block_few(f, b, kind, nm);                                                                 \
    }
#define FEW_ROWS(kind)                                                                             \
    FEW_FN(kind, 1)                                                                                \
    FEW_FN(kind, 2)                                                                                \
    FEW_FN(kind, 3)                                                                                \
    FEW_FN(kind, 4)                                                                                \
    FEW_FN(kind, 5)                                                                                \
    FEW_FN(kind, 6)                                                                                \
    FEW_FN(kind, 7)                                                                                \
    FEW_FN(kind, 8)
FEW_ROWS(PACK_U2)
FEW_ROWS(PACK_U3)
FEW_ROWS(PACK_U4)
FEW_ROWS(PACK_U5)
FEW_ROWS(PACK_U6)
FEW_ROWS(PACK_U8)
FEW_ROWS(PACK_E2M1)

#define FEW_ROW(kind)                                                                              \
    [kind] = {few_##kind##_1, few_##kind##_2, few_##kind##_3, few_##kind##_4,                      \
              few_##kind##_5, few_##kind##_6, few_##kind##_7, few_##kind##_8}
typedef void few_fn(const struct few *f, int32_t b);
static few_fn *const few_table[PACK_INT_KINDS][FEW] = {
    FEW_ROW(PACK_U2), FEW_ROW(PACK_U3), FEW_ROW(PACK_U4),   FEW_ROW(PACK_U5),
    FEW_ROW(PACK_U6), FEW_ROW(PACK_U8), FEW_ROW(PACK_E2M1),
};

void gemm_q__avx512(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x,
                    int32_t m0, int32_t nm, float *dst, size_t ldd, void *scratch)
{
    for (int32_t b = b0; b < b1; b++, dst += PACK_ROWS)
        for (int32_t m = 0; m < nm; m += FEW) {
            int32_t part = nm - m < FEW ? nm - m : FEW;
            struct few f = {.w = w, .x = x, .m0 = m0 + m, .dst = dst + (size_t)m * ldd, .ldd = ldd};
            few_table[w->kind][part - 1](&f, b);
        }
}

/* ---- float weights --------------------------------------------------------------------------- */

enum { TILE_F = 4 }; /* rows of a tile */

INLINE __m512 weight16(const uint8_t *p, enum pack_kind kind)
{
    if (kind == PACK_F32)
        return _mm512_loadu_ps((const float *)p);
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    if (kind == PACK_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* nb blocks and nm rows: nb*nm chains, enough to hide the latency of an FMA. */
INLINE void tile_f(const struct packed *w, int32_t b, const float *x, size_t ldx, float *dst,
                   size_t ldd, enum pack_kind kind, int nb, int nm)
{
    const size_t step = PACK_ROWS * (kind == PACK_F32 ? 4 : 2);
    const uint8_t *p = w->p + (size_t)b * w->block_bytes;
    __m512 acc[16];
    UNROLL for (int i = 0; i < nb; i++) UNROLL for (int m = 0; m < nm; m++) acc[i * nm + m] =
        _mm512_setzero_ps();
    for (int32_t k = 0; k < w->k; k++, p += step) {
        __m512 v[TILE_F];
        UNROLL for (int m = 0; m < nm; m++) v[m] = _mm512_set1_ps(x[(size_t)m * ldx + (size_t)k]);
        UNROLL for (int i = 0; i < nb; i++)
        {
            const uint8_t *q = p + (size_t)i * w->block_bytes;
            _mm_prefetch((const char *)q + PREFETCH / 4, _MM_HINT_T0);
            __m512 c = weight16(q, kind);
            UNROLL for (int m = 0; m < nm; m++) acc[i * nm + m] =
                _mm512_fmadd_ps(c, v[m], acc[i * nm + m]);
        }
    }
    UNROLL for (int i = 0; i < nb; i++) UNROLL for (int m = 0; m < nm; m++) _mm512_mask_storeu_ps(
        dst + (size_t)m * ldd + (size_t)i * PACK_ROWS, block_mask(w, b + i), acc[i * nm + m]);
}

INLINE void rows_f(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                   float *dst, size_t ldd, enum pack_kind kind, int nm)
{
    const int nb = nm == 1 ? 8 : 4;
    int32_t b = b0;
    for (; b1 - b >= nb; b += nb, dst += nb * PACK_ROWS)
        tile_f(w, b, x, ldx, dst, ldd, kind, nb, nm);
    for (; b < b1; b++, dst += PACK_ROWS)
        tile_f(w, b, x, ldx, dst, ldd, kind, 1, nm);
}

INLINE void gemm_f_kind(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                        int32_t nm, float *dst, size_t ldd, enum pack_kind kind)
{
    int32_t m = 0;
    for (; nm - m >= TILE_F; m += TILE_F)
        rows_f(w, b0, b1, x + (size_t)m * ldx, ldx, dst + (size_t)m * ldd, ldd, kind, TILE_F);
    x += (size_t)m * ldx;
    dst += (size_t)m * ldd;
    if (nm - m == 3)
        rows_f(w, b0, b1, x, ldx, dst, ldd, kind, 3);
    else if (nm - m == 2)
        rows_f(w, b0, b1, x, ldx, dst, ldd, kind, 2);
    else if (nm - m == 1)
        rows_f(w, b0, b1, x, ldx, dst, ldd, kind, 1);
}

void gemm_f__avx512(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                    int32_t nm, float *dst, size_t ldd, void *scratch)
{
    if (w->kind == PACK_F32)
        gemm_f_kind(w, b0, b1, x, ldx, nm, dst, ldd, PACK_F32);
    else if (w->kind == PACK_BF16)
        gemm_f_kind(w, b0, b1, x, ldx, nm, dst, ldd, PACK_BF16);
    else
        gemm_f_kind(w, b0, b1, x, ldx, nm, dst, ldd, PACK_F16);
}
