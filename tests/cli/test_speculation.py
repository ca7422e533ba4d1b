"""Speculation over HTTP and in the bench, on tiny models: answers are those of a server without,
usage and /metrics say the same numbers in every dialect, streamed or not, and what guesses is part
of the memory plan."""

import json
import re
import urllib.error
import urllib.request

import pytest

from conftest import write_tokenizer  # noqa: F401
from test_serve import serve  # noqa: F401 (a fixture)

TEXT = "one two three one two three one two three "
N = 40
NEVER = {"257": -100}  # the end of a turn: the answers of this model have no end of their own
MESSAGES = [{"role": "user", "content": TEXT}]

# path, body, what a stream wants, and where the usage is in its last events
DIALECTS = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": N, "logit_bias": NEVER}),
    "completions": ("/v1/completions", {"prompt": TEXT, "max_tokens": N, "logit_bias": NEVER}),
    "responses": ("/v1/responses", {"input": MESSAGES, "max_output_tokens": N}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": N}),
}


def events(s, path, body):
    request = urllib.request.Request(s.url + path, json.dumps({**body, "stream": True}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as r:
        for line in r.read().decode().splitlines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line[6:])


def text_of(a):
    if "choices" in a:
        return a["choices"][0].get("text") or a["choices"][0]["message"]["content"]
    return (a.get("content") or a["output"][0]["content"])[0]["text"]


def streamed(s, dialect, body):
    """The text and the usage that a stream's events carry."""
    path, text, usage = DIALECTS[dialect][0], "", {}
    if dialect in ("chat", "completions"):
        body = {**body, "stream_options": {"include_usage": True}}
    for e in events(s, path, body):
        for c in e.get("choices", []):
            text += c.get("text") or c.get("delta", {}).get("content") or ""
        if e.get("type") == "response.output_text.delta":
            text += e["delta"]
        if e.get("type") == "content_block_delta":
            text += e["delta"]["text"]
        usage = e.get("usage") or e.get("response", {}).get("usage") or usage
    return text, usage


def sums(s):
    """What /metrics and /stats say has been guessed; they say the same."""
    with urllib.request.urlopen(s.url + "/metrics", timeout=60) as r:
        page = r.read().decode()
    name = r"^quern_spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total\{[^}]*\} (\S+)$"
    m = {k: int(float(v)) for k, v in re.findall(name, page, re.M)}
    per = r'^quern_spec_decode_num_accepted_tokens_per_pos_total\{.*position="(\d+)"\} (\S+)$'
    places = [int(float(v)) for _, v in
              sorted(((int(k), v) for k, v in re.findall(per, page, re.M)))]
    with urllib.request.urlopen(s.url + "/stats", timeout=60) as r:
        st = json.load(r)
    assert st["draft_kind"] == "ngram"
    if "speculation" in st:
        sp = st["speculation"]
        assert (m["drafts"], m["draft_tokens"], m["accepted_tokens"]) == \
            (sp["rounds"], sp["drafted"], sp["accepted"])
        assert [x for x in places if x] == sp["accepted_by_position"]
    return [m["drafts"], m["draft_tokens"], m["accepted_tokens"], *places]


def check(sp):
    by = sp["accepted_by_position"]
    assert 0 < sp["rounds"] <= sp["drafted"] and sp["accepted"] == sum(by) <= sp["drafted"]
    assert by == sorted(by, reverse=True) and max([0, *by]) <= sp["rounds"]
    return sp["rounds"], sp["drafted"], sp["accepted"]


def test_every_dialect_counts_the_same(serve, model):  # noqa: F811
    s = serve(model, "--draft-kind", "ngram", "--prompt-cache", "0")
    plain = serve(model, "--prompt-cache", "0")
    told, accepted = 0, 0
    assert not any(sums(s))
    for dialect, (path, body) in DIALECTS.items():
        for sampled in ({"temperature": 0}, {"temperature": 0.7}):
            more = {"model": model.name, **body, **sampled}
            if dialect in ("chat", "completions"):
                more["seed"] = 4
            want = plain.post(path, more)
            assert "speculation" not in want["usage"]
            for stream in (False, True):
                before = sums(s)
                if stream:
                    text, usage = streamed(s, dialect, more)
                else:
                    a = s.post(path, more)
                    text, usage = text_of(a), a["usage"]
                if sampled["temperature"] == 0 or "seed" in more:
                    assert text == text_of(want), (dialect, stream)
                more_sums = [b - a for a, b in zip(before, sums(s))]
                if "speculation" not in usage:
                    assert not any(more_sums)
                    continue
                told += 1
                accepted += usage["speculation"]["accepted"]
                assert list(check(usage["speculation"])) == more_sums[:3]
                by = usage["speculation"]["accepted_by_position"]
                assert by == more_sums[3:3 + len(by)] and not any(more_sums[3 + len(by):])
    assert told >= 8 and accepted > 0


def test_a_draft_model_is_planned_for(serve, model):  # noqa: F811
    """What guesses takes memory too: with a draft model as large as the model half as much fits."""
    def fits(s):
        body = {"prompt": "x" * 8, "max_tokens": 4000, "temperature": 0}
        with pytest.raises(urllib.error.HTTPError) as e:
            s.post("/v1/completions", body)
        assert e.value.code == 400
        message = json.load(e.value)["error"]["message"]
        return int(re.search(r"enough for (\d+) tokens", message).group(1)), message

    args = (model, "--kv-budget", "1MiB", "--prompt-cache", "0", "--ctx", 4096)
    alone, pair = serve(*args), serve(*args, "--draft-model", model)
    (n, _), (half, message) = fits(alone), fits(pair)
    assert "keys and values" in message
    assert 0.4 * n < half < 0.6 * n
    body = {"prompt": "y" * 8, "max_tokens": half - 8, "temperature": 0, "logit_bias": NEVER}
    a, b = alone.post("/v1/completions", body), pair.post("/v1/completions", body)
    assert a["choices"][0]["text"] == b["choices"][0]["text"]
    assert b["usage"]["speculation"]["accepted"] > 0
    body["max_tokens"] += 1
    with pytest.raises(urllib.error.HTTPError):
        pair.post("/v1/completions", body)
    alone.post("/v1/completions", body)


def test_bench_table(quern, model, tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    lines = [{"task": "again", "messages": MESSAGES}, {"messages": [{"role": "user", "content": "?"}]}]
    tasks.write_text("\n".join(map(json.dumps, lines)))
    out = quern("bench", "--speculation", "--model", model, "--draft-model", model, "--threads", 1,
                "--repeat", 1, "--tasks", tasks, ok=True).stdout
    rows = [r.split() for r in out.splitlines() if re.match(r"again|task ", r)]
    kinds = {(r[1], r[2]) for r in rows}
    assert ("off" in {k for k, _ in kinds}) and {"again", "task"} == {r[0] for r in rows if r[1] == "off"}
    for kind in ("ngram", "two-model"):
        for guesses in ("auto", "2", "4", "8"):
            assert (kind, guesses) in kinds, out
    for r in rows:
        if r[1] == "two-model" and r[2] != "auto":  # the model itself: every guess is right
            assert r[3].endswith("x") and r[5] == "100" and min(map(int, r[5:])) >= 90, r
            assert float(r[4]) > 0.8 * (int(r[2]) + 1)


@pytest.mark.parametrize("args, words", [
    (["--tasks", "none.jsonl"], ["none.jsonl"]),
    (["--draft-model", "nothing"], ["nothing"]),
])
def test_bench_refuses(quern, model, args, words):
    r = quern("bench", "--speculation", "--model", model, "--repeat", 1, *args, ok=False)
    assert r.returncode != 0 and all(w in r.stderr for w in words)
