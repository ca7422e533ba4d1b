/*
 * manifest.h - what exactly was measured: hashes of model files and programs, and the commands.
 */
#ifndef BENCH_MANIFEST_H
#define BENCH_MANIFEST_H

#include "base/json.h"
#include "bench/arm.h"

/* Bytes of the weight files in a model folder; 0 when there is none. */
int64_t manifest_model_bytes(const char *dir);
/* {"harness_sha256":..,"source":{"commit","changed","sha256"},"model":{"name":..,"files":[{"name",
 * "bytes","sha256"}]},"gguf":{...}}. Names without folders: the record may be published. NULL
 * arguments are left out; commit is null when the program was not built in a checkout. */
enum qn_status manifest_files(const char *dir, const char *gguf, struct buf *out,
                              struct qn_err *err);
/* Members "command" (words, paths cut to their last component) and "program_sha256". */
enum qn_status manifest_command(struct jw *w, const struct arm *a, const struct arm_values *v,
                                struct qn_err *err);

#endif
