"""Blocks that their owner writes into the arena itself: STAGE and COMMIT, for memory that can not be a region."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import Client, memory
from .link import LinkState, Request
from .errors import ProtocolError
from .index import _fast
from .ops import bulk, integer, items
from .resp import head, keys_bytes, words

Good = NDArray[np.bool_]
Write = Callable[[int, int], int | None]


class Stages:
    """The arena of a rank, for writing. It is mapped anew for each connection: a rank that was started again may have another file."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._state: LinkState | None = None  # of the connection that the mapping was made for
        self._array: NDArray[np.uint8]
        self._address = self._size = 0

    def prepare(self) -> None:
        """Maps the arena now, if the rank is there; else the first store does."""
        self._client._run(self._prepare, None)

    def _prepare(self, state: LinkState) -> Generator[Request, object, None]:
        if self._state is not state:
            yield from self._map_arena(state)

    def store(self, ns: str, keys: list[bytes], sizes: list[int], write: Write, parents: Sequence[bytes | None] | None = None) -> Good:
        """Stores one block for each key; write(i, address) writes the bytes of block i, and returns their CRC32C if it knows it.

        parents are the blocks before them in their chains, None where there is none. Which are stored: the rank has the last word.
        """
        nothing = np.zeros(len(keys), dtype=np.bool_)
        before = parents or [None] * len(keys)
        return self._client._run(lambda s: self._store(s, ns, keys, sizes, write, before), nothing)

    def _store(
        self, state: LinkState, ns: str, keys: list[bytes], sizes: list[int], write: Write, parents: Sequence[bytes | None]
    ) -> Generator[Request, object, Good]:
        yield from self._prepare(state)
        good = np.zeros(len(keys), dtype=np.bool_)
        stages = items((yield Request(head(1 + len(sizes)) + words("CASCADE.STAGE", *sizes))), len(sizes))
        commits, some = [], []
        for i, stage in enumerate(stages):
            if stage is None:
                continue
            number, offset = items(stage, 2)
            if not 0 <= integer(offset) <= offset + sizes[i] <= self._size:
                raise ProtocolError("a stage outside the arena")
            crc = write(i, self._address + offset)
            parent = parents[i]
            more: list[bytes | str | int] = [] if crc is None else ["CRC32C", crc]
            if parent is not None:
                more += ["PARENT", parent]
            commits.append(head(4 + len(more)) + words("CASCADE.COMMIT", integer(number), ns, keys[i], *more))
            some.append(i)
        if some:
            asked = head(2 + len(some)) + words("CASCADE.CONTAINS", ns) + keys_bytes([keys[i] for i in some])
            reply = yield Request(b"".join(commits) + asked, before=len(commits))
            good[some] = np.frombuffer(bulk(reply, len(some)), dtype=np.uint8) != 0
        return good

    def _map_arena(self, state: LinkState) -> Generator[Request, Any, None]:
        reply, given = yield Request(head(1) + words("CASCADE.ARENA"), wants_fd=True)
        if given is None:
            raise ProtocolError(f"the rank gives no descriptor of its arena: {reply!r}")
        try:
            # Not by its path: that may lead to another file by now, or to none.
            fd = os.open(f"/proc/self/fd/{given}", os.O_RDWR | os.O_CLOEXEC)
            try:
                array = memory.map_file(fd, os.fstat(fd).st_size, write=True)
            finally:
                os.close(fd)
        except OSError as e:
            raise ProtocolError(f"the arena can not be opened for writing: {e}") from e
        finally:
            os.close(given)
        self._array, self._address, self._size, self._state = array, int(array.ctypes.data), array.nbytes, state
        memory.map_ahead(array, write=True)


def copy_in(address: int, source: int, size: int) -> int | None:
    """Copies bytes to a stage; other threads run meanwhile. Their CRC32C, where the helper makes it on the way."""
    if _fast is None:
        ctypes.memmove(address, source, size)
        return None
    block = ctypes.c_char * size
    return _fast.copy_crc32c(block.from_address(address), block.from_address(source))
