/*
 * fake_model.c - see fake_model.h.
 */
#include "fake_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static uint32_t next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void fill(struct fake_tensor *t, uint32_t seed)
{
    for (size_t i = 0; i < t->bytes; i++)
        t->data[i] = (uint8_t)next(&seed);
    float f;
    if (strcmp(t->dtype, "BF16") == 0)
        for (size_t i = 0; i + 1 < t->bytes; i += 2) {
            f = ((float)next(&seed) / (float)(1 << 24) - 0.5f) * 0.1f;
            memcpy(t->data + i, (const uint8_t *)&f + 2, 2);
        }
    if (strcmp(t->dtype, "F32") == 0)
        for (size_t i = 0; i + 3 < t->bytes; i += 4) {
            f = (float)next(&seed) / (float)(1 << 24) - 0.5f;
            memcpy(t->data + i, &f, 4);
        }
}

static size_t elem_bytes(const char *dtype)
{
    if (strcmp(dtype, "U8") == 0)
        return 1;
    return strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2 : 4;
}

static struct fake_tensor *look(struct fake *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->t[i].name, name) == 0)
            return &f->t[i];
    return NULL;
}

struct fake_tensor *fake_find(struct fake *f, const char *name)
{
    struct fake_tensor *t = look(f, name);
    QN_ASSERT(t);
    return t;
}

void fake_drop(struct fake *f, const char *name)
{
    struct fake_tensor *t = fake_find(f, name);
    free(t->data);
    *t = f->t[--f->n];
}

void fake_put(struct fake *f, const char *name, const char *dtype, const int64_t *dims)
{
    struct fake_tensor *t = look(f, name);
    if (!t) {
        QN_ASSERT(f->n < FAKE_TENSORS);
        t = &f->t[f->n++];
        memset(t, 0, sizeof *t);
    }
    free(t->data);
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->bytes = elem_bytes(dtype);
    for (t->n_dim = 0; dims[t->n_dim]; t->n_dim++) {
        t->shape[t->n_dim] = dims[t->n_dim];
        t->bytes *= (size_t)dims[t->n_dim];
    }
    t->data = calloc(t->bytes, 1);
    QN_ASSERT(t->data);
    uint32_t seed = 7;
    for (const char *p = name; *p; p++)
        seed = seed * 31 + (uint8_t)*p;
    fill(t, seed);
}

void fake_put_affine(struct fake *f, const char *module, int64_t n, int64_t k, int bits, int group)
{
    char name[128];
    snprintf(name, sizeof name, "%s.weight", module);
    fake_put(f, name, "U32", (int64_t[]){n, k * bits / 32, 0});
    snprintf(name, sizeof name, "%s.scales", module);
    fake_put(f, name, "BF16", (int64_t[]){n, k / group, 0});
    snprintf(name, sizeof name, "%s.biases", module);
    fake_put(f, name, "BF16", (int64_t[]){n, k / group, 0});
}

void fake_set(struct fake *f, const char *key, const char *json)
{
    int i = 0;
    while (i < f->n_cfg && strcmp(f->cfg[i].key, key) != 0)
        i++;
    if (!json) {
        if (i < f->n_cfg)
            f->cfg[i] = f->cfg[--f->n_cfg];
        return;
    }
    QN_ASSERT(i < FAKE_KEYS && strlen(json) < sizeof f->cfg[i].val);
    if (i == f->n_cfg)
        f->n_cfg++;
    snprintf(f->cfg[i].key, sizeof f->cfg[i].key, "%s", key);
    snprintf(f->cfg[i].val, sizeof f->cfg[i].val, "%s", json);
}

void fake_init(struct fake *f)
{
    static const char *const cfg[][2] = {
        {"model_type", "\"llama\""},
        {"hidden_size", "64"},
        {"num_hidden_layers", "1"},
        {"intermediate_size", "96"},
        {"num_attention_heads", "4"},
        {"num_key_value_heads", "2"},
        {"head_dim", "16"},
        {"vocab_size", "128"},
        {"rms_norm_eps", "1e-05"},
        {"max_position_embeddings", "256"},
        {"tie_word_embeddings", "true"},
        {"eos_token_id", "1"},
        {"quantization", "{\"group_size\": 32, \"bits\": 4}"},
    };
    static const struct {
        const char *name;
        int64_t n, k;
    } matrices[] = {
        {"model.embed_tokens", 128, 64},
        {"model.layers.0.self_attn.q_proj", 64, 64},
        {"model.layers.0.self_attn.k_proj", 32, 64},
        {"model.layers.0.self_attn.v_proj", 32, 64},
        {"model.layers.0.self_attn.o_proj", 64, 64},
        {"model.layers.0.mlp.gate_proj", 96, 64},
        {"model.layers.0.mlp.up_proj", 96, 64},
        {"model.layers.0.mlp.down_proj", 64, 96},
    };
    memset(f, 0, sizeof *f);
    for (size_t i = 0; i < sizeof cfg / sizeof cfg[0]; i++)
        fake_set(f, cfg[i][0], cfg[i][1]);
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        fake_put_affine(f, matrices[i].name, matrices[i].n, matrices[i].k, 4, 32);
    fake_put(f, "model.norm.weight", "BF16", (int64_t[]){64, 0});
    fake_put(f, "model.layers.0.input_layernorm.weight", "BF16", (int64_t[]){64, 0});
    fake_put(f, "model.layers.0.post_attention_layernorm.weight", "BF16", (int64_t[]){64, 0});
}

void fake_free(struct fake *f)
{
    for (int i = 0; i < f->n; i++)
        free(f->t[i].data);
    f->n = 0;
}

static FILE *open_file(const char *dir, const char *file)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *out = fopen(path, "wb");
    QN_ASSERT(out);
    return out;
}

void fake_write_text(const char *dir, const char *file, const char *text)
{
    FILE *out = open_file(dir, file);
    fputs(text, out);
    QN_ASSERT(fclose(out) == 0);
}

void fake_write_config(const struct fake *f, const char *dir)
{
    FILE *out = open_file(dir, "config.json");
    for (int i = 0; i < f->n_cfg; i++)
        fprintf(out, "%s\n \"%s\": %s", i ? "," : "{", f->cfg[i].key, f->cfg[i].val);
    fprintf(out, "\n}\n");
    QN_ASSERT(fclose(out) == 0);
}

static void write_entry(FILE *out, const struct fake_tensor *t, size_t at)
{
    fprintf(out, "\"%s\":", t->name);
    if (t->entry[0]) {
        fprintf(out, "%s", t->entry);
        return;
    }
    fprintf(out, "{\"dtype\":\"%s\",\"shape\":[", t->dtype);
    for (int i = 0; i < t->n_dim; i++)
        fprintf(out, "%s%lld", i ? "," : "", (long long)t->shape[i]);
    fprintf(out, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
}

void fake_write_tensors(const struct fake *f, const char *dir, const char *file, int begin, int end)
{
    char *head = NULL;
    size_t n = 0, at = 0;
    FILE *mem = open_memstream(&head, &n);
    QN_ASSERT(mem);
    fprintf(mem, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (int i = begin; i < end; i++) {
        fputc(',', mem);
        write_entry(mem, &f->t[i], at);
        at += f->t[i].bytes;
    }
    fputc('}', mem);
    fclose(mem);
    FILE *out = open_file(dir, file);
    uint64_t len = n;
    fwrite(&len, 8, 1, out);
    fwrite(head, 1, n, out);
    for (int i = begin; i < end; i++)
        fwrite(f->t[i].data, 1, f->t[i].bytes, out);
    QN_ASSERT(fclose(out) == 0);
    free(head);
}

void fake_write(const struct fake *f, const char *dir)
{
    fake_write_config(f, dir);
    fake_write_tensors(f, dir, "model.safetensors", 0, f->n);
}
