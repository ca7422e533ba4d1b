/*
 * test_saved.c - conversations saved and restored under real (tiny) models of every kind of memory
 * and format of it: what comes back is as much as memory had, with the bits of one plain pass
 * behind it, or nothing at all.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "base/fault.h"
#include "base/file.h"
#include "cache/cache_file.h"
#include "store/convfile.h"

enum { PROMPT = 200, N = 230, FORK = 130, TAIL = 20, EVERY = 128 };

/* A model, and how its keys and values are kept. */
struct kind {
    const char *model, *kv;
};
static const struct kind kinds[] = {
    {"qwen3_next-q4", NULL},         {"gemma3_text-q4", NULL}, {"llama-tied-llama3-q4", NULL},
    {"llama-tied-llama3-q4", "8"},   {"gemma3_text-q4", "4"},  {"gpt_oss-mxfp4-experts", NULL},
    {"deepseek_v3-q4", NULL},        {"qwen3_next-q4", "8"},   {"gemma4-ple-q4", NULL},
    {"glm_moe_dsa-shared-q4", NULL},
};
/* The arithmetic is slow under sanitizers: the first has pages and states, the second windows. */
enum { KINDS = FEWER ? 2 : sizeof kinds / sizeof *kinds };

struct rig {
    char *dir, model[1024];
    struct qn_engine *e;
    struct qn_cache *c;
    int32_t v, reach;
    const char *ns; /* whose lines are gone along; NULL as in files */
    int32_t ids[N];
    float *truth; /* [N, v] of a plain pass */
};

static void open_cache(struct rig *r, int64_t bytes)
{
    struct qn_err err = {0};
    struct qn_cache_params p = {.bytes = bytes, .interval = EVERY};
    CHECK_OK(qn_cache_create(r->e, &p, &r->c, &err), err);
    CHECK_OK(pcache_files_open(r->c, r->dir, &err), err);
    r->reach = qn_cache_reach(r->c);
}

/* Memory as after a restart. */
static void empty_cache(struct rig *r, int64_t bytes)
{
    qn_cache_free(r->c);
    open_cache(r, bytes ? bytes : (int64_t)1 << 30);
}

static void open_engine(struct rig *r, const char *kv, int32_t n_ctx)
{
    struct qn_err err = {0};
    struct qn_engine_params p = {
        .model_dir = r->model, .n_thread = 2, .n_ctx = n_ctx, .kv_quant = kv, .weights_only = true};
    CHECK_OK(qn_engine_open(&p, &r->e, &err), err);
    r->v = qn_engine_info(r->e)->n_vocab;
}

static void make_truth(struct rig *r)
{
    struct qn_err err;
    struct qn_seq *s;
    uint32_t seed = 5;
    for (int32_t i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        r->ids[i] = (int32_t)((uint64_t)(seed >> 4) * (uint64_t)r->v >> 28);
    }
    r->truth = malloc((size_t)N * (size_t)r->v * sizeof *r->truth);
    CHECK_OK(qn_seq_create(r->e, &s, &err), err);
    for (int32_t at = 0, n; at < N; at += n) {
        n = N - at < 115 ? N - at : 115;
        struct qn_step_item it = {s, r->ids + at, n, n, r->truth + (size_t)at * (size_t)r->v};
        CHECK_OK(qn_engine_step(r->e, &it, 1, &err), err);
    }
    qn_seq_free(s);
}

static void step(struct rig *r, struct qn_seq *s, int32_t n)
{
    struct qn_err err;
    int32_t at = qn_seq_len(s);
    float *got = malloc((size_t)n * (size_t)r->v * sizeof *got);
    struct qn_step_item it = {s, r->ids + at, n, n, got};
    CHECK_OK(qn_engine_step(r->e, &it, 1, &err), err);
    if (memcmp(got, r->truth + (size_t)at * (size_t)r->v, (size_t)n * (size_t)r->v * 4) != 0)
        fail_msg("%s: logits behind token %d differ", r->model, at);
    free(got);
}

/* Goes along the line to token n, keeping where the scheduler would. */
static void go(struct rig *r, int32_t n)
{
    struct qn_err err;
    struct qn_seq *s;
    struct qn_line line = {r->ns, r->ids, n};
    CHECK_OK(qn_cache_seq(r->c, &line, &s, NULL, &err), err);
    while (qn_seq_len(s) < n) {
        int32_t at = qn_seq_len(s), to = (at / EVERY + 1) * EVERY;
        to = r->reach == INT32_MAX ? at + 70 : to;
        to = at < FORK && to > FORK ? FORK : to;
        to = at < n - 1 && to > n - 1 ? n - 1 : to;
        step(r, s, (to < n ? to : n) - at);
        struct qn_line kept = {r->ns, r->ids, qn_seq_len(s)};
        CHECK_OK(qn_cache_keep(r->c, &kept, s, &err), err);
    }
    qn_seq_free(s);
}

/* What can be reused of the first n tokens; and it is right. */
static int32_t reuse(struct rig *r, int32_t n)
{
    struct qn_err err;
    struct qn_seq *s;
    struct qn_line line = {NULL, r->ids, n};
    CHECK_OK(qn_cache_seq(r->c, &line, &s, NULL, &err), err);
    int32_t had = qn_seq_len(s), more = N - had < TAIL ? N - had : TAIL;
    step(r, s, more);
    qn_seq_free(s);
    return had;
}

static struct qn_cache_stats stats(const struct rig *r)
{
    struct qn_cache_stats s;
    qn_cache_stats(r->c, &s);
    return s;
}

static int64_t idle_bytes(const struct rig *r)
{
    return stats(r).bytes;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void finish(struct rig *r, struct cache_file_told *told)
{
    for (int i = 0; !pcache_file(r->c, NULL, told); i++) {
        assert_true(i < 100000);
        usleep(200);
    }
}

static struct cache_file_told ask(struct rig *r, const struct cache_file_ask *a)
{
    struct cache_file_told told;
    struct cache_file_ask on = *a;
    on.go_on = true;
    bool done = pcache_file(r->c, a, &told);
    for (int i = 0; !done; i++) {
        assert_true(i < 100000);
        usleep(200);
        done = pcache_file(r->c, &on, &told);
    }
    return told;
}

static struct cache_file_told save(struct rig *r, const char *name, const int32_t *ids, int32_t n)
{
    struct cache_file_ask a = {.line = {NULL, ids, n}};
    snprintf(a.name, sizeof a.name, "%s", name);
    return ask(r, &a);
}

static struct cache_file_told restore(struct rig *r, const char *name, int64_t room)
{
    struct cache_file_ask a = {.restore = true, .room = room};
    snprintf(a.name, sizeof a.name, "%s", name);
    return ask(r, &a);
}

static struct rig *make_rig(const struct kind *k)
{
    struct rig *r = calloc(1, sizeof *r);
    r->dir = check_tmp_dir();
    snprintf(r->model, sizeof r->model, "%s/tiny/%s", GOLDEN_DIR, k->model);
    open_engine(r, k->kv, N + 10);
    make_truth(r);
    open_cache(r, (int64_t)1 << 30);
    go(r, PROMPT);
    go(r, N);
    return r;
}

static void free_rig(struct rig *r)
{
    struct qn_err err = {0};
    qn_cache_free(r->c);
    qn_engine_free(r->e);
    CHECK_OK(dir_remove(r->dir, &err), err);
    free(r->truth);
    free(r->dir);
    free(r);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void check_kind(const struct kind *k)
{
    struct rig *r = make_rig(k);
    int32_t other[N];
    memcpy(other, r->ids, sizeof other);
    other[FORK] = (other[FORK] + 1) % r->v;
    struct cache_file_told all = save(r, "all", r->ids, N), part = save(r, "part", other, N);
    assert_int_equal(all.err.code, QN_OK);
    assert_int_equal(all.tokens, N);
    assert_int_equal(part.err.code, QN_OK);
    assert_int_equal(part.tokens, FORK);
    int64_t held = idle_bytes(r);
    empty_cache(r, 0);
    assert_int_equal(reuse(r, N), 0);
    qn_cache_trim(r->c, 0);
    struct cache_file_told back = restore(r, "all", 0);
    if (back.err.code != QN_OK || back.tokens != N)
        fail_msg("%s, %s: %d tokens came back: %s", k->model, k->kv ? k->kv : "off", back.tokens,
                 back.err.msg);
    assert_string_equal(back.sum, all.sum);
    assert_int_equal(reuse(r, PROMPT), PROMPT - 1); /* a place on the way */
    assert_int_equal(reuse(r, N), N - 1);
    assert_true(idle_bytes(r) <= held);
    back = restore(r, "all", 0); /* over itself */
    assert_int_equal(back.tokens, N);
    assert_true(idle_bytes(r) <= held);
    back = restore(r, "part", 0);
    assert_int_equal(back.tokens, FORK);
    empty_cache(r, 0);
    assert_int_equal(restore(r, "part", 0).tokens, FORK);
    assert_int_equal(reuse(r, N), FORK);
    go(r, N); /* on from there */
    assert_int_equal(reuse(r, N), N - 1);
    free_rig(r);
}

static void every_kind(void **state)
{
    for (size_t i = 0; i < KINDS; i++)
        check_kind(&kinds[i]);
}

/* What goes on meanwhile writes into pages that the file has too. */
static void answers_go_on(void **state)
{
    struct rig *r = make_rig(&kinds[0]);
    struct qn_err err;
    struct qn_seq *s;
    struct cache_file_ask a = {.line = {NULL, r->ids, PROMPT}, .name = "t"};
    struct cache_file_told told;
    empty_cache(r, 0);
    go(r, PROMPT);
    struct qn_line line = {NULL, r->ids, PROMPT + 1};
    CHECK_OK(qn_cache_seq(r->c, &line, &s, NULL, &err), err);
    assert_int_equal(qn_seq_len(s), PROMPT);
    assert_false(pcache_file(r->c, &a, &told));
    step(r, s, 10);
    bool done = pcache_file(r->c, NULL, &told);
    step(r, s, 10);
    qn_cache_trim(r->c, 0); /* and the cache gives all of it up */
    if (!done)
        finish(r, &told);
    assert_int_equal(told.err.code, QN_OK);
    assert_int_equal(told.tokens, PROMPT);
    qn_seq_free(s);
    empty_cache(r, 0);
    a.restore = true;
    assert_false(pcache_file(r->c, &a, &told));
    go(r, FORK); /* the line's beginning comes in from elsewhere */
    finish(r, &told);
    assert_int_equal(told.tokens, PROMPT);
    assert_int_equal(reuse(r, N), PROMPT);
    free_rig(r);
}

static void refusals(void **state)
{
    struct rig *r = make_rig(&kinds[0]);
    struct cache_file_ask a = {.restore = true, .name = "t"};
    struct cache_file_told t;
    int32_t strange[2] = {r->ids[0] ? 0 : 1, 0};
    t = save(r, "t", strange, 2);
    assert_int_equal(t.err.code, QN_NOT_FOUND);
    assert_non_null(strstr(t.err.msg, "nothing of these 2 tokens"));
    assert_int_equal(restore(r, "t", 0).err.code, QN_NOT_FOUND);
    assert_int_equal(save(r, "../t", r->ids, N).err.code, QN_BAD_INPUT);
    assert_int_equal(save(r, "t", r->ids, N).err.code, QN_OK);
    assert_true(pcache_file(r->c, NULL, &t)); /* nothing is under way */
    assert_int_equal(t.err.code, QN_LOST);
    assert_false(pcache_file(r->c, &a, &t));
    struct cache_file_told second;
    assert_true(pcache_file(r->c, &a, &second)); /* one at a time */
    assert_int_equal(second.err.code, QN_BUSY);
    finish(r, &t);
    assert_int_equal(t.err.code, QN_OK);
    int64_t held = idle_bytes(r);
    empty_cache(r, 0);
    t = restore(r, "t", held / 4);
    assert_int_equal(t.err.code, QN_BUSY);
    empty_cache(r, held / 4);
    t = restore(r, "t", 0);
    assert_int_equal(t.err.code, QN_NO_MEMORY);
    assert_non_null(strstr(t.err.msg, "--prompt-cache"));
    assert_int_equal(idle_bytes(r), 0);
    qn_cache_free(r->c);
    qn_engine_free(r->e);
    open_engine(r, NULL, N - 1);
    open_cache(r, (int64_t)1 << 30);
    t = restore(r, "t", 0);
    assert_int_equal(t.err.code, QN_NO_MEMORY);
    assert_non_null(strstr(t.err.msg, "--ctx"));
    qn_cache_free(r->c);
    qn_engine_free(r->e);
    open_engine(r, "8", N + 10);
    open_cache(r, (int64_t)1 << 30);
    t = restore(r, "t", 0);
    assert_int_equal(t.err.code, QN_UNSUPPORTED);
    assert_non_null(strstr(t.err.msg, "another model"));
    free_rig(r);
}

/* Whatever byte of the file is another one: nothing comes in. */
static void damage(void **state)
{
    struct rig *r = make_rig(&kinds[1]);
    struct buf path = BUF_INIT;
    struct cache_file_told t = save(r, "t", r->ids, N);
    int64_t bytes = t.bytes;
    assert_int_equal(t.err.code, QN_OK);
    conv_path(&path, r->dir, "t");
    int fd = open(buf_z(&path), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    empty_cache(r, 0);
    for (int64_t at = 1; at < bytes; at += bytes / 61) {
        uint8_t b;
        assert_int_equal(pread(fd, &b, 1, at), 1);
        b ^= 0x10;
        assert_int_equal(pwrite(fd, &b, 1, at), 1);
        t = restore(r, "t", 0);
        if (t.err.code != QN_BAD_INPUT && t.err.code != QN_UNSUPPORTED)
            fail_msg("byte %lld: status %d", (long long)at, t.err.code);
        assert_int_equal(idle_bytes(r), 0);
        b ^= 0x10;
        assert_int_equal(pwrite(fd, &b, 1, at), 1);
    }
    assert_int_equal(reuse(r, N), 0);
    assert_int_equal(restore(r, "t", 0).tokens, N);
    assert_int_equal(ftruncate(fd, bytes / 2), 0);
    empty_cache(r, 0);
    assert_int_equal(restore(r, "t", 0).err.code, QN_BAD_INPUT);
    close(fd);
    buf_free(&path);
    free_rig(r);
}

/* ---- what is refused costs nobody anything --------------------------------------------------- */

enum { OTHERS = 3 };
static const char *const others[OTHERS] = {"a", "b", "c"};

/* What the cache has of the others' lines; asking changes nothing. */
static void look_at_others(struct rig *r, int32_t have[OTHERS])
{
    struct qn_err err;
    for (int i = 0; i < OTHERS; i++) {
        struct qn_seq *s;
        struct qn_line line = {others[i], r->ids, N};
        CHECK_OK(qn_cache_seq(r->c, &line, &s, NULL, &err), err);
        have[i] = qn_seq_len(s);
        qn_seq_free(s);
    }
}

/* Tokens, and ends to go on from, that gave way. */
static int64_t given_up(const struct rig *r)
{
    struct qn_cache_stats s = stats(r);
    return s.evicted_tokens + s.thinned;
}

static void fill_others(struct rig *r, int64_t limit)
{
    empty_cache(r, limit);
    for (int i = 0; i < OTHERS; i++) {
        r->ns = others[i];
        go(r, N);
    }
    r->ns = NULL;
}

static void check_refused(struct rig *r, const char *what, const int32_t had[OTHERS])
{
    int32_t have[OTHERS];
    int64_t gone = given_up(r);
    struct cache_file_told t = restore(r, "t", 0);
    if (t.err.code != QN_BAD_INPUT && t.err.code != QN_UNSUPPORTED)
        fail_msg("%s: status %d: %s", what, t.err.code, t.err.msg);
    if (given_up(r) != gone)
        fail_msg("%s: others gave way to a file that was refused", what);
    look_at_others(r, have);
    assert_memory_equal(have, had, sizeof have);
}

/* A cache full of other lines keeps them when a file is damaged, wherever; the whole one then makes
 * them give way, and only once: what is there is not read in again. */
static void others_stay(const struct kind *k)
{
    struct rig *r = make_rig(k);
    struct buf path = BUF_INIT;
    int32_t had[OTHERS], have[OTHERS];
    int64_t bytes = save(r, "t", r->ids, N).bytes;
    fill_others(r, 0);
    fill_others(r, idle_bytes(r) * 33 / 32); /* full */
    look_at_others(r, had);
    assert_int_equal(had[0], N - 1);
    conv_path(&path, r->dir, "t");
    int fd = open(buf_z(&path), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    const int64_t places[] = {1, 100, 5000, bytes / 2, bytes - 5000, bytes - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char what[40];
        uint8_t b;
        assert_int_equal(pread(fd, &b, 1, places[i]), 1);
        b ^= 1;
        assert_int_equal(pwrite(fd, &b, 1, places[i]), 1);
        snprintf(what, sizeof what, "byte %lld", (long long)places[i]);
        check_refused(r, what, had);
        b ^= 1;
        assert_int_equal(pwrite(fd, &b, 1, places[i]), 1);
    }
    struct cache_file_told t = restore(r, "t", 0);
    assert_int_equal(t.tokens, N);
    look_at_others(r, have);
    int64_t gone = given_up(r);
    assert_true(gone > 0);
    t = restore(r, "t", 0);
    assert_int_equal(t.err.code, QN_OK);
    assert_int_equal(t.tokens, N);
    assert_int_equal(given_up(r), gone);
    assert_int_equal(ftruncate(fd, bytes - 1), 0);
    check_refused(r, "a file cut", have);
    close(fd);
    buf_free(&path);
    free_rig(r);
}

static void refusals_cost_nothing(void **state)
{
    others_stay(&kinds[0]);
    if (KINDS > 2)
        others_stay(&kinds[2]);
}

/* Each refusal of the system ends it, loses nothing, and the next one goes well. */
static void faults(void **state)
{
    static const char *const points[] = {"cache.alloc", "conv.read", "conv.write.full"};
    struct rig *r = make_rig(&kinds[1]);
    assert_int_equal(save(r, "t", r->ids, N).err.code, QN_OK);
    for (int way = 0; way < 2; way++)
        for (size_t i = 0; i < sizeof points / sizeof *points; i++)
            for (int64_t nth = 1; nth < 100; nth += nth < 12 ? 1 : 7) {
                int64_t before = idle_bytes(r);
                fault_arm(points[i], nth);
                struct cache_file_told t = way ? restore(r, "t", 0) : save(r, "t", r->ids, N);
                bool hit = fault_disarm() >= nth;
                if (!hit) {
                    assert_int_equal(t.err.code, QN_OK);
                    assert_int_equal(t.tokens, N);
                    break;
                }
                if (t.err.code != QN_OK)
                    assert_true(t.err.msg[0]);
                assert_true(idle_bytes(r) <= before);
            }
    assert_int_equal(restore(r, "t", 0).tokens, N);
    assert_int_equal(reuse(r, N), N - 1);
    free_rig(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind),
        cmocka_unit_test(answers_go_on),
        cmocka_unit_test(refusals),
        cmocka_unit_test(damage),
        cmocka_unit_test(refusals_cost_nothing),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
