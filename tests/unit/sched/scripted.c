/* scripted.c - see scripted.h. One lock around everything; the sleeping is done outside it. */
#include "scripted.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/hash.h"
#include "base/json.h"

#define KEY_MAX 64

struct answer {
    int32_t *ids; /* [n] */
    int32_t n;
    bool loop;
    int32_t fail_at, nan_at; /* answer token; -1 = never */
};

struct entry {
    char *key;
    struct answer a;
};

struct sseq {
    int32_t number;
    int32_t *ids;
    int32_t n;
    int32_t n_prompt; /* -1 = still being read */
    bool echo;        /* its first step wanted the logits of every row */
    uint64_t hash;    /* of all tokens */
    struct answer a;  /* set with n_prompt */
};

struct scripted {
    struct scripted_params p;
    int32_t n_vocab;
    struct buf *pieces; /* [n_piece] */
    struct entry entries[KEY_MAX];
    int32_t n_entry;
    pthread_mutex_t mu;
    struct scripted_counts counts;
    struct scripted_call *calls;
    int64_t n_call;
    int64_t fail_step;
    bool fail_alone;
    int32_t max_seq;
    int64_t max_tokens;
    uint64_t *prompts; /* [n_known] hashes of those answered so far, with params.resumes */
    size_t n_known;
};

static const int32_t eos_ids[] = {SCRIPTED_EOS, SCRIPTED_IM_END};
static const char *const specials[] = {"<eos>", "<bos>", "<|im_start|>", "<|im_end|>"};

/* ---- tokenizer ----------------------------------------------------------------------------- */

/* The byte-level alphabet: printable bytes stand for themselves, the others for U+0100 on. */
static uint32_t letter_of(unsigned char b)
{
    uint32_t next = 256;
    for (uint32_t i = 0; i < 256; i++) {
        bool plain = (i >= '!' && i <= '~') || (i >= 0xa1 && i <= 0xac) || i >= 0xae;
        if (i == b)
            return plain ? i : next;
        next += !plain;
    }
    return 0;
}

static void vocab_entry(struct jw *w, struct str bytes, int32_t id)
{
    struct buf key = BUF_INIT;
    for (size_t i = 0; i < bytes.n; i++)
        buf_add_utf8(&key, letter_of((unsigned char)bytes.p[i]));
    jw_ki64(w, buf_z(&key), id);
    buf_free(&key);
}

static void added_token(struct jw *w, int32_t id, const char *content)
{
    jw_obj(w);
    jw_ki64(w, "id", id);
    jw_kstrz(w, "content", content);
    jw_kbool(w, "single_word", false);
    jw_kbool(w, "lstrip", false);
    jw_kbool(w, "rstrip", false);
    jw_kbool(w, "normalized", false);
    jw_kbool(w, "special", true);
    jw_obj_end(w);
}

static void byte_level(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_obj(w);
    jw_kstrz(w, "type", "ByteLevel");
    jw_kbool(w, "add_prefix_space", false);
    jw_kbool(w, "trim_offsets", true);
    jw_kbool(w, "use_regex", false);
    jw_obj_end(w);
}

void scripted_tok_json(const struct scripted_params *p, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "version", "1.0");
    jw_key(&w, "added_tokens");
    jw_arr(&w);
    for (int i = 0; i < 4; i++)
        added_token(&w, SCRIPTED_EOS + i, specials[i]);
    jw_arr_end(&w);
    jw_knull(&w, "normalizer");
    byte_level(&w, "pre_tokenizer");
    jw_knull(&w, "post_processor");
    byte_level(&w, "decoder");
    jw_key(&w, "model");
    jw_obj(&w);
    jw_kstrz(&w, "type", "BPE");
    jw_knull(&w, "unk_token");
    jw_kbool(&w, "byte_fallback", false);
    jw_key(&w, "vocab");
    jw_obj(&w);
    for (int b = 0; b < 256; b++)
        vocab_entry(&w, (struct str){&(char){(char)b}, 1}, b);
    for (int i = 0; i < 4; i++)
        jw_ki64(&w, specials[i], SCRIPTED_EOS + i);
    for (int32_t i = 0; i < p->n_piece; i++)
        vocab_entry(&w, p->pieces[i], SCRIPTED_PIECE + i);
    jw_obj_end(&w);
    jw_key(&w, "merges");
    jw_arr(&w);
    jw_arr_end(&w);
    jw_obj_end(&w);
    jw_obj_end(&w);
}

struct str scripted_tok_config(void)
{
    return STR_LIT(
        "{\"bos_token\":\"<bos>\",\"eos_token\":\"<eos>\",\"tokenizer_class\":\"GPT2Tokenizer\","
        "\"chat_template\":\"{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}"
        "<|im_end|>\\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n"
        "{% endif %}\"}");
}

/* ---- answers ------------------------------------------------------------------------------- */

static void answer_free(struct answer *a)
{
    free(a->ids);
    *a = (struct answer){.fail_at = -1, .nan_at = -1};
}

static void answer_add(struct answer *a, int32_t id)
{
    int32_t *ids = realloc(a->ids, (size_t)(a->n + 1) * sizeof *ids);
    QN_ASSERT(ids);
    a->ids = ids;
    ids[a->n++] = id;
}

/* One part between bars: a piece, or its bytes. */
static void answer_part(const struct scripted *sc, struct answer *a, const struct buf *part)
{
    for (int32_t i = 0; i < sc->p.n_piece; i++) {
        if (part->n && str_eq(buf_str(part), buf_str(&sc->pieces[i]))) {
            answer_add(a, SCRIPTED_PIECE + i);
            return;
        }
    }
    for (size_t i = 0; i < part->n; i++)
        answer_add(a, (unsigned char)part->p[i]);
}

static void answer_text(const struct scripted *sc, struct answer *a, struct str text)
{
    struct buf part = BUF_INIT;
    for (size_t i = 0; i < text.n; i++) {
        char hex[3] = {0};
        if (text.p[i] == '|') {
            answer_part(sc, a, &part);
            buf_clear(&part);
        } else if (text.n - i >= 4 && text.p[i] == '\\' && text.p[i + 1] == 'x') {
            memcpy(hex, text.p + i + 2, 2);
            buf_addc(&part, (char)strtol(hex, NULL, 16));
            i += 3;
        } else {
            buf_addc(&part, text.p[i]);
        }
    }
    answer_part(sc, a, &part);
    buf_free(&part);
}

static void directive(const struct scripted *sc, struct answer *a, struct str name,
                      struct str value)
{
    int32_t number = (int32_t)strtol(value.p, NULL, 10); /* "]]" follows the value */
    bool loop = str_eqz(name, "loop");
    if (loop || str_eqz(name, "say")) {
        answer_free(a);
        a->loop = loop;
        answer_text(sc, a, value);
        return;
    }
    if (str_eqz(name, "fail"))
        a->fail_at = number;
    else if (str_eqz(name, "nan"))
        a->nan_at = number;
}

static void answer_copy(struct answer *to, const struct answer *from)
{
    answer_free(to);
    for (int32_t i = 0; i < from->n; i++)
        answer_add(to, from->ids[i]);
    to->loop = from->loop;
}

/* What the prompt asks for; see scripted.h. */
static void answer_of(const struct scripted *sc, struct str prompt, struct answer *a)
{
    struct answer given = {.fail_at = -1, .nan_at = -1};
    size_t best = 0, from = 0;
    bool known = false;
    for (int32_t i = 0; i < sc->n_entry; i++) {
        struct str key = str_of(sc->entries[i].key);
        if (str_find(prompt, key, 0) == (size_t)-1 || (known && key.n < best))
            continue;
        known = true;
        best = key.n;
        answer_copy(&given, &sc->entries[i].a);
    }
    if (!known)
        answer_text(sc, &given, STR_LIT("ok"));
    while ((from = str_find(prompt, STR_LIT("[["), from)) != (size_t)-1) {
        size_t end = str_find(prompt, STR_LIT("]]"), from);
        size_t colon = str_find(prompt, STR_LIT(":"), from);
        from += 2;
        if (end == (size_t)-1 || colon == (size_t)-1 || colon > end)
            continue;
        directive(sc, &given, (struct str){prompt.p + from, colon - from},
                  (struct str){prompt.p + colon + 1, end - colon - 1});
    }
    answer_free(a);
    *a = given;
}

static void prompt_text(const struct scripted *sc, const struct sseq *q, struct buf *out)
{
    for (int32_t i = 0; i < q->n; i++) {
        if (q->ids[i] < 256)
            buf_addc(out, (char)q->ids[i]);
        else if (q->ids[i] < SCRIPTED_PIECE)
            buf_addz(out, specials[q->ids[i] - SCRIPTED_EOS]);
        else
            buf_add_str(out, buf_str(&sc->pieces[q->ids[i] - SCRIPTED_PIECE]));
    }
}

static int32_t answer_at(const struct answer *a, int32_t k)
{
    if (a->loop && a->n)
        return a->ids[k % a->n];
    return k < a->n ? a->ids[k] : SCRIPTED_EOS;
}

/* ---- the lm -------------------------------------------------------------------------------- */

/* Under mu. */
static void record(struct scripted *sc, const struct scripted_call *call)
{
    if (sc->n_call < sc->p.n_record)
        sc->calls[sc->n_call++] = *call;
}

/* A new sequence into *seq; q becomes the sequence's or is freed. */
static enum qn_status adopt(struct scripted *sc, struct sseq *q, void **seq, struct qn_err *err)
{
    pthread_mutex_lock(&sc->mu);
    bool full = sc->max_seq >= 0 && sc->counts.alive >= sc->max_seq;
    if (!full) {
        q->number = (int32_t)sc->counts.created++;
        sc->counts.alive++;
        if (sc->counts.alive > sc->counts.alive_most)
            sc->counts.alive_most = sc->counts.alive;
        record(sc, &(struct scripted_call){
                       .kind = SCRIPTED_CREATE, .step = sc->counts.steps, .seq = q->number});
    }
    pthread_mutex_unlock(&sc->mu);
    if (full) {
        free(q->ids);
        free(q->a.ids);
        free(q);
        return err_set(err, QN_NO_MEMORY, "scripted", "no room for another sequence");
    }
    *seq = q;
    return QN_OK;
}

static enum qn_status seq_create(void *self, void **seq, struct qn_err *err)
{
    struct sseq *q = calloc(1, sizeof *q);
    QN_ASSERT(q);
    q->n_prompt = -1;
    q->a = (struct answer){.fail_at = -1, .nan_at = -1};
    return adopt(self, q, seq, err);
}

static int32_t *copy_ids(const int32_t *ids, int32_t n)
{
    int32_t *c = malloc((size_t)(n + 1) * sizeof *c);
    QN_ASSERT(c);
    if (n > 0)
        memcpy(c, ids, (size_t)n * sizeof *c);
    return c;
}

static enum qn_status seq_fork(void *self, void *seq, void **out, struct qn_err *err)
{
    struct scripted *sc = self;
    const struct sseq *from = seq;
    struct sseq *q = malloc(sizeof *q);
    QN_ASSERT(q);
    *q = *from;
    q->ids = copy_ids(from->ids, from->n);
    q->a.ids = copy_ids(from->a.ids, from->a.n);
    QN_TRY(adopt(sc, q, out, err));
    pthread_mutex_lock(&sc->mu);
    sc->counts.forked++;
    sc->counts.held += q->n;
    pthread_mutex_unlock(&sc->mu);
    return QN_OK;
}

static int64_t seq_bytes(const void *self, int32_t n)
{
    return ((const struct scripted *)self)->p.token_bytes * n;
}

static void seq_free(void *self, void *seq)
{
    struct scripted *sc = self;
    struct sseq *q = seq;
    pthread_mutex_lock(&sc->mu);
    sc->counts.freed++;
    sc->counts.alive--;
    sc->counts.held -= q->n;
    record(sc, &(struct scripted_call){
                   .kind = SCRIPTED_FREE, .step = sc->counts.steps, .seq = q->number});
    pthread_mutex_unlock(&sc->mu);
    answer_free(&q->a);
    free(q->ids);
    free(q);
}

static enum qn_status seq_truncate(void *self, void *seq, int32_t n, struct qn_err *err)
{
    struct scripted *sc = self;
    struct sseq *q = seq;
    if (n < 0 || n > q->n)
        return err_set(err, QN_BAD_INPUT, "scripted", "cannot cut %d tokens to %d", q->n, n);
    int32_t gone = q->n - n;
    q->n = n;
    if (!sc->p.windows || n < q->n_prompt)
        q->n_prompt = -1;
    q->echo = false;
    q->hash = 0;
    for (int32_t i = 0; i < n; i++)
        q->hash = hash64(&q->ids[i], sizeof q->ids[i], q->hash);
    pthread_mutex_lock(&sc->mu);
    sc->counts.truncated++;
    sc->counts.held -= gone;
    record(sc, &(struct scripted_call){.kind = SCRIPTED_TRUNCATE,
                                       .step = sc->counts.steps,
                                       .seq = q->number,
                                       .n_ids = n,
                                       .len = n});
    pthread_mutex_unlock(&sc->mu);
    return QN_OK;
}

static void row(const struct scripted *sc, uint64_t hash, int32_t id, bool nan, float *x)
{
    for (int32_t i = 0; i < sc->n_vocab; i++) {
        uint32_t mix = (uint32_t)(hash >> 20) + (uint32_t)i * 2654435761u;
        x[i] = nan ? NAN : -5.0f * (float)((mix >> 8) & 0xffff) / 65536.0f;
    }
    if (!nan)
        x[id] = sc->p.peak;
}

/* With params.resumes: the length of the known prompt that q began with, else q's own, which is
 * known from now on. */
static int32_t prompt_length(struct scripted *sc, const struct sseq *q)
{
    uint64_t h = 0;
    for (int32_t i = 0; sc->p.resumes && i < q->n; i++) {
        h = hash64(&q->ids[i], sizeof q->ids[i], h);
        for (size_t k = 0; k < sc->n_known; k++)
            if (sc->prompts[k] == h)
                return i + 1;
    }
    if (!sc->p.resumes)
        return q->n;
    sc->prompts = realloc(sc->prompts, (sc->n_known + 1) * sizeof *sc->prompts);
    QN_ASSERT(sc->prompts);
    sc->prompts[sc->n_known++] = h;
    return q->n;
}

/* Is the item's one token an answer (it follows logits) and not the last of an echoed prompt? */
static bool continues(const struct scripted *sc, const struct sseq *q,
                      const struct qn_step_item *item)
{
    if (q->n_prompt >= 0 && sc->p.windows && item->n_logits == item->n_ids)
        return true;
    if (q->n_prompt < 0 || item->n_ids != 1)
        return false;
    return !q->echo || q->n > q->n_prompt || item->ids[0] == answer_at(&q->a, 0);
}

static bool would_fail(const struct scripted *sc, const struct qn_step_item *item)
{
    const struct sseq *q = (const struct sseq *)item->seq;
    int32_t k = q->n + item->n_ids - q->n_prompt;
    return continues(sc, q, item) && item->n_logits > 0 && q->a.fail_at == k;
}

static void step_item(struct scripted *sc, const struct qn_step_item *item)
{
    struct sseq *q = (struct sseq *)item->seq;
    bool goes_on = continues(sc, q, item);
    int32_t first_row = item->n_ids - item->n_logits;
    int32_t *ids = realloc(q->ids, (size_t)(q->n + item->n_ids) * sizeof *ids);
    QN_ASSERT(ids);
    q->ids = ids;
    if (q->n == 0)
        q->echo = item->n_ids > 1 && item->n_logits == item->n_ids;
    for (int32_t i = 0; i < item->n_ids; i++) {
        QN_ASSERT(item->ids[i] >= 0 && item->ids[i] < sc->n_vocab);
        q->ids[q->n++] = item->ids[i];
        q->hash = hash64(&item->ids[i], sizeof item->ids[i], q->hash);
        if (i >= first_row && i + 1 < item->n_ids) /* inside a prompt: the next token is likely */
            row(sc, q->hash, goes_on ? answer_at(&q->a, q->n - q->n_prompt) : item->ids[i + 1],
                false, item->logits + (size_t)(i - first_row) * (size_t)sc->n_vocab);
    }
    if (item->n_logits == 0)
        return;
    if (!goes_on) {
        struct buf text = BUF_INIT;
        int32_t held = q->n;
        q->n_prompt = prompt_length(sc, q);
        q->n = q->n_prompt;
        prompt_text(sc, q, &text);
        q->n = held;
        answer_of(sc, buf_str(&text), &q->a);
        buf_free(&text);
    }
    int32_t k = q->n - q->n_prompt;
    row(sc, q->hash, answer_at(&q->a, k), q->a.nan_at == k,
        item->logits + (size_t)(item->n_logits - 1) * (size_t)sc->n_vocab);
}

static enum qn_status check_items(struct scripted *sc, struct qn_step_item *items, int32_t n,
                                  struct qn_err *err)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < n; i++) {
        struct sseq *q = (struct sseq *)items[i].seq;
        rows += items[i].n_ids;
        if (items[i].n_ids < 1 || items[i].n_logits < 0 || items[i].n_logits > items[i].n_ids)
            return err_set(err, QN_BAD_INPUT, "scripted", "item %d: bad counts", i);
        if (q->n + items[i].n_ids > sc->p.n_ctx)
            return err_set(err, QN_BAD_INPUT, "scripted", "sequence past the context");
        for (int32_t j = 0; j < i; j++)
            if (items[j].seq == items[i].seq)
                return err_set(err, QN_BAD_INPUT, "scripted", "a sequence twice in a step");
    }
    if (n < 1 || rows > sc->p.max_rows)
        return err_set(err, QN_BAD_INPUT, "scripted", "%d items, %lld rows", n, (long long)rows);
    for (int32_t i = 0; i < n; i++)
        if (would_fail(sc, &items[i]))
            return err_set(err, QN_INTERNAL, "scripted", "this step fails as its script says");
    return QN_OK;
}

/* Under mu: the step's number, its counts and records; whether the switch says that it fails. */
static bool count_step(struct scripted *sc, struct qn_step_item *items, int32_t n, int32_t *rows)
{
    struct scripted_counts *c = &sc->counts;
    bool fails = c->steps == sc->fail_step && (n > 1 || sc->fail_alone);
    *rows = 0;
    for (int32_t i = 0; i < n; i++) {
        struct sseq *q = (struct sseq *)items[i].seq;
        *rows += items[i].n_ids;
        c->logit_rows += items[i].n_logits;
        record(sc, &(struct scripted_call){.kind = SCRIPTED_STEP_ITEM,
                                           .step = c->steps,
                                           .seq = q->number,
                                           .n_ids = items[i].n_ids,
                                           .first_id = items[i].ids[0],
                                           .n_logits = items[i].n_logits,
                                           .len = q->n + items[i].n_ids});
    }
    c->steps++;
    c->rows += *rows;
    c->items_most = n > c->items_most ? n : c->items_most;
    c->rows_most = *rows > c->rows_most ? *rows : c->rows_most;
    return fails;
}

/* Counts the tokens that a step adds; false when there is no memory for them. */
static bool hold(struct scripted *sc, int32_t rows)
{
    struct scripted_counts *c = &sc->counts;
    pthread_mutex_lock(&sc->mu);
    bool fits = sc->max_tokens < 0 || c->held + rows <= sc->max_tokens;
    if (fits)
        c->held += rows;
    c->held_most = c->held > c->held_most ? c->held : c->held_most;
    pthread_mutex_unlock(&sc->mu);
    return fits;
}

static enum qn_status step(void *self, struct qn_step_item *items, int32_t n, struct qn_err *err)
{
    struct scripted *sc = self;
    int32_t rows;
    QN_TRY(check_items(sc, items, n, err));
    pthread_mutex_lock(&sc->mu);
    bool fails = count_step(sc, items, n, &rows);
    pthread_mutex_unlock(&sc->mu);
    int64_t us = sc->p.step_us + (int64_t)rows * sc->p.token_us;
    if (us > 0)
        nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
    if (fails)
        return err_set(err, QN_INTERNAL, "scripted", "this step fails as the test says");
    if (!hold(sc, rows))
        return err_set(err, QN_NO_MEMORY, "scripted", "no memory for %d tokens more", rows);
    for (int32_t i = 0; i < n; i++)
        step_item(sc, &items[i]);
    return QN_OK;
}

/* ---- life ---------------------------------------------------------------------------------- */

enum qn_status scripted_create(const struct scripted_params *p, struct scripted **out,
                               struct qn_err *err)
{
    struct scripted *sc = calloc(1, sizeof *sc);
    QN_ASSERT(sc);
    sc->p = *p;
    sc->p.n_ctx = p->n_ctx ? p->n_ctx : 2048;
    sc->p.max_rows = p->max_rows ? p->max_rows : 64;
    sc->p.n_record = p->n_record ? p->n_record : 4096;
    sc->p.peak = p->peak != 0 ? p->peak : 20;
    sc->n_vocab = SCRIPTED_PIECE + p->n_piece;
    sc->fail_step = -1;
    sc->max_seq = -1;
    sc->max_tokens = -1;
    sc->calls = calloc((size_t)sc->p.n_record, sizeof *sc->calls);
    sc->pieces = calloc((size_t)p->n_piece + 1, sizeof *sc->pieces);
    QN_ASSERT(sc->calls && sc->pieces);
    for (int32_t i = 0; i < p->n_piece; i++) {
        QN_ASSERT(p->pieces[i].n >= 2); /* one byte is a token already */
        buf_add_str(&sc->pieces[i], p->pieces[i]);
    }
    sc->p.pieces = NULL;
    pthread_mutex_init(&sc->mu, NULL);
    *out = sc;
    return QN_OK;
}

void scripted_free(struct scripted *sc)
{
    if (!sc)
        return;
    for (int32_t i = 0; i < sc->p.n_piece; i++)
        buf_free(&sc->pieces[i]);
    for (int32_t i = 0; i < sc->n_entry; i++) {
        free(sc->entries[i].key);
        answer_free(&sc->entries[i].a);
    }
    free(sc->pieces);
    free(sc->prompts);
    free(sc->calls);
    pthread_mutex_destroy(&sc->mu);
    free(sc);
}

struct lm scripted_lm(struct scripted *sc)
{
#define OPS seq_create, seq_free, seq_truncate, step
    static const struct lm_ops ops[4] = {{OPS, .seq_fork = NULL},
                                         {OPS, .seq_bytes = seq_bytes},
                                         {OPS, .seq_fork = seq_fork},
                                         {OPS, .seq_bytes = seq_bytes, .seq_fork = seq_fork}};
    return (struct lm){.ops = &ops[(sc->p.token_bytes > 0) + 2 * sc->p.fork],
                       .self = sc,
                       .n_vocab = sc->n_vocab,
                       .n_ctx = sc->p.n_ctx,
                       .max_rows = sc->p.max_rows,
                       .eos_ids = eos_ids,
                       .n_eos = 2};
}

static struct answer *new_entry(struct scripted *sc, const char *key)
{
    QN_ASSERT(sc->n_entry < KEY_MAX);
    struct entry *e = &sc->entries[sc->n_entry++];
    e->key = strdup(key);
    QN_ASSERT(e->key);
    e->a = (struct answer){.fail_at = -1, .nan_at = -1};
    return &e->a;
}

void scripted_say(struct scripted *sc, const char *key, struct str text)
{
    struct answer *a = new_entry(sc, key);
    for (size_t i = 0; i < text.n; i++)
        answer_add(a, (unsigned char)text.p[i]);
}

void scripted_say_ids(struct scripted *sc, const char *key, const int32_t *ids, int32_t n)
{
    struct answer *a = new_entry(sc, key);
    for (int32_t i = 0; i < n; i++)
        answer_add(a, ids[i]);
}

void scripted_fail_step(struct scripted *sc, int64_t at, bool alone)
{
    pthread_mutex_lock(&sc->mu);
    sc->fail_step = at;
    sc->fail_alone = alone;
    pthread_mutex_unlock(&sc->mu);
}

void scripted_max_seq(struct scripted *sc, int32_t max_seq)
{
    pthread_mutex_lock(&sc->mu);
    sc->max_seq = max_seq;
    pthread_mutex_unlock(&sc->mu);
}

void scripted_max_tokens(struct scripted *sc, int64_t max_tokens)
{
    pthread_mutex_lock(&sc->mu);
    sc->max_tokens = max_tokens;
    pthread_mutex_unlock(&sc->mu);
}

void scripted_counts(struct scripted *sc, struct scripted_counts *out)
{
    pthread_mutex_lock(&sc->mu);
    *out = sc->counts;
    pthread_mutex_unlock(&sc->mu);
}

bool scripted_call(struct scripted *sc, int64_t i, struct scripted_call *out)
{
    pthread_mutex_lock(&sc->mu);
    bool have = i >= 0 && i < sc->n_call;
    if (have)
        *out = sc->calls[i];
    pthread_mutex_unlock(&sc->mu);
    return have;
}
