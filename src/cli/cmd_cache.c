/*
 * cmd_cache.c - `quern cache ls | rm | verify DIR...`: what the folders of --ssd-cache hold, by
 * model, and those of --conversations (cache_conv.h), by name; a draft model's folder inside of one
 * goes with it. Reads what is there itself; only rm changes anything, and the records of a cache
 * only while no server has the folder.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/cache_conv.h"
#include "cli/served.h"
#include "cli/verbs.h"
#include "store/store.h"

enum { MODELS_MAX = 256, DAY_S = 86400, PLACES_MAX = 64 };

struct cache_opts {
    bool json, all;
    const char *model;
    int64_t older;
};

static const struct cli_opt cache_opts[] = {
    {.name = "json",
     .type = CLI_FLAG,
     .help = "Prints JSON instead of a table.",
     .off = CLI_AT_FLAG(struct cache_opts, json)},
    {.name = "model",
     .type = CLI_STR,
     .arg = "ID",
     .help = "rm: the records of one model; ID is what ls shows, or the beginning of it.",
     .off = CLI_AT_STR(struct cache_opts, model)},
    {.name = "older",
     .type = CLI_INT,
     .arg = "DAYS",
     .min = 1,
     .max = 100000,
     .help = "rm: models of which nothing was read or written for so many days, and conversations "
             "that were saved so long ago.",
     .off = CLI_AT_INT(struct cache_opts, older)},
    {.name = "all",
     .type = CLI_FLAG,
     .help = "rm: everything.",
     .off = CLI_AT_FLAG(struct cache_opts, all)},
    {.type = CLI_END},
};

/* The records of a model in one folder. */
struct row {
    char id[17]; /* its folder's name */
    char about[200];
    int64_t records, tokens, bytes, used_unix;
    int64_t damaged, other_format, foreign, left_over;
};

struct table {
    struct row rows[MODELS_MAX];
    int n;
    const struct cli *c;
    bool tell; /* damage, as it is found */
};

/* ---- reading --------------------------------------------------------------------------------- */

/* The row of the folder that a file is in. */
static struct row *row_of(struct table *t, const char *path)
{
    const char *end = strrchr(path, '/');
    if (!end || end - path < 16)
        return NULL;
    for (int i = 0; i < t->n; i++)
        if (memcmp(t->rows[i].id, end - 16, 16) == 0)
            return &t->rows[i];
    if (t->n == MODELS_MAX)
        return NULL;
    struct row *r = &t->rows[t->n++];
    *r = (struct row){0};
    memcpy(r->id, end - 16, 16);
    return r;
}

static void found(void *arg, const struct store_find *f)
{
    struct table *t = arg;
    struct row *r = row_of(t, f->path);
    if (!r)
        return;
    if (f->left_over) {
        r->left_over++;
    } else if (f->status == QN_OK) {
        r->records++;
        r->tokens += f->n_token;
        r->bytes += f->bytes;
        r->used_unix = f->used_unix > r->used_unix ? f->used_unix : r->used_unix;
    } else if (f->status == QN_NOT_FOUND) {
        r->foreign++;
    } else if (f->status == QN_UNSUPPORTED) {
        r->other_format++;
    } else {
        r->damaged++;
        if (t->tell)
            cli_say(t->c, "%s", f->err.msg);
    }
}

static void read_about(const char *dir, struct row *r)
{
    struct buf path = BUF_INIT, text = BUF_INIT;
    struct qn_err ignored;
    path_join(&path, dir, r->id);
    buf_addz(&path, "/about");
    if (!path.failed && file_read(buf_z(&path), 4096, &text, &ignored) == QN_OK) {
        size_t n = strcspn(buf_z(&text), "\n");
        n = n < sizeof r->about - 1 ? n : sizeof r->about - 1;
        memcpy(r->about, buf_z(&text), n);
    }
    buf_free(&path);
    buf_free(&text);
}

static enum qn_status survey(const struct cli *c, const char *dir, bool whole, struct table *t,
                             struct qn_err *err)
{
    t->n = 0;
    t->c = c;
    t->tell = whole;
    QN_TRY(store_survey(dir, whole, found, t, err));
    for (int i = 0; i < t->n; i++)
        read_about(dir, &t->rows[i]);
    return QN_OK;
}

static struct table *table_create(struct qn_err *err)
{
    struct table *t = calloc(1, sizeof *t);
    if (!t)
        err_set(err, QN_NO_MEMORY, "cache", "out of memory for a table");
    return t;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void show_json(const char *dir, const struct table *t, const struct conv_rows *convs,
                      struct jw *w)
{
    jw_obj(w);
    jw_kstrz(w, "dir", dir);
    jw_key(w, "models");
    jw_arr(w);
    for (int i = 0; i < t->n; i++) {
        const struct row *r = &t->rows[i];
        jw_obj(w);
        jw_kstrz(w, "id", r->id);
        jw_kstrz(w, "about", r->about);
        jw_ki64(w, "records", r->records);
        jw_ki64(w, "tokens", r->tokens);
        jw_ki64(w, "bytes", r->bytes);
        jw_ki64(w, "last_used", r->used_unix);
        jw_ki64(w, "damaged", r->damaged);
        jw_ki64(w, "other_format", r->other_format);
        jw_ki64(w, "foreign", r->foreign);
        jw_ki64(w, "half_written", r->left_over);
        jw_obj_end(w);
    }
    jw_arr_end(w);
    jw_key(w, "conversations");
    conv_rows_json(convs, w);
    jw_obj_end(w);
}

static void show_row(const struct row *r, struct buf *out)
{
    char used[32] = "never";
    time_t at = (time_t)r->used_unix;
    struct tm tm;
    if (r->used_unix && localtime_r(&at, &tm))
        strftime(used, sizeof used, "%Y-%m-%d %H:%M", &tm);
    buf_addf(out, "  %s  %6" PRId64 " records  %9" PRId64 " tokens  ", r->id, r->records,
             r->tokens);
    cli_size_text(out, r->bytes);
    buf_addf(out, "  used %s  %s\n", used, r->about);
    if (r->damaged + r->other_format + r->foreign + r->left_over)
        buf_addf(out,
                 "      %" PRId64 " damaged, %" PRId64 " of another format, %" PRId64
                 " half-written, %" PRId64 " that are no records\n",
                 r->damaged, r->other_format, r->left_over, r->foreign);
}

static void show_table(const char *dir, const struct table *t, const struct conv_rows *convs,
                       struct buf *out)
{
    buf_addf(out, "%s\n", dir);
    if (!t->n && !convs->n)
        buf_addz(out, "  nothing is kept here\n");
    conv_rows_text(convs, out);
    for (int i = 0; i < t->n; i++)
        show_row(&t->rows[i], out);
}

/* One folder or file, in either form. */
static enum qn_status list_one(const struct cli *c, const char *path, bool whole, struct table *t,
                               struct conv_rows *convs, struct qn_err *err)
{
    t->n = 0;
    if (!conv_arg_is_file(path))
        QN_TRY(survey(c, path, whole, t, err));
    return conv_rows_read(c, path, whole, convs, err);
}

/* All folders into out; *bad: damaged records. */
static enum qn_status list(const struct cli *c, bool json, bool whole, struct buf *out,
                           int64_t *bad, struct qn_err *err)
{
    struct table *t = table_create(err);
    struct jw w;
    enum qn_status st = t ? QN_OK : QN_NO_MEMORY;
    jw_init(&w, out);
    if (json)
        jw_arr(&w);
    for (int i = 1; st == QN_OK && i < c->n_pos; i++) {
        struct conv_rows convs = {0};
        st = list_one(c, c->pos[i], whole, t, &convs, err);
        *bad += conv_rows_bad(&convs);
        for (int k = 0; st == QN_OK && k < t->n; k++)
            *bad += t->rows[k].damaged;
        if (st == QN_OK && json)
            show_json(c->pos[i], t, &convs, &w);
        else if (st == QN_OK)
            show_table(c->pos[i], t, &convs, out);
        conv_rows_free(&convs);
    }
    if (json) {
        jw_arr_end(&w);
        buf_addc(out, '\n');
    }
    free(t);
    return st == QN_OK ? buf_ok(out, "the list", err) : st;
}

/* ls and verify: the same, except that verify reads every byte and fails when one is wrong. */
static int show(const struct cli *c, const struct cache_opts *o, bool whole)
{
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    int64_t bad = 0;
    enum qn_status st = list(c, o->json, whole, &out, &bad, &err);
    if (st == QN_OK && whole && !bad && !o->json)
        buf_addz(&out, "every record is sound\n"); /* and every conversation is made of them */
    bool written = st != QN_OK || cli_write(c, buf_str(&out));
    buf_free(&out);
    if (st != QN_OK)
        return cli_fail(c, &err);
    return (whole && bad) || !written ? CLI_FAILED : CLI_OK;
}

/* ---- removing -------------------------------------------------------------------------------- */

static bool chosen(const struct cache_opts *o, const struct row *r)
{
    if (o->all)
        return true;
    if (o->model && strncmp(r->id, o->model, strlen(o->model)) != 0)
        return false;
    return !o->older || r->used_unix < (int64_t)time(NULL) - o->older * DAY_S;
}

static enum qn_status remove_rows(const struct cache_opts *o, const char *dir,
                                  const struct table *t, struct buf *out, struct qn_err *err)
{
    int64_t n = 0, bytes = 0;
    struct buf path = BUF_INIT;
    enum qn_status st = QN_OK;
    for (int i = 0; st == QN_OK && i < t->n; i++) {
        if (!chosen(o, &t->rows[i]))
            continue;
        path_join(&path, dir, t->rows[i].id);
        st = buf_ok(&path, "a path", err);
        if (st == QN_OK)
            st = dir_remove(buf_z(&path), err);
        if (st == QN_OK) {
            bytes += t->rows[i].bytes;
            n++;
        }
    }
    buf_free(&path);
    buf_addf(out, "%s: removed the records of %" PRId64 " models, ", dir, n);
    cli_size_text(out, bytes);
    buf_addc(out, '\n');
    return st;
}

/* The conversations of a folder, or one; *n: how many there were. */
static enum qn_status remove_convs(const struct cli *c, const struct cache_opts *o,
                                   const char *path, int *n, struct buf *out, struct qn_err *err)
{
    struct conv_rows convs;
    struct str base = path_base(path);
    struct buf dir = BUF_INIT;
    bool file = conv_arg_is_file(path);
    const struct conv_choice which = {
        .model = o->all ? NULL : o->model,
        .before = o->older && !o->all ? (int64_t)time(NULL) - o->older * DAY_S : 0};
    enum qn_status st = conv_rows_read(c, path, false, &convs, err);
    size_t front = file ? (size_t)(base.p - path) : strlen(path);
    buf_add(&dir, front ? path : ".", front ? front : 1);
    if (st == QN_OK)
        st = buf_ok(&dir, "a path", err);
    *n = convs.n;
    if (st == QN_OK && convs.n)
        st = conv_rows_remove(buf_z(&dir), &convs, &which, out, err);
    if (st == QN_OK && file && convs.n)
        conv_remove_guesses(buf_z(&dir), convs.v[0].name);
    conv_rows_free(&convs);
    buf_free(&dir);
    return st;
}

static enum qn_status remove_from(const struct cli *c, const struct cache_opts *o, const char *dir,
                                  struct table *t, struct buf *out, struct qn_err *err)
{
    int lock, n;
    if (conv_arg_is_file(dir))
        return remove_convs(c, o, dir, &n, out, err);
    if (!dir_exists(dir))
        QN_FAIL(err, QN_NOT_FOUND, "cache", "%s: there is no such folder", dir);
    QN_TRY(remove_convs(c, o, dir, &n, out, err));
    QN_TRY(survey(c, dir, false, t, err));
    if (n && !t->n) /* a folder of conversations alone needs no lock */
        return QN_OK;
    QN_TRY(store_lock(dir, 0, &lock, err));
    enum qn_status st = survey(c, dir, false, t, err);
    if (st == QN_OK)
        st = remove_rows(o, dir, t, out, err);
    close(lock);
    return st;
}

static int remove_all(const struct cli *c, const struct cache_opts *o)
{
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    struct table *t = table_create(&err);
    enum qn_status st = t ? QN_OK : QN_NO_MEMORY;
    for (int i = 1; st == QN_OK && i < c->n_pos; i++)
        st = remove_from(c, o, c->pos[i], t, &out, &err);
    cli_write(c, buf_str(&out));
    buf_free(&out);
    free(t);
    return st == QN_OK ? CLI_OK : cli_fail(c, &err);
}

/* What was named, each folder followed by its draft model's where it has one. */
struct places {
    struct cli c;
    const char *pos[1 + 2 * PLACES_MAX];
    struct buf drafts[PLACES_MAX];
    int n_draft;
};

static void places_of(const struct cli *c, struct places *p)
{
    int n = 0;
    *p = (struct places){.c = *c};
    for (int i = 0; i < c->n_pos; i++) {
        struct buf *draft = &p->drafts[p->n_draft];
        p->pos[n++] = c->pos[i];
        path_join(draft, c->pos[i], CACHE_DRAFT_DIR);
        if (i > 0 && !draft->failed && dir_exists(buf_z(draft))) {
            p->pos[n++] = buf_z(draft);
            p->n_draft++;
        } else {
            buf_free(draft);
        }
    }
    p->c.pos = p->pos;
    p->c.n_pos = n;
}

static void places_free(struct places *p)
{
    for (int i = 0; i < p->n_draft; i++)
        buf_free(&p->drafts[i]);
}

static int run_cache(const struct cli *c, void *opts)
{
    const struct cache_opts *o = opts;
    const char *what = c->pos[0];
    bool rm = strcmp(what, "rm") == 0;
    if (!rm && strcmp(what, "ls") != 0 && strcmp(what, "verify") != 0)
        return cli_usage(c, "\"%s\": expected ls, rm or verify", what);
    if (!rm && (o->model || o->older || o->all))
        return cli_usage(c, "--model, --older and --all are for rm");
    bool folders = false;
    for (int i = 1; i < c->n_pos; i++)
        folders = folders || !conv_arg_is_file(c->pos[i]);
    if (rm && folders && !o->model && !o->older && !o->all)
        return cli_usage(c, "rm needs --model ID, --older DAYS or --all");
    struct places p;
    places_of(c, &p);
    int rc = rm ? remove_all(&p.c, o) : show(&p.c, o, strcmp(what, "verify") == 0);
    places_free(&p);
    return rc;
}

const struct cli_verb verb_cache = {
    .name = "cache",
    .summary = "list, check or remove prompt caches on disk",
    .usage = "[options] ls|rm|verify DIR|FILE...",
    .about = "DIR is what `quern serve --ssd-cache` or --conversations was given, FILE one "
             "conversation. verify reads every record and fails "
             "when one is damaged; a server removes those itself when it meets them. rm works only "
             "while no server uses the folder; conversations go at any time. A second model that "
             "guesses has a folder inside of DIR, which goes with it.",
    .examples = "quern cache ls ~/kv\n"
                "quern cache verify ~/kv\n"
                "quern cache rm --older 30 ~/kv\n"
                "quern cache rm ~/talks/fox.qconv\n",
    .opts = cache_opts,
    .opts_size = sizeof(struct cache_opts),
    .pos_min = 2,
    .pos_max = PLACES_MAX,
    .pos_name = "DIR",
    .run = run_cache,
};
