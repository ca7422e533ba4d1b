/*
 * results.c - see results.h. Lists are kept as JSON text; samples as series, from which the summary
 * is made when the document is written. Running out of memory shows in record_json.
 */
#include "bench/results.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/utf8.h"
#include "bench/metric.h"
#include "bench/quantile.h"

enum { SHOWN_MAX = 4096, TEXT_MAX = 4096, N_LIST = 5 };
static const char *const list_names[N_LIST] = {"arms", "cells", "failures", "parity", "requests"};

struct row {
    char *arm, *workload, *point, *metric;
    struct series values;
};

struct record {
    struct buf head, lists[N_LIST], marks;
    size_t n_request;
    struct row *rows;
    size_t n_row, cap_row;
    bool failed;
};

struct record *record_create(void)
{
    return calloc(1, sizeof(struct record));
}

void record_free(struct record *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_row; i++) {
        free(r->rows[i].arm);
        free(r->rows[i].workload);
        free(r->rows[i].point);
        free(r->rows[i].metric);
        series_free(&r->rows[i].values);
    }
    for (int i = 0; i < N_LIST; i++)
        buf_free(&r->lists[i]);
    buf_free(&r->head);
    buf_free(&r->marks);
    free(r->rows);
    free(r);
}

void record_head(struct record *r, struct str members)
{
    buf_clear(&r->head);
    buf_add_str(&r->head, members);
}

static void add_to(struct buf *list, struct str value)
{
    if (list->n)
        buf_addz(list, ",\n");
    buf_add_str(list, value);
}

void record_add(struct record *r, const char *list, struct str object)
{
    for (int i = 0; i < N_LIST; i++)
        if (strcmp(list_names[i], list) == 0)
            add_to(&r->lists[i], object);
}

void record_mark(struct record *r, const char *fmt, ...)
{
    char text[300];
    struct buf b = BUF_INIT;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_w_strz(&b, text);
    if (str_find(buf_str(&r->marks), buf_str(&b), 0) == (size_t)-1)
        add_to(&r->marks, buf_str(&b));
    buf_free(&b);
}

/* ---- samples -------------------------------------------------------------------------------- */

static struct row *find_row(const struct record *r, const struct sample_key *k)
{
    for (size_t i = 0; i < r->n_row; i++) {
        struct row *w = &r->rows[i];
        if (strcmp(w->metric, k->metric) == 0 && strcmp(w->arm, k->arm) == 0 &&
            strcmp(w->workload, k->workload) == 0 && strcmp(w->point, k->point) == 0)
            return w;
    }
    return NULL;
}

static struct row *add_row(struct record *r, const struct sample_key *k)
{
    if (r->n_row == r->cap_row) {
        size_t cap = r->cap_row ? 2 * r->cap_row : 64;
        struct row *v = realloc(r->rows, cap * sizeof *v);
        if (!v)
            return NULL;
        r->rows = v;
        r->cap_row = cap;
    }
    struct row *w = &r->rows[r->n_row++];
    *w =
        (struct row){strdup(k->arm), strdup(k->workload), strdup(k->point), strdup(k->metric), {0}};
    if (w->arm && w->workload && w->point && w->metric)
        return w;
    r->n_row--; /* leaks nothing worth mending: memory is out */
    return NULL;
}

void record_sample(struct record *r, const struct sample_key *k, double value)
{
    QN_ASSERT(metric_find(k->metric));
    if (!isfinite(value))
        return;
    struct row *w = find_row(r, k);
    if (!w)
        w = add_row(r, k);
    if (!w || !series_add(&w->values, value))
        r->failed = true;
}

size_t record_count(const struct record *r, const struct sample_key *k, double *median)
{
    const struct row *w = find_row(r, k);
    if (median)
        *median = w ? quantile_of(w->values.v, w->values.n, 0.5) : (double)NAN;
    return w ? w->values.n : 0;
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Milliseconds to three places: a microsecond is what the clock is good for. */
static void ms_value(struct buf *out, int64_t from, int64_t at)
{
    if (!at) {
        buf_addz(out, "null");
        return;
    }
    buf_addf(out, "%.3f", (double)(at - from) / 1e6);
}

static void k_ms(struct jw *w, const char *key, int64_t from, int64_t at)
{
    struct buf b = BUF_INIT;
    ms_value(&b, from, at);
    jw_key(w, key);
    jw_raw(w, buf_str(&b));
    buf_free(&b);
}

static void k_text(struct jw *w, const char *key, struct str s)
{
    size_t n = s.n < TEXT_MAX ? s.n : TEXT_MAX;
    n -= utf8_tail((struct str){s.p, n});
    if (s.n)
        jw_kstr(w, key, (struct str){s.p, n});
}

static void write_result(struct jw *w, const struct reply *a)
{
    struct buf times = BUF_INIT;
    jw_key(w, "result");
    jw_obj(w);
    k_ms(w, "headers_ms", a->start_ns, a->headers_ns);
    k_ms(w, "first_byte_ms", a->start_ns, a->first_byte_ns);
    k_ms(w, "first_event_ms", a->start_ns, a->first_event_ns);
    k_ms(w, "ttft_ms", a->start_ns, a->n_output ? a->output_ns[0] : 0);
    k_ms(w, "wall_ms", a->start_ns, a->end_ns);
    jw_ki64(w, "events", a->n_event);
    jw_ki64(w, "tool_events", a->n_tool_event);
    for (int i = 0; i < a->n_output; i++) {
        if (i)
            buf_addc(&times, ',');
        ms_value(&times, a->start_ns, a->output_ns[i]);
    }
    struct buf list = BUF_INIT;
    buf_addf(&list, "[%s]", buf_z(&times));
    jw_key(w, "output_event_ms");
    jw_raw(w, buf_str(&list));
    jw_kbool(w, "done", a->done_seen);
    jw_kstrz(w, "finish_reason", a->finish[0] ? a->finish : NULL);
    if (a->has_usage) {
        jw_ki64(w, "prompt_tokens", a->prompt_tokens);
        jw_ki64(w, "completion_tokens", a->completion_tokens);
        if (a->cached_tokens >= 0)
            jw_ki64(w, "cached_tokens", a->cached_tokens);
    }
    if (isfinite(reply_decode_tps(a)))
        jw_kreal(w, "decode_tps", reply_decode_tps(a));
    k_text(w, "text", buf_str(&a->text));
    k_text(w, "reasoning", buf_str(&a->reasoning));
    k_text(w, "tool_calls", buf_str(&a->tools));
    jw_obj_end(w);
    buf_free(&times);
    buf_free(&list);
}

void record_request(struct record *r, const struct request_note *n, const struct reply *a)
{
    struct buf b = BUF_INIT;
    struct jw w;
    char digest[65];
    sha256(n->body.p, n->body.n, digest);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_ki64(&w, "cell", n->cell);
    jw_kstrz(&w, "arm", n->arm);
    jw_kstrz(&w, "phase", n->phase);
    jw_ki64(&w, "attempt", n->attempt);
    jw_ki64(&w, "index", n->index);
    if (n->user >= 0)
        jw_ki64(&w, "user", n->user);
    jw_ki64(&w, "start_ns", a->start_ns);
    jw_kstrz(&w, "request_sha256", digest);
    jw_ki64(&w, "request_bytes", (int64_t)n->body.n);
    jw_ki64(&w, "max_tokens", a->max_tokens);
    if (n->shown) {
        struct str s = str_of(n->shown);
        jw_kstr(&w, "content", (struct str){s.p, s.n < SHOWN_MAX ? s.n : SHOWN_MAX});
    }
    jw_ki64(&w, "http_status", a->http_status);
    write_result(&w, a);
    if (a->fault != FAULT_NONE) {
        jw_key(&w, "error");
        jw_obj(&w);
        jw_kstrz(&w, "kind", fault_name(a->fault));
        jw_kstrz(&w, "message", a->why);
        jw_obj_end(&w);
    }
    jw_obj_end(&w);
    add_to(&r->lists[N_LIST - 1], buf_str(&b));
    r->n_request++;
    buf_free(&b);
}

size_t record_requests(const struct record *r)
{
    return r->n_request;
}

/* ---- the document --------------------------------------------------------------------------- */

static void write_row(struct jw *w, const struct row *row)
{
    const struct metric *m = metric_find(row->metric);
    static const char *const better[] = {"neither", "higher", "lower"};
    struct spread s = spread_of(row->values.v, row->values.n);
    jw_obj(w);
    jw_kstrz(w, "arm", row->arm);
    jw_kstrz(w, "workload", row->workload);
    jw_kstrz(w, "point", row->point);
    jw_kstrz(w, "metric", row->metric);
    jw_kstrz(w, "title", m->title);
    jw_kstrz(w, "unit", m->unit);
    jw_kstrz(w, "better", better[m->better]);
    jw_kbool(w, "headline", m->headline);
    jw_ki64(w, "n", (int64_t)s.n);
    jw_kreal(w, "median", s.median);
    jw_kreal(w, "min", s.min);
    jw_kreal(w, "max", s.max);
    jw_kreal(w, "mad", s.mad);
    jw_kbool(w, "stable", s.stable);
    jw_key(w, "samples");
    jw_arr(w);
    for (size_t i = 0; i < row->values.n; i++)
        jw_real(w, row->values.v[i]);
    jw_arr_end(w);
    jw_obj_end(w);
}

enum qn_status record_json(const struct record *r, const char *status, struct buf *out,
                           struct qn_err *err)
{
    struct jw w;
    bool failed = r->failed || r->head.failed || r->marks.failed;
    buf_clear(out);
    buf_addf(out, "{\"format\":\"quern-bench\",\"schema\":%d,\"status\":", RECORD_SCHEMA);
    json_w_strz(out, status);
    if (r->head.n)
        buf_addf(out, ",\n%s", r->head.p);
    buf_addz(out, ",\n\"marks\":[");
    buf_add_str(out, buf_str(&r->marks));
    buf_addz(out, "],\n\"summary\":[");
    for (size_t i = 0; i < r->n_row; i++) {
        buf_addz(out, i ? ",\n" : "\n");
        jw_init(&w, out);
        write_row(&w, &r->rows[i]);
    }
    buf_addc(out, ']');
    for (int i = 0; i < N_LIST; i++) {
        buf_addf(out, ",\n\"%s\":[\n", list_names[i]);
        buf_add_str(out, buf_str(&r->lists[i]));
        buf_addc(out, ']');
        failed |= r->lists[i].failed;
    }
    buf_addz(out, "}\n");
    if (failed)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for the record of this run");
    return buf_ok(out, "the record", err);
}
