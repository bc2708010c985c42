"""A rank as a child process, for proofs that kill it and start it again."""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import time

from . import Failed

START_SECONDS = 60
PAGE = 4096


class Rank:
    """cascaded on a unix socket in the folder work, with an arena under /dev/shm and no shared directory. A context manager."""

    def __init__(self, program, work, shm_bytes, log_level="warn"):
        self.program, self.work, self.log_level = pathlib.Path(program), pathlib.Path(work), log_level
        self.socket = self.work / "rank.sock"
        self.log = self.work / "rank.log"
        self.arena = pathlib.Path(f"/dev/shm/cascade-{os.getpid()}-{self.work.name}.arena")
        self.shm_bytes = shm_bytes
        self.child = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """Returns when the rank answers."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("CASCADE_")}
        command = [self.program, "--listen", "", "--socket", self.socket, "--shm-bytes", self.shm_bytes, "--shm-path", self.arena,
                   "--lustre-dir=", "--password-file=", "--admin-listen=", "--log-level", self.log_level]
        with self.log.open("ab") as out:
            self.child = subprocess.Popen([str(w) for w in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.child.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise Failed(f"the rank does not answer: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def _answers(self):
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(5)
                s.connect(str(self.socket))
                s.sendall(b"PING\r\n")
                return s.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def stored(self):
        """How many blocks it has been given and has."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(str(self.socket))
            s.sendall(b"CASCADE.STATS\r\n")
            with s.makefile("rb") as answer:
                return json.loads(answer.read(int(answer.readline()[1:])))["names"]

    def kill(self):
        """Ends it as power does."""
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self.arena.unlink(missing_ok=True)

    def alive(self):
        return self.child.poll() is None

    def flip(self, bits, seed):
        """Flips random bits in the parts of the arena that have been written. Returns how many pages of memory have one."""
        draw = random.Random(seed)
        with self.arena.open("r+b", buffering=0) as f:
            written = list(_written(f.fileno()))
            if not written:
                raise Failed("nothing is in the arena")
            touched = set()
            for _ in range(bits):
                at = draw.choice(written) * PAGE + draw.randrange(PAGE)
                byte = os.pread(f.fileno(), 1, at)[0]
                os.pwrite(f.fileno(), bytes([byte ^ 1 << draw.randrange(8)]), at)
                touched.add(at // PAGE)
        return len(touched)


def _written(fd):
    """The numbers of the memory pages of a file that are not holes and not all zero."""
    end, at = os.fstat(fd).st_size, 0
    while at < end:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        for first in range(start // PAGE, -(-at // PAGE), 256):
            data = os.pread(fd, 256 * PAGE, first * PAGE)
            for i in range(0, len(data), PAGE):
                if data[i:i + PAGE].strip(b"\0"):
                    yield first + i // PAGE
