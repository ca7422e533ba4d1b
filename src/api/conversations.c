/*
 * conversations.c - see conversations.h. Which tokens a conversation is, is decided as for an
 * answer to it: the same fields, the same template. Saving and restoring wait for the scheduler;
 * the list and the rest read the folder themselves.
 */
#include "api/conversations.h"

#include "api/api_fields.h"
#include "base/clock.h"
#include "store/convfile.h"

#define NAME_FIELD "name"

enum { WAIT_MS = 10 * 60 * 1000 };

/* ---- refusals ------------------------------------------------------------------------------- */

/* A name that may be one, as a C string, where there is a folder at all. */
static enum qn_status name_of(const struct api_model *m, struct str name,
                              char out[CONV_NAME_MAX + 1], struct api_error *e)
{
    if (!m->conversations)
        return api_refuse(e, 400, "no_conversations", NULL,
                          "this server keeps no files of conversations; start it with "
                          "--conversations DIR");
    if (!conv_name_ok(name))
        return api_refuse(e, 400, "invalid_value", NAME_FIELD,
                          "a conversation's name has 1 to %d of A-Z a-z 0-9 . _ - and begins with "
                          "no dot",
                          CONV_NAME_MAX);
    memcpy(out, name.p, name.n);
    out[name.n] = 0;
    return QN_OK;
}

static enum qn_status refuse(const struct qn_err *err, bool restore, struct api_error *e)
{
    switch (err->code) {
    case QN_NOT_FOUND:
        return restore ? api_refuse(e, 404, "not_found", NAME_FIELD, "%s", err->msg)
                       : api_refuse(e, 409, "not_cached", NULL, "%s", err->msg);
    case QN_UNSUPPORTED:
        return api_refuse(e, 409, "other_model", NAME_FIELD, "%s", err->msg);
    case QN_BAD_INPUT:
        return api_refuse(e, 422, "damaged", NAME_FIELD, "%s", err->msg);
    case QN_NO_MEMORY:
        return api_refuse(e, 413, "too_large", NAME_FIELD, "%s", err->msg);
    case QN_BUSY:
        return api_refuse(e, 503, "busy", NULL, "%s", err->msg);
    case QN_IO:
        return api_refuse(e, 500, "io_error", NAME_FIELD, "%s", err->msg);
    default:
        return api_refuse_err(e, err, NAME_FIELD);
    }
}

/* ---- saving and restoring ------------------------------------------------------------------- */

static enum qn_status run(struct sched *s, const struct cache_file_ask *ask,
                          struct cache_file_told *told, struct api_error *e)
{
    if (!sched_cache_file(s, ask, WAIT_MS, told))
        return api_refuse(e, 504, "timeout", NULL,
                          "not ended within %d s; it goes on: ask for the list later",
                          WAIT_MS / 1000);
    return told->err.code == QN_OK ? QN_OK : refuse(&told->err, ask->restore, e);
}

static void tell(const char *name, const struct cache_file_told *told, int32_t n_prompt, int64_t us,
                 struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "name", name);
    jw_ki64(&w, "tokens", told->tokens);
    if (n_prompt)
        jw_ki64(&w, "prompt_tokens", n_prompt);
    if (told->draft_tokens)
        jw_ki64(&w, "draft_tokens", told->draft_tokens);
    jw_ki64(&w, "bytes", told->bytes);
    if (told->draft_bytes)
        jw_ki64(&w, "draft_bytes", told->draft_bytes);
    jw_kstrz(&w, "checksum", told->sum);
    jw_kreal(&w, "ms", (double)(us / 100) / 10);
    jw_obj_end(&w);
}

/* The body's tokens. *r is to be freed in every case. */
static enum qn_status tokens_of(const struct api_model *m, struct str body, struct api_request *r,
                                struct api_error *e)
{
    struct json *o = NULL;
    enum qn_status st = api_body_read(body, &o, e);
    bool chat = json_has(o, "messages"), raw = json_has(o, "prompt");
    json_free(o);
    QN_TRY(st);
    if (chat == raw)
        return api_refuse(e, 400, "invalid_value", chat ? "prompt" : "messages",
                          "the body names a conversation by messages, as chat completions take "
                          "them, or by prompt: expected one of the two");
    QN_TRY(
        api_request_read(chat ? &dialect_openai_chat : &dialect_openai_completions, m, body, r, e));
    r->any_length = true;
    QN_TRY(api_tokenise(m, r, e));
    if (r->n_prompts != 1)
        return api_refuse(e, 400, "invalid_value", "prompt", "%d prompts; expected one",
                          r->n_prompts);
    return QN_OK;
}

enum qn_status conversation_save(const struct api_model *m, struct sched *s, struct str name,
                                 struct str body, struct buf *out, struct api_error *e)
{
    struct api_request r = {0};
    struct cache_file_ask ask = {0};
    struct cache_file_told told;
    char salt[65];
    int64_t t0 = clock_us();
    QN_TRY(name_of(m, name, ask.name, e));
    enum qn_status st = tokens_of(m, body, &r, e);
    if (st == QN_OK) {
        const struct api_prompt *p = &r.prompts[0];
        sha256(r.cache_salt.p, r.cache_salt.n, salt);
        ask.line = (struct qn_line){.ns = r.cache_salt.n ? salt : NULL,
                                    .ids = p->ids,
                                    .n_ids = p->n_ids < m->n_ctx ? p->n_ids : m->n_ctx};
        st = run(s, &ask, &told, e);
        if (st == QN_OK && !told.draft_bytes) /* what is there belongs to an older one */
            conv_remove_guesses(m->conversations, ask.name);
        if (st == QN_OK)
            tell(ask.name, &told, p->n_ids, clock_us() - t0, out);
    }
    api_request_free(&r);
    return st;
}

enum qn_status conversation_restore(const struct api_model *m, struct sched *s, struct str name,
                                    struct buf *out, struct api_error *e)
{
    struct cache_file_ask ask = {.restore = true};
    struct cache_file_told told;
    int64_t t0 = clock_us();
    QN_TRY(name_of(m, name, ask.name, e));
    QN_TRY(run(s, &ask, &told, e));
    tell(ask.name, &told, 0, clock_us() - t0, out);
    return QN_OK;
}

/* ---- the folder ----------------------------------------------------------------------------- */

static void row(const struct api_model *m, const struct conv_found *f, struct jw *w)
{
    const struct conv_info *i = &f->info;
    jw_obj(w);
    jw_kstrz(w, "name", f->name);
    jw_ki64(w, "tokens", i->n_token);
    if (i->n_draft_token)
        jw_ki64(w, "draft_tokens", i->n_draft_token);
    jw_ki64(w, "bytes", i->bytes);
    jw_ki64(w, "modified", i->modified_unix);
    jw_kstrz(w, "model", i->about);
    jw_kstrz(w, "checksum", i->sum);
    jw_kbool(w, "restorable",
             f->status == QN_OK && m->kv_fingerprint &&
                 memcmp(i->model.b, m->kv_fingerprint, sizeof i->model.b) == 0);
    if (f->status != QN_OK)
        jw_kstrz(w, "error", f->err.msg);
    jw_obj_end(w);
}

struct listing {
    const struct api_model *m;
    struct jw w;
};

static void list_row(void *arg, const struct conv_found *f)
{
    struct listing *l = arg;
    row(l->m, f, &l->w);
}

enum qn_status conversation_list(const struct api_model *m, struct buf *out, struct api_error *e)
{
    struct listing l = {.m = m};
    struct qn_err err = {0};
    char any[CONV_NAME_MAX + 1];
    QN_TRY(name_of(m, STR_LIT("any"), any, e));
    jw_init(&l.w, out);
    jw_obj(&l.w);
    jw_key(&l.w, "conversations");
    jw_arr(&l.w);
    enum qn_status st = conv_each(m->conversations, false, list_row, &l, &err);
    jw_arr_end(&l.w);
    jw_obj_end(&l.w);
    if (st == QN_NOT_FOUND) /* the folder, which was there when the server started */
        err.code = QN_IO;
    return st == QN_OK ? QN_OK : refuse(&err, true, e);
}

enum qn_status conversation_show(const struct api_model *m, struct str name, struct buf *out,
                                 struct api_error *e)
{
    char z[CONV_NAME_MAX + 1];
    struct buf path = BUF_INIT;
    struct jw w;
    QN_TRY(name_of(m, name, z, e));
    struct conv_found f = {.name = z};
    conv_path(&path, m->conversations, z);
    f.status = path.failed ? QN_NO_MEMORY : conv_look(buf_z(&path), &f.info, &f.err);
    buf_free(&path);
    if (f.status == QN_NO_MEMORY)
        return api_no_memory(e);
    if (f.status == QN_NOT_FOUND)
        return refuse(&f.err, true, e);
    jw_init(&w, out);
    row(m, &f, &w);
    return QN_OK;
}

enum qn_status conversation_delete(const struct api_model *m, struct str name, struct buf *out,
                                   struct api_error *e)
{
    char z[CONV_NAME_MAX + 1];
    struct qn_err err = {0};
    struct jw w;
    QN_TRY(name_of(m, name, z, e));
    conv_remove_guesses(m->conversations, z);
    if (conv_remove(m->conversations, z, &err) != QN_OK)
        return refuse(&err, true, e);
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "name", z);
    jw_kbool(&w, "deleted", true);
    jw_obj_end(&w);
    return QN_OK;
}
