"""quern serve over a tiny real model: what it prints works when pasted, answers equal those of
`quern generate`, refusals come before the model is loaded, signals end it in order."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from conftest import QUERN, ROOT


class Serving:
    def __init__(self, env, *args, before=None):
        self.proc = subprocess.Popen([str(QUERN), "serve", "--port", "0", *map(str, args)],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                     env=env, preexec_fn=before)
        self.text = ""
        while "Ctrl-C" not in self.text:
            line = self.proc.stdout.readline()
            assert line, (self.text, self.proc.stderr.read())
            self.text += line
        self.url = re.search(r"at (http://\S+)", self.text).group(1)

    def post(self, path, body, headers=()):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json", **dict(headers)})
        with urllib.request.urlopen(request, timeout=60) as r:
            return json.load(r)

    def accepts(self, *keys):
        """Of each key, whether /v1/models takes it."""
        taken = []
        for key in keys:
            request = urllib.request.Request(self.url + "/v1/models",
                                             headers={"Authorization": f"Bearer {key}"})
            try:
                with urllib.request.urlopen(request, timeout=10) as r:
                    taken.append(r.status == 200)
            except urllib.error.HTTPError as e:
                assert e.code == 401
                taken.append(False)
        return taken

    def stop(self, sig=signal.SIGTERM):
        self.proc.send_signal(sig)
        out, err = self.proc.communicate(timeout=30)
        return self.proc.returncode, err


def loading(port, proc):
    """Waits until the server says that its model loads."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        assert proc.poll() is None, proc.communicate()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        except urllib.error.HTTPError as e:
            assert e.code == 503 and json.load(e) == {"status": "loading model"}
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the server does not listen")


@pytest.fixture
def serve(env):
    running = []

    def start(*args, **extra):
        running.append(Serving({**env, **extra}, *args))
        return running[-1]

    yield start
    for s in running:
        if s.proc.poll() is None:
            s.proc.kill()
            s.proc.communicate()


def test_what_is_printed_works_when_pasted(serve, model):
    s = serve(model, "--max-queue", 4)
    curl = next(line for line in s.text.splitlines() if line.startswith("curl "))
    r = subprocess.run(["sh", "-c", curl + " --silent --show-error"], capture_output=True, text=True,
                       timeout=120)
    assert json.loads(r.stdout)["choices"][0]["finish_reason"] in ("stop", "length"), r
    pytest.importorskip("openai")
    snippet = s.text[s.text.index("from openai"):s.text.index("Ctrl-C")]
    assert not re.search(r"^\s+\S", snippet, re.M), "an indented line cannot be pasted"
    r = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0 and r.stdout.endswith("\n"), r
    code, _ = s.stop()
    assert code == 0


def test_answers_equal_those_of_generate(serve, quern, model):
    s = serve(model, "--batch", 4)
    for prompt in ("Hello", "abc 🙂"):
        here = json.loads(quern("generate", "--model", model, "-p", prompt, "-n", 12, "--seed", 5,
                                "--temperature", 1, "--json", ok=True).stdout)
        there = s.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": prompt}], "max_tokens": 12, "seed": 5,
            "temperature": 1})
        assert there["choices"][0]["message"]["content"] == here["text"]


def test_sampling_defaults(serve, model):
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.33, "top_p": 0.5,
                                                              "eos_token_id": 257}))
    s = serve(model, "--top-p", 0.75)
    with urllib.request.urlopen(s.url + "/v1/models", timeout=10) as r:
        row = json.load(r)["data"][0]
    assert row["gen_defaults"]["temperature"] == 0.33 and row["gen_defaults"]["top_p"] == 0.75
    assert row["id"] == model.name


def test_aliases_and_keys(serve, model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# two keys\n  first  \n\nsecond # of bob\n")
    s = serve(model, "--alias", "gpt-4o", "--api-key-file", keys, QUERN_API_KEY="third")
    assert serve(model, "--api-key", "one", "--api-key", "two").accepts("one", "two", "three") == [
        True, True, False]
    body = {"model": "gpt-4o", "prompt": "x", "max_tokens": 1}
    for key in ("first", "second", "third"):
        assert s.post("/v1/completions", body, {"Authorization": f"Bearer {key}"})["model"] == model.name
    with pytest.raises(urllib.error.HTTPError) as e:
        s.post("/v1/completions", body, {"Authorization": "Bearer #"})
    assert e.value.code == 401
    assert "QUERN_API_KEY" in s.text and "third" not in s.text


@pytest.mark.parametrize("isolate", [False, True])
def test_a_signal_while_the_model_loads_stops_at_once(env, model, isolate):
    """The weights are a pipe that nobody writes: the model never comes."""
    weights = next(model.glob("*.safetensors"))
    weights.unlink()
    os.mkfifo(weights)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    proc = subprocess.Popen([str(QUERN), "serve", "--port", str(port), str(model),
                             *(["--isolate"] if isolate else [])],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    try:
        loading(port, proc)
        proc.send_signal(signal.SIGTERM)
        out, _ = proc.communicate(timeout=20)  # the end of the pipes: no child holds them either
        assert out == b"" and proc.returncode in (0, -signal.SIGTERM)
    finally:
        proc.kill()


def test_json_log(serve, model):
    s = serve(model, "--log-format", "json")
    s.post("/v1/completions", {"prompt": "private", "max_tokens": 1})
    _, err = s.stop()
    lines = [json.loads(line) for line in err.splitlines()]
    assert any("POST /v1/completions 200" in json.dumps(line) for line in lines)
    assert "private" not in err


def test_no_access_log(serve, model):
    s = serve(model, "--no-access-log")
    s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert s.stop(signal.SIGINT) == (0, "")


def test_refusals_before_the_model_is_loaded(quern, model, tmp_path):
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen(1)
    port = taken.getsockname()[1]
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    for args, words in [
            (["--port", port], [str(port), "in use", "--port"]),
            (["--host", "0.0.0.0", "--port", 0], ["--host 0.0.0.0", "API key", "--insecure"]),
            (["--host", "nowhere.invalid"], ["nowhere.invalid"]),
            (["--api-key-file", tmp_path / "none"], ["none"]),
            (["--api-key-file", empty], ["holds no key"]),
            (["--port", 99999], ["--port", "65535"]),
            (["--batch", 0], ["--batch"]),
            (["--prot", 1], ["--prot", "--port"]),
            ([tmp_path / "nothing"], ["nothing"])]:
        r = quern("serve", *args, *([] if len(args) == 1 else [model]), ok=False)
        assert r.stdout == ""
        for word in words:
            assert word in r.stderr, (args, r.stderr)
    taken.close()


def test_beyond_loopback_with_a_key_or_insecure(serve, model):
    for args, extra in ((["--insecure"], {}), ([], {"QUERN_API_KEY": "k"})):
        s = serve(model, "--host", "0.0.0.0", *args, **extra)
        with urllib.request.urlopen(s.url + "/health", timeout=10) as r:
            assert r.read() == b'{"status": "ok"}'
        assert s.stop()[0] == 0


def test_closed_standard_output_does_not_stop_the_server(env, model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    read, write = os.pipe()
    os.close(read)
    p = subprocess.Popen([str(QUERN), "serve", "--port", str(port), str(model)], stdout=write,
                         stderr=subprocess.DEVNULL, env=env)
    os.close(write)
    for _ in range(200):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as r:
                assert r.status == 200
            break
        except OSError:
            time.sleep(0.05)
    else:
        p.kill()
        raise AssertionError("no answer")
    p.terminate()
    assert p.wait(timeout=20) == 0


def test_config_file(serve, quern, model, tmp_path):
    """Flags and environment win over the file; the file wins over defaults; refusals name the line."""
    conf = tmp_path / "q.conf"
    conf.write_text(f"model = {model}\nport = 1\nalias = from-file\napi-key = k1\n")
    s = serve("--config", conf, "--port", "0")
    body = {"model": "from-file", "prompt": "x", "max_tokens": 1}
    assert s.post("/v1/completions", body, {"Authorization": "Bearer k1"})["model"] == model.name
    with pytest.raises(urllib.error.HTTPError) as e:
        s.post("/v1/completions", body)
    assert e.value.code == 401
    s.stop()
    s = serve(QUERN_CONFIG=str(conf), QUERN_API_KEY="k2")
    assert s.post("/v1/completions", body, {"Authorization": "Bearer k2"})["model"] == model.name
    s.stop()
    conf.write_text("port = 0\n\nprot = 1\n")
    r = quern("serve", "--config", conf)
    assert r.returncode == 2 and f"{conf}:3: unknown option --prot; did you mean --port?" in r.stderr


def test_shipped_config(serve, model):
    """contrib/quern.conf is one that starts."""
    s = serve("--config", ROOT / "contrib" / "quern.conf", model)
    assert s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})["model"] == model.name


# ---- --isolate: the model in a process of its own -----------------------------------------------


def engine_pid(serving):
    """The server's child, from /proc: `ps` is not on every machine."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f, open(f"/proc/{pid}/cmdline") as c:
                parent, words = int(f.read().rsplit(")", 1)[1].split()[1]), c.read().split("\0")
        except OSError:
            continue
        if parent == serving.proc.pid and "engine-process" in words:
            found.append(int(pid))
    assert len(found) == 1, found
    return found[0]


def test_isolated_answers_are_the_same(serve, model):
    body = {"prompt": "once", "max_tokens": 12, "seed": 5, "logprobs": 2}
    answers = [serve(model, *args).post("/v1/completions", body)["choices"]
               for args in ([], ["--isolate"])]
    assert answers[0] == answers[1]


def test_isolated_engine_dies(serve, model):
    """Requests in flight get 502 or an error event; HTTP stays up; the next request is right."""
    s = serve(model, "--isolate")
    long = {"prompt": "x", "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    want = s.post("/v1/completions", {**long, "max_tokens": 5})["choices"][0]["text"]
    for _ in range(2):
        pid = engine_pid(s)
        request = urllib.request.Request(s.url + "/v1/completions", json.dumps({**long, "stream": True}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as r:
            r.readline()
            os.kill(pid, signal.SIGKILL)
            text = r.read().decode()
        event = json.loads([l for l in text.splitlines() if l.startswith("data: {")][-1][6:])
        assert event["error"]["code"] == "engine_lost" and "[DONE]" not in text
        with urllib.request.urlopen(s.url + "/v1/models", timeout=5) as r:
            assert r.status == 200
        assert s.post("/v1/completions", {**long, "max_tokens": 5})["choices"][0]["text"] == want
        assert engine_pid(s) != pid
        with urllib.request.urlopen(s.url + "/health", timeout=5) as r:
            assert json.load(r) == {"status": "ok"}
    pid = engine_pid(s)
    rc, err = s.stop()
    assert rc == 0 and err.count("signal 9") == 2
    assert not os.path.exists(f"/proc/{pid}")


def test_isolated_refusals(quern, tmp_path):
    r = quern("serve", "--isolate", tmp_path)
    assert r.returncode == 1 and "config.json" in r.stderr + r.stdout
    r = quern("engine-process")
    assert r.returncode == 2 and "--isolate" in r.stderr
