"""LMCache's multiprocess server with a rank as its L2, and LMCache's own benchmark as the engine that it serves."""

import json
import pathlib
import re
import time
import urllib.request

from engines import Failed, daemon
from engines.lmcache import bench, install

START_SECONDS = 300
CHUNKS = 2  # of each request
INTERVAL = 0.1  # seconds between requests


class Server:
    """A server whose L1 is in shared memory. A context manager.

    shape is the benchmark's --kvcache-shape-spec. What its requests hold is the same each time, so whatever is served right has the
    same checksums, wherever it came from.
    """

    def __init__(self, rank, work, name, shape, requests):
        self.rank, self.work, self.shape, self.requests = rank, work, shape, requests
        self.command = install.home() / "bin" / "lmcache"
        self.log, self.shm = work / f"{name}.log", f"{work.name}-{name}"
        self.port, self.http = daemon.free_port(), daemon.free_port()

    def __enter__(self):
        arguments = ["server", "--host", "127.0.0.1", "--port", self.port, "--http-host", "127.0.0.1", "--http-port", self.http,
                     "--supported-transfer-mode", "auto", "--shm-name", self.shm, "--no-l1-use-lazy", "--l1-size-gb", "1", "--l1-init-size-gb", "1",
                     "--eviction-policy", "LRU", "--l2-adapter", json.dumps(bench.plugin(self.rank))]
        self.child = daemon.start([self.command, *arguments], self.log, env=daemon.engine_env(), cwd=self.work)
        try:
            daemon.ready(self.child, f"http://127.0.0.1:{self.http}/healthcheck", self.log, seconds=START_SECONDS, what="lmcache server")
        except Failed:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        daemon.end(self.child)
        for left in pathlib.Path("/dev/shm").glob(f"*{self.shm}*"):
            left.unlink(missing_ok=True)

    def ask(self):
        """Sends all requests twice: how many chunks each finds at first, and the checksum of what it is served the second time."""
        told = daemon.run([self.command, "bench", "server", "--rpc-url", f"tcp://127.0.0.1:{self.port}", "--url", f"http://127.0.0.1:{self.http}",
                           "--mode", "cpu", "--kvcache-shape-spec", self.shape, "--start", "0", "--end", self.requests, "--interval", INTERVAL],
                          timeout=300, what="lmcache bench server", env=daemon.engine_env(), cwd=self.work)
        cold = [int(n) for n in re.findall(rf"seq \d+/cold\] LOOKUP: (\d+)/{CHUNKS} chunks hit", told)]
        sums = re.findall(r"seq (\d+)/warm\] CHECKSUM: (\w+) \((\d+) chunks\)", told)
        if len(cold) != self.requests or len(sums) != self.requests:
            raise Failed(f"not all requests were answered: {told[-3000:]}")
        return cold, sums

    def forget(self):
        """Empties L1."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/cache/clear", json.dumps({"tier": "l1", "force": True}).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def settle(self):
        """Waits until stores have reached the rank, which are behind the answers: until nothing new comes for two seconds."""
        last, since, deadline = None, time.monotonic(), time.monotonic() + 60
        while time.monotonic() < deadline:
            now = self.rank.stored()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > 2:
                return
            time.sleep(0.2)
        raise Failed(f"stores do not end: {last}")

    def l1(self):
        """How the adapter says that it reaches L1."""
        said = re.search(r"rank at [^,]+, L1 ([a-z ,']+)", self.log.read_text(errors="replace"))
        return said and said[1]

    def calm(self):
        """Raises if an exception is in the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        at = next((i for i, line in enumerate(lines) if line.startswith("Traceback") or "Exception in" in line), None)
        if at is not None:
            raise Failed("an exception in LMCache: " + "\n".join(lines[max(0, at - 3):at + 20]))
