"""A server of known delays and known faults, for the tests of `quern bench serve`.

usage: fake_server.py PORT LOG BEHAVIOUR
Streams answers in the shape of the OpenAI API. LOG gets a line of JSON per answer with the moments,
on the clock that quern reads too (CLOCK_MONOTONIC), just before each piece was handed to the kernel:
a test compares the two clocks' readings of one event, so it does not depend on how fast the machine
is. BEHAVIOUR names a fault, or "good"; "x-once" is fault x in the first answer only. "cache" counts a
token for every four characters of a prompt, and as cached what an earlier prompt began with too; LOG
has the messages then. "third" begins every third answer late.
"""
import json
import os
import signal
import socket
import sys
import threading
import time

TTFT_S, GAP_S, PREFIX = 0.030, 0.008, 5
LOCK = threading.Lock()
STATE = {"answers": 0, "prompts": [], "open": 0}


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value):
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def piece(chat, text, finish=None):
    body = {"delta": {"content": text} if text else {}} if chat else {"text": text}
    return event({"choices": [{"index": 0, **body, "finish_reason": finish}]})


def common(a, b):
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def cache_counts(body):
    """Prompt and cached tokens of a server with a perfect prefix cache."""
    text = json.dumps(body.get("messages") or body.get("prompt"))
    with LOCK:
        cached = max((common(text, p) for p in STATE["prompts"]), default=0)
        STATE["prompts"].append(text)
    return {"prompt_tokens": len(text) // 4, "prompt_tokens_details": {"cached_tokens": cached // 4}}


class Answer:
    def __init__(self, conn, chat, body, fault, log):
        self.conn, self.chat, self.body, self.fault, self.log = conn, chat, body, fault, log
        self.sent = {"output_ns": [], "pid": os.getpid()}
        if fault == "cache":
            self.sent["messages"] = body.get("messages")

    def send(self, data, output=False):
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if output:
            self.sent["output_ns"].append(now)
        self.sent["last_ns"] = now
        self.conn.sendall(chunk(data))

    def head(self, status="200 OK", kind="text/event-stream"):
        self.conn.sendall(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
                          "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())

    def run(self):
        n, fault = self.body["max_tokens"], self.fault
        self.sent["received_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if fault == "status":
            self.head("500 Internal Server Error", "application/json")
            self.conn.sendall(chunk(b'{"error":{"message":"no more cheese"}}') + b"0\r\n\r\n")
            return
        self.head(kind="text/html" if fault == "type" else "text/event-stream")
        time.sleep(0.4 if fault == "late" else TTFT_S)
        for i in range(n):
            if i:
                time.sleep(GAP_S)
            if i == n // 2 and self.broken():
                return
            self.send(piece(self.chat, f"word{i} "), output=True)
        self.send(piece(self.chat, "", None if fault == "finish" else "length"))
        counts = {"prompt_tokens": 20, "completion_tokens": 1 if fault == "counts" else n,
                  "prompt_tokens_details": {"cached_tokens": PREFIX}}
        if fault == "cache":
            counts.update(cache_counts(self.body))
        if fault == "usage-type":
            counts["completion_tokens"] = "many"
        if fault != "usage":
            self.send(event({"choices": [], "usage": counts}))
        if fault == "after-done":
            self.send(event(b"[DONE]") + piece(self.chat, "more"))
        elif fault != "done":
            self.send(event(b"[DONE]"))
        self.conn.sendall(b"0\r\n\r\n")

    def broken(self):
        """A fault in the middle; True when the answer ends with it."""
        fault = self.fault
        if fault == "utf8":
            self.send(event(b'{"choices":[{"index":0,"delta":{"content":"\xc3\x28"}}]}'))
        elif fault == "json":
            self.send(event(b'{"choices":['))
        elif fault == "half":
            self.conn.sendall(b"40\r\ndata: {\"choi")
            return True
        elif fault == "error":
            self.send(event({"error": {"message": "the model fell over", "code": 500}}))
        elif fault == "raw500":
            self.conn.sendall(b"HTTP/1.1 500 Internal Server Error\r\n\r\n")
        elif fault == "stall":
            time.sleep(4)
        elif fault == "die":
            print("dying as told", file=sys.stderr, flush=True)
            os._exit(7)
        return False


def serve(conn, behaviour, log):
    with conn:
        data = b""
        while b"\r\n\r\n" not in data:
            more = conn.recv(65536)
            if not more:
                return
            data += more
        head, data = data.split(b"\r\n\r\n", 1)
        if head.startswith(b"GET"):
            body = b'{"data":[{"id":"fake"}]}'
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                         b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
            return
        length = int([h for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")][0]
                     .split(b":")[1])
        while len(data) < length:
            data += conn.recv(65536)
        with LOCK:
            STATE["answers"] += 1
            STATE["open"] += 1
            first, third = STATE["answers"] == 1, STATE["answers"] % 3 == 0
        once = behaviour.endswith("-once")
        fault = behaviour.removesuffix("-once") if first or not once else "good"
        if behaviour == "third":
            fault = "late" if third else "good"
        answer = Answer(conn, b"/chat/" in head.split(b"\r\n")[0], json.loads(data), fault, log)
        try:
            answer.run()
        except OSError:
            pass
        with LOCK, open(log, "a", encoding="utf-8") as f:
            f.write(json.dumps(answer.sent) + "\n")
        with LOCK:
            STATE["open"] -= 1


def end(*_):
    """The last answer may have been read already and its line not be written yet."""
    for _ in range(100):
        if STATE["open"] == 0:
            break
        time.sleep(0.01)
    os._exit(0)


def main():
    port, log, behaviour = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if behaviour == "die-once":  # only in the first life: the log tells
        behaviour = "good" if os.path.exists(log + ".died") else "die"
        open(log + ".died", "w").close()
    signal.signal(signal.SIGTERM, end)
    with socket.create_server(("127.0.0.1", port), backlog=64) as s:
        while True:
            conn, _ = s.accept()
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(conn, behaviour, log), daemon=True).start()


if __name__ == "__main__":
    main()
