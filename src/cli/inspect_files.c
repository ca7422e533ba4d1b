/*
 * inspect_files.c - see inspect_files.h. The files stay mapped until closing; only their headers
 * are touched.
 */
#include "cli/inspect_files.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "model/safetensors.h"

static enum qn_status add_sizes(const char *dir, const struct st *st, struct inspect_files *f,
                                struct qn_err *err)
{
    struct buf path = BUF_INIT;
    for (int32_t i = 0; i < st_file_count(st); i++) {
        struct stat s;
        path_join(&path, dir, path_base(st_file_name(st, i)).p);
        if (stat(buf_z(&path), &s) == 0)
            f->bytes += s.st_size;
    }
    f->n_file = (size_t)st_file_count(st);
    buf_free(&path);
    return QN_OK;
}

enum qn_status inspect_files_open(const char *dir, struct inspect_files *f, struct qn_err *err)
{
    struct st *st = NULL;
    *f = (struct inspect_files){0};
    QN_TRY(st_open(dir, &st, err));
    f->state = st;
    f->n = (size_t)st_count(st);
    f->tensors = calloc(f->n + 1, sizeof *f->tensors);
    if (!f->tensors) {
        inspect_files_close(f);
        QN_FAIL(err, QN_NO_MEMORY, "inspect", "out of memory for %zu tensors", f->n);
    }
    for (size_t i = 0; i < f->n; i++) {
        const struct st_tensor *t = st_at(st, (int32_t)i);
        struct census_tensor *c = &f->tensors[i];
        *c = (struct census_tensor){.name = t->name,
                                    .dtype = t->dtype_name,
                                    .file = st_file_name(st, t->file),
                                    .n_dim = t->n_dim,
                                    .bytes = (int64_t)t->bytes};
        for (int d = 0; d < t->n_dim && d < CENSUS_DIM_MAX; d++)
            c->shape[d] = t->shape[d];
    }
    return add_sizes(dir, st, f, err);
}

void inspect_files_close(struct inspect_files *f)
{
    free(f->tensors);
    st_free(f->state);
    *f = (struct inspect_files){0};
}
