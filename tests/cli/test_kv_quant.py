"""--kv-quant, quern fit and quern kl: figures that agree with a server's, answers in every format,
refusals with the reason."""

import json
import urllib.request

import pytest

from test_serve import serve  # noqa: F401 (a fixture)

BITS = {"off": 16, "8": 8.5, "4": 4.5, "turbo:k8v3": 6.25}


@pytest.mark.parametrize("fmt", BITS)
def test_fit_says_what_the_server_says(serve, quern, model, fmt):  # noqa: F811
    flags = ["--kv-quant", fmt, "--ctx", "1024", "--batch", "4"]
    fit = json.loads(quern("fit", *flags, "--memory", "1GiB", "--json", model, ok=True).stdout)
    s = serve(model, *flags, "--memory-budget", "1GiB")
    with urllib.request.urlopen(s.url + "/stats", timeout=30) as r:
        stats = json.load(r)
    memory = stats["memory"]
    assert memory["kv_format"] == fit["kv_format"]
    for key in ("weights_bytes", "kv_token_bytes", "sequence_state_bytes", "kv_budget_bytes"):
        assert memory[key] == fit[key], key
    assert stats["admission"]["usable_bytes"] == fit["kv_budget_bytes"]
    assert stats["kv_quant"]["mode"] == {"off": "bf16", "8": "uniform-kv8", "4": "uniform-kv4",
                                         "turbo:k8v3": "turbo k8v3"}[fmt]
    # 2 kv heads of 64, keys and values, 4 layers; pages of 64 tokens
    assert fit["kv_token_bytes"] == 4 * 2 * 2 * 64 * BITS[fmt] / 8
    assert fit["contexts"][-1] == {"tokens": 1024, "bytes": 1024 * fit["kv_token_bytes"],
                                   "conversations": fit["kv_budget_bytes"] //
                                   (1024 * fit["kv_token_bytes"])}


def test_isolated_engine_has_the_format(serve, model):  # noqa: F811
    s = serve(model, "--isolate", "--kv-quant", "turbo:k4v3")
    with urllib.request.urlopen(s.url + "/stats", timeout=30) as r:
        assert json.load(r)["memory"]["kv_format"] == "turbo-k4v3"


def test_does_not_fit(quern, model):
    r = quern("fit", "--memory", "1MiB", model, ok=True)
    assert "does not fit" in r.stdout and "left for keys and values" in r.stdout


def test_answers(quern, model):
    """A format changes answers at most; the same format never does."""
    for fmt in ("8", "turbo"):
        one = ["generate", "--model", model, "-p", "Hello", "-n", 8, "--temperature", 0, "--kv-quant", fmt]
        assert quern(*one, "--threads", 1, ok=True).stdout == quern(*one, "--threads", 2, ok=True).stdout


@pytest.mark.parametrize("verb", ["generate", "serve", "bench", "fit"])
def test_refusals(quern, model, verb):
    at = [model] if verb == "fit" else ["--model", model]
    at += ["-p", "Hello"] if verb == "generate" else []
    r = quern(verb, *at, "--kv-quant", "6", ok=False)
    assert '"6" is not known; possible are off, 8, 4, config and turbo[:kKvV]' in r.stderr
    r = quern(verb, *at, "--kv-quant", "config", ok=False)
    assert "has no kv_config.json" in r.stderr


def test_kl(quern, model, tmp_path):
    text = tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog, and over it again. " * 20)
    args = ["kl", "--prompt", 40, "--steps", 16, "--windows", 2, "--json", model]
    doc = json.loads(quern(*args, "--text", text, "--kv-quant", "off,8,4,turbo:k2v2", ok=True).stdout)
    kl = {f["format"]: f for f in doc["formats"]}
    assert kl["off"]["kl_mean"] == 0 and kl["off"]["top1"] == 1
    assert 0 < kl["8"]["kl_mean"] < kl["4"]["kl_mean"] < kl["turbo:k2v2"]["kl_mean"]
    assert [f["bits"] for f in doc["formats"]] == [16, 8.5, 4.5, 2.75]
    assert "--text FILE is needed" in quern("kl", model, ok=False).stderr
    short = tmp_path / "short"
    short.write_text("Hi")
    assert "a window takes" in quern(*args, "--text", short, ok=False).stderr
