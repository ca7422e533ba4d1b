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
import subprocess
import threading
import time

import peer_machine

# Ten tokens in the GPT-2 style vocabulary of SmolLM2 (both programs report the count they saw).
TEN_TOKENS = "The capital of France is Paris. It is a"
CONTEXT = 512  # of the first-token test: the size of both KV stores
TIMEOUT_S = 900


class RunError(Exception):
    """A program failed or printed something that cannot be read."""


def finished(command):
    """The completed process; its last words in the error when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S,
                              check=False, errors="replace", stdin=subprocess.DEVNULL)
    except FileNotFoundError as e:
        raise RunError(f"{e.filename}: not found") from e
    except subprocess.TimeoutExpired as e:
        raise RunError(f"{' '.join(command)}: no end after {TIMEOUT_S} s") from e
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise RunError(f"{' '.join(command)}: exit status {done.returncode}\n{tail}")
    return done


def run(command):
    """Standard output of the command."""
    return finished(command).stdout


def run_all(command):
    """Standard output and error of the command."""
    done = finished(command)
    return done.stdout + done.stderr


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


def quern_rates(output, prefill, decode):
    """The same two rates, and the run's facts, from `quern bench --format json`."""
    document = parse_json(output, "quern bench")
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise RunError('quern bench: no list "results" in its output')
    wanted = {"prefill": prefill, "decode": decode}
    rates = {}
    for result in document["results"]:
        kind = result.get("kind")
        if wanted.get(kind) == result.get("tokens") and result.get("depth") == 0:
            rates[kind] = positive(result.get("tok_s", {}).get("median"),
                                   f"quern bench {kind} tok_s.median")
    for kind, size in wanted.items():
        if kind not in rates:
            raise RunError(f"quern bench: no {kind} result of {size} tokens in its output")
    model, machine = document.get("model", {}), document.get("machine", {})
    return rates, {"version": document.get("version"), "isa": machine.get("isa"),
                   **{k: model.get(k) for k in ("family", "arith", "parameters", "weight_bytes",
                                                "step_bytes", "kv_token_bytes",
                                                "bits_per_weight")}}


def number_in(pattern, text):
    """The whole number that the pattern's group finds; a program that does not say it is refused:
    without the count nobody knows that both read the same prompt."""
    found = re.search(pattern, text)
    if not found:
        raise RunError(f"no prompt token count ({pattern}) on standard error: {text[-300:]!r}")
    return int(found.group(1))


def first_byte(command):
    """Runs the command; seconds to its first byte on stdout and to its end, peak RSS, stderr.

    The peak is the kernel's ru_maxrss of the child (resident file pages included). It cannot be
    lower than this interpreter's own (about 15 MB), which the child starts from.
    """
    start = time.monotonic()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
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
        """What the program says of itself, and the archive that the cache folder is named after."""
        said = re.search(r"version[ :]+(\S+)", run_all([str(self.bin / "llama-completion"),
                                                       "--version"]))
        archive = self.bin.resolve().parent.parent.name
        return (f"llama.cpp {said.group(1) if said else '(version unknown)'}"
                + (f" of llama-cpp-python {archive[10:]}"
                   if archive.startswith("llama.cpp-") else ""))

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
            "-p", TEN_TOKENS, "-n", str(tokens), "-c", str(CONTEXT), "--temp", "0", "-no-cnv",
            "--no-display-prompt", "--simple-io", "--no-warmup", "--perf"]))
        result["prompt_tokens"] = number_in(r"prompt eval time.*?/\s*(\d+) tokens", stderr)
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
        result, stderr = first_byte(peer_machine.pinned(cpus, [
            self.program, "generate", "--model", str(self.model), "--raw", "--stats", "--threads",
            str(len(cpus)), "--ctx", str(CONTEXT), "--temperature", "0", "--max-tokens",
            str(tokens), "--prompt", TEN_TOKENS]))
        result["prompt_tokens"] = number_in(r"prompt:\s+(\d+) tokens", stderr)
        return result
