/*
 * hangup.c - has the client left? A FIN says only that the client sends no more: it may have closed
 * the socket, or merely shut its sending side and still wait for the answer (which is no cancel).
 *
 *   reset, or both directions closed   gone (poll: HUP or ERR)
 *   FIN, client on this machine        ask the kernel (sock_diag) for the client's own socket: one
 *                                      that no process holds any more has inode 0
 *   FIN, client elsewhere              only a write can tell: a closed socket answers it with RST
 *
 * Called by the connection's thread.
 */
#include "server/server_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define LOOK_US 50000 /* between closer looks */

enum answer { HELD, ORPHAN, UNKNOWN };

struct query {
    struct nlmsghdr nl;
    struct inet_diag_req_v2 req;
};

static void put_addr(const struct sockaddr_storage *a, struct query *q, bool peer)
{
    struct inet_diag_sockid *id = &q->req.id;
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    __be32 *addr = peer ? id->idiag_src : id->idiag_dst;
    __be16 *port = peer ? &id->idiag_sport : &id->idiag_dport;
    q->req.sdiag_family = AF_INET;
    if (a->ss_family == AF_INET) {
        *addr = v4->sin_addr.s_addr;
        *port = v4->sin_port;
        return;
    }
    *port = v6->sin6_port;
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
        memcpy(addr, v6->sin6_addr.s6_addr + 12, 4);
    } else {
        q->req.sdiag_family = AF_INET6;
        memcpy(addr, v6->sin6_addr.s6_addr, 16);
    }
}

static enum answer read_reply(int nl)
{
    char buf[4096] __attribute__((aligned(NLMSG_ALIGNTO)));
    struct pollfd p = {.fd = nl, .events = POLLIN};
    if (poll(&p, 1, 100) != 1)
        return UNKNOWN;
    ssize_t n = recv(nl, buf, sizeof buf, 0);
    struct nlmsghdr *h = (struct nlmsghdr *)buf;
    if (n < (ssize_t)sizeof *h || !NLMSG_OK(h, (size_t)n) || h->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
        h->nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
        return UNKNOWN;
    const struct inet_diag_msg *m = NLMSG_DATA(h);
    switch (m->idiag_state) {
    case TCP_FIN_WAIT1:
    case TCP_FIN_WAIT2:
    case TCP_CLOSING:
    case TCP_TIME_WAIT:
    case TCP_CLOSE:
        return m->idiag_inode == 0 ? ORPHAN : HELD;
    default:
        return UNKNOWN;
    }
}

/* The state of the client's own end, where it is on this machine. */
static enum answer ask_kernel(int fd)
{
    struct sockaddr_storage us, peer;
    socklen_t n_us = sizeof us, n_peer = sizeof peer;
    struct query q = {0};
    if (getsockname(fd, (struct sockaddr *)&us, &n_us) != 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &n_peer) != 0)
        return UNKNOWN;
    q.nl.nlmsg_len = sizeof q;
    q.nl.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    q.nl.nlmsg_flags = NLM_F_REQUEST;
    q.req.sdiag_protocol = IPPROTO_TCP;
    q.req.idiag_states = ~0u;
    q.req.id.idiag_cookie[0] = q.req.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    put_addr(&us, &q, false);
    put_addr(&peer, &q, true);
    int nl = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (nl < 0)
        return UNKNOWN;
    enum answer a = UNKNOWN;
    if (send(nl, &q, sizeof q, 0) == (ssize_t)sizeof q)
        a = read_reply(nl);
    close(nl);
    return a;
}

enum peer hangup_look(struct hangup *h)
{
    struct pollfd p = {.fd = h->fd, .events = POLLRDHUP};
    if (poll(&p, 1, 0) < 1)
        return PEER_HERE;
    if (p.revents & (POLLHUP | POLLERR | POLLNVAL))
        return PEER_GONE;
    if (!(p.revents & POLLRDHUP))
        return PEER_HERE;
    int64_t now = clock_us();
    if (h->half_us == 0)
        h->half_us = now;
    if (now < h->next_us)
        return PEER_HERE;
    h->next_us = now + LOOK_US;
    switch (ask_kernel(h->fd)) {
    case HELD:
        return PEER_HERE;
    case ORPHAN:
        return PEER_GONE;
    default:
        return PEER_UNSURE;
    }
}
