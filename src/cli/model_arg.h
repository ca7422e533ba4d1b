/*
 * model_arg.h - what --model names: a folder, or a model that `quern get` put in the cache folder.
 */
#ifndef CLI_MODEL_ARG_H
#define CLI_MODEL_ARG_H

#include "base/buf.h"

#define MODEL_DEFAULT "smollm2"

/* The folder for `arg` (NULL = the default model), cleared into path. A word with a slash, or that
 * names an existing folder, is a folder; any other is looked up in cache_dir()/models.
 * QN_NOT_FOUND says how to get the model, with a suggestion when a fetched one has a near name. */
enum qn_status model_arg_find(const char *arg, struct buf *path, struct qn_err *err);

#endif
