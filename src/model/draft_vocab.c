/*
 * draft_vocab.c - whether a draft model's folder speaks the model's tokens: a guess is an id, which
 * has to mean the same to both. Folders without a tokenizer are taken at their word. While an
 * engine opens; changes nothing.
 */
#include "base/file.h"
#include "model/engine_int.h"
#include "tok/tok.h"

static bool has_tokenizer(const char *dir)
{
    struct buf path = BUF_INIT;
    path_join(&path, dir, "tokenizer.json");
    bool there = !path.failed && file_exists(buf_z(&path));
    buf_free(&path);
    return there;
}

/* Ids that only one of them has (tokens of a drafter's own, behind the others) are never drawn. */
static enum qn_status compare(const struct tok *model, const struct tok *draft, const char *dir,
                              struct qn_err *err)
{
    int32_t n = tok_size(model) < tok_size(draft) ? tok_size(model) : tok_size(draft);
    for (int32_t id = 0; id < n; id++) {
        struct str a = tok_piece(draft, id), b = tok_piece(model, id);
        if (!str_eq(a, b))
            QN_FAIL(err, QN_BAD_INPUT, "draft model",
                    "token %d is \"%.*s\" in %s and \"%.*s\" in the model; the vocabularies have "
                    "to be the same",
                    id, (int)a.n, a.p, dir, (int)b.n, b.p);
    }
    return QN_OK;
}

enum qn_status draft_vocab_check(const struct qn_engine *e, const char *dir, struct qn_err *err)
{
    struct tok *draft = NULL, *own = NULL;
    struct buf cache = BUF_INIT;
    struct qn_err ignored;
    if (!has_tokenizer(dir) || (!e->tok && !has_tokenizer(e->dir)))
        return QN_OK;
    const char *kept = cache_dir(&cache, &ignored) == QN_OK ? buf_z(&cache) : NULL;
    enum qn_status st = tok_open(dir, kept, &draft, err);
    if (st == QN_OK && !e->tok) /* with weights_only the text is somebody else's */
        st = tok_open(e->dir, kept, &own, err);
    if (st == QN_OK)
        st = compare(e->tok ? e->tok : own, draft, dir, err);
    tok_free(draft);
    tok_free(own);
    buf_free(&cache);
    return st;
}
