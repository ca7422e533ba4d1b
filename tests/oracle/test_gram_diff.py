"""Constrained output against the PyPI packages llguidance and jsonschema and against Python's re.

    QUERN_GRAM_DUMP=build/tests/unit/gram/gram_dump pytest tests/oracle/test_gram_diff.py

- texts: what a regular expression or schema accepts, text by text;
- masks: the tokens allowed after a prefix, bit by bit, where the languages are the same;
- walks: answers drawn at random through our masks must parse and validate.
Skips (and says so) without the packages or the program. test_gram_xgrammar.py asks xgrammar.
"""
import json
import os
import pathlib
import random
import re
import subprocess

import pytest

llguidance = pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")
numpy = pytest.importorskip("numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]
DUMP = os.environ.get("QUERN_GRAM_DUMP", str(ROOT / "build/tests/unit/gram/gram_dump"))
PIECES = [b'{"', b'":', b'": "', b'", "', b'"}', b'"]', b'},', b'],', b'[{', b"true", b"fal", b"null",
          b"name", b"na", b"12", b"00", b".5", b"-1", b"ab", b"abc", b"the ", b" the", b"\\n", b"\n  ",
          "é".encode(), "€".encode(), "🙂".encode(), b"\xe2\x82", b"20", b"-0", b"://", b".com", b"@"]
TOKENS = [bytes([b]) for b in range(256)] + PIECES + [b""]
EOS = len(TOKENS) - 1


class Ours:
    def __init__(self):
        if not os.path.exists(DUMP):
            pytest.skip(f"{DUMP} is not built (QUERN_GRAM_DUMP)")
        self.p = subprocess.Popen([DUMP], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ask(kind="regex", spec="a", vocab=[t.decode("latin-1") for t in TOKENS])

    def ask(self, **o):
        self.p.stdin.write(json.dumps(o, ensure_ascii=False).encode() + b"\n")
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())


@pytest.fixture(scope="module")
def ours():
    o = Ours()
    yield o
    o.p.stdin.close()
    assert o.p.wait(timeout=10) == 0


class Bytes:
    """What llguidance wants of a tokenizer."""
    eos_token_id, bos_token_id, special_token_ids = EOS, None, [EOS]
    tokens = TOKENS[:EOS] + [b"<eos>"]

    def __call__(self, s):
        return list(s if isinstance(s, bytes) else s.encode())


@pytest.fixture(scope="module")
def tokenizer():
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def matcher(tokenizer, grammar):
    m = llguidance.LLMatcher(tokenizer, grammar)
    assert not m.is_error(), m.get_error()
    return m


def theirs_accepts(tokenizer, grammar, text):
    m = matcher(tokenizer, grammar)
    ids = list(text.encode())
    return m.try_consume_tokens(ids) == len(ids) and m.is_accepting()


def theirs_mask(tokenizer, grammar, ids):
    m = matcher(tokenizer, grammar)
    if m.try_consume_tokens(ids) != len(ids):
        return None
    if m.is_stopped():
        return {EOS} if m.is_accepting() else set()
    bits = numpy.frombuffer(m.compute_bitmask(), dtype=numpy.uint8)
    return {i for i in range(len(TOKENS)) if bits[i // 8] >> (i % 8) & 1}


# ---- regular expressions -----------------------------------------------------------------------

REGEXES = ["a(b|cd)*e?", "[a-f0-9]{3,5}", r"\d{1,3}(\.\d{1,3}){3}", "(ab?){2,4}c", "[^a-y]z|y+", "a*a*a{3}",
           r"-?(0|[1-9]\d*)(\.\d+)?", r"\w+@\w+\.(com|org)", "(a|b)*abb", "x{0,3}y{2}|(xy){1,}", "é+|[à-ü]b",
           "(foo|foobar)(bar)?", r"[\w.-]+", "((a{2}){2}){1,2}", "a?b?c?d?", "(?:a|(?:b|c){2})+d", "[€-𐍈]{2}"]


def near(pattern, rng, n=60):
    """Texts that are close to what the pattern is made of."""
    letters = "abcdefxyz0123456789.-@ é€𐍈" + "".join(c for c in pattern if c.isalnum())
    out = ["", "abb", "ae", "yyy", "foobar", "foobarbar", "1.2.3.4", "127.0.0.1", "a_b@c.com", "aaaa", "-0.5"]
    while len(out) < n:
        out.append("".join(rng.choice(letters) for _ in range(rng.randint(0, 8))))
    return out


@pytest.mark.parametrize("pattern", REGEXES)
def test_regex_texts(ours, tokenizer, pattern):
    rng = random.Random(pattern)
    texts = near(pattern, rng)
    walked = ours.ask(kind="regex", spec=pattern, walks=40, seed=5)["outputs"]
    texts += [t for t in walked if t is not None]
    assert sum(t is not None for t in walked) > 10
    got = ours.ask(kind="regex", spec=pattern, texts=texts)["accept"]
    ascii_only = re.compile(pattern, re.ASCII)
    for text, ok in zip(texts, got):
        assert ok == bool(ascii_only.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize("pattern", [p for p in REGEXES if r"\w" not in p and r"\d" not in p])
def test_regex_masks(ours, tokenizer, pattern):
    grammar = llguidance.LLMatcher.grammar_from_regex(pattern)
    outputs = [t for t in ours.ask(kind="regex", spec=pattern, walks=6, seed=2)["outputs"] if t is not None]
    prefixes = [[]]
    for text in outputs:
        raw = list(text.encode())
        prefixes += [raw[:i] for i in range(1, min(len(raw), 12) + 1)]
    same_masks(ours, tokenizer, dict(kind="regex", spec=pattern), grammar, prefixes)


def same_masks(ours, tokenizer, spec, grammar, prefixes):
    got = ours.ask(masks=prefixes, **spec)["masks"]
    for prefix, mask in zip(prefixes, got):
        want = theirs_mask(tokenizer, grammar, prefix)
        assert (mask is None) == (want is None), (spec, bytes(prefix))
        if mask is not None:
            diff = [(TOKENS[i], i in want) for i in set(mask) ^ want]
            assert not diff, (spec, bytes(prefix), diff[:8])


# ---- schemas -----------------------------------------------------------------------------------

CLOSED = {"additionalProperties": False}
SCHEMAS = [
    {"type": "boolean"},
    {"type": "integer", "minimum": -17, "maximum": 130},
    {"type": "integer", "exclusiveMinimum": 9, "maximum": 1000000},
    {"type": "number", "minimum": 0.25, "exclusiveMaximum": 17.5},
    {"type": "number", "maximum": -2},
    {"type": "integer", "multipleOf": 3},
    {"type": "number", "multipleOf": 0.5},
    {"enum": ["red", "green", 3, None, True, [1, "x"], {"a": 1}]},
    {"const": "é\"\\"},
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"},
    {"type": "string", "pattern": "^b.{2,9}|[b-w0-9]$"},
    {"type": "string", "pattern": "^(ab|c)*$", "maxLength": 6, "minLength": 1},
    {"allOf": [{"type": "string", "pattern": "^a[b-z]{0,6}$"}, {"pattern": "[m-z]$"}]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "string"}], "items": {"type": "null"}},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
                                      "c": {"type": "boolean"}}, "required": ["b"], **CLOSED},
    {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"name": {"type": "string"}}, "patternProperties": {"^x-": {"type": "integer"}},
     **CLOSED},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 3},
    {"type": "object", "properties": {k: {"type": "integer"} for k in "abcd"}, "minProperties": 2, "maxProperties": 3,
     **CLOSED},
    {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}},
                "required": ["kind", "n"], **CLOSED},
               {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"], **CLOSED}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {
        "type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {
            "$ref": "#/$defs/tree"}, "maxItems": 3}}, "required": ["v"], **CLOSED}}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "anyOf": [
        {"properties": {"b": {"type": "string"}}, "required": ["b"]},
        {"properties": {"c": {"type": "null"}}, "required": ["c"]}]},
    {"allOf": [{"type": "object", "properties": {"p": {"minimum": 2}}, "required": ["p"]},
               {"properties": {"p": {"type": "integer", "maximum": 40}, "q": {"type": ["string", "null"]}}}]},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6"},
    {"type": "string", "format": "email"},
    {"type": "string", "format": "hostname"},
    {"type": "string", "format": "email", "maxLength": 12},
    {"type": ["object", "array"], "maxItems": 2, "maxProperties": 1},
    {},
]


def values(rng, depth=0):
    kinds = ["int", "num", "str", "bool", "null"] + (["arr", "obj"] * 2 if depth < 3 else [])
    k = rng.choice(kinds)
    if k == "int":
        return rng.choice([0, 1, -1, 3, 9, 10, 130, 131, -17, -18, 1000000, rng.randint(-200, 2000)])
    if k == "num":
        return rng.choice([0.25, 0.5, 17.25, 17.5, -2.5, 0.24, 1.5, round(rng.uniform(-30, 30), rng.randint(1, 4))])
    if k == "str":
        return rng.choice(["", "a", "ab", "abc", "az", "abcab", "é", "é\"\\", "xy-12", "abd", "red", "b\nd", "🙂🙂",
                           "2024-02-29", "10.0.0.1", "x" * rng.randint(0, 7), "ccab"])
    if k == "bool":
        return rng.random() < 0.5
    if k == "arr":
        return [values(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if k == "obj":
        keys = ["a", "b", "c", "d", "v", "kids", "name", "x-1", "kind", "n", "p", "q", "zz"]
        return {x: values(rng, depth + 1) for x in sorted(rng.sample(keys, rng.randint(0, 3)))}
    return None


def mutate(doc, rng):
    """The document with something in it changed."""
    if isinstance(doc, dict) and doc and rng.random() < 0.8:
        k = rng.choice(list(doc))
        return {x: (mutate(y, rng) if x == k else y) for x, y in doc.items() if x != k or rng.random() < 0.8}
    if isinstance(doc, list) and doc and rng.random() < 0.8:
        i = rng.randrange(len(doc))
        return doc[:i] + [mutate(doc[i], rng)] + doc[i + 1:]
    return values(rng, 2)


def walks(ours, schema, n, seed):
    got = ours.ask(kind="schema", spec=schema, walks=n, seed=seed)
    assert "error" not in got, got
    return [t for t in got["outputs"] if t is not None]


@pytest.mark.parametrize("schema", SCHEMAS, ids=[json.dumps(s)[:60] for s in SCHEMAS])
def test_every_answer_validates(ours, schema):
    check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    made = walks(ours, schema, 25, 11)
    assert len(made) >= 5, "walks do not end"
    for text in made:
        check.validate(json.loads(text))
    accepted = ours.ask(kind="schema", spec=schema, texts=made)["accept"]
    assert all(accepted), [t for t, ok in zip(made, accepted) if not ok]


@pytest.mark.parametrize("schema", SCHEMAS, ids=[json.dumps(s)[:60] for s in SCHEMAS])
def test_schema_texts(ours, tokenizer, schema):
    rng = random.Random(json.dumps(schema))
    check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    docs = [values(rng) for _ in range(60)]
    docs += [mutate(json.loads(t), rng) for t in walks(ours, schema, 25, 3)]
    texts = [json.dumps(d, ensure_ascii=False, separators=(",", ":")) for d in docs]
    got = ours.ask(kind="schema", spec=schema, texts=texts)["accept"]
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    known = not llguidance.LLMatcher(tokenizer, grammar).is_error()
    for doc, text, ok in zip(docs, texts, got):
        if ok:
            assert check.is_valid(doc), text
        elif known and check.is_valid(doc) and schema != {} and "format" not in schema:
            # what is valid and refused must be a matter of the order of members or of closed objects
            theirs = theirs_accepts(tokenizer, grammar, text)
            assert not theirs or has_object(doc), text


def has_object(doc):
    return isinstance(doc, dict) or (isinstance(doc, list) and any(has_object(x) for x in doc))


@pytest.mark.parametrize("schema", [s for s in SCHEMAS if s.get("type") in ("boolean", "object", "array")
                                    and "string" not in json.dumps(s) and "Properties\": {" not in json.dumps(s)
                                    and "minProperties" not in s], ids=lambda s: json.dumps(s)[:60])
def test_schema_masks(ours, tokenizer, schema):
    rigid = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), rigid)
    rng = random.Random(1)
    spec = dict(kind="schema", spec=schema, compact=True)
    prefixes = [[]]
    for text in [t for t in ours.ask(walks=5, seed=4, **spec)["outputs"] if t is not None]:
        raw = list(text.encode())
        prefixes += [raw[:rng.randint(0, min(len(raw), 40))] for _ in range(8)]
    same_masks(ours, tokenizer, spec, grammar, prefixes)
