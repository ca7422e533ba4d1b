/*
 * tmpl.c - the module's face: compiling a template into its arena, and one rendering with its own
 * arena and limits. A template is read-only after tmpl_compile.
 */
#include "tmpl/tmpl_ast.h"

#include <errno.h>
#include <stdlib.h>

#include "tmpl/tmpl_parse.h"

#define DEFAULT_STEPS 10000000
#define DEFAULT_BYTES ((size_t)64 << 20)
#define DEFAULT_DEPTH 200
/* evaluated nodes that may be open for each permitted level of calls */
#define NODES_PER_LEVEL 6

enum qn_status tmpl_compile(struct str source, struct tmpl **out, struct qn_err *err)
{
    *out = NULL;
    struct arena *a = arena_create((size_t)TMPL_SOURCE_ARENA_MIB << 20);
    struct tmpl *t = a ? arena_zalloc(a, sizeof *t) : NULL;
    if (!t) {
        arena_free(a);
        QN_FAIL(err, QN_NO_MEMORY, "template", "chat template: no memory");
    }
    t->a = a;
    enum qn_status s = tmpl_parse(t, source, err);
    if (s != QN_OK) {
        arena_free(a);
        return s;
    }
    *out = t;
    return QN_OK;
}

void tmpl_free(struct tmpl *t)
{
    if (t)
        arena_free(t->a);
}

enum qn_status tmpl_render(const struct tmpl *t, const struct json *vars,
                           const struct tmpl_limits *limits, int64_t now_unix, struct buf *out,
                           struct qn_err *err)
{
    struct tmpl_limits lim = limits ? *limits : (struct tmpl_limits){0};
    struct qn_err own = {0};
    struct scope root = {0};
    if (lim.bytes == 0)
        lim.bytes = DEFAULT_BYTES;
    if (lim.depth <= 0)
        lim.depth = DEFAULT_DEPTH;
    if (lim.steps <= 0)
        lim.steps = DEFAULT_STEPS;
    struct buf text = {.limit = lim.bytes};
    root.captured = true; /* lives as long as the rendering */
    errno = 0;            /* see tv_error_oom */
    struct tenv e = {
        .t = t,
        .a = arena_create(lim.bytes),
        .err = err ? err : &own,
        .out = &text,
        .now = now_unix,
        .steps_left = lim.steps,
        .steps_max = lim.steps,
        .bytes_max = lim.bytes,
        .line = 1,
        .depth_max = lim.depth * NODES_PER_LEVEL,
        .calls_max = lim.depth,
        .scope = &root,
        .root = &root,
    };
    if (!e.a)
        QN_FAIL(err, QN_NO_MEMORY, "template", "chat template: no memory");
    struct val v;
    enum qn_status s = tv_dict_new(&e, V_DICT, &v);
    if (s == QN_OK) {
        e.vars = v.m;
        v.m->src = json_type(vars) == JSON_OBJ ? vars : NULL;
        s = te_run(&e, t->body);
    }
    if (s == QN_OK) {
        buf_add_str(out, buf_str(&text));
        s = buf_ok(out, "the rendered chat template", err);
    }
    if (s != QN_OK && e.err->code == QN_NO_MEMORY)
        s = QN_NO_MEMORY;
    buf_free(&text);
    arena_free(e.a);
    return s;
}
