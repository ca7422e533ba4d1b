#!/usr/bin/env python3
"""Writes tests/unit/tok/data/golden.jsonl: ids and decoded text of the PyPI package `tokenizers` for the two small
tokenizers and for variants of them, each with some parts of tokenizer.json replaced ("set").

    python3 tests/oracle/tok_golden.py        (needs: pip install tokenizers==0.23.3)

Line 1: {"tokenizers": version, "texts": [...]}; then one line per variant:
{"name", "base", "set", "model", "ids": [per text]}, for some also "bare": [special text not parsed, nothing added] and
"text": [decoded, specials kept]
"""
import json
import pathlib

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/unit/tok/data"

TEXTS = [
    "", " ", "Hello, world!", " hello\nworld", "  two  spaces   three ", "tabs\tand\r\nlines\n\n\n  end\n", "don't I'LL we'Ve 'S it'ſ",
    "12345 1 22 333 4444 ٣٤ ½² Ⅷ", "naïve e\u0301 a\u0308\u0323 \u0344 ñ Å \ufb01 ①", "漢字かな交じり文。カタカナ、한국어 각", "привет, МИР! ß İı ΑΣ",
    "🙂 👍🏽 👩\u200d👩\u200d👧 🇩🇪 🏳️\u200d🌈", "a_b-c.d/e:f{g}[h]<i>=#\"$%&*+@^`|~", "<|im_start|>user\nhi<|im_end|>", "<s>a</s> <unk> <s>",
    "<tool_call>{}</tool_call><tool_call>", "a word, sword words word", "x  LEFT  y RIGHT  z LEFTRIGHT", "🜲ꙮ\U000105c0", "\u00a0\u2003x\u3000\u200b\u0085\u2028y",
    "\u0000\u0001\u007f", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "the function returns the number of bytes",
    "▁a▁▁b ▁", "<0x41><0xE2>", "size_t tok_encode(const struct tok *t);",
    "<|user|>\nHow are you?<|end|>\n<|assistant|>\n", " <|user|> \t hi <|end|>  <|assistant|>x</s>\u00a0\u3000y <s>  z<|endoftext|> w",
]


def split(regex=None, string=None, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex} if regex else {"String": string}, "behavior": behavior,
            "invert": invert}


def seq(*v):
    return {"type": "Sequence", "pretokenizers": list(v)}


BL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BLX = dict(BL, add_prefix_space=True, use_regex=True)
O200 = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
            "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")


def meta(scheme, sp=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": sp}


def norm(*v):
    return {"type": "Sequence", "normalizers": list(v)}


def phi3():
    """Phi-3's special tokens: most of them swallow the white space behind them (rstrip), <s> does not."""
    one = lambda i, s, r: {"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": r, "normalized": False,
                           "special": True}
    n = len(json.loads((DATA / "spm.json").read_text())["model"]["vocab"])
    return [one(0, "<unk>", False), one(1, "<s>", False), one(2, "</s>", True), one(n, "<|endoftext|>", False)] + [
        one(n + 1 + i, s, True) for i, s in enumerate(("<|assistant|>", "<|system|>", "<|end|>", "<|user|>"))]


def variants():
    yield "bytes", "bytes", {}, {}
    yield "bytes ignore_merges", "bytes", {}, {"ignore_merges": True}
    yield "gpt2", "bytes", {"pre_tokenizer": BLX, "normalizer": None}, {}
    yield "smollm", "bytes", {"pre_tokenizer": seq({"type": "Digits", "individual_digits": True}, dict(BLX, add_prefix_space=False))}, {}
    yield "digits together", "bytes", {"pre_tokenizer": seq({"type": "Digits", "individual_digits": False}, BL)}, {}
    yield "deepseek", "bytes", {"pre_tokenizer": seq(*[split(r) for r in DEEPSEEK], BL)}, {}
    yield "o200k", "bytes", {"pre_tokenizer": seq(split(O200), BL)}, {}
    yield "qwen3.5", "bytes", {"pre_tokenizer": seq(split(QWEN35), BL)}, {}
    for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for inv in (False, True):
            yield f"split {b} {inv}", "bytes", {"pre_tokenizer": seq(split(r"[\s,.']|\d+", behavior=b, invert=inv), BL)}, {}
        yield f"punctuation {b}", "bytes", {"pre_tokenizer": seq({"type": "Punctuation", "behavior": b}, BL)}, {}
    yield "whitespace", "bytes", {"pre_tokenizer": seq({"type": "Whitespace"}, BL)}, {}
    yield "whitespace split", "bytes", {"pre_tokenizer": seq({"type": "WhitespaceSplit"}, BL)}, {}
    yield "delimiter", "bytes", {"pre_tokenizer": seq({"type": "CharDelimiterSplit", "delimiter": "e"}, BL)}, {}
    yield "byte level before split", "bytes", {"pre_tokenizer": seq(BLX, split(string="Ġ"))}, {}
    yield "byte normalizer", "bytes", {"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": split(r"Ġ?\w+")}, {}
    yield "no pre-tokenizer", "bytes", {"pre_tokenizer": None}, {}
    yield "regex: ruby syntax", "bytes", {"pre_tokenizer": seq(split(r"^\h+|\bw\w*\b|(?m:o.w)|[[:upper:]]+$"), BL)}, {}
    for n in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield f"normalizer {n}", "bytes", {"normalizer": {"type": n}}, {}
    yield "normalizer chain", "bytes", {"normalizer": norm(
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKC"}, {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "Prepend", "prepend": " "})}, {}
    yield "template", "bytes", {"post_processor": {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                                                  {"SpecialToken": {"id": "B", "type_id": 0}}], "pair": [],
         "special_tokens": {"A": {"id": "A", "ids": [1, 0], "tokens": ["x", "y"]}, "B": {"id": "B", "ids": [2], "tokens": ["z"]}}}]}}, {}
    yield "roberta", "bytes", {"post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0],
                                                  "trim_offsets": True, "add_prefix_space": True}}, {}
    yield "no decoder", "bytes", {"decoder": None}, {}
    yield "spm", "spm", {}, {}
    yield "spm no fallback", "spm", {}, {"byte_fallback": False}
    yield "spm unk apart", "spm", {}, {"byte_fallback": False, "fuse_unk": False}
    yield "spm no unk", "spm", {}, {"byte_fallback": False, "unk_token": None}
    yield "gemma", "spm", {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                           "pre_tokenizer": split(string=" ", behavior="MergedWithPrevious"),
                           "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                                        {"type": "ByteFallback"}, {"type": "Fuse"}]}}, {}
    yield "phi3", "spm", {"added_tokens": phi3(), "post_processor": None}, {}
    for scheme in ("always", "first", "never"):
        for sp in (True, False):
            yield f"metaspace {scheme} {sp}", "spm", {"normalizer": None, "pre_tokenizer": meta(scheme, sp),
                                                      "decoder": meta(scheme, sp)}, {}
    yield "strip both ends", "spm", {"decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}, {"type": "Strip", "content": "e", "start": 1, "stop": 0},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 1}]}}, {}


def build(base, parts, model):
    j = json.loads((DATA / f"{base}.json").read_text())
    j.update(parts)
    j["model"].update(model)
    return j


def main():
    with open(DATA / "golden.jsonl", "w") as out:
        out.write(json.dumps({"tokenizers": tokenizers.__version__, "texts": TEXTS}) + "\n")
        for name, base, parts, model in variants():
            tok = tokenizers.Tokenizer.from_str(json.dumps(build(base, parts, model)))
            ids = [tok.encode(t).ids for t in TEXTS]
            tok.encode_special_tokens = True
            bare = [tok.encode(t, add_special_tokens=False).ids for t in TEXTS]
            # invalid byte runs are repaired byte run by byte run there, character by character here: none are decoded
            text = [None if not i or "strip" in name and not t.strip(" ▁e") else tok.decode(i, skip_special_tokens=False)
                    for t, i in zip(TEXTS, ids)]
            line = {"name": name, "base": base, "set": parts, "model": model, "ids": ids}
            if name == base:
                line["bare"] = bare
            if name == base or "decoder" in parts:
                line["text"] = text
            out.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
