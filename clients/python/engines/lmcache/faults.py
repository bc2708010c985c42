"""The matrix of faults under LMCache's multiprocess server. A client made of its own benchmark is the engine, and each chunk that it is served
is compared by its checksum."""

import contextlib
import json
import subprocess
import types

from engines import Failed, daemon, faults
from engines.lmcache import install
from engines.lmcache.server import Server

SHAPE = "(2,1024,16,8,128):bfloat16:2"  # 2 MiB for a chunk of 256 tokens
CHUNKS = 5


def test(work, program):
    with faults.Ranks(work, program) as ranks, Client(work) as client:
        ranks.memory()
        rank = types.SimpleNamespace(path=ranks.socket, stored=lambda: ranks.near.stored())
        with Server(rank, work, "store", SHAPE, 1) as first:
            client.connect(first)
            computed = [client.ask(i)["computed"] for i in range(faults.prompts_of(1))]
            first.settle()
        with Server(rank, work, "load", SHAPE, 1) as second:
            client.connect(second)

            def ask(number, _):
                second.forget()
                served = client.ask(number)["served"]
                return served + computed[number][len(served):], len(served)  # the rest is computed

            figures = faults.Matrix(ranks, ask, computed, CHUNKS).run()
            second.calm()
            return figures


class Client:
    """drive.py as a child process. A context manager."""

    def __init__(self, work):
        self.work, self.log = work, work / "client.log"

    def __enter__(self):
        home = install.home()
        with self.log.open("wb") as log:
            self.child = subprocess.Popen([home / "bin" / "python", str(daemon.CLIENTS / "engines" / "lmcache" / "drive.py")], stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, stderr=log, env=daemon.engine_env(), cwd=self.work)
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(10)
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()

    def connect(self, server):
        self._do(server=["--rpc-url", f"tcp://127.0.0.1:{server.port}", "--url", f"http://127.0.0.1:{server.http}", "--mode", "cpu",
                         "--kvcache-shape-spec", server.shape, "--num-tokens", str(CHUNKS * 256)])

    def ask(self, number):
        return self._do(request=number)

    def _do(self, **order):
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        self.child.stdin.flush()
        for line in self.child.stdout:
            if line.startswith(b"RESULT "):
                return json.loads(line[7:])
        raise Failed(f"LMCache's client ended: {self.log.read_text(errors='replace')[-3000:]}")
