/*
 * test_slab.c - blocks of KV memory: random taking and giving; each block is zeroed, its own, and
 * keeps what is written to it, and at the end nothing is left.
 */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "base/rng.h"
#include "exec/exec_int.h"

enum { MOST = 150, STEPS = 1500 };

struct block {
    uint8_t *p;
    uint8_t mark;
};

/* Marks at both ends and in the middle: whole blocks would take long to look through. */
static void mark(const struct block *b, size_t bytes)
{
    b->p[0] = b->p[bytes / 2] = b->p[bytes - 1] = b->mark;
}

static bool marked(const struct block *b, size_t bytes, uint8_t with)
{
    return b->p[0] == with && b->p[bytes / 2] == with && b->p[bytes - 1] == with;
}

static void check_size(size_t bytes, uint64_t salt)
{
    struct slab *slabs = NULL;
    struct block blocks[MOST];
    uint32_t n = 0;
    for (uint64_t i = 0; i < STEPS; i++) {
        uint64_t r = rng_u64(salt, i, 0);
        bool grow = i / 300 % 2 == 0; /* fills, drains, fills again */
        if (n < MOST && (n == 0 || r % 4 > (grow ? 0 : 2))) {
            struct block *b = &blocks[n++];
            b->p = slab_take(&slabs, bytes);
            assert_non_null(b->p);
            assert_int_equal((uintptr_t)b->p % 64, 0);
            assert_true(marked(b, bytes, 0));
            b->mark = (uint8_t)(1 + r % 255);
            mark(b, bytes);
        } else {
            struct block *b = &blocks[r / 4 % n];
            assert_true(marked(b, bytes, b->mark));
            slab_give(&slabs, b->p, bytes);
            *b = blocks[--n];
        }
    }
    while (n) {
        assert_true(marked(&blocks[n - 1], bytes, blocks[n - 1].mark));
        slab_give(&slabs, blocks[--n].p, bytes);
    }
    assert_null(slabs);
}

static void test_sizes(void **state)
{
    static const size_t sizes[] = {64,     5000,    128 << 10,       (128 << 10) + 1,
                                   700001, 1474560, (size_t)40 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_size(sizes[i], i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
