/*
 * report_html.c - a record as one HTML file; see report.h. The frame of the page is html_page.c's,
 * charts come from svg.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/html_page.h"
#include "bench/quantile.h"
#include "bench/report.h"
#include "bench/svg.h"
#include "bench/view.h"

enum { NAMES_MAX = 128, ARMS_MAX = 8, CURVE_POINTS = 101 };

/* ---- small parts ---------------------------------------------------------------------------- */

static int colour_of(const struct view *v, struct str arm)
{
    for (size_t i = 0; i < v->n_arm; i++)
        if (str_eq(v->arms[i], arm))
            return (int)i;
    return 7;
}

static void key(const struct view *v, struct buf *out)
{
    buf_addz(out, "<ul class=\"key\">");
    for (size_t i = 0; i < v->n_arm; i++) {
        buf_addf(out, "<li><i style=\"background:var(--c%zu)\"></i>", i % 8);
        svg_text(out, v->arms[i]);
        buf_addz(out, "</li>");
    }
    buf_addz(out, "</ul>\n");
}

static const char *hint_of(enum better b)
{
    return b == BETTER_HIGHER ? "longer is better" : b == BETTER_LOWER ? "shorter is better" : NULL;
}

/* ---- head ----------------------------------------------------------------------------------- */

static void head(const struct view *v, struct buf *out)
{
    const struct json *doc = v->doc, *m = json_get(doc, "machine");
    const struct json *model = json_get(json_get(doc, "manifest"), "model");
    struct str label = view_str(doc, "label"), status = view_str(doc, "status");
    struct str title = label.n ? label : STR_LIT("Servers side by side");
    page_open(out, title);
    buf_addz(out, "<p class=\"soft\">");
    svg_text(out, view_str(model, "name"));
    buf_addz(out, " · ");
    svg_text(out, view_str(m, "processor"));
    buf_addf(out, " · %.0f processors, %.0f threads a server · %.0f rounds · quern ",
             json_real(json_get(m, "processors")),
             json_real(json_get(json_get(doc, "workload"), "threads")),
             json_real(json_get(json_get(doc, "workload"), "rounds")));
    svg_text(out, view_str(doc, "version"));
    view_source(doc, out);
    buf_addz(out, "</p>\n<p><code>");
    svg_text(out, view_str(doc, "command"));
    buf_addz(out, "</code></p>\n");
    if (!str_eqz(status, "complete")) {
        buf_addz(out, "<p class=\"un\">This run was not completed: ");
        svg_text(out, status);
        buf_addz(out, ".</p>\n");
    }
    key(v, out);
}

static void marks(const struct json *doc, struct buf *out)
{
    const struct json *list = json_get(doc, "marks");
    if (!json_len(list))
        return;
    buf_addz(out, "<div class=\"note\"><b>What speaks against these figures</b><ul>");
    for (size_t i = 0; i < json_len(list); i++) {
        buf_addz(out, "<li>");
        svg_text(out, json_str(json_at(list, i)));
        buf_addz(out, "</li>");
    }
    buf_addz(out, "</ul></div>\n");
}

/* ---- bars of one figure --------------------------------------------------------------------- */

/* At most that many single values become dots. */
enum { DOTS_MAX = 64 };

static void bars(const struct view *v, struct str wl, struct str pt, struct str metric,
                 struct buf *out)
{
    struct svg_bar b[ARMS_MAX];
    double dots[ARMS_MAX][DOTS_MAX];
    const struct view_row *any = NULL;
    size_t n = 0;
    for (size_t i = 0; i < v->n_arm && n < ARMS_MAX; i++) {
        const struct view_row *r = view_find(v, v->arms[i], wl, pt, metric);
        if (!r)
            continue;
        any = r;
        size_t k = 0;
        for (; k < json_len(r->samples) && k < DOTS_MAX; k++)
            dots[n][k] = json_real(json_at(r->samples, k));
        b[n] = (struct svg_bar){.name = r->arm,
                                .value = r->median,
                                .min = r->min,
                                .max = r->max,
                                .colour = (int)i,
                                .dots = dots[n],
                                .n_dot = k};
        n++;
    }
    if (!any)
        return;
    page_card(out, any->title, hint_of(any->better));
    svg_bars(out, any->unit, b, n);
    buf_addz(out, "</div>\n");
}

/* ---- tables --------------------------------------------------------------------------------- */

static void value_cell(struct buf *out, const struct view_row *r, bool best)
{
    if (!r) {
        buf_addz(out, "<td class=\"soft\">–</td>");
        return;
    }
    buf_addf(out, "<td><span%s>", best ? " class=\"best\"" : "");
    view_number(out, r->median);
    buf_addz(out, "</span>");
    if (!r->stable)
        buf_addz(out, "<span class=\"un\" title=\"largest ÷ smallest is above 1.15\">†</span>");
    if (r->n > 1) {
        buf_addz(out, "<small>");
        view_number(out, r->min);
        buf_addz(out, "–");
        view_number(out, r->max);
        buf_addz(out, "</small>");
    }
    buf_addz(out, "</td>");
}

static void table_row(const struct view *v, struct str wl, struct str pt, struct str metric,
                      struct buf *out)
{
    const struct view_row *best = view_best(v, wl, pt, metric), *any = NULL;
    for (size_t i = 0; i < v->n_arm && !any; i++)
        any = view_find(v, v->arms[i], wl, pt, metric);
    if (!any)
        return;
    buf_addz(out, "<tr><td>");
    svg_text(out, any->title);
    buf_addz(out, "</td><td class=\"l soft\">");
    svg_text(out, any->unit);
    buf_addz(out, "</td>");
    for (size_t i = 0; i < v->n_arm; i++) {
        const struct view_row *r = view_find(v, v->arms[i], wl, pt, metric);
        value_cell(out, r, r && r == best);
    }
    buf_addz(out, "</tr>\n");
}

static void table_head(const struct view *v, const char *first, struct buf *out)
{
    buf_addf(out, "<div class=\"scroll\"><table><tr><th>%s</th><th class=\"l\">unit</th>", first);
    for (size_t i = 0; i < v->n_arm; i++) {
        buf_addz(out, "<th>");
        svg_text(out, v->arms[i]);
        buf_addz(out, "</th>");
    }
    buf_addz(out, "</tr>\n");
}

static void table(const struct view *v, struct str wl, struct str pt, struct buf *out)
{
    struct str metrics[NAMES_MAX];
    size_t n = view_metrics(v, wl, pt, metrics, NAMES_MAX);
    table_head(v, "figure", out);
    for (size_t i = 0; i < n; i++)
        table_row(v, wl, pt, metrics[i], out);
    buf_addz(out, "</table></div>\n");
}

/* ---- curves --------------------------------------------------------------------------------- */

struct curve {
    double x[ARMS_MAX][NAMES_MAX], y[ARMS_MAX][NAMES_MAX];
    struct svg_line lines[ARMS_MAX];
    size_t n;
};

/* One line per arm of a metric over the points of a closed loop. */
static void over_users(const struct view *v, const char *metric, const char *title, struct buf *out)
{
    struct str points[NAMES_MAX], wl = STR_LIT("load");
    size_t n = view_points(v, wl, points, NAMES_MAX), most = 0;
    struct curve *c = calloc(1, sizeof *c);
    struct str unit = {0};
    for (size_t i = 0; c && i < v->n_arm && i < ARMS_MAX; i++) {
        struct svg_line *l = &c->lines[c->n];
        *l = (struct svg_line){
            .name = v->arms[i], .x = c->x[c->n], .y = c->y[c->n], .colour = (int)i, .dots = true};
        for (size_t k = 0; k < n; k++) {
            const struct view_row *r = view_find(v, v->arms[i], wl, points[k], str_of(metric));
            if (r && view_users(points[k]) > 0) {
                c->x[c->n][l->n] = view_users(points[k]);
                c->y[c->n][l->n++] = r->median;
                unit = r->unit;
            }
        }
        most = l->n > most ? l->n : most;
        c->n += l->n > 0;
    }
    if (c && most > 1) {
        page_card(out, str_of(title), NULL);
        svg_lines(out,
                  &(struct svg_axes){.x_unit = STR_LIT("users"),
                                     .x_whole = true,
                                     .y_unit = unit,
                                     .label = str_of(title),
                                     .y_from_zero = true},
                  c->lines, c->n);
        buf_addz(out, "</div>\n");
    }
    free(c);
}

/* Share of requests (or gaps) that took at most so long, per arm, over all points of the load. */
static void collect(const struct json *requests, struct str arm, bool gaps, struct series *s)
{
    for (size_t i = 0; i < json_len(requests); i++) {
        const struct json *r = json_at(requests, i), *res = json_get(r, "result");
        const struct json *at = json_get(res, "output_event_ms");
        if (!str_eq(view_str(r, "arm"), arm) || json_get(r, "error"))
            continue;
        if (!gaps && json_has(r, "user"))
            series_add(s, json_real(json_get(res, "ttft_ms")));
        for (size_t k = 1; gaps && k < json_len(at); k++)
            series_add(s, json_real(json_at(at, k)) - json_real(json_at(at, k - 1)));
    }
}

static void distribution(const struct view *v, bool gaps, struct buf *out)
{
    struct str title = gaps ? STR_LIT("Gaps between events: distribution")
                            : STR_LIT("First token under load: distribution");
    struct curve *c = calloc(1, sizeof *c);
    for (size_t i = 0; c && i < v->n_arm && i < ARMS_MAX; i++) {
        struct series s = {0};
        collect(json_get(v->doc, "requests"), v->arms[i], gaps, &s);
        struct svg_line *l = &c->lines[c->n];
        *l = (struct svg_line){
            .name = v->arms[i], .x = c->x[c->n], .y = c->y[c->n], .colour = (int)i};
        for (int k = 0; s.n > 4 && k < CURVE_POINTS; k++) {
            double q = fmin(k / 100.0, 0.99);
            c->x[c->n][l->n] = quantile_of(s.v, s.n, q);
            c->y[c->n][l->n++] = 100 * q;
        }
        c->n += l->n > 0;
        series_free(&s);
    }
    if (c && c->n) {
        page_card(out, title, "further left is better; up to the 99th percentile");
        svg_lines(
            out,
            &(struct svg_axes){.x_unit = STR_LIT("ms"),
                               .y_unit = gaps ? STR_LIT("% of gaps") : STR_LIT("% of requests"),
                               .label = title,
                               .y_from_zero = true},
            c->lines, c->n);
        buf_addz(out, "</div>\n");
    }
    free(c);
}

/* ---- memory over time ----------------------------------------------------------------------- */

enum { RSS_POINTS = 1200 };

static void memory(const struct view *v, const char *workload, struct buf *out)
{
    const struct json *cells = json_get(v->doc, "cells");
    double *xy = calloc((size_t)ARMS_MAX * 2 * RSS_POINTS, sizeof *xy);
    struct svg_line lines[ARMS_MAX];
    size_t n = 0;
    char title[64];
    for (size_t i = 0; xy && i < json_len(cells) && n < ARMS_MAX; i++) {
        const struct json *c = json_at(cells, i), *rss = json_get(c, "rss");
        double *x = xy + n * 2 * RSS_POINTS, *y = x + RSS_POINTS;
        size_t k = 0;
        if (!str_eqz(view_str(c, "workload"), workload) || json_real(json_get(c, "round")) > 0)
            continue;
        for (; k < json_len(rss) && k < RSS_POINTS; k++) {
            x[k] = json_real(json_at(json_at(rss, k), 0)) / 1000;
            y[k] = json_real(json_at(json_at(rss, k), 1)) / 0x1p20;
        }
        lines[n] = (struct svg_line){.name = view_str(c, "arm"),
                                     .x = x,
                                     .y = y,
                                     .n = k,
                                     .colour = colour_of(v, view_str(c, "arm"))};
        n += k > 1;
    }
    snprintf(title, sizeof title, "Memory over time: %s, first round", workload);
    if (n) {
        page_card(out, str_of(title), "resident memory of the whole process tree");
        svg_lines(out,
                  &(struct svg_axes){.x_unit = STR_LIT("s"),
                                     .y_unit = STR_LIT("MiB"),
                                     .label = str_of(title),
                                     .y_from_zero = true},
                  lines, n);
        buf_addz(out, "</div>\n");
    }
    free(xy);
}

/* Memory at most in each phase of the first round, one column an arm. */
static void memory_by_phase(const struct view *v, struct str wl, struct buf *out)
{
    struct str phases[NAMES_MAX];
    size_t n = view_phases(v, wl, phases, NAMES_MAX);
    if (!n)
        return;
    buf_addz(out, "<details><summary>Memory at most in each phase, first round</summary>");
    table_head(v, "phase", out);
    for (size_t i = 0; i < n; i++) {
        buf_addz(out, "<tr><td>");
        svg_text(out, phases[i]);
        buf_addz(out, "</td><td class=\"l soft\">MiB</td>");
        for (size_t k = 0; k < v->n_arm; k++) {
            double mib = view_phase_mib(v, v->arms[k], wl, phases[i]);
            buf_addz(out, "<td>");
            if (mib > 0)
                view_number(out, mib);
            else
                buf_addz(out, "–");
            buf_addz(out, "</td>");
        }
        buf_addz(out, "</tr>\n");
    }
    buf_addz(out, "</table></div></details>\n");
}

/* ---- replay: a curve over turns -------------------------------------------------------------- */

static bool split_turn(struct str point, struct str *name, double *turn)
{
    size_t at = str_find(point, STR_LIT(" #"), 0);
    if (at == (size_t)-1)
        return false;
    char text[8];
    snprintf(text, sizeof text, "%.*s", 4, point.p + at + 2);
    *name = (struct str){point.p, at};
    *turn = strtod(text, NULL);
    return true;
}

static void over_turns(const struct view *v, struct str recording, const char *metric,
                       struct buf *out)
{
    struct str points[NAMES_MAX], wl = STR_LIT("replay"), name, unit = {0}, what = {0};
    size_t n = view_points(v, wl, points, NAMES_MAX);
    struct curve *c = calloc(1, sizeof *c);
    struct buf title = BUF_INIT;
    for (size_t i = 0; c && i < v->n_arm && i < ARMS_MAX; i++) {
        struct svg_line *l = &c->lines[c->n];
        *l = (struct svg_line){
            .name = v->arms[i], .x = c->x[c->n], .y = c->y[c->n], .colour = (int)i, .dots = true};
        for (size_t k = 0; k < n; k++) {
            const struct view_row *r = view_find(v, v->arms[i], wl, points[k], str_of(metric));
            double turn;
            if (!r || !split_turn(points[k], &name, &turn) || !str_eq(name, recording))
                continue;
            c->x[c->n][l->n] = turn;
            c->y[c->n][l->n++] = r->median;
            unit = r->unit;
            what = r->title;
        }
        c->n += l->n > 0;
    }
    if (c && c->n) {
        buf_add_str(&title, recording);
        buf_addz(&title, ": ");
        buf_add_str(&title, what);
        page_card(out, buf_str(&title), NULL);
        svg_lines(out,
                  &(struct svg_axes){.x_unit = STR_LIT("turn"),
                                     .x_whole = true,
                                     .y_unit = unit,
                                     .label = buf_str(&title),
                                     .y_from_zero = true},
                  c->lines, c->n);
        buf_addz(out, "</div>\n");
    }
    buf_free(&title);
    free(c);
}

static void replay_section(const struct view *v, struct buf *out)
{
    struct str points[NAMES_MAX], wl = STR_LIT("replay"), name;
    size_t n = view_points(v, wl, points, NAMES_MAX);
    double turn;
    buf_addz(out, "<div class=\"cards\">");
    for (size_t i = 0; i < n; i++) {
        if (!split_turn(points[i], &name, &turn) || turn != 1)
            continue;
        over_turns(v, name, "turn_ttft_ms", out);
        over_turns(v, name, "turn_recomputed_tokens", out);
    }
    memory(v, "replay", out);
    buf_addz(out, "</div>\n");
    for (size_t i = 0; i < n; i++) {
        if (split_turn(points[i], &name, &turn))
            continue;
        buf_addz(out, "<h3>");
        svg_text(out, points[i]);
        buf_addz(out, "</h3>");
        table(v, wl, points[i], out);
    }
}

/* ---- sections ------------------------------------------------------------------------------- */

static void matrix_section(const struct view *v, struct buf *out)
{
    struct str metrics[NAMES_MAX], wl = STR_LIT("matrix"), pt = STR_LIT("");
    size_t n = view_metrics(v, wl, pt, metrics, NAMES_MAX);
    buf_addz(out, "<div class=\"cards\">");
    for (size_t i = 0; i < n; i++) {
        const struct metric *m = NULL;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(metrics[i].n < 63 ? metrics[i].n : 63),
                 metrics[i].p);
        m = metric_find(name);
        if (m && m->headline)
            bars(v, wl, pt, metrics[i], out);
    }
    memory(v, "matrix", out);
    buf_addz(out, "</div>\n");
    table(v, wl, pt, out);
}

static void load_section(const struct view *v, struct buf *out)
{
    struct str points[NAMES_MAX], wl = STR_LIT("load");
    size_t n = view_points(v, wl, points, NAMES_MAX);
    buf_addz(out, "<p class=\"soft\">");
    view_limits(v->doc, out);
    buf_addz(out, "</p><div class=\"cards\">");
    over_users(v, "output_tps", "Tokens per second of all users together", out);
    over_users(v, "ttft_p50_ms", "First token, median", out);
    over_users(v, "tpot_p50_ms", "Time per token, median", out);
    over_users(v, "itl_p99_ms", "Gap between events, 99th percentile", out);
    over_users(v, "goodput", "Answers a second within the limits", out);
    over_users(v, "fairness", "Fairness between users: 1 = all alike", out);
    distribution(v, false, out);
    distribution(v, true, out);
    memory(v, "load", out);
    buf_addz(out, "</div>\n");
    for (size_t i = 0; i < n; i++) {
        buf_addz(out, "<details open><summary>");
        svg_text(out, points[i]);
        buf_addz(out, "</summary>");
        table(v, wl, points[i], out);
        buf_addz(out, "</details>\n");
    }
}

struct loss_list {
    struct buf *out;
    struct view_noise noise;
    int n;
};

static void add_loss(void *arg, const struct view_row *ours, const struct view_row *theirs)
{
    struct loss_list *l = arg;
    struct buf *out = l->out;
    if (!l->n++)
        buf_addz(out,
                 "<div class=\"scroll\"><table><tr><th>figure</th><th class=\"l\">where</th>"
                 "<th class=\"l\">peer</th><th>peer</th><th>quern</th><th>times as good</th></tr>");
    buf_addz(out, "<tr><td>");
    svg_text(out, theirs->title);
    buf_addz(out, "</td><td class=\"l\">");
    svg_text(out, theirs->point.n ? theirs->point : theirs->workload);
    buf_addz(out, "</td><td class=\"l\">");
    svg_text(out, theirs->arm);
    buf_addz(out, "</td><td>");
    view_number(out, theirs->median);
    buf_addz(out, "</td><td>");
    view_number(out, ours->median);
    buf_addc(out, ' ');
    svg_text(out, ours->unit);
    buf_addf(out, "</td><td>%.2f<small>%s</small></td></tr>\n", view_gain(theirs, ours),
             view_verdict_text(view_differ(&l->noise, theirs, ours)));
}

static void losses(const struct view *v, struct buf *out)
{
    struct loss_list l = {.out = out, .noise = view_noise(v, NULL)};
    struct str own = view_own_arm(v);
    bool peers = false;
    for (size_t i = 0; i < v->n_arm; i++)
        peers |= !view_is_own(v->arms[i]);
    if (!peers || !view_is_own(own))
        return;
    buf_addz(out, "<h2>Where a peer wins</h2>\n");
    view_losses(v, own, add_loss, &l);
    buf_addz(out, l.n ? "</table></div>\n" : "<p>Nowhere in this run.</p>\n");
}

/* Objects of a list as a table of three texts. */
static void text_table(const struct json *list, const char *title, const char *const *keys,
                       int n_key, struct buf *out)
{
    if (!json_len(list))
        return;
    buf_addf(out, "<h2>%s</h2>\n<div class=\"scroll\"><table><tr>", title);
    for (int k = 0; k < n_key; k++)
        buf_addf(out, "<th class=\"l\">%s</th>", keys[k]);
    buf_addz(out, "</tr>\n");
    for (size_t i = 0; i < json_len(list); i++) {
        if (json_real(json_get(json_at(list, i), "round")) > 0)
            continue;
        buf_addz(out, "<tr>");
        for (int k = 0; k < n_key; k++) {
            buf_addf(out, "<td class=\"l%s\">", k == n_key - 1 ? " w" : "");
            svg_text(out, view_str(json_at(list, i), keys[k]));
            buf_addz(out, "</td>");
        }
        buf_addz(out, "</tr>\n");
    }
    buf_addz(out, "</table></div>\n");
}

static void absent_arms(const struct json *arms, struct buf *out)
{
    bool any = false;
    for (size_t i = 0; i < json_len(arms); i++) {
        if (json_bool(json_get(json_at(arms, i), "ran")))
            continue;
        buf_addz(out, any ? "<li>" : "<h2>What did not run</h2><ul><li>");
        svg_text(out, view_str(json_at(arms, i), "name"));
        buf_addz(out, ": ");
        svg_text(out, view_str(json_at(arms, i), "why_not"));
        buf_addz(out, "</li>");
        any = true;
    }
    buf_addz(out, any ? "</ul>\n" : "");
}

void report_html(const struct json *doc, struct buf *out)
{
    static const char *const parity_keys[3] = {"probe", "arm", "text"};
    static const char *const failure_keys[4] = {"arm", "workload", "phase", "message"};
    struct view v;
    if (!view_open(doc, &v)) {
        out->failed = true;
        return;
    }
    head(&v, out);
    marks(doc, out);
    buf_addz(out,
             "<p class=\"soft\">Medians; small figures and whiskers: smallest and largest value; "
             "dots: single values; † largest ÷ smallest is above 1.15.</p>\n");
    for (size_t i = 0; i < v.n_workload; i++) {
        buf_addz(out, "<h2>");
        svg_text(out, v.workloads[i]);
        buf_addz(out, "</h2>\n");
        if (str_eqz(v.workloads[i], "matrix"))
            matrix_section(&v, out);
        else if (str_eqz(v.workloads[i], "load"))
            load_section(&v, out);
        else
            replay_section(&v, out);
        memory_by_phase(&v, v.workloads[i], out);
    }
    losses(&v, out);
    text_table(json_get(doc, "parity"), "Do they say the same?", parity_keys, 3, out);
    absent_arms(json_get(doc, "arms"), out);
    text_table(json_get(doc, "failures"), "Failures", failure_keys, 4, out);
    page_close(out);
    view_close(&v);
}
