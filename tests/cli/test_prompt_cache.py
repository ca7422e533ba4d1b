"""The prompt cache of `quern serve`, over tiny models with every kind of memory: what a request is
told it reused, in every dialect, and that the answer is the one that a server without a cache
gives. Here and in the engine's own process (--isolate)."""

import concurrent.futures
import json
import re
import shutil
import urllib.request

import pytest

from conftest import ROOT, TINY, write_tokenizer
from test_serve import serve  # noqa: F401 (a fixture)

TINY_MODELS = ROOT / "tests" / "golden" / "tiny"
SYSTEM = {"role": "system", "content": "You answer in one word. " * 12}
FIRST = {"role": "user", "content": "Name a colour that you like, and say why it is that one."}
ARGS = ("--prompt-cache", "64MiB", "--ctx", 2048)
NEVER = {"257": -100}  # the end of a turn: the answers of these models have no end of their own


@pytest.fixture(params=["full", "windows", "recurrent"])
def kind(request, tmp_path):
    source = {"full": TINY, "windows": TINY_MODELS / "gemma3_text-q4",
              "recurrent": TINY_MODELS / "qwen3_5-moe-q4"}[request.param]
    folder = tmp_path / request.param
    shutil.copytree(source, folder)
    write_tokenizer(folder, eos=257)
    return folder


def chat(s, messages, n=12, **more):
    a = s.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": n,
                                        "logit_bias": NEVER, **more})
    return a["choices"][0]["message"]["content"], a["usage"]


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def stats(s):
    with urllib.request.urlopen(s.url + "/stats", timeout=60) as r:
        return json.load(r)


def metric(s, name):
    with urllib.request.urlopen(s.url + "/metrics", timeout=60) as r:
        lines = [x for x in r.read().decode().splitlines() if x.startswith(f"quern_{name}{{")]
    return float(lines[0].split()[-1])


@pytest.mark.parametrize("where", [(), ("--isolate",)], ids=["here", "isolated"])
def test_a_conversation(serve, kind, where):  # noqa: F811
    """public-bugs 19: the same body twice, the next turn, an edit, a beginning, another's."""
    s, plain = serve(kind, *ARGS, *where), serve(kind, "--prompt-cache", "0", "--ctx", 2048)
    assert re.search(r"Prompt cache: up to 64\S* MiB", s.text) and "Prompt cache: off" in plain.text
    recurrent = kind.name == "recurrent"
    total = computed = 0

    def both(messages, **more):
        nonlocal total, computed
        text, usage = chat(s, messages, **more)
        want, cold = chat(plain, messages, **more)
        assert text == want and cached(cold) == 0
        total += usage["prompt_tokens"]
        computed += usage["prompt_tokens"] - cached(usage)
        return text, usage["prompt_tokens"], cached(usage)

    ask = [SYSTEM, FIRST]
    text, n, got = both(ask)
    assert got == 0
    assert both(ask) == (text, n, n - 1)
    _, m, got = both([*ask, {"role": "assistant", "content": text},
                      {"role": "user", "content": "Another one."}])
    # Prompt and answer but for its last token, as far as the text comes back as the same tokens.
    assert n - 1 <= got <= n + 11
    _, _, got = both([SYSTEM, {"role": "user", "content": "Name a colour that I like."}])
    assert n - 100 <= got < n
    _, _, got = both([SYSTEM], max_tokens=1)
    assert got > 250
    _, _, got = both(ask, cache_salt="mine")
    assert got == 0
    assert both(ask, cache_salt="mine")[2] == n - 1
    assert recurrent or both(ask, chat_template_kwargs={"enable_thinking": False})[2] == n - 1

    st = stats(s)
    assert st["tokens"]["prompt"] == computed
    assert st["prompt_cache"]["reused_tokens"] == total - computed
    assert 0 < st["prompt_cache"]["bytes"] <= st["prompt_cache"]["max_bytes"] == 64 << 20
    assert metric(s, "prefix_cache_queries_total") == total
    assert metric(s, "prefix_cache_hits_total") == total - computed
    assert "prompt_cache" not in stats(plain)


def test_thinking_that_the_template_strips(serve, tmp_path):  # noqa: F811
    """public-bugs 19: a template that drops old thinking costs what follows the first change, no
    more; another option of the template costs its own part."""
    folder = tmp_path / "full"
    shutil.copytree(TINY, folder)
    write_tokenizer(folder, eos=257)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
        "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
        "{{ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"
        "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}")
    path.write_text(json.dumps(config))
    s, plain = serve(folder, *ARGS), serve(folder, "--prompt-cache", "0", "--ctx", 2048)

    def both(messages, **more):
        text, usage = chat(s, messages, **more)
        assert text == chat(plain, messages, **more)[0]
        return usage["prompt_tokens"], cached(usage)

    n, got = both([SYSTEM, FIRST])
    assert got == 0
    talk = [SYSTEM, FIRST, {"role": "assistant", "content": "<think>Hm. Well.</think>Red."},
            {"role": "user", "content": "Another one."}]
    m, got = both(talk)
    assert n <= got < m  # the prompt before came back whole; the answer as the template has it
    talk[2] = {"role": "assistant", "content": "<think>Otherwise.</think>Red."}
    assert both(talk) == (m, m - 1)  # what the template drops is no difference
    k, got = both(talk, chat_template_kwargs={"enable_thinking": False})
    assert k == m + len("<think></think>") and got == m
    assert both(talk, chat_template_kwargs={"enable_thinking": False}) == (k, k - 1)


def test_every_dialect_tells(serve, kind):  # noqa: F811
    s = serve(kind, *ARGS)
    body = {"model": kind.name, "max_tokens": 5, "temperature": 0, "system": SYSTEM["content"],
            "messages": [FIRST]}
    first = s.post("/v1/messages", body)["usage"]
    again = s.post("/v1/messages", body)["usage"]
    n = first["input_tokens"]
    assert first["cache_read_input_tokens"] == 0
    assert (again["input_tokens"], again["cache_read_input_tokens"]) == (1, n - 1)
    r = s.post("/v1/responses", {"model": kind.name, "instructions": SYSTEM["content"],
                                 "input": [FIRST], "max_output_tokens": 5, "temperature": 0})
    assert r["usage"]["input_tokens"] == n
    assert r["usage"]["input_tokens_details"]["cached_tokens"] == n - 1
    text = "Once upon a time there was a " * 10
    for want in (0, len(text) - 1):
        c = s.post("/v1/completions", {"prompt": text, "max_tokens": 3, "temperature": 0})
        assert cached(c["usage"]) == want and c["usage"]["prompt_tokens"] == len(text)
    c = s.post("/v1/completions", {"prompt": text, "max_tokens": 3, "temperature": 0, "echo": True,
                                   "logprobs": 1})
    assert cached(c["usage"]) == 0  # the logits of all tokens are wanted
    c = s.post("/v1/completions", {"prompt": text, "max_tokens": 3, "temperature": 0, "n": 3})
    assert cached(c["usage"]) == len(text) - 1


def test_agents_that_come_together(serve, kind):  # noqa: F811
    """Eight at once with one system prompt: it is read once, and held once."""
    s = serve(kind, *ARGS, "--batch", 4)
    asks = [[SYSTEM, {"role": "user", "content": f"{i} is whose number?"}] for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda m: chat(s, m), asks))
    total = sum(u["prompt_tokens"] for _, u in answers)
    st = stats(s)
    assert st["tokens"]["prompt"] == total - sum(cached(u) for _, u in answers)
    common = len(SYSTEM["content"])
    assert st["tokens"]["prompt"] < total - 6 * common
    assert st["prompt_cache"]["tokens"] < total - 6 * common + 8 * 12


def test_off_and_refused(serve, quern, model):  # noqa: F811
    r = quern("serve", "--prompt-cache", "lots", model, ok=False)
    assert "--prompt-cache" in r.stderr and "size" in r.stderr
    s = serve(model, "--prompt-cache", "1KiB")  # nothing fits; nothing fails
    for _ in range(2):
        _, usage = chat(s, [FIRST])
        assert cached(usage) == 0
    assert stats(s)["prompt_cache"]["bytes"] == 0
