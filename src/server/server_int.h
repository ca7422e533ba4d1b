/*
 * server_int.h - what the server's own files share: the server, a connection, a request.
 *
 * Threads: struct http_req belongs to its connection's thread. struct conn is shared between that
 * thread and the janitor under conns.lock. The server's flags are atomics.
 */
#ifndef SERVER_SERVER_INT_H
#define SERVER_SERVER_INT_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "server/metrics.h"
#include "server/server.h"

/* ---- connections (conns.c) --------------------------------------------------------------------
 */

enum conn_state {
    CONN_IDLE,   /* between requests, or sending headers */
    CONN_BODY,   /* headers are here, the body is arriving */
    CONN_BUSY,   /* we work or write */
    CONN_LINGER, /* refused early; the rest of the body is read and dropped */
};

struct conn {
    int fd;
    enum conn_state state;
    int64_t since_us; /* in this state */
    struct conn *prev, *next;
};

struct conns {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t janitor;
    bool janitor_runs, quit;
    struct conn *head;
    int n, n_max;
    int64_t idle_us, read_us;
};

enum qn_status conns_start(struct conns *c, int n_max, int idle_s, int read_s, struct qn_err *err);
void conns_stop(struct conns *c);
struct conn *conns_add(struct conns *c, int fd); /* NULL: out of memory */
void conns_remove(struct conns *c, struct conn *k);
void conns_state(struct conns *c, struct conn *k, enum conn_state st);
int conns_count(struct conns *c);

/* ---- hang-ups (hangup.c) -----------------------------------------------------------------------
 */

enum peer { PEER_HERE, PEER_UNSURE, PEER_GONE };

struct hangup {
    int fd;
    int64_t half_us; /* when the end of the peer's sending was first seen; 0 = not yet */
    int64_t next_us; /* no closer look before this */
};

/* Whether the peer still waits for an answer. The end of its sending side alone does not say so;
 * see hangup.c for what does. PEER_UNSURE: only writing something will tell. */
enum peer hangup_look(struct hangup *h);

/* ---- requests
 * ------------------------------------------------------------------------------------ */

struct route;
struct job;

enum body_mode { BODY_NONE, BODY_STORE, BODY_DROP, BODY_LINGER };

struct http_req {
    struct server *srv;
    struct MHD_Connection *mc;
    struct conn *conn;
    const struct route *route;
    struct str route_arg; /* what follows a route that ends in / */
    char method[16], path[200];
    bool http10, head;
    enum body_mode mode;
    struct buf body;
    size_t parsed;            /* its share of server.parsed_bytes */
    struct api_error refusal; /* to be answered once the body has been read */
    const char *allow;        /* with 405 */
    char allow_buf[48];
    char origin[200]; /* the Origin header; "" = none */
    uint64_t client;  /* fairness key */
    char id[32];
    int64_t t0_us;
    int status;       /* answered with; 0 = not yet */
    int plain_status; /* of a plain route's body; 0 = 200 */
    struct api_usage usage;
    bool generated;
    bool filed; /* counted in server.filing until its answer is out */
    struct job *job;
};

struct server {
    struct server_params p;
    struct MHD_Daemon *mhd;
    struct door *door; /* NULL once no new connections are taken */
    int port;
    char url[128];
    int64_t started_us;
    struct conns conns;
    struct metrics metrics;
    struct api_model model; /* what p.model points at, with the store of answers */
    struct resp_store *responses;
    atomic_bool ready; /* p.model and p.sched are set and final */
    atomic_bool draining, hurry;
    atomic_int in_flight;
    atomic_int filing; /* requests that save or restore a conversation */
    atomic_llong n_requests;
    atomic_llong body_bytes;   /* stored by all requests together */
    atomic_llong parsed_bytes; /* what their values take, as estimated by json_memory */
};

/* listen.c: a listening socket. */
enum qn_status listen_open(const char *host, int port, bool *loopback, int *fd, int *bound_port,
                           struct qn_err *err);

/* door.c: accepts connections for s->mhd until it is closed. Takes listen_fd in every case. */
struct door;
enum qn_status door_open(struct server *s, int listen_fd, struct door **out, struct qn_err *err);
void door_close(struct door *d); /* NULL is fine */

/* auth.c: key_index tells the clients with different keys apart; -1 = no key is asked for. */
bool auth_ok(const struct server *s, struct MHD_Connection *mc, int *key_index);

/* cors.c: whether the Host header is a name of ours; always so where a key is asked for. */
bool host_ok(const struct http_req *rq);
/* The Access-Control headers for this request. */
void cors_headers(const struct http_req *rq, struct MHD_Response *resp);
void cors_preflight_headers(const struct http_req *rq, struct MHD_Response *resp);

/* reply.c */
/* Takes *body. type: its Content-Type; NULL = JSON. */
enum MHD_Result reply_whole(struct http_req *rq, int status, const char *type, struct buf *body);
enum MHD_Result reply_error(struct http_req *rq, const struct api_error *e);
enum MHD_Result reply_no_memory(struct http_req *rq); /* 503 */
enum MHD_Result reply_preflight(struct http_req *rq);
/* Writes a refusal to the socket at once, past libmicrohttpd, and ends the sending side. */
void reply_raw(struct http_req *rq, const struct api_error *e);
void reply_common_headers(const struct http_req *rq, struct MHD_Response *resp);

/* routes.c */
struct route {
    const char *method, *path; /* a path that ends in / takes a rest */
    bool open;                 /* no key needed */
    bool early;                /* answers while the model loads */
    bool body;
    bool bare;                         /* the body may be left out */
    const char *type;                  /* Content-Type of a plain route; NULL = JSON */
    const struct api_dialect *dialect; /* generates when not NULL */
    const struct api_dialect *shape;   /* of a plain route's refusals; NULL = OpenAI's */
    enum qn_status (*plain)(struct http_req *rq, struct buf *out, struct api_error *e);
};
/* Finds the route. False, with rq->refusal filled, for 404 and 405. */
bool route_find(struct http_req *rq);
/* The dialect that words this request's refusals; also for paths without a route. */
const struct api_dialect *route_shape(const struct http_req *rq);
int route_index(const struct route *r); /* -1 for NULL */

/* routes_conv.c: handlers */
enum qn_status get_conversations(struct http_req *rq, struct buf *out, struct api_error *e);
enum qn_status get_conversation(struct http_req *rq, struct buf *out, struct api_error *e);
enum qn_status post_conversation(struct http_req *rq, struct buf *out, struct api_error *e);
enum qn_status delete_conversation(struct http_req *rq, struct buf *out, struct api_error *e);

/* generate.c */
/* libmicrohttpd counts our own working time as silence of the connection: off while a handler waits
 * for something, on again behind it. */
void silence_limit(struct http_req *rq, bool on);
enum MHD_Result generate(struct http_req *rq);
void job_free(struct http_req *rq);

#endif
