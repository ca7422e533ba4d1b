"""Facts about the machine and the conditions of a measurement.

Owns: CPU and kernel identification, load average, file hashes, the read-bandwidth yardstick and the
foreign busy process. Invariant: nothing recorded names the host, the user or a folder of this
machine, so that a measurement can be committed. Knows nothing about engines or tables.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ISA_FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16",
             "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16")

# Exits by itself when its parent is gone, so that a killed measurement leaves no spinner behind.
SPINNER = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


def cpu_info():
    """The first CPU of /proc/cpuinfo: model, family, the instruction sets that matter here."""
    fields = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    flags = set(fields.get("flags", "").split())
    return {"model": fields.get("model name", "unknown"),
            "family": fields.get("cpu family"), "model_number": fields.get("model"),
            "stepping": fields.get("stepping"),
            "isa": [f for f in ISA_FLAGS if f in flags],
            "hypervisor": "hypervisor" in flags,
            "cpus": os.cpu_count()}


def caches():
    """Cache sizes of CPU 0 as the kernel reports them, e.g. {"L2": "512K"}."""
    found = {}
    for index in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with contextlib.suppress(OSError):
            if (index / "type").read_text().strip() != "Instruction":
                found["L" + (index / "level").read_text().strip()] = \
                    (index / "size").read_text().strip()
    return found


def cpu_slug(info):
    """A file-name part for the CPU: "amd-epyc-f25m1"."""
    name = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", info["model"], flags=re.I)
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{name}-f{info['family']}m{info['model_number']}"


def load_average():
    return [round(x, 2) for x in os.getloadavg()]


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def git_commit(folder):
    """The commit of the work tree, "+" appended when it has changes; None outside of one."""
    def git(*args):
        return subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True,
                              check=False)
    head = git("rev-parse", "--short=12", "HEAD")
    if head.returncode != 0:
        return None
    dirty = git("status", "--porcelain", "--untracked-files=no").stdout.strip()
    return head.stdout.strip() + ("+" if dirty else "")


def facts():
    memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    thp = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    governor = pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {"cpu": cpu_info(), "caches": caches(), "kernel": os.uname().release,
            "memory_bytes": int(memory.group(1)) * 1024 if memory else None,
            "transparent_hugepages": thp.read_text().strip() if thp.exists() else None,
            "governor": governor.read_text().strip() if governor.exists() else None}


def pinned(cpus, command):
    """The command, bound to these CPUs."""
    return ["taskset", "-c", ",".join(map(str, cpus)), *command]


class ReadBandwidth:
    """The compiled read_bandwidth.c; measure() gives GB/s of a 1 GiB sequential read."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="quern-peers-")
        self.program = os.path.join(self.folder.name, "read_bandwidth")
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise SystemExit("compare.py: no C compiler (cc, gcc or clang) for read_bandwidth.c")
        subprocess.run([compiler, "-O2", "-march=native", "-pthread",
                        str(HERE / "read_bandwidth.c"), "-o", self.program], check=True)

    def measure(self, cpus, passes=5):
        out = subprocess.run([self.program, str(len(cpus)), "1024", str(passes),
                              ",".join(map(str, cpus))],
                             check=True, capture_output=True, text=True).stdout
        return json.loads(out)


@contextlib.contextmanager
def busy_process(cpu=None):
    """One foreign process that burns one core while the block runs; on one CPU when given."""
    command = [sys.executable, "-c", SPINNER]
    process = subprocess.Popen(command if cpu is None else pinned([cpu], command))
    try:
        yield process
        if process.poll() is not None:
            raise SystemExit("compare.py: the busy process ended early; the run is void")
    finally:
        process.kill()
        process.wait()
