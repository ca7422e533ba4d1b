"""`quern chat` as a person sees it (under a pseudo-terminal) and in a pipe."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

import pytest

from conftest import QUERN

ANSWER_TOKENS = "8"
PROMPT = r"> (\x1b\[0m)?"


class Terminal:
    """A program under a pseudo-terminal of 80 columns."""

    def __init__(self, args, env):
        self.main, side = pty.openpty()
        self.p = subprocess.Popen([str(a) for a in args], env=env, stdin=side, stdout=side,
                                  stderr=side, start_new_session=True,
                                  preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0))
        os.close(side)
        self.seen = self.all = ""
        self.edits = True

    def until(self, pattern, timeout=30):
        """Reads until the text since the last match has `pattern`; returns that text."""
        end = time.monotonic() + timeout
        while True:
            m = re.search(pattern, self.seen, re.S)
            if m:
                text, self.seen = self.seen[:m.end()], self.seen[m.end():]
                if pattern.endswith(PROMPT):
                    self.settle()
                return text
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.main], [], [], max(left, 0))[0]:
                raise AssertionError(f"no {pattern!r} in {self.seen!r}; all: {self.all!r}")
            try:
                data = os.read(self.main, 4096)
            except OSError:
                data = b""
            if not data:
                raise AssertionError(f"ended without {pattern!r}: {self.seen!r}")
            self.seen += data.decode("utf-8", "replace")
            self.all += data.decode("utf-8", "replace")

    def settle(self):
        """Waits until the editor has taken the terminal over (it prints its prompt just before)."""
        end = time.monotonic() + (2 if self.edits else 0)
        while termios.tcgetattr(self.main)[3] & termios.ECHO:
            if time.monotonic() > end:
                self.edits = False  # a build without line editing never does
                return
            time.sleep(0.002)

    def send(self, text):
        os.write(self.main, text.encode())

    def close(self, timeout=20):
        """Waits for the end, draining what is printed."""
        end = time.monotonic() + timeout
        while self.p.poll() is None and time.monotonic() < end:
            if select.select([self.main], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.main, 4096).decode("utf-8", "replace")
                except OSError:
                    break
        try:
            return self.p.wait(max(0.1, end - time.monotonic()))
        finally:
            if self.p.poll() is None:
                self.p.kill()
            os.close(self.main)


@pytest.fixture
def chat(env, model):
    opened = []

    def start(*args, **extra):
        t = Terminal([QUERN, "chat", "-m", model, "-n", ANSWER_TOKENS, "--seed", "5", *args],
                     {**env, **extra})
        opened.append(t)
        return t
    yield start
    for t in opened:
        if t.p.poll() is None:
            t.p.kill()
            t.p.wait()


def saved(t, tmp_path):
    """The conversation's messages as /save writes them."""
    file = tmp_path / "saved.json"
    t.send(f"/save {file}\r")
    t.until(r"\[saved\].*" + PROMPT)
    return json.loads(file.read_text())["messages"]


def test_conversation(chat, tmp_path):
    t = chat("--system", "Be brief.")
    t.until("/help for commands.*" + PROMPT)
    t.send("first\r")
    t.until("first.*" + PROMPT)
    t.send("second\r")
    t.until("second.*" + PROMPT)
    m = saved(t, tmp_path)
    assert [x["role"] for x in m] == ["system", "user", "assistant", "user", "assistant"]
    assert m[0]["content"] == "Be brief." and m[1]["content"] == "first"
    t.send("/undo\r")
    t.until("removed.*" + PROMPT)
    assert [x["content"] for x in saved(t, tmp_path)][:2] == ["Be brief.", "first"]
    assert len(saved(t, tmp_path)) == 3
    t.send("/retry\r")
    t.until("/retry.*" + PROMPT)
    assert saved(t, tmp_path) == m[:3]  # the seed is fixed: the same answer
    t.send("/system none\r")
    t.until("removed.*" + PROMPT)
    t.send("/reset\r")
    t.until("cleared.*" + PROMPT)
    assert saved(t, tmp_path) == []
    t.send("/stats\r")
    t.until("tokens/s.*" + PROMPT)
    t.send("/exit\r")
    assert t.close() == 0


def test_set_and_unknown_commands(chat):
    t = chat()
    t.until(PROMPT)
    for line, answer in (("/set temperature 0.2", r"\[set\]"),
                         ("/set temperature 7", "from 0 to 2"),
                         ("/set model x", "NAME is one of"),
                         ("/rset", r"did you mean /reset\?"),
                         ("/zzzzzzz", "/help lists them"),
                         ("/help", "Ctrl-C stops an answer"),
                         ("/save", "needs a file name"),
                         ("/save /nonexistent/x", "/nonexistent/x"),
                         ("/retry", "nothing to retry"),
                         ("/undo", "nothing to undo")):
        t.send(line + "\r")
        t.until(answer + ".*" + PROMPT)
    t.send("\x04")
    assert t.close() == 0


def test_messages_of_several_lines(chat, tmp_path):
    t = chat()
    t.until(PROMPT)
    t.send("one\\\r")
    t.until(r"\.\.\. ")
    t.send("two\r")
    t.until("two.*" + PROMPT)
    t.send('"""three\r')
    t.until(r"\.\.\. ")
    t.send("\r")
    t.until(r"\.\.\. ")
    t.send('four"""\r')
    t.until("four.*" + PROMPT)
    t.send("//slash\r")
    t.until("slash.*" + PROMPT)
    texts = [m["content"] for m in saved(t, tmp_path) if m["role"] == "user"]
    assert texts == ["one\ntwo", "three\n\nfour", "/slash"]
    t.send("\x04")
    assert t.close() == 0


def test_interrupt_clears_the_line(chat, tmp_path):
    t = chat()
    t.until(PROMPT)
    t.send("never mind")
    t.until("never mind")
    t.send("\x03")
    t.until(r"\^C.*" + PROMPT)
    t.send("\x03")
    t.until(r"\^C.*" + PROMPT)
    t.send("kept\r")
    t.until("kept.*" + PROMPT)
    assert [m["content"] for m in saved(t, tmp_path) if m["role"] == "user"] == ["kept"]
    t.send("\x04")
    assert t.close() == 0


def test_interrupt_stops_the_answer_only(chat, model, tmp_path):
    (model / "generation_config.json").write_text('{"eos_token_id": 511}')
    t = chat("-n", "4000")
    t.until(PROMPT)
    t.send("go on\r")
    t.until("go on\r?\n[^\\w]*\\w")  # the first text of an answer that would be long
    t.send("\x03")
    t.until(r"\[stopped\].*" + PROMPT)
    m = saved(t, tmp_path)
    assert [x["role"] for x in m] == ["user", "assistant"] and m[1]["content"]
    t.send("/set max-tokens 4\r")
    t.until(r"\[set\].*" + PROMPT)
    t.send("again\r")
    t.until("length limit.*" + PROMPT)
    t.send("\x04")
    assert t.close() == 0


def test_history_lasts(chat, env):
    t = chat()
    t.until(PROMPT)
    t.send("remember me\r")
    t.until("remember me.*" + PROMPT)
    t.send("\x04")
    assert t.close() == 0
    file = os.path.join(env["QUERN_CACHE"], "history")
    if not os.path.exists(file):
        pytest.skip("this build has no line editing")
    assert os.stat(file).st_mode & 0o077 == 0
    t = chat()
    t.until(PROMPT)
    t.send("\x1b[A")  # the arrow up
    t.until("remember me")
    t.send("\x15\x04")
    assert t.close() == 0
    t = chat("--no-history")
    t.until(PROMPT)
    t.send("\x04")
    assert t.close() == 0


@pytest.mark.parametrize("extra", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_plain_terminals_get_no_colour(chat, extra):
    t = chat(**extra)
    text = t.until("> ")
    assert "\x1b[1;32m" not in text and "\x1b[2m" not in text and "\x01" not in text
    t.send("hello\r" if "NO_COLOR" in extra else "hello\n")
    text = t.until("> $")
    assert "\x1b[1;32m" not in text
    t.send("\x04")
    assert t.close() == 0


def test_in_a_pipe(quern, model):
    r = quern("chat", "-m", model, "-n", "4", "--seed", "5", input="one\ntwo\n", ok=True)
    assert r.stderr == "" and "\x1b" not in r.stdout and "> " not in r.stdout[:2]
    assert quern("chat", "-m", model, input="", ok=True).stdout == ""
    r = quern("chat", "-m", model, input="/nonsense\n", ok=True)
    assert "unknown command /nonsense" in r.stderr


def test_interrupted_in_a_pipe(env, model):
    p = subprocess.Popen([QUERN, "chat", "-m", model], env=env, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1.0)
    p.send_signal(signal.SIGINT)
    assert p.wait(20) in (130, -signal.SIGINT)
