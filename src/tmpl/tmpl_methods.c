/*
 * tmpl_methods.c - the methods of str, list, tuple and dict that a sandboxed template may call.
 * Positions are code points. Methods of marked-up strings give marked-up strings.
 */
#include "tmpl/tmpl_value.h"
#include "tmpl/tmpl_ustr.h"

#define METHOD(name)                                                                               \
    static enum qn_status name(struct tenv *e, const struct val *a, const struct targs *raw,       \
                               struct val *out)

static bool given(const struct val *v)
{
    return v->t != V_MISSING && v->t != V_NONE;
}

static enum qn_status need_str(struct tenv *e, const struct val *v, const char *what)
{
    if (v->t == V_STR)
        return QN_OK;
    if (v->t == V_UNDEF)
        return tv_fail_undef(e, v);
    return tv_fail(e, "%s must be a string, not %s", what, tv_type_name(v));
}

static enum qn_status opt_int(struct tenv *e, const struct val *v, int64_t def, int64_t *out)
{
    *out = def;
    if (!given(v))
        return QN_OK;
    if (!v_is_int(v))
        return tv_fail(e, "'%s' object cannot be interpreted as an integer", tv_type_name(v));
    *out = v_as_int(v);
    return QN_OK;
}

static struct val like(const struct val *self, struct str s)
{
    struct val v = v_str(s);
    v.safe = self->safe;
    return v;
}

static enum qn_status take_like(struct tenv *e, const struct val *self, struct buf *b,
                                struct val *out)
{
    QN_TRY(tv_str_take(e, b, out));
    out->safe = self->safe;
    return QN_OK;
}

/* ---- case ---------------------------------------------------------------------------------- */

static enum qn_status convert(struct tenv *e, const struct val *a, enum us_case how,
                              struct val *out)
{
    struct buf b = {.limit = e->bytes_max};
    us_convert(&b, a[0].s, how);
    return take_like(e, a, &b, out);
}

METHOD(s_upper)
{
    return convert(e, a, US_UPPER, out);
}
METHOD(s_lower)
{
    return convert(e, a, US_LOWER, out);
}
METHOD(s_title)
{
    return convert(e, a, US_TITLE, out);
}
METHOD(s_capitalize)
{
    return convert(e, a, US_CAPITALIZE, out);
}
METHOD(s_swapcase)
{
    return convert(e, a, US_SWAP, out);
}
METHOD(s_casefold)
{
    return convert(e, a, US_FOLD, out);
}

/* ---- strip, affixes ------------------------------------------------------------------------ */

static enum qn_status strip(struct tenv *e, const struct val *a, int sides, struct val *out)
{
    struct str chars = {0};
    if (given(&a[1])) {
        QN_TRY(need_str(e, &a[1], "strip arg"));
        chars = a[1].s.p ? a[1].s : STR_LIT("");
    }
    *out = like(a, us_strip(a[0].s, chars, sides));
    return QN_OK;
}

METHOD(s_strip)
{
    return strip(e, a, 3, out);
}
METHOD(s_lstrip)
{
    return strip(e, a, 1, out);
}
METHOD(s_rstrip)
{
    return strip(e, a, 2, out);
}

METHOD(s_removeprefix)
{
    QN_TRY(need_str(e, &a[1], "removeprefix() argument"));
    struct str s = a[0].s;
    if (str_starts(s, a[1].s))
        s = (struct str){s.p + a[1].s.n, s.n - a[1].s.n};
    *out = like(a, s);
    return QN_OK;
}

METHOD(s_removesuffix)
{
    QN_TRY(need_str(e, &a[1], "removesuffix() argument"));
    struct str s = a[0].s;
    if (a[1].s.n && str_ends(s, a[1].s))
        s.n -= a[1].s.n;
    *out = like(a, s);
    return QN_OK;
}

/* s[start:end] by code points; *ok = false when start is past the end. */
static enum qn_status window(struct tenv *e, const struct val *a, struct str *out, int64_t *start,
                             bool *ok)
{
    int64_t n = (int64_t)us_len(a[0].s), end;
    QN_TRY(opt_int(e, &a[2], 0, start));
    QN_TRY(opt_int(e, &a[3], n, &end));
    *start = *start < 0 ? (*start + n < 0 ? 0 : *start + n) : *start;
    end = end < 0 ? (end + n < 0 ? 0 : end + n) : end > n ? n : end;
    *ok = *start <= n && *start <= end;
    *out = (struct str){a[0].s.p, 0};
    if (!*ok)
        return QN_OK;
    size_t from = us_off(a[0].s, (size_t)*start), to = us_off(a[0].s, (size_t)end);
    *out = (struct str){a[0].s.p + from, to - from};
    return QN_OK;
}

static enum qn_status affix(struct tenv *e, const struct val *a, bool start, struct val *out)
{
    struct str s;
    int64_t from;
    bool ok, hit = false;
    const struct val *list = &a[1];
    size_t n = 1;
    QN_TRY(window(e, a, &s, &from, &ok));
    if (a[1].t == V_TUPLE)
        QN_TRY(tv_seq(e, &a[1], &list, &n));
    else if (a[1].t != V_STR && a[1].t != V_UNDEF)
        return tv_fail(e, "%s first arg must be str or a tuple of str, not %s",
                       start ? "startswith" : "endswith", tv_type_name(&a[1]));
    for (size_t i = 0; i < n && !hit; i++) {
        QN_TRY(need_str(e, &list[i], start ? "startswith arg" : "endswith arg"));
        hit = ok && (start ? str_starts(s, list[i].s) : str_ends(s, list[i].s));
    }
    *out = v_bool(hit);
    return QN_OK;
}

METHOD(s_startswith)
{
    return affix(e, a, true, out);
}
METHOD(s_endswith)
{
    return affix(e, a, false, out);
}

/* ---- searching ----------------------------------------------------------------------------- */

static size_t rfind(struct str s, struct str sub)
{
    if (sub.n > s.n)
        return (size_t)-1;
    for (size_t i = s.n - sub.n + 1; i-- > 0;)
        if (sub.n == 0 || memcmp(s.p + i, sub.p, sub.n) == 0)
            return i;
    return (size_t)-1;
}

static enum qn_status find(struct tenv *e, const struct val *a, bool last, int64_t *at)
{
    struct str s;
    int64_t from;
    bool ok;
    QN_TRY(need_str(e, &a[1], "substring"));
    QN_TRY(window(e, a, &s, &from, &ok));
    QN_TRY(tv_step(e, (int64_t)(s.n / 64)));
    *at = -1;
    if (!ok)
        return QN_OK;
    size_t hit = last ? rfind(s, a[1].s) : str_find(s, a[1].s, 0);
    if (hit != (size_t)-1)
        *at = from + (int64_t)us_len((struct str){s.p, hit});
    return QN_OK;
}

static enum qn_status find_int(struct tenv *e, const struct val *a, bool last, bool must,
                               struct val *out)
{
    int64_t at;
    QN_TRY(find(e, a, last, &at));
    if (must && at < 0)
        return tv_fail(e, "substring not found");
    *out = v_int(at);
    return QN_OK;
}

METHOD(s_find)
{
    return find_int(e, a, false, false, out);
}
METHOD(s_rfind)
{
    return find_int(e, a, true, false, out);
}
METHOD(s_index)
{
    return find_int(e, a, false, true, out);
}
METHOD(s_rindex)
{
    return find_int(e, a, true, true, out);
}

METHOD(s_count)
{
    struct str s;
    int64_t from, n = 0;
    bool ok;
    QN_TRY(need_str(e, &a[1], "substring"));
    QN_TRY(window(e, a, &s, &from, &ok));
    if (ok && a[1].s.n == 0)
        n = (int64_t)us_len(s) + 1;
    else if (ok)
        for (size_t i = 0; (i = str_find(s, a[1].s, i)) != (size_t)-1; i += a[1].s.n)
            n++;
    *out = v_int(n);
    return QN_OK;
}

/* ---- split and join ------------------------------------------------------------------------ */

struct splitter {
    struct tenv *e;
    const struct val *self;
    struct vlist *list;
    int64_t left;
};

static enum qn_status piece(struct splitter *sp, const char *from, const char *to)
{
    QN_TRY(tv_step(sp->e, 1));
    return tv_list_add(sp->e, sp->list, like(sp->self, (struct str){from, (size_t)(to - from)}));
}

static enum qn_status split_space(struct splitter *sp, struct str s)
{
    for (;;) {
        s = us_strip(s, (struct str){0}, 1);
        if (s.n == 0)
            return QN_OK;
        if (sp->left-- == 0) {
            s = us_strip(s, (struct str){0}, 2);
            return piece(sp, s.p, s.p + s.n);
        }
        size_t i = 0, j = 0;
        while (i < s.n && !us_space(us_next(s, &j)))
            i = j;
        QN_TRY(piece(sp, s.p, s.p + i));
        s = (struct str){s.p + i, s.n - i};
    }
}

static enum qn_status split_sep(struct splitter *sp, struct str s, struct str sep)
{
    size_t i = 0, hit;
    while (sp->left-- != 0 && (hit = str_find(s, sep, i)) != (size_t)-1) {
        QN_TRY(piece(sp, s.p + i, s.p + hit));
        i = hit + sep.n;
    }
    return piece(sp, s.p + i, s.p + s.n);
}

static enum qn_status rsplit_space(struct splitter *sp, struct str s)
{
    for (;;) {
        s = us_strip(s, (struct str){0}, 2);
        if (s.n == 0)
            return QN_OK;
        if (sp->left-- == 0) {
            s = us_strip(s, (struct str){0}, 1);
            return piece(sp, s.p, s.p + s.n);
        }
        size_t i = s.n, j = s.n;
        while (i && !us_space(us_prev(s, &j)))
            i = j;
        QN_TRY(piece(sp, s.p + i, s.p + s.n));
        s.n = i;
    }
}

static enum qn_status rsplit_sep(struct splitter *sp, struct str s, struct str sep)
{
    size_t hit;
    while (sp->left-- != 0 && (hit = rfind(s, sep)) != (size_t)-1) {
        QN_TRY(piece(sp, s.p + hit + sep.n, s.p + s.n));
        s.n = hit;
    }
    return piece(sp, s.p, s.p + s.n);
}

static void reverse(struct vlist *l)
{
    for (size_t i = 0, j = l->n; i + 1 < j; i++) {
        struct val t = l->v[i];
        l->v[i] = l->v[--j];
        l->v[j] = t;
    }
}

static enum qn_status split(struct tenv *e, const struct val *a, bool right, struct val *out)
{
    struct splitter sp = {.e = e, .self = a};
    QN_TRY(opt_int(e, &a[2], -1, &sp.left));
    QN_TRY(tv_list_new(e, V_LIST, 0, out));
    QN_TRY(tv_step(e, (int64_t)(a[0].s.n / 64)));
    sp.list = out->l;
    if (!given(&a[1])) {
        QN_TRY(right ? rsplit_space(&sp, a[0].s) : split_space(&sp, a[0].s));
    } else {
        QN_TRY(need_str(e, &a[1], "separator"));
        if (a[1].s.n == 0)
            return tv_fail(e, "empty separator");
        QN_TRY(right ? rsplit_sep(&sp, a[0].s, a[1].s) : split_sep(&sp, a[0].s, a[1].s));
    }
    if (right)
        reverse(out->l);
    return QN_OK;
}

METHOD(s_split)
{
    return split(e, a, false, out);
}
METHOD(s_rsplit)
{
    return split(e, a, true, out);
}

METHOD(s_splitlines)
{
    struct splitter sp = {.e = e, .self = a};
    struct str s = a[0].s;
    bool keep = false;
    if (given(&a[1]))
        QN_TRY(tv_truth(e, &a[1], &keep));
    QN_TRY(tv_list_new(e, V_LIST, 0, out));
    sp.list = out->l;
    size_t start = 0;
    for (size_t i = 0; i < s.n;) {
        size_t at = i;
        uint32_t cp = us_next(s, &i);
        if (!us_linebreak(cp))
            continue;
        if (cp == '\r' && i < s.n && s.p[i] == '\n')
            i++;
        QN_TRY(piece(&sp, s.p + start, s.p + (keep ? i : at)));
        start = i;
    }
    return start < s.n ? piece(&sp, s.p + start, s.p + s.n) : QN_OK;
}

static enum qn_status partition(struct tenv *e, const struct val *a, bool right, struct val *out)
{
    struct str s = a[0].s, empty = STR_LIT("");
    QN_TRY(need_str(e, &a[1], "separator"));
    if (a[1].s.n == 0)
        return tv_fail(e, "empty separator");
    size_t hit = right ? rfind(s, a[1].s) : str_find(s, a[1].s, 0);
    QN_TRY(tv_list_new(e, V_TUPLE, 3, out));
    struct vlist *l = out->l;
    if (hit == (size_t)-1) {
        l->v[0] = like(a, right ? empty : s);
        l->v[1] = like(a, empty);
        l->v[2] = like(a, right ? s : empty);
    } else {
        l->v[0] = like(a, (struct str){s.p, hit});
        l->v[1] = like(a, a[1].s);
        l->v[2] = like(a, (struct str){s.p + hit + a[1].s.n, s.n - hit - a[1].s.n});
    }
    l->n = 3;
    return QN_OK;
}

METHOD(s_partition)
{
    return partition(e, a, false, out);
}
METHOD(s_rpartition)
{
    return partition(e, a, true, out);
}

static enum qn_status join_into(struct tenv *e, const struct val *a, struct viter *it,
                                struct buf *b)
{
    struct val x;
    bool got;
    for (int64_t i = 0;; i++) {
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            return QN_OK;
        if (x.t != V_STR && !a[0].safe)
            return tv_fail(e, "sequence item %lld: expected str instance, %s found", (long long)i,
                           tv_type_name(&x));
        if (i)
            buf_add_str(b, a[0].s);
        struct str s;
        QN_TRY(tv_to_str(e, &x, &s));
        if (a[0].safe && !x.safe)
            tv_escape(b, s);
        else
            buf_add_str(b, s);
        if (b->failed)
            return tv_oom(e);
    }
}

METHOD(s_join)
{
    struct buf b = {.limit = e->bytes_max};
    struct viter *it;
    QN_TRY(tv_iter(e, &a[1], &it));
    enum qn_status s = join_into(e, a, it, &b);
    if (s != QN_OK) {
        buf_free(&b);
        return s;
    }
    return take_like(e, a, &b, out);
}

/* ---- replace, padding ---------------------------------------------------------------------- */

/* With an empty `old`, `with` goes before every character and at the end. */
static void replace_empty(struct buf *b, struct str s, struct str with, int64_t left)
{
    size_t i = 0;
    while (left-- != 0) {
        size_t at = i;
        buf_add_str(b, with);
        if (i >= s.n || b->failed)
            break;
        us_next(s, &i);
        buf_add(b, s.p + at, i - at);
    }
    if (i < s.n)
        buf_add(b, s.p + i, s.n - i);
}

METHOD(s_replace)
{
    struct buf b = {.limit = e->bytes_max};
    struct str s = a[0].s, old = a[1].s;
    int64_t left;
    QN_TRY(need_str(e, &a[1], "replace() argument 1"));
    QN_TRY(need_str(e, &a[2], "replace() argument 2"));
    QN_TRY(opt_int(e, &a[3], -1, &left));
    QN_TRY(tv_step(e, (int64_t)(s.n / 64)));
    if (a[0].safe && !a[2].safe)
        return tv_fail(e, "replace() on a string marked as safe is not supported");
    if (old.n == 0) {
        replace_empty(&b, s, a[2].s, left);
        return take_like(e, a, &b, out);
    }
    size_t i = 0, hit;
    while (left-- != 0 && (hit = str_find(s, old, i)) != (size_t)-1) {
        buf_add(&b, s.p + i, hit - i);
        buf_add_str(&b, a[2].s);
        i = hit + old.n;
        if (b.failed)
            break;
    }
    buf_add(&b, s.p + i, s.n - i);
    return take_like(e, a, &b, out);
}

static enum qn_status pad(struct tenv *e, const struct val *a, char side, struct val *out)
{
    int64_t width, len = (int64_t)us_len(a[0].s);
    struct str fill = STR_LIT(" ");
    struct buf b = {.limit = e->bytes_max};
    QN_TRY(opt_int(e, &a[1], 0, &width));
    if (given(&a[2])) {
        QN_TRY(need_str(e, &a[2], "the fill character"));
        fill = a[2].s;
        if (us_len(fill) != 1)
            return tv_fail(e, "The fill character must be exactly one character long");
    }
    int64_t room = width > len ? width - len : 0;
    if ((uint64_t)room > e->bytes_max)
        return tv_oom(e);
    /* as CPython centres: the odd one goes left when the width is odd */
    int64_t left = side == 'c' ? room / 2 + (room & width & 1) : side == 'r' ? room : 0;
    for (int64_t i = 0; i < left; i++)
        buf_add_str(&b, fill);
    buf_add_str(&b, a[0].s);
    for (int64_t i = left; i < room; i++)
        buf_add_str(&b, fill);
    return take_like(e, a, &b, out);
}

METHOD(s_center)
{
    return pad(e, a, 'c', out);
}
METHOD(s_ljust)
{
    return pad(e, a, 'l', out);
}
METHOD(s_rjust)
{
    return pad(e, a, 'r', out);
}

METHOD(s_zfill)
{
    int64_t width, len = (int64_t)us_len(a[0].s);
    struct buf b = {.limit = e->bytes_max};
    struct str s = a[0].s;
    QN_TRY(opt_int(e, &a[1], 0, &width));
    if (width > len && (uint64_t)(width - len) > e->bytes_max)
        return tv_oom(e);
    if (s.n && (s.p[0] == '-' || s.p[0] == '+') && width > len) {
        buf_addc(&b, s.p[0]);
        s = (struct str){s.p + 1, s.n - 1};
    }
    for (; len < width; len++)
        buf_addc(&b, '0');
    buf_add_str(&b, s);
    return take_like(e, a, &b, out);
}

METHOD(s_expandtabs)
{
    int64_t size, col = 0;
    struct buf b = {.limit = e->bytes_max};
    struct str s = a[0].s;
    QN_TRY(opt_int(e, &a[1], 8, &size));
    if (size > 4096)
        return tv_fail(e, "expandtabs() takes at most 4096");
    for (size_t i = 0; i < s.n && !b.failed;) {
        size_t at = i;
        uint32_t cp = us_next(s, &i);
        int64_t n = cp == '\t' && size > 0 ? size - col % size : 0;
        for (int64_t k = 0; k < n; k++)
            buf_addc(&b, ' ');
        if (cp != '\t')
            buf_add(&b, s.p + at, i - at);
        col = cp == '\n' || cp == '\r' ? 0 : col + n + (cp != '\t');
    }
    return take_like(e, a, &b, out);
}

METHOD(s_format)
{
    struct buf b = {.limit = e->bytes_max};
    if (a[0].safe)
        return tv_fail(e, "formatting a string marked as safe is not supported");
    enum qn_status s = tv_format(e, a[0].s, raw, &b);
    if (s != QN_OK) {
        buf_free(&b);
        return s;
    }
    return tv_str_take(e, &b, out);
}

/* ---- classes ------------------------------------------------------------------------------- */

static enum qn_status all(const struct val *a, bool (*is)(uint32_t), struct val *out)
{
    bool ok = a[0].s.n > 0;
    for (size_t i = 0; i < a[0].s.n && ok;)
        ok = is(us_next(a[0].s, &i));
    *out = v_bool(ok);
    return QN_OK;
}

static bool alnum(uint32_t cp)
{
    return us_alpha(cp) || us_numeric(cp);
}

METHOD(s_isalpha)
{
    return all(a, us_alpha, out);
}
METHOD(s_isalnum)
{
    return all(a, alnum, out);
}
METHOD(s_isdecimal)
{
    return all(a, us_decimal, out);
}
METHOD(s_isdigit)
{
    return all(a, us_digit, out);
}
METHOD(s_isnumeric)
{
    return all(a, us_numeric, out);
}
METHOD(s_isspace)
{
    return all(a, us_space, out);
}

METHOD(s_isprintable)
{
    QN_TRY(all(a, us_printable, out));
    out->b = out->b || a[0].s.n == 0;
    return QN_OK;
}

METHOD(s_isascii)
{
    bool ok = true;
    for (size_t i = 0; i < a[0].s.n && ok; i++)
        ok = !(a[0].s.p[i] & 0x80);
    *out = v_bool(ok);
    return QN_OK;
}

METHOD(s_isidentifier)
{
    *out = v_bool(us_identifier(a[0].s));
    return QN_OK;
}

static enum qn_status one_case(const struct val *a, bool upper, struct val *out)
{
    bool any = false, ok = true;
    for (size_t i = 0; i < a[0].s.n && ok;) {
        uint32_t cp = us_next(a[0].s, &i);
        any = any || (upper ? us_upper_p(cp) : us_lower_p(cp));
        ok = !us_title_p(cp) && !(upper ? us_lower_p(cp) : us_upper_p(cp));
    }
    *out = v_bool(any && ok);
    return QN_OK;
}

METHOD(s_isupper)
{
    return one_case(a, true, out);
}
METHOD(s_islower)
{
    return one_case(a, false, out);
}

METHOD(s_istitle)
{
    bool any = false, ok = true, prev = false;
    for (size_t i = 0; i < a[0].s.n && ok;) {
        uint32_t cp = us_next(a[0].s, &i);
        bool up = us_upper_p(cp) || us_title_p(cp), low = us_lower_p(cp);
        ok = up ? !prev : !low || prev;
        prev = up || low;
        any = any || prev;
    }
    *out = v_bool(any && ok);
    return QN_OK;
}

const struct tbuiltin tmpl_str_methods[] = {
    {"upper", "self", s_upper},
    {"lower", "self", s_lower},
    {"title", "self", s_title},
    {"capitalize", "self", s_capitalize},
    {"swapcase", "self", s_swapcase},
    {"casefold", "self", s_casefold},
    {"strip", "/self chars?", s_strip},
    {"lstrip", "/self chars?", s_lstrip},
    {"rstrip", "/self chars?", s_rstrip},
    {"removeprefix", "/self prefix", s_removeprefix},
    {"removesuffix", "/self suffix", s_removesuffix},
    {"startswith", "/self prefix start? end?", s_startswith},
    {"endswith", "/self suffix start? end?", s_endswith},
    {"find", "/self sub start? end?", s_find},
    {"rfind", "/self sub start? end?", s_rfind},
    {"index", "/self sub start? end?", s_index},
    {"rindex", "/self sub start? end?", s_rindex},
    {"count", "/self sub start? end?", s_count},
    {"split", "self sep? maxsplit?", s_split},
    {"rsplit", "self sep? maxsplit?", s_rsplit},
    {"splitlines", "self keepends?", s_splitlines},
    {"partition", "/self sep", s_partition},
    {"rpartition", "/self sep", s_rpartition},
    {"join", "/self iterable", s_join},
    {"replace", "/self old new count?", s_replace},
    {"center", "/self width fill?", s_center},
    {"ljust", "/self width fill?", s_ljust},
    {"rjust", "/self width fill?", s_rjust},
    {"zfill", "/self width", s_zfill},
    {"expandtabs", "self tabsize?", s_expandtabs},
    {"format", "self *", s_format},
    {"isalpha", "self", s_isalpha},
    {"isalnum", "self", s_isalnum},
    {"isdecimal", "self", s_isdecimal},
    {"isdigit", "self", s_isdigit},
    {"isnumeric", "self", s_isnumeric},
    {"isspace", "self", s_isspace},
    {"isprintable", "self", s_isprintable},
    {"isascii", "self", s_isascii},
    {"isidentifier", "self", s_isidentifier},
    {"isupper", "self", s_isupper},
    {"islower", "self", s_islower},
    {"istitle", "self", s_istitle},
    {0},
};

/* ---- lists and tuples ---------------------------------------------------------------------- */

METHOD(l_index)
{
    const struct val *x;
    size_t n;
    int64_t from, to;
    QN_TRY(tv_seq(e, a, &x, &n));
    QN_TRY(opt_int(e, &a[2], 0, &from));
    QN_TRY(opt_int(e, &a[3], (int64_t)n, &to));
    from = from < 0 ? (from + (int64_t)n < 0 ? 0 : from + (int64_t)n) : from;
    to = to < 0 ? to + (int64_t)n : to > (int64_t)n ? (int64_t)n : to;
    for (int64_t i = from; i < to; i++) {
        bool eq;
        QN_TRY(tv_eq(e, &x[i], &a[1], &eq));
        if (eq) {
            *out = v_int(i);
            return QN_OK;
        }
    }
    return tv_fail(e, "the value is not in the %s", tv_type_name(a));
}

METHOD(l_count)
{
    const struct val *x;
    size_t n;
    int64_t hits = 0;
    QN_TRY(tv_seq(e, a, &x, &n));
    for (size_t i = 0; i < n; i++) {
        bool eq;
        QN_TRY(tv_eq(e, &x[i], &a[1], &eq));
        hits += eq;
    }
    *out = v_int(hits);
    return QN_OK;
}

METHOD(l_copy)
{
    return tv_collect(e, a, V_LIST, out);
}

const struct tbuiltin tmpl_list_methods[] = {
    {"index", "/self value start? stop?", l_index},
    {"count", "/self value", l_count},
    {"copy", "self", l_copy},
    {0},
};

/* ---- dicts --------------------------------------------------------------------------------- */

static enum qn_status view(const struct val *a, enum view_kind k, struct val *out)
{
    *out = (struct val){.t = V_VIEW, .sub = (uint8_t)k, .m = a[0].m};
    return QN_OK;
}

METHOD(d_keys)
{
    return view(a, VIEW_KEYS, out);
}
METHOD(d_values)
{
    return view(a, VIEW_VALUES, out);
}
METHOD(d_items)
{
    return view(a, VIEW_ITEMS, out);
}

METHOD(d_get)
{
    const struct val *v;
    QN_TRY(tv_dict_get(e, a[0].m, &a[1], &v));
    *out = v ? *v : a[2].t == V_MISSING ? v_none() : a[2];
    return QN_OK;
}

METHOD(d_copy)
{
    struct vdict *src = a[0].m;
    QN_TRY(tv_dict_load(e, src));
    QN_TRY(tv_dict_new(e, V_DICT, out));
    for (size_t i = 0; i < src->n; i++)
        QN_TRY(tv_dict_set(e, out->m, src->e[i].k, src->e[i].v));
    return QN_OK;
}

METHOD(d_fromkeys)
{
    struct viter *it;
    struct val x;
    bool got;
    QN_TRY(tv_iter(e, &a[1], &it));
    QN_TRY(tv_dict_new(e, V_DICT, out));
    for (;;) {
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            return QN_OK;
        QN_TRY(tv_dict_set(e, out->m, x, a[2].t == V_MISSING ? v_none() : a[2]));
    }
}

const struct tbuiltin tmpl_dict_methods[] = {
    {"keys", "self", d_keys},
    {"values", "self", d_values},
    {"items", "self", d_items},
    {"get", "/self key default?", d_get},
    {"copy", "self", d_copy},
    {"fromkeys", "/self iterable value?", d_fromkeys},
    {0},
};
