"""Memory of the engine that the rank reads and writes itself."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

_numbers = itertools.count(1)


class Region:
    """A memfd, or a file under /dev/shm, that a client attaches to its rank, and again after each reconnect.

    It keeps descriptors of its own, so the caller may close those it gave. Made by Client.region and AsyncClient.region.
    """

    def __init__(self, fd: int | None, path: str | None, notify: int | None) -> None:
        if (fd is None) == (path is None):
            raise ValueError("a region is either a descriptor or a path")
        self.number = next(_numbers)
        self.path = path
        self.closed = False
        self.detach: Callable[[], None] = self.close  # a client puts in what also tells the rank
        self._fd = None if fd is None else os.dup(fd)
        self._notify = None if notify is None else os.dup(notify)

    @property
    def fd(self) -> int | None:
        return self._fd

    @property
    def fds(self) -> list[int]:
        """What goes with the command: the memory, unless it is a path, then the eventfd, if there is one."""
        return [fd for fd in (self._fd, self._notify) if fd is not None]

    @property
    def notifies(self) -> bool:
        return self._notify is not None

    def close(self) -> None:
        """Gives the descriptors back. The region can not be used after that."""
        self.closed = True
        for fd in self.fds:
            os.close(fd)
        self._fd = self._notify = None

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.close()
