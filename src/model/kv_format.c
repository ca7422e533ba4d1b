/*
 * kv_format.c - see kv_format.h. Keys-only layers (an indexer's) and recurrent layers stay as they
 * are in every format.
 */
#include "model/kv_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "kernels/kvq.h"

enum { CONFIG_MAX = 1 << 20 };

enum spec_kind { SPEC_OFF, SPEC_UNIFORM, SPEC_CONFIG, SPEC_TURBO };
struct spec {
    enum spec_kind kind;
    int k_bits, v_bits;
};

static enum qn_status spec_parse(const char *text, struct spec *s, struct qn_err *err)
{
    *s = (struct spec){SPEC_OFF, 0, 0};
    if (!text || !*text || !strcmp(text, "off"))
        return QN_OK;
    if (!strcmp(text, "8") || !strcmp(text, "4")) {
        *s = (struct spec){SPEC_UNIFORM, *text - '0', *text - '0'};
        return QN_OK;
    }
    if (!strcmp(text, "config")) {
        s->kind = SPEC_CONFIG;
        return QN_OK;
    }
    if (!strcmp(text, "turbo")) {
        *s = (struct spec){SPEC_TURBO, 8, 4};
        return QN_OK;
    }
    if (strncmp(text, "turbo:", 6) != 0)
        QN_FAIL(err, QN_BAD_INPUT, "kv",
                "KV format \"%.32s\" is not known; possible are off, 8, 4, config and turbo[:kKvV]",
                text);
    const char *t = text + 6;
    if (strlen(t) != 4 || t[0] != 'k' || t[2] != 'v' || !strchr("2458", t[1]) ||
        !strchr("23458", t[3]))
        QN_FAIL(err, QN_BAD_INPUT, "kv",
                "KV format \"%.32s\": turbo: is followed by kKvV, K being 2, 4, 5 or 8 bits of "
                "keys and V 2, 3, 4, 5 or 8 bits of values, e.g. turbo:k8v4",
                text);
    *s = (struct spec){SPEC_TURBO, t[1] - '0', t[3] - '0'};
    return QN_OK;
}

enum qn_status kv_format_check(const char *spec, struct qn_err *err)
{
    struct spec s;
    return spec_parse(spec, &s, err);
}

/* Whether a layer's memory can have a form at all. */
static bool has_values(const struct kv_layer *l)
{
    return l->n_head && l->dv;
}

/* Groups of 64; of 32 where a head's size is no multiple of 64 (kv_setup refuses what is left). */
static struct kv_form uniform(const struct kv_layer *l, int bits)
{
    bool wide = l->dk % 64 == 0 && l->dv % 64 == 0;
    return (struct kv_form){(uint8_t)bits, (uint8_t)bits, wide ? 64 : 32, false};
}

/* ---- kv_config.json -------------------------------------------------------------------------- */

static enum qn_status config_entry(const struct json *e, const struct kv_format_in *in,
                                   struct kv_format *f, struct qn_err *err)
{
    static const char where[] = "kv_config.json";
    int32_t idx, bits, group;
    QN_TRY(json_req_i32(e, where, "layer_idx", 0, in->n_model - 1, &idx, err));
    QN_TRY(json_req_i32(e, where, "bits", 2, 8, &bits, err));
    QN_TRY(json_opt_i32(e, where, "group_size", 64, 32, 128, &group, err));
    struct kv_layer *l = &f->layers[idx];
    if (!has_values(l))
        QN_FAIL(err, QN_BAD_INPUT, "kv",
                "kv_config.json: layer_idx %d: this layer keeps no keys and values", idx);
    if (l->form.k_bits)
        QN_FAIL(err, QN_BAD_INPUT, "kv", "kv_config.json: layer_idx %d is there twice", idx);
    l->form = (struct kv_form){(uint8_t)bits, (uint8_t)bits, (uint8_t)group, false};
    return QN_OK;
}

static enum qn_status config_read(const struct kv_format_in *in, struct json **doc,
                                  struct qn_err *err)
{
    struct buf path = BUF_INIT, text = BUF_INIT;
    path_join(&path, in->dir, "kv_config.json");
    enum qn_status st = buf_ok(&path, "path", err);
    if (st == QN_OK)
        st = file_read(buf_z(&path), CONFIG_MAX, &text, err);
    if (st == QN_NOT_FOUND)
        st = err_set(err, QN_NOT_FOUND, "kv",
                     "%s has no kv_config.json, which the KV format \"config\" reads: add one or "
                     "choose 8 or 4",
                     in->dir);
    if (st == QN_OK)
        st = json_parse(buf_str(&text), "kv_config.json", JSON_DEPTH_MAX, doc, err);
    buf_free(&path);
    buf_free(&text);
    return st;
}

static enum qn_status config_apply(const struct kv_format_in *in, struct kv_format *f,
                                   struct qn_err *err)
{
    struct json *doc = NULL;
    QN_TRY(config_read(in, &doc, err));
    enum qn_status st = QN_OK;
    if (json_type(doc) != JSON_ARR)
        st = err_set(err, QN_BAD_INPUT, "kv",
                     "kv_config.json: expected a list of {\"layer_idx\", \"bits\", "
                     "\"group_size\"}");
    for (size_t i = 0; st == QN_OK && i < json_len(doc); i++)
        st = config_entry(json_at(doc, i), in, f, err);
    json_free(doc);
    return st;
}

/* ---- all layers ------------------------------------------------------------------------------ */

static void apply_all(const struct spec *s, struct kv_format *f, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct kv_layer *l = &f->layers[i];
        if (!has_values(l))
            continue;
        if (s->kind == SPEC_UNIFORM)
            l->form = uniform(l, s->k_bits);
        else
            l->form = (struct kv_form){(uint8_t)s->k_bits, (uint8_t)s->v_bits, 32, true};
    }
}

static void name(const struct spec *s, const struct kv_format_in *in, struct kv_format *f)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < in->n; i++) {
        const struct kv_form *a = &f->layers[i].form;
        uint8_t key[4] = {a->k_bits, a->v_bits, a->group, a->rotated};
        h = hash64(key, sizeof key, h);
        f->n_coded += a->k_bits != 0;
    }
    if (!f->n_coded)
        snprintf(f->id, sizeof f->id, "%s", in->reference ? "f32" : "bf16");
    else if (s->kind == SPEC_UNIFORM)
        snprintf(f->id, sizeof f->id, "kv%d", s->k_bits);
    else if (s->kind == SPEC_TURBO)
        snprintf(f->id, sizeof f->id, "turbo-k%dv%d", s->k_bits, s->v_bits);
    else
        snprintf(f->id, sizeof f->id, "config-%08x", (unsigned)(h & 0xFFFFFFFFu));
}

enum qn_status kv_format_resolve(const struct kv_format_in *in, struct kv_format *out,
                                 struct qn_err *err)
{
    struct spec s;
    QN_TRY(spec_parse(in->spec, &s, err));
    struct kv_format f = {.layers = malloc((size_t)in->n * sizeof *f.layers)};
    if (!f.layers)
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for %d layers", in->n);
    memcpy(f.layers, in->layers, (size_t)in->n * sizeof *f.layers);
    enum qn_status st = QN_OK;
    if (s.kind == SPEC_CONFIG)
        st = config_apply(in, &f, err);
    else if (s.kind != SPEC_OFF)
        apply_all(&s, &f, in->n);
    if (st != QN_OK) {
        kv_format_free(&f);
        return st;
    }
    name(&s, in, &f);
    *out = f;
    return QN_OK;
}

void kv_format_free(struct kv_format *f)
{
    free(f->layers);
    *f = (struct kv_format){0};
}
