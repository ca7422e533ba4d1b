/*
 * inspect_files.h - the tensors of all model*.safetensors of a folder, from their headers.
 */
#ifndef CLI_INSPECT_FILES_H
#define CLI_INSPECT_FILES_H

#include "cli/inspect_census.h"

struct inspect_files {
    struct census_tensor *tensors; /* sorted by name; strings live until inspect_files_close */
    size_t n;
    size_t n_file;
    int64_t bytes; /* of the files */
    void *state;
};

enum qn_status inspect_files_open(const char *dir, struct inspect_files *f, struct qn_err *err);
void inspect_files_close(struct inspect_files *f); /* {0} is fine */

#endif
