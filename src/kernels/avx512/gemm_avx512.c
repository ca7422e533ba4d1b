/*
 * gemm_avx512.c - packed weights times activations with AVX-512 VNNI.
 *
 * A 64-byte line is one register, a lane is a row. Integer products are vpdpwssd: two neighbouring
 * 16-bit activations (broadcast from memory) times two codes widened to 16 bits. Sums inside a
 * group are exact in int32; groups are combined in ascending order with the canonical three float
 * operations (kern_generic.c: row_q).
 *
 *   few rows (up to GEMM_AVX512_FEW): codes are unpacked from the packed words as they are used
 *   many rows:  the codes of NB blocks are unpacked once per K_CHUNK inputs into a panel in L1,
 *               swept by tiles of up to TILE_M rows
 */
#include "kernels/avx512/gemm_avx512.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

enum {
    FEW = GEMM_AVX512_FEW,
    TILE_M = 8,     /* rows of a panel tile: NB * TILE_M integer accumulators */
    NB = 2,         /* blocks of a panel */
    K_CHUNK = 256,  /* inputs of a panel, 8 KiB a block; a multiple of every group size */
    PREFETCH = 8192 /* bytes ahead */
};

INLINE __m512 scale16(const uint8_t *p, enum scale_type t)
{
    if (t == SCALE_F32)
        return _mm512_loadu_ps((const float *)p);
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    if (t == SCALE_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Inputs 2j, 2j+1 of a word as two 16-bit halves. */
INLINE __m512i codes(__m512i word, enum pack_kind kind, int j)
{
    if (kind == PACK_U4)
        return _mm512_and_si512(_mm512_srli_epi32(word, (unsigned)(4 * j)),
                                _mm512_set1_epi32(0x000F000F));
    return _mm512_and_si512(_mm512_srli_epi32(word, (unsigned)(8 * j)),
                            _mm512_set1_epi32(0x00FF00FF));
}

INLINE __m512i pair(const int16_t *a)
{
    int32_t v;
    memcpy(&v, a, 4);
    return _mm512_set1_epi32(v);
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

/* ---- few rows -------------------------------------------------------------------------------- */

struct few {
    const struct packed *w;
    const struct qact *x;
    int32_t m0;
    float *dst;
    size_t ldd;
};

/* One line times nm rows. Several sums per row while rows are few: a chain of vpdpwssd on one
 * register would wait for itself. */
INLINE void line_few(__m512i *acc, __m512i word, const int16_t *a, size_t lda, enum pack_kind kind,
                     int nm)
{
    const int n_sum = nm == 1 ? 4 : nm <= 3 ? 2 : 1, n_pair = kind == PACK_U4 ? 4 : 2;
    UNROLL for (int j = 0; j < n_pair; j++)
    {
        __m512i c = codes(word, kind, j);
        UNROLL for (int m = 0; m < nm; m++)
        {
            __m512i *s = &acc[m * n_sum + j % n_sum];
            *s = _mm512_dpwssd_epi32(*s, c, pair(a + (size_t)m * lda + 2 * j));
        }
    }
}

INLINE __m512i sum_few(const __m512i *acc, int m, int nm)
{
    if (nm == 1)
        return _mm512_add_epi32(_mm512_add_epi32(acc[0], acc[1]), _mm512_add_epi32(acc[2], acc[3]));
    if (nm <= 3)
        return _mm512_add_epi32(acc[2 * m], acc[2 * m + 1]);
    return acc[m];
}

INLINE void block_few(const struct few *f, int32_t b, float *dst, enum pack_kind kind, int nm)
{
    const struct packed *w = f->w;
    const int32_t n_group = w->k / w->group, per = kind == PACK_U4 ? 8 : 4;
    const int n_acc = nm == 1 ? 4 : nm <= 3 ? 2 * nm : nm;
    const enum scale_type st = w->scale;
    const size_t sb = PACK_ROWS * pack_scale_bytes(st), lda = (size_t)w->k;
    const uint8_t *p = w->p + (size_t)b * w->block_bytes;
    const int16_t *a = f->x->a + (size_t)f->m0 * lda;
    const float *as = f->x->scale + (size_t)f->m0 * (size_t)n_group;
    const float *asum = f->x->sum + (size_t)f->m0 * (size_t)n_group;
    __m512 y[FEW];
    UNROLL for (int m = 0; m < nm; m++) y[m] = _mm512_setzero_ps();
    for (int32_t g = 0; g < n_group; g++, a += w->group) {
        const uint8_t *scales = p;
        __m512i acc[FEW];
        UNROLL for (int i = 0; i < n_acc; i++) acc[i] = _mm512_setzero_si512();
        for (size_t i = 0; i < 2 * sb; i += 64)
            _mm_prefetch((const char *)p + PREFETCH + i, _MM_HINT_T0);
        p += 2 * sb;
        for (int32_t k = 0; k < w->group; k += per, p += 64) {
            _mm_prefetch((const char *)p + PREFETCH, _MM_HINT_T0);
            line_few(acc, _mm512_load_si512(p), a + k, lda, kind, nm);
        }
        __m512 s = scale16(scales, st), bias = scale16(scales + sb, st);
        UNROLL for (int m = 0; m < nm; m++)
        {
            size_t at = (size_t)m * (size_t)n_group + (size_t)g;
            y[m] = drain(y[m], sum_few(acc, m, nm), s, bias, as[at], asum[at]);
        }
    }
    __mmask16 mask = block_mask(w, b);
    UNROLL for (int m = 0; m < nm; m++) _mm512_mask_storeu_ps(dst + (size_t)m * f->ldd, mask, y[m]);
}

#define FEW_FN(kind, nm)                                                                           \
    static void few_##kind##_##nm(const struct few *f, int32_t b0, int32_t b1)                     \
    {                                                                                              \
        for (int32_t b = b0; b < b1; b++)                                                          \
            block_few(f, b, f->dst + (size_t)(b - b0) * PACK_ROWS, kind, nm);                      \
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
FEW_ROWS(PACK_U4)
FEW_ROWS(PACK_U8)

typedef void few_fn(const struct few *f, int32_t b0, int32_t b1);
static few_fn *const few_table[2][FEW] = {
    {few_PACK_U4_1, few_PACK_U4_2, few_PACK_U4_3, few_PACK_U4_4, few_PACK_U4_5, few_PACK_U4_6,
     few_PACK_U4_7, few_PACK_U4_8},
    {few_PACK_U8_1, few_PACK_U8_2, few_PACK_U8_3, few_PACK_U8_4, few_PACK_U8_5, few_PACK_U8_6,
     few_PACK_U8_7, few_PACK_U8_8},
};

/* ---- many rows: panels ----------------------------------------------------------------------- */

/* What a block's K_CHUNK inputs look like after unpacking, in the caller's scratch. */
struct panel {
    __m512i codes[K_CHUNK / 2]; /* [k/2][16 rows][2] int16 */
    __m512 scale[K_CHUNK / 16]; /* [groups] */
    __m512 bias[K_CHUNK / 16];
};
_Static_assert(NB * sizeof(struct panel) <= GEMM_SCRATCH, "scratch");

/* Unpacks inputs [k0, k0+kn) of block b. */
INLINE void unpack(struct panel *t, const struct packed *w, int32_t b, int32_t k0, int32_t kn,
                   enum pack_kind kind)
{
    const size_t sb = PACK_ROWS * pack_scale_bytes(w->scale);
    const uint8_t *p = w->p + (size_t)b * w->block_bytes +
                       (size_t)(k0 / w->group) * pack_group_bytes(kind, w->scale, w->group);
    const int32_t per = kind == PACK_U4 ? 8 : 4;
    __m512i *out = t->codes;
    for (int32_t g = 0; g < kn / w->group; g++) {
        t->scale[g] = scale16(p, w->scale);
        t->bias[g] = scale16(p + sb, w->scale);
        p += 2 * sb;
        for (int32_t k = 0; k < w->group; k += per, p += 64) {
            _mm_prefetch((const char *)p + PREFETCH, _MM_HINT_T0);
            __m512i word = _mm512_load_si512(p);
            UNROLL for (int j = 0; j < per / 2; j++) *out++ = codes(word, kind, j);
        }
    }
}

struct sweep {
    const struct panel *t; /* [nb] */
    const int16_t *a;      /* first row, input k0 */
    size_t lda, n_group;   /* strides of a and of as, asum */
    const float *as, *asum;
    float *y; /* [rows][nb*16] running outputs */
    size_t ldy;
    int32_t group, groups; /* inputs per group; groups in this chunk */
    bool first;            /* y starts at zero */
    __mmask16 mask[NB];
};

INLINE void sweep_tile(const struct sweep *s, int32_t m0, int nb, int nm)
{
    const int16_t *a = s->a + (size_t)m0 * s->lda;
    const float *as = s->as + (size_t)m0 * s->n_group, *asum = s->asum + (size_t)m0 * s->n_group;
    float *y = s->y + (size_t)m0 * s->ldy;
    size_t c = 0;
    for (int32_t g = 0; g < s->groups; g++) {
        __m512i acc[NB * TILE_M];
        UNROLL for (int i = 0; i < nb * nm; i++) acc[i] = _mm512_setzero_si512();
        for (int32_t i = 0; i < s->group; i += 2, a += 2, c++)
            UNROLL for (int m = 0; m < nm; m++)
            {
                __m512i v = pair(a + (size_t)m * s->lda);
                UNROLL for (int b = 0; b < nb; b++) acc[b * nm + m] =
                    _mm512_dpwssd_epi32(acc[b * nm + m], s->t[b].codes[c], v);
            }
        UNROLL for (int m = 0; m < nm; m++) UNROLL for (int b = 0; b < nb; b++)
        {
            size_t at = (size_t)m * s->n_group + (size_t)g;
            float *p = y + (size_t)m * s->ldy + (size_t)b * PACK_ROWS;
            __m512 v =
                s->first && g == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(s->mask[b], p);
            v = drain(v, acc[b * nm + m], s->t[b].scale[g], s->t[b].bias[g], as[at], asum[at]);
            _mm512_mask_storeu_ps(p, s->mask[b], v);
        }
    }
}

INLINE void sweep_rest(const struct sweep *s, int32_t m, int nb, int rest)
{
    switch (rest) {
    case 1:
        sweep_tile(s, m, nb, 1);
        break;
    case 2:
        sweep_tile(s, m, nb, 2);
        break;
    case 3:
        sweep_tile(s, m, nb, 3);
        break;
    case 4:
        sweep_tile(s, m, nb, 4);
        break;
    case 5:
        sweep_tile(s, m, nb, 5);
        break;
    case 6:
        sweep_tile(s, m, nb, 6);
        break;
    case 7:
        sweep_tile(s, m, nb, 7);
        break;
    default:
        break;
    }
}

static void sweep(const struct sweep *s, int32_t nm, int nb)
{
    int32_t m = 0;
    for (; nm - m >= TILE_M; m += TILE_M)
        if (nb == 2)
            sweep_tile(s, m, 2, TILE_M);
        else
            sweep_tile(s, m, 1, TILE_M);
    if (nb == 2)
        sweep_rest(s, m, 2, nm - m);
    else
        sweep_rest(s, m, 1, nm - m);
}

static void blocks_many(const struct packed *w, int32_t b, int nb, const struct sweep *all,
                        int32_t nm, struct panel *t)
{
    for (int32_t k0 = 0; k0 < w->k; k0 += K_CHUNK) {
        int32_t kn = w->k - k0 < K_CHUNK ? w->k - k0 : K_CHUNK;
        struct sweep s = *all;
        for (int i = 0; i < nb; i++) {
            if (w->kind == PACK_U4)
                unpack(&t[i], w, b + i, k0, kn, PACK_U4);
            else
                unpack(&t[i], w, b + i, k0, kn, PACK_U8);
            s.mask[i] = block_mask(w, b + i);
        }
        s.a += k0;
        s.as += k0 / w->group;
        s.asum += k0 / w->group;
        s.groups = kn / w->group;
        s.first = k0 == 0;
        sweep(&s, nm, nb);
    }
}

void gemm_q__avx512(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x,
                    int32_t m0, int32_t nm, float *dst, size_t ldd, void *scratch)
{
    if (nm <= 2 * FEW) {
        for (int32_t m = 0; m < nm; m += FEW) {
            int32_t part = nm - m < FEW ? nm - m : FEW;
            struct few f = {.w = w, .x = x, .m0 = m0 + m, .dst = dst + (size_t)m * ldd, .ldd = ldd};
            few_table[w->kind == PACK_U8][part - 1](&f, b0, b1);
        }
        return;
    }
    const size_t ng = (size_t)(w->k / w->group);
    struct sweep all = {
        .t = scratch,
        .a = x->a + (size_t)m0 * (size_t)w->k,
        .lda = (size_t)w->k,
        .n_group = ng,
        .as = x->scale + (size_t)m0 * ng,
        .asum = x->sum + (size_t)m0 * ng,
        .ldy = ldd,
        .group = w->group,
    };
    for (int32_t b = b0; b < b1; b += NB) {
        all.y = dst + (size_t)(b - b0) * PACK_ROWS;
        blocks_many(w, b, b1 - b < NB ? b1 - b : NB, &all, nm, scratch);
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
