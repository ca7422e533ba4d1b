/*
 * kernels.h - the arithmetic of the engine as one table of functions, filled for an instruction
 * set.
 *
 * Two kinds of function live below this header:
 *  - the canonical arithmetic (docs/numerics.md): every entry of struct kernels. An entry gives the
 *    same bits on every instruction set, for any number of rows, any split of the work. kernels/
 *    generic is its portable form and the judge of the others.
 *  - kernels/ref (ref.h): the plain truth in double, against which the canonical form is measured.
 *
 * Kernels are pure: pointers, sizes, no allocation, no threads, no state. All float vectors are
 * float32. Inputs may be torn by a late pool worker (base/pool.h): a kernel stays inside its
 * buffers whatever the values are. Callers have set flush-to-zero (cpu_fp_begin).
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/cpu.h"

/* ---- packed weights ------------------------------------------------------------------------- *
 * Rows (outputs) come in blocks of 16; N is padded to a multiple of 16 with zero weights. Inside a
 * block the 16 rows are interleaved, so that a vector lane is a row and no sum crosses lanes.
 *
 * Integer formats, per block and per group of G inputs:
 *
 *     [16 scales][16 biases] [line 0][line 1]...           w = q * scale + bias
 *
 * A line is 64 bytes: one 32-bit word of each of the 16 rows. 32 inputs of b-bit codes take b lines
 * (a group of 16, half as many: b = 4 and 8 only). The low half of every word belongs to the even
 * inputs of these 32, the high half to the odd ones, so that masking 16-bit halves gives
 * neighbouring inputs as a pair. In order, a half holds 16/b codes from its low bits up; the bits
 * left at the top of the halves (b = 3, 5, 6), from the first word on and from low to high, are the
 * last codes of the 32:
 *
 *     U4 nibbles, low to high: k0 k2 k4 k6 k1 k3 k5 k7      U8 bytes: k0 k2 k1 k3
 *     U5 halves: k0 k2 k4 and bit 0 of k30 | k1 k3 k5 and bit 0 of k31, then k6 k8 k10 and bit 1
 *
 * Where every bias is -2^(b-1) * scale, codes being signed numbers moved up (GGUF's Q4_0, Q5_0,
 * Q8_0), there are no biases in memory (centred): they are computed, exactly.
 *
 * PACK_E2M1 (MXFP4, NVFP4) is laid out as U4; its codes stand for pack_e2m1 of them, which is twice
 * the value plus 12, and there are no biases: a bias is -12 * scale, rounded once.
 *
 * Float formats (PACK_F32, PACK_BF16, PACK_F16), per block: for each input k, 16 row values.
 */
enum pack_kind {
    PACK_U2,
    PACK_U3,
    PACK_U4,
    PACK_U5,
    PACK_U6,
    PACK_U8,
    PACK_E2M1,
    PACK_BF16,
    PACK_F16,
    PACK_F32
};
#define PACK_INT_KINDS (PACK_E2M1 + 1)
enum scale_type { SCALE_F16, SCALE_BF16, SCALE_F32 }; /* of scales and biases */

enum { PACK_ROWS = 16, GROUP_MAX = 128 };

struct packed {
    enum pack_kind kind;
    enum scale_type scale;
    int32_t group;      /* inputs per scale: 32, 64, 128, at 4 and 8 bits 16; integers only */
    int32_t n, k;       /* outputs (unpadded), inputs */
    const uint8_t *p;   /* 64-byte aligned */
    size_t block_bytes; /* bytes of one block of 16 rows */
    bool centred;       /* integers: biases are not in memory */
};

static inline bool pack_is_int(enum pack_kind kind)
{
    return kind <= PACK_E2M1;
}
/* Bits of a code of an integer format. */
static inline int pack_bits(enum pack_kind kind)
{
    return kind < PACK_U8 ? (int)kind + 2 : kind == PACK_U8 ? 8 : 4;
}
size_t pack_scale_bytes(enum scale_type t);
/* A bias that is not in memory is minus this times the scale. */
static inline int pack_centre(enum pack_kind kind)
{
    return kind == PACK_E2M1 ? 12 : 1 << (pack_bits(kind) - 1);
}
/* Bytes of the scales, and biases where there are any, before a group's lines. */
static inline size_t pack_head_bytes(enum pack_kind kind, enum scale_type scale, bool centred)
{
    bool biases = kind != PACK_E2M1 && !centred;
    return (size_t)PACK_ROWS * (scale == SCALE_F32 ? 4 : 2) * (biases ? 2 : 1);
}
/* Bytes of one group of one block, and of a whole block: w's p and block_bytes are not looked at.
 */
size_t pack_group_bytes(const struct packed *w);
size_t pack_block_bytes(const struct packed *w);
static inline int32_t pack_n_block(int32_t n)
{
    return (n + PACK_ROWS - 1) / PACK_ROWS;
}
/* Code i, 0 to group-1, of a row in a group's lines; of PACK_E2M1 what it stands for. */
uint32_t pack_code(enum pack_kind kind, const uint8_t *lines, int row, int32_t i);
/* The same of codes 0 to group-1 of a row, many times faster. */
void pack_codes(enum pack_kind kind, const uint8_t *lines, int row, int32_t group,
                uint8_t out[GROUP_MAX]);
extern const uint8_t pack_e2m1[16];
/* One row of weights as float32, exactly q*scale+bias with one rounding. dst: [k] */
void pack_row_f32(const struct packed *w, int32_t row, float *dst);

/* ---- quantized activations -------------------------------------------------------------------
 * Per row and group: scale = amax/32512, a = rint(x * (32512/amax)), sum = (Σa)·scale.
 * amax < 1e-30 counts as 0 (a = 0, scale = 0); a non-finite amax gives scale = NaN, a = 0. */
struct qact {
    int16_t *a;   /* [rows, k] natural order, row stride k */
    float *scale; /* [rows, k/group] */
    float *sum;   /* [rows, k/group] */
    int32_t k, group;
};

/* ---- attention ------------------------------------------------------------------------------ *
 * KV memory is paged: KV_PAGE tokens a page, one page table per sequence. In a page a (layer, kv
 * head) has K and V laid out so that scores and outputs need no sums across lanes:
 *
 *   bf16   K [t/16][d/2][16 tokens][2 dims]     V [t/2][d][2 tokens]
 *   f32    K [t/16][d][16 tokens]               V [t][d]
 *   coded  kernels/kvq.h
 *
 * A latent is K and V at once and lies token by token: [t][dk], of which the first dv are V.
 */
enum { KV_PAGE = 64, ATTN_BLOCK = 256, ATTN_Q_MAX = 32, HEAD_DIM_MAX = 576 };
enum kv_type { KV_BF16, KV_F32, KV_CODED };

/* How KV_CODED memory is coded (kernels/kvq.h). */
struct kv_form {
    uint8_t k_bits, v_bits; /* of a code: 2, 3, 4, 5, 6, 8 */
    uint8_t group;          /* dims of a token that share a step: 32, 64 or 128 */
    bool rotated;           /* values are Hadamard-rotated; dv a power of two, at least 64 */
};

/* Bytes of an element of a plain type. */

static inline size_t kv_elem_bytes(enum kv_type t)
{
    return t == KV_BF16 ? 2 : 4;
}

/* One kv head of one layer of a sequence, as attention sees it. */
struct kv_head {
    const uint8_t *const *pages; /* page table; entries past the end point at valid memory */
    size_t k_off, v_off;         /* bytes from a page's start to this (layer, head)'s K and V */
    bool latent;                 /* K and V at once: see above */
    int32_t dk, dv;              /* head sizes; multiples of 16, at most HEAD_DIM_MAX */
    enum kv_type type;
    struct kv_form form; /* of KV_CODED */
};

/* Consecutive rows of one sequence and the query heads that share a kv head. */
struct attn_tile {
    const float *q;              /* row r, head h at q + r*q_stride + h*dk */
    float *out;                  /* row r, head h at out + r*out_stride + h*dv */
    size_t q_stride, out_stride; /* floats */
    int32_t n_row, n_head;       /* n_row * n_head <= ATTN_Q_MAX; row r is at position pos + r */
    int32_t pos;
    bool level;     /* every row sees what one at pos sees, not what its own position would */
    int32_t window; /* 0 = none; otherwise a row sees itself and window-1 earlier tokens */
    float scale;
    const float *sinks; /* [n_head] one more logit in the denominator; NULL = none */
    /* Row r sees token t only if bit t%64 of mask[r*mask_stride + t/64] is set; NULL = no mask. A
     * row sees at least one token. */
    const uint64_t *mask;
    size_t mask_stride;
    /* latent_attn, for which no mask counts: the one row sees these n_token >= 1 tokens, rising;
     * NULL = all. */
    const int32_t *tokens;
    int32_t n_token;
    void *scratch; /* ATTN_SCRATCH bytes, 64-byte aligned */
};
/* Per query: floats of a block's weights, q and two outputs; for coded memory the query as 16-bit
 * integers with scale, sum and sum of integers of its groups, and a page's weights likewise. */
enum {
    ATTN_SCRATCH_CODED = 2 * HEAD_DIM_MAX + 4 * (3 * (HEAD_DIM_MAX / 32) + 16) + 2 * KV_PAGE,
    ATTN_SCRATCH = ATTN_Q_MAX * (4 * (ATTN_BLOCK + 3 * HEAD_DIM_MAX + 16) + ATTN_SCRATCH_CODED) +
                   HEAD_DIM_MAX * 64
};

/* What the blocks of tokens that a tile sees give, each by itself, so that several threads may take
 * some: blocks [piece * step, (piece + 1) * step) of them are a piece. In a piece, row r's lie at
 * p + piece * piece_stride + r * row_stride: [step][n_head][ATTN_PART + dv], first maximum and
 * denominator (0 = nothing is seen), behind ATTN_PART floats the output. */
enum { ATTN_PART = 16 };
struct attn_parts {
    float *p;
    size_t piece_stride, row_stride; /* floats */
    int32_t step, n_piece;
};
/* Blocks that rows [pos, pos + n_row) see: the first, and how many. */
static inline int32_t attn_first_block(int32_t pos, int32_t window)
{
    return window && pos - window + 1 > 0 ? (pos - window + 1) / ATTN_BLOCK : 0;
}
static inline int32_t attn_n_block(int32_t pos, int32_t n_row, int32_t window)
{
    return (pos + n_row - 1) / ATTN_BLOCK + 1 - attn_first_block(pos, window);
}

/* A row of sparse attention's index. */
struct index_query {
    const float *q, *w; /* [n_head][dk], [n_head] */
    int32_t n_head, dk; /* dk even */
    float scale;
    enum kv_type type;
};

/* ---- gated delta net ------------------------------------------------------------------------ *
 * The state of one value head, S [dv][dk] in the papers, lies so that a lane is a value dimension:
 *
 *     [dv/16][dk][16]
 *
 * and no sum crosses lanes. Rows are consecutive tokens of one sequence. */
struct delta_rows {
    const float *from;      /* S before the first row; may be where S behind the last goes */
    const float *q, *k, *v; /* row r at + r*ldx: [dk] [dk] [dv], q and k normed and scaled */
    const float *g, *beta;  /* row r at + r*ldg: one float each */
    float *out;             /* row r at + r*ldo: [dv] */
    size_t ldx, ldg, ldo;   /* floats */
    int32_t n_row, dk, dv;  /* dk and dv multiples of 16 */
};

/* What a token's forget and write gates are made of: [heads] each. */
struct delta_gate_in {
    const float *a, *b, *dt, *a_log;
};

/* ---- the table ------------------------------------------------------------------------------ */
struct kernels {
    enum cpu_isa isa;

    /* Quantizes one row x[k]; writes row r of q. */
    void (*quantize)(const float *x, const struct qact *q, int32_t row);
    /* dst[m*ldd + i] = (W x_m)[16*b0 + i] for rows m in [m0, m0+nm), outputs of blocks [b0, b1)
     * (tail rows beyond w->n are not written). scratch: GEMM_SCRATCH bytes, 64-byte aligned. */
    void (*gemm_q)(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x, int32_t m0,
                   int32_t nm, float *dst, size_t ldd, void *scratch);
    /* Weights that a call with many rows had better have, in bytes: what it does to the activations
     * first is shared by all its blocks. 0 = no matter. */
    int32_t gemm_q_many;
    /* gemm_q for float weights: one fused multiply-add chain over ascending k per output. */
    void (*gemm_f)(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                   int32_t nm, float *dst, size_t ldd, void *scratch);

    /* y = x / sqrt(mean(x^2) + eps) * (w + add); w NULL = 1. n any. */
    void (*rmsnorm)(float *y, const float *x, const float *w, float add, float eps, int32_t n);
    /* y = silu(g) * u */
    void (*swiglu)(float *y, const float *g, const float *u, int32_t n);
    /* y = gelu(g) * u in its tanh form: g / (1 + e^(-2z)), z = sqrt(2/pi)(g + 0.044715 g^3) */
    void (*geglu)(float *y, const float *g, const float *u, int32_t n);
    /* g = min(g, 7), u = clip(u, -7, 7): y = g / (1 + e^(-1.702 g)) * (u + 1) */
    void (*swiglu_clamped)(float *y, const float *g, const float *u, int32_t n);
    /* y = a + b; y may be one of them */
    void (*add)(float *y, const float *a, const float *b, int32_t n);
    /* y = x * s; y may be x */
    void (*scale)(float *y, const float *x, float s, int32_t n);
    /* y = cap * tanh(x / cap), tanh z = (1 - e^(-2|z|)) / (1 + e^(-2|z|)) with z's sign */
    void (*softcap)(float *y, const float *x, float cap, int32_t n);
    /* Rotates one head of d floats, the first `dims` of them (even). cs: cos[dims/2], sin[dims/2].
     * Pairs are (i, i+dims/2), or (2i, 2i+1) when interleaved. y != x. */
    void (*rope)(float *y, const float *x, int32_t d, int32_t dims, const float *cs,
                 bool interleaved);
    /* Writes one token's K and V of one head into its page at slot t (0..KV_PAGE-1). */
    void (*kv_put)(uint8_t *k, uint8_t *v, int32_t t, const float *kx, const float *vx, int32_t dk,
                   int32_t dv, enum kv_type type);
    /* The same into coded memory of a head h (its pages and offsets are not looked at). A group of
     * values that are not all finite becomes NaN. */
    void (*kv_code)(const struct kv_head *h, uint8_t *k, uint8_t *v, int32_t t, const float *kx,
                    const float *vx);
    /* Attention over blocks of ATTN_BLOCK tokens at absolute positions, merged in ascending
     * order. */
    void (*attn)(const struct attn_tile *t, const struct kv_head *kv);
    /* The same in two steps, with the same bits: a piece's blocks (t->out is not looked at), and
     * their merging when all pieces are there. */
    void (*attn_part)(const struct attn_tile *t, const struct kv_head *kv,
                      const struct attn_parts *parts, int32_t piece);
    void (*attn_merge)(const struct attn_tile *t, const struct kv_head *kv,
                       const struct attn_parts *parts);
    /* The same over a latent in a plain type (kv->v_off, windows and sinks do not count): blocks
     * are of what is seen. Writing a token's: row is where it lies. */
    void (*latent_attn)(const struct attn_tile *t, const struct kv_head *kv);
    void (*latent_put)(uint8_t *row, const float *x, int32_t dk, enum kv_type type);
    /* s[t] = sum over heads, rising, of w_h scale max(q_h . key_t, 0), for 16 tokens of K; k: where
     * they lie. */
    void (*index_score)(float *s, const uint8_t *k, const struct index_query *q);

    /* y = u / (1 + e^-g) */
    void (*sigmul)(float *y, const float *g, const float *u, int32_t n);
    /* y = x / sqrt(sum(x^2) + eps) * scale; y may be x */
    void (*l2norm)(float *y, const float *x, float eps, float scale, int32_t n);
    /* y[c] = silu(sum over j < taps, rising, of rows[j][c] * w[j*n + c]) */
    void (*conv_silu)(float *y, const float *const *rows, const float *w, int32_t taps, int32_t n);
    /* g = e^(-e^a_log * softplus(a + dt)), beta = 1 / (1 + e^-b) */
    void (*delta_gates)(float *g, float *beta, const struct delta_gate_in *in, int32_t n);
    /* For each row (1 or more) in order: S = g S; d = (v - S k) beta; S = S + d k^T; out = S q. */
    void (*delta)(float *s, const struct delta_rows *rows);
};

enum { GEMM_SCRATCH = 64 * 1024 };

/* The table of a level; static storage. NULL for a level above cpu_best(). */
const struct kernels *kernels_get(enum cpu_isa isa);

#endif
