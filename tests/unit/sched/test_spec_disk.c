/*
 * test_spec_disk.c - what guesses comes back from the disk with its model's prefix: after a
 * restart, or with memory given up, a draft head guesses the tokens, with the bits of probability,
 * that it guesses where all was computed, and answers have the cold ones' counts. Damage to its
 * records costs guesses and a warning, never tokens; other heads and other choices of state share
 * nothing.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "guess_rig.h"

enum { BYTES = 64 << 20 };

/* A folder of records, and what is opened on it. */
struct rig {
    struct qn_engine_params p;
    char model[600], drafter[600], *disk;
    bool anywhere;
};

static void open_rig(const struct rig *r)
{
    open_with(&r->p, BYTES, r->disk);
}

static void restart(const struct rig *r)
{
    close_engine();
    open_rig(r);
}

static struct qn_cache_flush flush(void)
{
    struct qn_cache_flush f;
    bool begin = true;
    for (int i = 0; !qn_cache_flush(cache, begin, &f); i++) {
        begin = false;
        assert_true(i < 200000);
        qn_cache_tick(cache, false);
        usleep(1000);
    }
    return f;
}

static void flush_all(void)
{
    struct qn_cache_flush f = flush();
    if (f.durable_nodes != f.nodes || f.durable_tokens != f.tokens || f.error[0])
        fail_msg("%lld of %lld nodes are durable: %s", (long long)f.durable_nodes,
                 (long long)f.nodes, f.error);
}

static struct qn_disk_stats disk(void)
{
    struct qn_cache_stats s;
    qn_cache_stats(cache, &s);
    return s.disk;
}

/* Waits as the scheduler does, so that nothing is read inside of cache_seq. */
static void load(const int32_t *ids, int32_t n)
{
    const struct qn_line line = {"", ids, n};
    for (int i = 0; qn_cache_loading(cache, &line); i++) {
        assert_true(i < 50000);
        qn_cache_tick(cache, true);
        usleep(200);
    }
}

/* ---- a head's rows --------------------------------------------------------------------------- */

static int32_t a[LINE + 1], b[LINE + 1];

/* Both lines, which part at 150, with keeps on the way. */
static void compute(const struct rig *r)
{
    make_line(a, -1, 0);
    make_line(b, 150, 99);
    fill(a, 200, INTERVAL, 1);
    fill(a, 300, INTERVAL, 1);
    fill(b, 260, INTERVAL, 1);
    flush_all();
}

/* What memory had, the disk has: as many tokens of the model and guesses as good. */
static void check_back(const struct rig *r, const char *when, bool waits)
{
    const struct {
        const int32_t *ids;
        int32_t n, least;
    } lines[] = {
        {a, 200, r->anywhere ? 198 : 192}, {a, 310, 300}, {b, 260, r->anywhere ? 258 : 256}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        int64_t rows = disk().restored_draft_tokens;
        if (waits) {
            load(lines[i].ids, lines[i].n);
            rows = disk().restored_draft_tokens;
        }
        warm(when, lines[i].ids, lines[i].n, lines[i].least, false);
        if (waits && disk().restored_draft_tokens != rows)
            fail_msg("%s: line %zu was read in passing", when, i);
    }
    assert_true(disk().restored_draft_tokens >= 299);
    assert_int_equal(disk().damaged, 0);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The names of the folder's own folders, of the head (about: "draft head of") or the model. */
static void folder_of(const struct rig *r, bool head, struct buf *out)
{
    char **subs;
    size_t n;
    struct qn_err err = {0};
    struct buf path = BUF_INIT, text = BUF_INIT;
    buf_clear(out);
    CHECK_OK(dir_list(r->disk, &subs, &n, &err), err);
    for (size_t i = 0; i < n; i++) {
        path_join(&path, r->disk, subs[i]);
        buf_addz(&path, "/about");
        buf_clear(&text);
        if (file_read(buf_z(&path), 4096, &text, &err) == QN_OK &&
            (strstr(buf_z(&text), "draft head of") != NULL) == head)
            path_join(out, r->disk, subs[i]);
    }
    names_free(subs, n);
    buf_free(&path);
    buf_free(&text);
    assert_true(out->n > 0);
}

/* Calls fn for each of the head's records. */
static int each_head_record(const struct rig *r, void (*fn)(const char *path))
{
    char **names;
    size_t n;
    int count = 0;
    struct qn_err err = {0};
    struct buf dir = BUF_INIT, path = BUF_INIT;
    folder_of(r, true, &dir);
    CHECK_OK(dir_list(buf_z(&dir), &names, &n, &err), err);
    for (size_t i = 0; i < n; i++) {
        path_join(&path, buf_z(&dir), names[i]);
        if (str_ends(buf_str(&path), STR_LIT(".kv"))) {
            fn(buf_z(&path));
            count++;
        }
    }
    names_free(names, n);
    buf_free(&dir);
    buf_free(&path);
    return count;
}

static int64_t flip_at; /* from the end; 0 = in the middle of the pages */

static void flip(const char *path)
{
    struct stat sb;
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &sb) == 0);
    off_t at = flip_at ? sb.st_size - flip_at : 4096 + (sb.st_size - 4096) / 2;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 8;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void cut(const char *path)
{
    assert_int_equal(truncate(path, 5000), 0);
}

static void leave(const char *path)
{
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* The model's tokens are there as before, whatever its head lacks; and the step behind them is
 * sound, with guesses or without. */
static void check_model_stays(const struct rig *r, const int32_t *ids, int32_t n, int32_t least)
{
    struct qn_err err;
    int32_t have;
    void *seq = begin(ids, n, &have);
    if (have < least)
        fail_msg("%d tokens of the model; expected %d", have, least);
    feed(seq, ids, n, 1);
    struct guesses g = {0};
    struct lm_mtp_item m = {
        .seq = seq, .ids = ids, .n_ids = n + 1, .n_draft = GUESSES, .drafts = g.ids, .probs = g.p};
    CHECK_OK(lm.ops->mtp_step(lm.self, &m, 1, &err), err);
    keep(seq, ids);
    lm.ops->seq_free(lm.self, seq);
}

/* A bit of a page, a bit of a state, a file cut: found when it is read, or at the start. */
static void check_damage(const struct rig *r)
{
    static const int64_t places[] = {0, 3};
    for (int i = 0; i < 2; i++) {
        restart(r);
        flip_at = places[i];
        assert_true(each_head_record(r, flip) >= 2);
        check_model_stays(r, a, 310, 300);
        assert_true(disk().damaged > 0);
        qn_cache_trim(cache, 0);
        check_model_stays(r, b, 270, 260);
        /* it heals: the lines computed from the start are written again */
        close_engine();
        struct qn_err err = {0};
        CHECK_OK(dir_remove(r->disk, &err), err);
        open_rig(r);
        compute(r);
        restart(r);
        check_back(r, "after damage and repair", false);
    }
    close_engine();
    each_head_record(r, cut);
    open_rig(r);
    assert_true(disk().damaged > 0);
    check_model_stays(r, a, 310, 300);
    assert_int_equal(disk().restored_draft_tokens, 0);
}

/* Without a head the model's records serve all the same, and the head's stay for it. */
static void check_without(const struct rig *r)
{
    struct rig plain = *r;
    struct qn_err err;
    struct qn_seq *s;
    int records = each_head_record(r, leave);
    plain.p.mtp = QN_MTP_OFF;
    plain.p.draft_kind = QN_DRAFT_NONE;
    close_engine();
    open_rig(&plain);
    const struct qn_line line = {"", a, 310};
    CHECK_OK(qn_cache_seq(cache, &line, &s, NULL, &err), err);
    assert_int_equal(qn_seq_len(s), 300);
    qn_seq_free(s);
    assert_int_equal(disk().restored_draft_tokens, 0);
    close_engine();
    assert_int_equal(each_head_record(r, leave), records);
    open_rig(r);
    check_back(r, "after a server without a head", false);
}

/* A head that takes another state of the model is another head. */
static void check_other_state(const struct rig *r)
{
    struct rig other = *r;
    if (r->p.draft_kind != QN_DRAFT_NONE)
        return;
    other.p.mtp = QN_MTP_BEHIND_NORM;
    close_engine();
    open_rig(&other);
    check_model_stays(r, a, 310, 300);
    assert_int_equal(disk().restored_draft_tokens, 0);
    assert_int_equal(disk().damaged, 0);
    close_engine();
    open_rig(r);
}

/* Memory fails here and there while rows come back: less, never a wrong answer. */
static void check_faults(const struct rig *r)
{
    static const char *const points[] = {"cache.alloc", "kv.alloc", "mtp.alloc"};
    for (int p = 0; p < 3; p++)
        for (int k = 1; k < 14; k += 3) {
            const struct qn_line line = {"", a, 260};
            struct lm_reuse reuse;
            struct qn_err err;
            void *seq;
            qn_cache_trim(cache, 0);
            fault_arm(points[p], k);
            enum qn_status st = lm.ops->cache_seq(lm.self, &line, &seq, &reuse, &err);
            fault_disarm();
            if (st != QN_OK)
                continue;
            feed(seq, a, 260, 0);
            lm.ops->seq_free(lm.self, seq);
        }
}

static void check_head(struct rig *r, bool all)
{
    r->disk = check_tmp_dir();
    r->p.model_dir = r->model;
    open_rig(r);
    compute(r);
    restart(r);
    check_back(r, "after a restart", false);
    qn_cache_trim(cache, 0);
    check_back(r, "after memory was given up", false);
    flush_all();
    assert_int_equal(disk().written, 0); /* nothing was new */
    restart(r);
    check_back(r, "read beside", true);
    check_without(r);
    check_other_state(r);
    if (all) {
        check_faults(r);
        check_damage(r);
    }
    close_engine();
    struct qn_err err = {0};
    CHECK_OK(dir_remove(r->disk, &err), err);
    free(r->disk);
}

static void test_recurrent(void **state)
{
    struct rig r = {.p.mtp = QN_MTP_DEFAULT};
    if (!model_dir("goldens/tiny/qwen3_5-q4", r.model))
        skip();
    check_head(&r, true);
}

static void test_latent(void **state)
{
    struct rig r = {.p.mtp = QN_MTP_DEFAULT, .anywhere = true};
    if (!model_dir("goldens/tiny/glm_moe_dsa-shared-q4", r.model))
        skip();
    check_head(&r, !FEWER);
}

static void test_block_drafter(void **state)
{
    struct rig r = {.p.draft_kind = QN_DRAFT_DSPARK};
    snprintf(r.model, sizeof r.model, "%s/qwen3_next-q4", TINY_DIR);
    snprintf(r.drafter, sizeof r.drafter, "%s/../draft/dspark-q4", TINY_DIR);
    r.p.draft_dir = r.drafter;
    check_head(&r, false);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void same_answer(const struct answer *got, const struct answer *want)
{
    assert_int_equal(got->n, want->n);
    assert_memory_equal(got->ids, want->ids, sizeof got->ids);
    assert_memory_equal(&got->spec, &want->spec, sizeof got->spec);
}

/* A trained head: after a restart answers have the cold ones' text and counts of guesses. */
static void test_answers(void **state)
{
    const struct spec_params spec = {.kind = SPEC_MTP, .n_draft = 4, .fixed = true};
    struct rig r = {.p.mtp = QN_MTP_DEFAULT};
    static int32_t ids[LINE + 1];
    struct answer cold_one, first, got;
    struct tok *tok;
    if (FEWER) {
        print_message("skipped under a sanitizer: a trained model\n");
        skip();
    }
    if (!model_dir("models/tiny-qwen3_5-mtp", r.model))
        skip();
    r.disk = check_tmp_dir();
    r.p.model_dir = r.model;
    open_rig(&r);
    make_line(ids, -1, 0);
    struct sched *s = make_sched(&spec, &tok);
    ask(s, ids, 190, true, &cold_one);
    ask(s, ids, 190, false, &first);
    same_answer(&first, &cold_one);
    sched_free(s);
    tok_free(tok);
    flush_all();
    restart(&r);
    s = make_sched(&spec, &tok);
    ask(s, ids, 190, false, &got);
    same_answer(&got, &cold_one);
    assert_true(got.cached >= 128 && got.spec.accepted > 10);
    assert_true(disk().restored_draft_tokens >= got.cached);
    memcpy(ids + 190, cold_one.ids, (size_t)cold_one.n * sizeof *ids); /* and the next turn */
    ask(s, ids, 260, false, &got);
    assert_true(got.cached >= 190);
    ask(s, ids, 260, true, &cold_one);
    same_answer(&got, &cold_one);
    sched_free(s);
    tok_free(tok);
    flush_all(); /* what is being written holds memory */
    close_engine();
    struct qn_err err = {0};
    CHECK_OK(dir_remove(r.disk, &err), err);
    free(r.disk);
}

/* ---- a second model ----------------------------------------------------------------------- */

/* Both models, each with a cache and a folder; one life of a server. */
static void one_life(const char *draft, const struct rig *r, const char *draft_disk,
                     const int32_t *ids, struct answer *warm_one)
{
    char dir[600];
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = 1, .n_ctx = 700, .weights_only = true};
    const struct qn_cache_params cp = {.bytes = BYTES, .interval = INTERVAL};
    const struct qn_disk_params dp = {.dir = draft_disk};
    struct qn_engine *d;
    struct qn_cache *dc;
    struct qn_cache_flush f;
    struct sched_stats st;
    struct answer cold_one;
    struct tok *tok;
    struct qn_err err;
    snprintf(dir, sizeof dir, "%s/%s", TINY_DIR, draft);
    CHECK_OK(qn_engine_open(&p, &d, &err), err);
    CHECK_OK(qn_cache_create(d, &cp, &dc, &err), err);
    CHECK_OK(qn_cache_disk_open(dc, &dp, &err), err);
    open_rig(r);
    struct lm draft_lm = lm_of_cache(dc);
    const struct spec_params spec = {
        .kind = SPEC_MODEL, .draft = &draft_lm, .n_draft = 4, .fixed = true};
    struct sched *s = make_sched(&spec, &tok);
    ask(s, ids, 190, true, &cold_one);
    ask(s, ids, 190, false, warm_one);
    same_answer(warm_one, &cold_one);
    assert_true(sched_cache_flush(s, 60000, &f));
    assert_true(f.nodes > 0 && f.durable_nodes == f.nodes && !f.error[0]);
    sched_stats(s, &st);
    assert_true(st.cache.disk.restored_draft_tokens >= (warm_one->cached ? 128 : 0));
    sched_free(s);
    tok_free(tok);
    close_engine();
    qn_cache_free(dc);
    assert_int_equal(qn_kv_bytes_used(d), 0);
    qn_engine_free(d);
}

static void check_draft_model(const char *target, const char *draft)
{
    struct rig r = {.disk = check_tmp_dir()};
    static int32_t ids[LINE + 1];
    struct answer first, again;
    struct qn_err err = {0};
    struct buf draft_disk = BUF_INIT;
    path_join(&draft_disk, r.disk, "draft");
    snprintf(r.model, sizeof r.model, "%s/%s", TINY_DIR, target);
    r.p.model_dir = r.model;
    uint32_t x = 5;
    for (int32_t i = 0; i <= LINE; i++)
        ids[i] = (int32_t)((x = x * 1664525u + 1013904223u) >> 8) % 64;
    CHECK_OK(dir_make(r.disk, &err), err);
    one_life(draft, &r, buf_z(&draft_disk), ids, &first);
    assert_int_equal(first.cached, 0);
    one_life(draft, &r, buf_z(&draft_disk), ids, &again);
    assert_true(again.cached >= 128);
    same_answer(&again, &first);
    CHECK_OK(dir_remove(r.disk, &err), err);
    buf_free(&draft_disk);
    free(r.disk);
}

static void test_draft_models(void **state)
{
    check_draft_model("llama-tied-llama3-q4", "llama-tied-llama3-q4");
    check_draft_model("gemma3_text-q4", "qwen3_5-moe-q4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recurrent),     cmocka_unit_test(test_latent),
        cmocka_unit_test(test_block_drafter), cmocka_unit_test(test_answers),
        cmocka_unit_test(test_draft_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
