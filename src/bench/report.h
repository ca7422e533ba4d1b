/*
 * report.h - a record as text for people: Markdown, and one HTML file that needs nothing else. Both
 * read the JSON document, so an old record can be reported again. What a report cannot read it
 * leaves out; all text from outside is escaped.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "base/json.h"

void report_markdown(const struct json *doc, struct buf *out);
void report_html(const struct json *doc, struct buf *out);
/* The few figures that a README shows, as a table of Markdown: medians, bold where best. */
void report_table(const struct json *doc, struct buf *out);

/* One line of text from outside in Markdown: markup escaped, cut behind `most` bytes. */
void report_plain(struct buf *out, struct str s, size_t most);

#endif
