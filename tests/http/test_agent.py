"""An agent-like client over each dialect's SDK: many turns, tool calls and their results, thinking, an
image that is refused politely in the middle, and the same talk in every dialect."""

import json

import pytest

import wire
from wire import say

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
          "required": ["path"]}
NAMES = ["read_file", "search"]


def call_text(name, **args):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": args}) + "\n</tool_call>"


# What the model says in each turn: (thought, text, calls).
TURNS = [
    ("I should look.", "Let me look.", [("read_file", {"path": "a \"b\".c", "line": 3})]),
    ("", "", [("search", {"path": "."}), ("read_file", {"path": "ü/漢.c"})]),
    ("Now I know.", "The answer is 🙂.", []),
    ("", "Anything else?", []),
]


def spoken(turn):
    thought, text, calls = turn
    out = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return out + text + ("\n" if text and calls else "") + "\n".join(
        call_text(n, **a) for n, a in calls)


def result_of(name, args):
    return f"{name} gave {sorted(args)}"


# Thinking of earlier turns is cut away, as Qwen's templates do.
TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "Answer with <tool_call>{}</tool_call>\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ (m.content or '').split('</think>')[-1] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id | length > 0 }}){% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|answer|>{% endif %}{# <think> #}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import Server
    folder = tmp_path_factory.mktemp("agent-tokenizer")
    wire.write_tokenizer(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    s = Server(folder, "--ctx", 32768)
    yield s
    code, text = s.stop()
    assert code == 0, text[-4000:]


def check(turn, thought, text, calls):
    want_thought, want_text, want_calls = turn
    assert (thought or "").strip() == want_thought
    assert (text or "").strip() == want_text
    assert [(n, a) for _, n, a in calls] == want_calls
    ids = [i for i, _, _ in calls]
    assert len(set(ids)) == len(ids) and all(ids)


# ---- one class per dialect: the same talk ------------------------------------------------------


class Chat:
    def __init__(self, server, stream):
        self.c = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
        self.stream = stream
        self.messages = [{"role": "system", "content": "You are an agent."}]
        self.tools = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}}
                      for n in NAMES]

    def user(self, text):
        self.messages.append({"role": "user", "content": text})

    def image(self):
        parts = [{"type": "text", "text": "see"},
                 {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
        with pytest.raises(openai.BadRequestError) as e:
            self.c.chat.completions.create(model="scripted", messages=self.messages + [
                {"role": "user", "content": parts}])
        assert "image_url" in str(e.value) and "text" in str(e.value)

    def turn(self):
        args = dict(model="scripted", messages=self.messages, tools=self.tools)
        if self.stream:
            with self.c.chat.completions.stream(**args,
                                                stream_options={"include_usage": True}) as s:
                reasoning = "".join(
                    getattr(e.chunk.choices[0].delta, "reasoning", None) or "" for e in s
                    if e.type == "chunk" and e.chunk.choices)
                r = s.get_final_completion()
        else:
            r = self.c.chat.completions.create(**args)
            reasoning = getattr(r.choices[0].message, "reasoning", None)
        m = r.choices[0].message
        calls = [(t.id, t.function.name, json.loads(t.function.arguments))
                 for t in m.tool_calls or []]
        assert r.choices[0].finish_reason == ("tool_calls" if calls else "stop")
        self.messages.append({"role": "assistant", "content": m.content, "reasoning": reasoning,
                              **({"tool_calls": [t.model_dump() for t in m.tool_calls]}
                                 if calls else {})})
        for i, n, a in calls:
            self.messages.append({"role": "tool", "tool_call_id": i, "content": result_of(n, a)})
        return reasoning, m.content, calls, r.usage.prompt_tokens


class Messages:
    def __init__(self, server, stream):
        self.c = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)
        self.stream = stream
        self.messages = []
        self.tools = [{"name": n, "input_schema": SCHEMA} for n in NAMES]

    def args(self):
        return dict(model="scripted", messages=self.messages, tools=self.tools,
                    system="You are an agent.")

    def user(self, text):
        self.messages.append({"role": "user", "content": text})

    def image(self):
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                             "data": "AAAA"}}
        with pytest.raises(anthropic.BadRequestError) as e:
            self.c.messages.create(model="scripted", max_tokens=9, messages=self.messages + [
                {"role": "user", "content": [{"type": "text", "text": "see"}, block]}])
        assert "image" in str(e.value) and "text" in str(e.value)

    def turn(self):
        counted = self.c.messages.count_tokens(**self.args()).input_tokens
        if self.stream:
            with self.c.messages.stream(max_tokens=9000, **self.args()) as s:
                r = s.get_final_message()
        else:
            r = self.c.messages.create(max_tokens=9000, **self.args())
        kinds = [b.type for b in r.content]
        assert kinds == sorted(kinds, key=["thinking", "text", "tool_use"].index)
        thought = "".join(b.thinking for b in r.content if b.type == "thinking")
        text = "".join(b.text for b in r.content if b.type == "text")
        calls = [(b.id, b.name, b.input) for b in r.content if b.type == "tool_use"]
        assert r.stop_reason == ("tool_use" if calls else "end_turn")
        assert counted == r.usage.input_tokens + r.usage.cache_read_input_tokens
        self.messages.append({"role": "assistant", "content": r.content})
        if calls:
            self.messages.append({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": i, "content": result_of(n, a)}
                for i, n, a in reversed(calls)]})  # the order is the server's business
        return thought, text, calls, counted


class Responses:
    """items: the client sends the whole talk; chained: only what is new."""

    def __init__(self, server, stream, chained):
        self.c = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
        self.stream, self.chained, self.last = stream, chained, None
        self.items = []
        self.tools = [{"type": "function", "name": n, "parameters": SCHEMA, "strict": False}
                      for n in NAMES]

    def user(self, text):
        self.items.append({"role": "user", "content": text})

    def image(self):
        parts = [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]
        with pytest.raises(openai.BadRequestError) as e:
            self.c.responses.create(model="scripted", input=[{"role": "user", "content": parts}])
        assert "input_image" in str(e.value) and "text" in str(e.value)

    def turn(self):
        args = dict(model="scripted", input=self.items, tools=self.tools,
                    instructions="You are an agent.", store=self.chained)
        if self.chained and self.last:
            args["previous_response_id"] = self.last
        if self.stream:
            with self.c.responses.stream(**args) as s:
                r = s.get_final_response()
        else:
            r = self.c.responses.create(**args)
        assert r.status == "completed"
        self.last = r.id
        thought = "".join(p.text for i in r.output if i.type == "reasoning" for p in i.summary)
        calls = [(i.call_id, i.name, json.loads(i.arguments)) for i in r.output
                 if i.type == "function_call"]
        self.items = [] if self.chained else self.items + [
            i.model_dump(exclude_none=True, exclude={"parsed", "parsed_arguments"})
            for i in r.output]
        self.items += [{"type": "function_call_output", "call_id": i, "output": result_of(n, a)}
                       for i, n, a in reversed(calls)]
        return thought, r.output_text, calls, r.usage.input_tokens


DIALECTS = {"chat": Chat, "messages": Messages,
            "responses": lambda s, stream: Responses(s, stream, False),
            "chained": lambda s, stream: Responses(s, stream, True)}


def talk(agent):
    """The prompt's length in every turn."""
    lengths = []
    for k, turn in enumerate(TURNS):
        last_called = k > 0 and TURNS[k - 1][2]
        # The script rides in a user message: after results the user speaks up as well.
        agent.user(("results seen " if last_called else "go on ") + say(spoken(turn)))
        thought, text, calls, n = agent.turn()
        check(turn, thought, text, calls)
        lengths.append(n)
        if k == 1:
            agent.image()
    return lengths


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_agent(server, dialect, stream):
    lengths = talk(DIALECTS[dialect](server, stream))
    assert lengths == sorted(lengths)


def test_every_dialect_sends_the_same_prompt(server):
    lengths = {d: talk(DIALECTS[d](server, False)) for d in DIALECTS}
    assert len(set(map(tuple, lengths.values()))) == 1, lengths


# ---- the shapes of thinking and calls, strictly the SDKs' ---------------------------------------


def test_anthropic_events_are_the_sdks(server):
    from anthropic import types
    from test_anthropic import raw_events
    models = {"message_start": types.RawMessageStartEvent,
              "content_block_start": types.RawContentBlockStartEvent,
              "content_block_delta": types.RawContentBlockDeltaEvent,
              "content_block_stop": types.RawContentBlockStopEvent,
              "message_delta": types.RawMessageDeltaEvent,
              "message_stop": types.RawMessageStopEvent}
    body = {"max_tokens": 9000, "tools": [{"name": n, "input_schema": SCHEMA} for n in NAMES],
            "messages": [{"role": "user", "content": say(spoken(TURNS[0]))}]}
    plain = wire.post(server, "/v1/messages", body).json()
    types.Message.model_validate(plain, strict=True)
    assert [b["type"] for b in plain["content"]] == ["thinking", "text", "tool_use"]
    assert plain["stop_reason"] == "tool_use" and plain["stop_sequence"] is None
    assert plain["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    events = raw_events(wire.post(server, "/v1/messages", {**body, "stream": True}).body)
    starts, stops = [], []
    for name, payload in events:
        models[name].model_validate(payload, strict=True)
        assert set(payload) <= set(models[name].model_fields)
        if name == "content_block_start":
            assert len(starts) == len(stops)  # one open at a time
            starts.append((payload["index"], payload["content_block"]["type"]))
        elif name == "content_block_stop":
            stops.append(payload["index"])
        elif name == "content_block_delta":
            assert payload["index"] == starts[-1][0]
    assert starts == [(0, "thinking"), (1, "text"), (2, "tool_use")] and stops == [0, 1, 2]
    pieces = [p["delta"]["partial_json"] for n, p in events
              if n == "content_block_delta" and p["delta"]["type"] == "input_json_delta"]
    assert json.loads("".join(pieces)) == plain["content"][2]["input"]


def test_responses_events_are_the_sdks(server):
    from openai.types import responses as types
    from test_anthropic import raw_events
    body = {"tools": [{"type": "function", "name": n, "parameters": SCHEMA} for n in NAMES],
            "input": say(spoken(TURNS[0]))}
    plain = wire.post(server, "/v1/responses", body).json()
    types.Response.model_validate(plain, strict=True)
    assert [i["type"] for i in plain["output"]] == ["reasoning", "message", "function_call"]
    assert plain["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = raw_events(wire.post(server, "/v1/responses", {**body, "stream": True}).body)
    from typing import get_args
    union = get_args(get_args(types.ResponseStreamEvent)[0])
    by_type = {get_args(m.model_fields["type"].annotation)[0]: m for m in union}
    for name, payload in events:
        by_type[name].model_validate(payload, strict=True)
        assert set(payload) <= set(by_type[name].model_fields), name
    names = [n for n, _ in events]
    kinds = [n for i, n in enumerate(names) if i == 0 or n != names[i - 1]]
    p = "response."
    assert kinds == [
        p + "created", p + "in_progress",
        p + "output_item.added", p + "reasoning_summary_part.added",
        p + "reasoning_summary_text.delta", p + "reasoning_summary_text.done",
        p + "reasoning_summary_part.done", p + "output_item.done",
        p + "output_item.added", p + "content_part.added", p + "output_text.delta",
        p + "output_text.done", p + "content_part.done", p + "output_item.done",
        p + "output_item.added", p + "function_call_arguments.delta",
        p + "function_call_arguments.done", p + "output_item.done", p + "completed"]


def test_a_call_that_is_cut(server):
    """max_tokens inside the arguments: what exists is told, the reason is the limit."""
    text = call_text("read_file", path="x" * 50)
    tools = [{"name": n, "input_schema": SCHEMA} for n in NAMES]
    body = {"max_tokens": len(text) - 40, "tools": tools,
            "messages": [{"role": "user", "content": say(text)}]}
    r = wire.post(server, "/v1/messages", body).json()
    assert r["stop_reason"] == "max_tokens" and r["content"][-1]["type"] == "tool_use"
    assert isinstance(r["content"][-1]["input"], dict)
    r = wire.post(server, "/v1/responses", {
        "max_output_tokens": len(text) - 40, "input": say(text),
        "tools": [{"type": "function", "name": n, "parameters": SCHEMA} for n in NAMES]}).json()
    assert r["status"] == "incomplete" and r["output"][-1]["type"] == "function_call"
    assert r["output"][-1]["status"] == "incomplete"
