#!/usr/bin/env python3
"""How fast /health, /v1/models and /stats answer while every lane of the server is busy and a long
prompt is read: the probes of one kept connection, one after the other, each timed.

Running streams keep all lanes but one busy; the last lane reads a prompt of --prompt-tokens. A
checkpoint with a smaller window is served through a folder of links whose config.json has a larger
one: the arithmetic is the same, the text is not. The streams are read by a process of their own, so
that the prober's interpreter waits for nothing. The same prober also asks a bare echo process under
the same load: what the machine itself takes. Writes docs/measurements/answers-DATE-CPU.{md,json}.
Standard library only.
"""

import argparse
import ctypes
import datetime
import json
import multiprocessing
import pathlib
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

import peer_machine

ROOT = peer_machine.HERE.parent.parent
ROUTES = ("/health", "/v1/models", "/stats")
ECHO = "echo"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def widened(model, window, folder):
    """A folder like `model` whose config promises `window` positions."""
    model = pathlib.Path(model)
    if not model.is_dir():
        model = pathlib.Path.home() / ".cache/quern/models" / model
    for f in model.iterdir():
        if f.name != "config.json" and f.is_file():
            (folder / f.name).symlink_to(f.resolve())
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = max(window, config.get("max_position_embeddings", 0))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def wait_ready(port):
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as r:
                if r.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("server_busy: the server did not start")


def post(port, body):
    text = json.dumps(body).encode()
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
              b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
    return s


def ask_for_short_slices():
    """The prober and the echo share the machine with what they measure: like the server's own
    threads they ask the kernel (6.12 and later) to be given a processor when they wake. Without it
    the figures hold their own waits too. x86-64's numbers of sched_getattr and sched_setattr."""
    libc, shape = ctypes.CDLL(None), "IIQiIQQQ"
    attr = ctypes.create_string_buffer(48)
    if libc.syscall(315, 0, attr, 48, 0) == 0:
        values = list(struct.unpack(shape, attr.raw))
        values[0], values[5] = 48, 100000
        libc.syscall(314, 0, ctypes.create_string_buffer(struct.pack(shape, *values), 48), 0)


def load_main(port, streams, prompt_ids, running, reading, done):
    """All lanes: `streams` answers without end, and one long prompt."""
    sel = selectors.DefaultSelector()
    for i in range(streams):
        s = post(port, {"prompt": [100 + i], "max_tokens": 100000, "stream": True,
                        "ignore_eos": True, "temperature": 1, "seed": i})
        sel.register(s, selectors.EVENT_READ, [i, 0])
    begun, late = set(), None
    while True:
        for key, _ in sel.select():
            piece = key.fileobj.recv(262144)
            if key.data is None:
                if b'"text"' in piece or not piece:
                    done.set()
                    return
                continue
            key.data[1] += piece.count(b'"text"')
            if key.data[1] > 4:
                begun.add(key.data[0])
        if late is None and len(begun) == streams:
            running.set()
            reading.wait()
            late = post(port, {"prompt": prompt_ids, "max_tokens": 1, "stream": True})
            sel.register(late, selectors.EVENT_READ, None)


def echo_main(port, short_slices):
    """Answers each line of one connection after the other with a line."""
    if short_slices:
        ask_for_short_slices()
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            s, _ = listener.accept()
            with s:
                while piece := s.recv(4096):
                    s.sendall(piece)


class Prober:
    def __init__(self, port, echo_port):
        self.http = socket.create_connection(("127.0.0.1", port))
        self.http.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.echo = socket.create_connection(("127.0.0.1", echo_port))
        self.asks = {r: b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % r.encode() for r in ROUTES}

    def ask(self, route):
        """Seconds until the whole answer was there."""
        begin = time.perf_counter()
        if route == ECHO:
            self.echo.sendall(b"?" * 64)
            self.echo.recv(4096)
            return time.perf_counter() - begin
        self.http.sendall(self.asks[route])
        got = b""
        while b"\r\n\r\n" not in got:
            got += self.http.recv(65536)
        head, body = got.split(b"\r\n\r\n", 1)
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += self.http.recv(65536)
        took = time.perf_counter() - begin
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"server_busy: {route} answered {head[:80]!r}")
        return took

    def while_not(self, event, seconds, pause):
        took = {r: [] for r in (*ROUTES, ECHO)}
        end = time.monotonic() + seconds
        while not event.is_set() and time.monotonic() < end:
            for r in took:
                took[r].append(self.ask(r))
                time.sleep(pause)
        return took


def stats_of(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=10) as r:
        return json.load(r)


def measure(options, folder):
    port, echo_port = free_port(), free_port()
    window = options.prompt_tokens + 64
    model = widened(options.model, window, folder)
    command = [options.quern, "serve", "--model", str(model), "--port", str(port), "--threads",
               str(options.threads), "--batch", str(options.lanes), "--no-access-log",
               *options.extra]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ctx = multiprocessing.get_context("spawn")
    running, reading, done = ctx.Event(), ctx.Event(), ctx.Event()
    ids = [100 + (i * 37) % 4000 for i in range(options.prompt_tokens)]
    load = ctx.Process(target=load_main, daemon=True, args=(
        port, options.lanes - 1, ids, running, reading, done))
    echo = ctx.Process(target=echo_main, daemon=True, args=(echo_port, options.short_slices))
    record = {"schema": 1, "machine": peer_machine.facts(), "threads": options.threads,
              "lanes": options.lanes, "prompt_tokens": options.prompt_tokens,
              "load_before": peer_machine.load_average()}
    try:
        wait_ready(port)
        echo.start()
        load.start()
        if not running.wait(60):
            raise SystemExit("server_busy: the streams did not start")
        if options.short_slices:
            ask_for_short_slices()
        prober = Prober(port, echo_port)
        record["running_s"] = prober.while_not(done, options.before, options.pause)
        reading.set()
        time.sleep(0.2)
        record["stats"] = stats_of(port)["requests"]
        record["busy_s"] = prober.while_not(done, options.seconds, options.pause)
        record["prompt_read_to_its_end"] = done.is_set()
    finally:
        load.kill()
        echo.kill()
        server.kill()
        server.wait()
    record["load_after"] = peer_machine.load_average()
    return record


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def table(took):
    lines = ["| route | probes | median, ms | p99, ms | largest, ms |", "|---|---|---|---|---|"]
    for route, seconds in took.items():
        ms = [1000 * s for s in seconds]
        name = "a bare echo" if route == ECHO else f"`{route}`"
        lines.append(f"| {name} | {len(ms)} | {statistics.median(ms):.2f} | "
                     f"{quantile(ms, 0.99):.2f} | {max(ms):.2f} |")
    return "\n".join(lines)


def markdown(record, command):
    return f"""# Answers that need no model, while the model is busy

{record['machine']['cpu']['model']}, {record['threads']} threads of the engine, {record['lanes']} lanes. Load
{record['load_before']} before and {record['load_after']} after. Raw figures: the JSON file beside
this one. Command: `{command}`

All lanes but one stream answers; then the last one reads a prompt of {record['prompt_tokens']} tokens.

## While {record['lanes'] - 1} answers are streamed

{table(record['running_s'])}

## While the long prompt is read beside them

{table(record['busy_s'])}
"""


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quern", default=str(ROOT / "build" / "src" / "cli" / "quern"))
    p.add_argument("--model", default="smollm2", help="a folder, or a name under quern's cache")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--lanes", type=int, default=8)
    p.add_argument("--prompt-tokens", type=int, default=16384)
    p.add_argument("--before", type=float, default=5, help="seconds without the long prompt")
    p.add_argument("--seconds", type=float, default=25, help="most seconds with it")
    p.add_argument("--short-slices", action="store_true",
                   help="the prober and the echo ask the kernel for short slices")
    p.add_argument("--pause", type=float, default=0.004, help="seconds between probes")
    p.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="more flags for quern")
    p.add_argument("--no-write", action="store_true", help="print the tables only")
    options = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="quern-busy-") as folder:
        record = measure(options, pathlib.Path(folder))
    text = markdown(record, "tools/peers/server_busy.py " + " ".join(
        a for a in sys.argv[1:] if not a.startswith("/")))
    print(text)
    if not options.no_write:
        slug = peer_machine.cpu_slug(peer_machine.cpu_info())
        base = ROOT / "docs" / "measurements" / f"answers-{datetime.date.today()}-{slug}"
        for phase in ("running_s", "busy_s"):
            record[phase] = {k: [round(s, 5) for s in v] for k, v in record[phase].items()}
        pathlib.Path(f"{base}.json").write_text(json.dumps(record) + "\n")
        pathlib.Path(f"{base}.md").write_text(text)


if __name__ == "__main__":
    main()
