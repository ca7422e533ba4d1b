"""tools/setup.sh against stand-ins for dpkg-query, id, sudo and apt-get: what it says, what it runs."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "tools" / "setup.sh"
TOOLS = ["sh", "dirname", "sed", "printf", "cat", "env", "touch"]


class Setup(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.bin = pathlib.Path(self.tmp.name)
        for t in TOOLS:
            for d in ("/usr/bin", "/bin"):
                if os.path.exists(f"{d}/{t}"):
                    (self.bin / t).symlink_to(f"{d}/{t}")
                    break

    def tearDown(self):
        self.tmp.cleanup()

    def program(self, name, body):
        p = self.bin / name
        p.write_text(f"#!/bin/sh\n{body}\n")
        p.chmod(0o755)

    def dpkg(self, absent):
        """A dpkg-query that knows every package it is asked for, but not those in `absent`."""
        self.program("dpkg-query", f'''shift 3
for p; do case " {absent} " in *" $p "*) ;; *) echo "$p install ok installed" ;; esac; done''')

    def run_setup(self, *args):
        return subprocess.run([str(self.bin / "sh"), str(SETUP), *args], env={"PATH": str(self.bin)},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def test_nothing_to_do_is_silent(self):
        self.dpkg("")
        r = self.run_setup("run")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, "", ""))

    def test_root_installs_what_is_missing_after_saying_so(self):
        self.dpkg("meson nettle-dev")
        self.program("id", "echo 0")
        self.program("apt-get", 'echo "RAN $*"')
        r = self.run_setup("run")
        self.assertEqual(r.returncode, 0, r.stderr)
        said = r.stdout.index("missing Debian packages: meson nettle-dev")
        ran = r.stdout.index("RAN install -y --no-install-recommends meson nettle-dev")
        self.assertLess(said, ran)

    def test_update_when_the_index_is_stale(self):
        self.dpkg("meson")
        self.program("id", "echo 0")
        self.program("apt-get", f'''echo "RAN $1"
case $1 in update) touch {self.bin}/fresh ;; *) test -e {self.bin}/fresh ;; esac''')
        r = self.run_setup("run")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("RAN install\nRAN update\nRAN install\n", r.stdout)

    def test_no_rights(self):
        self.dpkg("meson gcc")
        self.program("id", "echo 1000")
        r = self.run_setup("run")
        self.assertEqual(r.returncode, 1)
        self.assertIn("  apt-get install -y --no-install-recommends gcc meson\n", r.stderr)
        self.assertIn("root", r.stderr)

    def test_sudo_without_a_password(self):
        self.dpkg("meson")
        self.program("id", "echo 1000")
        self.program("sudo", '[ "$1" = -n ] && exit 0; echo "SUDO $*"')
        r = self.run_setup("run")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("SUDO apt-get install", r.stdout)

    def test_failing_installation(self):
        self.dpkg("meson")
        self.program("id", "echo 0")
        self.program("apt-get", "exit 100")
        r = self.run_setup("run")
        self.assertEqual(r.returncode, 1)
        self.assertIn("the installation failed", r.stderr)

    def test_other_system_and_bad_argument(self):
        r = self.run_setup("run")
        self.assertEqual(r.returncode, 1)
        self.assertIn("libmicrohttpd-dev", r.stderr)
        self.assertEqual(self.run_setup("fly").returncode, 2)


if __name__ == "__main__":
    unittest.main()
