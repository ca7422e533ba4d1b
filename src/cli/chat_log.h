/*
 * chat_log.h - the conversation of `quern chat`: a system message and turns. Owned by one thread.
 */
#ifndef CLI_CHAT_LOG_H
#define CLI_CHAT_LOG_H

#include "base/json.h"

struct chat_turn {
    bool assistant; /* otherwise the user's */
    struct buf text;
};

struct chat_log {
    struct buf system; /* empty = none */
    struct chat_turn *turns;
    size_t n, cap;
};

void chat_log_free(struct chat_log *l);
enum qn_status chat_log_add(struct chat_log *l, bool assistant, struct str text,
                            struct qn_err *err);
void chat_log_pop(struct chat_log *l);   /* drops the last turn, if there is one */
void chat_log_clear(struct chat_log *l); /* drops all turns, keeps the system message */
/* Drops the last user turn and all that came after it. False when there is none. */
bool chat_log_undo(struct chat_log *l);
bool chat_log_ends_with_user(const struct chat_log *l);
/* {"messages":[...]} with chat_template_kwargs when kwargs (JSON text) is not NULL. */
enum qn_status chat_log_json(const struct chat_log *l, const char *kwargs, struct buf *out,
                             struct qn_err *err);

#endif
