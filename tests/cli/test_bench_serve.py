"""`quern bench serve` against a server of known delays, and against servers that break the protocol."""
import json
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
import zlib

import pytest

from conftest import QUERN, ROOT

FAKE = ROOT / "tests" / "cli" / "fake_server.py"
QUICK = ["--diagnostic", "--rounds", "1", "--ctx", "512", "--runs", "0", "--ttft-runs", "0",
         "--context", "0", "--concurrent", "0", "--ready", "60"]


@pytest.fixture
def arm(tmp_path):
    """arm(behaviour, name): the file of an arm, and the log its server writes."""
    def make(behaviour, name="fake"):
        file, log = tmp_path / f"{name}.arm", tmp_path / f"{name}.sent"
        file.write_text(f"name = {name}\ncommand = {sys.executable} -B {FAKE} {{port}} {log} {behaviour}\n")
        return file, log
    return make


@pytest.fixture
def bench(env, model, tmp_path):
    def run(*args, rc=None):
        out = tmp_path / "run"
        r = subprocess.run([str(QUERN), "bench", "serve", *map(str, args), "--model", str(model),
                            "--out", str(out)], capture_output=True, text=True, env=env, timeout=120)
        if rc is not None:
            assert r.returncode == rc, r.stdout + r.stderr
        doc = json.loads((tmp_path / "run.json").read_text()) if (tmp_path / "run.json").exists() else None
        return r, doc
    return run


def sent(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def summary(doc, arm, metric, workload="matrix", point=""):
    rows = [s for s in doc["summary"] if (s["arm"], s["metric"], s["workload"], s["point"]) ==
            (arm, metric, workload, point)]
    assert len(rows) == 1, (metric, rows)
    return rows[0]


def check(doc, log, phase):
    """Every event that quern timed, against the moment at which the server sent it."""
    ours = [r for r in doc["requests"] if r["phase"] == phase]
    theirs = sent(log)
    late, spans, rates, walls = [], [], [], []
    for r in ours:
        at = [r["start_ns"] + 1e6 * t for t in r["result"]["output_event_ms"]]
        s = next(t for t in theirs if 0 <= t["output_ns"][0] - r["start_ns"] and
                 t["received_ns"] - r["start_ns"] < 1e6 * r["result"]["wall_ms"] and
                 len(t["output_ns"]) == len(at))
        # Nothing is seen before it was sent (the record is rounded to a microsecond).
        assert all(a >= b - 1000 for a, b in zip(at, s["output_ns"]))
        late.append((at[0] - s["output_ns"][0]) / 1e6)
        n = len(at)
        spans.append(((at[-1] - at[0]) - (s["output_ns"][-1] - s["output_ns"][0])) / 1e6 / (n - 1))
        true_rate = (n - 1) * 1e9 / (s["output_ns"][-1] - s["output_ns"][0])
        rates.append(r["result"]["decode_tps"] / true_rate - 1)
        walls.append(r["result"]["wall_ms"] - (s["last_ns"] - r["start_ns"]) / 1e6)
    return late, spans, rates, walls


def test_figures_of_a_known_server(bench, arm):
    """TTFT, gaps, rate and whole time within 1 ms or 1 % of the server's own clock. A busy machine
    delays single events, never the other way: the best of nine answers must agree, a wrong
    definition would miss by as much in all nine."""
    file, log = arm("good")
    options = [o for o in QUICK if o != "--runs"]
    options.remove("0")
    _, doc = bench(file, *options, "--runs", "9", "--tokens", "33", rc=0)
    late, gaps, rates, walls = check(doc, log, "decode")
    assert len(late) == 9
    assert min(abs(x) for x in late) < 1, late
    assert min(abs(x) for x in gaps) < 1, gaps
    assert min(abs(x) for x in rates) < 0.01, rates
    assert min(abs(x) for x in walls) < 1, walls
    # The summary is made of exactly these.
    row = summary(doc, "fake", "decode_tps")
    raw = [r["result"]["decode_tps"] for r in doc["requests"] if r["phase"] == "decode"]
    assert row["samples"] == pytest.approx(raw, rel=1e-9) and row["n"] == 9
    assert row["median"] == pytest.approx(statistics.median(raw), rel=1e-9)
    assert doc["schema"] == 1 and doc["status"] == "complete" and not doc["failures"]


def test_load_figures_follow_from_the_requests(bench, arm):
    file, log = arm("good")
    _, doc = bench(file, *QUICK, "-w", "load", "--users", "3", "--requests", "3", "--load-tokens", "9",
                   "--rates", "20", "--no-ramp", "--no-reuse", "--no-burst", "--limit-ttft", "1e9",
                   "--limit-tpot", "0", rc=0)
    for point, count in (("3 users", 9), ("Poisson 20/s", 9)):
        reqs = [r for r in doc["requests"] if r["phase"] == point]
        assert len(reqs) == count
        ttft = sorted(r["result"]["ttft_ms"] for r in reqs)
        assert summary(doc, "fake", "ttft_p50_ms", "load", point)["median"] == pytest.approx(ttft[4], abs=2e-3)
        begin = min(r["start_ns"] for r in reqs)
        end = max(r["start_ns"] + r["result"]["wall_ms"] * 1e6 for r in reqs)
        tokens = sum(r["result"]["completion_tokens"] for r in reqs)
        assert tokens == 9 * count
        assert summary(doc, "fake", "output_tps", "load", point)["median"] == \
            pytest.approx(tokens / ((end - begin) / 1e9), rel=1e-3)
        assert summary(doc, "fake", "goodput", "load", point)["median"] == \
            pytest.approx(count / ((end - begin) / 1e9), rel=1e-3)
        assert summary(doc, "fake", "error_share", "load", point)["median"] == 0
    users = [r for r in doc["requests"] if r["phase"] == "3 users"]
    assert sorted(r["user"] for r in users) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for u in range(3):  # a closed loop: nobody asks before the answer is there
        mine = sorted((r for r in users if r["user"] == u), key=lambda r: r["start_ns"])
        for a, b in zip(mine, mine[1:]):
            assert b["start_ns"] >= a["start_ns"] + a["result"]["wall_ms"] * 1e6 - 1000
    prompts = [r["content"] for r in doc["requests"] if r["phase"] in ("3 users", "Poisson 20/s")]
    assert len({p[:12] for p in prompts}) == len(prompts)  # salted from the first word on


def share_of(requests, what, of):
    return 100 * sum(r["result"][what] for r in requests) / sum(r["result"][of] for r in requests)


def test_ramp_burst_and_reuse(bench, arm):
    file, _ = arm("cache")
    _, doc = bench(file, *QUICK, "-w", "load", "--users", "2", "--requests", "2", "--load-tokens", "4",
                   "--prompt-tokens", "64", "--rates", "", rc=0)

    def of(point):
        return [r for r in doc["requests"] if r["phase"] == point]
    ramp = sorted(of("ramp to 2"), key=lambda r: r["start_ns"])
    second = [r for r in ramp if r["user"] == 1]  # comes a second later, while the first goes on
    assert ramp[0]["user"] == 0 and second[0]["start_ns"] - ramp[0]["start_ns"] >= 0.5e9
    last = max(r["start_ns"] + r["result"]["wall_ms"] * 1e6 for r in ramp if r["user"] == 0)
    assert len(second) == 2 and last > second[0]["start_ns"]
    burst = of("burst of 4")
    assert sorted(r["user"] for r in burst) == [0, 1, 2, 3]
    ends = [r["start_ns"] + r["result"]["wall_ms"] * 1e6 for r in burst]
    assert max(r["start_ns"] for r in burst) < min(ends)  # nobody waits for anybody
    for point, low, high in (("2 users", 0, 15), ("ramp to 2", 0, 15), ("burst of 4", 0, 15),
                             ("no shared beginning", 0, 15), ("shared beginning", 50, 100)):
        share = summary(doc, "fake", "cached_share", "load", point)["median"]
        assert share == pytest.approx(share_of(of(point), "cached_tokens", "prompt_tokens"), rel=1e-6)
        assert low <= share <= high, point  # no prompt but those that shall begin like another


def test_goodput_and_fairness(bench, arm, tmp_path):
    file, _ = arm("third")
    _, doc = bench(file, *QUICK, "-w", "load", "--users", "2", "--requests", "3", "--load-tokens", "6",
                   "--rates", "", "--no-ramp", "--no-reuse", "--no-burst", "--limit-ttft", "200",
                   "--limit-tpot", "1000", rc=0)
    reqs = [r for r in doc["requests"] if r["phase"] == "2 users"]
    begin, end = reqs[0]["start_ns"], 0
    served, waited, good = [0, 0], [0, 0], 0
    for r in reqs:
        at = r["result"]["output_event_ms"]
        begin = min(begin, r["start_ns"])
        end = max(end, r["start_ns"] + r["result"]["wall_ms"] * 1e6)
        good += r["result"]["ttft_ms"] <= 200 and (at[-1] - at[0]) / (len(at) - 1) <= 1000
        served[r["user"]] += r["result"]["completion_tokens"]
        waited[r["user"]] += r["result"]["wall_ms"]
    speed = [s / w for s, w in zip(served, waited)]
    assert good < len(reqs) == 6
    assert summary(doc, "fake", "goodput", "load", "2 users")["median"] == \
        pytest.approx(good / ((end - begin) / 1e9), rel=1e-3)
    assert summary(doc, "fake", "request_rate", "load", "2 users")["median"] == \
        pytest.approx(6 / ((end - begin) / 1e9), rel=1e-3)
    jain = sum(speed) ** 2 / (2 * sum(v * v for v in speed))
    assert summary(doc, "fake", "fairness", "load", "2 users")["median"] == pytest.approx(jain, rel=1e-4)
    text, page = (tmp_path / "run.md").read_text(), (tmp_path / "run.html").read_text()
    for report in (text, page):
        assert "Answers within the limits: first token at most 200 ms, time per token at most 1000 ms." in report
        assert "answers within the limits" in report and "fairness" in report
        assert "Memory over time" in report
    cell = doc["cells"][0]
    assert len(cell["rss"]) >= 2 and cell["peak_rss_bytes"] >= max(b for _, b in cell["rss"])
    assert set(cell["peak_rss_by_phase"]) == {"warmup", "2 users"}
    assert re.search(r"\| fake \| \d+ \| \d+ \| [▁▂▃▄▅▆▇█]{24} \|", text)
    assert "Memory at most in each phase" in page


RECORDING = {
    "format": "quern-agent-recording", "version": 1, "name": "short", "system": "Be brief.",
    "turns": [{"append": [{"role": "user", "content": "first " * 40}], "max_tokens": 3},
              {"append": [{"role": "assistant", "content": "second " * 40},
                          {"role": "user", "content": "third " * 40}], "max_tokens": 3},
              {"append": [{"role": "assistant", "content": "fourth " * 40},
                          {"role": "user", "content": "fifth " * 40}], "max_tokens": 3}],
    "compact": {"before_turn": 2, "summary": "What was before."}}


def test_replay(bench, arm, tmp_path):
    """What is sent in each turn of each form, what is recomputed of it, and when a server ends."""
    file, log = arm("cache")
    (tmp_path / "short.json").write_text(json.dumps(RECORDING))
    _, doc = bench(file, *QUICK, "-w", "replay", "--recording", tmp_path / "short.json", rc=0)
    said = [(s["pid"], [m["content"].strip() for m in s["messages"]]) for s in sent(log)]
    assert len(said) == 9
    words = ["first", "second", "third", "fourth", "fifth"]

    def is_history(messages, expected):
        assert re.fullmatch(r"Session [0-9a-f]{12}\.\nBe brief\.", messages[0])
        return [m.split()[0] for m in messages[1:]] == expected
    for form in (0, 3, 6):
        assert is_history(said[form][1], words[:1]) and is_history(said[form + 1][1], words[:3])
    assert is_history(said[2][1], words) and is_history(said[8][1], words)
    assert said[5][1][1] == "What was before." and is_history(said[5][1][:1] + said[5][1][2:], ["fifth"])
    assert len({s[1][0] for s in said}) == 3  # a session of its own each
    cut = next(i for i in range(1, 9) if said[i][0] != said[i - 1][0])
    assert cut in (7, 8) and len({pid for pid, _ in said}) == 2
    for form, name in enumerate(("short", "short, compacted", "short, restarted")):
        total = recomputed = 0
        for turn in range(3):
            r = next(q for q in doc["requests"] if q["phase"] == name and q["index"] == turn)["result"]
            new = r["prompt_tokens"] - r["cached_tokens"]
            row = summary(doc, "fake", "turn_recomputed_tokens", "replay", f"{name} #{turn + 1:02d}")
            assert row["median"] == new
            kept = turn and (form, turn) != (1, 2) and form * 3 + turn != cut
            assert (new < r["prompt_tokens"] / 1.4) == bool(kept), (name, turn, r)
            total, recomputed = total + r["prompt_tokens"], recomputed + new
        assert summary(doc, "fake", "replay_recomputed_share", "replay", name)["median"] == \
            pytest.approx(100 * recomputed / total, rel=1e-6)


SMALL = ["--diagnostic", "--rounds", "1", "--ctx", "1024", "--runs", "1", "--tokens", "6", "--ttft-runs", "0",
         "--context", "256", "--concurrent", "2", "--ready", "60", "--ignore-eos", "--threads", "1"]


def test_own_arms_run(bench):
    """Every arm of this program, with a tiny model; prompts kept on disk outlive a restart."""
    own = ["quern", "quern-serial", "quern-kv", "quern-spec", "quern-isolated", "quern-disk"]
    _, doc = bench(*own, "again=quern", *SMALL, rc=0)
    assert [c["arm"] for c in doc["cells"]] == [*own, "again"] and not doc["failures"]
    for name in own:
        assert summary(doc, name, "e2e_tps")["n"] == 1 and summary(doc, name, "concurrent_tps")["n"] == 1
        kept = summary(doc, name, "restart_cached_tokens")["median"]
        assert (kept > 200) == (name == "quern-disk"), (name, kept)
    texts = {p["arm"]: p["text"] for p in doc["parity"] if p["probe"] == "completion"}
    assert len({texts[n] for n in ("quern", "quern-serial", "quern-spec", "quern-isolated", "again")}) == 1


def test_native(bench, quern, model, tmp_path):
    """The engine without HTTP: from the same prompts, frozen; the difference is the server's."""
    out, ids = tmp_path / "native.json", tmp_path / "ids.json"
    args = ["bench", "native", "--model", model, "--tokens", "6", "--ignore-eos", "--threads", "1"]
    said = quern(*args, "--repeat", "2", "--ttft-tokens", "100", "--out", out, ok=True).stdout
    assert re.search(r"^decode_tps +[\d.]+ \(median of 2\)$", said, re.M)
    doc = json.loads(out.read_text())
    assert doc["format"] == "quern-bench" and doc["schema"] == 1
    prompts = doc["prompt_ids"]
    assert len(prompts["decode"]) == len(prompts["ttft"]) == 2
    text = bytes(i for i in prompts["decode"][0] if i < 256).decode()  # the tiny vocabulary is bytes
    nonce = re.fullmatch(r"user\nRun ([0-9a-f]{12}): write a detailed essay about the history of computing\."
                         r"\nassistant\n", text).group(1)
    rows = {s["metric"]: s for s in doc["summary"]}
    assert set(rows) == {"decode_tps", "ttft_cold_ms", "prefill_tps"}
    assert all(r["arm"] == "native" and r["n"] == 2 for r in rows.values())
    for ttft, speed, p in zip(rows["ttft_cold_ms"]["samples"], rows["prefill_tps"]["samples"], prompts["ttft"]):
        assert speed == pytest.approx(len(p) * 1000 / ttft, rel=1e-9)
    _, served = bench("quern", *SMALL, "--context", "0", rc=0)
    first = next(r for r in served["requests"] if r["phase"] == "decode")
    assert nonce in first["content"] and first["result"]["prompt_tokens"] == len(prompts["decode"][0])
    (tmp_path / "served.json").write_text(record("tiny", "", [50, 60, 70]))
    said = quern(*args, "--ids", out, "--against", tmp_path / "served.json", ok=True).stdout
    native, more, ms = map(float, re.search(r"server, decode: 60\.0 of ([\d.]+) tok/s: overhead (-?[\d.]+) % "
                                            r"\((-?[\d.]+) ms a token\)", said).groups())
    assert more == pytest.approx(100 * (native / 60 - 1), abs=0.3)
    assert ms == pytest.approx(1000 / 60 - 1000 / native, abs=0.05)
    ids.write_text("[[1, 2, 999999]]")
    assert "token 2 is not in 0..511" in quern(*args, "--ids", ids, ok=False).stderr
    reference = tmp_path / "float32.json"
    quern("bench", "native", "--model", model, "--reference", reference, "--ignore-eos", ok=True)
    probes = json.loads(reference.read_text())["probes"]
    assert [(p["arm"], p["probe"]) for p in probes] == [("float32", "completion"), ("float32", "chat")]
    _, served = bench("quern", *SMALL, "--context", "0", "--reference", reference, rc=0)
    assert [p["arm"] for p in served["parity"]] == ["float32", "float32", "quern", "quern"]


@pytest.mark.parametrize("behaviour, kind", [
    ("usage", "no_usage"), ("usage-type", "bad_usage"), ("utf8", "bad_utf8"), ("json", "bad_json"),
    ("done", "no_done"), ("after-done", "after_done"), ("finish", "no_finish"), ("half", "truncated"),
    ("status", "http_status"), ("error", "error_event"), ("raw500", "bad_framing"),
    ("counts", "wrong_counts"), ("type", "content_type"), ("stall", "stall")])
def test_faults_are_named(bench, arm, behaviour, kind):
    file, _ = arm(behaviour)
    r, doc = bench(file, *QUICK, "--stall", "1")
    assert r.returncode == 1
    first = doc["requests"][0]
    assert first["error"]["kind"] == kind, first["error"]
    assert first["phase"] == "warmup"
    tries = [f for f in doc["failures"] if f["phase"] == "warmup"]
    assert [f["attempt"] for f in tries] == [0, 1] and kind in tries[0]["message"]
    assert not [s for s in doc["summary"] if s["metric"] == "cold_start_ms"]
    assert "failures" in r.stdout


def test_a_fault_that_passes_is_tried_again_and_kept(bench, arm):
    file, _ = arm("usage-once")
    _, doc = bench(file, *QUICK)
    warm = [r for r in doc["requests"] if r["phase"] == "warmup"]
    assert [r["attempt"] for r in warm] == [0, 1]
    assert "error" in warm[0] and "error" not in warm[1]
    assert len(doc["failures"]) == 1
    assert summary(doc, "fake", "cold_start_ms")["n"] == 1


def test_a_dead_server_is_restarted_once(bench, arm):
    file, _ = arm("die-once")
    _, doc = bench(file, *QUICK)
    cell = doc["cells"][0]
    assert cell["restarts"] == 1 and not cell["gave_up"]
    assert doc["failures"][0]["server"] == "exit status 7"
    assert "dying as told" in doc["failures"][0]["stderr_tail"]
    assert doc["requests"][0]["error"]["kind"] == "truncated"
    assert summary(doc, "fake", "cold_start_ms")["n"] == 1
    file, _ = arm("die", "mortal")
    _, doc = bench(file, *QUICK)
    assert doc["cells"][0]["restarts"] == 1 and doc["cells"][0]["gave_up"]


def test_rounds_go_round_the_arms(bench, arm):
    a, _ = arm("good", "a")
    b, _ = arm("good", "b")
    options = ["2" if x == "1" and QUICK[i - 1] == "--rounds" else x for i, x in enumerate(QUICK)]
    r, doc = bench(a, b, *options, rc=0)
    assert [(c["arm"], c["round"]) for c in doc["cells"]] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert doc["manifest"]["model"]["files"] and len(doc["manifest"]["harness_sha256"]) == 64
    source = doc["manifest"]["source"]
    assert re.fullmatch("[0-9a-f]{64}", source["sha256"]) and isinstance(source["changed"], bool)
    assert source["commit"] is None or re.fullmatch("[0-9a-f]{40}", source["commit"])
    assert all(a["ran"] for a in doc["arms"])
    assert doc["diagnostic"] and any("diagnostic" in m for m in doc["marks"])
    assert "\r" not in r.stderr  # no progress line in a pipe


def test_what_cannot_run_is_said(bench, arm):
    file, _ = arm("good")
    r, doc = bench(file, "llama.cpp", *QUICK, rc=0)
    assert "llama.cpp does not run: --gguf is not given" in r.stderr
    assert [a["name"] for a in doc["arms"] if not a["ran"]] == ["llama.cpp"]
    r, _ = bench("nothing.arm", *QUICK, rc=1)
    assert "neither a built-in arm" in r.stderr


def test_a_server_that_runs_already(bench, tmp_path):
    """Nothing is started, ended or known of its processes; nobody is accused of using processors."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-B", str(FAKE), str(port), str(tmp_path / "sent"), "good"])
    try:
        _, doc = bench(f"http://127.0.0.1:{port}/v1/", *QUICK, "--context", "64", rc=0)
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()
    cell = doc["cells"][0]
    assert doc["arms"][0]["name"] == f"127.0.0.1:{port}" and doc["arms"][0]["url"]
    assert cell["foreign_processors"] is None and not any("during" in m for m in doc["marks"])
    metrics = {s["metric"] for s in doc["summary"]}
    assert "ctx_ttft_ms" in metrics and not metrics & {"ready_ms", "restart_ttft_ms", "peak_rss_mib"}


def test_dry_run_starts_nothing(bench, arm, tmp_path):
    file, log = arm("good")
    r, doc = bench(file, "mlx-lm", "--python", "/bin/false", "--dry-run", "-w", "matrix,load,replay", rc=0)
    assert doc is None and not log.exists()
    for part in ("estimate", "Poisson 0.5/s", "mend-a-bug, compacted", "cannot run: false fails"):
        assert part in r.stdout, r.stdout
    wordy = tmp_path / "wordy"  # of many lines the last says why
    wordy.write_text("#!/bin/sh\nprintf 'Traceback\\n  File x\\nno such module\\n\\n' >&2; exit 1\n")
    wordy.chmod(0o755)
    r, _ = bench(file, "mlx-lm", "--python", str(wordy), "--dry-run", rc=0)
    assert "cannot run: wordy fails: no such module\n" in r.stdout


def test_interrupted_keeps_what_was_measured(env, model, arm, tmp_path):
    file, log = arm("good")
    options = [o for o in QUICK if o != "--runs"]
    options.remove("0")
    p = subprocess.Popen([str(QUERN), "bench", "serve", str(file), *options, "--runs", "100", "--tokens",
                          "20", "--model", str(model), "--out", str(tmp_path / "run")], env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(1000):
        if log.exists() and len(sent(log)) >= 5:
            break
        time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 130 and "interrupted" in out
    doc = json.loads((tmp_path / "run.json").read_text())
    assert doc["status"] == "interrupted" and len(doc["requests"]) >= 4
    assert summary(doc, "fake", "cold_start_ms")["n"] == 1
    assert (tmp_path / "run.html").exists() and (tmp_path / "run.md").exists()


def record(model, label, rates, diagnostic=False):
    rows = [{"arm": "quern", "workload": "matrix", "point": "", "metric": "decode_tps", "title": "decode",
             "unit": "tok/s", "better": "higher", "headline": True, "n": len(rates), "mad": 0,
             "median": statistics.median(rates), "min": min(rates), "max": max(rates), "stable": True,
             "samples": rates}]
    return json.dumps({"format": "quern-bench", "schema": 1, "status": "complete", "label": label,
                       "began_unix": 1, "version": "1", "diagnostic": diagnostic, "marks": [],
                       "manifest": {"model": {"name": model}}, "machine": {"processor": "cpu"},
                       "summary": rows, "requests": [1, 2, 3]})


def test_history_and_comparison(quern, env, tmp_path):
    files = []
    for i, (label, rates, diagnostic) in enumerate((("first", [99, 100, 101], False),
                                                    ("noise", [100, 101, 102], False),
                                                    ("faster", [119, 120, 121], False),
                                                    ("trial", [500], True))):
        files.append(tmp_path / f"{i}.json")
        files[-1].write_text(record("m", label, rates, diagnostic))
    assert "No runs" in quern("bench", "history", ok=True).stdout
    for n, f in enumerate(files, 1):
        assert f"run {n}" in quern("bench", "history", "--add", f, ok=True).stdout
    assert "run 2" in quern("bench", "history", "--add", files[1], ok=True).stdout  # kept once
    listed = quern("bench", "history", ok=True).stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["4", "3", "2", "1"]
    assert "trial; diagnostic" in listed[1]
    trend = quern("bench", "history", "--metric", "decode_tps", ok=True).stdout.splitlines()[:-1]
    assert len(trend) == 3  # not the diagnostic one
    assert "+1.0 % (within the noise)" in trend[1] and trend[2].endswith("+18.8 %")
    out = quern("bench", "compare", "1", "3", ok=True).stdout
    assert re.search(r"better 20\.0 %$", out, re.M) and "1 of 1 figures differ" in out
    out = quern("bench", "compare", files[2], files[0], ok=True).stdout
    assert "worse  20.0 %" in out
    out = quern("bench", "compare", "1", "2", ok=True).stdout
    assert "(within the noise)" in out and "no difference: none of 1 figures" in out
    assert "diagnostic" in quern("bench", "compare", "1", "4", ok=False).stderr
    assert "no run 9" in quern("bench", "compare", "1", "9", ok=False).stderr
    (tmp_path / "x.json").write_text("{}")
    assert "no record" in quern("bench", "history", "--add", tmp_path / "x.json", ok=False).stderr


def test_history_page_and_show(quern, tmp_path):
    for i, rates in enumerate(([99, 100, 101], [100, 101, 102], [119, 120, 121])):
        (tmp_path / f"{i}.json").write_text(record("m<x>", f"run & {i}", rates))
        quern("bench", "history", "--add", tmp_path / f"{i}.json", ok=True)
    page = tmp_path / "history.html"
    quern("bench", "history", "--out", page, ok=True)
    text = page.read_text()
    assert text.count("<svg") == 1 and text.count("whisker l0") == 3  # one figure, three runs
    assert "+18.8 %" in text and "(within the noise)" not in text  # the newest change
    assert "m&lt;x&gt;, cpu" in text and "run &amp; 2" in text and "<script" not in text
    quern("bench", "history", "--out", page, "--metric", "ttft_cold_ms", ok=True)
    assert "No run has such a figure" in page.read_text()
    assert re.search("^[▁▂▃▄▅▆▇█]{3}  m<x>", quern("bench", "history", "--metric", "decode_tps", ok=True).stdout, re.M)
    assert "| decode | tok/s | 120 (119–121) |" in quern("bench", "show", "3", ok=True).stdout
    out = quern("bench", "show", tmp_path / "0.json", "--table", ok=True).stdout
    assert out == "| | quern |\n|---|---|\n| decode, tokens/s | 100 |\n"
    assert "<svg" in quern("bench", "show", "1", "--html", ok=True).stdout
    (tmp_path / "x.json").write_text("{}")
    assert "no record" in quern("bench", "show", tmp_path / "x.json", ok=False).stderr
    assert quern("bench", "show", "1", "--html", "--md").returncode == 2


def test_arms_of_one_run_are_compared(quern, tmp_path):
    """The same thing measured as two arms is no difference; another one is."""
    doc = json.loads(record("m", "", [99, 100, 101]))
    rows = doc["summary"]
    for arm, rates in (("again", [98.5, 101, 102]), ("slow", [49, 50, 51])):
        rows += [{**r, "arm": arm} for r in json.loads(record("m", "", rates))["summary"]]
    file = tmp_path / "run.json"
    file.write_text(json.dumps(doc))
    assert "no difference" in quern("bench", "compare", file, "--arms", "quern,again", ok=True).stdout
    out = quern("bench", "compare", file, "--arms", "quern,slow", ok=True).stdout
    assert "worse  100.0 %\n" in out and "1 of 1 figures differ" in out
    assert "has no arm fast" in quern("bench", "compare", file, "--arms", "quern,fast", ok=False).stderr
    for args in ((file,), (file, "--arms", "quern")):
        assert quern("bench", "compare", *args).returncode == 2


def test_a_run_is_kept(bench, arm, quern, tmp_path):
    file, _ = arm("good")
    r, _ = bench(file, *QUICK, "--label", "kept", rc=0)
    for ext in ("md", "html"):  # the reports follow from the record
        assert quern("bench", "show", tmp_path / "run.json", f"--{ext}", ok=True).stdout == \
            (tmp_path / f"run.{ext}").read_text()
    assert "kept as run 1" in r.stdout
    assert "kept; diagnostic" in quern("bench", "history", ok=True).stdout


def test_screenshot(bench, arm, quern, tmp_path):
    """The report in headless Chromium, light and dark: something is drawn, and the two differ."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if not chromium:
        pytest.skip("no headless Chromium: apt-get install chromium-headless-shell")
    file, _ = arm("good")
    bench(file, *QUICK, rc=0)
    (tmp_path / "kept.json").write_text(record("m", "", [50, 100]))
    quern("bench", "history", "--add", tmp_path / "kept.json", "--out", tmp_path / "history.html", ok=True)
    shots = []
    for scheme, page in ((1, "run"), (0, "run"), (0, "history")):
        shot = tmp_path / f"{scheme}{page}.png"
        subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--blink-settings=preferredColorScheme={scheme}", "--window-size=600,1000",
                        f"--screenshot={shot}", f"file://{tmp_path / page}.html"],
                       check=True, capture_output=True, timeout=90)
        shots.append(pixels(shot.read_bytes()))
    light, dark, history = shots
    assert light["size"] == dark["size"] == (600, 1000)
    assert history["mean"] < 80 and history["teal"] > 20  # a dot, a whisker, a key
    assert light["mean"] > 200 and dark["mean"] < 80  # a page and its night
    for shot in (light, dark):
        assert shot["teal"] > 500, shot  # the first arm's bars are there


def pixels(png):
    """Size, mean brightness and the number of teal pixels of an 8-bit PNG, by the standard library."""
    at, data, head = 8, b"", None
    while at < len(png):
        n, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + n]
        head = struct.unpack(">IIBB", body[:10]) if kind == b"IHDR" else head
        data += body if kind == b"IDAT" else b""
        at += 12 + n
    width, height, depth, colour = head
    step = {2: 3, 6: 4}[colour]
    assert depth == 8
    raw, stride, last = zlib.decompress(data), width * step, bytearray(width * step)
    total = teal = 0
    for y in range(height):
        row = bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        unfilter(raw[y * (stride + 1)], row, last, step)
        last = row
        if y % 4 == 0:
            r, g, b = row[0::step], row[1::step], row[2::step]
            total += sum(g)
            teal += sum(1 for i in range(width) if g[i] > 95 and g[i] - r[i] > 60 and abs(g[i] - b[i]) < 40)
    return {"size": (width, height), "mean": total / (width * ((height + 3) // 4)), "teal": teal}


def unfilter(kind, row, last, step):
    for i in range(len(row)) if kind else ():
        a = row[i - step] if i >= step else 0
        b, c = last[i], last[i - step] if i >= step else 0
        if kind == 4:
            p = a + b - c
            best = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        row[i] = (row[i] + (a, b, (a + b) // 2, best if kind == 4 else 0)[kind - 1]) & 255
