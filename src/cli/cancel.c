/*
 * cancel.c - see cancel.h. The flag is the only state, set once and never cleared.
 */
#include "cli/cancel.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

static atomic_bool cancelled;

static void on_signal(int sig)
{
    (void)sig;
    atomic_store(&cancelled, true);
}

const atomic_bool *cancel_on_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    return &cancelled;
}
