#!/usr/bin/env python3
"""check_clang.py - the warnings of clang for every C file of a configured build folder.

    check_clang.py BUILD

Reads BUILD/compile_commands.json and makes no objects: warnings do not depend on them, and making
them takes more than twice as long. Headers that the build makes have to be there.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

WITH_VALUE, ALONE = {"-o", "-MF", "-MQ"}, {"-MD", "-c"}


def syntax_only(command):
    """A compiler's command without what it writes, and without ccache, which keeps objects only."""
    words = shlex.split(command)
    if os.path.basename(words[0]) == "ccache":
        del words[0]
    kept = [w for i, w in enumerate(words) if w not in WITH_VALUE | ALONE and words[i - 1] not in WITH_VALUE]
    return kept + ["-fsyntax-only"]


def check(entry):
    r = subprocess.run(syntax_only(entry["command"]), cwd=entry["directory"], capture_output=True, text=True)
    return r.returncode, entry["file"], r.stderr


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    commands = json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text(encoding="utf-8"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        bad = [(file, text) for rc, file, text in pool.map(check, commands) if rc]
    for file, text in bad:
        print(f"{file}:\n{text}")
    print(f"{len(commands)} files, {len(bad)} with warnings")
    return 1 if bad or not commands else 0


if __name__ == "__main__":
    sys.exit(main())
