/*
 * history_html.c - history_page of history.h: figures over the runs, a chart for each with the
 * range of every run's values, a sentence about the newest change, and a table of the runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench/history.h"
#include "bench/html_page.h"
#include "bench/metric.h"
#include "bench/svg.h"
#include "bench/view.h"

enum { ROWS_MAX = 200000, ARMS_MAX = 8, RUNS_MAX = 400 };

/* A kept figure with strings of its own. */
struct kept {
    char *group, *arm, *workload, *point, *metric, *unit; /* group: model and machine */
    size_t rank;                                          /* of the metric in its table */
    int64_t run;
    struct noise_figure f;
};

struct kept_list {
    struct kept *v;
    size_t n, cap;
    const char *metric; /* only this one; NULL: the headline ones */
    bool failed;
};

static bool is_shown(const struct kept_list *l, const struct history_row *r)
{
    const struct metric *m = metric_find(r->metric);
    if (l->metric)
        return true;
    return m && m->headline && !strstr(r->point, " #"); /* single turns would be a hundred charts */
}

static size_t rank_of(const char *name)
{
    size_t n;
    const struct metric *list = metric_list(&n), *m = metric_find(name);
    return m ? (size_t)(m - list) : n;
}

static void keep(void *arg, const struct history_row *r)
{
    struct kept_list *l = arg;
    struct buf group = BUF_INIT;
    if (!is_shown(l, r) || l->n == ROWS_MAX)
        return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct kept *v = realloc(l->v, cap * sizeof *v);
        l->failed |= !v;
        if (!v)
            return;
        l->v = v;
        l->cap = cap;
    }
    buf_addf(&group, "%s, %s", *r->model ? r->model : "model unknown", r->machine);
    struct kept *k = &l->v[l->n++];
    *k = (struct kept){.group = strdup(buf_z(&group)),
                       .arm = strdup(r->arm),
                       .workload = strdup(r->workload),
                       .point = strdup(r->point),
                       .metric = strdup(r->metric),
                       .unit = strdup(r->unit),
                       .rank = rank_of(r->metric),
                       .run = r->run,
                       .f = r->f};
    l->failed |= !k->group || !k->arm || !k->workload || !k->point || !k->metric || !k->unit;
    buf_free(&group);
}

static void forget(struct kept_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        char *const all[] = {l->v[i].group, l->v[i].arm,    l->v[i].workload,
                             l->v[i].point, l->v[i].metric, l->v[i].unit};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            free(all[k]);
    }
    free(l->v);
}

/* Where two figures begin to differ in what they are figures of. */
enum level { SAME_CHART, OTHER_METRIC, OTHER_POINT, OTHER_GROUP };

static enum level differ(const struct kept *a, const struct kept *b)
{
    if (strcmp(a->group, b->group) != 0)
        return OTHER_GROUP;
    if (strcmp(a->workload, b->workload) != 0 || strcmp(a->point, b->point) != 0)
        return OTHER_POINT;
    return strcmp(a->metric, b->metric) != 0 ? OTHER_METRIC : SAME_CHART;
}

/* Figures of one chart lie together, in the order of the runs; points by their numbers. */
static int by_place(const void *pa, const void *pb)
{
    const struct kept *a = pa, *b = pb;
    int c = strcmp(a->group, b->group);
    c = c ? c : strcmp(a->workload, b->workload);
    c = c ? c : strverscmp(a->point, b->point);
    c = c ? c : (a->rank > b->rank) - (a->rank < b->rank);
    c = c ? c : strcmp(a->metric, b->metric);
    c = c ? c : (a->run > b->run) - (a->run < b->run);
    return c ? c : strcmp(a->arm, b->arm);
}

/* ---- a chart -------------------------------------------------------------------------------- */

struct chart {
    double x[ARMS_MAX][RUNS_MAX], y[ARMS_MAX][RUNS_MAX], lo[ARMS_MAX][RUNS_MAX],
        hi[ARMS_MAX][RUNS_MAX];
    struct svg_line lines[ARMS_MAX];
    const struct kept *last[ARMS_MAX], *before[ARMS_MAX];
};

/* Arms keep their colour over a whole group. */
struct arms {
    const char *v[ARMS_MAX];
    size_t n;
};

static size_t arm_index(struct arms *a, const char *name)
{
    size_t i = 0;
    while (i < a->n && strcmp(a->v[i], name) != 0)
        i++;
    if (i == a->n && i < ARMS_MAX)
        a->v[a->n++] = name;
    return i;
}

static void add_point(struct chart *c, size_t i, const struct kept *k)
{
    struct svg_line *line = &c->lines[i];
    *line = (struct svg_line){.name = str_of(k->arm),
                              .x = c->x[i],
                              .y = c->y[i],
                              .lo = c->lo[i],
                              .hi = c->hi[i],
                              .n = line->n,
                              .colour = (int)i,
                              .dots = true};
    if (line->n == RUNS_MAX) { /* the newest count */
        double *const all[] = {c->x[i], c->y[i], c->lo[i], c->hi[i]};
        for (size_t j = 0; j < 4; j++)
            memmove(all[j], all[j] + 1, (RUNS_MAX - 1) * sizeof(double));
        line->n--;
    }
    size_t at = line->n++;
    c->x[i][at] = (double)k->run;
    c->y[i][at] = k->f.median;
    c->lo[i][at] = k->f.min;
    c->hi[i][at] = k->f.max;
    c->before[i] = c->last[i];
    c->last[i] = k;
}

static void write_change(const struct chart *c, size_t i, struct buf *out)
{
    const struct kept *now = c->last[i], *past = c->before[i];
    buf_addf(out, "<p class=\"soft\"><i class=\"sw c%d\"></i>", c->lines[i].colour % 8);
    svg_text(out, c->lines[i].name);
    buf_addz(out, ": ");
    view_number(out, now->f.median);
    if (past) {
        buf_addf(out, ", against run %lld", (long long)past->run);
        history_change(out, &now->f, &past->f, str_of(now->unit));
    }
    buf_addz(out, "</p>");
}

/* The chart of the n figures at v. */
static void write_chart(const struct kept *v, size_t n, struct arms *arms, struct buf *out)
{
    struct chart *c = calloc(1, sizeof *c);
    const struct metric *m = metric_find(v->metric);
    struct str title = str_of(m ? m->title : v->metric);
    if (!c) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = arm_index(arms, v[i].arm);
        if (at < ARMS_MAX)
            add_point(c, at, &v[i]);
    }
    page_card(out, title,
              m && m->better == BETTER_HIGHER  ? "higher is better"
              : m && m->better == BETTER_LOWER ? "lower is better"
                                               : NULL);
    svg_lines(out,
              &(struct svg_axes){.x_unit = STR_LIT("run"),
                                 .x_whole = true,
                                 .y_unit = str_of(v->unit),
                                 .label = title,
                                 .y_from_zero = true},
              c->lines, ARMS_MAX);
    for (size_t i = 0; i < ARMS_MAX; i++)
        if (c->last[i])
            write_change(c, i, out);
    page_card_end(out);
    free(c);
}

static void write_point(const struct kept *k, struct buf *out)
{
    buf_addz(out, "<h3>");
    svg_text(out, str_of(k->workload));
    if (*k->point) {
        buf_addz(out, ", ");
        svg_text(out, str_of(k->point));
    }
    buf_addz(out, "</h3><div class=\"cards\">");
}

static void write_charts(const struct kept_list *l, struct buf *out)
{
    struct arms arms = {.n = 0};
    for (size_t i = 0, n; i < l->n; i += n) {
        enum level level = i ? differ(&l->v[i - 1], &l->v[i]) : OTHER_GROUP;
        if (i && level >= OTHER_POINT)
            buf_addz(out, "</div>\n");
        if (level == OTHER_GROUP) {
            arms.n = 0;
            buf_addz(out, "<h2>");
            svg_text(out, str_of(l->v[i].group));
            buf_addz(out, "</h2>\n");
        }
        if (level >= OTHER_POINT)
            write_point(&l->v[i], out);
        for (n = 1; i + n < l->n && differ(&l->v[i], &l->v[i + n]) == SAME_CHART;)
            n++;
        write_chart(&l->v[i], n, &arms, out);
    }
    buf_addz(out, l->n ? "</div>\n" : "<p>No run has such a figure.</p>\n");
}

/* ---- the runs ------------------------------------------------------------------------------- */

static void write_run(void *arg, const struct history_run *r)
{
    struct buf *out = arg;
    char date[40];
    time_t t = (time_t)r->began_unix;
    struct tm tm;
    localtime_r(&t, &tm);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
    buf_addf(out, "<tr><td>%lld</td><td class=\"l\">%s</td>", (long long)r->run, date);
    const char *const texts[] = {r->model, r->label, r->version, r->status};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        buf_addf(out, "<td class=\"l%s\">", i == 1 ? " w" : "");
        svg_text(out, str_of(texts[i]));
        buf_addz(out, "</td>");
    }
    buf_addf(out, "<td class=\"l\"><code>%.12s</code></td><td>%d</td></tr>\n", r->commit, r->marks);
}

enum qn_status history_page(struct history *h, const struct history_figure *f, struct buf *out,
                            struct qn_err *err)
{
    struct kept_list l = {.metric = f->metric};
    enum qn_status st = history_each(h, f, keep, &l, err);
    if (st == QN_OK && l.failed)
        st = err_set(err, QN_NO_MEMORY, "bench", "out of memory for the history's figures");
    if (st == QN_OK) {
        page_open(out, STR_LIT("Measurements over time"));
        buf_addz(out, "<p class=\"soft\">Dots: the median of a run; whiskers: its smallest and "
                      "largest value. A change counts when it is larger than what both runs "
                      "scattered. Diagnostic runs are left out.</p>\n");
        if (l.n)
            qsort(l.v, l.n, sizeof *l.v, by_place);
        write_charts(&l, out);
        buf_addz(out,
                 "<h2>Runs</h2>\n<div class=\"scroll\"><table><tr><th>run</th>"
                 "<th class=\"l\">date</th><th class=\"l\">model</th><th class=\"l\">label</th>"
                 "<th class=\"l\">quern</th><th class=\"l\">status</th>"
                 "<th class=\"l\">commit</th><th>marks</th></tr>\n");
        st = history_runs(h, write_run, out, err);
        buf_addz(out, "</table></div>\n");
        page_close(out);
    }
    forget(&l);
    return st == QN_OK ? buf_ok(out, "the page", err) : st;
}
