/*
 * test_outparse.c - answers of every syntax to reasoning, content and calls. Each case is read
 * whole, byte by byte, and in random cuts: the outcome is the same.
 */
#include "../check.h"

#include "api/outparse.h"
#include "api_fixture.h"
#include "base/rng.h"

/* "\xFE" and "\xFF" frame special tokens. */
#define S(text) SPECIAL(text)
#define DS(s)   "<\xEF\xBD\x9C" s "\xEF\xBD\x9C>"
#define LOW     "\xE2\x96\x81"
#define BAR     "\xEF\xBD\x9C"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
    "\"unit\":{\"type\":[\"string\",\"null\"]},\"any\":{},\"opts\":{\"type\":\"object\"},"
    "\"list\":{\"type\":\"array\"},\"flag\":{\"type\":\"boolean\"},"
    "\"mode\":{\"enum\":[\"1\",\"2\"]},\"both\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":"
    "\"integer\"}]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"a.b-c\",\"parameters\":{}}}]";

struct row {
    const char *syntax, *text, *want;
    bool inside; /* begins inside reasoning */
    bool cut;    /* at the token limit */
    bool no_tools, one_call;
};

/* ---- running one ---- */

struct reading {
    struct buf content, reasoning, calls;
    enum api_finish finish;
    int finishes;
};

static void add_event(struct reading *g, const struct api_event *ev)
{
    switch (ev->kind) {
    case API_EV_TEXT:
        buf_add_str(&g->content, ev->text);
        break;
    case API_EV_REASONING:
        buf_add_str(&g->reasoning, ev->text);
        break;
    case API_EV_CALL:
        assert_true(ev->call_id.n >= 9);
        buf_addf(&g->calls, " %d:%.*s", ev->call, (int)ev->call_name.n, ev->call_name.p);
        break;
    case API_EV_CALL_ARGS:
        buf_add_str(&g->calls, ev->text);
        break;
    case API_EV_FINISH:
        buf_add_str(&g->content, ev->text);
        g->finish = ev->finish;
        g->finishes++;
        break;
    default:
        fail_msg("an event of kind %d", ev->kind);
    }
}

static void feed(struct outparse *p, struct reading *g, struct api_event ev)
{
    outparse_feed(p, &ev);
    while (outparse_next(p, &ev))
        add_event(g, &ev);
}

static void read_text(const struct api_model *m, const struct api_request *r, const struct row *c,
                      int mode, struct buf *out)
{
    struct outparse *p;
    struct reading g = {0};
    struct str s = str_of(c->text);
    assert_int_equal(outparse_create(m, r, &p), QN_OK);
    assert_non_null(p);
    for (size_t i = 0, n; i < s.n; i += n) {
        n = mode == 0 ? s.n : mode == 1 ? 1 : 1 + rng_u64((uint64_t)mode, 1, i) % 9;
        n = n < s.n - i ? n : s.n - i;
        feed(p, &g, (struct api_event){.kind = API_EV_TEXT, .text = {s.p + i, n}});
    }
    feed(p, &g,
         (struct api_event){.kind = API_EV_FINISH,
                            .finish = c->cut ? API_FINISH_LENGTH : API_FINISH_STOP});
    assert_int_equal(g.finishes, 1);
    static const char *const names[] = {"stop", "length", "tool_calls"};
    buf_addf(out, "%s", names[g.finish]);
    if (g.reasoning.n)
        buf_addf(out, " think<%s>", buf_z(&g.reasoning));
    if (g.content.n)
        buf_addf(out, " text<%s>", buf_z(&g.content));
    buf_addz(out, buf_z(&g.calls));
    outparse_free(p);
    buf_free(&g.content);
    buf_free(&g.reasoning);
    buf_free(&g.calls);
}

static const struct think_syntax *think_named(const struct tok *tok, const char *syntax)
{
    struct out_syntax s;
    struct qn_err err = {0};
    const char *source = !strcmp(syntax, "gemma4")    ? "<channel|>"
                         : !strcmp(syntax, "mistral") ? "[THINK]"
                                                      : "</think>";
    if (out_syntax_detect(&s, str_of(source), tok, syntax, &err) != QN_OK)
        fail_msg("%s", err.msg);
    return s.think;
}

/* How many of its readings were wrong. */
static int run_row(struct api_model *m, const struct row *c)
{
    int n_bad = 0;
    struct out_syntax syn = {.calls = call_syntax_named(str_of(c->syntax)), .knows_tools = true};
    struct api_request r = {.parallel_tool_calls = !c->one_call, .split_reasoning = true};
    struct qn_err err = {0};
    struct json *tools = NULL, *chat = NULL;
    assert_non_null(syn.calls);
    syn.think = think_named(m->tok, c->syntax);
    m->syntax = &syn;
    assert_int_equal(json_parse(str_of(tools_json), "tools", 32, &tools, &err), QN_OK);
    assert_int_equal(json_parse(STR_LIT("{\"messages\":[{}]}"), "chat", 8, &chat, &err), QN_OK);
    r.chat = chat;
    r.tools = c->no_tools ? NULL : tools;
    buf_addz(&r.chat_prompt, c->inside ? "q<think>\n" : "q");
    for (int mode = 0; mode < 8; mode++) {
        struct buf got = BUF_INIT;
        read_text(m, &r, c, mode, &got);
        if (!str_eqz(buf_str(&got), c->want) && ++n_bad && mode < 2)
            print_error("%s, cut %d:\n%s\ngot:      %s\nexpected: %s\n", c->syntax, mode, c->text,
                        buf_z(&got), c->want);
        buf_free(&got);
    }
    buf_free(&r.chat_prompt);
    json_free(tools);
    json_free(chat);
    return n_bad;
}

static void run_rows(const struct row *rows, size_t n)
{
    struct api_model m = fixture_model();
    int n_bad = 0;
    for (size_t i = 0; i < n; i++)
        n_bad += run_row(&m, &rows[i]);
    fixture_free(&m);
    assert_int_equal(n_bad, 0);
}
#define RUN(rows) run_rows(rows, sizeof rows / sizeof *rows)

/* ---- the syntaxes ---- */

#define QW(args)  "<tool_call>\n<function=get_weather>\n" args "</function>\n</tool_call>"
#define QP(k, v)  "<parameter=" k ">\n" v "\n</parameter>\n"
#define ONE(args) "tool_calls 0:get_weather" args

static void test_qwen_xml(void **state)
{
    static const struct row rows[] = {
        {.syntax = "qwen-xml", "plain text", "stop text<plain text>"},
        {.syntax = "qwen-xml", "a < b, <tool, </x> \n", "stop text<a < b, <tool, </x> \n>"},
        {.syntax = "qwen-xml", QW(QP("city", "Paris")), ONE("{\"city\":\"Paris\"}")},
        {.syntax = "qwen-xml", QW(""), ONE("{}")},
        {.syntax = "qwen-xml",
         "Let me see.\n\n" QW(QP("city", "Paris")) "\n",
         "tool_calls text<Let me see.> 0:get_weather{\"city\":\"Paris\"}"},
        {.syntax = "qwen-xml",
         QW(QP("city", "A")) "\n" QW(QP("city", "B")) "\nDone.",
         "tool_calls text<\nDone.> 0:get_weather{\"city\":\"A\"} 1:get_weather{\"city\":\"B\"}"},
        /* text stays text, numbers and the rest are read as JSON */
        {.syntax = "qwen-xml",
         QW(QP("city", "2025") QP("days", "3") QP("flag", "True")),
         ONE("{\"city\":\"2025\",\"days\":3,\"flag\":true}")},
        {.syntax = "qwen-xml",
         QW(QP("days", "three") QP("unit", "null") QP("any", "[1, 2]")),
         ONE("{\"days\":\"three\",\"unit\":\"null\",\"any\":[1, 2]}")},
        {.syntax = "qwen-xml",
         QW(QP("mode", "1") QP("both", "1") QP("other", "plain words")),
         ONE("{\"mode\":\"1\",\"both\":1,\"other\":\"plain words\"}")},
        {.syntax = "qwen-xml",
         QW(QP("opts", "{'a': True, 'b': [1,],}")),
         ONE("{\"opts\":{\"a\":true,\"b\":[1]}}")},
        /* one line break of the frame goes, the rest stays; no entities */
        {.syntax = "qwen-xml",
         QW("<parameter=city>\n\n a &lt; \"b\"\\ </p>\n\n</parameter>\n"),
         ONE("{\"city\":\"\\n a &lt; \\\"b\\\"\\\\ </p>\\n\"}")},
        {.syntax = "qwen-xml", QW("<parameter=city>x</parameter>"), ONE("{\"city\":\"x\"}")},
        {.syntax = "qwen-xml", QW("<parameter=city>\n\n</parameter>"), ONE("{\"city\":\"\"}")},
        {.syntax = "qwen-xml",
         QW(QP("list", "[{\"old\": \"&quot;\", \"new\": \"<a>\"}]")),
         ONE("{\"list\":[{\"old\": \"&quot;\", \"new\": \"<a>\"}]}")},
        {.syntax = "qwen-xml", QW(QP("city", "a") QP("city", "b")), ONE("{\"city\":\"a\"}")},
        /* no such tool: the markup is content */
        {.syntax = "qwen-xml",
         "<tool_call>\n<function=nope>\n</function>\n</tool_call>",
         "stop text<<tool_call>\n<function=nope>\n</function>\n</tool_call>>"},
        {.syntax = "qwen-xml",
         "<tool_call> <tool_call><function=now></function></tool_call>",
         "tool_calls text<<tool_call>> 0:now{}"},
        {.syntax = "qwen-xml",
         QW("") "<function=nope></function>",
         "tool_calls text<<function=nope></function>> 0:get_weather{}"},
        /* forgotten tags */
        {.syntax = "qwen-xml", "<function=now>\n</function>\n</tool_call>", "tool_calls 0:now{}"},
        {.syntax = "qwen-xml",
         "<function=now>\n</function> and <b>",
         "tool_calls text< and <b>> 0:now{}"},
        {.syntax = "qwen-xml",
         "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n"
         "</tool_call>",
         ONE("{\"city\":\"Paris\"}")},
        {.syntax = "qwen-xml",
         "<tool_call><function=get_weather><parameter=city>\nPar",
         ONE("{\"city\":\"Par\"}")},
        {.syntax = "qwen-xml",
         "<tool_call><function=get_weather>{\"city\": \"Rome\"}</function></tool_call>",
         ONE("{\"city\":\"Rome\"}")},
        {.syntax = "qwen-xml",
         "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
         "tool_calls 0:now{}"},
        {.syntax = "qwen-xml",
         "<tool_call><function=a.b-c></function></tool_call>",
         "tool_calls 0:a.b-c{}"},
        /* cut at the token limit */
        {.syntax = "qwen-xml",
         "<tool_call><function=get_weather><parameter=city>\nPar",
         "length 0:get_weather{\"city\":\"Par",
         .cut = true},
        {.syntax = "qwen-xml", "hi <tool_ca", "length text<hi <tool_ca>", .cut = true},
        {.syntax = "qwen-xml",
         "<tool_call><function=get_wea",
         "length text<<tool_call><function=get_wea>",
         .cut = true},
        {.syntax = "qwen-xml",
         QW(QP("days", "3")) "<tool_call>\n<func",
         "length text<<tool_call>\n<func> 0:get_weather{\"days\":3}",
         .cut = true},
        /* reasoning */
        {.syntax = "qwen-xml", "plan\n</think>\n\nok", "stop think<plan> text<ok>", .inside = true},
        {.syntax = "qwen-xml",
         "\nplan <tool_call>\n\n</think>\n\n" QW(""),
         "tool_calls think<plan <tool_call>> 0:get_weather{}",
         .inside = true},
        {.syntax = "qwen-xml", "<think>\n\n</think>\n\nok", "stop text<ok>"},
        {.syntax = "qwen-xml", "<think>a\nb</think>c</think>", "stop think<a\nb> text<c</think>>"},
        {.syntax = "qwen-xml", "the <think> tag", "stop text<the <think> tag>"},
        {.syntax = "qwen-xml",
         "never closed </thin",
         "length think<never closed </thin>",
         .inside = true,
         .cut = true},
        {.syntax = "qwen-xml", "x", "stop text<x>", .no_tools = true},
        {.syntax = "qwen-xml", QW(""), "stop text<" QW("") ">", .no_tools = true},
        {.syntax = "qwen-xml", QW("") "\n" QW("") "more", ONE("{}"), .one_call = true},
    };
    RUN(rows);
}

#define TC(body) "<tool_call>\n" body "\n</tool_call>"
#define NM       "\"name\": \"get_weather\""

static void test_json(void **state)
{
    static const struct row rows[] = {
        {.syntax = "json",
         TC("{" NM ", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}"),
         ONE("{\"city\":\"Paris\",\"days\":2}")},
        {.syntax = "json",
         "Sure.\n" TC("{" NM ", \"arguments\": {}}") "\n" TC("{\"name\": \"now\"}"),
         "tool_calls text<Sure.> 0:get_weather{} 1:now{}"},
        {.syntax = "json",
         TC("{\"arguments\": {\"city\": \"x\"}, " NM "}"),
         ONE("{\"city\":\"x\"}")},
        {.syntax = "json",
         TC("{" NM ", \"parameters\": {\"city\": \"x\"}}"),
         ONE("{\"city\":\"x\"}")},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": \"{\\\"city\\\": \\\"x\\\"}\"}"),
         ONE("{\"city\":\"x\"}")},
        {.syntax = "json", TC("{" NM ", \"arguments\": null}"), ONE("{}")},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": [1]}"),
         "stop text<" TC("{" NM ", \"arguments\": [1]}") ">"},
        {.syntax = "json",
         TC("{\"name\": \"nope\", \"arguments\": {}}"),
         "stop text<" TC("{\"name\": \"nope\", \"arguments\": {}}") ">"},
        {.syntax = "json",
         TC("{\"type\": \"function\", \"function\": {" NM ", \"arguments\": {\"days\": 1}}}"),
         ONE("{\"days\":1}")},
        /* one list of two */
        {.syntax = "json",
         TC("[{" NM ", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]"),
         "tool_calls 0:get_weather{} 1:now{}"},
        /* repairs: fence, words before, Python, trailing commas, open ends, quotes, lifted name */
        {.syntax = "json",
         TC("```json\n{" NM ", \"arguments\": {\"days\": 1}}\n```"),
         ONE("{\"days\":1}")},
        {.syntax = "json",
         TC("Here it is: {" NM ", \"arguments\": {\"days\": 1}}"),
         ONE("{\"days\":1}")},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": {\"flag\": True, \"any\": None}}"),
         ONE("{\"flag\":true,\"any\":null}")},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": {\"list\": [1, 2,], \"days\": 1,},}"),
         ONE("{\"list\":[1,2],\"days\":1}")},
        {.syntax = "json", TC("{" NM ", \"arguments\": {\"days\": 1}"), ONE("{\"days\":1}")},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": {\"city\": \"Par"),
         ONE("{\"city\":\"Par\\n\"}")},
        {.syntax = "json",
         TC("{'name': 'get_weather', 'arguments': {'city': 'say \"hi\"'}}"),
         ONE("{\"city\":\"say \\\"hi\\\"\"}")},
        {.syntax = "json", TC("{\"arguments\": {" NM ", \"days\": 1}}"), ONE("{\"days\":1}")},
        {.syntax = "json",
         TC("{\"arguments\": {" NM ", \"arguments\": {\"days\": 1}}}"),
         ONE("{\"days\":1}")},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": {\"city\": \"a\nb\tc\\d\"}}"),
         ONE("{\"city\":\"a\\nb\\tc\\\\d\"}")},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": {\"city\": \"\\ud83d\\ude42\\ud83d!\"}}"),
         ONE("{\"city\":\"\\ud83d\\ude42\\ufffd!\"}")},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": {\"city\": \"</tool_call> in text\"}}"),
         ONE("{\"city\":\"</tool_call> in text\"}")},
        {.syntax = "json",
         "<tool_call>{" NM ", \"arguments\": {\"days\": 1}}",
         ONE("{\"days\":1}")},
        /* bare JSON of the right shape */
        {.syntax = "json", "{" NM ", \"arguments\": {\"days\": 1}}", ONE("{\"days\":1}")},
        {.syntax = "json", "{" NM ", \"days\": 1}", "stop text<{" NM ", \"days\": 1}>"},
        {.syntax = "json", "{\"answer\": 1}", "stop text<{\"answer\": 1}>"},
        {.syntax = "json", "{\"name\": \"Bob\"}", "stop text<{\"name\": \"Bob\"}>"},
        {.syntax = "json",
         "So: {" NM ", \"arguments\": {}}",
         "stop text<So: {" NM ", \"arguments\": {}}>"},
        {.syntax = "json",
         "{" NM ", \"arguments\": {}} tail",
         "tool_calls text< tail> 0:get_weather{}"},
        /* cut */
        {.syntax = "json",
         "<tool_call>\n{" NM ", \"arguments\": {\"city\": \"Pa",
         "length 0:get_weather{\"city\":\"Pa",
         .cut = true},
        {.syntax = "json",
         "<tool_call>\n{\"name\": \"get_we",
         "length text<<tool_call>\n{\"name\": \"get_we>",
         .cut = true},
        {.syntax = "json", "<tool_call>\n{" NM ", \"argu", "length 0:get_weather", .cut = true},
        {.syntax = "json",
         TC("{" NM ", \"arguments\": {}}") "\n</to",
         "tool_calls text<\n</to> 0:get_weather{}"},
        {.syntax = "json",
         "<think>x</think>" TC("{" NM ", \"arguments\": {}}"),
         "tool_calls think<x> 0:get_weather{}"},
    };
    RUN(rows);
}

#define Q S("<|\"|>")

static void test_gemma(void **state)
{
    static const struct row rows[] = {
        {.syntax = "gemma4",
         S("<|tool_call>") "call:get_weather{city:" Q "Paris, \"x\" {" Q
                           ",days:2}" S("<tool_call|>"),
         ONE("{\"city\":\"Paris, \\\"x\\\" {\",\"days\":2}")},
        {.syntax = "gemma4",
         S("<|tool_call>") "call:get_weather{opts:{a:true,b:[" Q "\\n" Q ",1]}}" S("<tool_call|>"),
         ONE("{\"opts\":{\"a\":true,\"b\":[\"\\\\n\",1]}}")},
        {.syntax = "gemma4",
         S("<|tool_call>") "call:now{}" S("<tool_call|>")
             S("<|tool_call>") "call:get_weather{days:1}" S("<tool_call|>"),
         "tool_calls 0:now{} 1:get_weather{\"days\":1}"},
        /* the text of the markers is text */
        {.syntax = "gemma4",
         "<|tool_call>call:now{}<tool_call|>",
         "stop text<<|tool_call>call:now{}<tool_call|>>"},
        {.syntax = "gemma4",
         S("<|tool_call>") "call:nope{a:" Q "b" Q "}" S("<tool_call|>"),
         "stop text<<|tool_call>call:nope{a:<|\"|>b<|\"|>}<tool_call|>>"},
        {.syntax = "gemma4",
         S("<|channel>") "thought\nhm\n" S("<channel|>") "ok",
         "stop think<hm> text<ok>"},
        {.syntax = "gemma4", S("<|channel>") "thought\n" S("<channel|>") "ok", "stop text<ok>"},
        {.syntax = "gemma4", S("<|channel>") "other\nhm" S("<channel|>"), "stop think<other\nhm>"},
        {.syntax = "gemma4",
         S("<|tool_call>") "call:get_weather{city:" Q "Par",
         "length 0:get_weather{\"city\":\"Par",
         .cut = true},
        {.syntax = "gemma4",
         S("<|tool_call>") "call:get_weather{city:" Q "Par",
         ONE("{\"city\":\"Par\"}")},
    };
    RUN(rows);
}

static void test_tagged_others(void **state)
{
#define MF(args) "<function name=\"get_weather\">" args "</function>"
#define MP(k, v) "<param name=\"" k "\">" v "</param>"
    static const struct row rows[] = {
        {.syntax = "minicpm5",
         MF(MP("city", "Paris") MP("days", "2")),
         ONE("{\"city\":\"Paris\",\"days\":2}")},
        {.syntax = "minicpm5",
         MF(MP("city", "a &lt;b&gt; &amp;amp; &#65;&#x42; &nope; &")),
         ONE("{\"city\":\"a <b> &amp; AB &nope; &\"}")},
        {.syntax = "minicpm5",
         MF(MP("city", "<![CDATA[x </param> &lt;\n]]>")),
         ONE("{\"city\":\"x </param> &lt;\\n\"}")},
        {.syntax = "minicpm5",
         "ok " MF("") MF(MP("days", "1")) " done",
         "tool_calls text<ok done> 0:get_weather{} 1:get_weather{\"days\":1}"},
        {.syntax = "minicpm5",
         "<function name=\"nope\"></function>",
         "stop text<<function name=\"nope\"></function>>"},
        {.syntax = "minicpm5", "<function name=\"now\"></fun", "length 0:now", .cut = true},
        {.syntax = "glm",
         "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
         "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
         ONE("{\"city\":\"Paris\",\"days\":2}")},
        {.syntax = "glm",
         "<tool_call>get_weather<arg_key>city</arg_key><arg_value> a\n</arg_value></tool_call>"
         "<tool_call>now</tool_call>",
         "tool_calls 0:get_weather{\"city\":\" a\\n\"} 1:now{}"},
        {.syntax = "glm",
         "<tool_call>nope\n</tool_call>",
         "stop text<<tool_call>nope\n</tool_call>>"},
        {.syntax = "glm", "<think></think>\n<tool_call>now\n</tool_call>", "tool_calls 0:now{}"},
        {.syntax = "deepseek-dsml",
         "Ok\n\n<" BAR "DSML" BAR "function_calls>\n<" BAR "DSML" BAR
         "invoke name=\"get_weather\">\n"
         "<" BAR "DSML" BAR "parameter name=\"city\" string=\"true\">12</" BAR "DSML" BAR
         "parameter>\n"
         "<" BAR "DSML" BAR "parameter name=\"any\" string=\"false\">[1]</" BAR "DSML" BAR
         "parameter>\n"
         "</" BAR "DSML" BAR "invoke>\n<" BAR "DSML" BAR "invoke name=\"now\">\n</" BAR "DSML" BAR
         "invoke>\n"
         "</" BAR "DSML" BAR "function_calls>",
         "tool_calls text<Ok> 0:get_weather{\"city\":\"12\",\"any\":[1]} 1:now{}"},
        {.syntax = "minimax",
         "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
         "name=\"city\">x</parameter>\n"
         "</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
         "tool_calls 0:get_weather{\"city\":\"x\"} 1:now{}"},
        {.syntax = "seed",
         "<seed:tool_call>\n<function=get_weather>\n<parameter=city>x</parameter>\n</function>\n"
         "</seed:tool_call>",
         ONE("{\"city\":\"x\"}")},
    };
    RUN(rows);
}

static void test_named(void **state)
{
#define CALLS(x) DS("tool" LOW "calls" LOW "begin") x DS("tool" LOW "calls" LOW "end")
#define DCALL(x) DS("tool" LOW "call" LOW "begin") x DS("tool" LOW "call" LOW "end")
#define SEP      DS("tool" LOW "sep")
    static const struct row rows[] = {
        {.syntax = "mistral",
         "[TOOL_CALLS][{" NM ", \"arguments\": {\"days\": 1}}, {\"name\": \"now\", \"arguments\": "
         "{}, \"id\": \"abc\"}]",
         "tool_calls 0:get_weather{\"days\":1} 1:now{}"},
        {.syntax = "mistral", "[TOOL_CALLS] [{" NM ", \"arguments\": {}}]", ONE("{}")},
        {.syntax = "mistral",
         "hi[TOOL_CALLS]get_weather[ARGS]{\"city\": "
         "\"x\"}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}",
         "tool_calls text<hi> 0:get_weather{\"city\":\"x\"} 1:now{}"},
        {.syntax = "mistral",
         S("[TOOL_CALLS]") "get_weather{\"city\": \"x\"}",
         ONE("{\"city\":\"x\"}")},
        {.syntax = "mistral", "[TOOL_CALLS]nope[ARGS]{}", "stop text<[TOOL_CALLS]nope[ARGS]{}>"},
        {.syntax = "mistral", "[THINK]a[/THINK]b", "stop think<a> text<b>"},
        {.syntax = "mistral",
         "[TOOL_CALLS][{" NM ", \"arguments\": {\"city\": \"x",
         "length 0:get_weather{\"city\":\"x",
         .cut = true},
        {.syntax = "deepseek",
         CALLS(DCALL("function" SEP "get_weather\n```json\n{\"city\": \"x\"}\n```") "\n" DCALL(
             "function" SEP "now\n```json\n{}\n```")),
         "tool_calls 0:get_weather{\"city\":\"x\"} 1:now{}"},
        {.syntax = "deepseek",
         "Ok." CALLS(DCALL("get_weather" SEP "{\"city\": \"x\"}") DCALL("now" SEP "{}")),
         "tool_calls text<Ok.> 0:get_weather{\"city\":\"x\"} 1:now{}"},
        {.syntax = "deepseek",
         "<think>t</think>" CALLS(DCALL("now" SEP "{}")),
         "tool_calls think<t> 0:now{}"},
        {.syntax = "deepseek",
         CALLS(DCALL("nope" SEP "{}")),
         "stop text<" CALLS(DCALL("nope" SEP "{}")) ">"},
        {.syntax = "kimi",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_"
         "argument_begin|>{\"city\": \"x\"}<|tool_call_end|>"
         "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_"
         "calls_section_end|>",
         "tool_calls 0:get_weather{\"city\":\"x\"} 1:now{}"},
    };
    RUN(rows);
}

static void test_python(void **state)
{
    static const struct row rows[] = {
        {.syntax = "pythonic",
         "[get_weather(city=\"Paris\", days=2, flag=True, list=['a', (1, 2)], opts={'k': None}), "
         "now()]",
         "tool_calls "
         "0:get_weather{\"city\":\"Paris\",\"days\":2,\"flag\":true,\"list\":[\"a\",[1,2]],"
         "\"opts\":{\"k\":null}} 1:now{}"},
        {.syntax = "pythonic", "<|python_start|>[now()]<|python_end|>", "tool_calls 0:now{}"},
        {.syntax = "pythonic", "[1, 2, 3]", "stop text<[1, 2, 3]>"},
        {.syntax = "pythonic", "[link](http://x)", "stop text<[link](http://x)>"},
        {.syntax = "pythonic", "[nope(a=1)]", "stop text<[nope(a=1)]>"},
        {.syntax = "pythonic",
         "[get_weather(city='it\\'s', days=-1.5e3)]",
         ONE("{\"city\":\"it's\",\"days\":-1.5e3}")},
        {.syntax = "pythonic",
         "[get_weather(city=\"Pa",
         "length 0:get_weather{\"city\":\"Pa",
         .cut = true},
        {.syntax = "pythonic", "[get_weather(city=\"Pa", ONE("{\"city\":\"Pa\"}")},
        {.syntax = "lfm2",
         "Ok <|tool_call_start|>[a.b-c(x=1)]<|tool_call_end|> bye",
         "tool_calls text<Ok bye> 0:a.b-c{\"x\":1}"},
        {.syntax = "lfm2",
         "<|tool_call_start|>{" NM ", \"arguments\": {}}<|tool_call_end|>",
         ONE("{}")},
        {.syntax = "llama3",
         "{" NM ", \"parameters\": {\"city\": \"x\"}}",
         ONE("{\"city\":\"x\"}")},
        {.syntax = "llama3",
         "<|python_tag|>{" NM ", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
         "tool_calls 0:get_weather{} 1:now{}"},
        {.syntax = "llama3", "<|python_tag|>get_weather.call(city=\"x\")", ONE("{\"city\":\"x\"}")},
        {.syntax = "llama3", "<|python_tag|>print(1)", "stop text<<|python_tag|>print(1)>"},
    };
    RUN(rows);
}

static void test_harmony(void **state)
{
#define CH(c) S("<|channel|>") c S("<|message|>")
#define NEXT  S("<|end|>") S("<|start|>") "assistant"
#define FOR(name)                                                                                  \
    S("<|channel|>")                                                                               \
    "commentary to=functions." name " " S("<|constrain|>") "json" S("<|message|"                   \
                                                                    ">")
    static const struct row rows[] = {
        {.syntax = "harmony", CH("analysis") "hm" NEXT CH("final") "ok", "stop think<hm> text<ok>"},
        {.syntax = "harmony",
         CH("analysis") "hm" NEXT FOR("get_weather") "{\"city\":\"x\"}" S("<|call|>"),
         "tool_calls think<hm> 0:get_weather{\"city\":\"x\"}"},
        {.syntax = "harmony",
         " to=functions.now" S("<|channel|>") "commentary json" S("<|message|>") "{}",
         "tool_calls 0:now{}"},
        {.syntax = "harmony",
         CH("commentary") "I will look." NEXT FOR("now") "{}" NEXT FOR(
             "get_weather") "{\"days\": 1",
         "tool_calls text<I will look.> 0:now{} 1:get_weather{\"days\":1}"},
        {.syntax = "harmony",
         CH("analysis") "a" NEXT CH("analysis") "b" NEXT CH("final") "c <|end|> d",
         "stop think<a\nb> text<c <|end|> d>"},
        {.syntax = "harmony",
         FOR("nope") "{}",
         "stop text<<|channel|>commentary to=functions.nope <|constrain|>json<|message|>{}>"},
        {.syntax = "harmony", "plain", "stop text<plain>"},
        {.syntax = "harmony",
         FOR("get_weather") "{\"city\":\"x",
         "length 0:get_weather{\"city\":\"x",
         .cut = true},
    };
    RUN(rows);
}

/* ---- the choice of a syntax ---- */

static void test_detect(void **state)
{
    static const struct {
        const char *source, *name, *think;
    } rows[] = {
        {"<tool_call>\n{\"name\": ...}\n</tool_call>", "json", NULL},
        {"<tool_call><function=f><parameter=p> </think>", "qwen-xml", "<think>"},
        {"<|tool_call>call: <|\"|> <channel|>", "gemma4", SPECIAL("<|channel>")},
        {"<tool_call>name<arg_key> </think>", "glm", "<think>"},
        {"[TOOL_CALLS] [THINK]", "mistral", "[THINK]"},
        {"<|start|>assistant<|channel|>final<|message|>", "harmony", NULL},
        {"{{'<|python_tag|>'}}", "llama3", NULL},
        {DS("tool" LOW "calls" LOW "begin"), "deepseek", NULL},
        {"DSML function_calls> invoke name=", "deepseek-dsml", NULL},
        {"DSML tool_calls> invoke name=", "deepseek-v4", NULL},
        {"<|im_start|>", "json", NULL},
        {"", "json", NULL},
    };
    struct api_model m = fixture_model();
    struct qn_err err = {0};
    struct out_syntax s;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(out_syntax_detect(&s, str_of(rows[i].source), m.tok, NULL, &err), QN_OK);
        assert_string_equal(s.calls->name, rows[i].name);
        assert_int_equal(s.think != NULL, rows[i].think != NULL);
        if (s.think)
            assert_string_equal(s.think->open, rows[i].think);
    }
    for (const struct call_syntax *const *c = call_syntaxes; *c; c++) {
        assert_int_equal(out_syntax_detect(&s, STR_LIT(""), m.tok, (*c)->name, &err), QN_OK);
        assert_ptr_equal(s.calls, *c);
    }
    assert_int_equal(out_syntax_detect(&s, STR_LIT(""), m.tok, "nope", &err), QN_BAD_INPUT);
    assert_non_null(strstr(err.msg, "qwen-xml"));
    fixture_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen_xml), cmocka_unit_test(test_json),
        cmocka_unit_test(test_gemma),    cmocka_unit_test(test_tagged_others),
        cmocka_unit_test(test_named),    cmocka_unit_test(test_python),
        cmocka_unit_test(test_harmony),  cmocka_unit_test(test_detect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
