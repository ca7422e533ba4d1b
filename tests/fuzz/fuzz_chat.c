/*
 * fuzz_chat.c - any request body through two fixed templates: one plain, one that looks at tools,
 * calls, reasoning and parts.
 */
#include "base/json.h"
#include "tmpl/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define PLAIN                                                                                      \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"                             \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
#define TOOLS                                                                                      \
    "{% for t in tools or [] %}{{ t | tojson(indent=2) }}{% endfor %}{% for m in messages %}"      \
    "{{ m.role ~ ':' ~ (m.reasoning_content or '') }}{% if m.content is string %}"                 \
    "{{ m.content | trim }}{% else %}{% for p in m.content or [] %}{{ p.text | default(p) }}"      \
    "{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}{{ c.function.name | string }}"       \
    "{% for k, v in (c.function.arguments or {}) | items %}{{ k }}={{ v | tojson }}{% endfor %}"   \
    "{% endfor %}{{ loop.nextitem.role }}{% endfor %}{{ bos_token }}"

static void render(const char *text, const struct json *request)
{
    struct buf config = {0}, out = {0};
    struct chat_tmpl *c = NULL;
    struct qn_err err;
    buf_addz(&config, "{\"bos_token\":\"<s>\",\"chat_template\":");
    json_w_strz(&config, text);
    buf_addc(&config, '}');
    QN_ASSERT(chat_tmpl_from_json(buf_str(&config), &c, &err) == QN_OK);
    enum qn_status s = chat_render(c, request, 0, &out, &err);
    QN_ASSERT(s == QN_OK || (s == QN_BAD_INPUT && out.n == 0));
    chat_tmpl_free(c);
    buf_free(&config);
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct json *request = NULL;
    struct qn_err err;
    if (json_parse((struct str){(const char *)p, n}, "body", JSON_DEPTH_MAX, &request, &err) ==
        QN_OK) {
        render(PLAIN, request);
        render(TOOLS, request);
    }
    json_free(request);
    return 0;
}
