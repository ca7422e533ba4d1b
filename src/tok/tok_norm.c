/*
 * tok_norm.c - the normalizers: Unicode forms (utf8proc), lower case, prepend, replace, strip, and
 * the byte alphabet. Each reads a view and writes a buffer, or leaves the view alone when nothing
 * changes. Stateless, any thread.
 */
#include "tok_int.h"

#include <stdlib.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "tok/unicode_data.h"

uint32_t tok_byte_char(uint8_t b)
{
    if ((b >= 33 && b <= 126) || (b >= 161 && b != 173))
        return b;
    if (b <= 32)
        return 256u + b;
    if (b <= 160)
        return 256u + 33 + (b - 127u);
    return 256u + 67;
}

int tok_char_byte(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 255 && cp != 173))
        return (int)cp;
    if (cp >= 256 && cp <= 256 + 32)
        return (int)cp - 256;
    if (cp >= 256 + 33 && cp <= 256 + 66)
        return (int)cp - 256 - 33 + 127;
    return cp == 256 + 67 ? 173 : -1;
}

static bool all_ascii(struct str s)
{
    size_t i = 0;
    for (uint64_t w; i + 8 <= s.n; i += 8) {
        memcpy(&w, s.p + i, 8);
        if (w & 0x8080808080808080u)
            return false;
    }
    for (; i < s.n; i++)
        if ((unsigned char)s.p[i] >= 0x80)
            return false;
    return true;
}

/* Code points of a region: few of them as a rule. */
struct cps {
    utf8proc_int32_t few[64], *v;
    size_t n, cap;
};

enum { EXPAND_MAX = 32 /* of one character; Unicode's longest is 18 */, INSERT_MAX = 32 };

static bool cps_add(struct cps *c, uint32_t cp, utf8proc_option_t opt)
{
    if (c->cap - c->n < EXPAND_MAX) {
        utf8proc_int32_t *v = malloc(2 * c->cap * sizeof *v);
        if (!v)
            return false;
        memcpy(v, c->v, c->n * sizeof *v);
        if (c->v != c->few)
            free(c->v);
        c->v = v;
        c->cap *= 2;
    }
    int bound = UTF8PROC_BOUNDCLASS_START;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, c->v + c->n, EXPAND_MAX, opt, &bound);
    if (n < 0 || n > EXPAND_MAX)
        c->v[c->n] = (utf8proc_int32_t)cp, n = 1;
    c->n += (size_t)n;
    return true;
}

static unsigned mark_class(utf8proc_int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class & 255u;
}

/* n marks by rising class, equals in their order. */
static bool marks_sort(utf8proc_int32_t *v, size_t n)
{
    if (n <= INSERT_MAX) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t x = v[i];
            size_t k = i;
            for (; k > 0 && mark_class(v[k - 1]) > mark_class(x); k--)
                v[k] = v[k - 1];
            v[k] = x;
        }
        return true;
    }
    size_t at[257] = {0};
    utf8proc_int32_t *from = malloc(n * sizeof *from);
    if (!from)
        return false;
    memcpy(from, v, n * sizeof *from);
    for (size_t i = 0; i < n; i++)
        at[mark_class(from[i]) + 1]++;
    for (int k = 1; k < 257; k++)
        at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++)
        v[at[mark_class(from[i])]++] = from[i];
    free(from);
    return true;
}

/* Decomposed and in canonical order. utf8proc's own ordering takes time with the square of a run of
 * marks, and a text may be nothing but marks. */
static bool decompose(struct str s, utf8proc_option_t opt, struct cps *c)
{
    size_t len, run = 0;
    for (size_t i = 0; i < s.n; i += len)
        if (!cps_add(c, tok_cp((const uint8_t *)s.p, i, s.n, &len), opt))
            return false;
    for (size_t i = 0; i <= c->n; i++) {
        if (i < c->n && mark_class(c->v[i]))
            continue;
        if (i - run > 1 && !marks_sort(c->v + run, i - run))
            return false;
        run = i + 1;
    }
    return true;
}

/* One region: a starter and what composes with it. */
static enum qn_status form_region(struct str s, utf8proc_option_t opt, struct buf *out,
                                  struct qn_err *err)
{
    struct cps c;
    c.v = c.few;
    c.n = 0;
    c.cap = sizeof c.few / sizeof c.few[0];
    bool ok = decompose(s, opt, &c);
    utf8proc_ssize_t n = ok ? utf8proc_normalize_utf32(c.v, (utf8proc_ssize_t)c.n, opt) : 0;
    for (utf8proc_ssize_t i = 0; i < n; i++)
        buf_add_utf8(out, (uint32_t)c.v[i]);
    if (c.v != c.few)
        free(c.v);
    return ok ? QN_OK : err_set(err, QN_NO_MEMORY, "tok", "out of memory while normalizing");
}

static utf8proc_option_t form_options(enum tok_op_kind kind)
{
    utf8proc_option_t o = UTF8PROC_STABLE;
    o |= kind == OP_NFC || kind == OP_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (kind == OP_NFKC || kind == OP_NFKD)
        o |= UTF8PROC_COMPAT;
    return o;
}

/* Regions begin at characters that neither compose with nor reorder before their left neighbour;
 * under NFC a region of one such character is already normal. */
static enum qn_status form(enum tok_op_kind kind, struct str s, struct buf *out, bool *changed,
                           struct qn_err *err)
{
    const uint8_t *p = (const uint8_t *)s.p;
    utf8proc_option_t opt = form_options(kind);
    size_t start = 0, done = 0, len;
    bool active = false;
    *changed = false;
    for (size_t i = 0; i <= s.n; i += len) {
        unsigned f = 0;
        bool last = i == s.n;
        len = 1;
        if (!last)
            f = uni_flags(tok_cp(p, i, s.n, &len));
        bool odd = f & UNI_NORM_ODD;
        if (last || odd || !(f & UNI_NFC_ACTIVE)) {
            if (active) {
                buf_add(out, s.p + done, start - done);
                QN_TRY(form_region((struct str){s.p + start, i - start}, opt, out, err));
                done = i;
                *changed = true;
            }
            start = odd ? i + len : i;
            active = kind != OP_NFC && !odd && !last && p[i] >= 0x80;
        } else {
            active = true;
        }
    }
    if (*changed)
        buf_add(out, s.p + done, s.n - done);
    return QN_OK;
}

static uint32_t lower_cp(uint32_t c)
{
    size_t lo = 0, hi = uni_lower_n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (uni_lower_runs[mid].start <= c)
            lo = mid + 1;
        else
            hi = mid;
    }
    /* runs of step 2 may interleave with single ones: look back over a few */
    for (size_t k = 0; k < 3 && lo > k; k++) {
        const struct uni_lower_run *r = &uni_lower_runs[lo - 1 - k];
        uint32_t d = c - r->start;
        if (d % r->step == 0 && d / r->step < r->n)
            return (uint32_t)((int32_t)c + r->delta);
    }
    return c;
}

static void lower(struct str s, struct buf *out)
{
    size_t len;
    for (size_t i = 0; i < s.n; i += len) {
        uint32_t c = tok_cp((const uint8_t *)s.p, i, s.n, &len);
        if (c < 0x80) {
            buf_addc(out, (char)(c >= 'A' && c <= 'Z' ? c + 32 : c));
        } else if (c == 0x130) {
            buf_addz(out, "i\xCC\x87");
        } else {
            buf_add_utf8(out, lower_cp(c));
        }
    }
}

static struct str strip(const struct tok_op *op, struct str s)
{
    const uint8_t *p = (const uint8_t *)s.p;
    size_t a = 0, b = s.n, len;
    while (op->left && a < b && (uni_flags(tok_cp(p, a, s.n, &len)) & UNI_WS))
        a += len;
    while (op->right && b > a) {
        size_t k = b - 1;
        while (k > a && (p[k] & 0xC0) == 0x80)
            k--;
        if (!(uni_flags(tok_cp(p, k, s.n, &len)) & UNI_WS))
            break;
        b = k;
    }
    return (struct str){s.p + a, b - a};
}

enum qn_status tok_replace(const struct tok_op *op, struct str s, struct buf *out,
                           struct qn_err *err)
{
    size_t done = 0, from = 0;
    while (from <= s.n) {
        size_t a, b;
        if (op->re) {
            QN_TRY(tok_re_find(op->re, s, from, &a, &b, err));
        } else {
            a = op->text.n ? str_find(s, op->text, from) : (size_t)-1;
            b = a + op->text.n;
        }
        if (a == (size_t)-1)
            break;
        buf_add(out, s.p + done, a - done);
        buf_add_str(out, op->with);
        done = b;
        from = b;
        if (a == b) { /* an empty match: on by one character */
            size_t len = 1;
            if (b < s.n)
                tok_cp((const uint8_t *)s.p, b, s.n, &len);
            from = b + len;
        }
    }
    buf_add(out, s.p + done, s.n - done);
    return QN_OK;
}

/* One step; *s is replaced by a view into out when the text changed. */
static enum qn_status step(const struct tok_op *op, struct str *s, struct buf *out,
                           struct qn_err *err)
{
    bool changed = true;
    switch (op->kind) {
    case OP_NFC:
    case OP_NFD:
    case OP_NFKC:
    case OP_NFKD:
        if (all_ascii(*s))
            return QN_OK;
        QN_TRY(form(op->kind, *s, out, &changed, err));
        break;
    case OP_LOWER:
        lower(*s, out);
        break;
    case OP_PREPEND:
        if (s->n == 0)
            return QN_OK;
        buf_add_str(out, op->text);
        buf_add_str(out, *s);
        break;
    case OP_REPLACE:
        QN_TRY(tok_replace(op, *s, out, err));
        break;
    case OP_STRIP:
        *s = strip(op, *s);
        return QN_OK;
    case OP_BYTES:
        for (size_t i = 0; i < s->n; i++)
            buf_add_utf8(out, tok_byte_char((uint8_t)s->p[i]));
        break;
    default:
        return QN_OK;
    }
    QN_TRY(buf_ok(out, "normalized text", err));
    if (changed)
        *s = buf_str(out);
    return QN_OK;
}

enum qn_status tok_normalize(const struct tok_ops *ops, struct str text, struct buf tmp[2],
                             struct str *out, struct qn_err *err)
{
    int into = 0;
    *out = text;
    for (int i = 0; i < ops->n; i++) {
        const char *before = out->p;
        buf_clear(&tmp[into]);
        QN_TRY(step(&ops->v[i], out, &tmp[into], err));
        if (out->p != before && out->p == tmp[into].p)
            into ^= 1;
    }
    return QN_OK;
}
