/*
 * cmd_chat.c - `quern chat`: a conversation in the terminal.
 *
 * Each turn sends the whole conversation through the template. Ctrl-C stops the answer being made
 * (what was made stays in the conversation) or clears the line being typed; Ctrl-D ends. In a pipe
 * there are no prompts and no colours: one line in, one answer out.
 */
#include <ctype.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "cli/chat_log.h"
#include "cli/line.h"
#include "cli/format_opts.h"
#include "cli/sample_opts.h"
#include "cli/session.h"
#include "cli/term.h"
#include "cli/verbs.h"

struct chat_opts {
    const char *model, *system, *kwargs;
    const char *kv_quant;
    int64_t ctx, threads;
    bool no_history;
    struct sample_opts sample;
    struct format_opts format;
    struct draft_opts draft;
};

static const struct cli_opt chat_opts[] = {
    {.type = CLI_GROUP, .help = "Model and conversation"},
    CLI_OPT_MODEL(struct chat_opts),
    {.name = "system",
     .short_name = 's',
     .type = CLI_STR,
     .arg = "TEXT",
     .help = "System message that opens the conversation.",
     .off = CLI_AT_STR(struct chat_opts, system)},
    {.name = "chat-template-kwargs",
     .type = CLI_STR,
     .arg = "JSON",
     .help = "Variables for the chat template, e.g. '{\"enable_thinking\": false}'.",
     .off = CLI_AT_STR(struct chat_opts, kwargs)},
    {.name = "no-history",
     .type = CLI_FLAG,
     .help = "Neither read nor write the file that keeps typed lines between runs.",
     .off = CLI_AT_FLAG(struct chat_opts, no_history)},
    CLI_OPT_CTX(struct chat_opts),
    CLI_OPT_KV_QUANT(struct chat_opts),
    CLI_OPT_THREADS(struct chat_opts),
    CLI_OPTS_SAMPLING(struct chat_opts),
    CLI_OPTS_FORMAT(struct chat_opts),
    CLI_OPTS_DRAFT(struct chat_opts),
    {.type = CLI_END},
};

struct chat {
    struct cli *c; /* a copy of the command line: /set marks options as given */
    struct chat_opts *o;
    struct session s;
    struct format format; /* of every answer */
    struct chat_log log;
    struct line_editor *line;
    struct buf stats;   /* figures of the last answer */
    struct arena *kept; /* texts given to /set */
    bool tty;           /* a person is at the terminal: prompts and hints are shown */
    bool color;
    bool out_failed;
    bool done;
};

/* A remark of the program, not of the model: dim, and only for a person. */
static void remark(const struct chat *ch, const char *text)
{
    if (!ch->tty)
        return;
    printf("%s%s%s\n", ch->color ? "\033[2m" : "", text, ch->color ? "\033[0m" : "");
    fflush(stdout);
}

static void complain(const struct chat *ch, const struct qn_err *err)
{
    cli_say(ch->c, "%s", err->msg);
}

/* ---- answering ------------------------------------------------------------------------------ */

static bool write_out(void *arg, struct str text)
{
    struct chat *ch = arg;
    if (!ch->out_failed)
        ch->out_failed = !cli_write(ch->c, text);
    return !ch->out_failed;
}

static enum qn_status answer_ids(struct chat *ch, struct ids *ids, struct qn_err *err)
{
    struct buf request = BUF_INIT;
    enum qn_status st = chat_log_json(&ch->log, ch->o->kwargs, &request, err);
    if (st == QN_OK)
        st = session_chat_ids(&ch->s, buf_str(&request), ids, err);
    buf_free(&request);
    return st;
}

static void after_answer(struct chat *ch, const struct answer *a)
{
    if (a->text.n == 0 || a->text.p[a->text.n - 1] != '\n')
        write_out(ch, STR_LIT("\n"));
    if (a->finish == GEN_CANCELLED)
        remark(ch, "[stopped]");
    else if (a->finish == GEN_LENGTH)
        remark(ch, "[cut at the length limit]");
    if (ch->tty)
        write_out(ch, STR_LIT("\n"));
}

/* Answers the conversation, which ends with a user turn; the answer becomes the next turn. */
static enum qn_status answer_log(struct chat *ch, struct qn_err *err)
{
    struct gen_params p = {.sample.n_top = -1};
    struct ids ids = {0};
    struct answer a = {0};
    struct answer_sink sink = {.write = write_out, .arg = ch};
    enum qn_status st = answer_ids(ch, &ids, err);
    if (st == QN_OK)
        st = sample_opts_apply(ch->c, &ch->o->sample, &ch->s.defaults, &p, err);
    if (st == QN_OK) {
        p.prompt = ids.v;
        p.n_prompt = (int32_t)ids.n;
        p.grammar = ch->format.gram;
        p.vocab = ch->format.vocab;
        st = session_answer(&ch->s, &p, &sink, &a, err);
    }
    if (st == QN_OK) {
        after_answer(ch, &a);
        buf_clear(&ch->stats);
        answer_stats(&a, &ch->s, p.sample.seed, &ch->stats);
        if (a.text.n || a.finish != GEN_CANCELLED)
            st = chat_log_add(&ch->log, true, buf_str(&a.text), err);
        else
            chat_log_pop(&ch->log); /* stopped before a word: as if never asked */
    } else if (a.text.n) {
        write_out(ch, STR_LIT("\n"));
    }
    term_interrupt_clear();
    answer_free(&a);
    ids_free(&ids);
    return st;
}

/* A turn that fails leaves the conversation as it was before the question. */
static void answer_or_take_back(struct chat *ch)
{
    struct qn_err err = {0};
    if (answer_log(ch, &err) == QN_OK)
        return;
    complain(ch, &err);
    chat_log_undo(&ch->log);
}

/* ---- commands ------------------------------------------------------------------------------- */

static void do_help(struct chat *ch, const char *arg);

static void do_system(struct chat *ch, const char *arg)
{
    if (!*arg) {
        printf("%s\n", ch->log.system.n ? buf_z(&ch->log.system) : "(no system message)");
        return;
    }
    buf_clear(&ch->log.system);
    if (strcmp(arg, "none") != 0)
        buf_addz(&ch->log.system, arg);
    remark(ch, ch->log.system.n ? "[system message set]" : "[system message removed]");
}

static void do_reset(struct chat *ch, const char *arg)
{
    chat_log_clear(&ch->log);
    remark(ch, "[conversation cleared]");
}

static void do_undo(struct chat *ch, const char *arg)
{
    remark(ch,
           chat_log_undo(&ch->log) ? "[last question and answer removed]" : "[nothing to undo]");
}

static void do_retry(struct chat *ch, const char *arg)
{
    while (ch->log.n && !chat_log_ends_with_user(&ch->log))
        chat_log_pop(&ch->log);
    if (!ch->log.n) {
        remark(ch, "[nothing to retry]");
        return;
    }
    answer_or_take_back(ch);
}

static void do_save(struct chat *ch, const char *arg)
{
    struct qn_err err = {0};
    struct buf b = BUF_INIT;
    if (!*arg) {
        cli_say(ch->c, "/save: needs a file name");
        return;
    }
    enum qn_status st = chat_log_json(&ch->log, NULL, &b, &err);
    buf_addc(&b, '\n');
    if (st == QN_OK)
        st = file_write_atomic(arg, buf_str(&b), &err);
    if (st != QN_OK)
        complain(ch, &err);
    else
        remark(ch, "[saved]");
    buf_free(&b);
}

/* /set NAME VALUE: any option of the sampling group. */
static bool can_set(const char *name)
{
    bool sampling = false;
    for (const struct cli_opt *o = chat_opts; o->type != CLI_END; o++) {
        if (o->type == CLI_GROUP)
            sampling = strcmp(o->help, "Sampling") == 0;
        else if (sampling && strcmp(o->name, name) == 0)
            return true;
    }
    return false;
}

static void set_names(struct buf *b)
{
    bool sampling = false;
    for (const struct cli_opt *o = chat_opts; o->type != CLI_END; o++) {
        if (o->type == CLI_GROUP)
            sampling = strcmp(o->help, "Sampling") == 0;
        else if (sampling)
            buf_addf(b, "%s%s", b->n ? ", " : "", o->name);
    }
}

static void do_set(struct chat *ch, const char *arg)
{
    char name[40];
    size_t n = strcspn(arg, " \t");
    snprintf(name, sizeof name, "%.*s", (int)(n < 39 ? n : 39), arg);
    const char *value = arg + n + strspn(arg + n, " \t");
    struct qn_err err = {0};
    if (*value && can_set(name)) {
        struct str kept = arena_str(ch->kept, str_of(value));
        if (!kept.p)
            cli_say(ch->c, "/set %s: out of memory", name);
        else if (cli_set(ch->c, name, kept.p, ch->o, &err) != QN_OK)
            complain(ch, &err);
        else
            remark(ch, "[set]");
        return;
    }
    struct buf b = BUF_INIT;
    set_names(&b);
    cli_say(ch->c, "/set NAME VALUE: NAME is one of %s", buf_z(&b));
    buf_free(&b);
}

static void do_stats(struct chat *ch, const char *arg)
{
    fputs(ch->stats.n ? buf_z(&ch->stats) : "(no answer yet)\n", stdout);
}

static void do_exit(struct chat *ch, const char *arg)
{
    ch->done = true;
}

static const struct command {
    const char *name, *arg, *help;
    void (*run)(struct chat *ch, const char *arg);
} commands[] = {
    {"help", "", "this list", do_help},
    {"system", "[TEXT|none]", "show, set or remove the system message", do_system},
    {"reset", "", "forget the conversation, keep the system message", do_reset},
    {"undo", "", "take the last question and its answer back", do_undo},
    {"retry", "", "answer the last question again", do_retry},
    {"save", "FILE", "write the conversation as JSON", do_save},
    {"set", "NAME VALUE", "change a sampling option, e.g. /set temperature 0.2", do_set},
    {"stats", "", "speeds and token counts of the last answer", do_stats},
    {"exit", "", "leave (so does Ctrl-D)", do_exit},
};
enum { N_COMMAND = sizeof commands / sizeof commands[0] };

static void do_help(struct chat *ch, const char *arg)
{
    for (int i = 0; i < N_COMMAND; i++)
        printf("/%-8s %-13s %s\n", commands[i].name, commands[i].arg, commands[i].help);
    puts("A backslash at the end of a line continues the message; three double quotes open and "
         "close\none of many lines. Ctrl-C stops an answer. A message that begins with a slash: "
         "//like this.");
}

static void run_command(struct chat *ch, const char *line)
{
    char name[24];
    size_t n = strcspn(line, " \t");
    snprintf(name, sizeof name, "%.*s", (int)(n < 23 ? n : 23), line);
    const char *arg = line + n + strspn(line + n, " \t");
    struct cli_guess g = {0};
    for (int i = 0; i < N_COMMAND; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            commands[i].run(ch, arg);
            fflush(stdout);
            return;
        }
        cli_guess_offer(&g, name, commands[i].name);
    }
    if (g.best)
        cli_say(ch->c, "unknown command /%s; did you mean /%s?", name, g.best);
    else
        cli_say(ch->c, "unknown command /%s; /help lists them", name);
}

/* ---- the loop ------------------------------------------------------------------------------- */

static bool is_blank(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!isspace((unsigned char)s.p[i]))
            return false;
    return true;
}

static void take_message(struct chat *ch, struct buf *msg)
{
    struct str text = buf_str(msg);
    if (is_blank(text))
        return;
    line_remember(ch->line, buf_z(msg));
    if (text.p[0] == '/' && !(text.n > 1 && text.p[1] == '/')) {
        run_command(ch, text.p + 1);
        return;
    }
    if (text.p[0] == '/') {
        text.p++;
        text.n--;
    }
    struct qn_err err = {0};
    if (chat_log_add(&ch->log, false, text, &err) != QN_OK)
        complain(ch, &err);
    else
        answer_or_take_back(ch);
}

static int loop(struct chat *ch)
{
    /* \001 brackets what takes no columns, for the line editor */
    const char *prompt = ch->color ? "\001\033[1;32m\001> \001\033[0m\001" : "> ";
    struct buf msg = BUF_INIT;
    int rc = CLI_OK;
    while (!ch->done && !ch->out_failed) {
        enum line_result r = line_message(ch->line, prompt, "... ", &msg);
        if (r == LINE_OK) {
            take_message(ch, &msg);
        } else if (r == LINE_INTERRUPTED) {
            term_interrupt_clear();
            if (!ch->tty) {
                rc = CLI_INTERRUPTED;
                break;
            }
        } else {
            if (r == LINE_FAILED)
                rc = CLI_FAILED;
            if (ch->tty)
                fputc('\n', stdout);
            break;
        }
    }
    buf_free(&msg);
    return ch->out_failed ? CLI_FAILED : rc;
}

/* The history file; out stays empty (no history) when there is no place for it. */
static void history_path(struct buf *out)
{
    struct buf dir = BUF_INIT;
    if (cache_dir(&dir, NULL) == QN_OK && dir_make(buf_z(&dir), NULL) == QN_OK)
        path_join(out, buf_z(&dir), "history");
    buf_free(&dir);
}

static void welcome(const struct chat *ch)
{
    struct buf b = BUF_INIT;
    buf_addf(&b, "%s: %d tokens of context, %d threads. /help for commands, Ctrl-D to leave.",
             ch->s.info->name, ch->s.info->n_ctx, ch->s.info->n_thread);
    remark(ch, buf_z(&b));
    buf_free(&b);
}

static enum qn_status check_kwargs(const struct chat_opts *o, struct qn_err *err)
{
    if (!o->kwargs)
        return QN_OK;
    return json_check(str_of(o->kwargs), "--chat-template-kwargs", JSON_DEPTH_MAX, err);
}

static enum qn_status start(struct chat *ch, struct qn_err *err)
{
    struct buf history = BUF_INIT;
    QN_TRY(check_kwargs(ch->o, err));
    const struct engine_args args = {
        .threads = ch->o->threads, .ctx = ch->o->ctx, .kv_quant = ch->o->kv_quant};
    QN_TRY(session_open(ch->o->model, &args, &ch->o->draft, &ch->s, err));
    if (!ch->s.chat)
        QN_FAIL(err, QN_UNSUPPORTED, "chat",
                "model %s has no chat template, so it cannot hold a conversation; use `quern "
                "generate --raw`",
                ch->s.info->name);
    QN_TRY(format_make(&ch->o->format, &ch->s, false, &ch->format, err));
    if (ch->o->system)
        buf_addz(&ch->log.system, ch->o->system);
    if (!ch->o->no_history)
        history_path(&history);
    ch->line = line_open(history.n ? buf_z(&history) : NULL);
    ch->kept = arena_create((size_t)1 << 20);
    buf_free(&history);
    if (!ch->line || !ch->kept)
        QN_FAIL(err, QN_NO_MEMORY, "chat", "out of memory for the line editor");
    return QN_OK;
}

static int run_chat(const struct cli *c, void *opts)
{
    struct cli copy = *c;
    struct chat ch = {.c = &copy, .o = opts};
    struct qn_err err = {0};
    draft_opts_settle(c, &ch.o->draft);
    ch.tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    ch.color = ch.tty && term_can_color(STDOUT_FILENO);
    int rc;
    if (start(&ch, &err) == QN_OK) {
        term_catch_interrupt(false);
        welcome(&ch);
        rc = loop(&ch);
    } else {
        rc = cli_fail(c, &err);
    }
    line_close(ch.line);
    format_free(&ch.format);
    arena_free(ch.kept);
    session_close(&ch.s);
    chat_log_free(&ch.log);
    buf_free(&ch.stats);
    return rc;
}

const struct cli_verb verb_chat = {
    .name = "chat",
    .summary = "talk with a model in the terminal",
    .usage = "[options]",
    .about =
        "Holds a conversation: type a message, read the answer as it is made. Lines can be "
        "edited, and typed lines are kept between runs. A backslash at the end of a line "
        "continues the message; three double quotes open and close a message of many lines.\n\n"
        "Ctrl-C stops the answer, not the program, and clears the line at the prompt; Ctrl-D "
        "leaves. /help lists the commands: /system /reset /undo /retry /save /set /stats /exit.",
    .examples = "quern chat\n"
                "quern chat --model ./my-model --system \"Answer briefly.\" --temperature 0.3",
    .opts = chat_opts,
    .opts_size = sizeof(struct chat_opts),
    .pos_max = 0,
    .pos_name = "argument",
    .run = run_chat,
};
