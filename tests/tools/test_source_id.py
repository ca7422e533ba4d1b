"""tools/source_id.py: what a build says of its sources, in a checkout, in a changed one, in none."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "source_id.py"


def identify(out, root):
    subprocess.run([sys.executable, str(TOOL), str(out), str(root)], check=True)
    m = re.search(r'\{"([0-9a-f]*)", "([0-9a-f]{64})", (true|false)\};', out.read_text())
    return m.group(1), m.group(2), m.group(3) == "true"


class SourceId(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.addCleanup(self.tmp.cleanup)
        self.tree = pathlib.Path(self.tmp.name, "tree")
        self.out = pathlib.Path(self.tmp.name, "id.c")
        for name, text in (("src/a.c", "int a;\n"), ("include/a.h", "\n"), ("meson.build", "project()\n"),
                           ("meson_options.txt", "\n"), ("docs/x.md", "words\n")):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / name).write_text(text)

    def test_without_git(self):
        commit, digest, changed = identify(self.out, self.tree)
        self.assertEqual((commit, changed), ("", False))
        os.utime(self.out, ns=(1, 1))
        self.assertEqual(identify(self.out, self.tree)[1], digest)
        self.assertEqual(self.out.stat().st_mtime_ns, 1)  # nothing is built again
        (self.tree / "docs" / "x.md").write_text("other words\n")
        self.assertEqual(identify(self.out, self.tree)[1], digest)  # not compiled
        (self.tree / "src" / "a.c").write_text("int b;\n")
        other = identify(self.out, self.tree)[1]
        self.assertNotEqual(other, digest)
        (self.tree / "src" / "a.c").rename(self.tree / "src" / "b.c")
        self.assertNotIn(identify(self.out, self.tree)[1], (digest, other))  # names count

    def git(self, *args):
        return subprocess.run(["git", "-C", str(self.tree), "-c", "user.name=a", "-c", "user.email=a@b", *args],
                              check=True, capture_output=True, text=True).stdout.strip()

    @unittest.skipUnless(shutil.which("git"), "no git")
    def test_in_a_checkout(self):
        self.git("init", "-q")
        self.git("add", ".")
        self.git("commit", "-qm", "one")
        head = self.git("rev-parse", "HEAD")
        commit, digest, changed = identify(self.out, self.tree)
        self.assertEqual((commit, changed), (head, False))
        (self.tree / "src" / "new.c").write_text("\n")  # untracked, but compiled
        commit, other, changed = identify(self.out, self.tree)
        self.assertEqual((commit, changed), (head, True))
        self.assertNotEqual(other, digest)
        inner = self.tree / "vendored"  # a copy inside somebody else's checkout is none of its own
        for name in ("src", "include"):
            shutil.copytree(self.tree / name, inner / name)
        for name in ("meson.build", "meson_options.txt"):
            shutil.copy(self.tree / name, inner / name)
        self.assertEqual(identify(self.out, inner)[0], "")


if __name__ == "__main__":
    unittest.main()
