/*
 * model_arg.c - see model_arg.h. Looks at names only; reading the folder is the engine's work.
 */
#include "cli/model_arg.h"

#include "base/file.h"
#include "cli/cli.h"

static bool is_folder_name(const char *arg)
{
    return strchr(arg, '/') || strcmp(arg, ".") == 0 || strcmp(arg, "..") == 0 || dir_exists(arg);
}

static enum qn_status not_fetched(const char *arg, const char *models, struct qn_err *err)
{
    char **names = NULL;
    size_t n = 0;
    struct cli_guess g = {0};
    if (dir_exists(models) && dir_list(models, &names, &n, NULL) == QN_OK)
        for (size_t i = 0; i < n; i++)
            cli_guess_offer(&g, arg, names[i]);
    enum qn_status st;
    if (g.best)
        st = err_set(err, QN_NOT_FOUND, "model",
                     "model %s: no folder of that name, and not among the fetched models; did you "
                     "mean %s?",
                     arg, g.best);
    else
        st = err_set(err, QN_NOT_FOUND, "model",
                     "model %s: no folder of that name, and not among the fetched models; try "
                     "`quern get %s`, or --model DIR",
                     arg, arg);
    names_free(names, n);
    return st;
}

enum qn_status model_arg_find(const char *arg, struct buf *path, struct qn_err *err)
{
    const char *name = arg ? arg : MODEL_DEFAULT;
    if (!*name)
        QN_FAIL(err, QN_BAD_INPUT, "model", "--model: the name is empty");
    if (arg && is_folder_name(arg)) {
        if (!dir_exists(arg))
            QN_FAIL(err, QN_NOT_FOUND, "model", "%s: no such folder", arg);
        buf_clear(path);
        buf_addz(path, arg);
        return buf_ok(path, "model path", err);
    }
    struct buf cache = BUF_INIT, models = BUF_INIT;
    enum qn_status st = cache_dir(&cache, err);
    if (st == QN_OK) {
        path_join(&models, buf_z(&cache), "models");
        path_join(path, buf_z(&models), name);
        st = buf_ok(path, "model path", err);
    }
    if (st == QN_OK && !dir_exists(buf_z(path)))
        st = arg ? not_fetched(arg, buf_z(&models), err)
                 : err_set(err, QN_NOT_FOUND, "model",
                           "no model: the default one (%s) is not here yet; run `quern get %s`, "
                           "or pass --model DIR",
                           name, name);
    buf_free(&models);
    buf_free(&cache);
    return st;
}
