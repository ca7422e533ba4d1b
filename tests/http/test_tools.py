"""Tool calls and reasoning through the openai SDK, streamed and not, with answers that the prompt
dictates; what is refused; what the template sees of the history."""

import json
import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import wire
from wire import say, script

openai = pytest.importorskip("openai")

# Shows tools and calls, opens reasoning when asked, and names the markers of Qwen's XML.
TEMPLATE = (
    "{#- <tool_call><function=f><parameter=p></parameter></function></tool_call> -#}"
    "{% if tools %}tools:{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}={{ c.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|answer|>{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
GEMMA = TEMPLATE + "{#- <|tool_call>call:f{k:<|\"|>v<|\"|>}<tool_call|> <|channel>thought<channel|> -#}"
GEMMA_SPECIAL = ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"]

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city", "parameters": {
            "type": "object", "required": ["city"],
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now"}},
]


def call(name, **params):
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in params.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, template, special in (("qwen", TEMPLATE, ()), ("gemma", GEMMA, GEMMA_SPECIAL)):
        made[name] = tmp_path_factory.mktemp(name)
        wire.write_tokenizer(made[name], template, special)
    yield made
    for f in made.values():
        shutil.rmtree(f, ignore_errors=True)


@pytest.fixture(scope="module")
def tool_server(launch, folders):
    s = launch(folders["qwen"])
    yield s
    code, text = s.stop()
    assert code == 0, text[-4000:]


@pytest.fixture(scope="module")
def client(tool_server):
    with openai.OpenAI(base_url=tool_server.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def joined(stream):
    """A streamed choice put together, and what is to hold of its chunks."""
    out = {"content": None, "reasoning": "", "calls": [], "finish": []}
    for chunk in stream:
        for c in chunk.choices:
            d = c.delta
            if d.content is not None:
                out["content"] = (out["content"] or "") + d.content
            out["reasoning"] += getattr(d, "reasoning", None) or ""
            for t in d.tool_calls or []:
                if t.id:
                    assert t.index == len(out["calls"]) and t.type == "function"
                    assert t.function.arguments == ""
                    out["calls"].append({"id": t.id, "name": t.function.name, "arguments": ""})
                else:
                    assert t.function.name is None
                    out["calls"][t.index]["arguments"] += t.function.arguments
            if c.finish_reason:
                out["finish"].append(c.finish_reason)
    out["content"] = out["content"] or None
    return out


def both(client, directive, **fields):
    """The answer whole and streamed, which agree in everything but the calls' ids."""
    fields = {"model": "scripted", "messages": [{"role": "user", "content": directive}], **fields}
    r = client.chat.completions.create(**fields)
    m = r.choices[0].message
    whole = {"content": m.content or None, "reasoning": getattr(m, "reasoning", None) or "",
             "calls": [{"name": t.function.name, "arguments": t.function.arguments}
                       for t in m.tool_calls or []],
             "finish": [r.choices[0].finish_reason]}
    for t in m.tool_calls or []:
        assert t.type == "function" and t.id.startswith("call_")
    parts = joined(client.chat.completions.create(stream=True, **fields))
    assert len({c.pop("id") for c in parts["calls"]}) == len(parts["calls"])
    assert parts == whole
    return whole, r


def test_one_call(client):
    got, r = both(client, say(call("get_weather", city="Paris 🙂", days=3)), tools=TOOLS)
    assert [c["name"] for c in got["calls"]] == ["get_weather"]
    assert json.loads(got["calls"][0]["arguments"]) == {"city": "Paris 🙂", "days": 3}
    assert got["finish"] == ["tool_calls"] and r.choices[0].message.content is None


def test_arguments_stream_as_they_come(client):
    pieces = []
    for chunk in client.chat.completions.create(
            model="scripted", stream=True, tools=TOOLS,
            messages=[{"role": "user", "content": say(call("get_weather", city="abcdefgh"),
                                                      delay=2000)}]):
        for t in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            pieces.append(t.function.arguments)
    assert len(pieces) > 5 and "".join(pieces) == '{"city":"abcdefgh"}'
    assert not any("<" in p for p in pieces)


def test_several_calls_and_text(client):
    text = "Let me look.\n\n" + call("get_weather", city="A") + "\n" + call("now")
    got, _ = both(client, say(text), tools=TOOLS)
    assert got["content"] == "Let me look."
    assert [c["name"] for c in got["calls"]] == ["get_weather", "now"]
    assert [json.loads(c["arguments"]) for c in got["calls"]] == [{"city": "A"}, {}]


def test_parallel_off_gives_one(client):
    text = call("now") + "\n" + call("now") + " more"
    got, r = both(client, say(text), tools=TOOLS, parallel_tool_calls=False)
    assert [c["name"] for c in got["calls"]] == ["now"] and got["content"] is None
    assert got["finish"] == ["tool_calls"]


@pytest.mark.parametrize("cut", [None, 20, len(call("now")) + 3])
def test_parallel_off_ends_with_the_call(client, cut):
    """What a model writes behind its only call, until it is stopped, is of nobody's count."""
    one = call("now")
    over = one.index("</function>") + len("</function>")
    for _ in range(5):
        got, r = both(client, say(one + " and so on" * 20), tools=TOOLS, parallel_tool_calls=False,
                      logprobs=True, **({"max_tokens": cut} if cut else {}))
        n = min(over, cut or over)
        assert r.usage.completion_tokens == n == len(r.choices[0].logprobs.content), spelled(r.choices[0])
        assert got["finish"] == ["tool_calls" if n == over else "length"]


def test_unknown_function_is_content(client):
    got, _ = both(client, say(call("nope", a=1)), tools=TOOLS)
    assert got == {"content": call("nope", a=1), "reasoning": "", "calls": [], "finish": ["stop"]}


def test_no_tools_no_calls(client):
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        got, _ = both(client, say(call("now")), **fields)
        assert got["content"] == call("now") and got["calls"] == [] and got["finish"] == ["stop"]


def test_cut_call(client):
    text = call("get_weather", city="Paris")
    n = text.index("ris")
    got, _ = both(client, say(text), tools=TOOLS, max_tokens=n)
    assert got["calls"] == [{"name": "get_weather", "arguments": '{"city":"Pa'}]
    assert got["finish"] == ["length"] and got["content"] is None
    got, _ = both(client, say("a <tool_call>"), tools=TOOLS, max_tokens=6)
    assert got["content"] == "a <too" and got["finish"] == ["length"]


def test_reasoning(client):
    fields = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    got, r = both(client, say("so\nso\n</think>\n\nyes " + call("now")), tools=TOOLS, **fields)
    assert got["reasoning"] == "so\nso" and got["content"] == "yes"
    assert got["calls"][0]["name"] == "now"
    assert r.usage.completion_tokens_details.reasoning_tokens == len("so\nso\n</think>")
    got, r = both(client, say("never closed"), **fields)
    assert got["reasoning"] == "never closed" and got["content"] is None
    assert r.choices[0].message.content == ""
    got, _ = both(client, say("<think>a</think>b"))
    assert (got["reasoning"], got["content"]) == ("a", "b")
    got, _ = both(client, say("the tag <think> is text"))
    assert (got["reasoning"], got["content"]) == ("", "the tag <think> is text")


def test_reasoning_effort(client):
    for effort, thinks in (("none", False), ("minimal", True), ("high", True)):
        got, _ = both(client, say("x</think>y"), reasoning_effort=effort)
        assert bool(got["reasoning"]) == thinks, effort
    got, _ = both(client, say("x</think>y"), reasoning_effort="high",
                  extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert got["reasoning"] == ""
    with pytest.raises(openai.BadRequestError) as e:
        both(client, "x", reasoning_effort="extreme")
    assert e.value.param == "reasoning_effort"


def test_server_settings(launch, folders):
    s = launch(folders["qwen"], "--thinking", "on", "--reasoning-field", "reasoning_content")
    try:
        with openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0) as c:
            ask = {"model": "scripted",
                   "messages": [{"role": "user", "content": say("a</think>b")}]}
            m = c.chat.completions.create(**ask).choices[0].message
            assert m.reasoning_content == "a" and m.content == "b"
            assert not hasattr(m, "reasoning")
            parts = [x.choices[0].delta for x in c.chat.completions.create(stream=True, **ask)]
            assert "".join(getattr(d, "reasoning_content", None) or "" for d in parts) == "a"
            off = c.chat.completions.create(reasoning_effort="none", **ask).choices[0].message
            assert off.content == "a</think>b"
    finally:
        assert s.stop()[0] == 0


def test_logprobs_cover_every_token(client):
    text = "so</think>hi " + call("now")
    fields = {"tools": TOOLS, "logprobs": True, "reasoning_effort": "low"}
    got, r = both(client, say(text), **fields)
    assert got["calls"] and len(r.choices[0].logprobs.content) == len(text)
    n = 0
    for chunk in client.chat.completions.create(
            model="scripted", stream=True, messages=[{"role": "user", "content": say(text)}],
            **fields):
        if chunk.choices and chunk.choices[0].logprobs:
            n += len(chunk.choices[0].logprobs.content)
    assert n == len(text)


def test_choices_of_one_request(client):
    stream = client.chat.completions.create(
        model="scripted", n=3, stream=True, tools=TOOLS,
        messages=[{"role": "user", "content": say(call("get_weather", city="x"))}])
    args, ids = ["", "", ""], set()
    for chunk in stream:
        for c in chunk.choices:
            for t in c.delta.tool_calls or []:
                args[c.index] += t.function.arguments
                if t.id:
                    ids.add(t.id)
    assert args == ['{"city":"x"}'] * 3 and len(ids) == 3


def test_special_tokens_are_the_markers(launch, folders):
    s = launch(folders["gemma"])
    opens, closes, quote, think, end = (wire.special_id(i) for i in range(5))

    def ids(*parts):
        return script([x for p in parts for x in ([p] if isinstance(p, int) else list(p.encode()))])

    try:
        with openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0) as c:
            got, _ = both(c, ids(think, "thought\nhm\n", end, "Ok", opens, "call:get_weather{city:",
                                 quote, 'a "b"', quote, ",days:2}", closes), tools=TOOLS)
            assert got["reasoning"] == "hm" and got["content"] == "Ok"
            assert json.loads(got["calls"][0]["arguments"]) == {"city": 'a "b"', "days": 2}
            text = "<|tool_call>call:now{}<tool_call|>"
            got, _ = both(c, say(text), tools=TOOLS)
            assert got["content"] == text and got["calls"] == []
            got, _ = both(c, ids("a", opens, "b", closes, "c"))
            assert got["content"] == "abc"  # without tools special tokens are hidden
    finally:
        assert s.stop()[0] == 0


def test_history_reaches_the_template(tool_server):
    body = {"tools": TOOLS, "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [
            {"id": "call_1", "type": "function",
             "function": {"name": "get_weather", "arguments": '{"city": "A", "days": 1}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]}]}
    r = wire.request(tool_server, "POST", "/apply-template", body)
    prompt = r.json()["prompt"]
    assert 'assistant:<think>r</think>get_weather={"city": "A", "days": 1}' in prompt
    assert "tool:sunny" in prompt and prompt.startswith("tools:[")


CHOICES = [
    {"type": "function", "function": {"name": n, "strict": strict, "parameters": {
        "type": "object", "required": ["k"], "additionalProperties": False,
        "properties": {"k": {"enum": ["one", "two"]}}}}}
    for n, strict in (("first", False), ("second", True))]


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {
        "mode": mode, "tools": [{"type": "function", "function": {"name": n}} for n in names]}}


def test_allowed_tools_are_those_the_model_sees(tool_server):
    """A choice of some tools is the request that has only these."""
    def prompt(tools, choice=None):
        r = wire.request(tool_server, "POST", "/apply-template",
                         {"messages": wire.chat_body("x")["messages"], "tools": tools,
                          **({"tool_choice": choice} if choice else {})})
        assert r.status == 200, r
        return r.json()["prompt"]
    second = [t for t in CHOICES if t["function"]["name"] == "second"]
    assert prompt(CHOICES, allowed("auto", "second")) == prompt(second) != prompt(CHOICES)
    assert prompt(CHOICES, allowed("required", "first", "second")) == prompt(CHOICES)


@pytest.mark.parametrize("folder", ["qwen", "gemma", "plain"])
def test_forced_calls(launch, folders, tokenizer, folder):
    """The model wants to say something else; it cannot."""
    s = launch(tokenizer if folder == "plain" else folders[folder])
    try:
        with openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0) as c:
            for choice, names in (("required", {"first", "second"}),
                                  ({"type": "function", "function": {"name": "second"}},
                                   {"second"}),
                                  (allowed("required", "second"), {"second"})):
                for seed in range(3):
                    got, _ = both(c, say("I would rather talk."), tools=CHOICES, seed=seed,
                                  tool_choice=choice, parallel_tool_calls=False, temperature=1)
                    assert got["finish"] == ["tool_calls"] and got["content"] is None
                    assert {x["name"] for x in got["calls"]} <= names and len(got["calls"]) == 1
                    assert json.loads(got["calls"][0]["arguments"])["k"] in ("one", "two")
    finally:
        assert s.stop()[0] == 0


# name: (what a template shows, tokens of their own, one forced call as the model has to write it)
K, V = "k", "(one|two)"
FORMS = {
    "qwen-xml": ("<function=f><parameter=p>", (),
                 rf"<tool_call>\n<function=NAME>\n<parameter=k>\n{V}\n</parameter>\n?</function>\n</tool_call>"),
    "seed": ("<seed:tool_call>", (), rf"<seed:tool_call>\n<function=NAME>\n<parameter=k>{V}</parameter>\n?"
             r"</function>\n</seed:tool_call>"),
    "json": ("<tool_call>", (), r'<tool_call>\n{"name": "NAME", "arguments": {\s*"k"\s*:\s*"(one|two)"\s*}}'
             r"\n</tool_call>"),
    "glm": ("<arg_key>k</arg_key>\n<arg_value>", (),
            rf"<tool_call>NAME\n<arg_key>k</arg_key>\n<arg_value>{V}</arg_value>\n?</tool_call>"),
    "glm 4.7": ("<arg_key>k</arg_key><arg_value>", ("<arg_key>", "</arg_value>"),
                rf"<tool_call>NAME<arg_key>k</arg_key><arg_value>{V}</arg_value></tool_call>"),
    "minimax": ("<minimax:tool_call><invoke name=", (),
                rf'<minimax:tool_call>\n<invoke name="NAME">\n<parameter name="k">{V}</parameter>\n?</invoke>'
                r"\n</minimax:tool_call>"),
    "deepseek-dsml": ("<｜DSML｜function_calls><｜DSML｜invoke name=", (),
                      rf'<｜DSML｜function_calls>\n<｜DSML｜invoke name="NAME">\n<｜DSML｜parameter name="k" '
                      rf'string="true">{V}</｜DSML｜parameter>\n?</｜DSML｜invoke>\n</｜DSML｜function_calls>'),
    "deepseek-v4": ("<｜DSML｜tool_calls><｜DSML｜invoke name=", (),
                    rf'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="NAME">\n<｜DSML｜parameter name="k" '
                    rf'string="true">{V}</｜DSML｜parameter>\n?</｜DSML｜invoke>\n</｜DSML｜tool_calls>'),
    "minicpm5": ('<function name="f"><param name="p">', (),
                 rf'<function name="NAME"><param name="k">{V}</param></function>'),
    "gemma4": ('<|tool_call><|"|>', ("<|tool_call>", "<tool_call|>", '<|"|>'),
               rf'<\|tool_call>call:NAME{{k:<\|"\|>{V}<\|"\|>}}<tool_call\|>'),
    "mistral": ("[TOOL_CALLS][ARGS]", ("[TOOL_CALLS]", "[ARGS]"),
                r'\[TOOL_CALLS\]NAME\[ARGS\]{\s*"k"\s*:\s*"(one|two)"\s*}'),
    "lfm2": ("<|tool_call_start|>", ("<|tool_call_start|>", "<|tool_call_end|>"),
             r'<\|tool_call_start\|>\[NAME\(k="(one|two)"\)\]<\|tool_call_end\|>'),
    "pythonic": ("[func_name1(params_name1=", (),
                 r'<\|python_start\|>\[NAME\(k="(one|two)"\)\]<\|python_end\|>'),
    "kimi": ("<|tool_calls_section_begin|>", (),
             r'<\|tool_calls_section_begin\|><\|tool_call_begin\|>functions.NAME:0<\|tool_call_argument_begin\|>'
             r'{\s*"k"\s*:\s*"(one|two)"\s*}<\|tool_call_end\|><\|tool_calls_section_end\|>'),
    "llama3.2": ('"parameters": dictionary of argument name', (),
                 r'{"name": "NAME", "parameters": {\s*"k"\s*:\s*"(one|two)"\s*}}'),
    "harmony": ("<|channel|><|message|>", ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>",
                                             "<|end|>", "<|call|>"),
                r'(<\|channel\|>analysis<\|message\|>.*<\|end\|><\|start\|>assistant)?<\|channel\|>commentary '
                r'to=functions.NAME <\|constrain\|>json<\|message\|>{\s*"k"\s*:\s*"(one|two)"\s*}'),
}
PLAIN_ANSWER = {"type": "object", "required": ["z"], "additionalProperties": False,
                "properties": {"z": {"enum": [1, 2]}}}


def spelled(choice):
    return bytes(b for t in choice.logprobs.content for b in t.bytes or t.token.encode()).decode()


@pytest.mark.parametrize("name", FORMS)
def test_calls_in_the_models_own_form(launch, tmp_path, name):
    """Forced, strict, and beside a response_format: what the model writes is what its family writes."""
    shown, special, form = FORMS[name]
    folder = tmp_path
    wire.write_tokenizer(folder, TEMPLATE.split("#}", 1)[1] + "{#- " + shown + " -#}", special)
    s = launch(folder)
    try:
        with openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0) as c:
            def ask(text, **fields):
                r = c.chat.completions.create(
                    model="scripted", messages=[{"role": "user", "content": text}], tools=CHOICES,
                    logprobs=True, temperature=1, **fields)
                return r.choices[0]
            second = {"type": "function", "function": {"name": "second"}}
            table = {n: wire.special_id(i) for i, n in enumerate(special)}
            rather = say("I would rather talk.")
            if name == "harmony":  # not a word of analysis, which might be long
                rather = script([table["<|channel|>"], *b"comm I would rather talk."])
            for seed, choice in enumerate(("required", second, second)):
                got = ask(rather, seed=seed, tool_choice=choice, parallel_tool_calls=choice == second)
                assert got.message.tool_calls, (got, spelled(got))
                call = got.message.tool_calls[0].function
                text = spelled(got).strip()
                assert choice != second or re.fullmatch(form.replace("NAME", "second"), text, re.S), text
                assert json.loads(call.arguments)["k"] in ("one", "two") and not got.message.content
            got = ask(say("just text"))
            assert got.message.content == "just text" and not got.message.tool_calls
            # an answer of the schema, or a call
            fmt = {"type": "json_schema", "json_schema": {"name": "s", "schema": PLAIN_ANSWER}}
            text = '{"z": 2}'
            if name == "harmony":
                lead = [table["<|channel|>"], *b"final", table["<|message|>"]]
                got = ask(script(lead + list(text.encode())), response_format=fmt)
            else:
                got = ask(say(text), response_format=fmt)
            assert json.loads(got.message.content) == {"z": 2} and not got.message.tool_calls
            if form.startswith("{"):
                return
            one = re.sub(r"\\(.)|\?", r"\1", form.replace("\\n", "\n").replace("NAME", "second")
                         .replace("(one|two)", "one").replace("\\s*", ""))
            one = one.replace("{{", "{").replace("}}", "}") if name == "gemma4" else one
            if name == "harmony":
                one = one[one.index("<|channel|>commentary"):]
            parts = re.split("(" + "|".join(map(re.escape, table)) + ")", one) if table else [one]
            ids = [i for p in parts for i in ([table[p]] if p in table else p.encode())]
            got = ask(script(ids), response_format=fmt)
            assert [t.function.name for t in got.message.tool_calls or []] == ["second"], spelled(got)
            # strict with auto: the model wants another value, which has no place
            at = ids.index(ord("o"), len(ids) - ids[::-1].index(ord("k")))
            got = ask(script(ids[:at + 2] + [ord("X")] + ids[at + 3:]), max_tokens=400)
            assert json.loads(got.message.tool_calls[0].function.arguments) == {"k": "one"}
    finally:
        assert s.stop()[0] == 0


def many_tools(size):
    """60 tools whose JSON has about `size` bytes; names of every legal kind, alike parameters."""
    names = ["a.b", "a-b", "a_b", "n" * 64] + [f"tool_{i}" for i in range(56)]
    tools = [{"type": "function", "function": {"name": n, "description": "d", "parameters": {
        "type": "object", "required": ["k"], "properties": {
            "k": {"enum": ["one", "two"]}, "text": {"type": "string", "maxLength": 65536},
            "list": {"type": "array", "items": {"type": "integer"}}}}}} for n in names]
    pad = (size - len(json.dumps(tools))) // 60
    for t in tools:
        t["function"]["description"] = "d" * (pad + 1)
    return tools


@pytest.mark.parametrize("size", [97 << 10, 101 << 10])
def test_big_tool_lists(launch, tmp_path, size):
    wire.write_tokenizer(tmp_path, TEMPLATE)
    s, tools = launch(tmp_path, "--ctx", 200000), many_tools(size)
    try:
        assert abs(len(json.dumps(tools)) - size) < 200
        for choice in ("auto", "required", {"type": "function", "function": {"name": "n" * 64}},
                       {"type": "function", "function": {"name": "a.b"}}):
            name = "a.b" if isinstance(choice, str) else choice["function"]["name"]
            r = wire.post(s, "/v1/chat/completions", {
                **wire.chat_body(say(call(name, k="two"))), "tools": tools, "tool_choice": choice,
                "max_tokens": 3000, "parallel_tool_calls": False}, timeout=60)
            assert r.status == 200, r
            c = r.json()["choices"][0]["message"]["tool_calls"][0]["function"]
            assert (c["name"], c["arguments"]) == (name, '{"k":"two"}')
        r = wire.post(s, "/v1/chat/completions", {**wire.chat_body("x"), "tools": tools, "tool_choice": {
            "type": "function", "function": {"name": "nope"}}})
        assert r.status == 400 and r.error()["param"] == "tool_choice"
    finally:
        assert s.stop()[0] == 0


@pytest.mark.parametrize("parameters", [
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "(" * 60000}}},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "(" * 60000 + ")" * 60000}}},
    {"type": "object", "properties": {"a": {"type": "array", "minItems": 10000, "items": {"type": "integer"}}}},
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 65536, "maxLength": 65536}}},
])
def test_hostile_tool_schemas(launch, folders, parameters):
    """Answered or refused with the keyword, soon, and the next request is right."""
    s = launch(folders["qwen"], "--ctx", 200000)
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}]
    try:
        r = wire.post(s, "/v1/chat/completions", {
            **wire.chat_body(say("x")), "tools": tools, "tool_choice": "required", "max_tokens": 5})
        assert r.status == 200 or (r.status == 400 and "pattern" in r.error()["message"]), r
        assert wire.post(s, "/v1/chat/completions", wire.chat_body(say("ok"))).status == 200
    finally:
        assert s.stop()[0] == 0


def test_forced_after_reasoning(client):
    got, _ = both(client, say("hm</think>"), tools=CHOICES, reasoning_effort="low", seed=1,
                  tool_choice="required", parallel_tool_calls=False)
    assert got["reasoning"] == "hm" and len(got["calls"]) == 1 and got["content"] is None


def test_strict_tools_fit_their_schema(client):
    good = call("second", k="one")
    bad = call("second", k="onX")
    got, _ = both(client, say("ok " + good), tools=CHOICES)
    assert got["content"] == "ok" and json.loads(got["calls"][0]["arguments"]) == {"k": "one"}
    got, _ = both(client, say(bad), tools=CHOICES, max_tokens=200, seed=1)
    assert json.loads(got["calls"][0]["arguments"]) == {"k": "one"}
    got, _ = both(client, say("just text"), tools=CHOICES)
    assert got["content"] == "just text" and got["calls"] == []


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_thinking_budget(client, budget):
    fields = {"extra_body": {"thinking_budget": budget,
                             "chat_template_kwargs": {"enable_thinking": True}}}
    got, r = both(client, script([97] * 40), max_tokens=30, **fields)
    assert got["reasoning"] == "a" * budget
    end = len("\n</think>\n\n")
    assert got["content"] == "a" * (30 - budget - end) and got["finish"] == ["length"]
    assert r.usage.completion_tokens == 30
    got, r = both(client, say("ab</think>c"), extra_body={
        **fields["extra_body"], "thinking_budget": 200})
    assert (got["reasoning"], got["content"]) == ("ab", "c")
    assert r.usage.completion_tokens_details.reasoning_tokens == len("ab</think>")


def test_templates_without_tools(launch, tokenizer, folders, tmp_path):
    """The tools stand in the system message, calls and results become text."""
    wire.write_tokenizer(tmp_path, wire.TEMPLATE.replace("tools", "t00ls"))
    s = launch(tmp_path)
    body = {"tools": TOOLS, "messages": [
        {"role": "system", "content": "S"}, {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "12:00"},
        {"role": "tool", "tool_call_id": "d", "content": "13:00"}]}
    try:
        prompt = wire.request(s, "POST", "/apply-template", body).json()["prompt"]
        assert prompt.startswith("system:S\n\nYou can call functions.")
        assert '"name":"get_weather"' in prompt
        assert 'assistant:{"name": "now", "arguments": {}}' in prompt
        assert prompt.count("user:") == 2 and prompt.count("<tool_response>") == 2
        with openai.OpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0) as c:
            got, _ = both(c, say('{"name": "now", "arguments": {}}'), tools=TOOLS)
            assert got["calls"] == [{"name": "now", "arguments": "{}"}]
            one = '{"name": "now", "arguments": {}}'
            got, _ = both(c, say(f"I look.\n{one}\n{one}"), tools=TOOLS)
            assert got["content"] == "I look." and len(got["calls"]) == 2
            for text in ('so {"name": "now"} is', 'a\n{"x": {"y": 1}}\n{\n{"name": "nope", "arguments": {}}',
                         '{"x": 1}\n[1,\n{"a": 2}]'):
                got, _ = both(c, say(text), tools=TOOLS)
                assert got["content"] == text and got["calls"] == []
    finally:
        assert s.stop()[0] == 0


@pytest.mark.parametrize("fields, param", [
    ({"tools": {}}, "tools"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]},
     "tools[0].function.parameters"),
    ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "zzz"}}},
     "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools.mode"),
    ({"tools": TOOLS, "tool_choice": allowed("some", "now")}, "tool_choice.allowed_tools.mode"),
    ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
    ({"tools": TOOLS, "tool_choice": allowed("auto", "now", "zzz")},
     "tool_choice.allowed_tools.tools[1].function.name"),
    ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"thinking_budget": -1}, "thinking_budget"),
])
def test_refusals(tool_server, fields, param):
    r = wire.request(tool_server, "POST", "/v1/chat/completions",
                     {**wire.chat_body("x"), **fields})
    assert r.status == 400 and r.error()["param"] == param


def test_completions_stay_raw(client):
    text = "<think>a</think>" + call("now")
    r = client.completions.create(model="scripted", prompt=say(text) + "<|answer|>")
    assert r.choices[0].text == text


# ---- a trained model ---------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
QUERN = Path(os.environ.get("QUERN_BIN", ROOT / "build" / "src" / "cli" / "quern"))
MODELS = Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared")) / "models"


def held_out_calls(n):
    """Tasks whose right answer is one call: (messages, tools, name, parameters as text)."""
    with lzma.open(MODELS / "heldout_tasks.jsonl.xz", "rt") as f:
        for line in f:
            d = json.loads(line)
            if d["task"] == "tool" and d["answer"].startswith("<tool_call>") and n > 0:
                n -= 1
                yield (d["messages"], d["tools"],
                       re.search(r"<function=(\w+)>", d["answer"]).group(1),
                       dict(re.findall(r"<parameter=(\w+)>\n(.*?)\n</parameter>", d["answer"],
                                       re.S)))


def test_a_trained_model_calls_the_right_tool():
    folder = MODELS / "tiny-qwen3_5-mtp"
    if not (folder / "model.safetensors").exists() or not QUERN.exists():
        pytest.skip(f"needs {folder} (QUERN_SHARED) and {QUERN} (QUERN_BIN)")
    p = subprocess.Popen([str(QUERN), "serve", "--port", "0", "--no-access-log", "--thinking",
                          "off", str(folder)], stdout=subprocess.PIPE, text=True)
    text = ""
    while "Ctrl-C" not in text:
        line = p.stdout.readline()
        assert line, (text, p.wait())
        text += line
    url = re.search(r"at (http://\S+)", text).group(1)
    right = 0
    with openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as c:
        for messages, tools, name, params in held_out_calls(10):
            r = c.chat.completions.create(model=folder.name, messages=messages, tools=tools,
                                          temperature=0, max_tokens=200).choices[0]
            assert r.finish_reason == "tool_calls" and r.message.content is None
            call = r.message.tool_calls[0].function
            args = {k: str(v) for k, v in json.loads(call.arguments).items()}
            right += call.name == name and args == params
    p.terminate()
    assert p.wait(timeout=60) == 0
    p.stdout.close()
    assert right >= 8
