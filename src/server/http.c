/*
 * http.c - the server's life and its hooks in libmicrohttpd: framing checks, body storage with
 * limits, routing, access log. See server.h.
 *
 * A request passes here three times: headers (begin), body pieces (take_body), end (finish). What
 * is refused at the headers is answered at the end when the body is short (the connection lives
 * on), and at once when it is not: then the answer is written past libmicrohttpd and the rest of
 * the body is read and dropped for a moment, so that the client can read the answer.
 */
#include "server/server_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/resp_store.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/slice.h"

#define HEADER_LINE_MAX  16384
#define HEADER_COUNT_MAX 128
#define POOL_BYTES       (160 * 1024) /* headers of one request; larger ones are MHD's own 431 */
#define STACK_BYTES      (2 * 1024 * 1024)
#define SLICE_NS         100000              /* a connection works for less between two waits */
#define BODIES_MAX       2                   /* times max_body: all stored bodies together */
#define PARSED_ONE_MAX   ((size_t)384 << 20) /* json_memory of one body */
#define PARSED_ALL_MAX   ((size_t)1 << 30)   /* of all bodies together */

/* ---- framing
 * ------------------------------------------------------------------------------------- */

struct framing {
    int n_length, n_encoding, n_header, n_host;
    bool long_line, bad_length, expect, chunked;
    int64_t length; /* -1 = none */
};

static bool parse_length(const char *v, int64_t *out)
{
    int64_t n = 0;
    if (!*v)
        return false;
    for (; *v; v++) {
        if (*v < '0' || *v > '9' || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_add_overflow(n, *v - '0', &n))
            return false;
    }
    *out = n;
    return true;
}

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                  const char *value)
{
    struct framing *f = cls;
    if (!value)
        value = "";
    f->n_header++;
    f->long_line |= strlen(key) + strlen(value) > HEADER_LINE_MAX;
    if (strcasecmp(key, "Content-Length") == 0) {
        f->n_length++;
        f->bad_length |= !parse_length(value, &f->length);
    } else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        f->n_encoding++;
        f->chunked = strcasecmp(value, "chunked") == 0;
    } else if (strcasecmp(key, "Expect") == 0) {
        f->expect = strcasecmp(value, "100-continue") == 0;
    } else if (strcasecmp(key, "Host") == 0) {
        f->n_host++;
    }
    return MHD_YES;
}

/* Refusals that leave unclear where the body ends: the connection cannot go on. */
static bool framing_broken(const struct framing *f, const struct http_req *rq, struct api_error *e)
{
    if (f->n_length > 0 && f->n_encoding > 0)
        api_refuse(e, 400, "bad_framing", NULL,
                   "both Content-Length and Transfer-Encoding are given; expected one of them");
    else if (f->n_length > 1)
        api_refuse(e, 400, "bad_framing", NULL, "Content-Length is given %d times", f->n_length);
    else if (f->bad_length)
        api_refuse(e, 400, "bad_framing", NULL, "Content-Length is not a number of bytes");
    else if (f->n_encoding > 1 || (f->n_encoding == 1 && !f->chunked))
        api_refuse(e, 400, "bad_framing", NULL,
                   "Transfer-Encoding other than \"chunked\" is not supported");
    else if (f->n_host > 1)
        api_refuse(e, 400, "bad_framing", NULL, "Host is given %d times", f->n_host);
    else if (f->long_line)
        api_refuse(e, 431, "header_too_large", NULL, "a header line is longer than %d bytes",
                   HEADER_LINE_MAX);
    else if (f->n_header > HEADER_COUNT_MAX)
        api_refuse(e, 431, "header_too_large", NULL, "the request has %d header lines; at most %d",
                   f->n_header, HEADER_COUNT_MAX);
    return e->status != 0;
}

static void too_large(struct http_req *rq)
{
    api_refuse(&rq->refusal, 413, "body_too_large", NULL,
               "the body is larger than the limit of %zu bytes", rq->srv->p.max_body);
}

/* ---- one request
 * ------------------------------------------------------------------------------------ */

static uint64_t peer_key(struct http_req *rq, int key_index)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(rq->mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    uint64_t seed = (uint64_t)(int64_t)key_index;
    if (!info || !info->client_addr)
        return seed;
    if (info->client_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const void *)info->client_addr;
        return hash64(&a->sin6_addr, sizeof a->sin6_addr, seed);
    }
    const struct sockaddr_in *a = (const void *)info->client_addr;
    return hash64(&a->sin_addr, sizeof a->sin_addr, seed);
}

static struct http_req *req_create(struct server *s, struct MHD_Connection *mc, const char *url,
                                   const char *method, const char *version)
{
    struct http_req *rq = calloc(1, sizeof *rq);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (!rq || !info || !info->socket_context) {
        free(rq);
        return NULL;
    }
    rq->srv = s;
    rq->mc = mc;
    rq->conn = info->socket_context;
    rq->t0_us = clock_us();
    rq->http10 = strcmp(version, "HTTP/1.0") == 0;
    rq->head = strcmp(method, "HEAD") == 0;
    snprintf(rq->method, sizeof rq->method, "%s", method);
    snprintf(rq->path, sizeof rq->path, "%s", url);
    snprintf(rq->id, sizeof rq->id, "req_%016llx", (unsigned long long)rng_seed_fresh());
    const char *origin = MHD_lookup_connection_value(mc, MHD_HEADER_KIND, "Origin");
    snprintf(rq->origin, sizeof rq->origin, "%s", origin ? origin : "");
    rq->body.limit = s->p.max_body + 1;
    atomic_fetch_add(&s->n_requests, 1);
    return rq;
}

/* Answers now, although the body has not been read, and lets the client finish sending. */
static enum MHD_Result refuse_now(struct http_req *rq, bool expect)
{
    if (expect) /* the client waits for our word before it sends the body */
        return reply_error(rq, &rq->refusal);
    reply_raw(rq, &rq->refusal);
    rq->mode = BODY_LINGER;
    conns_state(&rq->srv->conns, rq->conn, CONN_LINGER);
    return MHD_YES;
}

/* False, with the refusal filled, for a foreign Host, no route, or no key. */
static bool route_and_auth(struct http_req *rq)
{
    int key = -1;
    if (!host_ok(rq)) {
        const char *host = MHD_lookup_connection_value(rq->mc, MHD_HEADER_KIND, "Host");
        api_refuse(&rq->refusal, 403, "host_not_allowed", NULL,
                   "the Host header \"%.100s\" is not a name of this server: without an API key "
                   "only localhost, 127.0.0.1, [::1] and the --host value are answered",
                   host ? host : "");
        return false;
    }
    bool found = route_find(rq);
    if (strcmp(rq->method, "OPTIONS") == 0)
        return true;
    if ((!rq->route || !rq->route->open) && !auth_ok(rq->srv, rq->mc, &key)) {
        api_refuse(&rq->refusal, 401, "invalid_api_key", NULL,
                   "a valid API key is needed: send it as \"Authorization: Bearer KEY\"");
        return false;
    }
    rq->client = peer_key(rq, key);
    return found;
}

/* Headers are here. */
static enum MHD_Result begin(struct http_req *rq)
{
    struct framing f = {.length = -1};
    struct api_error broken = {0};
    MHD_get_connection_values(rq->mc, MHD_HEADER_KIND, see_header, &f);
    bool has_body = f.n_encoding > 0 || f.length > 0;
    if (framing_broken(&f, rq, &broken)) {
        rq->refusal = broken;
        reply_raw(rq, &rq->refusal);
        return MHD_NO;
    }
    bool ok = route_and_auth(rq);
    if (ok && rq->route && rq->route->body && !rq->route->bare && strcmp(rq->method, "POST") == 0 &&
        f.n_length + f.n_encoding == 0) {
        api_refuse(&rq->refusal, 411, "length_required", NULL,
                   "the request has no body: expected Content-Length or chunked encoding");
        ok = false;
    }
    if (f.length > 0 && (uint64_t)f.length > rq->srv->p.max_body) {
        if (ok)
            too_large(rq);
        return refuse_now(rq, f.expect);
    }
    if (!ok && f.expect && has_body)
        return refuse_now(rq, true);
    bool stores = ok && rq->route && rq->route->body && strcmp(rq->method, "POST") == 0;
    rq->mode = !has_body ? BODY_NONE : stores ? BODY_STORE : BODY_DROP;
    conns_state(&rq->srv->conns, rq->conn, CONN_BODY);
    return MHD_YES;
}

static void unstore(struct http_req *rq)
{
    atomic_fetch_sub(&rq->srv->body_bytes, (long long)rq->body.n);
    atomic_fetch_sub(&rq->srv->parsed_bytes, (long long)rq->parsed);
    rq->parsed = 0;
    buf_free(&rq->body);
}

/* Room for the values of the body: three bytes of text can ask for a kilobyte of them. */
static bool may_parse(struct http_req *rq)
{
    atomic_llong *all = &rq->srv->parsed_bytes;
    size_t n = json_memory(buf_str(&rq->body));
    if (n > PARSED_ONE_MAX) {
        api_refuse(&rq->refusal, 413, "body_too_large", NULL,
                   "the body's JSON has too many values: they would take about %zu MiB of memory, "
                   "the limit is %zu",
                   n >> 20, PARSED_ONE_MAX >> 20);
        return false;
    }
    if (atomic_fetch_add(all, (long long)n) + (long long)n > (long long)PARSED_ALL_MAX) {
        atomic_fetch_sub(all, (long long)n);
        api_refuse(&rq->refusal, 503, "no_memory", NULL,
                   "too many large requests are being worked on; try again later");
        return false;
    }
    rq->parsed = n;
    return true;
}

/* A piece of the body. */
static enum MHD_Result take_body(struct http_req *rq, const char *p, size_t n)
{
    struct server *s = rq->srv;
    size_t max = s->p.max_body;
    if (rq->mode != BODY_STORE)
        return MHD_YES;
    if (n > max - rq->body.n) {
        too_large(rq);
    } else if (atomic_fetch_add(&s->body_bytes, (long long)n) + (long long)n >
               (long long)(max * BODIES_MAX)) {
        atomic_fetch_sub(&s->body_bytes, (long long)n);
        api_refuse(&rq->refusal, 503, "no_memory", NULL,
                   "too many large requests are arriving at once; try again later");
    } else {
        buf_add(&rq->body, p, n);
        if (!rq->body.failed)
            return MHD_YES;
        atomic_fetch_sub(&s->body_bytes, (long long)n);
        api_no_memory(&rq->refusal);
    }
    unstore(rq);
    return refuse_now(rq, false);
}

/* The whole request is here. */
static enum MHD_Result finish(struct http_req *rq)
{
    struct buf out = BUF_INIT;
    struct api_error e = {0};
    if (rq->mode == BODY_LINGER)
        return MHD_NO;
    conns_state(&rq->srv->conns, rq->conn, CONN_BUSY);
    if (strcmp(rq->method, "OPTIONS") == 0 && rq->refusal.status != 403)
        return reply_preflight(rq);
    if (rq->refusal.status == 0 && !rq->route->early && !atomic_load(&rq->srv->ready))
        api_refuse(&rq->refusal, 503, "loading", NULL, "the model is still being loaded");
    if (rq->refusal.status != 0 || !may_parse(rq))
        return reply_error(rq, &rq->refusal);
    if (rq->route->dialect)
        return generate(rq);
    if (rq->route->plain(rq, &out, &e) != QN_OK) {
        buf_free(&out);
        return reply_error(rq, &e);
    }
    return reply_whole(rq, rq->plain_status ? rq->plain_status : 200, rq->route->type, &out);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mc, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_size, void **ctx)
{
    struct http_req *rq = *ctx;
    if (!rq) {
        rq = req_create(cls, mc, url, method, version);
        *ctx = rq;
        return rq ? begin(rq) : MHD_NO;
    }
    if (*data_size > 0) {
        size_t n = *data_size;
        *data_size = 0;
        return take_body(rq, data, n);
    }
    return finish(rq);
}

static void access_line(const struct http_req *rq)
{
    double ms = (double)(clock_us() - rq->t0_us) / 1000;
    if (!rq->srv->p.access_log)
        return;
    if (rq->generated)
        log_line(LOG_INFO, "http", "%s %s %d %.1fms in=%lld cached=%lld out=%lld id=%s", rq->method,
                 rq->path, rq->status, ms, (long long)rq->usage.prompt_tokens,
                 (long long)rq->usage.cached_tokens, (long long)rq->usage.completion_tokens,
                 rq->id);
    else
        log_line(LOG_INFO, "http", "%s %s %d %.1fms id=%s", rq->method, rq->path, rq->status, ms,
                 rq->id);
}

static void on_completed(void *cls, struct MHD_Connection *mc, void **ctx,
                         enum MHD_RequestTerminationCode code)
{
    struct http_req *rq = *ctx;
    if (!rq)
        return;
    *ctx = NULL;
    job_free(rq);
    if (rq->filed)
        atomic_fetch_sub(&rq->srv->filing, 1);
    unstore(rq);
    metrics_request(&rq->srv->metrics, route_index(rq->route), rq->status);
    access_line(rq);
    conns_state(&rq->srv->conns, rq->conn, CONN_IDLE);
    free(rq);
}

static void on_connection(void *cls, struct MHD_Connection *mc, void **ctx,
                          enum MHD_ConnectionNotificationCode code)
{
    struct server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        conns_remove(&s->conns, *ctx);
        *ctx = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD);
    *ctx = conns_add(&s->conns, info->connect_fd);
}

static void on_mhd_log(void *cls, const char *fmt, va_list ap)
{
    char line[400];
    if (!log_on(LOG_DEBUG))
        return;
    vsnprintf(line, sizeof line, fmt, ap);
    size_t n = strlen(line);
    while (n > 0 && line[n - 1] == '\n')
        line[--n] = 0;
    log_line(LOG_DEBUG, "mhd", "%s", line);
}

/* ---- the server's life
 * ---------------------------------------------------------------------------- */

static void defaults(struct server_params *p)
{
    if (!p->host)
        p->host = "127.0.0.1";
    if (p->max_connections <= 0)
        p->max_connections = 512;
    if (p->max_body == 0)
        p->max_body = 32u << 20;
    if (p->idle_timeout_s <= 0)
        p->idle_timeout_s = 60;
    if (p->read_timeout_s <= 0)
        p->read_timeout_s = 120;
    if (p->keepalive_ms <= 0)
        p->keepalive_ms = 1000;
}

/* A byte 0 in a path would end it early and hide the rest: it becomes one that no name has. */
static size_t unescape(void *cls, struct MHD_Connection *mc, char *s)
{
    size_t n = MHD_http_unescape(s);
    for (size_t i = 0; i < n; i++)
        if (!s[i])
            s[i] = 0x7f;
    return n;
}

static enum qn_status start_daemon(struct server *s, struct qn_err *err)
{
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    s->mhd = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->p.max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)s->p.idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_END);
    if (!s->mhd)
        QN_FAIL(err, QN_INTERNAL, "server", "the HTTP library refused to start");
    return QN_OK;
}

static enum qn_status check_open(const char *host, bool loopback, bool allowed, struct qn_err *err)
{
    if (loopback || allowed)
        return QN_OK;
    QN_FAIL(err, QN_BAD_INPUT, "server",
            "--host %s lets other machines in, but no API key is set: give --api-key-file or "
            "QUERN_API_KEY, or say --insecure",
            host);
}

enum qn_status server_may_listen(const char *host, int port, bool allowed, struct qn_err *err)
{
    bool loopback;
    int fd, bound;
    QN_TRY(listen_open(host, port, &loopback, &fd, &bound, err));
    close(fd);
    return check_open(host, loopback, allowed, err);
}

static void make_url(struct server *s)
{
    bool any = strcmp(s->p.host, "0.0.0.0") == 0 || strcmp(s->p.host, "::") == 0;
    bool v6 = !any && strchr(s->p.host, ':');
    snprintf(s->url, sizeof s->url, "http://%s%s%s:%d", v6 ? "[" : "",
             any ? "127.0.0.1" : s->p.host, v6 ? "]" : "", s->port);
}

/* Takes fd in every case. */
static enum qn_status start_threads(struct server *s, int fd, struct qn_err *err)
{
    enum qn_status st = start_daemon(s, err);
    if (st == QN_OK)
        return door_open(s, fd, &s->door, err);
    close(fd);
    return st;
}

static enum qn_status open_and_start(struct server *s, struct qn_err *err)
{
    bool loopback, keyed = s->p.api_keys && *s->p.api_keys;
    int fd;
    QN_TRY(listen_open(s->p.host, s->p.port, &loopback, &fd, &s->port, err));
    enum qn_status st = check_open(s->p.host, loopback, keyed || s->p.insecure, err);
    if (st == QN_OK)
        st = conns_start(&s->conns, s->p.max_connections, s->p.idle_timeout_s, s->p.read_timeout_s,
                         err);
    if (st != QN_OK) {
        close(fd);
        return st;
    }
    make_url(s);
    /* The threads of connections are made by these two and answer at once, whoever computes. */
    slice_set(SLICE_NS);
    st = start_threads(s, fd, err);
    slice_set(0);
    return st;
}

enum qn_status server_start(const struct server_params *p, struct server **out, struct qn_err *err)
{
    struct server *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        QN_FAIL(err, QN_NO_MEMORY, "server", "not enough memory to start");
    s->p = *p;
    s->started_us = clock_us();
    defaults(&s->p);
    s->responses = resp_store_create(RESP_STORE_BYTES, RESP_STORE_TTL_S);
    if (p->model)
        server_ready(s, p->model, p->sched);
    enum qn_status st = open_and_start(s, err);
    if (st != QN_OK) {
        server_free(s);
        return st;
    }
    *out = s;
    return QN_OK;
}

void server_ready(struct server *s, const struct api_model *model, struct sched *sched)
{
    s->model = *model;
    s->model.responses = s->responses;
    s->p.model = &s->model;
    s->p.sched = sched;
    atomic_store(&s->ready, true);
}

int server_port(const struct server *s)
{
    return s->port;
}

const char *server_url(const struct server *s)
{
    return s->url;
}

void server_counts(const struct server *s, struct server_counts *out)
{
    struct server *w = (struct server *)s;
    out->connections = conns_count(&w->conns);
    out->in_flight = atomic_load(&w->in_flight);
    out->requests = atomic_load(&w->n_requests);
}

static bool busy(struct server *s)
{
    return atomic_load(&s->in_flight) > 0 || atomic_load(&s->filing) > 0;
}

bool server_drain(struct server *s, int timeout_ms)
{
    int64_t until = clock_us() + (int64_t)timeout_ms * 1000;
    if (!atomic_exchange(&s->draining, true)) {
        door_close(s->door);
        s->door = NULL;
    }
    while (busy(s) && !atomic_load(&s->hurry) && clock_us() < until)
        usleep(5000);
    return !busy(s);
}

void server_hurry(struct server *s)
{
    atomic_store(&s->hurry, true);
}

void server_free(struct server *s)
{
    if (!s)
        return;
    if (s->mhd) {
        server_drain(s, 0);
        server_hurry(s);
        /* Streams say why they end before their sockets are closed. */
        for (int i = 0; i < 100 && atomic_load(&s->in_flight) > 0; i++)
            usleep(5000);
        MHD_stop_daemon(s->mhd);
    }
    conns_stop(&s->conns);
    resp_store_free(s->responses);
    free(s);
}
