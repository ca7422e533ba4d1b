#!/usr/bin/env python3
"""Writes tests/golden/real/heldout-windows.json: what mlx-lm, with every parameter made float32, says
of three windows of a held-out text, for the small trained models that share its tokenizer.

    heldout_windows.py MODELS TEXT > tests/golden/real/heldout-windows.json

MODELS holds the model folders, TEXT is the held-out text (`xz -dc MODELS/heldout.txt.xz`). The
text's ids, special tokens included, are cut into windows of 1024 that follow each other; each window
is read on its own, and the loss is the mean over its 1023 predictions. Made with mlx 0.32.4 and
mlx-lm 0.32.2.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_map
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

NAMES = ("tiny-gemma4-ple", "tiny-qwen3_5-mtp", "tiny-glm-dsa-mtp")
WINDOW, AT = 1024, (0, 250, 500)


def nats(model, ids):
    """Sum of -log p over the window's predictions."""
    logits = model(mx.array(ids)[None])[0, :-1].astype(mx.float32)
    picked = mx.take_along_axis(logits, mx.array(ids[1:])[:, None], axis=-1)[:, 0]
    return float((mx.logsumexp(logits, axis=-1) - picked).sum())


def main():
    models, text = Path(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8")
    tok = Tokenizer.from_file(str(models / NAMES[0] / "tokenizer.json"))
    all_ids = tok.encode(text, add_special_tokens=False).ids
    windows = [all_ids[i * WINDOW:(i + 1) * WINDOW] for i in AT]
    losses = {}
    for name in NAMES:
        model, _ = load_model(models / name)
        model.update(tree_map(
            lambda p: p.astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p,
            model.parameters()))
        losses[name] = [round(nats(model, w) / (WINDOW - 1), 6) for w in windows]
        print(name, losses[name], file=sys.stderr)
    doc = dict(mlx=mx.__version__, mlx_lm=mlx_lm.__version__, text_tokens=len(all_ids),
               window=WINDOW, at=list(AT), nats_per_token=losses, ids=windows)
    print(json.dumps(doc, separators=(",", ":")))


if __name__ == "__main__":
    main()
