"""The prompt cache on disk (`quern serve --ssd-cache`) and `quern cache`: what a restart finds, what
flush says, what kill -9, damage and a second server do. QUERN_KILLS sets how often the server is
killed (10; `make kills` does it 500 times), QUERN_KILLS_SEED when."""

import json
import os
import random
import resource
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest

from conftest import ROOT, SHARED, TINY, write_tokenizer
from test_serve import Serving, serve  # noqa: F401 (a fixture)

TINY_MODELS = ROOT / "tests" / "golden" / "tiny"
KINDS = {"full": TINY, "windows": TINY_MODELS / "gemma3_text-q4",
         "recurrent": TINY_MODELS / "qwen3_5-moe-q4"}
NEVER = {"257": -100}
TEXT = "Once upon a time there was a fox who counted its steps. "


@pytest.fixture(params=sorted(KINDS))
def kind(request, tmp_path):
    return make_kind(request.param, tmp_path)


def make_kind(name, tmp_path):
    folder = tmp_path / name
    shutil.copytree(KINDS[name], folder)
    write_tokenizer(folder, eos=257)
    return folder


def ask(s, prompt, n=10):
    a = s.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": n,
                                   "logit_bias": NEVER})
    return a["choices"][0]["text"], a["usage"]["prompt_tokens_details"]["cached_tokens"]


def flush(s):
    return s.post("/admin/cache/flush", {})


def disk(s):
    with urllib.request.urlopen(s.url + "/stats", timeout=60) as r:
        return json.load(r)["prompt_cache"]["disk"]


def records(folder):
    return sorted(folder.glob("*/*.kv"))


@pytest.mark.parametrize("where", [(), ("--isolate",)], ids=["here", "isolated"])
def test_a_restart_costs_one_token(serve, kind, tmp_path, where):  # noqa: F811
    args = (kind, "--ssd-cache", tmp_path / "kv", "--ctx", 2048, *where)
    s = serve(*args)
    assert f"kept in {tmp_path / 'kv'}" in s.text
    prompt = TEXT * 12
    first, got = ask(s, prompt)
    assert got == 0
    longer = prompt + "And then it rested."
    second, _ = ask(s, longer)
    told = flush(s)
    assert told["durable"] and told["durable_tokens"] == told["tokens"] > len(prompt)
    s.stop(signal.SIGKILL)  # what flush called durable is
    s = serve(*args)
    assert ask(s, prompt) == (first, len(prompt) - 1)
    assert ask(s, longer) == (second, len(longer) - 1)
    d = disk(s)
    assert d["restores"] >= 1 and d["restored_tokens"] >= len(prompt) - 1
    assert d["damaged_records"] == 0
    third, _ = ask(s, TEXT[::-1] * 9)
    code, err = s.stop(signal.SIGTERM)  # flushes
    assert code == 0, err
    s = serve(*args)
    assert ask(s, TEXT[::-1] * 9) == (third, len(TEXT) * 9 - 1)


def test_idle_prompts_leave_memory(serve, tmp_path):  # noqa: F811
    folder = make_kind("windows", tmp_path)
    s = serve(folder, "--ssd-cache", tmp_path / "kv", "--ssd-cache-idle", 1, "--ctx", 2048)
    first = ask(s, TEXT * 6)
    for _ in range(200):
        with urllib.request.urlopen(s.url + "/stats", timeout=60) as r:
            cache = json.load(r)["prompt_cache"]
        if cache["tokens"] == 0:
            break
        time.sleep(0.1)
    assert cache["tokens"] == 0 and cache["bytes"] == 0
    assert cache["disk"]["demoted_tokens"] > len(TEXT) * 6
    assert ask(s, TEXT * 6) == (first[0], len(TEXT) * 6 - 1)
    assert disk(s)["restores"] == 1



def test_damage_is_a_miss(serve, kind, tmp_path, quern):  # noqa: F811
    folder = tmp_path / "kv"
    args = (kind, "--ssd-cache", folder, "--ctx", 2048)
    s = serve(*args)
    prompts = [f"{i} " + TEXT * 10 for i in range(6)]
    want = [ask(s, p)[0] for p in prompts]
    s.stop()
    all_of_them = records(folder)
    for i, path in enumerate(all_of_them):
        if i % 3 == 0:
            data = bytearray(path.read_bytes())
            data[random.Random(i).randrange(4096, len(data))] ^= 4
            path.write_bytes(data)
        if i % 3 == 1:
            os.truncate(path, path.stat().st_size // 2)
    (all_of_them[0].parent / "tmp.1").write_bytes(b"half")
    (all_of_them[0].parent / "mine.txt").write_text("not a record")
    r = quern("cache", "verify", folder, ok=False)
    assert "damaged" in r.stdout and "checksum" in r.stderr
    s = serve(*args)
    assert not (all_of_them[0].parent / "tmp.1").exists()
    assert (all_of_them[0].parent / "mine.txt").exists()
    got = [ask(s, p) for p in prompts]
    assert [g[0] for g in got] == want
    assert disk(s)["damaged_records"] > 0
    code, err = s.stop()
    assert code == 0 and "damaged records removed" in err


def test_after_a_crash_and_a_change_of_model(serve, env, tmp_path):  # noqa: F811
    """public-bugs 21: killed while it writes; a record cut, a bit flipped in another, one of a model
    with other layers put in, a temporary file left. It starts, warns of each, answers as without a
    cache, and what is sound still counts."""
    # No two begin alike: a damaged record takes along what continues it.
    folder, prompts = tmp_path / "kv", [f"{chr(97 + i)} of twenty. " + TEXT * 3 for i in range(20)]
    mine, other = make_kind("full", tmp_path), make_kind("windows", tmp_path)
    args = (mine, "--ssd-cache", folder, "--ctx", 2048)
    plain = serve(mine, "--prompt-cache", "0", "--ctx", 2048)
    want = [ask(plain, p)[0] for p in prompts]
    s = serve(other, "--ssd-cache", folder, "--ctx", 2048)
    ask(s, prompts[0])
    s.stop()
    foreign = records(folder)[0]
    s = serve(*args)
    assert [ask(s, p)[0] for p in prompts[:14]] == want[:14]
    assert flush(s)["durable"]
    for p in prompts[14:]:
        ask(s, p)
    s.stop(signal.SIGKILL)
    own = [r for r in records(folder) if r.parent != foreign.parent]
    assert len(own) >= 14
    os.truncate(own[0], own[0].stat().st_size // 2)
    data = bytearray(own[1].read_bytes())
    data[-100] ^= 16
    own[1].write_bytes(data)
    (own[0].parent / foreign.name).write_bytes(foreign.read_bytes())
    (own[0].parent / "tmp.7").write_bytes(data[:999])
    s = serve(*args)
    assert not (own[0].parent / "tmp.7").exists()
    got = [ask(s, p) for p in prompts]
    assert [g[0] for g in got] == want
    assert sum(g[1] == len(p) - 1 for g, p in zip(got[:14], prompts)) >= 11  # all but the damaged
    code, err = s.stop()
    assert code == 0
    for path in (own[0], own[0].parent / foreign.name, own[1]):  # one warning each
        assert len([x for x in err.splitlines() if " warn " in x and path.name in x]) == 1, err
    assert foreign.exists() and not (own[0].parent / foreign.name).exists()


def test_a_disk_without_room(env, tmp_path):
    """public-bugs 21: what cannot be written is not kept; no request notices."""
    folder = make_kind("full", tmp_path)

    def no_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    s = Serving(env, folder, "--ssd-cache", tmp_path / "kv", "--ctx", 2048, before=no_room)
    first = ask(s, TEXT * 12)
    told = flush(s)
    assert not told["durable"] and told["durable_tokens"] == 0 and "cannot write" in told["reason"]
    assert ask(s, TEXT * 12) == (first[0], len(TEXT) * 12 - 1)  # memory has it
    assert disk(s)["failed_writes"] > 0 and disk(s)["records"] == 0
    code, err = s.stop()
    assert code == 0 and err.count("nothing is kept on disk until") == 1, err
    assert not list((tmp_path / "kv").glob("*/*.kv")) and not list((tmp_path / "kv").glob("*/tmp.*"))


def test_two_servers_and_other_refusals(serve, quern, model, tmp_path):  # noqa: F811
    folder = tmp_path / "kv"
    s = serve(model, "--ssd-cache", folder)
    r = quern("serve", "--port", 0, "--ssd-cache", folder, model, ok=False)
    assert "in use by another server (process" in r.stderr
    r = quern("cache", "rm", "--all", folder, ok=False)
    assert "in use by another server" in r.stderr
    s.stop()
    r = quern("serve", "--port", 0, "--ssd-cache", folder, "--prompt-cache", "0", model, ok=False)
    assert "--prompt-cache is 0" in r.stderr
    r = quern("serve", "--port", 0, "--ssd-cache", "/proc/1/kv", model, ok=False)
    assert "/proc/1/kv" in r.stderr
    with pytest.raises(urllib.error.HTTPError) as e:
        flush(serve(model))
    assert e.value.code == 400 and "--ssd-cache" in e.value.read().decode()


def test_another_model_shares_nothing(serve, tmp_path):  # noqa: F811
    folder = tmp_path / "kv"
    a, b = make_kind("full", tmp_path), make_kind("windows", tmp_path)
    s = serve(a, "--ssd-cache", folder, "--ctx", 2048)
    want, _ = ask(s, TEXT * 8)
    s.stop()
    s = serve(b, "--ssd-cache", folder, "--ctx", 2048)
    assert ask(s, TEXT * 8)[1] == 0
    s.stop()
    s = serve(a, "--ssd-cache", folder, "--ctx", 2048, "--kv-quant", "8")
    assert ask(s, TEXT * 8)[1] == 0  # nor does another format
    s.stop()
    s = serve(a, "--ssd-cache", folder, "--ctx", 2048)
    assert ask(s, TEXT * 8) == (want, len(TEXT) * 8 - 1)


def test_the_list(serve, quern, model, tmp_path):  # noqa: F811
    folder = tmp_path / "kv"
    s = serve(model, "--ssd-cache", folder)
    ask(s, TEXT * 4)
    s.stop()
    rows = json.loads(quern("cache", "--json", "ls", folder, ok=True).stdout)[0]["models"]
    assert len(rows) == 1 and rows[0]["tokens"] >= len(TEXT) * 4 and rows[0]["damaged"] == 0
    text = quern("cache", "ls", folder, ok=True).stdout
    assert rows[0]["id"] in text and model.name in text
    assert "every record is sound" in quern("cache", "verify", folder, ok=True).stdout
    assert quern("cache", "rm", folder).returncode != 0
    quern("cache", "rm", "--older", 1, folder, ok=True)
    assert records(folder)
    quern("cache", "rm", "--model", rows[0]["id"][:6], folder, ok=True)
    assert not records(folder)
    assert "nothing is kept" in quern("cache", "ls", folder, ok=True).stdout
    assert "expected ls" in quern("cache", "drop", folder, ok=False).stderr


def test_a_draft_heads_memory(serve, quern, tmp_path):  # noqa: F811
    """It comes back with its model's; damage to it is found by verify, warned of, and costs no token
    of the model's."""
    target, folder = SHARED / "models" / "tiny-qwen3_5-mtp", tmp_path / "kv"
    if not (target / "config.json").exists():
        pytest.skip(f"{target} is not there")
    args = (target, "--draft-kind", "mtp", "--ssd-cache", folder, "--ctx", 1024)

    def say(s):
        a = s.post("/v1/completions", {"prompt": TEXT * 8, "temperature": 0, "max_tokens": 12,
                                       "ignore_eos": True})
        return a["choices"][0]["text"], a["usage"]["prompt_tokens_details"]["cached_tokens"]

    s = serve(*args)
    want, got = say(s)
    assert got == 0 and flush(s)["durable"]
    s.stop(signal.SIGKILL)
    rows = json.loads(quern("cache", "--json", "ls", folder, ok=True).stdout)[0]["models"]
    head = [r for r in rows if r["about"].startswith("draft head of " + target.name)]
    model = [r for r in rows if r["about"].startswith(target.name)]
    assert len(rows) == 2 and len(head) == 1 and len(model) == 1 and head[0]["tokens"] > 0
    assert "every record is sound" in quern("cache", "verify", folder, ok=True).stdout
    s = serve(*args)
    text, kept = say(s)
    assert text == want and kept > 0
    d = disk(s)
    assert d["restored_draft_tokens"] >= kept and d["restored_tokens"] >= kept
    s.stop()
    for path in (folder / head[0]["id"]).glob("*.kv"):
        data = bytearray(path.read_bytes())
        data[4096] ^= 1
        path.write_bytes(data)
    r = quern("cache", "verify", folder, ok=False)
    assert head[0]["id"] in r.stderr and "checksum" in r.stderr and model[0]["id"] not in r.stderr
    s = serve(*args)
    assert say(s) == (want, kept)
    d = disk(s)
    assert d["damaged_records"] > 0 and d["restored_draft_tokens"] == 0
    code, err = s.stop()
    assert code == 0 and "the checksum of part 0 is wrong" in err
    quern("cache", "rm", "--model", head[0]["id"], folder, ok=True)
    rows = json.loads(quern("cache", "--json", "ls", folder, ok=True).stdout)[0]["models"]
    assert [r["id"] for r in rows] == [model[0]["id"]]


@pytest.mark.parametrize("where", [(), ("--isolate",)], ids=["here", "isolated"])
def test_a_draft_model_has_a_folder_inside(serve, quern, tmp_path, where):  # noqa: F811
    """Also where it is a process of its own; ls, verify and rm go there too."""
    target, guesser, folder = make_kind("full", tmp_path), make_kind("windows", tmp_path), tmp_path / "kv"
    args = (target, "--draft-model", guesser, "--ssd-cache", folder, "--ctx", 1024, *where)
    s = serve(*args)
    want, _ = ask(s, TEXT * 6)
    assert flush(s)["durable"]
    s.stop(signal.SIGKILL)
    dirs = json.loads(quern("cache", "--json", "ls", folder, ok=True).stdout)
    assert [d["dir"] for d in dirs] == [str(folder), str(folder / "draft")]
    assert [len(d["models"]) for d in dirs] == [1, 1]
    assert dirs[1]["models"][0]["about"].startswith(guesser.name)
    s = serve(*args)
    assert ask(s, TEXT * 6) == (want, len(TEXT) * 6 - 1)
    assert disk(s)["restored_draft_tokens"] >= len(TEXT) * 6 - 16
    assert "in use by another server" in quern("cache", "rm", "--all", folder, ok=False).stderr
    s.stop()
    path = records(folder / "draft")[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert path.name in quern("cache", "verify", folder, ok=False).stderr
    s = serve(*args)
    assert ask(s, TEXT * 6) == (want, len(TEXT) * 6 - 1)
    assert s.stop()[0] == 0
    quern("cache", "rm", "--all", folder, ok=True)
    assert not records(folder) and not records(folder / "draft")


def test_kill_9(env, tmp_path, quern):
    """Killed at random instants under load: it starts again, and never a wrong answer."""
    kills, folder = int(os.environ.get("QUERN_KILLS", "10")), tmp_path / "kv"
    rng = random.Random(int(os.environ.get("QUERN_KILLS_SEED", "9")))
    prompts = [TEXT * rng.randrange(2, 14) + f"Number {i}: " for i in range(24)]
    args = (make_kind("full", tmp_path), "--ctx", 2048, "--threads", 1)
    plain = Serving(env, *args, "--prompt-cache", "0")
    want = [ask(plain, p)[0] for p in prompts]
    plain.stop()
    wrong, reused = [], 0
    for k in range(kills):
        s = Serving(env, *args, "--ssd-cache", folder, "--ssd-cache-max", "24MiB")
        seed = rng.random()

        def load():
            nonlocal reused
            mine = random.Random(seed)
            try:
                while True:
                    i = mine.randrange(len(prompts))
                    text, cached = ask(s, prompts[i])
                    reused += cached
                    if text != want[i]:
                        wrong.append((k, i, text))
                    if mine.random() < 0.2:
                        flush(s)
            except (OSError, urllib.error.URLError, ValueError):
                pass

        t = threading.Thread(target=load)
        t.start()
        time.sleep(rng.uniform(0.02, 0.5))
        s.stop(signal.SIGKILL)
        t.join()
    s = Serving(env, *args, "--ssd-cache", folder, "--ssd-cache-max", "24MiB")
    got = [ask(s, p) for p in prompts]
    code, err = s.stop()
    assert code == 0, err
    assert not wrong and [g[0] for g in got] == want
    assert "damaged" not in err  # a process that dies leaves no damage, only half-written files
    quern("cache", "verify", folder, ok=True)
    assert sum(g[1] for g in got) + reused > 0
    assert not list(folder.glob("*/tmp.*"))
    print(f"{kills} kills; {reused} tokens reused between them, {sum(g[1] for g in got)} at the end")
