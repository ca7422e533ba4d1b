/*
 * cancel.h - Ctrl-C and SIGTERM as a flag that long work polls, so that it can clean up.
 */
#ifndef CLI_CANCEL_H
#define CLI_CANCEL_H

#include <stdatomic.h>

/* From now on the first signal sets the flag; a second one ends the program as usual. The flag
 * lives as long as the program. */
const atomic_bool *cancel_on_signals(void);

#endif
