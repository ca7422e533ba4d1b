/*
 * cors.c - which web pages may read our answers, and under which names we are spoken to. With no
 * list given: pages of this machine, or any page where a key is asked for (a foreign page does not
 * know it).
 *
 * A page whose name was made to resolve to this machine after it was loaded (DNS rebinding) is of
 * our own origin to the browser, so origins alone do not stop it; but its requests carry its name
 * in Host. Without a key only names that no foreign page can have are answered. An address is such
 * a name: a page that was loaded from it came from us.
 */
#include "server/server_int.h"

#include <arpa/inet.h>
#include <stdio.h>

/* HOST or HOST:PORT; names ignore case. */
static bool is_host(const char *text, const char *host)
{
    size_t n = strlen(host);
    return strncasecmp(text, host, n) == 0 && (text[n] == 0 || text[n] == ':');
}

static bool is_loopback(const char *text)
{
    return is_host(text, "localhost") || is_host(text, "127.0.0.1") || is_host(text, "[::1]");
}

/* A literal address, with or without a port. */
static bool is_address(const char *text)
{
    unsigned char bin[16];
    char host[INET6_ADDRSTRLEN + 1];
    bool v6 = *text == '[';
    const char *from = text + v6;
    size_t n = strcspn(from, v6 ? "]" : ":");
    if (n >= sizeof host || (v6 && from[n] != ']'))
        return false;
    memcpy(host, from, n);
    host[n] = 0;
    const char *rest = from + n + v6;
    return (*rest == 0 || *rest == ':') && inet_pton(v6 ? AF_INET6 : AF_INET, host, bin) == 1;
}

bool host_ok(const struct http_req *rq)
{
    const struct server_params *p = &rq->srv->p;
    const char *host = MHD_lookup_connection_value(rq->mc, MHD_HEADER_KIND, "Host");
    char own[256];
    if (!host || (p->api_keys && *p->api_keys) || is_loopback(host))
        return true;
    if (strcmp(p->host, "0.0.0.0") == 0 || strcmp(p->host, "::") == 0)
        return is_address(host);
    bool v6 = strchr(p->host, ':') != NULL;
    int n = snprintf(own, sizeof own, "%s%s%s", v6 ? "[" : "", p->host, v6 ? "]" : "");
    return n > 0 && (size_t)n < sizeof own && is_host(host, own);
}

static bool local_page(const char *origin)
{
    if (strncmp(origin, "http://", 7) != 0 && strncmp(origin, "https://", 8) != 0)
        return false;
    return is_loopback(strstr(origin, "://") + 3);
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
    /* Whatever is not the same for every page must not be kept for another one, a refusal too. */
    if (!origin || origin == rq->origin)
        MHD_add_response_header(resp, "Vary", "Origin");
    if (!origin)
        return;
    MHD_add_response_header(resp, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(resp, "Access-Control-Expose-Headers", "x-request-id, retry-after");
}

void cors_preflight_headers(const struct http_req *rq, struct MHD_Response *resp)
{
    if (!allowed(rq))
        return;
    const char *want =
        MHD_lookup_connection_value(rq->mc, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    MHD_add_response_header(resp, "Access-Control-Allow-Methods",
                            "GET, HEAD, POST, DELETE, OPTIONS");
    MHD_add_response_header(
        resp, "Access-Control-Allow-Headers",
        want && strlen(want) < 1000
            ? want
            : "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, "
              "x-request-id");
    MHD_add_response_header(resp, "Access-Control-Max-Age", "600");
}
