/*
 * test_convfile.c - conversation files: what is written is read back, no byte of a file can change
 * unnoticed, each error of a write leaves what was there before, and writers of one name never mix.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../check.h"
#include "base/fault.h"
#include "base/file.h"
#include "store/convfile.h"

#define N(a) (sizeof(a) / sizeof *(a))

/* The last of the pieces may be a draft's instead, a chain of its own. */
enum { PIECES = 5, DRAFT = 2, PARTS = 2, BYTES = 4500 };
static const int32_t lengths[PIECES] = {70, 1, 300, 69, 200};
enum { TOKENS = 371, DRAFT_TOKENS = 269 };

/* A conversation whose every byte depends on `seed`, an even one with a draft's records. */
struct talk {
    int32_t tokens[400];
    uint8_t bytes[PIECES][PARTS][BYTES];
    struct iovec parts[PIECES][PARTS];
    struct conv_piece pieces[PIECES];
    struct conv_text text;
};

static struct talk *make_talk(uint8_t seed)
{
    struct talk *t = calloc(1, sizeof *t);
    int32_t at = 0;
    for (int32_t i = 0; i < 400; i++)
        t->tokens[i] = i * 7919 % 50000 + seed;
    for (int32_t i = 0; i < PIECES; i++) {
        at = i == PIECES - DRAFT ? 0 : at;
        for (int32_t k = 0; k < PARTS; k++) {
            size_t n = k ? BYTES : 100 + (size_t)i;
            for (size_t j = 0; j < n; j++)
                t->bytes[i][k][j] = (uint8_t)(seed + i * 31 + k * 7 + (int32_t)j);
            t->parts[i][k] = (struct iovec){t->bytes[i][k], n};
        }
        t->pieces[i] = (struct conv_piece){.id = {.from = at,
                                                  .n_token = lengths[i],
                                                  .tokens = t->tokens + at,
                                                  .note = STR_LIT("a note")},
                                           .parts = t->parts[i],
                                           .n_part = PARTS};
        at += lengths[i];
    }
    t->text = (struct conv_text){.about = STR_LIT("a model (tiny)"),
                                 .model = {.pieces = t->pieces, .n_piece = PIECES - DRAFT}};
    if (seed % 2 == 0)
        t->text.draft = (struct conv_chain){.pieces = t->pieces + PIECES - DRAFT, .n_piece = DRAFT};
    memset(t->text.draft.model.b, seed % 2 ? 0 : 0x33, sizeof t->text.draft.model.b);
    memset(t->text.model.model.b, 0x5a, sizeof t->text.model.model.b);
    return t;
}

static void write_talk(const char *dir, const char *name, const struct talk *t,
                       struct conv_info *info)
{
    struct qn_err err = {0};
    CHECK_OK(conv_write(dir, name, &t->text, NULL, info, &err), err);
}

static struct buf path_of(const char *dir, const char *name)
{
    struct buf b = BUF_INIT;
    conv_path(&b, dir, name);
    return b;
}

/* Names in a folder, whatever they are. */
static size_t count_files(const char *dir)
{
    char **names;
    size_t n;
    struct qn_err err = {0};
    CHECK_OK(dir_list(dir, &names, &n, &err), err);
    names_free(names, n);
    return n;
}

static void end(char *dir, struct talk *t)
{
    struct qn_err err = {0};
    CHECK_OK(dir_remove(dir, &err), err);
    free(dir);
    free(t);
}

/* ---- there and back -------------------------------------------------------------------------- */

static void check_same(const char *path, const struct talk *t)
{
    struct conv *c;
    struct qn_err err = {0};
    static uint8_t got[PARTS][BYTES];
    int32_t tokens[400], at = 0;
    CHECK_OK(conv_open(path, &c, &err), err);
    assert_int_equal(conv_info(c)->n_record, PIECES - DRAFT);
    assert_int_equal(conv_info(c)->n_draft_record, t->text.draft.n_piece);
    for (int32_t i = 0; i < PIECES - DRAFT + t->text.draft.n_piece; i++) {
        struct iovec to[PARTS];
        const struct record *r = conv_record(c, i);
        at = i == PIECES - DRAFT ? 0 : at;
        assert_int_equal(r->n_part, PARTS);
        for (int32_t k = 0; k < PARTS; k++)
            to[k] = (struct iovec){got[k], t->parts[i][k].iov_len};
        CHECK_OK(conv_read(c, i, to, &err), err);
        for (int32_t k = 0; k < PARTS; k++)
            assert_memory_equal(got[k], t->bytes[i][k], to[k].iov_len);
        record_tokens(r, tokens);
        assert_memory_equal(tokens, t->tokens + at, (size_t)lengths[i] * 4);
        CHECK_STR(r->id.note, "a note");
        at += lengths[i];
        to[0].iov_len--;
        CHECK_FAILS(conv_read(c, i, to, &err), QN_BAD_INPUT, err, "expected");
    }
    conv_close(c);
}

/* Version: of the format, in the file. */
static void check_there_and_back(uint8_t seed, uint32_t version)
{
    char *dir = check_tmp_dir();
    struct talk *t = make_talk(seed);
    struct buf text = BUF_INIT;
    struct conv_info info, seen;
    struct qn_err err = {0};
    struct stat sb;
    write_talk(dir, "fox", t, &info);
    struct buf path = path_of(dir, "fox");
    assert_int_equal(stat(buf_z(&path), &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    assert_int_equal(sb.st_size, info.bytes);
    CHECK_OK(conv_look(buf_z(&path), &seen, &err), err);
    assert_memory_equal(&seen, &info, sizeof info);
    assert_string_equal(seen.about, "a model (tiny)");
    assert_int_equal(seen.n_token, TOKENS);
    assert_int_equal(seen.n_draft_token, version == CONV_VERSION ? 0 : DRAFT_TOKENS);
    assert_memory_equal(&seen.draft, &t->text.draft.model, sizeof seen.draft);
    CHECK_OK(file_read(buf_z(&path), 1 << 20, &text, &err), err);
    assert_int_equal((uint8_t)text.p[8], version);
    buf_free(&text);
    check_same(buf_z(&path), t);
    CHECK_OK(conv_verify(buf_z(&path), &seen, &err), err);
    write_talk(dir, "fox", t, &seen); /* over itself: the same bytes */
    assert_string_equal(seen.sum, info.sum);
    assert_int_equal(count_files(dir), 1);
    CHECK_OK(conv_remove(dir, "fox", &err), err);
    CHECK_FAILS(conv_remove(dir, "fox", &err), QN_NOT_FOUND, err, "no conversation");
    CHECK_FAILS(conv_look(buf_z(&path), &seen, &err), QN_NOT_FOUND, err, "no such file");
    buf_free(&path);
    end(dir, t);
}

static void read_back(void **state)
{
    check_there_and_back(1, 1);
    check_there_and_back(2, 2);
}

static void names(void **state)
{
    static const char *const good[] = {"a", "A-z_0.9", "x..y", "-"}, *const bad[] = {
                                                                         "",    ".",        "..",
                                                                         ".a",  "a/b",      "a b",
                                                                         "a\n", "\xc3\xa4", "a\\b",
                                                                         "a:b"};
    char longest[66];
    for (size_t i = 0; i < N(good); i++)
        assert_true(conv_name_ok(str_of(good[i])));
    for (size_t i = 0; i < N(bad); i++)
        assert_false(conv_name_ok(str_of(bad[i])));
    memset(longest, 'x', sizeof longest);
    assert_true(conv_name_ok((struct str){longest, CONV_NAME_MAX}));
    assert_false(conv_name_ok((struct str){longest, CONV_NAME_MAX + 1}));
    assert_false(conv_name_ok((struct str){"a\0b", 3}));
}

static void limits(void **state)
{
    char *dir = check_tmp_dir();
    struct talk *t = make_talk(1);
    struct conv_info info;
    struct qn_err err;
    struct conv_text x = t->text;
    x.model.n_piece = 0;
    CHECK_FAILS(conv_write(dir, "a", &x, NULL, &info, &err), QN_UNSUPPORTED, err, "at most");
    x.model.n_piece = CONV_RECORD_MAX + 1;
    CHECK_FAILS(conv_write(dir, "a", &x, NULL, &info, &err), QN_UNSUPPORTED, err, "at most");
    CHECK_FAILS(conv_write(dir, "../a", &t->text, NULL, &info, &err), QN_UNSUPPORTED, err, "..");
    x = t->text;
    x.draft = (struct conv_chain){.pieces = t->pieces + 1, .n_piece = 2}; /* not from token 0 */
    CHECK_FAILS(conv_write(dir, "a", &x, NULL, &info, &err), QN_UNSUPPORTED, err, "a:");
    t->pieces[1].id.from++; /* a gap */
    CHECK_FAILS(conv_write(dir, "a", &t->text, NULL, &info, &err), QN_UNSUPPORTED, err, "a:");
    assert_int_equal(count_files(dir), 0);
    end(dir, t);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void flip(int fd, off_t at, uint8_t mask)
{
    uint8_t b;
    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= mask;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
}

/* Every byte, one bit of it at a time, each bit in turn. */
static void check_each_byte(uint8_t seed)
{
    char *dir = check_tmp_dir();
    struct talk *t = make_talk(seed);
    struct conv_info info, seen;
    struct qn_err err = {0};
    write_talk(dir, "t", t, &info);
    struct buf path = path_of(dir, "t");
    int fd = open(buf_z(&path), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    for (off_t at = 0; at < info.bytes; at += at < 700 ? 1 : 13) {
        uint8_t mask = (uint8_t)(1u << at % 8);
        flip(fd, at, mask);
        err = (struct qn_err){0};
        enum qn_status s = conv_verify(buf_z(&path), &seen, &err);
        if (s != QN_BAD_INPUT && !(s == QN_UNSUPPORTED && at >= 8 && at < 12))
            fail_msg("byte %lld: status %d: %s", (long long)at, s, err.msg);
        assert_non_null(strstr(err.msg, "t.qconv"));
        flip(fd, at, mask);
    }
    CHECK_OK(conv_verify(buf_z(&path), &seen, &err), err);
    assert_int_equal(pwrite(fd, "x", 1, info.bytes), 1); /* longer */
    CHECK_FAILS(conv_verify(buf_z(&path), &seen, &err), QN_BAD_INPUT, err, "its head says");
    for (int64_t n = info.bytes - 1; n >= 0; n = n > 100 ? n - 997 : n - 1) {
        assert_int_equal(ftruncate(fd, n < 0 ? 0 : n), 0);
        assert_int_equal(conv_verify(buf_z(&path), &seen, &err), QN_BAD_INPUT);
    }
    close(fd);
    buf_free(&path);
    end(dir, t);
}

static void each_byte_counts(void **state)
{
    check_each_byte(3);
    check_each_byte(4);
}

/* Versions to come are named, whatever is behind. */
static void other_versions(void **state)
{
    char *dir = check_tmp_dir();
    struct talk *t = make_talk(2);
    struct conv_info info;
    struct qn_err err;
    write_talk(dir, "t", t, &info);
    struct buf path = path_of(dir, "t");
    int fd = open(buf_z(&path), O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "\3", 1, 8), 1);
    CHECK_FAILS(conv_look(buf_z(&path), &info, &err), QN_UNSUPPORTED, err, "of format 3");
    assert_int_equal(pwrite(fd, "\1", 1, 8), 1); /* no draft in that one */
    CHECK_FAILS(conv_look(buf_z(&path), &info, &err), QN_BAD_INPUT, err, "lengths");
    close(fd);
    buf_free(&path);
    end(dir, t);
}

static void foreign_files(void **state)
{
    char *dir = check_tmp_dir();
    struct conv_info info;
    struct qn_err err = {0};
    struct buf path = path_of(dir, "x"), text = BUF_INIT;
    for (int i = 0; i < 2000; i++)
        buf_addz(&text, "any text. ");
    CHECK_OK(file_write_atomic(buf_z(&path), buf_str(&text), &err), err);
    CHECK_FAILS(conv_look(buf_z(&path), &info, &err), QN_BAD_INPUT, err, "no conversation file");
    unlink(buf_z(&path));
    assert_int_equal(symlink("/etc/hostname", buf_z(&path)), 0);
    CHECK_FAILS(conv_look(buf_z(&path), &info, &err), QN_BAD_INPUT, err, "symbolic link");
    unlink(buf_z(&path));
    assert_int_equal(mkfifo(buf_z(&path), 0600), 0); /* does not wait for a writer */
    CHECK_FAILS(conv_look(buf_z(&path), &info, &err), QN_BAD_INPUT, err, "not a regular file");
    buf_free(&path);
    buf_free(&text);
    end(dir, NULL);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void faults_of_writing(void **state)
{
    static const char *const points[] = {"conv.create", "conv.write.full", "conv.write.io",
                                         "conv.sync", "conv.rename"};
    char *dir = check_tmp_dir();
    struct talk *old = make_talk(1), *t = make_talk(2);
    struct conv_info info;
    struct qn_err err;
    write_talk(dir, "t", old, &info);
    struct buf path = path_of(dir, "t");
    for (size_t i = 0; i < N(points); i++)
        for (int64_t nth = 1;; nth++) {
            err = (struct qn_err){0};
            fault_arm(points[i], nth);
            enum qn_status s = conv_write(dir, "t", &t->text, NULL, &info, &err);
            if (fault_disarm() < nth) {
                assert_true(nth > 1);
                assert_int_equal(s, QN_OK);
                write_talk(dir, "t", old, &info);
                break;
            }
            if (s != QN_IO || !err.msg[0])
                fail_msg("%s, %lld: status %d", points[i], (long long)nth, s);
            check_same(buf_z(&path), old);
            assert_int_equal(count_files(dir), 1);
        }
    fault_arm_from("conv.write.short", 1);
    write_talk(dir, "t", t, &info);
    assert_true(fault_disarm() > 8);
    check_same(buf_z(&path), t);
    fault_arm("conv.sync.folder", 1); /* then the new one is there, and it is told */
    CHECK_FAILS(conv_write(dir, "t", &old->text, NULL, &info, &err), QN_IO, err, "folder");
    fault_disarm();
    check_same(buf_z(&path), old);
    fault_arm("conv.unlink", 1);
    CHECK_FAILS(conv_remove(dir, "t", &err), QN_IO, err, "cannot be removed");
    fault_disarm();
    atomic_bool stop;
    atomic_init(&stop, true);
    CHECK_FAILS(conv_write(dir, "t", &t->text, &stop, &info, &err), QN_CANCELLED, err, "stops");
    check_same(buf_z(&path), old);
    assert_int_equal(count_files(dir), 1);
    buf_free(&path);
    free(old);
    end(dir, t);
}

static void faults_of_reading(void **state)
{
    char *dir = check_tmp_dir();
    struct talk *t = make_talk(1);
    struct conv_info info;
    struct qn_err err;
    write_talk(dir, "t", t, &info);
    struct buf path = path_of(dir, "t");
    for (int64_t nth = 1;; nth++) {
        err = (struct qn_err){0};
        fault_arm("conv.read", nth);
        enum qn_status s = conv_verify(buf_z(&path), &info, &err);
        if (fault_disarm() < nth) {
            assert_int_equal(s, QN_OK);
            assert_true(nth > 2 + PIECES);
            break;
        }
        assert_int_equal(s, QN_IO); /* a disk that does not answer is no damage */
    }
    buf_free(&path);
    end(dir, t);
}

/* ---- folders, writers ------------------------------------------------------------------------ */

static void left_overs(void **state)
{
    char *dir = check_tmp_dir();
    struct qn_err err = {0};
    struct buf mine = BUF_INIT, dead = BUF_INIT, sub = BUF_INIT;
    struct stat sb;
    path_join(&mine, dir, ".a.1.0.part");
    path_join(&dead, dir, ".b.1.0.part");
    int fd = open(buf_z(&mine), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0); /* somebody writes it */
    CHECK_OK(file_write_atomic(buf_z(&dead), STR_LIT("half"), &err), err);
    CHECK_OK(conv_folder(dir, &err), err);
    assert_true(file_exists(buf_z(&mine)));
    assert_false(file_exists(buf_z(&dead)));
    close(fd);
    CHECK_OK(conv_folder(dir, &err), err);
    assert_int_equal(count_files(dir), 0);
    path_join(&sub, dir, "new");
    CHECK_OK(conv_folder(buf_z(&sub), &err), err);
    assert_int_equal(stat(buf_z(&sub), &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    fault_arm("conv.create", 1);
    CHECK_FAILS(conv_folder(buf_z(&sub), &err), QN_IO, err, "no conversation can be saved there");
    fault_disarm();
    struct talk *t = make_talk(1);
    struct conv_info info;
    path_join(&sub, dir, "gone");
    CHECK_FAILS(conv_write(buf_z(&sub), "t", &t->text, NULL, &info, &err), QN_IO, err, "folder");
    free(t);
    path_join(&sub, dir, "no/such");
    assert_int_not_equal(conv_folder(buf_z(&sub), &err), QN_OK);
    buf_free(&mine);
    buf_free(&dead);
    buf_free(&sub);
    end(dir, NULL);
}

struct seen {
    int n;
    char names[8][CONV_NAME_MAX + 1];
    enum qn_status status[8];
};

static void see(void *arg, const struct conv_found *f)
{
    struct seen *s = arg;
    assert_true(s->n < 8);
    snprintf(s->names[s->n], sizeof s->names[0], "%s", f->name);
    s->status[s->n++] = f->status;
}

static void the_list(void **state)
{
    char *dir = check_tmp_dir();
    struct talk *t = make_talk(1);
    struct conv_info info;
    struct qn_err err = {0};
    struct seen s = {0};
    write_talk(dir, "b", t, &info);
    write_talk(dir, "a", t, &info);
    struct buf path = path_of(dir, "c");
    CHECK_OK(file_write_atomic(buf_z(&path), STR_LIT("no"), &err), err);
    path_join(&path, dir, "other.txt");
    CHECK_OK(file_write_atomic(buf_z(&path), STR_LIT("no"), &err), err);
    CHECK_OK(conv_each(dir, false, see, &s, &err), err);
    assert_int_equal(s.n, 3);
    assert_string_equal(s.names[0], "a");
    assert_string_equal(s.names[1], "b");
    assert_string_equal(s.names[2], "c");
    assert_int_equal(s.status[0], QN_OK);
    assert_int_equal(s.status[2], QN_BAD_INPUT);
    buf_free(&path);
    end(dir, t);
}

struct racer {
    const char *dir;
    const struct talk *t;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    for (int i = 0; i < 8; i++) {
        struct conv_info info;
        struct qn_err err = {0};
        if (conv_write(r->dir, "t", &r->t->text, NULL, &info, &err) != QN_OK)
            return "failed";
    }
    return NULL;
}

/* Whatever is there under the name at any time is one of them, whole. */
static void two_writers(void **state)
{
    char *dir = check_tmp_dir();
    struct talk *t[2] = {make_talk(1), make_talk(9)};
    struct racer r[2] = {{dir, t[0]}, {dir, t[1]}};
    struct conv_info info[2], seen;
    struct qn_err err = {0};
    pthread_t th[2];
    write_talk(dir, "t", t[0], &info[0]);
    write_talk(dir, "t", t[1], &info[1]);
    struct buf path = path_of(dir, "t");
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&th[i], NULL, race, &r[i]), 0);
    for (int i = 0; i < 50; i++) {
        CHECK_OK(conv_verify(buf_z(&path), &seen, &err), err);
        assert_true(!strcmp(seen.sum, info[0].sum) || !strcmp(seen.sum, info[1].sum));
    }
    for (int i = 0; i < 2; i++) {
        void *failed;
        assert_int_equal(pthread_join(th[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(count_files(dir), 1);
    buf_free(&path);
    free(t[0]);
    end(dir, t[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_back),
        cmocka_unit_test(names),
        cmocka_unit_test(limits),
        cmocka_unit_test(each_byte_counts),
        cmocka_unit_test(other_versions),
        cmocka_unit_test(foreign_files),
        cmocka_unit_test(faults_of_writing),
        cmocka_unit_test(faults_of_reading),
        cmocka_unit_test(left_overs),
        cmocka_unit_test(the_list),
        cmocka_unit_test(two_writers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
