/*
 * file.h - files: whole reads with a limit, read-only maps, atomic writes, paths.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <sys/types.h>

#include "buf.h"

/* Reads a whole file, at most `max` bytes (more is QN_BAD_INPUT naming the limit). */
enum qn_status file_read(const char *path, size_t max, struct buf *out, struct qn_err *err);

struct iovec;
enum file_end { FILE_DONE, FILE_ENDS, FILE_FAILS };
/* Fills v, which it changes, from offset off on, in as many calls as that takes. FILE_ENDS: the
 * file is shorter; FILE_FAILS: errno. fault: the point at which a test may let each call fail. */
enum file_end file_read_at(int fd, struct iovec *v, int n_v, off_t off, const char *fault);

/* A read-only private map of a whole regular file. An empty file maps to {NULL,0}. */
struct file_map {
    const uint8_t *p;
    size_t n;
};
enum qn_status file_map_open(const char *path, struct file_map *out, struct qn_err *err);
void file_map_close(struct file_map *m);
/* Tells the kernel that [off, off+n) will not be read again soon (drops it from our RSS). */
void file_map_drop(const struct file_map *m, size_t off, size_t n);

/* Writes via PATH.tmp.PID, fsync, rename; nothing half-written is left behind on failure. */
enum qn_status file_write_atomic(const char *path, struct str data, struct qn_err *err);
/* With parents; what exists is fine; new names are synced. */
enum qn_status dir_make(const char *path, struct qn_err *err);
enum qn_status dir_remove(const char *path, struct qn_err *err); /* recursively */
bool file_exists(const char *path);
bool dir_exists(const char *path);
/* Names (not paths) in a folder, sorted, "." and ".." left out. Free with names_free. */
enum qn_status dir_list(const char *path, char ***names, size_t *n, struct qn_err *err);
void names_free(char **names, size_t n);
void path_join(struct buf *out, const char *dir, const char *name); /* clears out first */
struct str path_base(const char *path); /* last component, trailing slashes ignored */
/* $XDG_CACHE_HOME/quern or ~/.cache/quern (QUERN_CACHE overrides). Not created. */
enum qn_status cache_dir(struct buf *out, struct qn_err *err);

#endif
