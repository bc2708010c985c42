"""Blocks where they lie: the arena of a rank, mapped read-only, and leases on blocks in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import memory

if TYPE_CHECKING:
    from .link import LinkState

Bytes = NDArray[np.uint8]


class Arena:
    """One read-only mapping of a rank's arena file. It stays mapped while any array over it lives."""

    def __init__(self, fd: int, size: int) -> None:
        status = os.fstat(fd)
        self.file = status.st_dev, status.st_ino
        self.size = size
        self.array: Bytes = memory.map_file(fd, size)
        self.address = int(self.array.ctypes.data)


class Lease:
    """A rank's promise not to move or change a block. It ends by release(), when the last array over it is gone, or with the connection.

    Arrays are made over this object, so that slices of them, and torch's tensors, keep the lease.
    """

    __slots__ = ("__weakref__", "_arena", "_give_back", "_number", "_offset", "_size", "_state")

    def __init__(self, state: LinkState, arena: Arena, give_back: Callable[[int], object], number: int, offset: int, size: int) -> None:
        self._state = state
        self._arena = arena
        self._give_back = give_back
        self._number: int | None = number  # of a view that the rank gave, or of a hold
        self._offset = offset
        self._size = size

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self._size,), "data": (self._arena.address + self._offset, True)}

    def release(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._give_back(number)

    @property
    def held(self) -> bool:
        return self._number is not None and self._state.ours and not self._state.hung_up()

    def __del__(self) -> None:
        try:
            self.release()
        except Exception:  # the interpreter is going; so is the connection
            pass


class View:
    """A block in the rank's arena, without a copy. A context manager; at its end, or by release(), the rank may evict the block again.

    A view that was made without asking ends at once. Of another the rank hears with the client's next request, or at once if more than
    a few wait for that.
    Arrays and tensors over the view must not be used after release(). Without release() the block stays while any of them lives.
    Should the rank go away, the memory stays readable but no longer belongs to the block: look at held after using the bytes.
    """

    __slots__ = ("_array", "_lease", "crc32c", "size", "tier")

    def __init__(self, lease: Lease, size: int, crc32c: int, tier: str) -> None:
        self._lease: Lease | None = lease
        self._array: Bytes | None = None
        self.size = size  # bytes
        self.crc32c = crc32c
        self.tier = tier

    @property
    def array(self) -> Bytes:
        """The bytes, read-only, at the arena's address."""
        if self._array is None:
            if self._lease is None:
                raise ValueError("this view was released")
            self._array = np.asarray(self._lease)
        return self._array

    def tensor(self, dtype: Any = None) -> Any:
        """The same bytes as a flat torch tensor, of dtype or uint8. Torch knows no read-only memory: a write ends the process."""
        import torch

        array = self.array
        if not array.size:
            t = torch.empty(0, dtype=torch.uint8)
        else:
            t = torch.from_numpy(np.asarray(_Writable(array)))
        return t if dtype is None else t.view(dtype)

    @property
    def held(self) -> bool:
        """Whether the rank still keeps the block where the view looks."""
        return self._lease is not None and self._lease.held

    def release(self) -> None:
        lease, self._lease, self._array = self._lease, None, None
        if lease is not None:
            lease.release()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __len__(self) -> int:
        return self.size


class _Writable:
    """An array's memory, said to be writable: torch warns of any other, at each call."""

    def __init__(self, array: Bytes) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._array = array
