/*
 * gguf_arch.c - the tables of architectures and tensors; see gguf_arch.h.
 *
 * A tensor row gives the expected shape as letters, innermost dimension first: h hidden, q heads x
 * head size, k kv heads x head size, a all of q, k and v, d head size, f feed-forward, g gate and
 * up together, m expert feed-forward, e experts, v vocabulary. Facts follow the public GGUF key
 * list and the checkpoint formats of the families.
 */
#include "import/gguf_arch_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "import/gguf_blocks.h"

#define ROWS_COMMON(minus)                                                                         \
    {"token_embd", "model.embed_tokens", "hv", ROW_GLOBAL},                                        \
        {"output_norm", "model.norm", "h", ROW_GLOBAL | (minus)},                                  \
        {"output", "lm_head", "hv", ROW_GLOBAL | ROW_OPT},                                         \
        {"attn_norm", "input_layernorm", "h", minus},                                              \
        {"attn_output", "self_attn.o_proj", "qh", 0},                                              \
    {                                                                                              \
        "attn_v", "self_attn.v_proj", "hk", 0                                                      \
    }
#define ROWS_QK(perm)                                                                              \
    {"attn_q", "self_attn.q_proj", "hq", perm},                                                    \
    {                                                                                              \
        "attn_k", "self_attn.k_proj", "hk", perm                                                   \
    }
#define ROWS_MLP                                                                                   \
    {"ffn_gate", "mlp.gate_proj", "hf", 0}, {"ffn_up", "mlp.up_proj", "hf", 0},                    \
    {                                                                                              \
        "ffn_down", "mlp.down_proj", "fh", 0                                                       \
    }
#define ROWS_QKV_BIAS(flags)                                                                       \
    {"attn_q", "self_attn.q_proj", "q", ROW_BIAS | (flags)},                                       \
        {"attn_k", "self_attn.k_proj", "k", ROW_BIAS | (flags)},                                   \
    {                                                                                              \
        "attn_v", "self_attn.v_proj", "k", ROW_BIAS | ((flags)&ROW_OPT)                            \
    }
#define ROWS_QK_NORM(minus)                                                                        \
    {"attn_q_norm", "self_attn.q_norm", "d", minus},                                               \
    {                                                                                              \
        "attn_k_norm", "self_attn.k_norm", "d", minus                                              \
    }

static const struct row LLAMA[] = {
    ROWS_COMMON(0),
    ROWS_QK(ROW_PERM),
    ROWS_MLP,
    ROWS_QKV_BIAS(ROW_OPT | ROW_PERM),
    {"attn_output", "self_attn.o_proj", "h", ROW_BIAS | ROW_OPT},
    {"ffn_gate", "mlp.gate_proj", "f", ROW_BIAS | ROW_OPT},
    {"ffn_up", "mlp.up_proj", "f", ROW_BIAS | ROW_OPT},
    {"ffn_down", "mlp.down_proj", "h", ROW_BIAS | ROW_OPT},
    {"ffn_norm", "post_attention_layernorm", "h", 0},
    {"rope_freqs", "", "", ROW_GLOBAL | ROW_OPT | ROW_CONFIG},
    {0},
};
static const struct row QWEN2[] = {
    ROWS_COMMON(0),
    ROWS_QK(0),
    ROWS_MLP,
    ROWS_QKV_BIAS(0),
    {"ffn_norm", "post_attention_layernorm", "h", 0},
    {0},
};
static const struct row QWEN3[] = {
    ROWS_COMMON(0),
    ROWS_QK(0),
    ROWS_MLP,
    ROWS_QK_NORM(0),
    {"ffn_norm", "post_attention_layernorm", "h", 0},
    {0},
};
static const struct row QWEN3MOE[] = {
    ROWS_COMMON(0),
    ROWS_QK(0),
    ROWS_QK_NORM(0),
    {"ffn_norm", "post_attention_layernorm", "h", 0},
    {"ffn_gate_inp", "mlp.gate", "he", 0},
    {"ffn_gate_exps", "mlp.switch_mlp.gate_proj", "hme", 0},
    {"ffn_up_exps", "mlp.switch_mlp.up_proj", "hme", 0},
    {"ffn_down_exps", "mlp.switch_mlp.down_proj", "mhe", 0},
    {0},
};
static const struct row GEMMA3[] = {
    ROWS_COMMON(ROW_MINUS1),
    ROWS_QK(0),
    ROWS_MLP,
    ROWS_QK_NORM(ROW_MINUS1),
    {"post_attention_norm", "post_attention_layernorm", "h", ROW_MINUS1},
    {"ffn_norm", "pre_feedforward_layernorm", "h", ROW_MINUS1},
    {"post_ffw_norm", "post_feedforward_layernorm", "h", ROW_MINUS1},
    {0},
};

/* q, k, v in one matrix, gate and up in another: the checkpoint has them in the same order. */
static const struct row PHI3[] = {
    {"token_embd", "model.embed_tokens", "hv", ROW_GLOBAL},
    {"output_norm", "model.norm", "h", ROW_GLOBAL},
    {"output", "lm_head", "hv", ROW_GLOBAL | ROW_OPT},
    {"attn_norm", "input_layernorm", "h", 0},
    {"attn_qkv", "self_attn.qkv_proj", "ha", 0},
    {"attn_output", "self_attn.o_proj", "qh", 0},
    {"ffn_norm", "post_attention_layernorm", "h", 0},
    {"ffn_up", "mlp.gate_up_proj", "hg", 0},
    {"ffn_down", "mlp.down_proj", "fh", 0},
    {"rope_factors_long", "", "", ROW_GLOBAL | ROW_OPT | ROW_CONFIG},
    {"rope_factors_short", "", "", ROW_GLOBAL | ROW_OPT | ROW_CONFIG},
    {0},
};

static const struct arch_def ARCH[] = {
    {"llama", "llama", "LlamaForCausalLM", LLAMA, ARCH_LLAMA, true, false, 10000},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", QWEN2, ARCH_PLAIN, false, false, 10000},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", QWEN3, ARCH_PLAIN, true, false, 10000},
    {"qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM", QWEN3MOE, ARCH_PLAIN, true, true, 10000},
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM", GEMMA3, ARCH_GEMMA, true, false, 1000000},
    {"phi3", "phi3", "Phi3ForCausalLM", PHI3, ARCH_PHI, false, false, 10000},
};
#define N_ARCH (sizeof ARCH / sizeof *ARCH)

/* Keys whose meaning is read below, or that say nothing about the arithmetic. */
static const char *const KEYS[] = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",
    "tensor_data_layout",
};
static const char *const KEYS_MOE[] = {
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
};
static const char *const KEYS_GEMMA[] = {
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base_swa",
};
static const char *const KEYS_PHI[] = {
    "attention.sliding_window",
};

struct gguf_key arch_key(const struct arch_model *m, const char *suffix)
{
    struct gguf_key k;
    snprintf(k.z, sizeof k.z, "%s.%s", m->def->name, suffix);
    return k;
}

float arch_factor(const struct gguf_tensor *t, int64_t i)
{
    float v;
    memcpy(&v, t->p + 4 * i, 4);
    return v;
}

static bool listed(const char *const *list, size_t n, struct str s)
{
    for (size_t i = 0; i < n; i++)
        if (str_eqz(s, list[i]))
            return true;
    return false;
}
#define LISTED(a, s) listed(a, sizeof(a) / sizeof *(a), s)

static enum qn_status check_keys(const struct arch_model *m, struct qn_err *err)
{
    struct str prefix = str_of(arch_key(m, "").z);
    for (size_t i = 0; i < m->g->n_kv; i++) {
        struct str k = m->g->kv[i].key;
        if (!str_starts(k, prefix))
            continue;
        struct str s = {k.p + prefix.n, k.n - prefix.n};
        if (LISTED(KEYS, s) || (m->def->moe && LISTED(KEYS_MOE, s)) ||
            (m->def->kind == ARCH_GEMMA && LISTED(KEYS_GEMMA, s)) ||
            (m->def->kind == ARCH_PHI && LISTED(KEYS_PHI, s)))
            continue;
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": metadata " STR_FMT
                        " is not known for the architecture %s; it may change "
                        "the arithmetic, so the file is refused",
                STR_ARG(m->g->name), STR_ARG(k), m->def->name);
    }
    return QN_OK;
}

static enum qn_status unknown_arch(const struct gguf *g, struct str name, struct qn_err *err)
{
    char list[256] = "";
    for (size_t i = 0, n = 0; i < N_ARCH && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", ARCH[i].name);
    QN_FAIL(err, QN_UNSUPPORTED, "gguf",
            STR_FMT ": general.architecture is \"" STR_FMT "\"; known are %s", STR_ARG(g->name),
            STR_ARG(name), list);
}

/* ---- dimensions ------------------------------------------------------------------------------ */

enum qn_status arch_need(const struct arch_model *m, const char *suffix, int64_t max, int64_t *out,
                         struct qn_err *err)
{
    struct gguf_key k = arch_key(m, suffix);
    if (!gguf_find(m->g, k.z))
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": metadata %s is missing", STR_ARG(m->g->name),
                k.z);
    return gguf_i64(m->g, k.z, 0, 1, max, out, err);
}

enum qn_status arch_opt(const struct arch_model *m, const char *suffix, int64_t def, int64_t max,
                        int64_t *out, struct qn_err *err)
{
    return gguf_i64(m->g, arch_key(m, suffix).z, def, 1, max, out, err);
}

/* A size that some files give per layer: all layers must agree. */
static enum qn_status need_per_layer(const struct arch_model *m, const char *suffix, int64_t def,
                                     int64_t *out, struct qn_err *err)
{
    struct gguf_key k = arch_key(m, suffix);
    const struct gguf_kv *kv = gguf_find(m->g, k.z);
    if (!kv || !kv->is_arr)
        return def ? arch_opt(m, suffix, def, 1 << 20, out, err)
                   : arch_need(m, suffix, 1 << 20, out, err);
    bool is_int = kv->type != GGUF_STR && kv->type != GGUF_F32 && kv->type != GGUF_F64;
    bool same = is_int && kv->n > 0;
    for (uint64_t i = 0; same && i < kv->n; i++)
        same = gguf_arr_i64(kv, i) == gguf_arr_i64(kv, 0);
    if (!same || gguf_arr_i64(kv, 0) < 1 || gguf_arr_i64(kv, 0) > 1 << 20)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": metadata %s differs between layers, which MLX's %s cannot express",
                STR_ARG(m->g->name), k.z, m->def->model_type);
    *out = gguf_arr_i64(kv, 0);
    return QN_OK;
}

static enum qn_status expect_dim(const struct arch_model *m, const char *suffix, int64_t want,
                                 struct qn_err *err)
{
    int64_t v;
    QN_TRY(arch_opt(m, suffix, want, 1 << 20, &v, err));
    if (v != want)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": metadata %s is %lld; MLX's %s needs it to be the head size %lld",
                STR_ARG(m->g->name), arch_key(m, suffix).z, (long long)v, m->def->model_type,
                (long long)want);
    return QN_OK;
}

static enum qn_status read_dims(struct arch_model *m, struct qn_err *err)
{
    const struct gguf_tensor *embd = gguf_find_tensor(m->g, "token_embd.weight");
    if (!embd || embd->n_dim != 2)
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": tensor token_embd.weight is %s",
                STR_ARG(m->g->name), embd ? "not a matrix" : "missing");
    m->n_vocab = embd->dim[1];
    m->tied = !gguf_find_tensor(m->g, "output.weight");
    QN_TRY(arch_need(m, "block_count", 4096, &m->n_layer, err));
    QN_TRY(arch_need(m, "embedding_length", 1 << 24, &m->n_embd, err));
    QN_TRY(arch_need(m, "context_length", INT32_MAX, &m->n_ctx, err));
    QN_TRY(need_per_layer(m, "attention.head_count", 0, &m->n_head, err));
    QN_TRY(need_per_layer(m, "attention.head_count_kv", m->n_head, &m->n_kv, err));
    if (m->def->moe) {
        QN_TRY(arch_need(m, "expert_count", 1 << 16, &m->n_expert, err));
        QN_TRY(arch_need(m, "expert_used_count", m->n_expert, &m->n_expert_used, err));
        QN_TRY(arch_need(m, "expert_feed_forward_length", 1 << 24, &m->n_ff_exp, err));
    }
    QN_TRY(need_per_layer(m, "feed_forward_length", m->def->moe ? m->n_ff_exp : 0, &m->n_ff, err));
    if (m->n_head % m->n_kv)
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": %lld heads are not a multiple of %lld kv heads", STR_ARG(m->g->name),
                (long long)m->n_head, (long long)m->n_kv);
    int64_t even = m->n_embd / m->n_head;
    QN_TRY(arch_opt(m, "attention.key_length", even ? even : 1, 1 << 20, &m->head_dim, err));
    if (!m->def->own_head_dim && m->head_dim * m->n_head != m->n_embd)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": head size %lld x %lld heads is not the width %lld, which MLX's %s needs",
                STR_ARG(m->g->name), (long long)m->head_dim, (long long)m->n_head,
                (long long)m->n_embd, m->def->model_type);
    if (m->head_dim % 2)
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": the head size %lld is odd",
                STR_ARG(m->g->name), (long long)m->head_dim);
    QN_TRY(expect_dim(m, "attention.value_length", m->head_dim, err));
    m->rope_dims = m->head_dim;
    if (m->def->kind != ARCH_PHI)
        return expect_dim(m, "rope.dimension_count", m->head_dim, err);
    QN_TRY(arch_opt(m, "rope.dimension_count", m->head_dim, m->head_dim, &m->rope_dims, err));
    if (m->rope_dims % 2)
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": metadata phi3.rope.dimension_count is %lld; expected an even number",
                STR_ARG(m->g->name), (long long)m->rope_dims);
    return QN_OK;
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* Llama 3 files store the frequency divisors themselves. They follow from four numbers, of which
 * only the factor (the largest divisor) varies between releases; the rule must reproduce every
 * stored divisor, otherwise the file is refused. */
static enum qn_status read_rope_freqs(struct arch_model *m, struct qn_err *err)
{
    const struct gguf_tensor *t = gguf_find_tensor(m->g, "rope_freqs.weight");
    double base, factor = 1;
    const double orig = 8192, low = 1, high = 4;
    if (!t || m->def->kind != ARCH_LLAMA)
        return QN_OK;
    QN_TRY(gguf_f64(m->g, arch_key(m, "rope.freq_base").z, m->def->rope_base, &base, err));
    bool ok = t->fmt->type == BLK_F32 && t->n_elem == m->head_dim / 2 && m->rope_type.n == 0;
    for (int64_t i = 0; ok && i < t->n_elem; i++) {
        float v;
        memcpy(&v, t->p + 4 * i, 4);
        factor = (double)v > factor ? (double)v : factor;
    }
    for (int64_t i = 0; ok && i < t->n_elem; i++) {
        float v;
        memcpy(&v, t->p + 4 * i, 4);
        double wl = 2 * M_PI * pow(base, 2.0 * (double)i / (double)m->head_dim);
        double s = (orig / wl - low) / (high - low);
        double want = wl > orig / low ? factor : wl < orig / high ? 1 : 1 / ((1 - s) / factor + s);
        ok = fabs((double)v - want) <= 1e-4 * want;
    }
    if (!ok)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": rope_freqs.weight does not follow the llama3 rule (original context "
                        "8192, frequency factors 1 and 4); other scalings cannot be expressed",
                STR_ARG(m->g->name));
    if (factor > 1) {
        m->rope_type = STR_LIT("llama3");
        m->rope_factor = factor;
        m->rope_orig_ctx = 8192;
    }
    return QN_OK;
}

/* Factors on the attention that MLX derives itself must have the value it gives them. */
static enum qn_status expect_derived(const struct arch_model *m, const char *suffix, double want,
                                     struct qn_err *err)
{
    double v;
    struct gguf_key k = arch_key(m, suffix);
    QN_TRY(gguf_f64(m->g, k.z, want, &v, err));
    if (fabs(v - want) > 1e-6 * want)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": metadata %s is %g; only %g can be expressed in an MLX config",
                STR_ARG(m->g->name), k.z, v, want);
    return QN_OK;
}

/* One factor for each pair of rotated dimensions. */
static enum qn_status check_factors(const struct arch_model *m, const struct gguf_tensor *t,
                                    struct qn_err *err)
{
    if (t->fmt->type != BLK_F32 || t->n_dim != 1 || t->n_elem != m->rope_dims / 2)
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tensor " STR_FMT
                        " has %lld values of %s in %d dimensions; expected %lld "
                        "of F32 in one, half of phi3.rope.dimension_count",
                STR_ARG(m->g->name), STR_ARG(t->name), (long long)t->n_elem, t->fmt->name, t->n_dim,
                (long long)(m->rope_dims / 2));
    for (int64_t i = 0; i < t->n_elem; i++) {
        float v = arch_factor(t, i);
        if (!(v >= 1e-6f && v <= 1e6f))
            QN_FAIL(err, QN_BAD_INPUT, "gguf",
                    STR_FMT ": tensor " STR_FMT ", value %lld is %g; expected a number from 1e-6 "
                            "to 1e6",
                    STR_ARG(m->g->name), STR_ARG(t->name), (long long)i, (double)v);
    }
    return QN_OK;
}

/* Phi-3 with a long context: the factors are tensors, and the gain on what is rotated follows from
 * the two context lengths. A gain of another size could not be expressed. */
static enum qn_status read_longrope(struct arch_model *m, struct str type, struct qn_err *err)
{
    const struct gguf_tensor *l = gguf_find_tensor(m->g, "rope_factors_long.weight");
    const struct gguf_tensor *s = gguf_find_tensor(m->g, "rope_factors_short.weight");
    if (!l || !s) {
        if (!l && !s && !str_eqz(type, "longrope"))
            return expect_derived(m, "rope.scaling.attn_factor", 1, err);
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": tensor rope_factors_%s.weight is missing",
                STR_ARG(m->g->name), l ? "short" : "long");
    }
    if (type.n && !str_eqz(type, "longrope"))
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": rope.scaling.type is \"" STR_FMT "\" beside rope_factors_long.weight; "
                        "one of both can be expressed",
                STR_ARG(m->g->name), STR_ARG(type));
    QN_TRY(check_factors(m, l, err));
    QN_TRY(check_factors(m, s, err));
    QN_TRY(arch_need(m, "rope.scaling.original_context_length", INT32_MAX, &m->rope_orig_ctx, err));
    if (m->rope_orig_ctx < 2)
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": metadata phi3.rope.scaling.original_context_length is 1; expected more",
                STR_ARG(m->g->name));
    double stretch = (double)m->n_ctx / (double)m->rope_orig_ctx, gain = 1;
    if (stretch > 1)
        gain = sqrt(1 + log(stretch) / log((double)m->rope_orig_ctx));
    QN_TRY(expect_derived(m, "rope.scaling.attn_factor", gain, err));
    m->rope_type = STR_LIT("longrope");
    m->rope_long = l;
    m->rope_short = s;
    return QN_OK;
}

static enum qn_status read_rope(struct arch_model *m, struct qn_err *err)
{
    struct str type;
    QN_TRY(gguf_str(m->g, arch_key(m, "rope.scaling.type").z, STR_LIT(""), &type, err));
    if (str_eqz(type, "none"))
        type = STR_LIT("");
    QN_TRY(gguf_f64(m->g, arch_key(m, "rope.scaling.factor").z, 0, &m->rope_factor, err));
    if (type.n == 0 && gguf_find(m->g, arch_key(m, "rope.scale_linear").z)) {
        QN_TRY(gguf_f64(m->g, arch_key(m, "rope.scale_linear").z, 1, &m->rope_factor, err));
        type = m->rope_factor == 1 ? STR_LIT("") : STR_LIT("linear");
    }
    bool phi = m->def->kind == ARCH_PHI;
    if (type.n && !str_eqz(type, "linear") && !str_eqz(type, phi ? "longrope" : "yarn"))
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": rope.scaling.type is \"" STR_FMT "\"; none, linear and %s are known",
                STR_ARG(m->g->name), STR_ARG(type), phi ? "longrope" : "yarn");
    if (phi && str_eqz(type, "longrope"))
        return read_longrope(m, type, err);
    if (type.n && !(m->rope_factor > 0))
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": rope.scaling.factor is %g; expected a positive number",
                STR_ARG(m->g->name), m->rope_factor);
    if (m->def->moe && type.n)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": rope.scaling.type is " STR_FMT ", but MLX's %s ignores rope scaling",
                STR_ARG(m->g->name), STR_ARG(type), m->def->model_type);
    if (!phi)
        QN_TRY(expect_derived(m, "rope.scaling.attn_factor", 1, err));
    QN_TRY(expect_derived(m, "rope.scaling.yarn_attn_factor", 1, err));
    QN_TRY(expect_derived(m, "rope.scaling.yarn_ext_factor", 1, err));
    m->rope_type = type;
    QN_TRY(arch_opt(m, "rope.scaling.original_context_length", m->n_ctx, INT32_MAX,
                    &m->rope_orig_ctx, err));
    return phi ? read_longrope(m, type, err) : read_rope_freqs(m, err);
}

/* MLX's llama has biases on all projections of a group or on none. */
static enum qn_status check_biases(const struct arch_model *m, struct qn_err *err)
{
    static const char *const GROUP[2][4] = {
        {"attn_q", "attn_k", "attn_v", "attn_output"},
        {"ffn_gate", "ffn_up", "ffn_down", NULL},
    };
    for (size_t k = 0; m->def->kind == ARCH_LLAMA && k < 2; k++) {
        int n = 0, have = 0;
        for (; n < 4 && GROUP[k][n]; n++) {
            char name[64];
            snprintf(name, sizeof name, "blk.0.%s.bias", GROUP[k][n]);
            have += gguf_find_tensor(m->g, name) != NULL;
        }
        if (have && have != n)
            QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                    STR_FMT ": only %d of %d %s projections have a bias, which MLX's %s cannot "
                            "express",
                    STR_ARG(m->g->name), have, n, k ? "feed-forward" : "attention",
                    m->def->model_type);
    }
    return QN_OK;
}

enum qn_status arch_open(const struct gguf *g, struct arch_model *m, struct qn_err *err)
{
    struct str name, type;
    *m = (struct arch_model){.g = g};
    QN_TRY(gguf_str(g, "general.architecture", STR_LIT(""), &name, err));
    QN_TRY(gguf_str(g, "general.type", STR_LIT("model"), &type, err));
    if (!str_eqz(type, "model"))
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": general.type is \"" STR_FMT "\"; expected a "
                        "model",
                STR_ARG(g->name), STR_ARG(type));
    if (gguf_find(g, "split.count")) {
        int64_t n;
        QN_TRY(gguf_i64(g, "split.count", 0, 0, 65535, &n, err));
        if (n > 1)
            QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                    STR_FMT ": one of %lld parts (split.count); join them first", STR_ARG(g->name),
                    (long long)n);
    }
    for (size_t i = 0; i < N_ARCH; i++)
        if (str_eqz(name, ARCH[i].name))
            m->def = &ARCH[i];
    if (!m->def)
        return unknown_arch(g, name, err);
    QN_TRY(check_keys(m, err));
    QN_TRY(check_biases(m, err));
    QN_TRY(read_dims(m, err));
    return read_rope(m, err);
}

const char *arch_model_type(const struct arch_model *m)
{
    return m->def->model_type;
}

/* ---- tensors ----------------------------------------------------------------------------------
 */

static int64_t dim_of(const struct arch_model *m, char c)
{
    switch (c) {
    case 'h':
        return m->n_embd;
    case 'q':
        return m->n_head * m->head_dim;
    case 'k':
        return m->n_kv * m->head_dim;
    case 'd':
        return m->head_dim;
    case 'a':
        return (m->n_head + 2 * m->n_kv) * m->head_dim;
    case 'g':
        return 2 * m->n_ff;
    case 'f':
        return m->n_ff;
    case 'm':
        return m->n_ff_exp;
    case 'e':
        return m->n_expert;
    default: /* 'v' */
        return m->n_vocab;
    }
}

static enum qn_status check_shape(const struct arch_model *m, const struct gguf_tensor *t,
                                  const char *shape, struct qn_err *err)
{
    for (size_t i = 0; i < GGUF_DIM_MAX; i++) {
        int64_t want = i < strlen(shape) ? dim_of(m, shape[i]) : 1;
        if (t->dim[i] != want)
            QN_FAIL(err, QN_BAD_INPUT, "gguf",
                    STR_FMT ": tensor " STR_FMT ": dimension %zu is %lld; the metadata say %lld",
                    STR_ARG(m->g->name), STR_ARG(t->name), i, (long long)t->dim[i],
                    (long long)want);
    }
    return QN_OK;
}

/* "blk.12.attn_q.weight" -> layer 12, "attn_q", not a bias. Layer -1 outside the blocks. */
static bool split_name(struct str s, int64_t *layer, struct str *mid, bool *bias)
{
    *layer = -1;
    *bias = str_ends(s, STR_LIT(".bias"));
    if (!*bias && !str_ends(s, STR_LIT(".weight")))
        return false;
    s.n -= *bias ? 5 : 7;
    if (str_starts(s, STR_LIT("blk."))) {
        size_t i = 4;
        for (*layer = 0; i < s.n && s.p[i] >= '0' && s.p[i] <= '9' && *layer < 100000; i++)
            *layer = *layer * 10 + (s.p[i] - '0');
        if (i == 4 || i >= s.n || s.p[i] != '.' || (s.p[4] == '0' && i > 5))
            return false;
        s.p += i + 1;
        s.n -= i + 1;
    }
    *mid = s;
    return true;
}

static const struct row *find_row(const struct arch_model *m, struct str mid, bool global,
                                  bool bias)
{
    for (const struct row *r = m->def->rows; r->gguf; r++)
        if (str_eqz(mid, r->gguf) && !!(r->flags & ROW_GLOBAL) == global &&
            !!(r->flags & ROW_BIAS) == bias)
            return r;
    return NULL;
}

enum qn_status arch_map(const struct arch_model *m, const struct gguf_tensor *t,
                        struct arch_tensor *out, struct qn_err *err)
{
    int64_t layer;
    struct str mid;
    bool bias;
    *out = (struct arch_tensor){0};
    const struct row *r = NULL;
    if (split_name(t->name, &layer, &mid, &bias) && layer < m->n_layer)
        r = find_row(m, mid, layer < 0, bias);
    if (!r)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": tensor " STR_FMT " is not known for %s with %lld layers; nothing is "
                        "dropped silently, so the file is refused",
                STR_ARG(m->g->name), STR_ARG(t->name), m->def->name, (long long)m->n_layer);
    if (r->flags & ROW_CONFIG) {
        out->skip = true;
        return QN_OK;
    }
    QN_TRY(check_shape(m, t, r->shape, err));
    if (t->fmt->kind == BLK_REFUSED)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": tensor " STR_FMT
                        " is stored as %s, which cannot be converted; known are "
                        "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K",
                STR_ARG(m->g->name), STR_ARG(t->name), t->fmt->name);
    if (layer < 0)
        snprintf(out->module, sizeof out->module, "%s", r->mlx);
    else
        snprintf(out->module, sizeof out->module, "model.layers.%lld.%s", (long long)layer, r->mlx);
    out->is_bias = bias;
    out->minus_one = r->flags & ROW_MINUS1;
    if (r->flags & ROW_PERM)
        out->unpermute_heads = str_eqz(mid, "attn_q") ? m->n_head : m->n_kv;
    return QN_OK;
}

enum qn_status arch_check_complete(const struct arch_model *m, struct qn_err *err)
{
    size_t n_row = 0;
    while (m->def->rows[n_row].gguf)
        n_row++;
    bool *seen = calloc(n_row * (size_t)m->n_layer, sizeof *seen);
    if (!seen)
        QN_FAIL(err, QN_NO_MEMORY, "gguf", "no memory for %zu tensor names", n_row);
    for (size_t i = 0; i < m->g->n_tensor; i++) {
        int64_t layer;
        struct str mid;
        bool bias;
        if (!split_name(m->g->tensor[i].name, &layer, &mid, &bias) || layer >= m->n_layer)
            continue;
        const struct row *r = find_row(m, mid, layer < 0, bias);
        if (r)
            seen[(size_t)(r - m->def->rows) * (size_t)m->n_layer +
                 (size_t)(layer < 0 ? 0 : layer)] = true;
    }
    enum qn_status st = QN_OK;
    for (size_t k = 0; st == QN_OK && k < n_row * (size_t)m->n_layer; k++) {
        const struct row *r = &m->def->rows[k / (size_t)m->n_layer];
        size_t layer = k % (size_t)m->n_layer;
        char at[32] = "";
        if (seen[k] || (r->flags & ROW_OPT) || ((r->flags & ROW_GLOBAL) && layer))
            continue;
        if (!(r->flags & ROW_GLOBAL))
            snprintf(at, sizeof at, "blk.%zu.", layer);
        st = err_set(err, QN_BAD_INPUT, "gguf", STR_FMT ": tensor %s%s.%s is missing",
                     STR_ARG(m->g->name), at, r->gguf, r->flags & ROW_BIAS ? "bias" : "weight");
    }
    free(seen);
    return st;
}
