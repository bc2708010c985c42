"""The stores that are compared, all behind StorageAdapter, each with the best client it has and its best call for batches.

The memory that blocks come from and go to is the engine's, the same for all: stores that can register memory do.
"""

from __future__ import annotations

import numpy as np
from file_stores import Files, Hdf5, Lmdb, Rocks
from kv_stores import MooncakeLocal, MooncakeShm, MooncakeTcp, OpenLake, Redhare
from socket_stores import Memcached, Redis, RedisRaw, Valkey
from store import Memory, Store

from cascade_kv import Client

__all__ = ["STORES", "Memory", "Store"]


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


FILES = (Files, Lmdb, Rocks, Hdf5)
SOCKETS = (Redis, RedisRaw, Valkey, Memcached)
KV = (MooncakeTcp, MooncakeLocal, MooncakeShm, Redhare, OpenLake)
STORES: dict[str, type[Store]] = {s.name: s for s in (Ceiling, Cascade, *SOCKETS, *FILES, *KV)}
