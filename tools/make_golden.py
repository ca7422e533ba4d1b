#!/usr/bin/env python3
"""make_golden.py - float32 results of mlx-lm for a model, for `quern parity` (docs/parity.md).

    pip install 'mlx[cpu]' mlx-lm numpy safetensors
    tools/make_golden.py MODEL OUT.json --prompt "The capital of France is" --prompt-file notes.txt

MODEL is an MLX checkpoint folder. Every floating parameter is raised to float32 (exact; quantized
codes stay as they are), so the results are those of the weights, not of a rounding. Writes OUT.json
and OUT.safetensors: for each prompt its ids, the logits of every position, and the logits of
--greedy further tokens.
"""
import argparse
import json
import pathlib
import sys


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--prompt", action="append", default=[], help="a text; may be repeated")
    p.add_argument("--prompt-file", action="append", default=[], type=pathlib.Path)
    p.add_argument("--ids", action="append", default=[], help="token ids, comma separated")
    p.add_argument("--greedy", type=int, default=32, help="tokens decoded after each prompt (32)")
    p.add_argument("--rows", type=int, default=256, help="most positions whose logits are kept (256)")
    a = p.parse_args()
    if not (a.prompt or a.prompt_file or a.ids):
        p.error("give at least one --prompt, --prompt-file or --ids")
    return a


def load(folder):
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    model.update(tree_map(
        lambda x: x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x,
        model.parameters()))
    return model


def encode(folder, a):
    """The prompts as lists of ids; the tokenizer is needed for texts only."""
    prompts = [[int(t) for t in ids.split(",")] for ids in a.ids]
    texts = a.prompt + [f.read_text(encoding="utf-8") for f in a.prompt_file]
    if texts:
        from mlx_lm.utils import load_tokenizer

        tok = load_tokenizer(folder)
        prompts += [list(tok.encode(t)) for t in texts]
    return prompts


def run(model, ids, n_greedy):
    """Logits of every position, greedy ids, their margins and the logits behind each."""
    import mlx.core as mx
    import numpy as np
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(model)
    full = np.array(model(mx.array([ids]), cache=cache)[0].astype(mx.float32))
    row, greedy, margins, decode = full[-1], [], [], []
    for _ in range(n_greedy):
        second, best = np.sort(row)[-2:]
        greedy.append(int(np.argmax(row)))
        margins.append(float(best - second))
        row = np.array(model(mx.array([[greedy[-1]]]), cache=cache)[0, -1].astype(mx.float32))
        decode.append(row)
    return full, greedy, margins, decode


def main():
    a = arguments()
    import numpy as np
    from safetensors.numpy import save_file

    model, prompts, arrays = load(a.model), [], {}
    for i, ids in enumerate(encode(a.model, a)):
        if len(ids) > a.rows:
            sys.exit(f"prompt {i} has {len(ids)} tokens; --rows {a.rows} keeps as many at most")
        full, greedy, margins, decode = run(model, ids, a.greedy)
        arrays[f"p{i}.full"] = np.ascontiguousarray(full, dtype=np.float32)
        if decode:
            arrays[f"p{i}.decode"] = np.stack(decode).astype(np.float32)
        prompts.append({"prompt": ids, "greedy": greedy, "margins": margins})
        print(f"prompt {i}: {len(ids)} tokens, smallest margin {min(margins, default=0):.4f}",
              file=sys.stderr)
    a.out.write_text(json.dumps({"maths": "mlx-lm, float32", "prompts": prompts}) + "\n", encoding="utf-8")
    save_file(arrays, str(a.out.with_suffix(".safetensors")))


if __name__ == "__main__":
    main()
