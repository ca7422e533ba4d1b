"""Progress: a line on a terminal for long work, gone when the work ends; never in a pipe."""

import os
import pty
import re
import subprocess

import pytest

from conftest import QUERN


def run_on_terminal(args, env, columns=80):
    """stderr is a terminal, stdout a pipe: (exit status, stdout, what the terminal got)."""
    import fcntl
    import struct
    import termios
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    p = subprocess.Popen([str(a) for a in args], env=env, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=side)
    os.close(side)
    seen = b""
    while True:
        try:
            data = os.read(main, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    out = p.stdout.read()
    os.close(main)
    return p.wait(60), out, seen.decode("utf-8", "replace")


LONG = ["-p", "64", "-n", "16", "-r", "60", "-t", "1"]  # each round reads a 256 MiB buffer


def bench(model):
    return [QUERN, "bench", "-m", model, *LONG, "--format", "json"]


@pytest.mark.parametrize("columns", [80, 40])
def test_line_on_a_terminal(env, model, columns):
    rc, out, seen = run_on_terminal(bench(model), env, columns)
    assert rc == 0 and out.startswith(b"{")
    lines = [s for s in re.split(r"\r|\x1b\[K", seen) if s]
    assert lines, "work of over a second showed no progress"
    assert all(len(s) < columns for s in lines)
    percents = [int(m.group(1)) for s in lines if (m := re.search(r"(\d+)%", s))]
    assert percents == sorted(percents) and all(0 <= p <= 100 for p in percents)
    assert any("ETA" in s for s in lines)
    assert seen.endswith("\r\x1b[K")  # the line is taken away at the end


def test_nothing_on_a_dumb_terminal(env, model):
    env["TERM"] = "dumb"
    rc, out, seen = run_on_terminal(bench(model), env)
    assert rc == 0 and seen == ""


def test_nothing_in_a_pipe(env, model):
    r = subprocess.run([str(a) for a in bench(model)], env=env, stdin=subprocess.DEVNULL,
                       capture_output=True, timeout=120)
    assert r.returncode == 0 and r.stderr == b""
