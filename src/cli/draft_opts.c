/* draft_opts.c - see draft_opts.h. */
#include "cli/draft_opts.h"

#include "base/file.h"
#include "cli/model_arg.h"

#define WHERE "draft model"

const char *const draft_kinds[] = {"off", "ngram", "mtp", "two-model", "dspark", "assistant", NULL};
const char *const draft_heads[] = {"auto", "before-norm", "behind-norm", NULL};

static int kind_of(const struct draft_opts *o)
{
    return o->model && o->kind == SPEC_OFF ? SPEC_MODEL : o->kind;
}

void draft_opts_settle(const struct cli *c, struct draft_opts *o)
{
    if (o->kind == SPEC_OFF && cli_given(c, "draft-kind"))
        o->model = NULL;
}

enum qn_mtp_mode draft_opts_mtp(const struct draft_opts *o)
{
    static const enum qn_mtp_mode modes[] = {QN_MTP_DEFAULT, QN_MTP_BEFORE_NORM,
                                             QN_MTP_BEHIND_NORM};
    return kind_of(o) == SPEC_MTP ? modes[o->head] : QN_MTP_OFF;
}

int64_t draft_opts_disk(const struct draft_opts *o, int64_t bytes)
{
    return kind_of(o) == SPEC_MODEL ? bytes / 5 : 0;
}

enum qn_draft_kind draft_opts_kind(const struct draft_opts *o)
{
    int kind = kind_of(o);
    return kind == SPEC_DSPARK      ? QN_DRAFT_DSPARK
           : kind == SPEC_ASSISTANT ? QN_DRAFT_ASSISTANT
                                    : QN_DRAFT_NONE;
}

const char *draft_opts_model(const struct draft_opts *o)
{
    return draft_opts_kind(o) != QN_DRAFT_NONE ? o->model : NULL;
}

/* A guess is a token id: it has to mean the same to both. */
static enum qn_status same_tokens(const struct tok *a, const struct tok *b, const char *dir,
                                  struct qn_err *err)
{
    int32_t n = tok_size(a);
    if (tok_size(b) != n)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%s has a vocabulary of %d tokens, the model one of %d; they have to be the same",
                dir, tok_size(b), n);
    for (int32_t id = 0; id < n; id++)
        if (!str_eq(tok_piece(a, id), tok_piece(b, id)))
            QN_FAIL(
                err, QN_BAD_INPUT, WHERE,
                "token %d is \"%.*s\" in %s and \"%.*s\" in the model; the vocabularies have to "
                "be the same",
                id, (int)tok_piece(b, id).n, tok_piece(b, id).p, dir, (int)tok_piece(a, id).n,
                tok_piece(a, id).p);
    return QN_OK;
}

static enum qn_status open_draft(const struct draft_opts *o, const struct draft_target *t,
                                 struct served_engine *draft, struct qn_err *err)
{
    struct buf dir = BUF_INIT, disk = BUF_INIT, files = BUF_INIT;
    enum qn_status st = model_arg_find(o->model, &dir, err);
    if (t->disk_dir)
        path_join(&disk, t->disk_dir, CACHE_DRAFT_DIR);
    if (t->files_dir)
        path_join(&files, t->files_dir, CACHE_DRAFT_DIR);
    if (st == QN_OK)
        st = buf_ok(&disk, "a path", err);
    if (st == QN_OK)
        st = buf_ok(&files, "a path", err);
    if (st == QN_OK) {
        const struct served_params p = {.dir = buf_z(&dir),
                                        .threads = t->threads,
                                        .isolate = t->isolate,
                                        .cache_bytes = t->cache_bytes / 5,
                                        .disk_dir = t->disk_dir ? buf_z(&disk) : NULL,
                                        .disk_bytes = t->disk_bytes,
                                        .disk_idle_s = t->disk_idle_s,
                                        .files_dir = t->files_dir ? buf_z(&files) : NULL};
        st = served_open(&p, draft, err);
    }
    if (st == QN_OK)
        st = same_tokens(t->tok, draft->tok, buf_z(&dir), err);
    buf_free(&dir);
    buf_free(&disk);
    buf_free(&files);
    return st;
}

enum qn_status draft_opts_open(const struct draft_opts *o, const struct draft_target *t,
                               struct served_engine *draft, struct spec_params *out,
                               struct qn_err *err)
{
    int kind = kind_of(o);
    *draft = (struct served_engine){0};
    *out = (struct spec_params){.kind = (enum spec_kind)kind, .n_draft = (int32_t)o->n};
    if (o->model && kind != SPEC_MODEL && draft_opts_kind(o) == QN_DRAFT_NONE)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "--draft-model goes with --draft-kind two-model, dspark and assistant, not with %s",
                draft_kinds[kind]);
    if (kind == SPEC_MTP && !t->lm->ops->mtp_step)
        QN_FAIL(err, QN_UNSUPPORTED, WHERE,
                "--draft-kind mtp: this model has no draft head (tensors mtp.*, mtp.safetensors or "
                "mtp/weights.safetensors); ngram needs none");
    if (kind != SPEC_MODEL)
        return QN_OK;
    if (!o->model)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "--draft-kind two-model needs --draft-model");
    QN_TRY(open_draft(o, t, draft, err));
    out->draft = &draft->lm;
    return QN_OK;
}
