"""A crowd: mixed requests of every dialect, eight at a time, a fifth of them left by their client, over the
scripted model and over the real program with a tiny model. Every answer must be the one that the
same request got alone; memory and descriptors must stay where they were.

QUERN_SOAK is the number of requests (`make soak`: 10,000 over each; the usual tests take a few)."""

import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

import wire
from wire import Reader, chat_body, encode, post, say, script
from test_hangup import fds, reset, rss_kib, running, wait_until

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = int(os.environ.get("QUERN_SOAK", "400"))
CLIENTS = 8
CHAT, TEXT, MESSAGES, RESPONSES = ("/v1/chat/completions", "/v1/completions", "/v1/messages",
                                   "/v1/responses")

# Qwen's XML calls, and reasoning where the request asks for it.
TEMPLATE = (
    "{#- <tool_call><function=f><parameter=p></parameter></function></tool_call> -#}"
    "{% if tools %}tools:{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|answer|>{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
PARAMETERS = {"type": "object", "required": ["city"], "additionalProperties": False,
              "properties": {"city": {"enum": ["Rome", "Oslo", "Lima"]}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
SCHEMA = {"type": "object", "required": ["a", "b"], "additionalProperties": False,
          "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}}}
CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"


# ---- answers, whole and streamed, in one form -----------------------------------------------------


def whole(path, j):
    if j.get("error"):
        return ["error", j["error"]["message"]]
    if path == CHAT:
        return [[c["message"].get("content") or "", c["message"].get("reasoning") or "",
                 [[t["function"]["name"], t["function"]["arguments"]]
                  for t in c["message"].get("tool_calls") or []], c["finish_reason"]]
                for c in j["choices"]]
    if path == TEXT:
        return [[c["text"], c["finish_reason"]] for c in j["choices"]]
    if path == MESSAGES:
        return [[b.get("text") or b.get("thinking") or [b["name"], b["input"]]
                 for b in j["content"] if b.get("text") != ""], j["stop_reason"]]
    if path == RESPONSES:
        return [[i["content"][0]["text"] if i["type"] == "message" and i["content"] else
                 [i["name"], i["arguments"]] if i["type"] == "function_call" else ""
                 for i in j["output"]], j["status"]]
    return j


def sse(raw):
    for block in raw.decode().split("\n\n"):
        for line in block.split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line[6:])


def from_chunks(path, raw):
    out = {}
    for chunk in sse(raw):
        if chunk.get("error"):
            return ["error", chunk["error"]["message"]]
        for c in chunk["choices"]:
            o = out.setdefault(c["index"], ["", "", [], None] if path == CHAT else ["", None])
            if path == CHAT:
                d = c["delta"]
                o[0] += d.get("content") or ""
                o[1] += d.get("reasoning") or ""
                for t in d.get("tool_calls") or []:
                    if t.get("id"):
                        o[2].append([t["function"]["name"], ""])
                    o[2][t["index"]][1] += t["function"]["arguments"]
            else:
                o[0] += c["text"]
            o[-1] = c["finish_reason"] or o[-1]
    return [out[i] for i in sorted(out)]


def from_events(path, raw):
    events = list(sse(raw))
    if path == RESPONSES:
        last = events[-1]
        assert last["type"] in ("response.completed", "response.incomplete"), last
        texts = [i["content"][0]["text"] for i in last["response"]["output"] if i["type"] == "message"]
        assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == \
            "".join(texts)
        return whole(path, last["response"])
    blocks, reason = [], None
    for e in events:
        if e["type"] == "error":
            return ["error", e["error"]["message"]]
        if e["type"] == "content_block_start":
            b = e["content_block"]
            blocks.append(["", b.get("name")])
        elif e["type"] == "content_block_delta":
            d = e["delta"]
            blocks[-1][0] += d.get("text") or d.get("thinking") or d.get("partial_json") or ""
        elif e["type"] == "message_delta":
            reason = e["delta"]["stop_reason"]
    return [[[n, json.loads(t or "{}")] if n else t for t, n in blocks if n or t], reason]


def ask(server, path, body, stream):
    if stream:
        body = {**body, "stream": True}
    r = post(server, path, body, timeout=120)
    if not stream or r.status != 200:
        return [r.status, whole(path, r.json())]
    return [200, (from_chunks if path in (CHAT, TEXT) else from_events)(path, r.body)]


# ---- requests -----------------------------------------------------------------------------------


def dictated(k):
    """Requests whose answer the prompt dictates: they tell a mixed-up answer by its text."""
    text = f"request {k} " + "🙂" * (k % 5)
    options = {"delay": k % 3 * 100}
    prompt = {"prompt": "p " + say(text, **options) + "<|answer|>"}
    chat = chat_body(say(text, **options))
    return [
        (CHAT, chat), (TEXT, prompt),
        (TEXT, {**prompt, "prompt": [prompt["prompt"], say("other") + "<|answer|>"], "n": 2}),
        (MESSAGES, {**chat, "max_tokens": 100}), (RESPONSES, {"input": say(text, **options), "store": False}),
        (CHAT, {**chat_body(say("so " + CALL)), "tools": [TOOL]}),
        (MESSAGES, {**chat_body(say(CALL)), "max_tokens": 200,
                    "tools": [{"name": "weather", "input_schema": PARAMETERS}]}),
        (RESPONSES, {"input": say(CALL), "store": False,
                     "tools": [{"type": "function", **TOOL["function"]}]}),
        (CHAT, {**chat_body(say("hm</think>" + text)), "chat_template_kwargs": {"enable_thinking": True}}),
        (CHAT, {**chat, "stop": ["est"]}), (CHAT, {**chat_body(script(fail=3)), "max_tokens": 9}),
    ]


def free(k):
    """Requests that the model answers by itself: seeds, grammars, penalties, long prompts."""
    chat = {**chat_body(f"talk {k}"), "seed": k, "temperature": 1, "max_tokens": 8 + k % 40}
    return [
        (CHAT, chat), (CHAT, {**chat, "n": 3, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {**chat, "presence_penalty": 1, "logit_bias": {"65": 3}, "min_p": 0.01}),
        (TEXT, {"prompt": "x" * (60 * (k % 20)) + "!", "seed": k, "max_tokens": 9, "temperature": 0}),
        (CHAT, {**chat, "max_tokens": 60, "response_format": {
            "type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}}),
        (CHAT, {**chat, "max_tokens": 90, "tools": [TOOL], "tool_choice": "required",
                "parallel_tool_calls": False}),
        (CHAT, {**chat, "chat_template_kwargs": {"enable_thinking": True}, "thinking_budget": 4}),
        (MESSAGES, {**chat_body(f"talk {k}"), "max_tokens": 20, "temperature": 0}),
        (RESPONSES, {"input": f"talk {k}", "max_output_tokens": 20, "temperature": 0,
                     "store": False}),
    ]


def refused(k):
    return [
        (CHAT, {**chat_body("x"), "temperature": k + 3}), (CHAT, {"messages": []}),
        (MESSAGES, chat_body("x")), (RESPONSES, {"input": 5}), (TEXT, {"prompt": "y" * 9000}),
        (CHAT, {**chat_body("x"), "response_format": {"type": "json_schema", "json_schema": {
            "name": "s", "schema": {"$ref": "#/none"}}}}),
        ("/tokenize", {"content": f"talk {k}"}), ("/detokenize", {"tokens": [65, 66, 67]}),
        (MESSAGES + "/count_tokens", chat_body(f"count {k}")), ("/apply-template", chat_body("x")),
    ]


def leave(server, path, body, chance):
    """A client that leaves: in its own request, before or in the answer, politely or not."""
    raw = encode("POST", path, {**body, "stream": chance.random() < 0.5})
    how = chance.random()
    s = server.connect(30)
    try:
        s.sendall(raw[:chance.randrange(len(raw))] if how < 0.2 else raw)
        if how < 0.5:
            time.sleep(chance.random() * 0.02)
        elif how < 0.9:
            s.recv(chance.choice((1, 50, 1000)))
    except OSError:
        pass
    s.close() if chance.random() < 0.5 else reset(s)


class Crowd:
    def __init__(self, server, requests):
        self.server, self.requests, self.wrong = server, requests, []
        self.left = 0
        self.truth = {json.dumps(q): ask(server, *q, stream=False) for q in requests}

    def client(self, n, seed):
        chance = random.Random(seed)
        for _ in range(n):
            path, body = chance.choice(self.requests)
            try:
                if chance.random() < 0.2:
                    self.left += 1
                    leave(self.server, path, body, chance)
                    continue
                stream = path in (CHAT, TEXT, MESSAGES, RESPONSES) and chance.random() < 0.5
                got = ask(self.server, path, body, stream)
                want = self.truth[json.dumps((path, body))]
                if got != want and not (stream and self.failed(got) and self.failed(want)):
                    self.wrong.append((path, body, stream, want, got))
            except Exception as e:  # noqa: BLE001 - reported by the test with its request
                self.wrong.append((path, body, repr(e)))

    @staticmethod
    def failed(answer):
        return answer[0] == 500 or (answer[1] and answer[1][0] == "error")

    def run(self, n, seed):
        threads = [threading.Thread(target=self.client, args=(n // CLIENTS, seed * 1000 + k))
                   for k in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        wait_until(lambda: running(self.server) == 0, 20)


def report(crowd):
    return f"{len(crowd.wrong)} wrong\n" + "\n".join(repr(w)[:1200] for w in crowd.wrong[:8])


def soak(server, requests, capsys):
    crowd = Crowd(server, requests)
    crowd.run(max(80, REQUESTS // 10), 1)  # caches, arenas and grammars reach their size
    assert not crowd.wrong, report(crowd)
    wait_until(lambda: fds(server) < 40, 5)
    base, rows = (fds(server), rss_kib(server)), []
    begin, parts = time.monotonic(), 8
    for part in range(parts):
        if part == parts // 2:
            middle = rss_kib(server)
        crowd.run(REQUESTS // parts, 2 + part)
        assert not crowd.wrong, report(crowd)
        wait_until(lambda: fds(server) <= base[0] + 1, 5)
        rows.append(f"{REQUESTS * (part + 1) // parts:6d} {rss_kib(server):8d} {fds(server):4d}")
    stats = server.stats()["requests"]
    with capsys.disabled():
        if REQUESTS > 1000:
            print(f"\n{REQUESTS} requests and {crowd.left} left in {time.monotonic() - begin:.0f} s; before: "
                  f"{base[1]} KiB, {base[0]} descriptors\nrequests RSS/KiB fds\n" + "\n".join(rows))
    assert rss_kib(server) < base[1] * 1.05 + 4096, (base, rows)
    if REQUESTS >= 10000:  # flat once arenas and caches are full, but for one huge page of a slab
        assert rss_kib(server) - middle < 2048 + 1024, (base, rows)
    assert stats["submitted"] == stats["finished"] + stats["failed"] + stats["cancelled"]


def test_soak(launch, tmp_path, capsys):
    wire.write_tokenizer(tmp_path, TEMPLATE)
    server = launch(tmp_path)
    requests = [q for k in range(12) for q in dictated(k) + free(k) + refused(k)]
    soak(server, requests, capsys)
    code, text = server.stop()
    assert code == 0, text[-4000:]


class Program:
    """quern serve over a tiny real model, with the interface of conftest's Server."""

    def __init__(self, folder):
        quern = Path(os.environ.get("QUERN_BIN", ROOT / "build" / "quern"))
        if not quern.exists():
            pytest.skip(f"{quern} is not built (QUERN_BIN)")
        env = {k: v for k, v in os.environ.items() if not k.startswith("QUERN_")}
        self.proc = subprocess.Popen(
            [str(quern), "serve", "--port", "0", "--ctx", "2048", "--threads", "1", "--no-access-log", str(folder)],
            stdout=subprocess.PIPE, text=True, env=env)
        text = ""
        while "Ctrl-C" not in text:
            line = self.proc.stdout.readline()
            assert line, (text, self.proc.wait())
            text += line
        self.port = int(re.search(r"at http://[^:]+:(\d+)", text).group(1))

    def connect(self, timeout=30):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def stats(self):
        return wire.request(self, "GET", "/stats").json()


def test_soak_engine(tmp_path, capsys):
    folder = tmp_path / "tiny"
    shutil.copytree(ROOT / "tests" / "cli" / "tiny-llama", folder)
    wire.write_tokenizer(folder, TEMPLATE, pieces={})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": wire.EOS}))
    server = Program(folder)
    try:
        soak(server, [q for k in range(12) for q in free(k) + refused(k)[:6]], capsys)
    finally:
        server.proc.send_signal(signal.SIGTERM)
        assert server.proc.wait(timeout=60) == 0
        server.proc.stdout.close()
