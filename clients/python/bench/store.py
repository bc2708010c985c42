"""What a compared store is, and the memory of the engine that uses it."""

from __future__ import annotations

import mmap
import os
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from servers import ROOT, Children

sys.path.insert(0, str(ROOT / "clients" / "python"))

from cascade_kv import StorageAdapter  # noqa: E402


class Memory:
    """An engine's host memory: a memfd, or what a store gave that takes no other. Blocks go out of its first half and into its second."""

    def __init__(self, half: int, given: Any = None) -> None:
        self.half = half
        if given is None:
            self.fd = os.memfd_create("engine")
            os.ftruncate(self.fd, 2 * half)
            given = mmap.mmap(self.fd, 2 * half)
        self.array = np.frombuffer(given, dtype=np.uint8)
        self.array[:] = 1  # pages exist before anything is measured
        self.view = memoryview(self.array)
        self.address = self.array.ctypes.data


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

    def prepare(self, size: int) -> None:
        """Called before blocks of another size, outside of what is measured. Blocks that were put may be gone then."""

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
        self.prepare(len(block))
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
