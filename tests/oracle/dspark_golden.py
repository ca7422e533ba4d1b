#!/usr/bin/env python3
"""Writes tests/golden/draft/dspark-q4, a tiny block drafter for tests/golden/tiny/qwen3_next-q4.

Random weights, affine 4 bits of group 32 but for the Markov and confidence heads (bf16). The Markov
head holds which token follows which in what the target says, so that guesses hold now and then. And
golden.json: what it guesses behind beginnings of a line, with how sure it is and by how much its
first choices lead. The states of the target's layers are mlx-lm's with every parameter float32, the
drafter itself is written out below in numpy, float64. Made with mlx 0.32.4 and mlx-lm 0.32.2:

    dspark_golden.py [--out tests/golden]
"""

import argparse
import json
import zlib
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from qwen3_next_golden import embed_f32

NAME, TARGET = "dspark-q4", "qwen3_next-q4"
GROUP, BITS = 32, 4
LENGTHS = (2, 3, 9, 33, 45)


CONFIG = dict(
    architectures=["Qwen3DSparkModel"], model_type="qwen3", vocab_size=64, hidden_size=64,
    intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, rms_norm_eps=1e-6, max_position_embeddings=1024, rope_theta=10000.0,
    layer_types=["full_attention"] * 2, tie_word_embeddings=False, attention_bias=False,
    block_size=7, mask_token_id=3, num_anchors=8, target_layer_ids=[-1, 0, 2], num_target_layers=3,
    markov_rank=64, markov_head_type="vanilla", enable_confidence_head=True,
    confidence_head_with_markov=True,
    quantization=dict(group_size=GROUP, bits=BITS, mode="affine"),
)


def shapes(c):
    v, h, f, r = c["vocab_size"], c["hidden_size"], c["intermediate_size"], c["markov_rank"]
    q, k = (c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    out = {"embed_tokens": (v, h), "lm_head": (v, h), "fc": (h, len(c["target_layer_ids"]) * h),
           "hidden_norm": (h,), "norm": (h,), "markov_head.markov_w1": (v, r),
           "markov_head.markov_w2": (v, r), "confidence_head.proj": (1, h + r)}
    for i in range(c["num_hidden_layers"]):
        layer = {"self_attn.q_proj": (q, h), "self_attn.k_proj": (k, h), "self_attn.v_proj": (k, h),
                 "self_attn.o_proj": (h, q), "self_attn.q_norm": (c["head_dim"],),
                 "self_attn.k_norm": (c["head_dim"],), "mlp.gate_proj": (f, h),
                 "mlp.up_proj": (f, h), "mlp.down_proj": (h, f), "input_layernorm": (h,),
                 "post_attention_layernorm": (h,)}
        out.update({f"layers.{i}.{n}": s for n, s in layer.items()})
    return out


def value(name, shape):
    r = np.random.default_rng([20261130, zlib.crc32(name.encode())])
    if len(shape) == 1:
        return 1 + 0.15 * r.standard_normal(shape)
    gain = 4 if "embed" in name else 3 if "markov_w" in name else 1
    return gain / shape[-1] ** 0.5 * r.standard_normal(shape)


def make(folder, config, follows):
    """Writes the folder; returns the weights as they read back, float64. follows [V, V]: how often
    a column's token follows a row's."""
    arrays, weights = {}, {}
    for name, shape in shapes(config).items():
        w = value(name, shape)
        if name == "markov_head.markov_w1":
            w = np.eye(*shape)
        elif name == "markov_head.markov_w2":
            w = 0.2 * w + 20 * follows.T
        w = mx.array(w.astype(np.float32)).astype(mx.bfloat16)
        if len(shape) == 1 or "head." in name:
            arrays[name + ".weight"] = w
        else:
            parts = mx.quantize(w, GROUP, BITS)
            arrays.update(zip((name + ".weight", name + ".scales", name + ".biases"), parts))
            w = mx.dequantize(*(p if p.dtype == mx.uint32 else p.astype(mx.float32) for p in parts),
                              GROUP, BITS)
        weights[name] = np.array(w.astype(mx.float32)).astype(np.float64)
    arrays["confidence_head.proj.bias"] = mx.array([0.25]).astype(mx.bfloat16)
    weights["confidence_head.proj.bias"] = np.array([0.25])
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return weights


# ---- the drafter ---------------------------------------------------------------------------------

def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def turn(x, positions, theta):
    """x [rows, heads, d]: halves rotated."""
    half = x.shape[-1] // 2
    a = positions[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(a)[:, None], np.sin(a)[:, None]
    lo, hi = x[..., :half], x[..., half:]
    return np.concatenate([lo * cos - hi * sin, hi * cos + lo * sin], -1)


def draft(w, c, states, ids):
    """Guesses behind ids, whose first len(ids)-1 tokens have states [n-1, taps * hidden]."""
    eps, theta, d, block = c["rms_norm_eps"], c["rope_theta"], c["head_dim"], c["block_size"]
    n_head, n_kv, start = c["num_attention_heads"], c["num_key_value_heads"], len(ids) - 1
    context = rms(states @ w["fc"].T, w["hidden_norm"], eps)
    x = w["embed_tokens"][[ids[-1]] + [c["mask_token_id"]] * (block - 1)]
    at = np.arange(start + block)
    for i in range(c["num_hidden_layers"]):
        p = {n: w[f"layers.{i}.{n}"] for n in (
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
            "input_layernorm", "post_attention_layernorm")}
        n = rms(x, p["input_layernorm"], eps)
        seen = np.concatenate([context, n])
        q = (n @ p["self_attn.q_proj"].T).reshape(block, n_head, d)
        k = (seen @ p["self_attn.k_proj"].T).reshape(-1, n_kv, d)
        v = (seen @ p["self_attn.v_proj"].T).reshape(-1, n_kv, d)
        q = turn(rms(q, p["self_attn.q_norm"], eps), at[start:], theta)
        k = turn(rms(k, p["self_attn.k_norm"], eps), at, theta)
        heads = []
        for h in range(n_head):
            s = q[:, h] @ k[:, h * n_kv // n_head].T / d ** 0.5
            s = np.exp(s - s.max(-1, keepdims=True))
            heads.append(s / s.sum(-1, keepdims=True) @ v[:, h * n_kv // n_head])
        x = x + np.concatenate(heads, -1) @ p["self_attn.o_proj"].T
        n = rms(x, p["post_attention_layernorm"], eps)
        g = n @ p["mlp.gate_proj"].T
        x = x + (g / (1 + np.exp(-g)) * (n @ p["mlp.up_proj"].T)) @ p["mlp.down_proj"].T
    x = rms(x, w["norm"], eps)
    logits, prev = x @ w["lm_head"].T, ids[-1]
    drafts, sure, leads = [], [], []
    for k in range(block):
        e = w["markov_head.markov_w1"][prev]
        row = logits[k] + w["markov_head.markov_w2"] @ e
        z = w["confidence_head.proj"][0] @ np.concatenate([x[k], e])
        sure.append(float(1 / (1 + np.exp(-z - w["confidence_head.proj.bias"][0]))))
        order = np.sort(row)
        prev = int(row.argmax())
        drafts.append(prev)
        leads.append(float(order[-1] - order[-2]))
    return dict(n=len(ids), drafts=drafts, sure=sure, leads=leads)


# ---- the target's states -------------------------------------------------------------------------

def load_target(folder):
    model, _ = load_model(folder)
    model.update(tree_map(
        lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p,
        model.parameters()))
    nn.QuantizedEmbedding.__call__ = embed_f32
    return model


def what_follows(model, vocab, lines=40):
    """The part of each token among those that follow another in greedy answers."""
    seen = np.zeros((vocab, vocab))
    for i in range(lines):
        ids = [int(t) for t in np.random.default_rng(500 + i).integers(2, vocab, 8)]
        cache = make_prompt_cache(model)
        row = model(mx.array(ids)[None], cache=cache)[0, -1]
        for _ in range(48):
            ids.append(int(mx.argmax(row)))
            seen[ids[-2], ids[-1]] += 1
            row = model(mx.array([ids[-1:]]), cache=cache)[0, -1]
    return seen / np.maximum(seen.sum(-1, keepdims=True), 1)


def target_states(model, taps, ids):
    """What the layers taps leave of every token but the last, side by side."""
    layers, left = model.model.layers, {}

    class Watch:
        def __init__(self, i, layer):
            self.i, self.layer = i, layer

        def __getattr__(self, name):
            return getattr(self.layer, name)

        def __call__(self, x, *args, **kwargs):
            left.setdefault(self.i - 1, x)
            left[self.i] = self.layer(x, *args, **kwargs)
            return left[self.i]

    model.model.layers = [Watch(i, layer) for i, layer in enumerate(layers)]
    mx.eval(model(mx.array(ids[:-1])[None]))
    model.model.layers = layers
    return np.concatenate([np.array(left[t][0]) for t in taps], -1).astype(np.float64)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "golden")
    a = ap.parse_args()
    model = load_target(a.out / "tiny" / TARGET)
    vocab = CONFIG["vocab_size"]
    weights = make(a.out / "draft" / NAME, CONFIG, what_follows(model, vocab))
    ids = [int(t) for t in np.random.default_rng(7).integers(2, vocab, LENGTHS[-1])]
    cases = []
    for n in LENGTHS:
        states = target_states(model, CONFIG["target_layer_ids"], ids[:n])
        cases.append(draft(weights, CONFIG, states, ids[:n]))
    doc = dict(ids=ids, cases=cases)
    (a.out / "draft" / NAME / "golden.json").write_text(json.dumps(doc) + "\n")
    print("least lead", min(min(c["leads"]) for c in cases))


if __name__ == "__main__":
    main()
