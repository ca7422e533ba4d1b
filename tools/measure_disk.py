#!/usr/bin/env python3
"""Measures what the prompt cache on disk gains: a prompt of N tokens computed, then read back by a
server that was just started, against reading the same files plainly. The files' pages are dropped
from the page cache (posix_fadvise DONTNEED) before each reading.

    tools/measure_disk.py --dir /some/folder [--model smollm2] [--tokens 16384] [--rounds 5]

Prints one JSON object. The prompt is this project's own documentation. `--kv-quant 8` and the like
go to the server; --fill-only leaves the folder for later runs, --keep reads one that was left."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Server:
    def __init__(self, a, extra=()):
        quern = os.environ.get("QUERN_BIN", ROOT / "build" / "src" / "cli" / "quern")
        args = [quern, "serve", "--model", a.model, "--ctx", a.tokens + 512, "--port", 0,
                "--ssd-cache", a.dir, "--kv-quant", a.kv_quant, *extra]
        self.p = subprocess.Popen([str(x) for x in args], stdout=subprocess.PIPE, text=True)
        self.url = None
        for line in self.p.stdout:
            at = line.find("http://")
            if at >= 0:
                self.url = line[at:].split()[0].rstrip("/").removesuffix("/v1")
                break
        if not self.url:
            sys.exit("the server did not start")
        while True:
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.02)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as r:
            return json.load(r)

    def post(self, path, body, stream=False):
        rq = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                    {"Content-Type": "application/json"})
        r = urllib.request.urlopen(rq, timeout=7200)
        return r if stream else json.load(r)

    def cpu_s(self):
        f = pathlib.Path(f"/proc/{self.p.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.communicate(timeout=120)


def ask(s, ids, n=8):
    """Seconds to the first token, and everything that an answer says: tokens and logprobs."""
    body = {"prompt": ids, "max_tokens": n, "temperature": 0, "logprobs": 5, "stream": True,
            "stream_options": {"include_usage": True}}
    cpu, t = s.cpu_s(), time.monotonic()
    first, said, usage = None, [], None
    with s.post("/v1/completions", body, stream=True) as r:
        for line in r:
            if not line.startswith(b"data: {"):
                continue
            d = json.loads(line[6:])
            if d.get("choices") and first is None:
                first = time.monotonic() - t
                cpu = s.cpu_s() - cpu
            said += [[c["text"], c.get("logprobs")] for c in d.get("choices", [])]
            usage = d.get("usage") or usage
    end = time.monotonic() - t
    return {"first_s": first, "cpu_s": cpu, "decode_s": end - first, "said": said,
            "cached": usage["prompt_tokens_details"]["cached_tokens"]}


def prompt(s, n):
    text = "\n".join(p.read_text() for p in sorted(ROOT.glob("docs/*.md")) * 8)
    got = s.post("/tokenize", {"content": text[:8 * n]})
    ids = got["tokens"]
    assert len(ids) >= n, len(ids)
    return ids[:n]


def files(a):
    return sorted(pathlib.Path(a.dir).glob("*/*.kv"))


def drop(a):
    os.sync()
    for f in files(a):
        fd = os.open(f, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_plainly(a):
    """Seconds and bytes of reading all records, as fast as read() does it."""
    buf, n = bytearray(4 << 20), 0
    t = time.monotonic()
    for f in files(a):
        fd = os.open(f, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while True:
            got = os.readv(fd, [buf])
            n += got
            if not got:
                break
        os.close(fd)
    return time.monotonic() - t, n


def fill(a):
    shutil.rmtree(a.dir, ignore_errors=True)
    s = Server(a)
    ids = prompt(s, a.tokens)
    cold = ask(s, ids)
    assert cold["cached"] == 0
    flushed = s.post("/admin/cache/flush", {})
    assert flushed["durable"], flushed
    s.stop()
    pathlib.Path(a.dir, "measured.json").write_text(json.dumps({"ids": ids, "cold": cold}))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dir", required=True)
    p.add_argument("--model", default="smollm2")
    p.add_argument("--tokens", type=int, default=16384)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--kv-quant", default="off")
    p.add_argument("--fill-only", action="store_true")
    p.add_argument("--keep", action="store_true")
    a = p.parse_args()
    if not a.keep:
        fill(a)
    known = json.loads(pathlib.Path(a.dir, "measured.json").read_text())
    ids, cold = known["ids"], known["cold"]
    out = {"tokens": len(ids), "kv_quant": a.kv_quant, "prefill_s": cold["first_s"],
           "prefill_cpu_s": cold["cpu_s"], "rounds": []}
    for _ in range(0 if a.fill_only else a.rounds):
        drop(a)
        plain_s, plain_bytes = read_plainly(a)
        drop(a)
        s = Server(a)
        drop(a)
        got = ask(s, ids)
        d = s.get("/stats")["prompt_cache"]["disk"]
        s.stop()
        same = got["said"] == cold["said"]
        out["rounds"].append({"first_s": got["first_s"], "cached": got["cached"], "same": same,
                              "restore_s": d["restore_seconds"],
                              "plain_read_s": plain_s, "plain_bytes": plain_bytes})
        print(out["rounds"][-1], file=sys.stderr, flush=True)
    for k in ("first_s", "restore_s", "plain_read_s"):
        if out["rounds"]:
            out[k] = statistics.median(r[k] for r in out["rounds"])
    print(json.dumps(out))


main()
