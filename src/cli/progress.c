/*
 * progress.c - see progress.h. The line is rewritten in place with CR and "erase to the end of
 * line"; the only state shared by the process is which line stands on the terminal, under a lock.
 */
#include "cli/progress.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/term.h"

#define QUIET_US  1000000 /* work shorter than this shows nothing */
#define PERIOD_US 100000  /* least time between two updates */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct progress *shown; /* the line on the screen, NULL = none; guarded by lock */

void progress_start(struct progress *p, const char *what, const char *unit, double total)
{
    int64_t now = clock_us();
    *p = (struct progress){.what = what, .unit = unit, .total = total, .start_us = now};
    p->rate_us = now;
}

/* "0:07", "12:30", "1:02:03" */
static void time_text(struct buf *out, double seconds)
{
    int64_t s = (int64_t)ceil(seconds);
    if (s >= 3600)
        buf_addf(out, "%d:%02d:%02d", (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60));
    else
        buf_addf(out, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

static void rate_text(struct buf *out, const struct progress *p)
{
    if (!p->unit || p->rate <= 0)
        return;
    buf_addz(out, "  ");
    if (strcmp(p->unit, "B") == 0) {
        cli_size_text(out, (int64_t)p->rate);
        buf_addz(out, "/s");
    } else {
        buf_addf(out, p->rate < 100 ? "%.1f %s/s" : "%.0f %s/s", p->rate, p->unit);
    }
}

static void tail_text(struct buf *out, const struct progress *p, int64_t now_us)
{
    double elapsed = (double)(now_us - p->start_us) / 1e6;
    if (p->total > 0) {
        double part = fmin(fmax(p->done / p->total, 0), 1);
        buf_addf(out, " %3d%%", (int)(part * 100));
        rate_text(out, p);
        /* overall speed is steadier than the last second's: early guesses jump less */
        double left = part > 0.01 ? elapsed / part - elapsed : -1;
        if (left >= 0 && left < 359999) {
            buf_addz(out, "  ETA ");
            time_text(out, left);
        }
        return;
    }
    if (p->unit && strcmp(p->unit, "B") == 0) {
        buf_addc(out, ' ');
        cli_size_text(out, (int64_t)p->done);
    } else if (p->unit) {
        buf_addf(out, " %.0f %s", p->done, p->unit);
    }
    rate_text(out, p);
    buf_addz(out, "  ");
    time_text(out, elapsed);
}

void progress_format(const struct progress *p, int64_t now_us, int width, struct buf *out)
{
    struct buf tail = BUF_INIT;
    tail_text(&tail, p, now_us);
    int room = width - 1, n_what = (int)strlen(p->what);
    /* on a narrow terminal first the bar goes, then the end of the name, then the figures' end */
    if (n_what + (int)tail.n > room)
        n_what = room > (int)tail.n ? room - (int)tail.n : 0;
    size_t from = out->n;
    buf_add(out, p->what, (size_t)n_what);
    int bar = room - n_what - (int)tail.n - 3;
    if (bar > 30)
        bar = 30;
    if (p->total > 0 && bar >= 8) {
        int full = (int)(fmin(fmax(p->done / p->total, 0), 1) * bar);
        buf_addz(out, " [");
        for (int i = 0; i < bar; i++)
            buf_addc(out, i < full ? '#' : '.');
        buf_addc(out, ']');
    }
    buf_add_str(out, buf_str(&tail));
    if (room >= 0 && out->n - from > (size_t)room && out->p) {
        out->n = from + (size_t)room;
        out->p[out->n] = 0;
    }
    buf_free(&tail);
}

static void update_rate(struct progress *p, int64_t now)
{
    double dt = (double)(now - p->rate_us) / 1e6;
    if (dt < 0.25)
        return;
    double r = (p->done - p->rate_done) / dt;
    double keep = exp(-dt / 2); /* a two-second memory */
    p->rate = p->rate > 0 ? keep * p->rate + (1 - keep) * r : r;
    p->rate_done = p->done;
    p->rate_us = now;
}

static void erase_locked(void)
{
    if (!shown)
        return;
    if (write(STDERR_FILENO, "\r\033[K", 4) < 0)
        return;
    shown->shown_us = 0;
    shown = NULL;
}

void progress_set(struct progress *p, double done)
{
    int64_t now = clock_us();
    pthread_mutex_lock(&lock);
    p->done = done;
    update_rate(p, now);
    if (now - p->start_us >= QUIET_US && now - p->shown_us >= PERIOD_US &&
        term_can_redraw(STDERR_FILENO)) {
        struct buf b = BUF_INIT;
        buf_addz(&b, "\r");
        progress_format(p, now, term_width(STDERR_FILENO), &b);
        buf_addz(&b, "\033[K");
        if (shown != p)
            erase_locked();
        if (write(STDERR_FILENO, buf_z(&b), b.n) > 0) {
            shown = p;
            p->shown_us = now;
        }
        buf_free(&b);
    }
    pthread_mutex_unlock(&lock);
}

void progress_end(struct progress *p)
{
    pthread_mutex_lock(&lock);
    if (shown == p)
        erase_locked();
    pthread_mutex_unlock(&lock);
}

void progress_hide(void)
{
    pthread_mutex_lock(&lock);
    erase_locked();
    pthread_mutex_unlock(&lock);
}

void progress_report(void *arg, const char *what, double done)
{
    struct progress *p = arg;
    if (what)
        p->what = what;
    progress_set(p, done * (p->total > 0 ? p->total : 1));
}
