/*
 * native.h - the routes that belong to no vendor's protocol: /tokenize, /detokenize,
 * /apply-template, /stats. Body in, JSON out; refusals in the OpenAI form.
 */
#ifndef API_NATIVE_H
#define API_NATIVE_H

#include "api/ir.h"
#include "api/resp_store.h"

enum qn_status native_tokenize(const struct api_model *m, struct str body, struct buf *out,
                               struct api_error *e);
enum qn_status native_detokenize(const struct api_model *m, struct str body, struct buf *out,
                                 struct api_error *e);
enum qn_status native_apply_template(const struct api_model *m, struct str body, struct buf *out,
                                     struct api_error *e);
/* What /stats tells beside the model and the scheduler. */
struct native_server {
    int64_t started_at; /* Unix seconds */
    int64_t uptime_s, resident_bytes;
    int connections, in_flight;
    int64_t requests;
    struct resp_store_stats responses;
};
void native_stats(const struct api_model *m, const struct sched_stats *s,
                  const struct native_server *srv, struct buf *out);
/* What a flush of the prompt cache to disk came to; done: it came to its end in time. */
void native_flush(bool done, const struct qn_cache_flush *f, struct buf *out);

#endif
