/*
 * saved.c - the life of saved files, the thread that reads and writes them, and the order of steps:
 *
 *     save      gather (slices) -> write (thread)
 *     restore   open (thread) -> room? -> check every byte (thread) -> take memory (slices)
 *               -> read (thread) -> into the tree (slices)
 *
 * A step that fails ends all of it; what was gathered or taken goes, the tree stays as it was: a
 * file that will be refused is refused before anything gives way to it.
 */
#include "cache/saved.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fault.h"
#include "cache/saved_int.h"

#define WHERE "conversation"

/* ---- the thread ----------------------------------------------------------------------------- */

static enum qn_status do_task(struct saved *s, enum saved_task task, struct qn_err *err)
{
    if (task == SAVED_WRITE)
        return saving_write(s, err);
    if (task == SAVED_CHECK)
        return restoring_check(s, err);
    return task == SAVED_OPEN ? restoring_open(s, err) : restoring_read(s, err);
}

static void *thread_main(void *arg)
{
    struct saved *s = arg;
    setpriority(PRIO_PROCESS, (id_t)gettid(), 5); /* running answers come first */
    pthread_mutex_lock(&s->mu);
    while (!atomic_load(&s->stop)) {
        struct qn_err err = {0};
        enum saved_task task = s->task;
        if (task == SAVED_REST) {
            pthread_cond_wait(&s->cv, &s->mu);
            continue;
        }
        pthread_mutex_unlock(&s->mu);
        err.code = do_task(s, task, &err);
        pthread_mutex_lock(&s->mu);
        s->err = err;
        s->task = SAVED_REST;
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

void saved_task_start(struct saved *s, enum saved_task task)
{
    pthread_mutex_lock(&s->mu);
    s->task = task;
    pthread_cond_signal(&s->cv);
    pthread_mutex_unlock(&s->mu);
}

/* False while the thread works; *err: how it went. */
static bool task_ended(struct saved *s, struct qn_err *err)
{
    pthread_mutex_lock(&s->mu);
    bool ended = s->task == SAVED_REST;
    if (ended)
        *err = s->err;
    pthread_mutex_unlock(&s->mu);
    return ended;
}

/* ---- life ----------------------------------------------------------------------------------- */

static enum qn_status start_thread(struct saved *s, struct qn_err *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = fault_point("cache.alloc") ? -1 : pthread_create(&s->thread, NULL, thread_main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "cannot start the thread for files");
    s->runs = true;
    return QN_OK;
}

enum qn_status saved_open(const struct saved_params *p, struct saved **out, struct qn_err *err)
{
    struct saved *s = fault_point("cache.alloc") ? NULL : calloc(1, sizeof *s);
    if (!s)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory");
    const struct str about = p->trees[TIER_MODEL].about;
    for (int32_t k = 0; k < p->n_tree; k++) {
        s->sides[k] = (struct saved_side){.is = p->trees[k], .limit = p->limits[k]};
        s->sides[k].is.about = (struct str){0};
    }
    s->n_side = p->n_tree;
    s->n_ctx = p->n_ctx;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->cv, NULL);
    s->dir = strdup(p->dir);
    s->about = strndup(about.p ? about.p : "", about.n);
    enum qn_status st = s->dir && s->about ? start_thread(s, err)
                                           : err_set(err, QN_NO_MEMORY, WHERE, "out of memory");
    if (st != QN_OK) {
        saved_close(s);
        return st;
    }
    *out = s;
    return QN_OK;
}

void saved_close(struct saved *s)
{
    if (!s)
        return;
    if (s->runs) {
        pthread_mutex_lock(&s->mu);
        atomic_store(&s->stop, true);
        pthread_cond_signal(&s->cv);
        pthread_mutex_unlock(&s->mu);
        pthread_join(s->thread, NULL);
    }
    saving_free(s);
    restoring_free(s);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->cv);
    free(s->dir);
    free(s->about);
    free(s);
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* The next step, once the thread has ended the one before. *done: there is no more. */
static enum qn_status save_step(struct saved *s, bool *done, struct cache_file_told *out)
{
    bool ready = false;
    if (s->info.n_token) { /* written */
        *done = true;
        out->tokens = s->info.n_token;
        out->draft_tokens = s->info.n_draft_token;
        return QN_OK;
    }
    QN_TRY(saving_gather(s, &ready, &out->err));
    if (ready)
        saved_task_start(s, SAVED_WRITE);
    return QN_OK;
}

static enum qn_status restore_step(struct saved *s, bool *done, struct cache_file_told *out)
{
    enum saved_task next = SAVED_REST;
    QN_TRY(restoring_step(s, &next, done, out, &out->err));
    if (next != SAVED_REST)
        saved_task_start(s, next);
    return QN_OK;
}

static enum qn_status begin(struct saved *s, const struct cache_file_ask *ask, struct qn_err *err)
{
    s->info = (struct conv_info){0};
    s->err = (struct qn_err){0};
    if (!memchr(ask->name, 0, sizeof ask->name) || !conv_name_ok(str_of(ask->name)))
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "a conversation's name has 1 to %d of A-Z a-z 0-9 . _ - and begins with no dot",
                CONV_NAME_MAX);
    memcpy(s->name, ask->name, sizeof s->name);
    return ask->restore ? restoring_begin(s, err) : saving_begin(s, &ask->line, err);
}

bool saved_run(struct saved *s, const struct cache_file_ask *ask, struct cache_file_told *out)
{
    bool done = false;
    enum qn_status st = QN_OK;
    *out = (struct cache_file_told){0};
    int64_t room = ask ? ask->room : 0;
    if (ask && ask->go_on)
        ask = NULL;
    if (ask && (s->out || s->in)) {
        err_set(&out->err, QN_BUSY, WHERE, "another file is being saved or restored");
        return true;
    }
    if (!ask && !s->out && !s->in) {
        err_set(&out->err, QN_LOST, WHERE, "no file is being saved or restored");
        return true;
    }
    if (ask)
        st = begin(s, ask, &out->err);
    else if (!task_ended(s, &out->err))
        return false;
    else
        st = out->err.code;
    s->room = room;
    if (st == QN_OK && (s->out || s->in) && !ask)
        st = s->out ? save_step(s, &done, out) : restore_step(s, &done, out);
    if (st == QN_OK && !done && (s->out || s->in))
        return false;
    out->err.code = st;
    if (st == QN_OK) {
        out->bytes = s->info.bytes;
        memcpy(out->sum, s->info.sum, sizeof out->sum);
    }
    saving_free(s);
    restoring_free(s);
    return true;
}
