/*
 * disk_io.h - writing as both kinds of files do it, with the points at which tests let it fail.
 * Any thread.
 */
#ifndef STORE_DISK_IO_H
#define STORE_DISK_IO_H

#include <stdbool.h>
#include <sys/types.h>

/* Whether the point fails now; errno is the error that it stands for. */
bool disk_refuses(const char *point, int error);

struct disk_points { /* of a write: ENOSPC, EIO, fewer bytes than asked for */
    const char *full, *io, *less;
};
/* pwrite. */
ssize_t disk_write_some(int fd, const void *p, size_t n, off_t off, const struct disk_points *at);
/* What was renamed in the folder is durable. False: errno. One that cannot be synced is fine. */
bool disk_sync_folder(const char *folder, const char *point);

#endif
