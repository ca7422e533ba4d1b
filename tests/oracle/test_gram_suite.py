"""JSON Schema's own test suite (github.com/json-schema-org/JSON-Schema-Test-Suite) against the grammars.

    QUERN_SCHEMA_SUITE=.../tests pytest tests/oracle/test_gram_suite.py

Whatever a grammar accepts must be valid; a schema may be refused, and a valid text may be left out (the
order of members, spaces, other ways to spell a number). Skips without the folder.
"""
import glob
import json
import os

import pytest

from test_gram_diff import Ours

SUITE = os.environ.get("QUERN_SCHEMA_SUITE", "")


@pytest.mark.parametrize("draft", ["draft7", "draft2019-09", "draft2020-12"])
def test_nothing_invalid(draft):
    files = [f for kind in ("*.json", "optional/*.json", "optional/format/*.json")
             for f in sorted(glob.glob(os.path.join(SUITE, draft, kind)))
             if os.path.basename(f) != "content.json"] if SUITE else []  # an annotation to us
    if not files:
        pytest.skip("QUERN_SCHEMA_SUITE names no folder of the suite")
    ours, wrong, right = Ours(), [], 0
    for name in files:
        with open(name) as f:
            cases = json.load(f)
        for case in cases:
            texts = [json.dumps(t["data"], ensure_ascii=False) for t in case["tests"]]
            got = ours.ask(kind="schema", spec=case["schema"], texts=texts).get("accept")
            for test, accepted in zip(case["tests"], got or []):
                if accepted and not test["valid"]:
                    wrong.append((os.path.basename(name), case["description"], test["description"]))
                right += accepted and test["valid"]
    ours.p.stdin.close()
    assert not wrong
    assert right > 300
