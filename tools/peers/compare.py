#!/usr/bin/env python3
"""quern and llama.cpp side by side on one machine: the same weights, interleaved, pinned.

Owns: the order of the runs, the statistics, the table and the files under docs/measurements/.
Invariant: a ratio is always taken within one round, of two runs that follow each other directly;
the medians, minima and maxima of the raw figures stand beside it, and every raw figure is kept.
How the programs are called: peer_programs.py; facts of the machine: peer_machine.py. What the
numbers mean: docs/benchmarking.md. Python standard library only.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import peer_machine
import peer_programs

ROOT = peer_machine.HERE.parent.parent
SCHEMA = 1
MB = 1e6


def say(text):
    print(text, file=sys.stderr, flush=True)


def spread(values):
    """Median, extremes and count; the shape every figure of the report has."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "n": len(values)}


def ratio_spread(top, bottom, key):
    """Spread of top ÷ bottom over the rounds that both lists of records have."""
    below = {r["round"]: r[key] for r in bottom}
    return spread([r[key] / below[r["round"]] for r in top if r["round"] in below])


def select(records, program, threads):
    return [r for r in records if r["program"] == program and r["threads"] == threads]


def speed_summary(records, programs, thread_counts):
    """Rows {kind, threads, figures by program, ratio of quern to the peer}."""
    rows = []
    for kind in ("prefill", "decode"):
        for threads in thread_counts:
            chosen = [select(records, p, threads) for p in programs]
            row = {"kind": kind, "threads": threads, "tok_per_s":
                   {p: spread([r[kind] for r in c]) for p, c in zip(programs, chosen)}}
            if len(programs) == 2:
                row["ratio"] = ratio_spread(chosen[1], chosen[0], kind)
            rows.append(row)
    return rows


def scaling_summary(records, programs, thread_counts):
    """Rows {kind, program, most threads over fewest, within each round}."""
    if len(thread_counts) < 2:
        return []
    few, many = min(thread_counts), max(thread_counts)
    return [{"kind": kind, "program": p, "threads": [few, many],
             "ratio": ratio_spread(select(records, p, many), select(records, p, few), kind)}
            for kind in ("prefill", "decode") for p in programs]


def first_token_summary(records, programs, thread_counts):
    rows = []
    for threads in thread_counts:
        chosen = [select(records, p, threads) for p in programs]
        for program, c in zip(programs, chosen):
            rows.append({"program": program, "threads": threads,
                         **{key: spread([r[key] for r in c])
                            for key in ("first_s", "end_s", "peak_rss_bytes")}})
    return rows


def interleave(options, programs, action):
    """Calls action(program, cpus) in the order A B A B …; returns its dicts, marked."""
    records = []
    for number in range(1, options.rounds + 1):
        for threads in options.threads:
            for program in programs:
                load = peer_machine.load_average()
                record = action(program, options.cpus[:threads])
                records.append({"round": number, "program": program.name, "threads": threads,
                                "load_before": load, **record})
        say(f"round {number} of {options.rounds}: " + "; ".join(
            f"{r['program']} {r['threads']}t {brief(r)}"
            for r in records if r["round"] == number))
    return records


def brief(record):
    if "decode" in record:
        return f"prefill {record['prefill']:.0f} decode {record['decode']:.0f} tok/s"
    return f"first token {record['first_s'] * 1e3:.0f} ms"


def measure_speed(options, programs, facts):
    def action(program, cpus):
        rates, seen = program.bench(cpus, options.prefill, options.decode)
        facts.setdefault(program.name, {})["bench"] = seen
        return rates
    return interleave(options, programs, action)


def measure_first_token(options, programs):
    for program in programs:  # the run that warms the page cache is not counted
        program.first_token(options.cpus[:1], 1)
    records = interleave(options, programs, lambda program, cpus:
                         program.first_token(cpus, options.first_token_decode))
    counts = {r["program"]: r["prompt_tokens"] for r in records}
    if len(set(counts.values())) > 1:
        raise peer_programs.RunError(f"the programs read different prompts: tokens {counts}")
    return records


def measure_bandwidth(options):
    """Read bandwidth per thread count in GB/s: {"1": {"best":…, "median":…, "gb_per_s": […]}}."""
    tool = peer_machine.ReadBandwidth()
    return {str(t): tool.measure(options.cpus[:t]) for t in options.threads}


def best_bandwidth(document, threads):
    """The best pass seen before or after the rounds; None when it was not measured."""
    seen = [document[when][str(threads)]["best"]
            for when in ("bandwidth_before", "bandwidth_after") if document.get(when)]
    return max(seen) if seen else None


def cell(figures, digits=1, unit=1.0):
    return (f"{figures['median'] / unit:.{digits}f} "
            f"({figures['min'] / unit:.{digits}f}–{figures['max'] / unit:.{digits}f})")


def speed_table(document):
    programs = list(document["programs"])
    head = ["test", "threads", *(f"{p}, tokens/s" for p in programs)]
    if len(programs) == 2:
        head.append("quern ÷ llama.cpp")
    head += [f"{p}: weights read, GB/s (share)" for p in programs]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in document["speed"]:
        size = document["settings"][row["kind"]]
        cells = [f"{row['kind']} {size}", str(row["threads"])]
        cells += [cell(row["tok_per_s"][p]) for p in programs]
        if "ratio" in row:
            cells.append(cell(row["ratio"], 2))
        cells += [bandwidth_cell(document, row, p) for p in programs]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def bandwidth_cell(document, row, program):
    """Decode reads every weight once a token; prefill does not, so it has no such figure."""
    if row["kind"] != "decode":
        return ""
    facts = document["programs"][program]
    bench = facts.get("bench", {})
    step = bench.get("step_bytes") or bench.get("model_size") or facts["weight_bytes"]
    rate = row["tok_per_s"][program]["median"] * step / 1e9
    best = best_bandwidth(document, row["threads"])
    return f"{rate:.1f} ({100 * rate / best:.0f} %)" if best else f"{rate:.1f}"


def scaling_table(document):
    if not document["scaling"]:
        return []
    few, many = document["scaling"][0]["threads"]
    lines = ["", f"| test | program | {many} threads ÷ {few}, same round |", "|---|---|---|"]
    return lines + [f"| {r['kind']} | {r['program']} | {cell(r['ratio'], 2)} |"
                    for r in document["scaling"]]


def first_token_table(document):
    if not document["first_token"]:
        return []
    lines = ["", "| program | threads | process start to first token, ms | to exit, ms | "
             "peak RSS, MB | peak RSS ÷ weights |", "|---|---|---|---|---|---|"]
    for r in document["first_token"]:
        weights = document["programs"][r["program"]]["weight_bytes"]
        peak = r["peak_rss_bytes"]
        lines.append(f"| {r['program']} | {r['threads']} | {cell(r['first_s'], 0, 1e-3)} | "
                     f"{cell(r['end_s'], 0, 1e-3)} | {cell(peak, 1, MB)} | "
                     f"{peak['median'] / weights:.2f} |")
    return lines


def markdown(document):
    """The report: conditions first, then the tables."""
    m, s = document["machine"], document["settings"]
    cpu = m["cpu"]
    busy = "one foreign process burning one core" + (
        f" (pinned to CPU {s['busy_cpu']})" if s["busy_cpu"] is not None else " (not pinned)")
    lines = [
        f"# quern and llama.cpp, {document['date']}, {cpu['model']}", "",
        f"- CPU: {cpu['model']} (family {cpu['family']}, model {cpu['model_number']}), "
        f"{cpu['cpus']} CPUs, {' '.join(cpu['isa'])}"
        + (", virtual machine" if cpu["hypervisor"] else "") + f"; kernel {m['kernel']}",
        f"- Model file: {document['gguf']['name']}, SHA-256 `{document['gguf']['sha256']}`",
        *(program_line(name, p) for name, p in document["programs"].items()),
        f"- quern commit: {document['commit']}",
        f"- {s['rounds']} rounds, interleaved, pinned to CPUs {s['cpus']}; other load: "
        + (busy if s["busy"] else "none started by this measurement"),
        f"- Load average before {document['load_before']}, after {document['load_after']}",
        *bandwidth_lines(document),
        "- Figures are median (minimum–maximum); a ratio is taken within each round.",
        f"- Raw figures: `{document['raw']}`; command: `{document['command']}`", ""]
    if document["speed"]:
        lines += speed_table(document) + scaling_table(document)
    return "\n".join(lines + first_token_table(document)) + "\n"


def program_line(name, facts):
    bench = facts.get("bench", {})
    details = [f"{k} {bench[k]}" for k in ("isa", "arith") if bench.get(k)]
    weights = f"weights {facts['weight_bytes'] / MB:.1f} MB"
    return ", ".join([f"- {name}: {facts['version']}", weights, *details])


def bandwidth_lines(document):
    return [f"- Measured read bandwidth, {t} thread{'s' if t > 1 else ''}: best "
            f"{best_bandwidth(document, t):.1f} GB/s, medians "
            + " and ".join(f"{document[w][str(t)]['median']:.1f}"
                           for w in ("bandwidth_before", "bandwidth_after"))
            for t in document["settings"]["threads"] if document.get("bandwidth_before")]


def output_base(options, info, date):
    """Path without suffix; a second measurement on one day does not replace the first."""
    name = f"llama-cpp-{date}-{peer_machine.cpu_slug(info)}" + ("-busy" if options.busy else "")
    number = 1
    while True:
        base = options.out / (name if number == 1 else f"{name}-{number}")
        if not base.with_name(base.name + ".json").exists():
            return base
        number += 1


def plain_command(argv):
    """The command as typed, folders cut from the paths: they would name a user or a machine."""
    def plain(word):
        option, equals, value = word.partition("=")
        if equals and option.startswith("--"):
            return f"{option}={os.path.basename(value.rstrip('/'))}" if "/" in value else word
        return os.path.basename(word.rstrip("/")) if "/" in word else word
    return "tools/peers/compare.py " + " ".join(plain(w) for w in argv)


def numbers(text):
    try:
        values = [int(x) for x in text.split(",")]
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers like 0,1") from e
    if len(set(values)) != len(values) or min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected different numbers from 0")
    return values


def parse_options(argv):
    p = argparse.ArgumentParser(
        prog="compare.py", description="Measure quern and llama.cpp side by side (see "
        "docs/benchmarking.md). Prints a table; writes it and the raw figures to --out.")
    p.add_argument("--gguf", required=True, type=pathlib.Path, help="the GGUF file for llama.cpp")
    p.add_argument("--model", type=pathlib.Path,
                   help="the folder quern convert made from that file")
    p.add_argument("--quern", type=pathlib.Path, help="the quern program (default: from PATH)")
    p.add_argument("--llama-bin", type=pathlib.Path,
                   help="folder of llama-bench (default: what build_llama_cpp.sh built)")
    p.add_argument("--only", choices=("quern", "llama.cpp"), help="measure one program alone")
    p.add_argument("--threads", type=numbers, default=[1, 2], help="thread counts (1,2)")
    p.add_argument("--cpus", type=numbers,
                   help="CPUs to pin to; N threads take the first N (default: 0,1,…)")
    p.add_argument("--rounds", type=int, default=5, help="rounds, at least 5 to be written (5)")
    p.add_argument("--prefill", type=int, default=512, help="prompt tokens (512)")
    p.add_argument("--decode", type=int, default=128, help="generated tokens (128)")
    p.add_argument("--busy", action="store_true", help="with one foreign process burning a core")
    p.add_argument("--busy-cpu", type=int, help="pin that process to this CPU (default: free)")
    p.add_argument("--first-token", action="store_true",
                   help="also time process start to first token, and peak memory")
    p.add_argument("--first-token-only", action="store_true", help="that alone")
    p.add_argument("--first-token-decode", type=int, default=16, metavar="N",
                   help="tokens generated in that test (16)")
    p.add_argument("--llama-arg", action="append", default=[], metavar="ARG",
                   help="extra argument for llama-bench; repeat it (--llama-arg=--poll …)")
    p.add_argument("--quern-arg", action="append", default=[], metavar="ARG",
                   help="extra argument for quern bench; repeat it")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "measurements")
    p.add_argument("--no-write", action="store_true", help="print the table only")
    options = p.parse_args(argv)
    check_options(p, options)
    return options


def check_options(p, options):
    if min(options.threads) < 1:
        p.error("--threads: at least 1")
    if options.cpus is None:
        options.cpus = sorted(os.sched_getaffinity(0))
    if len(options.cpus) < max(options.threads):
        p.error(f"--threads {max(options.threads)} needs as many CPUs; --cpus has "
                f"{len(options.cpus)}")
    if options.rounds < 1 or (options.rounds < 5 and not options.no_write):
        p.error("--rounds: at least 5, or use --no-write")
    if min(options.prefill, options.decode, options.first_token_decode) < 1:
        p.error("--prefill, --decode and --first-token-decode: at least 1")
    if not options.gguf.is_file():
        p.error(f"--gguf {options.gguf}: no such file")
    if options.only != "llama.cpp":
        if options.model is None or not options.model.is_dir():
            p.error("--model: give the folder that quern convert made (or --only llama.cpp)")
        found = options.quern or shutil.which("quern")
        if not found or not os.access(found, os.X_OK):
            p.error("--quern: give the path of the quern program")
        options.quern = pathlib.Path(found)
    if shutil.which("taskset") is None:
        p.error("taskset is missing; on Debian: apt-get install util-linux")


def find_llama(options):
    if options.llama_bin:
        return options.llama_bin
    script = peer_machine.HERE / "build_llama_cpp.sh"
    done = subprocess.run([str(script), "--print-bin"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"compare.py: llama.cpp is not built; run {script}")
    return pathlib.Path(done.stdout.strip())


def make_programs(options):
    programs = []
    if options.only != "quern":
        programs.append(peer_programs.LlamaCpp(find_llama(options), options.gguf,
                                               options.llama_arg))
    if options.only != "llama.cpp":
        programs.append(peer_programs.Quern(options.quern, options.model, options.quern_arg))
    return programs


def measure(options, programs, argv):
    """Everything, in order, into one document (the raw file)."""
    names = [p.name for p in programs]
    document = {
        "schema": SCHEMA, "date": datetime.date.today().isoformat(),
        "command": plain_command(argv), "commit": peer_machine.git_commit(ROOT),
        "machine": peer_machine.facts(),
        "gguf": {"name": options.gguf.name, "sha256": peer_machine.sha256_of(options.gguf)},
        "programs": {p.name: {"version": p.version(), "weight_bytes": p.weight_bytes()}
                     for p in programs},
        "settings": {k: getattr(options, k) for k in ("threads", "cpus", "rounds", "prefill",
                                                      "decode", "busy", "busy_cpu",
                                                      "first_token_decode", "llama_arg",
                                                      "quern_arg")},
        "load_before": peer_machine.load_average(),
        "bandwidth_before": measure_bandwidth(options)}
    foreign = peer_machine.busy_process(options.busy_cpu) if options.busy \
        else contextlib.nullcontext()
    speed, first = [], []
    with foreign:
        if not options.first_token_only:
            speed = measure_speed(options, programs, document["programs"])
        if options.first_token or options.first_token_only:
            first = measure_first_token(options, programs)
    document["bandwidth_after"] = measure_bandwidth(options)
    document["load_after"] = peer_machine.load_average()
    document["speed"] = speed_summary(speed, names, options.threads) if speed else []
    document["scaling"] = scaling_summary(speed, names, options.threads) if speed else []
    document["first_token"] = first_token_summary(first, names, options.threads) if first else []
    document["runs"] = {"speed": speed, "first_token": first}
    return document


def main(argv):
    options = parse_options(argv)
    try:
        document = measure(options, make_programs(options), argv)
    except peer_programs.RunError as e:
        raise SystemExit(f"compare.py: {e}") from e
    base = output_base(options, document["machine"]["cpu"], document["date"])
    document["raw"] = "not written" if options.no_write else base.name + ".json"
    if not options.no_write:
        options.out.mkdir(parents=True, exist_ok=True)
        base.with_name(base.name + ".json").write_text(
            json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        base.with_name(base.name + ".md").write_text(markdown(document))
        say(f"written: {base}.json and .md")
    print(markdown(document), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
