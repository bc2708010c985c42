"""The client that engines use: blocking, safe for threads, and never raising because the rank is away."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from . import ops
from .backoff import Backoff, socket_path
from .errors import CascadeError, LinkLost, ProtocolError, Refused, RegionRefused
from .link import GRACE_SECONDS, Link, LinkState, Request
from .ops import Events, Move, Op, Probe, Statuses
from .region import Region
from .resp import Word
from .view import View

T = TypeVar("T")
Done = list[tuple[int, Statuses]]

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Ending:
    """A lost connection whose jobs the rank may still be working on."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.deadline = time.monotonic() + GRACE_SECONDS

    def over(self, log: logging.Logger) -> bool:
        if self.link.at_end(0):
            return True
        if time.monotonic() < self.deadline:
            return False
        log.error("cascade: the rank still holds its end of a lost connection after %g s; its jobs are given up", GRACE_SECONDS)
        return True


class Client:
    """One connection to the rank of this node.

    A rank that is away, or that goes away, is a miss: False, None, zeros. The client connects when it is first used, and again
    with a back-off of 0.05 s doubling to 2 s; regions are attached again by themselves. Each call takes at most timeout seconds, except
    that one which moves bytes returns only when the rank is known not to touch the region any more.

    Calls of several threads take turns. A forked child gets a connection of its own. There are no threads inside.
    Keys have 1 to 1024 bytes. ValueError is for arguments that no rank could serve.
    """

    def __init__(self, socket: str, *, timeout: float = 5.0, log: logging.Logger | None = None) -> None:
        self._path = socket_path(socket)
        self._timeout = timeout
        self._log = log or logging.getLogger("cascade_kv")
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._regions: dict[int, Region] = {}
        self._ending: list[Ending] = []
        self._failed: Done = []  # jobs of lost connections, not told yet
        self._backoff = Backoff()
        self._closed = False
        self._give_back = _weak_call(self)
        _clients.add(self)

    # Moving blocks between regions and the rank.

    def region(self, *, fd: int | None = None, path: str | None = None, notify: int | None = None) -> Region:
        """Attaches a memfd, or a file under /dev/shm, once and for all connections to come.

        notify is an eventfd to which the rank adds 1 whenever a job of this client is done. The client keeps copies of the descriptors.
        Raises RegionRefused if the rank is there and refuses; if it is away, it is attached later.
        """
        region = Region(fd, path, notify)
        with self._lock:
            link = self._connected()
            try:
                if link is not None:
                    self._drive(link, ops.attach(link.state, region))
            except Refused as e:
                region.close()
                raise RegionRefused(str(e)) from e
            except (LinkLost, ProtocolError) as e:
                self._lose(e)
            self._regions[region.number] = region
        region.detach = _detach(self, region)
        return region

    def store(
        self,
        ns: str,
        region: Region,
        keys: Sequence[bytes | str],
        extents: NDArray[Any],
        *,
        parent: bytes | str | None = None,
        chain: bool = False,
        prefix: bool = False,
        replace: bool = False,
        job: int | None = None,
    ) -> Any:
        """Stores a block for each key out of the region; extents are offset and length, uint64, of shape (keys, extents of each, 2).

        Returns statuses, uint8: 1 stored, 0 not, 2 cancelled. With a job: whether it was queued; done() tells the statuses.
        """
        options: list[Word] = [w for w, on in (("PREFIX", prefix), ("REPLACE", replace)) if on]
        return self._move(Move("CASCADE.STORE", ns, region, keys, extents, options, parent, chain, job))

    def load(self, ns: str, region: Region, keys: Sequence[bytes | str], extents: NDArray[Any], *, job: int | None = None) -> Any:
        """Copies blocks into the region. What a key with another status than 1 has in its extents is undefined. Else as store."""
        return self._move(Move("CASCADE.LOAD", ns, region, keys, extents, job=job))

    def _move(self, m: Move) -> Any:
        if m.job is None:
            return self._run(lambda s: ops.move(s, m), np.zeros(len(m.keys), np.uint8), touches=True)
        if not m.one_command:
            if m.keys:
                self._log.warning("cascade: job %d has more keys than fit into one request (%d); not queued", m.job, len(m.keys))
            return False
        with self._lock:
            if any(m.job in e.link.state.jobs for e in self._ending) or any(m.job == job for job, _ in self._failed):
                return False  # its outcome is yet to be told
        return self._run(lambda s: ops.queue(s, m), False, queues=m.job)

    def done(self, timeout: float = 0.0) -> Done:
        """Jobs that are finished, each told once, with their statuses. Waits up to timeout seconds for the first.

        Jobs of a lost connection are told with statuses 0 as soon as the rank touches the region no more.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            out = self._lost_jobs()
            alive = bool(self._link and self._link.state.jobs)
            wait = 0 if out or self._ending else int(min(left * 1000, ops.MAX_WAIT_MS, _TURN_MS))
            if alive:
                out += self._finished(wait)
            if out or left <= 0 or not (alive or self._ending):
                return out
            if self._ending:
                self._wait_for_end(min(left, _TURN_MS / 1000))

    def _finished(self, wait_ms: int) -> Done:
        nothing: Done = []
        return self._run(lambda s: ops.done(s, wait_ms), nothing)

    def _lost_jobs(self) -> Done:
        with self._lock:
            for e in [e for e in self._ending if e.over(self._log)]:
                self._ending.remove(e)
                self._bury(e.link)
            out, self._failed = self._failed, []
            return out

    def _wait_for_end(self, seconds: float) -> None:
        poll = select.poll()
        with self._lock:
            for e in self._ending:
                poll.register(e.link.fileno(), select.POLLRDHUP)
        poll.poll(seconds * 1000)

    def cancel(self, job: int) -> bool:
        """Whether the job had not finished. It is told by done() all the same."""
        return self._run(lambda s: ops.cancel(s, job), False, again=False)

    # Asking.

    def contains(self, ns: str, keys: Sequence[bytes | str]) -> NDArray[np.bool_]:
        """For each key whether it is stored somewhere. No lease comes with that."""
        return self._run(lambda s: ops.contains(s, ns, keys), np.zeros(len(keys), np.bool_))

    def probe(self, ns: str, keys: Sequence[bytes | str]) -> Probe:
        """How many leading keys of a chain are cached, head first."""
        return self._run(lambda s: ops.probe(s, ns, keys), Probe()) if keys else Probe()

    # Values.

    def get(self, ns: str, key: bytes | str) -> bytes | None:
        """The block, copied, or None."""
        return self._run(lambda s: ops.get(s, ns, key), None)

    def get_into(self, ns: str, key: bytes | str, dst: Any) -> int:
        """Copies the block into a writable buffer. Returns its bytes, or -1 for a miss. ValueError if the buffer is too small."""
        target = np.frombuffer(memoryview(dst).cast("B"), dtype=np.uint8)
        view = self.view(ns, key)
        if view is not None:
            with view:
                return ops.copy(target, view.array)
        value = self.get(ns, key)  # too much is held by views, or it is absent
        return -1 if value is None else ops.copy(target, np.frombuffer(value, dtype=np.uint8))

    def put(self, ns: str, key: bytes | str, value: Any, *, parent: bytes | str | None = None, prefix: bool = False) -> bool:
        """Stores a block by its content. value is anything with bytes in one piece."""
        data = memoryview(value).cast("B")
        return self._run(lambda s: ops.put(s, ns, key, data, parent, prefix), False)

    def delete(self, ns: str, keys: Sequence[bytes | str]) -> int:
        """How many of the keys were there and are gone now."""
        return self._run(lambda s: ops.delete(s, ns, keys), 0, again=False)

    def clear(self, ns: str) -> bool:
        """Deletes all keys of a namespace."""
        return self._run(lambda s: ops.clear(s, ns), False)

    # Views.

    def view(self, ns: str, key: bytes | str) -> View | None:
        """The block in the rank's arena, without a copy, or None."""
        return self.views(ns, [key])[0]

    def views(self, ns: str, keys: Sequence[bytes | str]) -> list[View | None]:
        """A view for each key. All views together hold at most a quarter of the arena: what goes beyond is None."""
        missing: list[View | None] = [None] * len(keys)
        return self._run(lambda s: ops.views(s, ns, keys, self._give_back), missing)

    # The rank.

    def stats(self) -> dict[str, Any]:
        """The rank's statistics, {} if it is away."""
        return self._run(ops.stats, {})

    def events(self, since: int = 0, *, most: int | None = None, wait: float = 0.0) -> Events:
        """What became readable on the rank or is no more, from event number since on; 0 means from now on. Waits up to wait seconds, at most 5."""
        ms = min(int(wait * 1000), ops.MAX_WAIT_MS)
        return self._run(lambda s: ops.events(s, since, most, ms), Events(since, 0, []))

    @property
    def up(self) -> bool:
        """Whether the rank is there now."""
        with self._lock:
            if self._link is not None and self._link.state.pid == os.getpid() and self._link.hung_up():
                self._lose(LinkLost("the rank closed the connection"))
            return self._connected() is not None

    def close(self) -> None:
        """Ends the connection: views, jobs and regions are given back. Returns when the rank touches no region any more. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._drop()
            for e in self._ending:
                e.link.at_end(GRACE_SECONDS)
                e.link.close()
            self._ending.clear()
            for region in self._regions.values():
                region.close()
            self._regions.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The connection. All below is called with the lock held, but for _run and _flush.

    def _run(self, op: Callable[[LinkState], Op[T]], miss: T, *, again: bool = True, touches: bool = False, queues: int | None = None) -> T:
        """Runs an operation. A connection that the rank had closed earlier, by a restart, is made once more."""
        with self._lock:
            result = miss
            for attempt in range(2):
                link = self._connected()
                if link is None:
                    break
                try:
                    result = self._drive(link, op(link.state))
                    break
                except Refused as e:
                    self._warn("the rank refused a request: %s", e)
                    break
                except (LinkLost, ProtocolError) as e:
                    stale = again and not attempt and getattr(e, "stale", False)
                    if queues is not None and stale:
                        link.state.jobs.pop(queues, None)  # the rank has ended: it is queued anew
                    queued = queues in link.state.jobs
                    self._lose(e, wait=touches)
                    if queued:
                        result = cast(T, True)  # the rank may have it: done() tells it as failed
                    if not stale:
                        break
            dropped = self._link is not None and bool(self._link.state.dropped)
        if dropped and self._link is not None:
            self._flush(self._link.state)
        return result

    def _drive(self, link: Link, op: Op[T]) -> T:
        try:
            request: Request = next(op)
            while True:
                if link.state.dropped:
                    self._tell_dropped(link)
                reply = link.call(request)
                if isinstance(reply, Refused):
                    request = op.throw(reply)
                elif request.wants_fd:
                    request = op.send((reply, link.take_fd()))
                else:
                    request = op.send(reply)
        except StopIteration as e:
            return cast(T, e.value)

    def _connected(self) -> Link | None:
        link = self._link
        if link is not None:
            if link.state.pid == os.getpid():
                return link
            link.close()  # the parent's: a child has only a copy of the descriptor
            self._link = None
            for e in self._ending:
                e.link.close()
            self._ending.clear()
        if self._closed or not self._backoff.over():
            return None
        try:
            link = Link(self._path, self._timeout)
        except OSError as e:
            self._backoff.failed()
            self._log.debug("cascade: no rank at %s: %s", self._path, e)
            return None
        self._link = link
        try:
            if not self._drive(link, ops.hello(link.state)):
                self._warn("the rank at %s does not serve the commands of engines", self._path)
            for region in self._regions.values():
                try:
                    self._drive(link, ops.attach(link.state, region))
                except Refused as e:
                    self._log.error("cascade: the rank refuses a region it had before: %s", e)
        except CascadeError as e:
            self._backoff.failed()
            self._lose(e)
            return None
        self._backoff.worked()
        return link

    def _lose(self, why: Exception, *, wait: bool = False) -> None:
        """Gives the connection up; with wait, returns when the rank touches no region any more."""
        link, self._link = self._link, None
        if link is None:
            return
        self._warn("connection lost: %s", why)
        link.end()
        if link.state.jobs and not link.at_end(0):
            self._ending.append(Ending(link))
            if wait and not link.at_end(GRACE_SECONDS):
                self._log.error("cascade: the rank still holds its end of a lost connection after %g s", GRACE_SECONDS)
            return
        if wait and not link.at_end(GRACE_SECONDS):
            self._log.error("cascade: the rank still holds its end of a lost connection after %g s", GRACE_SECONDS)
        self._bury(link)

    def _bury(self, link: Link) -> None:
        self._failed += [(job, np.zeros(n, np.uint8)) for job, n in link.state.jobs.items()]
        link.state.jobs.clear()
        link.close()

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        mine = link.state.pid == os.getpid()
        link.end()
        if mine and link.state.regions:
            link.at_end(GRACE_SECONDS)
        link.close()

    def _flush(self, state: LinkState) -> None:
        """Tells the rank which views are not needed. Called by finalizers too, so it takes the lock only if that is free."""
        while state.dropped and not state.ended and self._lock.acquire(blocking=False):
            try:
                link = self._link
                if link is None or link.state is not state or state.pid != os.getpid():
                    return
                self._tell_dropped(link)
            except (LinkLost, ProtocolError) as e:
                self._lose(e)
            finally:
                self._lock.release()

    @staticmethod
    def _tell_dropped(link: Link) -> None:
        numbers = []
        while link.state.dropped:
            numbers.append(link.state.dropped.popleft())
        if numbers:
            link.tell(ops.release(numbers), 1)

    def _warn(self, text: str, *args: object) -> None:
        if self._backoff.may_warn():
            self._log.warning("cascade: " + text, *args)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


_TURN_MS: Final = 50  # how long one done() keeps other threads from the connection


def _weak_call(client: Client) -> Callable[[LinkState], None]:
    """How views give themselves back without keeping their client alive."""
    ref = weakref.ref(client)

    def give_back(state: LinkState) -> None:
        c = ref()
        if c is not None:
            c._flush(state)

    return give_back


def _detach(client: Client, region: Region) -> Callable[[], None]:
    ref = weakref.ref(client)

    def detach() -> None:
        c = ref()
        if c is not None and not region.closed:
            c._regions.pop(region.number, None)
            c._run(lambda s: ops.detach(s, region), None, again=False)
        if not region.closed:
            region.close()

    return detach


def _after_fork() -> None:
    for client in _clients:
        client._after_fork()


os.register_at_fork(after_in_child=_after_fork)
