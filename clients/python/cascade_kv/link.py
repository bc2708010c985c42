"""One connection to a rank, and what lives and dies with it: region numbers, jobs, the arena, views."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from .errors import LinkLost, ProtocolError
from .peer import Trust
from .resp import INCOMPLETE, Decoder, head, words

if TYPE_CHECKING:
    from .layout import Layout
    from .view import Arena

# A rank answers within 5 s, so one that still holds its end open after this has stopped for good.
GRACE_SECONDS: Final = 60.0

_LARGE: Final = 128 << 10  # from here on a value is sent by itself, not copied into the request
_MAX_OWED: Final = 64


@dataclass(slots=True)
class Request:
    """What is sent at once, and how the answer is read."""

    data: bytes
    value: memoryview | None = None  # sent between data and tail
    tail: bytes = b""
    fds: Sequence[int] = ()  # sent with the first byte
    wants_fd: bool = False  # a descriptor comes with the first byte of the answer
    extra: float = 0.0  # seconds that the rank may take beyond the client's timeout
    before: int = 0  # data has so many requests before the last one, and nobody needs their answers

    def parts(self, data: bytes) -> list[bytes | memoryview]:
        """What is sent, one after the other, data in place of this one's. A large value is not copied."""
        if self.value is None:
            return [data]
        if self.value.nbytes < _LARGE:
            return [b"".join((data, self.value, self.tail))]
        return [data, self.value, self.tail]


@dataclass
class LinkState:
    """What a connection has at the rank. When the connection ends the rank gives all of it back."""

    sock: socket.socket
    server: int = -1  # user id of the rank, once it is known
    regions: dict[int, int] = field(default_factory=dict)  # number of our region to the rank's number
    jobs: dict[int, int] = field(default_factory=dict)  # job to its number of keys
    arena: Arena | None = None
    dropped: deque[tuple[int, int]] = field(default_factory=deque)  # views that nobody needs, and their bytes: not told yet
    declared: dict[str, Layout] = field(default_factory=dict)  # by namespace: layouts sent on this connection
    pid: int = field(default_factory=os.getpid)
    ended: bool = False

    @property
    def ours(self) -> bool:
        """Whether the connection is in use, and of this process: a child that was forked has only a copy of the descriptor."""
        return not self.ended and self.pid == os.getpid()

    def hung_up(self) -> bool:
        """Whether the rank has closed its end. Asks the kernel, not the rank."""
        poll = select.poll()
        poll.register(self.sock, select.POLLRDHUP)
        return bool(poll.poll(0))


class LinkBase:
    """What blocking and asynchronous connections have in common. One request is under way at a time; the client has the lock."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.state = LinkState(sock)
        self.timeout = timeout
        self._sock = sock
        self._decoder = Decoder()
        self._owed = 0  # answers to come that nobody waits for
        self._fds: list[int] = []
        self._used = False  # a request was answered

    def fileno(self) -> int:
        return self._sock.fileno()

    def take_fd(self) -> int | None:
        """The descriptor that came with the last answer. The caller closes it."""
        return self._fds.pop(0) if self._fds else None

    def _answer(self) -> Any:
        """The answer, if it is complete, or INCOMPLETE."""
        while True:
            reply = self._decoder.reply()
            if reply is INCOMPLETE:
                return reply
            if self._owed:
                self._owed -= 1
                continue
            if not self._decoder.empty:
                raise ProtocolError("more came than was asked for")
            self._used = True
            return reply

    def _receive_fds(self, room: memoryview) -> int:
        data, fds, _, _ = socket.recv_fds(self._sock, len(room), 4, socket.MSG_CMSG_CLOEXEC)
        self._fds += fds
        room[: len(data)] = data
        return len(data)

    def end(self) -> None:
        """Tells the rank that nothing more will be asked. It cancels jobs and closes its end when it touches no region any more."""
        self.state.ended = True
        self._close_fds()
        if self.state.pid == os.getpid():  # a child that was forked has only a copy of the descriptor
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it is gone already

    def at_end(self, seconds: float) -> bool:
        """Whether the rank has closed its end, after waiting so long for it. What it still sends is dropped."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while True:
            try:
                if poll.poll(max(0.0, deadline - time.monotonic()) * 1000) and not self._sock.recv(1 << 16, socket.MSG_DONTWAIT):
                    return True
            except BlockingIOError:
                pass
            except OSError:
                return True  # reset: the rank is gone
            if time.monotonic() >= deadline:
                return False

    def close(self) -> None:
        """Gives the descriptor back. Only after end()."""
        self.state.ended = True
        self._close_fds()
        self._sock.close()

    def _close_fds(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class Link(LinkBase):
    """A connection whose calls block."""

    def __init__(self, path: str, timeout: float, trust: Trust) -> None:
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), timeout)
        self._wait = 0.0  # what SO_RCVTIMEO is now
        try:
            self._sock.settimeout(timeout)
            self._sock.connect(path)
            self.state.server = trust.check(self._sock, path)
            # The kernel's own deadlines cost no system call of their own, unlike those of Python's sockets.
            self._sock.settimeout(None)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(timeout))
            self._wait_at_most(timeout)
        except BaseException:
            self._sock.close()
            raise

    def call(self, request: Request, first: bytes = b"") -> Any:
        """The answer to a request; first is another one, which goes with it and whose answer nobody needs.

        Raises LinkLost or ProtocolError, and then the link is to be ended.
        """
        deadline = time.monotonic() + self.timeout + request.extra
        try:
            self._send(request, first)
        except OSError as e:
            stale = self._used and isinstance(e, (BrokenPipeError, ConnectionResetError))
            raise LinkLost(f"a request could not be sent: {e}", stale=stale) from e
        return self._receive(deadline, request.extra, request.wants_fd)

    def tell(self, data: bytes) -> None:
        """Sends a request whose answer nobody needs. It is read before the next answer."""
        if self._owed == _MAX_OWED:  # their answers would fill the socket
            self.call(Request(head(1) + words("PING")))
        try:
            self._sock.sendall(data)
        except OSError as e:
            raise LinkLost(f"a request could not be sent: {e}") from e
        self._owed += 1

    def _send(self, request: Request, first: bytes) -> None:
        data = request.data
        self._owed += request.before
        if first:
            self._owed += 1
            if request.fds:
                self._sock.sendall(first)
            else:
                data = first + data
        if request.fds:
            sent = socket.send_fds(self._sock, [data], list(request.fds))
            if sent < len(data):
                self._sock.sendall(memoryview(data)[sent:])
        elif request.value is None:
            self._sock.sendall(data)
        else:
            for part in request.parts(data):
                self._sock.sendall(part)

    def _receive(self, deadline: float, extra: float, wants_fd: bool) -> Any:
        want = self.timeout + extra
        if self._wait != want:
            self._wait_at_most(want)
        first = True
        while (reply := self._answer()) is INCOMPLETE:
            if not first:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LinkLost(f"no complete answer within {want:g} s")
                self._wait_at_most(left)
            self._fill(wants_fd, first)
            first = False
        return reply

    def _fill(self, wants_fd: bool, first: bool) -> None:
        try:
            with self._decoder.room() as room:
                n = self._receive_fds(room) if wants_fd else self._sock.recv_into(room)
        except BlockingIOError as e:
            raise LinkLost(f"no answer within {self._wait:g} s") from e
        except OSError as e:
            raise LinkLost(f"the connection broke: {e}", stale=first and self._used) from e
        if n == 0:
            raise LinkLost("the rank closed the connection", stale=first and self._used)
        self._decoder.got(n)

    def _wait_at_most(self, seconds: float) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(seconds))
        self._wait = seconds


def timeval(seconds: float) -> bytes:
    """A struct timeval. Zero would mean no limit, so it is a microsecond at least."""
    micro = max(1, int(seconds * 1e6))
    return struct.pack("@ll", micro // 1_000_000, micro % 1_000_000)
