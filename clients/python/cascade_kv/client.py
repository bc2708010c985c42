"""The client that engines use: blocking, safe for threads, and never raising because the rank is away."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from . import advice, ops
from .advice import Advice, Ask, Probe
from .errors import CascadeError, ForeignServer, LinkLost, ProtocolError, Refused, RegionRefused
from .index import Index
from .layout import Layout
from .link import GRACE_SECONDS, Link, LinkState
from .ops import Events, Move, Op
from .password import Password
from .peer import Trust
from .region import Region
from .ring import Ring
from .session import VIEW_BYTES, Done, Ending, Session, Steps, copied, load_move, store_move
from .view import View

T = TypeVar("T")

_NAP_SECONDS: Final = 1.0  # how long done() waits before it looks again, should a bell have been heard by another thread
_TURN_MS: Final = 50  # how long it keeps other threads from the connection where there is no bell

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client(Session[Link]):
    """One connection to the rank of this node.

    A rank that is away, or that goes away, is a miss: False, None, zeros. The client connects when it is first used, and again
    with a back-off of 0.05 s doubling to 2 s; regions are attached again by themselves. Each call takes at most timeout seconds, except
    that one which moves bytes returns only when the rank is known not to touch the region any more.

    Calls of several threads take turns. A forked child gets a connection of its own. There are no threads inside.
    password, or the first line of password_file, or of the file that CASCADE_PASSWORD_FILE names, is for a rank that wants one.
    A rank must be of this process's own user or of root, or of one whom server_uids lists, or CASCADE_SERVER_UIDS with commas between;
    one of another user is a rank that is away, logged as an error, and gets no byte.
    Keys have 1 to 1024 bytes. ValueError is for arguments that no rank could serve.
    """

    def __init__(
        self,
        socket: str,
        *,
        timeout: float = 5.0,
        log: logging.Logger | None = None,
        password: str | None = None,
        password_file: str | None = None,
        server_uids: Iterable[int] | str | None = None,
    ) -> None:
        super().__init__(socket, timeout, log, Password(password, password_file), Trust(server_uids))
        self._lock = threading.Lock()
        self._give_back = _weak_call(self)
        _clients.add(self)

    # Moving blocks between regions and the rank.

    def region(self, *, fd: int | None = None, path: str | None = None, notify: int | None = None) -> Region:
        """Attaches a memfd, or a file under /dev/shm, once and for all connections to come.

        notify is an eventfd to which the rank adds 1 whenever a job of this client is done. The client keeps copies of the descriptors.
        Raises RegionRefused if the rank is there and refuses; if it is away, it is attached later.
        """
        with self._lock:
            region = self._new_region(fd, path, notify)
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

    def ring(self, size: int, *, write: bool = False, notify: int | None = None) -> Ring | None:
        """Memory of at least size bytes that blocks on the disks of the node come into by themselves: see load. None if the rank is away.

        write: what is stored out of it goes to the disks by itself, too: see store. Where these have no room of its own for it, that is copied.

        It is a region for store and load, too, and ends with the connection. notify is as of region. Raises RegionRefused if the rank refuses:
        it has no disks, or their files are not ready yet.
        """
        with self._lock:
            for attempt in range(2):
                link = self._connected()
                if link is None:
                    return None
                ring = Ring(size, self._bell_for(notify), write)
                try:
                    self._drive(link, ops.ring(link.state, ring))
                    ring.detach = _detach(self, ring)
                    return ring
                except Refused as e:
                    ring.close()
                    raise RegionRefused(str(e)) from e
                except (LinkLost, ProtocolError) as e:
                    ring.close()
                    retry = self._retry(link, e, not attempt, None)
                    self._lose(e)
                    if not retry:
                        break
        return None

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
        generated: bool = False,
        replace: bool = False,
        job: int | None = None,
        shared: int = 0,
        due: float | None = None,
        after: tuple[int, int] | None = None,
    ) -> Any:
        """Stores a block for each key out of the region; extents are offset and length, uint64, of shape (keys, extents of each, 2).

        Returns statuses, uint8: 1 stored, 0 not, 2 cancelled. With a job: whether it was queued; done() tells the statuses.
        generated marks tokens that the engine generated, not those of a prompt: see store_prompt_only of the rank. shared and due are as those of hint.

        after, of a job and a Ring: nothing of the extents is read before this word of the ring has reached this value, and they may not change from
        then until the job has ended. Of a ring that writes, blocks of whole pages go to the disks alone; others are copied then. A word that nobody
        raises for a minute stores nothing. Status 3: the ring has not ended in time, and may read the extents for as long as there is the ring.
        """
        return self._move(store_move(ns, region, keys, extents, parent, chain, prefix, generated, replace, job, shared, due, after))

    def load(
        self,
        ns: str,
        region: Region,
        keys: Sequence[bytes | str],
        extents: NDArray[Any],
        *,
        job: int | None = None,
        after: tuple[int, int] | None = None,
    ) -> Any:
        """Copies blocks into the region. What a key with another status than 1 has in its extents is undefined. Else as store.

        after, of a job and a Ring: what only the disks have is read once this word of the ring has reached this value, straight into the ring's
        memory where extents are of whole pages; what is elsewhere comes at once. A word that nobody raises for a minute makes misses.
        Status 3: the ring has not ended in time, and may write to the extents for as long as there is the ring.
        """
        return self._move(load_move(ns, region, keys, extents, job, after))

    def _move(self, m: Move) -> Any:
        if m.job is None:
            return self._run(lambda s: ops.move(s, m), np.zeros(len(m.keys), np.uint8), touches=True)
        with self._lock:
            if self._refuses(m):
                return False
        return self._run(lambda s: ops.queue(s, m), False, queues=m.job)

    def done(self, timeout: float = 0.0) -> Done:
        """Jobs that are finished, each told once, with their statuses. Waits up to timeout seconds for the first.

        Jobs of a lost connection are told with statuses 0 as soon as the rank touches the region no more.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            with self._lock:
                self._hush()
                out = self._take_failed()
                pending = self._link is not None and bool(self._link.state.jobs)
            if pending:
                turn = 0 if out or self._ending or self._bell is not None else int(min(max(0.0, left) * 1000, _TURN_MS))
                out += self._finished(turn)
            if out or left <= 0 or not (pending or self._ending or self._failed):
                return out
            self._wait_for_news(min(left, _NAP_SECONDS))

    def _finished(self, wait_ms: int) -> Done:
        nothing: Done = []
        return self._run(lambda s: ops.done(s, wait_ms), nothing)

    def _wait_for_news(self, seconds: float) -> None:
        """Until the bell rings or the rank leaves."""
        poll = select.poll()
        with self._lock:
            for link in [e.link for e in self._ending] + [link for link in (self._link,) if link is not None]:
                poll.register(link.fileno(), select.POLLRDHUP)
            if self._bell is not None:
                poll.register(self._bell, select.POLLIN)
            elif not self._ending:
                return
        poll.poll(seconds * 1000)

    def cancel(self, job: int) -> bool:
        """Whether the job had not finished. It is told by done() all the same."""
        return self._run(lambda s: ops.cancel(s, job), False, again=False)

    # Asking.

    def contains(self, ns: str, keys: Sequence[bytes | str]) -> NDArray[np.bool_]:
        """For each key whether it is stored somewhere. No lease comes with that."""
        found = self._contained(ns, keys)
        return np.zeros(len(keys), np.bool_) if found is None else found

    def _contained(self, ns: str, keys: Sequence[bytes | str]) -> NDArray[np.bool_] | None:
        """As contains, but None is no answer."""
        nothing: NDArray[np.bool_] | None = None
        index = self._index or self._new_index()
        found = index.contains(ns, keys) if index is not None else None
        if found is None:
            self._drop_index(index)
            return self._run(lambda s: ops.contains(s, ns, keys), nothing)
        return found

    def probe(self, ns: str, keys: Sequence[bytes | str]) -> Probe:
        """How many leading keys of a chain are cached, head first."""
        index = self._index or self._new_index()
        if index is not None:
            found = index.probe(ns, keys)
            if found is not None:
                return Probe(*found)
            self._drop_index(index)
        return self._run(lambda s: advice.probe(s, ns, keys), Probe()) if keys else Probe()

    def advise(
        self,
        ns: str,
        keys: Sequence[bytes | str],
        block_seconds: float | None = None,
        *,
        tokens_per_second: float | None = None,
        shared: int = 0,
        due: float | None = None,
    ) -> Advice:
        """probe for an engine that computes a block in so many seconds, or so many tokens a second: how many of the leading blocks it had better load.

        Without both it is what the rank has learned of that, from when blocks are put that were asked for so and are not there. As long as it
        has learned nothing, that is all blocks, and so it is where tokens_per_second is given and the layout of the namespace does not say how many
        tokens a block has. shared and due are as those of hint, and count with the request.
        """
        ask = Ask(block_seconds, tokens_per_second, shared, due)
        index = None if ask.by_words else self._index or self._new_index()
        found = index.probe(ns, keys) if index is not None else None
        if block_seconds is None and found is not None and found[0] < len(keys):
            found = None  # the rank learns from what is missing
        if index is not None and found is not None and index.in_memory(found[2]):
            return Advice(*found, found[0])
        return self._run(lambda s: advice.advise(s, ns, keys, ask), Advice()) if keys else Advice()

    def hint(self, ns: str, keys: Sequence[bytes | str], *, shared: int = 0, due: float | None = None) -> int:
        """Declares how a chain, head first, will be used; the rank learns what such hints are worth, and needs none.

        shared: so many leading keys belong to a prompt of many conversations. due: the chain is asked for next in so many seconds; 0: soon, and
        what is not in memory is fetched. Returns of how many keys the rank has blocks.
        """
        return self._run(lambda s: advice.hint(s, ns, keys, shared, due), 0)

    # Values.

    def get(self, ns: str, key: bytes | str) -> bytes | None:
        """The block, copied, or None. It counts as an access, and takes a lease only where the rank was asked."""
        index = self._index or self._new_index()
        if index is not None:
            block = index.get(ns, key)
            if block is not False:
                return block
            self._drop_index(index)
        return self._bytes(ns, self._run(self._read(ns, key, self._large(ns)), None))

    def get_into(self, ns: str, key: bytes | str, dst: Any, *, pool: bool = False) -> int:
        """Copies the block into a writable buffer, as get. Returns its bytes, or -1 for a miss, after which the buffer may be written to.

        ValueError if the buffer is too small; then nothing is written. pool says that dst is part of a large memory, such as an engine's, of which
        other parts are wanted next: the copy goes past the processor's caches then.
        """
        index = self._index or self._new_index()
        if index is not None:
            size = index.get_into(ns, key, dst, pool)
            if size >= -1:
                return size
            self._drop_index(index)
        target = np.frombuffer(memoryview(dst).cast("B"), dtype=np.uint8)
        return copied(target, self._run(self._read(ns, key, len(target) >= VIEW_BYTES), None))

    def put(
        self, ns: str, key: bytes | str, value: Any, *, parent: bytes | str | None = None, prefix: bool = False, generated: bool = False
    ) -> bool:
        """Stores a block by its content. value is anything with bytes in one piece."""
        data = memoryview(value).cast("B")
        return self._run(lambda s: ops.put(s, ns, key, data, parent, prefix, generated), False)

    def delete(self, ns: str, keys: Sequence[bytes | str]) -> int:
        """How many of the keys were there and are gone now."""
        return self._run(lambda s: ops.delete(s, ns, keys), 0, again=False)

    def clear(self, ns: str) -> bool:
        """Deletes all keys of a namespace."""
        return self._run(lambda s: ops.clear(s, ns), False)

    def map_ahead(self) -> None:
        """Maps the rank's arena in the background, once for a connection: for a process that will read much of it, each part soon."""
        index = self._index or self._new_index()
        if index is not None:
            index.map_ahead()

    def _new_index(self) -> Index | None:
        """The rank's shared index, if it has one."""
        if self._has_none():
            return None
        return self._run(self._find_index, None)

    # Views.

    def view(self, ns: str, key: bytes | str) -> View | None:
        """The block in the rank's arena, without a copy, or None. The rank is asked only for what the shared index does not have."""
        index = self._holding()
        if index is not None:
            view = index.hold(ns, key)
            if view is not False:
                return view
            self._drop_index(index)
        return self._ask_views(ns, [key])[0]

    def views(self, ns: str, keys: Sequence[bytes | str]) -> list[View | None]:
        """A view for each key.

        By those that are made without asking a client holds at most a 64th of the arena; what goes beyond is asked for. All that were asked
        for, by all clients, hold at most a quarter; what goes beyond that is None.
        """
        index = self._holding()
        if index is None:
            return self._ask_views(ns, keys)
        out, ask = index.hold_each(ns, keys)
        if ask:
            self._drop_index(index)
            for i, view in zip(ask, self._ask_views(ns, [keys[i] for i in ask]), strict=True):
                out[i] = view
        return out

    def _ask_views(self, ns: str, keys: Sequence[bytes | str]) -> list[View | None]:
        missing: list[View | None] = [None] * len(keys)
        return self._run(lambda s: ops.views(s, ns, keys, self._give_back), missing)

    def _holding(self) -> Index | None:
        """The index, whose holds were asked for."""
        index = self._index or self._new_index()
        if index is not None and index.wants_holds:
            self._run(self._find_holds, None)
        return index

    # Namespaces.

    def layout(self, ns: str) -> Layout | None:
        """How the blocks of a namespace are made, as somebody declared it, or None."""
        return self._run(lambda s: ops.layout(s, ns), None)

    def set_layout(self, ns: str, layout: Layout) -> bool:
        """Declares it, in place of what was declared before. False from a rank that keeps no layouts. The rank acts on none of it."""
        return self._run(lambda s: ops.set_layout(s, ns, layout), False)

    def _declare(self, ns: str, layout: Layout) -> None:
        """As set_layout, once for a connection, and without a complaint where it is refused: for the way of every store."""
        link = self._link
        if link is None or link.state.declared.get(ns) != layout:
            self._run(lambda s: ops.declare(s, ns, layout), False)

    # The rank.

    def stats(self) -> dict[str, Any]:
        """The rank's statistics, {} if it is away."""
        return self._run(ops.stats, {})

    def events(self, since: int = 0, *, most: int | None = None, wait: float = 0.0) -> Events:
        """What became readable on the rank or is no more, from event since on; 0: from now on. Waits up to wait seconds, at most 5."""
        ms = min(int(wait * 1000), ops.MAX_WAIT_MS)
        return self._run(lambda s: ops.events(s, since, most, ms), Events(since, 0, []))

    @property
    def up(self) -> bool:
        """Whether the rank is there now."""
        with self._lock:
            if self._link is not None and self._link.state.ours and self._link.state.hung_up():
                self._lose(LinkLost("the rank closed the connection"))
            return self._connected() is not None

    def close(self) -> None:
        """Ends the connection: views, jobs and regions are given back. Returns when the rank touches no region. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._link is not None and self._link.state.pid != os.getpid():
                self._forget_parent()
            if self._link is not None:
                self._link.end()
                self._ending.append(Ending(self._link))
                self._link = None
            for e in self._ending:
                if (e.link.state.regions or e.link.state.jobs) and not e.link.at_end(GRACE_SECONDS):
                    self._held_on()
                e.link.close()
            self._ending.clear()
            self._forget_regions()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The connection. Methods without a lock of their own are called with it held.

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
                    retry = self._retry(link, e, again and not attempt, queues)
                    if queues in link.state.jobs:
                        result = cast(T, True)  # the rank may have it: done() tells it as failed
                    self._lose(e, wait=touches)
                    if not retry:
                        break
            state = self._link.state if self._link is not None else None
        if state is not None and state.dropped:
            self._flush(state)
        return result

    def _drive(self, link: Link, op: Op[T]) -> T:
        steps = Steps(op)
        while steps.request is not None:
            steps.answer(link, link.call(steps.request, self._dropped(link.state)))
        return steps.value

    def _connected(self) -> Link | None:
        link = self._link
        if link is not None:
            if link.state.pid == os.getpid():
                return link
            self._forget_parent()
        if self._closed or not self._backoff.over():
            return None
        try:
            link = Link(self._path, self._timeout, self._trust)
        except (OSError, ForeignServer) as e:
            self._away(e)
            return None
        self._link = link
        try:
            self._serves(self._drive(link, ops.hello(link.state, self._secret())))
            for region in list(self._regions.values()):  # another one may be detached meanwhile
                try:
                    self._drive(link, ops.attach(link.state, region))
                except Refused as e:
                    self._refused(e)
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
        self._after_loss(link, link.at_end(GRACE_SECONDS if wait else 0), wait)

    def _flush(self, state: LinkState) -> None:
        """Tells the rank which views are not needed. Called by finalizers too, so it takes the lock only if that is free."""
        while self._many_dropped(state) and not state.ended and self._lock.acquire(blocking=False):
            try:
                link = self._link
                if link is None or link.state is not state or state.pid != os.getpid():
                    return
                link.tell(self._dropped(state))
            except (LinkLost, ProtocolError) as e:
                self._lose(e)
            finally:
                self._lock.release()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._drop_index(None)  # its touches are the parent's


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
