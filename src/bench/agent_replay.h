/*
 * agent_replay.h - recorded conversations of an agent, sent again turn by turn. Each turn sends
 * the whole history so far, as agents do; what a server recomputes of it is the figure. The
 * recorded answers become the history, not the server's own, so that every server is asked the
 * same bytes.
 *
 * Three forms of each recording: as it is; with the history compacted in the middle; with the
 * server restarted in the middle. The format is described in docs/bench-serve.md.
 */
#ifndef BENCH_AGENT_REPLAY_H
#define BENCH_AGENT_REPLAY_H

#include "base/json.h"
#include "bench/cell.h"

enum { REPLAY_MAX = 16, REPLAY_TURNS_MAX = 256 };

struct recording {
    struct json *doc;
    const char *name; /* owned copy */
    int n_turn;
};

struct replay_set {
    struct recording v[REPLAY_MAX];
    int n;
};

/* Reads files; with n = 0 the recordings that are built in. */
enum qn_status replay_open(const char *const *paths, int n, struct replay_set *out,
                           struct qn_err *err);
enum qn_status replay_add(struct replay_set *s, const char *what, struct str text,
                          struct qn_err *err);
void replay_close(struct replay_set *s);
void replay_plan_text(const struct replay_set *s, struct buf *out);
void replay_tokens(const struct replay_set *s, double *read, double *written);
enum qn_status replay_run(struct cell *c, const struct replay_set *s, struct qn_err *err);

/* ---- for tests ---- */
struct replay_turn {
    int t;
    bool compact;     /* the history is cut as the recording says */
    const char *salt; /* begins the system message; NULL = nothing */
};
/* The messages of a turn as a JSON array. */
void replay_messages(const struct recording *r, const struct replay_turn *w, struct buf *out);

/* The built-in recordings; see recordings.c, made from tools/recordings. */
struct builtin_recording {
    const char *name;
    const char *text;
    size_t n;
};
const struct builtin_recording *builtin_recordings(size_t *n);

#endif
