/*
 * test_sched.c - the scheduler over the scripted model: texts, ends, limits, faults, fairness, many
 * threads. The suite "thread" runs under ThreadSanitizer too.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "../../sanitized.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "sched/sched.h"
#include "sched_rig.h"

/* ---- one at a time ------------------------------------------------------------------------- */

static void test_ends(void **state)
{
    struct rig r;
    struct answer a;
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    run(&r, "hello", greedy(-1), &a);
    assert_int_equal(a.last.usage.prompt_tokens, 5);
    assert_int_equal(a.last.usage.cached_tokens, 0);
    expect(&a, "ok", GEN_STOP_EOS, 3);
    run(&r, "[[say:abc]]", greedy(2), &a);
    expect(&a, "ab", GEN_LENGTH, 2);
    run(&r, "[[say:abc]]", greedy(3), &a);
    expect(&a, "abc", GEN_LENGTH, 3);
    run(&r, "[[say:abc]]", greedy(4), &a);
    expect(&a, "abc", GEN_STOP_EOS, 4);
    run(&r, "[[say:abc]]", greedy(0), &a);
    assert_int_equal(a.progress, 0);
    expect(&a, "", GEN_LENGTH, 0);
    struct gen_params p = greedy(6);
    p.ignore_eos = true;
    run(&r, "[[say:abc]]", p, &a);
    expect(&a, "abc", GEN_LENGTH, 6);
    p.keep_special = true;
    run(&r, "[[say:abc]]", p, &a);
    expect(&a, "abc<eos><eos><eos>", GEN_LENGTH, 6);
    /* the final event stays */
    struct gen *g = submit(&r, "hello", greedy(1));
    struct gen_event ev;
    collect(g, &a);
    buf_free(&a.text);
    gen_wait(g, 0, &ev);
    assert_int_equal(ev.kind, GEN_DONE);
    assert_int_equal(ev.usage.completion_tokens, 1);
    gen_free(g);
    rig_down(&r);
}

static void test_context_full(void **state)
{
    struct rig r;
    struct answer a;
    struct qn_err err;
    struct gen *g = NULL;
    char prompt[64] = "[[loop:abcd]]";
    rig_up(&r, (struct scripted_params){.n_ctx = 40, .max_rows = 7}, (struct sched_params){0});
    run(&r, prompt, greedy(-1), &a);
    expect(&a, "abcdabcdabcdabcdabcdabcdabc", GEN_LENGTH, 27);
    memset(prompt + 13, '.', 26); /* 39: one below */
    run(&r, prompt, greedy(1000000), &a);
    assert_true(a.progress >= 1);
    expect(&a, "a", GEN_LENGTH, 1);
    struct gen_params p = greedy(5);
    prompt[39] = '.'; /* exactly full */
    assert_int_equal(submit_err(&r, prompt, &p, &g, &err), QN_BAD_INPUT);
    assert_non_null(strstr(err.msg, "40 tokens"));
    assert_non_null(strstr(err.msg, "context holds 40"));
    rig_down(&r);
}

static void test_bad_params(void **state)
{
    struct rig r;
    struct qn_err err;
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    struct {
        struct gen_params p;
        const char *prompt, *says;
    } c[] = {
        {greedy(1), "", "prompt is empty"},   {greedy(-2), "x", "max_tokens is -2"},
        {greedy(1), "x", "17 stop strings"},  {greedy(1), "x", "stop[1] has 0 bytes"},
        {greedy(1), "x", "temperature is 3"},
    };
    c[2].p.n_stop = 17;
    c[3].p.n_stop = 2;
    c[3].p.stop[0] = STR_LIT("x");
    c[4].p.sample.temperature = 3;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct gen *g = NULL;
        assert_int_equal(submit_err(&r, c[i].prompt, &c[i].p, &g, &err), QN_BAD_INPUT);
        if (!strstr(err.msg, c[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.msg, c[i].says);
        assert_null(g);
    }
    int32_t bad[] = {1, -1}, high[] = {100000};
    struct gen *g = NULL;
    struct gen_params p = greedy(1);
    p.prompt = bad;
    p.n_prompt = 2;
    assert_int_equal(sched_submit(r.s, &p, &g, &err), QN_BAD_INPUT);
    p.prompt = high;
    p.n_prompt = 1;
    assert_int_equal(sched_submit(r.s, &p, &g, &err), QN_BAD_INPUT);
    struct sched_stats st;
    sched_stats(r.s, &st);
    assert_int_equal(st.rejected, 7);
    assert_int_equal(st.submitted, 0);
    struct sched *s2 = NULL;
    struct sched_params lanes = {.n_lane = 65};
    assert_int_equal(sched_create(&r.lm, r.tok, &lanes, &s2, &err), QN_BAD_INPUT);
    rig_down(&r);
}

/* Characters split over tokens, and stops across them. */
static void test_text(void **state)
{
    struct rig r;
    struct answer a;
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    struct {
        const char *say, *stop[2], *want;
        enum gen_finish finish;
        int32_t made;
    } c[] = {
        {"\\xF0\\x9F|\\x99\\x82|e|\\xCC\\x81|x",
         {0},
         "\xF0\x9F\x99\x82"
         "e\xCC\x81x",
         GEN_STOP_EOS,
         6},
        {"\\xE6\\xBC\\xA2\\xE5|\\xAD\\x97", {0}, "\xE6\xBC\xA2\xE5\xAD\x97", GEN_STOP_EOS, 3},
        {"a|\\xF0\\x9F", {0}, "a\xEF\xBF\xBD", GEN_STOP_EOS, 3},
        {"The qui|ck br|own fo|x jumps", {"own fox"}, "The quick br", GEN_STOP_STRING, 4},
        {"The quick brown fox jumps", {"own fox"}, "The quick br", GEN_STOP_STRING, 19},
        {"alpha beta gamma delta", {"beta gamma"}, "alpha ", GEN_STOP_STRING, 16},
        {"alpha beta gam", {"beta gamma"}, "alpha beta gam", GEN_STOP_EOS, 15},
        {"abc", {"c", "bcd"}, "ab", GEN_STOP_STRING, 4}, /* the waiting match counts at the end */
        {"a|\\xF0\\x9F", {"\xEF\xBF\xBD"}, "a", GEN_STOP_STRING, 3},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        char prompt[256];
        struct gen_params p = greedy(-1);
        for (; p.n_stop < 2 && c[i].stop[p.n_stop]; p.n_stop++)
            p.stop[p.n_stop] = str_of(c[i].stop[p.n_stop]);
        snprintf(prompt, sizeof prompt, "[[say:%s]]", c[i].say);
        run(&r, prompt, p, &a);
        assert_int_equal(a.last.stop_index, c[i].finish == GEN_STOP_STRING ? 0 : -1);
        expect(&a, c[i].want, c[i].finish, c[i].made);
    }
    /* held text is delivered when the length ends the answer */
    struct gen_params p = greedy(8);
    p.stop[0] = STR_LIT("beta");
    p.n_stop = 1;
    run(&r, "[[say:alpha beta gamma]]", p, &a);
    assert_true(a.held_text);
    expect(&a, "alpha be", GEN_LENGTH, 8);
    rig_down(&r);
}

static void test_logprobs(void **state)
{
    struct rig r;
    struct gen_event ev;
    rig_up(&r, (struct scripted_params){.max_rows = 40}, (struct sched_params){0});
    char prompt[200] = "[[say:ab]]";
    memset(prompt + 10, '.', 130);
    struct gen_params p = greedy(-1);
    p.sample.n_top = 3;
    p.prompt_logprobs = true;
    for (int echo_only = 0; echo_only < 2; echo_only++) {
        int32_t n_prompt = 0, n_token = 0;
        p.max_tokens = echo_only ? 0 : -1;
        struct gen *g = submit(&r, prompt, p);
        do {
            gen_wait(g, -1, &ev);
            if (ev.kind == GEN_PROMPT) {
                assert_int_equal(ev.token.id, prompt[n_prompt]);
                assert_int_equal(ev.n_done, ++n_prompt);
                assert_int_equal(ev.token.n_top, n_prompt == 1 ? -1 : 3);
                assert_int_equal(n_token, 0);
            }
            n_token += ev.kind == GEN_TOKEN;
            if (ev.kind == GEN_TOKEN)
                assert_int_equal(ev.token.top[0].id, ev.token.id);
            if (ev.kind == GEN_TOKEN || (ev.kind == GEN_PROMPT && n_prompt > 1)) {
                assert_true(ev.token.logprob <= 0 && ev.token.logprob >= -9999);
                assert_true(ev.token.top[0].logprob >= ev.token.top[1].logprob);
            }
        } while (ev.kind != GEN_DONE && ev.kind != GEN_ERROR);
        assert_int_equal(ev.kind, GEN_DONE);
        assert_int_equal(ev.finish, echo_only ? GEN_LENGTH : GEN_STOP_EOS);
        assert_int_equal(n_prompt, 140);
        assert_int_equal(n_token, echo_only ? 0 : 2);
        gen_free(g);
    }
    struct scripted_call call;
    for (int64_t i = 0; scripted_call(r.sc, i, &call); i++)
        assert_true(call.n_logits <= 32); /* bounded memory */
    rig_down(&r);
}

/* ---- faults -------------------------------------------------------------------------------- */

static void test_faults(void **state)
{
    struct rig r;
    struct answer a;
    struct sched_stats st;
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    const char *const bad[] = {"[[loop:ab]][[fail:5]]", "[[loop:ab]][[nan:5]]",
                               "[[say:x]][[nan:0]]"};
    for (int i = 0; i < 3; i++) {
        run(&r, bad[i], greedy(20), &a);
        assert_int_equal(a.last.kind, GEN_ERROR);
        assert_int_equal(a.last.err.code, QN_INTERNAL);
        assert_int_equal(a.tokens, i < 2 ? 5 : 0);
        buf_free(&a.text);
        run(&r, "good", greedy(-1), &a);
        expect(&a, "ok", GEN_STOP_EOS, 3);
    }
    scripted_max_seq(r.sc, 0);
    run(&r, "x", greedy(1), &a);
    assert_int_equal(a.last.kind, GEN_ERROR);
    assert_int_equal(a.last.err.code, QN_NO_MEMORY);
    assert_int_equal(a.tokens, 0);
    buf_free(&a.text);
    scripted_max_seq(r.sc, -1);
    run(&r, "good", greedy(-1), &a);
    expect(&a, "ok", GEN_STOP_EOS, 3);
    sched_stats(r.s, &st);
    assert_int_equal(st.failed, 4);
    assert_int_equal(st.finished, 4);
    rig_down(&r);
}

/* In a batch only the culprit ends, the others do not notice. */
static void test_batch_fault(void **state)
{
    struct rig r;
    struct answer a;
    struct gen *g[4];
    rig_up(&r, (struct scripted_params){.step_us = 300}, (struct sched_params){.n_lane = 4});
    for (int i = 0; i < 4; i++)
        g[i] = submit(&r, i == 2 ? "[[loop:bad]][[fail:6]]" : "[[loop:good]]", greedy(30));
    scripted_fail_step(r.sc, 12, false); /* and one step that only fails as a batch */
    for (int i = 0; i < 4; i++) {
        collect(g[i], &a);
        gen_free(g[i]);
        if (i == 2) {
            assert_int_equal(a.last.kind, GEN_ERROR);
            assert_int_equal(a.tokens, 6);
            buf_free(&a.text);
        } else {
            expect(&a, "goodgoodgoodgoodgoodgoodgoodgo", GEN_LENGTH, 30);
        }
    }
    struct scripted_counts c;
    scripted_counts(r.sc, &c);
    assert_true(c.items_most >= 2);
    rig_down(&r);
}

/* Every allocation fails in turn: an error or a whole answer, nothing lost, and the next one works.
 */
static void walk(struct rig *r, const char *point)
{
    struct answer a;
    int64_t hits = 0;
    for (int64_t nth = 1; hits >= nth - 1; nth++) {
        struct qn_err err = {0};
        struct gen *g = NULL;
        struct gen_params p = greedy(30);
        p.sample = (struct sample_params){.temperature = 1,
                                          .top_p = 0.9f,
                                          .repetition_penalty = 1.1f,
                                          .repetition_window = 4,
                                          .presence_penalty = 0.1f,
                                          .n_top = 2};
        p.prompt_logprobs = true;
        p.stop[p.n_stop++] = STR_LIT("zz");
        struct ids ids = {0};
        assert_int_equal(tok_encode(r->tok, STR_LIT("[[say:hello zebra]]"), 0, &ids, NULL), QN_OK);
        p.prompt = ids.v;
        p.n_prompt = (int32_t)ids.n;
        fault_arm(point, nth);
        enum qn_status st = sched_submit(r->s, &p, &g, &err);
        if (st == QN_OK) {
            collect(g, &a);
            buf_free(&a.text);
            if (a.last.kind == GEN_ERROR)
                st = a.last.err.code;
            gen_free(g);
        }
        hits = fault_disarm();
        ids_free(&ids);
        assert_true(st == QN_OK || st == QN_NO_MEMORY);
        if (hits >= nth && strcmp(point, "sched.alloc") == 0)
            assert_int_equal(st, QN_NO_MEMORY);
        run(r, "good", greedy(-1), &a);
        expect(&a, "ok", GEN_STOP_EOS, 3);
    }
}

static void test_no_memory(void **state)
{
    struct rig r;
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    walk(&r, "sched.alloc");
    rig_down(&r);
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    walk(&r, "buf.grow");
    rig_down(&r);
}

/* ---- queue --------------------------------------------------------------------------------- */

static void test_queue(void **state)
{
    struct rig r;
    struct answer a;
    struct gen *g[8], *more = NULL;
    struct qn_err err;
    struct sched_stats st;
    static const uint64_t client[8] = {9, 1, 1, 1, 1, 2, 3, 2};
    rig_up(&r, (struct scripted_params){.step_us = 1000}, (struct sched_params){.queue_max = 7});
    g[0] = submit(&r, "[[loop:x]]", greedy(-1)); /* holds the lane */
    do
        sched_stats(r.s, &st);
    while (st.running == 0);
    for (int i = 1; i < 8; i++) {
        struct gen_params p = greedy(1);
        p.client = client[i];
        g[i] = submit(&r, (char[]){(char)('0' + i), 0}, p);
    }
    struct gen_params p = greedy(1);
    assert_int_equal(submit_err(&r, "ab", &p, &more, &err), QN_BUSY);
    assert_non_null(strstr(err.msg, "7 requests are waiting"));
    gen_cancel(g[3]); /* leaves the queue at once, while the lane is busy */
    collect(g[3], &a);
    expect(&a, "", GEN_CANCELLED, 0);
    sched_stats(r.s, &st);
    assert_int_equal(st.waiting, 6);
    assert_int_equal(st.running, 1);
    gen_cancel(g[0]);
    collect(g[0], &a);
    assert_int_equal(a.last.finish, GEN_CANCELLED);
    buf_free(&a.text);
    for (int i = 1; i < 8; i++) {
        collect(g[i], &a);
        buf_free(&a.text);
    }
    /* round robin over clients 1 2 3, first come first served inside: the model saw prompts "1",
     * "5"... in this order */
    static const char order[] = "156274";
    int seen = 0;
    struct scripted_call call;
    for (int64_t i = 0; scripted_call(r.sc, i, &call); i++)
        if (call.kind == SCRIPTED_STEP_ITEM && call.seq > 0 && call.len == call.n_ids)
            assert_int_equal(call.first_id, order[seen++]);
    assert_int_equal(seen, 6);
    sched_stats(r.s, &st);
    assert_int_equal(st.cancelled, 2);
    assert_int_equal(st.finished, 6);
    assert_int_equal(st.rejected, 1);
    for (int i = 0; i < 8; i++)
        gen_free(g[i]);
    gen_free(NULL);
    rig_down(&r);
}

/* A reader that stops pauses its own generation; another takes the lane; it goes on later. */
static void test_slow_reader(void **state)
{
    struct rig r;
    struct answer a;
    struct scripted_counts before, after;
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    struct gen *slow = submit(&r, "[[loop:slow ]]", greedy(1000));
    run(&r, "[[say:quick]]", greedy(-1), &a); /* must not wait for the slow one */
    expect(&a, "quick", GEN_STOP_EOS, 6);
    usleep(20000);
    scripted_counts(r.sc, &before);
    usleep(20000);
    scripted_counts(r.sc, &after);
    assert_int_equal(before.steps, after.steps); /* paused: no work is done for it */
    assert_int_equal(after.alive, 1);
    collect(slow, &a);
    assert_int_equal(a.tokens, 1000);
    assert_int_equal(a.last.finish, GEN_LENGTH);
    assert_int_equal(a.text.n, 1000);
    buf_free(&a.text);
    gen_free(slow);
    /* left without reading while it runs, and while it is paused */
    gen_free(submit(&r, "[[loop:x]]", greedy(-1)));
    struct gen *g = submit(&r, "[[loop:x]]", greedy(-1));
    usleep(20000);
    gen_free(g);
    assert_true(sched_drain(r.s, 5000));
    rig_down(&r);
}

/* Readers that never read take every sequence: those who wait get through all the same, at the
 * cost of the reader that has been silent longest; the others go on. */
static void test_silent_readers(void **state)
{
    enum { SILENT = 1 + 16, MS = 100 }; /* the lane's and those beside it */
    struct rig r;
    struct answer a;
    struct gen *silent[SILENT];
    struct scripted_counts c;
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){.pause_max_ms = MS});
    for (int i = 0; i < SILENT; i++) {
        silent[i] = submit(&r, "[[loop:s]]", greedy(500));
        do { /* the first is silent longest, however late this machine starts the others */
            usleep(5000);
            scripted_counts(r.sc, &c);
        } while (c.alive <= i);
    }
    usleep(2 * MS * 1000);
    scripted_counts(r.sc, &c);
    assert_int_equal(c.alive, SILENT); /* nobody waits, so nobody has to go */
    run(&r, "[[say:quick]]", greedy(-1), &a);
    expect(&a, "quick", GEN_STOP_EOS, 6);
    collect(silent[0], &a);
    assert_int_equal(a.last.kind, GEN_ERROR);
    assert_int_equal(a.last.err.code, QN_CANCELLED);
    assert_non_null(strstr(a.last.err.msg, "did not read"));
    assert_true(a.tokens > 0); /* what was made before can still be read */
    buf_free(&a.text);
    for (int i = 1; i < SILENT; i++) {
        collect(silent[i], &a);
        assert_int_equal(a.last.finish, GEN_LENGTH);
        assert_int_equal(a.tokens, 500);
        buf_free(&a.text);
    }
    for (int i = 0; i < SILENT; i++)
        gen_free(silent[i]);
    rig_down(&r);
}

/* Who waits before the pause is over gets in when it is, without anything else happening. */
static void test_silent_reader_makes_way_later(void **state)
{
    enum { SILENT = 1 + 16, MS = 300 };
    struct rig r;
    struct answer a;
    struct gen *silent[SILENT];
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){.pause_max_ms = MS});
    int64_t t = clock_us();
    for (int i = 0; i < SILENT; i++)
        silent[i] = submit(&r, "[[loop:s]]", greedy(500));
    run(&r, "[[say:quick]]", greedy(-1), &a);
    expect(&a, "quick", GEN_STOP_EOS, 6);
    assert_true(clock_us() - t >= MS * 1000);
    for (int i = 0; i < SILENT; i++)
        gen_free(silent[i]);
    rig_down(&r);
}

static void test_cancel_prefill(void **state)
{
    struct rig r;
    struct answer a;
    char prompt[1500];
    memset(prompt, 'x', sizeof prompt);
    prompt[sizeof prompt - 1] = 0;
    rig_up(&r, (struct scripted_params){.step_us = 2000}, (struct sched_params){.chunk = 10});
    struct gen *g = submit(&r, prompt, greedy(-1));
    struct gen_event ev;
    do
        gen_wait(g, -1, &ev);
    while (ev.kind != GEN_PROGRESS);
    gen_cancel(g);
    int64_t t = clock_us();
    collect(g, &a);
    assert_true(clock_us() - t < 200000); /* a chunk is 2 ms, all of it 300 */
    expect(&a, "", GEN_CANCELLED, 0);
    gen_free(g);
    rig_down(&r);
}

static void test_drain(void **state)
{
    struct rig r;
    struct answer a;
    struct qn_err err;
    struct gen *late = NULL;
    rig_up(&r, (struct scripted_params){.step_us = 1000}, (struct sched_params){0});
    struct gen *g1 = submit(&r, "[[say:one]]", greedy(-1));
    struct gen *g2 = submit(&r, "[[loop:two]]", greedy(40));
    assert_false(sched_drain(r.s, 1));
    struct gen_params p = greedy(1);
    assert_int_equal(submit_err(&r, "x", &p, &late, &err), QN_BUSY);
    assert_non_null(strstr(err.msg, "shutting down"));
    assert_true(sched_drain(r.s, 5000));
    collect(g1, &a);
    expect(&a, "one", GEN_STOP_EOS, 4);
    collect(g2, &a);
    assert_int_equal(a.tokens, 40);
    buf_free(&a.text);
    gen_free(g1);
    gen_free(g2);
    rig_down(&r);
    /* freeing with work in all states ends it */
    rig_up(&r, (struct scripted_params){.step_us = 1000}, (struct sched_params){.n_lane = 2});
    for (int i = 0; i < 6; i++)
        gen_free(submit(&r, "[[loop:z]]", greedy(-1)));
    rig_down(&r);
}

/* ---- together ------------------------------------------------------------------------------ */

static void spell(struct rig *r, int i, struct answer *a)
{
    char prompt[700];
    struct gen_params p = {.max_tokens = 24, .sample = sample_params_default()};
    size_t n = (size_t)(5 + i * 83) % sizeof prompt;
    memset(prompt, 'a' + i % 26, sizeof prompt);
    prompt[n] = 0;
    p.sample.temperature = 1;
    p.sample.top_p = i % 2 ? 0.9f : 1;
    p.sample.seed = (uint64_t)i;
    p.ignore_eos = true;
    p.client = (uint64_t)i;
    run(r, prompt, p, a);
}

struct job {
    struct rig *r;
    int i;
    struct answer a;
};

static void *spell_thread(void *arg)
{
    struct job *j = arg;
    spell(j->r, j->i, &j->a);
    return NULL;
}

/* The same seed gives the same tokens alone, among others, in any chunks. */
static void test_seeds(void **state)
{
    enum { N = 8 };
    static struct job job[N];
    static struct answer alone[N];
    struct rig r;
    pthread_t t[N];
    rig_up(&r, (struct scripted_params){.peak = 1}, (struct sched_params){0});
    for (int i = 0; i < N; i++)
        spell(&r, i, &alone[i]);
    rig_down(&r);
    rig_up(&r, (struct scripted_params){.peak = 1, .step_us = 200, .max_rows = 33},
           (struct sched_params){.n_lane = 5, .chunk = 13});
    for (int i = 0; i < N; i++) {
        job[i].r = &r;
        job[i].i = i;
        assert_int_equal(pthread_create(&t[i], NULL, spell_thread, &job[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(alone[i].tokens, 24);
        assert_memory_equal(job[i].a.ids, alone[i].ids, 24 * sizeof(int32_t));
        assert_true(i == 0 || memcmp(alone[i].ids, alone[0].ids, 24 * sizeof(int32_t)) != 0);
        buf_free(&alone[i].text);
        buf_free(&job[i].a.text);
    }
    struct scripted_counts c;
    scripted_counts(r.sc, &c);
    assert_true(c.items_most > 1 && c.items_most <= 5);
    assert_true(c.rows_most <= 33);
    rig_down(&r);
}

struct crowd {
    struct rig *r;
    int number, rounds;
    int done, cancelled;
};

static long rss_kib(void)
{
    long pages = 0, rss = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &pages, &rss) != 2)
            rss = 0;
        fclose(f);
    }
    return rss * (sysconf(_SC_PAGESIZE) / 1024);
}

/* One client: answers of mixed length, every fifth left in the middle, some read slowly. */
static void *crowd_thread(void *arg)
{
    struct crowd *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        uint64_t dice = rng_u64(5, (uint64_t)c->number, (uint64_t)i);
        struct gen_params p = greedy((int32_t)(dice % 40));
        struct gen_event ev = {0};
        p.client = (uint64_t)c->number;
        p.prompt_logprobs = dice >> 8 & 1 && dice >> 9 & 1;
        struct gen *g =
            submit(c->r, dice >> 10 & 1 ? "[[loop:ab]]" : "[[say:hello]] long enough", p);
        bool leave = (dice >> 16) % 10 < 3; /* a fifth, as some are over before */
        int keep = (int)(dice >> 28 & 3);
        while (ev.kind != GEN_DONE && ev.kind != GEN_ERROR) {
            if (leave && keep-- == 0)
                break;
            if ((dice >> 32) % 32 == 0)
                usleep(100);
            gen_wait(g, -1, &ev);
        }
        if (ev.kind == GEN_ERROR)
            return NULL; /* rounds will not add up */
        c->done += ev.kind == GEN_DONE;
        c->cancelled += ev.kind != GEN_DONE;
        gen_free(g);
    }
    return NULL;
}

static void crowd(struct rig *r, int rounds, int *done)
{
    enum { N = 8 };
    struct crowd c[N];
    pthread_t t[N];
    for (int i = 0; i < N; i++) {
        c[i] = (struct crowd){.r = r, .number = i, .rounds = rounds};
        assert_int_equal(pthread_create(&t[i], NULL, crowd_thread, &c[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(c[i].done + c[i].cancelled, rounds);
        assert_true(rounds < 50 || c[i].cancelled > rounds / 10);
        *done += c[i].done;
    }
}

/* 10,000 mixed generations from 8 threads, a fifth cancelled: nothing leaks, nothing is lost. */
static void test_crowd(void **state)
{
    struct rig r;
    struct sched_stats st;
    int done = 0;
    rig_up(&r, (struct scripted_params){.max_rows = 24}, (struct sched_params){.n_lane = 4});
    crowd(&r, 250, &done);
    long before = rss_kib();
    crowd(&r, 1000, &done);
    assert_true(sched_drain(r.s, 10000));
    long after = rss_kib();
    sched_stats(r.s, &st);
    assert_int_equal(st.submitted, 10000);
    assert_int_equal(st.finished + st.cancelled, 10000);
    assert_true(st.finished >= done); /* some ended before their client left */
    assert_int_equal(st.failed, 0);
    assert_int_equal(st.running + st.waiting, 0);
    struct scripted_counts c;
    scripted_counts(r.sc, &c);
    assert_int_equal(c.alive, 0);
    assert_true(c.alive_most <= 4 + 16);
    if (!SANITIZED) /* a sanitizer keeps freed memory for a while */
        assert_true(after - before < 2048);
    rig_down(&r);
}

/* ---- the cache's tick ----------------------------------------------------------------------- */

static _Atomic int64_t tick_us; /* the last one */

static int32_t note_tick(void *self, bool busy)
{
    tick_us = clock_us();
    return 0;
}

static void no_stats(void *self, struct qn_cache_stats *out)
{
    *out = (struct qn_cache_stats){0};
}

/* What a request leaves for the disk is looked at, though nothing happens behind it and the tick
 * before it, a moment ago, had nothing to wait for. */
static void test_tick_behind_work(void **state)
{
    struct rig r;
    struct answer a;
    struct qn_err err;
    rig_up(&r, (struct scripted_params){0}, (struct sched_params){0});
    sched_free(r.s);
    struct lm_ops ops = *r.lm.ops;
    ops.cache_tick = note_tick;
    ops.cache_stats = no_stats;
    r.lm.ops = &ops;
    assert_int_equal(sched_create(&r.lm, r.tok, &(struct sched_params){0}, &r.s, &err), QN_OK);
    for (int k = 0; k < 3; k++) {
        run(&r, "[[say:abc]]", greedy(4), &a);
        buf_free(&a.text);
        int64_t end = clock_us();
        for (int i = 0; i < 5000 && tick_us < end; i++)
            usleep(1000);
        assert_true(tick_us >= end);
    }
    rig_down(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_context_full),
        cmocka_unit_test(test_tick_behind_work),
        cmocka_unit_test(test_bad_params),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_batch_fault),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_silent_readers),
        cmocka_unit_test(test_silent_reader_makes_way_later),
        cmocka_unit_test(test_cancel_prefill),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
