/*
 * tok_steps.c - reads the normalizer, pre_tokenizer, decoder and post_processor objects of a
 * tokenizer.json into lists of steps. A type or option that would change results and is not known
 * here is refused by its name. Nested Sequences are flattened, at most 8 deep.
 */
#include "tok_int.h"

#include "base/utf8.h"
#include "tok/unicode_data.h"

#define FILE_NAME "tokenizer.json"

enum { SEQ_DEPTH_MAX = 8 };

static enum qn_status refuse(struct qn_err *err, const char *what, struct str type)
{
    return err_set(err, QN_UNSUPPORTED, FILE_NAME, "%s of type \"" STR_FMT "\" is not supported",
                   what, STR_ARG(type));
}

static struct tok_op *add(struct tok_ops *ops, enum tok_op_kind kind, struct qn_err *err)
{
    if (ops->n == TOK_OPS_MAX) {
        err_set(err, QN_UNSUPPORTED, FILE_NAME, "more than %d steps in one pipeline", TOK_OPS_MAX);
        return NULL;
    }
    struct tok_op *op = &ops->v[ops->n++];
    *op = (struct tok_op){.kind = kind, .behavior = SPLIT_ISOLATED, .split = true};
    return op;
}

#define ADD(op, ops, kind)                                                                         \
    struct tok_op *op = add(ops, kind, err);                                                       \
    if (!op)                                                                                       \
    return QN_UNSUPPORTED

static enum qn_status need_str(const struct json *o, const char *key, struct str *out,
                               struct qn_err *err)
{
    const struct json *v = json_get(o, key);
    if (json_type(v) != JSON_STR)
        QN_FAIL(err, QN_BAD_INPUT, FILE_NAME, "%s of a " STR_FMT " is %s; expected a string", key,
                STR_ARG(json_str(json_get(o, "type"))), json_type_name(v));
    *out = json_str(v);
    return QN_OK;
}

/* "pattern": {"String": "..."} or {"Regex": "..."}. */
static enum qn_status pattern(const struct json *o, struct tok_op *op, bool scan,
                              struct qn_err *err)
{
    const struct json *p = json_get(o, "pattern");
    const struct json *s = json_get(p, "String"), *r = json_get(p, "Regex");
    if (json_type(s) == JSON_STR) {
        op->text = json_str(s);
        return QN_OK;
    }
    if (json_type(r) != JSON_STR)
        QN_FAIL(err, QN_BAD_INPUT, FILE_NAME,
                "a pattern must be {\"String\": ...} or {\"Regex\": ...}");
    op->text = json_str(r);
    if (scan && (op->scan = tok_scan_find(op->text)))
        return QN_OK;
    return tok_re_compile(op->text, &op->re, err);
}

/* ---- normalizers ----------------------------------------------------------------------------- */

static enum qn_status normalizer(const struct json *o, struct tok_ops *ops, int depth,
                                 struct qn_err *err);

static enum qn_status list(const struct json *o, const char *key, struct tok_ops *ops, int depth,
                           enum qn_status (*one)(const struct json *, struct tok_ops *, int,
                                                 struct qn_err *),
                           struct qn_err *err)
{
    const struct json *a = json_get(o, key);
    if (json_type(a) != JSON_ARR)
        QN_FAIL(err, QN_BAD_INPUT, FILE_NAME, "a Sequence has no array \"%s\"", key);
    if (depth >= SEQ_DEPTH_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME, "Sequences nested deeper than %d", SEQ_DEPTH_MAX);
    for (size_t i = 0; i < json_len(a); i++)
        QN_TRY(one(json_at(a, i), ops, depth + 1, err));
    return QN_OK;
}

static enum qn_status normalizer(const struct json *o, struct tok_ops *ops, int depth,
                                 struct qn_err *err)
{
    static const struct {
        const char *type;
        enum tok_op_kind kind;
    } plain[] = {{"NFC", OP_NFC},   {"NFD", OP_NFD},         {"NFKC", OP_NFKC},
                 {"NFKD", OP_NFKD}, {"Lowercase", OP_LOWER}, {"ByteLevel", OP_BYTES}};
    struct str type = json_str(json_get(o, "type"));
    if (str_eqz(type, "Sequence"))
        return list(o, "normalizers", ops, depth, normalizer, err);
    for (size_t k = 0; k < sizeof plain / sizeof plain[0]; k++)
        if (str_eqz(type, plain[k].type)) {
            ADD(op, ops, plain[k].kind);
            return QN_OK;
        }
    if (str_eqz(type, "Prepend")) {
        ADD(op, ops, OP_PREPEND);
        return need_str(o, "prepend", &op->text, err);
    }
    if (str_eqz(type, "Replace")) {
        ADD(op, ops, OP_REPLACE);
        QN_TRY(pattern(o, op, false, err));
        return need_str(o, "content", &op->with, err);
    }
    if (str_eqz(type, "Strip")) {
        ADD(op, ops, OP_STRIP);
        QN_TRY(json_opt_bool(o, FILE_NAME, "strip_left", false, &op->left, err));
        return json_opt_bool(o, FILE_NAME, "strip_right", false, &op->right, err);
    }
    return refuse(err, "normalizer", type);
}

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

static enum qn_status behavior(const struct json *o, struct tok_op *op, struct qn_err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    struct str s = json_str(json_get(o, "behavior"));
    if (!json_has(o, "behavior") && op->kind == OP_CLASS)
        return QN_OK; /* Punctuation's default: Isolated */
    for (int k = 0; k < 5; k++)
        if (str_eqz(s, names[k])) {
            op->behavior = (enum tok_behavior)k;
            return QN_OK;
        }
    QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME, "split behavior \"" STR_FMT "\" is not supported",
            STR_ARG(s));
}

static enum qn_status meta_scheme(const struct json *o, enum tok_prepend *out, struct qn_err *err)
{
    struct str s;
    bool space;
    QN_TRY(json_opt_str(o, FILE_NAME, "prepend_scheme", STR_LIT("always"), &s, err));
    QN_TRY(json_opt_bool(o, FILE_NAME, "add_prefix_space", true, &space, err));
    if (str_eqz(s, "never") || !space)
        *out = PREPEND_NEVER;
    else if (str_eqz(s, "first"))
        *out = PREPEND_FIRST;
    else if (str_eqz(s, "always"))
        *out = PREPEND_ALWAYS;
    else
        QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME, "prepend_scheme \"" STR_FMT "\" is not supported",
                STR_ARG(s));
    return QN_OK;
}

static enum qn_status one_char(const struct json *o, const char *key, struct str *text,
                               uint32_t *cp, struct qn_err *err)
{
    size_t i = 0;
    QN_TRY(need_str(o, key, text, err));
    if (text->n)
        *cp = utf8_next(*text, &i);
    if (text->n == 0 || i != text->n)
        QN_FAIL(err, QN_BAD_INPUT, FILE_NAME, "%s \"" STR_FMT "\" is not one character", key,
                STR_ARG(*text));
    return QN_OK;
}

static enum qn_status pre_metaspace(const struct json *o, struct tok_ops *ops, struct qn_err *err)
{
    uint32_t cp;
    ADD(op, ops, OP_METASPACE);
    QN_TRY(one_char(o, "replacement", &op->text, &cp, err));
    QN_TRY(json_opt_bool(o, FILE_NAME, "split", true, &op->split, err));
    return meta_scheme(o, &op->prepend, err);
}

static enum qn_status pre_byte_level(const struct json *o, struct tok_ops *ops, struct qn_err *err)
{
    bool regex;
    ADD(op, ops, OP_BYTE_LEVEL);
    QN_TRY(json_opt_bool(o, FILE_NAME, "add_prefix_space", true, &op->prefix_space, err));
    QN_TRY(json_opt_bool(o, FILE_NAME, "use_regex", true, &regex, err));
    op->scan = regex ? tok_scan_find(str_of(tok_pattern_gpt2)) : NULL;
    ADD(map, ops, OP_BYTES);
    return QN_OK;
}

static enum qn_status pre_class(struct tok_ops *ops, unsigned mask, enum tok_behavior how,
                                struct tok_op **out, struct qn_err *err)
{
    ADD(op, ops, OP_CLASS);
    op->mask = mask;
    op->behavior = how;
    if (out)
        *out = op;
    return QN_OK;
}

static enum qn_status pre_tokenizer(const struct json *o, struct tok_ops *ops, int depth,
                                    struct qn_err *err)
{
    struct str type = json_str(json_get(o, "type"));
    struct tok_op *c;
    if (str_eqz(type, "Sequence"))
        return list(o, "pretokenizers", ops, depth, pre_tokenizer, err);
    if (str_eqz(type, "ByteLevel"))
        return pre_byte_level(o, ops, err);
    if (str_eqz(type, "Metaspace"))
        return pre_metaspace(o, ops, err);
    if (str_eqz(type, "Split")) {
        ADD(op, ops, OP_SPLIT);
        QN_TRY(pattern(o, op, true, err));
        QN_TRY(json_opt_bool(o, FILE_NAME, "invert", false, &op->invert, err));
        return behavior(o, op, err);
    }
    if (str_eqz(type, "Digits")) {
        bool each;
        QN_TRY(json_opt_bool(o, FILE_NAME, "individual_digits", false, &each, err));
        return pre_class(ops, UNI_NUMERIC, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, NULL, err);
    }
    if (str_eqz(type, "Punctuation")) {
        QN_TRY(pre_class(ops, UNI_PUNCT, SPLIT_ISOLATED, &c, err));
        return behavior(o, c, err);
    }
    if (str_eqz(type, "WhitespaceSplit"))
        return pre_class(ops, UNI_WS, SPLIT_REMOVED, NULL, err);
    if (str_eqz(type, "CharDelimiterSplit")) {
        struct str text;
        QN_TRY(pre_class(ops, 0, SPLIT_REMOVED, &c, err));
        return one_char(o, "delimiter", &text, &c->delim, err);
    }
    if (str_eqz(type, "Whitespace")) {
        ADD(op, ops, OP_WORDS);
        return QN_OK;
    }
    return refuse(err, "pre_tokenizer", type);
}

/* ---- decoders -------------------------------------------------------------------------------- */

/* Where the chain stands: tokens one by one, byte runs joined, or one text. */
enum phase { PHASE_TOKENS, PHASE_RUNS, PHASE_TEXT };

struct dec_state {
    struct tok_decoder *d;
    enum phase phase;
};

static enum qn_status dec_strip(const struct json *o, struct dec_state *st, struct qn_err *err)
{
    struct str c;
    uint32_t cp;
    int32_t left, right;
    QN_TRY(one_char(o, "content", &c, &cp, err));
    QN_TRY(json_opt_i32(o, FILE_NAME, "start", 0, 0, INT32_MAX, &left, err));
    QN_TRY(json_opt_i32(o, FILE_NAME, "stop", 0, 0, INT32_MAX, &right, err));
    if (st->phase == PHASE_TEXT) {
        if (st->d->strip.n)
            QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME, "decoder: two Strips of the whole text");
        st->d->strip = c;
        st->d->strip_left = (uint32_t)left;
        st->d->strip_right = (uint32_t)right;
        return QN_OK;
    }
    ADD(op, &st->d->each, OP_STRIP);
    op->text = c;
    op->mask = (unsigned)left;
    op->delim = (uint32_t)right;
    return QN_OK;
}

static enum qn_status dec_one(const struct json *o, struct dec_state *st, struct str type,
                              struct qn_err *err)
{
    struct tok_decoder *d = st->d;
    if (str_eqz(type, "Fuse")) {
        st->phase = PHASE_TEXT;
        return QN_OK;
    }
    if (str_eqz(type, "Strip") && st->phase != PHASE_RUNS)
        return dec_strip(o, st, err);
    if (st->phase != PHASE_TOKENS)
        QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME,
                "decoder " STR_FMT " after ByteFallback, ByteLevel or Fuse is not supported",
                STR_ARG(type));
    if (str_eqz(type, "ByteFallback")) {
        d->last = DEC_FALLBACK;
        st->phase = PHASE_RUNS;
        return QN_OK;
    }
    if (str_eqz(type, "ByteLevel")) {
        d->last = DEC_BYTES;
        st->phase = PHASE_TEXT;
        return QN_OK;
    }
    if (str_eqz(type, "Replace")) {
        ADD(op, &d->each, OP_REPLACE);
        QN_TRY(pattern(o, op, false, err));
        return need_str(o, "content", &op->with, err);
    }
    if (str_eqz(type, "Metaspace") && !d->metaspace) {
        enum tok_prepend scheme;
        ADD(op, &d->each, OP_REPLACE);
        QN_TRY(one_char(o, "replacement", &op->text, &d->meta_char, err));
        op->with = STR_LIT(" ");
        QN_TRY(meta_scheme(o, &scheme, err));
        d->metaspace = scheme != PREPEND_NEVER;
        op->left = d->metaspace; /* marks the step that the first token does otherwise */
        return QN_OK;
    }
    return refuse(err, "decoder", type);
}

static enum qn_status decoder(const struct json *o, struct dec_state *st, int depth,
                              struct qn_err *err)
{
    struct str type = json_str(json_get(o, "type"));
    if (!str_eqz(type, "Sequence"))
        return dec_one(o, st, type, err);
    const struct json *a = json_get(o, "decoders");
    if (json_type(a) != JSON_ARR || depth >= SEQ_DEPTH_MAX)
        QN_FAIL(err, QN_BAD_INPUT, FILE_NAME,
                "decoder: a Sequence needs an array \"decoders\", nested at most %d deep",
                SEQ_DEPTH_MAX);
    for (size_t i = 0; i < json_len(a); i++)
        QN_TRY(decoder(json_at(a, i), st, depth + 1, err));
    return QN_OK;
}

/* ---- post-processors ------------------------------------------------------------------------- */

static enum qn_status add_id(int32_t *v, int *n, const struct json *id, struct qn_err *err)
{
    int64_t i;
    if (!json_i64(id, &i) || i < 0 || i >= TOK_ID_MAX)
        QN_FAIL(err, QN_BAD_INPUT, FILE_NAME, "post_processor: a token id is %s or out of range",
                json_type_name(id));
    if (*n == 8)
        QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME, "post_processor adds more than 8 tokens on a side");
    v[(*n)++] = (int32_t)i;
    return QN_OK;
}

static enum qn_status post_template(const struct json *o, struct tok_steps *s, struct qn_err *err)
{
    const struct json *single = json_get(o, "single"), *tokens = json_get(o, "special_tokens");
    int seen = 0;
    for (size_t i = 0; i < json_len(single); i++) {
        const struct json *piece = json_at(single, i);
        const struct json *seq = json_get(piece, "Sequence");
        if (json_type(seq) == JSON_OBJ) {
            if (!str_eqz(json_str(json_get(seq, "id")), "A"))
                QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME,
                        "post_processor: \"single\" uses a sequence other than A");
            seen++;
            continue;
        }
        struct str name;
        QN_TRY(need_str(json_get(piece, "SpecialToken"), "id", &name, err));
        const struct json *ids = json_get(json_get_str(tokens, name), "ids");
        if (json_type(ids) != JSON_ARR)
            QN_FAIL(err, QN_BAD_INPUT, FILE_NAME,
                    "post_processor: special token \"" STR_FMT "\" has no ids", STR_ARG(name));
        for (size_t k = 0; k < json_len(ids); k++)
            QN_TRY(seen ? add_id(s->after, &s->n_after, json_at(ids, k), err)
                        : add_id(s->before, &s->n_before, json_at(ids, k), err));
    }
    if (seen != 1)
        QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME,
                "post_processor: \"single\" holds sequence A %d times; expected once", seen);
    return QN_OK;
}

static enum qn_status post(const struct json *o, struct tok_steps *s, int depth, struct qn_err *err)
{
    struct str type = json_str(json_get(o, "type"));
    if (str_eqz(type, "ByteLevel"))
        return QN_OK; /* moves offsets only */
    if (str_eqz(type, "Sequence") && depth < SEQ_DEPTH_MAX) {
        const struct json *a = json_get(o, "processors");
        for (size_t i = 0; i < json_len(a); i++)
            QN_TRY(post(json_at(a, i), s, depth + 1, err));
        return QN_OK;
    }
    bool pair = str_eqz(type, "BertProcessing") || str_eqz(type, "RobertaProcessing");
    if ((s->n_before || s->n_after) && (pair || str_eqz(type, "TemplateProcessing")))
        QN_FAIL(err, QN_UNSUPPORTED, FILE_NAME, "post_processor: more than one template");
    if (str_eqz(type, "TemplateProcessing"))
        return post_template(o, s, err);
    if (!pair)
        return refuse(err, "post_processor", type);
    QN_TRY(add_id(s->before, &s->n_before, json_at(json_get(o, "cls"), 1), err));
    return add_id(s->after, &s->n_after, json_at(json_get(o, "sep"), 1), err);
}

enum qn_status tok_steps_parse(const struct json *doc, struct tok_steps *s, struct qn_err *err)
{
    *s = (struct tok_steps){0};
    if (json_has(doc, "normalizer"))
        QN_TRY(normalizer(json_get(doc, "normalizer"), &s->norm, 0, err));
    if (json_has(doc, "pre_tokenizer"))
        QN_TRY(pre_tokenizer(json_get(doc, "pre_tokenizer"), &s->pre, 0, err));
    struct dec_state st = {&s->dec, PHASE_TOKENS};
    if (json_has(doc, "decoder"))
        QN_TRY(decoder(json_get(doc, "decoder"), &st, 0, err));
    else
        s->dec.last = DEC_JOIN_SPACE;
    if (json_has(doc, "post_processor"))
        QN_TRY(post(json_get(doc, "post_processor"), s, 0, err));
    return QN_OK;
}

static void ops_free(struct tok_ops *ops)
{
    for (int i = 0; i < ops->n; i++)
        tok_re_free(ops->v[i].re);
    ops->n = 0;
}

void tok_steps_free(struct tok_steps *s)
{
    ops_free(&s->norm);
    ops_free(&s->pre);
    ops_free(&s->dec.each);
}
