/*
 * lm_serve.h - the process that holds a language model for another one (quern serve --isolate).
 */
#ifndef SCHED_LM_SERVE_H
#define SCHED_LM_SERVE_H

#include "sched/lm.h"

/* Tells the other side of the socket `fd` why there is no model. */
void lm_serve_refuse(int fd, const struct qn_err *why);
/* Says hello on fd and answers calls until the other side closes it (QN_OK). info: facts for the
 * other side, NULL = none. Sequences still alive are freed. Takes the calling thread. */
enum qn_status lm_serve(const struct lm *lm, const struct qn_model_info *info, int fd,
                        struct qn_err *err);

#endif
