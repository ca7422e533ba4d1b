#!/usr/bin/env python3
"""check_headers.py - every header compiles alone: it includes what it uses.

Bodies that are compiled once per instruction set (NAME_tmpl.h) are no headers and left out.
The public header is compiled as C++ too when a C++ compiler is there. Exit code 1 on a failure.
"""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["json-c", "libpcre2-8", "libutf8proc", "libmicrohttpd", "libarchive", "nettle"]


def package_flags():
    r = subprocess.run(["pkg-config", "--cflags", *PACKAGES], capture_output=True, text=True)
    return r.stdout.split() if r.returncode == 0 else []


# Headers of one instruction set say so in their name or folder, and get its flags.
ISA_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512bf16",
               "-mfma", "-mf16c"],
}
ISA_FLAGS["amx"] = ISA_FLAGS["avx512"] + ["-mamx-tile", "-mamx-int8", "-mamx-bf16"]


def isa_flags(path):
    for isa in ISA_FLAGS:
        if path.stem.endswith("_" + isa) or path.parent.name == isa:
            return ISA_FLAGS[isa]
    return []


def compile_alone(job):
    path, compiler = job
    r = subprocess.run(
        [*compiler, *isa_flags(path), "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", ROOT / "include", "-I",
         ROOT / "src", *package_flags(), "-include", path, "-x",
         "c++" if "++" in compiler[0] else "c", "/dev/null"],
        capture_output=True, text=True)
    return path, r.returncode, r.stderr


def main():
    headers = sorted([*ROOT.glob("src/**/*.h"), *ROOT.glob("include/*.h")])
    headers = [h for h in headers if not h.name.endswith("_tmpl.h")]
    cc = [os.environ.get("CC", "gcc"), "-std=gnu17", "-D_GNU_SOURCE", "-Wno-unused-function"]
    jobs = [(h, cc) for h in headers]
    if shutil.which("g++"):
        jobs.append((ROOT / "include" / "quern.h", ["g++", "-std=c++17"]))
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for path, rc, text in pool.map(compile_alone, jobs):
            if rc:
                bad += 1
                print(f"{path.relative_to(ROOT)}: does not compile alone\n{text}")
    print(f"headers: {len(jobs) - bad} of {len(jobs)} compile alone")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
