#!/usr/bin/env python3
"""run_tests.py - the whole test suite, as `make test` and CI run it.

Streams progress, shows the output of what failed, and ends with one line
    N passed, N failed, N skipped
summed over checks, test cases of the C programs, fuzz replays and pytest. Exit code 1 when
anything failed. Stages can be chosen: run_tests.py [--build DIR] [--quick] [STAGE...].
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Suites that a sanitizer build leaves out: Python tools, and what takes minutes under one.
NOT_SANITIZED = ("tools", "kcheck", "slow")
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
SANITIZER_ENV = {"ASAN_OPTIONS": "allocator_may_return_null=1",
                 "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
                 "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}
# The cache against its oracles: the tree alone, the tree over pages, both with the disk behind them.
CACHE_SOAK = ["tests/unit/cache/test_ptree", "tests/unit/cache/test_cache_pages", "tests/unit/cache/test_cache_disk"]
JOBS = str(os.cpu_count() or 2)
# Time limits are for programs that hang; a machine busy with other work needs more than the usual.
PATIENCE = "5"
PYTEST = ("tests/cli", "tests/http", "tests/oracle", "tests/import")

# What a C test program says about its cases: cmocka, then Python's unittest.
CMOCKA = re.compile(r"^\[  (PASSED|FAILED|SKIPPED) +\] (\d+) test\(s\)", re.M)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(OK|FAILED)(?: \((.*)\))?", re.M)


class Tally:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures = []
        self.times = []

    def add(self, passed=0, failed=0, skipped=0, name=""):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped
        if failed:
            self.failures.append(name)

    def timed(self, name, seconds):
        self.times.append((seconds, name))


def say(text):
    print(f"== {text}", flush=True)


def count_cases(text, result):
    """(passed, failed, skipped) of one program's output; its exit status has the last word."""
    n = {"PASSED": 0, "FAILED": 0, "SKIPPED": 0}
    for kind, k in CMOCKA.findall(text):
        n[kind] += int(k)
    for ran, _, notes in UNITTEST.findall(text):
        parts = dict(re.findall(r"(\w+)=(\d+)", notes or ""))
        bad = int(parts.get("failures", 0)) + int(parts.get("errors", 0))
        off = int(parts.get("skipped", 0))
        n["FAILED"] += bad
        n["SKIPPED"] += off
        n["PASSED"] += int(ran) - bad - off
    passed, failed, skipped = n["PASSED"], n["FAILED"], n["SKIPPED"]
    if result == "SKIP":
        return 0, 0, max(1, skipped)
    if result in ("OK", "EXPECTEDFAIL"):
        return (passed if passed + skipped else 1), 0, skipped
    return passed, max(1, failed), skipped


class Runner:
    def __init__(self, build, quick):
        self.build = build
        self.quick = quick
        self.tally = Tally()

    def check(self, name, command, env=None):
        """One command that passes or fails; its output is shown only when it says something."""
        start = time.monotonic()
        r = subprocess.run(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
        ok = r.returncode == 0
        self.tally.add(passed=int(ok), failed=int(not ok), name=name)
        self.tally.timed(name, time.monotonic() - start)
        last = r.stdout.strip().split("\n")[-1] if ok else ""
        print(f"{'ok  ' if ok else 'FAIL'} {name} ({time.monotonic() - start:.1f} s) {last}", flush=True)
        if not ok:
            print(r.stdout[-20000:], flush=True)
        return ok

    # ---- builds ----------------------------------------------------------------------------

    def configure(self, folder, options, cc):
        env = dict(os.environ, CC=cc)
        fresh = not (folder / "build.ninja").exists()
        # An aborted setup leaves a folder that meson refuses; start that one again.
        command = ["meson", "setup", *(["--wipe"] if fresh and (folder / "meson-private").exists() else []),
                   str(folder), str(ROOT), *options]
        if not fresh:
            # The sources may have new tests since: regenerate before anyone asks for the list.
            command = ["ninja", "-C", str(folder), "build.ninja"]
            return subprocess.run(command, capture_output=True).returncode == 0 or \
                self.check(f"configure {os.path.relpath(folder, ROOT)}", command)
        return self.check(f"configure {os.path.relpath(folder, ROOT)}", command, env)

    def compile(self, folder, targets=()):
        return self.check(f"build {os.path.relpath(folder, ROOT)}",
                          ["ninja", "-C", str(folder), "-j", JOBS, *targets])

    def introspect(self, folder, what):
        r = subprocess.run(["meson", "introspect", f"--{what}", str(folder)], capture_output=True, text=True)
        return json.loads(r.stdout) if r.returncode == 0 else []

    def tests_of(self, folder, only, without):
        """The tests in suite `only` (None: any) and in none of the suites `without`."""
        def suites(t):
            return {s.split(":")[-1] for s in t["suite"]}
        return [t for t in self.introspect(folder, "tests")
                if (only is None or only in suites(t)) and not suites(t) & set(without)]

    def meson_test(self, folder, title, only=None, without=(), patience=PATIENCE):
        chosen = self.tests_of(folder, only, without)
        if not chosen:
            say(f"{title}: no tests")
            return
        say(f"{title}: {len(chosen)} programs")
        log = folder / "meson-logs" / "testlog.json"
        log.unlink(missing_ok=True)
        env = dict(os.environ, **SANITIZER_ENV)
        command = ["meson", "test", "-C", str(folder), "--no-rebuild", "--print-errorlogs",
                   "--num-processes", JOBS, "--timeout-multiplier", patience]
        command += ["--suite", only] if only else []
        for s in without:
            command += ["--no-suite", s]
        rc = subprocess.run(command, cwd=ROOT, env=env).returncode
        if not log.exists():
            self.tally.add(failed=1, name=f"{title}: meson test ended with {rc} and no log")
            return
        bad = 0
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            t = json.loads(line)
            passed, failed, skipped = count_cases(t.get("stdout", "") + t.get("stderr", ""), t["result"])
            self.tally.add(passed, failed, skipped, f"{title}: {t['name']}")
            self.tally.timed(f"{title}: {t['name']}", t["duration"])
            bad += failed
        if rc and not bad:
            self.tally.add(failed=1, name=f"{title}: meson test ended with {rc}")

    def programs_of(self, folder, tests):
        """ninja targets that `tests` run, so that a sanitizer build compiles no more than those."""
        built = {f for t in self.introspect(folder, "targets") for f in t["filename"]}
        used = {c for t in tests for c in t["cmd"]} & built
        return sorted(os.path.relpath(f, folder) for f in used)

    # ---- stages ----------------------------------------------------------------------------

    def stage_checks(self):
        say("checks of the source tree")
        for name in ("layers", "headers", "lengths"):
            self.check(name, [sys.executable, f"tools/check_{name}.py"])
        if shutil.which("clang-format-14") or shutil.which("clang-format"):
            self.check("format", ["tools/format.sh", "--check"])
        else:
            print("skip format: clang-format is not installed", flush=True)
            self.tally.add(skipped=1)

    def stage_gcc(self):
        if not self.configure(self.build, ["-Dtests=enabled"], "gcc"):
            return
        # `make run` may have configured this folder on a machine without the test library.
        tests = [o["value"] for o in self.introspect(self.build, "buildoptions") if o["name"] == "tests"]
        if tests != ["enabled"] and not self.check(
                "switch the tests on", ["meson", "configure", str(self.build), "-Dtests=enabled"]):
            return
        if self.compile(self.build):
            link = self.build / "quern"
            if not link.is_symlink():
                link.symlink_to("src/cli/quern")
            self.meson_test(self.build, "tests, gcc")

    def sanitizer_build(self, name, whole=False):
        """The configured folder, or None. whole: nothing is left out of its tests for time."""
        folder = self.build / (f"{name}-whole" if whole else name)
        args = "['-g1', '-DFEWER=0']" if whole else "-g1"
        # Warnings are errors in the plain builds; gcc's guesses differ under instrumentation.
        options = [f"-Db_sanitize={SANITIZERS[name]}", "-Db_lundef=false", "-Doptimization=1",
                   f"-Dc_args={args}", "-Dwerror=false"]
        return folder if self.configure(folder, options, "gcc") else None

    def sanitized(self, name, title, only=None, without=(), whole=False):
        folder = self.sanitizer_build(name, whole)
        if not folder:
            return
        targets = self.programs_of(folder, self.tests_of(folder, only, without))
        if not targets:
            say(f"{title}: no tests")
        elif self.compile(folder, targets):
            self.meson_test(folder, title, only, without, "50" if whole else PATIENCE)

    def stage_asan(self):
        self.sanitized("asan", "address and undefined-behaviour sanitizers",
                       without=NOT_SANITIZED)

    def stage_tsan(self):
        self.sanitized("tsan", "thread sanitizer", only="thread")

    def stage_sanitize_all(self):
        """What the two stages above leave out for time, too (tests/sanitized.h)."""
        self.sanitized("asan", "address and undefined-behaviour sanitizers, whole", without=("tools",), whole=True)
        self.sanitized("tsan", "thread sanitizer, whole", only="thread", whole=True)

    def stage_cache_soak(self):
        """Random operations against the cache's tree, KV pages and disk: QUERN_CACHE_OPS of each kind."""
        env = dict(os.environ, **SANITIZER_ENV)
        env.setdefault("QUERN_CACHE_OPS", "25000")
        if os.access("/dev/shm", os.W_OK):
            env.setdefault("TMPDIR", "/dev/shm")  # syncing a real disk takes most of the time
        say(f"{env['QUERN_CACHE_OPS']} operations in each of a program's runs (4, 10 and 15)")
        for name in SANITIZERS:
            folder = self.sanitizer_build(name)
            if folder and self.compile(folder, CACHE_SOAK):
                for program in CACHE_SOAK:
                    self.check(f"{name}: {os.path.basename(program)}", [str(folder / program)], env)

    def stage_clang(self):
        if not shutil.which("clang"):
            print("skip clang: not installed", flush=True)
            self.tally.add(skipped=1)
            return
        folder = self.build / "clang"
        if not self.configure(folder, [], "clang"):
            return
        made = [os.path.relpath(f, folder) for t in self.introspect(folder, "targets")
                if t["type"] == "custom" for f in t["filename"]]
        if self.compile(folder, made):
            self.check("clang's warnings", [sys.executable, "tools/check_clang.py", str(folder)])

    def python_env(self):
        build, shared = self.build, ROOT.parent / "shared"
        env = dict(os.environ, QUERN_BIN=str(build / "quern"), QUERN_BUILD=str(build),
                   QUERN_TOK_DUMP=str(build / "tests/unit/tok/tok_dump"),
                   QUERN_TMPL_DUMP=str(build / "tests/unit/tmpl/tmpl_dump"), PYTHONDONTWRITEBYTECODE="1")
        env.setdefault("QUERN_TOK_SIZE", "small")
        if shared.is_dir():
            env.setdefault("QUERN_SHARED", str(shared))
        return env

    def stage_python(self):
        for folder in PYTEST:
            if list((ROOT / folder).glob("test_*.py")):
                self.pytest(folder)

    def pytest(self, folder):
        """One process per folder: each has a conftest of its own."""
        say(f"pytest: {folder}")
        python = self.build / "venv" / "bin" / "python"
        report = self.build / "pytest.xml"
        report.unlink(missing_ok=True)
        # -rs: why something was skipped
        rc = subprocess.run([str(python if python.exists() else sys.executable), "-m", "pytest", "-q", "-rs",
                             "-p", "no:cacheprovider", f"--junitxml={report}", folder],
                            cwd=ROOT, env=self.python_env()).returncode
        if not report.exists():
            self.tally.add(failed=1, name=f"{folder}: pytest ended with {rc} and no report")
            return
        bad = 0
        for suite in ET.parse(report).getroot().iter("testsuite"):
            n = {k: int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped")}
            bad = n["failures"] + n["errors"]
            self.tally.add(n["tests"] - bad - n["skipped"], bad, n["skipped"], folder)
            for t in suite.iter("testcase"):
                self.tally.timed(f"{folder}: {t.get('name')}", float(t.get("time", 0)))
        if rc != 0 and not bad:
            self.tally.add(failed=1, name=f"{folder}: pytest ended with {rc}")


STAGES = ["checks", "gcc", "python", "asan", "tsan", "clang"]
QUICK = ["checks", "gcc"]
LONG = ["cache-soak", "sanitize-all"]  # only by name


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--build", default=str(ROOT / "build"), help="build folder")
    ap.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}")
    ap.add_argument("stage", nargs="*", help=f"of {', '.join(STAGES)}, all when none is given; or {', '.join(LONG)}")
    args = ap.parse_args()
    unknown = [s for s in args.stage if s not in STAGES + LONG]
    if unknown:
        ap.error(f"unknown stage {unknown[0]}; the stages are {', '.join(STAGES + LONG)}")
    runner = Runner(pathlib.Path(args.build).resolve(), args.quick)
    start = time.monotonic()
    for stage in args.stage or (QUICK if args.quick else STAGES):
        getattr(runner, "stage_" + stage.replace("-", "_"))()
    t = runner.tally
    slowest = sorted(t.times, reverse=True)[:15]
    say("the slowest")
    for seconds, name in slowest:
        print(f"{seconds:7.1f} s  {name}")
    print(f"\n{time.monotonic() - start:.0f} seconds")
    for name in t.failures:
        print(f"failed: {name}")
    print(f"{t.passed} passed, {t.failed} failed, {t.skipped} skipped", flush=True)
    return 1 if t.failed else 0


if __name__ == "__main__":
    sys.exit(main())
