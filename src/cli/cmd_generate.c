/*
 * cmd_generate.c - `quern generate`: one answer, streamed to standard output.
 *
 * Standard output carries the model's text only (or one JSON object); figures, progress and
 * messages go to standard error. Ctrl-C prints what was made and exits with 130.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/format_opts.h"
#include "cli/sample_opts.h"
#include "cli/session.h"
#include "cli/term.h"
#include "cli/verbs.h"

#define PROMPT_BYTES_MAX ((size_t)64 << 20)

struct generate_opts {
    const char *model, *prompt, *system, *kwargs;
    const char *kv_quant;
    int64_t ctx, threads, logprobs;
    bool raw, json, stats;
    struct sample_opts sample;
    struct format_opts format;
    struct draft_opts draft;
};

static const struct cli_opt generate_opts[] = {
    {.type = CLI_GROUP, .help = "Model and prompt"},
    CLI_OPT_MODEL(struct generate_opts),
    {.name = "prompt",
     .short_name = 'p',
     .type = CLI_STR,
     .arg = "TEXT",
     .def_text = "standard input",
     .help = "What to say to the model.",
     .off = CLI_AT_STR(struct generate_opts, prompt)},
    {.name = "system",
     .short_name = 's',
     .type = CLI_STR,
     .arg = "TEXT",
     .help = "System message that goes before the prompt.",
     .off = CLI_AT_STR(struct generate_opts, system)},
    {.name = "raw",
     .type = CLI_FLAG,
     .help = "Continue the prompt as plain text, without the model's chat template.",
     .off = CLI_AT_FLAG(struct generate_opts, raw)},
    {.name = "chat-template-kwargs",
     .type = CLI_STR,
     .arg = "JSON",
     .help = "Variables for the chat template, e.g. '{\"enable_thinking\": false}'.",
     .off = CLI_AT_STR(struct generate_opts, kwargs)},
    CLI_OPT_CTX(struct generate_opts),
    CLI_OPT_KV_QUANT(struct generate_opts),
    CLI_OPT_THREADS(struct generate_opts),
    CLI_OPTS_SAMPLING(struct generate_opts),
    CLI_OPTS_FORMAT(struct generate_opts),
    CLI_OPTS_DRAFT(struct generate_opts),
    {.type = CLI_GROUP, .help = "Output"},
    {.name = "json",
     .type = CLI_FLAG,
     .help = "Print one JSON object at the end instead of the text as it comes.",
     .off = CLI_AT_FLAG(struct generate_opts, json)},
    {.name = "logprobs",
     .type = CLI_INT,
     .arg = "N",
     .min = 0,
     .max = 20,
     .def_text = "none",
     .help = "Report each token's log probability and its N likeliest alternatives: in the JSON "
             "object, or on standard error after the text.",
     .off = CLI_AT_INT(struct generate_opts, logprobs)},
    {.name = "stats",
     .type = CLI_FLAG,
     .help = "Print speeds and token counts on standard error.",
     .off = CLI_AT_FLAG(struct generate_opts, stats)},
    {.type = CLI_END},
};

/* Whether somebody put a text there: a pipe or a file, not a terminal, /dev/null or a service's
 * socket, which may stay open without ever sending anything. */
static bool stdin_has_text(void)
{
    struct stat st;
    return fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode));
}

/* All of standard input; one final line break is dropped in chat mode (echo adds it). */
static enum qn_status read_stdin(bool raw, struct buf *out, struct qn_err *err)
{
    char block[1 << 16];
    out->limit = PROMPT_BYTES_MAX;
    for (;;) {
        ssize_t n = read(STDIN_FILENO, block, sizeof block);
        if (n < 0 && errno == EINTR && !term_interrupted())
            continue;
        if (n < 0)
            return err_errno(err, "generate", "standard input");
        if (n == 0)
            break;
        buf_add(out, block, (size_t)n);
        QN_TRY(buf_ok(out, "prompt on standard input", err));
    }
    if (!raw && out->n && out->p[out->n - 1] == '\n')
        out->p[--out->n] = 0;
    return QN_OK;
}

static enum qn_status chat_request(const struct generate_opts *o, struct str prompt,
                                   struct buf *out, struct qn_err *err)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_key(&w, "messages");
    jw_arr(&w);
    if (o->system) {
        jw_obj(&w);
        jw_kstrz(&w, "role", "system");
        jw_kstrz(&w, "content", o->system);
        jw_obj_end(&w);
    }
    jw_obj(&w);
    jw_kstrz(&w, "role", "user");
    jw_kstr(&w, "content", prompt);
    jw_obj_end(&w);
    jw_arr_end(&w);
    if (o->kwargs) {
        QN_TRY(json_check(str_of(o->kwargs), "--chat-template-kwargs", JSON_DEPTH_MAX, err));
        jw_key(&w, "chat_template_kwargs");
        jw_raw(&w, str_of(o->kwargs));
    }
    jw_obj_end(&w);
    return buf_ok(out, "chat request", err);
}

static enum qn_status prompt_ids(const struct cli *c, const struct generate_opts *o,
                                 const struct session *s, struct str prompt, struct ids *ids,
                                 struct qn_err *err)
{
    if (!o->raw && s->chat) {
        struct buf request = BUF_INIT;
        enum qn_status st = chat_request(o, prompt, &request, err);
        if (st == QN_OK)
            st = session_chat_ids(s, buf_str(&request), ids, err);
        buf_free(&request);
        return st;
    }
    if (!o->raw && (o->system || o->kwargs))
        QN_FAIL(err, QN_BAD_INPUT, "generate", "model %s has no chat template: --%s has no place",
                s->info->name, o->system ? "system" : "chat-template-kwargs");
    if (!o->raw)
        cli_say(c, "model %s has no chat template; continuing the prompt as with --raw",
                s->info->name);
    return session_raw_ids(s, prompt, ids, err);
}

/* Standard output as the answer's sink. */
struct out {
    const struct cli *c;
    bool failed;
};

static bool write_out(void *arg, struct str text)
{
    struct out *o = arg;
    if (!o->failed)
        o->failed = !cli_write(o->c, text);
    return !o->failed;
}

static void token_json(struct jw *w, const struct tok *tok, int32_t id, float logprob)
{
    struct buf text = BUF_INIT;
    tok_bytes(tok, id, &text);
    jw_ki64(w, "id", id);
    jw_kstr(w, "token", buf_str(&text));
    jw_kreal(w, "logprob", (double)logprob);
    buf_free(&text);
}

static void logprobs_json(struct jw *w, const struct answer *a, const struct tok *tok)
{
    jw_key(w, "tokens");
    jw_arr(w);
    for (int32_t i = 0; i < a->n_token; i++) {
        const struct sampled *t = &a->tokens[i];
        jw_obj(w);
        token_json(w, tok, t->id, t->logprob);
        jw_key(w, "top");
        jw_arr(w);
        for (int32_t k = 0; k < t->n_top; k++) {
            jw_obj(w);
            token_json(w, tok, t->top[k].id, t->top[k].logprob);
            jw_obj_end(w);
        }
        jw_arr_end(w);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

static bool print_json(const struct cli *c, const struct session *s, const struct gen_params *p,
                       const struct answer *a)
{
    struct buf b = BUF_INIT;
    struct jw w;
    char seed[24];
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstrz(&w, "model", s->info->name);
    jw_kstr(&w, "text", buf_str(&a->text));
    jw_kstrz(&w, "finish_reason", finish_name(a->finish));
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)p->sample.seed);
    jw_key(&w, "seed");
    jw_raw(&w, str_of(seed)); /* all 64 bits, without a sign */
    jw_ki64(&w, "prompt_tokens", a->usage.prompt_tokens);
    jw_ki64(&w, "completion_tokens", a->usage.completion_tokens);
    jw_kreal(&w, "load_s", (double)s->load_us / 1e6);
    jw_kreal(&w, "first_token_s", (double)a->first_us / 1e6);
    jw_kreal(&w, "prefill_s", (double)a->usage.prefill_us / 1e6);
    jw_kreal(&w, "decode_s", (double)a->decode_us / 1e6);
    spec_counts_json(&w, &a->usage.spec);
    if (p->sample.n_top >= 0)
        logprobs_json(&w, a, s->tok);
    jw_obj_end(&w);
    buf_addc(&b, '\n');
    bool ok = !b.failed && cli_write(c, buf_str(&b));
    buf_free(&b);
    return ok;
}

/* Token and alternatives, one line each, quoted as JSON strings so that blanks can be seen. */
static void print_logprobs(const struct answer *a, const struct tok *tok)
{
    struct buf b = BUF_INIT, piece = BUF_INIT;
    for (int32_t i = 0; i < a->n_token; i++) {
        const struct sampled *t = &a->tokens[i];
        for (int32_t k = -1; k < t->n_top; k++) {
            int32_t id = k < 0 ? t->id : t->top[k].id;
            float lp = k < 0 ? t->logprob : t->top[k].logprob;
            buf_clear(&piece);
            tok_bytes(tok, id, &piece);
            buf_addf(&b, "%s%9.4f %7d ", k < 0 ? "" : "    ", (double)lp, id);
            json_w_str(&b, buf_str(&piece));
            buf_addc(&b, '\n');
        }
    }
    fputs(buf_z(&b), stderr);
    buf_free(&b);
    buf_free(&piece);
}

static void after_text(const struct generate_opts *o, const struct session *s,
                       const struct gen_params *p, const struct answer *a)
{
    bool open_line = a->text.n && a->text.p[a->text.n - 1] != '\n';
    if (!o->json && open_line && isatty(STDOUT_FILENO)) {
        fputc('\n', stdout);
        fflush(stdout);
    }
    if (!o->json && p->sample.n_top >= 0)
        print_logprobs(a, s->tok);
    if (!o->stats)
        return;
    struct buf b = BUF_INIT;
    answer_stats(a, s, p->sample.seed, &b);
    fputs(buf_z(&b), stderr);
    buf_free(&b);
}

static int answer_prompt(const struct cli *c, const struct generate_opts *o, struct session *s,
                         struct str prompt, struct qn_err *err)
{
    struct gen_params p = {0};
    struct ids ids = {0};
    struct answer a = {0};
    struct format format = {0};
    struct out out = {.c = c};
    struct answer_sink sink = {.arg = &out, .progress = o->json || !isatty(STDOUT_FILENO)};
    if (!o->json)
        sink.write = write_out;
    enum qn_status st = prompt_ids(c, o, s, prompt, &ids, err);
    if (st == QN_OK)
        st = sample_opts_apply(c, &o->sample, &s->defaults, &p, err);
    if (st == QN_OK) {
        p.prompt = ids.v;
        p.n_prompt = (int32_t)ids.n;
        p.sample.n_top = cli_given(c, "logprobs") ? (int32_t)o->logprobs : -1;
        st = format_make(&o->format, s, o->raw, &format, err);
    }
    if (st == QN_OK) {
        p.grammar = format.gram;
        p.vocab = format.vocab;
        st = session_answer(s, &p, &sink, &a, err);
    }
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, err);
    if (st == QN_OK && o->json && !print_json(c, s, &p, &a))
        out.failed = true;
    if (st == QN_OK)
        after_text(o, s, &p, &a);
    if (out.failed)
        rc = CLI_FAILED;
    if (st == QN_OK && term_interrupted())
        rc = CLI_INTERRUPTED;
    answer_free(&a);
    format_free(&format);
    ids_free(&ids);
    return rc;
}

/* The message: TEXT or --prompt, standard input, or both with a blank line between. */
static enum qn_status read_prompt(const struct generate_opts *o, const char *given,
                                  struct buf *text, struct qn_err *err)
{
    if (given)
        buf_addz(text, given);
    if (!given || stdin_has_text()) {
        struct buf more = BUF_INIT;
        enum qn_status st = read_stdin(o->raw, &more, err);
        if (text->n && more.n)
            buf_addz(text, "\n\n");
        buf_add_str(text, buf_str(&more));
        buf_free(&more);
        QN_TRY(st);
    }
    if (text->n == 0)
        QN_FAIL(err, QN_BAD_INPUT, "generate", "the prompt is empty");
    return buf_ok(text, "prompt", err);
}

static int run_generate(const struct cli *c, void *opts)
{
    struct generate_opts *o = opts;
    draft_opts_settle(c, &o->draft);
    if (c->n_pos && o->prompt)
        return cli_usage(c, "--prompt and the argument %.60s: give one of them", c->pos[0]);
    if (o->raw && (o->system || o->kwargs))
        return cli_usage(c, "--raw: does not go with --%s, which needs the chat template",
                         o->system ? "system" : "chat-template-kwargs");
    const char *prompt = c->n_pos ? c->pos[0] : o->prompt;
    if (!prompt && isatty(STDIN_FILENO))
        return cli_usage(c, "no prompt: pass --prompt TEXT, or pipe the text in");
    term_catch_interrupt(true);
    struct qn_err err = {0};
    struct session s = {0};
    struct buf text = BUF_INIT;
    int rc;
    enum qn_status st = read_prompt(o, prompt, &text, &err);
    if (st == QN_OK)
        st = session_open(
            o->model,
            &(struct engine_args){.threads = o->threads, .ctx = o->ctx, .kv_quant = o->kv_quant},
            &o->draft, &s, &err);
    if (st == QN_OK && !term_interrupted())
        rc = answer_prompt(c, o, &s, buf_str(&text), &err);
    else
        rc = term_interrupted() ? CLI_INTERRUPTED : cli_fail(c, &err);
    session_close(&s);
    buf_free(&text);
    return rc;
}

const struct cli_verb verb_generate = {
    .name = "generate",
    .summary = "answer one prompt, from the command line or a pipe",
    .usage = "[options] [TEXT]",
    .about =
        "Sends one message to a model and prints its answer as it is made. The message is TEXT, "
        "--prompt, or standard input; text from a pipe or a file on standard input is added to "
        "TEXT or --prompt after a blank line (in a loop over a file's lines, say < /dev/null). It "
        "goes through the model's chat template unless --raw asks for plain continuation.\n\n"
        "Standard output carries the answer only. Ctrl-C stops the answer: what was made stays, "
        "and the exit status is 130.",
    .examples = "quern generate \"Why is the sky blue?\"\n"
                "quern generate --raw --temperature 0 --max-tokens 40 -p \"Once upon a time\"\n"
                "git diff | quern generate \"Summarise this diff.\"\n"
                "git diff | quern generate --system \"Write a commit message for this diff.\"\n"
                "quern generate --json --logprobs 3 -n 20 -p \"Name a colour.\"",
    .opts = generate_opts,
    .opts_size = sizeof(struct generate_opts),
    .pos_max = 1,
    .pos_name = "TEXT",
    .run = run_generate,
};
