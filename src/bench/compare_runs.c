/*
 * compare_runs.c - compare_records of history.h: what makes two runs hard to compare, then every
 * figure that both have, with the change and whether it is larger than what either run scattered.
 */
#include <math.h>
#include <stdio.h>

#include "bench/history.h"
#include "bench/view.h"

static const struct json *at(const struct json *doc, const char *a, const char *b)
{
    return json_get(json_get(doc, a), b);
}

/* Same JSON text, both absent included. */
static bool same(const struct json *a, const struct json *b)
{
    struct buf x = BUF_INIT, y = BUF_INIT;
    json_w_value(&x, a);
    json_w_value(&y, b);
    bool eq = str_eq(buf_str(&x), buf_str(&y));
    buf_free(&x);
    buf_free(&y);
    return eq;
}

static void differences(const struct json *a, const struct json *b, struct buf *out)
{
    static const struct {
        const char *in, *key, *text;
    } facts[] = {{"machine", "processor", "the processors differ"},
                 {"machine", "processors", "the numbers of processors differ"},
                 {"machine", "kernel", "the kernels differ"},
                 {"manifest", "model", "the model files differ"},
                 {"manifest", "gguf", "the GGUF files differ"},
                 {"workload", "threads", "the numbers of threads differ"},
                 {"workload", "seed", "the seeds differ: other prompts"},
                 {"workload", "decode_tokens", "the answers differ in length"},
                 {"workload", "ttft_tokens", "the prompts differ in length"},
                 {"workload", "context_tokens", "the long prompts differ in length"},
                 {"workload", "load_prompt_tokens", "the prompts under load differ in length"},
                 {"workload", "load_tokens", "the answers under load differ in length"}};
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        if (!same(at(a, facts[i].in, facts[i].key), at(b, facts[i].in, facts[i].key)))
            buf_addf(out, "! %s\n", facts[i].text);
    const struct json *docs[] = {a, b};
    for (int k = 0; k < 2; k++) {
        const struct json *marks = json_get(docs[k], "marks");
        for (size_t i = 0; i < json_len(marks); i++) {
            struct str m = json_str(json_at(marks, i));
            buf_addf(out, "! run %s: " STR_FMT "\n", k ? "B" : "A", STR_ARG(m));
        }
    }
}

static void figure(const struct view_row *a, const struct view_row *b, struct buf *out)
{
    struct buf left = BUF_INIT, right = BUF_INIT;
    double gain = view_gain(b, a);
    view_number(&left, a->median);
    view_number(&right, b->median);
    buf_addf(out, "%-15.*s %-20.*s %-32.*s %9s -> %9s %-7.*s", (int)a->arm.n, a->arm.p,
             (int)a->point.n, a->point.n ? a->point.p : "", (int)a->title.n, a->title.p,
             buf_z(&left), buf_z(&right), (int)a->unit.n, a->unit.p);
    if (isfinite(gain))
        buf_addf(out, " %s %.1f %%%s", gain >= 1 ? "better" : "worse ",
                 100 * (gain >= 1 ? gain - 1 : 1 / gain - 1),
                 view_apart(a, b) ? "" : " (within the noise)");
    buf_addc(out, '\n');
    buf_free(&left);
    buf_free(&right);
}

enum qn_status compare_records(const struct json *a, const struct json *b, struct buf *out,
                               struct qn_err *err)
{
    struct view x, y;
    int n = 0;
    if (json_bool(json_get(a, "diagnostic")) || json_bool(json_get(b, "diagnostic")))
        QN_FAIL(err, QN_BAD_INPUT, "bench",
                "run %s is a diagnostic one: such runs do not enter comparisons",
                json_bool(json_get(a, "diagnostic")) ? "A" : "B");
    if (!view_open(a, &x))
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory");
    if (!view_open(b, &y)) {
        view_close(&x);
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory");
    }
    differences(a, b, out);
    for (size_t i = 0; i < x.n_row; i++) {
        const struct view_row *r = &x.rows[i];
        const struct view_row *s = view_find(&y, r->arm, r->workload, r->point, r->metric);
        if (s) {
            figure(r, s, out);
            n++;
        }
    }
    if (!n)
        buf_addz(out, "The two runs have no figure in common.\n");
    view_close(&x);
    view_close(&y);
    return buf_ok(out, "the comparison", err);
}
