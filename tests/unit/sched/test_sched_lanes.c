/*
 * test_sched_lanes.c - the lanes against the serial one, over a tiny llama on the engine: requests
 * that come, go and leave at random, memory that runs short, prompts shared or cut anywhere - every
 * answer has the tokens and the logprobs, bit for bit, that it has alone.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "../../sanitized.h"
#include "base/rng.h"
#include "sched/sched.h"
#include "scripted.h"

#if !FEWER
enum { N = 36, MADE = 40, PROMPT = 200, CROWD = 6 };
#elif RACES
enum { N = 12, MADE = 16, PROMPT = 40, CROWD = 6 }; /* the kernels are very slow there */
#else
enum { N = 28, MADE = 24, PROMPT = 120, CROWD = 6 };
#endif

struct want {
    int32_t prompt[PROMPT], n_prompt, max_tokens,
        leave; /* leave: after so many events, -1 = never */
    struct sample_params sample;
    int32_t group;        /* same prompt as the one before, read once */
    int32_t n, ids[MADE]; /* what the serial lane said */
    float logprob[MADE], top[MADE];
};

static struct want wants[N];
static struct qn_engine *engine;
static struct tok *tok;

static uint32_t pick(uint64_t i, uint64_t what, uint32_t n)
{
    return (uint32_t)(rng_u64(7, i, what) % n);
}

static void make_wants(int32_t n_vocab)
{
    for (int32_t i = 0; i < N; i++) {
        struct want *w = &wants[i];
        uint64_t k = (uint64_t)i;
        *w = (struct want){.leave = pick(k, 1, 5) ? -1 : (int32_t)pick(k, 2, 20)};
        w->group = i % 4 == 3;
        w->n_prompt = 1 + (int32_t)pick(k, 3, pick(k, 4, 2) ? PROMPT - 1 : 12);
        for (int32_t j = 0; j < w->n_prompt; j++)
            w->prompt[j] = (int32_t)pick(k * 1000 + (uint64_t)j, 5, (uint32_t)n_vocab);
        if (w->group) {
            memcpy(w->prompt, wants[i - 1].prompt, sizeof w->prompt);
            w->n_prompt = wants[i - 1].n_prompt;
        }
        w->max_tokens = 1 + (int32_t)pick(k, 6, MADE);
        w->sample = sample_params_default();
        w->sample.temperature = (float)pick(k, 7, 3) * 0.6f;
        w->sample.top_p = pick(k, 8, 2) ? 0.9f : 1;
        w->sample.top_k = (int32_t)pick(k, 9, 2) * 20;
        w->sample.frequency_penalty = (float)pick(k, 10, 2) * 0.3f;
        w->sample.seed = k;
        w->sample.n_top = 1;
    }
}

static struct gen *submit(struct sched *s, struct want *w, struct gen_share *share)
{
    struct gen *g = NULL;
    struct qn_err err;
    struct gen_params p = {.prompt = w->prompt,
                           .n_prompt = w->n_prompt,
                           .max_tokens = w->max_tokens,
                           .ignore_eos = true,
                           .sample = w->sample,
                           .share = share};
    if (sched_submit(s, &p, &g, &err) != QN_OK)
        fail_msg("submit: %s", err.msg);
    return g;
}

/* Reads g to its end, or until it leaves; returns the tokens seen. first: keeps them. */
static int32_t read_on(struct gen *g, struct want *w, bool first)
{
    struct gen_event ev;
    int32_t n = 0;
    for (int32_t seen = 0;; seen++) {
        gen_wait(g, -1, &ev);
        if (ev.kind == GEN_ERROR)
            fail_msg("error: %s", ev.err.msg);
        if (ev.kind == GEN_DONE || (!first && seen == w->leave))
            break;
        if (ev.kind != GEN_TOKEN)
            continue;
        if (first) {
            w->ids[n] = ev.token.id;
            w->logprob[n] = ev.token.logprob;
            w->top[n] = ev.token.top[0].logprob;
        } else if (w->ids[n] != ev.token.id ||
                   memcmp(&w->logprob[n], &ev.token.logprob, sizeof(float)) != 0 ||
                   memcmp(&w->top[n], &ev.token.top[0].logprob, sizeof(float)) != 0) {
            fail_msg("request %d, token %d: id %d, logprob %a; alone id %d, logprob %a",
                     (int)(w - wants), n, ev.token.id, (double)ev.token.logprob, w->ids[n],
                     (double)w->logprob[n]);
        }
        n++;
    }
    return n;
}

struct client {
    struct sched *s;
    int32_t from;
    pthread_t thread;
};

/* Every CROWD-th request, one after the other, with pauses of its own. */
static void *client(void *arg)
{
    struct client *c = arg;
    for (int32_t i = c->from; i < N; i += CROWD) {
        struct gen_share *share = wants[i].group ? gen_share_create(c->s) : NULL;
        struct gen *other = share ? submit(c->s, &wants[i - 1], share) : NULL;
        struct gen *g = submit(c->s, &wants[i], share);
        usleep(pick((uint64_t)i, 11, 3000));
        int32_t n = read_on(g, &wants[i], false);
        if (wants[i].leave < 0 && n != wants[i].n)
            fail_msg("request %d: %d tokens; alone %d", i, n, wants[i].n);
        if (other)
            read_on(other, &wants[i - 1], false);
        gen_free(g);
        gen_free(other);
        gen_share_free(share);
    }
    return NULL;
}

static struct sched *start(struct sched_params p)
{
    struct lm lm = lm_of_engine(engine);
    struct sched *s = NULL;
    struct qn_err err;
    if (sched_create(&lm, tok, &p, &s, &err) != QN_OK)
        fail_msg("%s", err.msg);
    return s;
}

static void test_like_alone(void **state)
{
    const int64_t one = lm_of_engine(engine).ops->seq_bytes(engine, PROMPT + MADE);
    const struct sched_params lanes[] = {
        {.n_lane = 8}, {.n_lane = 3, .chunk = 7}, {.n_lane = 8, .kv_budget = 3 * one}};
    struct sched *s = start((struct sched_params){.n_lane = 1});
    for (int32_t i = 0; i < N; i++) {
        struct gen *g = submit(s, &wants[i], NULL);
        wants[i].n = read_on(g, &wants[i], true);
        gen_free(g);
    }
    sched_free(s);
    for (size_t k = 0; k < sizeof lanes / sizeof lanes[0]; k++) {
        struct client c[CROWD];
        s = start(lanes[k]);
        for (int32_t i = 0; i < CROWD; i++) {
            c[i] = (struct client){.s = s, .from = i};
            assert_int_equal(pthread_create(&c[i].thread, NULL, client, &c[i]), 0);
        }
        for (int32_t i = 0; i < CROWD; i++)
            pthread_join(c[i].thread, NULL);
        assert_true(sched_drain(s, 10000));
        sched_free(s);
    }
}

/* A pool's late worker may read what the next region writes and loses its result (base/pool.h): by
 * design, and nothing a race detector can know. */
enum { THREADS = RACES ? 1 : 2 };

static int set_up(void **state)
{
    struct buf json = BUF_INIT;
    struct scripted_params sp = {0};
    struct qn_err err;
    struct qn_engine_params ep = {
        .model_dir = TINY_LLAMA, .n_thread = THREADS, .weights_only = true};
    if (qn_engine_open(&ep, &engine, &err) != QN_OK)
        fail_msg("%s", err.msg);
    scripted_tok_json(&sp, &json);
    assert_int_equal(tok_from_json(buf_str(&json), scripted_tok_config(), &tok, &err), QN_OK);
    buf_free(&json);
    make_wants(qn_engine_info(engine)->n_vocab);
    return 0;
}

static int tear_down(void **state)
{
    qn_engine_free(engine);
    tok_free(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_like_alone)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
