#!/usr/bin/env python3
"""embed_text.py OUT.c FILE... - the built-in recordings as a C file (called by the build)."""
import json
import pathlib
import sys


def literal(text):
    """C string literals of at most 100 bytes each."""
    data, lines = text.encode(), []
    for i in range(0, len(data), 64):
        piece = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}"
                        for b in data[i:i + 64])
        lines.append(f'    "{piece}"')
    return "\n".join(lines)


def main():
    rows, bodies = [], []
    for i, name in enumerate(sys.argv[2:]):
        # Without the blanks that make it readable.
        text = json.dumps(json.loads(pathlib.Path(name).read_text(encoding="utf-8")),
                          ensure_ascii=False, separators=(",", ":"))
        bodies.append(f"static const char text_{i}[] =\n{literal(text)};\n")
        rows.append(f'    {{"{pathlib.Path(name).stem}", text_{i}, sizeof text_{i} - 1}},')
    pathlib.Path(sys.argv[1]).write_text(
        "/* made by tools/embed_text.py */\n#include \"bench/agent_replay.h\"\n\n" + "\n".join(bodies) +
        "\nstatic const struct builtin_recording all[] = {\n" + "\n".join(rows) + "\n};\n\n"
        "const struct builtin_recording *builtin_recordings(size_t *n)\n{\n"
        "    *n = sizeof all / sizeof all[0];\n    return all;\n}\n")


if __name__ == "__main__":
    main()
