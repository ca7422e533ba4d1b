"""The verbs that need a model, on a tiny one: what goes to which stream, and what fails how."""

import json
import re
import os
import shutil
import signal
import struct
import subprocess
import time

import pytest

from conftest import QUERN, SHARED


# ---- finding the model ---------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["generate", "x"], ["tokenize", "x"], ["bench"], ["chat"]])
def test_no_default_model(quern, args):
    r = quern(*args)
    assert r.returncode == 1 and r.stdout == ""
    assert "quern get smollm2" in r.stderr


def test_name_of_a_fetched_model(quern, env, model):
    fetched = os.path.join(env["QUERN_CACHE"], "models", "tiny")
    shutil.copytree(model, fetched)
    by_name = quern("tokenize", "--model", "tiny", "hi", ok=True)
    assert by_name.stdout == quern("tokenize", "--model", model, "hi", ok=True).stdout
    r = quern("tokenize", "--model", "tinny", "hi")
    assert r.returncode == 1 and "did you mean tiny?" in r.stderr
    env["QUERN_MODEL"] = "tiny"
    assert quern("tokenize", "hi", ok=True).stdout == by_name.stdout


# ---- generate ------------------------------------------------------------------------------------


def test_generate_streams_only_the_answer(quern, model):
    r = quern("generate", "-m", model, "-n", "12", "--seed", "1", "Hello", ok=True)
    assert r.stderr == "" and len(r.stdout) > 0
    again = quern("generate", "-m", model, "-n", "12", "--seed", "1", input="Hello\n", ok=True)
    assert again.stdout == r.stdout
    one = quern("generate", "-m", model, "-n", "12", "--seed", "1", "-t", "1", "Hello", ok=True)
    assert one.stdout == r.stdout
    assert quern("generate", "-m", model, "-n", "0", "Hello", ok=True).stdout == ""


def test_generate_adds_standard_input(quern, model, tmp_path):
    want = quern("generate", "-m", model, "-n", "8", "--seed", "1", "Sum up:\n\na b\nc", ok=True).stdout
    for flags in (["Sum up:"], ["--prompt", "Sum up:"]):
        r = quern("generate", "-m", model, "-n", "8", "--seed", "1", *flags, input="a b\nc\n", ok=True)
        assert r.stdout == want
    (tmp_path / "text").write_text("a b\nc\n")
    with open(tmp_path / "text") as f:  # a file instead of a pipe
        r = quern("generate", "-m", model, "-n", "8", "--seed", "1", "Sum up:", input=None, stdin=f,
                  ok=True)
    assert r.stdout == want
    counts = [json.loads(quern("generate", "-m", model, "-n", "1", "--json", "Sum", input=text,
                               ok=True).stdout)["prompt_tokens"] for text in ("", "ab")]
    assert counts[1] == counts[0] + 4  # one token a byte: the blank line and the text


def test_generate_json_seed_has_no_sign(quern, model):
    for seed in (-1, 2**64 - 1):
        r = quern("generate", "-m", model, "-n", "1", "--json", "--seed", seed, "x", ok=True)
        assert json.loads(r.stdout)["seed"] == 2**64 - 1
    quern("generate", "-m", model, "--seed", 2**64, "x", ok=False)


def test_generate_json(quern, model):
    r = quern("generate", "-m", model, "-n", "5", "--temperature", "0", "--json", "--logprobs", "2",
              "--raw", "Once", ok=True)
    d = json.loads(r.stdout)
    assert r.stderr == ""
    assert d["prompt_tokens"] == 4 and d["completion_tokens"] == len(d["tokens"]) <= 5
    assert d["finish_reason"] in ("length", "stop")
    for t in d["tokens"]:
        assert len(t["top"]) == 2
        assert t["top"][0]["id"] == t["id"]  # greedy takes the likeliest
        assert t["logprob"] == t["top"][0]["logprob"] <= 0
        assert t["top"][0]["logprob"] >= t["top"][1]["logprob"]


def test_generate_in_a_form(quern, model, tmp_path):
    """A model of random weights, whose answers fit whatever is asked."""
    schema = tmp_path / "s.json"
    schema.write_text(json.dumps({"type": "object", "required": ["n"], "additionalProperties": False,
                                  "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}}))
    rules = tmp_path / "g.gbnf"
    rules.write_text('root ::= "yes" | "no " [0-9]{2}\n')
    for seed in range(3):
        fixed = ["-m", model, "--seed", seed, "--temperature", 1, "-p", "x", "-n", 200]
        out = quern("generate", *fixed, "--json-schema", schema, ok=True).stdout
        assert list(json.loads(out)) == ["n"] and 1 <= json.loads(out)["n"] <= 9
        assert re.fullmatch("(a|bc)d{3}", quern("generate", *fixed, "--regex", "(a|bc)d{3}", ok=True).stdout)
        assert re.fullmatch("yes|no [0-9]{2}", quern("generate", *fixed, "--grammar", rules, ok=True).stdout)
        said = quern("chat", "-m", model, "--seed", seed, "--regex", "[xyz]{3}", input="hi\n", ok=True).stdout
        assert re.search("^[xyz]{3}$", said, re.M), said
    schema.write_text('{"type": "objekt"}')
    for bad, words in ((["--regex", "("], "--regex"), (["--json-schema", schema], "objekt"),
                       (["--grammar", tmp_path / "none"], "none"),
                       (["--regex", "a", "--grammar", rules], "only one")):
        r = quern("generate", "-m", model, "-p", "x", *bad, ok=False)
        assert words in r.stderr and r.stdout == "", r


def test_generate_stats_go_to_stderr(quern, model):
    r = quern("generate", "-m", model, "-n", "6", "--stats", "--logprobs", "1", "Hello", ok=True)
    for word in ("prompt:", "answer:", "tokens/s", "first token:", "seed:"):
        assert word in r.stderr and word not in r.stdout


def test_generate_failures(quern, model, tmp_path):
    r = quern("generate", "-m", tmp_path / "nowhere" / "x", "hi")
    assert r.returncode == 1 and "no such folder" in r.stderr
    r = quern("generate", "-m", model, "--ctx", "8", "--raw", "much longer than eight tokens")
    assert r.returncode == 1 and r.stdout == "" and "context" in r.stderr and "8" in r.stderr
    for flags in (["--raw"], []):
        r = quern("generate", "-m", model, *flags, input="")
        assert r.returncode == 1 and "the prompt is empty" in r.stderr
    r = quern("generate", "-m", model, "--chat-template-kwargs", "{x", "hi")
    assert r.returncode == 1 and "chat-template-kwargs" in r.stderr
    (model / "generation_config.json").write_text('{"temperature": "hot"}')
    r = quern("generate", "-m", model, "hi")
    assert r.returncode == 1
    assert "generation_config.json" in r.stderr and "temperature" in r.stderr


def test_generate_reader_goes_away(env, model):
    p = subprocess.Popen([QUERN, "generate", "-m", model, "-n", "3000", "Hello"], env=env,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(60) == 1
    assert p.stderr.read() == b""


def test_generate_interrupted_keeps_what_was_made(env, model):
    # EOS would end the answer early: without it the answer runs to the end of the context
    (model / "generation_config.json").write_text('{"eos_token_id": 511}')
    p = subprocess.Popen([QUERN, "generate", "-m", model, "--seed", "3", "Hello"], env=env, bufsize=0,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = p.stdout.read(1)  # unbuffered: communicate() would lose what a buffer holds
    p.send_signal(signal.SIGINT)
    rest, err = p.communicate(timeout=60)
    assert p.returncode == 130 and err == b""
    whole = subprocess.run([QUERN, "generate", "-m", model, "--seed", "3", "Hello"], env=env,
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=120).stdout
    made = (first + rest).decode("utf-8", "replace").rstrip("\ufffd")
    assert whole.decode("utf-8", "replace").startswith(made) and len(made) < len(whole)


def test_no_template_means_plain_text(quern, model):
    (model / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    r = quern("generate", "-m", model, "-n", "3", "--seed", "1", "Hi", ok=True)
    assert "no chat template" in r.stderr
    raw = quern("generate", "-m", model, "-n", "3", "--seed", "1", "--raw", "Hi", ok=True)
    assert raw.stdout == r.stdout and raw.stderr == ""
    r = quern("generate", "-m", model, "--system", "s", "Hi")
    assert r.returncode == 1 and "--system" in r.stderr
    r = quern("chat", "-m", model, input="hi\n")
    assert r.returncode == 1 and "no chat template" in r.stderr


# ---- tokenize ------------------------------------------------------------------------------------


def test_tokenize(quern, model):
    ids = quern("tokenize", "-m", model, "--ids", "Hé<|im_end|>", ok=True).stdout
    assert ids == "72 195 169 257\n"
    text = quern("tokenize", "-m", model, input="a\n", ok=True).stdout
    assert text.split() == ["97", '"a"', "10", '"\\n"']
    plain = quern("tokenize", "-m", model, "--ids", "--no-parse-special", "<|", ok=True).stdout
    assert plain == "60 124\n"
    rows = json.loads(quern("tokenize", "-m", model, "--json", "hi", ok=True).stdout)
    assert rows == [{"id": 104, "token": "h"}, {"id": 105, "token": "i"}]


# ---- inspect -------------------------------------------------------------------------------------


def header_facts(folder):
    """(bytes of all tensors, logical weights) from the headers, by our own arithmetic."""
    total, weights = 0, 0
    for path in folder.glob("model*.safetensors"):
        with open(path, "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        head.pop("__metadata__", None)
        config = json.loads((folder / "config.json").read_text())["quantization"]
        for name, t in head.items():
            total += t["data_offsets"][1] - t["data_offsets"][0]
            stem = name.rsplit(".", 1)[0]
            n = 1
            for d in t["shape"]:
                n *= d
            if name.endswith((".scales", ".biases")) and stem + ".weight" in head:
                continue
            if stem + ".scales" in head and name.endswith(".weight"):
                own = config.get(stem, config)
                n = n * 32 // own["bits"]
            weights += n
    return total, weights


@pytest.mark.parametrize("name", ["llama-q4", "llama-mixed", "llama-mxfp4", "llama-nvfp4",
                                  "qwen3_5-q4", "gemma3_text-mixed"])
def test_inspect_agrees_with_the_headers(quern, name):
    folder = SHARED / "goldens" / "tiny" / name
    if not folder.is_dir():
        pytest.skip(f"no tiny checkpoint: {folder} (QUERN_SHARED)")
    d = json.loads(quern("inspect", folder, "--json", "--tensors", ok=True).stdout)
    total, weights = header_facts(folder)
    assert d["weight_bytes"] == total == sum(t["bytes"] for t in d["tensors"])
    assert d["weights"] == weights
    assert d["bits_per_weight"] == pytest.approx(total * 8 / weights)
    assert sum(f["tensors"] for f in d["formats"]) == len(d["tensors"])


def test_inspect_text(quern, model):
    out = quern("inspect", model, "--ctx", "100", ok=True).stdout
    # 4 layers, 2 KV heads of 64, keys and values, 2 bytes: 2048 bytes a token
    assert "2048 bytes a token" in out and "at 100 tokens" in out
    for part in ("llama", "layers", "affine 4-bit g64", "BPE, byte-level", "chat template  yes",
                 "end tokens     257"):
        assert part in out, part
    assert "lm_head" not in out
    assert "lm_head.weight  512 x 128  affine 4-bit g64" in \
        quern("inspect", model, "--tensors", ok=True).stdout


def test_inspect_names_file_and_field(quern, model, tmp_path):
    r = quern("inspect", tmp_path)
    assert r.returncode == 1 and "config.json" in r.stderr
    config = json.loads((model / "config.json").read_text())
    for key, value in (("num_hidden_layers", "four"), ("vocab_size", -5), ("model_type", 3)):
        (model / "config.json").write_text(json.dumps({**config, key: value}))
        r = quern("inspect", model)
        assert r.returncode == 1 and "config.json" in r.stderr and key in r.stderr
    (model / "config.json").write_text(json.dumps(config))
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(data[:1000])
    r = quern("inspect", model)
    assert r.returncode == 1 and "model.safetensors" in r.stderr


# ---- bench ---------------------------------------------------------------------------------------


def test_bench(quern, model, tmp_path):
    sizes = ["--prefill", "16,32", "--decode", "8", "--depth", "0,8", "--threads", "1,2",
             "--repeat", "3"]
    out = tmp_path / "result.json"
    r = quern("bench", "-m", model, *sizes, "--format", "json", "--out", out, ok=True)
    assert r.stdout == "" and r.stderr == ""
    d = json.loads(out.read_text())
    assert len(d["results"]) == 2 * 2 * 3
    for row in d["results"]:
        assert len(row["samples"]) == 3
        s = row["tok_s"]
        assert 0 < s["min"] <= s["median"] <= s["max"]
        assert s["mad"] >= 0
        assert ("share_of_read" in row) == (row["kind"] == "decode")
    assert [f["threads"] for f in d["machine"]["roofs"]] == [1, 2]
    assert all(f["read_bytes_s"]["median"] > 0 for f in d["machine"]["roofs"])
    deep = [x for x in d["results"] if x["kind"] == "decode" and x["depth"] == 8][0]
    flat = [x for x in d["results"] if x["kind"] == "decode" and x["depth"] == 0][0]
    assert deep["bytes_per_token"] > flat["bytes_per_token"]
    mask = d["mask"]
    assert mask["tokens"] > 20 and mask["first_us"] <= mask["worst_us"] and mask["again_us"] >= 0
    assert mask["first_share_of_step"] > 0 and mask["start_us"] > 0


def test_bench_prints_a_table(quern, model):
    r = quern("bench", "-m", model, "-p", "0", "-n", "4", "-r", "1", "-t", "1", ok=True)
    rows = [line for line in r.stdout.splitlines() if "decode 4" in line]
    assert len(rows) == 1 and "prefill" not in r.stdout.split("\n\n")[1]
    assert r.stderr == ""


def test_bench_interrupted(env, model, tmp_path):
    out = tmp_path / "result.json"
    p = subprocess.Popen([QUERN, "bench", "-m", model, "-r", "1000", "--out", out], env=env,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1.5)
    p.send_signal(signal.SIGINT)
    text, err = p.communicate(timeout=60)
    assert p.returncode == 130 and text == b"" and err == b""
    assert not out.exists()


def test_bench_refusals(quern, model):
    r = quern("bench", "-m", model, "-p", "0", "-n", "0")
    assert r.returncode == 1 and "nothing to measure" in r.stderr
    r = quern("bench", "-m", model, "-p", "1000000")
    assert r.returncode == 1 and "context" in r.stderr
    r = quern("bench", "-m", model, "--threads", "1,1")
    assert r.returncode == 1 and "twice" in r.stderr
