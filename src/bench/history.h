/*
 * history.h - what runs have measured, kept in one SQLite file, and what has changed between two of
 * them. A run is kept without its single requests; the record's own file stays the evidence.
 */
#ifndef BENCH_HISTORY_H
#define BENCH_HISTORY_H

#include "base/json.h"
#include "bench/noise.h"

struct history;

/* Opens or makes the file. */
enum qn_status history_open(const char *path, struct history **out, struct qn_err *err);
void history_close(struct history *h); /* NULL is fine */
/* Adds a record; *id: its number. A record that is there already keeps its number. */
enum qn_status history_add(struct history *h, struct str record, int64_t *id, struct qn_err *err);
/* The kept part of a run as a document, freed with json_free. QN_NOT_FOUND. */
enum qn_status history_get(struct history *h, int64_t id, struct json **out, struct qn_err *err);

/* A table of the newest n runs, for people. */
enum qn_status history_list(struct history *h, int n, struct buf *out, struct qn_err *err);
/* How a figure went over the runs of comparable kind (same model, machine and arm; no diagnostic
 * ones): one line a run with its spread, and whether a change is larger than the noise of both. */
struct history_figure {
    const char *arm, *metric, *workload; /* NULL = any */
};
enum qn_status history_trend(struct history *h, const struct history_figure *f, struct buf *out,
                             struct qn_err *err);

/* Every kept figure of that kind, by date; no diagnostic runs. Strings last as long as the call. */
struct history_row {
    int64_t run, began_unix;
    const char *model, *machine, *arm, *workload, *point, *metric, *unit;
    struct noise_figure f;
};
enum qn_status history_each(struct history *h, const struct history_figure *f,
                            void (*fn)(void *arg, const struct history_row *r), void *arg,
                            struct qn_err *err);
/* Every run, the newest first; commit is "" where it is not known. */
struct history_run {
    int64_t run, began_unix;
    const char *model, *label, *version, *status, *commit;
    bool diagnostic;
    int marks;
};
enum qn_status history_runs(struct history *h, void (*fn)(void *arg, const struct history_run *r),
                            void *arg, struct qn_err *err);
/* ", +3.1 % (within the noise)": how a figure stands to an earlier one; nothing when there is no
 * ratio. */
void history_change(struct buf *out, const struct noise_figure *now,
                    const struct noise_figure *before, struct str unit);
/* Tokens per second that an arm made of a model lately (diagnostic runs count): for estimates of
 * time. False when it is not known. */
struct history_speed {
    double decode, prefill;
};
bool history_rates(struct history *h, const char *model, const char *arm,
                   struct history_speed *out);
/* The whole history as one HTML file: a chart of every figure over the runs, with its noise. With
 * f->metric that one only, otherwise the headline ones; other members as in history_trend. */
enum qn_status history_page(struct history *h, const struct history_figure *f, struct buf *out,
                            struct qn_err *err);

/* Two records side by side, figure by figure: every arm of one with the arm of that name in the
 * other, or with arm_a and arm_b one arm of each (a and b may be the same record then). Which
 * differences are larger than the noise is said for each and, with their number, at the end.
 * QN_BAD_INPUT when one is a diagnostic run, QN_NOT_FOUND when an arm is not there. What makes the
 * two hard to compare (other machine, model, settings, marks) is said first. */
struct comparison {
    const struct json *a, *b;
    const char *arm_a, *arm_b; /* both or none */
};
enum qn_status compare_records(const struct comparison *c, struct buf *out, struct qn_err *err);

#endif
