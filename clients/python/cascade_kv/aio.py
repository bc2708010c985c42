"""The client for asyncio. It asks the same and promises the same as Client; calls of several tasks take turns."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from . import advice, ops
from .advice import Advice, Ask, Probe
from .errors import CascadeError, ForeignServer, LinkLost, ProtocolError, Refused, RegionRefused
from .index import Index
from .layout import Layout
from .link import GRACE_SECONDS, LinkBase, LinkState, Request
from .ops import MAX_WAIT_MS, Events, Move, Op
from .password import Password
from .peer import Trust
from .region import Region
from .resp import INCOMPLETE
from .session import VIEW_BYTES, Done, Ending, Session, Steps, copied, load_move, store_move
from .view import View

T = TypeVar("T")


class AsyncLink(LinkBase):
    """A connection whose calls are awaited. One that is cancelled under way leaves the link out of step: it is to be ended."""

    def __init__(self, timeout: float) -> None:
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), timeout)
        self._sock.setblocking(False)

    async def connect(self, path: str, trust: Trust) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(self._sock, path), self.timeout)
        self.state.server = trust.check(self._sock, path)

    async def call(self, request: Request, first: bytes = b"") -> Any:
        """As Link.call."""
        limit = self.timeout + request.extra
        try:
            return await asyncio.wait_for(self._exchange(request, first), limit)
        except asyncio.TimeoutError as e:
            raise LinkLost(f"no complete answer within {limit:g} s") from e

    async def _exchange(self, request: Request, first: bytes) -> Any:
        loop = asyncio.get_running_loop()
        began = False
        try:
            await self._send(loop, request, first)
            while (reply := self._answer()) is INCOMPLETE:
                with self._decoder.room() as room:
                    if request.wants_fd:
                        await self._readable(loop)
                        n = self._receive_fds(room)
                    else:
                        n = await loop.sock_recv_into(self._sock, room)
                if n == 0:
                    raise LinkLost("the rank closed the connection", stale=self._used and not began)
                self._decoder.got(n)
                began = True
            return reply
        except OSError as e:
            raise LinkLost(f"the connection broke: {e}", stale=self._used and not began) from e

    async def _send(self, loop: asyncio.AbstractEventLoop, request: Request, first: bytes) -> None:
        data = request.data
        if first:
            self._owed += 1
            if request.fds:
                await loop.sock_sendall(self._sock, first)
            else:
                data = first + data
        if request.fds:  # nothing else is under way, so the socket has room
            data = data[socket.send_fds(self._sock, [data], list(request.fds)) :]
        for part in request.parts(data):
            await loop.sock_sendall(self._sock, part)

    async def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        ready = loop.create_future()
        loop.add_reader(self._sock, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            loop.remove_reader(self._sock)

    async def ended(self, seconds: float) -> bool:
        """Whether the rank has closed its end, after waiting so long for it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not self.at_end(0):
            left = deadline - loop.time()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(self._readable(loop), left)
            except asyncio.TimeoutError:
                return self.at_end(0)
        return True


class AsyncClient(Session[AsyncLink]):
    """As Client, with coroutines, for one event loop."""

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
        self._lock = asyncio.Lock()

    async def region(self, *, fd: int | None = None, path: str | None = None, notify: int | None = None) -> Region:
        """As Client.region. Its detach() gives the region back with the connection; use the client's detach to do it at once."""
        async with self._lock:
            region = self._new_region(fd, path, notify)
            link = await self._connected()
            try:
                if link is not None:
                    await self._drive(link, ops.attach(link.state, region))
            except Refused as e:
                region.close()
                raise RegionRefused(str(e)) from e
            except (LinkLost, ProtocolError) as e:
                await self._lose(e)
            self._regions[region.number] = region
        return region

    async def detach(self, region: Region) -> None:
        """Returns when no job uses the region any more."""
        self._regions.pop(region.number, None)
        if not region.closed:
            await self._run(lambda s: ops.detach(s, region), None, again=False)
            region.close()

    async def store(
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
    ) -> Any:
        return await self._move(store_move(ns, region, keys, extents, parent, chain, prefix, generated, replace, job, shared, due))

    async def load(self, ns: str, region: Region, keys: Sequence[bytes | str], extents: NDArray[Any], *, job: int | None = None) -> Any:
        return await self._move(load_move(ns, region, keys, extents, job))

    async def _move(self, m: Move) -> Any:
        if m.job is None:
            return await self._run(lambda s: ops.move(s, m), np.zeros(len(m.keys), np.uint8), touches=True)
        if self._refuses(m):
            return False
        return await self._run(lambda s: ops.queue(s, m), False, queues=m.job)

    async def done(self, timeout: float = 0.0) -> Done:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            left = deadline - loop.time()
            self._hush()
            out = self._take_failed()
            pending = self._link is not None and bool(self._link.state.jobs)
            if pending:
                nothing: Done = []
                out += await self._run(lambda s: ops.done(s, 0), nothing)
            if out or left <= 0 or not (pending or self._ending or self._failed):
                return out
            await self._news(loop, min(left, 0.05 if self._ending or self._bell is None else 1.0))

    async def _news(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Until the bell rings, or so long."""
        if self._bell is None:
            await asyncio.sleep(seconds)
            return
        ready = loop.create_future()
        loop.add_reader(self._bell, lambda: None if ready.done() else ready.set_result(None))
        try:
            await asyncio.wait([ready], timeout=seconds)
        finally:
            loop.remove_reader(self._bell)

    async def cancel(self, job: int) -> bool:
        return await self._run(lambda s: ops.cancel(s, job), False, again=False)

    async def contains(self, ns: str, keys: Sequence[bytes | str]) -> NDArray[np.bool_]:
        index = self._index or await self._new_index()
        found = index.contains(ns, keys) if index is not None else None
        if found is None:
            self._drop_index(index)
            return await self._run(lambda s: ops.contains(s, ns, keys), np.zeros(len(keys), np.bool_))
        return found

    async def probe(self, ns: str, keys: Sequence[bytes | str]) -> Probe:
        index = self._index or await self._new_index()
        if index is not None:
            found = index.probe(ns, keys)
            if found is not None:
                return Probe(*found)
            self._drop_index(index)
        return await self._run(lambda s: advice.probe(s, ns, keys), Probe()) if keys else Probe()

    async def advise(
        self,
        ns: str,
        keys: Sequence[bytes | str],
        block_seconds: float | None = None,
        *,
        tokens_per_second: float | None = None,
        shared: int = 0,
        due: float | None = None,
    ) -> Advice:
        ask = Ask(block_seconds, tokens_per_second, shared, due)
        index = None if ask.by_words else self._index or await self._new_index()
        found = index.probe(ns, keys) if index is not None else None
        if block_seconds is None and found is not None and found[0] < len(keys):
            found = None  # the rank learns from what is missing
        if index is not None and found is not None and index.in_memory(found[2]):
            return Advice(*found, found[0])
        return await self._run(lambda s: advice.advise(s, ns, keys, ask), Advice()) if keys else Advice()

    async def hint(self, ns: str, keys: Sequence[bytes | str], *, shared: int = 0, due: float | None = None) -> int:
        return await self._run(lambda s: advice.hint(s, ns, keys, shared, due), 0)

    async def get(self, ns: str, key: bytes | str) -> bytes | None:
        index = self._index or await self._new_index()
        if index is not None:
            block = index.get(ns, key)
            if block is not False:
                return block
            self._drop_index(index)
        return self._bytes(ns, await self._run(self._read(ns, key, self._large(ns)), None))

    async def get_into(self, ns: str, key: bytes | str, dst: Any, *, pool: bool = False) -> int:
        index = self._index or await self._new_index()
        if index is not None:
            size = index.get_into(ns, key, dst, pool)
            if size >= -1:
                return size
            self._drop_index(index)
        target = np.frombuffer(memoryview(dst).cast("B"), dtype=np.uint8)
        return copied(target, await self._run(self._read(ns, key, len(target) >= VIEW_BYTES), None))

    async def put(
        self, ns: str, key: bytes | str, value: Any, *, parent: bytes | str | None = None, prefix: bool = False, generated: bool = False
    ) -> bool:
        data = memoryview(value).cast("B")
        return await self._run(lambda s: ops.put(s, ns, key, data, parent, prefix, generated), False)

    async def delete(self, ns: str, keys: Sequence[bytes | str]) -> int:
        return await self._run(lambda s: ops.delete(s, ns, keys), 0, again=False)

    async def clear(self, ns: str) -> bool:
        return await self._run(lambda s: ops.clear(s, ns), False)

    async def _new_index(self) -> Index | None:
        return None if self._has_none() else await self._run(self._find_index, None)

    async def view(self, ns: str, key: bytes | str) -> View | None:
        index = await self._holding()
        if index is not None:
            view = index.hold(ns, key)
            if view is not False:
                return view
            self._drop_index(index)
        return (await self._ask_views(ns, [key]))[0]

    async def views(self, ns: str, keys: Sequence[bytes | str]) -> list[View | None]:
        index = await self._holding()
        if index is None:
            return await self._ask_views(ns, keys)
        out, ask = index.hold_each(ns, keys)
        if ask:
            self._drop_index(index)
            for i, view in zip(ask, await self._ask_views(ns, [keys[i] for i in ask]), strict=True):
                out[i] = view
        return out

    async def _ask_views(self, ns: str, keys: Sequence[bytes | str]) -> list[View | None]:
        missing: list[View | None] = [None] * len(keys)
        return await self._run(lambda s: ops.views(s, ns, keys, self._give_back), missing)

    async def _holding(self) -> Index | None:
        index = self._index or await self._new_index()
        if index is not None and index.wants_holds:
            await self._run(self._find_holds, None)
        return index

    async def layout(self, ns: str) -> Layout | None:
        return await self._run(lambda s: ops.layout(s, ns), None)

    async def set_layout(self, ns: str, layout: Layout) -> bool:
        return await self._run(lambda s: ops.set_layout(s, ns, layout), False)

    async def stats(self) -> dict[str, Any]:
        return await self._run(ops.stats, {})

    async def events(self, since: int = 0, *, most: int | None = None, wait: float = 0.0) -> Events:
        ms = min(int(wait * 1000), MAX_WAIT_MS)
        return await self._run(lambda s: ops.events(s, since, most, ms), Events(since, 0, []))

    async def close(self) -> None:
        async with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._link is not None:
                self._link.end()
                self._ending.append(Ending(self._link))
                self._link = None
            for e in self._ending:
                if (e.link.state.regions or e.link.state.jobs) and not await e.link.ended(GRACE_SECONDS):
                    self._held_on()
                e.link.close()
            self._ending.clear()
            self._forget_regions()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # The connection, as in Client: methods without a lock of their own are called with it held.

    async def _run(
        self, op: Callable[[LinkState], Op[T]], miss: T, *, again: bool = True, touches: bool = False, queues: int | None = None
    ) -> T:
        async with self._lock:
            result = miss
            for attempt in range(2):
                link = await self._connected()
                if link is None:
                    break
                try:
                    result = await self._drive(link, op(link.state))
                    break
                except Refused as e:
                    self._warn("the rank refused a request: %s", e)
                    break
                except (LinkLost, ProtocolError) as e:
                    retry = self._retry(link, e, again and not attempt, queues)
                    if queues in link.state.jobs:
                        result = cast(T, True)
                    await self._lose(e, wait=touches)
                    if not retry:
                        break
                except BaseException as e:  # cancelled under way
                    await self._lose(LinkLost(f"a request was given up: {e!r}"), wait=touches)
                    raise
            link = self._link
            if link is not None and self._many_dropped(link.state):
                try:
                    await link.call(Request(ops.PING), self._dropped(link.state))
                except (LinkLost, ProtocolError) as e:
                    await self._lose(e)
        return result

    async def _drive(self, link: AsyncLink, op: Op[T]) -> T:
        steps = Steps(op)
        while steps.request is not None:
            steps.answer(link, await link.call(steps.request, self._dropped(link.state)))
        return steps.value

    async def _connected(self) -> AsyncLink | None:
        link = self._link
        if link is not None:
            if link.state.pid == os.getpid():
                return link
            self._forget_parent()
        if self._closed or not self._backoff.over():
            return None
        link = AsyncLink(self._timeout)
        try:
            await link.connect(self._path, self._trust)
        except (OSError, asyncio.TimeoutError, ForeignServer) as e:
            link.close()
            self._away(e)
            return None
        self._link = link
        try:
            self._serves(await self._drive(link, ops.hello(link.state, self._secret())))
            for region in list(self._regions.values()):  # another one may be detached meanwhile
                try:
                    await self._drive(link, ops.attach(link.state, region))
                except Refused as e:
                    self._refused(e)
        except CascadeError as e:
            self._backoff.failed()
            await self._lose(e)
            return None
        self._backoff.worked()
        return link

    async def _lose(self, why: Exception, *, wait: bool = False) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        self._warn("connection lost: %s", why)
        link.end()
        ended = await link.ended(GRACE_SECONDS) if wait else link.at_end(0)
        self._after_loss(link, ended, wait)
