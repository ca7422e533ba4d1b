/*
 * server.h - the HTTP server: one model behind the OpenAI routes, over libmicrohttpd. One blocking
 * thread per connection reads, renders, tokenises, submits and writes; only the scheduler's thread
 * touches the model, so routes that do not generate never wait for it.
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "api/ir.h"

struct server;

/* Everything is borrowed for the server's life. Zero means the default in brackets. */
struct server_params {
    const char *host;              /* [127.0.0.1] name or address */
    int port;                      /* as it is; 0 = any free one (server_port tells) */
    const struct api_model *model; /* NULL: still loading, server_ready gives it */
    struct sched *sched;
    const char *const *api_keys; /* NULL-terminated; NULL or empty = no key is asked for */
    const char *const *cors;     /* allowed origins, "*" = any; NULL = pages on this machine, or
                                    any where a key is asked for */
    bool insecure;               /* may listen beyond loopback without a key */
    bool access_log;             /* one line per request through base/log.h */
    int max_connections;         /* [512] */
    size_t max_body;             /* [32 MiB] */
    int idle_timeout_s;          /* [60] silence on a connection before it is closed */
    int read_timeout_s;          /* [120] for a whole request to arrive */
    int keepalive_ms;            /* [1000] silence in a stream before a comment is sent */
};

/* Listens and serves. QN_IO with a remedy when the port is taken; QN_BAD_INPUT when the address is
 * open to others and neither keys nor `insecure` are given. */
enum qn_status server_start(const struct server_params *p, struct server **out, struct qn_err *err);
/* The checks of server_start that need no model, to be made before one is loaded: whether the
 * address may be listened on (allowed: a key is set, or `insecure`) and the port is free now. */
enum qn_status server_may_listen(const char *host, int port, bool allowed, struct qn_err *err);
/* The model is there: until then every route but /health and /metrics answers 503 "loading". Once,
 * from any thread; both are borrowed for the server's life. */
void server_ready(struct server *s, const struct api_model *model, struct sched *sched);
int server_port(const struct server *s);
/* "http://127.0.0.1:8080": how a client on this machine reaches it. */
const char *server_url(const struct server *s);
/* Takes no new connections and refuses new generations with 503; waits up to timeout_ms for those
 * that run. True when none was left. May be cut short by server_hurry from another thread. */
bool server_drain(struct server *s, int timeout_ms);
void server_hurry(struct server *s); /* async-signal-safe: ends a drain and running streams */
/* Ends what still runs, closes every connection, frees. NULL is fine. The scheduler stays. */
void server_free(struct server *s);

struct server_counts {
    int connections, in_flight;
    int64_t requests;
};
void server_counts(const struct server *s, struct server_counts *out);

#endif
