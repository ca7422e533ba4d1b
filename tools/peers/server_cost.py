#!/usr/bin/env python3
"""What the HTTP server costs over the bare engine, and how fast it answers while the model is busy.

Decode: rounds of `quern bench` (engine alone) and of one streamed completion over HTTP by the same
binary, model and thread count, in turn; the figure is the median of the ratios within a round.
Latency: /health and /v1/models, asked in turn on one kept connection while a long prompt is read.
Writes docs/measurements/server-DATE-CPU.{md,json}. Standard library only.
"""

import argparse
import datetime
import http.client
import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import threading
import time

import peer_machine
import peer_programs

ROOT = peer_machine.HERE.parent.parent
PROMPT = "A long list of English words in alphabetical order, one after the other: aardvark,"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, options):
        self.port = free_port()
        self.process = subprocess.Popen(
            [options.quern, "serve", "--model", options.model, "--port", str(self.port),
             "--threads", str(options.threads), "--no-access-log"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("server_cost: the server did not start")

    def get(self, path, connection=None):
        c = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        c.request("GET", path)
        answer = c.getresponse()
        return answer.status, answer.read()

    def stream(self, body):
        """Arrival time and bytes of each piece of a streamed completion. A bare socket: the client
        shares the machine with the server, so it must cost next to nothing."""
        text = json.dumps(dict(body, stream=True)).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=600) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                      b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                      % (len(text), text))
            while piece := s.recv(65536):
                yield time.perf_counter(), piece

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def server_rate(server, tokens):
    """Tokens per second from the first to the last piece of text."""
    body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0,
            "stream_options": {"include_usage": True}}
    pieces = list(server.stream(body))
    whole = b"".join(p for _, p in pieces)
    usage = re.search(rb'"completion_tokens": ?(\d+)', whole)
    if not usage or int(usage[1]) < tokens // 2 or b"[DONE]" not in whole:
        raise SystemExit(f"server_cost: not a whole answer: {whole[-400:]!r}")
    texts = [at for at, p in pieces if b'"text": ""' not in p and b'"text":""' not in p
             and b'"text"' in p]
    return (int(usage[1]) - 1) / (texts[-1] - texts[0])


def engine_rate(options):
    out = subprocess.run(
        [options.quern, "bench", "--model", options.model, "--prefill", "16", "--decode",
         str(options.tokens), "--threads", str(options.threads), "--repeat", "1", "--format", "json"],
        check=True, capture_output=True, text=True).stdout
    return peer_programs.quern_rates(out, 16, options.tokens)[0]["decode"]


def latencies(server, options):
    """Seconds of each probe while a prompt of many tokens is read."""
    words = " ".join(f"word{i % 97}" for i in range(options.long_words))
    done = threading.Event()

    def read_prompt():
        for _ in server.stream({"prompt": words, "max_tokens": 1, "temperature": 0}):
            pass
        done.set()

    threading.Thread(target=read_prompt, daemon=True).start()
    time.sleep(0.3)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    taken, paths = [], ("/health", "/v1/models")
    while not done.is_set():
        begin = time.perf_counter()
        server.get(paths[len(taken) % 2], connection)
        taken.append(time.perf_counter() - begin)
        time.sleep(0.005)
    return taken


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def measure(options):
    record = {"schema": 1, "machine": peer_machine.facts(), "threads": options.threads,
              "tokens": options.tokens, "load_before": peer_machine.load_average(), "rounds": []}
    server = Server(options)
    try:
        server_rate(server, options.tokens)
        for i in range(options.rounds):
            pair = {"engine": engine_rate(options), "server": server_rate(server, options.tokens)}
            record["rounds"].append(pair)
            print(f"round {i + 1}: engine {pair['engine']:.1f}, server {pair['server']:.1f} tok/s",
                  file=sys.stderr, flush=True)
        record["latency_s"] = latencies(server, options)
    finally:
        server.stop()
    record["load_after"] = peer_machine.load_average()
    return record


def markdown(record, command):
    ratios = [r["server"] / r["engine"] for r in record["rounds"]]
    engine = statistics.median(r["engine"] for r in record["rounds"])
    served = statistics.median(r["server"] for r in record["rounds"])
    ms = [1000 * x for x in record["latency_s"]]
    return f"""# The server over the engine

{record['machine']['cpu']['model']}, {record['threads']} thread(s), load {record['load_before']} before and
{record['load_after']} after. Raw figures: the JSON file beside this one. Command: `{command}`

| | tokens/s (median of {len(ratios)}) |
|---|---|
| engine alone, decode {record['tokens']} | {engine:.1f} |
| streamed over HTTP, greedy | {served:.1f} |
| server ÷ engine within a round | {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f}) |

| `/health` and `/v1/models` while a long prompt is read | ms |
|---|---|
| median of {len(ms)} | {statistics.median(ms):.2f} |
| 99th percentile | {quantile(ms, 0.99):.2f} |
| largest | {max(ms):.2f} |
"""


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quern", default=str(ROOT / "build" / "quern"))
    p.add_argument("--model", default="smollm2")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--long-words", type=int, default=500, help="words of the long prompt")
    p.add_argument("--no-write", action="store_true", help="print the table only")
    options = p.parse_args()
    if options.rounds < 5 and not options.no_write:
        p.error("fewer than 5 rounds are not written: use --no-write")
    record = measure(options)
    text = markdown(record, f"tools/peers/server_cost.py --threads {options.threads}")
    print(text)
    if not options.no_write:
        slug = peer_machine.cpu_slug(peer_machine.cpu_info())
        base = ROOT / "docs" / "measurements" / f"server-{datetime.date.today()}-{slug}"
        pathlib.Path(f"{base}.json").write_text(json.dumps(record, indent=1) + "\n")
        pathlib.Path(f"{base}.md").write_text(text)


if __name__ == "__main__":
    main()
