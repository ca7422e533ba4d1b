/*
 * config.h - reads the file of --config for opt.c.
 */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "base/buf.h"

struct config {
    const char *path;
    /* One line's option; an error gets path and line put before it. */
    enum qn_status (*set)(void *arg, const char *name, const char *value, struct qn_err *err);
    void *arg;
};

/* Values given to set point into *text (malloc'd, also on failure; NULL when the file could not be
 * read), which has to live as long as they do. */
enum qn_status config_read(struct config *cf, char **text, struct qn_err *err);

#endif
