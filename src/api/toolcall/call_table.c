/*
 * call_table.c - the syntaxes of tool calls that quern reads, and which one a chat template asks
 * for. Data and small functions without state. docs/tools.md shows each form.
 */
#include "api/toolcall/call.h"

/* ---- names in headers ---- */

static struct str before(struct str s, const char *mark)
{
    size_t at = str_find(s, str_of(mark), 0);
    if (at != (size_t)-1)
        s.n = at;
    return call_trim(s);
}

static struct str after_prefix(struct str s, const char *prefix)
{
    if (str_starts(s, str_of(prefix))) {
        s.p += strlen(prefix);
        s.n -= strlen(prefix);
    }
    return s;
}

/* name, name[ARGS], name[CALL_ID]id[ARGS] */
static struct str mistral_name(struct str h)
{
    return before(h, "[");
}

/* call:name */
static struct str gemma_name(struct str h)
{
    return call_trim(after_prefix(call_trim(h), "call:"));
}

/* functions.name:0<|tool_call_argument_begin|> */
static struct str kimi_name(struct str h)
{
    h = after_prefix(before(h, "<|tool_call_argument_begin|>"), "functions.");
    return before(h, ":");
}

#define DS(s)  "<\xEF\xBD\x9C" s "\xEF\xBD\x9C>" /* <|s|> with fullwidth bars */
#define DSP    "\xE2\x96\x81"                    /* the low line of their names */
#define DS_SEP DS("tool" DSP "sep")

/* V3.1: name<sep>; V3 and R1: function<sep>name, line break, fence. */
static struct str deepseek_name(struct str h)
{
    size_t at = str_find(h, STR_LIT(DS_SEP), 0);
    if (at == (size_t)-1)
        return STR_LIT("");
    size_t from = at + sizeof DS_SEP - 1;
    struct str first = call_trim((struct str){h.p, at});
    struct str second = before((struct str){h.p + from, h.n - from}, "```");
    return second.n > 0 ? second : first;
}

/* ---- forms ---- */

static const struct tagged_form qwen_form = {
    .call_open = "<function=",
    .name_end = ">",
    .param_open = "<parameter=",
    .key_end = ">",
    .value_end = "</parameter>",
    .call_close = "</function>",
    .section_close = "</tool_call>",
    .json_inside = true,
    .newlines = true,
};

static const struct tagged_form seed_form = {
    .call_open = "<function=",
    .name_end = ">",
    .param_open = "<parameter=",
    .key_end = ">",
    .value_end = "</parameter>",
    .call_close = "</function>",
    .section_close = "</seed:tool_call>",
    .newlines = true,
};

static const struct tagged_form minicpm_form = {
    .call_open = "<function name=\"",
    .name_end = "\">",
    .param_open = "<param name=\"",
    .key_end = "\">",
    .value_end = "</param>",
    .call_close = "</function>",
    .entities = true,
};

static const struct tagged_form glm_form = {
    .name_end = "\n",
    .param_open = "<arg_key>",
    .key_end = "</arg_key>",
    .mid = "<arg_value>",
    .value_end = "</arg_value>",
    .section_close = "</tool_call>",
    .json_inside = true,
};

static const struct tagged_form minimax_form = {
    .call_open = "<invoke name=\"",
    .name_end = "\">",
    .param_open = "<parameter name=\"",
    .key_end = "\">",
    .value_end = "</parameter>",
    .call_close = "</invoke>",
    .section_close = "</minimax:tool_call>",
    .json_inside = true,
};

#define DSML(s)                                                                                    \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML"                                                                                         \
    "\xEF\xBD\x9C" s

/* DeepSeek V3.2 and V4 differ in the name of the section. */
#define DSML_FORM(section)                                                                         \
    {                                                                                              \
        .call_open = "<" DSML("invoke name=\""), .name_end = "\">",                                \
        .param_open = "<" DSML("parameter name=\""), .key_end = "\">",                             \
        .value_end = "</" DSML("parameter>"), .call_close = "</" DSML("invoke>"),                  \
        .section_close = "</" DSML(section ">"), .json_inside = true,                              \
    }

static const struct tagged_form dsml_form = DSML_FORM("function_calls");
static const struct tagged_form dsml4_form = DSML_FORM("tool_calls");

static const struct named_form mistral_form = {
    .once = true,
    .json_list = true,
    .name_of = mistral_name,
};

static const struct named_form gemma_form = {
    .section_close = SPECIAL("<tool_call|>"),
    .once = true,
    .name_of = gemma_name,
};

static const struct named_form kimi_form = {
    .call_open = "<|tool_call_begin|>",
    .call_close = "<|tool_call_end|>",
    .section_close = "<|tool_calls_section_end|>",
    .name_of = kimi_name,
};

static const struct named_form deepseek_form = {
    .call_open = DS("tool" DSP "call" DSP "begin"),
    .call_close = DS("tool" DSP "call" DSP "end"),
    .section_close = DS("tool" DSP "calls" DSP "end"),
    .name_of = deepseek_name,
};

static const struct python_form lfm_form = {.close = "<|tool_call_end|>", .json = true};
static const struct python_form pythonic_form = {.close = "<|python_end|>", .json = true};
static const struct python_form llama_form = {.json = true};

/* ---- syntaxes ---- */

#define TAGGED(f) .feed = call_tagged_feed, .end = call_tagged_end, .form = &(f)
#define NAMED(f)  .feed = call_named_feed, .end = call_named_end, .form = &(f)
#define PYTHON(f) .feed = call_python_feed, .end = call_python_end, .form = &(f)
#define JSON      .feed = call_json_feed, .end = call_json_end

static const struct call_syntax harmony = {
    .name = "harmony",
    .needles = {"<|channel|>", "<|message|>"},
    .channels = true,
};
static const struct call_syntax gemma4 = {
    .name = "gemma4",
    .begin = {SPECIAL("<|tool_call>")},
    .needles = {"<|tool_call>", "<|\"|>"},
    .quote = SPECIAL("<|\"|>"),
    NAMED(gemma_form),
};
static const struct call_syntax dsml = {
    .name = "deepseek-dsml",
    .begin = {"<" DSML("function_calls>"), "<" DSML("invoke name=\"")},
    .needles = {"DSML", "invoke name="},
    .json_close = "</" DSML("function_calls>"),
    TAGGED(dsml_form),
};
static const struct call_syntax dsml4 = {
    .name = "deepseek-v4",
    .begin = {"<" DSML("tool_calls>"), "<" DSML("invoke name=\"")},
    .needles = {"DSML", "tool_calls>"},
    .json_close = "</" DSML("tool_calls>"),
    TAGGED(dsml4_form),
};
static const struct call_syntax deepseek = {
    .name = "deepseek",
    .begin = {DS("tool" DSP "calls" DSP "begin"), DS("tool" DSP "call" DSP "begin")},
    .needles = {DS("tool" DSP "calls" DSP "begin")},
    NAMED(deepseek_form),
};
static const struct call_syntax glm = {
    .name = "glm",
    .begin = {"<tool_call>"},
    .needles = {"<arg_key>"},
    .json_close = "</tool_call>",
    TAGGED(glm_form),
};
static const struct call_syntax mistral = {
    .name = "mistral",
    .begin = {"[TOOL_CALLS]"},
    .needles = {"[TOOL_CALLS]"},
    .id_len = 9,
    .bare = CALL_BARE_JSON,
    NAMED(mistral_form),
};
static const struct call_syntax minimax = {
    .name = "minimax",
    .begin = {"<minimax:tool_call>"},
    .needles = {"<minimax:tool_call>", "<invoke name="},
    .json_close = "</minimax:tool_call>",
    TAGGED(minimax_form),
};
static const struct call_syntax seed = {
    .name = "seed",
    .begin = {"<seed:tool_call>"},
    .needles = {"<seed:tool_call>"},
    TAGGED(seed_form),
};
static const struct call_syntax minicpm5 = {
    .name = "minicpm5",
    .begin = {"<function name=\""},
    .needles = {"<function name=\"", "<param name=\""},
    .bare = CALL_BARE_JSON,
    TAGGED(minicpm_form),
};
static const struct call_syntax qwen_xml = {
    .name = "qwen-xml",
    .begin = {"<tool_call>", "<function="},
    .needles = {"<function=", "<parameter="},
    .bare = CALL_BARE_JSON,
    .json_close = "</tool_call>",
    TAGGED(qwen_form),
};
static const struct call_syntax kimi = {
    .name = "kimi",
    .begin = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"},
    .needles = {"<|tool_calls_section_begin|>"},
    NAMED(kimi_form),
};
static const struct call_syntax lfm2 = {
    .name = "lfm2",
    .begin = {"<|tool_call_start|>"},
    .needles = {"<|tool_call_start|>"},
    .bare = CALL_BARE_LIST,
    .json_close = "<|tool_call_end|>",
    PYTHON(lfm_form),
};
static const struct call_syntax pythonic = {
    .name = "pythonic",
    .begin = {"<|python_start|>"},
    .needles = {"[func_name1(params_name1="},
    .bare = CALL_BARE_LIST,
    .json_close = "<|python_end|>",
    PYTHON(pythonic_form),
};
static const struct call_syntax llama3 = {
    .name = "llama3",
    .begin = {"<|python_tag|>", "<function="},
    .needles = {"<|python_tag|>"},
    .bare = CALL_BARE_JSON,
    PYTHON(llama_form),
};
static const struct call_syntax llama32 = {
    .name = "llama3.2",
    .begin = {"<|python_tag|>"},
    .needles = {"\"parameters\": dictionary of argument name"},
    .bare = CALL_BARE_JSON,
    PYTHON(llama_form),
};
static const struct call_syntax hermes = {
    .name = "json",
    .begin = {"<tool_call>"},
    .needles = {"<tool_call>"},
    .bare = CALL_BARE_JSON,
    .json_close = "</tool_call>",
    JSON,
};

const struct call_syntax call_json_bare = {.name = "json", JSON};
const struct call_syntax call_list_bare = {.name = "list", PYTHON(pythonic_form)};

const struct call_syntax *const call_syntaxes[] = {
    &harmony,  &gemma4,   &dsml4, &dsml, &deepseek, &glm,    &mistral, &minimax, &seed,
    &minicpm5, &qwen_xml, &kimi,  &lfm2, &pythonic, &llama3, &llama32, &hermes,  NULL};

const struct call_syntax *call_syntax_named(struct str name)
{
    for (const struct call_syntax *const *s = call_syntaxes; *s; s++)
        if (str_eqz(name, (*s)->name))
            return *s;
    return NULL;
}

const struct call_syntax *call_syntax_of_template(struct str source)
{
    for (const struct call_syntax *const *s = call_syntaxes; *s; s++) {
        bool all = true;
        for (int i = 0; i < 2 && all; i++)
            all = !(*s)->needles[i] || str_find(source, str_of((*s)->needles[i]), 0) != (size_t)-1;
        if (all)
            return *s;
    }
    return &hermes;
}
