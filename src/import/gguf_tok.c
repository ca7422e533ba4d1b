/*
 * gguf_tok.c - tokenizer files from GGUF metadata; see gguf_tok.h.
 *
 * Token types of the file decide what each token becomes: normal, byte and unknown tokens belong to
 * the vocabulary; control tokens are also added tokens that are special; user-defined tokens are
 * added tokens that are not; unused ids (padding rows of the embedding) are left out.
 */
#include "import/gguf_tok.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/hash.h"
#include "base/json.h"

enum { TOK_NORMAL = 1, TOK_UNKNOWN, TOK_CONTROL, TOK_USER, TOK_UNUSED, TOK_BYTE };

struct vocab {
    const struct gguf *g;
    struct str *tok;            /* [n] */
    struct arena *arena;        /* texts that differ from the file's */
    const struct gguf_kv *type; /* NULL = all normal */
    size_t n;
    int32_t *slot; /* [n_slot] open addressing, -1 = empty */
    size_t n_slot;
    int64_t bos, eos, unk, pad; /* -1 = none */
    bool add_bos, add_eos;
    bool phi; /* Phi-3's SentencePiece vocabulary */
};

/* ---- splitting rules ------------------------------------------------------------------------ */

#define SPLIT(re)                                                                                  \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" re                                             \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define BYTES(use_regex)                                                                           \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_"              \
    "regex\":" use_regex "}"
#define SEQ(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "]}"
#define CONTR     "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL      "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define WORDS(contr, digits)                                                                       \
    contr "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits                                        \
          "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|" TAIL
#define GPT2_RE                                                                                    \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)"
#define UP  "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOW "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define CASED(tail)                                                                                \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UP "*" LOW "+" tail "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UP      \
    "+" LOW "*" tail
#define PUNCT_NL "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|" TAIL
#define DEEPSEEK_WORDS                                                                             \
    "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+"                            \
    "|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*"        \
    "|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true},"
#define NFC    "{\"type\":\"NFC\"}"

struct pre {
    const char *names; /* '|' on both sides of each */
    const char *normalizer, *splits;
    bool ignore_merges; /* a whole word in the vocabulary is taken before merging */
    bool add_bos;       /* when the file does not say */
};

static const struct pre PRE[] = {
    {"|smollm|starcoder|refact|command-r|codeshell|exaone|minerva-7b|", "null",
     SEQ(DIGITS BYTES("true")), false, false},
    {"|gpt-2|phi-2|gigachat|olmo|mpt|trillion|granite-docling|", "null", BYTES("true"), false,
     false},
    {"|llama-bpe|llama3|llama-v3|falcon3|pixtral|lfm2|", "null",
     SEQ(SPLIT(WORDS(CONTR "|", "\\\\p{N}{1,3}")) "," BYTES("false")), true, true},
    {"|dbrx|smaug-bpe|glm4|", "null",
     SEQ(SPLIT(WORDS(CONTR "|", "\\\\p{N}{1,3}")) "," BYTES("false")), false, false},
    {"|qwen2|deepseek-r1-qwen|", NFC, SEQ(SPLIT(WORDS(CONTR "|", "\\\\p{N}")) "," BYTES("false")),
     false, false},
    {"|stablelm2|hunyuan|solar-open|", "null",
     SEQ(SPLIT(WORDS(CONTR "|", "\\\\p{N}")) "," BYTES("false")), false, false},
    {"|minicpm5|", "null",
     SEQ(SPLIT("\\\\p{N}{1,3}") "," SPLIT(WORDS(CONTR "|", "\\\\p{N}+")) "," BYTES("false")), true,
     false},
    {"|deepseek-v3|hunyuan-dense|joyai-llm|", "null",
     SEQ(SPLIT("\\\\p{N}{1,3}") "," SPLIT("[一-龥぀-ゟ゠-ヿ]+") "," SPLIT(
         DEEPSEEK_WORDS) "," BYTES("false")),
     false, false},
    {"|gpt-4o|llama4|kanana2|", "null",
     SEQ(SPLIT(CASED(CONTR "?") "|\\\\p{N}{1,3}" PUNCT_NL) "," BYTES("false")), true, false},
    {"|tekken|", "null", SEQ(SPLIT(CASED("") "|\\\\p{N}" PUNCT_NL) "," BYTES("false")), true, true},
    {"|default|", "null",
     SEQ(SPLIT("[\\\\p{P}\\\\$\\\\+<=>\\\\^~\\\\|]+") "," SPLIT(GPT2_RE) "," SPLIT(
         "\\\\p{N}+") "," SPLIT("[0-9][0-9][0-9]") "," BYTES("false")),
     false, false},
};
#define N_PRE (sizeof PRE / sizeof *PRE)

static enum qn_status find_pre(const struct gguf *g, const struct pre **out, struct qn_err *err)
{
    struct str name;
    char list[400] = "";
    QN_TRY(gguf_str(g, "tokenizer.ggml.pre", STR_LIT("default"), &name, err));
    char want[64] = "";
    if (name.n && name.n < sizeof want - 3)
        snprintf(want, sizeof want, "|" STR_FMT "|", STR_ARG(name));
    for (size_t i = 0, at = 0; i < N_PRE; i++) {
        if (want[0] && strstr(PRE[i].names, want)) {
            *out = &PRE[i];
            return QN_OK;
        }
        if (at < sizeof list)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s", PRE[i].names + (i > 0));
    }
    QN_FAIL(err, QN_UNSUPPORTED, "gguf",
            STR_FMT ": tokenizer.ggml.pre is \"" STR_FMT "\"; known are %s", STR_ARG(g->name),
            STR_ARG(name), list);
}

/* ---- vocabulary -------------------------------------------------------------------------------
 */

static int64_t type_of(const struct vocab *v, size_t id)
{
    return v->type ? gguf_arr_i64(v->type, id) : TOK_NORMAL;
}

/* Id of a token text, or -1. */
static int32_t vocab_find(const struct vocab *v, struct str s)
{
    for (size_t i = hash64(s.p, s.n, 0) & (v->n_slot - 1);; i = (i + 1) & (v->n_slot - 1)) {
        int32_t id = v->slot[i];
        if (id < 0 || str_eq(v->tok[id], s))
            return id;
    }
}

static enum qn_status vocab_index(struct vocab *v, struct qn_err *err)
{
    for (v->n_slot = 16; v->n_slot < v->n * 2; v->n_slot *= 2)
        ;
    v->slot = malloc(v->n_slot * sizeof *v->slot);
    if (!v->slot)
        QN_FAIL(err, QN_NO_MEMORY, "gguf", "no memory for the index of %zu tokens", v->n);
    memset(v->slot, 0xff, v->n_slot * sizeof *v->slot);
    for (size_t id = 0; id < v->n; id++) {
        struct str s = v->tok[id];
        if (type_of(v, id) == TOK_UNUSED)
            continue;
        if (s.n == 0)
            QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": tokenizer.ggml.tokens[%zu] is empty",
                    STR_ARG(v->g->name), id);
        size_t i = hash64(s.p, s.n, 0) & (v->n_slot - 1);
        for (; v->slot[i] >= 0; i = (i + 1) & (v->n_slot - 1))
            if (str_eq(v->tok[v->slot[i]], s))
                QN_FAIL(err, QN_BAD_INPUT, "gguf",
                        STR_FMT ": tokenizer.ggml.tokens[%zu] repeats token %d (" STR_FMT ")",
                        STR_ARG(v->g->name), id, v->slot[i], STR_ARG(s));
        v->slot[i] = (int32_t)id;
    }
    return QN_OK;
}

static enum qn_status read_ids(struct vocab *v, struct qn_err *err)
{
    struct {
        const char *key;
        int64_t *out;
    } id[] = {
        {"tokenizer.ggml.bos_token_id", &v->bos},
        {"tokenizer.ggml.eos_token_id", &v->eos},
        {"tokenizer.ggml.unknown_token_id", &v->unk},
        {"tokenizer.ggml.padding_token_id", &v->pad},
    };
    for (size_t i = 0; i < sizeof id / sizeof *id; i++)
        QN_TRY(gguf_i64(v->g, id[i].key, -1, 0, (int64_t)v->n - 1, id[i].out, err));
    return QN_OK;
}

/* GGUF writes user-defined SentencePiece tokens with plain spaces; the tokenizer's own text, after
 * its normalizer, has U+2581 in their place. */
static enum qn_status respell_spaces(struct vocab *v, struct qn_err *err)
{
    struct buf b = BUF_INIT;
    enum qn_status st = QN_OK;
    v->arena = arena_create(0);
    if (!v->arena)
        QN_FAIL(err, QN_NO_MEMORY, "gguf", "no memory for the vocabulary");
    for (size_t id = 0; st == QN_OK && id < v->n; id++) {
        struct str s = v->tok[id];
        if (type_of(v, id) != TOK_USER || s.n == 0 || !memchr(s.p, ' ', s.n))
            continue;
        buf_clear(&b);
        for (size_t i = 0; i < s.n; i++)
            s.p[i] == ' ' ? buf_addz(&b, "▁") : buf_addc(&b, s.p[i]);
        st = buf_ok(&b, "a token", err);
        v->tok[id] = arena_str(v->arena, buf_str(&b));
        if (st == QN_OK && !v->tok[id].p)
            st = err_set(err, QN_NO_MEMORY, "gguf", "no memory for the vocabulary");
    }
    buf_free(&b);
    return st;
}

static enum qn_status vocab_open(struct vocab *v, const struct gguf *g, int64_t n_vocab, bool spm,
                                 struct qn_err *err)
{
    *v = (struct vocab){.g = g};
    QN_TRY(gguf_strs(g, "tokenizer.ggml.tokens", &v->tok, &v->n, err));
    if (v->n == 0 || v->n > (uint64_t)n_vocab || v->n > INT32_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": %zu tokens, but the embedding has %lld rows",
                STR_ARG(g->name), v->n, (long long)n_vocab);
    v->type = gguf_find(g, "tokenizer.ggml.token_type");
    if (v->type && (!v->type->is_arr || v->type->n != v->n || v->type->type == GGUF_STR ||
                    v->type->type == GGUF_F32 || v->type->type == GGUF_F64))
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tokenizer.ggml.token_type is not an array of %zu integers",
                STR_ARG(g->name), v->n);
    if (spm)
        QN_TRY(respell_spaces(v, err));
    QN_TRY(vocab_index(v, err));
    return read_ids(v, err);
}

static void vocab_close(struct vocab *v)
{
    arena_free(v->arena);
    free(v->tok);
    free(v->slot);
}

/* A key whose value is appended to the text by hand: the writer only learns that it is there. */
static void key_by_hand(struct jw *w, const char *key, char open)
{
    jw_key(w, key);
    jw_raw(w, (struct str){&open, 1});
}

static void write_vocab(const struct vocab *v, struct jw *w)
{
    key_by_hand(w, "vocab", '{');
    bool more = false;
    for (size_t id = 0; id < v->n; id++) {
        if (type_of(v, id) == TOK_UNUSED)
            continue;
        if (more)
            buf_addc(w->out, ',');
        more = true;
        json_w_str(w->out, v->tok[id]);
        buf_addf(w->out, ":%zu", id);
    }
    buf_addc(w->out, '}');
}

/* Phi-3's tokens take the white space behind them, as its own tokenizer does: the file has no key
 * for it, and templates write a line feed behind each. */
static bool takes_space(const struct vocab *v, size_t id)
{
    return v->phi && (int64_t)id != v->unk && (int64_t)id != v->bos &&
           type_of(v, id) != TOK_UNKNOWN && !str_eqz(v->tok[id], "<|endoftext|>");
}

static void write_added(const struct vocab *v, struct jw *w, bool unk_too)
{
    jw_key(w, "added_tokens");
    jw_arr(w);
    for (size_t id = 0; id < v->n; id++) {
        int64_t t = type_of(v, id);
        bool special = t == TOK_CONTROL || (t == TOK_UNKNOWN && unk_too);
        if (!special && t != TOK_USER)
            continue;
        jw_obj(w);
        jw_ki64(w, "id", (int64_t)id);
        jw_kstr(w, "content", v->tok[id]);
        jw_kbool(w, "single_word", false);
        jw_kbool(w, "lstrip", false);
        jw_kbool(w, "rstrip", takes_space(v, id));
        jw_kbool(w, "normalized", false);
        jw_kbool(w, "special", special);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

/* ---- the post-processor: BOS before, EOS after ------------------------------------------------
 */

static void template_item(struct jw *w, const struct vocab *v, int64_t id, const char *seq, int tid)
{
    jw_obj(w);
    jw_key(w, seq ? "Sequence" : "SpecialToken");
    jw_obj(w);
    if (seq)
        jw_kstrz(w, "id", seq);
    else
        jw_kstr(w, "id", v->tok[id]);
    jw_ki64(w, "type_id", tid);
    jw_obj_end(w);
    jw_obj_end(w);
}

static void template_part(struct jw *w, const struct vocab *v, const char *seq, int tid)
{
    if (v->add_bos)
        template_item(w, v, v->bos, NULL, tid);
    template_item(w, v, -1, seq, tid);
    if (v->add_eos)
        template_item(w, v, v->eos, NULL, tid);
}

static void template_token(struct jw *w, const struct vocab *v, int64_t id)
{
    json_w_str(w->out, v->tok[id]);
    buf_addz(w->out, ":{\"id\":");
    json_w_str(w->out, v->tok[id]);
    buf_addf(w->out, ",\"ids\":[%lld],\"tokens\":[", (long long)id);
    json_w_str(w->out, v->tok[id]);
    buf_addz(w->out, "]}");
}

static void write_post(const struct vocab *v, struct jw *w)
{
    jw_key(w, "post_processor");
    if (!v->add_bos && !v->add_eos) {
        jw_null(w);
        return;
    }
    jw_obj(w);
    jw_kstrz(w, "type", "TemplateProcessing");
    jw_key(w, "single");
    jw_arr(w);
    template_part(w, v, "A", 0);
    jw_arr_end(w);
    jw_key(w, "pair");
    jw_arr(w);
    template_part(w, v, "A", 0);
    template_part(w, v, "B", 1);
    jw_arr_end(w);
    key_by_hand(w, "special_tokens", '{');
    if (v->add_bos)
        template_token(w, v, v->bos);
    if (v->add_eos && !(v->add_bos && v->bos == v->eos)) {
        if (v->add_bos)
            buf_addc(w->out, ',');
        template_token(w, v, v->eos);
    }
    buf_addc(w->out, '}');
    jw_obj_end(w);
}

static enum qn_status read_add(struct vocab *v, bool bos_default, struct qn_err *err)
{
    QN_TRY(gguf_bool(v->g, "tokenizer.ggml.add_bos_token", bos_default && v->bos >= 0, &v->add_bos,
                     err));
    QN_TRY(gguf_bool(v->g, "tokenizer.ggml.add_eos_token", false, &v->add_eos, err));
    if ((v->add_bos && v->bos < 0) || (v->add_eos && v->eos < 0))
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tokenizer.ggml.add_%s_token is true, but the token has no id",
                STR_ARG(v->g->name), v->add_bos && v->bos < 0 ? "bos" : "eos");
    return QN_OK;
}

/* ---- byte-level BPE ---------------------------------------------------------------------------
 */

static enum qn_status check_merge(const struct vocab *v, struct str m, size_t i, struct buf *tmp,
                                  struct qn_err *err)
{
    size_t sp = str_find(m, STR_LIT(" "), 1);
    bool ok = m.n > 2 && sp != SIZE_MAX && sp + 1 < m.n && !memchr(m.p + sp + 1, ' ', m.n - sp - 1);
    if (ok) {
        struct str a = {m.p, sp}, b = {m.p + sp + 1, m.n - sp - 1};
        buf_clear(tmp);
        buf_add_str(tmp, a);
        buf_add_str(tmp, b);
        QN_TRY(buf_ok(tmp, "a merge", err));
        ok = vocab_find(v, a) >= 0 && vocab_find(v, b) >= 0 && vocab_find(v, buf_str(tmp)) >= 0;
    }
    if (!ok)
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tokenizer.ggml.merges[%zu] (" STR_FMT
                        ") is not two tokens whose join is "
                        "a token",
                STR_ARG(v->g->name), i, STR_ARG(m));
    return QN_OK;
}

static enum qn_status write_merges_bpe(const struct vocab *v, struct jw *w, struct qn_err *err)
{
    struct str *m;
    size_t n;
    struct buf tmp = BUF_INIT;
    QN_TRY(gguf_strs(v->g, "tokenizer.ggml.merges", &m, &n, err));
    enum qn_status st = QN_OK;
    key_by_hand(w, "merges", '[');
    for (size_t i = 0; st == QN_OK && i < n; i++) {
        st = check_merge(v, m[i], i, &tmp, err);
        if (i)
            buf_addc(w->out, ',');
        json_w_str(w->out, m[i]);
    }
    buf_addc(w->out, ']');
    buf_free(&tmp);
    free(m);
    return st;
}

static void write_model_head(struct jw *w, const char *unk, bool spm, bool ignore_merges)
{
    jw_key(w, "model");
    jw_obj(w);
    jw_kstrz(w, "type", "BPE");
    jw_knull(w, "dropout");
    if (unk)
        jw_kstrz(w, "unk_token", unk);
    jw_knull(w, "continuing_subword_prefix");
    jw_knull(w, "end_of_word_suffix");
    jw_kbool(w, "fuse_unk", spm);
    jw_kbool(w, "byte_fallback", spm);
    jw_kbool(w, "ignore_merges", ignore_merges);
}

static void write_head(const struct vocab *v, struct jw *w, bool spm)
{
    jw_obj(w);
    jw_kstrz(w, "version", "1.0");
    jw_knull(w, "truncation");
    jw_knull(w, "padding");
    write_added(v, w, spm);
}

static enum qn_status write_bpe(struct vocab *v, struct buf *out, struct qn_err *err)
{
    struct jw w;
    const struct pre *pre = NULL;
    QN_TRY(find_pre(v->g, &pre, err));
    QN_TRY(read_add(v, pre->add_bos, err));
    jw_init(&w, out);
    write_head(v, &w, false);
    jw_key(&w, "normalizer");
    jw_raw(&w, str_of(pre->normalizer));
    jw_key(&w, "pre_tokenizer");
    jw_raw(&w, str_of(pre->splits));
    write_post(v, &w);
    jw_key(&w, "decoder");
    jw_raw(&w, STR_LIT("{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
                       "\"use_regex\":true}"));
    write_model_head(&w, NULL, false, pre->ignore_merges);
    jw_knull(&w, "unk_token");
    write_vocab(v, &w);
    QN_TRY(write_merges_bpe(v, &w, err));
    jw_obj_end(&w);
    jw_obj_end(&w);
    return QN_OK;
}

/* ---- SentencePiece BPE: merges from scores -----------------------------------------------------
 */

struct merge {
    float score; /* of the joined piece */
    int32_t l, r;
    uint32_t len_l, len_r; /* in code points */
    uint32_t seq;
};

struct merges {
    struct merge *v;
    size_t n, cap;
};

/* Best first: higher score, then longer left, longer right part; ties stay in vocabulary order. */
static int cmp_merge(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->len_l != y->len_l)
        return x->len_l > y->len_l ? -1 : 1;
    if (x->len_r != y->len_r)
        return x->len_r > y->len_r ? -1 : 1;
    return (x->seq > y->seq) - (x->seq < y->seq);
}

/* Within one piece: by the ids of the parts. */
static int cmp_parts(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->l != y->l)
        return x->l < y->l ? -1 : 1;
    return (x->r > y->r) - (x->r < y->r);
}

static bool merges_add(struct merges *m, struct merge e)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 4096;
        struct merge *p = reallocarray(m->v, cap, sizeof *p);
        if (!p)
            return false;
        m->v = p;
        m->cap = cap;
    }
    m->v[m->n++] = e;
    return true;
}

static bool is_cont(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Every way to cut a piece into two pieces of the vocabulary. */
static bool split_piece(const struct vocab *v, struct str s, float score, struct merges *out)
{
    size_t first = out->n;
    uint32_t total = 0, left = 0;
    for (size_t i = 0; i < s.n; i++)
        total += !is_cont(s.p[i]);
    for (size_t i = 1; i < s.n; i++) {
        if (is_cont(s.p[i]))
            continue;
        left++;
        int32_t l = vocab_find(v, (struct str){s.p, i});
        int32_t r = l < 0 ? -1 : vocab_find(v, (struct str){s.p + i, s.n - i});
        if (r >= 0 && !merges_add(out, (struct merge){score, l, r, left, total - left, 0}))
            return false;
    }
    if (out->n - first > 1)
        qsort(out->v + first, out->n - first, sizeof *out->v, cmp_parts);
    return true;
}

#define PIECE_MAX 4096 /* bytes; cutting costs the square of a piece's length */

static enum qn_status spm_merges(const struct vocab *v, struct merges *out, struct qn_err *err)
{
    const struct gguf_kv *sc = gguf_find(v->g, "tokenizer.ggml.scores");
    if (!sc || !sc->is_arr || sc->type != GGUF_F32 || sc->n != v->n)
        QN_FAIL(err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tokenizer.ggml.scores is not an array of %zu float32",
                STR_ARG(v->g->name), v->n);
    for (size_t id = 0; id < v->n; id++) {
        float score = gguf_arr_f32(sc, id);
        if (score != score || v->tok[id].n > PIECE_MAX)
            QN_FAIL(err, QN_BAD_INPUT, "gguf",
                    STR_FMT ": token %zu: the score is not a number, or the piece has more than %d "
                            "bytes",
                    STR_ARG(v->g->name), id, PIECE_MAX);
        int64_t t = type_of(v, id);
        if (t == TOK_UNUSED || t == TOK_BYTE || t == TOK_CONTROL || t == TOK_UNKNOWN)
            continue;
        /* a user-defined piece has score 0 in the original model (GGUF writes -1000): it is best */
        if (!split_piece(v, v->tok[id], t == TOK_USER ? 0 : score, out))
            QN_FAIL(err, QN_NO_MEMORY, "gguf", "no memory for the merges of %zu tokens", v->n);
    }
    for (size_t i = 0; i < out->n; i++)
        out->v[i].seq = (uint32_t)i;
    if (out->n)
        qsort(out->v, out->n, sizeof *out->v, cmp_merge);
    return QN_OK;
}

static enum qn_status write_merges_spm(const struct vocab *v, struct jw *w, struct qn_err *err)
{
    struct merges m = {0};
    enum qn_status st = spm_merges(v, &m, err);
    key_by_hand(w, "merges", '[');
    for (size_t i = 0; st == QN_OK && i < m.n; i++) {
        buf_addz(w->out, i ? ",[" : "[");
        json_w_str(w->out, v->tok[m.v[i].l]);
        buf_addc(w->out, ',');
        json_w_str(w->out, v->tok[m.v[i].r]);
        buf_addc(w->out, ']');
    }
    buf_addc(w->out, ']');
    free(m.v);
    return st;
}

static enum qn_status refuse_unless(const struct gguf *g, const char *key, bool want, bool def,
                                    struct qn_err *err)
{
    bool v;
    QN_TRY(gguf_bool(g, key, def, &v, err));
    if (v != want)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf", STR_FMT ": %s is %s, which is not supported",
                STR_ARG(g->name), key, v ? "true" : "false");
    return QN_OK;
}

static enum qn_status write_spm(struct vocab *v, struct buf *out, struct qn_err *err)
{
    struct jw w;
    struct str arch;
    bool prefix;
    QN_TRY(gguf_str(v->g, "general.architecture", STR_LIT(""), &arch, err));
    v->phi = str_eqz(arch, "phi3");
    QN_TRY(read_add(v, true, err));
    QN_TRY(gguf_bool(v->g, "tokenizer.ggml.add_space_prefix", true, &prefix, err));
    QN_TRY(refuse_unless(v->g, "tokenizer.ggml.remove_extra_whitespaces", false, false, err));
    if (gguf_find(v->g, "tokenizer.ggml.precompiled_charsmap"))
        QN_FAIL(err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": tokenizer.ggml.precompiled_charsmap is not supported",
                STR_ARG(v->g->name));
    jw_init(&w, out);
    write_head(v, &w, true);
    jw_key(&w, "normalizer");
    jw_raw(&w, prefix ? STR_LIT("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
                                "\"prepend\":\"▁\"},{\"type\":\"Replace\",\"pattern\":{\"String\":"
                                "\" \"},\"content\":\"▁\"}]}")
                      : STR_LIT("{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                                "\"content\":\"▁\"}"));
    /* After the normalizer no space is left, so this split never cuts; it is what official files
     * of the family carry. */
    jw_key(&w, "pre_tokenizer");
    jw_raw(&w, prefix ? STR_LIT("null")
                      : STR_LIT("{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":"
                                "\"MergedWithPrevious\",\"invert\":false}"));
    write_post(v, &w);
    jw_key(&w, "decoder");
    jw_raw(&w, prefix ? STR_LIT("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                                "\"pattern\":{\"String\":\"▁\"},\"content\":\" \"},{\"type\":"
                                "\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
                                "\"content\":\" \",\"start\":1,\"stop\":0}]}")
                      : STR_LIT("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
                                "\"pattern\":{\"String\":\"▁\"},\"content\":\" \"},{\"type\":"
                                "\"ByteFallback\"},{\"type\":\"Fuse\"}]}"));
    write_model_head(&w, NULL, true, false);
    if (v->unk >= 0)
        jw_kstr(&w, "unk_token", v->tok[v->unk]);
    else
        jw_knull(&w, "unk_token");
    write_vocab(v, &w);
    QN_TRY(write_merges_spm(v, &w, err));
    jw_obj_end(&w);
    jw_obj_end(&w);
    return QN_OK;
}

/* ---- tokenizer_config.json ----------------------------------------------------------------------
 */

static void named(const struct vocab *v, struct jw *w, const char *key, int64_t id)
{
    if (id >= 0)
        jw_kstr(w, key, v->tok[id]);
    else
        jw_knull(w, key);
}

static enum qn_status write_config(const struct vocab *v, int64_t n_ctx, struct buf *out,
                                   struct qn_err *err)
{
    struct jw w;
    struct str tmpl;
    QN_TRY(gguf_str(v->g, "tokenizer.chat_template", STR_LIT(""), &tmpl, err));
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    jw_kbool(&w, "add_bos_token", v->add_bos);
    jw_kbool(&w, "add_eos_token", v->add_eos);
    named(v, &w, "bos_token", v->bos);
    named(v, &w, "eos_token", v->eos);
    named(v, &w, "unk_token", v->unk);
    named(v, &w, "pad_token", v->pad);
    jw_ki64(&w, "model_max_length", n_ctx);
    jw_kbool(&w, "clean_up_tokenization_spaces", false);
    if (tmpl.n)
        jw_kstr(&w, "chat_template", tmpl);
    jw_obj_end(&w);
    buf_addc(out, '\n');
    return buf_ok(out, "tokenizer_config.json", err);
}

enum qn_status gguf_tok_write(const struct gguf *g, int64_t n_vocab, int64_t n_ctx,
                              struct buf *tokenizer, struct buf *config, struct qn_err *err)
{
    struct vocab v = {0};
    struct str model;
    enum qn_status st = gguf_str(g, "tokenizer.ggml.model", STR_LIT(""), &model, err);
    if (st == QN_OK)
        st = vocab_open(&v, g, n_vocab, str_eqz(model, "llama"), err);
    if (st == QN_OK && str_eqz(model, "gpt2"))
        st = write_bpe(&v, tokenizer, err);
    else if (st == QN_OK && str_eqz(model, "llama"))
        st = write_spm(&v, tokenizer, err);
    else if (st == QN_OK)
        st = err_set(err, QN_UNSUPPORTED, "gguf",
                     STR_FMT ": tokenizer.ggml.model is \"" STR_FMT "\"; known are gpt2 and llama",
                     STR_ARG(g->name), STR_ARG(model));
    if (st == QN_OK)
        st = buf_ok(tokenizer, "tokenizer.json", err);
    if (st == QN_OK)
        st = write_config(&v, n_ctx, config, err);
    vocab_close(&v);
    return st;
}
