"""Conversations saved by name (`quern serve --conversations`, /admin/conversations): what a restart
between saving and restoring leaves, what is refused, and `quern cache` on such a folder."""

import json
import os
import shutil
import signal
import stat
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from test_disk_cache import KINDS, SHARED, TEXT, ask, flush, make_kind
from test_serve import Serving, serve  # noqa: F401 (a fixture)

# Answers of letters alone are the tokens that their text becomes.
ASCII = {str(i): -100 for i in range(258) if not 97 <= i <= 122}


def call(s, method, path, body=None):
    """(status, answer), refusals too."""
    data = None if body is None else json.dumps(body).encode()
    q = urllib.request.Request(s.url + path, data=data, method=method)
    if body is not None:
        q.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(q, timeout=60) as r:
            return r.status, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def save(s, name, body):
    return call(s, "POST", f"/admin/conversations/{name}", body)


def restore(s, name):
    return call(s, "POST", f"/admin/conversations/{name}/restore")


def counts(s):
    """What /stats and /metrics have counted; they say the same."""
    with urllib.request.urlopen(s.url + "/stats", timeout=60) as r:
        stats = json.load(r)["conversations"]
    with urllib.request.urlopen(s.url + "/metrics", timeout=60) as r:
        lines = r.read().decode().splitlines()
    told = {a.split("{")[0].removeprefix("quern_conversation_").removesuffix("_total"): int(b)
            for a, b in (x.rsplit(" ", 1) for x in lines if x.startswith("quern_conversation_"))}
    assert told == stats
    return stats


def only(folder):
    """Nothing but whole files is left in the folder."""
    return sorted(p.name for p in folder.iterdir() if p.name != "weights")


@pytest.mark.parametrize("name, where", [*((k, ()) for k in sorted(KINDS)),
                                         ("recurrent", ("--isolate",))])
def test_a_restart_between(serve, name, tmp_path, where):  # noqa: F811
    kind, folder = make_kind(name, tmp_path), tmp_path / "talks"
    args = (kind, "--conversations", folder, "--ctx", 2048, *where)
    s = serve(*args)
    prompt = TEXT * 12
    first, got = ask(s, prompt, 12)
    assert got == 0
    status, told = save(s, "fox", {"prompt": prompt})
    assert status == 200 and told["name"] == "fox", told
    assert told["prompt_tokens"] == len(prompt) and told["tokens"] >= len(prompt) - 1
    assert save(s, "no", {"prompt": "never seen"})[0] == 409
    sums = dict.fromkeys(counts(s), 0)
    assert counts(s) == {**sums, "saves": 1, "failed_saves": 1, "saved_tokens": told["tokens"],
                         "saved_bytes": told["bytes"]}
    assert (folder / "fox.qconv").stat().st_size == told["bytes"] and len(told["checksum"]) == 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    longer = prompt + first + " And then"
    if name == "full":  # the answer counts, as far as its text is what its tokens were
        assert save(s, "fox.answer", {"prompt": longer})[1]["tokens"] > len(prompt)
        assert call(s, "DELETE", "/admin/conversations/fox.answer")[0] == 200
    want = ask(s, longer, 8)
    status, whole = save(s, "fox.whole", {"prompt": longer})
    assert status == 200 and whole["tokens"] >= whole["prompt_tokens"] - 1
    s.stop(signal.SIGKILL)
    s = serve(*args)
    status, told2 = restore(s, "fox")
    assert status == 200, told2
    assert (told2["tokens"], told2["checksum"]) == (told["tokens"], told["checksum"])
    assert restore(s, "no")[0] == 404
    assert counts(s) == {**sums, "restores": 1, "failed_restores": 1,
                         "restored_tokens": told["tokens"], "restored_bytes": told["bytes"]}
    assert ask(s, prompt, 12) == (first, len(prompt) - 1)
    s.stop()
    s = serve(*args)
    assert restore(s, "fox.whole")[0] == 200
    assert ask(s, longer, 8) == (want[0], whole["prompt_tokens"] - 1)
    s.stop()
    s = serve(*args)
    restore(s, "fox.whole")
    assert ask(s, prompt, 12) == (first, len(prompt) - 1)  # the places on the way are there too
    assert only(folder) == ["fox.qconv", "fox.whole.qconv"]


def test_list_delete_and_names(serve, quern, tmp_path):  # noqa: F811
    folder = tmp_path / "talks"
    kind = make_kind("full", tmp_path)
    s = serve(kind, "--conversations", folder, "--ctx", 2048)
    assert call(s, "GET", "/admin/conversations") == (200, {"conversations": []})
    status, e = save(s, "a", {"prompt": TEXT})
    assert status == 409 and "in the prompt cache" in e["error"]["message"]
    ask(s, TEXT * 4)
    for name in ("a", "b"):
        assert save(s, name, {"prompt": TEXT * 4})[0] == 200
    rows = call(s, "GET", "/admin/conversations")[1]["conversations"]
    assert [r["name"] for r in rows] == ["a", "b"] and all(r["restorable"] for r in rows)
    assert all(r["tokens"] >= len(TEXT) * 4 - 1 and r["bytes"] > 0 for r in rows)
    assert call(s, "GET", "/admin/conversations/a") == (200, rows[0])
    for bad in (".hidden", "..%2Fx", "a%2Fb", "x" * 65, "%C3%A4", "a/b", "a%00b"):
        for method, tail in (("POST", ""), ("POST", "/restore"), ("GET", ""), ("DELETE", "")):
            status, e = call(s, method, f"/admin/conversations/{bad}{tail}", {"prompt": TEXT * 4})
            assert status in (400, 404), (bad, method, e)
    for body in ({}, {"prompt": "x", "messages": []}, {"prompt": [TEXT, TEXT]}, {"prompt": 3}):
        assert save(s, "c", body)[0] == 400, body
    assert call(s, "POST", "/admin/conversations/c")[0] == 400
    assert restore(s, "c")[0] == 404 and call(s, "GET", "/admin/conversations/c")[0] == 404
    text = quern("cache", "ls", folder, ok=True).stdout
    assert "a.qconv" in text and "b.qconv" in text and kind.name in text
    assert "every" in quern("cache", "verify", folder, ok=True).stdout
    assert quern("cache", "verify", folder / "a.qconv", ok=True).returncode == 0
    assert call(s, "DELETE", "/admin/conversations/a") == (200, {"name": "a", "deleted": True})
    assert call(s, "DELETE", "/admin/conversations/a")[0] == 404
    assert only(folder) == ["b.qconv"]
    quern("cache", "rm", folder / "b.qconv", ok=True)
    assert only(folder) == []


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)


def test_damage_serves_nothing(serve, quern, tmp_path):  # noqa: F811
    folder, kind = tmp_path / "talks", make_kind("recurrent", tmp_path)
    args = (kind, "--conversations", folder, "--ctx", 2048)
    s = serve(*args)
    prompt = TEXT * 8
    first, _ = ask(s, prompt)
    assert save(s, "t", {"prompt": prompt})[0] == 200
    s.stop()
    path = folder / "t.qconv"
    good = path.read_bytes()
    s = serve(*args)
    for at in (0, 8, 20, 50, 72, 5000, len(good) // 2, len(good) - 1):
        path.write_bytes(good)
        flip(path, at)
        status, e = restore(s, "t")
        assert status in (409, 422), (at, e)
        assert "t" in e["error"]["message"]
    r = quern("cache", "verify", folder, ok=False)
    assert "damaged" in r.stderr
    for cut in (0, 10, 4096, len(good) - 1):
        path.write_bytes(good[:cut])
        assert restore(s, "t")[0] == 422, cut
    path.write_bytes(b"mine\n" * 1000)
    status, e = restore(s, "t")
    assert status == 422 and "no conversation file" in e["error"]["message"]
    path.unlink()
    path.symlink_to("/etc/passwd")
    status, e = restore(s, "t")
    assert status == 422 and "symbolic link" in e["error"]["message"]
    path.unlink()
    assert ask(s, prompt) == (first, 0)
    path.write_bytes(good)
    assert restore(s, "t")[0] == 200
    assert ask(s, prompt) == (first, len(prompt) - 1)


def test_other_models_and_formats(serve, tmp_path):  # noqa: F811
    folder = tmp_path / "talks"
    a, b = make_kind("full", tmp_path), make_kind("windows", tmp_path)
    s = serve(a, "--conversations", folder, "--ctx", 2048)
    ask(s, TEXT * 4)
    assert save(s, "t", {"prompt": TEXT * 4})[0] == 200
    s.stop()
    for args in ((b,), (a, "--kv-quant", "8")):
        s = serve(*args, "--conversations", folder, "--ctx", 2048)
        status, e = restore(s, "t")
        assert status == 409 and "another model" in e["error"]["message"], e
        assert a.name in e["error"]["message"]
        assert not call(s, "GET", "/admin/conversations/t")[1]["restorable"]
        assert ask(s, TEXT * 4)[1] == 0
        s.stop()
    s = serve(a, "--conversations", folder, "--ctx", 64)
    status, e = restore(s, "t")
    assert status != 200, e
    s.stop()
    s = serve(a, "--conversations", folder, "--ctx", 2048, "--prompt-cache", "64K")
    status, e = restore(s, "t")
    assert status == 413 and "--prompt-cache" in e["error"]["message"], e


def test_without_and_with_a_bad_folder(serve, quern, model, tmp_path):  # noqa: F811
    s = serve(model)
    for method, path in (("GET", ""), ("POST", "/x"), ("POST", "/x/restore"), ("DELETE", "/x")):
        status, e = call(s, method, "/admin/conversations" + path, {"prompt": "x"})
        assert status == 400 and "--conversations" in e["error"]["message"]
    for args in (("/proc/1/talks",), (tmp_path / "no" / "such",), (model / "config.json",)):
        r = quern("serve", "--port", 0, "--conversations", *args, model, ok=False)
        assert str(args[0]) in r.stderr
    r = quern("serve", "--port", 0, "--conversations", tmp_path / "t", "--prompt-cache", "0", model,
              ok=False)
    assert "--prompt-cache is 0" in r.stderr


def test_under_load(serve, tmp_path):  # noqa: F811
    """Saves of one name at the same time, while answers run: the file is one of them, whole."""
    folder, kind = tmp_path / "talks", make_kind("full", tmp_path)
    s = serve(kind, "--conversations", folder, "--ctx", 2048)
    (folder / ".x.1.0.part").write_bytes(b"of one that died")
    prompts = [f"{i} " + TEXT * 6 for i in range(4)]
    for p in prompts:
        ask(s, p)
    told, texts = [], []

    def saver(p):
        for _ in range(5):
            told.append(save(s, "same", {"prompt": p}))

    def talker():
        texts.append(ask(s, "talk " + TEXT * 6, 60)[0])

    threads = [threading.Thread(target=saver, args=(p,)) for p in prompts]
    threads += [threading.Thread(target=talker) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(told) == 20 and all(x[0] == 200 for x in told) and len(set(texts)) == 1
    sums = {x[1]["checksum"] for x in told}
    assert len(sums) == 4 and call(s, "GET", "/admin/conversations/same")[1]["checksum"] in sums
    assert restore(s, "same")[0] == 200
    s.stop()
    s = serve(kind, "--conversations", folder, "--ctx", 2048)
    assert only(folder) == ["same.qconv"]  # what the dead one left is swept


def test_a_folder_that_vanishes(serve, tmp_path):  # noqa: F811
    folder = tmp_path / "talks"
    s = serve(make_kind("full", tmp_path), "--conversations", folder, "--ctx", 2048)
    ask(s, TEXT * 4)
    assert save(s, "t", {"prompt": TEXT * 4})[0] == 200
    shutil.rmtree(folder)
    for status, e in (save(s, "t", {"prompt": TEXT * 4}), call(s, "GET", "/admin/conversations")):
        assert status == 500 and "folder" in e["error"]["message"], e
    assert restore(s, "t")[0] == 404 and call(s, "DELETE", "/admin/conversations/t")[0] == 404
    assert not folder.exists()  # it may be a disk that will be back: nothing is put in its place
    folder.mkdir()
    assert save(s, "t", {"prompt": TEXT * 4})[0] == 200


def child_of(s):
    tasks = Path(f"/proc/{s.proc.pid}/task").glob("*/children")
    return int(" ".join(t.read_text() for t in tasks).split()[0])


def test_the_child_dies_or_the_server_stops_while_it_saves(serve, tmp_path):  # noqa: F811
    """The file of the name stays as it was; what is half-written goes. A stop waits for a save."""
    folder, kind = tmp_path / "talks", make_kind("full", tmp_path)
    s = serve(kind, "--conversations", folder, "--ctx", 2048, "--isolate")
    ask(s, TEXT * 4)
    assert save(s, "t", {"prompt": TEXT * 4})[0] == 200
    old, child = (folder / "t.qconv").read_bytes(), child_of(s)
    told = []

    def saver():
        told.append(save(s, "t", {"prompt": TEXT * 4}))

    def while_it_stands(do):
        thread = threading.Thread(target=saver)
        os.kill(child, signal.SIGSTOP)
        thread.start()
        time.sleep(0.5)  # it is on its way; where it is does not matter
        do()
        thread.join()
        return told.pop()[0]

    def dies():
        (folder / f".t.{child}.0.part").write_bytes(old[:5000])  # so far it had come
        os.kill(child, signal.SIGKILL)

    assert while_it_stands(dies) in (502, 503)
    status = 503
    while status in (502, 503):
        status = restore(s, "t")[0]
    assert status == 200 and only(folder) == ["t.qconv"]
    assert (folder / "t.qconv").read_bytes() == old
    child = child_of(s)

    def stops():
        s.proc.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        os.kill(child, signal.SIGCONT)

    assert while_it_stands(stops) == 200
    assert s.proc.wait(60) == 0 and only(folder) == ["t.qconv"]


def test_a_chat_goes_on(serve, tmp_path):  # noqa: F811
    """Saved with its answer, under a salt; the next turn computes what is new, with the same bits."""
    folder, kind = tmp_path / "talks", make_kind("windows", tmp_path)
    args = (kind, "--conversations", folder, "--ctx", 2048)
    salt = {"cache_salt": "mine"}
    talk = [{"role": "user", "content": TEXT * 5}]

    def turn(s, messages):
        a = s.post("/v1/chat/completions", {"messages": messages, "temperature": 0,
                                            "max_tokens": 8, "logit_bias": ASCII, **salt})
        return (a["choices"][0]["message"]["content"],
                a["usage"]["prompt_tokens_details"]["cached_tokens"])

    s = serve(*args)
    answer, _ = turn(s, talk)
    talk.append({"role": "assistant", "content": answer})
    status, other = save(s, "chat", {"messages": talk})
    assert status == 409, other  # nothing of it is under no salt
    status, told = save(s, "chat", {"messages": talk, **salt})
    assert status == 200 and told["tokens"] >= len(TEXT) * 5 + 7, told
    talk.append({"role": "user", "content": "And then?"})
    want = turn(s, talk)
    s.stop()
    s = serve(*args)
    assert restore(s, "chat")[0] == 200
    got = turn(s, talk)
    assert got[0] == want[0] and got[1] >= told["tokens"] - 1


def test_what_only_the_disk_has_and_a_slow_answer(serve, tmp_path):  # noqa: F811
    """A save takes what the disk cache has of a line. It may take longer than a connection may be
    silent (the engine's process stands still meanwhile)."""
    folder, kind = tmp_path / "talks", make_kind("recurrent", tmp_path)
    args = (kind, "--conversations", folder, "--ssd-cache", tmp_path / "kv", "--ctx", 2048,
            "--isolate", "--idle-timeout", 2)
    s = serve(*args)
    want, _ = ask(s, TEXT * 6)
    assert flush(s)["durable"]
    s.stop()
    s = serve(*args)
    status, told = save(s, "t", {"prompt": TEXT * 6})
    assert status == 200 and told["tokens"] >= len(TEXT) * 6 - 1, told
    child = child_of(s)
    for _ in range(3):  # on a machine that is full of work a connection may be cut anyway
        os.kill(child, signal.SIGSTOP)
        threading.Timer(3, os.kill, (child, signal.SIGCONT)).start()
        try:
            status, again = save(s, "t", {"prompt": TEXT * 6})
            break
        except OSError:
            status = 0
    assert status == 200 and again["checksum"] == told["checksum"]
    os.kill(child, signal.SIGKILL)  # what is on the disk is not lost with it
    status = 502
    while status in (502, 503):  # until it is there again
        status = restore(s, "t")[0]
    assert status == 200
    assert ask(s, TEXT * 6) == (want, len(TEXT) * 6 - 1)


@pytest.mark.parametrize("where", [(), ("--isolate",)], ids=["here", "isolated"])
def test_a_draft_model_has_a_file_inside(serve, quern, tmp_path, where):  # noqa: F811
    """What a second model keeps of a conversation is saved, put back and removed with it; without
    it, or with a damaged one, the conversation is there all the same."""
    target, guesser = make_kind("full", tmp_path), make_kind("windows", tmp_path)
    folder = tmp_path / "talks"
    plain = (target, "--conversations", folder, "--ctx", 1024, *where)
    args = (*plain, "--draft-model", guesser)
    inner = folder / "draft" / "t.qconv"
    s = serve(*args)
    want, _ = ask(s, TEXT * 6)
    status, told = save(s, "t", {"prompt": TEXT * 6})
    assert status == 200 and told["draft_tokens"] >= len(TEXT) * 6 - 16, told
    assert told["draft_bytes"] == inner.stat().st_size
    assert counts(s)["saved_bytes"] == told["bytes"] + told["draft_bytes"]
    s.stop()
    good = inner.read_bytes()
    dirs = json.loads(quern("cache", "--json", "ls", folder, ok=True).stdout)
    assert [[c["name"] for c in d["conversations"]] for d in dirs] == [["t"], ["t"]]
    s = serve(*args)
    assert restore(s, "t")[1]["draft_tokens"] == told["draft_tokens"]
    assert ask(s, TEXT * 6) == (want, len(TEXT) * 6 - 1)
    assert counts(s)["restored_draft_tokens"] == told["draft_tokens"]
    s.stop()
    flip(inner, len(good) // 2)
    s = serve(*args)
    status, again = restore(s, "t")
    assert status == 200 and again["tokens"] == told["tokens"] and "draft_tokens" not in again
    assert ask(s, TEXT * 6) == (want, len(TEXT) * 6 - 1)
    assert "what guesses has no part in t" in s.stop()[1]
    s = serve(*plain)
    assert restore(s, "t")[0] == 200
    assert save(s, "t", {"prompt": TEXT * 6})[0] == 200
    assert not inner.exists()  # it belonged to the file before
    inner.write_bytes(good)
    assert call(s, "DELETE", "/admin/conversations/t")[0] == 200
    assert not inner.exists()


@pytest.mark.parametrize("where", [(), ("--isolate",)], ids=["here", "isolated"])
def test_a_draft_heads_part(serve, quern, tmp_path, where):  # noqa: F811
    """It is in the file, and put back; a server without the head has the rest."""
    target, folder = SHARED / "models" / "tiny-qwen3_5-mtp", tmp_path / "talks"
    if not (target / "config.json").exists():
        pytest.skip(f"{target} is not there")
    plain = (target, "--conversations", folder, "--ctx", 1024, *where)

    def say(s):
        a = s.post("/v1/completions", {"prompt": TEXT * 8, "temperature": 0, "max_tokens": 12,
                                       "ignore_eos": True})
        return a["choices"][0]["text"], a["usage"]["prompt_tokens_details"]["cached_tokens"]

    s = serve(*plain, "--draft-kind", "mtp")
    want, _ = say(s)
    status, told = save(s, "t", {"prompt": TEXT * 8})
    assert status == 200 and told["draft_tokens"] == told["tokens"] - 1, told
    rows = call(s, "GET", "/admin/conversations")[1]["conversations"]
    assert rows[0]["draft_tokens"] == told["draft_tokens"] and rows[0]["restorable"]
    s.stop()
    assert "draft head's" in quern("cache", "ls", folder, ok=True).stdout
    for more, n in ((("--draft-kind", "mtp"), told["draft_tokens"]), ((), 0)):
        s = serve(*plain, *more)
        status, again = restore(s, "t")
        assert status == 200 and again["tokens"] == told["tokens"]
        assert again.get("draft_tokens", 0) == n == counts(s)["restored_draft_tokens"]
        text, got = say(s)
        assert text == want and got >= told["tokens"] - 1
        code, err = s.stop()
        assert code == 0 and "warn" not in err.lower()
