#!/usr/bin/env python3
"""A scripted agent whose conversations are recorded for `quern bench serve --workload replay`.

Owns: tools/recordings/*.json. The agent's decisions are a script; the tools are real and run over a
small project that this program writes into a temporary folder, so what they answer is what such
tools answer: listings, files, matches, test output. Everything is deterministic: running it again
changes nothing. The format is described in docs/bench-serve.md.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

OUT = pathlib.Path(__file__).resolve().parent / "recordings"

INVENTORY = '''"""Stock of a small shop: parts, prices, orders."""
import json


class Part:
    """One kind of thing on the shelf."""

    def __init__(self, name, price, count=0):
        if price < 0:
            raise ValueError(f"{name}: a price of {price}")
        self.name, self.price, self.count = name, price, count


class Inventory:
    """All parts, by name."""

    def __init__(self):
        self.parts = {}

    def add(self, name, price, count):
        part = self.parts.get(name)
        if part:
            part.count += count
        else:
            self.parts[name] = Part(name, price, count)

    def take(self, name, count):
        part = self.parts[name]
        if part.count < count:
            raise LookupError(f"{name}: {count} wanted, {part.count} there")
        part.count -= count
        return part.price * count

    def value(self):
        return sum(p.price for p in self.parts.values())

    def save(self, path):
        rows = [[p.name, p.price, p.count] for p in self.parts.values()]
        with open(path, "w") as f:
            json.dump(rows, f)
'''
TESTS = '''from inventory import Inventory


def check(name, got, want):
    print(f"{'ok  ' if got == want else 'FAIL'} {name}: got {got}, expected {want}")


stock = Inventory()
stock.add("bolt", 2, 100)
stock.add("nut", 1, 50)
check("take", stock.take("bolt", 10), 20)
check("count", stock.parts["bolt"].count, 90)
check("value", stock.value(), 90 * 2 + 50 * 1)
stock.add("nut", 1, 5)
check("add again", stock.parts["nut"].count, 55)
'''
LOG_LINE = "2026-03-{d:02d} {h:02d}:{m:02d}:07 {level} worker-{w} {text}"


def write_project(root):
    (root / "src").mkdir()
    (root / "src" / "inventory.py").write_text(INVENTORY)
    (root / "src" / "check.py").write_text(TESTS)
    (root / "README.md").write_text("# Shop\n\nStock keeping. Run `python3 src/check.py`.\n")
    (root / "logs").mkdir()
    lines = []
    for i in range(90):
        level, text = ("INFO", f"order {1000 + i * 7 % 83} packed in {20 + i * 13 % 41} s")
        if i % 17 == 5:
            level, text = "WARN", f"printer {i % 3} is slow, {300 + i} ms for a label"
        if i % 29 == 11:
            level, text = "ERROR", f"order {1000 + i * 7 % 83}: part 'washer' is not in the stock"
        lines.append(LOG_LINE.format(d=1 + i // 30, h=8 + i % 9, m=i * 7 % 60, level=level, w=i % 4,
                                     text=text))
    (root / "logs" / "orders.log").write_text("\n".join(lines) + "\n")


def list_files(root, path="."):
    return "\n".join(sorted(f"{p.relative_to(root)}{'/' if p.is_dir() else f' {p.stat().st_size}'}"
                            for p in (root / path).rglob("*") if "__pycache__" not in p.parts))


def read_file(root, path):
    return "".join(f"{i:3d} {line}\n" for i, line in
                   enumerate((root / path).read_text().splitlines(), 1))


def search(root, pattern, path):
    return "\n".join(f"{i}: {line}" for i, line in
                     enumerate((root / path).read_text().splitlines(), 1)
                     if re.search(pattern, line)) or "no match"


def replace(root, path, old, new):
    text = (root / path).read_text()
    if text.count(old) != 1:
        return f"error: the text occurs {text.count(old)} times"
    (root / path).write_text(text.replace(old, new))
    return "replaced 1 occurrence"


def run_checks(root):
    r = subprocess.run([sys.executable, "-B", "check.py"], cwd=root / "src", capture_output=True,
                       text=True, check=False)
    return r.stdout + r.stderr


TOOLS = {
    "list_files": (list_files, "Lists a folder with sizes.", {"path": "folder"}),
    "read_file": (read_file, "Prints a file with line numbers.", {"path": "file"}),
    "search": (search, "Lines of a file that match a regular expression.",
               {"pattern": "regular expression", "path": "file"}),
    "replace": (replace, "Replaces a text that occurs once in a file.",
                {"path": "file", "old": "text to replace", "new": "replacement"}),
    "run_checks": (run_checks, "Runs the project's checks.", {}),
}
SYSTEM = ("You are a careful programmer's assistant. Work in small steps: look before you change, "
          "change one thing at a time, run the checks after each change. Use the tools; do not guess "
          "what a file holds. When the task is done say in two sentences what was wrong and what "
          "you did.")


def described():
    return [{"type": "function", "function": {
        "name": name, "description": about,
        "parameters": {"type": "object",
                       "properties": {k: {"type": "string", "description": v}
                                      for k, v in fields.items()},
                       "required": list(fields)}}} for name, (_, about, fields) in TOOLS.items()]


class Recorder:
    """Plays a script and writes down what an agent's client would send, turn by turn."""

    def __init__(self, name, about, task, root):
        self.root, self.calls, self.pending = root, 0, [{"role": "user", "content": task}]
        self.doc = {"format": "quern-agent-recording", "version": 1, "name": name, "about": about,
                    "system": SYSTEM, "tools": described(), "turns": []}

    def turn(self, max_tokens=32):
        self.doc["turns"].append({"append": self.pending, "max_tokens": max_tokens})
        self.pending = []

    def call(self, said, tool, **arguments):
        """The model is asked; its recorded answer is a call, and the tool's answer follows."""
        self.turn()
        self.calls += 1
        ident = f"call_{self.calls}"
        self.pending = [
            {"role": "assistant", "content": said, "tool_calls": [
                {"id": ident, "type": "function",
                 "function": {"name": tool, "arguments": json.dumps(arguments)}}]},
            {"role": "tool", "tool_call_id": ident, "content": TOOLS[tool][0](self.root, **arguments)}]

    def say(self, answer, then):
        """The recorded answer is text; the user goes on."""
        self.turn(48)
        self.pending = [{"role": "assistant", "content": answer}, {"role": "user", "content": then}]

    def write(self, compact_before, summary):
        self.turn(64)
        self.doc["compact"] = {"before_turn": compact_before, "summary": summary}
        OUT.mkdir(exist_ok=True)
        (OUT / f"{self.doc['name']}.json").write_text(
            json.dumps(self.doc, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def mend(root):
    r = Recorder("mend-a-bug", "find and mend a bug with tools",
                 "The value of the stock comes out wrong. Find out why and mend it.", root)
    r.call("I look at what is there.", "list_files", path=".")
    r.call("The checks first.", "run_checks")
    r.call("The value is wrong, so I read the code.", "read_file", path="src/inventory.py")
    r.call("value() forgets the count.", "replace", path="src/inventory.py",
           old="sum(p.price for p in", new="sum(p.price * p.count for p in")
    r.call("The checks again.", "run_checks")
    r.say("value() added the prices without the counts. It multiplies them now, and all checks pass.",
          "Good. Does anything else in that file go wrong with a part that does not exist?")
    r.call("I look at take().", "search", pattern="def take|parts\\[", path="src/inventory.py")
    r.call("A KeyError would come out of take().", "replace", path="src/inventory.py",
           old="        part = self.parts[name]\n        if part.count",
           new="        part = self.parts.get(name)\n        if part is None:\n"
               "            raise LookupError(f\"{name}: not in the stock\")\n        if part.count")
    r.call("Once more the checks.", "run_checks")
    r.write(6, "So far: value() in src/inventory.py forgot to multiply by the count; that is mended and "
               "src/check.py passes. Now: does anything else in that file go wrong with a part that "
               "does not exist?")


def survey(root):
    r = Recorder("read-the-logs", "answer questions about a long file",
                 "Look into logs/orders.log and tell me what went wrong in these three days.", root)
    r.call("I list the folder.", "list_files", path="logs")
    r.call("I read the whole log.", "read_file", path="logs/orders.log")
    r.call("Only the errors now.", "search", pattern="ERROR", path="logs/orders.log")
    r.say("Every error is about the part 'washer', which is not in the stock.",
          "And the warnings? Is one printer worse than the others?")
    r.call("The warnings.", "search", pattern="WARN", path="logs/orders.log")
    r.say("All three printers are slow now and then; printer 1 and printer 2 appear as often as "
          "printer 0.", "Which worker packed the order that took longest?")
    r.call("Long times.", "search", pattern="packed in (5\\d|60) s", path="logs/orders.log")
    r.write(4, "So far: logs/orders.log covers three days; all errors are about the part 'washer', which "
               "is not in the stock. Now: is one printer worse than the others?")


def main():
    for play in (mend, survey):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            write_project(root)
            play(root)


if __name__ == "__main__":
    main()
