#!/usr/bin/env python3
"""Writes tests/unit/model/rope_vectors.json: rotary settings and what mlx-lm makes of them.

For each case: the arguments, the angle every pair turns per position
(read off the rotation of unit vectors at position 1, float32), and the factor on the
rotated part. Made with mlx-lm; versions are in the file. usage: rope_vectors.py OUT
"""

import json
import sys

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models.rope_utils import initialize_rope

CASES = [
    dict(dims=64, base=10000.0),
    dict(dims=128, base=500000.0),
    dict(dims=64, base=10000.0, scaling=dict(type="linear", factor=4.0)),
    dict(dims=64, base=10000.0, scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
         high_freq_factor=4.0, original_max_position_embeddings=64)),
    dict(dims=128, base=500000.0, scaling=dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0,
         high_freq_factor=4.0, original_max_position_embeddings=8192)),
    dict(dims=64, base=10000.0, scaling=dict(type="yarn", factor=4.0,
         original_max_position_embeddings=64)),
    dict(dims=128, base=1000000.0, scaling=dict(type="yarn", factor=4.0,
         original_max_position_embeddings=32768)),
    dict(dims=64, base=10000.0, scaling=dict(type="deepseek_yarn", factor=40.0, beta_fast=32,
         beta_slow=1, mscale=1.0, mscale_all_dim=0.5, original_max_position_embeddings=4096)),
    dict(dims=32, base=10000.0, max_pos=4096, scaling=dict(type="longrope",
         long_factor=[1 + 0.25 * i for i in range(16)], short_factor=[1.0] * 16,
         original_max_position_embeddings=64)),
    dict(dims=32, base=10000.0, max_pos=64, scaling=dict(type="longrope",
         long_factor=[1 + 0.5 * i for i in range(16)], short_factor=[1.0] * 16,
         original_max_position_embeddings=64)),
    dict(dims=64, base=1000000.0, scaling=dict(type="proportional", partial_rotary_factor=0.25)),
]


def measure(case):
    dims, half = case["dims"], case["dims"] // 2
    rope = initialize_rope(dims, case["base"], False, case.get("scaling"),
                           case.get("max_pos", 4096))
    x = np.zeros((1, 1, 1, dims), np.float32)
    x[..., :half] = 1  # pair i is (1, 0): rotates to (cos, sin) times the factor
    y = np.array(rope(mx.array(x), offset=1)).reshape(dims)
    angle = np.arctan2(y[half:], y[:half]).astype(float)
    factor = float(np.hypot(y[:half].astype(float), y[half:]).mean())
    return [float(f"{a:.7g}") for a in angle], round(factor, 6)


def main():
    out = dict(mlx=mx.__version__, mlx_lm=mlx_lm.__version__, cases=[])
    for case in CASES:
        inv_freq, factor = measure(case)
        out["cases"].append(dict(case, inv_freq=inv_freq, mscale=factor))
    with open(sys.argv[1], "w") as f:
        f.write(json.dumps(out).replace('}, {"dims"', '},\n {"dims"') + "\n")


if __name__ == "__main__":
    main()
