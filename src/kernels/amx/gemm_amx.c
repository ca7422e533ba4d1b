/*
 * gemm_amx.c - packed integer weights times many activation rows with AMX int8 tiles.
 *
 * An activation a (|a| <= 32512) is split into two signed digits, a = 256*hi + lo with
 * hi = (a+128)>>8 and lo = (int8)a; weights are the unsigned operand. A strip is 16 rows; per group
 * two tile products give sum(q*hi) and sum(q*lo), exact in int32, and 256*hi + lo is the group's
 * dot product, combined in ascending order with the canonical three float operations.
 *
 * The order of inputs inside a tile row is free; it follows the packed words: the low nibbles of a
 * 4-bit line are inputs 0 4 1 5 of its 8, the high ones 2 6 3 7; a U8 line holds 0 2 1 3 of its 4,
 * and codes of other widths are unpacked in that order.
 * Up to GEMM_AVX512_FEW rows over go to the AVX-512 code. Tiles are released before returning.
 */
#include "kernels/amx/gemm_amx.h"

#include <string.h>

#include "kernels/avx512/codes_avx512.h"
#include "kernels/avx512/gemm_avx512.h"

enum {
    STRIP = 16,     /* rows of a tile */
    STRIPS = 2,     /* strips that share an unpacked block */
    K_CHUNK = 576,  /* inputs at a time, at most: what GEMM_SCRATCH holds */
    PREFETCH = 4096 /* bytes ahead, in the weights */
};

/* GCC 12's tile intrinsics do not tell the compiler what memory they read, so these do. */
#define TILE_LOAD(tile, p, step)                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(p), "r"((size_t)(step)) : "memory")
#define TILE_STORE(tile, p)                                                                        \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(p), "r"((size_t)64) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
/* c += a (signed) * b (unsigned) */
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
};

/* Working memory of a call. One strip's part of a group is group/tile_k tiles of digits. */
struct work {
    int8_t hi[STRIPS][STRIP * K_CHUNK]; /* [k/tile_k][16 rows][tile_k] */
    int8_t lo[STRIPS][STRIP * K_CHUNK];
    uint8_t codes[PACK_ROWS * K_CHUNK]; /* [k/4][16 outputs][4] */
    int32_t dot[2][2][STRIP * 16];      /* [parity of step][hi, lo] */
    float as[STRIPS][K_CHUNK / 16][STRIP];
    float asum[STRIPS][K_CHUNK / 16][STRIP];
    __m512 scale[K_CHUNK / 16], bias[K_CHUNK / 16];
};
_Static_assert(sizeof(struct work) <= GEMM_SCRATCH, "scratch");

struct chunk { /* inputs [k0, k0+kn) of a panel of up to STRIPS strips */
    const struct packed *w;
    const struct qact *x;
    int32_t m0, nm, k0, kn; /* kn: whole groups, at most K_CHUNK */
    int32_t tile_k;         /* inputs of a tile row: min(group, 64) */
    struct work *t;
};

static void configure(int32_t tile_k)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 4; i++) { /* 0..3: sums */
        c.rows[i] = STRIP;
        c.colsb[i] = 64;
    }
    for (int i = 4; i < 6; i++) { /* 4, 5: digits hi, lo */
        c.rows[i] = STRIP;
        c.colsb[i] = (uint16_t)tile_k;
    }
    c.rows[6] = (uint8_t)(tile_k / 4); /* 6: codes */
    c.colsb[6] = 64;
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
}

/* ---- activations into digits ----------------------------------------------------------------- */

/* Where the inputs of 8 go: position i of a tile row holds input order[i]. */
INLINE __m128i order8(enum pack_kind kind)
{
    if (kind == PACK_U4 || kind == PACK_E2M1)
        return _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 0, 4, 1, 5, 2, 6, 3, 7);
    return _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 0, 2, 1, 3, 4, 6, 5, 7);
}

/* 32 inputs to 32 bytes of each digit. Per 128-bit lane, 8 words: low bytes to the low half, high
 * bytes to the high half, in order; then the halves of the lanes are brought together. */
INLINE void digits32(int8_t *hi, int8_t *lo, const int16_t *a, __m512i even, __m512i odd)
{
    __m512i v = _mm512_loadu_si512(a);
    __m512i h = _mm512_add_epi16(v, _mm512_set1_epi16(128));
    __m512i both = _mm512_or_si512(_mm512_shuffle_epi8(v, even), _mm512_shuffle_epi8(h, odd));
    both = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), both);
    _mm256_storeu_si256((__m256i *)lo, _mm512_castsi512_si256(both));
    _mm256_storeu_si256((__m256i *)hi, _mm512_extracti64x4_epi64(both, 1));
}

INLINE void digits16(int8_t *hi, int8_t *lo, const int16_t *a, __m512i even, __m512i odd)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)a);
    __m256i h = _mm256_add_epi16(v, _mm256_set1_epi16(128));
    __m256i both = _mm256_or_si256(_mm256_shuffle_epi8(v, _mm512_castsi512_si256(even)),
                                   _mm256_shuffle_epi8(h, _mm512_castsi512_si256(odd)));
    both = _mm256_permute4x64_epi64(both, 0xD8); /* quarters 0 2 1 3 */
    _mm_storeu_si128((__m128i *)lo, _mm256_castsi256_si128(both));
    _mm_storeu_si128((__m128i *)hi, _mm256_extracti128_si256(both, 1));
}

/* Rows behind the last one keep what an earlier strip left: their outputs are not stored. */
static void pack_strip(const struct chunk *c, int strip)
{
    const int32_t rows = c->nm - strip * STRIP < STRIP ? c->nm - strip * STRIP : STRIP;
    const size_t k = (size_t)c->w->k, ng = (size_t)(c->w->k / c->w->group);
    const int32_t tk = c->tile_k, groups = c->kn / c->w->group;
    /* byte indices of the low bytes in the low half; of the high bytes in the high half */
    __m128i o = _mm_slli_epi16(order8(c->w->kind), 1);
    __m128i e = _mm_unpacklo_epi64(o, _mm_set1_epi8(-1));
    __m128i d = _mm_unpacklo_epi64(_mm_set1_epi8(-1), _mm_or_si128(o, _mm_set1_epi8(1)));
    __m512i even = _mm512_broadcast_i32x4(e), odd = _mm512_broadcast_i32x4(d);
    for (int32_t r = 0; r < rows; r++) {
        size_t m = (size_t)(c->m0 + strip * STRIP + r);
        const int16_t *a = c->x->a + m * k + (size_t)c->k0;
        int8_t *hi = c->t->hi[strip] + r * tk, *lo = c->t->lo[strip] + r * tk;
        for (int32_t i = 0; i < c->kn; i += tk, a += tk, hi += STRIP * tk, lo += STRIP * tk) {
            if (tk == 16)
                digits16(hi, lo, a, even, odd);
            for (int32_t j = 0; j + 32 <= tk; j += 32)
                digits32(hi + j, lo + j, a + j, even, odd);
        }
        const float *as = c->x->scale + m * ng + (size_t)(c->k0 / c->w->group);
        const float *asum = c->x->sum + m * ng + (size_t)(c->k0 / c->w->group);
        for (int32_t g = 0; g < groups; g++) {
            c->t->as[strip][g][r] = as[g];
            c->t->asum[strip][g][r] = asum[g];
        }
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Codes of a group as tile rows. */
INLINE __m512i *group_codes(__m512i *out, const uint8_t *p, int32_t group, enum pack_kind kind)
{
    const int32_t run = run_inputs(kind);
    for (int32_t k = 0; k < group; k += run, p += run * pack_bits(kind) * 2)
        UNROLL for (int j = 0; j < run / 2; j += 2)
        {
            __m512i odd = _mm512_slli_epi16(codes(p, kind, j + 1), 8);
            *out++ = _mm512_or_si512(codes(p, kind, j), odd);
        }
    return out;
}

INLINE __m512i *group_nibbles(__m512i *out, const uint8_t *p, int32_t group, bool e2m1)
{
    const __m512i low = _mm512_set1_epi8(15);
    for (int32_t i = 0; i < group / 8; i++) {
        __m512i line = words(p, i);
        *out++ = e2m1 ? e2m1_bytes(line, false) : _mm512_and_si512(line, low);
        *out++ = e2m1 ? e2m1_bytes(line, true) : _mm512_and_si512(_mm512_srli_epi32(line, 4), low);
    }
    return out;
}

/* Scales and biases of block b's chunk, and the codes as bytes unless they are. */
static void unpack(const struct chunk *c, int32_t b)
{
    const struct packed *w = c->w;
    const size_t head = pack_head_bytes(w->kind, w->scale, w->centred);
    const size_t gb = pack_group_bytes(w);
    const uint8_t *p = w->p + (size_t)b * w->block_bytes + (size_t)(c->k0 / w->group) * gb;
    __m512i *out = (__m512i *)c->t->codes;
    for (int32_t g = 0; g < c->kn / w->group; g++, p += gb) {
        for (size_t i = 0; i < gb; i += 64)
            _mm_prefetch((const char *)p + PREFETCH + i, _MM_HINT_T0);
        c->t->scale[g] = scale16(p, w->scale);
        c->t->bias[g] = bias16(p, c->t->scale[g], w->kind, w->scale, w->centred);
        switch (w->kind) {
        case PACK_U2:
            out = group_codes(out, p + head, w->group, PACK_U2);
            break;
        case PACK_U3:
            out = group_codes(out, p + head, w->group, PACK_U3);
            break;
        case PACK_U5:
            out = group_codes(out, p + head, w->group, PACK_U5);
            break;
        case PACK_U6:
            out = group_codes(out, p + head, w->group, PACK_U6);
            break;
        case PACK_U4:
        case PACK_E2M1:
            out = group_nibbles(out, p + head, w->group, w->kind == PACK_E2M1);
            break;
        default:
            break;
        }
    }
}

/* ---- one strip times one block --------------------------------------------------------------- */

struct strip {
    const int8_t *hi, *lo;
    const uint8_t *codes; /* tile rows of group 0 */
    size_t group_step;    /* bytes to the next group's */
    const float (*as)[STRIP], (*asum)[STRIP];
    struct work *t;
    float *y;
    size_t ldy;
    int32_t group, tile_k, groups, rows;
    bool first;
    __mmask16 mask;
};

/* Tile products of group g, into tiles 0, 1 or, at odd steps, 2, 3: a sum that is being stored is
 * not waited for. */
INLINE void group_dot(const struct strip *s, int32_t g, bool odd)
{
    const size_t tk = (size_t)s->tile_k, tile = STRIP * tk;
    const int8_t *hi = s->hi + (size_t)g * (size_t)s->group * STRIP;
    const int8_t *lo = s->lo + (size_t)g * (size_t)s->group * STRIP;
    const uint8_t *codes = s->codes + (size_t)g * s->group_step;
    if (odd) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
    }
    for (int32_t i = 0; i < s->group; i += s->tile_k) {
        TILE_LOAD(6, codes, 64);
        TILE_LOAD(4, hi, tk);
        TILE_LOAD(5, lo, tk);
        if (odd) {
            TILE_DOT(2, 4, 6);
            TILE_DOT(3, 5, 6);
        } else {
            TILE_DOT(0, 4, 6);
            TILE_DOT(1, 5, 6);
        }
        codes += tile;
        hi += tile;
        lo += tile;
    }
}

INLINE void group_store(struct work *t, bool odd)
{
    int32_t(*dot)[STRIP * 16] = t->dot[odd];
    if (odd) {
        TILE_STORE(2, dot[0]);
        TILE_STORE(3, dot[1]);
    } else {
        TILE_STORE(0, dot[0]);
        TILE_STORE(1, dot[1]);
    }
}

INLINE void group_drain(const struct strip *s, int32_t g, bool odd, __m512 *y)
{
    int32_t(*dot)[STRIP * 16] = s->t->dot[odd];
    const float *as = s->as[g], *asum = s->asum[g];
    __m512 scale = s->t->scale[g], bias = s->t->bias[g];
    UNROLL for (int r = 0; r < STRIP; r++)
    {
        __m512i hi = _mm512_load_si512(dot[0] + r * 16), lo = _mm512_load_si512(dot[1] + r * 16);
        __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo);
        __m512 t = _mm512_mul_ps(scale, _mm512_set1_ps(as[r]));
        y[r] = _mm512_fmadd_ps(t, _mm512_cvtepi32_ps(sum), y[r]);
        y[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(asum[r]), y[r]);
    }
}

INLINE void rows_load(const struct strip *s, __m512 *y)
{
    UNROLL for (int r = 0; r < STRIP; r++) y[r] =
        s->first || r >= s->rows ? _mm512_setzero_ps()
                                 : _mm512_maskz_loadu_ps(s->mask, s->y + (size_t)r * s->ldy);
}

INLINE void rows_store(const struct strip *s, const __m512 *y)
{
    UNROLL for (int r = 0; r < STRIP; r++) if (r < s->rows)
        _mm512_mask_storeu_ps(s->y + (size_t)r * s->ldy, s->mask, y[r]);
}

/* Strips of one block, as a pipeline over their groups: at each step tile products of one group,
 * the float work of the group two before, and last the store of the group one before, whose
 * products are done by then. Neither the drain's loads nor the next tile loads queue behind the
 * stores. The pipeline runs across strips, so that it fills once per block. */
static void strips_run(const struct strip *s, int n)
{
    const struct strip *at = s;
    const int32_t groups = s->groups, last = n * groups;
    int32_t g_dot = 0, g_drain = 0;
    __m512 y[STRIP];
    rows_load(s, y);
    for (int32_t step = 0; step < last + 2; step++) {
        if (step < last) {
            group_dot(at, g_dot, step & 1);
            if (++g_dot == groups) {
                g_dot = 0;
                at++;
            }
        }
        if (step >= 2) {
            group_drain(s, g_drain, step & 1, y);
            if (++g_drain == groups) {
                rows_store(s, y);
                g_drain = 0;
                if (step < last + 1)
                    rows_load(++s, y);
            }
        }
        if (step >= 1 && step <= last)
            group_store(s->t, ~step & 1);
    }
}

static void block_run(const struct chunk *c, int32_t b, float *dst, size_t ldd)
{
    const struct packed *w = c->w;
    const int32_t n = w->n - b * PACK_ROWS, n_strip = (c->nm + STRIP - 1) / STRIP;
    unpack(c, b);
    struct strip s[STRIPS];
    for (int i = 0; i < n_strip; i++) {
        s[i] = (struct strip){
            .hi = c->t->hi[i],
            .lo = c->t->lo[i],
            .as = (const float(*)[STRIP])c->t->as[i],
            .asum = (const float(*)[STRIP])c->t->asum[i],
            .codes = c->t->codes,
            .group_step = (size_t)w->group * PACK_ROWS,
            .t = c->t,
            .y = dst + (size_t)i * STRIP * ldd,
            .ldy = ldd,
            .group = w->group,
            .tile_k = c->tile_k,
            .groups = c->kn / w->group,
            .rows = c->nm - i * STRIP < STRIP ? c->nm - i * STRIP : STRIP,
            .first = c->k0 == 0,
            .mask = (__mmask16)(n >= PACK_ROWS ? 0xFFFF : (1u << n) - 1),
        };
        if (w->kind == PACK_U8) { /* lines are tile rows as they are */
            s[i].group_step = pack_group_bytes(w);
            s[i].codes = w->p + (size_t)b * w->block_bytes +
                         (size_t)(c->k0 / w->group) * s[i].group_step +
                         pack_head_bytes(w->kind, w->scale, w->centred);
        }
    }
    strips_run(s, n_strip);
}

/* Chunks of about equal length, in whole groups. */
static void panel_run(struct chunk *c, int32_t b0, int32_t b1, float *dst, size_t ldd)
{
    const int32_t k = c->w->k, group = c->w->group, most = K_CHUNK / group * group;
    const int32_t n = (k + most - 1) / most;
    const int32_t step = ((k + n - 1) / n + group - 1) / group * group;
    for (c->k0 = 0; c->k0 < k; c->k0 += step) {
        c->kn = k - c->k0 < step ? k - c->k0 : step;
        for (int i = 0; i * STRIP < c->nm; i++)
            pack_strip(c, i);
        for (int32_t b = b0; b < b1; b++)
            block_run(c, b, dst + (size_t)(b - b0) * PACK_ROWS, ldd);
    }
}

void gemm_q__amx(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x, int32_t m0,
                 int32_t nm, float *dst, size_t ldd, void *scratch)
{
    int32_t few = nm % STRIP <= GEMM_AVX512_FEW ? nm % STRIP : 0, many = nm - few;
    if (many) {
        struct chunk c = {.w = w, .x = x, .t = scratch};
        c.tile_k = w->group < 64 ? w->group : 64;
        configure(c.tile_k);
        for (int32_t m = 0; m < many; m += STRIPS * STRIP) {
            c.m0 = m0 + m;
            c.nm = many - m < STRIPS * STRIP ? many - m : STRIPS * STRIP;
            panel_run(&c, b0, b1, dst + (size_t)m * ldd, ldd);
        }
        __asm__ volatile("tilerelease" ::);
    }
    if (few)
        gemm_q__avx512(w, b0, b1, x, m0 + many, few, dst + (size_t)many * ldd, ldd, scratch);
}
