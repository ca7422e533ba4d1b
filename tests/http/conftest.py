"""Black-box tests of the HTTP server: quern-scripted (the real server over a model whose answers the
prompt dictates) is started once per set of options; QUERN_BUILD names the build folder."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

import wire

BUILD = Path(os.environ.get("QUERN_BUILD", "build"))


class Server:
    """One running quern-scripted."""

    def __init__(self, tokenizer, *options):
        program = os.environ.get("QUERN_SCRIPTED") or BUILD / "tests" / "http" / "quern-scripted"
        if not Path(program).exists():
            pytest.skip(f"{program} is not built (QUERN_BUILD names the build folder)")
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        self.proc = subprocess.Popen(
            [str(program), "--tokenizer", str(tokenizer), *map(str, options)],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.url = self.proc.stdout.readline().strip()
        assert self.url.startswith("http://"), Path(self.log.name).read_text()
        self.port = int(self.url.rsplit(":", 1)[1])

    def connect(self, timeout=10):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def stats(self):
        return wire.request(self, "GET", "/stats").json()

    def log_text(self):
        return Path(self.log.name).read_text()

    def stop(self, sig=signal.SIGTERM):
        if self.proc.poll() is None:
            self.proc.send_signal(sig)
        code = self.proc.wait(timeout=20)
        self.proc.stdout.close()
        text = self.log_text()
        self.log.close()
        os.unlink(self.log.name)
        return code, text


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted-tokenizer")
    wire.write_tokenizer(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def launch():
    """launch(folder, "--key", "k"): a server over any tokenizer; the caller stops it."""
    return Server


@pytest.fixture(scope="session")
def server(tokenizer):
    s = Server(tokenizer, "--keepalive", 200)
    yield s
    code, text = s.stop()
    assert code == 0, text[-4000:]
    for word in ("AddressSanitizer", "ThreadSanitizer", "runtime error"):
        assert word not in text, text[-4000:]


@pytest.fixture
def start(tokenizer):
    """start("--key", "k"): a server of one's own with these options."""
    running = []

    def go(*options):
        running.append(Server(tokenizer, *options))
        return running[-1]

    yield go
    for s in running:
        if s.proc.poll() is None:
            code, text = s.stop()
            assert code == 0, text[-4000:]
