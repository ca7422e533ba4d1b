/*
 * arm.c - see arm.h: the built-in arms, the text format, placeholders, and the check whether an arm
 * can run. Programs asked in that check get a minute.
 */
#include "bench/arm.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "bench/child.h"

enum { FILE_MAX = 64 << 10, ASK_S = 60 };

#define QUERN_COMMAND                                                                              \
    "command = {quern} serve --port {port} --ctx {ctx} --threads {threads} --no-access-log "
#define QUERN_HELP "help = {quern} serve --help\n"

/* Where mlx has no GPU it multiplies quantized weights one by one: 50 ns each, so that a token of a
 * small model takes seconds. That is found out by a small product, in processor time. */
#define MLX_PROBE                                                                                  \
    "probe = {python} -c \"import sys, time, mlx.core as mx, mlx_lm.server; "                      \
    "w = mx.quantize(mx.ones((1024, 1024), mx.float16)); x = mx.ones((1, 1024), mx.float16); "     \
    "mx.eval(w, x); t = time.process_time(); mx.eval(mx.quantized_matmul(x, *w)); "                \
    "t = (time.process_time() - t) * 1e9 / 2**20; slow = t > 10 and 'cpu' in "                     \
    "str(mx.default_device()); sys.exit('mlx computes on the CPU here and takes %.0f ns a "        \
    "weight: no answer would end in time' % t if slow else 0)\"\n"

static const struct {
    const char *name, *text;
} builtin[] = {
    {"quern", "name = quern\n"
              "about = quern serve as it comes\n" QUERN_COMMAND "--batch {users} {model}\n"},
    {"quern-serial", "name = quern-serial\n"
                     "about = one answer after another\n" QUERN_COMMAND "--batch 1 {model}\n"},
    {"quern-kv", "name = quern-kv\n"
                 "about = keys and values in 8 bits\n" QUERN_COMMAND
                 "--batch {users} --kv-quant 8 {model}\n" QUERN_HELP "needs-flag = --kv-quant\n"},
    {"quern-spec",
     "name = quern-spec\n"
     "about = speculation from the text itself\n" QUERN_COMMAND
     "--batch {users} --draft-kind ngram {model}\n" QUERN_HELP "needs-flag = --draft-kind\n"},
    {"quern-isolated", "name = quern-isolated\n"
                       "about = the model in a process of its own\n" QUERN_COMMAND
                       "--batch {users} --isolate {model}\n" QUERN_HELP "needs-flag = --isolate\n"},
    {"quern-disk",
     "name = quern-disk\n"
     "about = prompts kept on disk, for after a restart\n" QUERN_COMMAND
     "--batch {users} --ssd-cache {cache} {model}\n" QUERN_HELP "needs-flag = --ssd-cache\n"},
    {"llama.cpp", "name = llama.cpp\n"
                  "about = llama-server on the GGUF file of the same weights\n"
                  "command = {llama-server} -m {gguf} --host 127.0.0.1 --port {port} -c {ctx-all} "
                  "-np {users} -t {threads} -tb {threads}\n"
                  "health = /health\n"
                  "needs-file = {gguf}\n"
                  "probe = {llama-server} --version\n"},
    {"mlx-lm",
     "name = mlx-lm\n"
     "about = mlx_lm.server on the same folder\n"
     "command = {python} -m mlx_lm.server --model {model} --host 127.0.0.1 --port {port}\n"
     "health = /health\n"
     "model = default_model\n" MLX_PROBE},
};
enum { N_BUILTIN = sizeof builtin / sizeof builtin[0] };

const char *const *arm_names(void)
{
    static const char *const names[N_BUILTIN + 1] = {"quern",      "quern-serial",   "quern-kv",
                                                     "quern-spec", "quern-isolated", "quern-disk",
                                                     "llama.cpp",  "mlx-lm",         NULL};
    return names;
}

const char *arm_builtin_text(const char *name)
{
    for (int i = 0; i < N_BUILTIN; i++)
        if (strcmp(builtin[i].name, name) == 0)
            return builtin[i].text;
    return NULL;
}

/* ---- the text ------------------------------------------------------------------------------- */

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    char *end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1]))
        *--end = 0;
    return s;
}

static bool add_word(const char **list, int *n, int max, const char *value)
{
    if (*n == max)
        return false;
    list[(*n)++] = value;
    return true;
}

static bool set_field(struct arm *a, const char *key, char *value, bool *room)
{
    const struct {
        const char *key;
        const char **to;
    } fields[] = {{"name", &a->name},       {"about", &a->about},   {"command", &a->command},
                  {"url", &a->url},         {"health", &a->health}, {"model", &a->model},
                  {"key-env", &a->key_env}, {"probe", &a->probe},   {"help", &a->help}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(fields[i].key, key) == 0) {
            *fields[i].to = value;
            return true;
        }
    }
    if (strcmp(key, "needs-flag") == 0) {
        *room = add_word(a->needs_flag, &a->n_flag, ARM_NEEDS_MAX, value);
    } else if (strcmp(key, "needs-file") == 0) {
        *room = add_word(a->needs_file, &a->n_file, ARM_NEEDS_MAX, value);
    } else if (strcmp(key, "env") == 0) {
        *room = a->n_env < ARM_ENV_MAX && strchr(value, '=');
        if (*room)
            a->env[a->n_env++] = value;
    } else if (strcmp(key, "thinking") == 0) {
        a->thinking_field = strcmp(value, "on") == 0;
    } else {
        return false;
    }
    return true;
}

static enum qn_status take_line(struct arm *a, const char *what, int no, char *line,
                                struct qn_err *err)
{
    char *eq = strchr(line, '=');
    bool room = true;
    if (!eq)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s:%d: expected NAME = VALUE, found %.60s", what, no,
                line);
    *eq = 0;
    char *key = trim(line), *value = trim(eq + 1);
    if (!set_field(a, key, value, &room))
        QN_FAIL(err, QN_BAD_INPUT, "bench",
                "%s:%d: unknown name %.40s; expected name, about, command, url, health, model, "
                "key-env, env, probe, help, needs-flag, needs-file or thinking",
                what, no, key);
    if (!room)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s:%d: too many lines of %s, or no NAME=VALUE in it",
                what, no, key);
    return QN_OK;
}

enum qn_status arm_parse(const char *what, struct str text, struct arm *out, struct qn_err *err)
{
    *out = (struct arm){.health = "/v1/models", .about = ""};
    out->text = text.n < FILE_MAX ? strndup(text.p, text.n) : NULL;
    if (!out->text)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: longer than %d bytes", what, FILE_MAX);
    char *rest = out->text, *line;
    for (int no = 1; (line = strsep(&rest, "\n")) != NULL; no++) {
        line = trim(line);
        if (*line && *line != '#')
            QN_TRY(take_line(out, what, no, line, err));
    }
    if (!out->name || !*out->name)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: a line \"name = ...\" is missing", what);
    if (!out->command == !out->url)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s: exactly one of command and url is needed", what);
    return QN_OK;
}

static void url_text(const char *url, struct buf *out)
{
    size_t n = strlen(url);
    while (n && url[n - 1] == '/')
        n--;
    if (n > 3 && strncmp(url + n - 3, "/v1", 3) == 0)
        n -= 3;
    const char *host = strstr(url, "://") + 3;
    buf_addf(out, "name = %.*s\nabout = a server that runs already\nurl = %.*s\n",
             (int)(n - (size_t)(host - url)), host, (int)n, url);
}

static enum qn_status arm_text(const char *word, struct buf *out, struct qn_err *err)
{
    const char *text = arm_builtin_text(word);
    if (text) {
        buf_addz(out, text);
        return QN_OK;
    }
    if (strncmp(word, "http://", 7) == 0 || strncmp(word, "https://", 8) == 0) {
        url_text(word, out);
        return QN_OK;
    }
    if (!file_exists(word))
        QN_FAIL(err, QN_NOT_FOUND, "bench",
                "%.120s is neither a built-in arm (quern, quern-serial, quern-kv, quern-spec, "
                "quern-isolated, quern-disk, llama.cpp, mlx-lm, all), nor a URL, nor a file",
                word);
    return file_read(word, FILE_MAX, out, err);
}

/* "again=quern": how many bytes the name before the = has; 0 when there is none. */
static size_t own_name(const char *word)
{
    size_t n = strcspn(word, "=/:");
    return word[n] == '=' && n < 60 && !file_exists(word) ? n : 0;
}

enum qn_status arm_open(const char *word, struct arm *out, struct qn_err *err)
{
    *out = (struct arm){0};
    struct buf b = BUF_INIT;
    size_t n = own_name(word);
    enum qn_status st = arm_text(n ? word + n + 1 : word, &b, err);
    if (st == QN_OK && n)
        buf_addf(&b, "\nname = %.*s\n", (int)n, word);
    if (st == QN_OK)
        st = arm_parse(word, buf_str(&b), out, err);
    buf_free(&b);
    return st;
}

void arm_free(struct arm *a)
{
    free(a->text);
    *a = (struct arm){0};
}

/* ---- placeholders --------------------------------------------------------------------------- */

/* The value of a placeholder into out; false when it is not one. *missing: the option that would
 * give it. */
static bool value_of(struct str name, const struct arm_values *v, struct buf *out,
                     const char **missing)
{
    const struct {
        const char *name, *text, *option;
    } texts[] = {
        {"quern", v->quern, "--quern"},    {"model", v->model, "--model"},
        {"gguf", v->gguf, "--gguf"},       {"llama-server", v->llama_server, "--llama-server"},
        {"python", v->python, "--python"}, {"cache", v->cache, "--out"}};
    const struct {
        const char *name;
        long long value;
    } numbers[] = {{"threads", v->threads},
                   {"ctx", v->ctx},
                   {"users", v->users},
                   {"ctx-all", (long long)v->ctx * v->users},
                   {"port", v->port}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (!str_eqz(name, texts[i].name))
            continue;
        if (!texts[i].text || !*texts[i].text)
            *missing = texts[i].option;
        else
            buf_addz(out, texts[i].text);
        return true;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!str_eqz(name, numbers[i].name))
            continue;
        buf_addf(out, "%lld", numbers[i].value);
        return true;
    }
    return false;
}

/* Fills one word; braces that are no placeholder are an error, {{ is a brace. */
static enum qn_status fill_word(const struct arm *a, struct str word, const struct arm_values *v,
                                struct buf *out, struct qn_err *err)
{
    buf_clear(out);
    for (size_t i = 0; i < word.n; i++) {
        const char *missing = NULL;
        if (word.p[i] != '{' || (i + 1 < word.n && word.p[i + 1] == '{')) {
            i += word.p[i] == '{';
            buf_addc(out, word.p[i]);
            continue;
        }
        size_t end = str_find(word, STR_LIT("}"), i);
        if (end == (size_t)-1 ||
            !value_of((struct str){word.p + i + 1, end - i - 1}, v, out, &missing))
            QN_FAIL(err, QN_BAD_INPUT, "bench", "arm %s: unknown placeholder in %.*s", a->name,
                    (int)(word.n < 80 ? word.n : 80), word.p);
        if (missing)
            QN_FAIL(err, QN_UNSUPPORTED, "bench", "%s is not given", missing);
        i = end;
    }
    return buf_ok(out, "a command", err);
}

/* The next word of a command, quotes taken off; false at its end. */
static bool next_word(const char **s, struct buf *word)
{
    const char *p = *s;
    buf_clear(word);
    while (isspace((unsigned char)*p))
        p++;
    if (!*p)
        return false;
    for (char quote = 0; *p && (quote || !isspace((unsigned char)*p)); p++) {
        if (quote ? *p == quote : *p == '"' || *p == '\'')
            quote = quote ? 0 : *p;
        else
            buf_addc(word, *p);
    }
    *s = p;
    return true;
}

enum qn_status arm_argv(const struct arm *a, const char *command, const struct arm_values *v,
                        char ***out, struct qn_err *err)
{
    struct buf word = BUF_INIT, filled = BUF_INIT;
    char **argv = calloc(ARM_WORDS_MAX + 1, sizeof *argv);
    enum qn_status st = QN_OK;
    *out = argv;
    for (int n = 0; argv && st == QN_OK && next_word(&command, &word); n++) {
        if (n == ARM_WORDS_MAX) {
            st = err_set(err, QN_BAD_INPUT, "bench", "arm %s: a command of more than %d words",
                         a->name, ARM_WORDS_MAX);
            break;
        }
        st = fill_word(a, buf_str(&word), v, &filled, err);
        argv[n] = st == QN_OK ? strdup(buf_z(&filled)) : NULL;
    }
    buf_free(&word);
    buf_free(&filled);
    if (!argv)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for a command");
    if (st == QN_OK && !argv[0])
        st = err_set(err, QN_BAD_INPUT, "bench", "arm %s: an empty command", a->name);
    if (st == QN_OK)
        return QN_OK;
    arm_argv_free(argv);
    *out = NULL;
    return st;
}

void arm_argv_free(char **argv)
{
    for (char **p = argv; p && *p; p++)
        free(*p);
    free(argv);
}

/* ---- can it run? ---------------------------------------------------------------------------- */

/* Of what a command printed: the end of a traceback is what says why. At most 200 bytes. */
static struct str last_line(struct str s)
{
    while (s.n && isspace((unsigned char)s.p[s.n - 1]))
        s.n--;
    for (size_t i = s.n; i > 0; i--)
        if (s.p[i - 1] == '\n' || s.n - i == 200)
            return (struct str){s.p + i, s.n - i};
    return s;
}

/* Runs a command to its end and reads what it printed. */
static enum qn_status ask(const struct arm *a, const char *command, const struct arm_values *v,
                          struct buf *said, struct qn_err *err)
{
    char **argv = NULL, log[] = "/tmp/quern-ask-XXXXXX";
    struct child c = {0};
    QN_TRY(arm_argv(a, command, v, &argv, err));
    int fd = mkstemp(log);
    if (fd >= 0)
        close(fd);
    enum qn_status st = child_start(&c, argv, a->env, log, err);
    int64_t until = clock_us() + ASK_S * 1000000LL;
    while (st == QN_OK && child_alive(&c) && clock_us() < until)
        usleep(5000);
    bool late = st == QN_OK && !c.ended;
    if (st == QN_OK)
        child_kill(&c);
    if (st == QN_OK)
        st = file_read(log, 1 << 20, said, err);
    unlink(log);
    if (st == QN_OK && (late || c.status != 0)) {
        struct str why = last_line(buf_str(said));
        st = err_set(err, QN_UNSUPPORTED, "bench", "%s %s%s" STR_FMT, path_base(argv[0]).p,
                     late ? "does not answer" : "fails", why.n ? ": " : "", STR_ARG(why));
    }
    arm_argv_free(argv);
    return st;
}

static enum qn_status check_files(const struct arm *a, const struct arm_values *v,
                                  struct qn_err *err)
{
    struct buf path = BUF_INIT;
    enum qn_status st = QN_OK;
    for (int i = 0; i < a->n_file && st == QN_OK; i++) {
        st = fill_word(a, str_of(a->needs_file[i]), v, &path, err);
        if (st == QN_OK && !file_exists(buf_z(&path)) && !dir_exists(buf_z(&path)))
            st = err_set(err, QN_UNSUPPORTED, "bench", "%s does not exist", buf_z(&path));
    }
    buf_free(&path);
    return st;
}

enum qn_status arm_check(const struct arm *a, const struct arm_values *v, struct qn_err *err)
{
    struct buf said = BUF_INIT;
    char **argv = NULL;
    if (a->url)
        return QN_OK;
    enum qn_status st = check_files(a, v, err);
    if (st == QN_OK)
        st = arm_argv(a, a->command, v, &argv, err);
    arm_argv_free(argv);
    if (st == QN_OK && a->probe)
        st = ask(a, a->probe, v, &said, err);
    if (st == QN_OK && a->help)
        st = ask(a, a->help, v, &said, err);
    for (int i = 0; st == QN_OK && i < a->n_flag; i++)
        if (!strstr(buf_z(&said), a->needs_flag[i]))
            st = err_set(err, QN_UNSUPPORTED, "bench", "this build has no %s", a->needs_flag[i]);
    buf_free(&said);
    return st;
}
