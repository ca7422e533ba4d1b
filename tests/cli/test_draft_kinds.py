"""--draft-kind through quern serve, here and with the model in a process of its own: answers are
those without guesses, and there were guesses."""

import json
import random
import re
import struct
import urllib.request

import pytest

from conftest import SHARED
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
    return model, args


@pytest.mark.parametrize("kind", ["ngram", "mtp", "two-model", "dspark"])
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
        for where in ([], ["--isolate"]):
            r = quern("serve", model, "--port", "0", *args, *where)
            assert r.returncode == 1 and words in re.sub(r"\s+", " ", r.stderr), (args, where, r)
