/*
 * inspect_facts.c - see inspect_facts.h. Reads config.json, generation_config.json and the
 * tokenizer's files; a field of the wrong type is an error that names file and field.
 */
#include "cli/inspect_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/model.h"
#include "tmpl/chat.h"

#define CONFIG_BYTES_MAX    ((size_t)16 << 20)
#define TOKENIZER_BYTES_MAX ((size_t)256 << 20)
#define WHAT                "config.json"

/* Parses DIR/NAME, an object; *out stays NULL when the file is absent. */
static enum qn_status object_load(const char *dir, const char *name, size_t max, struct json **out,
                                  struct qn_err *err)
{
    QN_TRY(json_load_if(dir, name, max, out, err));
    if (*out && json_type(*out) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, "inspect", "%s: is %s; expected an object", name,
                json_type_name(*out));
    return QN_OK;
}

struct field {
    const char *key;
    int32_t *out;
    int32_t def;
};

static enum qn_status read_sizes(struct inspect_facts *f, const struct json *c, struct qn_err *err)
{
    const struct field fields[] = {
        {"num_hidden_layers", &f->layers, -1},
        {"hidden_size", &f->hidden, -1},
        {"intermediate_size", &f->intermediate, -1},
        {"num_attention_heads", &f->heads, -1},
        {"num_key_value_heads", &f->kv_heads, -1},
        {"head_dim", &f->head_dim, -1},
        {"vocab_size", &f->vocab, -1},
        {"max_position_embeddings", &f->context, -1},
        {"num_experts_per_tok", &f->experts_used, 0},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        QN_TRY(
            json_opt_i32(c, WHAT, fields[i].key, fields[i].def, 0, INT32_MAX, fields[i].out, err));
    static const char *const expert_keys[] = {"num_experts", "num_local_experts",
                                              "n_routed_experts"};
    for (int i = 0; i < 3 && f->experts <= 0; i++)
        QN_TRY(json_opt_i32(c, WHAT, expert_keys[i], 0, 0, INT32_MAX, &f->experts, err));
    if (f->kv_heads < 0)
        f->kv_heads = f->heads;
    if (f->head_dim < 0 && f->hidden > 0 && f->heads > 0)
        f->head_dim = f->hidden / f->heads;
    return QN_OK;
}

/* What the layers keep for a token, from the family itself, which alone knows. One that quern
 * does not have, or a config.json that it refuses, can still be looked at: without this. */
static enum qn_status read_kv(struct inspect_facts *f, struct qn_err *err)
{
    struct model m = {.family = family_find(f->family)};
    struct qn_err refused;
    if (!m.family)
        return QN_OK;
    enum qn_status st = m.family->config(&m, f->config, &refused);
    int32_t n = m.n_kv ? m.n_kv : m.n_layer;
    f->kv = st == QN_OK ? malloc((size_t)n * sizeof *f->kv) : NULL;
    if (f->kv) {
        memcpy(f->kv, m.kv, (size_t)n * sizeof *f->kv);
        f->n_kv = n;
        f->layers = m.n_layer;
        f->context = m.n_ctx_max;
    }
    m.family->free(&m);
    if (st == QN_OK && !f->kv)
        QN_FAIL(err, QN_NO_MEMORY, "inspect", "out of memory for %d layers", n);
    for (int32_t i = 0; i < f->n_kv; i++)
        if (f->kv[i].n_head && f->kv[i].window) {
            f->sliding_layers++;
            f->window = f->kv[i].window;
        }
    return QN_OK;
}

int64_t inspect_kv_bytes(const struct inspect_facts *f, int64_t n)
{
    int64_t sum = 0;
    if (!f->kv || n < 0)
        return -1;
    for (int32_t i = 0; i < f->n_kv; i++) {
        const struct kv_layer *l = &f->kv[i];
        int64_t bytes, token = 2 * (int64_t)l->n_head * (l->dk + (l->latent ? 0 : l->dv));
        if (__builtin_mul_overflow(token, l->window && l->window < n ? l->window : n, &bytes) ||
            __builtin_add_overflow(sum, bytes, &sum))
            return -1;
    }
    return sum;
}

int64_t inspect_state_bytes(const struct inspect_facts *f)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < f->n_kv; i++)
        if (f->kv[i].delta.n_v)
            sum += (int64_t)(delta_state_floats(&f->kv[i].delta) * sizeof(float));
    return sum;
}

static enum qn_status read_config(const char *dir, struct inspect_facts *f, struct qn_err *err)
{
    QN_TRY(object_load(dir, WHAT, CONFIG_BYTES_MAX, &f->config, err));
    if (!f->config)
        QN_FAIL(err, QN_NOT_FOUND, "inspect", "%s: has no " WHAT "; is it a model folder?", dir);
    f->family = json_str(json_get(f->config, "model_type"));
    if (!f->family.n)
        QN_FAIL(err, QN_BAD_INPUT, "inspect",
                WHAT ": model_type is %s; expected the name of a model family",
                json_type_name(json_get(f->config, "model_type")));
    const struct json *text = json_get(f->config, "text_config");
    const struct json *c = json_type(text) == JSON_OBJ ? text : f->config;
    f->quantization = json_get(f->config, "quantization");
    if (!f->quantization)
        f->quantization = json_get(f->config, "quantization_config");
    if (json_type(f->quantization) != JSON_OBJ)
        f->quantization = NULL;
    QN_TRY(read_sizes(f, c, err));
    return read_kv(f, err);
}

static enum qn_status take_eos(struct inspect_facts *f, const struct json *v, const char *what,
                               struct qn_err *err)
{
    bool list = json_type(v) == JSON_ARR;
    size_t n = list ? json_len(v) : 1;
    for (size_t i = 0; i < n && f->n_eos < EOS_MAX; i++) {
        const struct json *one = list ? json_at(v, i) : v;
        if (!json_i64(one, &f->eos[f->n_eos++]))
            QN_FAIL(err, QN_BAD_INPUT, "inspect", "%s: eos_token_id is or holds %s; expected ids",
                    what, json_type_name(one));
    }
    return QN_OK;
}

static enum qn_status read_eos(const char *dir, struct inspect_facts *f, struct qn_err *err)
{
    struct json *gen = NULL;
    QN_TRY(object_load(dir, "generation_config.json", CONFIG_BYTES_MAX, &gen, err));
    enum qn_status st = QN_OK;
    if (json_has(gen, "eos_token_id"))
        st = take_eos(f, json_get(gen, "eos_token_id"), "generation_config.json", err);
    else if (json_has(f->config, "eos_token_id"))
        st = take_eos(f, json_get(f->config, "eos_token_id"), WHAT, err);
    json_free(gen);
    return st;
}

/* True when a pre-tokenizer (or one of a sequence) or decoder is of this type. */
static bool has_type(const struct json *node, const char *list_key, const char *type)
{
    if (str_eqz(json_str(json_get(node, "type")), type))
        return true;
    const struct json *list = json_get(node, list_key);
    for (size_t i = 0; i < json_len(list); i++)
        if (str_eqz(json_str(json_get(json_at(list, i), "type")), type))
            return true;
    return false;
}

static enum qn_status read_tokenizer(const char *dir, struct inspect_facts *f, struct qn_err *err)
{
    struct json *doc = NULL;
    QN_TRY(object_load(dir, "tokenizer.json", TOKENIZER_BYTES_MAX, &doc, err));
    if (!doc) {
        snprintf(f->tokenizer, sizeof f->tokenizer, "none");
        return QN_OK;
    }
    f->has_tokenizer = true;
    const struct json *model = json_get(doc, "model");
    struct str type = json_str(json_get(model, "type"));
    if (!type.n)
        type = STR_LIT("BPE"); /* old files leave it out */
    const char *how = "";
    if (json_bool(json_get(model, "byte_fallback")))
        how = ", byte fallback";
    else if (has_type(json_get(doc, "pre_tokenizer"), "pretokenizers", "ByteLevel"))
        how = ", byte-level";
    snprintf(f->tokenizer, sizeof f->tokenizer, "%.*s%s, %zu pieces and %zu added",
             (int)(type.n < 20 ? type.n : 20), type.p, how, json_len(json_get(model, "vocab")),
             json_len(json_get(doc, "added_tokens")));
    json_free(doc);
    return QN_OK;
}

static void read_template(const char *dir, struct inspect_facts *f)
{
    struct chat_tmpl *t = NULL;
    struct qn_err err = {0};
    enum qn_status st = chat_tmpl_open(dir, &t, &err);
    if (st == QN_OK)
        snprintf(f->template, sizeof f->template, "yes");
    else if (st == QN_NOT_FOUND)
        snprintf(f->template, sizeof f->template, "no");
    else
        snprintf(f->template, sizeof f->template, "unusable: %.180s", err.msg);
    chat_tmpl_free(t);
}

enum qn_status inspect_facts_read(const char *dir, struct inspect_facts *f, struct qn_err *err)
{
    *f = (struct inspect_facts){0};
    enum qn_status st = read_config(dir, f, err);
    if (st == QN_OK)
        st = read_eos(dir, f, err);
    if (st == QN_OK)
        st = read_tokenizer(dir, f, err);
    if (st == QN_OK)
        read_template(dir, f);
    else
        inspect_facts_free(f);
    return st;
}

void inspect_facts_free(struct inspect_facts *f)
{
    json_free(f->config);
    free(f->kv);
    *f = (struct inspect_facts){0};
}
