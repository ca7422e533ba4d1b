/* cache_conv.c - see cache_conv.h. Reads files itself; no server is asked. */
#include "cli/cache_conv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"

bool conv_arg_is_file(const char *path)
{
    return str_ends(str_of(path), STR_LIT(CONV_SUFFIX)) && !dir_exists(path);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct reading {
    const struct cli *c;
    struct conv_rows *rows;
    bool whole;
};

static void add(void *arg, const struct conv_found *f)
{
    struct reading *g = arg;
    struct conv_rows *r = g->rows;
    struct conv_row *v = reallocarray(r->v, (size_t)r->n + 1, sizeof *v);
    char *name = v ? strdup(f->name) : NULL;
    if (v)
        r->v = v;
    if (!name) {
        r->no_memory = true;
        return;
    }
    struct conv_row *row = &v[r->n++];
    *row = (struct conv_row){.name = name, .info = f->info, .status = f->status};
    if (f->status == QN_OK)
        return;
    snprintf(row->error, sizeof row->error, "%.239s", f->err.msg);
    if (g->whole)
        cli_say(g->c, "%s: %s", f->path, f->err.msg);
}

static enum qn_status read_file(struct reading *g, const char *path, struct qn_err *err)
{
    struct str base = path_base(path);
    char name[CONV_NAME_MAX + 1] = "";
    base.n -= base.n < strlen(CONV_SUFFIX) ? 0 : strlen(CONV_SUFFIX);
    if (!conv_name_ok(base))
        QN_FAIL(err, QN_BAD_INPUT, "cache", "%s: is not a name that a conversation can have", path);
    memcpy(name, base.p, base.n);
    struct conv_found f = {.path = path, .name = name};
    f.status = g->whole ? conv_verify(path, &f.info, &f.err) : conv_look(path, &f.info, &f.err);
    if (f.status == QN_NOT_FOUND) {
        *err = f.err;
        return f.status;
    }
    add(g, &f);
    return QN_OK;
}

enum qn_status conv_rows_read(const struct cli *c, const char *path, bool whole,
                              struct conv_rows *out, struct qn_err *err)
{
    struct reading g = {c, out, whole};
    *out = (struct conv_rows){0};
    if (conv_arg_is_file(path))
        QN_TRY(read_file(&g, path, err));
    else
        QN_TRY(conv_each(path, whole, add, &g, err));
    if (out->no_memory)
        QN_FAIL(err, QN_NO_MEMORY, "cache", "out of memory for a list");
    return QN_OK;
}

void conv_rows_free(struct conv_rows *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->v[i].name);
    free(r->v);
    *r = (struct conv_rows){0};
}

int64_t conv_rows_bad(const struct conv_rows *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->n; i++)
        n += r->v[i].status != QN_OK && r->v[i].status != QN_UNSUPPORTED;
    return n;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void model_id(const struct conv_row *r, char out[65])
{
    record_name_hex(&r->info.model, out);
    out[16] = 0;
}

void conv_rows_text(const struct conv_rows *r, struct buf *out)
{
    for (int i = 0; i < r->n; i++) {
        const struct conv_row *c = &r->v[i];
        char when[32] = "?", id[65];
        time_t at = (time_t)c->info.modified_unix;
        struct tm tm;
        if (c->status != QN_OK) {
            buf_addf(out, "  %s" CONV_SUFFIX "  %s\n", c->name, c->error);
            continue;
        }
        if (localtime_r(&at, &tm))
            strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
        model_id(c, id);
        buf_addf(out, "  %s" CONV_SUFFIX "  %" PRId32 " tokens  ", c->name, c->info.n_token);
        cli_size_text(out, c->info.bytes);
        if (c->info.n_draft_token)
            buf_addz(out, "  with a draft head's");
        buf_addf(out, "  saved %s  %s  %s\n", when, id, c->info.about);
    }
}

void conv_rows_json(const struct conv_rows *r, struct jw *w)
{
    jw_arr(w);
    for (int i = 0; i < r->n; i++) {
        const struct conv_row *c = &r->v[i];
        char id[65];
        model_id(c, id);
        jw_obj(w);
        jw_kstrz(w, "name", c->name);
        jw_kstrz(w, "model", id);
        jw_kstrz(w, "about", c->info.about);
        jw_ki64(w, "tokens", c->info.n_token);
        jw_ki64(w, "draft_tokens", c->info.n_draft_token);
        jw_ki64(w, "bytes", c->info.bytes);
        jw_ki64(w, "modified", c->info.modified_unix);
        jw_kstrz(w, "checksum", c->info.sum);
        if (c->status != QN_OK)
            jw_kstrz(w, "error", c->error);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

/* ---- removing -------------------------------------------------------------------------------- */

static bool chosen(const struct conv_choice *w, const struct conv_row *r)
{
    char id[65];
    record_name_hex(&r->info.model, id);
    if (w->model && (r->status != QN_OK || strncmp(id, w->model, strlen(w->model)) != 0))
        return false;
    return !w->before || r->info.modified_unix < w->before;
}

enum qn_status conv_rows_remove(const char *dir, const struct conv_rows *r,
                                const struct conv_choice *which, struct buf *out,
                                struct qn_err *err)
{
    int64_t n = 0, bytes = 0;
    enum qn_status st = QN_OK;
    for (int i = 0; st == QN_OK && i < r->n; i++) {
        if (!chosen(which, &r->v[i]))
            continue;
        st = conv_remove(dir, r->v[i].name, err);
        n += st == QN_OK;
        bytes += st == QN_OK ? r->v[i].info.bytes : 0;
    }
    buf_addf(out, "%s: removed %" PRId64 " conversations, ", dir, n);
    cli_size_text(out, bytes);
    buf_addc(out, '\n');
    return st;
}
