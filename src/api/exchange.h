/*
 * exchange.h - one request in flight: its choices as generations of the scheduler, and their events
 * in one neutral stream, with reasoning and tool calls told apart (outparse.h). Belongs to one
 * thread; the scheduler's thread runs beside it.
 *
 * A request of many choices keeps only a few of them in the scheduler at a time, so that it can
 * neither fill the queue nor be refused for its own size.
 */
#ifndef API_EXCHANGE_H
#define API_EXCHANGE_H

#include "api/ir.h"

struct exchange;

/* Submits the first choices. The request must stay alive and unchanged until exchange_free. client:
 * fairness key, within which request.user is another. Refused with 429 when the queue is full. */
enum qn_status exchange_start(struct sched *s, const struct api_model *m,
                              const struct api_request *r, uint64_t client, struct exchange **out,
                              struct api_error *e);
/* Shows every event of the scheduler to fn before it is translated, for statistics. *mark belongs
 * to the event's choice: 0 at its first event, kept between them. */
typedef void exchange_watch_fn(void *arg, const struct gen_event *ev, int64_t *mark);
void exchange_watch(struct exchange *x, exchange_watch_fn *fn, void *arg);
/* The next event, waiting up to timeout_ms; API_EV_NONE when there was none. After END or ERROR
 * nothing may be asked any more. */
void exchange_next(struct exchange *x, int timeout_ms, struct api_event *ev);
/* Usage so far, for logs. */
struct api_usage exchange_usage(const struct exchange *x);
/* Cancels what still runs. NULL is fine. */
void exchange_free(struct exchange *x);

#endif
