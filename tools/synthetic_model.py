#!/usr/bin/env python3
"""A checkpoint of random weights in the shape of a family, for measuring speed.

    tools/synthetic_model.py BASE OUT [--set KEY=VALUE]... [--bits 4] [--group 64]

BASE is a folder whose config.json names the family; --set changes entries of it (text_config's
where there is one). Names and shapes of the tensors come from mlx-lm's model of that family, so
the result is what a converted model of that size looks like, but for what it says. Nothing of the
model is computed: the arrays are lazy and only their shapes are read. Needs mlx-lm and numpy.
"""

import argparse
import json
import math
import pathlib
import sys

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("base", type=pathlib.Path, help="folder with the family's config.json")
    p.add_argument("out", type=pathlib.Path, help="folder to make")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                   help="a value of config.json, as JSON")
    p.add_argument("--bits", type=int, default=4, choices=(2, 3, 4, 5, 6, 8))
    p.add_argument("--group", type=int, default=64, choices=(32, 64, 128))
    return p.parse_args(argv)


def make_config(args):
    config = json.loads((args.base / "config.json").read_text())
    for key in ("quantization", "quantization_config", "vision_config", "audio_config"):
        config.pop(key, None)
    text = config.get("text_config", config)
    for item in args.set:
        key, _, value = item.partition("=")
        text[key] = json.loads(value)
        if key in config:
            config[key] = text[key]
    return config


def quantize(model, bits, group):
    """Quantizes lazily, as mlx_lm.convert does; returns the config entry."""
    said = {"group_size": group, "bits": bits, "mode": "affine"}
    rule = getattr(model, "quant_predicate", None)

    def choose(path, module):
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group:
            return False
        choice = rule(path, module) if callable(rule) else True
        if isinstance(choice, dict) or choice is False:
            said[path] = choice
        return choice

    nn.quantize(model, group, bits, class_predicate=choose)
    return said


def widths(said, name):
    """Bits of the module that a scales or biases tensor belongs to."""
    entry = said.get(name.rpartition(".")[0])
    return entry["bits"] if isinstance(entry, dict) else said["bits"]


def fill(rng, name, array, said):
    """Random content of the shape and kind of one tensor; activations stay of moderate size."""
    shape = tuple(array.shape)
    if array.dtype == mx.uint32:
        return rng.integers(0, 1 << 32, size=shape, dtype=np.uint32)
    if name.endswith((".scales", ".biases")):
        bits = widths(said, name)
        step = 2 / ((1 << bits) * math.sqrt(said["group_size"] * shape[-1]))
        if name.endswith(".biases"):
            step *= -((1 << bits) - 1) / 2
        return np.full(shape, step, np.float16)
    if len(shape) < 2:
        return np.ones(shape, np.float16)
    return (rng.standard_normal(shape, np.float32) / math.sqrt(shape[-1])).astype(np.float16)


def save(path, tensors, fill_one):
    """One tensor at a time: a header of names, types and offsets, then the bytes."""
    kinds = {mx.uint32: ("U32", 4)}
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, array in tensors:
        kind, size = kinds.get(array.dtype, ("F16", 2))
        end = at + math.prod(array.shape) * size
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, array in tensors:
            f.write(fill_one(name, array).tobytes())
    return at


def main(argv):
    args = parse(argv)
    config = make_config(args)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    said = quantize(model, args.bits, args.group)
    tensors = sorted(tree_flatten(model.parameters()))
    rng = np.random.default_rng(1)
    args.out.mkdir(parents=True)
    config["quantization"] = config["quantization_config"] = said
    (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    size = save(args.out / "model.safetensors", tensors,
                lambda name, array: fill(rng, name, array, said))
    print(f"{args.out}: {len(tensors)} tensors, {size / 1e6:.0f} MB")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
