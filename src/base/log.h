/*
 * log.h - one line per event to one sink, set once at start. Below the CLI nothing prints; it logs.
 * Without a sink every call is a no-op. Thread-safe: one write per line.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* fd < 0 turns logging off. json: one JSON object per line instead of text. */
void log_setup(int fd, enum log_level max, bool json);
bool log_on(enum log_level level);
void log_line(enum log_level level, const char *module, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
