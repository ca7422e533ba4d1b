/*
 * test_memory.c - sequences that share, drop and take back memory, through quern.h. For families
 * with windows, latents, an index and a recurrent state: whatever way a sequence came to its tokens
 * (chunks, forks, cuts, checkpoints, neighbours), the logits have the bits of one plain pass. Then
 * the amounts: 20,000 tokens of a windowed model hold no more than 1,000 do.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "base/file.h"
#include "fake_model.h"
#include "quern.h"

enum { N = 420, SEQS = 4, MARKS = 3, ROWS = 60 };

struct rig {
    struct qn_engine *e;
    int32_t v;
    float *truth;   /* [N, v] */
    int32_t ids[N]; /* the one line of tokens that all sequences are on */
    bool recurrent;
    struct qn_seq *seq[SEQS];
    struct qn_checkpoint *mark[MARKS];
    int counter[4];
};

static uint32_t seed;

static int32_t rnd(int32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(seed >> 4) * (uint64_t)n >> 28);
}

static void step(struct rig *r, struct qn_step_item *items, int n)
{
    struct qn_err err;
    CHECK_OK(qn_engine_step(r->e, items, n, &err), err);
}

static void make_truth(struct rig *r)
{
    struct qn_seq *s;
    struct qn_err err;
    r->truth = malloc((size_t)N * (size_t)r->v * sizeof *r->truth);
    CHECK_OK(qn_seq_create(r->e, &s, &err), err);
    for (int32_t at = 0; at < N; at += 210) {
        struct qn_step_item it = {s, r->ids + at, 210, 210, r->truth + (size_t)at * (size_t)r->v};
        step(r, &it, 1);
    }
    r->recurrent = !qn_seq_can_truncate(s, N - 1);
    qn_seq_free(s);
}

static struct rig *make_rig(const char *name)
{
    struct rig *r = calloc(1, sizeof *r);
    char dir[1024];
    struct qn_err err;
    snprintf(dir, sizeof dir, "%s/tiny/%s", GOLDEN_DIR, name);
    struct qn_engine_params p = {.model_dir = dir, .n_thread = 2, .n_ctx = N, .weights_only = true};
    CHECK_OK(qn_engine_open(&p, &r->e, &err), err);
    r->v = qn_engine_info(r->e)->n_vocab;
    seed = 77;
    for (int32_t i = 0; i < N; i++)
        r->ids[i] = rnd(r->v);
    make_truth(r);
    for (int i = 0; i < SEQS; i++)
        CHECK_OK(qn_seq_create(r->e, &r->seq[i], &err), err);
    return r;
}

static void free_rig(struct rig *r)
{
    for (int i = 0; i < SEQS; i++)
        qn_seq_free(r->seq[i]);
    for (int i = 0; i < MARKS; i++)
        qn_checkpoint_free(r->mark[i]);
    assert_int_equal(qn_kv_bytes_used(r->e), 0);
    qn_engine_free(r->e);
    free(r->truth);
    free(r);
}

/* ---- operations: every sequence stays on the line -------------------------------------------- */

/* Some sequences go on by some tokens, in one step. */
static void go_on(struct rig *r)
{
    static float out[SEQS][ROWS * 512];
    struct qn_step_item items[SEQS];
    int n = 0;
    assert_true(r->v <= 512);
    for (int i = 0; i < SEQS; i++) {
        int32_t len = qn_seq_len(r->seq[i]), k = rnd(3) ? 1 + rnd(rnd(2) ? 3 : ROWS) : 0;
        k = k > N - len ? N - len : k;
        if (k)
            items[n++] = (struct qn_step_item){r->seq[i], r->ids + len, k, k, out[i]};
    }
    if (!n)
        return;
    step(r, items, n);
    for (int i = 0; i < n; i++) {
        int32_t at = qn_seq_len(items[i].seq) - items[i].n_ids;
        if (memcmp(items[i].logits, r->truth + (size_t)at * (size_t)r->v,
                   (size_t)items[i].n_ids * (size_t)r->v * sizeof(float)) != 0)
            fail_msg("%s: tokens %d to %d have other logits", qn_engine_info(r->e)->name, at,
                     at + items[i].n_ids - 1);
    }
}

/* A few tokens off the line, and back: what speculation does. */
static void stray(struct rig *r, struct qn_seq *s)
{
    int32_t len = qn_seq_len(s), k = 1 + rnd(QN_ROLLBACK), wrong[QN_ROLLBACK];
    struct qn_checkpoint *back = NULL;
    struct qn_err err;
    if (k > N - len)
        return;
    for (int32_t i = 0; i < k; i++)
        wrong[i] = rnd(r->v);
    bool by_mark = r->recurrent || rnd(2);
    if (by_mark)
        CHECK_OK(qn_checkpoint_create(s, &back, &err), err);
    for (int32_t i = 0; i < k; i += 4) {
        struct qn_step_item it = {s, wrong + i, k - i < 4 ? k - i : 4, 0, NULL};
        step(r, &it, 1);
    }
    if (by_mark)
        qn_seq_rewind(s, back);
    else
        CHECK_OK(qn_seq_truncate(s, len, &err), err);
    qn_checkpoint_free(back);
    assert_int_equal(qn_seq_len(s), len);
    r->counter[0]++;
}

static void fork_one(struct rig *r)
{
    int from = rnd(SEQS), to = rnd(SEQS);
    int32_t len = qn_seq_len(r->seq[from]), n = rnd(2) ? len : len - rnd(len < 40 ? len + 1 : 40);
    struct qn_seq *s;
    struct qn_err err;
    if (from == to || !qn_seq_can_truncate(r->seq[from], n))
        return;
    if (r->recurrent && n > 0 && n < len) { /* a cut into the last step, but no fork */
        CHECK_FAILS(qn_seq_fork(r->seq[from], n, &s, &err), QN_UNSUPPORTED, err, "fork at the end");
        return;
    }
    CHECK_OK(qn_seq_fork(r->seq[from], n, &s, &err), err);
    qn_seq_free(r->seq[to]);
    r->seq[to] = s;
    assert_int_equal(qn_seq_len(s), n);
    r->counter[1] += n > 0;
}

static void mark_one(struct rig *r)
{
    int i = rnd(MARKS);
    struct qn_err err;
    qn_checkpoint_free(r->mark[i]);
    r->mark[i] = NULL;
    CHECK_OK(qn_checkpoint_create(r->seq[rnd(SEQS)], &r->mark[i], &err), err);
}

static void from_mark(struct rig *r)
{
    struct qn_checkpoint *c = r->mark[rnd(MARKS)];
    struct qn_err err;
    int i = rnd(SEQS);
    if (!c)
        return;
    if (rnd(2)) {
        qn_seq_rewind(r->seq[i], c);
    } else {
        qn_seq_free(r->seq[i]);
        CHECK_OK(qn_seq_from(c, &r->seq[i], &err), err);
    }
    assert_int_equal(qn_seq_len(r->seq[i]), qn_checkpoint_len(c));
    r->counter[2] += qn_checkpoint_len(c) > 0;
}

static void cut_one(struct rig *r)
{
    struct qn_seq *s = r->seq[rnd(SEQS)];
    int32_t len = qn_seq_len(s), n = len > 380 && rnd(2) ? 0 : len - rnd(len < 30 ? len + 1 : 30);
    struct qn_err err;
    if (qn_seq_can_truncate(s, n))
        CHECK_OK(qn_seq_truncate(s, n, &err), err);
    else
        CHECK_FAILS(qn_seq_truncate(s, n, &err), QN_UNSUPPORTED, err, "use a checkpoint");
    r->counter[3]++;
}

static void wander(const char *name)
{
    struct rig *r = make_rig(name);
    for (int op = 0; op < 170; op++)
        switch (rnd(12)) {
        case 0:
            fork_one(r);
            break;
        case 1:
            mark_one(r);
            break;
        case 2:
            from_mark(r);
            break;
        case 3:
            cut_one(r);
            break;
        case 4:
        case 5:
            stray(r, r->seq[rnd(SEQS)]);
            break;
        default:
            go_on(r);
            break;
        }
    for (int i = 0; i < 4; i++)
        assert_true(r->counter[i] > 0);
    free_rig(r);
}

/* Under a sanitizer one family of each kind of cache: windows, state, latents with an index, layers
 * that share. */
enum { FAMILIES = FEWER ? 4 : 9 };

static void test_same_bits(void **state)
{
    static const char *const names[] = {
        "gemma3_text-q4", "qwen3_5-moe-q4",        "glm_moe_dsa-shared-q4",
        "gemma4-ple-q4",  "gpt_oss-mxfp4-experts", "llama-swa-q4",
        "llama-mixed",    "qwen3_next-q4",         "gemma4-experts-q4"};
    for (size_t i = 0; i < FAMILIES; i++)
        wander(names[i]);
}

/* ---- amounts --------------------------------------------------------------------------------- */

static int64_t resident_bytes(void)
{
    long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lld %lld", &size, &resident), 2);
    fclose(f);
    return resident * sysconf(_SC_PAGESIZE);
}

static char *windowed_model(void)
{
    static char dir[] = "/tmp/quern-memory-XXXXXX";
    struct fake f;
    assert_non_null(mkdtemp(dir));
    fake_init(&f);
    fake_set(&f, "max_position_embeddings", "20480");
    fake_set(&f, "sliding_window", "64");
    fake_set(&f, "layer_types", "[\"sliding_attention\"]");
    fake_write(&f, dir);
    fake_free(&f);
    return dir;
}

static void test_long_conversation(void **state)
{
    char *dir = windowed_model(), path[256];
    struct qn_engine_params p = {.model_dir = dir, .n_thread = 1, .weights_only = true};
    struct qn_engine *e;
    struct qn_seq *s;
    struct qn_err err;
    int64_t most = 0, resident = 0;
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    for (int32_t i = 0; i < 20000; i++) {
        int32_t id = i % 101;
        float logits[FAKE_VOCAB];
        struct qn_step_item it = {s, &id, 1, 1, logits};
        CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
        int64_t used = qn_kv_bytes_used(e);
        if (i < 1000)
            most = used > most ? used : most;
        else
            assert_true(used <= most);
        if (i == 1000)
            resident = resident_bytes();
    }
    assert_int_equal(qn_seq_len(s), 20000);
    assert_int_equal(qn_seq_bytes(e, 20000), qn_seq_bytes(e, 1000));
    assert_true(most <= qn_seq_bytes(e, 1000) && most < qn_seq_bytes(e, 1000) * 2 / 3);
    assert_true(qn_kv_bytes_free(e) <= most);
    assert_true(resident_bytes() - resident < (2 << 20));
    qn_seq_free(s);
    qn_engine_free(e);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i ? "config.json" : "model.safetensors");
        unlink(path);
    }
    rmdir(dir);
}

/* The public face of a budget: a second conversation has to wait, a too long one never fits. */
static void test_budget(void **state)
{
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/tiny/llama-mixed", GOLDEN_DIR);
    struct qn_engine_params p = {.model_dir = dir, .n_thread = 1, .n_ctx = N, .weights_only = true};
    struct qn_engine *e;
    struct qn_seq *a, *b;
    struct qn_err err;
    int32_t ids[200] = {0};
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    p.kv_budget_bytes = qn_seq_bytes(e, 200);
    assert_int_equal(qn_transient_bytes(e, 7) - qn_transient_bytes(e, 0), 7 * 512 * 4);
    assert_true(qn_transient_bytes(e, 0) > 0);
    qn_engine_free(e);
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    CHECK_OK(qn_seq_create(e, &a, &err), err);
    CHECK_OK(qn_seq_create(e, &b, &err), err);
    struct qn_step_item one = {a, ids, 150, 0, NULL}, two = {b, ids, 100, 0, NULL};
    CHECK_OK(qn_engine_step(e, &one, 1, &err), err);
    CHECK_FAILS(qn_engine_step(e, &two, 1, &err), QN_BUSY, err, "in use");
    assert_int_equal(qn_seq_len(b), 0);
    CHECK_FAILS(qn_engine_step(e, &one, 1, &err), QN_NO_MEMORY, err, "budget");
    assert_int_equal(qn_seq_len(a), 150);
    qn_seq_free(a);
    CHECK_OK(qn_engine_step(e, &two, 1, &err), err);
    assert_int_equal(qn_kv_bytes_used(e), qn_seq_bytes(e, 100));
    assert_true(qn_kv_bytes_used(e) + qn_kv_bytes_free(e) <= p.kv_budget_bytes);
    qn_seq_free(b);
    qn_engine_free(e);
    p.kv_budget_bytes = -1;
    CHECK_FAILS(qn_engine_open(&p, &e, &err), QN_BAD_INPUT, err, "KV budget of -1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_long_conversation),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
