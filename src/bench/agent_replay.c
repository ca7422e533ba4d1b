/* agent_replay.c - see agent_replay.h.
 * A recording in one form is a phase; its turns are its requests. */
#include "bench/agent_replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

enum { FILE_MAX = 16 << 20, TURN_TOKENS_MAX = 4096 };
enum form { AS_IS, COMPACTED, RESTARTED, N_FORM };
static const char *const form_names[N_FORM] = {"", ", compacted", ", restarted"};

/* ---- reading -------------------------------------------------------------------------------- */

static enum qn_status check_turn(const char *what, const struct json *turn, int t,
                                 struct qn_err *err)
{
    const struct json *append = json_get(turn, "append");
    int64_t n;
    if (json_type(append) != JSON_ARR || !json_len(append))
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: turn %d has no messages in \"append\"", what, t);
    for (size_t i = 0; i < json_len(append); i++)
        if (!json_str(json_get(json_at(append, i), "role")).n)
            QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: turn %d, message %zu has no role", what, t, i);
    if (!json_i64(json_get(turn, "max_tokens"), &n) || n < 1 || n > TURN_TOKENS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: turn %d: max_tokens must be from 1 to %d", what, t,
                TURN_TOKENS_MAX);
    return QN_OK;
}

static enum qn_status check_recording(const char *what, const struct json *doc, struct qn_err *err)
{
    const struct json *turns = json_get(doc, "turns");
    if (!str_eqz(json_str(json_get(doc, "format")), "quern-agent-recording"))
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: \"format\" is not quern-agent-recording", what);
    if (json_real(json_get(doc, "version")) != 1)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: \"version\" is not 1", what);
    if (!json_str(json_get(doc, "name")).n)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: \"name\" is missing", what);
    if (json_len(turns) < 2 || json_len(turns) > REPLAY_TURNS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: %zu turns; expected from 2 to %d", what,
                json_len(turns), REPLAY_TURNS_MAX);
    for (size_t i = 0; i < json_len(turns); i++)
        QN_TRY(check_turn(what, json_at(turns, i), (int)i, err));
    return QN_OK;
}

enum qn_status replay_add(struct replay_set *s, const char *what, struct str text,
                          struct qn_err *err)
{
    struct json *doc = NULL;
    if (s->n == REPLAY_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "more than %d recordings", REPLAY_MAX);
    QN_TRY(json_parse(text, what, JSON_DEPTH_MAX, &doc, err));
    enum qn_status st = check_recording(what, doc, err);
    struct str name = json_str(json_get(doc, "name"));
    char *copy = st == QN_OK ? strndup(name.p, name.n < 24 ? name.n : 24) : NULL;
    if (st == QN_OK && !copy)
        st = err_set(err, QN_NO_MEMORY, "bench", "out of memory for a recording");
    if (st != QN_OK) {
        json_free(doc);
        return st;
    }
    s->v[s->n++] = (struct recording){
        .doc = doc, .name = copy, .n_turn = (int)json_len(json_get(doc, "turns"))};
    return QN_OK;
}

enum qn_status replay_open(const char *const *paths, int n, struct replay_set *out,
                           struct qn_err *err)
{
    size_t n_builtin;
    const struct builtin_recording *b = builtin_recordings(&n_builtin);
    *out = (struct replay_set){.n = 0};
    for (size_t i = 0; n == 0 && i < n_builtin; i++)
        QN_TRY(replay_add(out, b[i].name, (struct str){b[i].text, b[i].n}, err));
    for (int i = 0; i < n; i++) {
        struct buf text = BUF_INIT;
        enum qn_status st = file_read(paths[i], FILE_MAX, &text, err);
        if (st == QN_OK)
            st = replay_add(out, paths[i], buf_str(&text), err);
        buf_free(&text);
        QN_TRY(st);
    }
    return QN_OK;
}

void replay_close(struct replay_set *s)
{
    for (int i = 0; i < s->n; i++) {
        json_free(s->v[i].doc);
        free((char *)(uintptr_t)s->v[i].name);
    }
    *s = (struct replay_set){.n = 0};
}

void replay_plan_text(const struct replay_set *s, struct buf *out)
{
    for (int i = 0; i < s->n; i++)
        for (int f = 0; f < N_FORM; f++)
            buf_addf(out, "          %s%-12s %d turns\n", s->v[i].name, form_names[f],
                     s->v[i].n_turn);
}

void replay_tokens(const struct replay_set *s, double *read, double *written)
{
    *read = *written = 0;
    for (int i = 0; i < s->n; i++)
        for (int t = 0; t < s->v[i].n_turn; t++) {
            struct buf b = BUF_INIT;
            const struct json *turn = json_at(json_get(s->v[i].doc, "turns"), (size_t)t);
            replay_messages(&s->v[i], &(struct replay_turn){.t = t}, &b);
            *read += N_FORM * (double)b.n / 4 / 2; /* half of it from a cache, on the average */
            *written += N_FORM * json_real(json_get(turn, "max_tokens"));
            buf_free(&b);
        }
}

/* ---- histories ------------------------------------------------------------------------------ */

static void add_messages(struct buf *out, const struct json *list, size_t from)
{
    for (size_t i = from; i < json_len(list); i++) {
        if (out->p && out->p[out->n - 1] != '[')
            buf_addc(out, ',');
        json_w_value(out, json_at(list, i));
    }
}

static void add_plain(struct buf *out, const char *role, struct str content)
{
    if (out->p && out->p[out->n - 1] != '[')
        buf_addc(out, ',');
    buf_addf(out, "{\"role\":\"%s\",\"content\":", role);
    json_w_str(out, content);
    buf_addc(out, '}');
}

/* The turn before which the history is cut, and the server restarted. */
static int middle(const struct recording *r)
{
    int64_t at;
    const struct json *c = json_get(r->doc, "compact");
    if (json_i64(json_get(c, "before_turn"), &at) && at > 0 && at < r->n_turn)
        return (int)at;
    return r->n_turn / 2;
}

void replay_messages(const struct recording *r, const struct replay_turn *w, struct buf *out)
{
    int t = w->t;
    bool compact = w->compact;
    struct buf head = BUF_INIT;
    const struct json *turns = json_get(r->doc, "turns");
    struct str system = json_str(json_get(r->doc, "system"));
    int from = 0, cut = middle(r);
    buf_addc(out, '[');
    if (w->salt)
        buf_addf(&head, "Session %s.\n", w->salt);
    buf_add_str(&head, system);
    if (head.n)
        add_plain(out, "system", buf_str(&head));
    buf_free(&head);
    if (compact && t >= cut) {
        struct str summary = json_str(json_get(json_get(r->doc, "compact"), "summary"));
        add_plain(out, "user", summary.n ? summary : STR_LIT("Go on with the task."));
        from = cut;
    }
    for (int i = from; i <= t; i++) {
        const struct json *append = json_get(json_at(turns, (size_t)i), "append");
        size_t skip = 0;
        /* Behind a cut the answers of tools that were cut away mean nothing: they are left out. */
        while (compact && i == cut && t >= cut && skip < json_len(append) &&
               !str_eqz(json_str(json_get(json_at(append, skip), "role")), "user"))
            skip++;
        add_messages(out, append, skip);
    }
    buf_addc(out, ']');
}

/* ---- running -------------------------------------------------------------------------------- */

struct form_ref {
    const struct recording *r;
    enum form form;
    char name[48];
};

struct totals {
    double ttft, prompt, cached, peak;
    bool cached_known;
};

static void sample_turn(struct cell *c, const struct form_ref *f, int t, const struct reply *r,
                        struct totals *sum)
{
    char point[48];
    double rss = (double)cell_rss(c) / 0x1p20;
    snprintf(point, sizeof point, "%.30s #%02d", f->name, t + 1);
    cell_sample(c, point, "turn_ttft_ms", reply_ttft_ms(r));
    cell_sample(c, point, "turn_prompt_tokens", (double)r->prompt_tokens);
    if (r->cached_tokens >= 0) {
        cell_sample(c, point, "turn_recomputed_tokens",
                    (double)(r->prompt_tokens - r->cached_tokens));
        sum->cached += (double)r->cached_tokens;
        sum->cached_known = true;
    }
    if (rss > 0)
        cell_sample(c, point, "turn_rss_mib", rss);
    sum->peak = fmax(sum->peak, rss);
    sum->ttft += reply_ttft_ms(r);
    sum->prompt += (double)r->prompt_tokens;
}

static enum qn_status run_turn(struct cell *c, const struct form_ref *f, int t, int attempt,
                               struct totals *sum, struct qn_err *err)
{
    const struct json *turn = json_at(json_get(f->r->doc, "turns"), (size_t)t);
    const struct json *tools = json_get(f->r->doc, "tools");
    struct buf messages = BUF_INIT, tools_text = BUF_INIT;
    struct reply r;
    int64_t max_tokens = 0;
    json_i64(json_get(turn, "max_tokens"), &max_tokens);
    struct nonce salt = nonce_make(c->w->seed, f->name, attempt, c->round);
    replay_messages(f->r,
                    &(struct replay_turn){.t = t, .compact = f->form == COMPACTED, .salt = salt.z},
                    &messages);
    if (json_len(tools))
        json_w_value(&tools_text, tools);
    const struct ask a = {.phase = f->name,
                          .attempt = attempt,
                          .index = t,
                          .user = -1,
                          .shown = "",
                          .body = {.chat = true,
                                   .messages = buf_str(&messages),
                                   .tools = buf_str(&tools_text),
                                   .max_tokens = max_tokens}};
    enum qn_status st = cell_ask(c, &a, &r, err);
    if (st == QN_OK)
        sample_turn(c, f, t, &r, sum);
    reply_free(&r);
    buf_free(&messages);
    buf_free(&tools_text);
    return st;
}

static enum qn_status phase_replay(struct cell *c, int attempt, struct qn_err *err)
{
    const struct form_ref *f = c->phase_arg;
    struct totals sum = {0};
    for (int t = 0; t < f->r->n_turn; t++) {
        double ready;
        if (f->form == RESTARTED && t == middle(f->r))
            QN_TRY(cell_restart(c, false, &ready, err));
        QN_TRY(run_turn(c, f, t, attempt, &sum, err));
    }
    cell_sample(c, f->name, "replay_ttft_sum_ms", sum.ttft);
    if (sum.cached_known && sum.prompt > 0)
        cell_sample(c, f->name, "replay_recomputed_share",
                    100 * (sum.prompt - sum.cached) / sum.prompt);
    if (sum.peak > 0)
        cell_sample(c, f->name, "replay_peak_rss_mib", sum.peak);
    return QN_OK;
}

enum qn_status replay_run(struct cell *c, const struct replay_set *s, struct qn_err *err)
{
    for (int i = 0; i < s->n; i++)
        for (int form = 0; form < N_FORM; form++) {
            struct form_ref f = {.r = &s->v[i], .form = (enum form)form};
            if (form == RESTARTED && !c->arm->command)
                continue;
            snprintf(f.name, sizeof f.name, "%s%s", f.r->name, form_names[form]);
            c->phase_arg = &f;
            QN_TRY(cell_phase(c, f.name, phase_replay, err));
        }
    return QN_OK;
}
