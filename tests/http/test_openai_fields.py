"""Request fields: every refusal names its field with a 400 before any byte of a stream; accepted
values do what they say."""

import json
import math

import pytest

import wire
from wire import chat_body, completion_body, post, request, say, script, stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = [CHAT, COMPLETIONS]
POSTS = [CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/apply-template"]


def body_for(path, directive, **fields):
    return (chat_body if path == CHAT else completion_body)(directive, **fields)


def refused(server, path, body, param, status=400):
    for extra in ({}, {"stream": True}):
        if isinstance(body, dict):
            sent = {**body, **extra} if "stream" not in body else body
        else:
            sent = body
        r = post(server, path, sent)
        assert r.status == status, (r, sent)
        assert r.headers["content-type"] == "application/json"
        e = r.error()
        if param:
            assert e["param"] == param, e
    return e


# ---- case 9: broken bodies ------------------------------------------------------------------------

BROKEN = [b"{", b"[]", b"null", b'"x"', b"", b"5", b'{"messages":[],}', b"{} {}", b"[" * 100_000,
          b'{"a":' * 100_000, b"\xef\xbb\xbf{}", b'{"a":"\xff"}', b'{"a":"\xc0\x80"}',
          b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}', b'{"a":"\xed\xa0\x80"}', b"{'a':1}",
          b'{"a":01}', b'{"a":1.}', b'{"a":+1}', b'{"a":NaN}', b'{"a":tru}', b'{"a"}', b"\x00",
          b'{"a":"\x01"}', b'{"a":"\\x41"}']


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_broken_bodies(server, path, body):
    r = post(server, path, body)
    assert r.status == 400, r
    assert "/src/" not in r.error()["message"]


def test_next_request_after_broken_ones(server):
    with server.connect() as s:
        r = wire.Reader(s)
        for body in BROKEN:
            s.sendall(wire.encode("POST", CHAT, body))
            assert r.reply().status == 400
        s.sendall(wire.encode("POST", CHAT, chat_body(say("ok"))))
        assert r.reply().status == 200


def test_depth_limit(server):
    ok = json.dumps({**chat_body(say("ok")), "metadata": json.loads("[" * 60 + "]" * 60)})
    assert post(server, CHAT, ok).status == 200
    bad = '{"messages":[{"role":"user","content":"x"}],"x":' + "[" * 70 + "]" * 70 + "}"
    assert post(server, CHAT, bad).status == 400


def test_last_duplicate_key_wins(server):
    body = ('{"messages":"hi","max_tokens":1,"max_tokens":2,"messages":' +
            json.dumps(chat_body(say("abcdef"))["messages"]) + "}")
    r = post(server, CHAT, body)
    assert r.json()["choices"][0]["message"]["content"] == "ab"


# ---- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("messages,param", [
    ([], "messages"), ("hi", "messages"), (None, "messages"), (5, "messages"), ({}, "messages"),
    (["x"], "messages[0]"), ([{}], "messages[0].role"), ([{"content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": {}}], "messages[0].content"),
    ([{"role": "wizard", "content": "x"}], "messages[0].role"),
    ([{"role": 5, "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": "a"}, {"role": "user", "content": ["x"]}], "messages[1].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
     "messages[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type"),
    ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}],
     "messages[0].tool_calls[0].function.name"),
])
def test_bad_messages(server, messages, param):
    refused(server, CHAT, {"messages": messages}, param)


@pytest.mark.parametrize("messages", [
    [{"role": "developer", "content": "d"}, {"role": "user", "content": say("ok")}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": say("ok")}],
    [{"role": "user", "content": [{"type": "text", "text": say("ok")}]}],
    [{"role": "user", "content": say("ok"), "name": "bob"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
     {"role": "tool", "tool_call_id": "c1", "content": say("ok")}],
])
def test_good_messages(server, messages):
    r = post(server, CHAT, {"messages": messages})
    assert r.status == 200, r
    assert r.json()["choices"][0]["message"]["content"] == "ok"


def test_template_refusal_is_a_400_with_its_message(server):
    e = refused(server, CHAT, chat_body("raise"), "messages")
    assert "the template says no" in e["message"]


# ---- ranges and types --------------------------------------------------------------------------------

BAD = {
    "temperature": [-0.1, 2.1, "1", True, [], 1e999],
    "top_p": [0, -1, 1.1, "x"],
    "top_k": [-1, 1.5, "5", 1e30],
    "min_p": [-0.1, 1.1, "x"],
    "presence_penalty": [-2.1, 2.1, "x"],
    "frequency_penalty": [-2.1, 2.1, {}],
    "repetition_penalty": [0, -1, "x"],
    "seed": [1.5, "x", True, 1e30],
    "n": [0, -1, 129, 1.5, "2"],
    "max_tokens": [-1, 1.5, "5", True, [], 1e30],
    "logit_bias": [{"99999999": 5}, {"-1": 5}, {"abc": 1}, {"": 1}, {"65": 101}, {"65": -101},
                   {"65": None}, {"65": "x"}, [], "x", {"1e1": 1}, {"4294967361": 1}],
    "stop": ["", [""], ["a", ""], 5, [5], ["x"] * 17, {}, [None], "x" * 5000],
    "stream": ["true", 1],
    "stream_options": ["x", [], True],
    "user": [5],
    "model": [5, []],
}


def dump(body):
    return json.dumps(body).replace("Infinity", "1e999")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", BAD)
def test_bad_values(server, path, field):
    for value in BAD[field]:
        r = post(server, path, dump(body_for(path, say("ok"), **{field: value})))
        assert r.status == 400, (field, value, r)
        assert r.error()["param"] == field
    assert post(server, path, body_for(path, say("ok"))).status == 200


GOOD = {
    "temperature": [0, 2, 0.5], "top_p": [1, 0.01], "top_k": [0, 5, 10**6], "min_p": [0, 1],
    "presence_penalty": [-2, 2], "frequency_penalty": [-2, 2], "repetition_penalty": [0.5, 1, 2],
    "seed": [0, -1, 2**63, 2**64 - 1, -2**63, 3.0], "n": [1], "max_tokens": [2, 3, 10**12],
    "logit_bias": [{}, {"65": 1}, {"65": -100, "66": 100}], "stop": [[], "zzz", ["a", "b"] * 8],
    "stream": [False], "user": ["u"], "model": ["scripted", "scripted-alias"],
    "metadata": [{"a": "b"}], "store": [True], "service_tier": ["auto"], "anything": [{"x": 1}],
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", GOOD)
def test_good_values_and_null(server, path, field):
    for value in [*GOOD[field], None]:
        r = post(server, path, body_for(path, say("ok"), **{field: value}))
        assert r.status == 200, (field, value, r)


def test_integers_beyond_64_bits(server):
    for field in ("seed", "max_tokens", "top_k"):
        for value in ("99999999999999999999999", "-99999999999999999999999"):
            body = json.dumps(chat_body(say("ok")))[:-1] + f', "{field}": {value}}}'
            assert post(server, CHAT, body).status == 400


def test_unknown_model(server):
    for path in PATHS:
        e = refused(server, path, body_for(path, say("ok"), model="gpt-4"), "model", 404)
        assert e["code"] == "model_not_found"
    assert request(server, "GET", "/v1/models/gpt-4").status == 404
    for name in ("scripted", "scripted-alias"):
        assert request(server, "GET", "/v1/models/" + name).json()["id"] == "scripted"


@pytest.mark.parametrize("field,value", [
    ("response_format", "json"), ("guided_json", 1), ("guided_regex", ["a"]),
    ("structured_outputs", {}), ("functions", []), ("function_call", "auto"),
    ("tool_choice", "required"), ("tool_choice", "sometimes"), ("tools", "x"),
    ("reasoning_effort", "huge"), ("chat_template_kwargs", []), ("top_logprobs", 3)])
def test_what_is_not_there_is_refused(server, field, value):
    e = refused(server, CHAT, chat_body(say("ok"), **{field: value}), field)
    assert field in e["message"]


def test_tools_reach_the_template(server):
    tool = {"type": "function", "function": {"name": "get_x", "parameters": {"type": "object"}}}
    r = post(server, "/apply-template", chat_body("q", tools=[tool]))
    assert "get_x" in r.json()["prompt"]
    r = post(server, "/apply-template", chat_body("q", tools=[tool], tool_choice="none"))
    assert "get_x" not in r.json()["prompt"]
    refused(server, CHAT, chat_body("q", tools=[tool], tool_choice={
        "type": "function", "function": {"name": "other"}}), "tool_choice")
    refused(server, CHAT, chat_body("q", tools=[{"type": "function", "function": {}}]),
            "tools[0].function.name")


# ---- case 6: usage in streams ---------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_stream_usage(server, path):
    plain = post(server, path, body_for(path, say("hello"))).json()["usage"]
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        s = stream(server, path, body_for(path, say("hello"), stream_options=options))
        assert s.usage is None and s.text[0] == "hello"
    s = stream(server, path, body_for(path, say("hello"), stream_options={"include_usage": True}))
    assert s.usage == plain
    r = post(server, path, body_for(path, say("x"), stream_options={"include_usage": True}))
    assert r.status == 400 and r.error()["param"] == "stream_options"


# ---- case 8: max_tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_max_tokens(server, path):
    def run(**fields):
        r = post(server, path, body_for(path, say("abcdefgh"), **fields))
        assert r.status == 200, r
        c = r.json()["choices"][0]
        text = c["message"]["content"] if path == CHAT else c["text"]
        return text, c["finish_reason"], r.json()["usage"]["completion_tokens"]

    assert run(max_tokens=None) == ("abcdefgh", "stop", 9)
    assert run() == ("abcdefgh", "stop", 9)
    assert run(max_tokens=0) == ("", "length", 0)
    assert run(max_tokens=1) == ("a", "length", 1)
    assert run(max_tokens=10**12) == ("abcdefgh", "stop", 9)
    assert run(max_tokens=5, max_completion_tokens=3) == ("abc", "length", 3)
    assert run(max_completion_tokens=2) == ("ab", "length", 2)


def test_echo_with_max_tokens_0(server):
    r = post(server, COMPLETIONS, {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 1})
    assert r.status == 200, r
    c = r.json()["choices"][0]
    assert (c["text"], c["finish_reason"]) == ("hello", "length")
    assert r.json()["usage"]["completion_tokens"] == 0
    lp = c["logprobs"]
    assert lp["tokens"] == list("hello") and lp["text_offset"] == [0, 1, 2, 3, 4]
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert all(v <= 0 for v in lp["token_logprobs"][1:])


# ---- completions: shapes of the prompt ------------------------------------------------------------------


def test_prompt_shapes(server):
    a, b = "x" + say("A") + "<|answer|>", "yy" + say("BB") + "<|answer|>"
    ids = post(server, "/tokenize", {"content": a}).json()["tokens"]
    for prompt, want in [(a, ["A"]), ([a], ["A"]), ([a, b], ["A", "BB"]), (ids, ["A"]),
                         ([ids], ["A"]), ([ids, ids], ["A", "A"]), ([a, ids], ["A", "A"])]:
        r = post(server, COMPLETIONS, {"prompt": prompt})
        assert r.status == 200, r
        assert [c["text"] for c in r.json()["choices"]] == want
        s = stream(server, COMPLETIONS, {"prompt": prompt})
        assert [s.text[i] for i in range(len(want))] == want
    r = post(server, COMPLETIONS, {"prompt": [a, b], "n": 2, "echo": True}).json()
    assert [c["text"] for c in r["choices"]] == [a + "A", a + "A", b + "BB", b + "BB"]
    assert [c["index"] for c in r["choices"]] == [0, 1, 2, 3]
    one = [post(server, COMPLETIONS, {"prompt": p}).json()["usage"] for p in (a, b)]
    assert r["usage"]["prompt_tokens"] == sum(u["prompt_tokens"] for u in one)
    assert r["usage"]["completion_tokens"] == 2 * sum(u["completion_tokens"] for u in one)
    assert r["id"].startswith("cmpl-") and r["object"] == "text_completion"


@pytest.mark.parametrize("prompt", [None, 5, {}, [], [[]], [None], [5, "x"], ["x", 5], [1.5], [-1],
                                    [10**9], [[1], [10**9]], [[1], "x", 3], [True], [[["x"]]], ""])
def test_bad_prompts(server, prompt):
    refused(server, COMPLETIONS, {"prompt": prompt}, "prompt")


def test_completions_only_fields(server):
    for field, value in [("suffix", "x"), ("best_of", 3), ("best_of", 0), ("echo", "yes"),
                         ("logprobs", 21), ("logprobs", -1), ("logprobs", "x")]:
        refused(server, COMPLETIONS, completion_body(say("x"), **{field: value}), field)
    assert post(server, COMPLETIONS, completion_body(say("x"), best_of=1)).status == 200
    assert post(server, COMPLETIONS, completion_body(say("x"), best_of=2, n=2)).status == 200
    refused(server, COMPLETIONS, {"prompt": ["a"] * 2049}, "prompt")


def test_too_many_choices(server):
    refused(server, COMPLETIONS, {"prompt": ["a"] * 100, "n": 100}, "n")


# ---- case 13: the window ------------------------------------------------------------------------------


def fill(path, n_tokens, **fields):
    """A body whose prompt has exactly n_tokens tokens."""
    if path == COMPLETIONS:
        return {"prompt": "a" * n_tokens, **fields}
    return {"messages": [{"role": "user", "content": "a" * (n_tokens - len("user:\n") - 1)}], **fields}


@pytest.mark.parametrize("path", PATHS)
def test_window(server, path):
    for n in (2048, 2049, 5000, 3_000_000):
        e = refused(server, path, fill(path, n), "messages" if path == CHAT else "prompt")
        assert e["code"] == "context_length_exceeded"
        assert str(n) in e["message"] and "2048" in e["message"]
    r = post(server, path, fill(path, 2047, max_tokens=100))
    assert r.status == 200, r
    assert r.json()["usage"]["prompt_tokens"] == 2047
    assert r.json()["usage"]["completion_tokens"] == 1
    assert r.json()["choices"][0]["finish_reason"] == "length"
    s = stream(server, path, fill(path, 2047, stream_options={"include_usage": True}))
    assert s.finish[0] == "length" and s.usage["completion_tokens"] == 1


# ---- case 14: logit_bias -------------------------------------------------------------------------------


def test_logit_bias(server):
    def text(**fields):
        return post(server, COMPLETIONS, {"prompt": "abc", "temperature": 0, "max_tokens": 20,
                                          **fields}).json()["choices"][0]["text"]

    free = text()
    assert text(logit_bias={}) == free
    banned = {str(ord(c)): -100 for c in set(free)}
    assert not set(text(logit_bias=banned)) & set(free)
    assert text(logit_bias={str(ord("~")): 100}) == "~" * 20
    assert text(logit_bias={str(i): -0.0 for i in range(500)}) == free
    assert text() == free


# ---- case 16: seeds -------------------------------------------------------------------------------------


def test_seeds(server):
    def text(**fields):
        r = post(server, COMPLETIONS, {"prompt": "abc", "temperature": 1, "max_tokens": 64, **fields})
        return r.json()["choices"][0]["text"]

    one = text(seed=1)
    assert one == text(seed=1) != text(seed=2)
    assert text() != text()
    assert text(seed=0) == text(seed=0) != one
    r = post(server, COMPLETIONS, {"prompt": "abc", "temperature": 1, "max_tokens": 64, "seed": 1,
                                   "n": 7}).json()
    texts = [c["text"] for c in r["choices"]]
    assert texts[0] == one and len(set(texts)) == 7
    for seed, status in ((-1, 200), (2**63 - 1, 200), (1.5, 400), ("1", 400)):
        body = {"prompt": "abc", "max_tokens": 2, "seed": seed}
        assert post(server, COMPLETIONS, body).status == status, seed


# ---- case 17: logprobs --------------------------------------------------------------------------------


def check_entry(e, tops):
    assert set(e) == {"token", "logprob", "bytes", "top_logprobs"}
    assert e["logprob"] <= 0 and math.isfinite(e["logprob"])
    assert len(e["top_logprobs"]) == tops
    values = [t["logprob"] for t in e["top_logprobs"]]
    assert values == sorted(values, reverse=True)
    if tops:
        assert e["logprob"] <= values[0]


@pytest.mark.parametrize("fields", [
    {"temperature": 0}, {"top_p": 0.3, "seed": 5}, {"logit_bias": {"65": -100}}])
def test_chat_logprobs(server, fields):
    body = chat_body("free text", max_tokens=12, logprobs=True, top_logprobs=5, seed=3)
    body.update(fields)
    r = post(server, CHAT, body)
    content = r.json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 12
    for e in content:
        check_entry(e, 5)
    text = r.json()["choices"][0]["message"]["content"]
    assert "".join(e["token"] for e in content) == text
    assert not all(e["logprob"] == 0 for e in content)
    s = stream(server, CHAT, body)
    streamed = [e for lp in s.logprobs[0] for e in lp["content"]]
    assert streamed == content and s.text[0] == text


def test_logprobs_of_split_characters(server):
    r = post(server, CHAT, chat_body(say("a🙂b"), logprobs=True, top_logprobs=0))
    content = r.json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in content).decode() == "a🙂b"
    assert [e["bytes"] for e in content[1:3]] == [[0xF0], [0x9F]]
    for e in content:
        check_entry(e, 0)


def test_logprobs_of_a_held_stop(server):
    body = chat_body(say("abSTOP"), logprobs=True, stop="STOP")
    content = post(server, CHAT, body).json()["choices"][0]["logprobs"]["content"]
    assert [e["token"] for e in content] == list("abSTOP")
    s = stream(server, CHAT, body)
    assert [e["token"] for lp in s.logprobs[0] for e in lp["content"]] == list("abSTOP")
    assert s.text[0] == "ab"


def test_logprobs_with_a_ban_are_finite(server):
    r = post(server, CHAT, chat_body("x", logprobs=True, top_logprobs=20, max_tokens=4,
                                     logit_bias={"65": -100}))
    assert b"NaN" not in r.body and b"Infinity" not in r.body
    for e in r.json()["choices"][0]["logprobs"]["content"]:
        check_entry(e, 20)


def test_legacy_logprobs(server):
    body = {"prompt": "x" + say("a🙂 b漢") + "<|answer|>", "logprobs": 3}
    r = post(server, COMPLETIONS, body)
    c = r.json()["choices"][0]
    lp = c["logprobs"]
    n = len(lp["tokens"])
    assert c["text"] == "a🙂 b漢" and n == len("a🙂 b漢".encode())
    assert lp["text_offset"] == [0, 1, 1, 1, 1, 2, 3, 4, 4, 4]
    assert all(len(t) <= 3 for t in lp["top_logprobs"])
    for i, t in enumerate(lp["tokens"]):
        if "\ufffd" not in t:
            assert c["text"][lp["text_offset"][i]:].startswith(t)
    s = stream(server, COMPLETIONS, body)
    joined = {k: [x for part in s.logprobs[0] for x in part[k]] for k in lp}
    assert joined == lp
    assert post(server, COMPLETIONS, {**body, "logprobs": 0}).json()["choices"][0]["logprobs"][
        "top_logprobs"][0] == {}


# ---- native routes -------------------------------------------------------------------------------------


def test_tokenize_round_trip(server):
    for text in ["", "hello", "漢字 🙂\x00\n", "<|answer|>", "a" * 5000]:
        ids = post(server, "/tokenize", {"content": text}).json()["tokens"]
        assert post(server, "/detokenize", {"tokens": ids}).json()["content"] == text
    assert post(server, "/tokenize", {"content": "<|answer|>"}).json()["tokens"] == [wire.ANSWER]
    plain = post(server, "/tokenize", {"content": "<|answer|>", "parse_special": False}).json()
    assert len(plain["tokens"]) == 10
    for path, body, param in [("/tokenize", {}, "content"), ("/tokenize", {"content": 5}, "content"),
                              ("/tokenize", {"content": "x", "add_special": 1}, "add_special"),
                              ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "x"}, "tokens"),
                              ("/detokenize", {"tokens": [-1]}, "tokens"),
                              ("/detokenize", {"tokens": [10**7]}, "tokens"),
                              ("/apply-template", {"messages": []}, "messages")]:
        r = post(server, path, body)
        assert r.status == 400 and r.error()["param"] == param, (path, body, r)


def test_rendered_prompt_as_a_raw_completion(server):
    body = chat_body("free " + say("hello"))
    prompt = post(server, "/apply-template", body).json()["prompt"]
    chat = post(server, CHAT, {**body, "temperature": 0}).json()
    raw = post(server, COMPLETIONS, {"prompt": prompt, "temperature": 0}).json()
    assert raw["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
    assert raw["choices"][0]["text"] == chat["choices"][0]["message"]["content"] == "hello"


def test_models_and_stats(server):
    row = request(server, "GET", "/v1/models").json()["data"][0]
    assert row["id"] == "scripted" and row["object"] == "model" and row["context_window"] == 2048
    stats = server.stats()
    assert stats["requests"]["submitted"] >= 0 and stats["server"]["model"] == "scripted"


def test_answer_shape(server):
    r = post(server, CHAT, chat_body(say("hi"))).json()
    assert r["id"].startswith("chatcmpl-") and r["object"] == "chat.completion"
    assert r["choices"][0]["message"] == {"role": "assistant", "content": "hi", "refusal": None}
    assert set(r) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    again = post(server, CHAT, chat_body(say("hi"))).json()
    assert again["id"] != r["id"] and again["system_fingerprint"] == r["system_fingerprint"]
