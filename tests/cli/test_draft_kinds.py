"""--draft-kind through quern serve, here and with the model in a process of its own: answers are
those without guesses, and there were guesses."""

import json
import random
import re
import struct
import urllib.request

import pytest

from conftest import SHARED, write_tokenizer
from test_serve import serve  # noqa: F401  a fixture

# What a block drafter for the fixture `model` looks like: 4 layers of 128, 512 tokens.
DSPARK = dict(model_type="qwen3", vocab_size=512, hidden_size=128, intermediate_size=64,
              num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
              rms_norm_eps=1e-6, max_position_embeddings=4096, rope_theta=10000.0,
              tie_word_embeddings=False, block_size=5, mask_token_id=3, target_layer_ids=[0, 2],
              num_target_layers=4, markov_rank=16, markov_head_type="vanilla",
              enable_confidence_head=True, confidence_head_with_markov=True)
SHAPES = {"embed_tokens.weight": (512, 128), "lm_head.weight": (512, 128), "fc.weight": (128, 256),
          "hidden_norm.weight": (128,), "norm.weight": (128,),
          "markov_head.markov_w1.weight": (512, 16), "markov_head.markov_w2.weight": (512, 16),
          "confidence_head.proj.weight": (1, 144), "confidence_head.proj.bias": (1,),
          "layers.0.self_attn.q_proj.weight": (64, 128), "layers.0.self_attn.k_proj.weight": (32, 128),
          "layers.0.self_attn.v_proj.weight": (32, 128), "layers.0.self_attn.o_proj.weight": (128, 64),
          "layers.0.self_attn.q_norm.weight": (32,), "layers.0.self_attn.k_norm.weight": (32,),
          "layers.0.mlp.gate_proj.weight": (64, 128), "layers.0.mlp.up_proj.weight": (64, 128),
          "layers.0.mlp.down_proj.weight": (128, 64), "layers.0.input_layernorm.weight": (128,),
          "layers.0.post_attention_layernorm.weight": (128,)}

# A Gemma 4 of the fixture's tokens, and a draft model that reads its keys and values.
GEMMA = dict(model_type="gemma4_text", vocab_size=258, hidden_size=64, intermediate_size=64,
             num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
             num_kv_shared_layers=0, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
             global_head_dim=32, rms_norm_eps=1e-6, max_position_embeddings=4096,
             sliding_window=16, tie_word_embeddings=True, hidden_size_per_layer_input=0,
             use_double_wide_mlp=False, final_logit_softcapping=None,
             rope_parameters={
                 "full_attention": dict(rope_type="proportional", partial_rotary_factor=0.25,
                                        rope_theta=1000000.0),
                 "sliding_attention": dict(rope_type="default", rope_theta=10000.0)})
ASSISTANT = dict(model_type="gemma4_assistant", backbone_hidden_size=64,
                 use_ordered_embeddings=False, tie_word_embeddings=True,
                 text_config=dict(GEMMA, hidden_size=32, num_kv_shared_layers=2))


def gemma_shapes(c, own):
    """Of a model; own: its layers have keys and values of their own."""
    h, f, k = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for i, d in enumerate((c["head_dim"], c["global_head_dim"])):
        q = c["num_attention_heads"] * d
        layer = {"self_attn.q_proj.weight": (q, h), "self_attn.o_proj.weight": (h, q),
                 "self_attn.q_norm.weight": (d,), "mlp.gate_proj.weight": (f, h),
                 "mlp.up_proj.weight": (f, h), "mlp.down_proj.weight": (h, f), "layer_scalar": (1,)}
        if own:
            layer.update({"self_attn.k_proj.weight": (k * d, h), "self_attn.k_norm.weight": (d,),
                          "self_attn.v_proj.weight": (k * d, h)})
        for n in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            layer[n + "_layernorm.weight"] = (h,)
        out.update({f"model.layers.{i}.{n}": s for n, s in layer.items()})
    return out


def write_assistant(folder, config=ASSISTANT):
    shapes = dict(gemma_shapes(ASSISTANT["text_config"], False),
                  **{"pre_projection.weight": (32, 128), "post_projection.weight": (64, 32)})
    return write_drafter(folder, config, shapes)


def write_gemma(folder):
    write_drafter(folder, GEMMA, gemma_shapes(GEMMA, True))
    write_tokenizer(folder, 257)
    return folder


def write_drafter(folder, config=DSPARK, shapes=SHAPES):
    """A safetensors file of random float32 values."""
    rng, header, data = random.Random(7), {}, b""
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        part = struct.pack(f"<{n}f", *(rng.uniform(-0.3, 0.3) for _ in range(n)))
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[len(data), len(data) + len(part)])
        data += part
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def options(kind, model, tmp_path):
    """The target's folder and what to serve it with."""
    if kind == "mtp":
        model = SHARED / "models" / "tiny-qwen3_5-mtp"
        if not (model / "config.json").exists():
            pytest.skip(f"{model} is not there")
    args = ["--draft-kind", kind]
    if kind == "two-model":
        args += ["--draft-model", model]
    if kind == "dspark":
        args += ["--draft-model", write_drafter(tmp_path / "drafter")]
    if kind == "assistant":
        model = write_gemma(tmp_path / "gemma")
        args += ["--draft-model", write_assistant(tmp_path / "drafter")]
    return model, args


@pytest.mark.parametrize("kind", ["ngram", "mtp", "two-model", "dspark", "assistant"])
def test_isolated_with_guesses(serve, model, tmp_path, kind):  # noqa: F811
    target, args = options(kind, model, tmp_path)
    body = {"prompt": "abcabcabcabcabcabcabc", "max_tokens": 48, "temperature": 0, "logprobs": 2,
            "ignore_eos": True}
    plain = serve(target).post("/v1/completions", body)
    assert "speculation" not in plain["usage"]
    for where in ([], ["--isolate"]):
        s = serve(target, *args, *where)
        answer = s.post("/v1/completions", body)
        assert answer["choices"] == plain["choices"]
        assert s.post("/v1/completions", body)["choices"] == plain["choices"]  # from the cache
        assert answer["usage"]["speculation"]["drafted"] > 0
        with urllib.request.urlopen(s.url + "/stats", timeout=10) as r:
            assert json.load(r)["draft_kind"] == kind
        assert s.stop()[0] == 0


def test_off_is_off(serve, quern, model, tmp_path):  # noqa: F811
    """Whoever says so means it, whatever the file of options names; without a word a draft model
    guesses."""
    path = tmp_path / "options"
    path.write_text(f"draft-model = {model}\n")
    body = {"prompt": "abcabcabcabcabcabcabc", "max_tokens": 24, "temperature": 0,
            "ignore_eos": True}
    for args, guesses in (([], True), (["--draft-kind", "off"], False),
                          (["--draft-kind", "ngram"], None)):
        if guesses is None:
            r = quern("serve", "--config", path, *args, "--port", 0, model, ok=False)
            assert "not with ngram" in r.stderr
            continue
        s = serve(model, "--config", path, *args)
        with urllib.request.urlopen(s.url + "/stats", timeout=10) as r:
            assert json.load(r).get("draft_kind") == ("two-model" if guesses else None)
        assert ("speculation" in s.post("/v1/completions", body)["usage"]) == guesses
    out = quern("generate", "--raw", "--stats", "-n", 24, "--temperature", 0, "--draft-kind", "off",
                "--draft-model", model, "-m", model, "-p", "abcabcabcabcabcabcabc", ok=True)
    assert "speculation:" not in out.stderr


@pytest.mark.parametrize("kind", ["dspark", "assistant"])
def test_bench_rows(quern, model, tmp_path, kind):
    """Of what was made for the model, adaptive and of every length, and of nothing else; answers
    are those without, or the verb fails."""
    target, args = options(kind, model, tmp_path)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(t) + "\n" for t in (
        {"task": "again", "prompt": "abcabcabcabc"},
        {"task": "dice", "prompt": "abcabcabcabc", "temperature": 1})))
    out = quern("bench", "--speculation", "--model", target, *args, "--threads", 1, "--repeat", 1,
                "--tasks", tasks, ok=True).stdout
    rows = [r.split()[:3] for r in out.splitlines() if r.startswith(("again", "dice"))]
    for task in ("again", "dice"):
        assert [r[2] for r in rows if r[:2] == [task, kind]] == ["auto", "2", "4", "8"], out
        assert {r[1] for r in rows if r[0] == task} == {"off", kind}


def test_bench_needs_a_kind(quern, model):
    r = quern("bench", "--speculation", "--model", model, "--draft-kind", "mtp", ok=False)
    assert r.returncode != 0 and "nothing to measure" in r.stderr


def test_refusals(quern, model, tmp_path):
    """In words of options and files; also from the child's side."""
    other = dict(DSPARK, vocab_size=256)
    lesser = dict(DSPARK, target_layer_ids=[0, 4])
    cases = [
        (["--draft-kind", "dspark"], "needs --draft-model"),
        (["--draft-kind", "mtp", "--draft-model", model], "--draft-model goes with"),
        (["--draft-kind", "dspark", "--draft-model", model], "no block drafter"),
        (["--draft-kind", "dspark", "--draft-model", write_drafter(tmp_path / "a", other)],
         "vocab_size 256; the model's is 512"),
        (["--draft-kind", "dspark", "--draft-model", write_drafter(tmp_path / "b", lesser)],
         "target_layer_ids[1] is 4"),
    ]
    for args, words in cases:
        check_refused(quern, model, args, words)


def test_a_drafter_of_other_tokens(quern, serve, model, tmp_path):  # noqa: F811
    """Where its folder has a tokenizer, that is compared token by token; here and in the child."""
    folder = write_drafter(tmp_path / "drafter")
    write_tokenizer(folder, 257)
    s = serve(model, "--draft-kind", "dspark", "--draft-model", folder)  # the same: fine
    assert s.stop()[0] == 0
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=258, content="<|mask|>"))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    s = serve(model, "--draft-kind", "dspark", "--draft-model", folder)  # one more of its own: too
    assert s.stop()[0] == 0
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"], vocab["q"], vocab["r"] = (vocab[k] for k in "barq")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    args = ["--draft-kind", "dspark", "--draft-model", folder]
    check_refused(quern, model, args, f'token {ord("a")} is "b" in {folder} and "a" in the model')


def check_refused(quern, model, args, words):
    for where in ([], ["--isolate"]):
        r = quern("serve", model, "--port", "0", *args, *where)
        assert r.returncode == 1 and words in re.sub(r"\s+", " ", r.stderr), (args, where, r)


def test_refused_assistants(quern, model, tmp_path):
    gemma = write_gemma(tmp_path / "gemma")
    wide = dict(ASSISTANT, backbone_hidden_size=128)
    kind = ["--draft-kind", "assistant"]
    good = write_assistant(tmp_path / "a")
    cases = [
        (gemma, kind, "needs --draft-model"),
        (gemma, [*kind, "--draft-model", gemma], "no draft model that reads the model's keys"),
        (model, [*kind, "--draft-model", good], "guesses for gemma4 models"),
        (gemma, [*kind, "--draft-model", write_assistant(tmp_path / "b", wide)],
         "backbone_hidden_size 128; the model's hidden_size is 64"),
    ]
    for target, args, words in cases:
        check_refused(quern, target, args, words)
