/*
 * test_tier.c - the prompt cache on disk under real (tiny) models of every kind of memory: what a
 * restart, an emptied memory or a damaged folder leaves is as much as memory alone had, or less,
 * and the logits that follow have the bits of one plain pass.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../check.h"
#include "base/fault.h"
#include "base/file.h"
#include "quern.h"

enum {
    PROMPT = 400,
    ANSWER = 60,
    N = PROMPT + ANSWER,
    FORK = 230,
    TAIL = 30,
    SHORT = 270, /* behind where line 1 parts */
    LINES = 3,
    EVERY = 128
};

static const char *const models[] = {
    "qwen3_next-q4",         "gemma3_text-q4", "llama-tied-llama3-q4",  "gemma4-ple-q4",
    "gpt_oss-mxfp4-experts", "deepseek_v3-q4", "glm_moe_dsa-shared-q4",
};
/* The arithmetic is slow under sanitizers: the first has pages and states. */
enum { MODELS = FEWER ? 1 : sizeof models / sizeof *models };
enum { THREADS = RACES ? 1 : 2 };

/* A line of tokens, with the logits of a plain pass. */
struct line {
    int32_t ids[N];
    int32_t n;
    float *truth; /* [n, v] */
};

struct rig {
    char *dir, model[1024];
    struct qn_engine *e;
    struct qn_cache *c;
    int32_t v, reach;
    struct line lines[LINES];
    int32_t had[LINES][2]; /* what memory alone could reuse of the prompt and of all */
};

static uint32_t seed = 5;

static int32_t rnd(int32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(seed >> 4) * (uint64_t)n >> 28);
}

/* ---- an engine's life ------------------------------------------------------------------------ */

static void open_engine(struct rig *r)
{
    struct qn_err err = {0};
    struct qn_engine_params p = {
        .model_dir = r->model, .n_thread = THREADS, .n_ctx = N + 10, .weights_only = true};
    CHECK_OK(qn_engine_open(&p, &r->e, &err), err);
    r->v = qn_engine_info(r->e)->n_vocab;
}

static void open_cache_idle(struct rig *r, int64_t disk_bytes, int64_t idle_ms)
{
    struct qn_err err = {0};
    struct qn_cache_params p = {.bytes = (int64_t)1 << 30, .interval = EVERY};
    struct qn_disk_params d = {.dir = r->dir, .bytes = disk_bytes, .idle_ms = idle_ms};
    CHECK_OK(qn_cache_create(r->e, &p, &r->c, &err), err);
    CHECK_OK(qn_cache_disk_open(r->c, &d, &err), err);
    r->reach = qn_cache_reach(r->c);
}

static void open_cache(struct rig *r, int64_t disk_bytes)
{
    open_cache_idle(r, disk_bytes, 0);
}

static void close_cache(struct rig *r)
{
    qn_cache_free(r->c);
    r->c = NULL;
}

/* A restart, as far as the memory of a process goes. */
static void restart(struct rig *r)
{
    close_cache(r);
    qn_engine_free(r->e);
    open_engine(r);
    open_cache(r, 0);
}

static struct qn_cache_flush flush(struct rig *r)
{
    struct qn_cache_flush f;
    bool begin = true;
    for (int i = 0; !qn_cache_flush(r->c, begin, &f); i++) {
        begin = false;
        assert_true(i < 200000);
        qn_cache_tick(r->c, false);
        usleep(1000);
    }
    return f;
}

static struct qn_disk_stats disk(const struct rig *r)
{
    struct qn_cache_stats s;
    qn_cache_stats(r->c, &s);
    return s.disk;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void make_truth(struct rig *r, struct line *l)
{
    struct qn_err err;
    struct qn_seq *s;
    l->truth = malloc((size_t)l->n * (size_t)r->v * sizeof *l->truth);
    CHECK_OK(qn_seq_create(r->e, &s, &err), err);
    for (int32_t at = 0, n; at < l->n; at += n) {
        n = l->n - at < 115 ? l->n - at : 115;
        struct qn_step_item it = {s, l->ids + at, n, n, l->truth + (size_t)at * (size_t)r->v};
        CHECK_OK(qn_engine_step(r->e, &it, 1, &err), err);
    }
    qn_seq_free(s);
}

/* Line 0, one that parts from it in the middle, and one of its own. */
static void make_lines(struct rig *r)
{
    for (int k = 0; k < LINES; k++) {
        struct line *l = &r->lines[k];
        l->n = N;
        for (int32_t i = 0; i < N; i++)
            l->ids[i] = rnd(r->v);
        if (k == 1)
            memcpy(l->ids, r->lines[0].ids, FORK * sizeof *l->ids);
        if (k == 1 && l->ids[FORK] == r->lines[0].ids[FORK])
            l->ids[FORK] = (l->ids[FORK] + 1) % r->v;
        make_truth(r, l);
    }
}

static void step(struct rig *r, struct qn_seq *s, const struct line *l, int32_t n)
{
    struct qn_err err;
    int32_t at = qn_seq_len(s);
    float *got = malloc((size_t)n * (size_t)r->v * sizeof *got);
    struct qn_step_item it = {s, l->ids + at, n, n, got};
    CHECK_OK(qn_engine_step(r->e, &it, 1, &err), err);
    if (memcmp(got, l->truth + (size_t)at * (size_t)r->v, (size_t)n * (size_t)r->v * 4) != 0)
        fail_msg("%s: logits behind token %d differ", r->model, at);
    free(got);
}

static void keep(struct rig *r, struct qn_seq *s, const struct line *l)
{
    struct qn_err err;
    struct qn_line line = {NULL, l->ids, qn_seq_len(s)};
    CHECK_OK(qn_cache_keep(r->c, &line, s, &err), err);
}

/* Goes along a line from where the cache can to token n, keeping where the scheduler would. */
static void go(struct rig *r, const struct line *l, int32_t n)
{
    struct qn_err err;
    struct qn_seq *s;
    struct qn_line line = {NULL, l->ids, n};
    CHECK_OK(qn_cache_seq(r->c, &line, &s, NULL, &err), err);
    while (qn_seq_len(s) < n) {
        int32_t at = qn_seq_len(s), to = (at / EVERY + 1) * EVERY;
        if (r->reach == INT32_MAX)
            to = at + 70;
        if (at < FORK && to > FORK)
            to = FORK; /* where lines part */
        if (at < n - 1 && to > n - 1)
            to = n - 1;
        step(r, s, l, (to < n ? to : n) - at);
        keep(r, s, l);
        qn_cache_tick(r->c, true);
    }
    qn_seq_free(s);
}

/* What can be reused of the first n tokens and one; and it is right. */
static int32_t reuse(struct rig *r, const struct line *l, int32_t n)
{
    struct qn_err err;
    struct qn_seq *s;
    struct qn_line line = {NULL, l->ids, n};
    CHECK_OK(qn_cache_seq(r->c, &line, &s, NULL, &err), err);
    int32_t had = qn_seq_len(s), more = N - had < TAIL ? N - had : TAIL;
    if (more)
        step(r, s, l, more);
    qn_seq_free(s);
    return had;
}

static void check_all_here(struct rig *r, const char *when)
{
    for (int k = 0; k < LINES; k++)
        for (int all = 0; all < 2; all++) {
            int32_t had = reuse(r, &r->lines[k], all ? N : PROMPT);
            if (had != r->had[k][all])
                fail_msg("%s, %s: %d tokens of line %d reused; memory had %d", r->model, when, had,
                         k, r->had[k][all]);
        }
}

/* Everything is computed once, and written. */
static struct rig *make_rig(const char *name)
{
    struct rig *r = calloc(1, sizeof *r);
    r->dir = check_tmp_dir();
    snprintf(r->model, sizeof r->model, "%s/tiny/%s", GOLDEN_DIR, name);
    open_engine(r);
    make_lines(r);
    open_cache(r, 0);
    for (int k = 0; k < LINES; k++) {
        go(r, &r->lines[k], PROMPT);
        go(r, &r->lines[k], N);
    }
    for (int k = 0; k < LINES; k++)
        for (int all = 0; all < 2; all++) {
            r->had[k][all] = reuse(r, &r->lines[k], all ? N : PROMPT);
            assert_int_equal(r->had[k][all], all ? N - 1 : PROMPT - 1);
        }
    struct qn_cache_flush f = flush(r);
    if (f.durable_nodes != f.nodes || f.durable_tokens != f.tokens)
        fail_msg("%s: %lld of %lld nodes are durable: %s", name, (long long)f.durable_nodes,
                 (long long)f.nodes, f.error);
    assert_int_equal(f.error[0], 0);
    return r;
}

static void free_rig(struct rig *r)
{
    struct qn_err err = {0};
    close_cache(r);
    qn_engine_free(r->e);
    CHECK_OK(dir_remove(r->dir, &err), err);
    for (int k = 0; k < LINES; k++)
        free(r->lines[k].truth);
    free(r->dir);
    free(r);
}

/* ---- files of the folder --------------------------------------------------------------------- */

/* Calls fn for each record; how many there are. */
static int each_record(struct rig *r, void (*fn)(const char *path, int i))
{
    char **subs, **names;
    size_t n_sub, n;
    int count = 0;
    struct qn_err err = {0};
    struct buf sub = BUF_INIT, path = BUF_INIT;
    CHECK_OK(dir_list(r->dir, &subs, &n_sub, &err), err);
    for (size_t i = 0; i < n_sub; i++) {
        path_join(&sub, r->dir, subs[i]);
        if (!dir_exists(buf_z(&sub)))
            continue;
        CHECK_OK(dir_list(buf_z(&sub), &names, &n, &err), err);
        for (size_t j = 0; j < n; j++) {
            path_join(&path, buf_z(&sub), names[j]);
            if (str_ends(buf_str(&path), STR_LIT(".kv")))
                fn(buf_z(&path), count++);
        }
        names_free(names, n);
    }
    names_free(subs, n_sub);
    buf_free(&sub);
    buf_free(&path);
    return count;
}

static void flip(const char *path, int i)
{
    struct stat sb;
    uint8_t byte;
    if (i % 3)
        return;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &sb) == 0);
    off_t at = rnd(4) ? 4096 + rnd((int32_t)sb.st_size - 4096) : rnd(300);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1 << rnd(8));
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void cut(const char *path, int i)
{
    struct stat sb;
    if (i % 3 == 1)
        assert_true(stat(path, &sb) == 0 && truncate(path, rnd((int32_t)sb.st_size)) == 0);
    if (i % 3 == 2 && i % 2)
        assert_int_equal(unlink(path), 0);
}

static void no_more_than_had(struct rig *r)
{
    for (int k = 0; k < LINES; k++)
        for (int all = 0; all < 2; all++)
            assert_true(reuse(r, &r->lines[k], all ? N : PROMPT) <= r->had[k][all]);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void restarts(struct rig *r)
{
    restart(r);
    check_all_here(r, "after a restart");
    assert_true(disk(r).restores > 0 && disk(r).restored_tokens >= 2 * (PROMPT - 1));
    assert_int_equal(disk(r).damaged, 0);
    qn_cache_trim(r->c, 0); /* memory is given up; the disk is not */
    check_all_here(r, "after memory was given up");
    struct qn_cache_flush f = flush(r);
    assert_int_equal(f.durable_nodes, f.nodes);
    assert_int_equal(disk(r).written, 0); /* nothing was new */
}

/* The same, with somebody who waits for the reader. */
static void restarts_reading_beside(struct rig *r)
{
    restart(r);
    for (int k = LINES - 1; k >= 0; k--) {
        struct qn_line line = {NULL, r->lines[k].ids, N};
        int64_t before = disk(r).restores;
        int loading = 0;
        while (qn_cache_loading(r->c, &line)) {
            qn_cache_tick(r->c, true);
            usleep(200);
            assert_true(loading++ < 50000);
        }
        assert_true(loading > 0 && disk(r).restores == before + 1);
        assert_int_equal(reuse(r, &r->lines[k], N), N - 1);
        assert_int_equal(disk(r).restores, before + 1);
    }
    check_all_here(r, "read beside");
}

static void damage(struct rig *r)
{
    restart(r);
    each_record(r, flip);
    no_more_than_had(r); /* found out while it runs */
    assert_true(disk(r).damaged > 0);
    restart(r);
    each_record(r, cut);
    restart(r); /* found out at the start */
    no_more_than_had(r);
    for (int k = 0; k < LINES; k++) { /* and it heals */
        go(r, &r->lines[k], PROMPT);
        go(r, &r->lines[k], N);
    }
    struct qn_cache_flush f = flush(r);
    assert_int_equal(f.durable_nodes, f.nodes);
    restart(r);
    check_all_here(r, "after damage and repair");
}

/* Writes fail; flush tells, memory goes on, and later it is made good. */
static void full_disk(struct rig *r)
{
    struct qn_err err = {0};
    close_cache(r);
    CHECK_OK(dir_remove(r->dir, &err), err);
    open_cache(r, 0);
    fault_arm_from("store.write.full", 1);
    go(r, &r->lines[0], N);
    struct qn_cache_flush f = flush(r);
    assert_true(f.nodes > 0 && f.durable_nodes == 0 && strstr(f.error, "No space"));
    assert_int_equal(reuse(r, &r->lines[0], N), N - 1);
    fault_disarm();
    f = flush(r);
    assert_true(f.durable_nodes == f.nodes && !f.error[0]);
    restart(r);
    assert_int_equal(reuse(r, &r->lines[0], N), N - 1);
}

/* A folder with less room than there is to keep: flush says what did not fit. */
static void small_folder(struct rig *r)
{
    struct qn_err err = {0};
    int64_t all = disk(r).bytes;
    close_cache(r);
    CHECK_OK(dir_remove(r->dir, &err), err);
    open_cache(r, all / 2);
    go(r, &r->lines[0], N);
    go(r, &r->lines[2], N);
    struct qn_cache_flush f = flush(r);
    assert_true(f.durable_nodes > 0 && f.durable_nodes <= f.nodes);
    assert_true(disk(r).bytes <= all / 2);
    assert_true(f.durable_nodes == f.nodes || f.error[0]);
    restart(r);
    no_more_than_had(r);
}

/* Where memory holds more than the folder may, the folder has some of it and then rests: what went
 * for something else is not written again by itself, and flushes do not take turns either. What is
 * larger than the folder is no trouble to the others. */
static void more_than_fits(struct rig *r)
{
    struct qn_err err = {0};
    int64_t all = 0;
    for (int64_t part = 0; part <= 2; part++) {
        close_cache(r);
        CHECK_OK(dir_remove(r->dir, &err), err);
        open_cache(r, part == 2 ? 1000 : all * 2 / 3); /* at first without a bound */
        for (int k = 0; k < LINES; k++)
            go(r, &r->lines[k], SHORT);
        flush(r);
        struct qn_cache_flush f = flush(r);
        int64_t written = disk(r).written_bytes, failed = disk(r).failed;
        assert_int_equal(f.durable_nodes == f.nodes, !part);
        assert_string_equal(f.error, part ? "it does not fit within the bound of the folder" : "");
        for (int ms = 0; qn_cache_tick(r->c, false); ms++) { /* until it wants nothing more */
            usleep(1000);
            assert_true(ms < 5000);
        }
        assert_int_equal(disk(r).written_bytes, written);
        assert_int_equal(disk(r).failed, failed);
        flush(r);
        assert_int_equal(disk(r).written_bytes, written);
        all = all ? all : disk(r).bytes;
    }
}

/* Whoever empties the folder behind the server's back: a flush makes durable what memory holds,
 * instead of telling of what was there once. */
static void emptied(struct rig *r)
{
    struct qn_err err = {0};
    int32_t had[LINES];
    close_cache(r);
    open_cache(r, 0);
    for (int k = 0; k < LINES; k++)
        go(r, &r->lines[k], SHORT);
    for (int k = 0; k < LINES; k++)
        had[k] = reuse(r, &r->lines[k], SHORT);
    flush(r);
    CHECK_OK(dir_remove(r->dir, &err), err);
    struct qn_cache_flush f = flush(r);
    assert_true(f.nodes > 0 && f.durable_nodes == f.nodes && !f.error[0]);
    restart(r);
    for (int k = 0; k < LINES; k++)
        assert_int_equal(reuse(r, &r->lines[k], SHORT), had[k]);
}

static int64_t tokens_in_memory(const struct rig *r)
{
    struct qn_cache_stats s;
    qn_cache_stats(r->c, &s);
    return s.tokens;
}

/* Calls the tick as a server without work does, for so long or until `tokens` are left. */
static void rest(struct rig *r, int ms, int64_t tokens)
{
    for (int i = 0; i < ms && tokens_in_memory(r) > tokens; i++) {
        qn_cache_tick(r->c, false);
        usleep(1000);
    }
}

/* What nobody uses leaves memory when it is on disk and no sequence holds it, and comes back. */
static void idle(struct rig *r)
{
    enum { IDLE_MS = 80, LONG_MS = 20000 };
    struct qn_err err = {0};
    struct qn_seq *held;
    close_cache(r);
    CHECK_OK(dir_remove(r->dir, &err), err);
    open_cache_idle(r, 0, IDLE_MS);
    fault_arm_from("store.write.full", 1);
    go(r, &r->lines[0], N);
    int64_t all = tokens_in_memory(r);
    rest(r, 3 * IDLE_MS, 0);
    assert_int_equal(tokens_in_memory(r), all); /* not on disk: stays */
    fault_disarm();
    close_cache(r);
    open_cache_idle(r, 0, IDLE_MS);
    for (int k = 0; k < LINES; k++)
        go(r, &r->lines[k], N);
    struct qn_line line = {NULL, r->lines[1].ids, N};
    CHECK_OK(qn_cache_seq(r->c, &line, &held, NULL, &err), err);
    rest(r, LONG_MS, N);
    assert_true(tokens_in_memory(r) >= qn_seq_len(held) && tokens_in_memory(r) <= N);
    qn_seq_free(held);
    rest(r, LONG_MS, 0);
    assert_int_equal(tokens_in_memory(r), 0);
    assert_true(disk(r).demoted_tokens >= 2 * N);
    for (int k = 0; k < LINES; k++)
        assert_int_equal(reuse(r, &r->lines[k], N), N - 1);
    assert_true(disk(r).restores >= LINES);
}

static void test_model(void **state)
{
    const char *name = *state;
    struct rig *r = make_rig(name);
    restarts(r);
    restarts_reading_beside(r);
    damage(r);
    full_disk(r);
    small_folder(r);
    more_than_fits(r);
    emptied(r);
    idle(r);
    free_rig(r);
}

/* Namespaces and models share nothing on disk either. */
static void test_apart(void **state)
{
    struct qn_err err = {0};
    struct rig *r = make_rig(models[0]);
    struct qn_seq *s;
    restart(r);
    struct qn_line other = {"other", r->lines[0].ids, N};
    CHECK_OK(qn_cache_seq(r->c, &other, &s, NULL, &err), err);
    assert_int_equal(qn_seq_len(s), 0);
    step(r, s, &r->lines[0], 100);
    other.n_ids = 100;
    CHECK_OK(qn_cache_keep(r->c, &other, s, &err), err);
    qn_seq_free(s);
    flush(r);
    restart(r);
    other.n_ids = N;
    CHECK_OK(qn_cache_seq(r->c, &other, &s, NULL, &err), err);
    assert_int_equal(qn_seq_len(s), 100);
    qn_seq_free(s);
    close_cache(r);
    qn_engine_free(r->e);
    snprintf(r->model, sizeof r->model, "%s/tiny/%s", GOLDEN_DIR, models[1]);
    open_engine(r);
    open_cache(r, 0);
    struct qn_line line = {NULL, r->lines[0].ids, N};
    CHECK_OK(qn_cache_seq(r->c, &line, &s, NULL, &err), err);
    assert_int_equal(qn_seq_len(s), 0);
    qn_seq_free(s);
    assert_true(disk(r).records > 0 && disk(r).tokens == 0);
    free_rig(r);
}

int main(void)
{
    struct CMUnitTest tests[MODELS + 1];
    for (int i = 0; i < MODELS; i++)
        tests[i] =
            (struct CMUnitTest){models[i], test_model, NULL, NULL, (void *)(uintptr_t)models[i]};
    tests[MODELS] = (struct CMUnitTest){"apart", test_apart, NULL, NULL, NULL};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
