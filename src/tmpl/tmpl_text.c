/*
 * tmpl_text.c - values to text: Python's str() and repr(), json.dumps as transformers' tojson calls
 * it, and the building of strings in the rendering's arena.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tmpl/tmpl_ast.h"
#include "tmpl/tmpl_ustr.h"

/* Shortest digits that read back equal, laid out as Python's repr does. */
void tv_real_repr(struct buf *out, double d)
{
    char text[40];
    if (isnan(d)) {
        buf_addz(out, "nan");
        return;
    }
    if (isinf(d)) {
        buf_addz(out, d < 0 ? "-inf" : "inf");
        return;
    }
    int prec = 0;
    for (; prec < 17; prec++) {
        snprintf(text, sizeof text, "%.*e", prec, d);
        if (strtod(text, NULL) == d)
            break;
    }
    snprintf(text, sizeof text, "%.*e", prec, d);
    char *exp_at = strchr(text, 'e');
    int exp = exp_at ? atoi(exp_at + 1) : 0;
    if (exp >= -4 && exp < 16) {
        int decimals = prec - exp;
        snprintf(text, sizeof text, "%.*f", decimals > 1 ? decimals : 1, d);
        buf_addz(out, text);
        return;
    }
    *exp_at = 0;
    buf_addf(out, "%se%c%02d", text, exp < 0 ? '-' : '+', abs(exp));
}

static void repr_char(struct buf *out, uint32_t cp, char quote)
{
    if (cp == '\\' || cp == (uint32_t)quote) {
        buf_addc(out, '\\');
        buf_addc(out, (char)cp);
    } else if (cp == '\n' || cp == '\r' || cp == '\t') {
        buf_addz(out, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
    } else if (us_printable(cp)) {
        buf_add_utf8(out, cp);
    } else {
        buf_addf(out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
}

static void repr_str(struct buf *out, struct str s)
{
    bool single = s.n && memchr(s.p, '\'', s.n), dbl = s.n && memchr(s.p, '"', s.n);
    char quote = single && !dbl ? '"' : '\'';
    buf_addc(out, quote);
    for (size_t i = 0; i < s.n;)
        repr_char(out, us_next(s, &i), quote);
    buf_addc(out, quote);
}

static enum qn_status repr_items(struct tenv *e, const struct val *v, struct buf *out)
{
    const struct val *x;
    size_t n;
    QN_TRY(tv_seq(e, v, &x, &n));
    buf_addc(out, v->t == V_LIST ? '[' : '(');
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_addz(out, ", ");
        QN_TRY(tv_repr(e, &x[i], out));
    }
    if (v->t == V_TUPLE && n == 1)
        buf_addc(out, ',');
    buf_addc(out, v->t == V_LIST ? ']' : ')');
    return QN_OK;
}

static enum qn_status repr_dict(struct tenv *e, struct vdict *d, struct buf *out)
{
    QN_TRY(tv_dict_load(e, d));
    buf_addc(out, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            buf_addz(out, ", ");
        QN_TRY(tv_repr(e, &d->e[i].k, out));
        buf_addz(out, ": ");
        QN_TRY(tv_repr(e, &d->e[i].v, out));
    }
    buf_addc(out, '}');
    return QN_OK;
}

static enum qn_status repr_view(struct tenv *e, const struct val *v, struct buf *out)
{
    struct vdict *d = v->m;
    QN_TRY(tv_dict_load(e, d));
    buf_addf(out, "%s([", tv_type_name(v));
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            buf_addz(out, ", ");
        if (v->sub == VIEW_ITEMS)
            buf_addc(out, '(');
        if (v->sub != VIEW_VALUES)
            QN_TRY(tv_repr(e, &d->e[i].k, out));
        if (v->sub == VIEW_ITEMS)
            buf_addz(out, ", ");
        if (v->sub != VIEW_KEYS)
            QN_TRY(tv_repr(e, &d->e[i].v, out));
        if (v->sub == VIEW_ITEMS)
            buf_addc(out, ')');
    }
    buf_addz(out, "])");
    return QN_OK;
}

static enum qn_status repr_range(struct vrange *r, struct buf *out)
{
    buf_addf(out, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1)
        buf_addf(out, ", %lld", (long long)r->step);
    buf_addc(out, ')');
    return QN_OK;
}

static enum qn_status repr_loop(struct tenv *e, struct vloop *l, struct buf *out)
{
    struct val n;
    bool found;
    QN_TRY(te_loop_attr(e, l, STR_LIT("length"), &n, &found));
    buf_addf(out, "<LoopContext %lld/%lld>", (long long)(l->index0 + 1), (long long)n.i);
    return QN_OK;
}

static enum qn_status repr_any(struct tenv *e, const struct val *v, struct buf *out)
{
    enum qn_status s;
    switch (v->t) {
    case V_UNDEF:
        buf_addz(out, "Undefined");
        return QN_OK;
    case V_NONE:
        buf_addz(out, "None");
        return QN_OK;
    case V_BOOL:
        buf_addz(out, v->b ? "True" : "False");
        return QN_OK;
    case V_INT:
        buf_addf(out, "%lld", (long long)v->i);
        return QN_OK;
    case V_BIG:
        buf_add_str(out, v->s);
        return QN_OK;
    case V_REAL:
        tv_real_repr(out, v->d);
        return QN_OK;
    case V_STR:
        if (v->safe)
            buf_addz(out, "Markup(");
        repr_str(out, v->s);
        if (v->safe)
            buf_addc(out, ')');
        return QN_OK;
    case V_LIST:
    case V_TUPLE:
        return repr_items(e, v, out);
    case V_DICT:
        return repr_dict(e, v->m, out);
    case V_NS:
        buf_addz(out, "<Namespace ");
        s = repr_dict(e, v->m, out);
        buf_addc(out, '>');
        return s;
    case V_VIEW:
        return repr_view(e, v, out);
    case V_RANGE:
        return repr_range(v->r, out);
    case V_LOOP:
        return repr_loop(e, v->loop, out);
    case V_MACRO:
        buf_addz(out, "<Macro ");
        if (v->mac->n->kind == S_MACRO)
            repr_str(out, v->mac->n->s);
        else
            buf_addz(out, "anonymous");
        buf_addc(out, '>');
        return QN_OK;
    default:
        buf_addf(out, "<%s object>", tv_type_name(v));
        return QN_OK;
    }
}

enum qn_status tv_repr(struct tenv *e, const struct val *v, struct buf *out)
{
    if (e->depth >= e->depth_max)
        return tv_fail(e, "values are nested too deeply to print");
    e->depth++;
    QN_TRY(tv_step(e, 1));
    QN_TRY(repr_any(e, v, out));
    e->depth--;
    return out->failed ? tv_oom(e) : QN_OK;
}

enum qn_status tv_print(struct tenv *e, const struct val *v, struct buf *out)
{
    if (v->t == V_UNDEF)
        return QN_OK;
    if (v->t != V_STR)
        return tv_repr(e, v, out);
    buf_add_str(out, v->s);
    return out->failed ? tv_oom(e) : QN_OK;
}

enum qn_status tv_to_str(struct tenv *e, const struct val *v, struct str *out)
{
    struct buf b = {.limit = e->bytes_max};
    struct val s;
    if (v->t == V_STR || v->t == V_BIG) {
        *out = v->s;
        return QN_OK;
    }
    enum qn_status st = tv_print(e, v, &b);
    if (st != QN_OK) {
        buf_free(&b);
        return st;
    }
    QN_TRY(tv_str_take(e, &b, &s));
    *out = s.s;
    return QN_OK;
}

enum qn_status tv_str_take(struct tenv *e, struct buf *b, struct val *out)
{
    if (b->failed) {
        buf_free(b);
        return tv_oom(e);
    }
    struct str s = arena_str(e->a, buf_str(b));
    buf_free(b);
    *out = v_str(s);
    return s.p ? QN_OK : tv_oom(e);
}

enum qn_status tv_concat(struct tenv *e, struct str a, struct str b, struct val *out)
{
    size_t n;
    if (a.n == 0 || b.n == 0) {
        *out = v_str(a.n ? a : b);
        if (!out->s.p)
            out->s = STR_LIT("");
        return QN_OK;
    }
    /* a ends where the newest string ends, and there is room: what follows it is unused */
    if (a.p + a.n == e->tail && e->tail_room >= b.n) {
        memmove(e->tail, b.p, b.n);
        e->tail += b.n;
        e->tail_room -= b.n;
        *out = v_str((struct str){a.p, a.n + b.n});
        return QN_OK;
    }
    if (__builtin_add_overflow(a.n, b.n, &n) || n > e->bytes_max)
        return tv_oom(e);
    size_t room = n < 256 ? 0 : n;
    char *p = arena_alloc(e->a, n + room);
    if (!p && room) {
        room = 0;
        p = arena_alloc(e->a, n);
    }
    if (!p)
        return tv_oom(e);
    memcpy(p, a.p, a.n);
    memcpy(p + a.n, b.p, b.n);
    if (room) {
        e->tail = p + n;
        e->tail_room = room;
    }
    *out = v_str((struct str){p, n});
    return QN_OK;
}

void tv_escape(struct buf *out, struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        switch (s.p[i]) {
        case '&':
            buf_addz(out, "&amp;");
            break;
        case '<':
            buf_addz(out, "&lt;");
            break;
        case '>':
            buf_addz(out, "&gt;");
            break;
        case '\'':
            buf_addz(out, "&#39;");
            break;
        case '"':
            buf_addz(out, "&#34;");
            break;
        default:
            buf_addc(out, s.p[i]);
        }
}

/* ---- tojson -------------------------------------------------------------------------------- */

struct json_out {
    struct tenv *e;
    const struct json_style *st;
    struct buf *out;
    int level;
};

static enum qn_status json_any(struct json_out *j, const struct val *v);

static void json_char(struct json_out *j, uint32_t cp)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *hit = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    if (hit) {
        buf_addc(j->out, '\\');
        buf_addc(j->out, to[hit - from]);
    } else if (cp < 0x20 || (j->st->ascii && cp >= 0x7f && cp < 0x10000 && cp != 0x7f)) {
        buf_addf(j->out, "\\u%04x", cp);
    } else if (j->st->ascii && cp >= 0x10000) {
        cp -= 0x10000;
        buf_addf(j->out, "\\u%04x\\u%04x", 0xd800 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
    } else {
        buf_add_utf8(j->out, cp);
    }
}

static void json_text(struct json_out *j, struct str s)
{
    buf_addc(j->out, '"');
    for (size_t i = 0, plain = 0; i <= s.n;) {
        unsigned char c = i < s.n ? (unsigned char)s.p[i] : 0;
        if (i < s.n && c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || !j->st->ascii)) {
            i++;
            continue;
        }
        buf_add(j->out, s.p + plain, i - plain);
        if (i == s.n)
            break;
        json_char(j, us_next(s, &i));
        plain = i;
    }
    buf_addc(j->out, '"');
}

static void json_newline(struct json_out *j)
{
    if (!j->st->has_indent)
        return;
    buf_addc(j->out, '\n');
    for (int i = 0; i < j->level; i++)
        buf_add_str(j->out, j->st->indent);
}

static void json_real_text(struct buf *out, double d)
{
    if (isnan(d))
        buf_addz(out, "NaN");
    else if (isinf(d))
        buf_addz(out, d < 0 ? "-Infinity" : "Infinity");
    else
        tv_real_repr(out, d);
}

static enum qn_status json_list(struct json_out *j, const struct val *v)
{
    const struct val *x;
    size_t n;
    QN_TRY(tv_seq(j->e, v, &x, &n));
    buf_addc(j->out, '[');
    j->level++;
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_add_str(j->out, j->st->item_sep);
        json_newline(j);
        QN_TRY(json_any(j, &x[i]));
    }
    j->level--;
    if (n)
        json_newline(j);
    buf_addc(j->out, ']');
    return QN_OK;
}

static enum qn_status json_key(struct json_out *j, const struct val *k)
{
    if (k->t == V_STR) {
        json_text(j, k->s);
        return QN_OK;
    }
    if (k->t != V_NONE && !v_is_num(k) && k->t != V_BIG)
        return tv_fail(j->e, "keys must be str, int, float, bool or None, not %s", tv_type_name(k));
    buf_addc(j->out, '"');
    QN_TRY(json_any(j, k));
    buf_addc(j->out, '"');
    return QN_OK;
}

static enum qn_status sorted_entries(struct tenv *e, struct vdict *d, const struct vent **out)
{
    struct val *keys = tv_alloc(e, (d->n + 1) * sizeof *keys);
    struct val *order = keys ? tv_alloc(e, (d->n + 1) * sizeof *order) : NULL;
    struct vent *ents = order ? tv_alloc(e, (d->n + 1) * sizeof *ents) : NULL;
    if (!ents)
        return QN_BAD_INPUT;
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].k;
        order[i] = v_int((int64_t)i);
    }
    QN_TRY(tv_sort(e, order, keys, d->n, false));
    for (size_t i = 0; i < d->n; i++)
        ents[i] = d->e[order[i].i];
    *out = ents;
    return QN_OK;
}

static enum qn_status json_dict(struct json_out *j, struct vdict *d)
{
    QN_TRY(tv_dict_load(j->e, d));
    const struct vent *ents = d->e;
    if (j->st->sort)
        QN_TRY(sorted_entries(j->e, d, &ents));
    buf_addc(j->out, '{');
    j->level++;
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            buf_add_str(j->out, j->st->item_sep);
        json_newline(j);
        QN_TRY(json_key(j, &ents[i].k));
        buf_add_str(j->out, j->st->key_sep);
        QN_TRY(json_any(j, &ents[i].v));
    }
    j->level--;
    if (d->n)
        json_newline(j);
    buf_addc(j->out, '}');
    return QN_OK;
}

static enum qn_status json_scalar(struct json_out *j, const struct val *v)
{
    switch (v->t) {
    case V_NONE:
        buf_addz(j->out, "null");
        return QN_OK;
    case V_BOOL:
        buf_addz(j->out, v->b ? "true" : "false");
        return QN_OK;
    case V_INT:
        buf_addf(j->out, "%lld", (long long)v->i);
        return QN_OK;
    case V_BIG:
        buf_add_str(j->out, v->s);
        return QN_OK;
    case V_REAL:
        json_real_text(j->out, v->d);
        return QN_OK;
    case V_STR:
        json_text(j, v->s);
        return QN_OK;
    default:
        return tv_fail(j->e, "Object of type %s is not JSON serializable", tv_type_name(v));
    }
}

static enum qn_status json_any(struct json_out *j, const struct val *v)
{
    struct tenv *e = j->e;
    if (e->depth >= e->depth_max)
        return tv_fail(e, "values are nested too deeply for tojson");
    QN_TRY(tv_step(e, 1));
    e->depth++;
    if (v->t == V_LIST || v->t == V_TUPLE)
        QN_TRY(json_list(j, v));
    else if (v->t == V_DICT)
        QN_TRY(json_dict(j, v->m));
    else
        QN_TRY(json_scalar(j, v));
    e->depth--;
    return j->out->failed ? tv_oom(e) : QN_OK;
}

enum qn_status tv_tojson(struct tenv *e, const struct val *v, const struct json_style *st,
                         struct buf *out)
{
    struct json_out j = {.e = e, .st = st, .out = out};
    return json_any(&j, v);
}
