/*
 * tmpl_tests.c - jinja2's built-in tests (`x is defined`). Each takes the value first and gives a
 * boolean.
 */
#include "tmpl/tmpl_ast.h"
#include "tmpl/tmpl_ustr.h"

#define TEST(name)                                                                                 \
    static enum qn_status name(struct tenv *e, const struct val *a, const struct targs *raw,       \
                               struct val *out)
#define IS(cond)                                                                                   \
    {                                                                                              \
        *out = v_bool(cond);                                                                       \
        return QN_OK;                                                                              \
    }

TEST(t_defined)
IS(a[0].t != V_UNDEF)
TEST(t_undefined)
IS(a[0].t == V_UNDEF)
TEST(t_none)
IS(a[0].t == V_NONE)
TEST(t_boolean)
IS(a[0].t == V_BOOL)
TEST(t_false)
IS(a[0].t == V_BOOL && !a[0].b)
TEST(t_true)
IS(a[0].t == V_BOOL && a[0].b)
TEST(t_integer)
IS(a[0].t == V_INT || a[0].t == V_BIG)
TEST(t_float)
IS(a[0].t == V_REAL)
TEST(t_number)
IS(v_is_num(&a[0]) || a[0].t == V_BIG)
TEST(t_string)
IS(a[0].t == V_STR)
TEST(t_mapping)
IS(a[0].t == V_DICT)
TEST(t_escaped)
IS(a[0].t == V_STR && a[0].safe)
TEST(t_sameas)
IS(tv_same(&a[0], &a[1]))
TEST(t_filter)
IS(a[0].t == V_STR && tmpl_filter_find(a[0].s) != NULL)
TEST(t_test)
IS(a[0].t == V_STR && tmpl_test_find(a[0].s) != NULL)

/* what has a length and subscripts; an undefined value claims both */
TEST(t_sequence)
IS(a[0].t == V_STR || a[0].t == V_LIST || a[0].t == V_TUPLE || a[0].t == V_DICT ||
   a[0].t == V_RANGE || a[0].t == V_UNDEF)

TEST(t_iterable)
IS(a[0].t == V_STR || a[0].t == V_LIST || a[0].t == V_TUPLE || a[0].t == V_DICT ||
   a[0].t == V_RANGE || a[0].t == V_VIEW || a[0].t == V_ITER || a[0].t == V_UNDEF ||
   a[0].t == V_LOOP)

/* an undefined value has a __call__ that always fails, but it has one */
TEST(t_callable)
IS(a[0].t == V_FUNC || a[0].t == V_METHOD || a[0].t == V_MACRO || a[0].t == V_JOINER ||
   a[0].t == V_LOOP || a[0].t == V_UNDEF)

static enum qn_status modulo_is(struct tenv *e, const struct val *v, const struct val *by,
                                int64_t want, struct val *out)
{
    struct val r, w = v_int(want);
    bool eq;
    QN_TRY(tv_arith(e, OP_MOD, v, by, &r));
    QN_TRY(tv_eq(e, &r, &w, &eq));
    *out = v_bool(eq);
    return QN_OK;
}

TEST(t_odd)
{
    struct val two = v_int(2);
    return modulo_is(e, &a[0], &two, 1, out);
}
TEST(t_even)
{
    struct val two = v_int(2);
    return modulo_is(e, &a[0], &two, 0, out);
}
TEST(t_divisibleby)
{
    return modulo_is(e, &a[0], &a[1], 0, out);
}

static enum qn_status case_is(struct tenv *e, const struct val *a, const char *method,
                              struct val *out)
{
    struct str s;
    struct targs none = {0};
    QN_TRY(tv_to_str(e, &a[0], &s));
    struct val v = v_str(s);
    return tv_call_builtin(e, tbuiltin_find(tmpl_str_methods, str_of(method)), &v, &none, out);
}

TEST(t_lower)
{
    return case_is(e, a, "islower", out);
}
TEST(t_upper)
{
    return case_is(e, a, "isupper", out);
}

TEST(t_in)
{
    bool in;
    QN_TRY(tv_contains(e, &a[1], &a[0], &in));
    *out = v_bool(in);
    return QN_OK;
}

TEST(t_eq)
{
    bool eq;
    QN_TRY(tv_eq(e, &a[0], &a[1], &eq));
    *out = v_bool(eq);
    return QN_OK;
}

TEST(t_ne)
{
    QN_TRY(t_eq(e, a, raw, out));
    out->b = !out->b;
    return QN_OK;
}

static enum qn_status order(struct tenv *e, const struct val *a, const char *op, struct val *out)
{
    int c;
    QN_TRY(tv_cmp(e, &a[0], &a[1], op, &c));
    bool less = op[0] == '<', or_equal = op[1] == '=';
    *out = v_bool(c != 2 && ((or_equal && c == 0) || (less ? c < 0 : c > 0)));
    return QN_OK;
}

TEST(t_lt)
{
    return order(e, a, "<", out);
}
TEST(t_le)
{
    return order(e, a, "<=", out);
}
TEST(t_gt)
{
    return order(e, a, ">", out);
}
TEST(t_ge)
{
    return order(e, a, ">=", out);
}

const struct tbuiltin tmpl_tests[] = {
    {"odd", "value", t_odd},
    {"even", "value", t_even},
    {"divisibleby", "value num", t_divisibleby},
    {"defined", "value", t_defined},
    {"undefined", "value", t_undefined},
    {"filter", "value", t_filter},
    {"test", "value", t_test},
    {"none", "value", t_none},
    {"boolean", "value", t_boolean},
    {"false", "value", t_false},
    {"true", "value", t_true},
    {"integer", "value", t_integer},
    {"float", "value", t_float},
    {"lower", "value", t_lower},
    {"upper", "value", t_upper},
    {"string", "value", t_string},
    {"mapping", "value", t_mapping},
    {"number", "value", t_number},
    {"sequence", "value", t_sequence},
    {"iterable", "value", t_iterable},
    {"callable", "value", t_callable},
    {"sameas", "value other", t_sameas},
    {"escaped", "value", t_escaped},
    {"in", "value seq", t_in},
    {"==", "/a b", t_eq},
    {"eq", "/a b", t_eq},
    {"equalto", "/a b", t_eq},
    {"!=", "/a b", t_ne},
    {"ne", "/a b", t_ne},
    {">", "/a b", t_gt},
    {"gt", "/a b", t_gt},
    {"greaterthan", "/a b", t_gt},
    {">=", "/a b", t_ge},
    {"ge", "/a b", t_ge},
    {"<", "/a b", t_lt},
    {"lt", "/a b", t_lt},
    {"lessthan", "/a b", t_lt},
    {"<=", "/a b", t_le},
    {"le", "/a b", t_le},
    {0},
};
