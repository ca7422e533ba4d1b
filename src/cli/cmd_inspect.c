/*
 * cmd_inspect.c - `quern inspect`: what is in a model folder, from config.json and the headers of
 * the safetensors files. No weight is read.
 */
#include <stdlib.h>

#include "base/file.h"
#include "cli/inspect_census.h"
#include "cli/inspect_facts.h"
#include "cli/inspect_files.h"
#include "cli/model_arg.h"
#include "cli/verbs.h"

struct inspect_opts {
    int64_t ctx;
    bool tensors, json;
};

static const struct cli_opt inspect_opts[] = {
    {.name = "ctx",
     .short_name = 'c',
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 1073741824,
     .def_text = "the model's own maximum",
     .help = "Context length to compute the memory for.",
     .off = CLI_AT_INT(struct inspect_opts, ctx)},
    {.name = "tensors",
     .type = CLI_FLAG,
     .help = "List every tensor with its shape, format and bytes.",
     .off = CLI_AT_FLAG(struct inspect_opts, tensors)},
    {.name = "json",
     .type = CLI_FLAG,
     .help = "Print one JSON object.",
     .off = CLI_AT_FLAG(struct inspect_opts, json)},
    {.type = CLI_END},
};

struct inspect {
    const char *dir;
    struct inspect_facts facts;
    struct inspect_files files;
    struct census census;
    int64_t ctx; /* tokens the memory is computed for; -1 = not known */
};

static double bits_per_weight(int64_t bytes, int64_t n)
{
    return n > 0 ? (double)bytes * 8 / (double)n : 0;
}

/* ---- text ----------------------------------------------------------------------------------- */

static void line_number(struct buf *out, const char *name, int64_t v)
{
    if (v >= 0)
        buf_addf(out, "%-14s %lld\n", name, (long long)v);
}

static void text_facts(const struct inspect *in, struct buf *out)
{
    const struct inspect_facts *f = &in->facts;
    buf_addf(out, "%-14s %s\n%-14s " STR_FMT "\n", "folder", in->dir, "family", STR_ARG(f->family));
    line_number(out, "layers", f->layers);
    line_number(out, "hidden size", f->hidden);
    line_number(out, "feed-forward", f->intermediate);
    if (f->heads >= 0)
        buf_addf(out, "%-14s %d, %d for keys and values, of %d\n", "heads", f->heads, f->kv_heads,
                 f->head_dim);
    if (f->experts > 0)
        buf_addf(out, "%-14s %d, %d used for a token\n", "experts", f->experts, f->experts_used);
    line_number(out, "vocabulary", f->vocab);
    line_number(out, "context", f->context);
    if (f->sliding_layers > 0)
        buf_addf(out, "%-14s %d tokens in %d of %d layers\n", "window", f->window,
                 f->sliding_layers, f->layers);
    buf_addf(out, "%-14s %s\n%-14s %s\n%-14s", "tokenizer", f->tokenizer, "chat template",
             f->template, "end tokens");
    for (int i = 0; i < f->n_eos; i++)
        buf_addf(out, "%s %lld", i ? "," : "", (long long)f->eos[i]);
    buf_addz(out, f->n_eos ? "\n" : " none stated\n");
}

static void text_totals(const struct inspect *in, struct buf *out)
{
    const struct census *c = &in->census;
    buf_addf(out, "\n%-20s %8s %16s %16s %12s\n", "format", "tensors", "weights", "bytes",
             "bits/weight");
    for (int i = 0; i < c->n_total; i++) {
        const struct census_total *t = &c->totals[i];
        buf_addf(out, "%-20s %8lld %16lld %16lld %12.3f\n", t->format, (long long)t->n_module,
                 (long long)t->n_weight, (long long)t->bytes,
                 bits_per_weight(t->bytes, t->n_weight));
    }
    buf_addf(out, "%-20s %8zu %16lld %16lld %12.3f\n", "all", c->n, (long long)c->n_weight,
             (long long)c->bytes, bits_per_weight(c->bytes, c->n_weight));
}

static void text_memory(const struct inspect *in, struct buf *out)
{
    int64_t kv = inspect_kv_bytes(&in->facts, in->ctx), state = inspect_state_bytes(&in->facts);
    buf_addf(out, "\n%-14s ", "files");
    buf_addf(out, "%zu, ", in->files.n_file);
    cli_size_text(out, in->files.bytes);
    buf_addf(out, "\n%-14s weights ", "memory");
    cli_size_text(out, in->census.bytes);
    if (in->ctx > 0 && kv >= 0) {
        buf_addz(out, " + keys and values ");
        cli_size_text(out, kv);
        buf_addf(out, " (%lld bytes a token)", (long long)(inspect_kv_bytes(&in->facts, 1)));
        if (state) {
            buf_addz(out, " + state ");
            cli_size_text(out, state);
        }
        buf_addz(out, " = ");
        cli_size_text(out, in->census.bytes + kv + state);
        buf_addf(out, " at %lld tokens", (long long)in->ctx);
    } else {
        buf_addz(out, "; keys and values: this family, or this form of it, is not known");
    }
    buf_addc(out, '\n');
}

static void text_tensors(const struct inspect *in, struct buf *out)
{
    buf_addc(out, '\n');
    for (size_t i = 0; i < in->census.n; i++) {
        const struct census_module *m = &in->census.modules[i];
        struct buf shape = BUF_INIT;
        census_shape_text(m->shape, m->n_dim, &shape);
        buf_addf(out, STR_FMT "  %s  %s  %lld bytes\n", STR_ARG(m->name), buf_z(&shape), m->format,
                 (long long)m->bytes);
        buf_free(&shape);
    }
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void json_number_or_null(struct jw *w, const char *key, int64_t v)
{
    if (v >= 0)
        jw_ki64(w, key, v);
    else
        jw_knull(w, key);
}

static void json_facts(struct jw *w, const struct inspect *in)
{
    const struct inspect_facts *f = &in->facts;
    jw_kstrz(w, "folder", in->dir);
    jw_kstr(w, "family", f->family);
    json_number_or_null(w, "layers", f->layers);
    json_number_or_null(w, "hidden_size", f->hidden);
    json_number_or_null(w, "intermediate_size", f->intermediate);
    json_number_or_null(w, "heads", f->heads);
    json_number_or_null(w, "kv_heads", f->kv_heads);
    json_number_or_null(w, "head_dim", f->head_dim);
    jw_ki64(w, "experts", f->experts);
    jw_ki64(w, "experts_used", f->experts_used);
    json_number_or_null(w, "vocab_size", f->vocab);
    json_number_or_null(w, "context", f->context);
    jw_kbool(w, "has_tokenizer", f->has_tokenizer);
    jw_kstrz(w, "tokenizer", f->tokenizer);
    jw_kstrz(w, "chat_template", f->template);
    jw_key(w, "eos_ids");
    jw_arr(w);
    for (int i = 0; i < f->n_eos; i++)
        jw_i64(w, f->eos[i]);
    jw_arr_end(w);
}

static void json_totals(struct jw *w, const struct census *c)
{
    jw_key(w, "formats");
    jw_arr(w);
    for (int i = 0; i < c->n_total; i++) {
        const struct census_total *t = &c->totals[i];
        jw_obj(w);
        jw_kstrz(w, "format", t->format);
        jw_ki64(w, "tensors", t->n_module);
        jw_ki64(w, "weights", t->n_weight);
        jw_ki64(w, "bytes", t->bytes);
        jw_kreal(w, "bits_per_weight", bits_per_weight(t->bytes, t->n_weight));
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

static void json_tensors(struct jw *w, const struct census *c)
{
    jw_key(w, "tensors");
    jw_arr(w);
    for (size_t i = 0; i < c->n; i++) {
        const struct census_module *m = &c->modules[i];
        jw_obj(w);
        jw_kstr(w, "name", m->name);
        jw_kstrz(w, "file", m->file);
        jw_kstrz(w, "format", m->format);
        jw_ki64(w, "bits", m->bits);
        if (m->group > 0)
            jw_ki64(w, "group", m->group);
        jw_key(w, "shape");
        jw_arr(w);
        for (int d = 0; d < m->n_dim; d++)
            jw_i64(w, m->shape[d]);
        jw_arr_end(w);
        jw_ki64(w, "bytes", m->bytes);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

static void write_json(const struct inspect *in, bool tensors, struct buf *out)
{
    struct jw w;
    int64_t kv = inspect_kv_bytes(&in->facts, in->ctx), state = inspect_state_bytes(&in->facts);
    jw_init(&w, out);
    jw_obj(&w);
    json_facts(&w, in);
    jw_ki64(&w, "files", (int64_t)in->files.n_file);
    jw_ki64(&w, "file_bytes", in->files.bytes);
    jw_ki64(&w, "weights", in->census.n_weight);
    jw_ki64(&w, "weight_bytes", in->census.bytes);
    jw_kreal(&w, "bits_per_weight", bits_per_weight(in->census.bytes, in->census.n_weight));
    json_totals(&w, &in->census);
    json_number_or_null(&w, "kv_token_bytes", inspect_kv_bytes(&in->facts, 1));
    json_number_or_null(&w, "memory_context", in->ctx);
    json_number_or_null(&w, "kv_bytes", kv);
    json_number_or_null(&w, "state_bytes", kv >= 0 ? state : -1);
    json_number_or_null(&w, "memory_bytes", kv >= 0 ? in->census.bytes + kv + state : -1);
    if (tensors)
        json_tensors(&w, &in->census);
    jw_obj_end(&w);
    buf_addc(out, '\n');
}

/* ---- the verb ------------------------------------------------------------------------------- */

static enum qn_status take(struct inspect *in, const struct inspect_opts *o, struct qn_err *err)
{
    QN_TRY(inspect_facts_read(in->dir, &in->facts, err));
    QN_TRY(inspect_files_open(in->dir, &in->files, err));
    QN_TRY(census_take(in->files.tensors, in->files.n, in->facts.quantization, &in->census, err));
    in->ctx = o->ctx > 0 ? o->ctx : in->facts.context;
    return QN_OK;
}

static int run_inspect(const struct cli *c, void *opts)
{
    const struct inspect_opts *o = opts;
    struct qn_err err = {0};
    struct buf dir = BUF_INIT, out = BUF_INIT;
    struct inspect in = {0};
    enum qn_status st = model_arg_find(c->pos[0], &dir, &err);
    in.dir = buf_z(&dir);
    if (st == QN_OK)
        st = take(&in, o, &err);
    if (st == QN_OK && o->json) {
        write_json(&in, o->tensors, &out);
    } else if (st == QN_OK) {
        text_facts(&in, &out);
        text_totals(&in, &out);
        text_memory(&in, &out);
        if (o->tensors)
            text_tensors(&in, &out);
    }
    if (st == QN_OK)
        st = buf_ok(&out, "report", &err);
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, &err);
    if (st == QN_OK && !cli_write(c, buf_str(&out)))
        rc = CLI_FAILED;
    census_free(&in.census);
    inspect_files_close(&in.files);
    inspect_facts_free(&in.facts);
    buf_free(&dir);
    buf_free(&out);
    return rc;
}

const struct cli_verb verb_inspect = {
    .name = "inspect",
    .summary = "show what a model folder holds and how much memory it needs",
    .usage = "[options] DIR|NAME",
    .about = "Reads config.json and the headers of the safetensors files, and prints the model's "
             "sizes, its tensors by format, the effective bits per weight (scales and biases "
             "included), and the memory for weights, keys and values at a context length.",
    .examples = "quern inspect smollm2\n"
                "quern inspect ./my-model --ctx 32768\n"
                "quern inspect ./my-model --tensors --json",
    .opts = inspect_opts,
    .opts_size = sizeof(struct inspect_opts),
    .pos_min = 1,
    .pos_max = 1,
    .pos_name = "DIR",
    .run = run_inspect,
};
