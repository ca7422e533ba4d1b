/*
 * view.h - a record's document as rows to report: which arms, workloads, points and metrics there
 * are, in the order in which they were measured, and who is better. Borrowed from the document.
 */
#ifndef BENCH_VIEW_H
#define BENCH_VIEW_H

#include "base/json.h"
#include "bench/metric.h"

struct view_row {
    struct str arm, workload, point, metric, title, unit;
    enum better better;
    bool headline, stable;
    double median, min, max, mad;
    size_t n;
    const struct json *samples;
};

enum { VIEW_NAMES_MAX = 128 };
struct view {
    const struct json *doc;
    struct view_row *rows;
    size_t n_row;
    struct str arms[VIEW_NAMES_MAX], workloads[VIEW_NAMES_MAX];
    size_t n_arm, n_workload;
};

/* False when out of memory. A document without a summary has no rows. */
bool view_open(const struct json *doc, struct view *v);
void view_close(struct view *v);

/* The points of a workload, and the metrics of a point, in order, each once; at most max. */
size_t view_points(const struct view *v, struct str workload, struct str *out, size_t max);
size_t view_metrics(const struct view *v, struct str workload, struct str point, struct str *out,
                    size_t max);
const struct view_row *view_find(const struct view *v, struct str arm, struct str workload,
                                 struct str point, struct str metric);

/* The arm that is best at a figure; NULL when several are, when there is only one, or when better
 * means nothing. */
const struct view_row *view_best(const struct view *v, struct str workload, struct str point,
                                 struct str metric);

/* How much better row a is than b: above 1 = better, whatever way the metric goes. NAN if it cannot
 * be said. */
double view_gain(const struct view_row *a, const struct view_row *b);

/* How the figures of one or two records usually scatter, and how many are looked at: what noise.h
 * needs to know. b may be NULL. */
struct view_noise {
    double time, other; /* for figures of time and rate; for memory, tokens, shares */
    size_t n_test;
};
struct view_noise view_noise(const struct view *a, const struct view *b);
/* What to think of a difference between two figures, see noise.h. FEW: their values do not overlap,
 * but they are too few for how such figures scatter. */
enum view_verdict { VERDICT_SAME, VERDICT_FEW, VERDICT_APART };
enum view_verdict view_differ(const struct view_noise *n, const struct view_row *a,
                              const struct view_row *b);
/* "within the noise", "too few values to tell", "" */
const char *view_verdict_text(enum view_verdict v);
/* A unit of time or of speed. */
bool view_is_timed(struct str unit);

/* Where another arm is better than the first one: calls fn for each such pair. */
void view_losses(const struct view *v, struct str arm,
                 void (*fn)(void *arg, const struct view_row *ours, const struct view_row *theirs),
                 void *arg);
/* The arm that the report is about: "quern" if it is there, else the first. */
struct str view_own_arm(const struct view *v);
/* True for arms of this program (quern, quern-serial, ...). */
bool view_is_own(struct str arm);

/* Users of a point of a closed loop ("4 users": 4), else 0. */
double view_users(struct str point);
/* The phases of a workload's first round whose memory is known, in order; and that of one arm, NAN
 * where it is not known. */
size_t view_phases(const struct view *v, struct str workload, struct str *out, size_t max);
double view_phase_mib(const struct view *v, struct str arm, struct str workload, struct str phase);
/* A sentence: within which limits an answer counts for goodput. */
void view_limits(const struct json *doc, struct buf *out);
/* " (commit 0123456789ab, changed)", " (sources 0123456789ab)" or nothing. */
void view_source(const struct json *doc, struct buf *out);

/* The text of a member of an object; empty if it is none. */
struct str view_str(const struct json *o, const char *key);
/* "12.3", "1234", "0.987": at least three digits that count. */
void view_number(struct buf *out, double x);

#endif
