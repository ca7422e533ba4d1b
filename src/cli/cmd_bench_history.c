/*
 * cmd_bench_history.c - `quern bench history`, `show` and `compare`: runs that were kept, how a
 * figure went over them, one run's report again, two runs side by side. Measures nothing.
 */
#include <stdlib.h>

#include "base/file.h"
#include "bench/history.h"
#include "bench/report.h"
#include "cli/history_file.h"
#include "cli/verbs.h"

enum { RECORD_MAX = 1 << 30 };

struct history_opts {
    const char *file, *metric, *arm, *workload, *arms, *out;
    struct cli_strs add;
    int64_t last;
    bool md, html, table;
};

enum qn_status history_default(const char *given, struct history **out, struct qn_err *err)
{
    struct buf path = BUF_INIT, dir = BUF_INIT;
    enum qn_status st = QN_OK;
    if (given && *given) {
        buf_addz(&path, given);
    } else {
        st = cache_dir(&dir, err);
        if (st == QN_OK)
            st = dir_make(buf_z(&dir), err);
        path_join(&path, buf_z(&dir), "bench.sqlite");
    }
    if (st == QN_OK)
        st = history_open(buf_z(&path), out, err);
    buf_free(&path);
    buf_free(&dir);
    return st;
}

static enum qn_status add_files(struct history *h, const struct cli_strs *files, struct buf *out,
                                struct qn_err *err)
{
    for (int i = 0; i < files->n; i++) {
        struct buf text = BUF_INIT;
        int64_t id = 0;
        enum qn_status st = file_read(files->v[i], RECORD_MAX, &text, err);
        if (st == QN_OK)
            st = history_add(h, buf_str(&text), &id, err);
        buf_free(&text);
        if (st != QN_OK) {
            err_prefix(err, "%s", files->v[i]);
            return st;
        }
        buf_addf(out, "%s is run %lld\n", files->v[i], (long long)id);
    }
    return QN_OK;
}

static int finish(const struct cli *c, enum qn_status st, struct buf *out, const struct qn_err *err)
{
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, err);
    if (st == QN_OK && !cli_write(c, buf_str(out)))
        rc = CLI_FAILED;
    buf_free(out);
    return rc;
}

/* The page of charts, into the file that was named. */
static enum qn_status write_page(struct history *h, const struct history_opts *o, bool arm_named,
                                 struct buf *said, struct qn_err *err)
{
    struct buf page = BUF_INIT;
    const struct history_figure f = {
        .arm = arm_named ? o->arm : NULL, .metric = o->metric, .workload = o->workload};
    enum qn_status st = history_page(h, &f, &page, err);
    if (st == QN_OK)
        st = file_write_atomic(o->out, buf_str(&page), err);
    if (st == QN_OK)
        buf_addf(said, "%s\n", o->out);
    buf_free(&page);
    return st;
}

static int run_history(const struct cli *c, void *opts)
{
    const struct history_opts *o = opts;
    struct history *h = NULL;
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    enum qn_status st = history_default(o->file, &h, &err);
    if (st == QN_OK)
        st = add_files(h, &o->add, &out, &err);
    if (st == QN_OK && o->out)
        st = write_page(h, o, cli_flagged(c, "arm"), &out, &err);
    else if (st == QN_OK && o->metric)
        st = history_trend(
            h,
            &(struct history_figure){.arm = o->arm, .metric = o->metric, .workload = o->workload},
            &out, &err);
    else if (st == QN_OK && !o->add.n)
        st = history_list(h, (int)o->last, &out, &err);
    history_close(h);
    return finish(c, st, &out, &err);
}

/* A number of the history, or a record's file. */
static enum qn_status open_run(const char *word, const char *file, struct json **out,
                               struct qn_err *err)
{
    char *end;
    long long id = strtoll(word, &end, 10);
    struct history *h = NULL;
    struct buf text = BUF_INIT;
    enum qn_status st;
    if (!*end && id > 0) {
        st = history_default(file, &h, err);
        if (st == QN_OK)
            st = history_get(h, id, out, err);
        history_close(h);
        return st;
    }
    st = file_read(word, RECORD_MAX, &text, err);
    if (st == QN_OK)
        st = json_parse(buf_str(&text), word, JSON_DEPTH_MAX, out, err);
    buf_free(&text);
    return st;
}

static int run_show(const struct cli *c, void *opts)
{
    const struct history_opts *o = opts;
    struct json *doc = NULL;
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    if (o->md + o->html + o->table > 1)
        return cli_usage(c, "--md, --html and --table exclude each other");
    enum qn_status st = open_run(c->pos[0], o->file, &doc, &err);
    if (st == QN_OK && !str_eqz(json_str(json_get(doc, "format")), "quern-bench"))
        st =
            err_set(&err, QN_BAD_INPUT, "bench", "%s is no record of quern bench serve", c->pos[0]);
    if (st == QN_OK)
        (o->html ? report_html : o->table ? report_table : report_markdown)(doc, &out);
    if (st == QN_OK)
        st = buf_ok(&out, "the report", &err);
    json_free(doc);
    return finish(c, st, &out, &err);
}

static int run_compare(const struct cli *c, void *opts)
{
    const struct history_opts *o = opts;
    struct json *a = NULL, *b = NULL;
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    char *arm_a = o->arms ? strdup(o->arms) : NULL, *arm_b = arm_a ? strchr(arm_a, ',') : NULL;
    if (arm_b)
        *arm_b++ = 0;
    if ((o->arms && !arm_b) || (c->n_pos == 1 && !o->arms)) {
        free(arm_a);
        return cli_usage(c,
                         o->arms ? "--arms %.60s: expected two names, as in quern,llama.cpp"
                                 : "one run: name two of its arms with --arms, or another run",
                         o->arms);
    }
    enum qn_status st = open_run(c->pos[0], o->file, &a, &err);
    if (st == QN_OK && c->n_pos > 1)
        st = open_run(c->pos[1], o->file, &b, &err);
    if (st == QN_OK)
        st = compare_records(
            &(struct comparison){.a = a, .b = b ? b : a, .arm_a = arm_a, .arm_b = arm_b}, &out,
            &err);
    json_free(a);
    json_free(b);
    free(arm_a);
    return finish(c, st, &out, &err);
}

#define OPT_HISTORY                                                                                \
    {                                                                                              \
        .name = "history", .type = CLI_STR, .arg = "FILE", .env = "QUERN_BENCH_HISTORY",           \
        .def_text = "bench.sqlite in the cache folder", .help = "The SQLite file of kept runs.",   \
        .off = CLI_AT_STR(struct history_opts, file)                                               \
    }

static const struct cli_opt history_rows[] = {
    OPT_HISTORY,
    {.name = "last",
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 100000,
     .def = "20",
     .help = "How many runs to list.",
     .off = CLI_AT_INT(struct history_opts, last)},
    {.name = "metric",
     .type = CLI_STR,
     .arg = "NAME",
     .help = "Show how this figure went, e.g. decode_tps (docs/bench-serve.md has all names).",
     .off = CLI_AT_STR(struct history_opts, metric)},
    {.name = "arm",
     .type = CLI_STR,
     .arg = "NAME",
     .def = "quern",
     .help = "Whose figure.",
     .off = CLI_AT_STR(struct history_opts, arm)},
    {.name = "workload",
     .type = CLI_STR,
     .arg = "NAME",
     .help = "Only this workload's.",
     .off = CLI_AT_STR(struct history_opts, workload)},
    {.name = "out",
     .short_name = 'o',
     .type = CLI_STR,
     .arg = "FILE.html",
     .help = "Write one HTML file instead: a chart of every headline figure, or of --metric, over "
             "the runs, with their noise; of all arms unless --arm names one.",
     .off = CLI_AT_STR(struct history_opts, out)},
    {.name = "add",
     .type = CLI_STRS,
     .arg = "FILE",
     .help = "Add the record of a run made elsewhere.",
     .off = CLI_AT_STRS(struct history_opts, add)},
    {.type = CLI_END},
};
static const struct cli_opt compare_rows[] = {
    OPT_HISTORY,
    {.name = "arms",
     .type = CLI_STR,
     .arg = "A,B",
     .help = "Arm A of the first run against arm B of the second, or of the same run.",
     .off = CLI_AT_STR(struct history_opts, arms)},
    {.type = CLI_END},
};

const struct cli_verb verb_bench_history = {
    .name = "bench history",
    .summary = "list measured runs, or one figure over them",
    .usage = "[options]",
    .about =
        "Lists the runs that `quern bench serve` has kept. With --metric: that figure run by run, "
        "the change against the run before of the same model and machine, and whether it is "
        "larger than what both scattered. Diagnostic runs are listed but not compared.",
    .examples = "quern bench history\n"
                "quern bench history --metric decode_tps\n"
                "quern bench history --out history.html\n"
                "quern bench history --add laptop.json",
    .opts = history_rows,
    .opts_size = sizeof(struct history_opts),
    .pos_name = "argument",
    .run = run_history,
};

static const struct cli_opt show_rows[] = {
    OPT_HISTORY,
    {.name = "md",
     .type = CLI_FLAG,
     .help = "The whole report as Markdown; so also without an option.",
     .off = CLI_AT_FLAG(struct history_opts, md)},
    {.name = "html",
     .type = CLI_FLAG,
     .help = "The whole report as one HTML file.",
     .off = CLI_AT_FLAG(struct history_opts, html)},
    {.name = "table",
     .type = CLI_FLAG,
     .help = "The few figures that a README shows, as a table of Markdown.",
     .off = CLI_AT_FLAG(struct history_opts, table)},
    {.type = CLI_END},
};

const struct cli_verb verb_bench_show = {
    .name = "bench show",
    .summary = "the report of a measured run, made again from its record",
    .usage = "[options] RUN",
    .about =
        "RUN is the JSON file of a run, or a number from `quern bench history` (which keeps no "
        "single requests: memory over time and distributions are missing then). Prints.",
    .examples = "quern bench show run.json --md > run.md\n"
                "quern bench show run.json --html > run.html\n"
                "quern bench show run.json --table",
    .opts = show_rows,
    .opts_size = sizeof(struct history_opts),
    .pos_min = 1,
    .pos_max = 1,
    .pos_name = "RUN",
    .run = run_show,
};

const struct cli_verb verb_bench_compare = {
    .name = "bench compare",
    .summary = "two measured runs side by side",
    .usage = "[options] RUN [RUN]",
    .about =
        "RUN is a number from `quern bench history` or the JSON file of a run. Says first what "
        "makes the two hard to compare, then every figure that both have, and for each difference "
        "whether it is more than noise (docs/bench-serve.md says how that is judged).",
    .examples = "quern bench compare 3 7\n"
                "quern bench compare before.json after.json\n"
                "quern bench compare run.json --arms quern,quern-spec",
    .opts = compare_rows,
    .opts_size = sizeof(struct history_opts),
    .pos_min = 1,
    .pos_max = 2,
    .pos_name = "RUN",
    .run = run_compare,
};
