/*
 * tmpl.h - chat templates: the part of Jinja2 that model folders use, as transformers sets it up
 * (trim_blocks, lstrip_blocks, sandboxed, loopcontrols; tojson with its own separators,
 * raise_exception, strftime_now). Output is byte-equal to Python's for the shipped corpora.
 *
 * Where it differs from Python on purpose: integers have 64 bits (an operation that leaves them is
 * an error), \N{...} escapes, lone surrogates, include, import, extends, autoescape, random,
 * pprint, urlize and lipsum are refused, and a macro sees the caller's variables even when the
 * template sets the same name further down.
 *
 * A compiled template is immutable and may be rendered from several threads at once. Rendering is
 * bounded: steps, depth and output bytes. Nothing in a template can reach the system.
 */
#ifndef TMPL_TMPL_H
#define TMPL_TMPL_H

#include "base/buf.h"
#include "base/json.h"

struct tmpl;

struct tmpl_limits {
    int64_t steps; /* evaluated nodes; 0 = 10,000,000 */
    size_t bytes;  /* output and intermediate strings; 0 = 64 MiB */
    int32_t depth; /* nested calls, and six times as many nested expressions; 0 = 200 */
};

/* Parses. Errors: QN_BAD_INPUT "chat template: line N: ..." */
enum qn_status tmpl_compile(struct str source, struct tmpl **out, struct qn_err *err);
void tmpl_free(struct tmpl *t);

/* Renders with the members of `vars` (a JSON object) as variables, appended to out.
 * raise_exception(msg) gives QN_BAD_INPUT with exactly msg as the message. now_unix is what
 * strftime_now formats (local time zone UTC). */
enum qn_status tmpl_render(const struct tmpl *t, const struct json *vars,
                           const struct tmpl_limits *limits, int64_t now_unix, struct buf *out,
                           struct qn_err *err);

#endif
