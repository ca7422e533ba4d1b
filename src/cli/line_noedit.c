/*
 * line_noedit.c - the build without libedit: lines are read plainly, there is no history.
 */
#include "cli/line.h"

struct line_edit *line_edit_open(const char *history)
{
    return NULL;
}

void line_edit_close(struct line_edit *e)
{
}

enum line_result line_edit_read(struct line_edit *e, const char *prompt, struct buf *out)
{
    return LINE_FAILED;
}

void line_edit_remember(struct line_edit *e, const char *entry)
{
}
