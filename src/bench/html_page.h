/*
 * html_page.h - the frame of every page that the harness writes: one file, no scripts, nothing
 * loaded from outside, colours by the reader's choice of dark or light. Its style has the classes
 * of svg.h's charts.
 */
#ifndef BENCH_HTML_PAGE_H
#define BENCH_HTML_PAGE_H

#include "base/buf.h"

/* Everything up to and with the page's heading. */
void page_open(struct buf *out, struct str title);
void page_close(struct buf *out);
/* The beginning of a framed chart, ended by page_card_end. hint: a line of ours, or NULL. */
void page_card(struct buf *out, struct str title, const char *hint);
void page_card_end(struct buf *out);

#endif
