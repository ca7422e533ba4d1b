"""Routes that generate nothing: metrics, stats, health while loading, tokens, templates."""

import signal
import threading
import time

import wire
from prom import Scrape
from wire import chat_body, completion_body, post, request, say, script


def scrape(server):
    r = request(server, "GET", "/metrics")
    assert r.status == 200
    assert r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(r.body.decode())


def until(cond, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if cond():
            return
        time.sleep(0.01)
    raise AssertionError("did not happen")


# ---- metrics ----------------------------------------------------------------------------------


def test_metrics_count_what_happened(start):
    srv = start()
    empty = scrape(srv)
    assert empty.get("quern_model_ready") == 1
    assert empty.get("quern_request_generation_tokens_count") == 0
    for _ in range(3):
        assert post(srv, "/v1/chat/completions", chat_body(say("hello"))).status == 200
    r = post(srv, "/v1/completions", completion_body(say("a long answer"), max_tokens=4))
    assert r.json()["choices"][0]["finish_reason"] == "length"
    assert post(srv, "/v1/chat/completions", {"messages": []}).status == 400
    assert request(srv, "GET", "/nowhere").status == 404
    assert post(srv, "/v1/chat/completions", chat_body(script([65], fail=0))).status == 500
    wire.stream(srv, "/v1/chat/completions", chat_body(say("streamed")))
    m = scrape(srv)
    chat = {"route": "/v1/chat/completions", "method": "POST"}
    assert m.get("quern_http_requests_total", status="200", **chat) == 4
    assert m.get("quern_http_requests_total", status="400", **chat) == 1
    assert m.get("quern_http_requests_total", status="500", **chat) == 1
    assert m.get("quern_http_requests_total", route="other", status="404") == 1
    assert m.get("quern_request_success_total", finished_reason="stop") == 4
    assert m.get("quern_request_success_total", finished_reason="length") == 1
    assert m.get("quern_request_success_total", finished_reason="error") == 1
    tokens = 3 * 6 + 4 + 9  # the end token counts
    assert m.get("quern_generation_tokens_total") >= tokens
    assert m.get("quern_request_generation_tokens_sum") == tokens
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds",
                 "request_queue_time_seconds", "request_prefill_time_seconds",
                 "request_decode_time_seconds", "request_inference_time_seconds",
                 "request_prompt_tokens"):
        assert m.get(f"quern_{name}_count") == 5, name
    # Gaps: one fewer than the tokens that were seen, of each answer.
    assert m.get("quern_inter_token_latency_seconds_count") == 3 * 4 + 3 + 7
    assert m.get("quern_request_time_per_output_token_seconds_count") == 5
    assert m.get("quern_num_requests_running") == 0 == m.get("quern_num_requests_waiting")
    assert m.get("quern_request_prompt_tokens_sum") == m.get("quern_prompt_tokens_total")
    assert m.get("process_resident_memory_bytes") > 1e6


def test_metrics_latencies_are_real(start):
    """Five gaps of at least 20 ms each."""
    srv = start()
    body = chat_body(script(list(b"abcdef"), delay=20000))
    assert post(srv, "/v1/chat/completions", body).status == 200
    m = scrape(srv)
    gaps = m.get("quern_inter_token_latency_seconds_sum")
    assert m.get("quern_inter_token_latency_seconds_count") == 5 and gaps >= 0.08
    first = m.get("quern_time_to_first_token_seconds_sum")
    assert m.get("quern_e2e_request_latency_seconds_sum") >= first + gaps
    assert m.get("quern_request_decode_time_seconds_sum") >= 0.08


def test_metrics_gauges_and_aborts(start):
    srv = start("--lanes", 1)
    socks = []
    for _ in range(2):
        s = srv.connect()
        s.sendall(wire.encode("POST", "/v1/chat/completions",
                              chat_body(say("x" * 400, delay=20000), stream=True)))
        socks.append(s)
    until(lambda: scrape(srv).get("quern_num_requests_waiting") == 1)
    m = scrape(srv)
    assert m.get("quern_num_requests_running") == 1
    assert m.get("quern_http_generations_in_flight") == 2
    for s in socks:
        s.close()
    until(lambda: scrape(srv).get("quern_request_success_total", finished_reason="abort") == 2)
    assert scrape(srv).get("quern_num_requests_running") == 0


def test_metrics_agree_with_another_parser(server):
    import pytest
    parser = pytest.importorskip("prometheus_client.parser")
    text = request(server, "GET", "/metrics").body.decode()
    families = {f.name: f for f in parser.text_string_to_metric_families(text)}
    assert families["quern_time_to_first_token_seconds"].type == "histogram"
    assert {s.labels["model_name"] for s in families["quern_num_requests_running"].samples} == {
        "scripted"}


def test_metrics_need_the_key(start):
    srv = start("--key", "k")
    assert request(srv, "GET", "/metrics").status == 401
    assert request(srv, "GET", "/metrics", headers={"Authorization": "Bearer k"}).status == 200


def test_scrapes_while_counting(server):
    """Scrapes stay consistent (count = last bucket) while requests run beside them."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            post(server, "/v1/chat/completions", chat_body(say("abc")))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for _ in range(30):
        scrape(server)
    stop.set()
    for t in threads:
        t.join()


# ---- loading ----------------------------------------------------------------------------------


def test_http_answers_while_the_model_loads(start):
    srv = start("--load", 1)
    r = request(srv, "GET", "/health")
    assert r.status == 503 and r.json() == {"status": "loading model"}
    for method, path, body in (("GET", "/v1/models", None), ("GET", "/stats", None),
                               ("POST", "/v1/chat/completions", chat_body("x")),
                               ("POST", "/tokenize", {"content": "x"})):
        r = request(srv, method, path, body)
        assert r.status == 503 and r.error()["code"] == "loading", (path, r)
        assert r.headers["retry-after"] == "1"
    assert request(srv, "GET", "/nope").status == 404
    m = scrape(srv)
    assert m.get("quern_model_ready") == 0
    srv.proc.send_signal(signal.SIGUSR1)
    until(lambda: request(srv, "GET", "/health").status == 200)
    assert request(srv, "GET", "/health").body == b'{"status": "ok"}'
    assert post(srv, "/v1/chat/completions", chat_body(say("x"))).status == 200
    assert scrape(srv).get("quern_model_ready") == 1


def test_conversations_need_a_folder(server):
    for method, tail in (("GET", ""), ("GET", "/x"), ("POST", "/x"), ("POST", "/x/restore"),
                         ("DELETE", "/x")):
        r = request(server, method, "/admin/conversations" + tail)
        assert r.status == 400 and r.error()["code"] == "no_conversations", (method, tail, r)
        assert "--conversations" in r.error()["message"]
    assert request(server, "PUT", "/admin/conversations/x").status == 405
    assert "DELETE" in request(server, "PUT", "/admin/conversations/x").headers["allow"]
    assert request(server, "GET", "/admin/conversations/").status == 404


# ---- tokens and templates ---------------------------------------------------------------------


def test_tokenize_with_pieces(server):
    r = post(server, "/tokenize", {"content": "a漢<|eos|>", "with_pieces": True})
    rows = r.json()["tokens"]
    plain = post(server, "/tokenize", {"content": "a漢<|eos|>"}).json()["tokens"]
    assert [t["id"] for t in rows] == plain
    assert rows[0]["piece"] == "a" and rows[-1] == {"id": wire.EOS, "piece": "<|eos|>"}
    raw = b"".join(p if isinstance(p, bytes) else bytes(p) if isinstance(p, list) else p.encode()
                   for p in (t["piece"] for t in rows))
    assert raw.decode() == "a漢<|eos|>"
    assert any(isinstance(t["piece"], list) for t in rows)  # a character cut in three
    r = post(server, "/tokenize", {"content": "a", "with_pieces": 1})
    assert r.status == 400 and r.error()["param"] == "with_pieces"


def test_apply_template_then_completion_is_the_chat(server):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for extra in ({}, {"tools": tools}):
        body = chat_body(say("as a chat"), **extra)
        prompt = post(server, "/apply-template", body).json()["prompt"]
        chat = post(server, "/v1/chat/completions", {**body, "temperature": 0}).json()
        raw = post(server, "/v1/completions", {"prompt": prompt, "temperature": 0}).json()
        assert raw["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
        assert raw["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
        ids = post(server, "/tokenize", {"content": prompt}).json()["tokens"]
        assert len(ids) == chat["usage"]["prompt_tokens"]
        assert post(server, "/detokenize", {"tokens": ids}).json()["content"] == prompt


# ---- stats ------------------------------------------------------------------------------------


def test_stats(start):
    srv = start()
    assert post(srv, "/v1/chat/completions", chat_body(say("abc"))).status == 200
    s = srv.stats()
    assert s["server"]["owner"] == "quern" and s["server"]["model"] == "scripted"
    assert abs(s["server"]["started_at"] - time.time()) < 100
    assert s["server"]["context_window"] == 2048 and s["server"]["http_requests"] == 2
    assert s["requests"]["finished"] == 1 and s["tokens"]["completion"] == 4
    assert s["memory"]["resident_bytes"] > 1e6
    assert s["batch"]["configured"] == 4 and s["batch"]["mode"] == "batch"
    assert s["batch"]["active_rows"] == 0 and s["batch"]["submitted_rows"] == 1
    assert s["admission"]["max_safe_context"] == 2048
    assert s["response_store"]["entries"] == 0
    assert start("--lanes", 1).stats()["batch"]["mode"] == "serial"
