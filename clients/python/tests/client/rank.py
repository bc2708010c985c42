"""A rank of our own as a child process, and what the tests of cascade_kv share."""

import contextlib
import mmap
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "clients" / "python"))

import numpy as np  # noqa: E402

from cascade_kv import Client  # noqa: E402

START_SECONDS = 60
MIB = 1 << 20


class Rank:
    """Started, killed and started again at will; the arena and the socket stay at their paths."""

    def __init__(self, shm="256MiB", *more):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cascade-client-"))
        self.socket = str(self.dir / "rank.sock")
        self.arena = pathlib.Path("/dev/shm") / f"{self.dir.name}.arena"
        self.command = [os.environ.get("CASCADED", str(ROOT / "bin" / "cascaded")), "--socket", self.socket, "--listen=", "--admin-listen="]
        self.command += [
            "--shm-bytes",
            shm,
            "--shm-path",
            str(self.arena),
            "--lustre-dir=",
            "--password-file=",
            "--log-level",
            "warn",
            *more,
        ]
        self.child = None

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CASCADE_")}
        with (self.dir / "log").open("ab") as log:
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log, env=env)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.child.poll() is None:
            with Client(self.socket) as c:
                if c.up:
                    return self
            time.sleep(0.02)
        log = (self.dir / "log").read_text(errors="replace")
        self.end()
        raise RuntimeError(f"the rank does not answer: {log[-2000:]}")

    def kill(self, how=signal.SIGKILL):
        if self.child is not None:
            self.child.send_signal(how)
            self.child.wait()
            self.child = None

    def pause(self):
        self.child.send_signal(signal.SIGSTOP)
        while pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)

    def go_on(self):
        self.child.send_signal(signal.SIGCONT)

    def end(self):
        if self.child is not None:
            self.go_on()
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self.arena.unlink()


class Pool:
    """An engine's host memory: a memfd, mapped as an array."""

    def __init__(self, size, path=None):
        self.fd = os.memfd_create("pool") if path is None else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self.fd, size)
        self.array = np.frombuffer(mmap.mmap(self.fd, size), dtype=np.uint8)

    def fill(self, seed, size=None):
        """Random bytes at the front; returns a copy."""
        data = np.random.default_rng(seed).integers(0, 256, size or len(self.array), dtype=np.uint8)
        self.array[: len(data)] = data
        return data


def extents(n, size, at=0, each=1):
    """n blocks one after the other from at on, each in so many pieces, the last piece first."""
    piece = size // each
    out = np.zeros((n, each, 2), dtype=np.uint64)
    for i in range(n):
        for j in range(each):
            out[i, j] = at + i * size + (each - 1 - j) * piece, piece
    return out


def names(n, prefix="k"):
    return [f"{prefix}-{i:06d}-{random.getrandbits(64):016x}" for i in range(n)]


def until(test, what, seconds=30):
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


class OneRank(unittest.TestCase):
    """Tests that share a rank; each has a client and a namespace of its own."""

    shm = "256MiB"

    @classmethod
    def setUpClass(cls):
        cls.rank = Rank(cls.shm).start()
        cls.addClassCleanup(cls.rank.end)

    def setUp(self):
        self.c = Client(self.rank.socket)
        self.addCleanup(self.c.close)
        self.ns = f"ns-{random.getrandbits(64):016x}"


class ChainInFiles(unittest.TestCase):
    """Tests that share a rank whose memory has room for a part of a chain: its head has left for files."""

    keys = [f"k{i}" for i in range(24)]

    @classmethod
    def setUpClass(cls):
        cls.files = tempfile.mkdtemp(prefix="cascade-files-")
        cls.addClassCleanup(shutil.rmtree, cls.files, ignore_errors=True)
        cls.rank = Rank("16MiB", "--lustre-dir", cls.files).start()
        cls.addClassCleanup(cls.rank.end)
        cls.c = Client(cls.rank.socket)
        cls.addClassCleanup(cls.c.close)
        for i, k in enumerate(cls.keys):
            cls.c.put("ns", k, bytes([i]) * MIB)
        until(lambda: len(cls.c.probe("ns", cls.keys).tiers) > 1, "blocks in files")
