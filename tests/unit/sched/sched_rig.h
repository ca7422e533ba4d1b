/*
 * sched_rig.h - a scheduler over the scripted model, and answers read to their end, for the tests
 * in this folder. Include after cmocka.
 */
#ifndef TEST_SCHED_RIG_H
#define TEST_SCHED_RIG_H

#include "base/utf8.h"
#include "sched/sched.h"
#include "scripted.h"

struct rig {
    struct scripted *sc;
    struct tok *tok;
    struct lm lm;
    struct sched *s;
};

static const struct str pieces[] = {
    STR_LIT("The qui"), STR_LIT("ck br"), STR_LIT("own fo"),   STR_LIT("x jumps"),
    {"\xF0\x9F", 2},    {"\x99\x82", 2},  STR_LIT("\xCC\x81"), STR_LIT("\xE6\xBC\xA2\xE5"),
    {"\xAD\x97", 2},
};
#define N_PIECE (int32_t)(sizeof pieces / sizeof pieces[0])

static inline void rig_up(struct rig *r, struct scripted_params sp, struct sched_params p)
{
    struct buf json = BUF_INIT;
    struct qn_err err;
    memset(r, 0, sizeof *r);
    sp.pieces = pieces;
    sp.n_piece = N_PIECE;
    scripted_tok_json(&sp, &json);
    if (tok_from_json(buf_str(&json), scripted_tok_config(), &r->tok, &err) != QN_OK)
        fail_msg("tokenizer: %s", err.msg);
    buf_free(&json);
    assert_int_equal(scripted_create(&sp, &r->sc, &err), QN_OK);
    r->lm = scripted_lm(r->sc);
    if (sched_create(&r->lm, r->tok, &p, &r->s, &err) != QN_OK)
        fail_msg("scheduler: %s", err.msg);
}

/* Nothing may be left behind, whatever the test did. */
static inline void rig_down(struct rig *r)
{
    struct scripted_counts c;
    sched_free(r->s);
    scripted_counts(r->sc, &c);
    assert_int_equal(c.alive, 0);
    assert_int_equal(c.created, c.freed);
    scripted_free(r->sc);
    tok_free(r->tok);
}

static inline enum qn_status submit_err(struct rig *r, const char *prompt, struct gen_params *p,
                                        struct gen **g, struct qn_err *err)
{
    struct ids ids = {0};
    assert_int_equal(tok_encode(r->tok, str_of(prompt), TOK_PARSE_SPECIAL, &ids, NULL), QN_OK);
    p->prompt = ids.v;
    p->n_prompt = (int32_t)ids.n;
    enum qn_status st = sched_submit(r->s, p, g, err);
    ids_free(&ids);
    return st;
}

static inline struct gen_params greedy(int32_t max_tokens)
{
    struct gen_params p = {.max_tokens = max_tokens, .sample = sample_params_default()};
    p.sample.temperature = 0;
    return p;
}

static inline struct gen *submit(struct rig *r, const char *prompt, struct gen_params p)
{
    struct gen *g = NULL;
    struct qn_err err;
    if (submit_err(r, prompt, &p, &g, &err) != QN_OK)
        fail_msg("submit: %s", err.msg);
    return g;
}

struct answer {
    struct buf text;
    int32_t tokens, prompts, progress, ids[4096];
    struct gen_event last;
    bool held_text; /* the final event carried some */
};

/* Reads to the end; checks what holds for every answer. */
static inline void collect(struct gen *g, struct answer *a)
{
    memset(a, 0, sizeof *a);
    for (;;) {
        gen_wait(g, -1, &a->last);
        if (a->last.kind == GEN_PROGRESS)
            a->progress++;
        if (a->last.kind == GEN_PROMPT)
            a->prompts++;
        if (a->last.kind == GEN_TOKEN && a->tokens < 4096)
            a->ids[a->tokens++] = a->last.token.id;
        assert_true(utf8_valid(a->last.text));
        buf_add_str(&a->text, a->last.text);
        if (a->last.kind == GEN_DONE || a->last.kind == GEN_ERROR)
            break;
    }
    a->held_text = a->last.text.n > 0;
    if (a->last.kind == GEN_DONE) {
        int32_t eos = a->last.usage.completion_tokens - a->tokens;
        assert_true(eos == 0 || eos == 1);
        if (a->last.finish == GEN_STOP_EOS)
            assert_int_equal(eos, 1);
    }
}

static inline void run(struct rig *r, const char *prompt, struct gen_params p, struct answer *a)
{
    struct gen *g = submit(r, prompt, p);
    collect(g, a);
    gen_free(g);
}

static inline void expect(struct answer *a, const char *text, enum gen_finish finish, int32_t made)
{
    if (a->last.kind != GEN_DONE)
        fail_msg("error: %s", a->last.err.msg);
    assert_string_equal(buf_z(&a->text), text);
    assert_int_equal(a->last.finish, finish);
    assert_int_equal(a->last.usage.completion_tokens, made);
    buf_free(&a->text);
}

#endif
