/*
 * test_sched_reuse.c - the prompt cache under the scheduler, over tiny models with every kind of
 * memory: what the next turn, a repeat, a changed message or a cancelled request reuses, to the
 * token; who comes together reads once; budgets hold; and whatever is reused, evicted, cut or
 * cancelled on the way, at any number of lanes, every answer has the tokens and logprobs that it
 * has alone and without a cache.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "../../sanitized.h"
#include "base/rng.h"
#include "sched/sched.h"
#include "scripted.h"

enum { INTERVAL = 64, MOST = 600, MADE = 24 };
enum { CROWD_N = FEWER ? 6 : 20, THREADS = RACES ? 1 : 2 };

static const char *const models[] = {
    "qwen3_5-moe-q4",
#if !FEWER
    "gemma3_text-q4",
    "llama-tied-llama3-q4",
    "deepseek_v3-q4",
#endif
};
enum { MODELS = sizeof models / sizeof *models };

struct rig {
    struct qn_engine *e;
    struct qn_cache *c;
    struct tok *tok;
    struct sched *s;
    int32_t v, eos, reach;
};

static void sched_up(struct rig *r, struct sched_params p, bool cached)
{
    struct lm lm = cached ? lm_of_cache(r->c) : lm_of_engine(r->e);
    struct qn_err err;
    if (sched_create(&lm, r->tok, &p, &r->s, &err) != QN_OK)
        fail_msg("%s", err.msg);
}

static void rig_up(struct rig *r, const char *model, struct sched_params p, int64_t bytes)
{
    char dir[1024];
    struct buf json = BUF_INIT;
    struct scripted_params sp = {0};
    struct qn_err err;
    *r = (struct rig){0};
    snprintf(dir, sizeof dir, "%s/%s", TINY_DIR, model);
    struct qn_engine_params ep = {
        .model_dir = dir, .n_thread = THREADS, .n_ctx = MOST, .weights_only = true};
    if (qn_engine_open(&ep, &r->e, &err) != QN_OK)
        fail_msg("%s", err.msg);
    const struct qn_cache_params cp = {.bytes = bytes, .interval = INTERVAL};
    assert_int_equal(qn_cache_create(r->e, &cp, &r->c, &err), QN_OK);
    scripted_tok_json(&sp, &json);
    assert_int_equal(tok_from_json(buf_str(&json), scripted_tok_config(), &r->tok, &err), QN_OK);
    buf_free(&json);
    r->v = qn_engine_info(r->e)->n_vocab;
    r->eos = qn_engine_info(r->e)->eos_ids[0];
    r->reach = qn_cache_reach(r->c);
    sched_up(r, p, true);
}

static void rig_down(struct rig *r)
{
    sched_free(r->s);
    qn_cache_free(r->c);
    assert_int_equal(qn_kv_bytes_used(r->e), 0);
    qn_engine_free(r->e);
    tok_free(r->tok);
}

/* ---- requests -------------------------------------------------------------------------------- */

struct chat {
    int32_t n, ids[MOST];
};

/* `n` tokens more, none of which ends a turn; then the end of a turn. */
static void say(const struct rig *r, struct chat *c, uint64_t what, int32_t n, bool end)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t id = (int32_t)(rng_u64(what, (uint64_t)i, 3) % (uint64_t)r->v);
        for (int32_t k = 0; k < qn_engine_info(r->e)->n_eos; k++)
            id = id == qn_engine_info(r->e)->eos_ids[k] ? 1 : id;
        c->ids[c->n++] = id;
    }
    if (end)
        c->ids[c->n++] = r->eos;
}

struct said {
    struct gen_usage usage;
    enum gen_finish finish;
    int32_t n, ids[MOST];
    float logprob[MOST];
};

static struct gen_params params_of(const struct chat *c, int32_t max_tokens)
{
    struct gen_params p = {.prompt = c->ids,
                           .n_prompt = c->n,
                           .max_tokens = max_tokens,
                           .ignore_eos = true,
                           .sample = sample_params_default()};
    p.sample.temperature = 0;
    p.sample.n_top = 0;
    return p;
}

static struct gen *begin(struct rig *r, const struct gen_params *p)
{
    struct gen *g = NULL;
    struct qn_err err;
    if (sched_submit(r->s, p, &g, &err) != QN_OK)
        fail_msg("%s", err.msg);
    return g;
}

static void collect(struct gen *g, struct said *a)
{
    struct gen_event ev;
    memset(a, 0, sizeof *a);
    do {
        gen_wait(g, -1, &ev);
        if (ev.kind == GEN_TOKEN) {
            a->ids[a->n] = ev.token.id;
            a->logprob[a->n++] = ev.token.logprob;
        }
    } while (ev.kind != GEN_DONE && ev.kind != GEN_ERROR);
    if (ev.kind == GEN_ERROR)
        fail_msg("%s", ev.err.msg);
    a->usage = ev.usage;
    a->finish = ev.finish;
    gen_free(g);
}

static int32_t ask(struct rig *r, const struct chat *c, int32_t max_tokens, struct said *a)
{
    const struct gen_params p = params_of(c, max_tokens);
    struct sched_stats before, after;
    sched_stats(r->s, &before);
    collect(begin(r, &p), a);
    sched_stats(r->s, &after);
    assert_int_equal(after.prompt_tokens - before.prompt_tokens, c->n - a->usage.cached_tokens);
    assert_int_equal(a->usage.prompt_tokens, c->n);
    return a->usage.cached_tokens;
}

/* ---- what is reused -------------------------------------------------------------------------- */

/* system | user | answer | user, and what templates put around: a few tokens behind the last end.
 */
static void turns(const char *model)
{
    struct rig r;
    struct chat c = {0}, d;
    struct said a, b;
    rig_up(&r, model, (struct sched_params){.n_lane = 2}, (int64_t)1 << 30);
    say(&r, &c, 1, 150, true);
    say(&r, &c, 2, 140, true);
    say(&r, &c, 3, 4, false);
    assert_int_equal(ask(&r, &c, MADE, &a), 0);
    assert_int_equal(ask(&r, &c, MADE, &b), c.n - 1); /* the same again */
    assert_memory_equal(a.logprob, b.logprob, sizeof a.logprob);

    d = c; /* turn 2: prompt and answer come back, but for the answer's last token */
    memcpy(d.ids + d.n, a.ids, (size_t)a.n * sizeof *a.ids);
    d.n += a.n;
    d.ids[d.n++] = r.eos;
    say(&r, &d, 4, 50, true);
    say(&r, &d, 3, 4, false);
    assert_int_equal(ask(&r, &d, MADE, &b), c.n + MADE - 1);

    d = c; /* the template writes the answer's beginning otherwise: up to the last turn's end */
    d.n = c.n - 2;
    say(&r, &d, 5, 30, true);
    int32_t got = ask(&r, &d, 1, &b);
    assert_in_range(got, r.reach == INT32_MAX ? c.n - 2 : c.n - 4, c.n - 2);

    d = c; /* the user's message was changed: up to there, or the system's end before */
    d.n = 200;
    say(&r, &d, 6, 60, true);
    got = ask(&r, &d, 1, &b);
    assert_in_range(got, r.reach == INT32_MAX ? 200 : 151, 200);
    d.n = 210; /* that place was kept on the way for the next one */
    say(&r, &d, 7, 20, true);
    assert_in_range(ask(&r, &d, 1, &b), 200, 210);

    d = c; /* a strict beginning of an earlier prompt */
    d.n = 170;
    assert_in_range(ask(&r, &d, 1, &b), r.reach == INT32_MAX ? 169 : 2 * INTERVAL, 169);
    d = c;
    struct gen_params p = params_of(&d, 1); /* somebody else's */
    p.cache_ns = "other";
    collect(begin(&r, &p), &b);
    assert_int_equal(b.usage.cached_tokens, 0);
    p.cache_ns = NULL;
    p.cache_off = true;
    collect(begin(&r, &p), &b);
    assert_int_equal(b.usage.cached_tokens, 0);
    rig_down(&r);
}

static __attribute__((unused)) void test_turns(void **state)
{
    for (int i = 0; i < MODELS; i++)
        turns(models[i]);
}

/* Cancelled in its prompt, and in its answer: what was computed is there for the next one. */
static void cancelled(const char *model)
{
    struct rig r;
    struct chat c = {0};
    struct said a;
    struct gen_event ev;
    rig_up(&r, model, (struct sched_params){.n_lane = 2, .chunk = 32}, (int64_t)1 << 30);
    say(&r, &c, 1, 500, false);
    struct gen_params p = params_of(&c, MADE);
    struct gen *g = begin(&r, &p);
    do
        gen_wait(g, -1, &ev);
    while (ev.kind == GEN_PROGRESS && ev.n_done < 100);
    gen_cancel(g);
    collect(g, &a);
    if (a.finish == GEN_CANCELLED) /* else it was faster */
        assert_in_range(ask(&r, &c, 4, &a), 64, 499);
    p.max_tokens = -1;
    g = begin(&r, &p);
    for (int32_t n = 0; n < 10;) {
        gen_wait(g, -1, &ev);
        c.ids[c.n] = ev.token.id;
        n += ev.kind == GEN_TOKEN;
        c.n += ev.kind == GEN_TOKEN;
    }
    gen_cancel(g);
    collect(g, &a);
    say(&r, &c, 2, 20, true);
    /* It may have gone on before it saw that: then the place is behind what is asked for now. */
    assert_in_range(ask(&r, &c, 1, &a), r.reach == INT32_MAX ? 509 : 499, 510);
    rig_down(&r);
}

static __attribute__((unused)) void test_cancelled(void **state)
{
    for (int i = 0; i < MODELS; i++)
        cancelled(models[i]);
}

/* Requests that come together and begin alike: one reads that, the others wait for it. */
static void together(const char *model)
{
    enum { AGENTS = 6 };
    struct rig r;
    struct chat c[AGENTS];
    struct said a[AGENTS], alone;
    struct gen *g[AGENTS];
    struct sched_stats st;
    rig_up(&r, model, (struct sched_params){.n_lane = 4, .chunk = 48}, (int64_t)1 << 30);
    for (int i = 0; i < AGENTS; i++) {
        c[i].n = 0;
        say(&r, &c[i], 1, 300, true);
        say(&r, &c[i], 10 + (uint64_t)i, 20, true);
    }
    struct chat blocker = {0};
    say(&r, &blocker, 9, 90, false);
    struct gen_params bp = params_of(&blocker, 40);
    struct gen *b = begin(&r, &bp); /* so that the others really come together */
    for (int i = 0; i < AGENTS; i++) {
        struct gen_params p = params_of(&c[i], 8);
        g[i] = begin(&r, &p);
    }
    for (int i = 0; i < AGENTS; i++)
        collect(g[i], &a[i]);
    collect(b, &alone);
    sched_stats(r.s, &st);
    int32_t computed = 90;
    for (int i = 0; i < AGENTS; i++)
        computed += c[i].n - a[i].usage.cached_tokens;
    assert_int_equal(st.prompt_tokens, computed);
    assert_in_range(computed, 90 + 301 + AGENTS * 21, 90 + 301 + AGENTS * 21 + AGENTS);
    sched_free(r.s);
    sched_up(&r, (struct sched_params){.n_lane = 1}, false);
    for (int i = 0; i < AGENTS; i++) {
        ask(&r, &c[i], 8, &alone);
        assert_memory_equal(alone.ids, a[i].ids, sizeof alone.ids);
        assert_memory_equal(alone.logprob, a[i].logprob, sizeof alone.logprob);
    }
    rig_down(&r);
}

static __attribute__((unused)) void test_together(void **state)
{
    for (int i = 0; i < MODELS; i++)
        together(models[i]);
}

/* What is cached never keeps a request from its memory, nor takes more than the budget leaves. */
static __attribute__((unused)) void test_budget(void **state)
{
    for (int m = 0; m < MODELS; m++) {
        struct rig r;
        struct said a;
        rig_up(&r, models[m], (struct sched_params){.n_lane = 2}, (int64_t)1 << 30);
        int64_t budget = qn_seq_bytes(r.e, 300) * 2;
        sched_free(r.s);
        sched_up(&r, (struct sched_params){.n_lane = 2, .kv_budget = budget}, true);
        for (uint64_t i = 0; i < 6; i++) {
            struct chat c = {0};
            struct sched_stats st;
            say(&r, &c, 50 + i, 250, true);
            ask(&r, &c, 8, &a);
            sched_stats(r.s, &st);
            assert_int_equal(st.parked, 0);
            assert_true(st.kv_planned + st.cache.bytes <= budget);
            assert_true(st.cache.bytes > 0);
            assert_true(i < 4 || st.cache.evicted_tokens > 0);
        }
        rig_down(&r);
    }
}

/* ---- whatever happens, the same bits --------------------------------------------------------- */

struct want {
    struct chat c;
    int32_t leave; /* after so many events; -1 = never */
    struct said alone;
};
struct crowd {
    struct rig *r;
    struct want *w;
    int from;
    pthread_t thread;
    int64_t cached;
};
enum { CLIENTS = 4 };

static uint32_t pick(uint64_t i, uint64_t what, uint32_t n)
{
    return (uint32_t)(rng_u64(17, i, what) % n);
}

/* Conversations that begin alike, in random lengths: `pick` chooses each message of three. */
static void make_wants(struct rig *r, struct want *w)
{
    for (int i = 0; i < CROWD_N; i++) {
        uint64_t k = (uint64_t)i;
        memset(&w[i], 0, sizeof w[i]);
        for (uint64_t turn = 0; turn <= pick(k, 1, 4); turn++)
            say(r, &w[i].c, turn * 10 + pick(k, 2 + turn, 2), 30 + (int32_t)pick(turn, 90, 90),
                true);
        say(r, &w[i].c, 77, 3, false);
        w[i].leave = pick(k, 20, 4) ? -1 : (int32_t)pick(k, 21, 9);
    }
}

static void *client(void *arg)
{
    struct crowd *c = arg;
    for (int i = c->from; i < CROWD_N; i += CLIENTS) {
        struct want *w = &c->w[i];
        struct gen_params p = params_of(&w->c, MADE);
        struct gen *g = begin(c->r, &p);
        struct gen_event ev;
        int32_t n = 0, seen = 0;
        for (;; seen++) {
            gen_wait(g, -1, &ev);
            if (ev.kind == GEN_ERROR)
                fail_msg("%s", ev.err.msg);
            if (ev.kind == GEN_DONE || seen == w->leave)
                break;
            if (ev.kind != GEN_TOKEN)
                continue;
            if (ev.token.id != w->alone.ids[n] ||
                memcmp(&ev.token.logprob, &w->alone.logprob[n], sizeof(float)) != 0)
                fail_msg("request %d: token %d is another one than alone", i, n);
            n++;
        }
        if (ev.kind == GEN_DONE)
            assert_int_equal(n, w->alone.n);
        c->cached += ev.kind == GEN_DONE ? ev.usage.cached_tokens : 0;
        gen_free(g);
    }
    return NULL;
}

static void crowd(struct rig *r, struct want *w, struct sched_params p, int64_t *cached)
{
    struct crowd c[CLIENTS];
    sched_up(r, p, true);
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = (struct crowd){.r = r, .w = w, .from = i};
        assert_int_equal(pthread_create(&c[i].thread, NULL, client, &c[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(c[i].thread, NULL);
        *cached += c[i].cached;
    }
    assert_true(sched_drain(r->s, 20000));
    sched_free(r->s);
}

static void test_same_bits(void **state)
{
    struct want *w = calloc(CROWD_N, sizeof *w);
    for (int m = 0; m < MODELS; m++) {
        struct rig r;
        int64_t cached = 0;
        rig_up(&r, models[m], (struct sched_params){.n_lane = 1}, (int64_t)640 << 10);
        sched_free(r.s);
        make_wants(&r, w);
        sched_up(&r, (struct sched_params){.n_lane = 1}, false);
        for (int i = 0; i < CROWD_N; i++)
            ask(&r, &w[i].c, MADE, &w[i].alone);
        sched_free(r.s);
        int64_t one = qn_seq_bytes(r.e, 450);
        crowd(&r, w, (struct sched_params){.n_lane = 1}, &cached);
        crowd(&r, w, (struct sched_params){.n_lane = 4, .chunk = 24}, &cached);
        crowd(&r, w, (struct sched_params){.n_lane = 4, .kv_budget = 2 * one}, &cached);
        struct qn_cache_stats st;
        qn_cache_stats(r.c, &st);
        print_message("%s: %lld of %lld tokens reused, %lld evicted\n", models[m],
                      (long long)st.reused_tokens, (long long)st.asked_tokens,
                      (long long)st.evicted_tokens);
        assert_true(st.reused_tokens > 0 && st.evicted_tokens > 0 && cached <= st.reused_tokens);
        r.s = NULL;
        rig_down(&r);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#if !RACES || !FEWER /* one client at a time, for the most part */
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_budget),
#endif
        cmocka_unit_test(test_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
