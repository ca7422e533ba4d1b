/*
 * log.c - see log.h. The sink is set once at start, before other threads; a line is formatted on
 * the caller's stack or heap and leaves in one write(2), so lines of several threads do not mix.
 * Control characters are escaped: text from a request cannot forge a second line.
 */
#include "log.h"

#include "buf.h"
#include "json.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 8192

static struct {
    atomic_int fd_plus1; /* 0 = off, which is what a zeroed global means */
    atomic_int max;
    atomic_bool json;
} sink;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void log_setup(int fd, enum log_level max, bool json)
{
    atomic_store(&sink.max, (int)max);
    atomic_store(&sink.json, json);
    atomic_store(&sink.fd_plus1, fd < 0 ? 0 : fd + 1);
}

bool log_on(enum log_level level)
{
    return atomic_load_explicit(&sink.fd_plus1, memory_order_relaxed) != 0 &&
           (int)level <= atomic_load_explicit(&sink.max, memory_order_relaxed);
}

/* 2026-11-30T12:34:56.789Z */
static void add_time(struct buf *out)
{
    struct timeval tv;
    struct tm tm;
    gettimeofday(&tv, NULL);
    gmtime_r(&tv.tv_sec, &tm);
    char day[32];
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    buf_addf(out, "%s.%03dZ", day, (int)(tv.tv_usec / 1000));
}

static void add_escaped(struct buf *out, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c == '\n')
            buf_addz(out, "\\n");
        else if (c < 0x20 || c == 0x7F)
            buf_addf(out, "\\x%02x", c);
        else
            buf_addc(out, (char)c);
    }
}

static void write_line(int fd, const struct buf *line)
{
    /* A full pipe or a gone terminal must not stop the program: what does not fit is lost. */
    ssize_t n = write(fd, line->p, line->n);
    (void)n;
}

void log_line(enum log_level level, const char *module, const char *fmt, ...)
{
    int fd = atomic_load(&sink.fd_plus1) - 1;
    if (!log_on(level) || fd < 0)
        return;
    char text[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    struct str msg = {text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1};
    struct buf line = BUF_INIT;
    if (atomic_load(&sink.json)) {
        buf_addz(&line, "{\"time\":\"");
        add_time(&line);
        buf_addf(&line, "\",\"level\":\"%s\",\"module\":", level_names[level]);
        json_w_strz(&line, module);
        buf_addz(&line, ",\"msg\":");
        json_w_str(&line, msg);
        buf_addc(&line, '}');
    } else {
        add_time(&line);
        buf_addf(&line, " %-5s %s: ", level_names[level], module);
        add_escaped(&line, msg);
    }
    buf_addc(&line, '\n');
    if (!line.failed)
        write_line(fd, &line);
    buf_free(&line);
}
