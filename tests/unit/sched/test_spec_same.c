/*
 * test_spec_same.c - guesses change nothing: over tiny models of every kind of memory (pages,
 * windows, latents with an index, recurrent states) answers made with guesses have the tokens, the
 * logprobs' bits, the text, the end and the counts of those made without, alone and four at a time.
 *
 * A scripted drafter knows the true answers and forces patterns: all right, none, alternating, any
 * number, past the end of the answer. Some answers have a budget of reasoning. SPEC_SAME=200 in the
 * environment: so many prompts, and all models. An argument: only the model of that name.
 */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "base/rng.h"
#include "sched/gram_store.h"
#include "sched/sched.h"
#include "scripted.h"

enum { MOST_WANTS = 200, FEW_WANTS = FEWER ? 4 : 12, MADE = FEWER ? 24 : 48, AT_ONCE = 4 };
enum { PROMPT = 150, FIRST = 64 };

struct want {
    int32_t prompt[PROMPT], n_prompt, max_tokens;
    struct sample_params sample;
    struct logit_bias bias[2];
    bool ignore_eos, grammar, stops, thinks;
    int32_t n, ids[MADE + 1]; /* what came without guesses */
    float logprob[MADE], top[MADE];
    struct buf text;
    enum gen_finish finish;
    int32_t made;
};

static struct want wants[MOST_WANTS];
static int32_t n_want;
static struct qn_engine *engine;
static enum qn_draft_kind draft_kind; /* what is opened with it */
static const char *draft_dir;
static bool perfect;           /* guesses for greedy answers are all right */
static struct qn_cache *cache; /* NULL = without */
static struct tok *tok;
static struct gram_store *grams;
static struct gram *grammar;
static struct gram_vocab *vocab;
static int64_t ngram_accepted; /* over all models: some never repeat themselves */
static const char *only;       /* the one model to look at; NULL = all */

static uint32_t pick(uint64_t i, uint64_t what, uint32_t n)
{
    return (uint32_t)(rng_u64(11, i, what) % n);
}

/* Whose prompt it is: of no model is the vocabulary smaller than FIRST. */
static const struct want *want_of(const int32_t *ids)
{
    return &wants[ids[0] + FIRST * ids[1]];
}

/* Half of the prompts repeat themselves, so that the index finds something. */
static void make_prompt(struct want *w, uint64_t k, uint32_t n_vocab)
{
    int32_t period = pick(k, 1, 2) ? 1 + (int32_t)pick(k, 2, 12) : PROMPT;
    w->n_prompt = 2 + (int32_t)pick(k, 3, pick(k, 4, 3) ? PROMPT - 2 : 10);
    for (int32_t j = 0; j < w->n_prompt; j++)
        w->prompt[j] =
            j >= period ? w->prompt[j - period] : (int32_t)pick(k * 1000 + (uint64_t)j, 5, n_vocab);
    w->prompt[0] = (int32_t)(k % FIRST); /* all differ; see want_of */
    w->prompt[1] = (int32_t)(k / FIRST);
}

static void make_wants(int32_t n_vocab)
{
    for (int32_t i = 0; i < n_want; i++) {
        struct want *w = &wants[i];
        uint64_t k = (uint64_t)i;
        *w = (struct want){.text = BUF_INIT, .sample = sample_params_default()};
        make_prompt(w, k, (uint32_t)n_vocab);
        w->max_tokens = 1 + (int32_t)pick(k, 6, MADE);
        w->sample.temperature = i % 4 == 1 ? 0.8F : 0;
        w->sample.top_p = pick(k, 7, 2) ? 0.9F : 1;
        w->sample.seed = k;
        w->sample.n_top = 1;
        w->grammar = i % 4 == 2;
        w->stops = i % 8 == 4;
        w->thinks = i % 8 == 0 || i % 8 == 5;
        w->ignore_eos = pick(k, 8, 2);
        if (i % 4 != 3)
            continue;
        w->sample.frequency_penalty = 0.4F;
        w->sample.repetition_penalty = 1.1F;
        w->bias[0] = (struct logit_bias){(int32_t)pick(k, 9, (uint32_t)n_vocab), 3};
        w->bias[1] = (struct logit_bias){(int32_t)pick(k, 10, (uint32_t)n_vocab), -5};
        w->sample.bias = w->bias;
        w->sample.n_bias = 2;
    }
}

/* What comes when the budget of reasoning is used up: token ids are bytes. */
static const int32_t think_end[] = {'<', '/', '>'};
enum { THINK_BUDGET = 7, N_END = 3 };

static struct gen *submit(struct sched *s, struct want *w)
{
    static const struct gen_thinking thinking = {.budget = THINK_BUDGET,
                                                 .inside = true,
                                                 .open = {"<?>", 3},
                                                 .close = {"</>", 3},
                                                 .end = think_end,
                                                 .n_end = N_END};
    struct gen *g = NULL;
    struct qn_err err;
    struct gen_params p = {.prompt = w->prompt,
                           .n_prompt = w->n_prompt,
                           .max_tokens = w->max_tokens,
                           .ignore_eos = w->ignore_eos,
                           .sample = w->sample,
                           .grammar = w->grammar ? grammar : NULL,
                           .vocab = w->grammar ? vocab : NULL,
                           .client = (uint64_t)(w - wants)};
    if (w->thinks)
        p.thinking = &thinking;
    if (w->stops) {
        p.stop[p.n_stop++] = STR_LIT("e");
        p.stop[p.n_stop++] = STR_LIT("\x11Q");
    }
    CHECK_OK(sched_submit(s, &p, &g, &err), err);
    return g;
}

struct seen {
    int32_t n;
    struct buf text;
    struct gen_event last;
};

static void same_token(const struct want *w, int32_t n, const struct sampled *t)
{
    if (n < w->n && w->ids[n] == t->id &&
        memcmp(&w->logprob[n], &t->logprob, sizeof t->logprob) == 0 &&
        memcmp(&w->top[n], &t->top[0].logprob, sizeof t->logprob) == 0)
        return;
    fail_msg("request %d, token %d of %d: id %d, logprob %a; without guesses id %d, logprob %a",
             (int)(w - wants), n, w->n, t->id, (double)t->logprob, w->ids[n],
             (double)w->logprob[n]);
}

/* Reads to the end; `first` keeps what came. */
static void read_all(struct gen *g, struct want *w, bool first, struct spec_counts *sum)
{
    struct gen_event ev;
    struct buf text = BUF_INIT;
    int32_t n = 0;
    for (;;) {
        gen_wait(g, -1, &ev);
        if (ev.kind == GEN_ERROR)
            fail_msg("request %d: %s", (int)(w - wants), ev.err.msg);
        buf_add_str(&text, ev.text);
        if (ev.kind == GEN_DONE)
            break;
        if (ev.kind != GEN_TOKEN)
            continue;
        if (!first)
            same_token(w, n, &ev.token);
        w->ids[n] = ev.token.id;
        w->logprob[n] = ev.token.logprob;
        w->top[n++] = ev.token.top[0].logprob;
    }
    if (first) {
        w->n = n;
        w->text = text;
        w->finish = ev.finish;
        w->made = ev.usage.completion_tokens;
        if (w->thinks && n >= THINK_BUDGET + N_END)
            assert_memory_equal(w->ids + THINK_BUDGET, think_end, sizeof think_end);
        assert_int_equal(ev.usage.spec.rounds, 0);
        return;
    }
    assert_int_equal(n, w->n);
    assert_int_equal(ev.finish, w->finish);
    assert_int_equal(ev.usage.completion_tokens, w->made);
    assert_int_equal(ev.usage.prompt_tokens, w->n_prompt);
    assert_true(str_eq(buf_str(&text), buf_str(&w->text)));
    if (perfect && (w - wants) % 4 == 0 && !w->thinks && ev.finish == GEN_LENGTH)
        assert_int_equal(ev.usage.spec.accepted, ev.usage.spec.drafted);
    sum->rounds += ev.usage.spec.rounds;
    sum->drafted += ev.usage.spec.drafted;
    sum->accepted += ev.usage.spec.accepted;
    buf_free(&text);
}

static struct sched *start(struct sched_params p)
{
    struct lm lm = cache ? lm_of_cache(cache) : lm_of_engine(engine);
    struct sched *s = NULL;
    struct qn_err err;
    CHECK_OK(sched_create(&lm, tok, &p, &s, &err), err);
    return s;
}

/* All requests; four are under way at any time where there are lanes for them. */
static struct spec_counts run_all(const struct spec_params *spec, int32_t n_lane)
{
    struct sched *s = start((struct sched_params){.n_lane = n_lane, .spec = *spec});
    struct gen *g[AT_ONCE] = {0};
    struct spec_counts sum = {0};
    bool first = spec->kind == SPEC_OFF;
    for (int32_t i = 0; i < n_want + AT_ONCE; i++) {
        int32_t slot = i % AT_ONCE;
        if (g[slot])
            read_all(g[slot], &wants[i - AT_ONCE], first, &sum);
        gen_free(g[slot]);
        g[slot] = i < n_want ? submit(s, &wants[i]) : NULL;
    }
    struct sched_stats st;
    sched_stats(s, &st);
    assert_int_equal(st.spec.drafted, sum.drafted);
    assert_int_equal(st.spec.accepted, sum.accepted);
    sched_free(s);
    return sum;
}

/* ---- the scripted drafter ------------------------------------------------------------------- */

static enum qn_status forced_open(void *self, void *seq, void **ctx, struct qn_err *err)
{
    *ctx = NULL;
    return QN_OK;
}

/* Guesses that are right: by the pattern of this place of this answer. */
static int32_t right_ones(const struct want *w, int32_t made, uint64_t salt)
{
    uint64_t k = (uint64_t)(w - wants);
    switch ((k + salt) % 5) {
    case 0:
        return SPEC_DRAFT_MAX;
    case 1:
        return 0;
    case 2:
        return made % 2 ? SPEC_DRAFT_MAX : 0;
    default:
        return (int32_t)(rng_u64(salt, k, (uint64_t)made) % (SPEC_DRAFT_MAX + 1));
    }
}

static enum qn_status forced_draft(void *self, struct draft *d, int32_t n, struct qn_err *err)
{
    uint64_t salt = *(const uint64_t *)self;
    int32_t n_vocab = qn_engine_info(engine)->n_vocab;
    for (int32_t i = 0; i < n; i++) {
        const struct want *w = want_of(d[i].ids);
        int32_t made = d[i].n_ids - w->n_prompt, right = right_ones(w, made, salt);
        assert_memory_equal(d[i].ids, w->prompt, (size_t)w->n_prompt * sizeof *w->prompt);
        d[i].n = d[i].most;
        if (salt % 3 == 2) /* windows of different lengths side by side */
            d[i].n = (int32_t)(rng_u64(salt, (uint64_t)made, 3) % (uint64_t)(d[i].most + 1));
        for (int32_t j = 0; j < d[i].n; j++) {
            int32_t at = made + j; /* behind the end anything may stand */
            int32_t id = at < w->n ? w->ids[at] : (at * 7 + 3) % n_vocab;
            d[i].out[j] = j < right ? id : (id + 1 + j) % n_vocab;
            d[i].sure[j] = (uint8_t)(j % SPEC_SURE);
        }
    }
    return QN_OK;
}

static const struct drafter_ops forced = {
    .name = "forced",
    .n_draft = SPEC_DRAFT_MAX,
    .open = forced_open,
    .draft = forced_draft,
};

/* ---- tests ---------------------------------------------------------------------------------- */

static int32_t n_asked(void)
{
    const char *v = getenv("SPEC_SAME");
    int n = v ? atoi(v) : 0;
    return n > MOST_WANTS ? MOST_WANTS : n;
}

static void open_model(const char *dir, enum qn_mtp_mode mtp)
{
    struct buf json = BUF_INIT;
    struct scripted_params sp = {0};
    struct qn_err err;
    struct gram_spec spec = {.kind = GRAM_REGEX, .text = STR_LIT("([!-*]{2,5}[0-9]){1,9}")};
    struct qn_engine_params ep = {.model_dir = dir,
                                  .n_thread = 1,
                                  .weights_only = true,
                                  .mtp = mtp,
                                  .draft_kind = draft_kind,
                                  .draft_dir = draft_dir};
    CHECK_OK(qn_engine_open(&ep, &engine, &err), err);
    scripted_tok_json(&sp, &json);
    CHECK_OK(tok_from_json(buf_str(&json), scripted_tok_config(), &tok, &err), err);
    buf_free(&json);
    grams = gram_store_create(tok, qn_engine_info(engine)->n_vocab);
    assert_non_null(grams);
    CHECK_OK(gram_store_vocab(grams, &vocab, &err), err);
    CHECK_OK(gram_store_get(grams, &spec, &grammar, NULL, &err), err);
    n_want = n_asked() ? n_asked() : FEW_WANTS;
    make_wants(qn_engine_info(engine)->n_vocab);
}

static void close_model(void)
{
    for (int32_t i = 0; i < n_want; i++)
        buf_free(&wants[i].text);
    gram_unref(grammar);
    gram_vocab_unref(vocab);
    gram_store_free(grams);
    qn_engine_free(engine);
    tok_free(tok);
}

/* Answers that go on from what was kept of those before, and are kept themselves. */
static void check_cached(void)
{
    const struct qn_cache_params cp = {.bytes = 64 << 20, .interval = 32};
    uint64_t salt = 2;
    const struct spec_params p = {
        .kind = SPEC_CUSTOM, .ops = &forced, .self = &salt, .fixed = true};
    struct qn_cache_stats st;
    struct qn_err err;
    CHECK_OK(qn_cache_create(engine, &cp, &cache, &err), err);
    for (int k = 0; k < 2; k++)
        run_all(&p, AT_ONCE);
    qn_cache_stats(cache, &st);
    assert_true(st.hits > 0 && st.kept_tokens > 0);
    qn_cache_free(cache);
    cache = NULL;
}

static void add_counts(struct spec_counts *to, const struct spec_counts *c)
{
    assert_true(c->rounds > 0 && c->accepted > 0 && c->accepted < c->drafted);
    spec_counts_add(to, c);
}

/* The model guesses for itself: when greedy it is always right, but for penalties and the like. */
static void check_two_models(void)
{
    struct lm lm = lm_of_engine(engine);
    const struct spec_params p[] = {{.kind = SPEC_MODEL, .draft = &lm, .fixed = true},
                                    {.kind = SPEC_MODEL, .draft = &lm, .n_draft = 2, .fixed = true},
                                    {.kind = SPEC_MODEL, .draft = &lm}};
    perfect = true;
    for (int k = 0; k < 3; k++) {
        struct spec_counts c = run_all(&p[k], k % 2 ? 1 : AT_ONCE);
        assert_true(k == 2 || c.accepted * 8 > c.drafted);
    }
    perfect = false;
}

static void check_dir(const char *dir)
{
    const struct spec_params off = {0};
    const struct spec_params ngram[] = {{.kind = SPEC_NGRAM, .fixed = true},
                                        {.kind = SPEC_NGRAM, .n_draft = 3, .fixed = true},
                                        {.kind = SPEC_NGRAM}};
    struct spec_counts sum = {0}, c;
    open_model(dir, QN_MTP_OFF);
    run_all(&off, 1);
    for (int32_t k = 0; k < 3; k++)
        ngram_accepted += run_all(&ngram[k], k % 2 ? 1 : AT_ONCE).accepted;
    for (uint64_t salt = 0; salt < 6; salt++) {
        struct spec_params p = {.kind = SPEC_CUSTOM, .ops = &forced, .self = &salt, .fixed = true};
        p.n_draft = salt == 5 ? 1 : 0;
        c = run_all(&p, salt % 2 ? 1 : AT_ONCE);
        add_counts(&sum, &c);
    }
    check_cached();
    check_two_models();
    print_message("%s: %lld windows forced, %lld of %lld guesses right\n", dir,
                  (long long)sum.rounds, (long long)sum.accepted, (long long)sum.drafted);
    close_model();
}

static bool wanted(const char *name)
{
    return !only || strcmp(only, name) == 0;
}

static void check_model(const char *name)
{
    struct buf path = BUF_INIT;
    if (!wanted(name))
        return;
    buf_addf(&path, "%s/%s", TINY_DIR, name);
    check_dir(buf_z(&path));
    buf_free(&path);
}

/* A head of random weights hits now and then; what it says must not matter. Returns the hits. */
static int64_t check_head(const char *dir, enum spec_kind kind)
{
    const struct spec_params off = {0};
    const struct spec_params heads[] = {
        {.kind = kind, .fixed = true}, {.kind = kind, .n_draft = 1, .fixed = true}, {.kind = kind}};
    const struct qn_cache_params cp = {.bytes = 64 << 20, .interval = 32};
    struct qn_err err;
    int64_t accepted = 0;
    open_model(dir, QN_MTP_DEFAULT);
    run_all(&off, 1);
    for (int k = 0; k < 3; k++) {
        struct spec_counts c = run_all(&heads[k], k % 2 ? 1 : AT_ONCE);
        assert_true(k == 2 || c.drafted > 0);
        accepted += c.accepted;
        print_message("%s: %lld of %lld guesses right\n", dir, (long long)c.accepted,
                      (long long)c.drafted);
    }
    CHECK_OK(qn_cache_create(engine, &cp, &cache, &err), err);
    for (int k = 0; k < 2; k++)
        run_all(&heads[0], AT_ONCE);
    qn_cache_free(cache);
    cache = NULL;
    close_model();
    return accepted;
}

static void test_heads(void **state)
{
    static const char *const names[] = {"qwen3_5-q4", "glm_moe_dsa-shared-q4", "qwen3_5-moe-q4"};
    for (int i = 0; i < (n_asked() ? 3 : 2); i++) {
        struct buf dir = BUF_INIT, path = BUF_INIT;
        buf_addf(&path, "goldens/tiny/%s", names[i]);
        bool there = check_shared(&dir, buf_z(&path));
        if (there && wanted(names[i]))
            check_head(buf_z(&dir), SPEC_MTP);
        buf_free(&path);
        buf_free(&dir);
        if (!there)
            skip();
    }
}

/* A draft model of random weights, over the target that it has the shape of. */
static void test_blocks(void **state)
{
    draft_kind = QN_DRAFT_DSPARK;
    draft_dir = TINY_DIR "/../draft/dspark-q4";
    if (wanted("qwen3_next-q4"))
        assert_true(check_head(TINY_DIR "/qwen3_next-q4", SPEC_DSPARK) > 0);
    draft_kind = QN_DRAFT_NONE;
}

static void test_assistants(void **state)
{
    int64_t right = 0;
    draft_kind = QN_DRAFT_ASSISTANT;
    draft_dir = TINY_DIR "/../draft/assistant-q4";
    if (wanted("gemma4-ple-q4"))
        right += check_head(TINY_DIR "/gemma4-ple-q4", SPEC_ASSISTANT);
    draft_dir = TINY_DIR "/../draft/assistant-ordered";
    if (wanted("gemma4-experts-q4"))
        right += check_head(TINY_DIR "/gemma4-experts-q4", SPEC_ASSISTANT);
    draft_kind = QN_DRAFT_NONE;
    assert_true(right > 0 || only);
}

static void test_pages(void **state)
{
    check_model("llama-tied-llama3-q4");
}

static void test_windows(void **state)
{
    check_model("gemma3_text-q4");
}

static void test_latents(void **state)
{
    check_model("glm_moe_dsa-shared-q4");
}

static void test_states(void **state)
{
    check_model("qwen3_next-q4");
    check_model("qwen3_5-moe-q4");
}

static void test_others(void **state)
{
    static const char *const names[] = {
        "deepseek_v3-q4", "gemma4-experts-q4", "gemma4-ple-q4",    "gpt_oss-mxfp4-experts",
        "llama-mixed",    "llama-swa-q4",      "phi3-longrope-q4", "qwen2-q4",
        "qwen3-yarn-q4",  "qwen3_moe-q4"};
    assert_true(ngram_accepted > 0 || only);
    if (!n_asked()) {
        print_message("skipped: set SPEC_SAME=200 for all models\n");
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check_model(names[i]);
}

int main(int argc, char **argv)
{
    only = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),      cmocka_unit_test(test_windows),
        cmocka_unit_test(test_latents),    cmocka_unit_test(test_states),
        cmocka_unit_test(test_heads),      cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_assistants), cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
