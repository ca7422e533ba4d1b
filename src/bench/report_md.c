/* report_md.c - a record as Markdown; see report.h. Text from outside is kept out of the markup. */
#include <math.h>
#include <stdio.h>

#include "bench/report.h"
#include "bench/view.h"

enum { NAMES_MAX = 128 };

/* One line of plain text: what could be markup is escaped. */
void report_plain(struct buf *out, struct str s, size_t most)
{
    for (size_t i = 0; i < s.n && i < most; i++) {
        char c = s.p[i];
        if (c == '\n' || c == '\r' || c == '\t')
            c = ' ';
        if (strchr("|*_`<>[]#\\", c))
            buf_addc(out, '\\');
        buf_addc(out, c);
    }
    if (s.n > most)
        buf_addz(out, "...");
}

/* ---- head ----------------------------------------------------------------------------------- */

static void head(const struct json *doc, struct buf *out)
{
    const struct json *m = json_get(doc, "machine"), *w = json_get(doc, "workload");
    const struct json *model = json_get(json_get(doc, "manifest"), "model");
    struct str label = view_str(doc, "label"), status = view_str(doc, "status");
    buf_addz(out, "# Measurement");
    if (label.n)
        buf_addz(out, ": ");
    report_plain(out, label, 200);
    buf_addz(out, "\n\n");
    if (view_str(model, "name").n) {
        buf_addz(out, "Model ");
        report_plain(out, view_str(model, "name"), 100);
        buf_addz(out, "; ");
    }
    report_plain(out, view_str(m, "processor"), 100);
    buf_addf(out, ", %.0f processors, %.0f threads a server; %.0f round(s); quern ",
             json_real(json_get(m, "processors")), json_real(json_get(w, "threads")),
             json_real(json_get(w, "rounds")));
    report_plain(out, view_str(doc, "version"), 20);
    view_source(doc, out);
    buf_addf(out, "; %.0f s in all", json_real(json_get(doc, "seconds")));
    if (!str_eqz(status, "complete")) {
        buf_addz(out, "; **");
        report_plain(out, status, 20);
        buf_addz(out, "**");
    }
    buf_addz(out, ".\n\nCommand: `");
    buf_add_str(out, view_str(doc, "command"));
    buf_addz(out, "`\n");
    if (json_bool(json_get(doc, "diagnostic")))
        buf_addz(out, "\n**Diagnostic run: not for comparisons.**\n");
}

static void marks(const struct json *doc, struct buf *out)
{
    const struct json *list = json_get(doc, "marks");
    if (!json_len(list))
        return;
    buf_addz(out, "\nWhat speaks against these figures:\n\n");
    for (size_t i = 0; i < json_len(list); i++) {
        buf_addz(out, "- ");
        report_plain(out, json_str(json_at(list, i)), 300);
        buf_addc(out, '\n');
    }
}

/* ---- tables --------------------------------------------------------------------------------- */

static void cell_text(struct buf *out, const struct view_row *r, bool best)
{
    if (!r) {
        buf_addz(out, " - |");
        return;
    }
    buf_addz(out, best ? " **" : " ");
    view_number(out, r->median);
    buf_addz(out, best ? "**" : "");
    if (r->n > 1) {
        buf_addz(out, " (");
        view_number(out, r->min);
        buf_addz(out, "–");
        view_number(out, r->max);
        buf_addc(out, ')');
    }
    buf_addz(out, r->stable ? " |" : " † |");
}

static void table_head(const struct view *v, const char *first, struct buf *out)
{
    buf_addf(out, "\n| %s | unit |", first);
    for (size_t i = 0; i < v->n_arm; i++) {
        buf_addc(out, ' ');
        report_plain(out, v->arms[i], 60);
        buf_addz(out, " |");
    }
    buf_addz(out, "\n|---|---|");
    for (size_t i = 0; i < v->n_arm; i++)
        buf_addz(out, "---|");
    buf_addc(out, '\n');
}

static void metric_row(const struct view *v, struct str wl, struct str pt, struct str metric,
                       struct buf *out)
{
    const struct view_row *best = view_best(v, wl, pt, metric);
    const struct view_row *any = NULL;
    for (size_t i = 0; i < v->n_arm && !any; i++)
        any = view_find(v, v->arms[i], wl, pt, metric);
    buf_addz(out, "| ");
    report_plain(out, any->title, 80);
    buf_addz(out, " | ");
    report_plain(out, any->unit, 20);
    buf_addz(out, " |");
    for (size_t i = 0; i < v->n_arm; i++) {
        const struct view_row *r = view_find(v, v->arms[i], wl, pt, metric);
        cell_text(out, r, r && r == best);
    }
    buf_addc(out, '\n');
}

static void table(const struct view *v, struct str wl, struct str pt, struct buf *out)
{
    struct str metrics[NAMES_MAX];
    size_t n = view_metrics(v, wl, pt, metrics, NAMES_MAX);
    table_head(v, "", out);
    for (size_t i = 0; i < n; i++)
        metric_row(v, wl, pt, metrics[i], out);
}

/* Turns of a replay: one metric a table would be 20 tables; one row a turn reads better. */
static void turn_table(const struct view *v, struct str wl, const char *metric, const char *title,
                       struct buf *out)
{
    struct str points[NAMES_MAX];
    size_t n = view_points(v, wl, points, NAMES_MAX);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        bool there = false;
        for (size_t k = 0; k < v->n_arm; k++)
            there |= view_find(v, v->arms[k], wl, points[i], str_of(metric)) != NULL;
        if (!there)
            continue;
        if (!any) {
            buf_addf(out, "\n%s\n", title);
            table_head(v, "turn", out);
        }
        any = true;
        buf_addz(out, "| ");
        report_plain(out, points[i], 48);
        buf_addz(out, strstr(metric, "_ms") ? " | ms |" : " | tokens |");
        for (size_t k = 0; k < v->n_arm; k++) {
            const struct view_row *r = view_find(v, v->arms[k], wl, points[i], str_of(metric));
            cell_text(out, r, r && r == view_best(v, wl, points[i], str_of(metric)));
        }
        buf_addc(out, '\n');
    }
}

/* The curve of a cell's memory as a row of blocks: each stands for an equal part of the time. */
static void write_curve(const struct json *rss, double most, struct buf *out)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    enum { PARTS = 24 };
    double end = json_real(json_at(json_at(rss, json_len(rss) - 1), 0));
    size_t at = 0;
    for (int i = 0; i < PARTS; i++) {
        double peak = 0;
        do
            peak = fmax(peak, json_real(json_at(json_at(rss, at), 1)));
        while (at + 1 < json_len(rss) &&
               json_real(json_at(json_at(rss, at + 1), 0)) <= end * (i + 1) / PARTS && ++at);
        buf_addz(out, blocks[most > 0 ? (int)fmin(7, fmax(0, 8 * peak / most)) : 0]);
    }
}

/* Memory over the time of each first cell of a workload. */
static void memory(const struct view *v, struct str wl, struct buf *out)
{
    const struct json *cells = json_get(v->doc, "cells");
    double most = 0;
    bool any = false;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < json_len(cells); i++) {
            const struct json *c = json_at(cells, i), *rss = json_get(c, "rss");
            double peak = json_real(json_get(c, "peak_rss_bytes"));
            if (!str_eq(view_str(c, "workload"), wl) || json_real(json_get(c, "round")) > 0 ||
                json_len(rss) < 2 || !(peak > 0))
                continue;
            most = fmax(most, peak);
            if (!pass)
                continue;
            if (!any)
                buf_addz(
                    out,
                    "\n### Memory over time, first round\n\n| arm | when ready, MiB | at most, "
                    "MiB | over the time |\n|---|---|---|---|\n");
            any = true;
            buf_addz(out, "| ");
            report_plain(out, view_str(c, "arm"), 60);
            buf_addf(out, " | %.0f | %.0f | ", json_real(json_get(c, "idle_rss_bytes")) / 0x1p20,
                     peak / 0x1p20);
            write_curve(rss, most, out);
            buf_addz(out, " |\n");
        }
}

static bool is_turn(struct str point)
{
    return str_find(point, STR_LIT(" #"), 0) != (size_t)-1;
}

static void workload(const struct view *v, struct str wl, struct buf *out)
{
    struct str points[NAMES_MAX];
    size_t n = view_points(v, wl, points, NAMES_MAX);
    buf_addz(out, "\n## ");
    report_plain(out, wl, 40);
    buf_addc(out, '\n');
    if (str_eqz(wl, "load")) {
        buf_addc(out, '\n');
        view_limits(v->doc, out);
        buf_addc(out, '\n');
    }
    for (size_t i = 0; i < n; i++) {
        if (is_turn(points[i]))
            continue;
        if (points[i].n) {
            buf_addz(out, "\n### ");
            report_plain(out, points[i], 60);
            buf_addc(out, '\n');
        }
        table(v, wl, points[i], out);
    }
    turn_table(v, wl, "turn_ttft_ms", "### First token of each turn", out);
    turn_table(v, wl, "turn_recomputed_tokens", "### Prompt tokens recomputed in each turn", out);
    memory(v, wl, out);
}

/* ---- what is said in words ------------------------------------------------------------------ */

struct loss_list {
    struct buf *out;
    struct view_noise noise;
    int n;
};

static void add_loss(void *arg, const struct view_row *ours, const struct view_row *theirs)
{
    struct loss_list *l = arg;
    buf_addz(l->out, "- ");
    report_plain(l->out, theirs->title, 60);
    if (theirs->point.n) {
        buf_addz(l->out, ", ");
        report_plain(l->out, theirs->point, 48);
    }
    buf_addz(l->out, ": ");
    report_plain(l->out, theirs->arm, 60);
    buf_addc(l->out, ' ');
    view_number(l->out, theirs->median);
    buf_addz(l->out, " against ");
    view_number(l->out, ours->median);
    buf_addc(l->out, ' ');
    report_plain(l->out, ours->unit, 20);
    const char *verdict = view_verdict_text(view_differ(&l->noise, theirs, ours));
    buf_addf(l->out, " (%.2f times as good%s%s)\n", view_gain(theirs, ours), *verdict ? "; " : "",
             verdict);
    l->n++;
}

static void losses(const struct view *v, struct buf *out)
{
    struct buf list = BUF_INIT;
    struct loss_list l = {.out = &list, .noise = view_noise(v, NULL)};
    struct str own = view_own_arm(v);
    bool peers = false;
    for (size_t i = 0; i < v->n_arm; i++)
        peers |= !view_is_own(v->arms[i]);
    if (!peers || !view_is_own(own))
        return;
    view_losses(v, own, add_loss, &l);
    buf_addz(out, "\n## Where a peer wins\n\n");
    if (l.n)
        buf_add_str(out, buf_str(&list));
    else
        buf_addz(out, "Nowhere in this run.\n");
    buf_free(&list);
}

static void parity(const struct json *doc, struct buf *out)
{
    static const char *const probes[] = {"completion", "chat"};
    const struct json *list = json_get(doc, "parity");
    if (!json_len(list))
        return;
    buf_addz(out,
             "\n## Do they say the same?\n\nGreedy answers to two fixed prompts, side by side. "
             "float32 is this model computed in plain float32, where that was asked for.\n\n"
             "| probe | arm | same as the first | text |\n|---|---|---|---|\n");
    for (int k = 0; k < 2; k++) {
        struct str first = {0};
        bool have = false;
        for (size_t i = 0; i < json_len(list); i++) {
            const struct json *p = json_at(list, i);
            struct str text = view_str(p, "text");
            if (!str_eqz(view_str(p, "probe"), probes[k]) || json_real(json_get(p, "round")) > 0)
                continue;
            buf_addf(out, "| %s | ", probes[k]);
            report_plain(out, view_str(p, "arm"), 60);
            if (!have) {
                buf_addz(out, " | | ");
            } else {
                size_t same = 0;
                while (same < text.n && same < first.n && text.p[same] == first.p[same])
                    same++;
                if (str_eq(text, first))
                    buf_addz(out, " | yes | ");
                else
                    buf_addf(out, " | for %zu bytes | ", same);
            }
            report_plain(out, text, 160);
            buf_addz(out, " |\n");
            first = have ? first : text;
            have = true;
        }
    }
}

static void failures(const struct json *doc, struct buf *out)
{
    const struct json *list = json_get(doc, "failures"), *arms = json_get(doc, "arms");
    bool any = false;
    for (size_t i = 0; i < json_len(arms); i++) {
        const struct json *a = json_at(arms, i);
        if (json_bool(json_get(a, "ran")))
            continue;
        buf_addz(out, any ? "- " : "\n## What did not run\n\n- ");
        report_plain(out, view_str(a, "name"), 60);
        buf_addz(out, ": ");
        report_plain(out, view_str(a, "why_not"), 300);
        buf_addc(out, '\n');
        any = true;
    }
    if (!json_len(list))
        return;
    buf_addz(
        out,
        "\n## Failures\n\n| arm | workload | phase | attempt | what |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < json_len(list); i++) {
        const struct json *f = json_at(list, i);
        const char *const keys[] = {"arm", "workload", "phase"};
        for (int k = 0; k < 3; k++) {
            buf_addz(out, "| ");
            report_plain(out, view_str(f, keys[k]), 60);
            buf_addc(out, ' ');
        }
        buf_addf(out, "| %.0f | ", json_real(json_get(f, "attempt")) + 1);
        report_plain(out, view_str(f, "message"), 300);
        buf_addz(out, " |\n");
    }
}

void report_markdown(const struct json *doc, struct buf *out)
{
    struct view v;
    if (!view_open(doc, &v)) {
        out->failed = true;
        return;
    }
    head(doc, out);
    marks(doc, out);
    buf_addz(out,
             "\nMedians, with the smallest and largest value behind them; bold: the best of a row; "
             "†: largest ÷ smallest is above 1.15, so the median alone says little. What each "
             "figure means: `docs/bench-serve.md`.\n");
    for (size_t i = 0; i < v.n_workload; i++)
        workload(&v, v.workloads[i], out);
    losses(&v, out);
    parity(doc, out);
    failures(doc, out);
    view_close(&v);
}
