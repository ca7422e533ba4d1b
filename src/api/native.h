/*
 * native.h - the routes that belong to no vendor's protocol: /tokenize, /detokenize,
 * /apply-template, /stats. Body in, JSON out; refusals in the OpenAI form.
 */
#ifndef API_NATIVE_H
#define API_NATIVE_H

#include "api/ir.h"

enum qn_status native_tokenize(const struct api_model *m, struct str body, struct buf *out,
                               struct api_error *e);
enum qn_status native_detokenize(const struct api_model *m, struct str body, struct buf *out,
                                 struct api_error *e);
enum qn_status native_apply_template(const struct api_model *m, struct str body, struct buf *out,
                                     struct api_error *e);
void native_stats(const struct api_model *m, const struct sched_stats *s, int64_t uptime_s,
                  struct buf *out);

#endif
