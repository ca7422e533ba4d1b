/*
 * conv_jobs.c - files of single conversations: clients ask and wait, the scheduler's thread works
 * on one file after the other, a slice between two steps. The scheduler's thread, except
 * sched_cache_file.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "sched/sched_int.h"

enum { WAIT_US = 2000, JOBS_MAX = 32 };

struct file_job {
    struct file_job *next;
    struct cache_file_ask ask; /* line: its own */
    int32_t *ids;
    char ns[GEN_NS_MAX + 1];
    struct cache_file_told told;
    bool begun, guesser; /* the thread's: of what is done now; the model's part has ended */
    bool done, left;     /* under mu; left: nobody waits for it any more */
};

static void job_free(struct file_job *j)
{
    free(j->ids);
    free(j);
}

void sched_files_free(struct sched *s)
{
    while (s->files) {
        struct file_job *j = s->files;
        s->files = j->next;
        job_free(j);
    }
    if (s->file_now)
        job_free(s->file_now);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void look_again(struct sched *s)
{
    int64_t us = clock_us() + WAIT_US;
    s->look_us = s->look_us && s->look_us < us ? s->look_us : us;
}

static struct file_job *take(struct sched *s)
{
    pthread_mutex_lock(&s->mu);
    struct file_job *j = s->files;
    if (j)
        s->files = j->next;
    pthread_mutex_unlock(&s->mu);
    return j;
}

/* What the disk has of the line comes first. One id more than the line has: the last one of what is
 * asked about is never looked for. */
static bool loading(struct sched *s, const struct file_job *j)
{
    struct qn_line line = j->ask.line;
    line.n_ids += line.n_ids < s->lm.n_ctx;
    if (j->ask.restore || !s->lm.ops->cache_loading)
        return false;
    bool model = s->lm.ops->cache_loading(s->lm.self, &line);
    return spec_disk_loading(s->spec, &line) || model;
}

/* A second model's file goes along with the model's: without it guesses are worse, no more. */
static void take_guesses(struct file_job *j, const struct cache_file_told *g)
{
    if (g->err.code == QN_OK) {
        j->told.draft_tokens = g->tokens;
        j->told.draft_bytes = g->bytes;
    } else if (g->err.code != QN_NOT_FOUND && g->err.code != QN_UNSUPPORTED) {
        log_line(LOG_WARN, "conversation", "what guesses has no part in %s: %s", j->ask.name,
                 g->err.msg);
    }
}

/* One slice; true when it has ended. */
static bool work(struct sched *s, struct file_job *j)
{
    struct cache_file_told guesses;
    int64_t left = s->kv_budget - s->kv_planned;
    left = j->guesser ? left / SCHED_DRAFT_PART : left;
    j->ask.room = !s->kv_budget ? 0 : left > 0 ? left : 1;
    j->ask.go_on = j->begun;
    if (!j->begun && !j->guesser && loading(s, j))
        return false;
    j->begun = true;
    if (!j->guesser && !s->lm.ops->cache_file(s->lm.self, &j->ask, &j->told))
        return false;
    if (!j->guesser) {
        j->guesser = j->told.err.code == QN_OK && spec_has_files(s->spec);
        j->begun = false;
        return !j->guesser;
    }
    if (!spec_file(s->spec, &j->ask, &guesses))
        return false;
    take_guesses(j, &guesses);
    return true;
}

/* Under mu. */
static void count(struct sched *s, const struct file_job *j)
{
    struct sched_file_sums *sums = j->ask.restore ? &s->stats.restores : &s->stats.saves;
    if (j->told.err.code != QN_OK) {
        sums->failed++;
        return;
    }
    sums->done++;
    sums->tokens += j->told.tokens;
    sums->draft_tokens += j->told.draft_tokens;
    sums->bytes += j->told.bytes + j->told.draft_bytes;
}

void sched_files_tick(struct sched *s)
{
    if (!s->lm.ops->cache_file)
        return;
    struct file_job *j = s->file_now = s->file_now ? s->file_now : take(s);
    if (!j)
        return;
    look_again(s);
    if (!work(s, j))
        return;
    sched_reuse_settle(s);
    s->file_now = NULL;
    pthread_mutex_lock(&s->mu);
    bool left = j->left;
    j->done = true;
    count(s, j);
    pthread_cond_broadcast(&s->flushed);
    pthread_mutex_unlock(&s->mu);
    if (left)
        job_free(j);
}

/* ---- clients -------------------------------------------------------------------------------- */

static struct file_job *job_create(const struct cache_file_ask *ask)
{
    struct file_job *j = fault_point("sched.alloc") ? NULL : calloc(1, sizeof *j);
    if (!j)
        return NULL;
    size_t n = ask->restore ? 0 : (size_t)ask->line.n_ids;
    j->ask = *ask;
    j->ids = calloc(n + 1, sizeof *j->ids);
    if (!j->ids) {
        job_free(j);
        return NULL;
    }
    if (n)
        memcpy(j->ids, ask->line.ids, n * sizeof *j->ids);
    if (!ask->restore && ask->line.ns)
        memcpy(j->ns, ask->line.ns, strnlen(ask->line.ns, GEN_NS_MAX));
    j->ask.line = (struct qn_line){j->ns, j->ids, (int32_t)n};
    return j;
}

/* Under mu: at the end of the queue. False: it is full. */
static bool enqueue(struct sched *s, struct file_job *j)
{
    struct file_job **end = &s->files;
    int n = 0;
    for (; *end; end = &(*end)->next)
        n++;
    if (n >= JOBS_MAX || s->quit)
        return false;
    *end = j;
    s->signals++;
    pthread_cond_signal(&s->wake);
    return true;
}

bool sched_cache_file(struct sched *s, const struct cache_file_ask *ask, int timeout_ms,
                      struct cache_file_told *out)
{
    struct timespec until = clock_in((int64_t)timeout_ms * 1000);
    *out = (struct cache_file_told){0};
    struct file_job *j = s->lm.ops->cache_file ? job_create(ask) : NULL;
    if (!j) {
        err_set(&out->err, s->lm.ops->cache_file ? QN_NO_MEMORY : QN_UNSUPPORTED, SCHED_WHERE,
                "no memory, or no folder, for files of conversations");
        return true;
    }
    pthread_mutex_lock(&s->mu);
    bool queued = enqueue(s, j);
    while (queued && !j->done && !s->quit)
        if (pthread_cond_timedwait(&s->flushed, &s->mu, &until) == ETIMEDOUT)
            break;
    bool done = !queued || j->done;
    if (!queued) {
        err_set(&j->told.err, QN_BUSY, SCHED_WHERE,
                "too many files of conversations are asked for");
        count(s, j);
    }
    if (done)
        *out = j->told;
    else
        j->left = true;
    pthread_mutex_unlock(&s->mu);
    if (done)
        job_free(j);
    return done;
}
