"""mlx_golden.py - small checkpoints of random weights, and what mlx-lm computes for them.

What gemma4_golden.py and qwen3_next_golden.py share. A golden has the logits of every row of a
prompt (p<i>.full) and of the greedy ids that follow (p<i>.decode), all parameters made float32.
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
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

PROMPTS, DECODE, VOCAB = (1, 7, 40), 12, 64


def seeded(name):
    """The random numbers of one parameter, whatever the order in which parameters are made."""
    return np.random.default_rng([20261130, zlib.crc32(name.encode())])


def make(module, config, value, folder, quantized=True):
    """A checkpoint with value(name, shape) for each parameter; quantized: 4 bits in groups of 32."""
    config = json.loads(json.dumps(config))
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    flat = [(n, mx.array(value(n, p.shape).astype(np.float32)).astype(mx.bfloat16))
            for n, p in tree_flatten(model.parameters())]
    model.update(tree_unflatten(flat))
    if quantized:
        model, config = quantize_model(model, config, 32, 4)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    save_config(dict(config), folder / "config.json")
    (folder / "model.safetensors.index.json").unlink()


def embed_f32(self, ids):
    return mx.dequantize(self["weight"][ids], scales=self["scales"][ids],
                         biases=self["biases"][ids], group_size=self.group_size, bits=self.bits,
                         dtype=mx.float32)


def golden(name, folder, out):
    model, _ = load_model(folder)
    model.update(tree_map(
        lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p,
        model.parameters()))
    nn.QuantizedEmbedding.__call__ = embed_f32
    arrays, prompts = {}, []
    for i, n in enumerate(PROMPTS):
        ids = [int(t) for t in np.random.default_rng(1000 + i).integers(2, VOCAB, n)]
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
    mx.save_safetensors(str(out / (name + ".safetensors")), arrays)
    doc = dict(checkpoint=name, mlx=mx.__version__, mlx_lm=mlx_lm.__version__, prompts=prompts)
    (out / (name + ".json")).write_text(json.dumps(doc) + "\n")


def arguments(doc):
    ap = argparse.ArgumentParser(description=doc.split("\n", maxsplit=1)[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "golden")
    return ap
