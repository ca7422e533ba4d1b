#!/usr/bin/env python3
"""Trains the two small tokenizers that the unit tests use, on this repository's own text.

    python3 tests/oracle/tok_train.py        (needs: pip install tokenizers)

Writes tests/unit/tok/data/{bytes,spm}.json. The goldens (tok_golden.py) must be made anew afterwards.
"""
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/unit/tok/data"
EXTRA = ["e\u0301 na\u00efve \u00fcber 漢字かな交じり文 привет мир 한국어 🙂👍🏽 ½²³ ñandú " * 8]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus():
    for pat in ("include/*.h", "src/base/*.h", "src/base/*.c", "src/tok/tok*.h"):
        for p in sorted(ROOT.glob(pat)):
            yield p.read_text()
    yield from EXTRA


def byte_level():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))
    tok.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("word", single_word=True),
                    AddedToken("LEFT", lstrip=True), AddedToken("RIGHT", rstrip=True, normalized=False)])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.save(str(DATA / "bytes.json"), pretty=False)


def spm():
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=1100, special_tokens=names, limit_alphabet=120,
                                                         show_progress=False))
    # The byte tokens belong to the vocabulary only.
    import json
    j = json.loads(tok.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if a["id"] < 3]
    j["pre_tokenizer"] = None
    tok = Tokenizer.from_str(json.dumps(j))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tok.save(str(DATA / "spm.json"), pretty=False)


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    byte_level()
    spm()
