"""The two programs under comparison: how each is called and how its output is read.

Owns: the command lines and the parsing of `llama-bench`, `llama-completion`, `quern bench` and
`quern generate`. Invariant: both get the same model, prompt length, token count, threads and CPUs,
and a figure that is missing or not a positive number is an error, never a zero in a table.
Statistics and tables are in compare.py.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import threading
import time

import peer_machine

# Ten tokens in the GPT-2 style vocabulary of SmolLM2 (both programs report the count they saw).
TEN_TOKENS = "The capital of France is Paris. It is a"
TIMEOUT_S = 900


class RunError(Exception):
    """A program failed or printed something that cannot be read."""


def run(command, env=None):
    """Standard output of the command; its last words when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=env,
                              check=False, errors="replace", stdin=subprocess.DEVNULL)
    except FileNotFoundError as e:
        raise RunError(f"{e.filename}: not found") from e
    except subprocess.TimeoutExpired as e:
        raise RunError(f"{' '.join(command)}: no end after {TIMEOUT_S} s") from e
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise RunError(f"{' '.join(command)}: exit status {done.returncode}\n{tail}")
    return done.stdout


def positive(value, what):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise RunError(f"{what} is {value!r}; expected a number above 0")
    return float(value)


def parse_json(text, who):
    try:
        return json.loads(text)
    except ValueError as e:
        raise RunError(f"{who}: output is not JSON ({e}): {text[:200]!r}") from e


def llama_rates(output, prefill, decode):
    """{"prefill": tokens/s, "decode": tokens/s} and the run's facts from `llama-bench -o json`."""
    rates, facts = {}, {}
    for test in parse_json(output, "llama-bench"):
        shape = (test.get("n_prompt"), test.get("n_gen"))
        kind = {(prefill, 0): "prefill", (0, decode): "decode"}.get(shape)
        if kind:
            rates[kind] = positive(test.get("avg_ts"), f"llama-bench {kind} avg_ts")
        facts = {k: test.get(k) for k in ("build_commit", "backends", "model_type", "model_size",
                                          "model_n_params", "n_batch", "n_ubatch", "type_k",
                                          "type_v", "flash_attn", "repack", "load_mode", "poll",
                                          "cpu_strict")}
    for kind in ("prefill", "decode"):
        if kind not in rates:
            raise RunError(f"llama-bench: no {kind} result in its output")
    return rates, facts


RATE_KEYS = ("median_tok_s", "median_tok_per_s", "tok_s", "tok_per_s", "tokens_per_second",
             "tokens_per_s")


def quern_rate(result):
    """The rate in one result of `quern bench`: a number, {"median": x}, or a list of samples."""
    for key in RATE_KEYS:
        value = result.get(key)
        if isinstance(value, dict):
            value = value.get("median")
        if isinstance(value, list) and value:
            value = statistics.median(value)
        if value is not None:
            return positive(value, f"quern bench {key}")
    raise RunError(f"quern bench: a result has none of {', '.join(RATE_KEYS)}; "
                   f"it has {', '.join(sorted(result))}")


def quern_rates(output, prefill, decode):
    """The same two rates from `quern bench --format json`.

    It holds "results", a list with one object per test: its kind under "kind" or "test"
    ("prefill" or "decode", or llama-bench's "pp512", "tg128"), its size under "tokens" if given.
    """
    document = parse_json(output, "quern bench")
    results = document.get("results") if isinstance(document, dict) else document
    if not isinstance(results, list):
        raise RunError('quern bench: no list "results" in its output')
    wanted = {"prefill": prefill, "decode": decode}
    names = {"prefill": "prefill", "decode": "decode",
             f"pp{prefill}": "prefill", f"tg{decode}": "decode"}
    rates = {}
    for result in results:
        kind = names.get(str(result.get("kind", result.get("test"))))
        if kind and result.get("tokens", wanted[kind]) == wanted[kind]:
            rates[kind] = quern_rate(result)
    for kind in wanted:
        if kind not in rates:
            raise RunError(f"quern bench: no {kind} result of {wanted[kind]} tokens in its output")
    facts = {k: v for k, v in document.items() if k != "results"} \
        if isinstance(document, dict) else {}
    return rates, facts


def first_byte(command, env=None):
    """Runs the command; seconds to its first byte on stdout and to its end, peak RSS, stderr.

    The peak is the kernel's ru_maxrss of the child (resident file pages included). It cannot be
    lower than this interpreter's own (about 15 MB), which the child starts from.
    """
    start = time.monotonic()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=env)
    except FileNotFoundError as e:
        raise RunError(f"{e.filename}: not found") from e
    errors = []
    drain = threading.Thread(target=lambda: errors.append(child.stderr.read()))
    drain.start()
    head = os.read(child.stdout.fileno(), 1)
    first_s = time.monotonic() - start
    rest = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    end_s = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    drain.join()
    child.stdout.close()
    child.stderr.close()
    stderr = errors[0].decode(errors="replace")
    if child.returncode != 0 or not head:
        tail = "\n".join(stderr.strip().splitlines()[-8:])
        raise RunError(f"{' '.join(command)}: exit status {child.returncode}, "
                       f"{len(head) + len(rest)} bytes of output\n{tail}")
    return {"first_s": first_s, "end_s": end_s, "peak_rss_bytes": usage.ru_maxrss * 1024,
            "text": (head + rest).decode(errors="replace")}, stderr


class LlamaCpp:
    """llama.cpp, from the folder that build_llama_cpp.sh fills."""

    name = "llama.cpp"

    def __init__(self, bin_folder, gguf, extra=()):
        self.bin = pathlib.Path(bin_folder)
        self.gguf = pathlib.Path(gguf)
        self.extra = list(extra)

    def version(self):
        root = self.bin.resolve().parent.parent.name
        return root if root.startswith("llama.cpp-") else "llama.cpp, version unknown"

    def weight_bytes(self):
        return self.gguf.stat().st_size

    def bench(self, cpus, prefill, decode):
        output = run(peer_machine.pinned(cpus, [
            str(self.bin / "llama-bench"), "-m", str(self.gguf), "-p", str(prefill),
            "-n", str(decode), "-t", str(len(cpus)), "-r", "1", "-o", "json", *self.extra]))
        return llama_rates(output, prefill, decode)

    def first_token(self, cpus, tokens):
        result, stderr = first_byte(peer_machine.pinned(cpus, [
            str(self.bin / "llama-completion"), "-m", str(self.gguf), "-t", str(len(cpus)),
            "-p", TEN_TOKENS, "-n", str(tokens), "-c", "512", "--temp", "0", "-no-cnv",
            "--no-display-prompt", "--simple-io", "--no-warmup", "--perf"]))
        seen = re.search(r"prompt eval time.*?/\s*(\d+) tokens", stderr)
        result["prompt_tokens"] = int(seen.group(1)) if seen else None
        return result


class Quern:
    """quern, with the model folder that `quern convert` made from the same GGUF file."""

    name = "quern"

    def __init__(self, program, model, extra=()):
        self.program = str(program)
        self.model = pathlib.Path(model)
        self.extra = list(extra)

    def version(self):
        return run([self.program, "version"]).strip().splitlines()[0]

    def weight_bytes(self):
        total = sum(f.stat().st_size for f in self.model.glob("*.safetensors"))
        if total == 0:
            raise RunError(f"{self.model}: no .safetensors file there")
        return total

    def bench(self, cpus, prefill, decode):
        output = run(peer_machine.pinned(cpus, [
            self.program, "bench", "--model", str(self.model), "--prefill", str(prefill),
            "--decode", str(decode), "--threads", str(len(cpus)), "--repeat", "1",
            "--format", "json", *self.extra]))
        return quern_rates(output, prefill, decode)

    def first_token(self, cpus, tokens):
        result, _ = first_byte(peer_machine.pinned(cpus, [
            self.program, "generate", "--model", str(self.model), "--raw", "--threads",
            str(len(cpus)), "--temperature", "0", "--max-tokens", str(tokens),
            "--prompt", TEN_TOKENS]))
        return result
