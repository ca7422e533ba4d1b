/*
 * test_cache_disk.c - random operations on the tree, KV pages and the disk behind them
 * (pages_world.h): records are written and read by threads of their own while sequences step, are
 * cut, forked and freed; flushes begin and end among all that; memory is given up, idle or not, the
 * program starts anew, writes fail, files are flipped, cut and lost.
 *
 * A second oracle is a list of lines that a flush said are durable: whatever memory has forgotten,
 * and after every restart, they must be there. Where the folder has a bound, or its files are
 * harmed, that list is empty, and what is served must still be right.
 *
 * QUERN_CACHE_OPS sets the number of operations, QUERN_CACHE_SEED another beginning.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "cache/tier_int.h"
#include "pages_world.h"

enum { WORTH = 16, FOLDER_BYTES = 1 << 20, RECORDS = 800, IDLE_US = 1000, WAIT_MS = 120 * 1000 };

enum folder {
    SOUND,   /* what is durable stays */
    BOUNDED, /* small: records age */
    HARMED,  /* files are flipped, cut and lost: a flush cannot know */
    FOLDERS
};

struct disk_world {
    struct world w;
    const struct kind *k;
    char *dir;
    enum folder folder;
    struct tier *tier;
    struct known safe; /* durable */
    bool flushing, failing;
    int64_t n_safe, n_from_disk, n_beside, n_restart, n_damage, n_fail, n_demoted, restores;
};

static const char *const spaces[SPACES] = {NULL, "other"};

/* ---- life ------------------------------------------------------------------------------------ */

static void disk_open(struct disk_world *d)
{
    struct qn_err err = {0};
    memset(&d->w.live, 0, sizeof d->w.live);
    world_open(&d->w, d->k, 0);
    struct tier_params p = {
        .trees = {{.ex = d->w.ex, .tree = d->w.t, .model = {{1}}, .about = STR_LIT("a test\n")}},
        .n_tree = 1,
        .dir = d->dir,
        .max_bytes = d->folder == BOUNDED ? FOLDER_BYTES : 0,
        .idle_us = d->folder == BOUNDED ? 0 : IDLE_US,
    };
    CHECK_OK(tier_open(&p, &d->tier, &err), err);
    world_hook(&d->w);
}

static void disk_close(struct disk_world *d)
{
    struct tier_stats st;
    tier_stats(d->tier, &st);
    d->restores += st.restores;
    d->n_demoted += st.demoted_tokens > 0;
    fault_disarm();
    tier_close(d->tier);
    d->flushing = d->failing = false;
    world_close(&d->w);
}

static bool quiet(const struct disk_world *d)
{
    return !d->tier->n_put && !load_busy(d->tier);
}

/* Until everybody who writes or reads has ended. */
static void settle(struct disk_world *d)
{
    d->w.adopting = true;
    do {
        assert_true(store_wait(d->tier->store, WAIT_MS));
        tier_tick(d->tier, true);
    } while (!quiet(d));
    d->w.adopting = false;
}

/* ---- the disk's oracle ----------------------------------------------------------------------- */

/* Everything in memory is on disk now: what must be in memory must be there from here on. */
static void learn(struct disk_world *d)
{
    const struct known *mem = &d->w.mem;
    for (int i = 0; d->folder == SOUND && i < mem->n && d->safe.n < ENTRIES - 1; i++)
        if (mem->e[i].l.n && (mem->e[i].end || !d->k->ends)) {
            known_add(&d->safe, &mem->e[i].l, mem->e[i].end);
            d->n_safe++;
        }
}

static void flush_on(struct disk_world *d, bool begin)
{
    struct tier_flush f;
    d->flushing = !tier_flush(d->tier, begin, &f);
    if (d->flushing)
        return;
    assert_true(f.durable_nodes <= f.nodes && f.durable_tokens <= f.tokens);
    assert_true(f.durable_nodes == f.nodes || f.error[0]);
    if (f.durable_nodes == f.nodes)
        learn(d);
}

/* A flush alone, to its end: nothing but a fault or a bound can leave something out. */
static void flush_all(struct disk_world *d)
{
    struct tier_flush f;
    settle(d);
    bool alone = !d->flushing;
    for (bool begin = alone; !tier_flush(d->tier, begin, &f); begin = false)
        settle(d);
    d->flushing = false;
    if (!d->failing && d->folder == SOUND && alone)
        assert_int_equal(f.durable_nodes, f.nodes);
    if (f.durable_nodes == f.nodes)
        learn(d);
}

/* A lookup for a line that begins like a durable one; at least that must come. */
static void find_safe(struct disk_world *d)
{
    struct line l;
    int32_t least, match;
    world_line(&d->safe, &l);
    int32_t most = l.n && rnd(2) ? l.n - 1 : l.n;
    known_find(&d->safe, d->k, &l, most, &least, &match);
    bool must = quiet(d) && !d->failing; /* for want of memory nothing is read */
    d->tier->sides[TIER_MODEL].tried =
        NULL; /* the rest that it takes after reading the same is for real clocks */
    int32_t had = world_begin(&d->w, &l, most);
    if (must && had < least && (!had || least - had >= WORTH))
        fail_msg("%s: %d tokens of %d; %d are durable", d->k->name, had, l.n, least);
    d->n_from_disk += least > 0;
}

/* Somebody waits for a line that the reader reads, while everything else goes on. */
static void load_beside(struct disk_world *d)
{
    struct line l;
    world_line(rnd(2) ? &d->safe : &d->w.mem, &l);
    if (rnd(8) == 0)
        ptree_trim(d->w.t, 0);
    d->tier->sides[TIER_MODEL].tried = NULL;
    d->w.adopting = true;
    d->n_beside += tier_loading(d->tier, TIER_MODEL,
                                &(struct ptree_line){spaces[l.ns], l.ids, l.n ? l.n - 1 : 0});
    d->w.adopting = false;
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* A file of the folder is flipped, cut or lost. */
static void harm(const char *path)
{
    struct stat sb;
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &sb) == 0);
    off_t at = rnd((int32_t)sb.st_size);
    int how = rnd(4);
    if (how == 0)
        assert_int_equal(ftruncate(fd, at), 0);
    if (how == 1)
        assert_int_equal(unlink(path), 0);
    if (how > 1) {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= (uint8_t)(1 << rnd(8));
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

static void harm_some(const char *dir)
{
    char **subs, **names;
    size_t n_sub, n;
    struct qn_err err = {0};
    struct buf sub = BUF_INIT, path = BUF_INIT;
    CHECK_OK(dir_list(dir, &subs, &n_sub, &err), err);
    for (size_t i = 0; i < n_sub; i++) {
        path_join(&sub, dir, subs[i]);
        if (!dir_exists(buf_z(&sub)))
            continue;
        CHECK_OK(dir_list(buf_z(&sub), &names, &n, &err), err);
        for (size_t j = 0; j < n; j++) {
            path_join(&path, buf_z(&sub), names[j]);
            if (str_ends(buf_str(&path), STR_LIT(".kv")) && rnd(5) == 0)
                harm(buf_z(&path));
        }
        names_free(names, n);
    }
    names_free(subs, n_sub);
    buf_free(&sub);
    buf_free(&path);
}

/* While it runs, or while it does not. */
static void do_damage(struct disk_world *d)
{
    bool running = rnd(2);
    if (rnd(2))
        flush_all(d);
    settle(d);
    if (!running)
        disk_close(d);
    harm_some(d->dir);
    if (!running)
        disk_open(d);
    d->n_damage++;
}

/* With the folder as it is; or a new one, so that a run stays small. */
static void do_restart(struct disk_world *d)
{
    struct tier_stats st;
    struct qn_err err = {0};
    tier_stats(d->tier, &st);
    if (rnd(3))
        flush_all(d);
    disk_close(d);
    if (st.store.records > RECORDS || d->safe.n > ENTRIES / 2) {
        CHECK_OK(dir_remove(d->dir, &err), err);
        d->safe.n = 0;
    }
    disk_open(d);
    d->n_restart++;
}

/* Writes begin to fail, or fail no more. */
static void do_fail(struct disk_world *d)
{
    static const char *const points[] = {"store.write.full", "store.sync", "store.sync.folder",
                                         "store.item"};
    d->failing = !d->failing;
    if (d->failing)
        fault_arm_from(points[rnd(4)], 1 + rnd(3));
    else
        fault_disarm();
    d->n_fail += d->failing;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void tick(struct disk_world *d)
{
    if (rnd(4) == 0)
        d->tier->look_us = 0; /* its next look is due */
    if (rnd(8) == 0)
        d->tier->pages_us = d->tier->ends_us = 0;
    d->w.adopting = true;
    tier_tick(d->tier, rnd(2));
    d->w.adopting = false;
}

static void seldom(struct disk_world *d)
{
    int what = rnd(800);
    if (d->failing && rnd(30) == 0)
        do_fail(d);
    else if (what < 16 && !d->flushing)
        flush_on(d, true);
    else if (what < 24)
        flush_all(d);
    else if (what < 32)
        do_restart(d);
    else if (what < 40)
        ptree_trim(d->w.t, 0);
    else if (what < 48)
        do_fail(d);
    else if (what < 54 && d->folder == HARMED)
        do_damage(d);
}

static void disk_operation(struct disk_world *d)
{
    int what = rnd(16);
    world_operation(&d->w);
    if (what < 4)
        tick(d);
    else if (what == 4)
        load_beside(d);
    else if (what < 7)
        find_safe(d);
    else if (what == 7 && d->flushing)
        flush_on(d, false);
    seldom(d);
}

/* What happened in all runs together: who wins a race decides what a single one comes to. */
static struct {
    int64_t n, reused, census, restores, restarts, beside, safe, from_disk, damage, fail, demoted;
} sum;

static void count(const struct disk_world *d, int64_t n)
{
    sum.n += n;
    sum.reused += d->w.n_reused;
    sum.census += d->w.n_census;
    sum.restores += d->restores;
    sum.restarts += d->n_restart;
    sum.beside += d->n_beside;
    sum.safe += d->n_safe;
    sum.from_disk += d->n_from_disk;
    sum.damage += d->n_damage;
    sum.fail += d->n_fail;
    sum.demoted += d->n_demoted;
}

static void test_enough_happened(void **state)
{
    const struct {
        const char *what;
        int64_t n, least;
    } all[] = {
        {"reused", sum.reused, sum.n / 40},       {"census", sum.census, sum.n / 100},
        {"restores", sum.restores, sum.n / 300},  {"beside", sum.beside, sum.n / 500},
        {"durable", sum.safe, sum.n / 1000},      {"from disk", sum.from_disk, sum.n / 500},
        {"restarts", sum.restarts, sum.n / 1000}, {"damage", sum.damage, sum.n / 4000},
        {"failures", sum.fail, sum.n / 4000},     {"demoted", sum.demoted, sum.n / 8000},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].n < all[i].least)
            fail_msg("%s: %lld of %lld operations", all[i].what, (long long)all[i].n,
                     (long long)sum.n);
}

static void run_kind(const struct kind *k, enum folder folder)
{
    struct disk_world *d = calloc(1, sizeof *d);
    struct qn_err err = {0};
    int64_t n = n_operations(300);
    rnd_seed(7 + folder);
    d->k = k;
    d->folder = folder;
    d->dir = check_tmp_dir();
    disk_open(d);
    for (int64_t i = 0; i < n; i++) {
        disk_operation(d);
        if (i % 8 == 0 && quiet(d))
            world_census(&d->w);
        world_look(&d->w);
    }
    settle(d);
    world_census(&d->w);
    do_restart(d);
    find_safe(d);
    disk_close(d);
    count(d, n);
    CHECK_OK(dir_remove(d->dir, &err), err);
    free(d->dir);
    free(d);
}

static void test_kind(void **state)
{
    for (enum folder f = 0; f < FOLDERS; f++)
        run_kind(*state, f);
}

int main(void)
{
    struct CMUnitTest tests[KINDS + 1];
    for (int i = 0; i < KINDS; i++)
        tests[i] =
            (struct CMUnitTest){kinds[i].name, test_kind, NULL, NULL, (void *)(uintptr_t)&kinds[i]};
    tests[KINDS] = (struct CMUnitTest){"enough happened", test_enough_happened, NULL, NULL, NULL};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
