/*
 * results.h - everything a run has measured, as one JSON document of a versioned schema
 * (docs/bench-serve.md). It only grows, and is written whole after every cell, so that what was
 * measured survives whatever comes after. Reports, history and comparisons read the document, never
 * this struct.
 */
#ifndef BENCH_RESULTS_H
#define BENCH_RESULTS_H

#include "base/buf.h"
#include "base/json.h"
#include "bench/streamed.h"

#define RECORD_SCHEMA 1

struct record;

struct record *record_create(void); /* NULL when out of memory */
void record_free(struct record *r); /* NULL is fine */

/* The head is one object's members, set anew whenever they change: text such as "a":1,"b":2. */
void record_head(struct record *r, struct str members);
/* Objects for the lists of that name: arms, cells, failures, parity. */
void record_add(struct record *r, const char *list, struct str object);
/* A condition that makes figures less trustworthy; equal ones are kept once. */
void record_mark(struct record *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* One measured value. point: "" or "4 users", "turn 3". metric is one of metric.h. */
struct sample_key {
    const char *arm, *workload, *point, *metric;
};
void record_sample(struct record *r, const struct sample_key *k, double value);
/* How many values there are for a key, and their median; for progress and tests. */
size_t record_count(const struct record *r, const struct sample_key *k, double *median);

/* One request with everything that came back. */
struct request_note {
    int cell; /* index in the list of cells */
    const char *arm, *phase;
    int attempt, index, user;
    struct str body;
    const char *shown; /* the part of the prompt that stands in the record; NULL = none */
};
void record_request(struct record *r, const struct request_note *n, const struct reply *a);
size_t record_requests(const struct record *r);

/* The document; status: "complete", "interrupted", "running". */
enum qn_status record_json(const struct record *r, const char *status, struct buf *out,
                           struct qn_err *err);

#endif
