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
                 {"manifest", "source", "quern was built from other sources"},
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
    for (int k = 0; k < (a == b ? 1 : 2); k++) {
        const struct json *marks = json_get(docs[k], "marks");
        for (size_t i = 0; i < json_len(marks); i++) {
            struct str m = json_str(json_at(marks, i));
            buf_addf(out, "! %s: " STR_FMT "\n",
                     a == b ? "the run"
                     : k    ? "run B"
                            : "run A",
                     STR_ARG(m));
        }
    }
}

struct tally {
    struct view x, y;
    struct view_noise noise;
    int n, n_apart;
};

static void write_gain(struct buf *out, const struct view_row *a, const struct view_row *b,
                       enum view_verdict verdict)
{
    double gain = view_gain(b, a);
    if (isfinite(gain))
        buf_addf(out, " %s %.1f %%", gain >= 1 ? "better" : "worse ",
                 100 * (gain >= 1 ? gain - 1 : 1 / gain - 1));
    else if (verdict == VERDICT_APART)
        buf_addz(out,
                 (b->median > a->median) == (a->better == BETTER_HIGHER) ? " better" : " worse");
    else if (a->median == b->median && a->min == a->max && b->min == b->max)
        return; /* none at all, on both sides */
    if (verdict != VERDICT_APART)
        buf_addf(out, " (%s)", view_verdict_text(verdict));
}

static void figure(struct tally *t, const struct view_row *a, const struct view_row *b,
                   struct buf *out)
{
    struct buf left = BUF_INIT, right = BUF_INIT;
    enum view_verdict verdict = view_differ(&t->noise, a, b);
    view_number(&left, a->median);
    view_number(&right, b->median);
    buf_addf(out, "%-15.*s %-20.*s %-32.*s %9s -> %9s %-7.*s", (int)b->arm.n, b->arm.p,
             (int)a->point.n, a->point.n ? a->point.p : "", (int)a->title.n, a->title.p,
             buf_z(&left), buf_z(&right), (int)a->unit.n, a->unit.p);
    if (a->better != BETTER_NEITHER) {
        write_gain(out, a, b, verdict);
        t->n++;
        t->n_apart += verdict == VERDICT_APART;
    }
    buf_addc(out, '\n');
    buf_free(&left);
    buf_free(&right);
}

/* The row of b that is to be held against a row of a; NULL when a's is none of those compared. */
static const struct view_row *partner(const struct comparison *c, const struct view *y,
                                      const struct view_row *r)
{
    if (c->arm_a && !str_eqz(r->arm, c->arm_a))
        return NULL;
    return view_find(y, c->arm_b ? str_of(c->arm_b) : r->arm, r->workload, r->point, r->metric);
}

static enum qn_status check_arm(const struct view *v, const char *name, const char *run,
                                struct qn_err *err)
{
    for (size_t i = 0; name && i < v->n_arm; i++)
        if (str_eqz(v->arms[i], name))
            return QN_OK;
    if (!name)
        return QN_OK;
    QN_FAIL(err, QN_NOT_FOUND, "bench", "run %s has no arm %.60s", run, name);
}

static void write_end(const struct tally *t, struct buf *out)
{
    if (!t->n)
        buf_addz(out, "The two have no figure in common.\n");
    else if (!t->n_apart)
        buf_addf(out, "no difference: none of %d figures differs by more than its noise\n", t->n);
    else
        buf_addf(out, "%d of %d figures differ by more than their noise\n", t->n_apart, t->n);
}

static enum qn_status compare_views(const struct comparison *c, struct tally *t, struct buf *out,
                                    struct qn_err *err)
{
    QN_TRY(check_arm(&t->x, c->arm_a, "A", err));
    QN_TRY(check_arm(&t->y, c->arm_b, "B", err));
    t->noise = view_noise(&t->x, &t->y);
    t->noise.n_test = 0;
    for (size_t i = 0; i < t->x.n_row; i++)
        t->noise.n_test += partner(c, &t->y, &t->x.rows[i]) != NULL;
    differences(c->a, c->b, out);
    for (size_t i = 0; i < t->x.n_row; i++) {
        const struct view_row *s = partner(c, &t->y, &t->x.rows[i]);
        if (s)
            figure(t, &t->x.rows[i], s, out);
    }
    write_end(t, out);
    return buf_ok(out, "the comparison", err);
}

enum qn_status compare_records(const struct comparison *c, struct buf *out, struct qn_err *err)
{
    struct tally t = {.n = 0};
    const bool a = json_bool(json_get(c->a, "diagnostic")),
               b = json_bool(json_get(c->b, "diagnostic"));
    if (a || b)
        QN_FAIL(err, QN_BAD_INPUT, "bench",
                "run %s is a diagnostic one: such runs do not enter comparisons", a ? "A" : "B");
    enum qn_status st = QN_OK;
    if (!view_open(c->a, &t.x) || !view_open(c->b, &t.y))
        st = err_set(err, QN_NO_MEMORY, "bench", "out of memory");
    if (st == QN_OK)
        st = compare_views(c, &t, out, err);
    view_close(&t.x);
    view_close(&t.y);
    return st;
}
