"""A real model, end to end: `quern serve smollm2` with the openai SDK as its client.

Needs the model in the cache folder (`quern get smollm2`, or `make run` once): skipped otherwise.
"""

import json
import math
import os
import re
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

openai = pytest.importorskip("openai")

ROOT = Path(__file__).resolve().parents[2]
QUERN = Path(os.environ.get("QUERN_BIN", ROOT / "build" / "quern"))
GREET = [{"role": "user", "content": "Say hello."}]


def cache_folder():
    """The rule of `quern get` (src/base/file.c)."""
    own, xdg, home = (os.environ.get(k, "") for k in ("QUERN_CACHE", "XDG_CACHE_HOME", "HOME"))
    if own:
        return Path(own)
    return Path(xdg) / "quern" if xdg.startswith("/") else Path(home) / ".cache" / "quern"


@pytest.fixture(scope="module")
def url():
    folder = cache_folder() / "models" / "smollm2"
    if not QUERN.exists():
        pytest.skip(f"{QUERN} is not built (QUERN_BIN)")
    if not (folder / "quern-model").exists():
        pytest.skip(f"no model in {folder}: `quern get smollm2` fetches it")
    p = subprocess.Popen([str(QUERN), "serve", "--port", "0", "--ctx", "2048", "--no-access-log", "smollm2"],
                         stdout=subprocess.PIPE, text=True)
    text = ""
    while "Ctrl-C" not in text:
        line = p.stdout.readline()
        assert line, (text, p.wait())
        text += line
    yield re.search(r"at (http://\S+)", text).group(1)
    p.terminate()
    assert p.wait(timeout=60) == 0
    p.stdout.close()


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120) as c:
        yield c


def stats(client):
    with urllib.request.urlopen(str(client.base_url).replace("/v1/", "/stats"), timeout=60) as r:
        return json.load(r)


def test_chat(client):
    r = client.chat.completions.create(model="smollm2", messages=GREET, temperature=0, max_tokens=40)
    assert "hello" in r.choices[0].message.content.lower(), r
    assert r.choices[0].finish_reason in ("stop", "length")
    assert 10 < r.usage.prompt_tokens < 60 and 0 < r.usage.completion_tokens <= 40


def test_stream_equals_whole(client):
    ask = {"model": "smollm2", "messages": GREET, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**ask)
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask):
        usage = chunk.usage or usage
        for c in chunk.choices:
            text += c.delta.content or ""
            finish = c.finish_reason or finish
    assert text == whole.choices[0].message.content and finish == whole.choices[0].finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_completions_with_logprobs(client):
    r = client.completions.create(model="smollm2", prompt="The capital of France is", temperature=0,
                                  max_tokens=6, logprobs=5)
    choice = r.choices[0]
    assert "Paris" in choice.text
    lp = choice.logprobs
    assert "".join(lp.tokens) == choice.text and len(lp.tokens) == len(lp.token_logprobs) == 6
    for token, own, top in zip(lp.tokens, lp.token_logprobs, lp.top_logprobs):
        assert own <= 0 and len(top) == 5 and sum(map(math.exp, top.values())) <= 1.0001
        assert top[token] == own == max(top.values())  # greedy takes the likeliest


def test_models(client):
    ids = [m.id for m in client.models.list()]
    assert ids == ["smollm2"] and client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_seeds(client):
    def draw(seed):
        r = client.chat.completions.create(
            model="smollm2", temperature=1.2, seed=seed, max_tokens=24,
            messages=[{"role": "user", "content": "Invent the name of a town and describe it."}])
        return r.choices[0].message.content
    first = draw(7)
    assert draw(7) == first
    assert any(draw(s) != first for s in (8, 9, 10))


def test_an_answer_does_not_depend_on_its_neighbours(client):
    def ask(i, out):
        r = client.chat.completions.create(model="smollm2", temperature=0.8, seed=i, max_tokens=16,
                                           messages=[{"role": "user", "content": f"Write about the number {i}."}])
        out[i] = r.choices[0].message.content
    alone, together = {}, {}
    for i in range(4):
        ask(i, alone)
    threads = [threading.Thread(target=ask, args=(i, together)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


def test_a_client_that_leaves(client):
    before = stats(client)["requests"]["cancelled"]
    stream = client.completions.create(model="smollm2", prompt="1 2 3 4", max_tokens=1900, stream=True,
                                       extra_body={"logit_bias": {"0": -100, "2": -100}})
    for i, _ in enumerate(stream):
        if i == 3:
            break
    stream.close()
    deadline = time.monotonic() + 30
    while stats(client)["requests"]["running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    now = stats(client)["requests"]
    assert now["running"] == 0 and now["cancelled"] == before + 1
    r = client.completions.create(model="smollm2", prompt="1 2 3 4", max_tokens=2)
    assert r.usage.completion_tokens == 2 or r.choices[0].finish_reason == "stop"


# ---- structured output ------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                   "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 2}},
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def test_json_schema(client):
    for seed, temperature in ((1, 0), (2, 1.0), (3, 1.8)):
        r = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Invent a person."}], temperature=temperature,
            seed=seed, max_tokens=120,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}})
        assert r.choices[0].finish_reason == "stop", r
        doc = json.loads(r.choices[0].message.content)
        assert list(doc) == ["name", "age", "tags"]
        assert isinstance(doc["name"], str) and len(doc["name"]) <= 20
        assert type(doc["age"]) is int and 0 <= doc["age"] <= 120
        assert len(doc["tags"]) <= 2 and set(doc["tags"]) <= {"red", "green", "blue"}


def test_choice_and_regex(client):
    ask = {"model": "smollm2", "messages": [{"role": "user", "content": "Is the sky blue?"}], "temperature": 0}
    r = client.chat.completions.create(extra_body={"guided_choice": ["Yes", "No"]}, **ask)
    assert r.choices[0].message.content in ("Yes", "No")
    free = client.chat.completions.create(max_tokens=16, **ask)
    any_text = client.chat.completions.create(max_tokens=16, extra_body={"guided_regex": r"[\s\S]*"}, **ask)
    assert free.choices[0].message.content == any_text.choices[0].message.content
