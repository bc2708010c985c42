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
from .resp import INCOMPLETE, Decoder

if TYPE_CHECKING:
    from .view import Arena

# A rank answers within 5 s, so one that still holds its end open after this has stopped for good.
GRACE_SECONDS: Final = 60.0

_LARGE: Final = 128 << 10  # from here on a value is sent by itself, not copied into the request


@dataclass(slots=True)
class Request:
    """What is sent at once, and how the answer is read."""

    data: bytes
    value: memoryview | None = None  # sent between data and tail
    tail: bytes = b""
    fds: Sequence[int] = ()  # sent with the first byte
    wants_fd: bool = False  # a descriptor comes with the first byte of the answer
    extra: float = 0.0  # seconds that the rank may take beyond the client's timeout
    job: tuple[int, int] | None = None  # the job that it queues, and its number of keys


@dataclass
class LinkState:
    """What a connection has at the rank. When the connection ends the rank gives all of it back."""

    regions: dict[int, int] = field(default_factory=dict)  # number of our region to the rank's number
    jobs: dict[int, int] = field(default_factory=dict)  # job to its number of keys
    arena: Arena | None = None
    dropped: deque[int] = field(default_factory=deque)  # views that nobody needs any more, to be told to the rank
    pid: int = field(default_factory=os.getpid)
    ended: bool = False


class Link:
    """A connection on which one request is under way at a time. Not safe for threads: the client has the lock."""

    def __init__(self, path: str, timeout: float) -> None:
        self.state = LinkState()
        self.timeout = timeout
        self._decoder = Decoder()
        self._owed = 0  # answers to come that nobody waits for
        self._fds: list[int] = []
        self._used = False
        self._wait = 0.0  # what SO_RCVTIMEO is now
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(timeout)
            self._sock.connect(path)
            # The kernel's own deadlines cost no system call of their own, unlike those of Python's sockets.
            self._sock.settimeout(None)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(timeout))
            self._wait_at_most(timeout)
        except BaseException:
            self._sock.close()
            raise

    def fileno(self) -> int:
        return self._sock.fileno()

    def call(self, request: Request) -> Any:
        """The answer to a request. Raises LinkLost or ProtocolError, and then the link is to be ended."""
        deadline = time.monotonic() + self.timeout + request.extra
        try:
            self._send(request)
        except OSError as e:
            if isinstance(e, (BrokenPipeError, ConnectionResetError)):
                raise LinkLost("the rank closed the connection", stale=self._used) from e
            raise LinkLost(f"a request could not be sent: {e}") from e
        reply = self._receive(deadline, request)
        self._used = True
        return reply

    def tell(self, data: bytes, answers: int) -> None:
        """Sends requests whose answers nobody needs. They are read before the next answer."""
        try:
            self._sock.sendall(data)
        except OSError as e:
            raise LinkLost(f"a request could not be sent: {e}") from e
        self._owed += answers

    @property
    def owes(self) -> int:
        return self._owed

    def take_fd(self) -> int | None:
        """The descriptor that came with the last answer. The caller closes it."""
        return self._fds.pop(0) if self._fds else None

    def _send(self, request: Request) -> None:
        data = request.data
        if request.fds:
            sent = socket.send_fds(self._sock, [data], list(request.fds))
            if sent < len(data):
                self._sock.sendall(memoryview(data)[sent:])
        elif request.value is None:
            self._sock.sendall(data)
        elif request.value.nbytes < _LARGE:
            self._sock.sendall(b"".join((data, request.value, request.tail)))
        else:
            self._sock.sendall(data)
            self._sock.sendall(request.value)
            self._sock.sendall(request.tail)

    def _receive(self, deadline: float, request: Request) -> Any:
        decoder = self._decoder
        want = self.timeout + request.extra
        if self._wait != want:
            self._wait_at_most(want)
        first = True
        while True:
            reply = decoder.reply()
            if reply is not INCOMPLETE:
                if self._owed:
                    self._owed -= 1
                    continue
                if not decoder.empty:
                    raise ProtocolError("more came than was asked for")
                return reply
            if not first:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LinkLost(f"no complete answer within {self.timeout + request.extra:g} s")
                self._wait_at_most(left)
            self._fill(request.wants_fd, first)
            first = False

    def _fill(self, wants_fd: bool, first: bool) -> None:
        try:
            with self._decoder.room() as room:
                if wants_fd:
                    data, fds, _, _ = socket.recv_fds(self._sock, len(room), 4, socket.MSG_CMSG_CLOEXEC)
                    self._fds += fds
                    n = len(data)
                    room[:n] = data
                else:
                    n = self._sock.recv_into(room)
        except BlockingIOError as e:
            raise LinkLost(f"no answer within {self.timeout:g} s") from e
        except OSError as e:
            raise LinkLost(f"the connection broke: {e}", stale=first and self._used) from e
        if n == 0:
            raise LinkLost("the rank closed the connection", stale=first and self._used)
        self._decoder.got(n)

    def _wait_at_most(self, seconds: float) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(seconds))
        self._wait = seconds

    def hung_up(self) -> bool:
        """Whether the rank has closed its end. Asks the kernel, not the rank."""
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

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


def timeval(seconds: float) -> bytes:
    """A struct timeval. Zero would mean no limit, so it is a microsecond at least."""
    micro = max(1, int(seconds * 1e6))
    return struct.pack("@ll", micro // 1_000_000, micro % 1_000_000)
