"""What a client remembers from one connection to the next: regions, jobs whose connection was lost, when to try again."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import ops
from .backoff import Backoff, socket_path
from .errors import ForeignServer, LinkLost, Refused
from .index import Index
from .link import GRACE_SECONDS, LinkBase, LinkState, Request
from .ops import Move, Op, Statuses
from .password import Password
from .peer import Trust
from .region import Region
from .resp import Keys, Word
from .view import View

# Views that are not needed any more are told with the next request, at once only beyond these: it costs the rank a wake-up.
LATER_VIEWS: Final = 64
LATER_BYTES: Final = 4 << 20

# From here on a value comes faster as a view and a copy than through the socket.
VIEW_BYTES: Final = 64 << 10

L = TypeVar("L", bound=LinkBase)
T = TypeVar("T")
Done = list[tuple[int, Statuses]]


class Ending(Generic[L]):
    """A lost connection whose jobs the rank may still be working on."""

    def __init__(self, link: L) -> None:
        self.link = link
        self.deadline = time.monotonic() + GRACE_SECONDS


class Session(Generic[L]):
    """The part of a client that does no input or output. Its methods are called with the client's lock held."""

    def __init__(self, socket: str, timeout: float, log: logging.Logger | None, password: Password, trust: Trust) -> None:
        self._path = socket_path(socket)
        self._password = password
        self._trust = trust
        self._timeout = timeout
        self._log = log or logging.getLogger("cascade_kv")
        self._link: L | None = None
        self._regions: dict[int, Region] = {}
        self._ending: list[Ending[L]] = []
        self._failed: Done = []  # jobs of lost connections, not told yet
        self._backoff = Backoff()
        self._bell: int | None = None  # our eventfd, rung by the rank when a job is done
        self._closed = False
        self._give_back: Callable[[LinkState], None] = _later
        self._sizes: dict[str, int] = {}  # bytes of the last value of a namespace
        self._index: Index | None = None  # of the connection there is
        self._asked: LinkState | None = None  # of the connection that was asked for it

    def __del__(self) -> None:
        bell, self._bell = getattr(self, "_bell", None), None
        if bell is not None:
            os.close(bell)

    def _saw(self, ns: str, size: int) -> None:
        if len(self._sizes) > 1000:
            self._sizes.clear()
        self._sizes[ns] = size

    def _large(self, ns: str) -> bool:
        """Whether values of the namespace are likely to be better had as views."""
        return self._sizes.get(ns, 0) >= VIEW_BYTES

    @staticmethod
    def _many_dropped(state: LinkState) -> bool:
        return len(state.dropped) > LATER_VIEWS or sum(size for _, size in tuple(state.dropped)) > LATER_BYTES

    def _read(self, ns: str, key: Word, large: bool) -> Callable[[LinkState], Op[View | bytes | None]]:
        return lambda s: ops.read(s, ns, key, large, self._give_back)

    def _bytes(self, ns: str, got: View | bytes | None) -> bytes | None:
        """What get returns."""
        if isinstance(got, View):
            with got:
                got = got.array.tobytes()
        if got is not None:
            self._saw(ns, len(got))
        return got

    # The shared index. It is read without the client's lock.

    def _find_index(self, state: LinkState) -> Op[Index | None]:
        self._asked = state
        self._index = yield from ops.index(state)
        return self._index

    def _find_holds(self, state: LinkState) -> Op[None]:
        """Asks for the holds of the index there is, if nobody has."""
        index = self._index
        if index is not None and index.wants_holds and self._asked is state:
            yield from ops.index_holds(state, index)

    def _has_none(self) -> bool:
        """Whether the rank was asked for an index already and has none."""
        link = self._link
        return link is not None and self._asked is link.state

    def _drop_index(self, index: Index | None) -> None:
        """The next call asks for another one, if this one is out of use."""
        if index is None or not index.alive():
            self._index = self._asked = None

    def _refuses(self, m: Move) -> bool:
        """Whether a job can not be queued, whoever is there."""
        if m.keys and not m.one_command:
            self._log.warning("cascade: job %s has more keys than fit into one request (%d); not queued", m.job, len(m.keys))
        return not m.one_command or m.job is None or self._untold(m.job)

    def _new_region(self, fd: int | None, path: str | None, notify: int | None) -> Region:
        return Region(fd, path, self._bell_for(notify))

    def _bell_for(self, notify: int | None) -> int:
        """The eventfd of a region: ours, if its user has none."""
        if notify is not None:
            return notify
        if self._bell is None:
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._bell

    def _hush(self) -> None:
        """Makes the bell silent until the next job is done."""
        if self._bell is not None:
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                pass

    def _untold(self, job: int) -> bool:
        """Whether done() has still to tell the outcome of a job of this number."""
        return any(job in e.link.state.jobs for e in self._ending) or any(job == j for j, _ in self._failed)

    def _take_failed(self) -> Done:
        """Jobs of lost connections of which the rank has let go."""
        for e in list(self._ending):
            late = time.monotonic() >= e.deadline
            if not e.link.at_end(0) and not late:
                continue
            if late:
                self._held_on()
            self._ending.remove(e)
            self._bury(e.link)
        out, self._failed = self._failed, []
        return out

    def _bury(self, link: L) -> None:
        """After this the link's jobs are told as failed."""
        self._failed += [(job, np.zeros(n, np.uint8)) for job, n in link.state.jobs.items()]
        link.state.jobs.clear()
        link.close()

    def _forget_parent(self) -> None:
        """In a child: the connections are the parent's, of which the child has copies."""
        self._drop_index(None)
        if self._link is not None:
            self._link.close()
            self._link = None
        for e in self._ending:
            e.link.close()
        self._ending.clear()
        self._failed.clear()

    @staticmethod
    def _dropped(state: LinkState) -> bytes:
        """A request that gives back the views that nobody needs any more; empty if there are none."""
        if not state.dropped:
            return b""
        numbers = []
        while state.dropped:
            numbers.append(state.dropped.popleft()[0])
        return ops.release(numbers)

    def _forget_regions(self) -> None:
        self._drop_index(None)
        for region in self._regions.values():
            region.close()
        self._regions.clear()
        if self._bell is not None:
            os.close(self._bell)
            self._bell = None

    # What both kinds of client do about a connection.

    def _away(self, why: Exception) -> None:
        self._backoff.failed()
        if not isinstance(why, ForeignServer):
            self._log.debug("cascade: no rank at %s: %s", self._path, why)
        elif self._backoff.may_warn("foreign"):
            self._log.error("cascade: %s", why)

    def _secret(self) -> str:
        try:
            return self._password.read()
        except ValueError as e:
            raise Refused(str(e)) from e

    def _serves(self, engines: bool) -> None:
        if not engines:
            self._warn("the rank at %s does not serve the commands of engines", self._path)

    def _refused(self, why: Refused) -> None:
        self._log.error("cascade: the rank refuses a region it had before: %s", why)

    @staticmethod
    def _retry(link: L, why: Exception, may: bool, queues: int | None) -> bool:
        """Whether a request is made again: the rank had left before it came, and another one may be there."""
        retry = may and isinstance(why, LinkLost) and why.stale
        if retry and queues is not None:
            link.state.jobs.pop(queues, None)  # nobody has it
        return retry

    def _after_loss(self, link: L, ended: bool, waited: bool) -> None:
        self._drop_index(None)
        if waited and not ended:
            self._held_on()
        if link.state.jobs and not ended:
            self._ending.append(Ending(link))
        else:
            self._bury(link)

    def _held_on(self) -> None:
        self._log.error(
            "cascade: the rank still holds its end of a lost connection after %g s; it is not waited for any more", GRACE_SECONDS
        )

    def _warn(self, text: str, *args: object) -> None:
        if self._backoff.may_warn():
            self._log.warning("cascade: " + text, *args)


def _later(state: LinkState) -> None:
    """Views that are not needed go with the next request."""


class Steps(Generic[T]):
    """An operation under way. While there is a request, send it and give its answer; then there is a value."""

    def __init__(self, op: Op[T]) -> None:
        self._op = op
        self.request: Request | None = None
        self.value: T
        self._advance(None)

    def answer(self, link: LinkBase, reply: Any) -> None:
        if self.request is not None and self.request.wants_fd and not isinstance(reply, Refused):
            reply = (reply, link.take_fd())
        self._advance(reply)

    def _advance(self, reply: Any) -> None:
        try:
            self.request = self._op.throw(reply) if isinstance(reply, Refused) else self._op.send(reply)
        except StopIteration as e:
            self.request, self.value = None, e.value


def copied(target: NDArray[np.uint8], got: View | bytes | None) -> int:
    """What get_into returns."""
    if got is None:
        return -1
    if isinstance(got, bytes):
        return ops.copy(target, np.frombuffer(got, dtype=np.uint8))
    with got:
        return ops.copy(target, got.array)


def store_move(
    ns: str,
    region: Region,
    keys: Keys,
    extents: NDArray[Any],
    parent: Word | None,
    chain: bool,
    prefix: bool,
    generated: bool,
    replace: bool,
    job: int | None,
    shared: int,
    due: float | None,
    after: tuple[int, int] | None = None,
) -> Move:
    options: list[Word] = [w for w, on in (("PREFIX", prefix), ("GENERATED", generated), ("REPLACE", replace)) if on]
    return Move("CASCADE.STORE", ns, region, keys, extents, options, parent, chain, job, shared, due, after)


def load_move(
    ns: str, region: Region, keys: Keys, extents: NDArray[Any], job: int | None, after: tuple[int, int] | None = None
) -> Move:
    return Move("CASCADE.LOAD", ns, region, keys, extents, job=job, after=after)
