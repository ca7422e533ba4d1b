/*
 * harmony.h - gpt-oss answers: messages in channels, each with a header. analysis is reasoning,
 * final and commentary are content, a message to functions.NAME is a call. Its host is outparse.c.
 */
#ifndef API_HARMONY_H
#define API_HARMONY_H

#include "api/toolcall/call.h"

enum harmony_state { HARMONY_HEADER, HARMONY_FINAL, HARMONY_ANALYSIS, HARMONY_CALL, HARMONY_SKIP };

struct harmony {
    struct call_host *host;
    enum harmony_state state;
    bool any[2]; /* something went to content; to reasoning */
    bool gap[2]; /* a further message of the same kind has begun */
    bool opened; /* arguments have begun */
    struct buf header;
    struct jsonfix fix;
    size_t sent;
};

void harmony_start(struct harmony *y, struct call_host *host);
void harmony_free(struct harmony *y);
void harmony_byte(struct harmony *y, char c);
/* A special token with its frame. */
void harmony_special(struct harmony *y, struct str framed);
void harmony_end(struct harmony *y, bool cut);
bool harmony_thinks(const struct harmony *y);

/* outparse.c */
void harmony_host_text(struct call_host *h, bool final, struct str s);
bool harmony_host_tools(const struct call_host *h);

#endif
