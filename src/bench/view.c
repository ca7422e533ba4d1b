/* view.c - see view.h. */
#include "bench/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/noise.h"
#include "bench/quantile.h"

static void add_name(struct str *list, size_t *n, struct str s)
{
    for (size_t i = 0; i < *n; i++)
        if (str_eq(list[i], s))
            return;
    if (*n < VIEW_NAMES_MAX)
        list[(*n)++] = s;
}

static struct view_row read_row(const struct json *o)
{
    struct str better = json_str(json_get(o, "better"));
    return (struct view_row){
        .arm = json_str(json_get(o, "arm")),
        .workload = json_str(json_get(o, "workload")),
        .point = json_str(json_get(o, "point")),
        .metric = json_str(json_get(o, "metric")),
        .title = json_str(json_get(o, "title")),
        .unit = json_str(json_get(o, "unit")),
        .better = str_eqz(better, "higher")  ? BETTER_HIGHER
                  : str_eqz(better, "lower") ? BETTER_LOWER
                                             : BETTER_NEITHER,
        .headline = json_bool(json_get(o, "headline")),
        .stable = json_bool(json_get(o, "stable")),
        .median = json_real(json_get(o, "median")),
        .min = json_real(json_get(o, "min")),
        .max = json_real(json_get(o, "max")),
        .mad = json_real(json_get(o, "mad")),
        .n = (size_t)json_real(json_get(o, "n")),
        .samples = json_get(o, "samples"),
    };
}

bool view_open(const struct json *doc, struct view *v)
{
    const struct json *list = json_get(doc, "summary");
    size_t n = json_len(list);
    *v = (struct view){.doc = doc};
    v->rows = calloc(n + 1, sizeof *v->rows);
    if (!v->rows)
        return false;
    for (size_t i = 0; i < n; i++) {
        v->rows[v->n_row++] = read_row(json_at(list, i));
        add_name(v->arms, &v->n_arm, v->rows[i].arm);
        add_name(v->workloads, &v->n_workload, v->rows[i].workload);
    }
    return true;
}

void view_close(struct view *v)
{
    free(v->rows);
    v->rows = NULL;
}

static size_t add_unique(struct str *out, size_t n, size_t max, struct str s)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(out[i], s))
            return n;
    if (n < max)
        out[n++] = s;
    return n;
}

size_t view_points(const struct view *v, struct str workload, struct str *out, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n_row; i++)
        if (str_eq(v->rows[i].workload, workload))
            n = add_unique(out, n, max, v->rows[i].point);
    return n;
}

/* In the order of metric.h's table, whichever arm had them first. */
size_t view_metrics(const struct view *v, struct str workload, struct str point, struct str *out,
                    size_t max)
{
    size_t n = 0, n_metric;
    const struct metric *m = metric_list(&n_metric);
    for (size_t k = 0; k < n_metric; k++)
        for (size_t i = 0; i < v->n_row; i++)
            if (str_eq(v->rows[i].workload, workload) && str_eq(v->rows[i].point, point) &&
                str_eqz(v->rows[i].metric, m[k].name))
                n = add_unique(out, n, max, v->rows[i].metric);
    return n;
}

const struct view_row *view_find(const struct view *v, struct str arm, struct str workload,
                                 struct str point, struct str metric)
{
    for (size_t i = 0; i < v->n_row; i++) {
        const struct view_row *r = &v->rows[i];
        if (str_eq(r->metric, metric) && str_eq(r->arm, arm) && str_eq(r->point, point) &&
            str_eq(r->workload, workload))
            return r;
    }
    return NULL;
}

double view_gain(const struct view_row *a, const struct view_row *b)
{
    if (a->better == BETTER_NEITHER || !(a->median > 0) || !(b->median > 0))
        return (double)NAN;
    return a->better == BETTER_HIGHER ? a->median / b->median : b->median / a->median;
}

const struct view_row *view_best(const struct view *v, struct str workload, struct str point,
                                 struct str metric)
{
    const struct view_row *best = NULL;
    bool alone = false; /* nobody is as good as the best */
    size_t n = 0;
    for (size_t i = 0; i < v->n_arm; i++) {
        const struct view_row *r = view_find(v, v->arms[i], workload, point, metric);
        n += r != NULL;
        if (!r || r->better == BETTER_NEITHER || !(r->median > 0))
            continue;
        double gain = best ? view_gain(r, best) : INFINITY;
        alone = gain > 1 || (alone && gain < 1);
        best = gain > 1 ? r : best;
    }
    return alone && n > 1 ? best : NULL;
}

bool view_is_timed(struct str unit)
{
    return str_eqz(unit, "ms") || str_eqz(unit, "tok/s") || str_eqz(unit, "req/s");
}

static struct noise_figure figure_of(const struct view_row *r)
{
    return (struct noise_figure){r->n, r->median, r->min, r->max};
}

struct view_noise view_noise(const struct view *a, const struct view *b)
{
    const struct view *const both[2] = {a, b};
    struct series time = {0}, other = {0};
    struct view_noise n = {.n_test = b && b->n_row < a->n_row ? b->n_row : a->n_row};
    for (int k = 0; k < 2 && both[k]; k++)
        for (size_t i = 0; i < both[k]->n_row; i++) {
            const struct view_row *r = &both[k]->rows[i];
            struct noise_figure f = figure_of(r);
            series_add(view_is_timed(r->unit) ? &time : &other, noise_of(&f));
        }
    n.time = noise_usual(time.v, time.n);
    n.other = other.n ? noise_usual(other.v, other.n) : NOISE_OTHER;
    series_free(&time);
    series_free(&other);
    return n;
}

enum view_verdict view_differ(const struct view_noise *n, const struct view_row *a,
                              const struct view_row *b)
{
    struct noise_figure x = figure_of(a), y = figure_of(b);
    double usual = view_is_timed(a->unit) ? n->time : n->other;
    if (noise_apart(&x, &y, usual, n->n_test))
        return VERDICT_APART;
    return a->min > b->max || b->min > a->max ? VERDICT_FEW : VERDICT_SAME;
}

const char *view_verdict_text(enum view_verdict v)
{
    return v == VERDICT_APART ? ""
           : v == VERDICT_FEW ? "too few values to tell"
                              : "within the noise";
}

void view_losses(const struct view *v, struct str arm,
                 void (*fn)(void *arg, const struct view_row *ours, const struct view_row *theirs),
                 void *arg)
{
    for (size_t i = 0; i < v->n_row; i++) {
        const struct view_row *ours = &v->rows[i];
        if (!str_eq(ours->arm, arm))
            continue;
        for (size_t j = 0; j < v->n_arm; j++) {
            const struct view_row *t =
                view_find(v, v->arms[j], ours->workload, ours->point, ours->metric);
            if (t && !view_is_own(v->arms[j]) && view_gain(t, ours) > 1)
                fn(arg, ours, t);
        }
    }
}

bool view_is_own(struct str arm)
{
    return str_eqz(arm, "quern") || str_starts(arm, STR_LIT("quern-"));
}

struct str view_own_arm(const struct view *v)
{
    for (size_t i = 0; i < v->n_arm; i++)
        if (str_eqz(v->arms[i], "quern"))
            return v->arms[i];
    return v->n_arm ? v->arms[0] : STR_LIT("");
}

void view_number(struct buf *out, double x)
{
    double a = fabs(x);
    buf_addf(out, a >= 100 ? "%.0f" : a >= 10 ? "%.1f" : a >= 1 || a == 0 ? "%.2f" : "%.3f", x);
}

struct str view_str(const struct json *o, const char *key)
{
    return json_str(json_get(o, key));
}

double view_users(struct str point)
{
    char text[32], *end;
    snprintf(text, sizeof text, "%.*s", (int)(point.n < 31 ? point.n : 31), point.n ? point.p : "");
    double users = strtod(text, &end);
    return end != text && strncmp(end, " user", 5) == 0 ? users : 0;
}

static bool is_first_cell(const struct json *cell, struct str workload)
{
    return str_eq(view_str(cell, "workload"), workload) &&
           !(json_real(json_get(cell, "round")) > 0);
}

size_t view_phases(const struct view *v, struct str workload, struct str *out, size_t max)
{
    const struct json *cells = json_get(v->doc, "cells");
    size_t n = 0;
    for (size_t i = 0; i < json_len(cells); i++) {
        struct json_iter it = {0};
        const struct json *legs = json_get(json_at(cells, i), "peak_rss_by_phase");
        if (is_first_cell(json_at(cells, i), workload))
            while (json_next(legs, &it))
                n = add_unique(out, n, max, it.key);
    }
    return n;
}

double view_phase_mib(const struct view *v, struct str arm, struct str workload, struct str phase)
{
    const struct json *cells = json_get(v->doc, "cells");
    for (size_t i = 0; i < json_len(cells); i++) {
        const struct json *c = json_at(cells, i);
        struct json_iter it = {0};
        if (!is_first_cell(c, workload) || !str_eq(view_str(c, "arm"), arm))
            continue;
        while (json_next(json_get(c, "peak_rss_by_phase"), &it))
            if (str_eq(it.key, phase))
                return json_real(it.val) / 0x1p20;
    }
    return (double)NAN;
}

void view_limits(const struct json *doc, struct buf *out)
{
    static const char *const names[][2] = {{"limit_ttft_ms", "first token"},
                                           {"limit_tpot_ms", "time per token"},
                                           {"limit_e2e_ms", "whole answer"}};
    const char *between = "Answers within the limits: ";
    for (size_t i = 0; i < 3; i++) {
        double ms = json_real(json_get(json_get(doc, "workload"), names[i][0]));
        if (!(ms > 0))
            continue;
        buf_addf(out, "%s%s at most %g ms", between, names[i][1], ms);
        between = ", ";
    }
    buf_addz(out, *between == ',' ? "." : "No limits were set: every answer is within them.");
}

/* At least twelve digits, so that they need no escaping. */
static bool is_hex(struct str s)
{
    for (size_t i = 0; i < 12; i++)
        if (i >= s.n || !strchr("0123456789abcdef", s.p[i]) || !s.p[i])
            return false;
    return true;
}

void view_source(const struct json *doc, struct buf *out)
{
    const struct json *s = json_get(json_get(doc, "manifest"), "source");
    struct str commit = view_str(s, "commit"), sum = view_str(s, "sha256");
    if (is_hex(commit))
        buf_addf(out, " (commit %.12s%s)", commit.p,
                 json_bool(json_get(s, "changed")) ? ", changed" : "");
    else if (is_hex(sum))
        buf_addf(out, " (sources %.12s)", sum.p);
}
