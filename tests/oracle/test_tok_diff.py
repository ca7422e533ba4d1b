"""Ids and text of our tokenizer against the PyPI package `tokenizers`, on real tokenizer.json files.

    QUERN_SHARED=../shared QUERN_TOK_DUMP=build/tests/unit/tok/tok_dump pytest tests/oracle/test_tok_diff.py

QUERN_TOK_SIZE: full, usual (not every ideograph and the like) or small (a sixteenth of that).
Skips (and says so) without the package, the program or the files. Extra folders with a tokenizer.json:
QUERN_TOK_DIRS, separated by ':'.
"""
import glob
import lzma
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import threading

import pytest

tokenizers = pytest.importorskip("tokenizers")

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared"))
DUMP = os.environ.get("QUERN_TOK_DUMP", str(ROOT / "build/tests/unit/tok/tok_dump"))
ADD, PARSE = 1, 2


def folders():
    out = {}
    for p in sorted(glob.glob(str(SHARED / "data/tokenizers/*/tokenizer.json.xz"))):
        out[pathlib.Path(p).parent.name] = p
    for p in sorted(glob.glob(str(SHARED / "models/*/tokenizer.json"))):
        out[pathlib.Path(p).parent.name] = p
    for d in filter(None, os.environ.get("QUERN_TOK_DIRS", "").split(":")):
        out[pathlib.Path(d).name] = os.path.join(d, "tokenizer.json")
    for p in sorted(glob.glob(str(ROOT / "tests/unit/tok/data/*.json"))):
        out[pathlib.Path(p).stem] = p
    return out


class Pair:
    """The oracle and our program over the same tokenizer.json."""

    def __init__(self, path, work):
        self.dir = tempfile.mkdtemp(dir=work)
        dst = os.path.join(self.dir, "tokenizer.json")
        if path.endswith(".xz"):
            with lzma.open(path) as f, open(dst, "wb") as g:
                shutil.copyfileobj(f, g)
        else:
            shutil.copy(path, dst)
        self.oracle = tokenizers.Tokenizer.from_file(dst)
        self.oracle.no_truncation()
        self.oracle.no_padding()

    def ours(self, records):
        """records: (op, flags, bytes) -> list of bytes."""
        p = subprocess.Popen([DUMP, self.dir, os.path.join(self.dir, "cache")], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)

        def send():
            for op, flags, data in records:
                p.stdin.write(struct.pack("<cII", op.encode(), flags, len(data)) + data)
            p.stdin.close()

        threading.Thread(target=send, daemon=True).start()
        out = []
        for _ in records:
            n = struct.unpack("<I", p.stdout.read(4))[0]
            assert n != 0xFFFFFFFF
            out.append(p.stdout.read(n))
        assert p.wait() == 0
        return out

    def encode(self, texts, flags=PARSE):
        raw = self.ours([("E", flags, t if isinstance(t, bytes) else t.encode()) for t in texts])
        return [list(struct.unpack(f"<{len(r) // 4}i", r)) for r in raw]

    def decode(self, lists, keep, op="D"):
        return [r.decode() for r in self.ours([(op, int(keep), struct.pack(f"<{len(i)}i", *i)) for i in lists])]

    def check(self, texts, flags=PARSE):
        self.oracle.encode_special_tokens = not flags & PARSE
        got = self.encode(texts, flags)
        plain = [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in texts]
        theirs = []
        for i in range(0, len(plain), 20000):
            batch = self.oracle.encode_batch_fast(plain[i:i + 20000], add_special_tokens=bool(flags & ADD))
            theirs += [e.ids for e in batch]
        for t, ours, want in zip(plain, got, theirs):
            if ours != want:
                k = next((i for i, (a, b) in enumerate(zip(ours, want)) if a != b), min(len(ours), len(want)))
                raise AssertionError(f"{t[:200]!r}: at {k}: ours {ours[k:k + 8]}, theirs {want[k:k + 8]}")
        self.oracle.encode_special_tokens = False
        return got


@pytest.fixture(scope="module", params=sorted(folders()))
def pair(request, tmp_path_factory):
    if not os.path.exists(DUMP):
        pytest.skip(f"{DUMP} is not built")
    return Pair(folders()[request.param], tmp_path_factory.mktemp("tok"))


# How much is compared (QUERN_TOK_SIZE). Ranges of one kind each (ideographs, Hangul, private use, never
# assigned) are sampled unless asked for in full; `make test` takes a small part of everything.
SIZE = os.environ.get("QUERN_TOK_SIZE", "usual")
FULL, SMALL = SIZE == "full", SIZE == "small"
BULK = [(0x3400, 0x4DB0), (0x4E00, 0x9FA0), (0xAC00, 0xD7A0), (0xE000, 0xF8F0), (0x17000, 0x18CF0), (0x20000, 0x2A6D0),
        (0x2A700, 0x2EE50), (0x30000, 0x323A0), (0x33480, 0xE0000), (0xE01F0, 0x10FFF0)]


def wanted(c):
    return FULL or not any(a + 16 < c < b - 16 for a, b in BULK) or c % 61 == 0


ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CPS = [c for c in ALL if wanted(c)]
if SMALL:
    CPS = [c for c in CPS if c < 0x600 or c % 16 == 3]


def test_every_code_point(pair):
    pair.check([chr(c) for c in CPS])


def test_every_code_point_embedded(pair):
    pair.check(["a" + chr(c) + "b" for c in CPS])


def test_code_points_among_others(pair):
    texts = []
    for c in CPS:
        ch = chr(c)
        texts.append(f" {ch} {ch}{ch}1{ch}\n{ch}'s '{ch} .{ch}e\u0301{ch}\u0327{ch}A{ch}")
    pair.check(texts)


def docs():
    out = []
    for pat in ("*.md", "docs/**/*.md", "include/*.h", "src/**/*.h", "src/**/*.c"):
        out += [p.read_text() for p in sorted(ROOT.glob(pat))]
    out += [p.read_text() for p in sorted(SHARED.glob("design/*.md"))]
    return [t for t in out if len(t) < 400_000]


def test_documents(pair):
    pair.check(docs())


POOLS = ["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "      ", "\t\n\r\n\n  ",
         "'s't're've'm'll'd'S'T'RE'\u017f", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "абвгдежзиклмнопрстуфхцчшщ", "漢字仮名交じり文章例東京大学",
         "ひらがなカタカナ", "안녕하세요한국어각", "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "e\u0301\u0327a\u0308\u0323\u0345\u0316", "🙂👩‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽❤️",
         "\u00a0\u2003\u3000\u200b\u200d\ufeff\u0085\u2028", "ǅǈⅧ²³½٣४𝟘", "\x00\x01\x1f\x7f\x80\x9f", "ÀÉÎõü İıſßﬁﬀ", "▁▁Ġ<0x41>"]


def random_text(rng):
    parts = []
    for _ in range(rng.randint(1, 14)):
        r = rng.random()
        if r < 0.1:
            parts.append(rng.choice([" ", "\n", "a", "1", "▁"]) * rng.randint(1, 40))
        elif r < 0.2:
            parts.append("".join(chr(rng.choice(ALL)) for _ in range(rng.randint(1, 6))))
        else:
            pool = rng.choice(POOLS)
            parts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 12))))
    return "".join(parts)


def test_random_strings(pair):
    rng = random.Random(7)
    texts = [random_text(rng) for _ in range(1000 if SMALL else 10_000)]
    got = pair.check(texts)
    pair.check(texts[:2000], ADD | PARSE)
    for keep in (False, True):
        ours = pair.decode(got, keep)
        assert ours == pair.decode(got, keep, "S")
        theirs = pair.oracle.decode_batch(got, skip_special_tokens=not keep)
        bad = [(a, b) for a, b in zip(ours, theirs) if a != b and "\ufffd" not in b]
        assert not bad, bad[0]


def test_runs(pair):
    texts = []
    for unit in (" ", "\n", "\t", "1", "a", "A", "=", "-", "é", "漢", "🙂", "\r\n", " \n", "\u0301", "'s", "▁", "\u00a0", "ab", "0 "):
        for n in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 500, 4000):
            texts += [unit * n, "x" + unit * n, unit * n + "x", "x" + unit * n + "y"]
    pair.check(texts)


def test_special_tokens(pair):
    names = [t.content for t in pair.oracle.get_added_tokens_decoder().values()]
    rng = random.Random(3)
    some = names if len(names) < 300 else rng.sample(names, 300)
    texts = []
    for s in some:
        texts += [s, " " + s + " ", s + s, "a" + s + "b", s[:-1], s[1:], s + "\n" + s, s.upper(), "  " + s + "  x"]
    texts += ["".join(rng.choice(some + ["hello ", " ", "\n", "x"]) for _ in range(12)) for _ in range(300)]
    for flags in (0, PARSE, ADD | PARSE):
        pair.check(texts, flags)


def test_invalid_utf8(pair):
    rng = random.Random(5)
    texts = [b"\xff", b"a\xc3", b"\xe2\x82", b"\xf0\x9f\x99x", b"\xed\xa0\x80", b"\xc0\xaf", b"ok\x80ok", b""]
    texts += [bytes(rng.choice([0x61, 0x20, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99, 0x82, 0xFF])
                    for _ in range(rng.randint(1, 20))) for _ in range(2000)]
    pair.check(texts)


def test_decode_each_id(pair):
    n = pair.oracle.get_vocab_size(with_added_tokens=True)
    lists = [[i] for i in range(n)] + [[i, (i * 7919) % n] for i in range(0, n, 3)]
    lists = lists[::8] if SMALL else lists
    for keep in (False, True):
        ours = pair.decode(lists, keep)
        assert ours == pair.decode(lists, keep, "S")
        theirs = pair.oracle.decode_batch(lists, skip_special_tokens=not keep)
        bad = [(i, a, b) for i, a, b in zip(lists, ours, theirs) if a != b and "\ufffd" not in b]
        assert not bad, bad[:3]
