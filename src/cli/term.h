/*
 * term.h - what the terminal can do, and Ctrl-C as a flag. Main thread, except term_interrupted.
 */
#ifndef CLI_TERM_H
#define CLI_TERM_H

#include <stdbool.h>

/* A terminal that understands CR and erase (not TERM=dumb, TERM is set). */
bool term_can_redraw(int fd);
/* The same, and NO_COLOR is not set. */
bool term_can_color(int fd);
int term_width(int fd); /* columns; 80 when it cannot be asked */

/* From here on Ctrl-C sets a flag instead of ending the program, and interrupts
 * blocking reads. A second one before term_interrupt_clear ends the program at once when
 * `twice_kills`. */
void term_catch_interrupt(bool twice_kills);
void term_restore_interrupt(void); /* back to the default: Ctrl-C ends the program */
bool term_interrupted(void);
void term_interrupt_clear(void);

#endif
