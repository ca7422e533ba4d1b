/*
 * cmd_tokenize.c - `quern tokenize`: what a model's tokenizer makes of a text. Loads the tokenizer
 * only.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/model_arg.h"
#include "cli/verbs.h"
#include "tok/tok.h"

#define TEXT_BYTES_MAX ((size_t)64 << 20)

struct tokenize_opts {
    const char *model;
    bool ids, json, special, plain;
};

static const struct cli_opt tokenize_opts[] = {
    CLI_OPT_MODEL(struct tokenize_opts),
    {.name = "ids",
     .type = CLI_FLAG,
     .help = "Print the ids only, on one line.",
     .off = CLI_AT_FLAG(struct tokenize_opts, ids)},
    {.name = "json",
     .type = CLI_FLAG,
     .help = "Print a JSON array of {id, token}.",
     .off = CLI_AT_FLAG(struct tokenize_opts, json)},
    {.name = "add-special",
     .type = CLI_FLAG,
     .help = "Add the BOS and EOS tokens that the tokenizer's post-processor puts around a text.",
     .off = CLI_AT_FLAG(struct tokenize_opts, special)},
    {.name = "no-parse-special",
     .type = CLI_FLAG,
     .help = "Read special tokens written in the text as plain text.",
     .off = CLI_AT_FLAG(struct tokenize_opts, plain)},
    {.type = CLI_END},
};

static enum qn_status read_stdin(struct buf *out, struct qn_err *err)
{
    char block[1 << 16];
    out->limit = TEXT_BYTES_MAX;
    for (;;) {
        ssize_t n = read(STDIN_FILENO, block, sizeof block);
        if (n < 0)
            return err_errno(err, "tokenize", "standard input");
        if (n == 0)
            return QN_OK;
        buf_add(out, block, (size_t)n);
        QN_TRY(buf_ok(out, "text on standard input", err));
    }
}

static void print_tokens(const struct tokenize_opts *o, const struct tok *t, const struct ids *ids,
                         struct buf *out)
{
    struct buf piece = BUF_INIT;
    if (o->json)
        buf_addc(out, '[');
    for (size_t i = 0; i < ids->n; i++) {
        buf_clear(&piece);
        tok_bytes(t, ids->v[i], &piece);
        if (o->ids) {
            buf_addf(out, "%s%d", i ? " " : "", ids->v[i]);
        } else if (o->json) {
            buf_addf(out, "%s\n{\"id\":%d,\"token\":", i ? "," : "", ids->v[i]);
            json_w_str(out, buf_str(&piece));
            buf_addc(out, '}');
        } else {
            buf_addf(out, "%7d  ", ids->v[i]);
            json_w_str(out, buf_str(&piece));
            buf_addc(out, '\n');
        }
    }
    if (o->json)
        buf_addz(out, "\n]");
    if (o->json || o->ids)
        buf_addc(out, '\n');
    buf_free(&piece);
}

static enum qn_status tokenize(const struct tokenize_opts *o, struct str text, struct buf *out,
                               struct qn_err *err)
{
    struct buf dir = BUF_INIT, cache = BUF_INIT;
    struct tok *t = NULL;
    struct ids ids = {0};
    unsigned flags = (o->special ? TOK_ADD_SPECIAL : 0u) | (o->plain ? 0u : TOK_PARSE_SPECIAL);
    bool cached = cache_dir(&cache, NULL) == QN_OK;
    enum qn_status st = model_arg_find(o->model, &dir, err);
    if (st == QN_OK)
        st = tok_open(buf_z(&dir), cached ? buf_z(&cache) : NULL, &t, err);
    if (st == QN_OK)
        st = tok_encode(t, text, flags, &ids, err);
    if (st == QN_OK) {
        print_tokens(o, t, &ids, out);
        st = buf_ok(out, "list of tokens", err);
    }
    ids_free(&ids);
    tok_free(t);
    buf_free(&cache);
    buf_free(&dir);
    return st;
}

static int run_tokenize(const struct cli *c, void *opts)
{
    const struct tokenize_opts *o = opts;
    struct qn_err err = {0};
    struct buf text = BUF_INIT, out = BUF_INIT;
    if (o->ids && o->json)
        return cli_usage(c, "--ids and --json: give one of them");
    enum qn_status st = QN_OK;
    if (c->n_pos)
        buf_addz(&text, c->pos[0]);
    else
        st = read_stdin(&text, &err);
    if (st == QN_OK)
        st = tokenize(o, buf_str(&text), &out, &err);
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, &err);
    if (st == QN_OK && !cli_write(c, buf_str(&out)))
        rc = CLI_FAILED;
    buf_free(&text);
    buf_free(&out);
    return rc;
}

const struct cli_verb verb_tokenize = {
    .name = "tokenize",
    .summary = "show the tokens of a text",
    .usage = "[options] [TEXT]",
    .about = "Prints id and text of each token of TEXT, or of standard input, one per line. Texts "
             "are quoted as JSON strings so that blanks and line breaks can be seen.",
    .examples = "quern tokenize \"Hello, world\"\n"
                "quern tokenize --ids < README.md | wc -w",
    .opts = tokenize_opts,
    .opts_size = sizeof(struct tokenize_opts),
    .pos_max = 1,
    .pos_name = "TEXT",
    .run = run_tokenize,
};
