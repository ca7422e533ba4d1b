/*
 * test_tensors.c - the tensors of every family against its config.json, on the goldens'
 * checkpoints: one missing, one of another shape, one too many, one of bits that config.json does
 * not say. Each is refused with the tensor's name, what was found and what was expected. Tensors of
 * a wrapper's image and sound towers are left out with one line of notice.
 */
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "../tmp_dir.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/safetensors.h"
#include "quern.h"

static void write_file(const char *file, const void *p, size_t n)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void golden_path(const char *name, const char *file, char out[1024])
{
    snprintf(out, 1024, "%s/tiny/%s/%s", GOLDEN_DIR, name, file);
}

/* config.json with more keys at its end: later ones win. */
static void copy_config(const char *name, const char *more)
{
    char path[1024];
    struct buf cfg = BUF_INIT;
    struct qn_err err;
    golden_path(name, "config.json", path);
    CHECK_OK(file_read(path, 16 << 20, &cfg, &err), err);
    while (cfg.p[cfg.n - 1] != '}')
        cfg.n--;
    cfg.n--;
    buf_addf(&cfg, "%s%s}", more ? ", " : "", more ? more : "");
    write_file("config.json", cfg.p, cfg.n);
    buf_free(&cfg);
}

/* What is different in the copied tensor file. */
struct edit {
    struct str drop;      /* this tensor is not there */
    struct str turn;      /* the two sizes of this one change places, or one becomes two */
    const char *extra[3]; /* tensors [1] more; NULL ends */
};

static void add_entry(struct buf *head, const struct st_tensor *t, const struct edit *e, size_t at)
{
    int64_t shape[ST_DIM_MAX + 1];
    int32_t n = t->n_dim;
    memcpy(shape, t->shape, (size_t)n * sizeof *shape);
    if (e->turn.n && str_eq(e->turn, t->name)) {
        int64_t last = shape[n - 1];
        shape[n - 1] = n > 1 ? shape[n - 2] : 1;
        if (n > 1)
            shape[n - 2] = last;
        else
            shape[n++] = last;
    }
    buf_addf(head, "%s\"" STR_FMT "\":{\"dtype\":\"%s\",\"shape\":[", head->n > 1 ? "," : "",
             STR_ARG(t->name), t->dtype_name);
    for (int32_t d = 0; d < n; d++)
        buf_addf(head, "%s%lld", d ? "," : "", (long long)shape[d]);
    buf_addf(head, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
}

static void copy_tensors(const struct st *st, const struct edit *e)
{
    struct buf head = BUF_INIT, data = BUF_INIT, out = BUF_INIT;
    buf_addz(&head, "{");
    for (int32_t i = 0; i < st_count(st); i++) {
        const struct st_tensor *t = st_at(st, i);
        if (e->drop.n && str_eq(e->drop, t->name))
            continue;
        add_entry(&head, t, e, data.n);
        buf_add(&data, t->data, t->bytes);
    }
    for (int i = 0; i < 3 && e->extra[i]; i++) {
        buf_addf(&head, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                 e->extra[i], data.n, data.n + 4);
        buf_add(&data, "\0\0\0\0", 4);
    }
    buf_addz(&head, "}");
    while (head.n % 8)
        buf_addz(&head, " ");
    uint64_t n = head.n;
    buf_add(&out, &n, 8);
    buf_add(&out, head.p, head.n);
    buf_add(&out, data.p, data.n);
    write_file("model.safetensors", out.p, out.n);
    buf_free(&head);
    buf_free(&data);
    buf_free(&out);
}

static enum qn_status open_copy(struct qn_err *err)
{
    struct qn_engine_params p = {.model_dir = dir, .n_thread = 1, .weights_only = true};
    struct qn_engine *e = NULL;
    *err = (struct qn_err){0};
    enum qn_status st = qn_engine_open(&p, &e, err);
    qn_engine_free(e);
    return st;
}

/* "a.b.scales" -> "a.b" */
static void module_of(struct str name, char *out, size_t cap)
{
    snprintf(out, cap, STR_FMT, STR_ARG(name));
    char *dot = strrchr(out, '.');
    if (dot)
        *dot = 0;
}

/* One of each kind: the first of the layers that has it. */
static bool seen_kind(const struct st *st, int32_t i)
{
    struct str a = st_at(st, i)->name;
    for (int32_t j = 0; j < i; j++) {
        struct str b = st_at(st, j)->name;
        size_t x = 0, y = 0;
        while (x < a.n && y < b.n) {
            bool dx = a.p[x] >= '0' && a.p[x] <= '9', dy = b.p[y] >= '0' && b.p[y] <= '9';
            if (dx != dy || (!dx && a.p[x] != b.p[y]))
                break;
            while (dx && x < a.n && a.p[x] >= '0' && a.p[x] <= '9')
                x++;
            while (dy && y < b.n && b.p[y] >= '0' && b.p[y] <= '9')
                y++;
            x += !dx;
            y += !dy;
        }
        if (x == a.n && y == b.n)
            return true;
    }
    return false;
}

static void refused(const char *golden, const char *what, const char *name, const char *word)
{
    struct qn_err err;
    enum qn_status st = open_copy(&err);
    if ((st != QN_BAD_INPUT && st != QN_UNSUPPORTED) || !strstr(err.msg, name) ||
        !strstr(err.msg, word))
        fail_msg("%s, %s %s: status %d, \"%s\"; expected \"%s\" in it", golden, what, name, st,
                 err.msg, word);
}

static void check_kind(const char *golden, const struct st *st, int32_t i)
{
    const struct st_tensor *t = st_at(st, i);
    char module[256];
    module_of(t->name, module, sizeof module);
    struct edit e = {.drop = t->name};
    copy_tensors(st, &e);
    refused(golden, "without", module, "");
    if (t->n_dim == 2 && t->shape[0] == t->shape[1])
        return; /* turning it changes nothing */
    bool codes = str_ends(t->name, STR_LIT(".scales")) ||
                 (t->dtype == ST_U32 && str_ends(t->name, STR_LIT(".weight")));
    e = (struct edit){.turn = t->name};
    copy_tensors(st, &e);
    /* codes and scales are judged together: "N words and M scales a row do not fit K inputs" */
    refused(golden, "turned", module, codes ? "" : "expected");
}

/* Tensors that may be missing. */
static bool optional(struct str name)
{
    static const char *const ends[] = {".global_scale", "rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (str_ends(name, str_of(ends[i])))
            return true;
    return false;
}

/* A quantized matrix that config.json gives other bits. */
static void check_bits(const char *golden, const struct st *st)
{
    char module[256], more[400], want[300];
    int32_t i = 0;
    while (i < st_count(st) && !(st_at(st, i)->dtype == ST_U32 && st_at(st, i)->n_dim == 2))
        i++;
    if (i == st_count(st))
        return;
    const struct st_tensor *t = st_at(st, i);
    module_of(t->name, module, sizeof module);
    snprintf(more, sizeof more, "\"quantization\": {\"%s\": {\"bits\": 2, \"group_size\": 64}}",
             module);
    snprintf(want, sizeof want, "%s.weight: found U32 [%lld, %lld], expected U32 [%lld, ", module,
             (long long)t->shape[0], (long long)t->shape[1], (long long)t->shape[0]);
    copy_config(golden, more);
    copy_tensors(st, &(struct edit){0});
    refused(golden, "bits of", want, "");
}

static void check_golden(const char *golden)
{
    char path[1024];
    struct st *st = NULL;
    struct qn_err err;
    golden_path(golden, "model.safetensors", path);
    CHECK_OK(st_open_file(path, &st, &err), err);
    copy_config(golden, NULL);
    copy_tensors(st, &(struct edit){0});
    CHECK_OK(open_copy(&err), err);
    for (int32_t i = 0; i < st_count(st); i++)
        if (!optional(st_at(st, i)->name) && !seen_kind(st, i))
            check_kind(golden, st, i);
    copy_tensors(st, &(struct edit){.extra = {"model.layers.0.mlp.odd_proj.weight"}});
    refused(golden, "with", "model.layers.0.mlp.odd_proj.weight", "model.safetensors");
    check_bits(golden, st);
    st_free(st);
}

static void test_every_family(void **state)
{
    char **names;
    size_t n;
    struct qn_err err;
    CHECK_OK(dir_list(GOLDEN_DIR "/tiny", &names, &n, &err), err);
    assert_true(n >= 15);
    for (size_t i = 0; i < n; i++)
        check_golden(names[i]);
    names_free(names, n);
}

/* ---- towers --------------------------------------------------------------------------------- */

/* Lines that opening the copy logs, and whether they hold `part`. */
static int notices(const char *part)
{
    char path[1024], line[512];
    struct qn_err err;
    snprintf(path, sizeof path, "%s/log", dir);
    FILE *f = fopen(path, "w+");
    assert_non_null(f);
    log_setup(fileno(f), LOG_INFO, false);
    enum qn_status st = open_copy(&err);
    log_setup(-1, LOG_INFO, false);
    CHECK_OK(st, err);
    int n = 0;
    rewind(f);
    for (; fgets(line, sizeof line, f); n++)
        if (!strstr(line, part))
            fail_msg("the log says \"%s\"; expected \"%s\" in it", line, part);
    fclose(f);
    return n;
}

static void test_towers(void **state)
{
    static const struct {
        const char *golden, *towers[3], *part;
    } cases[] = {
        {"qwen3_5-moe-q4",
         {"vision_tower.blocks.0.attn.qkv.weight", "model.visual.merger.weight"},
         "text only: 2 tensors of the vision tower"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[1024];
        struct st *st = NULL;
        struct qn_err err;
        struct edit e = {0};
        golden_path(cases[i].golden, "model.safetensors", path);
        CHECK_OK(st_open_file(path, &st, &err), err);
        copy_config(cases[i].golden, NULL);
        copy_tensors(st, &e);
        assert_int_equal(notices(""), 0); /* nothing to say of a text model */
        memcpy(e.extra, cases[i].towers, sizeof e.extra);
        copy_tensors(st, &e);
        assert_int_equal(notices(cases[i].part), 1);
        st_free(st);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family),
        cmocka_unit_test(test_towers),
    };
    return cmocka_run_group_tests_name("tensors", tests, make_dir, drop_dir);
}
