"""Memory that blocks move between and the disks of a rank's node by themselves, once a word of it is raised."""

from __future__ import annotations

import mmap
import os
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from . import memory
from .errors import ProtocolError
from .region import Region

if TYPE_CHECKING:
    from .link import LinkState

WORDS: Final = 32  # from 1 on
STUCK: Final = 3  # the status of a block that the ring has not moved in time: it may write there, or read, for as long as it is
_WORDS_AT, _WORD_APART = 1280, 64  # in the ring region, docs/gio.md §2.1
_SECONDS: Final = 5.0  # for what the rank has sent already


class Ring(Region):
    """Memory of a rank, as a region of the client, and words that start reads and writes. Made by Client.ring.

    It ends with its connection, and is not attached again: what is loaded into it then is a miss, and ended is true. Who wants
    another one makes it, and has other memory.
    """

    def __init__(self, size: int, notify: int | None, write: bool = False) -> None:
        self.write = write
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours: socket.socket | None = ours
        try:
            super().__init__(theirs.fileno(), None, notify)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._state: LinkState | None = None
        self._words: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self.data: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.detach: Callable[[], None] = self.close

    def made(self, state: LinkState) -> None:
        """Maps what the rank has sent. ProtocolError if that is no ring."""
        assert self._ours is not None
        if self._fd is not None:
            os.close(self._fd)  # the rank has it: its end is to be seen
            self._fd = None
        self._ours.settimeout(_SECONDS)
        try:
            _, fds, _, _ = socket.recv_fds(self._ours, 1, 2, socket.MSG_CMSG_CLOEXEC)
        except OSError as e:
            raise ProtocolError(f"no ring came: {e}") from e
        try:
            if len(fds) != 2:
                raise ProtocolError(f"a ring of {len(fds)} descriptors")
            lines = memory.map_file(fds[0], os.fstat(fds[0]).st_size, write=True)
            words = lines[_WORDS_AT:][: WORDS * _WORD_APART].view(np.uint32)
            self._words = words[:: _WORD_APART // 4]
            self.data = memory.map_file(fds[1], self.size, write=True)
        except (OSError, ValueError) as e:
            raise ProtocolError(f"a ring that can not be mapped: {e}") from e
        finally:
            for fd in fds:
                os.close(fd)
        self._state = state

    def raise_word(self, word: int, value: int) -> None:
        """Sets word, 1 to WORDS: loads and stores that wait for it until it has reached this value begin. It wraps at 2**32. Never blocks."""
        if not 1 <= word <= WORDS:
            raise ValueError(f"word {word}: it must be 1 to {WORDS}")
        if len(self._words):
            self._words[word - 1] = value & 0xFFFFFFFF

    @property
    def ended(self) -> bool:
        """Whether nothing is loaded into it any more."""
        if self._ours is None or self._state is None or self._state.ended:
            return True
        poll = select.poll()
        poll.register(self._ours, select.POLLRDHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        super().close()
        ours, self._ours = self._ours, None
        if ours is not None:
            ours.close()
