/* fault_wrap.c - see fault_wrap.h. Any thread. */
#include "fault_wrap.h"

#include <errno.h>
#include <execinfo.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fault.h"

_Thread_local bool fault_exempt;

static void *last[16];
static int n_last;

static bool strikes(const char *name, int error)
{
    if (fault_exempt || !fault_point(name))
        return false;
    n_last = backtrace(last, 16);
    errno = error;
    return true;
}

void fault_where(void)
{
    backtrace_symbols_fd(last, n_last, STDOUT_FILENO);
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
void *__real_mmap(void *p, size_t n, int prot, int flags, int fd, off_t off);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
void *__wrap_mmap(void *p, size_t n, int prot, int flags, int fd, off_t off);

void *__wrap_malloc(size_t n)
{
    return strikes("malloc", ENOMEM) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return strikes("malloc", ENOMEM) ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return strikes("malloc", ENOMEM) ? NULL : __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return strikes("malloc", ENOMEM) ? NULL : __real_aligned_alloc(align, n);
}

char *__wrap_strdup(const char *s)
{
    return strikes("malloc", ENOMEM) ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
    return strikes("malloc", ENOMEM) ? NULL : __real_strndup(s, n);
}

void *__wrap_mmap(void *p, size_t n, int prot, int flags, int fd, off_t off)
{
    return strikes("malloc", ENOMEM) ? MAP_FAILED : __real_mmap(p, n, prot, flags, fd, off);
}

#if !SANITIZED
/* These stand before the C library's for all callers, libmicrohttpd included. */
__attribute__((visibility("default"))) ssize_t send(int fd, const void *p, size_t n, int flags)
{
    if (strikes("net", ECONNRESET))
        return -1;
    return syscall(SYS_sendto, fd, p, n, flags, NULL, 0);
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    if (strikes("net", ECONNRESET))
        return -1;
    return syscall(SYS_sendmsg, fd, m, flags);
}

__attribute__((visibility("default"))) ssize_t recv(int fd, void *p, size_t n, int flags)
{
    if (strikes("net", ECONNRESET))
        return -1;
    return syscall(SYS_recvfrom, fd, p, n, flags, NULL, NULL);
}
#endif
