/*
 * gram_json.c - JSON itself as shared rules: white space, strings, numbers, any value.
 *
 * White space is limited, so that an answer cannot go on in blanks: nothing, one space, or a new
 * line with up to 40 spaces or 10 tabs. Numbers have at most 18 digits before the point and after,
 * and two of exponent, which every reader can hold.
 */
#include "gram/gram_int.h"

static int32_t one_of(struct gb *b, const char *chars)
{
    struct byteset s = {0};
    for (; *chars; chars++)
        byteset_add(&s, (unsigned char)*chars);
    return x_set(b, &s);
}

int32_t x_ws(struct gb *b)
{
    if (b->compact)
        return X_EMPTY;
    if (b->r_ws < 0) {
        b->r_ws = x_rule(b);
        int32_t indent =
            X_ALT(b, x_rep(b, x_litz(b, " "), 0, 40), x_rep(b, x_litz(b, "\t"), 1, 10));
        x_rule_set(b, b->r_ws,
                   X_ALT(b, X_EMPTY, x_litz(b, " "), X_SEQ(b, x_litz(b, "\n"), indent)));
    }
    return x_ref(b, b->r_ws);
}

/* Hexadecimal digits from lo to hi of one nibble. */
static int32_t nibble(struct gb *b, int lo, int hi)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    struct byteset s = {0};
    for (int i = lo; i <= hi; i++) {
        byteset_add(&s, digits[i]);
        if (i >= 10)
            byteset_add(&s, digits[i + 6]);
    }
    return x_set(b, &s);
}

int32_t x_json_char(struct gb *b)
{
    struct cprange plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    int32_t hex = nibble(b, 0, 15), d = nibble(b, 13, 13);
    int32_t hex2 = X_SEQ(b, hex, hex), hex3 = X_SEQ(b, hex, hex, hex);
    int32_t low = X_SEQ(b, x_litz(b, "\\u"), d, nibble(b, 12, 15), hex2);
    int32_t unit =
        X_ALT(b, X_SEQ(b, X_ALT(b, nibble(b, 0, 12), nibble(b, 14, 15)), hex3),
              X_SEQ(b, d, nibble(b, 0, 7), hex2), X_SEQ(b, d, nibble(b, 8, 11), hex2, low));
    int32_t escape = X_SEQ(b, x_litz(b, "\\"),
                           X_ALT(b, one_of(b, "\"\\/bfnrt"), X_SEQ(b, x_litz(b, "u"), unit)));
    return X_ALT(b, x_cps(b, plain, 3, ENC_RAW), escape);
}

int32_t x_json_string(struct gb *b)
{
    if (b->r_str < 0) {
        b->r_str = x_rule(b);
        int32_t quote = x_litz(b, "\"");
        x_rule_set(b, b->r_str, X_SEQ(b, quote, x_rep(b, x_json_char(b), 0, -1), quote));
    }
    return x_ref(b, b->r_str);
}

int32_t x_json_integer(struct gb *b)
{
    int32_t digit = x_range(b, '0', '9');
    int32_t whole =
        X_ALT(b, x_litz(b, "0"), X_SEQ(b, x_range(b, '1', '9'), x_rep(b, digit, 0, 17)));
    return X_SEQ(b, x_opt(b, x_litz(b, "-")), whole);
}

int32_t x_json_number(struct gb *b)
{
    int32_t digit = x_range(b, '0', '9');
    int32_t fraction = X_SEQ(b, x_litz(b, "."), x_rep(b, digit, 1, 18));
    int32_t exponent = X_SEQ(b, one_of(b, "eE"), x_opt(b, one_of(b, "+-")), x_rep(b, digit, 1, 2));
    return X_SEQ(b, x_json_integer(b), x_opt(b, fraction), x_opt(b, exponent));
}

/* open ws close, or open ws item ("," ws item)* ws close */
static int32_t list(struct gb *b, const char *open, int32_t item, const char *close)
{
    int32_t ws = x_ws(b), comma = X_SEQ(b, x_litz(b, ","), ws);
    int32_t items = X_SEQ(b, item, x_rep(b, X_SEQ(b, comma, item), 0, -1), ws);
    return X_SEQ(b, x_litz(b, open), ws, x_opt(b, items), x_litz(b, close));
}

int32_t x_json_object(struct gb *b)
{
    if (b->r_object < 0) {
        b->r_object = x_rule(b);
        int32_t member = X_SEQ(b, x_json_string(b), x_litz(b, ":"), x_ws(b), x_json_value(b));
        x_rule_set(b, b->r_object, list(b, "{", member, "}"));
    }
    return x_ref(b, b->r_object);
}

int32_t x_json_array(struct gb *b)
{
    if (b->r_array < 0) {
        b->r_array = x_rule(b);
        x_rule_set(b, b->r_array, list(b, "[", x_json_value(b), "]"));
    }
    return x_ref(b, b->r_array);
}

int32_t x_json_value(struct gb *b)
{
    if (b->r_value < 0) {
        b->r_value = x_rule(b);
        x_rule_set(b, b->r_value,
                   X_ALT(b, x_json_string(b), x_json_number(b), x_json_object(b), x_json_array(b),
                         x_litz(b, "true"), x_litz(b, "false"), x_litz(b, "null")));
    }
    return x_ref(b, b->r_value);
}
