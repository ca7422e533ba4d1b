/*
 * routes.c - the list of routes and the handlers of those that do not generate. A new dialect is
 * one row with its struct api_dialect.
 */
#include "server/server_int.h"

#include <stdio.h>

#include "api/anthropic.h"
#include "api/native.h"
#include "api/openai_common.h"
#include "api/openai_responses.h"
#include "base/clock.h"

#define FLUSH_MS 60000

static enum qn_status get_health(struct http_req *rq, struct buf *out, struct api_error *e)
{
    if (atomic_load(&rq->srv->draining))
        return api_refuse(e, 503, "draining", NULL, "the server is shutting down");
    const struct api_model *m = atomic_load(&rq->srv->ready) ? rq->srv->p.model : NULL;
    bool ready = m && (!m->up || m->up(m->up_arg));
    rq->plain_status = ready ? 200 : 503;
    buf_addz(out, ready ? "{\"status\": \"ok\"}" : "{\"status\": \"loading model\"}");
    return QN_OK;
}

static bool route_name(int i, const char **method, const char **path);

static enum qn_status get_metrics(struct http_req *rq, struct buf *out, struct api_error *e)
{
    struct server *s = rq->srv;
    struct sched_stats st;
    struct metrics_view v = {.connections = conns_count(&s->conns),
                             .in_flight = atomic_load(&s->in_flight),
                             .resident_bytes = metrics_resident_bytes(),
                             .route = route_name};
    if (atomic_load(&s->ready)) {
        sched_stats(s->p.sched, &st);
        v.st = &st;
        v.model = s->p.model->name;
    }
    metrics_write(&s->metrics, &v, out);
    return QN_OK;
}

static enum qn_status get_models(struct http_req *rq, struct buf *out, struct api_error *e)
{
    openai_models(rq->srv->p.model, out);
    return QN_OK;
}

static enum qn_status get_model(struct http_req *rq, struct buf *out, struct api_error *e)
{
    const struct api_model *m = rq->srv->p.model;
    struct jw w;
    if (!api_model_is(m, rq->route_arg))
        return api_refuse(e, 404, "model_not_found", "model",
                          "the model \"%.*s\" is not served here; this server has \"%s\"",
                          rq->route_arg.n > 120 ? 120 : (int)rq->route_arg.n, rq->route_arg.p,
                          m->name);
    jw_init(&w, out);
    openai_model_row(&w, m);
    return QN_OK;
}

static enum qn_status get_stats(struct http_req *rq, struct buf *out, struct api_error *e)
{
    struct server *s = rq->srv;
    struct sched_stats st;
    int64_t up = (clock_us() - s->started_us) / 1000000;
    struct native_server n = {.started_at = clock_unix() - up,
                              .uptime_s = up,
                              .resident_bytes = metrics_resident_bytes(),
                              .connections = conns_count(&s->conns),
                              .in_flight = atomic_load(&s->in_flight),
                              .requests = atomic_load(&s->n_requests)};
    if (s->responses)
        resp_store_stats(s->responses, &n.responses);
    sched_stats(s->p.sched, &st);
    native_stats(s->p.model, &st, &n, out);
    return QN_OK;
}

static enum qn_status post_count_tokens(struct http_req *rq, struct buf *out, struct api_error *e)
{
    return anthropic_count_tokens(rq->srv->p.model, buf_str(&rq->body), out, e);
}

/* Of the query; {NULL,0}: it is not there. */
static struct str argument(struct http_req *rq, const char *name)
{
    const char *v = MHD_lookup_connection_value(rq->mc, MHD_GET_ARGUMENT_KIND, name);
    return v ? str_of(v) : (struct str){NULL, 0};
}

static enum qn_status get_response(struct http_req *rq, struct buf *out, struct api_error *e)
{
    struct str id = rq->route_arg, tail = STR_LIT("/input_items");
    if (!str_ends(id, tail))
        return responses_get(rq->srv->p.model, id, out, e);
    id.n -= tail.n;
    struct responses_page page = {.after = argument(rq, "after"),
                                  .limit = argument(rq, "limit"),
                                  .order = argument(rq, "order")};
    return responses_input_items(rq->srv->p.model, id, &page, out, e);
}

static enum qn_status delete_response(struct http_req *rq, struct buf *out, struct api_error *e)
{
    return responses_delete(rq->srv->p.model, rq->route_arg, out, e);
}

static enum qn_status post_tokenize(struct http_req *rq, struct buf *out, struct api_error *e)
{
    return native_tokenize(rq->srv->p.model, buf_str(&rq->body), out, e);
}

static enum qn_status post_detokenize(struct http_req *rq, struct buf *out, struct api_error *e)
{
    return native_detokenize(rq->srv->p.model, buf_str(&rq->body), out, e);
}

static enum qn_status post_apply_template(struct http_req *rq, struct buf *out, struct api_error *e)
{
    return native_apply_template(rq->srv->p.model, buf_str(&rq->body), out, e);
}

static enum qn_status post_cache_flush(struct http_req *rq, struct buf *out, struct api_error *e)
{
    struct server *s = rq->srv;
    struct qn_cache_flush f;
    struct sched_stats st;
    sched_stats(s->p.sched, &st);
    if (!st.caches || !st.cache.disk.on)
        return api_refuse(e, 400, "no_disk_cache", NULL,
                          "this server has no cache on disk; start it with --ssd-cache DIR");
    silence_limit(rq, false);
    bool done = sched_cache_flush(s->p.sched, FLUSH_MS, &f);
    silence_limit(rq, true);
    native_flush(done, &f, out);
    rq->plain_status = done ? 200 : 504;
    return QN_OK;
}

static const struct route routes[] = {
    {.method = "GET", .path = "/health", .open = true, .early = true, .plain = get_health},
    {.method = "GET",
     .path = "/metrics",
     .early = true,
     .type = "text/plain; version=0.0.4; charset=utf-8",
     .plain = get_metrics},
    {.method = "GET", .path = "/v1/models", .plain = get_models},
    {.method = "GET", .path = "/v1/models/", .plain = get_model},
    {.method = "GET", .path = "/stats", .plain = get_stats},
    {.method = "POST",
     .path = "/v1/chat/completions",
     .body = true,
     .dialect = &dialect_openai_chat},
    {.method = "POST",
     .path = "/v1/completions",
     .body = true,
     .dialect = &dialect_openai_completions},
    {.method = "POST", .path = "/v1/responses", .body = true, .dialect = &dialect_openai_responses},
    {.method = "GET", .path = "/v1/responses/", .plain = get_response},
    {.method = "DELETE", .path = "/v1/responses/", .plain = delete_response},
    {.method = "POST", .path = "/v1/messages", .body = true, .dialect = &dialect_anthropic},
    {.method = "POST",
     .path = "/v1/messages/count_tokens",
     .body = true,
     .shape = &dialect_anthropic,
     .plain = post_count_tokens},
    {.method = "POST", .path = "/admin/cache/flush", .plain = post_cache_flush},
    {.method = "GET", .path = "/admin/conversations", .plain = get_conversations},
    {.method = "GET", .path = "/admin/conversations/", .plain = get_conversation},
    {.method = "POST",
     .path = "/admin/conversations/",
     .body = true,
     .bare = true,
     .plain = post_conversation},
    {.method = "DELETE", .path = "/admin/conversations/", .plain = delete_conversation},
    {.method = "POST", .path = "/tokenize", .body = true, .plain = post_tokenize},
    {.method = "POST", .path = "/detokenize", .body = true, .plain = post_detokenize},
    {.method = "POST", .path = "/apply-template", .body = true, .plain = post_apply_template},
};

_Static_assert(sizeof routes / sizeof *routes < METRIC_ROUTES, "metrics.h counts every route");

static bool route_name(int i, const char **method, const char **path)
{
    if (i < 0 || (size_t)i >= sizeof routes / sizeof *routes)
        return false;
    *method = routes[i].method;
    *path = routes[i].path;
    return true;
}

int route_index(const struct route *r)
{
    return r ? (int)(r - routes) : -1;
}

/* Anthropic's clients name their protocol's version in every request. */
const struct api_dialect *route_shape(const struct http_req *rq)
{
    const struct route *r = rq->route;
    if (r && (r->dialect || r->shape))
        return r->dialect ? r->dialect : r->shape;
    bool foreign = strncmp(rq->path, "/v1/messages", 12) == 0 ||
                   MHD_lookup_connection_value(rq->mc, MHD_HEADER_KIND, "anthropic-version");
    return foreign ? &dialect_anthropic : &dialect_openai_chat;
}

static bool matches(const struct route *r, const char *path, struct str *rest)
{
    size_t n = strlen(r->path);
    *rest = (struct str){NULL, 0};
    if (r->path[n - 1] != '/')
        return strcmp(r->path, path) == 0;
    if (strncmp(r->path, path, n) != 0 || path[n] == 0)
        return false;
    *rest = str_of(path + n);
    return true;
}

bool route_find(struct http_req *rq)
{
    const char *method = rq->head ? "GET" : rq->method;
    bool known = false, get = false, post = false, del = false;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct route *r = &routes[i];
        struct str rest;
        if (!matches(r, rq->path, &rest))
            continue;
        known = true;
        get |= strcmp(r->method, "GET") == 0;
        post |= strcmp(r->method, "POST") == 0;
        del |= strcmp(r->method, "DELETE") == 0;
        if (!rq->route || strcmp(r->method, method) == 0) {
            rq->route = r; /* also on 405: the error takes the route's dialect */
            rq->route_arg = rest;
        }
    }
    snprintf(rq->allow_buf, sizeof rq->allow_buf, "%s%s%sOPTIONS", get ? "GET, HEAD, " : "",
             post ? "POST, " : "", del ? "DELETE, " : "");
    rq->allow = known ? rq->allow_buf : NULL;
    if (!known) {
        api_refuse(&rq->refusal, 404, "not_found", NULL, "there is no route %s", rq->path);
        return false;
    }
    if (strcmp(rq->route->method, method) != 0 && strcmp(method, "OPTIONS") != 0) {
        api_refuse(&rq->refusal, 405, "method_not_allowed", NULL, "%s %s: expected one of %s",
                   rq->method, rq->path, rq->allow);
        return false;
    }
    return true;
}
