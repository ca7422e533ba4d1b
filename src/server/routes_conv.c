/*
 * routes_conv.c - the handlers of /admin/conversations: what follows it is a name, or a name and
 * "/restore". Connections' threads.
 */
#include "api/conversations.h"
#include "server/server_int.h"

enum qn_status get_conversations(struct http_req *rq, struct buf *out, struct api_error *e)
{
    return conversation_list(rq->srv->p.model, out, e);
}

enum qn_status get_conversation(struct http_req *rq, struct buf *out, struct api_error *e)
{
    return conversation_show(rq->srv->p.model, rq->route_arg, out, e);
}

enum qn_status delete_conversation(struct http_req *rq, struct buf *out, struct api_error *e)
{
    return conversation_delete(rq->srv->p.model, rq->route_arg, out, e);
}

static enum qn_status save_or_restore(struct http_req *rq, struct buf *out, struct api_error *e)
{
    struct server *s = rq->srv;
    struct str name = rq->route_arg, tail = STR_LIT("/restore");
    if (!str_ends(name, tail))
        return conversation_save(s->p.model, s->p.sched, name, buf_str(&rq->body), out, e);
    name.n -= tail.n;
    return conversation_restore(s->p.model, s->p.sched, name, out, e);
}

enum qn_status post_conversation(struct http_req *rq, struct buf *out, struct api_error *e)
{
    rq->filed = true;
    atomic_fetch_add(&rq->srv->filing, 1);
    if (atomic_load(&rq->srv->draining))
        return api_refuse(e, 503, "draining", NULL, "the server is shutting down");
    silence_limit(rq, false);
    enum qn_status st = save_or_restore(rq, out, e);
    silence_limit(rq, true);
    return st;
}
