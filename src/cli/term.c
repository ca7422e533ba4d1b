/*
 * term.c - see term.h. The interrupt flag is the one variable a signal handler writes.
 */
#include "cli/term.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;
static volatile sig_atomic_t second_kills;

bool term_can_redraw(int fd)
{
    const char *t = getenv("TERM");
    return isatty(fd) && t && *t && strcmp(t, "dumb") != 0;
}

bool term_can_color(int fd)
{
    const char *no = getenv("NO_COLOR");
    return term_can_redraw(fd) && !(no && *no);
}

int term_width(int fd)
{
    struct winsize w;
    if (ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    const char *c = getenv("COLUMNS");
    int n = c ? atoi(c) : 0;
    return n > 0 && n < 10000 ? n : 80;
}

static void on_interrupt(int sig)
{
    if (interrupted && second_kills) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    interrupted = 1;
}

void term_catch_interrupt(bool twice_kills)
{
    struct sigaction sa = {.sa_handler = on_interrupt}; /* no SA_RESTART: reads must return */
    sigemptyset(&sa.sa_mask);
    second_kills = twice_kills;
    sigaction(SIGINT, &sa, NULL);
}

void term_restore_interrupt(void)
{
    signal(SIGINT, SIG_DFL);
}

bool term_interrupted(void)
{
    return interrupted;
}

void term_interrupt_clear(void)
{
    interrupted = 0;
}
