#!/usr/bin/env python3
"""Writes tests/golden/tiny/qwen3_next-q4 and its golden in tests/golden/float32.

A random qwen3_next checkpoint of some 120 KB (affine 4 bits, group 32) and what mlx-lm computes for
it once every parameter is float32: logits of every row of a prompt (p<i>.full) and of the greedy
ids that follow (p<i>.decode). Made with mlx 0.32.4 and mlx-lm 0.32.2:

    qwen3_next_golden.py [--out tests/golden] [--bf16]

--bf16 leaves the unquantized copy instead (no golden), for a look at other roundings.
"""

import argparse
import json
import zlib
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models import qwen3_next
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

NAME = "qwen3_next-q4"
CONFIG = dict(
    model_type="qwen3_next", vocab_size=64, hidden_size=64, intermediate_size=64,
    num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    rms_norm_eps=1e-6, max_position_embeddings=1024, rope_theta=10000.0,
    partial_rotary_factor=0.5, tie_word_embeddings=False, attention_bias=False,
    full_attention_interval=2, linear_num_value_heads=4, linear_num_key_heads=2,
    linear_key_head_dim=16, linear_value_head_dim=32, linear_conv_kernel_dim=4,
    num_experts=3, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[],
    moe_intermediate_size=32, shared_expert_intermediate_size=32, norm_topk_prob=True,
    eos_token_id=1,
)
PROMPTS, DECODE = (1, 7, 40), 12


def value(name, shape):
    r = np.random.default_rng([20261130, zlib.crc32(name.encode())])
    if name.endswith("A_log"):
        return np.log(r.uniform(1, 16, shape))
    if name.endswith("dt_bias"):
        return r.uniform(-4, 0, shape)
    if name.endswith("norm.weight"):
        return 1 + 0.15 * r.standard_normal(shape)
    gain = 4 if "embed_tokens" in name or "lm_head" in name else 2 if "gate.weight" in name else 1
    if "conv1d" in name:
        return 0.5 * r.standard_normal(shape)
    return gain / shape[-1] ** 0.5 * r.standard_normal(shape)


def make(folder, bf16):
    model = qwen3_next.Model(qwen3_next.ModelArgs.from_dict(CONFIG))
    flat = [(n, mx.array(value(n, p.shape).astype(np.float32)).astype(mx.bfloat16))
            for n, p in tree_flatten(model.parameters())]
    model.update(tree_unflatten(flat))
    config = dict(CONFIG)
    if not bf16:  # the gates of 8 bits and group 64 that mlx-lm keeps for itself
        model, config = quantize_model(model, config, 32, 4)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    save_config(dict(config), folder / "config.json")
    (folder / "model.safetensors.index.json").unlink()


def embed_f32(self, ids):
    return mx.dequantize(self["weight"][ids], scales=self["scales"][ids],
                         biases=self["biases"][ids], group_size=self.group_size, bits=self.bits,
                         dtype=mx.float32)


def golden(folder, out):
    model, _ = load_model(folder)
    model.update(tree_map(
        lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p,
        model.parameters()))
    nn.QuantizedEmbedding.__call__ = embed_f32
    arrays, prompts = {}, []
    for i, n in enumerate(PROMPTS):
        ids = [int(t) for t in np.random.default_rng(1000 + i).integers(2, CONFIG["vocab_size"], n)]
        cache = make_prompt_cache(model)
        full = np.array(model(mx.array(ids)[None], cache=cache)[0])
        row, greedy, margins, rows = full[-1], [], [], []
        for _ in range(DECODE):
            best = np.sort(row)[::-1]
            greedy.append(int(row.argmax()))
            margins.append(float(best[0] - best[1]))
            row = np.array(model(mx.array([[greedy[-1]]]), cache=cache)[0, -1])
            rows.append(row)
        arrays[f"p{i}.full"], arrays[f"p{i}.decode"] = mx.array(full), mx.array(np.stack(rows))
        prompts.append(dict(prompt=ids, greedy=greedy, margins=margins))
    out.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(out / (NAME + ".safetensors")), arrays)
    doc = dict(checkpoint=NAME, mlx=mx.__version__, mlx_lm=mlx_lm.__version__, prompts=prompts)
    (out / (NAME + ".json")).write_text(json.dumps(doc) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "golden")
    ap.add_argument("--bf16", action="store_true")
    a = ap.parse_args()
    folder = a.out / "tiny" / NAME.replace("q4", "bf16" if a.bf16 else "q4")
    make(folder, a.bf16)
    if not a.bf16:
        golden(folder, a.out / "float32")


if __name__ == "__main__":
    main()
