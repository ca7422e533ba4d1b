/*
 * streamed.h - one streamed answer as it is received: the moment of every event, the text, the
 * counts the server states, and the first thing that breaks the protocol.
 *
 * No sockets and no clock: bytes come with the moment they were received, so that tests can say
 * when. Token counts come from the server's usage only; nothing is counted from text. Both chat and
 * completion streams of the OpenAI API are read.
 */
#ifndef BENCH_STREAMED_H
#define BENCH_STREAMED_H

#include "bench/sse_read.h"

/* Why an answer does not count. The order is that of fault_name's table. */
enum fault {
    FAULT_NONE,
    FAULT_CONNECT,      /* no connection */
    FAULT_STATUS,       /* an HTTP status other than 200 */
    FAULT_TYPE,         /* not text/event-stream */
    FAULT_FRAMING,      /* HTTP itself was malformed */
    FAULT_TRUNCATED,    /* the connection ended in the middle of an answer or event */
    FAULT_BAD_SSE,      /* a line that is no event field */
    FAULT_BAD_UTF8,     /* bytes that are no text */
    FAULT_BAD_JSON,     /* an event that is no JSON */
    FAULT_BAD_SHAPE,    /* JSON that is no chunk of an answer */
    FAULT_ERROR_EVENT,  /* the server reported an error inside the stream */
    FAULT_NO_OUTPUT,    /* nothing was said */
    FAULT_NO_FINISH,    /* no finish_reason */
    FAULT_NO_DONE,      /* no [DONE] */
    FAULT_AFTER_DONE,   /* data after [DONE] */
    FAULT_NO_USAGE,     /* no token counts */
    FAULT_BAD_USAGE,    /* token counts that are no counts */
    FAULT_WRONG_COUNTS, /* token counts that cannot be */
    FAULT_STALL,        /* silence for too long */
    FAULT_TIMEOUT,      /* not done within its budget */
    FAULT_TOO_LONG,     /* more bytes than we keep */
    FAULT_CANCELLED,    /* stopped by us */
    FAULT_KINDS
};
const char *fault_name(enum fault f); /* "no_usage": what stands in the record */

struct reply {
    /* what was asked, set by reply_init */
    bool chat;
    int64_t max_tokens;
    int64_t start_ns; /* clock_ns when the request began */
    /* what came; moments are clock_ns, 0 = never */
    int64_t headers_ns, first_byte_ns, first_event_ns, end_ns, last_byte_ns;
    int64_t *output_ns; /* [n_output] events with text, reasoning or a piece of a tool call */
    int n_output, cap_output;
    int n_event, n_tool_event;
    int http_status;
    char finish[24];
    bool done_seen;
    bool has_usage;
    int64_t prompt_tokens, cached_tokens, completion_tokens; /* cached -1 = not stated */
    struct buf text, reasoning, tools; /* tools: names and arguments as they came */
    enum fault fault;
    char why[240];
    struct sse_read sse;
    int64_t now_ns; /* of the bytes that are being read */
};

void reply_init(struct reply *r, bool chat, int64_t max_tokens, int64_t start_ns);
void reply_free(struct reply *r);
/* Body bytes, received at now_ns. False at the first fault: the rest need not be read. */
bool reply_feed(struct reply *r, struct str bytes, int64_t now_ns);
/* The answer is over; judges it as a whole unless a fault is known. */
void reply_end(struct reply *r, int64_t now_ns);
/* Notes the first fault; later ones are dropped. Returns false. */
bool reply_fault(struct reply *r, enum fault f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- figures of a whole answer; NAN where they do not exist ---- */
double reply_ttft_ms(const struct reply *r);     /* start to the first output event */
double reply_wall_ms(const struct reply *r);     /* start to the end of the answer */
double reply_decode_tps(const struct reply *r);  /* (tokens-1) over first to last output event */
double reply_e2e_tps(const struct reply *r);     /* tokens over the whole answer */
double reply_tpot_ms(const struct reply *r);     /* (last output - first output)/(tokens-1) */
double reply_prefill_tps(const struct reply *r); /* prompt tokens over ttft */

#endif
