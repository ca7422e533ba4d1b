/*
 * fingerprint.c - see fingerprint.h. Weights are summed whole, a piece at a time: a sample would
 * miss a fine-tuned tensor. That costs a read of the files, so sums are remembered in a memo: a
 * line for each file, which counts only while device, inode, size, mtime and ctime are the same. A
 * file changed within the last seconds is not remembered: its times could stay the same once more.
 */
#include "model/fingerprint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "exec/kv.h"
#include "model/engine_int.h"

#define WHERE "fingerprint"

enum { MEMO_BYTES = 1 << 20, SETTLED_S = 5, CONFIG_BYTES = 64 << 20 };

/* ---- one file of weights -------------------------------------------------------------------- */

static enum qn_status sum_file(const char *path, struct hash128 *out, struct qn_err *err)
{
    static const size_t piece = (size_t)64 << 20;
    struct file_map m;
    struct hash128 sums[2] = {{0, 0}, {0, 0}};
    QN_TRY(file_map_open(path, &m, err));
    for (size_t at = 0; at < m.n; at += piece) {
        size_t n = m.n - at < piece ? m.n - at : piece;
        sums[1] = hash128(m.p + at, n);
        sums[0] = hash128(sums, sizeof sums);
        file_map_drop(&m, at, n);
    }
    *out = sums[0];
    file_map_close(&m);
    return QN_OK;
}

/* What a file is known by. */
static void identity(const struct stat *sb, struct buf *out)
{
    buf_addf(out, "%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 ".%09ld %" PRId64 ".%09ld ",
             (uint64_t)sb->st_dev, (uint64_t)sb->st_ino, (int64_t)sb->st_size,
             (int64_t)sb->st_mtim.tv_sec, sb->st_mtim.tv_nsec, (int64_t)sb->st_ctim.tv_sec,
             sb->st_ctim.tv_nsec);
}

/* "identity sum\n" in the memo. */
static bool recall(const struct buf *memo, struct str who, struct hash128 *out)
{
    for (size_t at = 0; at < memo->n;) {
        const char *line = memo->p + at, *end = memchr(line, '\n', memo->n - at);
        size_t n = end ? (size_t)(end - line) : memo->n - at;
        char digits[33] = {0};
        if (n == who.n + 32 && memcmp(line, who.p, who.n) == 0) {
            memcpy(digits, line + who.n, 32);
            return sscanf(digits, "%16" SCNx64 "%16" SCNx64, &out->hi, &out->lo) == 2;
        }
        at += n + 1;
    }
    return false;
}

static enum qn_status weights_of(const char *path, struct buf *memo, bool *news, struct buf *out,
                                 struct qn_err *err)
{
    struct stat sb;
    struct hash128 sum;
    struct buf who = BUF_INIT;
    if (stat(path, &sb) != 0)
        return err_errno(err, WHERE, "%s: cannot stat", path);
    identity(&sb, &who);
    enum qn_status st = QN_OK;
    if (who.failed || !recall(memo, buf_str(&who), &sum)) {
        st = sum_file(path, &sum, err);
        if (st == QN_OK && clock_unix() - sb.st_ctim.tv_sec > SETTLED_S) {
            buf_addf(memo, "%s%016" PRIx64 "%016" PRIx64 "\n", buf_z(&who), sum.hi, sum.lo);
            *news = true;
        }
    }
    if (st == QN_OK) {
        struct str name = path_base(path);
        buf_addf(out, "weights " STR_FMT " %" PRId64 " %016" PRIx64 "%016" PRIx64 "\n",
                 STR_ARG(name), (int64_t)sb.st_size, sum.hi, sum.lo);
    }
    buf_free(&who);
    return st;
}

/* ---- a folder ------------------------------------------------------------------------------- */

static bool is_weights(const char *name)
{
    return str_ends(str_of(name), STR_LIT(".safetensors"));
}

static enum qn_status text_of(const char *path, const char *what, struct buf *out,
                              struct qn_err *err)
{
    struct buf text = BUF_INIT;
    char hex[65];
    enum qn_status st = file_read(path, CONFIG_BYTES, &text, err);
    if (st == QN_OK) {
        sha256(text.p, text.n, hex);
        buf_addf(out, "%s %s\n", what, hex);
    } else if (st == QN_NOT_FOUND) {
        buf_addf(out, "%s none\n", what);
        st = QN_OK;
    }
    buf_free(&text);
    return st;
}

static enum qn_status folder_of(const char *dir, struct buf *memo, bool *news, struct buf *out,
                                struct qn_err *err)
{
    struct buf path = BUF_INIT;
    char **names;
    size_t n;
    QN_TRY(dir_list(dir, &names, &n, err));
    enum qn_status st = QN_OK;
    for (size_t i = 0; st == QN_OK && i < n; i++) {
        bool text = strcmp(names[i], "config.json") == 0 || strcmp(names[i], "tokenizer.json") == 0;
        path_join(&path, dir, names[i]);
        st = buf_ok(&path, "a path", err);
        if (st == QN_OK && is_weights(names[i]))
            st = weights_of(buf_z(&path), memo, news, out, err);
        else if (st == QN_OK && text)
            st = text_of(buf_z(&path), names[i], out, err);
    }
    names_free(names, n);
    buf_free(&path);
    return st;
}

/* Adds what text says of dir's files to it, and sums it all. */
static enum qn_status sum_with(struct buf *text, const char *dir, const char *memo, uint8_t out[32],
                               struct qn_err *err)
{
    struct buf known = BUF_INIT;
    struct qn_err ignored;
    bool news = false;
    char hex[65];
    if (memo && file_read(memo, MEMO_BYTES, &known, &ignored) != QN_OK)
        buf_clear(&known);
    enum qn_status st = dir ? folder_of(dir, &known, &news, text, err) : QN_OK;
    if (st == QN_OK)
        st = buf_ok(text, "a fingerprint", err);
    if (st == QN_OK && memo && news && !known.failed && known.n < MEMO_BYTES)
        file_write_atomic(memo, buf_str(&known), &ignored); /* only saves time */
    if (st == QN_OK) {
        sha256(text->p, text->n, hex);
        for (size_t i = 0; i < 32; i++) {
            unsigned byte = 0;
            sscanf(hex + 2 * i, "%2x", &byte);
            out[i] = (uint8_t)byte;
        }
    }
    buf_free(&known);
    return st;
}

enum qn_status model_fingerprint(const struct qn_engine *e, const char *memo, uint8_t out[32],
                                 struct qn_err *err)
{
    struct buf text = BUF_INIT;
    buf_addf(&text, "quern kv\nnumerics %d\narith %s\nfamily %s\n", (int)FINGERPRINT_NUMERICS,
             e->info.arith, e->info.family);
    kv_layout_describe(e->ex, &text);
    enum qn_status st = sum_with(&text, e->dir, memo, out, err);
    buf_free(&text);
    return st;
}

/* Where the weights are, beside the model's own folder; empty = nowhere. */
static void head_folder(const struct qn_engine *e, struct buf *out)
{
    if (e->draft_dir)
        buf_addz(out, e->draft_dir);
    else
        path_join(out, e->dir, "mtp");
    if (!out->failed && !dir_exists(buf_z(out)))
        buf_clear(out);
}

enum qn_status model_head_fingerprint(const struct qn_engine *e, const uint8_t model[32],
                                      const char *memo, uint8_t out[32], struct qn_err *err)
{
    struct buf text = BUF_INIT, dir = BUF_INIT;
    buf_addz(&text, "quern head\nmodel ");
    for (size_t i = 0; i < 32; i++)
        buf_addf(&text, "%02x", model[i]);
    buf_addf(&text, "\nkind %s\nstate %s %d", e->dspark ? "block" : "head",
             e->model.hidden_normed ? "behind-norm" : "before-norm", e->state_cols);
    for (int32_t i = 0; i < e->model.taps.n; i++)
        buf_addf(&text, " %d", e->model.taps.layer[i]);
    buf_addc(&text, '\n');
    kv_layout_describe(e->draft.ex, &text);
    head_folder(e, &dir);
    enum qn_status st = buf_ok(&dir, "a path", err);
    if (st == QN_OK)
        st = sum_with(&text, dir.n ? buf_z(&dir) : NULL, memo, out, err);
    buf_free(&dir);
    buf_free(&text);
    return st;
}
