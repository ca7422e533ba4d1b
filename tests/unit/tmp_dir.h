/*
 * tmp_dir.h - for a group of tests that share one fresh folder: cmocka_run_group_tests(tests,
 * make_dir, drop_dir).
 */
#ifndef TESTS_TMP_DIR_H
#define TESTS_TMP_DIR_H

#include "base/file.h"
#include "check.h"

static char *dir;

static int make_dir(void **state)
{
    dir = check_tmp_dir();
    return 0;
}

static int drop_dir(void **state)
{
    dir_remove(dir, NULL);
    free(dir);
    return 0;
}

#endif
