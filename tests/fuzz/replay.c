/*
 * replay.c - the main of a fuzz target in an ordinary build: runs every file of a corpus folder,
 * then mutations of each, the same ones on every run. Stops mutating after BUDGET_US, so a slow
 * build does fewer of them but always all files.
 *
 * usage: replay_NAME CORPUS_DIR [MUTATIONS_PER_FILE] ; replay_NAME FILE runs one file.
 * When an input kills the target, the last line names the file and the mutation, and the bytes are
 * in the file it names.
 */
#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BUDGET_US       2000000
#define INPUT_MAX_BYTES ((size_t)1 << 20)
#define HANG_S          20
#define SEED            20261130u

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));
void __sanitizer_set_death_callback(void (*f)(void)) __attribute__((weak));

/* What is running now, for the last words. */
static struct {
    const uint8_t *p;
    size_t n;
    char what[256];
} now;

static void last_words(void)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/tmp/quern-fuzz-crash-%d", (int)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ssize_t done = -1;
    if (fd >= 0) {
        done = write(fd, now.p, now.n);
        close(fd);
    }
    int n = snprintf(line, sizeof line, "replay: died in %s; input saved as %s (%zd bytes)\n",
                     now.what, path, done);
    if (write(2, line, (size_t)n) < 0)
        _exit(99);
}

static void on_signal(int sig)
{
    last_words();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void watch_deaths(void)
{
    static const int sigs[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM};
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(last_words);
        signal(SIGABRT, on_signal);
        signal(SIGALRM, on_signal);
        return;
    }
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
        signal(sigs[i], on_signal);
}

static void run(const char *file, long mutation, const struct buf *in)
{
    /* A block of exactly this size: a sanitizer then sees a read of one byte too many. */
    uint8_t *copy = malloc(in->n ? in->n : 1);
    if (!copy)
        exit(1);
    memcpy(copy, in->p ? in->p : "", in->n);
    now.p = copy;
    now.n = in->n;
    snprintf(now.what, sizeof now.what, "%s, mutation %ld", file, mutation);
    alarm(HANG_S);
    LLVMFuzzerTestOneInput(copy, in->n);
    alarm(0);
    free(copy);
}

/* ---- mutations ------------------------------------------------------------------------------ */

struct dice {
    uint64_t file, mutation, draw;
};

static size_t roll(struct dice *d, size_t below)
{
    uint64_t v = rng_u64(SEED + d->file, d->mutation, d->draw++);
    return below ? (size_t)(v % below) : 0;
}

static void put_bytes(struct dice *d, struct buf *b)
{
    static const uint64_t extremes[] = {0,         1,          0x7F,       0xFF,
                                        0x7FFF,    0xFFFF,     INT32_MAX,  UINT32_MAX,
                                        INT64_MAX, UINT64_MAX, 1ull << 32, 1ull << 62};
    uint64_t v = extremes[roll(d, sizeof extremes / sizeof *extremes)];
    size_t width = (size_t)1 << roll(d, 4), at = roll(d, b->n);
    if (width > b->n - at)
        width = b->n - at;
    memcpy(b->p + at, &v, width);
}

static void put_text(struct dice *d, struct buf *b)
{
    static const char chars[] =
        "\"\\{}[]()<>,:;.%#-+*/|'0123456789eE \n\t\r\x01\x7F\x80\xC0\xED\xF0\xFF";
    b->p[roll(d, b->n)] = chars[roll(d, sizeof chars)];
}

/* Puts n bytes of src, from a random place, at a random place of b: over it or in between. */
static void graft(struct dice *d, struct buf *b, const struct buf *src)
{
    size_t from = roll(d, src->n), n = 1 + roll(d, src->n - from), at = roll(d, b->n + 1);
    struct buf out = BUF_INIT;
    size_t resume = roll(d, 2) ? at : at + n;
    buf_add(&out, b->p, at);
    buf_add(&out, src->p + from, n);
    if (resume < b->n)
        buf_add(&out, b->p + resume, b->n - resume);
    if (!out.failed && out.n <= 2 * INPUT_MAX_BYTES) {
        buf_free(b);
        *b = out;
    } else {
        buf_free(&out);
    }
}

static void mutate(struct dice *d, struct buf *b, const struct buf *other)
{
    for (size_t rounds = 1 + roll(d, 4); rounds; rounds--) {
        size_t kind = b->n ? roll(d, 7) : 6;
        if (kind == 0)
            b->p[roll(d, b->n)] ^= (char)(1u << roll(d, 8));
        else if (kind == 1)
            b->p[roll(d, b->n)] = (char)roll(d, 256);
        else if (kind == 2)
            put_bytes(d, b);
        else if (kind == 3)
            put_text(d, b);
        else if (kind == 4)
            b->n = roll(d, b->n);
        else if (kind == 5)
            graft(d, b, b->n ? &(struct buf){.p = b->p, .n = b->n} : other);
        else if (other->n)
            graft(d, b, other);
    }
}

/* ---- the corpus ----------------------------------------------------------------------------- */

struct corpus {
    char **names;
    struct buf *data;
    size_t n;
};

static bool load(const char *dir, struct corpus *c)
{
    struct qn_err err;
    struct buf path = BUF_INIT;
    if (dir_list(dir, &c->names, &c->n, &err) != QN_OK || c->n == 0) {
        fprintf(stderr, "replay: %s\n", c->n ? err.msg : "the corpus folder is empty or missing");
        return false;
    }
    c->data = calloc(c->n, sizeof *c->data);
    for (size_t i = 0; c->data && i < c->n; i++) {
        path_join(&path, dir, c->names[i]);
        if (file_read(buf_z(&path), INPUT_MAX_BYTES, &c->data[i], &err) != QN_OK) {
            fprintf(stderr, "replay: %s\n", err.msg);
            return false;
        }
    }
    buf_free(&path);
    return c->data != NULL;
}

static long replay(const struct corpus *c, long per_file)
{
    int64_t end = clock_us() + BUDGET_US;
    long done = 0;
    for (size_t i = 0; i < c->n; i++)
        run(c->names[i], 0, &c->data[i]);
    for (long m = 1; m <= per_file; m++) {
        for (size_t i = 0; i < c->n; i++, done++) {
            struct dice d = {.file = i, .mutation = (uint64_t)m};
            struct buf b = BUF_INIT;
            if (clock_us() > end)
                return done;
            buf_add(&b, c->data[i].p, c->data[i].n);
            mutate(&d, &b, &c->data[roll(&d, c->n)]);
            run(c->names[i], m, &b);
            buf_free(&b);
        }
    }
    return done;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s CORPUS_DIR [MUTATIONS_PER_FILE] | FILE\n", argv[0]);
        return 2;
    }
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    watch_deaths();
    struct corpus c = {0};
    if (file_exists(argv[1])) {
        struct buf one = BUF_INIT;
        struct qn_err err;
        if (file_read(argv[1], 4 * INPUT_MAX_BYTES, &one, &err) != QN_OK)
            return 1;
        run(argv[1], 0, &one);
        buf_free(&one);
        return 0;
    }
    if (!load(argv[1], &c))
        return 1;
    long done = replay(&c, argc > 2 ? atol(argv[2]) : 300);
    printf("%zu files, %ld mutations\n", c.n, done);
    for (size_t i = 0; i < c.n; i++)
        buf_free(&c.data[i]);
    free(c.data);
    names_free(c.names, c.n);
    return 0;
}
