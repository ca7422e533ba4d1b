/*
 * test_spec_files.c - what guesses goes into a conversation's file with its model's part and comes
 * back with it: a draft head guesses the tokens, with the bits of probability, that it guesses
 * where all was computed. A server without that head, or without room for its rows, has the
 * model's part all the same; files without rows restore where there is a head.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "guess_rig.h"
#include "store/convfile.h"

enum { BYTES = 64 << 20 };

struct rig {
    struct qn_engine_params p;
    char model[600], drafter[600], *dir;
    bool anywhere;
};

static void open_rig(const struct rig *r)
{
    struct qn_err err = {0};
    open_with(&r->p, BYTES, NULL);
    CHECK_OK(pcache_files_open(cache, r->dir, &err), err);
    lm = lm_of_cache(cache);
}

static void restart(const struct rig *r)
{
    close_engine();
    open_rig(r);
}

/* ---- files ----------------------------------------------------------------------------------- */

static struct cache_file_told run(struct cache_file_ask *what, const char *name)
{
    struct cache_file_told told;
    snprintf(what->name, sizeof what->name, "%s", name);
    bool done = lm.ops->cache_file(lm.self, what, &told);
    what->go_on = true;
    for (int i = 0; !done; i++) {
        assert_true(i < 100000);
        usleep(100);
        done = lm.ops->cache_file(lm.self, what, &told);
    }
    return told;
}

static struct cache_file_told save(const char *name, const int32_t *ids, int32_t n)
{
    struct cache_file_ask what = {.line = {"", ids, n}};
    return run(&what, name);
}

static struct cache_file_told restore(const char *name, int64_t room)
{
    struct cache_file_ask what = {.restore = true, .room = room};
    return run(&what, name);
}

static void restored(const char *when, const char *name, int32_t tokens, int32_t draft_tokens)
{
    struct cache_file_told t = restore(name, 0);
    if (t.err.code != QN_OK || t.tokens != tokens || t.draft_tokens != draft_tokens)
        fail_msg("%s: %s: %d tokens and %d of the head came back; expected %d and %d: %s", when,
                 name, t.tokens, t.draft_tokens, tokens, draft_tokens, t.err.msg);
}

static struct conv_info look(const struct rig *r, const char *name)
{
    struct conv_info info;
    struct buf path = BUF_INIT;
    struct qn_err err = {0};
    conv_path(&path, r->dir, name);
    CHECK_OK(conv_verify(buf_z(&path), &info, &err), err);
    buf_free(&path);
    return info;
}

/* A bit of the byte that lies so far in front of the end. */
static void flip(const struct rig *r, const char *name, off_t from_end)
{
    struct buf path = BUF_INIT;
    struct stat sb;
    uint8_t b;
    conv_path(&path, r->dir, name);
    int fd = open(buf_z(&path), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &sb) == 0);
    assert_int_equal(pread(fd, &b, 1, sb.st_size - from_end), 1);
    b ^= 4;
    assert_int_equal(pwrite(fd, &b, 1, sb.st_size - from_end), 1);
    close(fd);
    buf_free(&path);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static int32_t a[LINE + 1], b[LINE + 1];

/* Both lines, which part at 150, with keeps on the way; each in a file. */
static void compute(const struct rig *r)
{
    make_line(a, -1, 0);
    make_line(b, 150, 99);
    fill(a, 200, INTERVAL, 1);
    fill(a, 300, INTERVAL, 1);
    fill(b, 260, INTERVAL, 1);
    struct cache_file_told t = save("a", a, 300);
    assert_int_equal(t.err.code, QN_OK);
    assert_int_equal(t.tokens, 300);
    assert_int_equal(t.draft_tokens, 299);
    t = save("b", b, 260);
    assert_int_equal(t.draft_tokens, 259);
    struct conv_info info = look(r, "a");
    assert_int_equal(info.n_draft_token, 299);
    assert_true(info.n_draft_record > 1 && !record_name_none(&info.draft));
}

static void restore_both(const char *when)
{
    restored(when, "a", 300, 299);
    restored(when, "b", 260, 259);
}

static int looks;

static void check_guesses(const struct rig *r, const char *when)
{
    if (SANITIZED && ++looks % 3 != 1) /* each computes its lines anew */
        return;
    warm(when, a, 200, r->anywhere ? 198 : 192, false);
    warm(when, a, 310, 300, false);
    warm(when, b, 260, r->anywhere ? 258 : 256, false);
}

/* The model's part serves, with guesses or without. */
static void check_model_stays(const int32_t *ids, int32_t n, int32_t least)
{
    struct qn_err err;
    struct lm_reuse reuse;
    const struct qn_line line = {"", ids, n};
    void *seq;
    CHECK_OK(lm.ops->cache_seq(lm.self, &line, &seq, &reuse, &err), err);
    if (reuse.n_have < least)
        fail_msg("%d tokens of the model; expected %d", reuse.n_have, least);
    feed(seq, ids, n, 0);
    lm.ops->seq_free(lm.self, seq);
}

/* The head's records are checked also where they are not used, so that damage is told. */
static void check_damage(const struct rig *r, const char *when)
{
    qn_cache_trim(cache, 0);
    for (off_t at = 3; at < 3000; at += 2500) {
        flip(r, "a", at); /* a tail of the head, a page of it */
        struct cache_file_told t = restore("a", 0);
        if (t.err.code != QN_BAD_INPUT)
            fail_msg("%s: status %d: %s", when, t.err.code, t.err.msg);
        struct qn_cache_stats st;
        qn_cache_stats(cache, &st);
        assert_int_equal(st.bytes, 0);
        flip(r, "a", at);
    }
}

/* Without the head, and what is saved there, which is as files were before heads were in them. */
static void check_without(const struct rig *r)
{
    struct rig plain = *r;
    plain.p.mtp = QN_MTP_OFF;
    plain.p.draft_kind = QN_DRAFT_NONE;
    close_engine();
    open_rig(&plain);
    restored("without the head", "a", 300, 0);
    check_model_stays(a, 310, 300);
    struct cache_file_told t = save("plain", a, 300);
    assert_int_equal(t.draft_tokens, 0);
    assert_int_equal(look(r, "plain").n_draft_record, 0);
    check_damage(r, "without the head");
    close_engine();
    open_rig(r);
    restored("a file without rows", "plain", 300, 0);
    check_model_stays(a, 310, 300);
    restore_both("the rows come in later");
    check_guesses(r, "rows that came in later");
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
    restored("another head", "a", 300, 0);
    check_model_stays(a, 310, 300);
    close_engine();
    open_rig(r);
}

/* Where there is room for the model's part alone, it comes alone. */
static void check_room(const struct rig *r)
{
    struct qn_cache_stats st;
    int alone = 0;
    restored("room", "a", 300, 299);
    qn_cache_stats(cache, &st);
    for (int64_t room = st.bytes;; room -= st.bytes / 50) {
        qn_cache_trim(cache, 0);
        struct cache_file_told t = restore("a", room);
        if (t.err.code == QN_BUSY)
            break;
        assert_int_equal(t.err.code, QN_OK);
        assert_int_equal(t.tokens, 300);
        assert_true(t.draft_tokens == 299 || t.draft_tokens == 0);
        alone += !t.draft_tokens;
        check_model_stays(a, 310, 300);
    }
    assert_true(alone > 0);
}

/* Memory fails here and there: less, or a refusal, never a wrong guess. */
static void check_faults(const struct rig *r)
{
    static const char *const points[] = {"cache.alloc", "conv.read", "conv.write.full"};
    for (size_t p = 0; p < sizeof points / sizeof *points; p++)
        for (int64_t k = 1; k < 60; k += k < 10 ? 1 + 2 * SANITIZED : 9) {
            qn_cache_trim(cache, 0);
            fault_arm(points[p], k);
            struct cache_file_told t = restore("a", 0);
            if (t.err.code == QN_OK)
                save("c", a, 300);
            fault_disarm();
            assert_true(t.err.code == QN_OK ? t.tokens == 300 : t.err.msg[0] != 0);
        }
    restore_both("after faults");
    check_guesses(r, "after faults");
}

static void check_head(struct rig *r, bool all)
{
    r->dir = check_tmp_dir();
    r->p.model_dir = r->model;
    open_rig(r);
    compute(r);
    restart(r);
    restore_both("after a restart");
    check_guesses(r, "after a restart");
    restore_both("over itself");
    check_guesses(r, "over itself");
    qn_cache_trim(cache, 0);
    restore_both("after memory was given up");
    struct cache_file_told t = save("again", a, 300);
    assert_int_equal(t.draft_tokens, 299);
    assert_int_equal(t.bytes, look(r, "a").bytes);
    check_without(r);
    check_damage(r, "with the head");
    check_other_state(r);
    if (!SANITIZED)
        check_room(r);
    if (all)
        check_faults(r);
    close_engine();
    struct qn_err err = {0};
    CHECK_OK(dir_remove(r->dir, &err), err);
    free(r->dir);
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
    if (SANITIZED) {
        print_message("skipped under a sanitizer: slow, and the same code as of other models\n");
        skip();
    }
    if (!model_dir("goldens/tiny/glm_moe_dsa-shared-q4", r.model))
        skip();
    check_head(&r, true);
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

static struct cache_file_told through(struct sched *s, struct cache_file_ask *what)
{
    struct cache_file_told t;
    assert_true(sched_cache_file(s, what, 60000, &t));
    assert_int_equal(t.err.code, QN_OK);
    return t;
}

/* A trained head: behind a restored prompt answers have the cold ones' text and counts. */
static void test_answers(void **state)
{
    const struct spec_params spec = {.kind = SPEC_MTP, .n_draft = 4, .fixed = true};
    struct rig r = {.p.mtp = QN_MTP_DEFAULT};
    static int32_t ids[LINE + 1];
    struct answer cold_one, first, got;
    struct tok *tok;
    struct sched_stats st;
    if (SANITIZED) {
        print_message("skipped under a sanitizer: a trained model\n");
        skip();
    }
    if (!model_dir("models/tiny-qwen3_5-mtp", r.model))
        skip();
    r.dir = check_tmp_dir();
    r.p.model_dir = r.model;
    open_rig(&r);
    make_line(ids, -1, 0);
    struct sched *s = make_sched(&spec, &tok);
    ask(s, ids, 190, true, &cold_one);
    ask(s, ids, 190, false, &first);
    same_answer(&first, &cold_one);
    struct cache_file_ask what = {.name = "t", .line = {"", ids, 190}};
    struct cache_file_told t = through(s, &what);
    assert_true(t.tokens >= 128 && t.draft_tokens == t.tokens - 1);
    sched_free(s);
    tok_free(tok);
    restart(&r);
    s = make_sched(&spec, &tok);
    what = (struct cache_file_ask){.restore = true, .name = "t"};
    assert_int_equal(through(s, &what).draft_tokens, t.draft_tokens);
    ask(s, ids, 190, false, &got);
    same_answer(&got, &cold_one);
    assert_true(got.cached >= 128 && got.spec.accepted > 10);
    sched_stats(s, &st);
    assert_int_equal(st.restores.done, 1);
    assert_int_equal(st.restores.tokens, t.tokens);
    assert_int_equal(st.restores.draft_tokens, t.draft_tokens);
    sched_free(s);
    tok_free(tok);
    close_engine();
    struct qn_err err = {0};
    CHECK_OK(dir_remove(r.dir, &err), err);
    free(r.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_block_drafter),
        cmocka_unit_test(test_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
