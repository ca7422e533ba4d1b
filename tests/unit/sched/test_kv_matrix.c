/*
 * test_kv_matrix.c - every format of KV memory x every kind of it x a cold prompt, a hit in memory
 * and a prefix read back from disk after a restart, with guesses: the tokens and the logprobs' bits
 * of an answer are those of one plain, cold run in the same format. All formats of a model share
 * one folder, and none finds what another wrote.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "base/file.h"
#include "base/rng.h"
#include "sched/sched.h"
#include "scripted.h"

enum { N_FORMAT = 5, ASKS = 3, MADE = 24, LONG = 210, SHARED = 110 };

static const char *const formats[N_FORMAT] = {"off", "8", "4", "config", "turbo"};

/* The layers of `config` are those that have keys and values. */
static const struct kind {
    const char *model, *config;
} kinds[] = {
    {"gemma3_text-q4", /* windows */
     "[{\"layer_idx\": 0, \"bits\": 6}, {\"layer_idx\": 5, \"bits\": 4, \"group_size\": 32}]"},
    {"qwen3_5-moe-q4", "[{\"layer_idx\": 3, \"bits\": 5}]"}, /* recurrent states */
    {"llama-tied-llama3-q4",                                 /* everything is kept */
     "[{\"layer_idx\": 0, \"bits\": 3, \"group_size\": 32}, {\"layer_idx\": 2, \"bits\": 5}]"},
    {"glm_moe_dsa-shared-q4", /* latents, and keys of an index */
     "[{\"layer_idx\": 1, \"bits\": 8, \"group_size\": 32}]"},
};

struct said {
    int32_t n, ids[MADE];
    float logprob[MADE];
    int32_t cached, drafted, accepted;
};

struct rig {
    const struct kind *kind;
    char *model, *disk; /* folders of our own */
    struct tok *tok;
    struct qn_engine *e;
    struct qn_cache *c;
    struct sched *s;
    int32_t prompts[ASKS][LONG], n[ASKS];
    struct said cold[N_FORMAT][ASKS];
    int64_t drafted, accepted;
};

/* ---- a model's life -------------------------------------------------------------------------- */

static void make_folder(struct rig *r)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    struct buf from = BUF_INIT, to = BUF_INIT;
    struct qn_err err = {0};
    r->model = check_tmp_dir();
    r->disk = check_tmp_dir();
    for (int i = 0; i < 2; i++) {
        buf_clear(&from);
        buf_addf(&from, "%s/%s/%s", TINY_DIR, r->kind->model, files[i]);
        path_join(&to, r->model, files[i]);
        assert_int_equal(symlink(buf_z(&from), buf_z(&to)), 0);
    }
    path_join(&to, r->model, "kv_config.json");
    CHECK_OK(file_write_atomic(buf_z(&to), str_of(r->kind->config), &err), err);
    buf_free(&from);
    buf_free(&to);
}

/* A process's worth of memory; cached: with the folder on disk, and guesses. */
static void up(struct rig *r, int format, bool cached)
{
    struct qn_err err = {0};
    struct qn_engine_params ep = {.model_dir = r->model,
                                  .n_thread = 1,
                                  .n_ctx = LONG + MADE + 8,
                                  .kv_quant = formats[format],
                                  .weights_only = true};
    CHECK_OK(qn_engine_open(&ep, &r->e, &err), err);
    struct lm lm = lm_of_engine(r->e);
    struct sched_params p = {.n_lane = 1};
    if (cached) {
        const struct qn_cache_params cp = {.bytes = 64 << 20, .interval = 32};
        const struct qn_disk_params dp = {.dir = r->disk};
        CHECK_OK(qn_cache_create(r->e, &cp, &r->c, &err), err);
        CHECK_OK(qn_cache_disk_open(r->c, &dp, &err), err);
        lm = lm_of_cache(r->c);
        p = (struct sched_params){.n_lane = 2, .spec = {.kind = SPEC_NGRAM, .fixed = true}};
    }
    CHECK_OK(sched_create(&lm, r->tok, &p, &r->s, &err), err);
}

static void down(struct rig *r)
{
    sched_free(r->s);
    qn_cache_free(r->c);
    r->c = NULL;
    assert_int_equal(qn_kv_bytes_used(r->e), 0);
    qn_engine_free(r->e);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* They repeat themselves, so that guesses are made. The second goes on from the first, the third
 * parts from it in the middle of a page. */
static void make_prompts(struct rig *r)
{
    static const int32_t lengths[ASKS] = {LONG - 40, LONG, LONG - 30};
    for (int k = 0; k < ASKS; k++) {
        r->n[k] = lengths[k];
        for (int32_t i = 0; i < r->n[k]; i++) {
            uint64_t what = k == 2 && i >= SHARED ? 77 : 5;
            r->prompts[k][i] = 1 + (int32_t)(rng_u64(what, (uint64_t)(i % 23), 1) % 60);
        }
    }
}

static struct said ask(struct rig *r, int k)
{
    struct gen *g = NULL;
    struct qn_err err;
    struct gen_event ev;
    struct said a = {0};
    struct gen_params p = {.prompt = r->prompts[k],
                           .n_prompt = r->n[k],
                           .max_tokens = MADE,
                           .ignore_eos = true,
                           .sample = sample_params_default()};
    /* An answer of two different tokens repeats itself soon, whatever the model. */
    static const struct logit_bias two[] = {{5, 50}, {9, 50}};
    p.sample.bias = two;
    p.sample.n_bias = 2;
    p.sample.temperature = 0;
    p.sample.n_top = 0; /* logprobs */
    CHECK_OK(sched_submit(r->s, &p, &g, &err), err);
    do {
        gen_wait(g, -1, &ev);
        if (ev.kind == GEN_ERROR)
            fail_msg("%s", ev.err.msg);
        if (ev.kind == GEN_TOKEN) {
            a.ids[a.n] = ev.token.id;
            a.logprob[a.n++] = ev.token.logprob;
        }
    } while (ev.kind != GEN_DONE);
    a.cached = ev.usage.cached_tokens;
    r->drafted += ev.usage.spec.drafted;
    r->accepted += ev.usage.spec.accepted;
    gen_free(g);
    assert_int_equal(a.n, MADE);
    return a;
}

static void expect(struct rig *r, int format, int k, const struct said *a, const char *when)
{
    const struct said *want = &r->cold[format][k];
    if (memcmp(a->ids, want->ids, sizeof a->ids) != 0 ||
        memcmp(a->logprob, want->logprob, sizeof a->logprob) != 0)
        fail_msg("%s, format %s, prompt %d, %s: not the cold run's answer", r->kind->model,
                 formats[format], k, when);
}

/* ---- the three ways -------------------------------------------------------------------------- */

static void cold(struct rig *r, int f)
{
    up(r, f, false);
    for (int k = 0; k < ASKS; k++)
        r->cold[f][k] = ask(r, k);
    down(r);
    for (int other = 0; other < f; other++) /* the format does something */
        if (r->cold[other][0].n)
            assert_memory_not_equal(r->cold[f][0].logprob, r->cold[other][0].logprob,
                                    sizeof r->cold[f][0].logprob);
}

static void warm(struct rig *r, int f)
{
    struct qn_cache_flush flushed;
    int64_t drafted = r->drafted;
    up(r, f, true);
    for (int k = 0; k < ASKS; k++) {
        struct said a = ask(r, k);
        expect(r, f, k, &a, "in memory");
        if (k == 0) /* other formats' records are there, and of no use */
            assert_int_equal(a.cached, 0);
        else
            assert_in_range(a.cached, k == 1 ? r->n[0] - 1 : SHARED / 32 * 32, r->n[k] - 1);
    }
    assert_true(r->drafted > drafted);
    assert_true(sched_cache_flush(r->s, 100000, &flushed));
    assert_true(flushed.nodes > 0 && flushed.durable_nodes == flushed.nodes);
    down(r);
}

static void restarted(struct rig *r, int f)
{
    static const int order[ASKS] = {2, 0, 1};
    struct qn_cache_stats st;
    up(r, f, true);
    for (int i = 0; i < ASKS; i++) {
        int k = order[i];
        struct said a = ask(r, k);
        expect(r, f, k, &a, "from disk");
        assert_int_equal(a.cached, r->n[k] - 1);
    }
    qn_cache_stats(r->c, &st);
    assert_true(st.disk.restores >= 2 && st.disk.restored_tokens >= LONG - 1);
    assert_int_equal(st.disk.damaged, 0);
    down(r);
}

static void test_kind(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    struct buf json = BUF_INIT;
    struct scripted_params sp = {0};
    struct qn_err err = {0};
    r->kind = *state;
    scripted_tok_json(&sp, &json);
    CHECK_OK(tok_from_json(buf_str(&json), scripted_tok_config(), &r->tok, &err), err);
    buf_free(&json);
    make_folder(r);
    make_prompts(r);
    int every = FEWER ? 3 : 1; /* the arithmetic is slow there, and memory is what is watched */
    for (int f = 0; f < N_FORMAT; f += every)
        cold(r, f);
    for (int f = 0; f < N_FORMAT; f += every)
        warm(r, f);
    for (int f = 0; f < N_FORMAT; f += every)
        restarted(r, f);
    print_message("%s: %lld guesses, %lld right\n", r->kind->model, (long long)r->drafted,
                  (long long)r->accepted);
    assert_true(r->accepted > 0);
    CHECK_OK(dir_remove(r->model, &err), err);
    CHECK_OK(dir_remove(r->disk, &err), err);
    tok_free(r->tok);
    free(r->model);
    free(r->disk);
    free(r);
}

int main(void)
{
    enum { K = FEWER ? 2 : sizeof kinds / sizeof *kinds };
    struct CMUnitTest tests[K];
    for (int i = 0; i < K; i++)
        tests[i] = (struct CMUnitTest){kinds[i].model, test_kind, NULL, NULL,
                                       (void *)(uintptr_t)&kinds[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
