/* history.c - see history.h. Two STRICT tables; a run is inserted in one transaction. */
#include "bench/history.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "bench/noise.h"
#include "bench/quantile.h"
#include "bench/view.h"

struct history {
    sqlite3 *db;
};

enum { VERSION = 1 };

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS runs(id INTEGER PRIMARY KEY, sha256 TEXT UNIQUE NOT NULL,"
    " began_unix INTEGER NOT NULL, label TEXT NOT NULL, model TEXT NOT NULL, machine TEXT NOT NULL,"
    " version TEXT NOT NULL, status TEXT NOT NULL, diagnostic INTEGER NOT NULL,"
    " marks INTEGER NOT NULL, document TEXT NOT NULL) STRICT;"
    "CREATE TABLE IF NOT EXISTS figures(run INTEGER NOT NULL REFERENCES runs(id), arm TEXT NOT "
    "NULL,"
    " workload TEXT NOT NULL, point TEXT NOT NULL, metric TEXT NOT NULL, unit TEXT NOT NULL,"
    " better TEXT NOT NULL, n INTEGER NOT NULL, median REAL NOT NULL, min REAL NOT NULL,"
    " max REAL NOT NULL, PRIMARY KEY(run, arm, workload, point, metric)) STRICT;"
    "CREATE INDEX IF NOT EXISTS by_metric ON figures(metric, arm);";

static enum qn_status fail(struct history *h, struct qn_err *err)
{
    QN_FAIL(err, QN_IO, "bench", "history: %s", sqlite3_errmsg(h->db));
}

static enum qn_status exec(struct history *h, const char *sql, struct qn_err *err)
{
    return sqlite3_exec(h->db, sql, NULL, NULL, NULL) == SQLITE_OK ? QN_OK : fail(h, err);
}

static enum qn_status prepare(struct history *h, const char *sql, sqlite3_stmt **out,
                              struct qn_err *err)
{
    return sqlite3_prepare_v2(h->db, sql, -1, out, NULL) == SQLITE_OK ? QN_OK : fail(h, err);
}

static enum qn_status check_version(struct history *h, const char *path, struct qn_err *err)
{
    sqlite3_stmt *q;
    QN_TRY(prepare(h, "PRAGMA user_version", &q, err));
    int version = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int(q, 0) : -1;
    sqlite3_finalize(q);
    if (version > VERSION || version < 0)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: of version %d; this program knows up to %d", path,
                version, VERSION);
    return QN_OK;
}

enum qn_status history_open(const char *path, struct history **out, struct qn_err *err)
{
    struct history *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for the history");
    if (sqlite3_open(path, &h->db) != SQLITE_OK) {
        err_set(err, QN_IO, "bench", "%s: %s", path,
                h->db ? sqlite3_errmsg(h->db) : "cannot be opened");
        history_close(h);
        return QN_IO;
    }
    sqlite3_busy_timeout(h->db, 5000);
    enum qn_status st = check_version(h, path, err);
    if (st == QN_OK)
        st = exec(h, schema, err);
    if (st == QN_OK)
        st = exec(h, "PRAGMA user_version=1", err);
    if (st != QN_OK) {
        history_close(h);
        return st;
    }
    *out = h;
    return QN_OK;
}

void history_close(struct history *h)
{
    if (h)
        sqlite3_close(h->db);
    free(h);
}

/* ---- adding --------------------------------------------------------------------------------- */

static void bind_str(sqlite3_stmt *q, int i, struct str s)
{
    sqlite3_bind_text(q, i, s.n ? s.p : "", (int)s.n, SQLITE_TRANSIENT);
}

/* The record without single requests and curves of memory. */
static void write_kept(const struct json *doc, struct buf *out)
{
    struct json_iter it = {0};
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    while (json_next(doc, &it)) {
        char key[64];
        if (str_eqz(it.key, "requests") || str_eqz(it.key, "cells") || it.key.n >= sizeof key)
            continue;
        snprintf(key, sizeof key, STR_FMT, STR_ARG(it.key));
        jw_key(&w, key);
        jw_value(&w, it.val);
    }
    jw_obj_end(&w);
}

static enum qn_status insert_run(struct history *h, const struct json *doc, const char *digest,
                                 int64_t *id, struct qn_err *err)
{
    sqlite3_stmt *q;
    struct buf kept = BUF_INIT;
    write_kept(doc, &kept);
    QN_TRY(prepare(h, "INSERT INTO runs VALUES(NULL,?,?,?,?,?,?,?,?,?,?)", &q, err));
    bind_str(q, 1, str_of(digest));
    sqlite3_bind_int64(q, 2, (int64_t)json_real(json_get(doc, "began_unix")));
    bind_str(q, 3, json_str(json_get(doc, "label")));
    bind_str(q, 4, json_str(json_get(json_get(json_get(doc, "manifest"), "model"), "name")));
    bind_str(q, 5, json_str(json_get(json_get(doc, "machine"), "processor")));
    bind_str(q, 6, json_str(json_get(doc, "version")));
    bind_str(q, 7, json_str(json_get(doc, "status")));
    sqlite3_bind_int(q, 8, json_bool(json_get(doc, "diagnostic")));
    sqlite3_bind_int64(q, 9, (int64_t)json_len(json_get(doc, "marks")));
    bind_str(q, 10, buf_str(&kept));
    enum qn_status st = sqlite3_step(q) == SQLITE_DONE ? QN_OK : fail(h, err);
    sqlite3_finalize(q);
    buf_free(&kept);
    *id = sqlite3_last_insert_rowid(h->db);
    return st;
}

static enum qn_status insert_figures(struct history *h, const struct view *v, int64_t id,
                                     struct qn_err *err)
{
    static const char *const better[] = {"neither", "higher", "lower"};
    sqlite3_stmt *q;
    QN_TRY(prepare(h, "INSERT OR REPLACE INTO figures VALUES(?,?,?,?,?,?,?,?,?,?,?)", &q, err));
    enum qn_status st = QN_OK;
    for (size_t i = 0; i < v->n_row && st == QN_OK; i++) {
        const struct view_row *r = &v->rows[i];
        sqlite3_bind_int64(q, 1, id);
        bind_str(q, 2, r->arm);
        bind_str(q, 3, r->workload);
        bind_str(q, 4, r->point);
        bind_str(q, 5, r->metric);
        bind_str(q, 6, r->unit);
        bind_str(q, 7, str_of(better[r->better]));
        sqlite3_bind_int64(q, 8, (int64_t)r->n);
        sqlite3_bind_double(q, 9, r->median);
        sqlite3_bind_double(q, 10, r->min);
        sqlite3_bind_double(q, 11, r->max);
        st = sqlite3_step(q) == SQLITE_DONE ? QN_OK : fail(h, err);
        sqlite3_reset(q);
    }
    sqlite3_finalize(q);
    return st;
}

static enum qn_status find_digest(struct history *h, const char *digest, int64_t *id,
                                  struct qn_err *err)
{
    sqlite3_stmt *q;
    QN_TRY(prepare(h, "SELECT id FROM runs WHERE sha256=?", &q, err));
    bind_str(q, 1, str_of(digest));
    *id = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    sqlite3_finalize(q);
    return QN_OK;
}

static enum qn_status check_record(const struct json *doc, struct qn_err *err)
{
    if (!str_eqz(json_str(json_get(doc, "format")), "quern-bench"))
        QN_FAIL(err, QN_BAD_INPUT, "bench", "this is no record of quern bench serve");
    if (json_real(json_get(doc, "schema")) != 1)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "a record of schema %g; this program knows 1",
                json_real(json_get(doc, "schema")));
    return QN_OK;
}

static enum qn_status add_parsed(struct history *h, const struct json *doc, const char *digest,
                                 int64_t *id, struct qn_err *err)
{
    struct view v;
    QN_TRY(check_record(doc, err));
    QN_TRY(find_digest(h, digest, id, err));
    if (*id)
        return QN_OK;
    if (!view_open(doc, &v))
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for a record");
    enum qn_status st = exec(h, "BEGIN IMMEDIATE", err);
    if (st == QN_OK) {
        st = insert_run(h, doc, digest, id, err);
        if (st == QN_OK)
            st = insert_figures(h, &v, *id, err);
        if (st == QN_OK)
            st = exec(h, "COMMIT", err);
        else
            sqlite3_exec(h->db, "ROLLBACK", NULL, NULL, NULL);
    }
    view_close(&v);
    return st;
}

enum qn_status history_add(struct history *h, struct str record, int64_t *id, struct qn_err *err)
{
    char digest[65];
    struct json *doc = NULL;
    QN_TRY(json_parse(record, "the record", JSON_DEPTH_MAX, &doc, err));
    sha256(record.p, record.n, digest);
    enum qn_status st = add_parsed(h, doc, digest, id, err);
    json_free(doc);
    return st;
}

enum qn_status history_get(struct history *h, int64_t id, struct json **out, struct qn_err *err)
{
    sqlite3_stmt *q;
    *out = NULL;
    QN_TRY(prepare(h, "SELECT document FROM runs WHERE id=?", &q, err));
    sqlite3_bind_int64(q, 1, id);
    enum qn_status st;
    if (sqlite3_step(q) == SQLITE_ROW)
        st = json_parse((struct str){(const char *)sqlite3_column_text(q, 0),
                                     (size_t)sqlite3_column_bytes(q, 0)},
                        "a run of the history", JSON_DEPTH_MAX, out, err);
    else
        st = err_set(err, QN_NOT_FOUND, "bench",
                     "there is no run %lld; `quern bench history` lists them", (long long)id);
    sqlite3_finalize(q);
    return st;
}

/* ---- listing -------------------------------------------------------------------------------- */

static void date_text(struct buf *out, int64_t unix_s)
{
    char text[40];
    time_t t = (time_t)unix_s;
    struct tm tm;
    localtime_r(&t, &tm);
    strftime(text, sizeof text, "%Y-%m-%d %H:%M", &tm);
    buf_addz(out, text);
}

static const char *column(sqlite3_stmt *q, int i)
{
    const char *s = (const char *)sqlite3_column_text(q, i);
    return s ? s : "";
}

enum qn_status history_list(struct history *h, int n, struct buf *out, struct qn_err *err)
{
    sqlite3_stmt *q;
    QN_TRY(prepare(h,
                   "SELECT id, began_unix, model, version, status, diagnostic, marks, label,"
                   " (SELECT group_concat(DISTINCT arm) FROM figures WHERE run=id)"
                   " FROM runs ORDER BY id DESC LIMIT ?",
                   &q, err));
    sqlite3_bind_int(q, 1, n);
    bool any = false;
    while (sqlite3_step(q) == SQLITE_ROW) {
        if (!any)
            buf_addz(out, " run  date              model                 arms, label, marks\n");
        any = true;
        buf_addf(out, "%4lld  ", (long long)sqlite3_column_int64(q, 0));
        date_text(out, sqlite3_column_int64(q, 1));
        buf_addf(out, "  %-20.20s  %.60s", column(q, 2), column(q, 8));
        if (*column(q, 7))
            buf_addf(out, "; %.60s", column(q, 7));
        if (strcmp(column(q, 4), "complete") != 0)
            buf_addf(out, "; %s", column(q, 4));
        if (sqlite3_column_int(q, 5))
            buf_addz(out, "; diagnostic");
        else if (sqlite3_column_int(q, 6))
            buf_addf(out, "; %d marks", sqlite3_column_int(q, 6));
        buf_addc(out, '\n');
    }
    sqlite3_finalize(q);
    if (!any)
        buf_addz(out, "No runs are kept yet: `quern bench serve` adds them.\n");
    return buf_ok(out, "the list", err);
}

/* ---- figures over time ---------------------------------------------------------------------- */

static void bind_or_null(sqlite3_stmt *q, int i, const char *s)
{
    if (s)
        bind_str(q, i, str_of(s));
}

enum qn_status history_each(struct history *h, const struct history_figure *f,
                            void (*fn)(void *arg, const struct history_row *r), void *arg,
                            struct qn_err *err)
{
    sqlite3_stmt *q;
    QN_TRY(prepare(h,
                   "SELECT id, began_unix, model, machine, arm, workload, point, metric, unit, n,"
                   " median, min, max FROM runs JOIN figures ON run=id WHERE NOT diagnostic"
                   " AND (?1 IS NULL OR arm=?1) AND (?2 IS NULL OR metric=?2)"
                   " AND (?3 IS NULL OR workload=?3) ORDER BY began_unix, id, workload, point",
                   &q, err));
    bind_or_null(q, 1, f->arm);
    bind_or_null(q, 2, f->metric);
    bind_or_null(q, 3, f->workload);
    while (sqlite3_step(q) == SQLITE_ROW) {
        const struct history_row r = {
            .run = sqlite3_column_int64(q, 0),
            .began_unix = sqlite3_column_int64(q, 1),
            .model = column(q, 2),
            .machine = column(q, 3),
            .arm = column(q, 4),
            .workload = column(q, 5),
            .point = column(q, 6),
            .metric = column(q, 7),
            .unit = column(q, 8),
            .f = {(size_t)sqlite3_column_int64(q, 9), sqlite3_column_double(q, 10),
                  sqlite3_column_double(q, 11), sqlite3_column_double(q, 12)}};
        fn(arg, &r);
    }
    sqlite3_finalize(q);
    return QN_OK;
}

enum qn_status history_runs(struct history *h, void (*fn)(void *arg, const struct history_run *r),
                            void *arg, struct qn_err *err)
{
    sqlite3_stmt *q;
    QN_TRY(prepare(h,
                   "SELECT id, began_unix, model, label, version, status,"
                   " json_extract(document, '$.manifest.source.commit'), diagnostic, marks"
                   " FROM runs ORDER BY id DESC",
                   &q, err));
    while (sqlite3_step(q) == SQLITE_ROW) {
        const struct history_run r = {.run = sqlite3_column_int64(q, 0),
                                      .began_unix = sqlite3_column_int64(q, 1),
                                      .model = column(q, 2),
                                      .label = column(q, 3),
                                      .version = column(q, 4),
                                      .status = column(q, 5),
                                      .commit = column(q, 6),
                                      .diagnostic = sqlite3_column_int(q, 7),
                                      .marks = sqlite3_column_int(q, 8)};
        fn(arg, &r);
    }
    sqlite3_finalize(q);
    return QN_OK;
}

void history_change(struct buf *out, const struct noise_figure *now,
                    const struct noise_figure *before, struct str unit)
{
    if (!(before->median > 0))
        return;
    struct series sd = {0};
    series_add(&sd, noise_of(now));
    series_add(&sd, noise_of(before));
    double usual = sd.n || view_is_timed(unit) ? noise_usual(sd.v, sd.n) : NOISE_OTHER;
    series_free(&sd);
    buf_addf(out, "  %+.1f %%%s", 100 * (now->median / before->median - 1),
             noise_apart(now, before, usual, 1) ? "" : " (within the noise)");
}

enum { KINDS_MAX = 128, STEPS_MAX = 40 };

/* The figures of one kind: same model, machine, workload and point. */
struct kind {
    char key[256];
    struct noise_figure last;
    double medians[STEPS_MAX]; /* the newest */
    int n;
};

struct trend {
    struct buf *out;
    struct kind *kinds;
    int n;
};

static struct kind *find_kind(struct trend *t, const struct history_row *r)
{
    char key[256];
    snprintf(key, sizeof key, "%.60s|%.80s|%.20s|%.48s", r->model, r->machine, r->workload,
             r->point);
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->kinds[i].key, key) == 0)
            return &t->kinds[i];
    if (t->n == KINDS_MAX)
        return NULL;
    memcpy(t->kinds[t->n].key, key, sizeof key);
    return &t->kinds[t->n++];
}

static void trend_row(void *arg, const struct history_row *r)
{
    struct trend *t = arg;
    struct kind *k = find_kind(t, r);
    struct buf *out = t->out;
    buf_addf(out, "%4lld  ", (long long)r->run);
    date_text(out, r->began_unix);
    buf_addf(out, "  %-16.16s %-20.48s ", r->model, *r->point ? r->point : r->workload);
    view_number(out, r->f.median);
    buf_addf(out, " %s (", r->unit);
    view_number(out, r->f.min);
    buf_addz(out, " to ");
    view_number(out, r->f.max);
    buf_addc(out, ')');
    if (k && k->n)
        history_change(out, &r->f, &k->last, str_of(r->unit));
    buf_addc(out, '\n');
    if (!k)
        return;
    k->last = r->f;
    if (k->n == STEPS_MAX)
        memmove(k->medians, k->medians + 1, (STEPS_MAX - 1) * sizeof k->medians[0]);
    k->n -= k->n == STEPS_MAX;
    k->medians[k->n++] = r->f.median;
}

/* The medians of each kind that has several, as a row of blocks from 0 to the largest. */
static void spark_lines(const struct trend *t)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    for (int i = 0; i < t->n; i++) {
        const struct kind *k = &t->kinds[i];
        double most = 0;
        for (int j = 0; j < k->n; j++)
            most = k->medians[j] > most ? k->medians[j] : most;
        if (k->n < 3 || !(most > 0))
            continue;
        for (int j = 0; j < k->n; j++) {
            double part = 8 * k->medians[j] / most;
            buf_addz(t->out, blocks[part < 0 ? 0 : part > 7 ? 7 : (int)part]);
        }
        buf_addf(t->out, "  %s\n", k->key);
    }
}

enum qn_status history_trend(struct history *h, const struct history_figure *f, struct buf *out,
                             struct qn_err *err)
{
    struct trend t = {.out = out, .kinds = calloc(KINDS_MAX, sizeof *t.kinds)};
    if (!t.kinds)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory");
    enum qn_status st = history_each(h, f, trend_row, &t, err);
    if (st == QN_OK && !t.n)
        buf_addf(out, "No run has %s of %s.\n", f->metric, f->arm);
    if (st == QN_OK)
        spark_lines(&t);
    free(t.kinds);
    return st == QN_OK ? buf_ok(out, "the history", err) : st;
}

/* What a figure of an arm with a model was over the newest runs, for estimates; NAN = not known. */
static double newest(struct history *h, const char *model, const char *arm, const char *metric)
{
    sqlite3_stmt *q;
    double v = (double)NAN;
    if (prepare(h,
                "SELECT avg(median) FROM (SELECT median FROM runs JOIN figures ON run=id WHERE"
                " model=?1 AND arm=?2 AND metric=?3 AND workload='matrix' ORDER BY began_unix DESC"
                " LIMIT 3)",
                &q, NULL) != QN_OK)
        return v;
    bind_str(q, 1, str_of(model));
    bind_str(q, 2, str_of(arm));
    bind_str(q, 3, str_of(metric));
    if (sqlite3_step(q) == SQLITE_ROW && sqlite3_column_type(q, 0) != SQLITE_NULL)
        v = sqlite3_column_double(q, 0);
    sqlite3_finalize(q);
    return v;
}

bool history_rates(struct history *h, const char *model, const char *arm, struct history_speed *out)
{
    out->decode = newest(h, model, arm, "decode_tps");
    out->prefill = newest(h, model, arm, "prefill_tps");
    return out->decode > 0 && out->prefill > 0;
}
