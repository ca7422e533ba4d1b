/*
 * gemm_avx2.c - packed weights times activations with AVX2 (no VNNI).
 *
 * Integer products are vpmaddwd: two neighbouring 16-bit activations (broadcast) times two codes
 * widened to 16 bits in each 32-bit lane, a lane being a row. Sums inside a group are exact in
 * int32, so their order is free; groups are combined in ascending order with the canonical three
 * float operations (kern_generic.c: row_q).
 *
 *   few rows:              codes are unpacked from the packed words as they are used, by up to FEW
 *                          rows at a time
 *   many rows:             a block's codes are unpacked once per K_CHUNK inputs into a panel in L1
 *                          and swept by tiles of TILE_M rows
 */
#include "kernels/avx2/gemm_avx2.h"

#include <string.h>

#include "kernels/avx2/codes_avx2.h"

enum {
    FEW = 4,       /* rows that share an unpacked pair: 8 integer accumulators (12 gain nothing) */
    FEW_MAX = 8,   /* rows that are unpacked on the fly */
    TILE_M = 4,    /* rows of a panel tile: 8 integer accumulators */
    K_CHUNK = 512, /* inputs of a panel: 16 KiB; a multiple of every group size */
};

/* Bytes from the weights in hand to those being fetched, the best found for one row. */
INLINE size_t ahead(enum pack_kind kind)
{
    return kind == PACK_U8 ? 2048 : 4096;
}

/* acc += a*b in pairs, or acc = a*b. The empty asm keeps the sum in its register: gcc 12 otherwise
 * rotates the accumulators through copies, and the number of instructions limits the loop. */
INLINE void madd(__m256i *acc, __m256i a, __m256i b, bool first)
{
    __m256i v = _mm256_madd_epi16(a, b);
    *acc = first ? v : _mm256_add_epi32(*acc, v);
    __asm__("" : "+x"(*acc));
}

INLINE __m256i pair(const int16_t *a)
{
    int32_t v;
    memcpy(&v, a, 4);
    return _mm256_set1_epi32(v);
}

INLINE __m256 drain(__m256 y, __m256i dot, __m256 scale, __m256 bias, float as, float asum)
{
    __m256 t = _mm256_mul_ps(scale, _mm256_set1_ps(as));
    y = _mm256_fmadd_ps(t, _mm256_cvtepi32_ps(dot), y);
    return _mm256_fmadd_ps(bias, _mm256_set1_ps(asum), y);
}

/* Stores 16 outputs of a block, or as many as exist. */
INLINE void store16(float *dst, __m256 lo, __m256 hi, int32_t n)
{
    if (n >= 16) {
        _mm256_storeu_ps(dst, lo);
        _mm256_storeu_ps(dst + 8, hi);
        return;
    }
    float t[16];
    _mm256_storeu_ps(t, lo);
    _mm256_storeu_ps(t + 8, hi);
    memcpy(dst, t, (size_t)n * sizeof *t);
}

/* ---- few rows -------------------------------------------------------------------------------- */

struct rows_at { /* where a run of rows starts */
    const struct packed *w;
    const struct qact *x;
    int32_t m0;
    float *dst;
    size_t ldd;
};

/* Where the activations are, row by row. The empty asm hides that rows are a constant apart: gcc
 * would keep an offset for every pair of every row, and reload most of them. */
struct acts {
    const int16_t *row[FEW];
};
INLINE void acts_hide(struct acts *a, int nm)
{
    UNROLL for (int m = 0; m < nm; m++) __asm__("" : "+r"(a->row[m]));
}

/* n inputs times nm rows; the first of a group start the sums instead of adding to nothing. */
INLINE void span_few(__m256i *acc, const uint8_t *p, struct acts *a, enum pack_kind kind, int nm,
                     int n, bool first)
{
    const int run = run_inputs(kind), run_bytes = run * pack_bits(kind) * 2;
    UNROLL for (int i = 0; i < n * run_bytes / run; i += 64)
        _mm_prefetch((const char *)p + ahead(kind) + i, _MM_HINT_T0);
    acts_hide(a, nm);
    UNROLL for (int j = 0; j < n / 2; j++)
    {
        const uint8_t *q = p + j / (run / 2) * run_bytes;
        __m256i lo = codes(q, kind, j % (run / 2)), hi = codes(q + 32, kind, j % (run / 2));
        UNROLL for (int m = 0; m < nm; m++)
        {
            __m256i v = pair(a->row[m] + 2 * j);
            madd(&acc[2 * m], lo, v, first && j == 0);
            madd(&acc[2 * m + 1], hi, v, first && j == 0);
        }
    }
    UNROLL for (int m = 0; m < nm; m++) a->row[m] += n;
}

/* unit: inputs that are written out. 32 where that pays, if groups are not of 16. */
INLINE void block_few(const struct rows_at *f, const uint8_t *p, int32_t n_out, enum pack_kind kind,
                      int nm, int unit)
{
    const struct packed *w = f->w;
    const int32_t n_group = w->k / w->group;
    const size_t bytes = (size_t)(unit * pack_bits(kind) * 2);
    const size_t head_bytes = pack_head_bytes(kind, w->scale, w->centred);
    const float *as = f->x->scale + (size_t)f->m0 * (size_t)n_group;
    const float *asum = f->x->sum + (size_t)f->m0 * (size_t)n_group;
    struct acts a;
    __m256 y[2 * FEW];
    UNROLL for (int m = 0; m < nm; m++)
    {
        a.row[m] = f->x->a + (size_t)(f->m0 + m) * (size_t)w->k;
        y[2 * m] = y[2 * m + 1] = _mm256_setzero_ps();
    }
    for (int32_t g = 0; g < n_group; g++) {
        const uint8_t *head = p;
        __m256i acc[2 * FEW];
        _mm_prefetch((const char *)p + ahead(kind), _MM_HINT_T0);
        p += head_bytes;
        span_few(acc, p, &a, kind, nm, unit, true);
        p += bytes;
        for (int32_t k = unit; k < w->group; k += unit, p += bytes)
            span_few(acc, p, &a, kind, nm, unit, false);
        struct scales s = group_scales(head, kind, w->scale, w->centred);
        UNROLL for (int m = 0; m < nm; m++)
        {
            float sc = as[(size_t)m * (size_t)n_group + (size_t)g];
            float sum = asum[(size_t)m * (size_t)n_group + (size_t)g];
            y[2 * m] = drain(y[2 * m], acc[2 * m], s.s[0], s.b[0], sc, sum);
            y[2 * m + 1] = drain(y[2 * m + 1], acc[2 * m + 1], s.s[1], s.b[1], sc, sum);
        }
    }
    UNROLL for (int m = 0; m < nm; m++)
        store16(f->dst + (size_t)m * f->ldd, y[2 * m], y[2 * m + 1], n_out);
}

/* A block's outputs: p its weights, n_out how many there are. */
typedef void few_fn(const struct rows_at *f, const uint8_t *p, int32_t n_out);
#define FEW_FN(kind, nm, unit)                                                                     \
    static void few_##kind##_##nm##_##unit(const struct rows_at *f, const uint8_t *p,              \
                                           int32_t n_out)                                          \
    {                                                                                              \
        block_few(f, p, n_out, kind, nm, unit);                                                    \
    }
#define FEW_ROWS(kind, unit)                                                                       \
    FEW_FN(kind, 1, unit)                                                                          \
    FEW_FN(kind, 2, unit)                                                                          \
    FEW_FN(kind, 3, unit)                                                                          \
    FEW_FN(kind, 4, unit)
FEW_ROWS(PACK_U2, 16)
FEW_ROWS(PACK_U3, 32)
FEW_ROWS(PACK_U4, 32)
FEW_ROWS(PACK_U5, 32)
FEW_ROWS(PACK_U6, 32)
FEW_ROWS(PACK_U8, 32)
FEW_ROWS(PACK_U4, 16)
FEW_ROWS(PACK_U8, 16)
FEW_ROWS(PACK_E2M1, 16)

#define FEW_ROW(kind, unit)                                                                        \
    [kind] = {few_##kind##_1_##unit, few_##kind##_2_##unit, few_##kind##_3_##unit,                 \
              few_##kind##_4_##unit}
static few_fn *const few_table[PACK_INT_KINDS][FEW] = {
    FEW_ROW(PACK_U2, 16), FEW_ROW(PACK_U3, 32), FEW_ROW(PACK_U4, 32),   FEW_ROW(PACK_U5, 32),
    FEW_ROW(PACK_U6, 32), FEW_ROW(PACK_U8, 32), FEW_ROW(PACK_E2M1, 16),
};
static few_fn *const few_table_16[PACK_INT_KINDS][FEW] = {
    FEW_ROW(PACK_U4, 16), FEW_ROW(PACK_U8, 16), FEW_ROW(PACK_E2M1, 16)};

/* Up to FEW_MAX rows; the parts of more than FEW find the block in the first-level cache. */
static void few(const struct rows_at *f, const uint8_t *p, int32_t n_out, int32_t nm)
{
    struct rows_at at = *f;
    few_fn *const *fn = (f->w->group == 16 ? few_table_16 : few_table)[f->w->kind];
    int32_t first = nm <= FEW ? nm : (nm + 1) / 2;
    fn[first - 1](&at, p, n_out);
    at.m0 += first;
    at.dst += (size_t)first * f->ldd;
    if (nm > first)
        fn[nm - first - 1](&at, p, n_out);
}

/* ---- many rows: panels ----------------------------------------------------------------------- */

/* What a block's K_CHUNK inputs look like after unpacking, in the caller's scratch. */
struct panel {
    int16_t *codes; /* [k/2][16 rows][2] */
    float *scale;   /* [groups][16] */
    float *bias;
};

/* Unpacks inputs [k0, k0+kn) of the block at p. */
INLINE void unpack(const struct panel *t, const struct packed *w, const uint8_t *p, int32_t k0,
                   int32_t kn, enum pack_kind kind)
{
    const int32_t run = run_inputs(kind);
    const size_t run_bytes = (size_t)(run * pack_bits(kind) * 2);
    __m256i *out = (__m256i *)t->codes;
    p += (size_t)(k0 / w->group) * pack_group_bytes(w);
    for (int32_t g = 0; g < kn / w->group; g++) {
        struct scales s = group_scales(p, kind, w->scale, w->centred);
        for (int half = 0; half < 2; half++) {
            _mm256_store_ps(t->scale + 16 * g + 8 * half, s.s[half]);
            _mm256_store_ps(t->bias + 16 * g + 8 * half, s.b[half]);
        }
        p += pack_head_bytes(kind, w->scale, w->centred);
        for (int32_t k = 0; k < w->group; k += run, p += run_bytes, out += run)
            UNROLL for (int j = 0; j < run / 2; j++)
            {
                _mm256_store_si256(out + 2 * j, codes(p, kind, j));
                _mm256_store_si256(out + 2 * j + 1, codes(p + 32, kind, j));
            }
    }
}

#define UNPACK_FN(kind)                                                                            \
    static void unpack_##kind(const struct panel *t, const struct packed *w, const uint8_t *p,     \
                              int32_t k0, int32_t kn)                                              \
    {                                                                                              \
        unpack(t, w, p, k0, kn, kind);                                                             \
    }
UNPACK_FN(PACK_U2)
UNPACK_FN(PACK_U3)
UNPACK_FN(PACK_U4)
UNPACK_FN(PACK_U5)
UNPACK_FN(PACK_U6)
UNPACK_FN(PACK_U8)
UNPACK_FN(PACK_E2M1)

typedef void unpack_fn(const struct panel *t, const struct packed *w, const uint8_t *p, int32_t k0,
                       int32_t kn);
static unpack_fn *const unpack_table[PACK_INT_KINDS] = {
    [PACK_U2] = unpack_PACK_U2,     [PACK_U3] = unpack_PACK_U3, [PACK_U4] = unpack_PACK_U4,
    [PACK_U5] = unpack_PACK_U5,     [PACK_U6] = unpack_PACK_U6, [PACK_U8] = unpack_PACK_U8,
    [PACK_E2M1] = unpack_PACK_E2M1,
};

struct sweep {
    const struct packed *w;
    const struct panel *t;
    const int16_t *a;       /* first row, input k0 */
    const float *as, *asum; /* first row, group k0/group */
    const float *in;        /* [rows][16] sums of the inputs before k0; NULL = none yet */
    float *out;             /* [rows][16], row stride ldo */
    size_t ldo;
    int32_t n_group; /* groups in this chunk */
};

INLINE void panel_pair(__m256i *acc, const __m256i *c, const int16_t *a, size_t k, int nm,
                       bool first)
{
    __m256i lo = _mm256_load_si256(c), hi = _mm256_load_si256(c + 1);
    for (int m = 0; m < nm; m++) {
        __m256i v = pair(a + (size_t)m * k);
        madd(&acc[2 * m], lo, v, first);
        madd(&acc[2 * m + 1], hi, v, first);
    }
}

/* Eight pairs, spelled out: gcc does not unroll this loop by itself, and a short loop per group
 * costs a mispredicted branch each. */
INLINE void eight_pairs(__m256i *acc, const __m256i *c, const int16_t *a, size_t k, int nm,
                        bool first)
{
    panel_pair(acc, c, a, k, nm, first);
    panel_pair(acc, c + 2, a + 2, k, nm, false);
    panel_pair(acc, c + 4, a + 4, k, nm, false);
    panel_pair(acc, c + 6, a + 6, k, nm, false);
    panel_pair(acc, c + 8, a + 8, k, nm, false);
    panel_pair(acc, c + 10, a + 10, k, nm, false);
    panel_pair(acc, c + 12, a + 12, k, nm, false);
    panel_pair(acc, c + 14, a + 14, k, nm, false);
}

INLINE void group_pairs(__m256i *acc, const __m256i *c, const int16_t *a, size_t k, int32_t group,
                        int nm)
{
    eight_pairs(acc, c, a, k, nm, true);
    for (int32_t i = 16; i < group; i += 16)
        eight_pairs(acc, c + i, a + i, k, nm, false);
}

INLINE void sweep_tile(const struct sweep *s, int32_t m0, int32_t group, int nm)
{
    const size_t k = (size_t)s->w->k, ng = k / (size_t)group;
    const int16_t *a = s->a + (size_t)m0 * k;
    const float *as = s->as + (size_t)m0 * ng, *asum = s->asum + (size_t)m0 * ng;
    const __m256i *c = (const __m256i *)s->t->codes;
    __m256 y[2 * TILE_M];
    for (int i = 0; i < 2 * nm; i++)
        y[i] = s->in ? _mm256_load_ps(s->in + (size_t)m0 * PACK_ROWS + 8 * i) : _mm256_setzero_ps();
    for (int32_t g = 0; g < s->n_group; g++, a += group, c += group) {
        __m256i acc[2 * TILE_M];
        group_pairs(acc, c, a, k, group, nm);
        for (int half = 0; half < 2; half++) {
            __m256 sc = _mm256_load_ps(s->t->scale + 16 * g + 8 * half);
            __m256 bi = _mm256_load_ps(s->t->bias + 16 * g + 8 * half);
            for (int m = 0; m < nm; m++)
                y[2 * m + half] =
                    drain(y[2 * m + half], acc[2 * m + half], sc, bi,
                          as[(size_t)m * ng + (size_t)g], asum[(size_t)m * ng + (size_t)g]);
        }
    }
    for (int i = 0; i < 2 * nm; i++)
        _mm256_storeu_ps(s->out + (size_t)(m0 + i / 2) * s->ldo + 8 * (i % 2), y[i]);
}

INLINE void sweep_rows(const struct sweep *s, int32_t nm, int32_t group)
{
    int32_t m = 0;
    for (; nm - m >= TILE_M; m += TILE_M)
        sweep_tile(s, m, group, TILE_M);
    for (; m < nm; m++)
        sweep_tile(s, m, group, 1);
}

static void sweep(const struct sweep *s, int32_t nm)
{
    switch (s->w->group) {
    case 16:
        sweep_rows(s, nm, 16);
        break;
    case 32:
        sweep_rows(s, nm, 32);
        break;
    case 64:
        sweep_rows(s, nm, 64);
        break;
    default:
        sweep_rows(s, nm, 128);
        break;
    }
}

/* Rows swept together: their running sums lie in scratch, [MANY][16], not in dst, whose rows are
 * far apart (one page each); only the last inputs write there. */
enum { MANY = 128 };
_Static_assert(K_CHUNK * 32 + 2 * K_CHUNK * 4 + MANY * PACK_ROWS * 4 <= GEMM_SCRATCH, "scratch");

static void block_many(const struct packed *w, int32_t b, const struct rows_at *f, int32_t nm,
                       void *scratch)
{
    const size_t ng = (size_t)(w->k / w->group);
    const struct qact *x = f->x;
    int32_t n_out = w->n - b * PACK_ROWS;
    struct panel t = {.codes = scratch};
    t.scale = (float *)((char *)scratch + K_CHUNK * 32);
    t.bias = t.scale + K_CHUNK;
    float *y = t.bias + K_CHUNK;
    for (int32_t k0 = 0; k0 < w->k; k0 += K_CHUNK) {
        int32_t kn = w->k - k0 < K_CHUNK ? w->k - k0 : K_CHUNK;
        bool last = k0 + kn == w->k && n_out >= PACK_ROWS;
        const uint8_t *p = w->p + (size_t)b * w->block_bytes;
        unpack_table[w->kind](&t, w, p, k0, kn);
        struct sweep s = {
            .w = w,
            .t = &t,
            .a = x->a + (size_t)f->m0 * (size_t)w->k + (size_t)k0,
            .as = x->scale + (size_t)f->m0 * ng + (size_t)(k0 / w->group),
            .asum = x->sum + (size_t)f->m0 * ng + (size_t)(k0 / w->group),
            .in = k0 ? y : NULL,
            .out = last ? f->dst : y,
            .ldo = last ? f->ldd : PACK_ROWS,
            .n_group = kn / w->group,
        };
        sweep(&s, nm);
    }
    for (int32_t m = 0; n_out < PACK_ROWS && m < nm; m++)
        memcpy(f->dst + (size_t)m * f->ldd, y + (size_t)m * PACK_ROWS, (size_t)n_out * sizeof *y);
}

void gemm_q__avx2(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x, int32_t m0,
                  int32_t nm, float *dst, size_t ldd, void *scratch)
{
    for (int32_t m = 0; m < nm; m += MANY) {
        struct rows_at f = {.w = w, .x = x, .m0 = m0 + m, .dst = dst + (size_t)m * ldd, .ldd = ldd};
        const uint8_t *p = w->p + (size_t)b0 * w->block_bytes;
        for (int32_t b = b0; b < b1; b++, f.dst += PACK_ROWS, p += w->block_bytes) {
            if (nm <= FEW_MAX)
                few(&f, p, w->n - b * PACK_ROWS, nm);
            else
                block_many(w, b, &f, nm - m < MANY ? nm - m : MANY, scratch);
        }
    }
}

/* ---- float weights ----------------------------------------------------------------------------
 */

INLINE __m256 weight8(const uint8_t *p, enum pack_kind kind)
{
    if (kind == PACK_F32)
        return _mm256_loadu_ps((const float *)p);
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    if (kind == PACK_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* NB blocks and NM rows: 2*NB*NM chains, enough to hide the latency of an FMA. */
INLINE void tile_f(const struct packed *w, int32_t b, const float *x, size_t ldx, float *dst,
                   size_t ldd, enum pack_kind kind, int nb, int nm)
{
    const size_t elem = kind == PACK_F32 ? 4 : 2;
    const uint8_t *p = w->p + (size_t)b * w->block_bytes;
    __m256 acc[8];
    for (int i = 0; i < 2 * nb * nm; i++)
        acc[i] = _mm256_setzero_ps();
    for (int32_t k = 0; k < w->k; k++, p += PACK_ROWS * elem)
        for (int i = 0; i < nb; i++) {
            const uint8_t *q = p + (size_t)i * w->block_bytes;
            __m256 lo = weight8(q, kind), hi = weight8(q + 8 * elem, kind);
            for (int m = 0; m < nm; m++) {
                __m256 v = _mm256_set1_ps(x[(size_t)m * ldx + (size_t)k]);
                __m256 *a = &acc[2 * (i * nm + m)];
                a[0] = _mm256_fmadd_ps(lo, v, a[0]);
                a[1] = _mm256_fmadd_ps(hi, v, a[1]);
            }
        }
    for (int i = 0; i < nb; i++)
        for (int m = 0; m < nm; m++)
            store16(dst + (size_t)m * ldd + (size_t)i * PACK_ROWS, acc[2 * (i * nm + m)],
                    acc[2 * (i * nm + m) + 1], w->n - (b + i) * PACK_ROWS);
}

INLINE void rows_f(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                   float *dst, size_t ldd, enum pack_kind kind, int nm)
{
    int nb = nm == 1 ? 4 : nm == 2 ? 2 : 1;
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
    for (; nm - m >= 4; m += 4)
        rows_f(w, b0, b1, x + (size_t)m * ldx, ldx, dst + (size_t)m * ldd, ldd, kind, 4);
    x += (size_t)m * ldx;
    dst += (size_t)m * ldd;
    if (nm - m == 3)
        rows_f(w, b0, b1, x, ldx, dst, ldd, kind, 3);
    else if (nm - m == 2)
        rows_f(w, b0, b1, x, ldx, dst, ldd, kind, 2);
    else if (nm - m == 1)
        rows_f(w, b0, b1, x, ldx, dst, ldd, kind, 1);
}

void gemm_f__avx2(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                  int32_t nm, float *dst, size_t ldd, void *scratch)
{
    if (w->kind == PACK_F32)
        gemm_f_kind(w, b0, b1, x, ldx, nm, dst, ldd, PACK_F32);
    else if (w->kind == PACK_BF16)
        gemm_f_kind(w, b0, b1, x, ldx, nm, dst, ldd, PACK_BF16);
    else
        gemm_f_kind(w, b0, b1, x, ldx, nm, dst, ldd, PACK_F16);
}
