"""Blocks of an engine layer by layer: how they move between the engine's memory and a rank. Which, layer_plan says.

A block of the engine is stored as one object for each of its layers, with the block's name and the layer's number as its key. A LOAD is
of whole objects, whose checksums are compared: so the first layer can be used while the last one is on its way, and a damaged
object is a miss of its own. A prefix is there if all that is needed to go on after it is: all layers of all of its blocks, of every group
of layers and of every worker; of layers with a window, the blocks within it. The chains that the rank evicts from the end are those of
each layer.

What a step loads is in place before it computes with it, layer by layer; what it stores is handed to the rank when nothing is loaded any
more, or when the step ends, so that writes take no time of the disks that the next layer waits for. Or a request waits until all that it loads is in place, while
others are computed: then one object that is lost makes a miss of all of them, before anything is computed from it.

Nothing here needs an engine, and nothing is safe for threads.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from . import memory
from .client import Client
from .errors import RegionRefused
from .layout import Layout
from .region import Region
from .ring import STUCK, Ring

logger = logging.getLogger("cascade_kv.layers")

BUFFERS: Final = 16  # in which a mover's staging memory is divided; each is of one job
LOAD_SECONDS: Final = 5.0  # that a step waits while none of its loads ends; then what is left is a miss
STORE_SECONDS: Final = 0.25  # that a step waits for room in the staging memory; then what is left of it is not stored
IDLE_SECONDS: Final = 0.005  # that a step with nothing to compute waits for the end of a load
SPARED: Final = BUFFERS // 4  # buffers that loads which wait for their turn leave to stores
AHEAD: Final = 2  # layers that the disks read beyond the one that the engine computes
WORD: Final = 1  # of the ring
RING_SECONDS: Final = 10.0  # before a ring is asked for again that the rank has refused
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
    group: int = 0  # whose layers' blocks they are


@dataclass(slots=True)
class Step:
    """What is to be moved in a step of the engine."""

    loads: list[Run] = field(default_factory=list)  # that the step computes with
    stores: list[Run] = field(default_factory=list)
    ahead: dict[str, list[Run]] = field(default_factory=dict)  # loads that a request waits for, by request
    computes: bool = True  # whether the step has anything else to do


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of an engine that have the same blocks of a request."""

    tokens: int  # of a block
    layers: range  # their numbers
    window: int | None = None  # how many tokens, with the one that is computed, the engine needs to compute one; None: all

    def first(self, tokens: int) -> int:
        """The first block that the engine needs to go on after so many tokens."""
        return 0 if self.window is None else max(0, tokens - self.window + 1) // self.tokens


def turns(layer: int, layers: int) -> int:
    """How many layers, from the first on, the disks may read when the engine comes to one."""
    return min(layer + 1 + AHEAD, layers)


def key_of(name: bytes, layer: int) -> bytes:
    """The key of one layer of the block of that name."""
    return name + layer.to_bytes(4, "big")


@dataclass(slots=True)
class _Piece:
    """What one job moves: blocks of one layer."""

    layer: int
    run: Run
    load: bool
    request: str | None = None  # that waits for it; None: a step does
    buffer: int = -1
    given_up: bool = False


@dataclass(slots=True)
class Counts:
    """Of a mover since it was made. Of objects, except for the last one."""

    loaded: int = 0
    lost: int = 0  # that could not be loaded, or were not wanted any more because another one could not
    stored: int = 0
    not_stored: int = 0
    bubble_seconds: float = 0.0  # that steps waited for layers


class Mover:
    """Moves blocks between the layers of the engine and the rank by way of staging memory, which the rank maps.

    Loads are queued, those of a step in the order of the layers, as many as the staging memory has room for; wait ends when those of its
    layer are where the engine computes with them. What the engine computes after a failed load of the step is wrong: none of it is stored.
    What a request waits for is loaded whole, or take_waited says that it failed.
    """

    def __init__(
        self,
        client: Client,
        ns: str,
        layers: Sequence[Layer],
        block_bytes: int,
        staging_bytes: int,
        layout: Layout | None = None,
        groups: Sequence[Group] | None = None,
        *,
        ring: bool = False,
        ring_stores: bool = False,
    ) -> None:
        """block_bytes: of one layer of a block. groups: of the layers; one by default.

        ring: staging memory is that of a Ring, if the rank makes one, and blocks that only its disks have are read into it when the turn of
        their layer comes. ring_stores: what is stored goes to the disks from it, too, and lies there alone. RegionRefused if the rank does not take the staging memory.
        """
        self._client, self._ns, self._layers, self._layout = client, ns, layers, layout
        self._of = [range(len(layers))] if groups is None else [g.layers for g in groups]
        self._most = max(1, staging_bytes // (BUFFERS * block_bytes))  # blocks of a buffer
        self._block = block_bytes
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ring_from = 0.0 if ring else math.inf  # when a ring is asked for
        self._refused = False  # whether one was
        self._ring_stores = ring_stores
        self._ring: Ring | None = None
        self._aside: Region | None = None  # a ring that a disk may write to still
        self._stuck = 0  # buffers that are lost to such disks
        self._region: Region
        self.staging: NDArray[np.uint8]
        self._free: list[int]
        self._jobs: dict[int, _Piece] = {}
        self._copying: list[tuple[Callable[[], bool], _Piece]] = []  # copies under way: of a load, or before a store
        self._turn = 0  # value of the ring's word with which no layer of this step begins: the first one's is the next
        self._raised = 0  # value of the ring's word
        try:
            self._stage(self._new_ring())
        except BaseException:
            os.close(self._bell)
            raise
        self._waiting: collections.deque[_Piece] = collections.deque()  # loads without a buffer
        self._number = 0
        self._left = [0] * len(layers)  # pieces of each layer that are not yet loaded
        self._ahead: dict[str, int] = {}  # pieces that are not yet loaded of what a request waits for
        self._waited: tuple[set[str], set[str]] = (set(), set())  # requests that wait no more, and those of them that lost something
        self._bad: set[int] = set()
        self._step = Step()
        self._awaited: set[int] = set()  # layers that were waited for in this step
        self._saved: set[int] = set()
        self._put_off: collections.deque[int] = collections.deque()  # layers that are computed and not yet stored
        self._spoiled = False  # by a failed load of this step
        self._patience = STORE_SECONDS
        self._moved = 0.0  # when a load last ended, or the loads began
        self.counts = Counts()

    def begin(self, step: Step) -> None:
        """A step begins."""
        self._step, self._patience, self._awaited, self._saved, self._spoiled = step, STORE_SECONDS, set(), set(), False
        self._put_off.clear()
        for request in step.ahead:
            self._ahead[request] = 0
        self._renew()

    def load(self) -> None:
        """The engine's memory may be written to: the step's loads are queued, and those that requests wait for."""
        if not self._loading():
            self._moved = time.monotonic()
        for layer in range(len(self._layers)):
            for run in self._step.loads:
                self._left[layer] += self._wanted(self._pieces(run, layer, load=True))
        for request, runs in self._step.ahead.items():
            if request not in self._ahead:
                continue  # it has failed with the beginning of the step
            for run in runs:
                for layer in self._of[run.group]:
                    self._ahead[request] += self._wanted(self._pieces(run, layer, load=True, request=request))
            if not self._ahead[request]:
                self._end_waiting(request)
        self._turn += len(self._layers)
        self._let(0)
        self._advance(0.0)

    def wait(self, layer: int) -> None:
        """Until what the step loads of the layer is in the engine, or has failed."""
        self._awaited.add(layer)
        self._let(layer)
        if not self._left[layer]:
            if self._ahead and self._rung():
                self._advance(0.0)
            return
        began = time.monotonic()
        while self._left[layer]:
            left = self._moved + LOAD_SECONDS - time.monotonic()
            if left <= 0 or not (self.busy or self._fits()):
                self._give_up(layer)
                break
            self._advance(left)
        self.counts.bubble_seconds += time.monotonic() - began

    def save(self, layer: int) -> None:
        """The engine has computed this layer of the step. It is stored at once if nothing is loaded, else later in the step."""
        self._saved.add(layer)
        if not self._step.stores:
            return
        self._put_off.append(layer)
        if self._loading() and self._rung():
            self._advance(0.0)
        # What is put off finds room in the staging memory at the end of the step.
        while self._put_off and (not self._loading() or self._buffers_put_off() > BUFFERS):
            self._store(self._put_off.popleft())

    def _buffers_put_off(self) -> int:
        """How many buffers the layers that are not yet stored take."""
        return sum(math.ceil(len(run.blocks) / self._most) for layer in self._put_off for run in self._step.stores if layer in self._of[run.group])

    def _store(self, layer: int) -> None:
        if self._spoiled:
            return
        for run in self._step.stores:
            for piece in self._pieces(run, layer, load=False):
                if not self._room():
                    self.counts.not_stored += len(piece.run.blocks)
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
        step = self._step
        if step.loads:
            for layer in range(len(self._layers)):
                if layer not in self._awaited:
                    self._give_up(layer)
                    for run in step.loads:
                        self._lose(run.blocks)
        if step.stores:
            for layer in range(len(self._layers)):  # not of every kind of layer the engine says when it is computed
                if layer not in self._saved:
                    self.save(layer)
            while self._put_off:
                self._store(self._put_off.popleft())
        self._step = Step()
        self._advance(IDLE_SECONDS if self._ahead and not step.computes else 0.0)

    def fail(self) -> None:
        """Something went wrong, nobody knows where: all that the step loads counts as lost, and all that is waited for."""
        for layer in range(len(self._layers)):
            self._give_up(layer)
        for run in self._step.loads:
            self._lose(run.blocks)
        for request in list(self._ahead):
            self._lose_waited(request)
        self._spoiled = True

    def take_failed(self) -> set[int]:
        """Blocks of which a layer could not be loaded since the last call, for steps."""
        bad, self._bad = self._bad, set()
        return bad

    def take_waited(self) -> tuple[set[str], set[str]]:
        """Requests that wait no more since the last call, and which of them lost something. Their blocks are not written to any more."""
        waited, self._waited = self._waited, (set(), set())
        return waited

    def advance(self) -> None:
        """Ends what has ended, and hands to the rank what was copied meanwhile."""
        self._advance(0.0)
        if self._ahead and time.monotonic() > self._moved + LOAD_SECONDS:
            for request in list(self._ahead):
                self._lose_waited(request)

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
            ring.raise_word(WORD, self._raised)
        else:
            fd = os.memfd_create("cascade-layers", os.MFD_CLOEXEC)
            try:
                os.ftruncate(fd, size)
                staging = memory.map_file(fd, size, write=True)
                self._region = self._client.region(fd=fd, notify=self._bell)
                self.staging = staging
            finally:
                os.close(fd)
        self._ring, self._free, self._stuck = ring, list(range(BUFFERS)), 0

    def _new_ring(self) -> Ring | None:
        """A ring, if there is to be one now and the rank makes it."""
        if time.monotonic() < self._ring_from:
            return None
        try:
            return self._client.ring(BUFFERS * self._most * self._block, write=self._ring_stores, notify=self._bell)
        except RegionRefused as e:
            if not self._refused:
                logger.warning("no ring for now: blocks of the rank's disks come by way of its memory: %s", e)
            self._refused, self._ring_from = True, time.monotonic() + RING_SECONDS
            return None

    def _renew(self) -> None:
        """Once nothing is under way: a ring where there is none, and other memory for one that has ended or lost half of its buffers.

        A ring that has lost buffers is set aside, not detached: the rank's answer to that waits for the disk, and so would the step. It
        is detached when the next one has lost buffers, or with its connection.
        """
        had, lost = self._ring, self._stuck >= BUFFERS // 2
        if lost and not any(p.load for p in self._jobs.values()):
            self.drain(STORE_SECONDS)  # what the last step stores
        if self.busy or not (had is None or had.ended or lost):
            return
        if had is not None and self._aside is not None:
            self._aside.detach()  # before there is a new ring: that ends the connection if the disk still hangs
            self._aside = None
        ring = self._new_ring()
        if ring is None and had is None:
            return
        old = self._region
        self._stage(ring)
        if lost:
            self._aside = old
        else:
            old.detach()

    def _let(self, layer: int) -> None:
        """The engine comes to a layer: the disks may read it and those next to it."""
        if self._ring is not None:
            self._raised = max(self._raised, self._turn + turns(layer, len(self._layers)))
            self._ring.raise_word(WORD, self._raised)

    def _after(self, piece: _Piece) -> tuple[int, int] | None:
        """What a request waits for has its turn at once."""
        if self._ring is None:
            return None
        return WORD, self._raised if piece.request is not None else self._turn + piece.layer + 1

    def _ended(self, piece: _Piece, statuses: NDArray[np.uint8]) -> None:
        """A job has ended. A ring that has not ended it in time may use its buffer still, which is not used again."""
        stuck = bool((statuses == STUCK).any())
        self._done(piece, (statuses == 1) & (not stuck))
        if not stuck:
            return
        self._free.remove(piece.buffer)
        self._stuck += 1
        if self._stuck == 1:
            logger.warning("a ring of the rank has not ended in time: buffers of the staging memory are lost until there is another one")

    # Pieces.

    def _pieces(self, run: Run, layer: int, load: bool, request: str | None = None) -> list[_Piece]:
        """None if the run is of another group."""
        out: list[_Piece] = []
        for a in range(0, len(run.blocks) if layer in self._of[run.group] else 0, self._most):
            b = a + self._most
            parent, shared = run.names[a - 1] if a else run.parent, max(0, min(run.shared - a, self._most))
            part = Run(run.blocks[a:b], run.names[a:b], parent, shared, run.group)
            out.append(_Piece(layer, part, load, request))
        return out

    def _wanted(self, pieces: list[_Piece]) -> int:
        self._waiting.extend(pieces)
        return len(pieces)

    def _loading(self) -> bool:
        return bool(self._waiting) or any(p.load and not p.given_up for p in self._jobs.values())

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

    def _fits(self) -> bool:
        """Whether a load that waits can begin."""
        return bool(self._waiting) and len(self._free) > (0 if self._ring is None else SPARED)

    def _advance(self, seconds: float) -> None:
        """Begins what can begin and ends what has ended; waits so long for the end of a job, if any is under way."""
        self._copies()
        while self._fits():
            piece = self._waiting.popleft()
            self._take(piece)
            self._queue(piece)
        self._rung()
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

    def _rung(self) -> bool:
        """Whether a job may have ended since the last call."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return False
        return True

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
            queued = self._client.load(self._ns, self._region, keys, extents, job=self._number, after=self._after(piece))
        else:
            if self._layout is not None:
                self._client._declare(self._ns, self._layout)  # once for a connection
            parent = None if run.parent is None else key_of(run.parent, piece.layer)
            after = (WORD, self._raised) if self._ring is not None and self._ring_stores else None  # it has come: the rows are there
            queued = self._client.store(
                self._ns, self._region, keys, extents, parent=parent, chain=True, job=self._number, shared=run.shared, after=after
            )
        if not queued:
            del self._jobs[self._number]
            self._done(piece, np.zeros(n, np.bool_))

    def _done(self, piece: _Piece, good: NDArray[np.bool_]) -> None:
        count = int(good.sum())
        if not piece.load:
            self.counts.stored, self.counts.not_stored = self.counts.stored + count, self.counts.not_stored + len(good) - count
            self._free.append(piece.buffer)
            return
        copied: Copied = None
        if not piece.given_up:
            self._moved = time.monotonic()
            copied = self._loaded(piece, good)
        if copied is None:
            self._free.append(piece.buffer)
        else:
            self._copying.append((copied, piece))

    def _loaded(self, piece: _Piece, good: NDArray[np.bool_]) -> Copied:
        """A load has ended that is still wanted."""
        blocks = [b for b, ok in zip(piece.run.blocks, good.tolist(), strict=True) if ok]
        whole = len(blocks) == len(good)
        if piece.request is not None and not whole:
            self.counts.lost += len(good)
            self._lose_waited(piece.request)
            return None
        copied: Copied = None
        if blocks:
            rows = self._rows(piece)
            with self._freed_if_it_fails(piece):
                copied = self._layers[piece.layer].write(blocks, rows if whole else rows[good])
            self.counts.loaded += len(blocks)
        if piece.request is None:
            self._left[piece.layer] -= 1
            if not whole:
                self._lose([b for b, ok in zip(piece.run.blocks, good.tolist(), strict=True) if not ok])
            return copied
        self._ahead[piece.request] -= 1
        if not self._ahead[piece.request]:
            self._end_waiting(piece.request)
        return copied

    def _lose(self, blocks: Sequence[int]) -> None:
        self._bad.update(blocks)
        self.counts.lost += len(blocks)
        self._spoiled = True

    def _end_waiting(self, request: str) -> None:
        del self._ahead[request]
        self._waited[0].add(request)

    def _lose_waited(self, request: str) -> None:
        """The request waits no more, and nothing is written to its blocks any more: the engine may give them to another one."""
        for piece in self._withdrawn(lambda p: p.request == request):
            self.counts.lost += len(piece.run.blocks)
        self._end_waiting(request)
        self._waited[1].add(request)

    def _give_up(self, layer: int) -> None:
        """What the step has left of the layer has failed."""
        for piece in self._withdrawn(lambda p: p.layer == layer and p.request is None):
            self._lose(piece.run.blocks)
        self._left[layer] = 0

    def _withdrawn(self, these: Callable[[_Piece], bool]) -> list[_Piece]:
        """Takes back these loads. The rank may still write to their buffers, which are not used before it has ended."""
        out = []
        for number, piece in list(self._jobs.items()):
            if piece.load and not piece.given_up and these(piece):
                piece.given_up = True
                self._client.cancel(number)
                out.append(piece)
        for piece in [p for p in self._waiting if these(p)]:
            self._waiting.remove(piece)
            out.append(piece)
        return out
