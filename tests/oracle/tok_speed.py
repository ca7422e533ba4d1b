#!/usr/bin/env python3
"""Encode speed against the PyPI package `tokenizers`, one thread each, alternating in one run; CPU time, medians.

    python3 tests/oracle/tok_speed.py build/tests/unit/tok/tok_bench TEXT DIR...      prints a Markdown table

Each DIR holds a tokenizer.json. CPU time of the encoding thread is taken, so that a busy machine does not count.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402

ROUNDS = 5


def main():
    bench, text_path, dirs = sys.argv[1], sys.argv[2], sys.argv[3:]
    text = pathlib.Path(text_path).read_text()
    print(f"tokenizers {tokenizers.__version__}, {len(text.encode())} bytes of text, median of {ROUNDS} rounds\n")
    print("| tokenizer | ids | theirs, MB/s | ours, MB/s | ours, first pass | ratio | open, ms |")
    print("|---|---|---|---|---|---|---|")
    for d in dirs:
        tok = tokenizers.Tokenizer.from_file(os.path.join(d, "tokenizer.json"))
        theirs, ours, cold, opened = [], [], [], []
        with tempfile.TemporaryDirectory() as cache:
            for _ in range(ROUNDS):
                at = time.process_time()
                n = len(tok.encode(text, add_special_tokens=False).ids)
                theirs.append(time.process_time() - at)
                r = json.loads(subprocess.check_output([bench, d, text_path, cache, "3"]))
                ours.append(r["median_ms"] / 1e3)
                cold.append(r["cold_ms"] / 1e3)
                opened.append(r["open_ms"])
        assert n == r["ids"], (n, r)
        mb = len(text.encode()) / 1e6
        a, b, c = (statistics.median(v) for v in (theirs, ours, cold))
        print(f"| {pathlib.Path(d).name} | {n} | {mb / a:.2f} | {mb / b:.1f} | {mb / c:.1f} | {a / b:.1f} | "
              f"{statistics.median(opened):.1f} |")


if __name__ == "__main__":
    main()
