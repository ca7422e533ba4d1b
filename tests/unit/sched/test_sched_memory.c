/*
 * test_sched_memory.c - planned memory, generations that give theirs back and read themselves
 * again, prompts read once for several answers, and the queue's fairness. One reader thread for
 * each generation, so that nobody is paused unless the test wants it.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/fault.h"
#include "sched_rig.h"

#define CROWD 8

struct reader {
    struct gen *g;
    struct answer a;
    pthread_t thread;
};

static void *read_on(void *arg)
{
    struct reader *rd = arg;
    collect(rd->g, &rd->a);
    return NULL;
}

static void read_in_thread(struct reader *rd, struct gen *g)
{
    rd->g = g;
    assert_int_equal(pthread_create(&rd->thread, NULL, read_on, rd), 0);
}

static void read_end(struct reader *rd)
{
    pthread_join(rd->thread, NULL);
    gen_free(rd->g);
}

/* n times the prompt "[[loop:WORD]]" with words "a ", "b "...; each answer must be its word over
 * and over, `made` tokens long (0 = any length). */
static void crowd(struct rig *r, int n, struct gen_params p, int32_t made)
{
    struct reader rd[CROWD];
    for (int i = 0; i < n; i++) {
        char prompt[32];
        snprintf(prompt, sizeof prompt, "[[loop:%c%c ]]", 'a' + i, 'A' + i);
        read_in_thread(&rd[i], submit(r, prompt, p));
    }
    for (int i = 0; i < n; i++) {
        read_end(&rd[i]);
        struct answer *a = &rd[i].a;
        if (a->last.kind != GEN_DONE)
            fail_msg("error: %s", a->last.err.msg);
        assert_int_equal(a->last.finish, GEN_LENGTH);
        if (made)
            assert_int_equal(a->tokens, made);
        const char word[] = {(char)('a' + i), (char)('A' + i), ' '};
        for (size_t k = 0; k < a->text.n; k++)
            if (a->text.p[k] != word[k % 3])
                fail_msg("answer %d is wrong at byte %zu: %.40s", i, k, a->text.p + k);
        assert_int_equal(a->text.n, a->tokens);
        buf_free(&a->text);
    }
}

/* As many at a time as fit at their planned length; the others wait, and none overtakes. */
static void test_planned(void **state)
{
    struct rig r;
    struct scripted_counts c;
    struct sched_stats st;
    rig_up(&r, (struct scripted_params){.token_bytes = 1},
           (struct sched_params){.n_lane = 6, .kv_budget = 1000});
    crowd(&r, 8, greedy(300), 300); /* 12 + 300 each */
    scripted_counts(r.sc, &c);
    sched_stats(r.s, &st);
    assert_int_equal(c.alive_most, 3);
    assert_true(c.held_most <= 1000);
    assert_int_equal(st.parked, 0);
    assert_int_equal(st.kv_budget, 1000);
    assert_int_equal(st.kv_planned, 0);
    rig_down(&r);
}

static void test_too_big_alone(void **state)
{
    struct rig r;
    struct answer a;
    struct gen *g = NULL;
    struct qn_err err;
    char prompt[120];
    memset(prompt, 'x', sizeof prompt);
    prompt[sizeof prompt - 1] = 0;
    rig_up(&r, (struct scripted_params){.token_bytes = 1 << 20},
           (struct sched_params){.kv_budget = 100 << 20});
    struct gen_params p = greedy(96);
    assert_int_equal(submit_err(&r, "hello", &p, &g, &err), QN_BAD_INPUT);
    assert_non_null(strstr(err.msg, "5 prompt tokens and 96 for the answer need 101 MiB"));
    assert_non_null(strstr(err.msg, "100 MiB, which is enough for 100 tokens"));
    run(&r, "[[loop:x]]", greedy(90), &a); /* all of it */
    assert_int_equal(a.tokens, 90);
    buf_free(&a.text);
    run(&r, "[[loop:x]]", greedy(-1), &a); /* left open: cut to what fits */
    assert_int_equal(a.last.finish, GEN_LENGTH);
    assert_int_equal(a.tokens, 90);
    buf_free(&a.text);
    p = greedy(-1);
    assert_int_equal(submit_err(&r, prompt, &p, &g, &err), QN_BAD_INPUT);
    rig_down(&r);
}

/* Answers without a limit outgrow what there is: the youngest give way, read themselves again
 * later, and nothing shows it. */
static void test_open_ends(void **state)
{
    struct rig r;
    struct scripted_counts c;
    struct sched_stats st;
    rig_up(&r, (struct scripted_params){.token_bytes = 1, .resumes = true, .n_ctx = 4096},
           (struct sched_params){.n_lane = 4, .kv_budget = 1600});
    crowd(&r, 6, greedy(-1), 1600 - 12);
    scripted_counts(r.sc, &c);
    sched_stats(r.s, &st);
    assert_true(st.parked > 0);
    assert_int_equal(c.alive_most, 3); /* 12 and a reserve of 512 each at first */
    assert_true(c.held_most <= 1600);
    assert_int_equal(st.prompt_tokens, 6 * 12); /* read again, counted once */
    assert_int_equal(st.finished, 6);
    rig_down(&r);
}

/* The plan was too kind, or somebody else took the memory: the same, and only one that cannot go on
 * alone fails. */
static void test_real_shortage(void **state)
{
    struct rig r;
    struct answer a;
    struct sched_stats st;
    rig_up(&r, (struct scripted_params){.resumes = true}, (struct sched_params){.n_lane = 4});
    scripted_max_tokens(r.sc, 400);
    crowd(&r, 6, greedy(200), 200);
    sched_stats(r.s, &st);
    assert_true(st.parked > 0);
    assert_int_equal(st.failed, 0);
    run(&r, "[[loop:z]]", greedy(500), &a);
    assert_int_equal(a.last.kind, GEN_ERROR);
    assert_int_equal(a.last.err.code, QN_NO_MEMORY);
    assert_int_equal(a.tokens, 391);
    buf_free(&a.text);
    rig_down(&r);
}

static struct gen_params drawn(int32_t max_tokens, uint64_t seed)
{
    struct gen_params p = {.max_tokens = max_tokens, .sample = sample_params_default()};
    p.sample.temperature = 1;
    p.sample.top_p = 0.95f;
    p.sample.repetition_penalty = 1.2f;
    p.sample.presence_penalty = 0.3f;
    p.sample.n_top = 3;
    p.sample.seed = seed;
    return p;
}

struct tokens {
    int32_t n;
    struct sampled t[256];
};

static void take_tokens(struct gen *g, struct tokens *t)
{
    struct gen_event ev;
    t->n = 0;
    for (;;) {
        gen_wait(g, -1, &ev);
        if (ev.kind == GEN_TOKEN)
            t->t[t->n++] = ev.token;
        if (ev.kind == GEN_ERROR)
            fail_msg("error: %s", ev.err.msg);
        if (ev.kind == GEN_DONE)
            break;
    }
    gen_free(g);
}

static void same_tokens(const struct tokens *a, const struct tokens *b)
{
    assert_int_equal(a->n, b->n);
    for (int32_t i = 0; i < a->n; i++) {
        assert_int_equal(a->t[i].id, b->t[i].id);
        assert_memory_equal(&a->t[i].logprob, &b->t[i].logprob, sizeof(float));
        for (int32_t k = 0; k < a->t[i].n_top; k++)
            assert_int_equal(a->t[i].top[k].id, b->t[i].top[k].id);
    }
}

/* Sampled answers with penalties, echo and logprobs: the same tokens and numbers, parked or not.
 * The readers come one after the other, so that paused ones are parked as well. */
static void test_parked_is_the_same(void **state)
{
    enum { N = 5 };
    static struct tokens want[N], got;
    struct scripted_params sp = {
        .token_bytes = 1, .resumes = true, .peak = 3, .n_ctx = 1024, .max_rows = 48};
    struct rig r;
    struct gen *g[N];
    struct sched_stats st;
    char prompt[N][40];
    for (int i = 0; i < N; i++)
        snprintf(prompt[i], sizeof prompt[i], "%c%c [[loop:abcdef]]", 'p' + i, 'P' + i);
    rig_up(&r, sp, (struct sched_params){0});
    for (int i = 0; i < N; i++)
        take_tokens(submit(&r, prompt[i], drawn(200, (uint64_t)i)), &want[i]);
    rig_down(&r);
    rig_up(&r, sp, (struct sched_params){.n_lane = 3, .kv_budget = 500});
    for (int i = 0; i < N; i++)
        g[i] = submit(&r, prompt[i], drawn(200, (uint64_t)i));
    for (int i = N; i-- > 0;) {
        take_tokens(g[i], &got);
        same_tokens(&want[i], &got);
    }
    sched_stats(r.s, &st);
    assert_true(st.parked > 0);
    rig_down(&r);
}

/* ---- memory of what guesses ------------------------------------------------------------------ */

/* Guesses that words of three letters go on; says to take so much for each token. On the
 * scheduler's thread. */
struct words {
    int64_t token_bytes;
    int32_t now, most, opened, closed; /* contexts */
    int32_t no_open, no_draft;         /* every so many fail for want of memory; 0 = none */
    int32_t asked;
};

static enum qn_status words_open(void *self, void *seq, void **ctx, struct qn_err *err)
{
    struct words *w = self;
    if (w->no_open && w->asked++ % w->no_open == 0)
        return err_set(err, QN_NO_MEMORY, "test", "no memory for a context");
    w->opened++;
    w->now++;
    w->most = w->now > w->most ? w->now : w->most;
    *ctx = seq;
    return QN_OK;
}

static void words_close(void *self, void *ctx)
{
    struct words *w = self;
    w->closed++;
    w->now--;
}

static enum qn_status words_draft(void *self, struct draft *d, int32_t n, struct qn_err *err)
{
    struct words *w = self;
    if (w->no_draft && w->asked++ % w->no_draft == 0)
        return err_set(err, QN_NO_MEMORY, "test", "no memory for guesses");
    for (int32_t i = 0; i < n; i++)
        for (d[i].n = 0; d[i].n < d[i].most; d[i].n++) {
            int32_t back = d[i].n - 3;
            d[i].out[d[i].n] = back < 0 ? d[i].ids[d[i].n_ids + back] : d[i].out[back];
            d[i].sure[d[i].n] = SPEC_SURE - 1;
        }
    return QN_OK;
}

static int64_t words_bytes(const void *self, int32_t n_tokens)
{
    return ((const struct words *)self)->token_bytes * n_tokens;
}

static const struct drafter_ops words_ops = {.name = "words",
                                             .n_draft = 8,
                                             .open = words_open,
                                             .close = words_close,
                                             .draft = words_draft,
                                             .bytes = words_bytes};

static struct spec_params words_spec(struct words *w)
{
    return (struct spec_params){.kind = SPEC_CUSTOM, .ops = &words_ops, .self = w, .fixed = true};
}

/* Nothing is planned or open any more, and nobody failed. */
static void back_at_its_level(struct rig *r, const struct words *w)
{
    struct sched_stats st;
    sched_stats(r->s, &st);
    assert_int_equal(st.kv_planned, 0);
    assert_int_equal(st.failed, 0);
    assert_int_equal(w->now, 0);
    assert_int_equal(w->opened, w->closed);
}

/* What a drafter holds is planned with its sequence: fewer run at a time, the others wait, and a
 * request that could never have its guesses beside it is refused with numbers. */
static void test_draft_memory_is_planned(void **state)
{
    static const struct {
        int64_t bytes; /* of a draft token */
        int32_t at_a_time;
    } cases[] = {{0, 3}, {1, 1}, {2, 1}}; /* 312 tokens each, in 1000 */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig r;
        struct scripted_counts c;
        struct sched_stats st;
        struct words w = {.token_bytes = cases[i].bytes};
        struct gen *g = NULL;
        struct qn_err err;
        struct gen_params p = greedy(340);
        rig_up(&r, (struct scripted_params){.windows = true, .token_bytes = 1},
               (struct sched_params){.n_lane = 6, .kv_budget = 1000, .spec = words_spec(&w)});
        crowd(&r, 8, greedy(300), 300);
        scripted_counts(r.sc, &c);
        sched_stats(r.s, &st);
        assert_int_equal(c.alive_most, cases[i].at_a_time);
        assert_int_equal(w.most, cases[i].at_a_time);
        assert_true(c.held_most * (1 + cases[i].bytes) <= 1000);
        assert_int_equal(w.opened, 8);
        assert_true(st.spec.accepted > 8 * 200);
        back_at_its_level(&r, &w);
        if (cases[i].bytes == 2) {
            assert_int_equal(submit_err(&r, "hello", &p, &g, &err), QN_BAD_INPUT);
            assert_non_null(strstr(err.msg, "which is enough for 333 tokens"));
        }
        rig_down(&r);
    }
}

/* Answers without a limit give their drafter's memory back with their own, and get both again. */
static void test_draft_memory_is_parked(void **state)
{
    struct rig r;
    struct scripted_counts c;
    struct sched_stats st;
    struct words w = {.token_bytes = 1};
    rig_up(
        &r,
        (struct scripted_params){.windows = true, .token_bytes = 1, .resumes = true, .n_ctx = 4096},
        (struct sched_params){.n_lane = 4, .kv_budget = 2400, .spec = words_spec(&w)});
    crowd(&r, 5, greedy(-1), 1200 - 12);
    scripted_counts(r.sc, &c);
    sched_stats(r.s, &st);
    assert_true(st.parked > 0);
    assert_int_equal(c.alive_most, 2);
    assert_int_equal(w.most, 2);
    assert_int_equal(w.opened, 5 + st.parked);
    assert_true(c.held_most * 2 <= 2400);
    back_at_its_level(&r, &w);
    rig_down(&r);
}

/* There is no memory for a step's guesses, for the guessing itself, for a drafter's context: the
 * step, or the answer, is made without. */
static void test_no_memory_for_guesses(void **state)
{
    enum { SAID = 60 };
    char prompt[100], text[SAID + 1] = {0};
    for (int i = 0; i < SAID; i++)
        text[i] = "abc"[i % 3];
    snprintf(prompt, sizeof prompt, "[[say:%s]]", text);
    int64_t least = (int64_t)strlen(prompt) + SAID, accepted[2];
    for (int tight = 0; tight < 2; tight++) {
        struct rig r;
        struct answer a;
        struct words w = {0};
        rig_up(&r, (struct scripted_params){.windows = true},
               (struct sched_params){.spec = words_spec(&w)});
        scripted_max_tokens(r.sc, tight ? least : -1);
        run(&r, prompt, greedy(500), &a);
        accepted[tight] = a.last.usage.spec.accepted;
        expect(&a, text, GEN_STOP_EOS, SAID + 1);
        back_at_its_level(&r, &w);
        rig_down(&r);
    }
    assert_true(accepted[1] > 0 && accepted[1] < accepted[0]); /* the last steps went alone */
    for (int every = 1; every <= 3; every++)
        for (int what = 0; what < 2; what++) {
            struct rig r;
            struct sched_stats st;
            struct words w = {.no_open = what ? 0 : every, .no_draft = what ? every : 0};
            rig_up(&r, (struct scripted_params){.windows = true},
                   (struct sched_params){.n_lane = 3, .spec = words_spec(&w)});
            crowd(&r, 6, greedy(100), 100);
            sched_stats(r.s, &st);
            assert_true(every == 1 ? st.spec.rounds == 0 : st.spec.accepted > 0);
            assert_true(what || (w.opened > 0) == (every > 1));
            back_at_its_level(&r, &w);
            rig_down(&r);
        }
}

/* ---- one prompt, several answers ------------------------------------------------------------- */

static const char story[] =
    "Once upon a time there was a prompt that everybody shared [[loop:xyz]]";

static void test_share(void **state)
{
    enum { N = 7 };
    static struct tokens want[N], got;
    struct scripted_params sp = {.peak = 3, .fork = true, .max_rows = 24, .token_bytes = 1};
    struct rig r;
    struct gen *g[N];
    struct scripted_counts c;
    struct sched_stats st;
    rig_up(&r, sp, (struct sched_params){0});
    for (int i = 0; i < N; i++)
        take_tokens(submit(&r, story, drawn(40, (uint64_t)i)), &want[i]);
    rig_down(&r);
    for (int lanes = 1; lanes <= 4; lanes += 3) {
        rig_up(&r, sp, (struct sched_params){.n_lane = lanes, .kv_budget = lanes * 120});
        struct gen_share *sh = gen_share_create(r.s);
        assert_non_null(sh);
        for (int i = 0; i < N; i++) {
            struct gen_params p = drawn(40, (uint64_t)i);
            p.share = sh;
            g[i] = submit(&r, story, p);
        }
        for (int i = 0; i < N; i++) {
            take_tokens(g[i], &got);
            same_tokens(&want[i], &got);
        }
        sched_stats(r.s, &st);
        assert_int_equal(st.prompt_tokens, sizeof story - 1);
        scripted_counts(r.sc, &c);
        assert_int_equal(c.forked, N); /* the kept copy, and one each for the other six */
        gen_share_free(sh);
        rig_down(&r);
    }
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    assert_null(gen_share_create(r.s)); /* cannot: everybody reads for himself */
    rig_down(&r);
}

/* The reader leaves half way: another one reads. A share that nobody used, or whose generations
 * never ran, is no trouble. */
static void test_share_reader_leaves(void **state)
{
    struct rig r;
    struct gen *g[3];
    struct answer a;
    struct gen_event ev;
    char prompt[600];
    memset(prompt, 'x', sizeof prompt);
    snprintf(prompt + 500, 100, "[[say:shared]]");
    rig_up(&r, (struct scripted_params){.fork = true, .step_us = 2000},
           (struct sched_params){.n_lane = 3, .chunk = 10});
    gen_share_free(gen_share_create(r.s));
    struct gen_share *sh = gen_share_create(r.s);
    struct gen_params p = greedy(20);
    p.share = sh;
    for (int i = 0; i < 3; i++)
        g[i] = submit(&r, prompt, p);
    gen_share_free(sh); /* the generations keep it */
    do
        gen_wait(g[0], -1, &ev);
    while (ev.kind != GEN_PROGRESS);
    gen_free(g[0]);
    for (int i = 1; i < 3; i++) {
        collect(g[i], &a);
        expect(&a, "shared", GEN_STOP_EOS, 7);
        gen_free(g[i]);
    }
    struct gen *held = submit(&r, "[[loop:x]]", greedy(-1));
    p.share = sh = gen_share_create(r.s);
    for (int i = 0; i < 3; i++)
        g[i] = submit(&r, prompt, p);
    for (int i = 0; i < 3; i++)
        gen_free(g[i]);
    gen_share_free(sh);
    gen_free(held);
    rig_down(&r);
}

/* Every allocation and every copy fails in turn: still the right answers, or an error. */
static void test_share_no_memory(void **state)
{
    struct rig r;
    struct answer a;
    rig_up(&r, (struct scripted_params){.fork = true}, (struct sched_params){.n_lane = 4});
    int64_t hits = 0;
    for (int64_t nth = 1; hits >= nth - 1; nth++) {
        struct gen *g[3] = {NULL};
        struct qn_err err;
        fault_arm("sched.alloc", nth);
        struct gen_share *sh = gen_share_create(r.s);
        for (int i = 0; i < 3; i++) {
            struct gen_params p = greedy(-1);
            p.share = sh;
            if (submit_err(&r, "[[say:abc]]", &p, &g[i], &err) != QN_OK)
                assert_int_equal(err.code, QN_NO_MEMORY);
        }
        for (int i = 0; i < 3; i++) {
            if (!g[i])
                continue;
            collect(g[i], &a);
            if (a.last.kind == GEN_DONE)
                assert_string_equal(buf_z(&a.text), "abc");
            else
                assert_int_equal(a.last.err.code, QN_NO_MEMORY);
            buf_free(&a.text);
            gen_free(g[i]);
        }
        hits = fault_disarm();
        gen_share_free(sh);
    }
    for (int32_t most = 1; most <= 4; most++) { /* the kept copy cannot be made, or the others' */
        struct gen *g[3];
        scripted_max_seq(r.sc, most);
        struct gen_share *sh = gen_share_create(r.s);
        for (int i = 0; i < 3; i++) {
            struct gen_params p = greedy(-1);
            p.share = sh;
            g[i] = submit(&r, "[[say:abc]]", p);
        }
        for (int i = 0; i < 3; i++) {
            collect(g[i], &a);
            if (a.last.kind == GEN_DONE)
                assert_string_equal(buf_z(&a.text), "abc");
            buf_free(&a.text);
            gen_free(g[i]);
        }
        gen_share_free(sh);
    }
    rig_down(&r);
}

/* ---- fairness ------------------------------------------------------------------------------ */

/* A client with ten names for itself gets no more than one with one. */
static void test_two_levels(void **state)
{
    struct rig r;
    struct answer a;
    struct gen *g[12];
    struct sched_stats st;
    rig_up(&r, (struct scripted_params){.step_us = 1000}, (struct sched_params){0});
    struct gen *held = submit(&r, "[[loop:x]]", greedy(-1));
    do
        sched_stats(r.s, &st);
    while (st.running == 0);
    static const struct {
        char prompt[2];
        int client, user;
    } who[12] = {{"a", 1, 1}, {"b", 1, 2}, {"c", 1, 3}, {"d", 1, 4}, {"e", 1, 1}, {"f", 1, 2},
                 {"1", 2, 0}, {"2", 2, 0}, {"3", 2, 0}, {"4", 2, 0}, {"5", 2, 0}, {"6", 2, 0}};
    for (int i = 0; i < 12; i++) {
        struct gen_params p = greedy(1);
        p.client = (uint64_t)who[i].client;
        p.user = (uint64_t)who[i].user;
        g[i] = submit(&r, who[i].prompt, p);
    }
    gen_free(held);
    for (int i = 0; i < 12; i++) {
        collect(g[i], &a);
        buf_free(&a.text);
        gen_free(g[i]);
    }
    static const char order[] = "a1b2c3d4e5f6";
    int seen = 0;
    struct scripted_call call;
    for (int64_t i = 0; scripted_call(r.sc, i, &call); i++)
        if (call.kind == SCRIPTED_STEP_ITEM && call.seq > 0 && call.len == call.n_ids)
            assert_int_equal(call.first_id, order[seen++]);
    assert_int_equal(seen, 12);
    rig_down(&r);
}

/* One client fills the queue: it is refused, another may still queue a few. */
static void test_queue_is_not_one_clients(void **state)
{
    enum { MAX = 16 };
    struct rig r;
    struct gen *g[MAX + 3] = {NULL};
    struct qn_err err;
    struct sched_stats st;
    rig_up(&r, (struct scripted_params){.step_us = 1000}, (struct sched_params){.queue_max = MAX});
    struct gen *held = submit(&r, "[[loop:x]]", greedy(-1));
    do
        sched_stats(r.s, &st);
    while (st.running == 0);
    struct gen_params p = greedy(1);
    p.client = 1;
    for (int i = 0; i < MAX; i++)
        g[i] = submit(&r, "x", p);
    assert_int_equal(submit_err(&r, "x", &p, &g[MAX], &err), QN_BUSY);
    p.client = 2;
    for (int i = 0; i < MAX / 8; i++)
        g[MAX + i] = submit(&r, "x", p);
    assert_int_equal(submit_err(&r, "x", &p, &g[MAX + 2], &err), QN_BUSY);
    for (int i = 0; i < MAX + 3; i++)
        gen_free(g[i]);
    gen_free(held);
    rig_down(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planned),
        cmocka_unit_test(test_too_big_alone),
        cmocka_unit_test(test_open_ends),
        cmocka_unit_test(test_real_shortage),
        cmocka_unit_test(test_parked_is_the_same),
        cmocka_unit_test(test_draft_memory_is_planned),
        cmocka_unit_test(test_draft_memory_is_parked),
        cmocka_unit_test(test_no_memory_for_guesses),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_share_reader_leaves),
        cmocka_unit_test(test_share_no_memory),
        cmocka_unit_test(test_two_levels),
        cmocka_unit_test(test_queue_is_not_one_clients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
