#!/usr/bin/env python3
"""What several clients at a time get: tokens per second of 1, 4 and 8 streams, from quern and from
llama-server in turn within each round; and the gaps between the tokens of running streams while a
long prompt is read.

One thread reads all streams from bare sockets, because the client shares the machine with the
server. Writes docs/measurements/load-DATE-CPU.{md,json}. Standard library only.
"""

import argparse
import datetime
import json
import pathlib
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import peer_machine

ROOT = peer_machine.HERE.parent.parent
WORDS = ("apple river stone cloud music paper light ocean dream forest candle mirror garden "
         "silver winter summer").split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, name, command, port):
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as r:
                    if r.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"server_load: {name} did not start")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def quern(options):
    port = free_port()
    return Server("quern", [options.quern, "serve", "--model", options.model, "--port", str(port),
                            "--threads", str(options.threads), "--no-access-log",
                            *options.extra], port)


def llama(options):
    port = free_port()
    return Server("llama-server", [options.llama, "-m", options.gguf, "--port", str(port),
                                   "-t", str(options.threads), "-c", str(options.ctx * 8),
                                   "-np", "8", "--no-webui"], port)


class Stream:
    """One streamed completion; arrival times of the pieces that carry text."""

    def __init__(self, server, prompt, tokens):
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
                           "ignore_eos": True, "cache_prompt": False,
                           "stream_options": {"include_usage": True}}).encode()
        self.sent = time.perf_counter()
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=600)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                          b"Connection: close\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.pieces, self.times = [], []

    def read(self):
        """False at the end."""
        piece = self.sock.recv(262144)
        now = time.perf_counter()
        if not piece:
            self.sock.close()
            self.ended = now
            return False
        self.pieces.append(piece)
        if b'"text"' in piece:
            self.times.append(now)
        return True

    def tokens(self):
        whole = b"".join(self.pieces)
        found = re.findall(rb'"completion_tokens": ?(\d+)', whole)
        if not found or b"[DONE]" not in whole:
            raise SystemExit(f"server_load: not a whole answer: {whole[-300:]!r}")
        return int(found[-1])


def read_all(streams, until=None):
    """Reads all streams to their ends, or until `until` has text."""
    with selectors.DefaultSelector() as sel:
        for s in streams:
            sel.register(s.sock, selectors.EVENT_READ, s)
        while sel.get_map():
            for key, _ in sel.select():
                if not key.data.read():
                    sel.unregister(key.fileobj)
            if until and until.times:
                return


def rate(server, n, tokens, salt):
    """Tokens per second of n streams together, from the first request to the last piece."""
    begin = time.perf_counter()
    streams = [Stream(server, f"{salt} {i}: " + " ".join(WORDS[i:i + 6]) + ", a list of words:",
                      tokens) for i in range(n)]
    read_all(streams)
    return sum(s.tokens() for s in streams) / (max(s.ended for s in streams) - begin)


def long_prompt(words):
    return " ".join(f"{WORDS[i % 16]}{i % 7}" for i in range(words))


def gaps_of(streams, begin, end):
    found = []
    for s in streams:
        at = [t for t in s.times if begin <= t <= end]
        found += [b - a for a, b in zip(at, at[1:])]
    return found


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def flow(server, options, n):
    """n running streams, then a long prompt: gaps before and while it is read, and how long."""
    prompt = long_prompt(options.long_words)
    alone = Stream(server, "first " + prompt, 1)
    read_all([alone])
    running = [Stream(server, f"{i} counts: one two three four", 3000) for i in range(n)]
    while min(len(s.times) for s in running) < 60:
        read_some(running)
    begin = time.perf_counter()
    late = Stream(server, "second " + prompt, 1)
    read_all([*running, late], until=late)
    read_tokens = late.times[0]
    before = gaps_of(running, 0, begin)
    during = gaps_of(running, begin, read_tokens)
    for s in running:
        s.sock.close()
    read_all([late])
    usage = re.findall(rb'"prompt_tokens": ?(\d+)', b"".join(late.pieces))
    return {"streams": n, "prompt_tokens": int(usage[-1]),
            "alone_s": alone.times[0] - alone.sent, "beside_s": read_tokens - late.sent,
            "gap_before_s": before, "gap_during_s": during}


def read_some(streams):
    with selectors.DefaultSelector() as sel:
        for s in streams:
            sel.register(s.sock, selectors.EVENT_READ, s)
        for key, _ in sel.select():
            if not key.data.read():
                raise SystemExit("server_load: a stream ended early")


def measure(options):
    record = {"schema": 1, "machine": peer_machine.facts(), "threads": options.threads,
              "tokens": options.tokens, "load_before": peer_machine.load_average(),
              "rounds": [], "flow": []}
    servers = [quern(options)] + ([llama(options)] if options.gguf else [])
    try:
        for s in servers:
            rate(s, 2, 8, "warm")
        for i in range(options.rounds):
            entry = {s.name: {str(n): rate(s, n, options.tokens, f"round {i}")
                              for n in options.streams} for s in servers}
            record["rounds"].append(entry)
            print(f"round {i + 1}:", "; ".join(
                f"{name} " + " ".join(f"{n}x{v:.0f}" for n, v in e.items())
                for name, e in entry.items()), file=sys.stderr, flush=True)
        for n in options.flow:
            record["flow"].append(flow(servers[0], options, n))
    finally:
        for s in servers:
            s.stop()
    record["load_after"] = peer_machine.load_average()
    return record


def median_of(record, name, n):
    return statistics.median(r[name][n] for r in record["rounds"])


def rates_table(record):
    names = list(record["rounds"][0]) if record["rounds"] else []
    lines = []
    for name in names:
        counts = list(record["rounds"][0][name])
        one = counts[0]
        lines += ["", f"| {name}, streams | tokens/s together (median of "
                  f"{len(record['rounds'])}) | against {one} stream |", "|---|---|---|"]
        for n in counts:
            ratio = statistics.median(r[name][n] / r[name][one] for r in record["rounds"])
            lines.append(f"| {n} | {median_of(record, name, n):.0f} | {ratio:.2f} |")
    if len(names) == 2:
        for n in record["rounds"][0][names[0]]:
            ratio = statistics.median(r[names[0]][n] / r[names[1]][n] for r in record["rounds"])
            lines.append(f"\n{n} streams, {names[0]} ÷ {names[1]} within a round: {ratio:.2f}")
    return "\n".join(lines)


def flow_table(record):
    lines = ["", "| running streams | long prompt | read alone | beside them | gap before, median | "
             "while it is read: median | p99 | largest |", "|---|---|---|---|---|---|---|---|"]
    for f in record["flow"]:
        during, before = f["gap_during_s"], f["gap_before_s"]
        p99 = quantile(during, 0.99)
        lines.append(
            f"| {f['streams']} | {f['prompt_tokens']} tokens | {f['alone_s']:.2f} s | "
            f"{f['beside_s']:.2f} s | {1000 * statistics.median(before):.1f} ms | "
            f"{1000 * statistics.median(during):.1f} ms | {1000 * p99:.1f} ms "
            f"({p99 / statistics.median(before):.1f} × before) | {1000 * max(during):.1f} ms |")
    return "\n".join(lines)


def markdown(record, command):
    return f"""# Several clients at a time

{record['machine']['cpu']['model']}, {record['threads']} thread(s), {record['tokens']} tokens a stream, greedy. Load
{record['load_before']} before and {record['load_after']} after. Raw figures: the JSON file beside
this one. Command: `{command}`
{rates_table(record)}
{flow_table(record)}
"""


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quern", default=str(ROOT / "build" / "src" / "cli" / "quern"))
    p.add_argument("--model", default="smollm2")
    p.add_argument("--llama", default="llama-server", help="llama.cpp's server")
    p.add_argument("--gguf", help="the model file for it; without, quern alone is measured")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    p.add_argument("--flow", type=int, nargs="*", default=[1, 4], help="running streams")
    p.add_argument("--long-words", type=int, default=1300, help="about 4096 tokens of SmolLM2")
    p.add_argument("--ctx", type=int, default=4096, help="llama-server's, of each stream")
    p.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="more flags for quern")
    p.add_argument("--no-write", action="store_true", help="print the tables only")
    options = p.parse_args()
    if options.rounds < 5 and not options.no_write:
        p.error("fewer than 5 rounds are not written: use --no-write")
    record = measure(options)
    text = markdown(record, f"tools/peers/server_load.py --threads {options.threads}")
    print(text)
    if not options.no_write:
        slug = peer_machine.cpu_slug(peer_machine.cpu_info())
        base = ROOT / "docs" / "measurements" / f"load-{datetime.date.today()}-{slug}"
        pathlib.Path(f"{base}.json").write_text(json.dumps(record, indent=1) + "\n")
        pathlib.Path(f"{base}.md").write_text(text)


if __name__ == "__main__":
    main()
