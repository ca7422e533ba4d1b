"""Raw HTTP and the scripted model's vocabulary, for the tests in this folder."""

import json
import socket

# ---- the scripted model's tokenizer -----------------------------------------------------------
# ids 0..255 are the bytes; 256.. special tokens; 260.. every piece below, so that a test can cut
# these texts into tokens wherever it likes.

TEXTS = [
    "The quick brown fox jumps",
    "alpha beta gamma delta",
    "🙂e\u0301x❤\ufe0f漢字",
    "👩\u200d👩\u200d👧 🇩🇪!",
]
ANSWER, EOS, BOS = 256, 257, 258
SPECIAL = {"<|answer|>": ANSWER, "<|eos|>": EOS, "<|bos|>": BOS, "<|other|>": 259}

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if tools %}tools:{{ tools | tojson }}\n{% endif %}"
    "{% if messages[0].content == 'raise' %}{{ raise_exception('the template says no') }}{% endif %}"
    "{% if add_generation_prompt %}<|answer|>{% endif %}"
)


def byte_chars():
    """GPT-2's printable stand-ins for the 256 bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for b in range(256):
        table[b] = chr(b) if b in keep else chr(256 + extra)
        extra += b not in keep
    return table


CHARS = byte_chars()
PIECES = {}
for _text in TEXTS:
    _raw = _text.encode()
    for _i in range(len(_raw)):
        for _j in range(_i + 2, len(_raw) + 1):
            PIECES.setdefault(_raw[_i:_j], 260 + len(PIECES))


def write_tokenizer(folder, template=TEMPLATE, special=(), pieces=PIECES):
    """special: names of further special tokens; their ids are the highest."""
    vocab = {CHARS[b]: b for b in range(256)}
    vocab.update({"".join(CHARS[b] for b in raw): i for raw, i in pieces.items()})
    all_special = dict(SPECIAL)
    for i, name in enumerate(special):
        all_special[name] = 260 + len(pieces) + i
    added = [
        {"id": i, "content": s, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for s, i in all_special.items()
    ]
    vocab.update(all_special)
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
    }))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "eos_token": "<|eos|>", "chat_template": template, "model_max_length": 2048}))


def ids_of(pieces):
    """Token ids of byte strings, each one token where the vocabulary has it."""
    out = []
    for p in pieces:
        out += [PIECES[p]] if p in PIECES else list(p)
    return out


def special_id(i):
    """The id of the i-th further special token of write_tokenizer."""
    return 260 + len(PIECES) + i


def script(ids=None, **options):
    """The directive that makes the model answer with these ids."""
    parts = [f"{k}={v}" for k, v in options.items()]
    if ids is not None:
        parts.append("ids=" + ",".join(map(str, ids)))
    return "[[" + ";".join(parts) + "]]"


def say(text, **options):
    """A directive for a text, one token per byte."""
    return script(list(text.encode()), **options)


def chat_body(content, **fields):
    return {"messages": [{"role": "user", "content": content}], **fields}


def completion_body(content, **fields):
    return {"prompt": content + "<|answer|>", **fields}


# ---- raw HTTP ---------------------------------------------------------------------------------


class Reply:
    def __init__(self, status, headers, body, raw_head):
        self.status, self.headers, self.body, self.raw_head = status, headers, body, raw_head

    def json(self):
        return json.loads(self.body)

    def error(self):
        e = self.json()["error"]
        assert set(e) == {"message", "type", "param", "code"}, e
        assert isinstance(e["message"], str) and e["message"]
        return e

    def __repr__(self):
        return f"Reply({self.status}, {self.body[:300]!r})"


class Reader:
    """Reads replies one after the other from a socket."""

    def __init__(self, sock):
        self.sock, self.buf = sock, b""

    def more(self):
        data = self.sock.recv(65536)
        self.buf += data
        return bool(data)

    def until(self, mark):
        while mark not in self.buf:
            if not self.more():
                raise EOFError(f"closed after {self.buf[:200]!r}")
        head, self.buf = self.buf.split(mark, 1)
        return head

    def exactly(self, n):
        while len(self.buf) < n:
            if not self.more():
                raise EOFError(f"closed with {len(self.buf)} of {n} bytes")
        out, self.buf = self.buf[:n], self.buf[n:]
        return out

    def rest(self):
        while self.more():
            pass
        out, self.buf = self.buf, b""
        return out

    def head(self):
        raw = self.until(b"\r\n\r\n")
        lines = raw.decode("latin-1").split("\r\n")
        version, status, _ = (lines[0] + " ").split(" ", 2)
        headers = {}
        for line in lines[1:]:
            k, v = line.split(":", 1)
            headers[k.lower()] = v.strip()
        return int(status), headers, raw

    def reply(self, head_only=False):
        status, headers, raw = self.head()
        while status == 100:
            status, headers, raw = self.head()
        if head_only or status == 204:
            body = b""
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while n := int(self.until(b"\r\n"), 16):
                body += self.exactly(n)
                assert self.exactly(2) == b"\r\n"
            while self.until(b"\r\n"):
                pass
        else:
            body = self.rest()
        return Reply(status, headers, body, raw)


def encode(method, path, body=None, headers=()):
    head = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if body is not None:
        if not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        head.append(f"Content-Length: {len(body)}")
        head.append("Content-Type: application/json")
    head += [f"{k}: {v}" for k, v in dict(headers).items()]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + (body or b"")


def request(server, method, path, body=None, headers=(), timeout=20):
    with server.connect(timeout) as s:
        s.sendall(encode(method, path, body, headers))
        return Reader(s).reply(head_only=method == "HEAD")


def post(server, path, body, **kw):
    return request(server, "POST", path, body, **kw)


def events(raw):
    """Checks the framing of an SSE body; returns (payloads, comments); [DONE] must be last."""
    text = raw.decode("utf-8")
    payloads, comments, done = [], [], False
    assert text.endswith("\n\n")
    for block in text[:-2].split("\n\n"):
        assert not done, "something after [DONE]"
        if block.startswith(":"):
            comments.append(block[1:].strip())
            continue
        assert block.startswith("data: ") and "\n" not in block, block
        if block == "data: [DONE]":
            done = True
        else:
            payloads.append(json.loads(block[6:]))
    return payloads, comments, done


class Streamed:
    """A whole stream, checked against the rules that hold for every one of them."""

    def __init__(self, raw, chat, usage=False):
        chunks, self.comments, done = events(raw)
        assert done, raw[-300:]
        self.chunks = chunks
        for key in ("id", "created", "model", "object", "system_fingerprint"):
            assert len({c[key] for c in chunks}) == 1, key
        self.usage = None
        if usage:
            last = chunks.pop()
            assert last["choices"] == [] and last["usage"]
            self.usage = last["usage"]
            assert all(c["usage"] is None for c in chunks)
        else:
            assert all("usage" not in c for c in chunks)
        self.text, self.finish, self.logprobs, roles = {}, {}, {}, {}
        for c in chunks:
            (choice,) = c["choices"]
            i = choice["index"]
            assert i not in self.finish, "a chunk after finish_reason"
            piece = choice["delta"].get("content", "") if chat else choice["text"]
            assert "\ufffd" not in piece or True
            if chat and "role" in choice["delta"]:
                assert i not in roles and not piece
                roles[i] = choice["delta"]["role"]
            self.text[i] = self.text.get(i, "") + piece
            if choice["logprobs"]:
                self.logprobs.setdefault(i, []).append(choice["logprobs"])
            if choice["finish_reason"]:
                assert not piece
                self.finish[i] = choice["finish_reason"]
        assert set(self.finish) == set(self.text)
        if chat:
            assert set(roles) == set(self.text) and set(roles.values()) == {"assistant"}


def stream(server, path, body, **kw):
    body = {**body, "stream": True}
    r = post(server, path, body, **kw)
    assert r.status == 200, r
    assert r.headers["content-type"].startswith("text/event-stream")
    usage = bool((body.get("stream_options") or {}).get("include_usage"))
    return Streamed(r.body, "chat" in path, usage)


def drain(sock):
    sock.shutdown(socket.SHUT_WR)
    return Reader(sock).rest()
