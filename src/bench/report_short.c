/*
 * report_short.c - report_table of report.h: the few figures of a run that a README shows. The rows
 * are fixed; what was not measured is left out.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/quantile.h"
#include "bench/report.h"
#include "bench/view.h"

enum { POINTS_MAX = 128 };

/* {n} in a text: what `of` says. */
enum count { NONE, CONCURRENT, NEW_PROMPT, LONG_PROMPT, USERS };
static const struct {
    const char *workload, *metric, *text;
    enum count of;
} rows[] = {
    {"matrix", "decode_tps", "decode, tokens/s", NONE},
    {"matrix", "concurrent_tps", "{n} answers at a time, tokens/s together", CONCURRENT},
    {"matrix", "ttft_cold_ms", "first token of a new prompt ({n} tokens), ms", NEW_PROMPT},
    {"matrix", "ttft_warm_ms", "the same prompt again, ms", NONE},
    {"matrix", "ctx_ttft_ms", "first token of a prompt of {n} tokens, ms", LONG_PROMPT},
    {"matrix", "ctx_decode_tps", "decode behind {n} tokens, tokens/s", LONG_PROMPT},
    {"matrix", "restart_ttft_ms", "the same long prompt after a restart, ms", NONE},
    {"matrix", "ready_ms", "process start to ready, ms", NONE},
    {"matrix", "peak_rss_mib", "memory at most, MiB", NONE},
    {"load", "output_tps", "{n} users: tokens/s together", USERS},
    {"load", "ttft_p50_ms", "{n} users: first token p50, ms", USERS},
    {"load", "ttft_p99_ms", "{n} users: first token p99, ms", USERS},
    {"load", "itl_p99_ms", "{n} users: gap between tokens p99, ms", USERS},
    {"load", "goodput", "{n} users: answers a second within the limits", USERS},
    {"load", "fairness", "fairness between {n} users (1 = all alike)", USERS},
};

/* The point of a closed loop with the most users; empty when there is none. */
static struct str most_users(const struct view *v, double *users)
{
    struct str points[POINTS_MAX], best = {0};
    size_t n = view_points(v, STR_LIT("load"), points, POINTS_MAX);
    *users = 0;
    for (size_t i = 0; i < n; i++) {
        double u = view_users(points[i]);
        if (u > *users) {
            *users = u;
            best = points[i];
        }
    }
    return best;
}

/* Median of the prompt tokens of the requests of a phase; NAN when there are none. */
static double prompt_tokens(const struct json *doc, const char *phase)
{
    const struct json *list = json_get(doc, "requests");
    struct series s = {0};
    for (size_t i = 0; i < json_len(list); i++) {
        const struct json *r = json_at(list, i),
                          *n = json_get(json_get(r, "result"), "prompt_tokens");
        if (n && str_eqz(view_str(r, "phase"), phase))
            series_add(&s, json_real(n));
    }
    double m = quantile_of(s.v, s.n, 0.5);
    series_free(&s);
    return m;
}

static void write_text(const char *text, double n, struct buf *out)
{
    const char *at = strstr(text, "{n}");
    if (!at) {
        buf_addz(out, text);
        return;
    }
    buf_addf(out, "%.*s", (int)(at - text), text);
    if (n > 0) /* also false for NAN */
        buf_addf(out, "%.0f", n);
    else
        buf_addz(out, "some");
    buf_addz(out, at + 3);
}

static void write_row(const struct view *v, size_t i, struct str point, double n, struct buf *out)
{
    struct str wl = str_of(rows[i].workload), metric = str_of(rows[i].metric);
    const struct view_row *best = view_best(v, wl, point, metric), *any = NULL;
    for (size_t k = 0; k < v->n_arm && !any; k++)
        any = view_find(v, v->arms[k], wl, point, metric);
    if (!any)
        return;
    buf_addz(out, "| ");
    write_text(rows[i].text, n, out);
    buf_addz(out, " |");
    for (size_t k = 0; k < v->n_arm; k++) {
        const struct view_row *r = view_find(v, v->arms[k], wl, point, metric);
        bool bold = r && r == best;
        buf_addz(out, bold ? " **" : " ");
        if (!r)
            buf_addz(out, "-");
        else if (str_eqz(metric, "fairness"))
            buf_addf(out, "%.3f", r->median);
        else
            view_number(out, r->median);
        buf_addz(out, bold ? "** |" : " |");
    }
    buf_addc(out, '\n');
}

void report_table(const struct json *doc, struct buf *out)
{
    struct view v;
    double users;
    if (!view_open(doc, &v)) {
        out->failed = true;
        return;
    }
    struct str busiest = most_users(&v, &users);
    const double counts[] = {
        [NONE] = 0,
        [CONCURRENT] = json_real(json_get(json_get(doc, "workload"), "concurrent")),
        [NEW_PROMPT] = prompt_tokens(doc, "ttft cold"),
        [LONG_PROMPT] = prompt_tokens(doc, "context"),
        [USERS] = users,
    };
    buf_addz(out, "| |");
    for (size_t i = 0; i < v.n_arm; i++) {
        buf_addc(out, ' ');
        report_plain(out, v.arms[i], 60);
        buf_addz(out, " |");
    }
    buf_addz(out, "\n|---|");
    for (size_t i = 0; i < v.n_arm; i++)
        buf_addz(out, "---|");
    buf_addc(out, '\n');
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool load = strcmp(rows[i].workload, "load") == 0;
        if (!load || users > 0)
            write_row(&v, i, load ? busiest : STR_LIT(""), counts[rows[i].of], out);
    }
    view_close(&v);
}
