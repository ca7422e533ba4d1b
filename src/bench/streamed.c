/*
 * streamed.c - see streamed.h. Every event is parsed when it is received; one answer holds at most
 * OUTPUT_MAX output events and TEXT_MAX bytes of text.
 */
#include "bench/streamed.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/utf8.h"

enum { OUTPUT_MAX = 1 << 20, TEXT_MAX = 16 << 20 };

const char *fault_name(enum fault f)
{
    static const char *const names[FAULT_KINDS] = {
        "none",      "connect",  "http_status", "content_type", "bad_framing", "truncated",
        "bad_sse",   "bad_utf8", "bad_json",    "bad_shape",    "error_event", "no_output",
        "no_finish", "no_done",  "after_done",  "no_usage",     "bad_usage",   "wrong_counts",
        "stall",     "timeout",  "too_long",    "cancelled"};
    return names[f];
}

bool reply_fault(struct reply *r, enum fault f, const char *fmt, ...)
{
    if (r->fault != FAULT_NONE)
        return false;
    r->fault = f;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->why, sizeof r->why, fmt, ap);
    va_end(ap);
    return false;
}

/* ---- one event ------------------------------------------------------------------------------ */

static void add_output(struct reply *r)
{
    if (r->n_output == r->cap_output) {
        int cap = r->cap_output ? 2 * r->cap_output : 256;
        int64_t *v = cap <= OUTPUT_MAX ? realloc(r->output_ns, (size_t)cap * sizeof *v) : NULL;
        if (!v) {
            reply_fault(r, FAULT_TOO_LONG, "more than %d output events", r->n_output);
            return;
        }
        r->output_ns = v;
        r->cap_output = cap;
    }
    r->output_ns[r->n_output++] = r->now_ns;
}

static void add_text(struct reply *r, struct buf *to, struct str s)
{
    buf_add_str(to, s);
    if (to->failed)
        reply_fault(r, FAULT_TOO_LONG, "more than %d bytes of text", TEXT_MAX);
}

/* A count that must be there: a whole number from 0. */
static bool count(struct reply *r, const struct json *usage, const char *key, int64_t *out)
{
    const struct json *v = json_get(usage, key);
    if (json_type(v) == JSON_INT && json_i64(v, out) && *out >= 0)
        return true;
    struct buf text = BUF_INIT;
    json_w_value(&text, v);
    reply_fault(r, FAULT_BAD_USAGE, "usage.%s is %.40s; expected a whole number from 0", key,
                v ? buf_z(&text) : "absent");
    buf_free(&text);
    return false;
}

static void take_usage(struct reply *r, const struct json *doc, const struct json *usage)
{
    if (json_type(usage) != JSON_OBJ) {
        reply_fault(r, FAULT_BAD_USAGE, "usage is of type %s", json_type_name(usage));
        return;
    }
    int64_t total, cached;
    if (!count(r, usage, "prompt_tokens", &r->prompt_tokens) ||
        !count(r, usage, "completion_tokens", &r->completion_tokens))
        return;
    r->has_usage = true;
    if (json_has(usage, "total_tokens") && json_i64(json_get(usage, "total_tokens"), &total) &&
        total != r->prompt_tokens + r->completion_tokens)
        reply_fault(r, FAULT_WRONG_COUNTS,
                    "usage: %lld prompt and %lld completion tokens make %lld",
                    (long long)r->prompt_tokens, (long long)r->completion_tokens, (long long)total);
    const struct json *v = json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens");
    if (!v)
        v = json_get(json_get(doc, "timings"), "cache_n");
    if (v && json_i64(v, &cached))
        r->cached_tokens = cached;
}

static bool take_piece(struct reply *r, const struct json *obj, const char *key, struct buf *to)
{
    struct str s = json_str(json_get(obj, key));
    if (s.n)
        add_text(r, to, s);
    return s.n > 0;
}

static bool take_tools(struct reply *r, const struct json *calls)
{
    bool any = false;
    for (size_t i = 0; i < json_len(calls); i++) {
        const struct json *f = json_get(json_at(calls, i), "function");
        struct str name = json_str(json_get(f, "name")), args = json_str(json_get(f, "arguments"));
        add_text(r, &r->tools, name);
        if (name.n)
            buf_addc(&r->tools, ' ');
        add_text(r, &r->tools, args);
        any |= name.n || args.n;
    }
    r->n_tool_event += any;
    return any;
}

static void take_choice(struct reply *r, const struct json *choice)
{
    bool any;
    if (r->chat) {
        const struct json *delta = json_get(choice, "delta");
        if (json_type(delta) != JSON_OBJ) {
            reply_fault(r, FAULT_BAD_SHAPE, "a choice without a delta");
            return;
        }
        any = take_piece(r, delta, "content", &r->text);
        if (!take_piece(r, delta, "reasoning_content", &r->reasoning))
            any |= take_piece(r, delta, "reasoning", &r->reasoning);
        else
            any = true;
        any |= take_tools(r, json_get(delta, "tool_calls"));
    } else {
        any = take_piece(r, choice, "text", &r->text);
    }
    if (any)
        add_output(r);
    struct str finish = json_str(json_get(choice, "finish_reason"));
    if (finish.n)
        snprintf(r->finish, sizeof r->finish, "%.*s", (int)(finish.n < 23 ? finish.n : 23),
                 finish.p);
}

static void take_error(struct reply *r, const struct json *e)
{
    struct str m = json_str(json_type(e) == JSON_OBJ ? json_get(e, "message") : e);
    reply_fault(r, FAULT_ERROR_EVENT, "the server says: %.*s", (int)(m.n < 180 ? m.n : 180),
                m.n ? m.p : "(no message)");
}

static void take_document(struct reply *r, const struct json *doc)
{
    const struct json *choices = json_get(doc, "choices");
    if (json_has(doc, "error")) {
        take_error(r, json_get(doc, "error"));
        return;
    }
    if (json_has(doc, "usage"))
        take_usage(r, doc, json_get(doc, "usage"));
    if (json_type(choices) != JSON_ARR) {
        if (!json_has(doc, "usage"))
            reply_fault(r, FAULT_BAD_SHAPE, "an event without choices");
        return;
    }
    if (json_len(choices))
        take_choice(r, json_at(choices, 0));
}

static void on_data(void *arg, struct str data)
{
    struct reply *r = arg;
    struct json *doc = NULL;
    struct qn_err err = {0};
    if (r->fault != FAULT_NONE)
        return;
    if (!r->n_event++)
        r->first_event_ns = r->now_ns;
    if (r->done_seen)
        reply_fault(r, FAULT_AFTER_DONE, "an event after [DONE]");
    else if (str_eqz(data, "[DONE]"))
        r->done_seen = true;
    else if (!utf8_valid(data))
        reply_fault(r, FAULT_BAD_UTF8, "event %d is not UTF-8 at byte %zu", r->n_event,
                    utf8_valid_prefix(data));
    else if (json_parse(data, "event", JSON_DEPTH_MAX, &doc, &err) != QN_OK)
        reply_fault(r, FAULT_BAD_JSON, "event %d: %.180s", r->n_event, err.msg);
    else if (json_type(doc) != JSON_OBJ)
        reply_fault(r, FAULT_BAD_SHAPE, "event %d is of type %s", r->n_event, json_type_name(doc));
    else
        take_document(r, doc);
    json_free(doc);
}

/* ---- the whole ------------------------------------------------------------------------------ */

void reply_init(struct reply *r, bool chat, int64_t max_tokens, int64_t start_ns)
{
    *r = (struct reply){
        .chat = chat, .max_tokens = max_tokens, .start_ns = start_ns, .cached_tokens = -1};
    r->text.limit = r->reasoning.limit = r->tools.limit = TEXT_MAX;
    sse_read_init(&r->sse, on_data, r);
}

void reply_free(struct reply *r)
{
    sse_read_free(&r->sse);
    buf_free(&r->text);
    buf_free(&r->reasoning);
    buf_free(&r->tools);
    free(r->output_ns);
    r->output_ns = NULL;
}

bool reply_feed(struct reply *r, struct str bytes, int64_t now_ns)
{
    if (!r->first_byte_ns)
        r->first_byte_ns = now_ns;
    r->now_ns = r->last_byte_ns = now_ns;
    r->sse.arg = r; /* the struct may have moved since reply_init */
    if (!sse_read_feed(&r->sse, bytes)) {
        if (r->sse.state == SSE_TOO_LONG)
            reply_fault(r, FAULT_TOO_LONG, "an event of more than %d bytes", SSE_EVENT_MAX);
        else
            reply_fault(r, utf8_valid(str_of(r->sse.bad)) ? FAULT_BAD_SSE : FAULT_BAD_UTF8,
                        "a line that is no event field: \"%s\"", r->sse.bad);
    }
    return r->fault == FAULT_NONE;
}

/* Counts that no server can arrive at. An event carries at least one token; two more events than
 * tokens can come from text that was held back, or cut between reasoning and answer. */
static void judge_counts(struct reply *r)
{
    long long n = (long long)r->completion_tokens;
    if (n == 0)
        reply_fault(r, FAULT_WRONG_COUNTS, "0 completion tokens for an answer of %d events",
                    r->n_output);
    else if (r->n_output - r->n_tool_event > n + 2)
        reply_fault(r, FAULT_WRONG_COUNTS, "%lld completion tokens for %d output events", n,
                    r->n_output);
    else if (r->max_tokens > 0 && n > r->max_tokens)
        reply_fault(r, FAULT_WRONG_COUNTS,
                    "%lld completion tokens where at most %lld were asked for", n,
                    (long long)r->max_tokens);
    else if (r->prompt_tokens == 0)
        reply_fault(r, FAULT_WRONG_COUNTS, "0 prompt tokens");
    else if (r->cached_tokens > r->prompt_tokens)
        reply_fault(r, FAULT_WRONG_COUNTS, "%lld cached tokens of a prompt of %lld",
                    (long long)r->cached_tokens, (long long)r->prompt_tokens);
}

void reply_end(struct reply *r, int64_t now_ns)
{
    r->end_ns = now_ns;
    if (r->fault != FAULT_NONE)
        return;
    if (sse_read_open(&r->sse))
        reply_fault(r, FAULT_TRUNCATED, "the answer ends in the middle of event %d",
                    r->n_event + 1);
    else if (!r->finish[0])
        reply_fault(r, FAULT_NO_FINISH, "no finish_reason in %d events", r->n_event);
    else if (!r->done_seen)
        reply_fault(r, FAULT_NO_DONE, "no [DONE] after %d events", r->n_event);
    else if (!r->has_usage)
        reply_fault(r, FAULT_NO_USAGE, "no usage although it was asked for");
    else if (!r->n_output)
        reply_fault(r, FAULT_NO_OUTPUT, "nothing was said (finish_reason %s)", r->finish);
    else
        judge_counts(r);
}

/* ---- figures -------------------------------------------------------------------------------- */

static double ms(int64_t from, int64_t to)
{
    return (double)(to - from) / 1e6;
}

static int64_t output_span_ns(const struct reply *r)
{
    return r->n_output > 1 ? r->output_ns[r->n_output - 1] - r->output_ns[0] : 0;
}

double reply_ttft_ms(const struct reply *r)
{
    return r->n_output ? ms(r->start_ns, r->output_ns[0]) : (double)NAN;
}

double reply_wall_ms(const struct reply *r)
{
    return r->end_ns ? ms(r->start_ns, r->end_ns) : (double)NAN;
}

double reply_decode_tps(const struct reply *r)
{
    int64_t span = output_span_ns(r);
    if (span <= 0 || r->completion_tokens < 2)
        return (double)NAN;
    return (double)(r->completion_tokens - 1) * 1e9 / (double)span;
}

double reply_e2e_tps(const struct reply *r)
{
    if (!r->end_ns || r->end_ns <= r->start_ns || r->completion_tokens < 1)
        return (double)NAN;
    return (double)r->completion_tokens * 1e9 / (double)(r->end_ns - r->start_ns);
}

double reply_tpot_ms(const struct reply *r)
{
    double tps = reply_decode_tps(r);
    return 1000 / tps; /* NAN stays NAN */
}

double reply_prefill_tps(const struct reply *r)
{
    double ttft = reply_ttft_ms(r);
    return r->prompt_tokens > 0 ? (double)r->prompt_tokens * 1000 / ttft : (double)NAN;
}
