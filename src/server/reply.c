/*
 * reply.c - answers that are written whole: JSON bodies, refusals, preflights. A refusal whose
 * request body is not worth reading goes straight to the socket (reply_raw): libmicrohttpd would
 * close with unread data, and the reset that follows can destroy the answer before it is read.
 */
#include "server/server_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/log.h"

void reply_common_headers(const struct http_req *rq, struct MHD_Response *resp)
{
    MHD_add_response_header(resp, "x-request-id", rq->id);
    if (route_shape(rq) == &dialect_anthropic) /* where its clients look for it */
        MHD_add_response_header(resp, "request-id", rq->id);
    cors_headers(rq, resp);
}

static void error_headers(struct http_req *rq, const struct api_error *e, struct MHD_Response *resp)
{
    char n[16];
    if (e->retry_after_s > 0) {
        snprintf(n, sizeof n, "%d", e->retry_after_s);
        MHD_add_response_header(resp, "Retry-After", n);
    }
    if (e->status == 405 && rq->allow)
        MHD_add_response_header(resp, "Allow", rq->allow);
    if (e->status == 401)
        MHD_add_response_header(resp, "WWW-Authenticate", "Bearer");
    if (atomic_load(&rq->srv->draining))
        MHD_add_response_header(resp, "Connection", "close");
}

static enum MHD_Result queue(struct http_req *rq, int status, struct MHD_Response *resp)
{
    rq->status = status;
    enum MHD_Result ok = MHD_queue_response(rq->mc, (unsigned)status, resp);
    MHD_destroy_response(resp);
    return ok;
}

static struct MHD_Response *response_of(struct buf *body, const char *type)
{
    size_t n;
    bool failed = body->failed;
    char *p = failed ? NULL : buf_give(body, &n);
    struct MHD_Response *resp =
        p ? MHD_create_response_from_buffer(n, p, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!resp)
        free(p);
    buf_free(body);
    if (resp)
        MHD_add_response_header(resp, "Content-Type", type ? type : "application/json");
    return resp;
}

enum MHD_Result reply_no_memory(struct http_req *rq)
{
    struct api_error e;
    api_no_memory(&e);
    return reply_error(rq, &e);
}

enum MHD_Result reply_whole(struct http_req *rq, int status, const char *type, struct buf *body)
{
    struct MHD_Response *resp = response_of(body, type);
    if (!resp)
        return reply_no_memory(rq);
    reply_common_headers(rq, resp);
    return queue(rq, status, resp);
}

static void error_body(const struct http_req *rq, const struct api_error *e, struct buf *out)
{
    struct api_error own = *e;
    own.request_id = rq->id;
    route_shape(rq)->error(&own, out);
}

/* What can be said without memory, in a shape that every dialect's clients understand. */
static struct MHD_Response *last_words(struct api_error *e)
{
    static char text[] = "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":"
                         "\"not enough memory for this request now; try again later\",\"param\":"
                         "null,\"code\":\"no_memory\"}}";
    struct MHD_Response *resp =
        MHD_create_response_from_buffer(sizeof text - 1, text, MHD_RESPMEM_PERSISTENT);
    *e = (struct api_error){.status = 503, .retry_after_s = 1};
    if (resp)
        MHD_add_response_header(resp, "Content-Type", "application/json");
    return resp;
}

enum MHD_Result reply_error(struct http_req *rq, const struct api_error *given)
{
    struct buf body = BUF_INIT;
    struct api_error plain, *e = &plain;
    error_body(rq, given, &body);
    struct MHD_Response *resp = response_of(&body, NULL);
    plain = *given;
    if (!resp)
        resp = last_words(&plain);
    if (!resp)
        return MHD_NO;
    reply_common_headers(rq, resp);
    error_headers(rq, e, resp);
    return queue(rq, e->status, resp);
}

enum MHD_Result reply_preflight(struct http_req *rq)
{
    static char none[1];
    struct MHD_Response *resp = MHD_create_response_from_buffer(0, none, MHD_RESPMEM_PERSISTENT);
    if (!resp)
        return MHD_NO;
    reply_common_headers(rq, resp);
    cors_preflight_headers(rq, resp);
    MHD_add_response_header(resp, "Allow", rq->allow ? rq->allow : "GET, HEAD, POST, OPTIONS");
    return queue(rq, 204, resp);
}

static const char *reason(int status)
{
    switch (status) {
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 411:
        return "Length Required";
    case 413:
        return "Content Too Large";
    case 431:
        return "Request Header Fields Too Large";
    default:
        return "Service Unavailable";
    }
}

/* libmicrohttpd's header iterator hands over one header of the response at a time. */
static enum MHD_Result copy_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                   const char *value)
{
    buf_addf(cls, "%s: %s\r\n", key, value);
    return MHD_YES;
}

void reply_raw(struct http_req *rq, const struct api_error *e)
{
    struct buf body = BUF_INIT, head = BUF_INIT;
    static char none[1];
    struct MHD_Response *resp = MHD_create_response_from_buffer(0, none, MHD_RESPMEM_PERSISTENT);
    error_body(rq, e, &body);
    buf_addf(&head,
             "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n",
             e->status, reason(e->status), body.n);
    if (resp) {
        reply_common_headers(rq, resp);
        error_headers(rq, e, resp);
        MHD_del_response_header(resp, "Connection", "close");
        MHD_get_response_headers(resp, copy_header, &head);
        MHD_destroy_response(resp);
    }
    buf_addz(&head, "\r\n");
    if (!rq->head)
        buf_add_str(&head, buf_str(&body));
    /* A few hundred bytes into an empty send buffer: never short. */
    if (!head.failed && !body.failed)
        (void)!send(rq->conn->fd, head.p, head.n, MSG_NOSIGNAL);
    shutdown(rq->conn->fd, SHUT_WR);
    rq->status = e->status;
    buf_free(&body);
    buf_free(&head);
}
