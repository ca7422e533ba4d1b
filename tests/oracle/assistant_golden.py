#!/usr/bin/env python3
"""Writes tests/golden/draft/assistant-q4 and assistant-ordered, tiny draft models of queries only
for tests/golden/tiny/gemma4-ple-q4 and gemma4-experts-q4.

The first is affine 4 bits of group 32 with a tied head, the second bf16 with ordered embeddings.
Random weights, but for a projection by which a token calls for the one that mostly follows it in
what the target says, so that guesses hold now and then. And golden.json: what they guess behind
beginnings of a line, how likely that is and by how much the choices lead. The target's state, keys
and values are mlx-lm's with every parameter float32; the draft model itself is written out below in
numpy, float64, after transformers' gemma4_assistant. Made with mlx 0.32.4 and mlx-lm 0.32.2:

    assistant_golden.py [--out tests/golden]
"""

import argparse
import json
import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np
from dspark_golden import load_target, rms, what_follows

GROUP, BITS = 32, 4
LENGTHS, GUESSES = (2, 3, 9, 33, 45), 6
SLIDING, FULL = "sliding_attention", "full_attention"

TEXT = dict(
    model_type="gemma4_text", vocab_size=64, hidden_size=32, intermediate_size=32,
    num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL], num_kv_shared_layers=3,
    num_attention_heads=4, num_key_value_heads=1, head_dim=16, global_head_dim=32,
    rms_norm_eps=1e-6, max_position_embeddings=1024, sliding_window=12, tie_word_embeddings=True,
    hidden_activation="gelu_pytorch_tanh", hidden_size_per_layer_input=0,
    vocab_size_per_layer_input=0, use_double_wide_mlp=False, enable_moe_block=False,
    attention_k_eq_v=False, final_logit_softcapping=None,
    rope_parameters={FULL: dict(rope_type="proportional", partial_rotary_factor=0.25,
                                rope_theta=1000000.0),
                     SLIDING: dict(rope_type="default", rope_theta=10000.0)})
BASE = dict(architectures=["Gemma4AssistantForCausalLM"], model_type="gemma4_assistant",
            backbone_hidden_size=64, tie_word_embeddings=True)
MODELS = {
    "assistant-q4": ("gemma4-ple-q4", dict(
        BASE, use_ordered_embeddings=False, text_config=TEXT,
        quantization=dict(group_size=GROUP, bits=BITS, mode="affine"))),
    "assistant-ordered": ("gemma4-experts-q4", dict(
        BASE, use_ordered_embeddings=True, num_centroids=8, centroid_intermediate_top_k=3,
        text_config=dict(TEXT, num_hidden_layers=2, layer_types=[SLIDING, FULL],
                         num_kv_shared_layers=2, num_attention_heads=2, num_key_value_heads=2,
                         attention_k_eq_v=True, num_global_key_value_heads=1))),
}


def shapes(c):
    t, wide = c["text_config"], c["backbone_hidden_size"]
    v, h, f = t["vocab_size"], t["hidden_size"], t["intermediate_size"]
    out = {"model.embed_tokens": (v, h), "pre_projection": (h, 2 * wide),
           "post_projection": (wide, h), "model.norm": (h,)}
    if c["use_ordered_embeddings"]:
        out["masked_embedding.centroids"] = (c["num_centroids"], h)
    for i, kind in enumerate(t["layer_types"]):
        d = t["head_dim"] if kind == SLIDING else t["global_head_dim"]
        q = t["num_attention_heads"] * d
        layer = {"self_attn.q_proj": (q, h), "self_attn.o_proj": (h, q), "self_attn.q_norm": (d,),
                 "mlp.gate_proj": (f, h), "mlp.up_proj": (f, h), "mlp.down_proj": (h, f),
                 "input_layernorm": (h,), "post_attention_layernorm": (h,),
                 "pre_feedforward_layernorm": (h,), "post_feedforward_layernorm": (h,),
                 "layer_scalar": (1,)}
        out.update({f"model.layers.{i}.{n}": s for n, s in layer.items()})
    return out


def value(name, shape):
    r = np.random.default_rng([20261201, zlib.crc32(name.encode())])
    if name.endswith("layer_scalar"):
        return r.uniform(0.6, 1.2, shape)
    if name.endswith(("post_attention_layernorm", "post_feedforward_layernorm")):
        return 0.7 + 0.1 * r.standard_normal(shape)
    if name == "model.norm":
        return 0.35 + 0.05 * r.standard_normal(shape)
    if len(shape) == 1:
        return 1 + 0.15 * r.standard_normal(shape)
    return (1 if "embed" in name else shape[-1] ** -0.5) * r.standard_normal(shape)


def make(folder, config, table, follows):
    """Writes the folder; returns the weights as they read back, float64. table: the target's, of
    tokens as the draft model takes them; follows [V, V]: how often a column's token follows."""
    arrays, weights = {}, {}
    values = {n: value(n, s) for n, s in shapes(config).items()}
    head, wide = values["model.embed_tokens"], config["backbone_hidden_size"]
    some = np.random.default_rng(6).integers(0, len(head), len(head))
    after = np.where(follows.any(-1), follows.argmax(-1), some)
    values["pre_projection"][:, wide:] *= 0.5
    values["pre_projection"][:, :wide] = (np.linalg.pinv(table) @ head[after]).T
    if config["use_ordered_embeddings"]:
        order = np.random.default_rng(5).permutation(len(head))
        near = head[order].reshape(config["num_centroids"], -1, head.shape[-1]).mean(1)
        values["masked_embedding.centroids"] = near
        arrays["masked_embedding.token_ordering"] = mx.array(order.astype(np.int64))
        weights["order"] = order
    for name, w in values.items():
        w = mx.array(w.astype(np.float32)).astype(mx.bfloat16)
        tensor = name if name.endswith("layer_scalar") else name + ".weight"
        if w.ndim == 1 or "quantization" not in config:
            arrays[tensor] = w
        else:
            parts = mx.quantize(w, GROUP, BITS)
            arrays.update(zip((name + ".weight", name + ".scales", name + ".biases"), parts))
            w = mx.dequantize(*(p if p.dtype == mx.uint32 else p.astype(mx.float32) for p in parts),
                              GROUP, BITS)
        weights[name] = np.array(w.astype(mx.float32)).astype(np.float64)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return weights


# ---- the draft model -----------------------------------------------------------------------------

def turn(x, position, rope):
    """x [heads, d]: of the pairs (i, i + d/2) the first part rotates."""
    half = x.shape[-1] // 2
    n = int(rope.get("partial_rotary_factor", 1) * half)
    freq = np.where(np.arange(half) < n, rope["rope_theta"] ** (-np.arange(half) / half), 0)
    cos, sin = np.cos(position * freq), np.sin(position * freq)
    lo, hi = x[:, :half], x[:, half:]
    return np.concatenate([lo * cos - hi * sin, hi * cos + lo * sin], -1)


def softmax(s):
    s = np.exp(s - s.max(-1, keepdims=True))
    return s / s.sum(-1, keepdims=True)


def layer(w, t, kind, x, position, kv):
    """kv: keys and values [kv heads, tokens, d]."""
    eps, k, v = t["rms_norm_eps"], *kv
    if kind == SLIDING:
        k, v = (a[:, -t["sliding_window"]:] for a in (k, v))
    n_head, d = t["num_attention_heads"], k.shape[-1]
    q = (w["self_attn.q_proj"] @ rms(x, w["input_layernorm"], eps)).reshape(n_head, d)
    q = turn(rms(q, w["self_attn.q_norm"], eps), position, t["rope_parameters"][kind])
    per = n_head // k.shape[0]
    att = [softmax(q[h] @ k[h // per].T) @ v[h // per] for h in range(n_head)]
    x = x + rms(w["self_attn.o_proj"] @ np.concatenate(att), w["post_attention_layernorm"], eps)
    n = rms(x, w["pre_feedforward_layernorm"], eps)
    g = w["mlp.gate_proj"] @ n
    g = 0.5 * g * (1 + np.tanh((2 / np.pi) ** 0.5 * (g + 0.044715 * g ** 3)))
    y = w["mlp.down_proj"] @ (g * (w["mlp.up_proj"] @ n))
    return (x + rms(y, w["post_feedforward_layernorm"], eps)) * w["layer_scalar"]


def draft(w, c, table, target, ids):
    """Guesses behind ids; target: of all but the last the last state, and keys and values by type
    of layer."""
    t, token, (state, kv) = c["text_config"], ids[-1], target
    drafts, probs, leads = [], [], []
    for _ in range(GUESSES):
        x = w["pre_projection"] @ np.concatenate([table[token], state])
        for i, kind in enumerate(t["layer_types"]):
            own = f"model.layers.{i}."
            part = {n[len(own):]: a for n, a in w.items() if n.startswith(own)}
            x = layer(part, t, kind, x, len(ids) - 1, kv[kind])
        x = rms(x, w["model.norm"], t["rms_norm_eps"])
        state = w["post_projection"] @ x
        logits, lead = w["model.embed_tokens"] @ x, np.inf
        if "order" in w:
            score, k = w["masked_embedding.centroids"] @ x, c["centroid_intermediate_top_k"]
            by = np.sort(score)[::-1]
            lead = by[k - 1] - by[k]
            seen = w["order"].reshape(len(score), -1)[np.argsort(-score)[:k]].ravel()
            hidden = np.full(len(logits), -np.inf)
            hidden[seen] = logits[seen]
            logits = hidden
        best = np.sort(logits)
        token = int(logits.argmax())
        drafts.append(token)
        probs.append(round(float(softmax(logits)[token]), 9))
        leads.append(round(float(min(lead, best[-1] - best[-2])), 5))
    return dict(n=len(ids), drafts=drafts, probs=probs, leads=leads)


# ---- the target ----------------------------------------------------------------------------------

def text_of(model):
    return getattr(model, "language_model", model).model


def table_of(model):
    text = text_of(model)
    rows = text.embed_tokens(mx.arange(text.config.vocab_size)) * text.embed_scale
    return np.array(rows).astype(np.float64)


def left_by(model, ids):
    """The normed state of the last of ids; keys and values of the last layer of each type that has
    its own."""
    text, kv = text_of(model), {}
    layers = text.layers

    class Watch:
        def __init__(self, of):
            self.of = of

        def __getattr__(self, name):
            return getattr(self.of, name)

        def __call__(self, *args, **kwargs):
            out = self.of(*args, **kwargs)
            if self.of.self_attn.has_kv:
                kv[self.of.layer_type] = [np.array(a[0]).astype(np.float64) for a in out[1]]
            return out

    text.layers = [Watch(of) for of in layers]
    state = np.array(text(mx.array(ids)[None])[0, -1]).astype(np.float64)
    text.layers = layers
    return state, kv


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "golden")
    a = ap.parse_args()
    for name, (target, config) in MODELS.items():
        model, vocab = load_target(a.out / "tiny" / target), TEXT["vocab_size"]
        table = table_of(model)
        weights = make(a.out / "draft" / name, config, table, what_follows(model, vocab, 8))
        ids = [int(t) for t in np.random.default_rng(7).integers(2, vocab, LENGTHS[-1])]
        cases = [draft(weights, config, table, left_by(model, ids[:n - 1]), ids[:n])
                 for n in LENGTHS]
        doc = dict(ids=ids, cases=cases)
        (a.out / "draft" / name / "golden.json").write_text(json.dumps(doc) + "\n")
        print(name, "least lead", min(min(c["leads"]) for c in cases))


if __name__ == "__main__":
    main()
