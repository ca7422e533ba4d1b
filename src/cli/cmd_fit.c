/*
 * cmd_fit.c - `quern fit`: what a model takes of memory, and which contexts and how many
 * conversations go into a given amount. The figures are the engine's own (qn_seq_bytes,
 * qn_transient_bytes), so the model is loaded. Main thread.
 */
#include "base/json.h"
#include "base/sysmem.h"
#include "cli/engine_open.h"
#include "cli/memory_plan.h"
#include "cli/model_arg.h"
#include "cli/term.h"
#include "cli/verbs.h"

struct fit_opts {
    const char *kv_quant;
    int64_t ctx, batch, memory;
    bool json;
};

static const struct cli_opt fit_opts[] = {
    CLI_OPT_CTX(struct fit_opts),
    CLI_OPT_BATCH(struct fit_opts, "Conversations answered together, as in `quern serve --batch`."),
    CLI_OPT_KV_QUANT(struct fit_opts),
    CLI_OPT_MEMORY(struct fit_opts, "memory",
                   "Memory for everything, as in `quern serve --memory-budget`."),
    {.name = "json",
     .type = CLI_FLAG,
     .help = "Print one JSON object.",
     .off = CLI_AT_FLAG(struct fit_opts, json)},
    {.type = CLI_END},
};

struct fit {
    const struct fit_opts *o;
    const struct qn_engine *e;
    const struct qn_model_info *info;
    struct memory_plan plan;
    int64_t budget, kv; /* bytes; what is left for keys and values, may be negative */
};

/* The longest context that n conversations can have at once; 0 = none. */
static int32_t longest(const struct fit *f, int64_t n)
{
    int32_t low = 0, high = f->info->n_ctx;
    while (low < high) {
        int32_t mid = low + (high - low + 1) / 2;
        if (qn_seq_bytes(f->e, mid) <= f->kv / n)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static int64_t conversations(const struct fit *f, int32_t ctx)
{
    int64_t bytes = qn_seq_bytes(f->e, ctx);
    return f->kv > 0 && bytes > 0 ? f->kv / bytes : 0;
}

/* 1024, 4096, ... and the whole context at last; -1 behind it. */
static int32_t next_ctx(const struct fit *f, int32_t ctx)
{
    int32_t n = f->info->n_ctx;
    if (ctx == n)
        return -1;
    int64_t next = ctx ? (int64_t)ctx * 4 : 1024;
    return next < n ? (int32_t)next : n;
}

static void size_line(struct buf *out, const char *what, int64_t bytes)
{
    buf_addf(out, "%-34s %15lld  ", what, (long long)bytes);
    cli_size_text(out, bytes);
    buf_addc(out, '\n');
}

static void text_report(const struct fit *f, struct buf *out)
{
    int64_t b = f->o->batch;
    buf_addf(out, "%s, context %d tokens, KV %s\n\n", f->info->name, f->info->n_ctx,
             f->info->kv_format);
    buf_addf(out, "%-34s %15s\n", "", "bytes");
    size_line(out, "weights", f->plan.weights);
    size_line(out, "work memory of a step", f->plan.step);
    size_line(out, "logits of the batch", f->plan.logits);
    size_line(out, "program", PROGRAM_BYTES);
    size_line(out, "memory", f->budget);
    size_line(out, "left for keys and values", f->kv > 0 ? f->kv : 0);
    size_line(out, "keys and values, per token", f->info->kv_token_bytes);
    if (f->info->seq_state_bytes)
        size_line(out, "state, per conversation", f->info->seq_state_bytes);
    buf_addf(out, "\n%10s %18s %22s\n", "context", "bytes at most", "conversations at once");
    for (int32_t n = next_ctx(f, 0); n > 0; n = next_ctx(f, n))
        buf_addf(out, "%10d %18lld %22lld\n", n, (long long)qn_seq_bytes(f->e, n),
                 (long long)conversations(f, n));
    if (f->kv <= 0)
        buf_addf(out, "\nIt does not fit: it needs %lld bytes before the first token.\n",
                 (long long)memory_fixed(&f->plan));
    else
        buf_addf(out, "\n%lld conversations at once: up to %d tokens each.\n", (long long)b,
                 longest(f, b));
}

static void json_report(const struct fit *f, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "model", f->info->name);
    jw_kstrz(&w, "kv_format", f->info->kv_format);
    jw_ki64(&w, "context", f->info->n_ctx);
    jw_ki64(&w, "batch", f->o->batch);
    jw_ki64(&w, "memory_bytes", f->budget);
    jw_ki64(&w, "weights_bytes", f->plan.weights);
    jw_ki64(&w, "step_bytes", f->plan.step);
    jw_ki64(&w, "logits_bytes", f->plan.logits);
    jw_ki64(&w, "program_bytes", PROGRAM_BYTES);
    jw_ki64(&w, "kv_budget_bytes", f->kv > 0 ? f->kv : 0);
    jw_ki64(&w, "kv_token_bytes", f->info->kv_token_bytes);
    jw_ki64(&w, "sequence_state_bytes", f->info->seq_state_bytes);
    jw_kbool(&w, "fits", f->kv > 0);
    jw_ki64(&w, "context_of_batch", f->kv > 0 ? longest(f, f->o->batch) : 0);
    jw_key(&w, "contexts");
    jw_arr(&w);
    for (int32_t n = next_ctx(f, 0); n > 0; n = next_ctx(f, n)) {
        jw_obj(&w);
        jw_ki64(&w, "tokens", n);
        jw_ki64(&w, "bytes", qn_seq_bytes(f->e, n));
        jw_ki64(&w, "conversations", conversations(f, n));
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_addc(out, '\n');
}

static int run_fit(const struct cli *c, void *opts)
{
    struct fit f = {.o = opts};
    struct qn_err err = {0};
    struct qn_engine *e = NULL;
    struct buf dir = BUF_INIT, out = BUF_INIT;
    enum qn_status st = model_arg_find(c->n_pos ? c->pos[0] : NULL, &dir, &err);
    if (st == QN_OK)
        st = engine_open(buf_z(&dir),
                         &(struct engine_args){.ctx = f.o->ctx, .kv_quant = f.o->kv_quant}, &e,
                         &err);
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, &err);
    if (st == QN_OK) {
        f.e = e;
        f.info = qn_engine_info(e);
        f.budget = f.o->memory ? f.o->memory : sysmem_limit() / 10 * 8;
        f.plan = memory_plan_of(f.info, qn_transient_bytes(e, (int32_t)f.o->batch), f.o->batch);
        f.kv = f.budget - memory_fixed(&f.plan);
        (f.o->json ? json_report : text_report)(&f, &out);
        if (!cli_write(c, buf_str(&out)))
            rc = CLI_FAILED;
    }
    qn_engine_free(e);
    buf_free(&out);
    buf_free(&dir);
    return rc;
}

const struct cli_verb verb_fit = {
    .name = "fit",
    .summary = "show what a model takes of memory and what fits",
    .usage = "[options] [MODEL]",
    .about = "Loads a model and prints, to the byte, what its weights, a step's work memory and a "
             "token of context take, how much a conversation of a given length holds at most, and "
             "how many fit into the memory at once. `quern serve` plans with the same figures; "
             "GET /stats shows them.",
    .examples = "quern fit smollm2 --kv-quant 8\n"
                "quern fit --memory 2GiB --ctx 8192 --batch 16 --json smollm2",
    .opts = fit_opts,
    .opts_size = sizeof(struct fit_opts),
    .pos_min = 0,
    .pos_max = 1,
    .pos_name = "MODEL",
    .run = run_fit,
};
