"""Tests of tools/peers: parsing, pairing, order of the runs, and the files that are written.

The programs are stand-ins (small shell scripts with known figures), so nothing is timed here and
neither llama.cpp nor a model is needed.
"""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "peers"))

import compare  # noqa: E402
import peer_machine  # noqa: E402
import peer_programs  # noqa: E402

LLAMA = [{"n_prompt": 512, "n_gen": 0, "avg_ts": 700.0, "model_filename": "/secret/m.gguf"},
         {"n_prompt": 0, "n_gen": 128, "avg_ts": 130.0, "model_filename": "/secret/m.gguf"}]
BANDWIDTH = {"1": {"best": 20.0, "median": 19.0, "gb_per_s": [20.0]},
             "2": {"best": 30.0, "median": 29.0, "gb_per_s": [30.0]}}


def quern_document(prefill, decode):
    def result(kind, tokens, rate):
        return {"kind": kind, "tokens": tokens, "depth": 0, "threads": 1,
                "tok_s": {"median": rate, "min": 1, "max": 9999}, "samples": [rate]}
    return {"version": "1", "model": {"name": "/secret/model", "arith": "canonical",
                                      "step_bytes": 900},
            "machine": {"isa": "avx2"},
            "results": [result("prefill", 512, prefill), result("decode", 128, decode),
                        {**result("decode", 128, 77), "depth": 4096}]}


class Parsing(unittest.TestCase):
    def test_llama_bench(self):
        rates, facts = peer_programs.llama_rates(json.dumps(LLAMA), 512, 128)
        self.assertEqual(rates, {"prefill": 700.0, "decode": 130.0})
        self.assertNotIn("model_filename", facts)

    def test_llama_bench_refusals(self):
        zero = [LLAMA[0], {**LLAMA[1], "avg_ts": 0}]
        for text, sizes, words in [
                ("not json", (512, 128), "not JSON"),
                (json.dumps(LLAMA[:1]), (512, 128), "no decode"),
                (json.dumps(LLAMA), (512, 64), "no decode"),
                (json.dumps(zero), (512, 128), "above 0")]:
            with self.subTest(text=text[:30]), self.assertRaisesRegex(
                    peer_programs.RunError, words):
                peer_programs.llama_rates(text, *sizes)

    def test_quern_bench(self):
        rates, facts = peer_programs.quern_rates(json.dumps(quern_document(5, 3.5)), 512, 128)
        self.assertEqual(rates, {"prefill": 5.0, "decode": 3.5})
        self.assertEqual((facts["version"], facts["isa"], facts["arith"], facts["step_bytes"]),
                         ("1", "avx2", "canonical", 900))
        self.assertNotIn("name", facts)

    def test_quern_bench_refusals(self):
        other_size = quern_document(5, 3)
        other_size["results"][1]["tokens"] = 64
        for document, words in [
                ({}, "results"), (quern_document(0, 1), "above 0"),
                (quern_document(True, 1), "above 0"), (other_size, "no decode"),
                ({"results": [{"kind": "prefill", "tokens": 512, "depth": 0}]}, "None")]:
            with self.subTest(words=words), self.assertRaisesRegex(
                    peer_programs.RunError, words):
                peer_programs.quern_rates(json.dumps(document), 512, 128)

    def test_failing_program(self):
        with self.assertRaisesRegex(peer_programs.RunError, "(?s)status 3.*the reason"):
            peer_programs.run(["sh", "-c", "echo the reason >&2; exit 3"])
        with self.assertRaisesRegex(peer_programs.RunError, "not found"):
            peer_programs.run(["/nowhere/at-all"])


class Statistics(unittest.TestCase):
    def test_spread(self):
        self.assertEqual(compare.spread([3.0, 1.0, 2.0]),
                         {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3})

    def test_ratios_are_paired_by_round(self):
        """The median of the ratios (2) differs from the ratio of the medians (20 / 3)."""
        top = [{"round": r, "decode": v} for r, v in [(1, 20.0), (2, 2.0), (3, 60.0), (4, 1.0)]]
        bottom = [{"round": r, "decode": v} for r, v in [(3, 3.0), (2, 1.0), (1, 10.0)]]
        self.assertEqual(compare.ratio_spread(top, bottom, "decode"),
                         {"median": 2.0, "min": 2.0, "max": 20.0, "n": 3})

    def test_order_of_runs(self):
        class Program:
            def __init__(self, name):
                self.name = name
        options = mock.Mock(rounds=2, threads=[1, 2], cpus=[4, 6])
        order = []

        def action(program, cpus):
            order.append((program.name, tuple(cpus)))
            return {"prefill": 1.0, "decode": 1.0}
        with contextlib.redirect_stderr(io.StringIO()):
            compare.interleave(options, [Program("a"), Program("b")], action)
        once = [("a", (4,)), ("b", (4,)), ("a", (4, 6)), ("b", (4, 6))]
        self.assertEqual(order, once * 2)


class Machine(unittest.TestCase):
    def test_slug(self):
        for model, want in [("AMD EPYC", "amd-epyc-f25m1"),
                            ("Intel(R) Xeon(R) Processor @ 2.10GHz", "intel-xeon-f25m1")]:
            self.assertEqual(peer_machine.cpu_slug(
                {"model": model, "family": "25", "model_number": "1"}), want)

    def test_busy_process_burns_and_ends(self):
        with peer_machine.busy_process() as process:
            stat = pathlib.Path(f"/proc/{process.pid}/stat")
            end = time.monotonic() + 20
            ticks = 0
            while ticks == 0 and time.monotonic() < end:
                time.sleep(0.02)
                ticks = int(stat.read_text().rsplit(")", 1)[1].split()[11])
        self.assertGreater(ticks, 0)
        self.assertIsNotNone(process.returncode)

    def test_first_byte_and_peak_memory(self):
        eat = "import sys,time; b=bytearray(64<<20); time.sleep(.2); print('x'); time.sleep(.2)"
        result, _ = peer_programs.first_byte([sys.executable, "-c", eat])
        self.assertGreaterEqual(result["first_s"], 0.2)
        self.assertGreaterEqual(result["end_s"], 0.2)
        self.assertGreaterEqual(result["peak_rss_bytes"], 64 << 20)
        self.assertEqual(result["text"], "x\n")
        for command in (["true"], ["sh", "-c", "echo x; exit 1"]):
            with self.assertRaisesRegex(peer_programs.RunError, "exit status"):
                peer_programs.first_byte(command)


class WholeRun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        (self.path / "bin").mkdir()
        (self.path / "model").mkdir()
        (self.path / "model" / "model.safetensors").write_bytes(b"x" * 1000)
        (self.path / "m.gguf").write_bytes(b"y" * 500)
        self.script("bin/llama-bench", f"cat <<'E'\n{json.dumps(LLAMA)}\nE\n")
        self.script("bin/llama-completion", "echo 'version: 0.5 (x)' >&2\n"
                    "echo ' prompt eval time = 1 ms / 10 tokens' >&2\nprintf ok\n")
        self.script("quern", "case $1 in\nversion) echo quern 9;;\n"
                    "generate) echo 'prompt:      10 tokens' >&2; printf ok;;\n"
                    f"bench) cat <<'E'\n{json.dumps(quern_document(1400, 260))}\nE\nesac\n")

    def script(self, name, body):
        path = self.path / name
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(0o755)

    def compare(self, *extra):
        out = io.StringIO()
        cpus = sorted(os.sched_getaffinity(0))
        argv = ["--gguf", f"{self.path}/m.gguf", "--model", f"{self.path}/model",
                "--quern", f"{self.path}/quern", f"--llama-bin={self.path}/bin",
                "--threads", "1,2" if len(cpus) > 1 else "1", "--out", f"{self.path}/out", *extra]
        with mock.patch.object(compare, "measure_bandwidth", lambda options: BANDWIDTH), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            compare.main(argv)
        return out.getvalue()

    def written(self, suffix):
        return sorted((self.path / "out").glob("*" + suffix))

    def test_files_and_table(self):
        table = self.compare("--first-token")
        self.assertIn("| prefill 512 | 1 | 700.0 (700.0–700.0) | 1400.0 (1400.0–1400.0) | "
                      "2.00 (2.00–2.00) |", table)
        self.assertIn("| decode 128 | 1 | 130.0 (130.0–130.0) | 260.0 (260.0–260.0) | "
                      "2.00 (2.00–2.00) |", table)
        self.assertEqual(self.written(".md")[0].read_text(), table)
        text = self.written(".json")[0].read_text()
        document = json.loads(text)
        self.assertEqual(document["programs"]["quern"]["weight_bytes"], 1000)
        self.assertEqual(document["programs"]["llama.cpp"]["version"], "llama.cpp 0.5")
        self.assertEqual({r["prompt_tokens"] for r in document["runs"]["first_token"]}, {10})
        self.assertNotIn(self.folder.name, text + table)
        self.assertNotIn("secret", text)
        self.compare()
        self.assertEqual(len(self.written(".json")), 2)

    def test_different_prompts_are_refused(self):
        self.script("bin/llama-completion", "echo 'prompt eval time = 1 ms / 11 tokens' >&2\n"
                    "printf ok\n")
        with self.assertRaisesRegex(SystemExit, "different prompts"):
            self.compare("--first-token-only")
        self.script("bin/llama-completion", "printf ok\n")
        with self.assertRaisesRegex(SystemExit, "no prompt token count"):
            self.compare("--first-token-only")
        self.assertEqual(self.written(""), [])

    def test_busy_and_alone(self):
        table = self.compare("--busy", "--only", "llama.cpp")
        self.assertIn("one foreign process burning one core", table)
        self.assertNotIn("÷ llama.cpp", table)
        self.assertTrue(self.written(".json")[0].name.endswith("-busy.json"))

    def test_a_failing_program_writes_nothing(self):
        self.script("quern", "[ $1 = version ] && echo quern 9 && exit 0\n"
                    "echo broken >&2\nexit 1\n")
        with self.assertRaisesRegex(SystemExit, "broken"):
            self.compare()
        self.assertEqual(self.written(""), [])

    def test_too_few_rounds_are_not_written(self):
        with self.assertRaises(SystemExit):
            self.compare("--rounds", "4")
        self.compare("--rounds", "1", "--no-write")
        self.assertEqual(self.written(""), [])


if __name__ == "__main__":
    unittest.main()
