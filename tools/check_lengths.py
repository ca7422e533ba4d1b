#!/usr/bin/env python3
"""check_lengths.py - no file over 1200 lines, no function over 150, no line over 100.

Functions over 80 lines and files over 800 are listed without failing. Relies on the format check:
a function's braces, and no others, stand alone in column one.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE_MAX, FILE_NOTE, FUNCTION_MAX, FUNCTION_NOTE, WIDTH = 1200, 800, 150, 80, 100


def functions(lines):
    """(first line, length) of each body, braces included."""
    start = None
    for no, line in enumerate(lines, 1):
        if line == "{":
            start = no
        elif line.startswith("}") and start is not None:
            yield start, no - start + 1
            start = None


def main():
    bad, longest, count = 0, 0, 0
    for path in sorted(p for d in ("src", "include", "tests", "tools") for p in (ROOT / d).rglob("*.[ch]")):
        lines = path.read_text(encoding="utf-8").split("\n")
        table = False  # data that is kept out of the formatter
        for no, line in enumerate(lines, 1):
            table = "clang-format off" in line or (table and "clang-format on" not in line)
            if len(line) > WIDTH and not table:
                bad += 1
                print(f"{path.relative_to(ROOT)}:{no}: line of {len(line)} characters (at most {WIDTH})")
        spans = [(1, len(lines), FILE_MAX, FILE_NOTE, "file")]
        spans += [(no, n, FUNCTION_MAX, FUNCTION_NOTE, "function") for no, n in functions(lines)]
        count += len(spans) - 1
        for no, n, most, note, kind in spans:
            if kind == "function":
                longest = max(longest, n)
            if n > note:
                verdict = f"at most {most}" if n > most else "long, but allowed"
                print(f"{path.relative_to(ROOT)}:{no}: {kind} of {n} lines ({verdict})")
            bad += n > most
    print(f"lengths: {count} functions, the longest has {longest} lines")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
