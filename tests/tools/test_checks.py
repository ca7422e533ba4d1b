"""The checkers must find what they are for, and the test driver must count right."""
import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import check_clang  # noqa: E402
import check_layers  # noqa: E402
import check_lengths  # noqa: E402
import run_tests  # noqa: E402


class Layers(unittest.TestCase):
    def breaches(self, files):
        with tempfile.TemporaryDirectory() as d:
            for name, text in files.items():
                p = pathlib.Path(d, name)
                p.parent.mkdir(parents=True, exist_ok=True)
                p.write_text(text)
            out = io.StringIO()
            with mock.patch.object(sys, "argv", ["x", d]), contextlib.redirect_stdout(out):
                rc = check_layers.main()
            return rc, out.getvalue()

    def check(self, files, part):
        rc, text = self.breaches(files)
        self.assertEqual(rc, 1, text)
        self.assertIn(part, text)

    def test_clean(self):
        rc, text = self.breaches({
            "src/base/a.h": "/* a */\n",
            "src/sched/b.c": '/* b */\n#include "base/a.h"\n#include <stdio.h>\nchar *s = "printf(";\n// exit(\n',
            "src/cli/c.c": '/* c */\nint f(void) { printf("x"); exit(1); }\n',
            "src/base/err.c": "/* e */\nvoid f(void) { abort(); }\n",
            "tests/unit/t.c": "/* t */\nint g(void) { printf(); }\n"})
        self.assertEqual(rc, 0, text)

    def test_upward_include(self):
        self.check({"src/base/a.c": '/* a */\n#include "cli/c.h"\n', "src/cli/c.h": "/* c */\n"},
                   "a.c:2: layer base may not include cli")
        self.check({"src/kernels/a.c": '/* a */\n#include "tok/t.h"\n', "src/tok/t.h": "/* t */\n"},
                   "may not include tok")

    def test_printing_and_exit(self):
        for call in ("printf(1)", "fprintf (stderr)", "exit(1)", "abort()", "puts(x)", "perror(x)"):
            self.check({"src/sched/a.c": f"/* a */\nvoid f(void) {{ {call}; }}\n"}, "below src/cli")
        rc, _ = self.breaches({"src/sched/a.c": "/* a */\nint n = snprintf(b, 1, x);\n"})
        self.assertEqual(rc, 0)
        rc, _ = self.breaches({"src/sched/a.c": "/* a */\nvoid f(void) { execv(p, v); _exit(127); }\n"})
        self.assertEqual(rc, 0)
        self.check({"src/sched/a.c": "/* a */\nvoid f(void) { _exit(1); }\n"}, "below src/cli")

    def test_isa_and_shape(self):
        self.check({"src/exec/a.c": "/* a */\n#ifdef __AVX2__\n"}, "not an #if")
        self.check({"src/exec/a.c": "/* a */\n#if X && defined(__AVX512F__)\n"}, "not an #if")
        self.check({"src/exec/a.c": "int x;\n"}, "must open with a comment")
        self.check({"src/exec/a.c": "/*" + "\n" * 20 + "*/\n"}, "longer than 15")
        self.check({"src/exec/a.c": "/* */\n", "src/base/a.c": "/* */\n"}, "also used by")
        self.check({"src/odd/a.c": "/* */\n"}, "not a known layer")
        self.check({"src/exec/a.c": '/* */\n#include "../base/b.h"\n'}, "by its path from src/")


class Lengths(unittest.TestCase):
    def test_functions(self):
        lines = ["int f(void)", "{", "    if (x) {", "    }", "}", "struct s {", "};", "void g(void)", "{", "}"]
        self.assertEqual(list(check_lengths.functions(lines)), [(2, 4), (9, 2)])


class Clang(unittest.TestCase):
    def test_command(self):
        self.assertEqual(check_clang.syntax_only("ccache clang -Ia -MD -MQ a.o -MF a.o.d -o a.o -c ../a.c"),
                         ["clang", "-Ia", "../a.c", "-fsyntax-only"])

    @unittest.skipUnless(shutil.which("clang"), "clang is not installed")
    def test_warnings(self):
        for text, found in (("int f(void) { return 1; }\n", 0), ("static int f(void) { return 1; }\n", 1)):
            with tempfile.TemporaryDirectory() as d:
                pathlib.Path(d, "a.c").write_text(text)
                pathlib.Path(d, "compile_commands.json").write_text(json.dumps([{
                    "directory": d, "file": "a.c", "command": "clang -Wall -Werror -o a.o -c a.c"}]))
                out = io.StringIO()
                with mock.patch.object(sys, "argv", ["x", d]), contextlib.redirect_stdout(out):
                    self.assertEqual(check_clang.main(), found, out.getvalue())
                self.assertEqual(sorted(p.name for p in pathlib.Path(d).iterdir()), ["a.c", "compile_commands.json"])
                self.assertIn(f"1 files, {found} with warnings", out.getvalue())


class Counting(unittest.TestCase):
    def test_cases(self):
        count = run_tests.count_cases
        self.assertEqual(count("[  PASSED  ] 11 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n", "OK"), (11, 0, 1))
        self.assertEqual(count("[  PASSED  ] 3 test(s).\n[  FAILED  ] 2 test(s), listed below:\n", "FAIL"), (3, 2, 0))
        self.assertEqual(count("Ran 5 tests in 0.1s\n\nOK (skipped=2)\n", "OK"), (3, 0, 2))
        self.assertEqual(count("Ran 5 tests in 0.1s\n\nFAILED (failures=1, errors=1)\n", "FAIL"), (3, 2, 0))
        self.assertEqual(count("silent", "OK"), (1, 0, 0))
        self.assertEqual(count("", "FAIL"), (0, 1, 0))
        # Cases passed, then the program died: the exit status has the last word.
        self.assertEqual(count("[  PASSED  ] 4 test(s).\n", "FAIL"), (4, 1, 0))
        self.assertEqual(count("", "TIMEOUT"), (0, 1, 0))
        self.assertEqual(count("no shared folder", "SKIP"), (0, 0, 1))
        self.assertEqual(count("[  SKIPPED ] 2 test(s), listed below:\n", "OK"), (0, 0, 2))


if __name__ == "__main__":
    unittest.main()
