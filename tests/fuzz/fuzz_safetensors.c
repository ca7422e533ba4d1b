/*
 * fuzz_safetensors.c - any bytes as a tensor file. What ends in the last brace is the header: it
 * gets a right length in front, so that the checks behind it are reached (inputs of whole 8 bytes
 * are taken as they are). Every tensor handed out must be readable and found by its name.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void use(const struct st *s)
{
    char text[128];
    unsigned sum = 0;
    for (int32_t i = 0; i < st_count(s); i++) {
        const struct st_tensor *t = st_at(s, i);
        QN_ASSERT(st_find(s, t->name) == t);
        QN_ASSERT(t->n_dim >= 0 && t->n_dim <= ST_DIM_MAX && (t->data || t->bytes == 0));
        for (size_t j = 0; j < t->bytes; j++)
            sum += t->data[j];
        st_shape_text(t, text, sizeof text);
        st_drop(s, t);
    }
    QN_ASSERT(st_file_count(s) == 1 && sum != 1u << 31);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    int fd = memfd_create("fuzz", 0);
    if (fd < 0)
        return 0;
    /* the header ends at the last '}' */
    size_t head = n;
    while (head && p[head - 1] != '}')
        head--;
    uint64_t len = head;
    bool raw = n && !(n & 7);
    if ((!raw && write(fd, &len, 8) != 8) || write(fd, p, n) != (ssize_t)n) {
        close(fd);
        return 0;
    }
    char path[64];
    struct st *s = NULL;
    struct qn_err err;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (st_open_file(path, &s, &err) == QN_OK)
        use(s);
    else
        QN_ASSERT(err.msg[0]);
    st_free(s);
    close(fd);
    return 0;
}
