"""Servers and ranks as child processes of a benchmark, all on unix sockets, in one folder that is removed at the end."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "cascade"
START_SECONDS = 60


class Missing(Exception):
    """What this machine lacks for one of the stores; the others are measured without it."""


def need(program: str, remedy: str) -> str:
    found = shutil.which(program)
    if not found:
        raise Missing(f"{program} is missing: {remedy}")
    return found


def library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise Missing(f"{module}: {e}; bench/install-peers") from e


def redis_py():
    """The redis module: of this interpreter, or the one that scripts/tools.sh installed, which is pure Python."""
    with contextlib.suppress(ImportError):
        import redis

        if int(redis.__version__.split(".")[0]) >= 5:
            return redis
    for site in sorted(CACHE.glob("redis-py-*/lib/python3*/site-packages")):
        for name in [m for m in sys.modules if m == "redis" or m.startswith("redis.")]:
            del sys.modules[name]
        sys.path.insert(0, str(site))
        import redis

        return redis
    raise Missing("redis-py is missing: make tools")


class Children:
    """A context manager: what it started ends with it."""

    def __enter__(self) -> Children:
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cascade-bench-"))
        self.arena = pathlib.Path("/dev/shm") / f"{self.dir.name}.arena"
        self.leftovers: list[str] = []  # patterns of files in /dev/shm that children do not remove themselves
        self._children: list[subprocess.Popen[bytes]] = []
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.send_signal(signal.SIGTERM)
        for child in self._children:
            wait(child)
        shutil.rmtree(self.dir, ignore_errors=True)
        self.arena.unlink(missing_ok=True)
        for left in (f for pattern in self.leftovers for f in self.arena.parent.glob(pattern)):
            left.unlink(missing_ok=True)

    def end(self, pid: int) -> None:
        """Ends one of them before the others."""
        child = next(c for c in self._children if c.pid == pid)
        self._children.remove(child)
        child.send_signal(signal.SIGTERM)
        wait(child)

    def start(self, name: str, command: list[str], answers, **more: str) -> int:
        """Returns the process id once answers() is true. more are environment variables."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("CASCADE_")} | more
        log = self.dir / f"{name}.log"
        with log.open("ab") as out:
            child = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env, cwd=self.dir)
        self._children.append(child)
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if answers():
                    return child.pid
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not answer: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def rank(self, shm_bytes: int) -> tuple[str, int]:
        """Socket and process id of a rank."""
        sys.path.insert(0, str(ROOT / "clients" / "python"))
        from cascade_kv import Client

        path = str(self.dir / "rank.sock")
        command = [
            os.environ.get("CASCADED", str(ROOT / "bin" / "cascaded")),
            "--socket",
            path,
            "--listen=",
            "--admin-listen=",
            "--lustre-dir=",
        ]
        command += ["--shm-bytes", str(shm_bytes), "--shm-path", str(self.arena), "--password-file=", "--log-level", "warn"]

        def answers() -> bool:
            with Client(path) as c:
                return c.up

        return path, self.start("rank", command, answers)

    def redis(self, name: str = "redis", program: str | None = None) -> tuple[str, int]:
        """Socket and process id of a redis-server, or of another program that takes its options."""
        redis = redis_py()
        program = program or need("redis-server", "apt-get install redis-server")
        path = str(self.dir / f"{name}.sock")
        command = [program, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", str(self.dir)]

        def answers() -> bool:
            try:
                return bool(redis.Redis(unix_socket_path=path, socket_timeout=5).ping())
            except redis.exceptions.ConnectionError:
                return False

        return path, self.start(name, command, answers)


def wait(child: subprocess.Popen[bytes]) -> None:
    """For a process that was told to end."""
    try:
        child.wait(30)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True
