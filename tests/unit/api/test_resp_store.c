/*
 * test_resp_store.c - the store of answers: what is kept, what goes first, bounds, age, threads;
 * and against a plain list over many random operations.
 */
#include "../check.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "api/resp_store.h"
#include "base/rng.h"

static void put(struct resp_store *s, int id, size_t bytes)
{
    char name[16];
    struct buf b = BUF_INIT;
    snprintf(name, sizeof name, "r%d", id);
    while (b.n < bytes)
        buf_addc(&b, (char)('a' + id % 26));
    resp_store_put(s, str_of(name), buf_str(&b), STR_LIT("items"));
    buf_free(&b);
}

static bool has(struct resp_store *s, int id)
{
    char name[16];
    snprintf(name, sizeof name, "r%d", id);
    return resp_store_get(s, str_of(name), NULL, NULL);
}

static void test_keeps(void **state)
{
    struct resp_store *s = resp_store_create(1000, 60);
    struct buf r = BUF_INIT, i = BUF_INIT;
    assert_non_null(s);
    resp_store_put(s, STR_LIT("a"), STR_LIT("answer"), STR_LIT("1,2"));
    assert_true(resp_store_get(s, STR_LIT("a"), &r, &i));
    assert_string_equal(buf_z(&r), "answer");
    assert_string_equal(buf_z(&i), "1,2");
    resp_store_put(s, STR_LIT("a"), STR_LIT("other"), STR_LIT(""));
    buf_clear(&r);
    assert_true(resp_store_get(s, STR_LIT("a"), &r, NULL));
    assert_string_equal(buf_z(&r), "other");
    assert_false(resp_store_get(s, STR_LIT("b"), &r, NULL));
    assert_true(resp_store_delete(s, STR_LIT("a")));
    assert_false(resp_store_delete(s, STR_LIT("a")));
    assert_false(resp_store_get(s, STR_LIT("a"), NULL, NULL));
    struct resp_store_stats st;
    resp_store_stats(s, &st);
    assert_true(st.entries == 0 && st.bytes == 0 && st.max_bytes == 1000 && st.ttl_ms == 60000);
    buf_free(&r);
    buf_free(&i);
    resp_store_free(s);
    resp_store_free(NULL);
}

static void test_least_recently_used_goes(void **state)
{
    struct resp_store *s = resp_store_create(4000, 60);
    for (int i = 0; i < 3; i++)
        put(s, i, 1000);
    assert_true(has(s, 0)); /* used: 1 is the oldest now */
    put(s, 3, 1000);
    assert_true(has(s, 0) && !has(s, 1) && has(s, 2) && has(s, 3));
    put(s, 4, 5000); /* larger than all of it: nothing has to go for it */
    assert_true(!has(s, 4) && has(s, 0) && has(s, 2) && has(s, 3));
    put(s, 5, 3700); /* all of it */
    assert_true(has(s, 5) && !has(s, 0) && !has(s, 2) && !has(s, 3));
    resp_store_free(s);
}

static void test_age(void **state)
{
    struct resp_store *s = resp_store_create(4000, 0);
    struct resp_store_stats st;
    put(s, 1, 10);
    put(s, 2, 10); /* the first one was too old at once */
    resp_store_stats(s, &st);
    assert_int_equal(st.entries, 1);
    assert_false(has(s, 1));
    assert_false(has(s, 2));
    resp_store_stats(s, &st);
    assert_true(st.entries == 0 && st.bytes == 0);
    resp_store_free(s);
}

/* A list from the oldest to the newest use is the oracle. */
static void test_against_a_list(void **state)
{
    enum { IDS = 40, MAX = 20000 };
    struct resp_store *s = resp_store_create(MAX, 3600);
    struct resp_store_stats st;
    int order[IDS], n = 0;
    size_t size[IDS] = {0}, per = 0, total = 0;
    put(s, 0, 1);
    resp_store_stats(s, &st);
    per = (size_t)st.bytes - 1; /* what an entry with a name of two bytes takes beside its text */
    assert_true(resp_store_delete(s, STR_LIT("r0")));
    for (int step = 0; step < 20000; step++) {
        int id = (int)(rng_u64(7, 1, (uint64_t)step) % IDS),
            op = (int)(rng_u64(7, 2, (uint64_t)step) % 5);
        int at = 0;
        while (at < n && order[at] != id)
            at++;
        bool known = at < n;
        if (known) { /* every operation below moves or removes it */
            memmove(order + at, order + at + 1, (size_t)(n - at - 1) * sizeof *order);
            n--;
        }
        if (op == 0) {
            char name[16];
            snprintf(name, sizeof name, "r%d", id);
            assert_int_equal(resp_store_delete(s, str_of(name)), known);
            total -= known ? size[id] : 0;
        } else if (op < 3) {
            assert_int_equal(has(s, id), known);
            if (known)
                order[n++] = id;
        } else {
            size_t bytes = 1 + (size_t)(rng_u64(7, 3, (uint64_t)step) % 3000);
            put(s, id, bytes);
            total -= known ? size[id] : 0;
            size[id] = per + bytes + (id > 9);
            while (total + size[id] > MAX) {
                total -= size[order[0]];
                memmove(order, order + 1, (size_t)--n * sizeof *order);
            }
            total += size[id];
            order[n++] = id;
        }
        resp_store_stats(s, &st);
        assert_int_equal(st.entries, n);
        assert_int_equal(st.bytes, total);
    }
    resp_store_free(s);
}

static void *hammer(void *arg)
{
    struct resp_store *s = arg;
    for (int i = 0; i < 3000; i++) {
        struct buf b = BUF_INIT;
        char name[16];
        int id = (int)(rng_u64((uint64_t)(uintptr_t)&b, 1, (uint64_t)i) % 20);
        snprintf(name, sizeof name, "r%d", id);
        if (i % 3 == 0)
            put(s, id, 100);
        else if (i % 7 == 0)
            resp_store_delete(s, str_of(name));
        else if (resp_store_get(s, str_of(name), &b, NULL))
            QN_ASSERT(b.n == 100 && b.p[0] == (char)('a' + id) && b.p[99] == b.p[0]);
        buf_free(&b);
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct resp_store *s = resp_store_create(2000, 60);
    struct resp_store_stats st;
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, hammer, s), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    resp_store_stats(s, &st);
    assert_true(st.bytes <= 2000);
    resp_store_free(s);
}

/* What requests borrow is bounded together, and comes back. */
static void lent_memory(void **state)
{
    struct resp_store *s = resp_store_create(1000, 60);
    assert_true(resp_store_lend(s, RESP_LENT_MAX - 10));
    assert_false(resp_store_lend(s, 11));
    assert_false(resp_store_lend(s, SIZE_MAX));
    assert_true(resp_store_lend(s, 10));
    assert_false(resp_store_lend(s, 1));
    resp_store_give_back(s, 10);
    assert_true(resp_store_lend(s, 4));
    resp_store_give_back(s, RESP_LENT_MAX - 10);
    assert_true(resp_store_lend(s, RESP_LENT_MAX - 4));
    resp_store_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps),   cmocka_unit_test(test_least_recently_used_goes),
        cmocka_unit_test(test_age),     cmocka_unit_test(test_against_a_list),
        cmocka_unit_test(test_threads), cmocka_unit_test(lent_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
