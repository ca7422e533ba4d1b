/* test_sysmem.c - the memory limit from made-up /proc and cgroup trees. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/sysmem.h"

static char root[64];

static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int64_t limit(void)
{
    char proc[80], cg[80];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cg, sizeof cg, "%s/cg", root);
    return sysmem_limit_at(proc, cg);
}

static void test_trees(void **state)
{
    snprintf(root, sizeof root, "/tmp/quern-sysmem-XXXXXX");
    assert_non_null(mkdtemp(root));
    assert_int_equal(limit(), 0);
    put("proc/meminfo", "MemTotal:        2048 kB\nMemFree:   10 kB\n");
    assert_int_equal(limit(), 2048 * 1024);
    put("proc/self/cgroup", "0::/a/b\n");
    put("cg/a/b/memory.max", "max\n");
    assert_int_equal(limit(), 2048 * 1024);
    put("cg/a/memory.max", "1000000\n"); /* a limit above holds below */
    assert_int_equal(limit(), 1000000);
    put("cg/a/b/memory.max", "500000\n");
    assert_int_equal(limit(), 500000);
    put("proc/self/cgroup", "3:cpu:/x\n4:cpuset,memory:/gone\n");
    assert_int_equal(limit(), 2048 * 1024);
    put("cg/memory/memory.limit_in_bytes", "300000\n"); /* a container sees its own as the root */
    assert_int_equal(limit(), 300000);
    put("cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(limit(), 2048 * 1024);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    assert_int_equal(system(cmd), 0);
}

static void test_here(void **state)
{
    int64_t here = sysmem_limit();
    assert_true(here > 1 << 20);
    assert_true(here < (int64_t)1 << 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trees), cmocka_unit_test(test_here)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
