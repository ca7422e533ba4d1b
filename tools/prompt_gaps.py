#!/usr/bin/env python3
"""
Owns: one question about a running server: how even do answers flow while a long prompt is read?
Starts `quern serve`, lets a number of answers stream, sends a prompt of so many tokens beside them
and reports the gaps between their tokens: the median before the prompt came; median, 99th
percentile and longest while it was read; and how long it took to its first token. Answers are
greedy: drawn ones wander into letters of several tokens, whose gaps are several steps. Rounds of
all numbers of answers in turn. Standard library only; needs the model, no network.

usage: tools/prompt_gaps.py --quern PATH --model NAME [--streams 1,4] [--prompt 4000] [--rounds 3]
                            [--threads 2] [--json FILE]
"""
import argparse
import http.client
import json
import socket
import statistics
import subprocess
import threading
import time

WARM_TOKENS = 60  # of each answer before the prompt comes


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def post(port, body):
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    conn.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = conn.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read().decode()}")
    return conn, answer


class Stream(threading.Thread):
    """One answer; the times at which its tokens came."""

    def __init__(self, port, number, tokens):
        super().__init__(daemon=True)
        self.port, self.number, self.tokens = port, number, tokens
        self.times, self.quit = [], False

    def run(self):
        body = {"prompt": f"Chapter {self.number}. Once upon a time", "max_tokens": self.tokens,
                "stream": True, "ignore_eos": True, "temperature": 0}
        conn, answer = post(self.port, body)
        for line in answer:
            if line.startswith(b"data: {"):
                self.times.append(time.monotonic())
            if self.quit:
                break
        conn.sock.close()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def gaps(streams, begin, end):
    out = []
    for s in streams:
        out += [b - a for a, b in zip(s.times, s.times[1:]) if a >= begin and b <= end]
    return out


def round_of(port, n, prompt, nonce):
    streams = [Stream(port, 10 * nonce + i, 4000) for i in range(n)]
    for s in streams:
        s.start()
    while min(len(s.times) for s in streams) < WARM_TOKENS:
        time.sleep(0.01)
    warm = max(s.times[WARM_TOKENS // 2] for s in streams)
    begin = time.monotonic()
    ids = [1000 + (i * 7919 + nonce * 104729) % 40000 for i in range(prompt)]
    conn, answer = post(port, {"prompt": ids, "max_tokens": 1, "temperature": 0})
    answer.read()
    end = time.monotonic()
    conn.close()
    before, within = gaps(streams, warm, begin), gaps(streams, begin, end)
    for s in streams:
        s.quit = True
    for s in streams:
        s.join()
    ms = {"before_p50": statistics.median(before), "p50": statistics.median(within),
          "p99": percentile(within, 0.99), "longest": max(within), "first_token": end - begin}
    ms = {k: round(v * 1000, 2) for k, v in ms.items()}
    return {"streams": n, "gaps": len(within), **ms, "p99_of_p50": round(ms["p99"] / ms["p50"], 2),
            "p99_of_before": round(ms["p99"] / ms["before_p50"], 2)}


def serve(args, port):
    command = [args.quern, "serve", "--model", args.model, "--port", str(port),
               "--threads", str(args.threads)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            conn = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            conn.request("GET", "/health")
            if conn.getresponse().status == 200:
                return server
        except OSError:
            pass
        time.sleep(0.1)
    server.terminate()
    raise SystemExit("prompt_gaps: the server does not answer")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--quern", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--streams", default="1,4")
    p.add_argument("--prompt", type=int, default=4000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json")
    args = p.parse_args()
    port, rounds = free_port(), []
    server = serve(args, port)
    try:
        for i in range(args.rounds):
            for n in [int(s) for s in args.streams.split(",")]:
                rounds.append(round_of(port, n, args.prompt, len(rounds) + 1))
                print(json.dumps(rounds[-1]), flush=True)
    finally:
        server.terminate()
        server.wait()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"prompt": args.prompt, "threads": args.threads, "rounds": rounds}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
