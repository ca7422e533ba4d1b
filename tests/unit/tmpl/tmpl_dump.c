/*
 * tmpl_dump.c - renders templates for the tests that compare with Python's jinja2: one JSON object
 * per line on stdin, {"template", "vars"} or {"config", "request"}, with an optional "now"; one
 * per line on stdout, {"out": text} or {"error": message}. Not installed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "tmpl/chat.h"

static enum qn_status render_plain(const struct json *in, int64_t now, struct buf *out,
                                   struct qn_err *err)
{
    struct tmpl *t;
    QN_TRY(tmpl_compile(json_str(json_get(in, "template")), &t, err));
    enum qn_status s = tmpl_render(t, json_get(in, "vars"), NULL, now, out, err);
    tmpl_free(t);
    return s;
}

static enum qn_status render_chat(const struct json *in, int64_t now, struct buf *out,
                                  struct qn_err *err)
{
    struct chat_tmpl *c;
    struct buf config = {0};
    json_w_value(&config, json_get(in, "config"));
    enum qn_status s = chat_tmpl_from_json(buf_str(&config), &c, err);
    buf_free(&config);
    QN_TRY(s);
    s = chat_render(c, json_get(in, "request"), now, out, err);
    chat_tmpl_free(c);
    return s;
}

static void one(struct str line)
{
    struct json *in = NULL;
    struct qn_err err = {0};
    struct buf out = {0}, reply = {0};
    int64_t now = 0;
    struct jw w;
    enum qn_status s = json_parse(line, "line", 512, &in, &err);
    if (s == QN_OK) {
        json_i64(json_get(in, "now"), &now);
        s = json_get(in, "template") ? render_plain(in, now, &out, &err)
                                     : render_chat(in, now, &out, &err);
    }
    jw_init(&w, &reply);
    jw_obj(&w);
    if (s == QN_OK)
        jw_kstr(&w, "out", buf_str(&out));
    else
        jw_kstrz(&w, "error", err.msg);
    jw_obj_end(&w);
    puts(buf_z(&reply));
    json_free(in);
    buf_free(&out);
    buf_free(&reply);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        one((struct str){line, (size_t)n});
        fflush(stdout);
    }
    free(line);
    return 0;
}
