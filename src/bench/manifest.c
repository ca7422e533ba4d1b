/* manifest.c - see manifest.h. */
#include "bench/manifest.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "bench/source_id.h"

static int64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

int64_t manifest_model_bytes(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    int64_t sum = 0;
    struct buf path = BUF_INIT;
    if (!dir || dir_list(dir, &names, &n, NULL) != QN_OK)
        return 0;
    for (size_t i = 0; i < n; i++) {
        path_join(&path, dir, names[i]);
        int64_t bytes = file_bytes(buf_z(&path));
        if (bytes > 0 && str_ends(str_of(names[i]), STR_LIT(".safetensors")))
            sum += bytes;
    }
    names_free(names, n);
    buf_free(&path);
    return sum;
}

static enum qn_status write_one(struct jw *w, const char *path, struct qn_err *err)
{
    char digest[65];
    QN_TRY(sha256_file(path, digest, err));
    jw_obj(w);
    jw_kstr(w, "name", path_base(path));
    jw_ki64(w, "bytes", file_bytes(path));
    jw_kstrz(w, "sha256", digest);
    jw_obj_end(w);
    return QN_OK;
}

static enum qn_status write_model(struct jw *w, const char *dir, struct qn_err *err)
{
    char **names = NULL;
    size_t n = 0;
    struct buf path = BUF_INIT;
    QN_TRY(dir_list(dir, &names, &n, err));
    enum qn_status st = QN_OK;
    jw_key(w, "model");
    jw_obj(w);
    jw_kstr(w, "name", path_base(dir));
    jw_key(w, "files");
    jw_arr(w);
    for (size_t i = 0; i < n && st == QN_OK; i++) {
        path_join(&path, dir, names[i]);
        if (file_bytes(buf_z(&path)) >= 0)
            st = write_one(w, buf_z(&path), err);
    }
    jw_arr_end(w);
    jw_obj_end(w);
    names_free(names, n);
    buf_free(&path);
    return st;
}

enum qn_status manifest_files(const char *dir, const char *gguf, struct buf *out,
                              struct qn_err *err)
{
    struct jw w;
    char digest[65];
    jw_init(&w, out);
    jw_obj(&w);
    QN_TRY(sha256_file("/proc/self/exe", digest, err));
    jw_kstrz(&w, "harness_sha256", digest);
    jw_key(&w, "source");
    jw_obj(&w);
    jw_kstrz(&w, "commit", *source_id.commit ? source_id.commit : NULL);
    jw_kbool(&w, "changed", source_id.dirty);
    jw_kstrz(&w, "sha256", source_id.sha256);
    jw_obj_end(&w);
    if (dir && dir_exists(dir))
        QN_TRY(write_model(&w, dir, err));
    if (gguf && file_exists(gguf)) {
        jw_key(&w, "gguf");
        QN_TRY(write_one(&w, gguf, err));
    }
    jw_obj_end(&w);
    return buf_ok(out, "the manifest", err);
}

/* The file that execvp would take; false when there is none. */
static bool find_program(const char *name, struct buf *path)
{
    const char *dirs = getenv("PATH");
    buf_clear(path);
    if (strchr(name, '/')) {
        buf_addz(path, name);
        return file_exists(name);
    }
    while (dirs && *dirs) {
        size_t n = strcspn(dirs, ":");
        buf_clear(path);
        buf_addf(path, "%.*s/%s", (int)n, dirs, name);
        if (access(buf_z(path), X_OK) == 0)
            return true;
        dirs += n + (dirs[n] == ':');
    }
    return false;
}

enum qn_status manifest_command(struct jw *w, const struct arm *a, const struct arm_values *v,
                                struct qn_err *err)
{
    char **argv = NULL, digest[65];
    struct buf path = BUF_INIT;
    struct arm_values values = *v;
    values.cache = "cache";
    QN_TRY(arm_argv(a, a->command, &values, &argv, err));
    jw_key(w, "command");
    jw_arr(w);
    for (char **p = argv; *p; p++)
        jw_str(w, (*p)[0] == '/' ? path_base(*p) : str_of(*p));
    jw_arr_end(w);
    if (find_program(argv[0], &path) && sha256_file(buf_z(&path), digest, NULL) == QN_OK)
        jw_kstrz(w, "program_sha256", digest);
    arm_argv_free(argv);
    buf_free(&path);
    return QN_OK;
}
