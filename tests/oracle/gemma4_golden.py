#!/usr/bin/env python3
"""Writes the small gemma4 goldens of tests/golden: checkpoints and what mlx-lm computes for them.

gemma4-ple-q4: per-layer inputs, two of six layers without keys and values of their own, a
double-wide feed-forward part there. gemma4-experts-q4: experts beside a dense part, values that are
the keys, one global KV head, no cap on logits, model_type gemma4_text. Random weights, affine 4
bits of group 32; logits of every row of a prompt (p<i>.full) and of the greedy ids that follow
(p<i>.decode), all parameters made float32. Made with mlx 0.32.4 and mlx-lm 0.32.2:

    gemma4_golden.py [--out tests/golden]
"""

from mlx_golden import VOCAB, arguments, golden, make, seeded
from mlx_lm.models import gemma4, gemma4_text

SLIDING, FULL = "sliding_attention", "full_attention"
COMMON = dict(
    model_type="gemma4_text", vocab_size=VOCAB, hidden_size=64, intermediate_size=64,
    num_attention_heads=2, num_key_value_heads=2, head_dim=16, global_head_dim=32,
    rms_norm_eps=1e-6, max_position_embeddings=1024, sliding_window=12,
    vocab_size_per_layer_input=VOCAB, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
    rope_parameters={FULL: dict(rope_type="proportional", partial_rotary_factor=0.25,
                                rope_theta=1000000.0),
                     SLIDING: dict(rope_type="default", rope_theta=10000.0)},
)
PLE = dict(
    COMMON, num_hidden_layers=6, layer_types=[SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL],
    hidden_size_per_layer_input=32, num_kv_shared_layers=2, use_double_wide_mlp=True,
    num_key_value_heads=1, attention_k_eq_v=False, final_logit_softcapping=30.0,
    enable_moe_block=False,
)
EXPERTS = dict(
    COMMON, num_hidden_layers=3, layer_types=[SLIDING, FULL, SLIDING],
    hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False,
    attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=None,
    enable_moe_block=True, num_experts=3, top_k_experts=2, moe_intermediate_size=32, eos_token_id=1,
)
MODELS = {
    "gemma4-ple-q4": (gemma4, dict(model_type="gemma4", vocab_size=VOCAB, eos_token_id=1,
                                   text_config=PLE)),
    "gemma4-experts-q4": (gemma4_text, EXPERTS),
}


def value(name, shape):
    r = seeded(name)
    if name.endswith("layer_scalar"):
        return r.uniform(0.6, 1.2, shape)
    if name.endswith("per_expert_scale"):
        return r.uniform(0.5, 1.5, shape)
    if name.endswith(("q_norm.weight", "k_norm.weight")):  # softer attention
        return 0.5 + 0.1 * r.standard_normal(shape)
    if name.endswith("model.norm.weight"):  # logits of some size
        return 4 + 0.5 * r.standard_normal(shape)
    if "norm" in name or name.endswith("router.scale"):
        return 1 + 0.15 * r.standard_normal(shape)
    gain = 8 if "router.proj" in name else 1
    return gain / shape[-1] ** 0.5 * r.standard_normal(shape)


def main():
    a = arguments(__doc__).parse_args()
    for name, (module, config) in MODELS.items():
        folder = a.out / "tiny" / name
        make(module, config, value, folder)
        golden(name, folder, a.out / "float32")


if __name__ == "__main__":
    main()
