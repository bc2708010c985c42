"""How objects get from LMCache's L1 to the rank and back: by the rank alone, or by a copy here."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import Client, RegionRefused, View, memory
from .index import FAST
from .staging import Stages, copy_in

logger = logging.getLogger("lmcache.cascade_kv")

Good = NDArray[np.bool_]
PIECE_BYTES = 64 << 20  # that the rank holds in its arena for us at a time


class Mover(Protocol):
    """Used by one thread. Objects are LMCache's, with data_ptr and get_size(), and stay valid until the call returns."""

    def store(self, ns: str, keys: list[bytes], objects: Sequence[Any], parent: bytes | None, chain: bool) -> Good:
        """Which are stored. In a chain each key follows the one before it, and the first its parent, if that is known."""

    def load(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good: ...
    def close(self) -> None: ...


def mover(client: Client, l1: Any, *, stores: bool) -> Mover:
    """The better one of the two for this L1."""
    if l1 is not None:
        file = memory.backing(l1.ptr, l1.size)
        if file is not None:
            try:
                return Direct(client, l1.ptr - file.offset, file.fd)
            except RegionRefused as e:
                logger.warning("the rank does not take L1, so objects are copied here: %s", e)
            finally:
                os.close(file.fd)
    return Copied(client, stores)


class Direct:
    """L1 is a region: the rank reads and writes objects where they are."""

    def __init__(self, client: Client, base: int, fd: int) -> None:
        self._client, self._base = client, base
        self._region = client.region(fd=fd)

    def __str__(self) -> str:
        return "shared with the rank"

    def _extents(self, objects: Sequence[Any]) -> NDArray[np.uint64]:
        return np.array([[[o.data_ptr - self._base, o.get_size()]] for o in objects], dtype=np.uint64)

    def store(self, ns: str, keys: list[bytes], objects: Sequence[Any], parent: bytes | None, chain: bool) -> Good:
        return np.asarray(self._client.store(ns, self._region, keys, self._extents(objects), parent=parent, chain=chain) == 1)

    def load(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good:
        return np.asarray(self._client.load(ns, self._region, keys, self._extents(objects)) == 1)

    def close(self) -> None:
        self._client.close()


class Copied:
    """L1 is private: objects are copied here, into the rank's arena and out of it. What finds no room there goes by the socket."""

    def __init__(self, client: Client, stores: bool) -> None:
        self._client = client
        self._stages = Stages(client)
        if stores:
            self._stages.prepare()
        else:
            client.map_ahead()

    def __str__(self) -> str:
        return "private, copied to and from the rank's arena"

    def store(self, ns: str, keys: list[bytes], objects: Sequence[Any], parent: bytes | None, chain: bool) -> Good:
        good = np.zeros(len(keys), dtype=np.bool_)
        sizes = [o.get_size() for o in objects]
        parents = [parent, *keys] if chain else [None] * len(keys)

        for a, b in _pieces(sizes, PIECE_BYTES):

            def write(i: int, address: int, a: int = a) -> int | None:
                return copy_in(address, objects[a + i].data_ptr, sizes[a + i])

            good[a:b] = self._stages.store(ns, keys[a:b], sizes[a:b], write, parents[a:b])
        for i in np.flatnonzero(~good).tolist():
            good[i] = self._client.up and self._client.put(ns, keys[i], _bytes(objects[i]), parent=parents[i])
        return good

    def load(self, ns: str, keys: list[bytes], objects: Sequence[Any]) -> Good:
        sizes = [o.get_size() for o in objects]
        good = np.zeros(len(keys), dtype=np.bool_)
        self._client.map_ahead()
        if not FAST:
            for a, b in _pieces(sizes, PIECE_BYTES):
                for i, view in enumerate(self._client.views(ns, keys[a:b]), start=a):
                    if view is not None:
                        good[i] = self._copy_out(view, objects[i], sizes[i])
        for i in np.flatnonzero(~good).tolist():
            try:
                good[i] = self._client.get_into(ns, keys[i], _bytes(objects[i]), pool=True) == sizes[i]
            except ValueError:
                pass  # it is larger: a miss
        return good

    def _copy_out(self, view: View, obj: Any, size: int) -> bool:
        with view:
            if view.size != size:
                return False
            ctypes.memmove(obj.data_ptr, view.array.ctypes.data, size)
            return view.held  # else the bytes may be another block's

    def close(self) -> None:
        self._client.close()


def _bytes(obj: Any) -> memoryview:
    return memoryview((ctypes.c_char * obj.get_size()).from_address(obj.data_ptr)).cast("B")


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
