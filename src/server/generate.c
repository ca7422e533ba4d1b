/*
 * generate.c - routes that generate: body to request, request to the scheduler, events to the
 * client, whole or as a stream. Runs in the connection's thread from beginning to end and notices
 * when the client leaves.
 *
 * Everything that can be refused is refused before the first byte of a stream.
 */
#include "server/server_int.h"

#include <stdlib.h>
#include <sys/socket.h>

#include "api/exchange.h"
#include "api/sse.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"

#define WAIT_MS     40     /* longest sleep between looks at the client */
#define LOOK_US     100000 /* looks at the client while tokens flow */
#define PROBE_US    1000000
#define PROBE_AFTER 300000 /* an unclear FIN is given this long before the first probe */
#define BATCH_BYTES 16384  /* events that are ready together leave together */

struct job {
    struct server *srv;
    struct api_request req;
    struct exchange *x;
    struct api_stream *stream;
    struct buf out;
    size_t sent;
    bool last_words; /* what follows out when even an error event found no memory */
    bool over, http10, counted;
    struct hangup peer;
    const char *id; /* the HTTP request's */
    int64_t look_us, wrote_us, probe_us;
    int64_t n_done, n_total; /* of the prompt */
};

void job_free(struct http_req *rq)
{
    struct job *j = rq->job;
    if (!j)
        return;
    rq->job = NULL;
    if (j->x)
        rq->usage = exchange_usage(j->x);
    exchange_free(j->x);
    if (j->stream)
        j->req.dialect->stream_free(j->stream);
    api_request_free(&j->req);
    buf_free(&j->out);
    if (j->counted)
        atomic_fetch_sub(&j->srv->in_flight, 1);
    free(j);
}

/* ---- is the client still there?
 * ------------------------------------------------------------------ */

/* An interim answer is the only thing that may be written before a whole one; a client that has
 * closed its socket answers it with a reset, and the next look sees that. */
static void probe_interim(struct job *j, int64_t now)
{
    static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (j->http10 || now - j->peer.half_us < PROBE_AFTER || now - j->probe_us < PROBE_US)
        return;
    j->probe_us = now;
    (void)!send(j->peer.fd, line, sizeof line - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void probe_comment(struct job *j, int64_t now)
{
    if (now - j->probe_us < PROBE_US)
        return;
    j->probe_us = now;
    sse_comment(&j->out, "still here");
}

/* False when the client has left. */
static bool client_here(struct job *j, bool quiet)
{
    int64_t now = clock_us();
    if (!quiet && now - j->look_us < LOOK_US)
        return true;
    j->look_us = now;
    switch (hangup_look(&j->peer)) {
    case PEER_GONE:
        return false;
    case PEER_UNSURE:
        if (j->stream)
            probe_comment(j, now);
        else
            probe_interim(j, now);
        return true;
    default:
        return true;
    }
}

/* The next event, or the server's own end. */
static void next_event(struct job *j, int wait_ms, struct api_event *ev)
{
    exchange_next(j->x, wait_ms, ev);
    if (ev->kind == API_EV_PROGRESS) {
        j->n_done = ev->n_done;
        j->n_total = ev->n_total;
    }
    if (ev->kind != API_EV_END && atomic_load(&j->srv->hurry)) {
        ev->kind = API_EV_ERROR;
        api_refuse(&ev->err, 503, "stopping", NULL, "the server is stopping");
    }
    ev->err.request_id = j->id;
}

/* ---- streams
 * ------------------------------------------------------------------------------------- */

/* Memory ran out inside an event: the stream ends with an error behind the whole ones. Where there
 * is none even for that, with words that every dialect's clients understand (stream_read). */
static void stream_fails(struct job *j, size_t whole)
{
    struct api_event ev = {.kind = API_EV_ERROR};
    api_no_memory(&ev.err);
    ev.err.request_id = j->id;
    j->over = true;
    j->out.n = whole;
    j->out.failed = false;
    j->req.dialect->stream_event(j->stream, &ev, &j->out);
    if (!j->out.failed)
        return;
    j->out.n = whole;
    j->last_words = true;
}

static bool stream_step(struct job *j)
{
    struct api_event ev;
    next_event(j, WAIT_MS, &ev);
    if (!client_here(j, ev.kind == API_EV_NONE))
        return false;
    while (ev.kind != API_EV_NONE) {
        size_t whole = j->out.n;
        j->req.dialect->stream_event(j->stream, &ev, &j->out);
        j->over = ev.kind == API_EV_END || ev.kind == API_EV_ERROR;
        if (j->out.failed)
            stream_fails(j, whole);
        if (j->over || j->out.n > BATCH_BYTES)
            break;
        next_event(j, 0, &ev);
    }
    int64_t now = clock_us();
    if (j->out.n == 0 && now - j->wrote_us >= (int64_t)j->srv->p.keepalive_ms * 1000)
        sse_comment(&j->out, "keepalive %lld/%lld", (long long)j->n_done, (long long)j->n_total);
    if (j->out.failed) /* a comment: can wait */
        buf_clear(&j->out);
    return true;
}

static ssize_t stream_read(void *cls, uint64_t pos, char *p, size_t max)
{
    static const char words[] =
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
        "\"message\":\"not enough memory for this request now\",\"param\":null,\"code\":"
        "\"no_memory\"}}\n\n";
    struct job *j = cls;
    while (j->sent == j->out.n) {
        if (j->last_words && max >= sizeof words) {
            j->last_words = false;
            memcpy(p, words, sizeof words - 1);
            return sizeof words - 1;
        }
        if (j->over)
            return MHD_CONTENT_READER_END_OF_STREAM;
        buf_clear(&j->out);
        j->sent = 0;
        if (!stream_step(j))
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t n = j->out.n - j->sent;
    if (n > max)
        n = max;
    memcpy(p, j->out.p + j->sent, n);
    j->sent += n;
    j->wrote_us = clock_us();
    return (ssize_t)n;
}

static enum MHD_Result start_stream(struct http_req *rq)
{
    struct job *j = rq->job;
    j->stream = j->req.dialect->stream_begin(rq->srv->p.model, &j->req, &j->out);
    struct MHD_Response *resp =
        j->stream && !j->out.failed
            ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BATCH_BYTES, stream_read, j, NULL)
            : NULL;
    if (!resp) {
        job_free(rq);
        return reply_no_memory(rq);
    }
    j->wrote_us = clock_us();
    MHD_add_response_header(resp, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(resp, "Cache-Control", "no-cache");
    MHD_add_response_header(resp, "X-Accel-Buffering", "no");
    reply_common_headers(rq, resp);
    rq->status = 200;
    enum MHD_Result ok = MHD_queue_response(rq->mc, 200, resp);
    MHD_destroy_response(resp);
    return ok;
}

/* ---- whole answers
 * ---------------------------------------------------------------------------------- */

/* True when all is there; false with *e filled, or with e->status 0 when the client has left. */
static bool collect(struct job *j, struct api_answer *a, struct api_error *e)
{
    struct api_event ev;
    for (;;) {
        next_event(j, WAIT_MS, &ev);
        if (!client_here(j, ev.kind == API_EV_NONE))
            return false;
        if (ev.kind == API_EV_ERROR) {
            *e = ev.err;
            return false;
        }
        if (api_answer_add(a, &ev) != QN_OK) {
            api_no_memory(e);
            return false;
        }
        if (ev.kind == API_EV_END)
            return true;
    }
}

void silence_limit(struct http_req *rq, bool on)
{
    MHD_set_connection_option(rq->mc, MHD_CONNECTION_OPTION_TIMEOUT,
                              on ? (unsigned)rq->srv->p.idle_timeout_s : 0u);
}

static enum MHD_Result whole(struct http_req *rq)
{
    struct job *j = rq->job;
    struct api_answer a;
    struct api_error e = {0};
    struct buf body = BUF_INIT;
    if (api_answer_init(&a, j->req.n_prompts * j->req.n) != QN_OK) {
        job_free(rq);
        return reply_no_memory(rq);
    }
    silence_limit(rq, false);
    bool done = collect(j, &a, &e);
    silence_limit(rq, true);
    if (done)
        j->req.dialect->answer(rq->srv->p.model, &j->req, &a, &body);
    api_answer_free(&a);
    job_free(rq);
    if (done)
        return reply_whole(rq, 200, NULL, &body);
    if (e.status != 0)
        return reply_error(rq, &e);
    rq->status = 499; /* for the log: the client left */
    return MHD_NO;
}

/* ---- begin
 * ------------------------------------------------------------------------------------------- */

static void watch(void *arg, const struct gen_event *ev, int64_t *mark)
{
    struct http_req *rq = arg;
    metrics_generation(&rq->srv->metrics, ev, rq->t0_us, mark);
}

static enum qn_status begin(struct http_req *rq, struct job *j, struct api_error *e)
{
    struct server *s = rq->srv;
    QN_TRY(api_request_read(rq->route->dialect, s->p.model, buf_str(&rq->body), &j->req, e));
    QN_TRY(api_tokenise(s->p.model, &j->req, e));
    atomic_fetch_add(&s->in_flight, 1);
    j->counted = true;
    if (atomic_load(&s->draining))
        return api_refuse(e, 503, "draining", NULL, "the server is shutting down");
    QN_TRY(exchange_start(s->p.sched, s->p.model, &j->req, rq->client, &j->x, e));
    exchange_watch(j->x, watch, rq);
    return QN_OK;
}

enum MHD_Result generate(struct http_req *rq)
{
    struct api_error e = {0};
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return reply_no_memory(rq);
    rq->job = j;
    rq->generated = true;
    j->srv = rq->srv;
    j->http10 = rq->http10;
    j->peer.fd = rq->conn->fd;
    j->id = rq->id;
    if (begin(rq, j, &e) != QN_OK) {
        job_free(rq);
        return reply_error(rq, &e);
    }
    return j->req.stream ? start_stream(rq) : whole(rq);
}
