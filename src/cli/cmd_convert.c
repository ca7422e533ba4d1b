/*
 * cmd_convert.c - `quern convert`: a GGUF file into an MLX folder, and what it cost in exactness.
 */
#include <math.h>
#include <stdlib.h>

#include "cli/cancel.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "import/import_gguf.h"

struct convert_opts {
    bool force;
    int dtype;
    int64_t shard;
    bool list;
};

static const char *const dtypes[] = {"auto", "float16", "bfloat16", "float32", NULL};

static const struct cli_opt convert_table[] = {
    {.name = "force",
     .short_name = 'f',
     .type = CLI_FLAG,
     .help = "Replace OUT when it is a model folder already.",
     .off = CLI_AT_FLAG(struct convert_opts, force)},
    {.name = "dtype",
     .type = CLI_ENUM,
     .arg = "TYPE",
     .choices = dtypes,
     .def = "auto",
     .help = "Type of scales and unquantized tensors. auto: for each tensor float16 where that is "
             "exact, otherwise what is.",
     .off = CLI_AT_ENUM(struct convert_opts, dtype)},
    {.name = "shard-size",
     .type = CLI_SIZE,
     .arg = "SIZE",
     .min = 1048576,
     .max = 1099511627776,
     .def = "5GiB",
     .help = "Most bytes in one weight file.",
     .off = CLI_AT_SIZE(struct convert_opts, shard)},
    {.name = "list",
     .type = CLI_FLAG,
     .help = "Also list every tensor that is not exact.",
     .off = CLI_AT_FLAG(struct convert_opts, list)},
    {.type = CLI_END},
};

static void on_start(void *arg, double total)
{
    progress_start(arg, "Converting", "B", total);
}

static void on_progress(void *arg, double done)
{
    progress_set(arg, done);
}

/* A line of the closing table: all tensors of one source and target format. */
struct group {
    const struct import_tensor *first;
    size_t n, inexact;
    int64_t n_elem;
    uint64_t n_bytes;
    double err_max, err_sq, val_sq;
};

static bool same_group(const struct import_tensor *a, const struct import_tensor *b)
{
    return a->format == b->format && a->bits == b->bits && a->dtype == b->dtype;
}

static size_t group_up(const struct import_report *rep, struct group *g)
{
    size_t n = 0;
    for (size_t i = 0; i < rep->n; i++) {
        const struct import_tensor *t = &rep->t[i];
        size_t k = 0;
        while (k < n && !same_group(g[k].first, t))
            k++;
        if (k == n)
            g[n++] = (struct group){.first = t};
        g[k].n++;
        g[k].inexact += !t->exact;
        g[k].n_elem += t->n_elem;
        g[k].n_bytes += t->n_bytes;
        g[k].err_max = fmax(g[k].err_max, t->err_max);
        g[k].err_sq += t->err_sq;
        g[k].val_sq += t->val_sq;
    }
    return n;
}

static void target_text(const struct import_tensor *t, char *out, size_t n)
{
    static const char *const NAME[] = {"", "f32", "f16", "bf16"};
    if (t->bits)
        snprintf(out, n, "%d-bit, %s scales", t->bits, NAME[t->dtype]);
    else
        snprintf(out, n, "%s", NAME[t->dtype]);
}

static void error_text(struct buf *out, double err_max, double err_sq, double val_sq)
{
    buf_addf(out, "off by at most %.3g, RMS %.3g%% of the values", err_max,
             val_sq > 0 ? 100 * sqrt(err_sq / val_sq) : 0);
}

static void table(const struct import_report *rep, const struct group *g, size_t n, struct buf *out)
{
    buf_addf(out, "%-6s  %-19s %8s %13s %6s  %s\n", "GGUF", "MLX", "tensors", "weights", "bits/w",
             "values");
    for (size_t i = 0; i < n; i++) {
        char target[40];
        target_text(g[i].first, target, sizeof target);
        buf_addf(out, "%-6s  %-19s %8zu %13lld %6.2f  ", g[i].first->format, target, g[i].n,
                 (long long)g[i].n_elem, 8.0 * (double)g[i].n_bytes / (double)g[i].n_elem);
        if (!g[i].inexact) {
            buf_addz(out, "exact\n");
            continue;
        }
        if (g[i].inexact < g[i].n)
            buf_addf(out, "%zu of %zu ", g[i].inexact, g[i].n);
        error_text(out, g[i].err_max, g[i].err_sq, g[i].val_sq);
        buf_addc(out, '\n');
    }
    buf_addf(out, "%-6s  %-19s %8zu %13lld %6.2f\n", "all", rep->arch, rep->n,
             (long long)rep->n_elem, 8.0 * (double)rep->n_bytes / (double)rep->n_elem);
}

static void list_inexact(const struct import_report *rep, struct buf *out)
{
    for (size_t i = 0; i < rep->n; i++) {
        const struct import_tensor *t = &rep->t[i];
        if (t->exact)
            continue;
        buf_addf(out, "%s (%s): ", t->name, t->format);
        error_text(out, t->err_max, t->err_sq, t->val_sq);
        buf_addc(out, '\n');
    }
}

static bool report(const struct cli *c, const struct import_report *rep, bool list)
{
    struct buf out = BUF_INIT;
    struct group *g = calloc(rep->n + 1, sizeof *g);
    if (g)
        table(rep, g, group_up(rep, g), &out);
    if (list)
        list_inexact(rep, &out);
    bool ok = g && !out.failed && cli_write(c, buf_str(&out));
    free(g);
    buf_free(&out);
    return ok;
}

static int convert_run(const struct cli *c, void *opts)
{
    const struct convert_opts *o = opts;
    struct progress bar = {0};
    struct import_report rep = {0};
    struct qn_err err = {0};
    struct import_params p = {
        .src = c->pos[0],
        .dst = c->pos[1],
        .force = o->force,
        .dtype = (enum import_dtype)o->dtype,
        .shard_max = (uint64_t)o->shard,
        .start = on_start,
        .progress = on_progress,
        .arg = &bar,
        .cancel = cancel_on_signals(),
    };
    enum qn_status st = import_gguf(&p, &rep, &err);
    progress_end(&bar);
    if (st != QN_OK)
        return cli_fail(c, &err);
    bool ok = report(c, &rep, o->list);
    import_report_free(&rep);
    return ok ? CLI_OK : CLI_FAILED;
}

const struct cli_verb verb_convert = {
    .name = "convert",
    .summary = "turn a GGUF file into an MLX model folder",
    .usage = "[options] FILE.gguf OUT",
    .about =
        "Writes config, weights, tokenizer and chat template of a GGUF file as an MLX folder that "
        "quern and mlx-lm load. Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K and Q5_K become affine groups "
        "of 32 with exactly the same values; Q2_K, Q3_K and Q6_K are quantized anew with two bits "
        "more; F16, BF16 and F32 stay. A table at the end says what is exact and how far off the "
        "rest is. Architectures: llama, qwen2, qwen3, qwen3moe, gemma3, phi3.\n\n"
        "OUT appears whole or not at all: whatever fails leaves nothing behind.",
    .examples = "quern convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2\n"
                "quern convert --dtype bfloat16 --force model.gguf model-mlx\n",
    .opts = convert_table,
    .opts_size = sizeof(struct convert_opts),
    .pos_min = 2,
    .pos_max = 2,
    .pos_name = "FILE or OUT",
    .run = convert_run,
};
