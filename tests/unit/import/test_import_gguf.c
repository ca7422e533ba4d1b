/*
 * test_import_gguf.c - whole conversions of a one-layer model: what is written, what is refused,
 * and that failure at any write leaves nothing behind.
 */
#include <setjmp.h>
#include <stddef.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "gguf_make.h"
#include "import/import_gguf.h"

static char root[64], src[96], dst[96];

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/quern-import-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(src, sizeof src, "%s/m.gguf", root);
    snprintf(dst, sizeof dst, "%s/out", root);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(root, NULL) == QN_OK ? 0 : -1;
}

static void make(struct mk_llama m)
{
    struct buf b = BUF_INIT;
    m.arch = m.arch ? m.arch : "llama";
    m.pre = m.pre ? m.pre : "smollm";
    m.scale = m.scale ? m.scale : 0x3c00;
    mk_llama_file(&b, &m);
    assert_int_equal(file_write_atomic(src, buf_str(&b), NULL), QN_OK);
    buf_free(&b);
}

static enum qn_status convert(struct import_params p, struct import_report *rep, struct qn_err *err)
{
    p.src = src;
    p.dst = dst;
    *err = (struct qn_err){0};
    return import_gguf(&p, rep, err);
}

/* Only the source is left in the root folder. */
static void assert_clean(void)
{
    char **names;
    size_t n;
    assert_int_equal(dir_list(root, &names, &n, NULL), QN_OK);
    assert_int_equal(n, 1);
    assert_string_equal(names[0], "m.gguf");
    names_free(names, n);
}

static void expect_refused(struct mk_llama m, enum qn_status want, const char *text)
{
    struct import_report rep;
    struct qn_err err;
    make(m);
    enum qn_status st = convert((struct import_params){0}, &rep, &err);
    if (st != want || !strstr(err.msg, text))
        fail_msg("status %d, message: %s; expected %d ...%s", st, err.msg, want, text);
    assert_clean();
}

static struct json *read_json(const char *name, struct buf *text)
{
    struct json *j = NULL;
    struct buf path = BUF_INIT;
    path_join(&path, dst, name);
    assert_int_equal(file_read(buf_z(&path), 1 << 20, text, NULL), QN_OK);
    assert_int_equal(json_parse(buf_str(text), name, 32, &j, NULL), QN_OK);
    buf_free(&path);
    return j;
}

static const uint8_t *tensor(const struct buf *file, const struct json *head, const char *name)
{
    int64_t off;
    const struct json *t = json_get(head, name);
    uint64_t n;
    if (!t)
        fail_msg("no tensor %s", name);
    memcpy(&n, file->p, 8);
    assert_true(json_i64(json_at(json_get(t, "data_offsets"), 0), &off));
    return (const uint8_t *)file->p + 8 + n + off;
}

static void writes_everything(void **state)
{
    (void)state;
    struct import_report rep;
    struct qn_err err;
    struct buf text = BUF_INIT, file = BUF_INIT, path = BUF_INIT;
    struct json *j, *head;
    uint64_t n;
    make((struct mk_llama){0});
    if (convert((struct import_params){0}, &rep, &err) != QN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(rep.n, 11);
    for (size_t i = 0; i < rep.n; i++)
        assert_true(rep.t[i].exact);
    import_report_free(&rep);
    j = read_json("config.json", &text);
    assert_true(str_eqz(json_str(json_get(j, "model_type")), "llama"));
    assert_true(json_bool(json_get(j, "tie_word_embeddings")));
    json_free(j);
    j = read_json("tokenizer.json", &text);
    assert_int_equal(json_len(json_get(json_get(j, "model"), "merges")), 2);
    assert_int_equal(json_len(json_get(j, "added_tokens")), 2);
    json_free(j);
    path_join(&path, dst, "model.safetensors");
    assert_int_equal(file_read(buf_z(&path), 1 << 24, &file, NULL), QN_OK);
    memcpy(&n, file.p, 8);
    assert_int_equal(n % 8, 0);
    assert_int_equal(json_parse((struct str){file.p + 8, n}, "head", 8, &head, NULL), QN_OK);
    /* Row 1 of head 1 (output row 33) is row 2 of head 1 in the file (34): codes are row + 128. */
    const uint8_t *q = tensor(&file, head, "model.layers.0.self_attn.q_proj.weight");
    assert_int_equal(q[33 * 64], 34 + 128);
    assert_int_equal(q[16 * 64], 1 + 128);
    const uint8_t *v = tensor(&file, head, "model.layers.0.self_attn.v_proj.weight");
    assert_int_equal(v[33 * 64], 33 + 128);
    json_free(head);
    buf_free(&text);
    buf_free(&file);
    buf_free(&path);
}

static void refusals(void **state)
{
    (void)state;
    expect_refused((struct mk_llama){.arch = "mamba"}, QN_UNSUPPORTED, "known are llama, qwen2");
    expect_refused((struct mk_llama){.pre = "nobody"}, QN_UNSUPPORTED, "tokenizer.ggml.pre");
    expect_refused((struct mk_llama){.extra_tensor = "blk.0.oddity.weight"}, QN_UNSUPPORTED,
                   "blk.0.oddity.weight is not known");
    expect_refused((struct mk_llama){.drop_tensor = "blk.0.ffn_up.weight"}, QN_BAD_INPUT,
                   "blk.0.ffn_up.weight is missing");
    expect_refused((struct mk_llama){.extra_key = 1}, QN_UNSUPPORTED, "llama.logit_softcap");
    expect_refused((struct mk_llama){.scale = 0x7c00}, QN_BAD_INPUT, "infinite or not a number");
    expect_refused((struct mk_llama){.arch = "qwen3"}, QN_BAD_INPUT, "attn_q_norm");
}

/* ---- phi3 ---------- */

static void make_phi3(struct mk_phi3 m)
{
    struct buf b = BUF_INIT;
    mk_phi3_file(&b, &m);
    assert_int_equal(file_write_atomic(src, buf_str(&b), NULL), QN_OK);
    buf_free(&b);
}

/* The fused matrices go over whole; lengths, factors and window are in the config, and what an
 * engine makes of it is the family's own rule. */
static void phi3_config(void **state)
{
    (void)state;
    struct import_report rep;
    struct qn_err err;
    struct buf text = BUF_INIT, file = BUF_INIT, path = BUF_INIT;
    struct json *j, *head;
    int64_t v;
    uint64_t n;
    make_phi3((struct mk_phi3){0});
    if (convert((struct import_params){0}, &rep, &err) != QN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(rep.n, 9); /* the two lists of factors are no tensors of the checkpoint */
    import_report_free(&rep);
    j = read_json("config.json", &text);
    assert_true(str_eqz(json_str(json_get(j, "model_type")), "phi3"));
    assert_true(json_i64(json_get(j, "original_max_position_embeddings"), &v) && v == 64);
    assert_true(json_i64(json_get(j, "max_position_embeddings"), &v) && v == 256);
    assert_true(json_i64(json_get(j, "sliding_window"), &v) && v == 200);
    assert_int_equal((int)(32 * json_real(json_get(j, "partial_rotary_factor"))), 24);
    assert_false(json_bool(json_get(j, "tie_word_embeddings")));
    const struct json *r = json_get(j, "rope_scaling");
    assert_true(str_eqz(json_str(json_get(r, "type")), "longrope"));
    assert_int_equal(json_len(json_get(r, "long_factor")), 12);
    assert_true(json_real(json_at(json_get(r, "long_factor"), 11)) == 2.5);
    assert_true(json_real(json_at(json_get(r, "short_factor"), 0)) == 1.25);
    json_free(j);
    path_join(&path, dst, "model.safetensors");
    assert_int_equal(file_read(buf_z(&path), 1 << 24, &file, NULL), QN_OK);
    memcpy(&n, file.p, 8);
    assert_int_equal(json_parse((struct str){file.p + 8, n}, "head", 8, &head, NULL), QN_OK);
    static const struct {
        const char *name;
        int64_t rows;
    } fused[] = {{"model.layers.0.self_attn.qkv_proj.weight", 128},
                 {"model.layers.0.mlp.gate_up_proj.weight", 192}};
    for (size_t i = 0; i < 2; i++) {
        const struct json *shape = json_get(json_get(head, fused[i].name), "shape");
        assert_true(json_i64(json_at(shape, 0), &v) && v == fused[i].rows);
        const uint8_t *p = tensor(&file, head, fused[i].name); /* float16: rows keep their order */
        assert_int_equal(p[2 * 64 * 33] | p[2 * 64 * 33 + 1] << 8, 0x5020); /* 33 */
    }
    json_free(head);
    buf_free(&text);
    buf_free(&file);
    buf_free(&path);
}

static void phi3_refusals(void **state)
{
    (void)state;
    static const struct {
        struct mk_phi3 m;
        const char *text;
    } bad[] = {
        {{.gain = 1.5f}, "phi3.rope.scaling.attn_factor is 1.5; only 1.1547"},
        {{.n_ctx = 64}, "attn_factor is 1.1547; only 1 can"},
        {{.orig_ctx = 1}, "original_context_length is 1; expected more"},
        {{.bad_factor = -1}, "tensor rope_factors_long.weight, value 3 is -1; expected a number"},
        {{.bad_factor = 1e30f}, "tensor rope_factors_long.weight, value 3 is 1e+30"},
        {{.n_factor = 16},
         "tensor rope_factors_long.weight has 16 values of F32 in 1 dimensions; "
         "expected 12"},
        {{.drop_tensor = "rope_factors_short.weight"},
         "tensor rope_factors_short.weight is missing"},
        {{.drop_tensor = "rope_factors_long.weight"}, "tensor rope_factors_long.weight is missing"},
        {{.drop_tensor = "blk.0.ffn_up.weight"}, "tensor blk.0.ffn_up.weight is missing"},
        {{.n_qkv = 192}, "tensor blk.0.attn_qkv.weight: dimension 1 is 192; the metadata say 128"},
        {{.scaling = "linear"}, "rope.scaling.factor is 0"},
        {{.scaling = "yarn"}, "rope.scaling.type is \"yarn\"; none, linear and longrope"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct import_report rep;
        struct qn_err err;
        make_phi3(bad[i].m);
        if (convert((struct import_params){0}, &rep, &err) == QN_OK ||
            !strstr(err.msg, bad[i].text))
            fail_msg("case %zu: %s; expected ...%s", i, err.msg, bad[i].text);
        assert_clean();
    }
}

static void big_scales_need_float32(void **state)
{
    (void)state;
    struct import_report rep;
    struct qn_err err;
    make((struct mk_llama){.scale = 0x6400}); /* 1024: the bias -128 * 1024 is beyond float16 */
    assert_int_equal(convert((struct import_params){0}, &rep, &err), QN_OK);
    for (size_t i = 0; i < rep.n; i++)
        assert_true(rep.t[i].exact && (!rep.t[i].bits || rep.t[i].dtype == MLX_F32));
    import_report_free(&rep);
}

static void existing_output(void **state)
{
    (void)state;
    struct import_report rep;
    struct qn_err err;
    char keep[128];
    make((struct mk_llama){0});
    assert_int_equal(dir_make(dst, NULL), QN_OK);
    snprintf(keep, sizeof keep, "%s/precious.txt", dst);
    assert_int_equal(file_write_atomic(keep, STR_LIT("x"), NULL), QN_OK);
    assert_int_equal(convert((struct import_params){0}, &rep, &err), QN_BAD_INPUT);
    assert_int_equal(convert((struct import_params){.force = true}, &rep, &err), QN_BAD_INPUT);
    assert_true(file_exists(keep)); /* not a model folder: --force does not delete it */
    unlink(keep);
    assert_int_equal(convert((struct import_params){0}, &rep, &err), QN_OK); /* empty is fine */
    import_report_free(&rep);
    assert_int_equal(convert((struct import_params){0}, &rep, &err), QN_BAD_INPUT);
    assert_int_equal(convert((struct import_params){.force = true}, &rep, &err), QN_OK);
    import_report_free(&rep);
}

/* What a killed conversion left goes when the next one to that folder starts; what may be another
 * one's work, or anything else of a similar name, stays. */
static void leftovers_are_swept(void **state)
{
    (void)state;
    struct import_report rep;
    struct qn_err err;
    char path[200];
    pid_t dead = fork();
    if (dead == 0)
        _exit(0);
    assert_int_equal(waitpid(dead, NULL, 0), dead);
    const struct {
        const char *format;
        int pid;
        bool stays;
    } made[] = {
        {"%s.partial-%d", dead, false},     {"%s.partial-%d", getpid(), false},
        {"%s.partial-%d", getppid(), true}, {"%s2.partial-%d", dead, true},
        {"%s.partial-%dx", dead, true},     {"%s.partial-0%d", dead, true},
        {"%s.partial--%d", dead, true},     {"%s.old-%d", dead, true},
    };
    make((struct mk_llama){0});
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        snprintf(path, sizeof path, made[i].format, dst, made[i].pid);
        assert_int_equal(dir_make(path, NULL), QN_OK);
        strcat(path, "/model.safetensors");
        assert_int_equal(file_write_atomic(path, STR_LIT("x"), NULL), QN_OK);
    }
    if (convert((struct import_params){0}, &rep, &err) != QN_OK)
        fail_msg("%s", err.msg);
    import_report_free(&rep);
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        snprintf(path, sizeof path, made[i].format, dst, made[i].pid);
        if (dir_exists(path) != made[i].stays)
            fail_msg("%s %s", path, made[i].stays ? "was removed" : "was left");
    }
}

/* Every file-size limit below the whole makes some write fail, as a full disk would. */
static void full_disk(void **state)
{
    (void)state;
    struct rlimit old, lim;
    struct import_report rep;
    struct qn_err err;
    make((struct mk_llama){0});
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    int failed = 0;
    for (rlim_t max = 0; max < 60000; max += 3001) {
        lim = (struct rlimit){max, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &lim), 0);
        enum qn_status st = convert((struct import_params){0}, &rep, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        if (st == QN_OK) {
            import_report_free(&rep);
            assert_int_equal(dir_remove(dst, NULL), QN_OK);
            continue;
        }
        failed++;
        assert_int_equal(st, QN_IO);
        assert_true(err.msg[0] != 0);
        assert_clean();
    }
    assert_true(failed >= 10);
}

static void cancelled(void **state)
{
    (void)state;
    struct import_report rep;
    struct qn_err err;
    atomic_bool stop = true;
    make((struct mk_llama){0});
    assert_int_equal(convert((struct import_params){.cancel = &stop}, &rep, &err), QN_CANCELLED);
    assert_clean();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(writes_everything, setup, teardown),
        cmocka_unit_test_setup_teardown(refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(phi3_config, setup, teardown),
        cmocka_unit_test_setup_teardown(phi3_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(big_scales_need_float32, setup, teardown),
        cmocka_unit_test_setup_teardown(existing_output, setup, teardown),
        cmocka_unit_test_setup_teardown(leftovers_are_swept, setup, teardown),
        cmocka_unit_test_setup_teardown(full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(cancelled, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
