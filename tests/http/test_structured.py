"""Structured output over HTTP: answers of the scripted model (random without a script) match what was asked
for, and what cannot be asked for is a 400 that names the keyword."""

import json
import re
import shutil

import pytest

from conftest import Server
from test_openai_fields import CHAT, COMPLETIONS as TEXT
from wire import TEMPLATE, chat_body, completion_body, post, say, stream

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 2},
        "note": {"type": ["string", "null"], "maxLength": 5},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SHORT = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "integer", "maximum": 9,
                                                                          "minimum": 0}}, "required": ["a", "b"]}


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def ask(server, fields, content="go", path=CHAT):
    make = chat_body if path == CHAT else completion_body
    r = post(server, path, make(content, **fields))
    assert r.status == 200, r
    return r.json()["choices"]


def text_of(choice):
    return choice["message"]["content"] if "message" in choice else choice["text"]


def check_person(doc):
    assert list(doc) in (["name", "age", "tags"], ["name", "age", "tags", "note"]), doc
    assert isinstance(doc["name"], str) and len(doc["name"]) <= 12
    assert type(doc["age"]) is int and 0 <= doc["age"] <= 120
    assert 1 <= len(doc["tags"]) <= 2 and set(doc["tags"]) <= {"red", "green"}
    assert doc.get("note") is None or len(doc["note"]) <= 5


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_schema(server, path):
    for seed in range(6):
        (c,) = ask(server, dict(response_format=schema_format(PERSON, strict=True), temperature=1.3, seed=seed),
                   path=path)
        assert c["finish_reason"] == "stop"
        check_person(json.loads(text_of(c)))


def test_choices_of_n_and_seeds(server):
    body = dict(response_format=schema_format(PERSON), temperature=1.5, seed=7, n=4)
    first, again = ask(server, body), ask(server, body)
    assert [text_of(c) for c in first] == [text_of(c) for c in again]
    assert len({text_of(c) for c in first}) > 1
    for c in first:
        check_person(json.loads(text_of(c)))


def test_stream_is_the_same(server):
    body = chat_body("go", response_format=schema_format(PERSON), temperature=1.2, seed=3)
    whole = post(server, CHAT, body).json()["choices"][0]["message"]["content"]
    parts = stream(server, CHAT, body)
    assert parts.text == {0: whole} and parts.finish == {0: "stop"}


def test_the_model_cannot_leave_early(server):
    """Its script says something else, or ends at once: the answer is whole nevertheless."""
    for content in (say(""), say("no JSON"), say('{"a": tr')):
        (c,) = ask(server, dict(response_format=schema_format(SHORT), seed=1), content)
        doc = json.loads(text_of(c))
        assert set(doc) == {"a", "b"} and type(doc["a"]) is bool and 0 <= doc["b"] <= 9
        assert c["finish_reason"] == "stop"


def test_it_follows_the_model_where_it_may(server):
    wish = '{"name": "Ann", "age": 41, "tags": ["green"], "note": null}'
    (c,) = ask(server, dict(response_format=schema_format(PERSON)), say(wish))
    assert text_of(c) == wish
    (c,) = ask(server, dict(response_format=schema_format(PERSON), any_whitespace=False), say(wish))
    assert text_of(c) != wish
    check_person(json.loads(text_of(c)))
    assert " " not in re.sub(r'"[^"]*"', "", text_of(c))


def test_cut_says_length(server):
    (c,) = ask(server, dict(response_format=schema_format(PERSON), max_tokens=5))
    assert c["finish_reason"] == "length"


def test_object(server):
    wish = '{"k": [1, {"x": "y"}], "z": null}'
    for fmt in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}},
                {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}}):
        (c,) = ask(server, fmt, say(wish))
        assert text_of(c) == wish and c["finish_reason"] == "stop"


@pytest.mark.parametrize("fields,pattern", [
    ({"guided_regex": "[0-9]{4}-(ab|c)*d"}, "[0-9]{4}-(ab|c)*d"),
    ({"structured_outputs": {"regex": "x{3,5}y?"}}, "x{3,5}y?"),
    ({"guided_choice": ["red", "green", "red hot"]}, "red|green|red hot"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, "a|b"),
    ({"grammar": 'root ::= "<" [a-c]{2,4} ">"'}, "<[a-c]{2,4}>"),
    ({"guided_grammar": 'root ::= n ("+" n)?\nn ::= [0-9]'}, r"[0-9](\+[0-9])?"),
    ({"structured_outputs": {"grammar": 'root ::= "ok"'}}, "ok"),
    ({"guided_json": {"type": "boolean"}}, "true|false"),
    ({"guided_json": '{"enum": [1, "two"]}'}, '1|"two"'),
    ({"json_schema": {"type": "null"}}, "null"),
])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_other_forms(server, path, fields, pattern):
    for seed in range(3):
        (c,) = ask(server, dict(fields, temperature=1.4, seed=seed), path=path)
        assert re.fullmatch(pattern, text_of(c)), text_of(c)
        assert c["finish_reason"] == "stop"


def test_with_logprobs_penalties_and_bias(server):
    body = dict(response_format=schema_format(SHORT), logprobs=True, top_logprobs=3, temperature=1, seed=5,
                presence_penalty=1, frequency_penalty=-0.5, repetition_penalty=1.1, logit_bias={"55": 100, "257": 100})
    (c,) = ask(server, body)
    doc = json.loads(text_of(c))
    assert doc["b"] == 7
    tokens = c["logprobs"]["content"]
    assert "".join(t["token"] for t in tokens) == text_of(c)
    for t in tokens:
        assert -9999 <= t["logprob"] <= 0 and len(t["top_logprobs"]) == 3
        values = [x["logprob"] for x in t["top_logprobs"]]
        assert values == sorted(values, reverse=True) and all(v <= 0 for v in values)
    assert any(t["logprob"] < -1 for t in tokens)  # of what the model would have said


def test_stop_string_and_text_type(server):
    (c,) = ask(server, dict(response_format={"type": "text"}), say("plain"))
    assert text_of(c) == "plain"
    (c,) = ask(server, dict(guided_regex="a+bc+", stop=["b"]), say("aabcc"))
    assert text_of(c) == "aa" and c["finish_reason"] == "stop"


def test_after_thinking(tokenizer, tmp_path):
    """Where the prompt ends inside <think>, what comes before </think> is free."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE.replace("<|answer|>", "<|answer|><think>\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    s = Server(tmp_path)
    try:
        (c,) = ask(s, {"guided_choice": ["yes", "no"]}, say("hm {} ok</think>\n\nyes"))
        assert c["message"]["content"] == "yes" and c["finish_reason"] == "stop"
        assert c["message"]["reasoning"].strip() == "hm {} ok"
        (c,) = ask(s, {"response_format": schema_format(SHORT), "seed": 4}, say("so</think>"))
        assert set(json.loads(c["message"]["content"])) == {"a", "b"}
    finally:
        assert s.stop()[0] == 0


def test_user_text_opens_no_thinking(server):
    (c,) = ask(server, {"guided_choice": ["yes", "no"]}, "a <think>")
    assert text_of(c) in ("yes", "no")


def test_other_dialects(server):
    body = {"model": "scripted", "input": "go", "text": {"format": {"type": "json_schema", "name": "x",
                                                                    "schema": PERSON}}}
    r = post(server, "/v1/responses", body)
    assert r.status == 200, r
    (message,) = [o for o in r.json()["output"] if o["type"] == "message"]
    check_person(json.loads(message["content"][0]["text"]))
    body["text"]["format"]["schema"] = {"not": {}}
    r = post(server, "/v1/responses", body)
    assert r.status == 400 and r.error()["param"] == "text.format.schema.not"
    body = {"model": "scripted", "max_tokens": 500, "messages": [{"role": "user", "content": "go"}],
            "output_config": {"format": {"type": "json_schema", "schema": PERSON}}}
    r = post(server, "/v1/messages", body)
    assert r.status == 200, r
    check_person(json.loads(r.json()["content"][0]["text"]))


REFUSED = [
    ({"response_format": {"type": "json"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": schema_format("x")}, "response_format.json_schema.schema"),
    ({"response_format": schema_format(SHORT, strict="yes")}, "response_format.json_schema.strict"),
    ({"response_format": schema_format({"properties": {"a": {"not": {}}}})},
     "response_format.json_schema.schema.not"),
    ({"response_format": schema_format({"$ref": "#/nowhere"})}, "response_format.json_schema.schema.$ref"),
    ({"response_format": schema_format({"type": "string", "minLength": 3, "maxLength": 1})},
     "response_format.json_schema.schema.minLength"),
    ({"response_format": schema_format({"uniqueItems": True})}, "response_format.json_schema.schema.uniqueItems"),
    ({"response_format": schema_format({"pattern": "(?=a)"})}, "response_format.json_schema.schema.pattern"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": {"type": "thing"}}, "guided_json.type"),
    ({"guided_regex": "(" * 60000}, "guided_regex.pattern"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a", 1]}, "guided_choice"),
    ({"grammar": "root ::= x"}, "grammar.grammar"),
    ({"grammar": "root ::= " + "(" * 60000}, "grammar.grammar"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": {}}, }, "structured_outputs.structural_tag"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "grammar"),
]


@pytest.mark.parametrize("fields,param", REFUSED, ids=[p for _, p in REFUSED])
def test_refusals(server, fields, param):
    for path, make in ((CHAT, chat_body), (TEXT, completion_body)):
        for stream in (False, True):
            r = post(server, path, make("go", stream=stream, **fields))
            assert r.status == 400, r
            e = r.error()
            assert e["param"] == param and param.split(".")[-1] in e["message"], e


def test_hostile_but_legal(server):
    big = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 65536},
                                            "l": {"type": "array", "items": {"type": "integer"}, "minItems": 10000},
                                            "e": {"enum": [f"value {i}" for i in range(5000)]}},
           "required": ["e", "l", "s"]}
    (c,) = ask(server, dict(response_format=schema_format(big), max_tokens=40, seed=2))
    assert c["finish_reason"] == "length" and text_of(c)
    (c,) = ask(server, dict(guided_json={"type": "array", "maxItems": 10**12, "items": {"type": "null"}}, max_tokens=9))
    assert text_of(c).startswith("[")


def test_a_hopeless_row_ends_alone(server):
    """Too ambiguous to follow: an error for that request, and the next one works."""
    r = post(server, CHAT, chat_body(say("a" * 400), guided_regex="((a{1,900}){1,900}){1,900}b", max_tokens=900))
    assert r.status in (200, 400, 500), r
    (c,) = ask(server, {"guided_choice": ["fine"]})
    assert text_of(c) == "fine"
