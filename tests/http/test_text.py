"""Text over the wire: characters cut into tokens, stop strings, finish reasons, usage; streamed and
not, chat and completions. The scripted model yields the tokens that each test asks for."""

import itertools

import pytest

import wire
from wire import PIECES, chat_body, completion_body, ids_of, post, say, script, stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = [CHAT, COMPLETIONS]


def body_for(path, directive, **fields):
    return (chat_body if path == CHAT else completion_body)(directive, **fields)


def whole(server, path, directive, **fields):
    r = post(server, path, body_for(path, directive, **fields))
    assert r.status == 200, r
    choice = r.json()["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    return text, choice["finish_reason"], r.json()["usage"]


def both(server, path, directive, **fields):
    """Text, finish and usage; streamed and whole must agree."""
    text, finish, usage = whole(server, path, directive, **fields)
    s = stream(server, path, body_for(path, directive, stream_options={"include_usage": True},
                                      **fields))
    assert (s.text[0], s.finish[0]) == (text, finish)
    assert s.usage == usage
    return text, finish, usage, s


def cuts_in_two(raw):
    return [[raw[:i], raw[i:]] for i in range(1, len(raw))]


def cuts_in_three(raw):
    return [[raw[:i], raw[i:j], raw[j:]]
            for i, j in itertools.combinations(range(1, len(raw)), 2)]


# ---- case 1: characters split over tokens -----------------------------------------------------

UNICODE = [wire.TEXTS[2], wire.TEXTS[3]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", UNICODE, ids=["mixed", "joined"])
def test_split_characters_every_cut(server, path, text):
    raw = text.encode()
    for pieces in [[bytes([b]) for b in raw], [raw], *cuts_in_two(raw), *cuts_in_three(raw)[::7]]:
        got, finish, usage, s = both(server, path, script(ids_of(pieces)))
        assert got == text and finish == "stop"
        assert all("\ufffd" not in t for t in map(str, s.chunks))


@pytest.mark.parametrize("path", PATHS)
def test_emoji_in_two_tokens(server, path):
    ids = ids_of([b"\xf0\x9f", b"\x99\x82", b"e", "\u0301".encode(), b"x"])
    assert len(ids) == 6 or len(ids) == 5
    text, _, _, _ = both(server, path, script(ids))
    assert text == "🙂e\u0301x"


@pytest.mark.parametrize("path", PATHS)
def test_character_cut_by_the_end(server, path):
    ids = list("ab🙂".encode())[:-1]
    text, finish, _, _ = both(server, path, script(ids))
    assert text == "ab\ufffd" and finish == "stop"
    text, finish, _, _ = both(server, path, say("ab🙂cd"), max_tokens=4)
    assert text == "ab\ufffd" and finish == "length"


def test_nul_and_controls_cut_nothing(server):
    text = "a\x00b\x01\t\r\n\\\"\x7f"
    for path in PATHS:
        assert both(server, path, say(text))[0] == text
    body = chat_body("zero \x00 inside " + say("ok"))
    assert post(server, CHAT, body).json()["choices"][0]["message"]["content"] == "ok"


# ---- case 4: stop strings -------------------------------------------------------------------------

STOPS = [
    ("The quick brown fox jumps", ["own fox"], "The quick br"),
    ("alpha beta gamma delta", "beta gamma", "alpha "),
    ("alpha beta gamma delta", ["delta", "gamma", "beta gamma delt"], "alpha "),
    ("alpha beta gamma delta", ["a", "alpha"], ""),
    ("The quick brown fox jumps", ["jumps"], "The quick brown fox "),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text,stop,want", STOPS, ids=range(len(STOPS)))
def test_stop_at_every_cut(server, path, text, stop, want):
    raw = text.encode()
    for pieces in [[bytes([b]) for b in raw], [raw], *cuts_in_two(raw), *cuts_in_three(raw)[::11]]:
        got, finish, usage, s = both(server, path, script(ids_of(pieces)), stop=stop)
        assert got == want, pieces
        assert finish == "stop"
        assert usage["completion_tokens"] <= len(ids_of(pieces)) + 1


def test_stop_counts_tokens_really_made(server):
    _, _, usage, _ = both(server, CHAT, say("abcSTOPdef"), stop="STOP")
    assert usage["completion_tokens"] == 7


@pytest.mark.parametrize("path", PATHS)
def test_held_text_is_delivered(server, path):
    assert both(server, path, say("abc STO"), stop="STOP")[:2] == ("abc STO", "stop")
    assert both(server, path, say("abc STOX tail"), stop="STOP")[:2] == ("abc STOX tail", "stop")
    assert both(server, path, say("abc STOP"), stop="STOP", max_tokens=7)[:2] == \
        ("abc STO", "length")
    assert both(server, path, say("aaab"), stop=["aab"])[:2] == ("a", "stop")


def test_stop_of_another_script(server):
    assert both(server, CHAT, say("漢字かな"), stop="字か")[0] == "漢"
    assert both(server, CHAT, say("x🙂y"), stop=["🙂"])[0] == "x"


def test_nothing_of_the_stop_is_sent(server):
    s = stream(server, CHAT, chat_body(say("abc<end>"), stop="<end>"))
    assert s.text[0] == "abc"
    assert all("<" not in c["choices"][0]["delta"].get("content", "") for c in s.chunks)


# ---- finish and usage --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_empty_answer(server, path):
    text, finish, usage, _ = both(server, path, script([]))
    assert (text, finish) == ("", "stop")


@pytest.mark.parametrize("path", PATHS)
def test_length(server, path):
    text, finish, usage, _ = both(server, path, say("abcdef"), max_tokens=3)
    assert (text, finish, usage["completion_tokens"]) == ("abc", "length", 3)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 3
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


def test_tokens_leave_as_they_come(server):
    import time
    body = chat_body(say("abcdefgh", delay=50000), stream=True)
    with server.connect() as s:
        s.sendall(wire.encode("POST", CHAT, body))
        r = wire.Reader(s)
        r.head()
        times = []
        while b"[DONE]" not in r.buf:
            r.more()
            times.append(time.monotonic())
    # a busy machine may read two together, never all
    assert times[-1] - times[0] > 0.25 and len(times) >= 4


def test_keepalive_comments_during_a_long_prefill(server):
    s = stream(server, CHAT, chat_body("x" * 1500 + say("ok", pdelay=300000)))
    assert s.text[0] == "ok"
    assert any(c.startswith("keepalive ") and c.endswith("/" + c.split("/")[1])
               for c in s.comments), s.comments


@pytest.mark.parametrize("path", PATHS)
def test_n_choices(server, path):
    body = body_for(path, say("same"), n=5)
    r = post(server, path, body).json()
    assert [c["index"] for c in r["choices"]] == [0, 1, 2, 3, 4]
    one = post(server, path, body_for(path, say("same"))).json()
    assert r["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert r["usage"]["completion_tokens"] == 5 * one["usage"]["completion_tokens"]
    s = stream(server, path, {**body, "stream_options": {"include_usage": True}})
    assert s.text == {i: "same" for i in range(5)}
    assert s.usage == r["usage"]


def test_more_choices_than_the_queue_takes(start):
    srv = start("--queue", 2, "--lanes", 1)
    r = post(srv, CHAT, chat_body(say("ok"), n=128))
    assert r.status == 200 and len(r.json()["choices"]) == 128


def test_prefill_of_an_assistant_turn(server):
    body = {"messages": [{"role": "user", "content": say(" world")},
                         {"role": "assistant", "content": "hello"}]}
    r = post(server, CHAT, body)
    assert r.status == 200, r
    assert r.json()["choices"][0]["message"]["content"] == " world"


def test_failures_inside_a_step(server):
    for directive in (script(list(b"abcdef"), fail=3), script(list(b"abcdef"), nan=3)):
        r = post(server, CHAT, chat_body(directive))
        assert r.status == 500
        e = r.error()
        assert "/secret" not in e["message"]
        r = post(server, CHAT, chat_body(directive, stream=True))
        payloads, _, done = wire.events(r.body)
        assert r.status == 200 and not done and "error" in payloads[-1]
        assert "/secret" not in r.body.decode()
        assert post(server, CHAT, chat_body(say("ok"))).status == 200
