#!/usr/bin/env python3
"""Writes tests/golden/tiny/qwen3_next-q4 and its golden in tests/golden/float32.

A random qwen3_next checkpoint of some 120 KB (affine 4 bits, group 32) and what mlx-lm computes for
it once every parameter is float32: logits of every row of a prompt (p<i>.full) and of the greedy
ids that follow (p<i>.decode). Made with mlx 0.32.4 and mlx-lm 0.32.2:

    qwen3_next_golden.py [--out tests/golden] [--bf16]

--bf16 leaves the unquantized copy instead (no golden), for a look at other roundings.
"""

import numpy as np
from mlx_golden import VOCAB, arguments, golden, make, seeded
from mlx_lm.models import qwen3_next

NAME = "qwen3_next-q4"
CONFIG = dict(
    model_type="qwen3_next", vocab_size=VOCAB, hidden_size=64, intermediate_size=64,
    num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    rms_norm_eps=1e-6, max_position_embeddings=1024, rope_theta=10000.0,
    partial_rotary_factor=0.5, tie_word_embeddings=False, attention_bias=False,
    full_attention_interval=2, linear_num_value_heads=4, linear_num_key_heads=2,
    linear_key_head_dim=16, linear_value_head_dim=32, linear_conv_kernel_dim=4,
    num_experts=3, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[],
    moe_intermediate_size=32, shared_expert_intermediate_size=32, norm_topk_prob=True,
    eos_token_id=1,
)


def value(name, shape):
    r = seeded(name)
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


def main():
    ap = arguments(__doc__)
    ap.add_argument("--bf16", action="store_true")
    a = ap.parse_args()
    folder = a.out / "tiny" / NAME.replace("q4", "bf16" if a.bf16 else "q4")
    # quantized: with the gates of 8 bits and group 64 that mlx-lm keeps for itself
    make(qwen3_next, CONFIG, value, folder, quantized=not a.bf16)
    if not a.bf16:
        golden(NAME, folder, a.out / "float32")


if __name__ == "__main__":
    main()
