"""What a client remembers from one connection to the next: regions, jobs whose connection was lost, when to try again."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import ops
from .backoff import Backoff, socket_path
from .errors import LinkLost, Refused
from .link import GRACE_SECONDS, LinkBase, Request
from .ops import Move, Op, Statuses
from .region import Region
from .resp import Keys, Word

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

    def __init__(self, socket: str, timeout: float, log: logging.Logger | None) -> None:
        self._path = socket_path(socket)
        self._timeout = timeout
        self._log = log or logging.getLogger("cascade_kv")
        self._link: L | None = None
        self._regions: dict[int, Region] = {}
        self._ending: list[Ending[L]] = []
        self._failed: Done = []  # jobs of lost connections, not told yet
        self._backoff = Backoff()
        self._bell: int | None = None  # our eventfd, rung by the rank when a job is done
        self._closed = False

    def _new_region(self, fd: int | None, path: str | None, notify: int | None) -> Region:
        if notify is None:
            if self._bell is None:
                self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            notify = self._bell
        return Region(fd, path, notify)

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
        if self._link is not None:
            self._link.close()
            self._link = None
        for e in self._ending:
            e.link.close()
        self._ending.clear()
        self._failed.clear()

    def _dropped(self, link: L) -> bytes | None:
        """A request that gives back the views that nobody needs any more."""
        numbers = []
        while link.state.dropped:
            numbers.append(link.state.dropped.popleft())
        return ops.release(numbers) if numbers else None

    def _forget_regions(self) -> None:
        for region in self._regions.values():
            region.close()
        self._regions.clear()
        if self._bell is not None:
            os.close(self._bell)
            self._bell = None

    def _held_on(self) -> None:
        self._log.error(
            "cascade: the rank still holds its end of a lost connection after %g s; it is not waited for any more", GRACE_SECONDS
        )

    def _warn(self, text: str, *args: object) -> None:
        if self._backoff.may_warn():
            self._log.warning("cascade: " + text, *args)


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


def stale(error: Exception) -> bool:
    """Whether the rank had left before the request came: another one may be there."""
    return isinstance(error, LinkLost) and error.stale


def store_move(
    ns: str,
    region: Region,
    keys: Keys,
    extents: NDArray[Any],
    parent: Word | None,
    chain: bool,
    prefix: bool,
    replace: bool,
    job: int | None,
) -> Move:
    options: list[Word] = [w for w, on in (("PREFIX", prefix), ("REPLACE", replace)) if on]
    return Move("CASCADE.STORE", ns, region, keys, extents, options, parent, chain, job)


def load_move(ns: str, region: Region, keys: Keys, extents: NDArray[Any], job: int | None) -> Move:
    return Move("CASCADE.LOAD", ns, region, keys, extents, job=job)
