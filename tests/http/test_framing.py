"""HTTP framing, limits, methods, CORS, keys: what happens below the JSON."""

import json
import os
import socket
import time

import pytest

import wire
from wire import Reader, chat_body, encode, post, request, say

CHAT = "/v1/chat/completions"
ROUTES = [CHAT, "/v1/completions", "/tokenize", "/detokenize", "/apply-template"]


def good(**fields):
    return json.dumps(chat_body(say("ok"), **fields)).encode()


def text_of(reply):
    assert reply.status == 200, reply
    return reply.json()["choices"][0]["message"]["content"]


def chunked(body, size, ext="", trailer=""):
    out = b""
    for i in range(0, len(body), size):
        piece = body[i:i + size]
        out += f"{len(piece):x}{ext}\r\n".encode() + piece + b"\r\n"
    return out + f"0\r\n{trailer}\r\n".encode()


@pytest.mark.parametrize("size,ext,trailer", [
    (1, "", ""), (7, "", ""), (100000, "", ""), (9, ";a=b", ""), (9, "", "X-T: 1\r\n")])
def test_chunked_bodies(server, size, ext, trailer):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with server.connect() as s:
        s.sendall(head + chunked(good(), size, ext, trailer))
        r = Reader(s)
        assert text_of(r.reply()) == "ok"
        s.sendall(encode("GET", "/health"))
        assert r.reply().status == 200


def test_one_byte_per_packet(server):
    with server.connect() as s:
        for b in encode("POST", CHAT, good()):
            s.sendall(bytes([b]))
        assert text_of(Reader(s).reply()) == "ok"


def test_one_byte_per_chunk_and_packet(server):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with server.connect() as s:
        for b in head + chunked(good(), 1):
            s.sendall(bytes([b]))
        assert text_of(Reader(s).reply()) == "ok"


def test_expect_continue(server):
    body = json.dumps(chat_body("x" * 2_000_000)).encode()
    head = encode("POST", CHAT, body, {"Expect": "100-continue"})[:-len(body)]
    with server.connect() as s:
        t = time.monotonic()
        s.sendall(head)
        r = Reader(s)
        assert r.head()[0] == 100
        assert time.monotonic() - t < 0.5
        s.sendall(body)
        reply = r.reply()
        assert reply.status == 400 and reply.error()["code"] == "context_length_exceeded"


def test_expect_continue_too_large(start):
    srv = start("--max-body", 1000)
    with srv.connect() as s:
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n"
                  "Expect: 100-continue\r\n\r\n".encode())
        status, _, _ = Reader(s).head()
        assert status == 413


@pytest.mark.parametrize("route", ROUTES)
def test_no_length(server, route):
    with server.connect() as s:
        s.sendall(f"POST {route} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        reply = Reader(s).reply()
        assert reply.status == 411 and reply.error()["code"] == "length_required"


@pytest.mark.parametrize("extra", [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "Content-Length: 5\r\nContent-Length: 5\r\n",
    "Content-Length: 5\r\nContent-Length: 6\r\n",
    "Content-Length: -5\r\n", "Content-Length: 5x\r\n", "Content-Length: \r\n",
    "Content-Length: 99999999999999999999999999\r\n",
    "Transfer-Encoding: gzip\r\n", "Transfer-Encoding: gzip, chunked\r\n",
])
def test_broken_framing_is_refused_and_closed(server, extra):
    with server.connect() as s:
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{extra}\r\n5\r\nhello\r\n0\r\n\r\n".encode())
        r = Reader(s)
        status, headers, _ = r.head()
        assert status in (400, 413) and headers["connection"].lower() == "close"
        assert b" 200 " not in r.rest(), "the connection must not go on"


def test_pipelined_requests_are_answered_in_order(server):
    one = encode("POST", CHAT, chat_body(say("first", delay=2000)))
    two = encode("POST", CHAT, chat_body(say("second")))
    with server.connect() as s:
        s.sendall(one + two + encode("GET", "/health"))
        r = Reader(s)
        assert text_of(r.reply()) == "first"
        assert text_of(r.reply()) == "second"
        assert r.reply().body == b'{"status": "ok"}'


def test_keep_alive_and_close(server):
    with server.connect() as s:
        r = Reader(s)
        for _ in range(5):
            s.sendall(encode("GET", "/v1/models"))
            assert r.reply().status == 200
        s.sendall(encode("GET", "/health", headers={"Connection": "close"}))
        assert r.reply().headers["connection"].lower() == "close"
        assert r.rest() == b""


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_ends_closed(server, stream):
    body = good(stream=stream)
    with server.connect() as s:
        s.sendall(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        r = Reader(s)
        status, headers, _ = r.head()
        rest = r.rest()
        assert status == 200 and "transfer-encoding" not in headers
        if stream:
            assert wire.Streamed(rest, True).text == {0: "ok"}
        else:
            assert json.loads(rest)["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize("raw", [
    b"GARBAGE\r\n\r\n", b"GET\r\n\r\n", b"GET /health\r\n\r\n", b" GET /health HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET /a\x01 HTTP/1.1\r\n\r\n",
    b"G@T / HTTP/1.1\r\n\r\n", b"GET /health FOO/1.1\r\nHost: localhost\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1x\r\nHost: localhost\r\n\r\n", b"\r\n\r\nnonsense\r\n",
])
def test_broken_request_lines(server, raw):
    with server.connect() as s:
        s.sendall(raw)
        r = Reader(s)
        reply = r.reply()
        assert reply.status == 400 and reply.error()["code"] == "bad_request_line"
        assert r.rest() == b""
    assert request(server, "GET", "/health").status == 200


@pytest.mark.parametrize("raw,status,code", [
    (b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", 505, "http_version"),
    (b"GET /health HTTP/0.9\r\n\r\n", 505, "http_version"),
    (b"GET /health HTTP/1.1\r\nno colon here\r\n\r\n", 400, "bad_header"),
    (b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nno colon\r\nContent-Length: 2\r\n\r\n{}", 400,
     "bad_header"),
    (b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", 400, "bad_header"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 400, "bad_header"),
    (b"GET /health HTTP/1.1\r\n: x\r\n\r\n", 400, "bad_header"),
    *[(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\ncontent-LENGTH:" + n + b"\r\n\r\n{}", status, code)
      for n, status, code in [(b" 2, 2", 400, "bad_framing"), (b" +2", 400, "bad_framing"),
                              (b"-1", 400, "bad_framing"), (b" 0x2", 400, "bad_framing"),
                              (b"", 400, "bad_framing"), (b" 2 2", 400, "bad_framing"),
                              (b" 9999999999999999999", 413, "body_too_large"),
                              (b" 99999999999999999999999", 413, "body_too_large")]]])
def test_other_broken_heads(server, raw, status, code):
    with server.connect() as s:
        s.sendall(raw)
        r = Reader(s)
        reply = r.reply()
        assert reply.status == status and reply.error()["code"] == code
        assert r.rest() == b""


def test_bodies_are_no_headers(server):
    """Lines of a body that came with the head, and a folded header line, are not looked at."""
    body = json.dumps(wire.chat_body(say("ok")), indent=1).replace("{\n", "{\n\n\n")
    with server.connect() as s:
        s.sendall(encode("POST", CHAT, body))
        assert Reader(s).reply().status == 200


def test_half_a_line_and_the_end(server):
    with server.connect() as s:
        s.sendall(b"GET /hea")
        s.shutdown(socket.SHUT_WR)
        assert Reader(s).reply().status == 400


def test_empty_lines_before_a_request(server):
    with server.connect() as s:
        s.sendall(b"\r\n\r\n" + encode("GET", "/health"))
        assert Reader(s).reply().status == 200


@pytest.mark.parametrize("size", [20_000, 64_000, 200_000, 2_000_000])
def test_long_header_line(server, size):
    with server.connect() as s:
        try:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * size + b"\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused while we were still sending
        try:
            assert Reader(s).head()[0] == 431
        except ConnectionResetError:
            assert size > 200_000


def test_many_headers(server):
    lines = "".join(f"X-H{i}: 1\r\n" for i in range(500))
    with server.connect() as s:
        s.sendall(f"GET /health HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
        assert Reader(s).head()[0] == 431


def test_long_target(server):
    with server.connect() as s:
        s.sendall(b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert Reader(s).head()[0] in (404, 414)


@pytest.mark.parametrize("declared,sent", [(5000, 0), (5000, 5000), (10**12, 100), (300_000, 300_000)])
def test_body_over_the_limit(start, declared, sent):
    srv = start("--max-body", 1000)
    with srv.connect() as s:
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {declared}\r\n\r\n".encode())
        s.sendall(b"x" * sent)
        r = Reader(s)
        reply = r.reply()
        assert reply.status == 413 and "1000" in reply.error()["message"]
        assert r.rest() == b""
    assert post(srv, CHAT, good()).status == 200


def test_chunked_body_over_the_limit(start):
    srv = start("--max-body", 1000)
    with srv.connect() as s:
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        s.sendall(chunked(b"x" * 5000, 500))
        assert Reader(s).reply().status == 413


def test_body_of_exactly_the_limit(start):
    body = good()
    srv = start("--max-body", len(body))
    assert text_of(post(srv, CHAT, body)) == "ok"
    assert post(srv, CHAT, body + b" ").status == 413


def test_body_of_too_many_values(server):
    """Two megabytes of {} would take 700 MB once parsed."""
    for path in [CHAT, "/v1/completions", "/tokenize"]:
        reply = post(server, path, b'{"x":[' + b"{}," * 700_000 + b"1]}")
        assert reply.status == 413 and "memory" in reply.error()["message"], path
    call = {"type": "function", "id": "c", "function": {"name": "f"}}
    call["function"]["arguments"] = '{"x":[' + "{}," * 700_000 + "1]}"  # it stays a string
    body = chat_body(say("ok"))
    body["messages"].insert(0, {"role": "assistant", "content": "", "tool_calls": [call]})
    assert post(server, CHAT, json.dumps(body)).status == 200
    assert post(server, CHAT, good(x=[{}] * 20_000)).status == 200


def test_unknown_routes(server):
    for method, path, body in [("GET", "/nope", None), ("POST", "/v1/nope", "{}"), ("GET", "/", None),
                               ("GET", "/v1/models/", None), ("GET", "/health/", None)]:
        reply = request(server, method, path, body)
        assert reply.status == 404, path
        assert reply.error()["code"] == "not_found"


@pytest.mark.parametrize("method,path,allow", [
    ("GET", CHAT, {"POST", "OPTIONS"}), ("DELETE", CHAT, {"POST", "OPTIONS"}),
    ("POST", "/health", {"GET", "HEAD", "OPTIONS"}), ("PUT", "/v1/models", {"GET", "HEAD", "OPTIONS"})])
def test_wrong_method(server, method, path, allow):
    reply = request(server, method, path, "{}" if method in ("POST", "PUT") else None)
    assert reply.status == 405
    assert set(reply.headers["allow"].replace(" ", "").split(",")) == allow


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/stats", "/nope"])
def test_head_is_get_without_body(server, path):
    with server.connect() as s:
        s.sendall(encode("HEAD", path) + encode("GET", path))
        r = Reader(s)
        head, get = r.reply(head_only=True), r.reply()
        assert head.status == get.status and head.headers["content-length"]


def test_health_is_exact(server):
    assert request(server, "GET", "/health").body == b'{"status": "ok"}'


def test_query_strings_are_ignored(server):
    assert request(server, "GET", "/health?x=1&y").status == 200


def test_refused_body_keeps_the_connection(server):
    with server.connect() as s:
        r = Reader(s)
        s.sendall(encode("POST", "/v1/nope", b"x" * 50_000))
        assert r.reply().status == 404
        s.sendall(encode("GET", "/health"))
        assert r.reply().status == 200


# ---- connections that cost nobody anything --------------------------------------------------------


def test_idle_and_half_sent_connections(start):
    srv = start("--idle", 1, "--read", 1)
    idle = [srv.connect() for _ in range(40)]
    for s in idle[20:]:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Le")
    t = time.monotonic()
    assert text_of(post(srv, CHAT, good())) == "ok"
    assert time.monotonic() - t < 1
    deadline = time.monotonic() + 8
    for s in idle:
        s.settimeout(max(0.1, deadline - time.monotonic()))
        data = s.recv(4096)
        assert data == b"" or b" 408 " in data
        s.close()


def test_trickled_body_is_bounded(start):
    srv = start("--idle", 5, "--read", 1)
    with srv.connect() as s:
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode())
        t = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - t < 10:
                s.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - t < 6


def test_many_silent_connections(start):
    """Far more than max-connections: they wait at the door and nobody notices."""
    srv = start("--max-connections", 16)
    idle = [srv.connect() for _ in range(30)]
    half = [srv.connect() for _ in range(30)]
    for s in half:
        s.sendall(b"GET /hea")
    threads = len(os.listdir(f"/proc/{srv.proc.pid}/task"))
    assert threads < 16
    t = time.monotonic()
    assert text_of(post(srv, CHAT, good())) == "ok"
    assert time.monotonic() - t < 1
    for s in half:
        s.sendall(b"lth HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert Reader(s).head()[0] in (200, 503)
    for s in idle:
        s.close()


def test_all_connections_in_use(start):
    srv = start("--max-connections", 4)
    kept = []
    for _ in range(4):
        s = srv.connect()
        s.sendall(encode("GET", "/health"))
        assert Reader(s).reply().status == 200
        kept.append(s)
    reply = request(srv, "GET", "/health")
    assert reply.status == 503 and reply.headers["retry-after"]
    kept[0].close()
    time.sleep(0.3)
    assert request(srv, "GET", "/health").status == 200


def test_idle_connections_make_room(start):
    srv = start("--max-connections", 8)
    idle = [srv.connect() for _ in range(7)]
    time.sleep(2.5)
    assert request(srv, "GET", "/health").status == 200
    for s in idle:
        s.close()


# ---- CORS and keys -------------------------------------------------------------------------------


def preflight(srv, origin, path=CHAT):
    return request(srv, "OPTIONS", path, headers={
        "Origin": origin, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type"})


def test_preflight_with_a_key_set(start):
    srv = start("--key", "secret")
    r = preflight(srv, "https://page.example")
    assert r.status in (200, 204)
    assert r.headers["access-control-allow-origin"] in ("*", "https://page.example")
    assert "authorization" in r.headers["access-control-allow-headers"].lower()
    assert "POST" in r.headers["access-control-allow-methods"]
    for reply in (post(srv, CHAT, good(), headers={"Origin": "https://page.example"}),
                  post(srv, CHAT, "{", headers={"Origin": "https://page.example",
                                                "Authorization": "Bearer secret"}),
                  post(srv, CHAT, good(stream=True), headers={
                      "Origin": "https://page.example", "Authorization": "Bearer secret"}),
                  request(srv, "GET", "/nope", headers={"Origin": "https://page.example"})):
        assert "access-control-allow-origin" in reply.headers, reply


def test_cors_list(start):
    srv = start("--cors", "https://a.example", "--cors", "https://b.example")
    for origin in ("https://a.example", "https://b.example"):
        r = post(srv, CHAT, good(), headers={"Origin": origin})
        assert r.headers["access-control-allow-origin"] == origin
        assert r.headers["vary"].lower() == "origin"
    for r in (post(srv, CHAT, good(), headers={"Origin": "https://c.example"}),
              preflight(srv, "https://c.example")):
        assert "access-control-allow-origin" not in r.headers
        assert r.headers["vary"].lower() == "origin"


@pytest.mark.parametrize("origin,ok", [
    ("http://localhost:3000", True), ("http://127.0.0.1:5173", True), ("https://[::1]:1", True),
    ("https://evil.example", False), ("http://localhost.evil.example", False), ("null", False)])
def test_cors_default_is_this_machine(server, origin, ok):
    r = request(server, "GET", "/v1/models", headers={"Origin": origin})
    assert r.status == 200
    assert ("access-control-allow-origin" in r.headers) == ok


def with_host(srv, host, method="GET", path="/v1/models", version="1.1"):
    line = f"Host: {host}\r\n" if host is not None else ""
    with srv.connect() as s:
        s.sendall(f"{method} {path} HTTP/{version}\r\n{line}Connection: close\r\n\r\n".encode())
        return Reader(s).reply()


@pytest.mark.parametrize("host,ok", [
    ("localhost", True), ("LocalHost:8080", True), ("127.0.0.1:1", True), ("[::1]:8080", True),
    ("[::1]", True), ("evil.example", False), ("localhost.evil.example:80", False),
    ("127.0.0.1.evil.example", False), ("10.0.0.1", False), ("", False), ("[::1", False)])
def test_foreign_host_is_refused(server, host, ok):
    for method, path in (("GET", "/v1/models"), ("GET", "/health"), ("OPTIONS", CHAT)):
        r = with_host(server, host, method, path)
        if ok:
            assert r.status in (200, 204)
            continue
        assert r.status == 403
        assert r.error()["code"] == "host_not_allowed"
        assert "Host" in r.error()["message"]
    raw = encode("POST", CHAT, good()).replace(b"Host: localhost", f"Host: {host}".encode())
    with server.connect() as s:
        s.sendall(raw)
        assert Reader(s).reply().status == (200 if ok else 403)


def test_host_absent_or_with_a_key(server, start):
    assert with_host(server, None, version="1.0").status == 200
    srv = start("--key", "secret")
    assert with_host(srv, "models.example", path="/health").status == 200
    assert with_host(srv, "models.example").status == 401


def test_keys(start):
    srv = start("--key", "first-key", "--key", "second")
    assert request(srv, "GET", "/health").status == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "},
                    {"Authorization": "first-key"}, {"x-api-key": "first-ke"},
                    {"Authorization": "Bearer first-key2"}):
        for path in ("/v1/models", "/stats", "/nope"):
            r = request(srv, "GET", path, headers=headers)
            assert r.status == 401, (path, headers)
            assert r.error()["code"] == "invalid_api_key"
        r = post(srv, CHAT, good(), headers=headers)
        assert r.status == 401
    for headers in ({"Authorization": "Bearer first-key"}, {"authorization": "bearer second"},
                    {"x-api-key": "second"}):
        assert request(srv, "GET", "/v1/models", headers=headers).status == 200
        assert text_of(post(srv, CHAT, good(), headers=headers)) == "ok"
