"""/v1/messages with the anthropic Python SDK and with raw bodies: shapes, event order, refusals."""

import json

import pytest

import wire
from wire import chat_body, post, request, say, script

anthropic = pytest.importorskip("anthropic")
from anthropic import types  # noqa: E402

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as c:
        yield c


def body(content, **fields):
    return {"max_tokens": 500, "messages": [{"role": "user", "content": content}], **fields}


def raw_events(raw):
    """[(event name, payload)] of an SSE body; checks framing and that each type is its name."""
    text = raw.decode("utf-8")
    assert text.endswith("\n\n")
    out = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        first, second = block.split("\n")
        assert first.startswith("event: ") and second.startswith("data: ")
        payload = json.loads(second[6:])
        assert payload["type"] == first[7:]
        out.append((first[7:], payload))
    return out


def streamed(server, content, **fields):
    r = post(server, PATH, body(content, stream=True, **fields))
    assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream"), r
    return raw_events(r.body)


def error_of(r):
    e = r.json()
    assert set(e) == {"type", "error", "request_id"} and e["type"] == "error", e
    assert set(e["error"]) == {"type", "message"} and e["error"]["message"]
    assert e["request_id"] == r.headers["request-id"] == r.headers["x-request-id"]
    return e["error"]


# ---- answers ----------------------------------------------------------------------------------


def test_message(client):
    m = client.messages.create(model="scripted", max_tokens=100,
                               messages=chat_body(say("hello 🙂"))["messages"])
    assert m.id.startswith("msg_") and m.role == "assistant" and m.model == "scripted"
    assert [b.type for b in m.content] == ["text"] and m.content[0].text == "hello 🙂"
    assert m.stop_reason == "end_turn" and m.stop_sequence is None
    assert m.usage.input_tokens > 10 and m.usage.output_tokens == len("hello 🙂".encode()) + 1
    assert m.usage.cache_read_input_tokens == 0 == m.usage.cache_creation_input_tokens
    assert m._request_id.startswith("req_")


def test_shape_is_the_sdks(server):
    """Strictly what the SDK's types say: no type is coerced, no field is unknown to them."""
    r = post(server, PATH, body(say("x"))).json()
    types.Message.model_validate(r, strict=True)
    assert set(r) <= set(types.Message.model_fields)
    assert set(r["usage"]) <= set(types.Usage.model_fields)
    models = {"message_start": types.RawMessageStartEvent,
              "content_block_start": types.RawContentBlockStartEvent,
              "content_block_delta": types.RawContentBlockDeltaEvent,
              "content_block_stop": types.RawContentBlockStopEvent,
              "message_delta": types.RawMessageDeltaEvent,
              "message_stop": types.RawMessageStopEvent}
    for name, payload in streamed(server, say("xyz")):
        models[name].model_validate(payload, strict=True)
        assert set(payload) <= set(models[name].model_fields)


def test_stream_events_in_order(server):
    events = streamed(server, say("abc"))
    names = [n for n, _ in events]
    deltas = names.count("content_block_delta")
    assert deltas >= 1
    assert names == (["message_start", "content_block_start"] + ["content_block_delta"] * deltas
                     + ["content_block_stop", "message_delta", "message_stop"])
    start = events[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["id"][:4] == "msg_"
    assert start["usage"]["input_tokens"] > 0 and start["usage"]["output_tokens"] == 0
    assert events[1][1] == {"type": "content_block_start", "index": 0,
                            "content_block": {"type": "text", "text": ""}}
    assert all(p["index"] == 0 for n, p in events if n.startswith("content_block"))
    end = events[-2][1]
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 4
    assert end["usage"]["input_tokens"] == start["usage"]["input_tokens"]


def test_stream_equals_plain(client, server):
    for text in ("plain", "🙂e\u0301x❤\ufe0f漢字", "  spaces\n\n", "a" * 300):
        args = dict(model="scripted", max_tokens=400, messages=chat_body(say(text))["messages"])
        plain = client.messages.create(**args)
        with client.messages.stream(**args) as s:
            pieces = list(s.text_stream)
            final = s.get_final_message()
        assert "".join(pieces) == text == plain.content[0].text == final.content[0].text
        assert all("\ufffd" not in p for p in pieces)
        assert final.stop_reason == plain.stop_reason == "end_turn"
        assert final.usage == plain.usage


def test_characters_cut_into_tokens(server):
    raw = "🙂".encode()
    pieces = [raw[:2], raw[2:], b"e", "\u0301".encode(), b"x", "漢字".encode()]
    events = streamed(server, script(wire.ids_of(pieces)))
    parts = [p["delta"]["text"] for n, p in events if n == "content_block_delta"]
    assert "".join(parts) == "🙂e\u0301x漢字" and all("\ufffd" not in p and p for p in parts)


def test_empty_generation_is_one_empty_block(server):
    r = post(server, PATH, body(script([]))).json()
    assert r["content"] == [{"type": "text", "text": ""}] and r["stop_reason"] == "end_turn"
    names = [n for n, _ in streamed(server, script([]))]
    assert names == ["message_start", "content_block_start", "content_block_stop",
                     "message_delta", "message_stop"]


def test_max_tokens(server):
    r = post(server, PATH, body(say("abcdef"), max_tokens=3)).json()
    assert r["content"][0]["text"] == "abc" and r["stop_reason"] == "max_tokens"
    assert r["usage"]["output_tokens"] == 3 and r["stop_sequence"] is None
    r = post(server, PATH, body(say("abc"), max_tokens=0)).json()
    assert r["content"][0]["text"] == "" and r["stop_reason"] == "max_tokens"


def test_stop_sequence_is_told(server):
    text = "The quick brown fox jumps"
    for stops in (["own fox"], ["zzz", "own fox", "fox"]):
        r = post(server, PATH, body(say(text), stop_sequences=stops)).json()
        assert r["content"][0]["text"] == "The quick br"
        assert r["stop_reason"] == "stop_sequence" and r["stop_sequence"] == "own fox"
        end = streamed(server, say(text), stop_sequences=stops)[-2][1]["delta"]
        assert end == {"stop_reason": "stop_sequence", "stop_sequence": "own fox"}


def test_sampling_fields(client):
    def text(*, metadata=anthropic.NOT_GIVEN, **extra):
        return client.messages.create(model="scripted", max_tokens=20, metadata=metadata,
                                      messages=chat_body("free")["messages"],
                                      extra_body=extra).content[0].text
    assert text(temperature=0) == text(temperature=0) == text(top_k=1)
    assert text(temperature=1, seed=1) == text(temperature=1, seed=1) != text(temperature=1, seed=2)
    assert text(temperature=0, top_p=0.5, metadata={"user_id": "u"}) == text(temperature=0)


# ---- prompts: the same talk in both dialects has the same tokens --------------------------------


def chat_count(server, messages, **fields):
    r = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1, **fields})
    assert r.status == 200, r
    return r.json()["usage"]["prompt_tokens"]


def count(server, messages, **fields):
    r = post(server, COUNT, {"messages": messages, **fields})
    assert r.status == 200, r
    assert list(r.json()) == ["input_tokens"]
    return r.json()["input_tokens"]


U = {"role": "user", "content": "u"}
TALKS = [
    ([U], {}, [U]),
    ([U], {"system": "be brief"}, [{"role": "system", "content": "be brief"}, U]),
    ([U], {"system": [{"type": "text", "text": "one"},
                      {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}]},
     [{"role": "system", "content": "one\n\ntwo"}, U]),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
     {}, [{"role": "user", "content": "ab"}]),
    ([U, {"role": "assistant", "content": "pre"}], {}, [U, {"role": "assistant", "content": "pre"}]),
    ([U, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "long thoughts", "signature": ""},
        {"type": "redacted_thinking", "data": "xx"}, {"type": "text", "text": "said"}]}, U],
     {}, [U, {"role": "assistant", "content": "said"}, U]),
    ([{"role": "user", "content": [
        {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain",
                                                      "data": "words"}},
        {"type": "text", "text": "?"}]}], {}, [{"role": "user", "content": "t\n\nwords?"}]),
    ([U, {"role": "assistant", "content": [
        {"type": "text", "text": "ok"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
      {"role": "user", "content": [
          {"type": "text", "text": "and now?"},
          {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
          {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "r"}]},
      ]}], {},
     [U, {"role": "assistant", "content": "ok"}, {"role": "tool", "content": "r"},
      {"role": "tool", "content": "Error: no"}, {"role": "user", "content": "and now?"}]),
    ([U], {"tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]},
     ([U], {"tools": [{"type": "function", "function": {
         "name": "f", "description": "d", "parameters": {"type": "object"}}}]})),
]


@pytest.mark.parametrize("talk", range(len(TALKS)))
def test_same_prompt_as_the_chat_route(server, talk):
    messages, fields, same = TALKS[talk]
    same, more = same if isinstance(same, tuple) else (same, {})
    n = count(server, messages, **fields)
    assert n == chat_count(server, same, **more)
    r = post(server, PATH, {"messages": messages, "max_tokens": 1, **fields}).json()
    u = r["usage"]
    assert u["input_tokens"] + u["cache_read_input_tokens"] == n


def test_count_tokens_with_the_sdk(client):
    n = client.messages.count_tokens(model="scripted", system="s", messages=[U])
    m = client.messages.create(model="scripted", max_tokens=1, system="s", messages=[U])
    assert n.input_tokens == m.usage.input_tokens + m.usage.cache_read_input_tokens


def test_count_tokens_beyond_the_window(server):
    n = count(server, [{"role": "user", "content": "x" * 5000}])
    assert n > 5000


# ---- refusals ----------------------------------------------------------------------------------

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
BAD = [
    ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": None}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [U, {"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}]},
     "messages[1].content[1].type is \"image\""),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a",
                                                 "content": [IMAGE]}]}]},
     "messages[0].content[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {
        "type": "base64", "data": "AA"}}]}]}, "messages[0].content[0].source"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]}, ".id"),
    ({"messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "f", "input": "x"}]}]}, ".input"),
    ({"system": 5}, "system"), ({"system": [IMAGE]}, "system[0].type"),
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"),
    ({"temperature": 3}, "temperature"), ({"temperature": "x"}, "temperature"),
    ({"top_p": 0}, "top_p"), ({"top_k": -1}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences"), ({"stop_sequences": [5]}, "stop_sequences"),
    ({"stream": "yes"}, "stream"), ({"metadata": 5}, "metadata"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"), ({"tools": {}}, "tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "perhaps"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "g"}},
     "\"g\""),
    ({"thinking": {"type": "often"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": "9"}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
]


@pytest.mark.parametrize("fields,words", BAD, ids=range(len(BAD)))
def test_bad_fields(server, fields, words):
    r = post(server, PATH, {**body("x"), **fields})
    assert r.status == 400, r
    e = error_of(r)
    assert e["type"] == "invalid_request_error" and words in e["message"], e
    streaming = post(server, PATH, {**body("x", stream=True), **fields})
    assert streaming.status == 400  # before the first byte of a stream


BROKEN = [b"{", b"[]", b"null", b'"x"', b"", b'{"messages": [],}', b"[" * 100000, b"\xff",
          b'{"max_tokens": 5}', b"{}"]


@pytest.mark.parametrize("raw", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("path", [PATH, COUNT])
def test_broken_bodies(server, path, raw):
    r = post(server, path, raw)
    assert r.status == 400 and error_of(r)["type"] == "invalid_request_error"
    assert post(server, PATH, body(say("fine"))).json()["content"][0]["text"] == "fine"


def test_other_refusals(server, start):
    r = post(server, PATH, {**body("x"), "model": "gpt-9"})
    assert r.status == 404 and error_of(r)["type"] == "not_found_error"
    r = request(server, "GET", PATH)
    assert r.status == 405 and error_of(r) and "POST" in r.headers["allow"]
    r = post(server, PATH + "/batches", {})
    assert r.status == 404 and error_of(r)["type"] == "not_found_error"
    r = request(server, "GET", "/v1/models/nope", headers={"anthropic-version": "2023-06-01"})
    assert r.status == 404 and error_of(r)
    small = start("--max-body", 2000)
    r = post(small, PATH, body("x" * 3000))
    assert r.status == 413
    assert r.json()["error"]["type"] == "request_too_large"
    keyed = start("--key", "k")
    r = post(keyed, PATH, body("x"))
    assert r.status == 401 and error_of(r)["type"] == "authentication_error"
    assert post(keyed, PATH, body(say("x")), headers={"x-api-key": "k"}).status == 200


def test_window(server):
    """Bug kind: a prompt above the window answered by a cut, or by a 200 with an error inside."""
    empty = count(server, [{"role": "user", "content": ""}])
    for stream in (False, True):
        for extra in (0, 3000):
            r = post(server, PATH, body("x" * (2048 - empty + extra), stream=stream))
            assert r.status == 400, r
            assert "2048" in error_of(r)["message"] and str(2048 + extra) in error_of(r)["message"]
    r = post(server, PATH, body("x" * (2047 - empty))).json()
    assert r["stop_reason"] == "max_tokens" and r["usage"]["output_tokens"] == 1


def test_sdk_error_classes(client, start, server):
    args = dict(model="scripted", max_tokens=5, messages=[U])
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(**{**args, "max_tokens": -1})
    assert e.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**args, "model": "other"})
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(**{**args, "messages": chat_body(script([65], fail=0))["messages"]})
    keyed = start("--key", "k")
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=keyed.url, api_key="no", max_retries=0).messages.create(**args)
    for good in (dict(api_key="k"), dict(auth_token="k")):
        c = anthropic.Anthropic(base_url=keyed.url, max_retries=0, **good)
        assert c.messages.create(**args).content


def test_fault_in_a_stream(client, server):
    events = streamed(server, script([65, 66, 67], fail=2))
    name, payload = events[-1]
    assert name == "error" and payload["error"]["type"] == "api_error"
    assert "secret" not in json.dumps(payload) and payload["request_id"].startswith("req_")
    assert [n for n, _ in events].count("message_stop") == 0
    with pytest.raises(anthropic.APIError):
        with client.messages.stream(model="scripted", max_tokens=9, messages=chat_body(
                script([65, 66], fail=1))["messages"]) as s:
            s.get_final_message()
    assert client.messages.create(model="scripted", max_tokens=9, messages=chat_body(
        say("ok"))["messages"]).content[0].text == "ok"


def test_models_for_both_sdks(client, server):
    (m,) = client.models.list()
    assert m.id == m.display_name == "scripted" and m.type == "model"
    assert client.models.retrieve("scripted").created_at.year >= 2024
    types.ModelInfo.model_validate_json(request(server, "GET", "/v1/models/scripted").body)


def test_thinking_settings_are_taken(client):
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"},
                     {"type": "adaptive"}):
        m = client.messages.create(model="scripted", max_tokens=2000, thinking=thinking,
                                   output_config={"effort": "low"},
                                   messages=chat_body(say("x"))["messages"])
        assert m.content[-1].text == "x"


def test_server_tools_are_left_out(server):
    web = {"type": "web_search_20250305", "name": "web_search"}
    assert count(server, [U], tools=[web]) == count(server, [U])
    f = {"name": "f", "input_schema": {"type": "object"}}
    assert count(server, [U], tools=[web, f]) == count(server, [U], tools=[f])
