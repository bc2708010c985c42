"""How objects get from LMCache's L1 to the rank and back: by the rank alone, or through memory shared with it."""

from __future__ import annotations

import ctypes
import itertools
import logging
import mmap
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import Client, RegionRefused, memory

logger = logging.getLogger("lmcache.cascade_kv")

Good = NDArray[np.bool_]
PIECE_BYTES = 8 << 20  # what is copied on one side while the other one copies the piece before or after


class Mover(Protocol):
    """Used by one thread. Objects are LMCache's, with data_ptr and get_size(), and stay valid until the call returns."""

    def store(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good: ...
    def load(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good: ...
    def close(self) -> None: ...


def mover(client: Client, l1: Any, staging: int) -> Mover:
    """The better one of the two for this L1."""
    if l1 is not None:
        file = memory.backing(l1.ptr, l1.size)
        if file is not None:
            try:
                return Direct(client, l1.ptr - file.offset, file.fd)
            except RegionRefused as e:
                logger.warning("the rank does not take L1, so objects are copied once more: %s", e)
            finally:
                os.close(file.fd)
    return Staged(client, staging)


class Direct:
    """L1 is a region: the rank reads and writes objects where they are."""

    def __init__(self, client: Client, base: int, fd: int) -> None:
        self._client, self._base = client, base
        self._region = client.region(fd=fd)

    def __str__(self) -> str:
        return "shared with the rank"

    def _extents(self, objects: Sequence[Any]) -> NDArray[np.uint64]:
        return np.array([[[o.data_ptr - self._base, o.get_size()]] for o in objects], dtype=np.uint64)

    def store(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good:
        return np.asarray(self._client.store(ns, self._region, keys, self._extents(objects)) == 1)

    def load(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good:
        return np.asarray(self._client.load(ns, self._region, keys, self._extents(objects)) == 1)

    def close(self) -> None:
        self._client.close()


class _Piece:
    """Objects a to b, at start in the shared memory, while a job is under way."""

    __slots__ = ("a", "b", "end", "extents", "job", "start", "statuses")

    def __init__(self, a: int, b: int, start: int, sizes: list[int]) -> None:
        ends = np.cumsum(sizes, dtype=np.uint64)
        self.extents = np.empty((b - a, 1, 2), dtype=np.uint64)
        self.extents[:, 0, 1] = sizes
        self.extents[:, 0, 0] = ends - self.extents[:, 0, 1] + np.uint64(start)
        self.a, self.b, self.start, self.end = a, b, start, start + int(ends[-1])
        self.job = 0
        self.statuses: NDArray[np.uint8] | None = None


class Staged:
    """L1 is private: objects pass through a memfd, in pieces, so that this side and the rank copy at the same time.

    The memory is a ring: a piece goes behind the youngest one under way, and the oldest one makes room.
    """

    def __init__(self, client: Client, size: int) -> None:
        self._client = client
        self._jobs = itertools.count(1)
        self._share(size)

    def __str__(self) -> str:
        return "private, passing through shared memory"

    def _share(self, size: int) -> None:
        fd = os.memfd_create("cascade-lmcache", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)
            self._map = mmap.mmap(fd, size)
            self._region = self._client.region(fd=fd)
        finally:
            os.close(fd)
        memory = np.frombuffer(self._map, dtype=np.uint8)
        memory[:: mmap.PAGESIZE] = 0  # pages that come only while they are copied to cost ten times the copy
        self._address, self._size = int(memory.ctypes.data), size

    def store(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good:
        return self._move(ns, keys, objects, storing=True)

    def load(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good:
        return self._move(ns, keys, objects, storing=False)

    def _move(self, ns: str, keys: list[bytes], objects: Sequence[Any], storing: bool) -> Good:
        good = np.zeros(len(keys), dtype=np.bool_)
        sizes = [o.get_size() for o in objects]
        under_way: deque[_Piece] = deque()
        if max(sizes, default=0) > self._size:
            self._region.detach()
            self._share(2 * max(sizes))
        send = self._client.store if storing else self._client.load
        try:
            for a, b in _pieces(sizes, min(PIECE_BYTES, self._size)):
                need = sum(sizes[a:b])
                while (start := self._room(under_way, need)) is None:
                    self._settle(under_way, objects, good, storing, wait=True)
                piece = _Piece(a, b, start, sizes[a:b])
                if storing:
                    self._copy(piece, objects, storing)
                piece.job = next(self._jobs)
                if send(ns, self._region, keys[a:b], piece.extents, job=piece.job):
                    under_way.append(piece)
                self._settle(under_way, objects, good, storing, wait=False)
        finally:  # the rank uses the memory, and the objects are LMCache's again, once this returns
            while under_way:
                self._settle(under_way, objects, good, storing, wait=True)
        return good

    def _room(self, under_way: deque[_Piece], need: int) -> int | None:
        """Where so many bytes are free. Head and tail never meet while something is under way, so that full differs from empty."""
        if not under_way:
            return 0
        tail, head = under_way[0].start, under_way[-1].end
        if head > tail:
            if self._size - head >= need:
                return head
            return 0 if tail > need else None
        return head if tail - head > need else None

    def _settle(self, under_way: deque[_Piece], objects: Sequence[Any], good: Good, storing: bool, wait: bool) -> None:
        """Takes what the rank has finished. With wait, the oldest piece is among it."""
        while under_way:
            for job, statuses in self._client.done(1.0 if wait and under_way[0].statuses is None else 0.0):
                for piece in under_way:
                    if piece.job == job:
                        piece.statuses = statuses
            while under_way and (statuses := under_way[0].statuses) is not None:
                piece = under_way[0]
                good[piece.a : piece.b] = statuses == 1
                if not storing:
                    self._copy(piece, objects, storing, good)
                under_way.popleft()
                wait = False
            if not wait:
                return

    def _copy(self, piece: _Piece, objects: Sequence[Any], storing: bool, good: Good | None = None) -> None:
        """memmove of ctypes lets other threads run meanwhile."""
        for i, (offset, size) in enumerate(piece.extents[:, 0].tolist(), start=piece.a):
            if storing:
                ctypes.memmove(self._address + offset, objects[i].data_ptr, size)
            elif good is None or good[i]:
                ctypes.memmove(objects[i].data_ptr, self._address + offset, size)

    def close(self) -> None:
        self._client.close()


def _pieces(sizes: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs of objects that have at most so many bytes together, or one object alone."""
    a, total = 0, 0
    for i, size in enumerate(sizes):
        if i > a and total + size > most:
            yield a, i
            a, total = i, 0
        total += size
    if sizes:
        yield a, len(sizes)
