/*
 * fuzz_convfile.c - any bytes as a conversation file: refused with a reason, or all of it can be
 * read and each token and part is within it. The first input byte says whether lengths and
 * checksums of the head, and those of the records' headers in it, are put right, so that the checks
 * behind them are reached.
 */
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/convfile_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static void put64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

static void put_sum(uint8_t *p, struct hash128 sum)
{
    put64(p, sum.lo);
    put64(p + 8, sum.hi);
}

/* The sums of the records' headers, as far as they lie within the bytes. */
static void repair_rows(uint8_t *p, size_t n, uint64_t head)
{
    uint32_t n_record = get32(p + 48) + get32(p + 60);
    uint64_t at = head;
    uint8_t *row = p + head - CONV_SUM - (uint64_t)n_record * CONV_ROW;
    for (uint32_t i = 0; i < n_record; i++, row += CONV_ROW) {
        uint64_t off = conv_align(at), header, bytes;
        struct qn_err err;
        memcpy(&bytes, row, sizeof bytes);
        bytes = le64toh(bytes);
        if (off > n || bytes > n - off ||
            record_measure(p + off, n - off, &header, &err) != QN_OK || conv_align(header) > bytes)
            return;
        put_sum(row + 8, hash128(p + off, conv_align(header)));
        at = off + bytes;
    }
}

static void repair(uint8_t *p, size_t n, bool rows)
{
    if (n < CONV_HEAD || get32(p + 48) > CONV_RECORD_MAX || get32(p + 56) > CONV_ABOUT_MAX ||
        get32(p + 60) > CONV_RECORD_MAX)
        return;
    uint64_t head = conv_head_bytes(get32(p + 48), get32(p + 60), get32(p + 56));
    if (head > n)
        return;
    put64(p + 64, n);
    if (rows)
        repair_rows(p, n, head);
    put_sum(p + head - CONV_SUM, hash128(p, head - CONV_SUM));
}

static void use(struct conv *c)
{
    const struct conv_info *info = conv_info(c);
    int64_t tokens = 0, of_model = 0;
    struct qn_err err = {0};
    for (int32_t i = 0; i < info->n_record + info->n_draft_record; i++) {
        const struct record *r = conv_record(c, i);
        if (i == info->n_record) {
            of_model = tokens;
            tokens = 0;
        }
        int32_t *ids = malloc((size_t)r->id.n_token * sizeof *ids);
        QN_ASSERT(ids && r->id.from == tokens);
        record_tokens(r, ids);
        free(ids);
        tokens += r->id.n_token;
        if (conv_read(c, i, NULL, &err) != QN_OK)
            QN_ASSERT(err.msg[0]);
    }
    if (!info->n_draft_record) {
        of_model = tokens;
        tokens = 0;
    }
    QN_ASSERT(of_model == info->n_token && tokens == info->n_draft_token &&
              strlen(info->sum) == 32);
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n)
{
    static char path[64];
    struct conv *c = NULL;
    struct conv_info info;
    struct qn_err err = {0};
    if (!n)
        return 0;
    if (!path[0])
        snprintf(path, sizeof path, "/tmp/quern-fuzz.%d" CONV_SUFFIX, (int)getpid());
    uint8_t *p = malloc(n);
    QN_ASSERT(p);
    memcpy(p, in + 1, n - 1);
    if (in[0] & 1)
        repair(p, n - 1, in[0] & 2);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    QN_ASSERT(fd >= 0 && write(fd, p, n - 1) == (ssize_t)(n - 1));
    close(fd);
    enum qn_status head = conv_look(path, &info, &err);
    QN_ASSERT(head == QN_OK || err.msg[0]);
    if (conv_open(path, &c, &err) == QN_OK) {
        QN_ASSERT(head == QN_OK);
        use(c);
    } else {
        QN_ASSERT(err.msg[0]);
    }
    conv_close(c);
    unlink(path);
    free(p);
    return 0;
}
