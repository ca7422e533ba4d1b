/*
 * test_hangup.c - what the server can know about a client that stops sending, over real loopback
 * sockets of both families.
 */
#include "../check.h"

#include "server/server_int.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

struct pair {
    int client, server;
};

static bool connect_pair(int family, struct pair *p)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *a = family == AF_INET6 ? (void *)&v6 : (void *)&v4;
    socklen_t n = family == AF_INET6 ? sizeof v6 : sizeof v4;
    int l = socket(family, SOCK_STREAM, 0);
    if (l < 0 || bind(l, a, n) != 0 || listen(l, 1) != 0 || getsockname(l, a, &n) != 0) {
        close(l);
        return false;
    }
    p->client = socket(family, SOCK_STREAM, 0);
    assert_int_equal(connect(p->client, a, n), 0);
    p->server = accept(l, NULL, NULL);
    assert_true(p->server >= 0);
    close(l);
    return true;
}

/* Looks until the answer is `want` or a second has gone by. */
static void expect(struct hangup *h, enum peer want)
{
    enum peer got = PEER_UNSURE;
    for (int i = 0; i < 100; i++) {
        h->next_us = 0;
        got = hangup_look(h);
        if (got == want)
            return;
        usleep(10000);
    }
    fail_msg("the answer is %d; expected %d", got, want);
}

static void walk(int family)
{
    struct pair p;
    struct linger rst = {1, 0};
    if (!connect_pair(family, &p)) {
        print_message("no loopback of family %d here\n", family);
        skip();
    }
    struct hangup h = {.fd = p.server};
    expect(&h, PEER_HERE);
    assert_int_equal(h.half_us, 0);
    shutdown(p.client, SHUT_WR);
    usleep(20000);
    for (int i = 0; i < 5; i++) {
        h.next_us = 0;
        assert_int_equal(hangup_look(&h), PEER_HERE); /* it may still read */
    }
    assert_true(h.half_us > 0);
    close(p.client);
    expect(&h, PEER_GONE);
    close(p.server);

    assert_true(connect_pair(family, &p));
    h = (struct hangup){.fd = p.server};
    close(p.client);
    expect(&h, PEER_GONE);
    close(p.server);

    assert_true(connect_pair(family, &p));
    h = (struct hangup){.fd = p.server};
    setsockopt(p.client, SOL_SOCKET, SO_LINGER, &rst, sizeof rst);
    close(p.client);
    expect(&h, PEER_GONE);
    close(p.server);
}

static void test_ipv4(void **state)
{
    walk(AF_INET);
}

static void test_ipv6(void **state)
{
    walk(AF_INET6);
}

/* A peer the kernel cannot be asked about (another machine's, here: a unix socket) is unsure. */
static void test_unknown_peer(void **state)
{
    int v[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, v), 0);
    struct hangup h = {.fd = v[0]};
    assert_int_equal(hangup_look(&h), PEER_HERE);
    shutdown(v[1], SHUT_WR);
    assert_int_equal(hangup_look(&h), PEER_UNSURE);
    close(v[1]);
    expect(&h, PEER_GONE);
    close(v[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ipv4),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_unknown_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
