/*
 * listen.c - opens the listening socket: name to address, clear words when the port is taken.
 */
#include "server/server_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    if (a->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
    }
    return false;
}

static int bound_to(int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    if (a.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

static enum qn_status bind_error(const char *host, int port, struct qn_err *err)
{
    if (errno == EADDRINUSE)
        QN_FAIL(err, QN_IO, "server",
                "%s port %d is already in use by another program; stop it or choose another port "
                "with --port",
                host, port);
    return err_errno(err, "server", "cannot listen on %s port %d", host, port);
}

static enum qn_status open_one(const struct addrinfo *a, const char *host, int port, int *out,
                               struct qn_err *err)
{
    int one = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(err, "server", "cannot open a socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 256) != 0) {
        enum qn_status st = bind_error(host, port, err);
        close(fd);
        return st;
    }
    *out = fd;
    return QN_OK;
}

enum qn_status listen_open(const char *host, int port, bool *loopback, int *fd, int *bound_port,
                           struct qn_err *err)
{
    struct addrinfo *list = NULL;
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char service[16];
    /* "localhost" also names ::1, but clients written for 127.0.0.1 are the common case. */
    if (strcmp(host, "localhost") == 0)
        hints.ai_family = AF_INET;
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0)
        QN_FAIL(err, QN_BAD_INPUT, "server", "--host %s: %s", host, gai_strerror(rc));
    *loopback = is_loopback(list->ai_addr);
    enum qn_status st = open_one(list, host, port, fd, err);
    freeaddrinfo(list);
    if (st == QN_OK)
        *bound_port = bound_to(*fd);
    return st;
}
