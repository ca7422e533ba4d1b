/*
 * test_cache_pages.c - random operations on the tree and KV pages (pages_world.h), under a limit
 * and under a budget of all KV memory: with nothing forgotten, with windows, with a recurrent
 * state, and with coded memory.
 *
 * QUERN_CACHE_OPS sets the number of operations, QUERN_CACHE_SEED another beginning.
 */
#include "pages_world.h"

static void run_kind(const struct kind *k, bool budget)
{
    struct world *w = calloc(1, sizeof *w);
    int64_t n = n_operations(2000);
    rnd_seed(budget ? 4 : 3);
    world_open(w, k, 0);
    int64_t bytes = kv_seq_bytes(w->ex, N_CTX) * 5 / 2; /* of a few sequences, or what is cached */
    world_close(w);
    world_open(w, k, budget ? bytes : 0);
    for (int64_t i = 0; i < n; i++) {
        world_operation(w);
        if (i % 8 == 0) {
            world_census(w);
            world_look(w);
        }
    }
    assert_true(w->n_reused > n / 40 && w->n_branch > n / 100 && w->n_evict > n / 500);
    assert_true(w->n_fork > n / 200 && w->n_point > n / 400 && w->n_cut > n / 400);
    assert_true(!budget || w->n_busy > n / 400);
    world_close(w);
    free(w);
}

static void test_kind(void **state)
{
    run_kind(*state, false);
    run_kind(*state, true);
}

int main(void)
{
    struct CMUnitTest tests[KINDS];
    for (int i = 0; i < KINDS; i++)
        tests[i] =
            (struct CMUnitTest){kinds[i].name, test_kind, NULL, NULL, (void *)(uintptr_t)&kinds[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
