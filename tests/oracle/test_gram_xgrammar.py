"""Constrained output against the PyPI package xgrammar: texts and masks, one by one.

    QUERN_GRAM_DUMP=build/tests/unit/gram/gram_dump pytest -s tests/oracle/test_gram_xgrammar.py

xgrammar wants PyTorch and transformers, but for grammars, texts and masks on the CPU it only names
their types: where they are not installed, stand-ins take their places. Skips (and says so) without
the package. Where the two differ jsonschema or Python's re decides, and ours has to be right; the
last test prints how often they agreed.
"""
import collections
import importlib.util
import json
import random
import re
import sys
import types

import pytest

import test_gram_diff as diff
from test_gram_diff import EOS, REGEXES, SCHEMAS, TOKENS, mutate, near, ours, values, walks  # noqa: F401

numpy = pytest.importorskip("numpy")
pytest.importorskip("tvm_ffi", reason="xgrammar's apache-tvm-ffi is not installed")


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return object


if importlib.util.find_spec("torch") is None:
    torch = StandIn("torch")
    torch.int32 = numpy.int32
    torch.tensor = numpy.array
    sys.modules.update(torch=torch, transformers=StandIn("transformers"))
xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed")

COUNTS = collections.Counter()

GRAMMARS = [
    r'root ::= "a"+ "b"',
    r'root ::= item ("," item)*' "\n" r'item ::= [a-c] | "(" root ")"',
    r'root ::= ("x" | "y" "z")* "end"',
    r'root ::= [0-9]+ ("." [0-9]+)?',
    r'root ::= "é" [^a-z"] | "[" root "]"',
    r'root ::= word (" " word)*' "\n" r'word ::= [a-z]{1,3}',
    r'root ::= s' "\n" r's ::= "a" s "b" | ""',
]
GRAMMAR_LETTERS = 'abcxyz()[],. end019é"A'


@pytest.fixture(scope="module")
def compiler():
    info = xgrammar.TokenizerInfo(TOKENS[:EOS] + [b"<eos>"], xgrammar.VocabType.RAW, vocab_size=len(TOKENS),
                                  stop_token_ids=[EOS])
    return xgrammar.GrammarCompiler(info, max_threads=1)


def accepts(grammar, text):
    m = xgrammar.GrammarMatcher(grammar)
    return m.accept_string(text) and m.is_completed()


def mask(grammar, prefix):
    m = xgrammar.GrammarMatcher(grammar)
    if prefix and not m.accept_string(bytes(prefix)):
        return None
    bits = numpy.full((1, (len(TOKENS) + 31) // 32), -1, numpy.int32)
    m.fill_next_token_bitmask(bits)
    return {i for i in range(len(TOKENS)) if bits[0][i // 32] >> (i % 32) & 1}


def compiled(make, what):
    """None, counted, where xgrammar refuses what it is given."""
    try:
        return make()
    except RuntimeError as e:
        COUNTS["not compiled by xgrammar"] += 1
        print(f"xgrammar refuses {what}: {str(e).splitlines()[-1][:100]}")
        return None


def count(kind, same):
    COUNTS[f"{kind}, alike" if same else f"{kind}, different"] += 1


def same_masks(ours, spec, grammar, prefixes, kind):
    for prefix, got in zip(prefixes, ours.ask(masks=prefixes, **spec)["masks"]):
        want = mask(grammar, prefix)
        count(kind, (None if got is None else set(got)) == want)
        assert (got is None) == (want is None), (spec, bytes(prefix))
        if got is not None:
            different = [(TOKENS[i], i in want) for i in set(got) ^ want]
            assert not different, (spec, bytes(prefix), different[:8])


def prefixes_of(texts):
    found = [[]]
    for text in texts:
        raw = list(text.encode())
        found += [raw[:i] for i in range(1, min(len(raw), 12) + 1)]
    return found


@pytest.mark.parametrize("pattern", REGEXES)
def test_regex(ours, compiler, pattern):  # noqa: F811
    grammar = compiled(lambda: compiler.compile_regex(pattern), pattern)
    if grammar is None:
        pytest.skip("xgrammar does not compile it")
    made = [t for t in ours.ask(kind="regex", spec=pattern, walks=30, seed=8)["outputs"] if t is not None]
    texts = near(pattern, random.Random(pattern)) + made
    truth = re.compile(pattern, re.ASCII)
    for text, ok in zip(texts, ours.ask(kind="regex", spec=pattern, texts=texts)["accept"]):
        theirs = accepts(grammar, text)
        count("regex, texts", ok == theirs)
        if ok != theirs:
            assert ok == bool(truth.fullmatch(text)), (pattern, text)
    same_masks(ours, dict(kind="regex", spec=pattern), grammar, prefixes_of(made[:6]), "regex, masks")


@pytest.mark.parametrize("text", GRAMMARS)
def test_grammar(ours, compiler, text):  # noqa: F811
    grammar = compiler.compile_grammar(text)
    spec = dict(kind="gbnf", spec=text)
    made = [t for t in ours.ask(walks=30, seed=3, **spec)["outputs"] if t is not None]
    rng = random.Random(text)
    tries = made + ["".join(rng.choice(GRAMMAR_LETTERS) for _ in range(rng.randint(0, 7))) for _ in range(60)]
    tries += [t[:-1] for t in made]
    for one, ok in zip(tries, ours.ask(texts=tries, **spec)["accept"]):
        count("grammar, texts", ok == accepts(grammar, one))
        assert ok == accepts(grammar, one), (text, one)
    same_masks(ours, spec, grammar, prefixes_of(made[:6]), "grammar, masks")


@pytest.mark.parametrize("schema", SCHEMAS, ids=[json.dumps(s)[:60] for s in SCHEMAS])
def test_schema(ours, compiler, schema):  # noqa: F811
    def make():
        return compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, indent=None,
                                            separators=(",", ":"), strict_mode=False)
    grammar = compiled(make, json.dumps(schema)[:60])
    if grammar is None:
        pytest.skip("xgrammar does not compile it")
    rng = random.Random(json.dumps(schema))
    draft = diff.jsonschema.Draft202012Validator
    check = draft(schema, format_checker=draft.FORMAT_CHECKER)
    docs = [values(rng) for _ in range(60)]
    docs += [json.loads(t) for t in walks(ours, schema, 15, 3)]
    docs += [mutate(d, rng) for d in docs[60:]]
    texts = [json.dumps(d, ensure_ascii=False, separators=(",", ":")) for d in docs]
    for doc, text, ok in zip(docs, texts, ours.ask(kind="schema", spec=schema, texts=texts)["accept"]):
        theirs, valid = accepts(grammar, text), check.is_valid(doc)
        count("schema, texts", ok == theirs)
        if ok and not theirs:
            assert valid, (schema, text)
            COUNTS["schema, valid and refused by xgrammar"] += 1
        if theirs and not ok and not valid:
            COUNTS["schema, invalid and accepted by xgrammar"] += 1
        elif theirs and not ok:  # the order of members, closed objects, formats, exponents
            COUNTS["schema, valid and refused by quern"] += 1
            assert diff.has_object(doc) or "format" in json.dumps(schema) or re.search(r"e[-+]?\d{3}", text), text


def test_how_often_they_agree():
    print()
    for name, n in sorted(COUNTS.items()):
        print(f"{n:6} {name}")
    assert COUNTS["schema, texts, alike"] > 1000 and COUNTS["regex, texts, alike"] > 500
