"""/v1/responses with the openai Python SDK and with raw bodies: shapes, event order, the store."""

import json

import pytest

import wire
from test_anthropic import raw_events
from wire import chat_body, post, request, say, script

openai = pytest.importorskip("openai")
from openai.types import responses as types  # noqa: E402

PATH = "/v1/responses"


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


def streamed(server, content, **fields):
    r = post(server, PATH, {"input": content, "stream": True, **fields})
    assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream"), r
    events = raw_events(r.body)
    assert [p["sequence_number"] for _, p in events] == list(range(len(events)))
    return events


def count(server, body):
    r = post(server, PATH, {**body, "max_output_tokens": 1, "store": False})
    assert r.status == 200, r
    return r.json()["usage"]["input_tokens"]


def chat_count(server, messages, **fields):
    r = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1, **fields})
    assert r.status == 200, r
    return r.json()["usage"]["prompt_tokens"]


def normal(response):
    """A response without what differs from call to call."""
    text = json.dumps({k: v for k, v in response.items() if k not in ("created_at", "completed_at")})
    for item in response["output"]:
        text = text.replace(item["id"], "ITEM")
    return json.loads(text.replace(response["id"], "RESP"))


# ---- answers ----------------------------------------------------------------------------------


def test_response(client):
    r = client.responses.create(model="scripted", input=say("hello 🙂"))
    assert r.id.startswith("resp_") and r.status == "completed" and r.output_text == "hello 🙂"
    assert [i.type for i in r.output] == ["message"] and r.output[0].id.startswith("msg_")
    assert r.error is None and r.incomplete_details is None and r.store is True
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    assert r.usage.output_tokens == len("hello 🙂".encode()) + 1
    assert r.usage.input_tokens_details.cached_tokens == 0
    assert r.tool_choice == "auto" and r.tools == [] and r.parallel_tool_calls is True
    assert r.text.format.type == "text" and r.truncation == "disabled" and r.metadata == {}


BASE = {"id", "object", "created_at", "model", "status", "completed_at", "error",
        "incomplete_details", "output", "usage", "background", "store", "parallel_tool_calls",
        "instructions", "max_output_tokens", "max_tool_calls", "previous_response_id",
        "prompt_cache_key", "safety_identifier", "user", "metadata", "tool_choice", "truncation",
        "top_logprobs", "service_tier", "temperature", "top_p", "reasoning", "text", "tools"}
EVENTS = {
    "response.created": types.ResponseCreatedEvent,
    "response.in_progress": types.ResponseInProgressEvent,
    "response.output_item.added": types.ResponseOutputItemAddedEvent,
    "response.content_part.added": types.ResponseContentPartAddedEvent,
    "response.output_text.delta": types.ResponseTextDeltaEvent,
    "response.output_text.done": types.ResponseTextDoneEvent,
    "response.content_part.done": types.ResponseContentPartDoneEvent,
    "response.output_item.done": types.ResponseOutputItemDoneEvent,
    "response.completed": types.ResponseCompletedEvent,
    "response.incomplete": types.ResponseIncompleteEvent,
    "response.failed": types.ResponseFailedEvent,
}


def test_shape_is_the_sdks(server):
    """Strictly what the SDK's types say: no type is coerced, no field is unknown to them."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    r = post(server, PATH, {"input": say("x"), "tools": [tool], "metadata": {"a": "b"},
                            "instructions": "be", "reasoning": {"effort": "low"}}).json()
    assert set(r) == BASE
    types.Response.model_validate(r, strict=True)
    assert set(r) <= set(types.Response.model_fields) | {"store"}  # the API sends it all the same
    assert r["tools"] == [{**tool, "description": None}] and r["metadata"] == {"a": "b"}
    assert r["instructions"] == "be" and r["reasoning"] == {"effort": "low", "summary": None}
    for name, payload in streamed(server, say("xyz")):
        EVENTS[name].model_validate(payload, strict=True)
        assert set(payload) <= set(EVENTS[name].model_fields)


def test_stream_events_in_order(server):
    events = streamed(server, say("abc"))
    names = [n for n, _ in events]
    deltas = names.count("response.output_text.delta")
    assert deltas >= 1
    assert names == (
        ["response.created", "response.in_progress", "response.output_item.added",
         "response.content_part.added"] + ["response.output_text.delta"] * deltas +
        ["response.output_text.done", "response.content_part.done", "response.output_item.done",
         "response.completed"])
    first, last = events[0][1]["response"], events[-1][1]["response"]
    assert first["status"] == "in_progress" and first["output"] == [] and first["usage"] is None
    assert set(first) == set(last) == BASE and first["id"] == last["id"]
    added, done = events[2][1]["item"], events[-2][1]["item"]
    assert added["status"] == "in_progress" and added["content"] == []
    assert done["status"] == "completed" and last["output"] == [done]
    assert done["content"][0]["text"] == "abc" == events[-4][1]["text"]
    assert events[-3][1]["part"] == done["content"][0]
    for _, p in events[3:-2]:
        assert p["item_id"] == added["id"] == done["id"]
        assert p["output_index"] == 0 and p["content_index"] == 0
    plain = post(server, PATH, {"input": say("abc")}).json()
    assert normal(plain) == normal(last)


def test_stream_with_the_sdk(client):
    for text in ("plain", "🙂e\u0301x❤\ufe0f漢字", "  spaces\n\n"):
        with client.responses.stream(model="scripted", input=say(text)) as s:
            pieces = [e.delta for e in s if e.type == "response.output_text.delta"]
            final = s.get_final_response()
        assert "".join(pieces) == text == final.output_text
        assert all("\ufffd" not in p for p in pieces)


def test_empty_generation(server):
    r = post(server, PATH, {"input": script([])}).json()
    assert r["status"] == "completed" and r["output"][0]["content"][0]["text"] == ""
    names = [n for n, _ in streamed(server, script([]))]
    assert names == ["response.created", "response.in_progress", "response.output_item.added",
                     "response.content_part.added", "response.output_text.done",
                     "response.content_part.done", "response.output_item.done",
                     "response.completed"]


def test_cut_answers_are_incomplete(server):
    r = post(server, PATH, {"input": say("abcdef"), "max_output_tokens": 3}).json()
    assert r["status"] == "incomplete"
    assert r["incomplete_details"] == {"reason": "max_output_tokens"} and r["completed_at"] is None
    assert r["output"][0]["status"] == "incomplete"
    assert r["output"][0]["content"][0]["text"] == "abc" and r["max_output_tokens"] == 3
    name, last = streamed(server, say("abcdef"), max_output_tokens=3)[-1]
    assert name == "response.incomplete" and normal(last["response"]) == normal(r)


def test_logprobs(server):
    body = {"input": say("ab"), "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = post(server, PATH, body).json()["output"][0]["content"][0]
    assert [e["token"] for e in part["logprobs"]] == ["a", "b"]
    assert all(len(e["top_logprobs"]) == 2 and e["logprob"] <= 0 for e in part["logprobs"])
    events = streamed(server, say("ab"), include=body["include"], top_logprobs=2)
    rows = [e for n, p in events if n == "response.output_text.delta" for e in p["logprobs"]]
    assert rows == part["logprobs"]
    for n, p in events:
        EVENTS[n].model_validate(p, strict=True)
    assert post(server, PATH, {"input": say("ab")}).json()["output"][0]["content"][0][
        "logprobs"] == []


def test_fields_of_the_sdk(client):
    r = client.responses.create(
        model="scripted", input="free", instructions="be", max_output_tokens=4, temperature=0,
        top_p=0.9, metadata={"k": "v"}, user="u", store=False, truncation="auto",
        parallel_tool_calls=False, service_tier="auto", reasoning={"effort": "low"},
        text={"verbosity": "low"}, prompt_cache_key="p", extra_body={"seed": 5, "top_k": 3})
    assert r.status == "incomplete" and r.temperature == 0 and r.top_p == 0.9
    assert r.store is False and r.parallel_tool_calls is False and r.prompt_cache_key == "p"


# ---- prompts ----------------------------------------------------------------------------------

U = {"role": "user", "content": "u"}
TALKS = [
    ({"input": "u"}, [U]),
    ({"input": "u", "instructions": "s"}, [{"role": "system", "content": "s"}, U]),
    ({"input": [U, {"role": "developer", "content": "d"}], "instructions": "s"},
     [{"role": "system", "content": "s\n\nd"}, U]),
    ({"input": [{"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]},
     [{"role": "user", "content": "ab"}]),
    ({"input": [U, {"type": "reasoning", "id": "rs_1", "summary": [
        {"type": "summary_text", "text": "hm"}]},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": "said", "annotations": []}]}, U]},
     [U, {"role": "assistant", "content": "said"}, U]),
    ({"input": [U, {"role": "assistant", "content": "ok"},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "2", "output": "two"},
                {"type": "function_call_output", "call_id": "1", "output": [
                    {"type": "input_text", "text": "one"}]}]},
     [U, {"role": "assistant", "content": "ok"}, {"role": "tool", "content": "one"},
      {"role": "tool", "content": "two"}]),
]


@pytest.mark.parametrize("talk", range(len(TALKS)))
def test_same_prompt_as_the_chat_route(server, talk):
    body, same = TALKS[talk]
    assert count(server, body) == chat_count(server, same)


def test_tools_as_the_chat_route(server):
    f = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    flat = [{"type": "function", **f}, {"type": "web_search"}]
    nested = [{"type": "function", "function": f}]
    n = count(server, {"input": "u", "tools": flat})
    assert n == chat_count(server, [U], tools=nested) > chat_count(server, [U])
    assert count(server, {"input": "u", "tools": flat, "tool_choice": "none"}) == chat_count(
        server, [U])
    two = flat + [{"type": "function", "name": "g", "parameters": {}}]
    only = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    assert count(server, {"input": "u", "tools": two, "tool_choice": only}) == n


# ---- the store --------------------------------------------------------------------------------


def test_chain(client, server):
    one = client.responses.create(model="scripted", input=say("first"), instructions="old")
    two = client.responses.create(model="scripted", input="and " + say("second"),
                                  previous_response_id=one.id, instructions="new")
    assert two.output_text == "second" and two.previous_response_id == one.id
    talk = [{"role": "system", "content": "new"}, {"role": "user", "content": say("first")},
            {"role": "assistant", "content": "first"},
            {"role": "user", "content": "and " + say("second")}]
    assert two.usage.input_tokens == chat_count(server, talk)
    three = client.responses.create(model="scripted", input=[{"role": "user", "content": say("3")}],
                                    previous_response_id=two.id)
    talk = talk[1:] + [{"role": "assistant", "content": "second"},
                       {"role": "user", "content": say("3")}]
    assert three.usage.input_tokens == chat_count(server, talk)
    # A branch: the first answer is still what it was.
    again = client.responses.create(model="scripted", input="and " + say("second"),
                                    previous_response_id=one.id, instructions="new")
    assert again.usage.input_tokens == two.usage.input_tokens


def test_chain_after_a_stream(client, server):
    with client.responses.stream(model="scripted", input=say("first")) as s:
        one = s.get_final_response()
    two = client.responses.create(model="scripted", input="more", previous_response_id=one.id,
                                  max_output_tokens=1)
    assert two.usage.input_tokens == chat_count(
        server, [{"role": "user", "content": say("first")},
                 {"role": "assistant", "content": "first"}, {"role": "user", "content": "more"}])


def test_retrieve_and_delete(client, server):
    r = client.responses.create(model="scripted", input=say("kept"))
    assert client.responses.retrieve(r.id).model_dump() == r.model_dump()
    before = server.stats()["response_store"]
    assert before["entries"] > 0 and 0 < before["bytes"] < before["max_bytes"]
    assert before["max_bytes"] == 32 << 20 and before["ttl_ms"] == 3600000
    client.responses.delete(r.id)
    assert server.stats()["response_store"]["entries"] == before["entries"] - 1
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(r.id)
    with pytest.raises(openai.NotFoundError) as e:
        client.responses.create(model="scripted", input="x", previous_response_id=r.id)
    assert e.value.param == "previous_response_id"
    assert e.value.code == "previous_response_not_found"


def test_input_items(client, server):
    one = client.responses.create(model="scripted", input=say("first"))
    two = client.responses.create(model="scripted", previous_response_id=one.id, input=[
        {"role": "user", "content": [{"type": "input_text", "text": "and"}]},
        {"role": "user", "content": say("second")}])
    items = list(client.responses.input_items.list(two.id, order="asc", limit=3))
    assert [i.role for i in items] == ["user", "assistant", "user", "user"]
    assert [i.content[0].text for i in items] == [say("first"), "first", "and", say("second")]
    assert [i.type for i in items] == ["message"] * 4 and len({i.id for i in items}) == 4
    assert items[0].content[0].type == "input_text" and items[1].content[0].type == "output_text"
    newest = client.responses.input_items.list(two.id, limit=1)  # and so on with has_more
    assert newest.data[0].id == items[3].id and newest.has_more
    assert [i.id for i in newest] == [i.id for i in items[::-1]]
    page = client.responses.input_items.list(two.id, after=items[2].id)
    assert [i.id for i in page.data] == [items[1].id, items[0].id] and not page.has_more
    assert len(client.responses.input_items.list(one.id).data) == 1
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"),
                         ("order=up", "order"), ("after=zz", "after")):
        r = request(server, "GET", f"{PATH}/{two.id}/input_items?{query}")
        assert r.status == 400 and r.error()["param"] == param
    assert request(server, "GET", PATH + "/resp_none/input_items").status == 404


def test_store_false_is_not_kept(client):
    r = client.responses.create(model="scripted", input=say("x"), store=False)
    assert r.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(r.id)


def test_store_is_bounded(start):
    """Forty answers over a megabyte each do not fit into 32 MiB: the oldest go, those in use stay."""
    srv = start("--ctx", 8192)
    pad = {"pad": "x" * 1000000}
    ids = []
    for i in range(40):
        r = post(srv, PATH, {"input": say("a"), "metadata": pad})
        assert r.status == 200
        ids.append(r.json()["id"])
        request(srv, "GET", PATH + "/" + ids[0])  # used again and again
    s = srv.stats()["response_store"]
    assert s["bytes"] <= s["max_bytes"] and 20 < s["entries"] < 40
    assert request(srv, "GET", PATH + "/" + ids[0]).status == 200
    assert request(srv, "GET", PATH + "/" + ids[1]).status == 404
    assert request(srv, "GET", PATH + "/" + ids[-1]).status == 200


# ---- refusals ----------------------------------------------------------------------------------

BAD = [
    ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"), ({"input": [{"type": "message"}]}, "input[0].role"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type"), ({"input": [{}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0].output"),
    ({"instructions": 5}, "instructions"), ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"), ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"), ({"stream": 1}, "stream"), ({"store": 1}, "store"),
    ({"metadata": 1}, "metadata"), ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"), ({"top_logprobs": 21}, "top_logprobs"),
    ({"truncation": "maybe"}, "truncation"), ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"tools": [{}]}, "tools[0].type"), ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters"),
    ({"tool_choice": "perhaps"}, "tool_choice"), ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "function", "name": "f"}],
      "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ({"previous_response_id": 5}, "previous_response_id"),
]


@pytest.mark.parametrize("fields,param", BAD, ids=range(len(BAD)))
def test_bad_fields(server, fields, param):
    for stream in (False, True):
        r = post(server, PATH, {"input": "x", "stream": stream, **fields})
        assert r.status == 400, r
        e = r.error()
        assert e["param"] == param and param in e["message"], e
        assert e["type"] == "invalid_request_error"


BROKEN = [b"{", b"[]", b"null", b'"x"', b"", b'{"input": "x",}', b"[" * 100000, b"\xff", b"{}"]


@pytest.mark.parametrize("raw", BROKEN, ids=range(len(BROKEN)))
def test_broken_bodies(server, raw):
    r = post(server, PATH, raw)
    assert r.status == 400 and r.error()
    assert post(server, PATH, {"input": say("fine")}).status == 200


def test_other_refusals(server):
    assert post(server, PATH, {"input": "x", "model": "gpt-9"}).status == 404
    r = request(server, "PUT", PATH + "/resp_x")
    assert r.status == 405 and set(r.headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE",
                                                                      "OPTIONS"}
    assert request(server, "GET", PATH).status == 405
    assert request(server, "GET", PATH + "/resp_none").error()["param"] == "response_id"


def test_window(server):
    empty = count(server, {"input": ""})
    for stream in (False, True):
        for extra in (0, 3000):
            r = post(server, PATH, {"input": "x" * (2048 - empty + extra), "stream": stream})
            assert r.status == 400 and r.error()["param"] == "input", r
            assert r.error()["code"] == "context_length_exceeded"
            assert "2048" in r.error()["message"] and str(2048 + extra) in r.error()["message"]
    r = post(server, PATH, {"input": "x" * (2047 - empty)}).json()
    assert r["status"] == "incomplete" and r["usage"]["output_tokens"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_truncation(server, stream):
    """Whole turns go, the oldest first; a talk that fits is left alone."""
    def turns(n):
        return [m for i in range(n) for m in ({"role": "user", "content": f"{i} " + "x" * 200},
                                              {"role": "assistant", "content": "y" * 100})]

    last = {"role": "user", "content": say("ok")}
    body = {"instructions": "S", "input": turns(20) + [last], "max_output_tokens": 50}
    assert post(server, PATH, {**body, "truncation": "disabled"}).status == 400
    r = post(server, PATH, {**body, "truncation": "auto", "stream": stream})
    assert r.status == 200 and (b"truncation\":\"auto" in r.body)
    kept = next(n for n in range(6, -1, -1) if chat_count(
        server, [{"role": "system", "content": "S"}] + turns(20)[2 * (20 - n):] + [last]) <= 2048 - 50)
    want = chat_count(server, [{"role": "system", "content": "S"}] + turns(20)[2 * (20 - kept):] + [last])
    assert 0 < kept < 20 and f'"input_tokens":{want},'.encode() in r.body
    short = {**body, "input": turns(2) + [last], "truncation": "auto"}
    assert post(server, PATH, short).json()["usage"]["input_tokens"] == chat_count(
        server, [{"role": "system", "content": "S"}] + turns(2) + [last])
    huge = {"role": "user", "content": "z" * 5000}
    r = post(server, PATH, {**body, "input": turns(2) + [huge], "truncation": "auto", "stream": stream})
    assert r.status == 400 and r.error()["code"] == "context_length_exceeded"


def test_fault_in_a_stream(client, server):
    events = streamed(server, script([65, 66, 67], fail=2))
    name, payload = events[-1]
    assert name == "response.failed" and payload["response"]["status"] == "failed"
    assert payload["response"]["error"]["code"] == "server_error"
    assert "secret" not in json.dumps(payload)
    EVENTS[name].model_validate(payload, strict=True)
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model="scripted", input=script([65], fail=0))
    assert client.responses.create(model="scripted", input=say("ok")).output_text == "ok"
    failed = payload["response"]["id"]
    assert request(server, "GET", PATH + "/" + failed).status == 404
