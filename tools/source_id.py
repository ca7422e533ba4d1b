#!/usr/bin/env python3
"""source_id.py OUT.c ROOT - what the program is built from, as a C file (called by every build).

The commit and whether the files differ from it, when ROOT is a checkout of git; always a SHA-256 over
the names and contents of everything that the program is compiled from. OUT.c is left alone when
nothing has changed, so that nothing is built again.
"""
import hashlib
import pathlib
import subprocess
import sys

PARTS = ("src", "include", "meson.build", "meson_options.txt")


def sources(root):
    for part in PARTS:
        path = root / part
        yield from sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def digest(root):
    total = hashlib.sha256()
    for path in sources(root):
        name, one = path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{one}  {name}\n".encode())
    return total.hexdigest()


def git(root, *args):
    try:
        r = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return r.stdout.strip()


def main():
    out, root = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    # A tarball inside somebody else's checkout is no checkout of this project.
    top = git(root, "rev-parse", "--show-toplevel")
    commit = git(root, "rev-parse", "HEAD") if top and pathlib.Path(top).resolve() == root else ""
    dirty = bool(commit and git(root, "status", "--porcelain", "--", *PARTS))
    text = ("/* made by tools/source_id.py */\n#include \"bench/source_id.h\"\n\n"
            f"const struct source_id source_id = {{\"{commit}\", \"{digest(root)}\", "
            f"{'true' if dirty else 'false'}}};\n")
    if not out.exists() or out.read_text(encoding="utf-8") != text:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
