#!/usr/bin/env python3
"""check_layers.py - the rules of the source tree that a compiler does not know.

A lower layer never includes a higher one; nothing below src/cli prints or ends the program;
instruction sets are folders, not #if branches; file names are unique; every file opens with a
comment of at most 15 lines. Prints FILE:LINE: reason for each breach; exit code 1 if any.
"""
import pathlib
import re
import sys

# A layer may include itself and the layers named here.
LOWER = {"base": []}
LOWER["tok"] = ["base"]
LOWER["tmpl"] = ["base"]
LOWER["gram"] = ["base"]
LOWER["store"] = ["base"]
LOWER["kernels"] = ["base"]
LOWER["exec"] = LOWER["kernels"] + ["kernels"]
LOWER["model"] = LOWER["exec"] + ["exec", "tok", "tmpl"]
LOWER["import"] = LOWER["model"] + ["model"]
LOWER["cache"] = LOWER["import"] + ["import"] + ["store"]
LOWER["sched"] = LOWER["cache"] + ["cache", "gram"]
LOWER["api"] = LOWER["sched"] + ["sched"]
LOWER["server"] = LOWER["api"] + ["api"]
LOWER["bench"] = ["base"]
LOWER["cli"] = LOWER["server"] + ["server", "bench"]

INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
# _exit(127) is how a forked child ends when its exec failed.
PRINTS = re.compile(
    r"\b(v?f?printf|vdprintf|dprintf|puts|fputs|putchar|putc|fputc|perror|exit|_exit(?!\(127\))|_Exit|quick_exit|abort)\s*\("
)
ISA_IF = re.compile(r"\s*#\s*(el)?if.*__(AVX|AMX|SSE|FMA|F16C)")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(m):
    """Comments and strings become blanks; line numbers stay."""
    return re.sub(r"[^\n]", " ", m.group(0))


def check_includes(path, layer, text, src):
    for no, line in enumerate(text.split("\n"), 1):
        m = INCLUDE.match(line)
        if not m:
            continue
        name = m.group(1)
        if name == "quern.h" or "." not in name:
            continue
        other = name.split("/")[0] if "/" in name else layer
        if name.startswith(".") or (other not in LOWER and not (path.parent / name).exists()):
            yield no, f'include "{name}" by its path from src/'
        elif other in LOWER and other != layer and other not in LOWER[layer]:
            yield no, f"layer {layer} may not include {other} (only {', '.join(LOWER[layer])})"
        elif "/" in name and other in LOWER and not (src / name).exists():
            yield no, f'"{name}" does not exist in src/'


def check_calls(path, layer, text):
    code = TOKEN.sub(blank, text)
    for no, line in enumerate(code.split("\n"), 1):
        m = PRINTS.search(line)
        if m and layer != "cli" and path.name != "err.c":
            yield no, f"{m.group(1)} below src/cli; return a qn_status, or log_line"
        if ISA_IF.match(line):
            yield no, "an instruction set is a folder under src/kernels, not an #if"


def check_opening(text):
    if not text.startswith("/*"):
        yield 1, "must open with a comment: what it owns, its invariant, its thread"
    elif text.split("*/")[0].count("\n") + 1 > 15:
        yield 1, "the opening comment is longer than 15 lines"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    src, breaches, names = root / "src", [], {}
    files = sorted(p for d in ("src", "include", "tests") for p in (root / d).rglob("*.[ch]"))
    for path in files:
        rel = path.relative_to(root)
        text = path.read_text(encoding="utf-8")
        found = [] if rel.parts[0] == "include" else list(check_opening(text))
        if path.name in names:
            found.append((1, f"file name is also used by {names[path.name]}"))
        names[path.name] = rel
        if rel.parts[0] == "src":
            layer = rel.parts[1]
            if layer not in LOWER:
                found.append((1, f"src/{layer} is not a known layer (tools/check_layers.py)"))
            else:
                found += check_includes(path, layer, text, src)
                found += check_calls(path, layer, text)
        breaches += [f"{rel}:{no}: {why}" for no, why in found]
    print("\n".join(breaches) if breaches else f"layers: {len(files)} files in order")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
