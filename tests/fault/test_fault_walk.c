/*
 * test_fault_walk.c - every allocation, socket read and write, and sampling step of whole
 * requests fails in turn, in process, through real sockets: the request is answered in its
 * dialect's shape or its connection ends, memory and descriptors return to their level, and the
 * next request is right.
 *
 * Two models: the scripted one, and a tiny llama on the engine (its KV memory and steps are points
 * as well). QUERN_FAULT_STRIDE=N walks every Nth point only.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/fault.h"
#include "base/json.h"
#include "fault_wrap.h"
#include "scripted.h"
#include "server/server.h"

#define REPLY_MAX 65536
#define MUTE_MAX  3
#define LOOKS_MAX 100000 /* 20 seconds and more of a process that runs */
#define RETAINED  4096   /* bytes that all walks of a request together may keep */

struct house {
    struct scripted *sc;
    struct qn_engine *engine;
    struct tok *tok;
    struct chat_tmpl *chat;
    struct sched *sched;
    struct api_model model;
    struct server *srv;
};

struct ask {
    const char *path, *body;
    bool stream, anthropic;
};

struct reply {
    char text[REPLY_MAX];
    size_t n;
    int status; /* 0 = the connection ended without one */
    const char *body;
};

/* ---- the scripted model, whose own allocations are no points --------------------------------- */

static const struct lm_ops *inner;

static enum qn_status out_create(void *self, void **seq, struct qn_err *err)
{
    fault_exempt = true;
    enum qn_status st = inner->seq_create(self, seq, err);
    fault_exempt = false;
    return st;
}

static enum qn_status out_step(void *self, struct qn_step_item *items, int32_t n,
                               struct qn_err *err)
{
    fault_exempt = true;
    enum qn_status st = inner->step(self, items, n, err);
    fault_exempt = false;
    return st;
}

static enum qn_status out_fork(void *self, void *seq, void **out, struct qn_err *err)
{
    fault_exempt = true;
    enum qn_status st = inner->seq_fork(self, seq, out, err);
    fault_exempt = false;
    return st;
}

static struct lm exempt_lm(struct scripted *sc)
{
    static struct lm_ops ops;
    struct lm lm = scripted_lm(sc);
    inner = lm.ops;
    ops = *inner;
    ops.seq_create = out_create;
    ops.step = out_step;
    ops.seq_fork = out_fork;
    lm.ops = &ops;
    return lm;
}

/* ---- the house ------------------------------------------------------------------------------- */

static void house_up(struct house *h, const char *folder)
{
    struct buf json = BUF_INIT;
    struct qn_err err = {0};
    struct scripted_params sp = {.fork = true};
    memset(h, 0, sizeof *h);
    scripted_tok_json(&sp, &json);
    if (tok_from_json(buf_str(&json), scripted_tok_config(), &h->tok, &err) != QN_OK ||
        chat_tmpl_from_json(scripted_tok_config(), &h->chat, &err) != QN_OK)
        fail_msg("%s", err.msg);
    buf_free(&json);
    struct lm lm;
    if (folder) {
        struct qn_engine_params ep = {.model_dir = folder, .n_thread = 1, .weights_only = true};
        if (qn_engine_open(&ep, &h->engine, &err) != QN_OK)
            fail_msg("%s", err.msg);
        lm = lm_of_engine(h->engine);
    } else {
        assert_int_equal(scripted_create(&sp, &h->sc, &err), QN_OK);
        lm = exempt_lm(h->sc);
    }
    struct sched_params p = {.n_lane = 4, .chunk = 64, .kv_budget = 64 << 20};
    assert_int_equal(sched_create(&lm, h->tok, &p, &h->sched, &err), QN_OK);
    h->model = (struct api_model){.name = "house",
                                  .tok = h->tok,
                                  .chat = h->chat,
                                  .n_ctx = lm.n_ctx,
                                  .n_vocab = lm.n_vocab,
                                  .defaults = sample_params_default(),
                                  .created = 1};
    api_model_fingerprint(&h->model);
    struct server_params s = {.model = &h->model, .sched = h->sched};
    if (server_start(&s, &h->srv, &err) != QN_OK)
        fail_msg("%s", err.msg);
}

static void house_down(struct house *h)
{
    struct scripted_counts c = {0};
    server_free(h->srv);
    sched_free(h->sched);
    if (h->sc) {
        scripted_counts(h->sc, &c);
        assert_int_equal(c.alive, 0);
        scripted_free(h->sc);
    }
    qn_engine_free(h->engine);
    chat_tmpl_free(h->chat);
    tok_free(h->tok);
}

/* ---- a client: read and write only, which are no fault points -------------------------------- */

static void status_of(struct reply *r)
{
    char *body = strstr(r->text, "\r\n\r\n");
    r->body = body ? body + 4 : r->text + r->n;
    r->status = strncmp(r->text, "HTTP/1.1 ", 9) == 0 && body ? atoi(r->text + 9) : 0;
}

static void ask(const struct house *h, const struct ask *a, struct reply *r)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)server_port(h->srv)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char head[400];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
                     "%zu\r\n\r\n",
                     a->path, strlen(a->body));
    /* A server that gave up may have closed already. */
    (void)!write(fd, head, (size_t)n);
    (void)!write(fd, a->body, strlen(a->body));
    r->n = 0;
    for (ssize_t got; (got = read(fd, r->text + r->n, REPLY_MAX - 1 - r->n)) > 0;)
        r->n += (size_t)got;
    close(fd);
    r->text[r->n] = 0;
    status_of(r);
}

/* ---- what may come back ---------------------------------------------------------------------- */

/* An error object of the dialect; leaks nothing about the inside. */
static bool error_shaped(const struct ask *a, struct str text)
{
    struct json *j = NULL;
    if (json_parse(text, "reply", 16, &j, NULL) != QN_OK)
        return false;
    const struct json *e = json_get(j, "error");
    bool ok = json_type(json_get(e, "message")) == JSON_STR &&
              json_type(json_get(e, "type")) == JSON_STR &&
              (!a->anthropic || str_eqz(json_str(json_get(j, "type")), "error"));
    json_free(j);
    return ok;
}

/* Responses' last event is no error object of HTTP: {"type":"response.failed","response":{...}} or
 * {"type":"error","message":...}. */
static bool failed_event(struct str text)
{
    struct json *j = NULL;
    if (json_parse(text, "event", 16, &j, NULL) != QN_OK)
        return false;
    struct str type = json_str(json_get(j, "type"));
    const struct json *e = json_get(json_get(j, "response"), "error");
    bool ok = (str_eqz(type, "response.failed") && json_str(json_get(e, "message")).n > 0) ||
              (str_eqz(type, "error") && json_str(json_get(j, "message")).n > 0);
    json_free(j);
    return ok;
}

static bool ends_with_error(const struct ask *a, const struct reply *r)
{
    const char *last = NULL;
    for (const char *p = r->body; (p = strstr(p, "data: {")) != NULL; p++)
        last = p + 6;
    const char *end = last ? strchr(last, '\n') : NULL;
    struct str event = {last, end ? (size_t)(end - last) : 0};
    bool responses = strcmp(a->path, "/v1/responses") == 0;
    return end && (error_shaped(a, event) || (responses && failed_event(event)));
}

enum verdict { WHOLE, REFUSED, CUT_WITH_ERROR, CUT, MUTE, N_VERDICT };

/* The ids, times and numbers differ from one answer to the next: texts are compared. */
static void texts_of(const struct reply *r, struct buf *out)
{
    static const char *const keys[] = {
        "\"content\":\"",     "\"text\":\"",          "\"token\":\"",
        "\"bytes\":[",        "\"text_offset\":[",    "\"tokens\":[",
        "\"top_logprobs\":[", "\"finish_reason\":\"", "\"stop_reason\":\""};
    for (const char *p = r->body; *p; p++)
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
            if (strncmp(p, keys[k], strlen(keys[k])) == 0)
                for (const char *c = p + strlen(keys[k]); *c && !strchr("\"]", *c); c++)
                    buf_addc(out, *c);
}

static enum verdict judge(const struct ask *a, const struct reply *r, const struct reply *good)
{
    struct buf got = BUF_INIT, want = BUF_INIT;
    if (r->status == 0)
        return r->n == 0 ? MUTE : CUT;
    if (r->status != 200) {
        if (r->status != 503 && r->status != 500 && r->status != 429)
            fail_msg("status %d: %s", r->status, r->body);
        if (!error_shaped(a, (struct str){r->body, strlen(r->body)}))
            fail_msg("not the dialect's error: %s", r->text);
        return REFUSED;
    }
    if (ends_with_error(a, r))
        return CUT_WITH_ERROR;
    const char *end = a->anthropic                            ? "message_stop"
                      : strcmp(a->path, "/v1/responses") == 0 ? "response.completed"
                                                              : "[DONE]";
    if (a->stream && !strstr(r->body, end))
        return CUT;
    if (!a->stream && (r->n == 0 || r->body[strlen(r->body) - 1] != '}'))
        return CUT;
    texts_of(r, &got);
    texts_of(good, &want);
    if (strcmp(buf_z(&got), buf_z(&want)) != 0) {
        fault_where();
        fail_msg("another text: %s\ninstead of: %s", r->text, good->text);
    }
    buf_free(&got);
    buf_free(&want);
    return WHOLE;
}

/* ---- levels ---------------------------------------------------------------------------------- */

static int entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* All threads of connections are gone. Patience is counted in looks, not by a clock: when the whole
 * process has been stopped for a while its threads have had no time either. */
static void settle(const struct house *h, int threads)
{
    struct server_counts c;
    int looks = 0;
    do {
        usleep(200);
        server_counts(h->srv, &c);
        if (++looks > LOOKS_MAX)
            fail_msg("%d connections and %d requests are still there", c.connections, c.in_flight);
    } while (c.connections > 0 || c.in_flight > 0 || entries("/proc/self/task") > threads);
}

/* A connection's socket is closed by another thread than its own, a little later. */
static void settle_files(int most)
{
    for (int looks = 0; entries("/proc/self/fd") > most && looks < LOOKS_MAX; looks++)
        usleep(200);
    assert_true(entries("/proc/self/fd") <= most);
}

static size_t held(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* ---- the walk -------------------------------------------------------------------------------- */

static const struct ask next_one = {
    .path = "/v1/completions",
    .body = "{\"prompt\":\"[[say:the next one]]\",\"max_tokens\":20,\"temperature\":0}"};

static int64_t stride(void)
{
    const char *s = getenv("QUERN_FAULT_STRIDE");
    return s && atoi(s) > 0 ? atoi(s) : 1;
}

static void walk(struct house *h, const struct ask *a, const char *point)
{
    static struct reply good, next, r;
    int seen[N_VERDICT] = {0};
    int threads = entries("/proc/self/task");
    for (int i = 0; i < 3; i++) { /* caches of the allocator fill */
        ask(h, a, &good);
        ask(h, &next_one, &next);
        settle(h, threads);
    }
    assert_int_equal(judge(a, &good, &good), WHOLE);
    for (int64_t i = 1; i < 60; i += 19) { /* what is made once, for the first failure */
        fault_arm(point, i);
        ask(h, a, &r);
        settle(h, threads);
        fault_disarm();
    }
    usleep(20000);
    int fds = entries("/proc/self/fd");
    size_t level = held();
    int64_t hits = 0, nth = 1;
    for (; hits >= nth - stride(); nth += stride()) {
        fault_arm(point, nth);
        ask(h, a, &r);
        settle(h, threads);
        hits = fault_disarm();
        enum verdict v = judge(a, &r, &good);
        seen[v]++;
        if (getenv("QUERN_FAULT_SHOW") && v == (enum verdict)atoi(getenv("QUERN_FAULT_SHOW"))) {
            print_message("%s point %lld: %s\n", point, (long long)nth, r.text);
            fault_where();
        }
        ask(h, &next_one, &r);
        assert_int_equal(judge(&next_one, &r, &next), WHOLE);
        settle(h, threads);
        settle_files(fds);
    }
    size_t now = held();
    /* Without an answer only where no request was known yet: the connection, its thread. */
    if (strcmp(point, "malloc") == 0 && (seen[MUTE] > MUTE_MAX || seen[CUT] > 0))
        fail_msg("%s: %d times no answer, %d times only a part", a->path, seen[MUTE], seen[CUT]);
    print_message(
        "%s%s, %s: %lld points; whole %d, refused %d, ended by an error event %d, cut %d, "
        "mute %d; %+lld bytes held\n",
        a->path, a->stream ? " streamed" : "", point, (long long)(nth - stride()), seen[WHOLE],
        seen[REFUSED], seen[CUT_WITH_ERROR], seen[CUT], seen[MUTE],
        (long long)now - (long long)level);
    if (!SANITIZED && now > level + RETAINED)
        fail_msg("%zu bytes are still held", now - level);
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"[[say:hello \\u00e9 zebra]]\"}]"

static const struct ask asks[] = {
    {"/v1/chat/completions",
     "{" MESSAGES ",\"max_tokens\":40,\"temperature\":0.1,\"seed\":1,\"logprobs\":true,"
     "\"top_logprobs\":2,\"stop\":[\"bra\"],\"frequency_penalty\":0.1,\"n\":2,"
     "\"logit_bias\":{\"7\":-5}}",
     false, false},
    {"/v1/chat/completions",
     "{" MESSAGES ",\"max_tokens\":40,\"temperature\":0,\"stream\":true,\"stop\":\"zebras\","
     "\"stream_options\":{\"include_usage\":true}}",
     true, false},
    {"/v1/completions",
     "{\"prompt\":\"[[say:abc]]\",\"max_tokens\":4,\"temperature\":0,\"echo\":true,\"logprobs\":1}",
     false, false},
    {"/v1/messages", "{" MESSAGES ",\"max_tokens\":40,\"temperature\":0,\"stream\":true}", true,
     true},
    {"/v1/messages", "{" MESSAGES ",\"max_tokens\":40,\"temperature\":0}", false, true},
    {"/v1/responses",
     "{\"input\":\"[[say:hello zebra]]\",\"max_output_tokens\":40,\"temperature\":0,"
     "\"store\":false}",
     false, false},
    {"/v1/responses",
     "{\"input\":\"[[say:hello zebra]]\",\"max_output_tokens\":40,\"temperature\":0,"
     "\"stream\":true,\"store\":false}",
     true, false},
};
#define N_ASK (int)(sizeof asks / sizeof asks[0])

static void test_scripted(void **state)
{
    struct house h;
    house_up(&h, NULL);
    for (int i = 0; i < N_ASK; i++) {
        walk(&h, &asks[i], "malloc");
        walk(&h, &asks[i], "net");
    }
    house_down(&h);
}

/* The engine's own points: pages, steps; the answer is whatever the model says, but always that. */
static void test_engine(void **state)
{
    struct house h;
    house_up(&h, TINY_LLAMA);
    static const struct ask a = {
        "/v1/completions",
        "{\"prompt\":\"[[say:a prompt of more than sixty-four tokens so that it has several pages, "
        "read in more than one chunk]]\",\"max_tokens\":12,\"temperature\":0,\"logprobs\":1,"
        "\"n\":2}",
        false, false};
    walk(&h, &a, "malloc");
    house_down(&h);
}

/* Each sampling step fails in turn: not-a-number logits, and a step that the model refuses. */
static void test_sampling(void **state)
{
    struct house h;
    static struct reply good, r;
    house_up(&h, NULL);
    ask(&h, &next_one, &good);
    for (int kind = 0; kind < 2; kind++) {
        for (int at = kind; at <= 8; at++) {
            for (int i = 0; i < 4; i++) {
                char body[300];
                const char *stream = i & 1 ? ",\"stream\":true" : "";
                snprintf(body, sizeof body,
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"[[say:12345678]][[%s:%d]]"
                         "\"}],\"max_tokens\":40%s}",
                         kind ? "fail" : "nan", at, stream);
                struct ask a = {i & 2 ? "/v1/messages" : "/v1/chat/completions", body, i & 1,
                                (i & 2) != 0};
                ask(&h, &a, &r);
                enum verdict v = judge(&a, &r, &r);
                assert_int_equal(v, a.stream ? CUT_WITH_ERROR : REFUSED);
                assert_null(strstr(r.body, "NaN"));
                assert_null(strstr(r.body, "as its script says"));
                ask(&h, &next_one, &r);
                assert_int_equal(judge(&next_one, &r, &good), WHOLE);
            }
        }
    }
    house_down(&h);
}

/* Chunks that a thread's cache keeps count as held: without it the level is exact. */
static void without_thread_caches(char **argv)
{
    if (getenv("GLIBC_TUNABLES"))
        return;
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    without_thread_caches(argv);
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_ARENA_MAX, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_scripted),
        cmocka_unit_test(test_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
