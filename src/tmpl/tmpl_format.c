/*
 * tmpl_format.c - Python's two formatting languages: "%" conversions and str.format with its format
 * specifications. Widths and precisions are bounded by the byte limit of the rendering.
 */
#include <math.h>
#include <stdio.h>

#include "tmpl/tmpl_value.h"
#include "tmpl/tmpl_ustr.h"

#define PRECISION_MAX 400

struct spec {
    struct str fill;
    char align; /* 0, '<', '>', '=', '^' */
    char sign;  /* 0, '+', '-', ' ' */
    bool alt;
    char group;          /* 0, ',', '_' */
    int64_t width, prec; /* -1: none */
    char type;
};

static enum qn_status pad_to(struct tenv *e, const struct spec *sp, struct str prefix,
                             struct str text, struct buf *out)
{
    int64_t len = (int64_t)(us_len(prefix) + us_len(text));
    int64_t room = sp->width > len ? sp->width - len : 0;
    if ((uint64_t)room > e->bytes_max)
        return tv_oom(e);
    int64_t left = sp->align == '>' ? room : sp->align == '^' ? room / 2 : 0;
    for (int64_t i = 0; i < left; i++)
        buf_add_str(out, sp->fill);
    buf_add_str(out, prefix);
    for (int64_t i = 0; sp->align == '=' && i < room; i++)
        buf_add_str(out, sp->fill);
    buf_add_str(out, text);
    for (int64_t i = left; sp->align != '=' && i < room; i++)
        buf_add_str(out, sp->fill);
    return out->failed ? tv_oom(e) : QN_OK;
}

/* Groups the integer digits at the start of text. */
static void add_grouped(struct buf *out, struct str text, char group, int every)
{
    size_t digits = 0;
    while (digits < text.n &&
           ((text.p[digits] >= '0' && text.p[digits] <= '9') ||
            (every == 4 && (text.p[digits] | 32) >= 'a' && (text.p[digits] | 32) <= 'f')))
        digits++;
    for (size_t i = 0; i < text.n; i++) {
        if (group && i && i < digits && (digits - i) % (size_t)every == 0)
            buf_addc(out, group);
        buf_addc(out, text.p[i]);
    }
}

/* text: the number without its sign. */
static enum qn_status put_number(struct tenv *e, const struct spec *sp, bool neg, const char *radix,
                                 struct str text, struct buf *out)
{
    struct buf digits = {0};
    char prefix[8];
    struct spec s = *sp;
    snprintf(prefix, sizeof prefix, "%s%s",
             neg               ? "-"
             : sp->sign == '+' ? "+"
             : sp->sign == ' ' ? " "
                               : "",
             radix);
    if (!s.align)
        s.align = '>';
    add_grouped(&digits, text, sp->group,
                *radix || strchr("boxX", sp->type ? sp->type : 'd') ? 4 : 3);
    enum qn_status st = pad_to(e, &s, str_of(prefix), buf_str(&digits), out);
    buf_free(&digits);
    return st;
}

static enum qn_status put_int(struct tenv *e, const struct spec *sp, int64_t v, struct buf *out)
{
    char text[72];
    int n = sizeof text;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    unsigned base = sp->type == 'x' || sp->type == 'X' ? 16
                    : sp->type == 'o'                  ? 8
                    : sp->type == 'b'                  ? 2
                                                       : 10;
    const char *set = sp->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    do
        text[--n] = set[u % base];
    while (u /= base);
    int len = (int)sizeof text - n;
    char padded[PRECISION_MAX + 80];
    int zeros = sp->prec > len ? (int)sp->prec - len : 0;
    memset(padded, '0', (size_t)zeros);
    memcpy(padded + zeros, text + n, (size_t)len);
    const char *radix = !sp->alt          ? ""
                        : sp->type == 'x' ? "0x"
                        : sp->type == 'X' ? "0X"
                        : sp->type == 'o' ? "0o"
                        : sp->type == 'b' ? "0b"
                                          : "";
    return put_number(e, sp, v < 0, radix, (struct str){padded, (size_t)(zeros + len)}, out);
}

static void real_text(const struct spec *sp, double d, struct buf *out)
{
    char fmt[16];
    int prec = sp->prec < 0 ? 6 : (int)sp->prec;
    if (sp->type == '%') {
        buf_addf(out, sp->alt ? "%#.*f%%" : "%.*f%%", prec, d * 100);
        return;
    }
    if (!sp->type && sp->prec < 0) {
        tv_real_repr(out, d);
        return;
    }
    char type = sp->type ? sp->type : 'g';
    if (!sp->type && prec == 0)
        prec = 1;
    snprintf(fmt, sizeof fmt, sp->alt ? "%%#.*%c" : "%%.*%c", type);
    char text[PRECISION_MAX + 400];
    int n = snprintf(text, sizeof text, fmt, prec, d);
    buf_add(out, text, n > 0 && n < (int)sizeof text ? (size_t)n : 0);
    if (sp->type || !isfinite(d))
        return;
    /* no type: like g, but it always shows that it is a float */
    bool plain = !memchr(text, '.', (size_t)n) && !memchr(text, 'e', (size_t)n);
    if (plain && n <= prec - 1)
        buf_addz(out, ".0");
    else if (plain) {
        buf_clear(out);
        n = snprintf(text, sizeof text, "%.*e", prec - 1, d);
        buf_add(out, text, (size_t)n);
    }
}

static enum qn_status put_real(struct tenv *e, const struct spec *sp, double d, struct buf *out)
{
    struct buf text = {0};
    bool neg = signbit(d) && !isnan(d);
    real_text(sp, fabs(d), &text);
    enum qn_status s = put_number(e, sp, neg, "", buf_str(&text), out);
    buf_free(&text);
    return s;
}

static enum qn_status put_text(struct tenv *e, const struct spec *sp, struct str s, struct buf *out)
{
    struct spec left = *sp;
    if (!left.align)
        left.align = '<';
    if (sp->prec >= 0)
        s.n = us_off(s, (size_t)sp->prec);
    return pad_to(e, &left, STR_LIT(""), s, out);
}

static enum qn_status put_repr(struct tenv *e, const struct spec *sp, const struct val *v,
                               bool ascii, struct buf *out)
{
    struct buf raw = {.limit = e->bytes_max}, text = {.limit = e->bytes_max};
    enum qn_status s = tv_repr(e, v, &raw);
    struct str r = buf_str(&raw);
    for (size_t i = 0; s == QN_OK && i < r.n;) {
        uint32_t cp = us_next(r, &i);
        if (ascii && cp >= 0x80)
            buf_addf(&text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        else
            buf_add_utf8(&text, cp);
    }
    if (s == QN_OK)
        s = put_text(e, sp, buf_str(&text), out);
    buf_free(&raw);
    buf_free(&text);
    return s;
}

/* ---- % ------------------------------------------------------------------------------------- */

struct percent {
    struct tenv *e;
    struct str f;
    size_t i;
    const struct val *args;
    const struct val *items; /* of a tuple, or the single value */
    size_t n, used;
    struct buf *out;
};

static enum qn_status percent_arg(struct percent *p, const struct val **v)
{
    if (p->used >= p->n)
        return tv_fail(p->e, "not enough arguments for format string");
    *v = &p->items[p->used++];
    return QN_OK;
}

static enum qn_status percent_key(struct percent *p, const struct val **v)
{
    size_t start = ++p->i;
    int depth = 1;
    for (; p->i < p->f.n; p->i++) {
        depth += p->f.p[p->i] == '(' ? 1 : p->f.p[p->i] == ')' ? -1 : 0;
        if (!depth)
            break;
    }
    if (p->i >= p->f.n)
        return tv_fail(p->e, "incomplete format key");
    if (p->args->t != V_DICT)
        return tv_fail(p->e, "format requires a mapping");
    struct str key = {p->f.p + start, p->i++ - start};
    QN_TRY(tv_dict_getz(p->e, p->args->m, key, v));
    return *v ? QN_OK
              : tv_fail(p->e, "the format's key '" STR_FMT "' is missing", (int)(key.n & 0xff),
                        key.p);
}

static enum qn_status percent_number(struct percent *p, int64_t *out)
{
    const struct val *v;
    *out = 0;
    if (p->i < p->f.n && p->f.p[p->i] == '*') {
        p->i++;
        QN_TRY(percent_arg(p, &v));
        if (!v_is_int(v))
            return tv_fail(p->e, "* wants int");
        *out = v_as_int(v);
        return QN_OK;
    }
    for (; p->i < p->f.n && p->f.p[p->i] >= '0' && p->f.p[p->i] <= '9'; p->i++) {
        *out = *out * 10 + (p->f.p[p->i] - '0');
        if (*out > INT32_MAX)
            return tv_fail(p->e, "width or precision too big");
    }
    return QN_OK;
}

static enum qn_status percent_spec(struct percent *p, struct spec *sp)
{
    bool zero = false;
    *sp = (struct spec){.fill = STR_LIT(" "), .align = '>', .width = -1, .prec = -1};
    for (; p->i < p->f.n && strchr("-+ #0", p->f.p[p->i]) && p->f.p[p->i]; p->i++) {
        char c = p->f.p[p->i];
        if (c == '-')
            sp->align = '<';
        else if (c == '#')
            sp->alt = true;
        else if (c == '0')
            zero = true;
        else if (sp->sign != '+')
            sp->sign = c;
    }
    QN_TRY(percent_number(p, &sp->width));
    if (sp->width < 0) {
        sp->align = '<';
        sp->width = -sp->width;
    }
    if (p->i < p->f.n && p->f.p[p->i] == '.') {
        p->i++;
        QN_TRY(percent_number(p, &sp->prec));
    }
    if (p->i < p->f.n && p->f.p[p->i] && strchr("hlL", p->f.p[p->i]))
        p->i++;
    if (sp->prec > PRECISION_MAX)
        return tv_fail(p->e, "a precision over %d is not supported", PRECISION_MAX);
    sp->type = p->i < p->f.n ? p->f.p[p->i++] : 0;
    if (zero && sp->align == '>' && sp->type && strchr("diuoxXeEfFgG", sp->type)) {
        sp->align = '=';
        sp->fill = STR_LIT("0");
    }
    return QN_OK;
}

static enum qn_status percent_int(struct percent *p, struct spec *sp, const struct val *v)
{
    bool radix = sp->type && strchr("xXo", sp->type) != NULL;
    if (v->t == V_UNDEF)
        return tv_fail_undef(p->e, v);
    if (v->t == V_REAL && !radix && fabs(v->d) < 9.2e18)
        return put_int(p->e, sp, (int64_t)v->d, p->out);
    if (!v_is_int(v))
        return tv_fail(p->e, "%%%c format: %s is required, not %s", sp->type,
                       radix ? "an integer" : "a real number", tv_type_name(v));
    if (!radix)
        sp->type = 'd';
    return put_int(p->e, sp, v_as_int(v), p->out);
}

static enum qn_status percent_char(struct percent *p, struct spec *sp, const struct val *v)
{
    struct buf one = {0};
    if (v_is_int(v) && v_as_int(v) >= 0 && v_as_int(v) < 0x110000 &&
        !(v_as_int(v) >= 0xd800 && v_as_int(v) < 0xe000))
        buf_add_utf8(&one, (uint32_t)v_as_int(v));
    else if (v->t == V_STR && us_len(v->s) == 1)
        buf_add_str(&one, v->s);
    else
        return tv_fail(p->e, "%%c requires int or char");
    enum qn_status s = put_text(p->e, sp, buf_str(&one), p->out);
    buf_free(&one);
    return s;
}

static enum qn_status percent_put(struct percent *p, struct spec *sp, const struct val *v)
{
    struct str s;
    switch (sp->type) {
    case 's':
        QN_TRY(tv_to_str(p->e, v, &s));
        return put_text(p->e, sp, s, p->out);
    case 'r':
    case 'a':
        return put_repr(p->e, sp, v, sp->type == 'a', p->out);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        return percent_int(p, sp, v);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!v_is_num(v))
            return tv_fail(p->e, "must be real number, not %s", tv_type_name(v));
        return put_real(p->e, sp, v_as_real(v), p->out);
    case 'c':
        return percent_char(p, sp, v);
    case 0:
        return tv_fail(p->e, "incomplete format");
    default:
        return tv_fail(p->e, "unsupported format character '%c' (0x%x)",
                       sp->type >= 32 && sp->type < 127 ? sp->type : '?',
                       (unsigned)(unsigned char)sp->type);
    }
}

static enum qn_status percent_one(struct percent *p)
{
    const struct val *v = NULL;
    struct spec sp;
    if (p->i < p->f.n && p->f.p[p->i] == '(')
        QN_TRY(percent_key(p, &v));
    QN_TRY(percent_spec(p, &sp));
    if (sp.type == '%') {
        buf_addc(p->out, '%');
        return QN_OK;
    }
    if (!v)
        QN_TRY(percent_arg(p, &v));
    return percent_put(p, &sp, v);
}

enum qn_status tv_percent(struct tenv *e, struct str fmt, const struct val *args, struct buf *out)
{
    struct percent p = {.e = e, .f = fmt, .args = args, .items = args, .n = 1, .out = out};
    if (args->t == V_TUPLE)
        QN_TRY(tv_seq(e, args, &p.items, &p.n));
    while (p.i < fmt.n) {
        size_t hit = str_find(fmt, STR_LIT("%"), p.i);
        size_t end = hit == (size_t)-1 ? fmt.n : hit;
        buf_add(out, fmt.p + p.i, end - p.i);
        p.i = end;
        if (end == fmt.n)
            break;
        p.i++;
        QN_TRY(tv_step(e, 1));
        QN_TRY(percent_one(&p));
    }
    if (p.used < p.n && args->t != V_DICT && args->t != V_LIST &&
        args->t != V_UNDEF) /* what has items may be left over, an undefined value too */
        return tv_fail(e, "not all arguments converted during string formatting");
    return out->failed ? tv_oom(e) : QN_OK;
}

/* ---- str.format ---------------------------------------------------------------------------- */

struct format {
    struct tenv *e;
    const struct targs *args;
    int next;   /* automatic numbering; -1 once numbers are written out */
    bool autos; /* automatic numbering was used */
    struct buf *out;
};

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '=' || c == '^';
}

static enum qn_status spec_number(struct tenv *e, struct str s, size_t *i, int64_t *out)
{
    *out = 0;
    for (; *i < s.n && s.p[*i] >= '0' && s.p[*i] <= '9'; ++*i) {
        *out = *out * 10 + (s.p[*i] - '0');
        if (*out > INT32_MAX)
            return tv_fail(e, "Too many decimal digits in format string");
    }
    return QN_OK;
}

static enum qn_status parse_spec(struct tenv *e, struct str s, struct spec *sp)
{
    size_t i = 0, first = 0;
    *sp = (struct spec){.fill = STR_LIT(" "), .width = -1, .prec = -1};
    if (s.n)
        us_next(s, &first);
    if (first && first < s.n && is_align(s.p[first])) {
        sp->fill = (struct str){s.p, first};
        sp->align = s.p[first];
        i = first + 1;
    } else if (s.n && is_align(s.p[0])) {
        sp->align = s.p[0];
        i = 1;
    }
    if (i < s.n && (s.p[i] == '+' || s.p[i] == '-' || s.p[i] == ' '))
        sp->sign = s.p[i++];
    if (i < s.n && s.p[i] == '#') {
        sp->alt = true;
        i++;
    }
    if (i < s.n && s.p[i] == '0') {
        if (!sp->align) {
            sp->align = '=';
            sp->fill = STR_LIT("0");
        } else if (sp->fill.n == 1 && sp->fill.p[0] == ' ' && first != 1) {
            sp->fill = STR_LIT("0");
        }
        i++;
    }
    if (i < s.n && s.p[i] >= '0' && s.p[i] <= '9')
        QN_TRY(spec_number(e, s, &i, &sp->width));
    if (i < s.n && (s.p[i] == ',' || s.p[i] == '_'))
        sp->group = s.p[i++];
    if (i < s.n && s.p[i] == '.') {
        size_t at = ++i;
        QN_TRY(spec_number(e, s, &i, &sp->prec));
        if (i == at)
            return tv_fail(e, "Format specifier missing precision");
    }
    if (i < s.n)
        sp->type = s.p[i++];
    if (i < s.n || sp->prec > PRECISION_MAX)
        return tv_fail(e, "Invalid format specifier '" STR_FMT "'", (int)(s.n & 0xff), s.p);
    if (sp->group && sp->align == '=')
        return tv_fail(e, "zero padding together with digit grouping is not supported");
    return QN_OK;
}

static enum qn_status bad_code(struct tenv *e, const struct spec *sp, const struct val *v)
{
    return tv_fail(e, "Unknown format code '%c' for object of type '%s'", sp->type,
                   tv_type_name(v));
}

static enum qn_status format_int(struct tenv *e, const struct spec *sp, const struct val *v,
                                 struct buf *out)
{
    if (sp->type && strchr("eEfFgG%", sp->type))
        return put_real(e, sp, v_as_real(v), out);
    if (sp->prec >= 0)
        return tv_fail(e, "Precision not allowed in integer format specifier");
    if (!sp->type || strchr("bdoxXn", sp->type))
        return put_int(e, sp, v_as_int(v), out);
    return bad_code(e, sp, v);
}

static enum qn_status format_text(struct tenv *e, const struct spec *sp, const struct val *v,
                                  struct buf *out)
{
    if (sp->type && sp->type != 's')
        return bad_code(e, sp, v);
    if (sp->sign || sp->alt || sp->group)
        return tv_fail(e, "sign, '#' and grouping are not allowed in string format specifier");
    if (sp->align == '=' && sp->fill.p[0] != '0')
        return tv_fail(e, "'=' alignment not allowed in string format specifier");
    struct spec s = *sp;
    if (s.align == '=')
        s.align = '<';
    return put_text(e, &s, v->s, out);
}

static enum qn_status format_value(struct tenv *e, const struct val *v, struct str spec,
                                   struct buf *out)
{
    struct spec sp;
    if (spec.n == 0)
        return tv_print(e, v, out);
    QN_TRY(parse_spec(e, spec, &sp));
    if (v_is_int(v))
        return format_int(e, &sp, v, out);
    if (v->t == V_REAL) {
        if (sp.type && !strchr("eEfFgG%n", sp.type))
            return bad_code(e, &sp, v);
        if (sp.type == 'n')
            sp.type = 'g';
        return put_real(e, &sp, v->d, out);
    }
    if (v->t == V_STR)
        return format_text(e, &sp, v, out);
    return tv_fail(e, "unsupported format string passed to %s.__format__", tv_type_name(v));
}

static bool all_digits(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
    return s.n > 0 && s.n < 9;
}

static int64_t to_int(struct str s)
{
    int64_t v = 0;
    for (size_t i = 0; i < s.n; i++)
        v = v * 10 + (s.p[i] - '0');
    return v;
}

static enum qn_status field_root(struct format *f, struct str name, struct val *out)
{
    int64_t at;
    if (name.n == 0 || all_digits(name)) {
        if ((name.n == 0) ? f->next < 0 : f->autos)
            return tv_fail(f->e, "cannot mix automatic and manual field numbering");
        at = name.n ? to_int(name) : f->next++;
        f->autos = f->autos || name.n == 0;
        if (name.n)
            f->next = -1;
        if (at >= f->args->n)
            return tv_fail(f->e, "Replacement index %lld out of range for positional args tuple",
                           (long long)at);
        *out = f->args->v[at];
        return QN_OK;
    }
    for (int i = 0; i < f->args->n_kw; i++)
        if (str_eq(f->args->kw[i].name, name)) {
            *out = f->args->kw[i].v;
            return QN_OK;
        }
    return tv_fail(f->e, "format() has no argument '" STR_FMT "'", (int)(name.n & 0xff), name.p);
}

/* name(.attr | [item])* */
static enum qn_status field_value(struct format *f, struct str name, struct val *out)
{
    size_t i = 0;
    while (i < name.n && name.p[i] != '.' && name.p[i] != '[')
        i++;
    QN_TRY(field_root(f, (struct str){name.p, i}, out));
    while (i < name.n) {
        bool attr = name.p[i] == '.';
        size_t start = ++i;
        while (i < name.n && (attr ? name.p[i] != '.' && name.p[i] != '[' : name.p[i] != ']'))
            i++;
        struct str part = {name.p + start, i - start};
        struct val v, key = v_str(part);
        if (part.n == 0 || (!attr && i == name.n))
            return tv_fail(f->e, "Empty attribute or missing ']' in format string");
        if (!attr && all_digits(part))
            key = v_int(to_int(part));
        if (attr)
            QN_TRY(tv_getattr(f->e, out, part, &v));
        else
            QN_TRY(tv_getitem(f->e, out, &key, &v));
        i += !attr;
        *out = v;
    }
    return QN_OK;
}

static enum qn_status format_into(struct format *f, struct str fmt, int nest);

/* The inside of {...}: name[!conversion][:spec]. */
static enum qn_status format_field(struct format *f, struct str field, int nest)
{
    size_t end = 0, depth = 0;
    char conv = 0;
    struct val v;
    struct str spec = {"", 0};
    for (; end < field.n; end++) {
        char c = field.p[end];
        depth += c == '[';
        depth -= c == ']' && depth;
        if (!depth && (c == '!' || c == ':'))
            break;
    }
    QN_TRY(field_value(f, (struct str){field.p, end}, &v));
    size_t i = end;
    if (i < field.n && field.p[i] == '!') {
        if (i + 1 >= field.n || (i + 2 < field.n && field.p[i + 2] != ':'))
            return tv_fail(f->e, "expected ':' after conversion specifier");
        conv = field.p[i + 1];
        i += 2;
    }
    if (i < field.n)
        spec = (struct str){field.p + i + 1, field.n - i - 1};
    struct buf expanded = {.limit = f->e->bytes_max}, text = {.limit = f->e->bytes_max};
    struct buf *saved = f->out;
    f->out = &expanded;
    enum qn_status s = format_into(f, spec, nest + 1);
    f->out = saved;
    struct spec plain = {.fill = STR_LIT(" "), .width = -1, .prec = -1};
    if (s == QN_OK && conv) {
        s = conv == 's'                  ? tv_print(f->e, &v, &text)
            : conv == 'r' || conv == 'a' ? put_repr(f->e, &plain, &v, conv == 'a', &text)
                                         : tv_fail(f->e, "Unknown conversion specifier '%c'", conv);
        v = v_str(buf_str(&text));
    }
    if (s == QN_OK)
        s = format_value(f->e, &v, buf_str(&expanded), f->out);
    buf_free(&expanded);
    buf_free(&text);
    return s;
}

static enum qn_status format_into(struct format *f, struct str fmt, int nest)
{
    if (nest > 2)
        return tv_fail(f->e, "Max string recursion exceeded");
    for (size_t i = 0; i < fmt.n; i++) {
        char c = fmt.p[i];
        if ((c == '{' || c == '}') && i + 1 < fmt.n && fmt.p[i + 1] == c) {
            buf_addc(f->out, c);
            i++;
            continue;
        }
        if (c == '}')
            return tv_fail(f->e, "Single '}' encountered in format string");
        if (c != '{') {
            buf_addc(f->out, c);
            continue;
        }
        size_t start = ++i;
        int depth = 1;
        for (; i < fmt.n; i++) {
            depth += fmt.p[i] == '{' ? 1 : fmt.p[i] == '}' ? -1 : 0;
            if (!depth)
                break;
        }
        if (depth)
            return tv_fail(f->e, "expected '}' before end of string");
        QN_TRY(tv_step(f->e, 1));
        QN_TRY(format_field(f, (struct str){fmt.p + start, i - start}, nest));
    }
    return f->out->failed ? tv_oom(f->e) : QN_OK;
}

enum qn_status tv_format(struct tenv *e, struct str fmt, const struct targs *args, struct buf *out)
{
    struct format f = {.e = e, .args = args, .out = out};
    return format_into(&f, fmt, 0);
}
