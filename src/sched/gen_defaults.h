/*
 * gen_defaults.h - the sampling a model folder asks for (generation_config.json), for every front
 * end alike: request, then flag, then this file, then temperature 0.7.
 */
#ifndef SCHED_GEN_DEFAULTS_H
#define SCHED_GEN_DEFAULTS_H

#include "base/json.h"
#include "sched/sample.h"

/* Overwrites the fields of *io that DIR/generation_config.json names; start from
 * sample_params_default(). A folder without the file changes nothing. A malformed file or a value
 * out of range is QN_BAD_INPUT. */
enum qn_status gen_defaults_load(const char *dir, struct sample_params *io, struct qn_err *err);
/* The same from a parsed object. "do_sample": false means greedy (temperature 0). */
enum qn_status gen_defaults_apply(const struct json *config, struct sample_params *io,
                                  struct qn_err *err);

#endif
