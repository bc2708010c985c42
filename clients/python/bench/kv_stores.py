"""Stores made for the blocks of engines: Mooncake, redhare, OpenLake. They copy between their memory and the engine's."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import pathlib

from servers import library, listens, need
from store import Memory, Store

from engines.daemon import free_port


class MooncakeTcp(Store):
    name, what = "mooncake-tcp", "Mooncake Store 0.3.13: master, this client with registered memory, and its node over TCP"

    def start(self) -> None:
        os.environ.setdefault("GLOG_minloglevel", "2")  # read when it is loaded
        self.lib = library("mooncake.store")
        self.bin = pathlib.Path(library("mooncake").__file__).parent
        port, metrics = free_port(), free_port()
        master = [str(self.bin / "mooncake_master"), "-rpc_port", str(port), "-metrics_port", str(metrics), "-rpc_address", "127.0.0.1"]
        self.pids = [self.children.start(self.name, master, lambda: listens(port))]
        self.store = self.lib.MooncakeDistributedStore()
        self.connect(port)
        self.check([self.store.register_buffer(self.memory.address, 2 * self.memory.half)])

    def connect(self, master: int) -> None:
        self.node(master)
        self.setup(master, 0)

    def setup(self, master: int, segment: int) -> None:
        """Of a client that talks to the master itself, with so many bytes for blocks in this process."""
        self.check([self.store.setup(f"127.0.0.1:{free_port()}", "P2PHANDSHAKE", segment, 192 << 20, "tcp", "", f"127.0.0.1:{master}")])

    def node(self, master: int) -> int:
        """The process that has the blocks: its port."""
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
        return port

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

    def connect(self, master: int) -> None:
        self.setup(master, self.capacity)


class MooncakeShm(MooncakeTcp):
    name, what = "mooncake-shm", "its node copies, in shared memory; the engine's memory is allocated by Mooncake, as SGLang does then"

    def connect(self, master: int) -> None:
        size = 2 * self.memory.half
        self.allocator = self.lib.MooncakeHostMemAllocator()
        self.memory = Memory(self.memory.half, (ctypes.c_char * size).from_address(self.allocator.alloc(size)))
        self.check([self.store.setup_dummy(size, 16 << 20, f"127.0.0.1:{self.node(master)}")])


class Redhare(Store):
    name, what, outlives = "redhare", "redhare 0.6.0, blocks in the engine's own process, metadata in a redis-server", False

    def start(self) -> None:
        redhare = library("redhare")
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
        # Of the transports this one is the fastest here, and the only one that reuses memory at once: tcp does after half a minute.
        self.store = redhare.KvStore(redis_url=f"redis://127.0.0.1:{port}", client_id="bench", data_plane_addr=f"127.0.0.1:{free_port()}",
                             capacity=f"{self.capacity >> 20}MB", transport="inmemory")  # fmt: skip
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
        for _ in range(10):  # now and then a removal says that it was done and was not: what is put then is lost
            for k in self.keys:
                self.store.remove(k)
            self.keys = [k for k, n in zip(self.keys, self.store.batch_is_exist(self.keys)) if n]
            if not self.keys:
                return
        raise RuntimeError("not cleared")

    def close(self) -> None:
        self.store.close()


class OpenLake(Store):
    name, what = "openlake", "OpenLake 0.8.1: index and slots in its daemon, slots in shared memory, the client copies from and to them"
    KEY = 54  # bytes, of every key; they begin a slot

    def start(self) -> None:
        self.lib, self.size = library("openlake_client"), 0
        self.prepare(1 << 20)

    def prepare(self, size: int) -> None:
        """A daemon has slots of one size, which the first client to attach says: for other sizes it is started again."""
        if size == self.size:
            return
        self.close()
        port = free_port(beside=1)  # the daemon listens on both
        config = self.dir / "openlaked.toml"
        config.write_text(OPENLAKE.format(at=f"127.0.0.1:{port}", gib=-(-self.capacity >> 30)))
        command = [str(pathlib.Path(self.lib.__file__).parent / "openlaked"), "--config", str(config)]
        self.pids = [self.children.start(self.name, command, lambda: listens(port) and listens(port + 1), RUST_LOG="warn")]
        self.children.leftovers.append(f"openlake_kv_{self.pids[0]}_*")
        self.client = self.lib.Client("local", 2048)
        self.client.attach(f"127.0.0.1:{port}", 0, self.KEY + size)
        self.client.register_memory(self.memory.address, 2 * self.memory.half)
        self.size = size

    def keys(self, keys):
        return [hashlib.blake2b(k.encode(), digest_size=self.KEY).digest() for k in keys]

    def extents(self, offsets, size):
        return [[self.memory.address + o] for o in offsets], [[size]] * len(offsets)

    def write(self, keys, offsets, size):
        if any(self.client.put_batch(self.keys(keys), *self.extents(offsets, size))):
            raise RuntimeError("not stored")

    def read(self, keys, offsets, size):
        if any(self.client.get_batch(self.keys(keys), *self.extents(offsets, size))):
            raise RuntimeError("a miss")

    def has(self, keys):
        return [n == 1 for n in self.client.batch_is_exist(self.keys(keys))]

    def clear(self) -> None:
        self.client.reset()

    def close(self) -> None:
        if not self.pids:
            return
        self.size = 0
        self.client.close()
        self.children.end(self.pids.pop())


OPENLAKE = """
self_id = 0
mode = "kv"
transport = "h2"
rpc_addr = "{at}"
s3_addr = "{at}"
kv_agents = ["{at}"]
region = "none"
data_dirs = []
set_drive_count = 1
default_parity_count = 1
[[credentials]]
access_key = "bench"
secret_key = "bench"
[[nodes]]
id = 0
rpc_addr = "{at}"
disk_count = 0
[kv_slab]
capacity_gb = {gib}
reserve_ttl_secs = 60
"""
