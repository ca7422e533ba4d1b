"""Fixtures of the command line's tests: the program, a private cache folder, tiny models.

QUERN_BIN is the program (default: build/quern). QUERN_SHARED has more checkpoints; a test that
wants one is skipped without it and says so.
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUERN = pathlib.Path(os.environ.get("QUERN_BIN", ROOT / "build" / "quern"))
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared"))
# Random weights, 4 layers, 512 tokens, affine 4 bits in groups of 64 (mlx 0.32.4).
TINY = ROOT / "tests" / "cli" / "tiny-llama"

# Written like SmolLM2's: ChatML over a few tokens of a byte-level vocabulary.
TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


@pytest.fixture
def env(tmp_path):
    """An environment of its own: no user settings, a private cache."""
    e = {k: v for k, v in os.environ.items() if not k.startswith("QUERN_")}
    e.update(QUERN_CACHE=str(tmp_path / "cache"), TERM="xterm", LC_ALL="C.UTF-8")
    return e


@pytest.fixture
def quern(env):
    """quern(*args, input=..., ok=True): runs the program; bytes become text."""
    def run(*args, input="", ok=None, **kw):
        r = subprocess.run([str(QUERN), *map(str, args)], input=input, capture_output=True,
                           text=True, encoding="utf-8", errors="replace", env=env, timeout=120, **kw)
        if ok is not None:
            assert (r.returncode == 0) == ok, (args, r.returncode, r.stdout[-2000:], r.stderr)
        return r
    return run


def byte_level_alphabet():
    """GPT-2's map of bytes to printable characters, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, n = {}, 0
    for b in range(256):
        table[b] = chr(b) if b in plain else chr(256 + n)
        n += b not in plain
    return [table[b] for b in range(256)]


def write_tokenizer(folder, eos):
    """A byte-level BPE without merges: ids 0..255 are bytes, then special tokens 256 and 257."""
    special = [{"id": 256, "content": "<|im_start|>"}, {"id": 257, "content": "<|im_end|>"}]
    added = [{**s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for s in special]
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "byte_fallback": False, "merges": [],
                  "vocab": {c: i for i, c in enumerate(byte_level_alphabet())}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "eos_token": "<|im_end|>", "chat_template": TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))


@pytest.fixture
def model(tmp_path):
    """A runnable folder: a golden's weights (vocabulary of 512) and a tokenizer made here."""
    folder = tmp_path / "tiny"
    shutil.copytree(TINY, folder)
    write_tokenizer(folder, eos=257)
    return folder
