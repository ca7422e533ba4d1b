/*
 * test_heldout.c - the trained small models of QUERN_SHARED/models on text they have not seen: the
 * loss of three windows against mlx-lm's in float32 (heldout-windows.json of the goldens, made by
 * tests/oracle/heldout_windows.py). What is absent is left out with the reason; with nothing to
 * check the test is skipped.
 *
 *     test_heldout TEXT [MODEL]      the whole text instead: every window of 1024 tokens, against
 *                                    the loss stated where the models were trained (minutes, one
 *                                    thread)
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "base/file.h"
#include "base/json.h"
#include "quern.h"

enum { WINDOW = 1024, CHUNK = 256, WINDOWS_MAX = 8 };

static const struct trained {
    const char *name;
    double nats; /* per token of the whole text, from the model's README.md */
} models[] = {
    {"tiny-gemma4-ple", 2.3049},
    {"tiny-qwen3_5-mtp", 2.5545},
    {"tiny-glm-dsa-mtp", 2.3635},
};
enum { N_MODEL = sizeof models / sizeof models[0] };

static struct json *golden;

static struct qn_engine *open_model(const char *name, bool weights_only)
{
    struct buf path = BUF_INIT;
    struct qn_engine *e = NULL;
    struct qn_err err;
    const char *root = getenv("QUERN_SHARED");
    buf_addf(&path, "%s/models/%s", root ? root : "", name);
    if (!root || !dir_exists(buf_z(&path))) {
        print_message("skipped: no model in %s/models/%s (QUERN_SHARED)\n", root ? root : "", name);
        buf_free(&path);
        return NULL;
    }
    struct qn_engine_params p = {
        .model_dir = buf_z(&path), .n_thread = 1, .n_ctx = WINDOW, .weights_only = weights_only};
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    buf_free(&path);
    return e;
}

/* -log p(id) */
static double surprise(const float *row, int32_t n, int32_t id)
{
    float top = row[0];
    double sum = 0;
    for (int32_t i = 1; i < n; i++)
        top = row[i] > top ? row[i] : top;
    for (int32_t i = 0; i < n; i++)
        sum += (double)expf(row[i] - top);
    return (double)top + log(sum) - (double)row[id];
}

/* Mean over the window's WINDOW-1 predictions. */
static double window_loss(struct qn_engine *e, const int32_t *ids, float *logits)
{
    int32_t vocab = qn_engine_info(e)->n_vocab;
    struct qn_seq *s;
    struct qn_err err;
    double sum = 0;
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    for (int32_t at = 0; at < WINDOW; at += CHUNK) {
        struct qn_step_item it = {s, ids + at, CHUNK, CHUNK, logits};
        CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
        for (int32_t i = 0; i < CHUNK && at + i + 1 < WINDOW; i++)
            sum += surprise(logits + (size_t)i * (size_t)vocab, vocab, ids[at + i + 1]);
    }
    qn_seq_free(s);
    return sum / (WINDOW - 1);
}

static float *logits_for(const struct qn_engine *e)
{
    float *p = malloc((size_t)CHUNK * (size_t)qn_engine_info(e)->n_vocab * sizeof *p);
    assert_non_null(p);
    return p;
}

static bool checked;

static void test_windows(void **state)
{
    const struct trained *t = *state;
    struct qn_engine *e = open_model(t->name, true);
    if (!e)
        skip();
    checked = true;
    const struct json *want = json_get(json_get(golden, "nats_per_token"), t->name);
    const struct json *windows = json_get(golden, "ids");
    size_t n = json_len(want);
    assert_true(n > 0 && n <= WINDOWS_MAX && json_len(windows) == n);
    float *logits = logits_for(e);
    for (size_t w = 0; w < n; w++) {
        int32_t ids[WINDOW];
        assert_int_equal(json_len(json_at(windows, w)), WINDOW);
        for (size_t i = 0; i < WINDOW; i++)
            ids[i] = (int32_t)json_real(json_at(json_at(windows, w), i));
        double got = window_loss(e, ids, logits), expected = json_real(json_at(want, w));
        print_message("%s, window %zu: %.5f nats per token, float32 says %.5f\n", t->name, w, got,
                      expected);
        if (!(fabs(got - expected) <= 1e-3 * expected))
            fail_msg("more than 0.1 %% apart");
    }
    free(logits);
    qn_engine_free(e);
}

/* ---- the whole text --------------------------------------------------------------------- */

static int whole_text(const struct trained *t, const struct buf *text)
{
    struct qn_engine *e = open_model(t->name, false);
    struct qn_err err;
    int32_t *ids, n;
    if (!e)
        return 0;
    CHECK_OK(qn_tokenize(e, text->p, text->n, QN_TOK_PARSE_SPECIAL, &ids, &n, &err), err);
    float *logits = logits_for(e);
    int32_t windows = n / WINDOW;
    double sum = 0;
    for (int32_t w = 0; w < windows; w++) {
        sum += window_loss(e, ids + w * WINDOW, logits);
        if (w % 20 == 19)
            printf("%s: %d of %d windows, %.4f so far\n", t->name, w + 1, windows, sum / (w + 1));
    }
    double got = sum / windows, off = 100 * (got / t->nats - 1);
    printf("%-18s %d tokens, %d windows, %d predictions: %.4f nats per token; stated %.4f "
           "(%+.2f %%)\n",
           t->name, n, windows, windows * (WINDOW - 1), got, t->nats, off);
    free(logits);
    qn_free(ids);
    qn_engine_free(e);
    return fabs(off) <= 0.5 ? 0 : 1;
}

static int run_whole(const char *path, const char *only)
{
    struct buf text = BUF_INIT;
    struct qn_err err;
    int failed = 0;
    if (file_read(path, 64 << 20, &text, &err) != QN_OK) {
        printf("FAILED: %s\n", err.msg);
        return 1;
    }
    for (int i = 0; i < N_MODEL; i++)
        if (!only || strcmp(only, models[i].name) == 0)
            failed += whole_text(&models[i], &text);
    buf_free(&text);
    return failed;
}

int main(int argc, char **argv)
{
    struct buf text = BUF_INIT;
    struct qn_err err;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1)
        return run_whole(argv[1], argc > 2 ? argv[2] : NULL) != 0;
    if (file_read(GOLDEN_DIR "/real/heldout-windows.json", 4 << 20, &text, &err) != QN_OK ||
        json_parse(buf_str(&text), "heldout-windows.json", JSON_DEPTH_MAX, &golden, &err) !=
            QN_OK) {
        printf("FAILED: %s\n", err.msg);
        return 1;
    }
    struct CMUnitTest tests[N_MODEL];
    for (int i = 0; i < N_MODEL; i++)
        tests[i] =
            (struct CMUnitTest){models[i].name, test_windows, NULL, NULL, (void *)&models[i]};
    int failed = _cmocka_run_group_tests("heldout", tests, N_MODEL, NULL, NULL);
    json_free(golden);
    buf_free(&text);
    return failed ? 1 : checked ? 0 : 77;
}
