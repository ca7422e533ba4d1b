/*
 * test_lm_remote.c - a language model in a child process: the same answers, errors that cross, a
 * death that is noticed, told and mended. The child is this very program with the scripted model.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../check.h"
#include "base/clock.h"
#include "scripted.h"
#include "sched/lm_remote.h"
#include "sched/lm_serve.h"

static char self_path[] = "/proc/self/exe", child_arg[] = "child", mode[16];
static char *const child_argv[] = {self_path, child_arg, mode, NULL};

static int child(const char *how)
{
    struct scripted_params p = {.n_ctx = 300, .max_rows = 16};
    struct scripted *sc;
    struct qn_err err = {0};
    if (strcmp(how, "refuse") == 0) {
        err_set(&err, QN_NOT_FOUND, "test", "no such model");
        lm_serve_refuse(LM_REMOTE_FD, &err);
        return 1;
    }
    if (strcmp(how, "die") == 0)
        return 3;
    if (scripted_create(&p, &sc, &err) != QN_OK)
        return 2;
    scripted_max_seq(sc, 3);
    scripted_say(sc, "", STR_LIT("hello"));
    struct lm lm = scripted_lm(sc);
    enum qn_status st = lm_serve(&lm, NULL, LM_REMOTE_FD, &err);
    scripted_free(sc);
    return st == QN_OK ? 0 : 4;
}

static struct lm_remote *open_remote(const char *how)
{
    struct lm_remote *r = NULL;
    struct qn_err err;
    snprintf(mode, sizeof mode, "%s", how);
    CHECK_OK(lm_remote_open(child_argv, &r, &err), err);
    return r;
}

static void *new_seq(const struct lm *lm)
{
    void *seq = NULL;
    struct qn_err err;
    CHECK_OK(lm->ops->seq_create(lm->self, &seq, &err), err);
    return seq;
}

static int32_t best(const struct lm *lm, const float *row)
{
    int32_t id = 0;
    for (int32_t i = 1; i < lm->n_vocab; i++)
        if (row[i] > row[id])
            id = i;
    return id;
}

static enum qn_status feed(const struct lm *lm, void *seq, const int32_t *ids, int32_t n,
                           float *out, struct qn_err *err)
{
    struct qn_step_item it = {.seq = seq, .ids = ids, .n_ids = n, .n_logits = 1, .logits = out};
    return lm->ops->step(lm->self, &it, 1, err);
}

static void check_hello(const struct lm *lm)
{
    float *row = malloc((size_t)lm->n_vocab * sizeof *row);
    void *seq = new_seq(lm);
    int32_t id = 'x';
    struct qn_err err;
    for (const char *want = "hello"; *want; want++) {
        CHECK_OK(feed(lm, seq, &id, 1, row, &err), err);
        id = best(lm, row);
        assert_int_equal(id, *want);
    }
    lm->ops->seq_free(lm->self, seq);
    free(row);
}

static void test_same_answers(void **state)
{
    struct lm_remote *r = open_remote("ok");
    struct lm lm = lm_remote_lm(r);
    assert_int_equal(lm.n_ctx, 300);
    assert_int_equal(lm.max_rows, 16);
    assert_true(lm.n_eos > 0 && lm.eos_ids[0] == SCRIPTED_EOS);
    assert_true(lm_remote_up(r) && lm_remote_restarts(r) == 0);
    check_hello(&lm);
    check_hello(&lm);
    lm_remote_free(r);
}

static void test_errors_cross(void **state)
{
    struct lm_remote *r = open_remote("ok");
    struct lm lm = lm_remote_lm(r);
    struct qn_err err = {0};
    void *seq[3], *more;
    for (int i = 0; i < 3; i++)
        seq[i] = new_seq(&lm);
    assert_int_equal(lm.ops->seq_create(lm.self, &more, &err), QN_NO_MEMORY);
    assert_true(err.msg[0] != 0);
    lm.ops->seq_free(lm.self, seq[1]);
    seq[1] = new_seq(&lm);
    int32_t ids[17] = {'a'};
    assert_int_equal(feed(&lm, seq[0], ids, 17, NULL, &err), QN_BAD_INPUT);
    for (int i = 0; i < 3; i++)
        lm.ops->seq_free(lm.self, seq[i]);
    check_hello(&lm);
    lm_remote_free(r);
}

static void test_death(void **state)
{
    struct lm_remote *r = open_remote("ok");
    struct lm lm = lm_remote_lm(r);
    struct qn_err err = {0};
    float *row = malloc((size_t)lm.n_vocab * sizeof *row);
    for (int round = 0; round < 3; round++) {
        void *seq = new_seq(&lm);
        int32_t id = 'x';
        CHECK_OK(feed(&lm, seq, &id, 1, row, &err), err);
        assert_true(lm_remote_pid(r) > 0);
        kill(lm_remote_pid(r), SIGKILL);
        enum qn_status st = feed(&lm, seq, &id, 1, row, &err);
        for (int i = 0; i < 500 && st == QN_OK; i++) { /* the signal is on its way */
            usleep(1000);
            st = feed(&lm, seq, &id, 1, row, &err);
        }
        assert_int_equal(st, QN_LOST);
        check_hello(&lm);                                             /* waits for the next child */
        assert_int_equal(feed(&lm, seq, &id, 1, row, &err), QN_LOST); /* its child is gone */
        assert_int_equal(lm.ops->seq_truncate(lm.self, seq, 0, &err), QN_LOST);
        lm.ops->seq_free(lm.self, seq);
        assert_int_equal(lm_remote_restarts(r), round + 1);
    }
    free(row);
    lm_remote_free(r);
}

static void test_start_failures(void **state)
{
    struct lm_remote *r = NULL;
    struct qn_err err = {0};
    snprintf(mode, sizeof mode, "refuse");
    assert_int_equal(lm_remote_open(child_argv, &r, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.msg, "no such model"));
    snprintf(mode, sizeof mode, "die");
    assert_int_equal(lm_remote_open(child_argv, &r, &err), QN_LOST);
    char nowhere[] = "/nonexistent/program";
    char *const argv[] = {nowhere, NULL};
    enum qn_status st = lm_remote_open(argv, &r, &err);
    assert_true(st == QN_NOT_FOUND || st == QN_LOST); /* as posix_spawn tells it */
    assert_null(r);
}

/* Freed while a child that keeps failing is being started again and again. */
static void test_free_while_down(void **state)
{
    struct lm_remote *r = open_remote("ok");
    kill(lm_remote_pid(r), SIGKILL);
    while (lm_remote_up(r))
        usleep(1000);
    int64_t start = clock_us();
    lm_remote_free(r);
    assert_true(clock_us() - start < 20000000);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "child") == 0)
        return child(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),    cmocka_unit_test(test_errors_cross),
        cmocka_unit_test(test_death),           cmocka_unit_test(test_start_failures),
        cmocka_unit_test(test_free_while_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
