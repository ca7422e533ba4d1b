/*
 * cors.c - which web pages may read our answers. With no list given: pages of this machine, or any
 * page where a key is asked for (a foreign page does not know it).
 */
#include "server/server_int.h"

static bool local_page(const char *origin)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *p = strstr(origin, "://");
    if (!p || (strncmp(origin, "http://", 7) != 0 && strncmp(origin, "https://", 8) != 0))
        return false;
    p += 3;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        size_t n = strlen(hosts[i]);
        if (strncmp(p, hosts[i], n) == 0 && (p[n] == 0 || p[n] == ':'))
            return true;
    }
    return false;
}

/* The value of allow-origin, or NULL when this origin is not allowed. */
static const char *allowed(const struct http_req *rq)
{
    const struct server_params *p = &rq->srv->p;
    if (!rq->origin[0])
        return NULL;
    if (!p->cors) {
        bool keyed = p->api_keys && *p->api_keys;
        return keyed ? "*" : local_page(rq->origin) ? rq->origin : NULL;
    }
    for (const char *const *o = p->cors; *o; o++) {
        if (strcmp(*o, "*") == 0)
            return "*";
        if (strcmp(*o, rq->origin) == 0)
            return rq->origin;
    }
    return NULL;
}

void cors_headers(const struct http_req *rq, struct MHD_Response *resp)
{
    const char *origin = allowed(rq);
    if (!origin)
        return;
    MHD_add_response_header(resp, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(resp, "Access-Control-Expose-Headers", "x-request-id, retry-after");
    if (origin == rq->origin)
        MHD_add_response_header(resp, "Vary", "Origin");
}

void cors_preflight_headers(const struct http_req *rq, struct MHD_Response *resp)
{
    if (!allowed(rq))
        return;
    const char *want =
        MHD_lookup_connection_value(rq->mc, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    MHD_add_response_header(resp, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    MHD_add_response_header(resp, "Access-Control-Allow-Headers",
                            want && strlen(want) < 1000
                                ? want
                                : "authorization, content-type, x-api-key, x-request-id");
    MHD_add_response_header(resp, "Access-Control-Max-Age", "600");
}
