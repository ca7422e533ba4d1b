"""Help pages, suggestions, exit codes, and docs/cli.md."""

import re

import pytest

from conftest import ROOT

USAGE = 2


def verbs(quern):
    out = quern("help", ok=True).stdout
    listed = out.split("Verbs:\n", 1)[1].split("\n\n", 1)[0]
    return [re.split("  +", line.strip())[0] for line in listed.splitlines()]


def test_no_verb_prints_short_help(quern):
    r = quern()
    assert r.returncode == USAGE
    assert r.stdout == ""
    assert "usage: quern VERB" in r.stderr
    assert quern("--help", ok=True).stdout == r.stderr
    assert quern("help", ok=True).stdout == r.stderr


def test_every_verb_has_a_complete_page(quern):
    names = verbs(quern)
    assert {"version", "help"} <= set(names)
    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in names:
        page = quern(*name.split(), "--help", ok=True)
        assert page.stderr == ""
        assert page.stdout.startswith(f"usage: quern {name}")
        assert page.stdout == quern("help", *name.split(), ok=True).stdout
        for line in page.stdout.splitlines():
            assert len(line) <= 100, line
            assert line == line.rstrip(), repr(line)
        section = manual.split(f"\n## quern {name}\n", 1)[1].split("\n## ", 1)[0]
        options = re.findall(r"^\| `(?:-\w, )?(--[\w-]+)", section, re.M)
        assert "--help" in options
        for option in options:
            assert re.search(rf"^ +(-\w, )?{option}\b", page.stdout, re.M), (name, option)


def test_manual_is_up_to_date(quern):
    now = quern("help", "--markdown", ok=True).stdout
    kept = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert kept == now, "run: quern help --markdown > docs/cli.md"


def test_version(quern):
    out = quern("version", ok=True).stdout
    assert re.fullmatch(r"quern \d+\.\d+\.\d+\n", out)
    assert quern("--version", ok=True).stdout == out


@pytest.mark.parametrize("typed, meant", [("verson", "version"), ("hepl", "help"),
                                          ("tokenise", "tokenize"), ("genrate", "generate"),
                                          ("inspct", "inspect"), ("CHAT", "chat")])
def test_unknown_verb_is_suggested(quern, typed, meant):
    r = quern(typed)
    assert r.returncode == USAGE and r.stdout == ""
    assert f"unknown verb {typed}; did you mean {meant}?" in r.stderr


def test_unknown_verb_without_a_neighbour(quern):
    r = quern("zzzzzz")
    assert r.returncode == USAGE
    assert "unknown verb zzzzzz\n" in r.stderr and "did you mean" not in r.stderr


@pytest.mark.parametrize("args, parts", [
    (["generate", "--temprature", "1", "x"], ["--temprature", "did you mean --temperature?"]),
    (["generate", "--temperature", "9", "x"], ["--temperature 9", "from 0 to 2"]),
    (["generate", "--max-tokens", "-1", "x"], ["--max-tokens -1", "from 0 to"]),
    (["generate", "--top-p", "0", "x"], ["--top-p 0", "to 1"]),
    (["generate", "--seed", "abc", "x"], ["--seed abc", "whole number"]),
    (["generate", "-p", "x", "y"], ["--prompt", "y"]),
    (["generate", "--raw", "--system", "s", "x"], ["--raw", "--system"]),
    (["generate", "--threads", "0", "x"], ["--threads 0", "from 1 to"]),
    (["generate", "--threads", "257", "x"], ["--threads 257", "from 1 to 256"]),
    (["bench", "--threads", "1,257"], ["257", "256"]),
    (["chat", "extra"], ["unexpected argument extra"]),
    (["inspect"], ["DIR is missing"]),
    (["inspect", "a", "b"], ["unexpected argument b"]),
    (["bench", "--format", "tabel"], ["--format tabel", "did you mean table?"]),
    (["bench", "--threads", "1,x"], ["--threads 1,x"]),
    (["bench", "--repeat", "0"], ["--repeat 0", "from 1 to"]),
    (["tokenize", "--ids", "--json", "x"], ["--ids", "--json"]),
])
def test_bad_usage(quern, args, parts):
    r = quern(*args)
    assert r.returncode == USAGE, r.stderr
    assert r.stdout == ""
    for part in parts:
        assert part in r.stderr
    assert f"quern {args[0]} --help" in r.stderr


def test_environment_is_checked_like_a_flag(quern, env):
    env["QUERN_THREADS"] = "many"
    r = quern("generate", "hello")
    assert r.returncode == USAGE
    assert "QUERN_THREADS many" in r.stderr
