/*
 * test_store.c - a folder of records: what is put is read back, by this process and the next;
 * whatever happens to files or to the disk is a miss, and what goes never leaves behind something
 * that continues it.
 */
#include "../check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/rng.h"
#include "store/store.h"

enum { PART = 3000, N_PART = 3, LEN = 10 };

static char *root;
static const struct record_name model = {{7, 7, 7}};

static int make_root(void **state)
{
    root = check_tmp_dir();
    return 0;
}

static int drop_root(void **state)
{
    struct qn_err err = {0};
    fault_disarm();
    CHECK_OK(dir_remove(root, &err), err);
    free(root);
    return 0;
}

/* ---- records whose bytes follow from a number --------------------------------------------------
 */

static void fill(uint8_t *p, int32_t k)
{
    for (int32_t i = 0; i < N_PART * PART; i++)
        p[i] = (uint8_t)rng_u64(7, (uint64_t)k, (uint64_t)i / 8);
}

struct stuff {
    int32_t tokens[LEN];
    uint8_t bytes[N_PART * PART];
    struct iovec parts[N_PART];
    struct store_item item;
};

/* Record k behind `parent` (NULL = a root) at token `from`. */
static struct stuff *stuff(int32_t k, const struct record_name *parent, int32_t from)
{
    struct stuff *s = calloc(1, sizeof *s);
    assert_non_null(s);
    fill(s->bytes, k);
    for (int32_t i = 0; i < LEN; i++)
        s->tokens[i] = k * 100 + i;
    for (int32_t i = 0; i < N_PART; i++)
        s->parts[i] = (struct iovec){s->bytes + i * PART, PART};
    s->item.id.from = from;
    s->item.id.n_token = LEN;
    s->item.id.tokens = s->tokens;
    if (parent)
        s->item.id.parent = *parent;
    s->item.parts = s->parts;
    s->item.n_part = N_PART;
    s->item.owner = s;
    s->item.now = true;
    return s;
}

static int32_t told; /* records that store_open told of */

static void tell(void *arg, const struct record *r)
{
    int32_t tokens[LEN];
    told++;
    assert_int_equal(r->id.n_token, LEN);
    record_tokens(r, tokens);
    for (int32_t i = 0; i < LEN; i++)
        assert_int_equal(tokens[i], tokens[0] + i);
}

static struct store *open_max(int64_t max_bytes)
{
    struct store *st = NULL;
    struct qn_err err = {0};
    struct store_params p = {
        .dir = root, .model = model, .about = STR_LIT("a model"), .max_bytes = max_bytes};
    told = 0;
    CHECK_OK(store_open(&p, tell, NULL, &st, &err), err);
    return st;
}

/* Takes back what has ended; returns how many are durable. */
static int32_t reap(struct store *st, int32_t n)
{
    struct store_done d[16];
    int32_t durable = 0;
    assert_true(store_wait(st, 100000));
    assert_int_equal(store_reap(st, d, 16), n);
    for (int32_t i = 0; i < n; i++) {
        durable += d[i].durable;
        assert_int_equal(store_has(st, &d[i].name), d[i].durable);
        free(d[i].owner);
    }
    return durable;
}

static struct record_name put(struct store *st, int32_t k, const struct record_name *parent,
                              int32_t from, bool durable)
{
    struct record_name name;
    struct stuff *s = stuff(k, parent, from);
    assert_int_equal(store_put(st, &s->item, &name), STORE_QUEUED);
    assert_int_equal(reap(st, 1), durable);
    return name;
}

/* Whether record k is read as it was put. Never anything else. */
static bool get(struct store *st, const struct record_name *name, int32_t k)
{
    static uint8_t want[N_PART * PART], got[N_PART * PART];
    struct iovec parts[N_PART];
    struct qn_err err = {0};
    fill(want, k);
    memset(got, 0, sizeof got);
    for (int32_t i = 0; i < N_PART; i++)
        parts[i] = (struct iovec){got + i * PART, PART};
    if (store_read(st, name, parts, N_PART, &err) != QN_OK) {
        assert_int_equal(err.code, QN_NOT_FOUND);
        return false;
    }
    assert_memory_equal(want, got, sizeof got);
    return true;
}

static void path_of(struct buf *b, const struct record_name *name)
{
    char m[65], n[65], file[140];
    record_name_hex(&model, m);
    record_name_hex(name, n);
    m[16] = 0;
    snprintf(file, sizeof file, "%s/%s.kv", m, n);
    path_join(b, root, file);
}

static struct store_stats stats(struct store *st)
{
    struct store_stats s;
    store_stats(st, &s);
    return s;
}

/* ---- the tests --------------------------------------------------------------------------------
 */

static void survives_its_process(void **state)
{
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true);
    struct record_name b = put(st, 2, &a, LEN, true);
    struct record_name c = put(st, 3, &a, 5, true); /* branches off inside a */
    assert_true(get(st, &a, 1) && get(st, &b, 2) && get(st, &c, 3));
    store_close(st);
    st = open_max(0);
    assert_int_equal(told, 3);
    assert_int_equal(stats(st).records, 3);
    assert_true(get(st, &a, 1) && get(st, &b, 2) && get(st, &c, 3));
    /* once more: it is there */
    struct stuff *s = stuff(2, &a, LEN);
    struct record_name again;
    assert_int_equal(store_put(st, &s->item, &again), STORE_HAVE);
    assert_true(record_name_eq(&again, &b));
    free(s);
    store_close(st);
}

static void parts_can_be_left_out(void **state)
{
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true);
    static uint8_t want[N_PART * PART], got[PART];
    struct qn_err err = {0};
    fill(want, 1);
    for (int32_t k = 0; k < N_PART; k++) {
        struct iovec parts[N_PART] = {{0}};
        parts[k] = (struct iovec){got, PART};
        CHECK_OK(store_read(st, &a, parts, N_PART, &err), err);
        assert_memory_equal(got, want + k * PART, PART);
    }
    store_close(st);
}

/* Another model's records are counted and kept, not served. */
static void models_do_not_mix(void **state)
{
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true);
    store_close(st);
    struct qn_err err = {0};
    struct store_params p = {.dir = root, .model = {{8}}};
    told = 0;
    CHECK_OK(store_open(&p, tell, NULL, &st, &err), err);
    assert_int_equal(told, 0);
    assert_int_equal(stats(st).records, 1);
    assert_false(get(st, &a, 1));
    struct record_name b = put(st, 1, NULL, 0, true);
    assert_false(record_name_eq(&a, &b));
    store_close(st);
    st = open_max(0);
    assert_int_equal(told, 1);
    assert_true(get(st, &a, 1));
    store_close(st);
}

/* Oldest first, and only what nothing continues. */
static void eviction_keeps_ancestors(void **state)
{
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true);
    int64_t one = stats(st).bytes;
    store_close(st);
    st = open_max(3 * one + 100);
    struct record_name b = put(st, 2, &a, LEN, true), c = put(st, 3, NULL, 0, true);
    struct record_name d = put(st, 4, NULL, 0, true); /* b goes: a is older but continued */
    assert_true(store_has(st, &a) && !store_has(st, &b) && store_has(st, &c) && store_has(st, &d));
    assert_true(get(st, &a, 1)); /* used */
    struct record_name e = put(st, 5, NULL, 0, true);
    assert_true(store_has(st, &a) && !store_has(st, &c) && store_has(st, &d) && store_has(st, &e));
    assert_int_equal(stats(st).evicted, 2);
    assert_int_equal(stats(st).bytes, 3 * one);
    /* a line that fills the folder: its next record has no place, and takes none of its own */
    struct record_name f = put(st, 6, &a, LEN, true), g = put(st, 7, &f, 2 * LEN, true);
    put(st, 8, &g, 3 * LEN, false);
    assert_true(get(st, &a, 1) && get(st, &f, 6) && get(st, &g, 7));
    store_close(st);
    st = open_max(2 * one + 100); /* a smaller bound: from the end of the line */
    assert_true(get(st, &a, 1) && get(st, &f, 6) && !get(st, &g, 7));
    struct stuff *s = stuff(9, NULL, 0);
    store_close(st);
    st = open_max(one - 1);
    assert_int_equal(stats(st).records, 0);
    assert_int_equal(store_put(st, &s->item, &f), STORE_LARGE);
    free(s);
    store_close(st);
}

/* As put(), of something that was last used so long ago. */
static bool put_idle(struct store *st, int32_t k, const struct record_name *parent, int32_t from,
                     int64_t idle_us, struct record_name *name)
{
    struct store_done d;
    struct stuff *s = stuff(k, parent, from);
    s->item.idle_us = idle_us;
    assert_int_equal(store_put(st, &s->item, name), STORE_QUEUED);
    assert_true(store_wait(st, 100000));
    assert_int_equal(store_reap(st, &d, 1), 1);
    assert_int_equal(d.no_room, !d.durable);
    free(d.owner);
    return d.durable;
}

/* Whatever is written anew takes the place of older things only, and of nothing when that would not
 * do: two that do not fit together never take turns. */
static void old_things_take_no_place(void **state)
{
    enum { S = 1000000 };
    struct record_name a, b, c, d, e;
    struct store *st = open_max(0);
    put(st, 1, NULL, 0, true);
    int64_t one = stats(st).bytes;
    store_close(st);
    struct qn_err err = {0};
    CHECK_OK(dir_remove(root, &err), err);
    st = open_max(3 * one + 100);
    assert_true(put_idle(st, 1, NULL, 0, 20 * S, &a) && put_idle(st, 2, &a, LEN, 10 * S, &b));
    assert_true(put_idle(st, 3, NULL, 0, 30 * S, &c));
    assert_false(put_idle(st, 4, NULL, 0, 40 * S, &d));
    assert_true(store_has(st, &a) && store_has(st, &b) && store_has(st, &c));
    assert_true(put_idle(st, 4, NULL, 0, 15 * S, &d)); /* c was the oldest */
    assert_true(store_has(st, &a) && store_has(st, &b) && !store_has(st, &c));
    assert_false(put_idle(st, 3, NULL, 0, 30 * S, &c)); /* and does not come back for it */
    assert_int_equal(stats(st).evicted, 1);
    assert_false(put_idle(st, 5, &b, 2 * LEN, 16 * S, &e)); /* d is newer */
    assert_true(store_has(st, &b) && store_has(st, &d));
    assert_int_equal(stats(st).evicted, 1);
    assert_int_equal(stats(st).error[0], 0);
    assert_int_equal(stats(st).written, 4);
    store_close(st);
    st = open_max(3 * one + 100); /* ages survive: d is the oldest that nothing continues */
    put(st, 6, NULL, 0, true);
    assert_true(store_has(st, &a) && store_has(st, &b) && !store_has(st, &d));
    store_close(st);
}

/* A clock that went ahead when records were written makes them old, not young for ever. */
static void clocks_that_were_ahead(void **state)
{
    struct buf p = BUF_INIT;
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true);
    int64_t one = stats(st).bytes;
    store_close(st);
    path_of(&p, &a);
    struct timespec then = {time(NULL) + 100000000, 0};
    assert_int_equal(utimensat(AT_FDCWD, buf_z(&p), (struct timespec[]){then, then}, 0), 0);
    st = open_max(one + 100);
    struct record_name b = put(st, 2, NULL, 0, true);
    assert_true(!store_has(st, &a) && store_has(st, &b));
    store_close(st);
    buf_free(&p);
}

static void check_now(struct store *st)
{
    store_check(st);
    for (int i = 0; !store_checked(st); i++) {
        assert_true(i < 100000);
        usleep(1000);
    }
}

/* Files, folders and the lock go behind the store's back. A look finds out what is gone, what is
 * put next is there whatever was removed, and two never have the folder at once. */
static void taken_away(void **state)
{
    struct qn_err err = {0};
    struct buf p = BUF_INIT, about = BUF_INIT;
    struct store *st = open_max(0), *other = NULL;
    struct record_name a = put(st, 1, NULL, 0, true), b = put(st, 2, &a, LEN, true);
    struct record_name c = put(st, 3, NULL, 0, true), d = put(st, 4, NULL, 0, true);
    check_now(st);
    assert_int_equal(stats(st).records, 4);
    path_of(&p, &a);
    assert_int_equal(unlink(buf_z(&p)), 0);
    path_of(&p, &c);
    assert_int_equal(truncate(buf_z(&p), 5000), 0);
    assert_true(store_has(st, &b));
    check_now(st);
    assert_true(!store_has(st, &a) && !store_has(st, &b) && !store_has(st, &c));
    assert_int_equal(stats(st).damaged, 3);
    assert_true(get(st, &d, 4));
    put(st, 1, NULL, 0, true);
    CHECK_OK(dir_remove(root, &err), err); /* all of it, the lock too */
    c = put(st, 3, NULL, 0, true);
    check_now(st);
    assert_true(get(st, &c, 3) && !store_has(st, &a) && !store_has(st, &d));
    assert_int_equal(stats(st).records, 1);
    CHECK_OK(store_about(root, &model, &about, &err), err);
    assert_string_equal(buf_z(&about), "a model");
    struct store_params q = {.dir = root, .model = model};
    CHECK_FAILS(store_open(&q, NULL, NULL, &other, &err), QN_BUSY, err, "another server");
    path_join(&p, root, "lock");
    assert_int_equal(unlink(buf_z(&p)), 0);
    CHECK_OK(store_open(&q, NULL, NULL, &other, &err), err); /* it cannot know */
    put(st, 4, NULL, 0, false);                              /* but the first one does */
    assert_non_null(strstr(stats(st).error, "another server"));
    put(other, 5, NULL, 0, true);
    store_close(other);
    put(st, 4, NULL, 0, true);
    assert_true(get(st, &c, 3));
    store_close(st);
    buf_free(&p);
    buf_free(&about);
}

static void orphans_are_refused(void **state)
{
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true), none = {{1}}, name;
    static const int32_t froms[] = {0, LEN + 1, 10 * LEN};
    for (size_t i = 0; i < 3; i++) { /* not inside what it continues */
        struct stuff *s = stuff(2, &a, froms[i]);
        assert_int_equal(store_put(st, &s->item, &name), STORE_ORPHAN);
        free(s);
    }
    struct stuff *s = stuff(2, &none, LEN);
    assert_int_equal(store_put(st, &s->item, &name), STORE_ORPHAN);
    free(s);
    store_close(st);
}

/* A file goes behind the store's back: the record and what continues it go as well. */
static void lost_ancestor(void **state)
{
    struct buf p = BUF_INIT;
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true), b = put(st, 2, &a, LEN, true);
    struct record_name c = put(st, 3, &b, 2 * LEN, true), d = put(st, 4, NULL, 0, true);
    store_close(st);
    path_of(&p, &a);
    assert_int_equal(unlink(buf_z(&p)), 0);
    st = open_max(0);
    assert_int_equal(told, 1);
    assert_true(!get(st, &a, 1) && !get(st, &b, 2) && !get(st, &c, 3) && get(st, &d, 4));
    path_of(&p, &c);
    assert_false(file_exists(buf_z(&p)));
    path_of(&p, &d);
    assert_int_equal(unlink(buf_z(&p)), 0);
    assert_false(get(st, &d, 4)); /* while it runs */
    assert_false(store_has(st, &d));
    put(st, 4, NULL, 0, true); /* and it can be put again */
    assert_true(get(st, &d, 4));
    store_close(st);
    buf_free(&p);
}

/* One byte of a file changed, or its length. */
static void harm(const char *path, off_t at, off_t cut)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;
    assert_true(fd >= 0);
    if (cut >= 0) {
        assert_int_equal(ftruncate(fd, cut), 0);
    } else {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

/* Two models that one store serves: each has its folder, names and tellings; a third one's records
 * stay out; age and damage are everybody's. */
static void models_side_by_side(void **state)
{
    static const struct record_name second = {{8}}, third = {{9}};
    struct store *st = open_max(0);
    struct qn_err err = {0};
    struct buf path = BUF_INIT;
    CHECK_OK(store_join(st, &second, STR_LIT("a second"), tell, NULL, &err), err);
    CHECK_FAILS(store_join(st, &second, STR_LIT(""), tell, NULL, &err), QN_BAD_INPUT, err, "once");
    struct stuff *s = stuff(1, NULL, 0);
    struct record_name a = put(st, 1, NULL, 0, true), b;
    s->item.id.model = second; /* the same tokens */
    assert_int_equal(store_put(st, &s->item, &b), STORE_QUEUED);
    assert_int_equal(reap(st, 1), 1);
    assert_false(record_name_eq(&a, &b));
    assert_true(get(st, &a, 1) && get(st, &b, 1));
    struct record_name c = put(st, 2, &a, LEN, true);
    int64_t one = stats(st).bytes / 3;
    store_close(st);
    st = open_max(0);
    assert_int_equal(told, 2);
    assert_false(get(st, &b, 1)); /* not before it is joined */
    CHECK_OK(store_join(st, &third, STR_LIT(""), tell, NULL, &err), err);
    assert_int_equal(told, 2);
    CHECK_OK(store_join(st, &second, STR_LIT("a second"), tell, NULL, &err), err);
    assert_int_equal(told, 3);
    assert_true(get(st, &a, 1) && get(st, &b, 1) && get(st, &c, 2));
    store_close(st);
    st = open_max(2 * one + 100); /* the oldest leaf goes, whoever's it is */
    CHECK_OK(store_join(st, &second, STR_LIT("a second"), tell, NULL, &err), err);
    assert_int_equal(stats(st).records, 2);
    assert_true(get(st, &a, 1));
    store_close(st);
    st = open_max(0);
    CHECK_OK(store_join(st, &second, STR_LIT("a second"), tell, NULL, &err), err);
    s = stuff(3, NULL, 0);
    s->item.id.model = second;
    assert_int_equal(store_put(st, &s->item, &b), STORE_QUEUED);
    assert_int_equal(reap(st, 1), 1);
    char m[65], n[65], file[140];
    record_name_hex(&second, m);
    record_name_hex(&b, n);
    m[16] = 0;
    snprintf(file, sizeof file, "%s/%s.kv", m, n);
    path_join(&path, root, file);
    harm(buf_z(&path), 5000, -1);
    assert_false(get(st, &b, 3));
    assert_true(get(st, &a, 1));
    assert_int_equal(stats(st).damaged, 1);
    store_close(st);
    buf_free(&path);
}

static void damaged_files(void **state)
{
    static const struct {
        off_t at, cut;
        bool at_start; /* seen by the scan: only headers and lengths are */
    } harms[] = {
        {0, -1, true},     {9, -1, true},     {20, -1, true},           {150, -1, true},
        {4096, -1, false}, {9000, -1, false}, {4096 + 8999, -1, false}, {0, 0, true},
        {0, 100, true},    {0, 4096, true},   {0, 4096 + 8999, true},   {0, 20000, true},
    };
    struct buf p = BUF_INIT;
    for (size_t k = 0; k < sizeof harms / sizeof *harms; k++) {
        for (int reopen = 0; reopen < 2; reopen++) {
            struct store *st = open_max(0);
            struct record_name a = put(st, 1, NULL, 0, true), b = put(st, 2, &a, LEN, true);
            struct record_name c = put(st, 3, NULL, 0, true);
            path_of(&p, &a);
            if (reopen)
                store_close(st);
            harm(buf_z(&p), harms[k].at, harms[k].cut);
            if (reopen) {
                st = open_max(0);
                /* another format is not ours to remove */
                if (harms[k].at != 9)
                    assert_int_equal(file_exists(buf_z(&p)), !harms[k].at_start);
                assert_int_equal(store_has(st, &a), !harms[k].at_start);
            }
            assert_false(get(st, &a, 1));
            assert_false(get(st, &b, 2));
            assert_true(get(st, &c, 3));
            assert_int_equal(stats(st).records, 1);
            put(st, 1, NULL, 0, true); /* the place is free again */
            assert_true(get(st, &a, 1));
            store_close(st);
            assert_int_equal(unlink(buf_z(&p)), 0);
            path_of(&p, &c);
            assert_int_equal(unlink(buf_z(&p)), 0);
        }
    }
    buf_free(&p);
}

/* Files of others stay; half-written ones go; records under a wrong name or in a wrong folder are
 * not served. */
static void foreign_files(void **state)
{
    struct buf p = BUF_INIT, q = BUF_INIT;
    struct store *st = open_max(0);
    struct qn_err err = {0};
    struct record_name a = put(st, 1, NULL, 0, true), b = a;
    store_close(st);
    b.b[3] ^= 1;
    path_of(&p, &a);
    path_of(&q, &b);
    assert_int_equal(link(buf_z(&p), buf_z(&q)), 0);
    char dir[400];
    snprintf(dir, sizeof dir, "%.300s", buf_z(&p));
    *strrchr(dir, '/') = 0;
    path_join(&p, dir, "tmp.1");
    CHECK_OK(file_write_atomic(buf_z(&p), STR_LIT("half"), &err), err);
    path_join(&q, dir, "notes.txt");
    CHECK_OK(file_write_atomic(buf_z(&q), STR_LIT("mine"), &err), err);
    path_join(&q, root, "0123456789abcdef");
    CHECK_OK(dir_make(buf_z(&q), &err), err);
    st = open_max(0);
    assert_int_equal(told, 1);
    assert_false(file_exists(buf_z(&p)));
    path_join(&q, dir, "notes.txt");
    assert_true(file_exists(buf_z(&q)));
    path_of(&q, &b);
    assert_false(file_exists(buf_z(&q)));
    assert_true(get(st, &a, 1));
    assert_int_equal(mkdir(buf_z(&q), 0777), 0); /* a folder where a record could be */
    store_close(st);
    st = open_max(0);
    assert_true(get(st, &a, 1));
    store_close(st);
    buf_free(&p);
    buf_free(&q);
}

/* Every way in which writing can fail, at every point of two records in a row: never a wrong byte,
 * never half a record, and it works again afterwards. */
static void write_faults(void **state)
{
    static const struct {
        const char *point;
        const char *says;
    } points[] = {
        {"store.create", "Read-only file system"}, {"store.write.full", "No space left"},
        {"store.write.io", "Input/output error"},  {"store.sync", "Input/output error"},
        {"store.rename", "Input/output error"},    {"store.sync.folder", "Input/output error"},
    };
    struct buf p = BUF_INIT;
    for (size_t k = 0; k < sizeof points / sizeof *points; k++) {
        bool hit = true;
        for (int64_t nth = 1; hit; nth++) {
            struct store *st = open_max(0);
            fault_arm(points[k].point, nth);
            struct record_name a, b;
            struct stuff *sa = stuff(1, NULL, 0), *sb;
            assert_int_equal(store_put(st, &sa->item, &a), STORE_QUEUED);
            sb = stuff(2, &a, LEN);
            enum store_answer second = store_put(st, &sb->item, &b);
            if (second != STORE_QUEUED)
                free(sb);
            int32_t durable = reap(st, 1 + (second == STORE_QUEUED));
            hit = fault_disarm() >= nth;
            assert_int_equal(durable, hit ? nth > 1 && get(st, &a, 1) : 2);
            struct store_stats s = stats(st);
            if (hit && !strstr(s.error, points[k].says))
                fail_msg("%s: error is \"%s\"", points[k].point, s.error);
            assert_int_equal(s.queued, 0);
            assert_int_equal(s.queued_bytes, 0);
            assert_int_equal(s.records, durable);
            assert_int_equal(get(st, &a, 1), durable > 0);
            assert_int_equal(get(st, &b, 2), durable > 1);
            store_close(st);
            st = open_max(0);
            assert_int_equal(told, durable);
            if (durable < 1)
                put(st, 1, NULL, 0, true);
            if (durable < 2)
                put(st, 2, &a, LEN, true);
            assert_true(get(st, &a, 1) && get(st, &b, 2));
            store_close(st);
            path_of(&p, &a);
            unlink(buf_z(&p));
            path_of(&p, &b);
            unlink(buf_z(&p));
        }
    }
    buf_free(&p);
}

/* The system may write less than asked, as often as it likes. */
static void short_writes(void **state)
{
    struct store *st = open_max(0);
    fault_arm_from("store.write.short", 1);
    struct record_name a = put(st, 1, NULL, 0, true);
    assert_true(fault_disarm() > 10);
    assert_true(get(st, &a, 1));
    store_close(st);
}

static void rests_after_a_failure(void **state)
{
    struct store *st = open_max(0);
    struct record_name name;
    fault_arm_from("store.write.full", 1);
    put(st, 1, NULL, 0, false);
    struct stuff *s = stuff(1, NULL, 0);
    s->item.now = false;
    assert_int_equal(store_put(st, &s->item, &name), STORE_RESTING);
    s->item.now = true;
    assert_int_equal(store_put(st, &s->item, &name), STORE_QUEUED);
    assert_int_equal(reap(st, 1), 0);
    fault_disarm();
    put(st, 1, NULL, 0, true);
    assert_int_equal(stats(st).error[0], 0);
    assert_int_equal(stats(st).failed, 2);
    store_close(st);
}

static void read_faults(void **state)
{
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true);
    for (int64_t nth = 1; nth <= 2; nth++) {
        fault_arm("store.read", nth);
        assert_false(get(st, &a, 1));
        assert_int_equal(fault_disarm(), nth);
        put(st, 1, NULL, 0, true);
        assert_true(get(st, &a, 1));
    }
    store_close(st);
}

/* A queue that is full says so; a paced writer can be hurried; closing does not wait for the pace.
 */
static void queue_and_pace(void **state)
{
    struct store *st = NULL;
    struct qn_err err = {0};
    struct store_params p = {.dir = root, .model = model, .queue_bytes = 2 * N_PART * PART + 10};
    CHECK_OK(store_open(&p, NULL, NULL, &st, &err), err);
    store_pace(st, 1); /* hours */
    struct stuff *s[3];
    struct record_name names[3];
    for (int32_t i = 0; i < 3; i++)
        s[i] = stuff(i, NULL, 0);
    assert_int_equal(store_put(st, &s[0]->item, &names[0]), STORE_QUEUED);
    assert_int_equal(store_put(st, &s[1]->item, &names[1]), STORE_QUEUED);
    assert_int_equal(store_put(st, &s[2]->item, &names[2]), STORE_FULL);
    assert_int_equal(store_put(st, &s[1]->item, &names[1]), STORE_HAVE);
    assert_false(store_has(st, &names[1]));
    assert_int_equal(reap(st, 2), 2); /* waits: at full speed */
    assert_int_equal(store_put(st, &s[2]->item, &names[2]), STORE_QUEUED);
    store_close(st);
    free(s[2]);
    st = open_max(0);
    assert_int_equal(told, 2);
    store_close(st);
}

static void two_servers(void **state)
{
    struct store *st = open_max(0), *other = NULL;
    struct qn_err err = {0};
    struct store_params p = {.dir = root, .model = model};
    CHECK_FAILS(store_open(&p, NULL, NULL, &other, &err), QN_BUSY, err, "another server (process");
    store_close(st);
    CHECK_OK(store_open(&p, NULL, NULL, &other, &err), err);
    store_close(other);
}

static void unusable_folders(void **state)
{
    struct store *st = NULL;
    struct qn_err err = {0};
    struct buf path = BUF_INIT;
    path_join(&path, root, "file");
    CHECK_OK(file_write_atomic(buf_z(&path), STR_LIT("x"), &err), err);
    struct store_params p = {.dir = buf_z(&path), .model = model};
    CHECK_FAILS(store_open(&p, NULL, NULL, &st, &err), QN_IO, err, "cannot make the folder");
    p.dir = "/proc/1/quern-cache";
    assert_int_not_equal(store_open(&p, NULL, NULL, &st, &err), QN_OK);
    assert_true(err.msg[0]);
    buf_free(&path);
}

struct seen {
    int32_t ok, damaged, other, foreign, left_over;
};

static void seen(void *arg, const struct store_find *f)
{
    struct seen *s = arg;
    if (f->left_over)
        s->left_over++;
    else if (f->status == QN_OK)
        s->ok++;
    else if (f->status == QN_UNSUPPORTED)
        s->other++;
    else if (f->status == QN_NOT_FOUND)
        s->foreign++;
    else
        s->damaged++;
}

static void survey(void **state)
{
    struct buf p = BUF_INIT, about = BUF_INIT;
    struct qn_err err = {0};
    struct store *st = open_max(0);
    struct record_name a = put(st, 1, NULL, 0, true), b = put(st, 2, NULL, 0, true);
    put(st, 3, NULL, 0, true);
    struct seen s = {0};
    CHECK_OK(store_survey(root, true, seen, &s, &err), err); /* beside a running one */
    assert_true(s.ok == 3 && !s.damaged && !s.other && !s.foreign && !s.left_over);
    path_of(&p, &a);
    harm(buf_z(&p), 5000, -1);
    path_of(&p, &b);
    harm(buf_z(&p), 8, -1);
    s = (struct seen){0};
    CHECK_OK(store_survey(root, false, seen, &s, &err), err);
    assert_true(s.ok == 2 && s.other == 1);
    s = (struct seen){0};
    CHECK_OK(store_survey(root, true, seen, &s, &err), err);
    assert_true(s.ok == 1 && s.damaged == 1 && s.other == 1);
    CHECK_OK(store_about(root, &model, &about, &err), err);
    assert_true(str_eqz(buf_str(&about), "a model"));
    store_close(st);
    buf_free(&p);
    buf_free(&about);
}

/* Random puts, reads, reopenings, bounds and damage against a list of what was put: whatever is
 * there is right, and its ancestors are there too. */
static void random_steps(void **state)
{
    enum { N = 40, STEPS = 1500 };
    static struct record_name names[N];
    static int32_t parent[N], from[N];
    bool named[N] = {0};
    struct buf p = BUF_INIT;
    struct store *st = open_max(0);
    for (int32_t i = 0; i < N; i++) {
        parent[i] = i < 4 ? -1 : (int32_t)(rng_u64(1, 2, (uint64_t)i) % (uint64_t)i);
        from[i] = parent[i] < 0 ? 0 : from[parent[i]] + 1 + i % LEN;
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        int32_t k = (int32_t)(rng_u64(3, 4, step) % N), what = (int32_t)(rng_u64(5, 6, step) % 20);
        if (what < 11 && (parent[k] < 0 || named[parent[k]])) {
            struct stuff *s = stuff(k, parent[k] < 0 ? NULL : &names[parent[k]], from[k]);
            enum store_answer a = store_put(st, &s->item, &names[k]);
            named[k] = true;
            if (a == STORE_QUEUED)
                reap(st, 1);
            else
                free(s);
            assert_true(a == STORE_QUEUED || a == STORE_HAVE ||
                        (a == STORE_ORPHAN && !store_has(st, &names[parent[k]])));
        } else if (what < 16 && named[k]) {
            assert_int_equal(store_has(st, &names[k]), get(st, &names[k], k));
        } else if (what == 17 && named[k] && store_has(st, &names[k])) {
            path_of(&p, &names[k]);
            harm(buf_z(&p), 4096 + (off_t)(step % 9000), -1);
            assert_false(get(st, &names[k], k));
        } else if (what == 19 && step % 3 == 0) {
            store_close(st);
            st = open_max(step % 2 ? 0 : 12 * 20000);
        }
        int64_t n = 0;
        for (int32_t i = 0; i < N; i++) {
            bool has = named[i] && store_has(st, &names[i]);
            n += has;
            if (has && parent[i] >= 0)
                assert_true(store_has(st, &names[parent[i]]));
        }
        assert_int_equal(stats(st).records, n);
    }
    store_close(st);
    buf_free(&p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, drop_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(survives_its_process),
        TEST(parts_can_be_left_out),
        TEST(models_do_not_mix),
        TEST(models_side_by_side),
        TEST(eviction_keeps_ancestors),
        TEST(old_things_take_no_place),
        TEST(clocks_that_were_ahead),
        TEST(taken_away),
        TEST(orphans_are_refused),
        TEST(lost_ancestor),
        TEST(damaged_files),
        TEST(foreign_files),
        TEST(write_faults),
        TEST(short_writes),
        TEST(rests_after_a_failure),
        TEST(read_faults),
        TEST(queue_and_pace),
        TEST(two_servers),
        TEST(unusable_folders),
        TEST(survey),
        TEST(random_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
