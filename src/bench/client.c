/*
 * client.c - see client.h. One curl multi handle; its socket waiting and our timer heap share one
 * poll. Requests that are over are taken out of the multi handle before their owner is told.
 */
#include "bench/client.h"

#include <curl/curl.h>
#include <stdlib.h>

#include "base/clock.h"

enum { POLL_MS_MAX = 100, GET_BODY_MAX = 8 << 20 };

struct call {
    struct client *client;
    struct call *prev, *next;
    CURL *easy;
    struct curl_slist *headers;
    struct reply reply;
    bool is_get; /* the body is kept as it is */
    struct buf raw;
    double stall_s;
    uint64_t budget_timer, stall_timer;
    int64_t budget_ms;
    void (*done)(void *arg, struct reply *r);
    void *arg;
};

struct client {
    CURLM *multi;
    struct timers *timers;
    const atomic_bool *cancel;
    struct call *calls; /* running */
    int n_running;
};

static bool no_memory(struct qn_err *err)
{
    err_set(err, QN_NO_MEMORY, "client", "out of memory for a request");
    return false;
}

enum qn_status client_create(const atomic_bool *cancel, struct client **out, struct qn_err *err)
{
    struct client *c = calloc(1, sizeof *c);
    if (c && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        c->cancel = cancel;
        c->timers = timers_create();
        c->multi = curl_multi_init();
    }
    *out = c;
    if (c && c->timers && c->multi)
        return QN_OK;
    client_free(c);
    *out = NULL;
    QN_FAIL(err, QN_NO_MEMORY, "client", "out of memory for the HTTP client");
}

struct timers *client_timers(struct client *c)
{
    return c->timers;
}

int client_running(const struct client *c)
{
    return c->n_running;
}

/* ---- one request ---------------------------------------------------------------------------- */

static void call_unlink(struct call *k)
{
    struct client *c = k->client;
    if (k->prev)
        k->prev->next = k->next;
    else
        c->calls = k->next;
    if (k->next)
        k->next->prev = k->prev;
    c->n_running--;
}

static void call_free(struct call *k)
{
    timers_cancel(k->client->timers, k->budget_timer);
    timers_cancel(k->client->timers, k->stall_timer);
    if (k->easy) {
        curl_multi_remove_handle(k->client->multi, k->easy);
        curl_easy_cleanup(k->easy);
    }
    curl_slist_free_all(k->headers);
    buf_free(&k->raw);
    reply_free(&k->reply);
    free(k);
}

/* Takes it out and tells its owner, who now owns the reply. */
static void finish(struct call *k)
{
    reply_end(&k->reply, k->reply.end_ns ? k->reply.end_ns : clock_ns());
    call_unlink(k);
    struct reply r = k->reply;
    k->reply = (struct reply){0};
    void (*done)(void *, struct reply *) = k->done;
    void *arg = k->arg;
    call_free(k);
    done(arg, &r);
}

void client_stop(struct client *c, struct call *k)
{
    reply_fault(&k->reply, FAULT_CANCELLED, "stopped");
    finish(k);
}

void client_stop_all(struct client *c)
{
    while (c->calls)
        client_stop(c, c->calls);
}

static void on_budget(void *arg)
{
    struct call *k = arg;
    k->budget_timer = 0;
    reply_fault(&k->reply, FAULT_TIMEOUT, "not done after %lld ms and %d events",
                (long long)k->budget_ms, k->reply.n_event);
    finish(k);
}

/* Armed once per silence, not per event: it looks at when the last byte came and waits on. */
static void on_stall(void *arg)
{
    struct call *k = arg;
    int64_t last = k->reply.last_byte_ns, limit = (int64_t)(k->stall_s * 1e9);
    k->stall_timer = 0;
    if (clock_ns() - last < limit) {
        k->stall_timer = timers_add(k->client->timers, last + limit, on_stall, k);
        return;
    }
    reply_fault(&k->reply, FAULT_STALL, "silent for %.1f s after event %d", k->stall_s,
                k->reply.n_event);
    finish(k);
}

static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct call *k = arg;
    if (n * size <= 2 && !k->reply.headers_ns) { /* the empty line that ends them */
        long status = 0;
        curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
        if (status >= 200) {
            k->reply.headers_ns = clock_ns();
            k->reply.http_status = (int)status;
        }
    }
    return size * n;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    const int64_t now = clock_ns();
    struct call *k = arg;
    const char *type = NULL;
    struct str bytes = {p, size * n};
    if (k->is_get || k->reply.http_status != 200) {
        buf_add_str(&k->raw, bytes);
        return k->raw.failed ? 0 : bytes.n;
    }
    if (!k->reply.first_byte_ns) {
        curl_easy_getinfo(k->easy, CURLINFO_CONTENT_TYPE, &type);
        if (!type || strncasecmp(type, "text/event-stream", 17) != 0) {
            reply_fault(&k->reply, FAULT_TYPE, "content type %.60s; expected text/event-stream",
                        type ? type : "(none)");
            return 0;
        }
        if (k->stall_s > 0)
            k->stall_timer =
                timers_add(k->client->timers, now + (int64_t)(k->stall_s * 1e9), on_stall, k);
    }
    return reply_feed(&k->reply, bytes, now) ? bytes.n : 0;
}

static struct call *call_make(struct client *c, const char *url, const char *api_key)
{
    struct call *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    k->client = c;
    k->raw.limit = GET_BODY_MAX;
    k->easy = curl_easy_init();
    if (!k->easy) {
        free(k);
        return NULL;
    }
    curl_easy_setopt(k->easy, CURLOPT_URL, url);
    curl_easy_setopt(k->easy, CURLOPT_PRIVATE, k);
    curl_easy_setopt(k->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(k->easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(k->easy, CURLOPT_FRESH_CONNECT, 1L);
    curl_easy_setopt(k->easy, CURLOPT_FORBID_REUSE, 1L);
    curl_easy_setopt(k->easy, CURLOPT_NOPROXY, "127.0.0.1,localhost,::1");
    curl_easy_setopt(k->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(k->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(k->easy, CURLOPT_HEADERDATA, k);
    curl_easy_setopt(k->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(k->easy, CURLOPT_WRITEDATA, k);
    if (api_key && *api_key) {
        struct buf b = BUF_INIT;
        buf_addf(&b, "Authorization: Bearer %s", api_key);
        k->headers = curl_slist_append(k->headers, buf_z(&b));
        buf_free(&b);
    }
    return k;
}

static enum qn_status call_launch(struct call *k, double budget_s, struct qn_err *err)
{
    struct client *c = k->client;
    curl_easy_setopt(k->easy, CURLOPT_HTTPHEADER, k->headers);
    k->budget_ms = (int64_t)(budget_s * 1e3);
    k->next = c->calls;
    if (c->calls)
        c->calls->prev = k;
    c->calls = k;
    c->n_running++;
    k->budget_timer = timers_add(c->timers, clock_ns() + (int64_t)(budget_s * 1e9), on_budget, k);
    k->reply.start_ns = clock_ns();
    if (k->budget_timer && curl_multi_add_handle(c->multi, k->easy) == CURLM_OK) {
        int n;
        curl_multi_perform(c->multi, &n); /* the request leaves now, not at the next poll */
        return QN_OK;
    }
    call_unlink(k);
    call_free(k);
    no_memory(err);
    return QN_NO_MEMORY;
}

enum qn_status client_start(struct client *c, const struct call_params *p, struct call **out,
                            struct qn_err *err)
{
    struct call *k = call_make(c, p->url, p->api_key);
    if (!k) {
        no_memory(err);
        return QN_NO_MEMORY;
    }
    k->headers = curl_slist_append(k->headers, "Content-Type: application/json");
    k->headers = curl_slist_append(k->headers, "Accept: text/event-stream");
    k->headers = curl_slist_append(k->headers, "Expect:"); /* no 100-continue: it costs a trip */
    curl_easy_setopt(k->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)p->body.n);
    curl_easy_setopt(k->easy, CURLOPT_COPYPOSTFIELDS, p->body.p);
    reply_init(&k->reply, p->chat, p->max_tokens, 0);
    k->stall_s = p->stall_s;
    k->done = p->done;
    k->arg = p->arg;
    if (out)
        *out = k;
    return call_launch(k, p->budget_s, err);
}

/* ---- what curl says at the end -------------------------------------------------------------- */

static void judge_transport(struct call *k, CURLcode rc)
{
    struct reply *r = &k->reply;
    long os = 0;
    curl_easy_getinfo(k->easy, CURLINFO_OS_ERRNO, &os);
    if (rc == CURLE_OK || rc == CURLE_WRITE_ERROR) {
        if (r->http_status != 200 && !k->is_get)
            reply_fault(r, FAULT_STATUS, "HTTP status %d: %.160s", r->http_status,
                        k->raw.n ? buf_z(&k->raw) : "(no body)");
        else if (rc == CURLE_WRITE_ERROR && !k->is_get)
            reply_fault(r, FAULT_TOO_LONG, "the answer was refused");
    } else if (rc == CURLE_COULDNT_CONNECT || rc == CURLE_COULDNT_RESOLVE_HOST) {
        reply_fault(r, FAULT_CONNECT, "%s", curl_easy_strerror(rc));
    } else if (rc == CURLE_PARTIAL_FILE || rc == CURLE_GOT_NOTHING || rc == CURLE_SEND_ERROR ||
               os) {
        reply_fault(r, FAULT_TRUNCATED, "the connection ended after %d events: %s", r->n_event,
                    curl_easy_strerror(rc));
    } else {
        reply_fault(r, FAULT_FRAMING, "%s", curl_easy_strerror(rc));
    }
}

static void reap(struct client *c)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(c->multi, &left)) != NULL) {
        struct call *k = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode rc = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&k);
        k->reply.end_ns = k->reply.last_byte_ns && rc == CURLE_OK && k->reply.done_seen
                              ? k->reply.last_byte_ns
                              : clock_ns();
        judge_transport(k, rc);
        finish(k);
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

static bool cancelled(const struct client *c)
{
    return c->cancel && atomic_load(c->cancel);
}

enum qn_status client_run(struct client *c, bool (*until)(void *arg), void *arg, struct qn_err *err)
{
    for (;;) {
        int n;
        curl_multi_perform(c->multi, &n);
        reap(c);
        timers_run(c->timers, clock_ns());
        if (until && until(arg))
            return QN_OK;
        if (cancelled(c))
            QN_FAIL(err, QN_CANCELLED, "client", "stopped");
        int64_t next = timers_next(c->timers);
        if (!c->n_running && next == INT64_MAX)
            return QN_OK;
        int64_t wait = next == INT64_MAX ? POLL_MS_MAX : (next - clock_ns()) / 1000000;
        if (wait <= 0 && next != INT64_MAX) {
            if (next - clock_ns() > 0)
                wait = 1; /* less than a millisecond: arrivals may be that much late */
            else
                wait = 0;
        }
        curl_multi_poll(c->multi, NULL, 0, (int)(wait < POLL_MS_MAX ? wait : POLL_MS_MAX), &n);
    }
}

static void set_flag(void *arg)
{
    *(bool *)arg = true;
}

static bool flag_is_set(void *arg)
{
    return *(bool *)arg;
}

enum qn_status client_wait(struct client *c, double seconds, struct qn_err *err)
{
    bool over = false;
    uint64_t id = timers_add(c->timers, clock_ns() + (int64_t)(seconds * 1e9), set_flag, &over);
    if (!id)
        QN_FAIL(err, QN_NO_MEMORY, "client", "out of memory for a timer");
    enum qn_status st = client_run(c, flag_is_set, &over, err);
    timers_cancel(c->timers, id);
    return st;
}

struct get {
    bool over;
    int status;
};

static void on_get(void *arg, struct reply *r)
{
    struct get *g = arg;
    g->over = true;
    g->status = r->fault == FAULT_NONE || r->fault == FAULT_NO_FINISH ? r->http_status : 0;
    reply_free(r);
}

static bool get_over(void *arg)
{
    return ((struct get *)arg)->over;
}

/* Like on_body for GETs, but into the caller's buffer: the call is gone when they read it. */
static size_t on_get_body(char *p, size_t size, size_t n, void *arg)
{
    struct buf *to = arg;
    if (to->n + size * n > GET_BODY_MAX)
        return 0;
    buf_add(to, p, size * n);
    return to->failed ? 0 : size * n;
}

enum qn_status client_get(struct client *c, const char *url, const char *api_key, double timeout_s,
                          int *status, struct buf *body, struct qn_err *err)
{
    struct get g = {0};
    struct call *k = call_make(c, url, api_key);
    if (!k) {
        no_memory(err);
        return QN_NO_MEMORY;
    }
    buf_clear(body);
    *status = 0;
    k->is_get = true;
    k->done = on_get;
    k->arg = &g;
    reply_init(&k->reply, true, 0, 0);
    curl_easy_setopt(k->easy, CURLOPT_WRITEFUNCTION, on_get_body);
    curl_easy_setopt(k->easy, CURLOPT_WRITEDATA, body);
    QN_TRY(call_launch(k, timeout_s, err));
    enum qn_status st = client_run(c, get_over, &g, err);
    if (!g.over)
        client_stop(c, k);
    *status = g.status;
    return st;
}

void client_free(struct client *c)
{
    if (!c)
        return;
    while (c->calls) {
        struct call *k = c->calls;
        call_unlink(k);
        call_free(k);
    }
    if (c->multi)
        curl_multi_cleanup(c->multi);
    timers_free(c->timers);
    free(c);
    curl_global_cleanup();
}
