"""Blocks of an engine layer by layer: which to move in a step, and how they move between the engine's memory and a rank.

A block of the engine is stored as one object for each of its layers, with the block's name and the layer's number as its key. A LOAD is
of whole objects, whose checksums are compared: so the first layer can be used while the last one is on its way, and a damaged
object is a miss of its own. A prefix is there if all layers of all of its blocks are. The chains that the rank evicts from
the end are those of each layer.

Nothing here needs an engine: Plan is the scheduler's side and Mover the worker's. Neither is safe for threads.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from . import memory
from .client import Client
from .errors import RegionRefused
from .layout import Layout
from .region import Region
from .ring import STUCK, Ring
from .worth import Worth

logger = logging.getLogger("cascade_kv.layers")

BUFFERS: Final = 16  # in which a mover's staging memory is divided; each is of one job
LOAD_SECONDS: Final = 5.0  # that a step waits while none of its loads ends; then what is left is a miss
STORE_SECONDS: Final = 0.25  # that a step waits for room in the staging memory; then what is left of it is not stored
SPARED: Final = BUFFERS // 4  # buffers that loads which wait for their turn leave to stores
AHEAD: Final = 2  # layers that the disks read beyond the one that the engine computes
WORD: Final = 1  # of the ring
SHUTDOWN_SECONDS: Final = 10.0

# Whether a copy that was begun has ended; None: it had when it was begun.
Copied = Callable[[], bool] | None


class Layer(Protocol):
    """The memory of one layer in the engine. Blocks are numbered as the engine numbers them; a row of an array has the bytes of one."""

    def read(self, blocks: Sequence[int], into: NDArray[np.uint8]) -> Copied:
        """Copies the blocks into the rows."""

    def write(self, blocks: Sequence[int], out_of: NDArray[np.uint8]) -> Copied:
        """Copies the rows into the blocks; what the engine computes from now on finds them there."""


@dataclass(slots=True)
class Run:
    """Consecutive blocks of one request."""

    blocks: list[int]
    names: list[bytes]
    parent: bytes | None = None  # the name of the block before the first
    shared: int = 0  # of how many, from the first on, whoever sent the request says that many share them


@dataclass(slots=True)
class Step:
    """What is to be moved in a step of the engine."""

    loads: list[Run] = field(default_factory=list)
    stores: list[Run] = field(default_factory=list)
    failures: int = 0  # steps with failed loads that the scheduler had heard of when it planned this one


def turns(layer: int, layers: int) -> int:
    """How many layers, from the first on, the disks may read when the engine comes to one."""
    return min(layer + 1 + AHEAD, layers)


def key_of(name: bytes, layer: int) -> bytes:
    """The key of one layer of the block of that name."""
    return name + layer.to_bytes(4, "big")


class _Request:
    __slots__ = ("blocks", "external", "names", "shared", "stored")

    def __init__(self, names: list[bytes], shared_tokens: int) -> None:
        self.names = names  # of the whole blocks of the prompt
        self.shared = shared_tokens
        self.blocks: list[int] = []
        self.external = 0  # blocks that are to be loaded in the request's next step
        self.stored: int | None = None  # blocks from the first on that need not be stored any more


class Plan:
    """Which blocks to load and to store, as the scheduler sees it.

    block_tokens: tokens of a block. rate: prefill tokens a second of the engine, "auto" or None; see Worth.
    """

    def __init__(self, client: Client, ns: str, layers: int, block_tokens: int, rate: float | str | None = None) -> None:
        Worth(rate)
        self._client, self._ns, self._layers, self._tokens = client, ns, layers, block_tokens
        # An object is one layer of a block, so it takes that much less time to compute.
        self._worth = Worth(float(rate) * layers if isinstance(rate, int | float) else rate)
        self._requests: dict[str, _Request] = {}
        self._failures = 0

    def matched(self, request: str, names: list[bytes], prompt: int, computed: int, shared_tokens: int = 0) -> int:
        """How many tokens after those computed can be loaded. At least one token of the prompt is left, for which the engine computes."""
        self._requests[request] = _Request(names, shared_tokens)
        if computed % self._tokens:
            return 0
        first, last = computed // self._tokens, (prompt - 1) // self._tokens
        wanted = names[first:last]
        if not wanted:
            return 0
        keys = [key_of(n, i) for n in wanted for i in range(self._layers)]
        return self._worth.leading(self._client, self._ns, keys, Layout(tokens=self._tokens)) // self._layers * self._tokens

    def allocated(self, request: str, external_tokens: int) -> None:
        """The engine has given the request blocks for what matched said, or for less."""
        known = self._requests.get(request)
        if known is not None:
            known.external = external_tokens // self._tokens

    def schedule(self, step: Step, request: str, blocks: Sequence[int], anew: bool, computed: int, scheduled: int) -> None:
        """Adds to the step what the request has in it: blocks that it got, all of its blocks if anew; tokens computed before, and in this step."""
        known = self._requests.get(request)
        if known is None:
            return
        known.blocks = [*blocks] if anew else known.blocks + [*blocks]
        done = computed // self._tokens
        if known.external:
            step.loads.append(self._run(known, done - known.external, done))
            known.external = 0
        full = min((computed + scheduled) // self._tokens, len(known.names), len(known.blocks))
        # An engine goes back to blocks that could not be loaded.
        first = done if known.stored is None else min(known.stored, done)
        if first < full:
            step.stores.append(self._run(known, first, full))
        known.stored = max(first, full)

    def planned(self, step: Step) -> Step:
        step.failures = self._failures
        return step

    def failed(self) -> None:
        """A step had loads that failed, and the engine's scheduler knows it now."""
        self._failures += 1

    def finished(self, request: str, due: float | None) -> None:
        known = self._requests.pop(request, None)
        shared = 0 if known is None else known.shared // self._tokens
        if known is None or not known.names or (shared <= 0 and due is None):
            return
        for layer in range(self._layers):
            self._client.hint(self._ns, [key_of(n, layer) for n in known.names], shared=min(max(shared, 0), len(known.names)), due=due)

    def _run(self, r: _Request, first: int, last: int) -> Run:
        shared = min(max(r.shared // self._tokens - first, 0), last - first)
        return Run(r.blocks[first:last], r.names[first:last], r.names[first - 1] if first else None, shared)


@dataclass(slots=True)
class _Piece:
    """What one job moves: blocks of one layer."""

    layer: int
    run: Run
    load: bool
    buffer: int = -1
    given_up: bool = False


class Mover:
    """Moves blocks between the layers of the engine and the rank by way of staging memory, which the rank maps.

    Loads of a step are queued in the order of the layers, as many as the staging memory has room for, and wait ends when those of its
    layer are where the engine computes with them. What the engine computes after a failed load is wrong: none of it is stored, in this step
    and in those that were planned before the scheduler had heard of it.
    """

    def __init__(
        self,
        client: Client,
        ns: str,
        layers: Sequence[Layer],
        block_bytes: int,
        staging_bytes: int,
        layout: Layout | None = None,
        *,
        ring: bool = False,
    ) -> None:
        """block_bytes: of one layer of a block. RegionRefused if the rank does not take the staging memory.

        ring: it is that of a Ring, if the rank makes one, and blocks that only its disks have are read into it when the turn of their layer comes.
        """
        self._client, self._ns, self._layers, self._layout = client, ns, layers, layout
        self._most = max(1, staging_bytes // (BUFFERS * block_bytes))  # blocks of a buffer
        self._block = block_bytes
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wants_ring = ring
        self._ring: Ring | None = None
        self._region: Region
        self.staging: NDArray[np.uint8]
        self._free: list[int]
        self._jobs: dict[int, _Piece] = {}
        self._copying: list[tuple[Callable[[], bool], _Piece]] = []  # copies under way: of a load, or before a store
        self._turn = 0  # value of the ring's word with which no layer of this step begins: the first one's is the next
        try:
            self._stage(self._new_ring())
        except BaseException:
            os.close(self._bell)
            raise
        self._waiting: collections.deque[_Piece] = collections.deque()  # loads without a buffer
        self._number = 0
        self._left = [0] * len(layers)  # pieces of each layer that are not yet loaded
        self._bad: set[int] = set()
        self._step = Step()
        self._awaited: set[int] = set()  # layers that were waited for in this step
        self._spoiled = False  # by a failed load of this step
        self._failures = 0
        self._patience = STORE_SECONDS
        self._moved = 0.0  # when a load last ended, or the loads began
        self.loaded, self.lost, self.stored, self.dropped = 0, 0, 0, 0  # objects

    def begin(self, step: Step) -> None:
        """A step begins. What the scheduler planned before it had heard of a failed load is computed from wrong KV."""
        self._step, self._patience, self._awaited = step, STORE_SECONDS, set()
        self._spoiled = step.failures < self._failures
        self._renew()

    def load(self) -> None:
        """The engine's memory may be written to: the step's loads are queued."""
        for layer in range(len(self._layers)):
            for run in self._step.loads:
                for piece in self._pieces(run, layer, load=True):
                    self._waiting.append(piece)
                    self._left[layer] += 1
        self._moved = time.monotonic()
        self._turn += len(self._layers)
        self._let(0)
        self._advance(0.0)

    def wait(self, layer: int) -> None:
        """Until what the step loads of the layer is in the engine, or has failed."""
        self._awaited.add(layer)
        self._let(layer)
        while self._left[layer]:
            left = self._moved + LOAD_SECONDS - time.monotonic()
            if left <= 0:
                self._give_up(layer)
                return
            self._advance(left)

    def save(self, layer: int) -> None:
        """The engine has computed this layer of the step."""
        if self._spoiled:
            return
        for run in self._step.stores:
            for piece in self._pieces(run, layer, load=False):
                if not self._room():
                    self.dropped += len(piece.run.blocks)
                    continue
                self._take(piece)
                with self._freed_if_it_fails(piece):
                    copied = self._layers[layer].read(piece.run.blocks, self._rows(piece))
                if copied is None or copied():
                    self._queue(piece)
                else:
                    self._copying.append((copied, piece))

    def end(self) -> None:
        """The step is computed: what was not waited for came too late for it. Copies that go on are stored in a later step."""
        for layer in range(len(self._layers)):
            if layer not in self._awaited:
                self._give_up(layer)
                for run in self._step.loads:
                    self._lose(run.blocks)
        if self._bad:
            self._failures += 1
        self._step = Step()
        self._advance(0.0)

    def fail(self) -> None:
        """Something went wrong, nobody knows where: all that the step loads counts as lost."""
        for layer in range(len(self._layers)):
            self._give_up(layer)
        for run in self._step.loads:
            self._lose(run.blocks)
        self._spoiled = True

    def take_failed(self) -> set[int]:
        """Blocks of which a layer could not be loaded since the last call."""
        bad, self._bad = self._bad, set()
        return bad

    def advance(self) -> None:
        """Ends what has ended, and hands to the rank what was copied meanwhile."""
        self._advance(0.0)

    @property
    def busy(self) -> bool:
        return bool(self._jobs or self._copying)

    def drain(self, seconds: float) -> None:
        """Waits for what is under way, at most so long."""
        deadline = time.monotonic() + seconds
        while self.busy and time.monotonic() < deadline:
            self._advance(0.1)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.drain(SHUTDOWN_SECONDS)
        self._client.close()  # returns when the rank touches the staging memory no more
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1

    # Staging memory, and whose turn it is.

    def _stage(self, ring: Ring | None) -> None:
        """Makes the staging memory: that of a ring, or of this process."""
        size = BUFFERS * self._most * self._block
        if ring is not None:
            self.staging, self._region = ring.data[:size], ring
        else:
            fd = os.memfd_create("cascade-layers", os.MFD_CLOEXEC)
            try:
                os.ftruncate(fd, size)
                self.staging = memory.map_file(fd, size, write=True)
                self._region = self._client.region(fd=fd, notify=self._bell)
            finally:
                os.close(fd)
        self._ring, self._free = ring, list(range(BUFFERS))

    def _new_ring(self) -> Ring | None:
        """A ring, if there is to be one and the rank makes it."""
        if not self._wants_ring:
            return None
        try:
            return self._client.ring(BUFFERS * self._most * self._block, notify=self._bell)
        except RegionRefused as e:
            logger.warning("no ring: blocks of the rank's disks come by way of its memory: %s", e)
            self._wants_ring = False
            return None

    def _renew(self) -> None:
        """A ring ends with its connection: other staging memory takes its place once nothing is under way in it."""
        had = self._ring
        if self.busy or not (self._wants_ring if had is None else had.ended):
            return
        ring = self._new_ring()
        if ring is not None or had is not None:
            self._region.detach()
            self._stage(ring)

    def _let(self, layer: int) -> None:
        """The engine comes to a layer: the disks may read it and those next to it."""
        if self._ring is not None:
            self._ring.raise_word(WORD, self._turn + turns(layer, len(self._layers)))

    def _after(self, layer: int) -> tuple[int, int] | None:
        return None if self._ring is None else (WORD, self._turn + layer + 1)

    def _ended(self, piece: _Piece, statuses: NDArray[np.uint8]) -> None:
        """A job has ended. A disk that does not answer may write to its buffer still, which is not used again."""
        stuck = bool((statuses == STUCK).any())
        self._done(piece, (statuses == 1) & (not stuck))
        if stuck:
            self._free.remove(piece.buffer)

    # Pieces.

    def _pieces(self, run: Run, layer: int, load: bool) -> list[_Piece]:
        out = []
        for a in range(0, len(run.blocks), self._most):
            b = a + self._most
            part = Run(run.blocks[a:b], run.names[a:b], run.names[a - 1] if a else run.parent, max(0, min(run.shared - a, self._most)))
            out.append(_Piece(layer, part, load))
        return out

    def _rows(self, piece: _Piece) -> NDArray[np.uint8]:
        start, n = piece.buffer * self._most * self._block, len(piece.run.blocks)
        return self.staging[start : start + n * self._block].reshape(n, self._block)

    def _take(self, piece: _Piece) -> None:
        piece.buffer = self._free.pop()

    @contextlib.contextmanager
    def _freed_if_it_fails(self, piece: _Piece) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._free.append(piece.buffer)
            raise

    def _room(self) -> bool:
        """Whether a buffer is free, after waiting a little."""
        while not self._free and self._patience > 0:
            began = time.monotonic()
            self._advance(self._patience)
            self._patience -= max(time.monotonic() - began, 0.001)
        return bool(self._free)

    def _advance(self, seconds: float) -> None:
        """Begins what can begin and ends what has ended; waits so long for the end of a job, if any is under way."""
        self._copies()
        while self._waiting and len(self._free) > (0 if self._ring is None else SPARED):
            piece = self._waiting.popleft()
            self._take(piece)
            self._queue(piece)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        if not self._jobs:
            if self._copying and seconds > 0:
                time.sleep(0.0005)
            return
        wrong: Exception | None = None
        for number, statuses in self._client.done(min(seconds, 0.0005) if self._copying else seconds):
            ended = self._jobs.pop(number, None)
            if ended is None:
                continue
            try:
                self._ended(ended, np.asarray(statuses))
            except Exception as e:  # done reports each job once, so the others are ended first
                wrong = e
        if wrong is not None:
            raise wrong

    def _copies(self) -> None:
        under_way, self._copying = self._copying, []
        for copied, piece in under_way:
            if not copied():
                self._copying.append((copied, piece))
            elif piece.load:
                self._free.append(piece.buffer)
            else:
                self._queue(piece)

    def _queue(self, piece: _Piece) -> None:
        """Hands the piece to the rank, or ends it at once."""
        self._number += 1
        run, n = piece.run, len(piece.run.blocks)
        keys = [key_of(name, piece.layer) for name in run.names]
        extents = np.empty((n, 1, 2), dtype=np.uint64)
        extents[:, 0, 0] = np.arange(n, dtype=np.uint64) * np.uint64(self._block) + np.uint64(piece.buffer * self._most * self._block)
        extents[:, 0, 1] = self._block
        self._jobs[self._number] = piece
        if piece.load:
            queued = self._client.load(self._ns, self._region, keys, extents, job=self._number, after=self._after(piece.layer))
        else:
            if self._layout is not None:
                self._client._declare(self._ns, self._layout)  # once for a connection
            parent = None if run.parent is None else key_of(run.parent, piece.layer)
            queued = self._client.store(
                self._ns, self._region, keys, extents, parent=parent, chain=True, job=self._number, shared=run.shared
            )
        if not queued:
            del self._jobs[self._number]
            self._done(piece, np.zeros(n, np.bool_))

    def _done(self, piece: _Piece, good: NDArray[np.bool_]) -> None:
        count = int(good.sum())
        if not piece.load:
            self.stored, self.dropped = self.stored + count, self.dropped + len(good) - count
            self._free.append(piece.buffer)
            return
        copied: Copied = None
        if not piece.given_up:
            self._moved = time.monotonic()
            self._left[piece.layer] -= 1
            blocks = [b for b, ok in zip(piece.run.blocks, good.tolist(), strict=True) if ok]
            if blocks:
                rows = self._rows(piece)
                with self._freed_if_it_fails(piece):
                    copied = self._layers[piece.layer].write(blocks, rows if len(blocks) == len(good) else rows[good])
                self.loaded += len(blocks)
            if len(blocks) < len(good):
                self._lose([b for b, ok in zip(piece.run.blocks, good.tolist(), strict=True) if not ok])
        if copied is None:
            self._free.append(piece.buffer)
        else:
            self._copying.append((copied, piece))

    def _lose(self, blocks: Sequence[int]) -> None:
        self._bad.update(blocks)
        self.lost += len(blocks)
        self._spoiled = True

    def _give_up(self, layer: int) -> None:
        """What is left of the layer has failed. The rank may still write to its buffers, which are not used before it has ended."""
        for number, piece in list(self._jobs.items()):
            if piece.load and piece.layer == layer and not piece.given_up:
                piece.given_up = True
                self._client.cancel(number)
                self._lose(piece.run.blocks)
        for piece in [p for p in self._waiting if p.layer == layer]:
            self._waiting.remove(piece)
            self._lose(piece.run.blocks)
        self._left[layer] = 0
