/*
 * door.c - accepts connections and hands them to libmicrohttpd once their first line is here and is
 * a request line. Until then a connection costs a descriptor and no thread, so silent and slow ones
 * hold nothing up. What is no HTTP at all (libmicrohttpd would hang up without a word) gets a 400.
 *
 * One thread with epoll. A connection is in the list from accept until it is handed over or closed.
 * It looks at the bytes (MSG_PEEK) and leaves them in the socket.
 */
#include "server/server_int.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/openai_common.h"
#include "base/clock.h"
#include "base/log.h"

#define LINE_MAX_BYTES 8192 /* a longer first line is libmicrohttpd's to refuse */
#define TICK_MS        200
#define LINGER_US      1000000
#define WAITING_TIMES  4 /* times max_connections: most that wait here */

struct waiting {
    int fd;
    bool refused; /* answered; what still comes is dropped */
    int64_t until_us;
    struct sockaddr_storage addr;
    socklen_t addr_len;
    struct waiting *prev, *next; /* oldest at the tail */
};

struct door {
    struct server *srv;
    int listen_fd, ep, wake;
    pthread_t thread;
    struct waiting *head, *tail;
    int n;
};

/* ---- the first line -------------------------------------------------------------------------- */

enum verdict {
    LINE_PARTIAL,
    LINE_GOOD,
    LINE_BAD,
    LINE_VERSION,
    LINE_HEADER,
    LINE_LENGTH,
    LINE_HUGE,
};

static bool is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c));
}

static bool version_ok(struct str v)
{
    return v.n == 8 && memcmp(v.p, "HTTP/", 5) == 0 && v.p[5] >= '0' && v.p[5] <= '9' &&
           v.p[6] == '.' && v.p[7] >= '0' && v.p[7] <= '9';
}

/* METHOD SP target SP HTTP/d.d, without its line end. */
static bool line_ok(struct str s)
{
    size_t i = 0, k = s.n;
    while (i < s.n && is_token(s.p[i]))
        i++;
    if (i == 0 || i == s.n || s.p[i] != ' ')
        return false;
    while (k > i && s.p[k - 1] != ' ')
        k--;
    if (k <= i + 2 || !version_ok((struct str){s.p + k, s.n - k}))
        return false;
    for (size_t j = i; j < k; j++)
        if ((unsigned char)s.p[j] < 0x20 || s.p[j] == 0x7F)
            return false;
    return true;
}

/* The value of Content-Length: digits, and no more than a size can have. */
static enum verdict length_line(struct str v)
{
    size_t i = 0, n = 0;
    while (v.n > 0 && (v.p[v.n - 1] == ' ' || v.p[v.n - 1] == '\t'))
        v.n--;
    while (i < v.n && (v.p[i] == ' ' || v.p[i] == '\t'))
        i++;
    while (i + n < v.n && v.p[i + n] >= '0' && v.p[i + n] <= '9')
        n++;
    if (n == 0 || i + n < v.n)
        return LINE_LENGTH;
    return n > 18 ? LINE_HUGE : LINE_GOOD;
}

/* One header line, without its end. A line that continues the one before is accepted. */
static enum verdict header_line(struct str s)
{
    size_t n = 0;
    if (memchr(s.p, 0, s.n))
        return LINE_HEADER;
    if (*s.p == ' ' || *s.p == '\t')
        return LINE_GOOD;
    while (n < s.n && is_token(s.p[n]))
        n++;
    if (n == 0 || n == s.n || s.p[n] != ':')
        return LINE_HEADER;
    if (n == 14 && strncasecmp(s.p, "Content-Length", n) == 0)
        return length_line((struct str){s.p + n + 1, s.n - n - 1});
    return LINE_GOOD;
}

/* Of what has come of the head: the first whole line after the first that libmicrohttpd would take
 * for something else, or refuse in its own words. What comes later is its to judge. */
static enum verdict headers(struct str s)
{
    while (s.n > 0) {
        const char *end = memchr(s.p, '\n', s.n);
        size_t n = end ? (size_t)(end - s.p) : 0, rest = s.n - n - 1;
        if (n > 0 && s.p[n - 1] == '\r')
            n--;
        if (n == 0) /* no whole line, or the end of the head */
            return LINE_GOOD;
        enum verdict v = header_line((struct str){s.p, n});
        if (v != LINE_GOOD)
            return v;
        s = (struct str){end + 1, rest};
    }
    return LINE_GOOD;
}

static enum verdict judge(struct str s)
{
    size_t at = 0;
    while (at < s.n && (s.p[at] == '\r' || s.p[at] == '\n'))
        at++; /* empty lines before a request are allowed */
    const char *end = memchr(s.p + at, '\n', s.n - at);
    if (!end)
        return s.n >= LINE_MAX_BYTES ? LINE_GOOD : LINE_PARTIAL;
    size_t n = (size_t)(end - s.p) - at;
    if (n > 0 && s.p[at + n - 1] == '\r')
        n--;
    if (!line_ok((struct str){s.p + at, n}))
        return LINE_BAD;
    if (s.p[at + n - 3] != '1')
        return LINE_VERSION;
    return headers((struct str){end + 1, (size_t)(s.p + s.n - end) - 1});
}

/* ---- the list -------------------------------------------------------------------------------- */

static void unlink_waiting(struct door *d, struct waiting *w)
{
    *(w->prev ? &w->prev->next : &d->head) = w->next;
    *(w->next ? &w->next->prev : &d->tail) = w->prev;
    d->n--;
}

static void drop(struct door *d, struct waiting *w)
{
    unlink_waiting(d, w);
    close(w->fd);
    free(w);
}

static void refuse(struct waiting *w, int status, const char *reason, const struct api_error *e)
{
    struct buf body = BUF_INIT, head = BUF_INIT;
    openai_error(e, &body);
    buf_addf(&head,
             "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json\r\n%s"
             "Content-Length: %zu\r\n\r\n",
             status, reason, e->retry_after_s ? "Retry-After: 1\r\n" : "", body.n);
    buf_add_str(&head, buf_str(&body));
    if (!head.failed && !body.failed)
        (void)!send(w->fd, head.p, head.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(w->fd, SHUT_WR);
    w->refused = true;
    w->until_us = clock_us() + LINGER_US;
    buf_free(&body);
    buf_free(&head);
}

static void hand_over(struct door *d, struct waiting *w)
{
    struct server *s = d->srv;
    struct api_error e = {0};
    if (conns_count(&s->conns) >= s->p.max_connections) {
        api_refuse(&e, 503, "too_many_connections", NULL,
                   "all %d connections are in use; try again later", s->p.max_connections);
        refuse(w, 503, "Service Unavailable", &e);
        return;
    }
    unlink_waiting(d, w);
    epoll_ctl(d->ep, EPOLL_CTL_DEL, w->fd, NULL);
    /* Closes the socket itself when it cannot take it. */
    if (MHD_add_connection(s->mhd, w->fd, (struct sockaddr *)&w->addr, w->addr_len) != MHD_YES)
        log_line(LOG_WARN, "http", "a connection could not be served: %s", strerror(errno));
    free(w);
}

static void discard(struct door *d, struct waiting *w)
{
    char waste[8192];
    ssize_t n;
    do
        n = recv(w->fd, waste, sizeof waste, MSG_DONTWAIT);
    while (n > 0);
    if (n == 0 || (errno != EAGAIN && errno != EINTR))
        drop(d, w);
}

/* New bytes, or the end of them. */
static void look(struct door *d, struct waiting *w, bool ended)
{
    char line[LINE_MAX_BYTES];
    struct api_error e = {0};
    if (w->refused) {
        discard(d, w);
        return;
    }
    ssize_t n = recv(w->fd, line, sizeof line, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR) && !ended)
        return;
    if (n <= 0) {
        drop(d, w);
        return;
    }
    enum verdict v = judge((struct str){line, (size_t)n});
    if (v == LINE_GOOD) {
        hand_over(d, w);
    } else if (v == LINE_VERSION) {
        api_refuse(&e, 505, "http_version", NULL, "this server speaks HTTP/1.1 and 1.0");
        refuse(w, 505, "HTTP Version Not Supported", &e);
    } else if (v == LINE_HEADER) {
        api_refuse(&e, 400, "bad_header", NULL, "a header line is not NAME: VALUE");
        refuse(w, 400, "Bad Request", &e);
    } else if (v == LINE_LENGTH) {
        api_refuse(&e, 400, "bad_framing", NULL, "Content-Length is not a number of bytes");
        refuse(w, 400, "Bad Request", &e);
    } else if (v == LINE_HUGE) {
        api_refuse(&e, 413, "body_too_large", NULL, "Content-Length is beyond any limit");
        refuse(w, 413, "Content Too Large", &e);
    } else if (v == LINE_BAD || ended) {
        api_refuse(&e, 400, "bad_request_line", NULL,
                   "the first line is no HTTP request line: expected METHOD target HTTP/1.1");
        refuse(w, 400, "Bad Request", &e);
    }
}

/* ---- accepting ------------------------------------------------------------------------------- */

static void make_room(struct door *d)
{
    if (d->tail)
        drop(d, d->tail);
}

static bool admit(struct door *d, int fd, const struct sockaddr_storage *addr, socklen_t len)
{
    int one = 1;
    struct waiting *w = calloc(1, sizeof *w);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = w};
    if (!w || epoll_ctl(d->ep, EPOLL_CTL_ADD, fd, &ev) != 0) {
        free(w);
        close(fd);
        return false;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    w->fd = fd;
    w->addr = *addr;
    w->addr_len = len;
    w->until_us = clock_us() + (int64_t)d->srv->p.idle_timeout_s * 1000000;
    w->next = d->head;
    *(d->head ? &d->head->prev : &d->tail) = w;
    d->head = w;
    d->n++;
    return true;
}

static void accept_all(struct door *d)
{
    for (int i = 0; i < 64; i++) {
        struct sockaddr_storage addr;
        socklen_t len = sizeof addr;
        int fd =
            accept4(d->listen_fd, (struct sockaddr *)&addr, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE)
                make_room(d);
            return;
        }
        if (d->n >= d->srv->p.max_connections * WAITING_TIMES)
            make_room(d);
        admit(d, fd, &addr, len);
    }
}

static void sweep(struct door *d)
{
    int64_t now = clock_us();
    for (struct waiting *w = d->head, *next; w; w = next) {
        next = w->next;
        if (now > w->until_us)
            drop(d, w);
    }
}

/* One event at a time: of several, a later one's connection could have been dropped to make room
 * for an earlier one's. */
static void *door_main(void *arg)
{
    struct door *d = arg;
    int64_t swept = clock_us();
    for (;;) {
        struct epoll_event ev;
        int n = epoll_wait(d->ep, &ev, 1, TICK_MS);
        if (n == 1 && ev.data.ptr == &d->wake)
            break;
        if (n == 1 && ev.data.ptr == &d->listen_fd)
            accept_all(d);
        else if (n == 1)
            look(d, ev.data.ptr, (ev.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
        if (clock_us() - swept > TICK_MS * 1000) {
            sweep(d);
            swept = clock_us();
        }
    }
    return NULL;
}

static enum qn_status watch(struct door *d, int fd, void *key, struct qn_err *err)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = key};
    if (epoll_ctl(d->ep, EPOLL_CTL_ADD, fd, &ev) != 0)
        return err_errno(err, "server", "cannot watch a socket");
    return QN_OK;
}

static enum qn_status door_start(struct door *d, struct qn_err *err)
{
    d->ep = epoll_create1(EPOLL_CLOEXEC);
    d->wake = eventfd(0, EFD_CLOEXEC);
    if (d->ep < 0 || d->wake < 0)
        return err_errno(err, "server", "cannot watch sockets");
    fcntl(d->listen_fd, F_SETFL, fcntl(d->listen_fd, F_GETFL) | O_NONBLOCK);
    QN_TRY(watch(d, d->listen_fd, &d->listen_fd, err));
    QN_TRY(watch(d, d->wake, &d->wake, err));
    int rc = pthread_create(&d->thread, NULL, door_main, d);
    if (rc != 0)
        QN_FAIL(err, QN_NO_MEMORY, "server", "cannot start a thread: %s", strerror(rc));
    return QN_OK;
}

static void door_dispose(struct door *d)
{
    while (d->head)
        drop(d, d->head);
    close(d->listen_fd);
    close(d->ep);
    close(d->wake);
    free(d);
}

enum qn_status door_open(struct server *s, int listen_fd, struct door **out, struct qn_err *err)
{
    struct door *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d) {
        close(listen_fd);
        QN_FAIL(err, QN_NO_MEMORY, "server", "not enough memory to start");
    }
    *d = (struct door){.srv = s, .listen_fd = listen_fd, .ep = -1, .wake = -1};
    enum qn_status st = door_start(d, err);
    if (st != QN_OK) {
        door_dispose(d);
        return st;
    }
    *out = d;
    return QN_OK;
}

void door_close(struct door *d)
{
    uint64_t one = 1;
    if (!d)
        return;
    (void)!write(d->wake, &one, sizeof one);
    pthread_join(d->thread, NULL);
    door_dispose(d);
}
