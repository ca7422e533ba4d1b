/* disk_io.c - see disk_io.h. */
#include "store/disk_io.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fault.h"

bool disk_refuses(const char *point, int error)
{
    bool hit = fault_point(point);
    if (hit)
        errno = error;
    return hit;
}

ssize_t disk_write_some(int fd, const void *p, size_t n, off_t off, const struct disk_points *at)
{
    if (disk_refuses(at->full, ENOSPC) || disk_refuses(at->io, EIO))
        return -1;
    if (fault_point(at->less) && n > 1)
        n /= 2;
    return pwrite(fd, p, n, off);
}

bool disk_sync_folder(const char *folder, const char *point)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool bad = (fd < 0 || disk_refuses(point, EIO) || fsync(fd) != 0) && errno != EINVAL;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return !bad;
}
