#!/usr/bin/env python3
"""Cuts a tiny checkpoint and its float32 golden down to what the repository keeps.

usage: cut_golden.py GOLDENS OUT NAME... [--prompt-tokens 40] [--decode 8]

GOLDENS holds tiny/NAME/ (the checkpoint) and float32/NAME.{json,safetensors} (made with mlx-lm,
see docs/testing.md). OUT gets the same layout: the checkpoint's config and weights as they are
(the index file is dropped: nothing reads it), the prompts of at most --prompt-tokens ids with
their full logits, and --decode rows of greedy decoding.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

DTYPES = {"F32": np.float32}


def read_arrays(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + n])
    out = {}
    for name, e in head.items():
        if name == "__metadata__":
            continue
        a, b = e["data_offsets"]
        out[name] = np.frombuffer(raw[8 + n + a:8 + n + b], DTYPES[e["dtype"]]).reshape(e["shape"])
    return out


def write_arrays(path, arrays):
    head, at = {}, 0
    for name in sorted(arrays):
        n = arrays[name].nbytes
        head[name] = dict(dtype="F32", shape=list(arrays[name].shape), data_offsets=[at, at + n])
        at += n
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(arrays):
            f.write(np.ascontiguousarray(arrays[name]).tobytes())


def cut(goldens, out, name, max_prompt, n_decode):
    meta = json.loads((goldens / "float32" / f"{name}.json").read_text())
    arrays = read_arrays(goldens / "float32" / f"{name}.safetensors")
    prompts, kept = [], {}
    for i, p in enumerate(meta["prompts"]):
        if len(p["prompt"]) > max_prompt:
            continue
        j = len(prompts)
        prompts.append(dict(prompt=p["prompt"], greedy=p["greedy"][:n_decode + 1],
                            margins=p["margins"][:n_decode + 1]))
        kept[f"p{j}.full"] = arrays[f"p{i}.full"]
        if f"p{i}.decode" in arrays:
            kept[f"p{j}.decode"] = arrays[f"p{i}.decode"][:n_decode]
    meta["prompts"] = prompts
    for folder in ("tiny", "float32"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    (out / "float32" / f"{name}.json").write_text(json.dumps(meta) + "\n")
    write_arrays(out / "float32" / f"{name}.safetensors", kept)
    (out / "tiny" / name).mkdir(exist_ok=True)
    for f in ("config.json", "model.safetensors"):
        shutil.copyfile(goldens / "tiny" / name / f, out / "tiny" / name / f)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("goldens", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("names", nargs="+")
    ap.add_argument("--prompt-tokens", type=int, default=40)
    ap.add_argument("--decode", type=int, default=8)
    a = ap.parse_args()
    for name in a.names:
        cut(a.goldens, a.out, name, a.prompt_tokens, a.decode)


if __name__ == "__main__":
    main()
