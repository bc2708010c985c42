"""The shared index of a rank: what it has and where, read in shared memory without asking it. docs/format.md has every byte.

With the C helper (_fast) blocks are read too, any number of keys looked up, and the rank's policies learn what is. Without it a few keys at a time are looked up by
Python alone, on processors that do not change the order of loads; more of them are asked for faster by the socket.
"""

from __future__ import annotations

import hashlib
import mmap
import platform
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from . import memory
from .link import LinkState
from .view import Arena, Lease, View

try:
    from . import _fast as _fast
except ImportError:
    _fast = None  # type: ignore[assignment]

FAST: Final = _fast is not None  # blocks of the arena are read without asking the rank
Key = bytes | str

_HEADER: Final = 4096
_LANE: Final = 64
_SLOTS: Final = 8
_TIERS: Final = 8
_MAX_NAME: Final = 1024
_OWNER_DIED: Final = 1 << 30
_ASK: Final = 2  # what is known of a name, beside 0 and 1: the rank must be asked
_BOUND: Final = 3  # kind of an entry that only the rank can judge
_ENTRY: Final = struct.Struct("<IHH16sqIIQQQ")
_LOADS: Final = struct.Struct("<QQ")  # nanoseconds of each load, femtoseconds of each byte
_TAGS: Final = struct.Struct("<8Q")


class Run(NamedTuple):
    """Some keys of a chain, one after the other, that the same tier would serve."""

    tier: str
    hits: int
    bytes: int
    load_seconds: float  # that loading the chain up to the end of this takes, by estimate; 0: not known


Found = tuple[int, int, dict[str, int], float, tuple[Run, ...]]  # hits, bytes, hits of each tier, seconds that loading them takes, runs
Probed = list[tuple[int, int, int]]  # of each run the tier, hits and bytes


class _Reader(Protocol):
    """What the helper's reader has, and the one in Python."""

    def contains(self, ns: Key, keys: Sequence[Key], out: Any, /) -> bool: ...
    def probe(self, ns: Key, keys: Sequence[Key], /) -> Probed | None: ...
    def get(self, ns: Key, key: Key, /) -> bytes | None | Literal[False]: ...
    def get_into(self, ns: Key, key: Key, dst: Any, far: bool, /) -> int: ...
    def hold(self, ns: Key, key: Key, /) -> tuple[int, int, int, int, int] | None | Literal[False]: ...
    def let_go(self, number: int, /) -> None: ...
    def take_holds(self, fd: int, /) -> None: ...
    def alive(self) -> bool: ...


def open_index(table: int, touches: int, arena: Arena | None) -> Index | None:
    """The index behind these descriptors, which stay the caller's. None where it can not be read."""
    try:
        if _fast is not None:
            return Index(_fast.Reader(table, touches, arena.address if arena else 0, arena.size if arena else 0, arena), _header(table), arena)
        if platform.machine() in ("x86_64", "AMD64"):
            return Index(SlowReader(table, touches), _header(table))
    except (OSError, ValueError):
        pass  # of another version
    return None


def _header(table: int) -> mmap.mmap:
    return mmap.mmap(table, _HEADER, mmap.MAP_SHARED, mmap.PROT_READ)


class Index:
    """An index in use. Answers are those that the rank would give at this moment, or that it must be asked."""

    def __init__(self, reader: _Reader, header: mmap.mmap, arena: Arena | None = None) -> None:
        self._arena = arena
        self._ahead = arena is None  # whether the arena was mapped ahead
        self._reader = reader
        self._header = header
        self._tiers = [header[128 + 16 * i : 144 + 16 * i].rstrip(b"\0").decode("utf-8", "replace") for i in range(_TIERS)]
        self._let_go = reader.let_go
        self._state: LinkState  # whose the holds are, once there are any,
        self._held_in: Arena  # and where
        self.wants_holds = arena is not None  # the rank was not asked for them
        self.get = reader.get  # bytes, None for a miss, False if the rank must be asked
        self.get_into = reader.get_into  # bytes of the block, -1 for a miss, -2 if the rank must be asked
        self.alive = reader.alive

    def map_ahead(self) -> None:
        done, self._ahead = self._ahead, True
        if not done and self._arena is not None:
            memory.map_ahead(self._arena.array, write=False)

    def take_holds(self, state: LinkState, fd: int) -> None:
        """The table of what the connection holds, by which views are made here. The descriptor stays the caller's."""
        if self._arena is None:
            return
        self._state, self._held_in = state, self._arena
        try:
            self._reader.take_holds(fd)
        except (OSError, ValueError):
            pass  # of another version: the rank is asked

    def hold(self, ns: Key, key: Key) -> View | None | Literal[False]:
        """A view, None for a miss, False if the rank must be asked."""
        held = self._reader.hold(ns, key)
        if not held:
            return held
        number, offset, size, crc, tier = held
        return View(Lease(self._state, self._held_in, self._let_go, number, offset, size), size, crc, self._tiers[tier])

    def hold_each(self, ns: Key, keys: Sequence[Key]) -> tuple[list[View | None], list[int]]:
        """hold for each key, and which of the keys to ask for."""
        held = [self.hold(ns, k) for k in keys]
        return [None if v is False else v for v in held], [i for i, v in enumerate(held) if v is False]

    def contains(self, ns: Key, keys: Sequence[Key]) -> NDArray[np.bool_] | None:
        """For each key whether it is there, or None: then the rank is asked for all of them, as they are one request."""
        found = np.empty(len(keys), dtype=np.uint8)
        return found.view(np.bool_) if self._reader.contains(ns, keys, found) else None

    def probe(self, ns: Key, keys: Sequence[Key]) -> Found | None:
        """How many leading keys are there, or None."""
        found = self._reader.probe(ns, keys)
        if found is None:
            return None
        tiers: dict[str, int] = {}
        for tier, hits, _ in found:
            tiers[self._tiers[tier]] = tiers.get(self._tiers[tier], 0) + hits
        runs = self._estimate(found)
        seconds = runs[-1].load_seconds if runs else 0.0
        return sum(r.hits for r in runs), sum(r.bytes for r in runs), tiers, seconds, runs

    def _estimate(self, runs: Probed) -> tuple[Run, ...]:
        """How long it takes to load a chain up to the end of each run: tiers load at the same time, and all is copied from memory then."""
        loads = list(_LOADS.iter_unpack(self._header[256 : 256 + _TIERS * _LOADS.size]))
        latency, byte = loads[0]
        below, total, slowest = [0] * _TIERS, 0, 0
        out: list[Run] = []
        for tier, hits, size in runs:
            total += size
            below[tier] += size
            if tier:
                each, per = loads[tier]
                slowest = max(slowest, each * 1_000_000 + below[tier] * per)
            known = total and (latency or byte)
            out.append(Run(self._tiers[tier], hits, size, (slowest + total * byte + latency * 1_000_000) / 1e15 if known else 0.0))
        return tuple(out)

    def in_memory(self, tiers: Iterable[str]) -> bool:
        """Whether all of them are the fastest tier, which is memory."""
        return all(t == self._tiers[0] for t in tiers)


class SlowReader:
    """The same in Python, for a few keys. It does not copy blocks: it could not checksum them."""

    MOST: Final = 16  # keys: more of them come faster by the socket

    def __init__(self, table: int, touches: int = -1) -> None:
        self._table = mmap.mmap(table, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        self._count = _Counts(touches).add if touches >= 0 else _uncounted
        magic, version, buckets, size, features = struct.unpack_from("<8sIIQ16xI", self._table)
        right = magic == b"CASCIDX1" and version in (1, 2) and not features and buckets and buckets & (buckets - 1) == 0
        if not right or not size == len(self._table) == _HEADER + buckets * _LANE * (1 + _SLOTS):
            raise ValueError("no table of this version")
        self._mask = buckets - 1
        self._entries = _HEADER + buckets * _LANE
        self._ns: tuple[Key, Any] = (b"", None)

    def alive(self) -> bool:
        owner, state, _ = self._words()
        return state == 1 and owner != 0 and not owner & _OWNER_DIED

    def contains(self, ns: Key, keys: Sequence[Key], out: NDArray[np.uint8]) -> bool:
        final = self._words()[2]
        if len(keys) > self.MOST or not self.alive():
            return False
        out[:] = [self._look(ns, k, final)[0] for k in keys]
        good = self._still(final) and not (out == _ASK).any()
        if good:
            self._count(ns, len(keys), int(out.sum()), 0)
        return good

    def probe(self, ns: Key, keys: Sequence[Key]) -> Probed | None:
        final = self._words()[2]
        if len(keys) > self.MOST or not self.alive():
            return None
        runs: Probed = []
        hits = 0
        for k in keys:
            answer, size, tier = self._look(ns, k, final)
            if answer == _ASK:
                return None
            if not answer:
                break
            hits += 1
            tier %= _TIERS
            if runs and runs[-1][0] == tier:
                runs[-1] = tier, runs[-1][1] + 1, runs[-1][2] + size
            else:
                runs.append((tier, 1, size))
        if not self._still(final):
            return None
        if keys:
            self._count(ns, min(hits + 1, len(keys)), hits, 0)
        return runs

    def get(self, ns: Key, key: Key) -> None | Literal[False]:
        return None if self._absent(ns, key) else False

    def get_into(self, ns: Key, key: Key, dst: Any, far: bool) -> int:
        return -1 if self._absent(ns, key) and not memoryview(dst).readonly else -2

    def hold(self, ns: Key, key: Key) -> None | Literal[False]:
        return self.get(ns, key)

    def let_go(self, number: int) -> None:
        pass

    def take_holds(self, fd: int) -> None:
        pass

    def _absent(self, ns: Key, key: Key) -> bool:
        final = self._words()[2]
        absent = self.alive() and self._look(ns, key, final)[0] == 0 and self._still(final)
        if absent:
            self._count(ns, 0, 0, 1)
        return absent

    def _still(self, final: int) -> bool:
        """Whether what was looked up counts: the table was in use to the end, and as final as before."""
        return self.alive() and self._words()[2] == final

    def _words(self) -> tuple[int, int, int]:
        owner, state, final = struct.unpack_from("<III", self._table, 64)
        return owner, state, final

    def _look(self, ns: Key, key: Key, final: int) -> tuple[int, int, int]:
        """Answer, bytes of the block and its tier."""
        missing = (0 if final == 1 else _ASK), 0, 0
        mark = self._fingerprint(ns, key)
        if mark is None:
            return _ASK, 0, 0
        entry = self._find(mark)
        if entry is None:
            return missing
        kind, tier, expires, size = entry
        if kind == _BOUND:
            return _ASK, 0, 0
        return missing if expires and time.time_ns() >= expires else (1, size, tier)

    def _find(self, mark: bytes) -> tuple[int, int, int, int] | None:
        tag, *sides = struct.unpack("<QII", mark)
        for side in sides:
            bucket = side & self._mask
            for i, t in enumerate(_TAGS.unpack_from(self._table, _HEADER + bucket * _LANE)):
                if t == max(tag, 1):
                    at = self._entries + (bucket * _SLOTS + i) * _LANE
                    for _ in range(64):  # while it is being written
                        seq, kind, tier, whose, expires, size, *_ = _ENTRY.unpack_from(self._table, at)
                        if not seq & 1 and seq == int.from_bytes(self._table[at : at + 4], "little"):
                            if kind and whose == mark:
                                return kind, tier, expires, size
                            break
                    else:
                        return _BOUND, 0, 0, 0  # its writer has lost its core: the name is there, and the rank must be asked
        return None

    def _fingerprint(self, ns: Key, key: Key) -> bytes | None:
        try:
            if self._ns[1] is None or self._ns[0] != ns:
                name = ns.encode() if isinstance(ns, str) else bytes(ns)
                if len(name) > _MAX_NAME:
                    return None
                start = struct.pack("<H", len(name)) + name
                self._ns = ns, hashlib.sha256(start + bytes(-len(start) % _LANE))
            k = key.encode() if isinstance(key, str) else bytes(key)
        except (UnicodeEncodeError, TypeError):
            return None  # the way by the socket says what is wrong
        if not 0 < len(k) <= _MAX_NAME:
            return None
        h = self._ns[1].copy()
        h.update(k)
        return bytes(h.digest()[:16])


def _uncounted(ns: Key, asked: int, found: int, missed: int) -> None:
    """_Counts.add without a ring."""


class _Counts:
    """What is looked for in each namespace, counted for the rank where it gives room for that: docs/format.md, "The touch ring"."""

    HEADER: Final = 128
    BYTES: Final = 256
    COUNTS: Final = struct.Struct("<QQQI")

    def __init__(self, touches: int) -> None:
        self._ring = mmap.mmap(touches, 0)
        magic, version, slots = struct.unpack_from("<8sII", self._ring)
        (spaces,) = struct.unpack_from("<I", self._ring, 72)
        self._first = self.HEADER + 8 * slots
        self._end = self._first + self.BYTES * spaces
        if magic != b"CASCTCH1" or version != 1 or self._end > len(self._ring):
            raise ValueError("no touch ring of this version")

    def add(self, ns: Key, asked: int, found: int, missed: int) -> None:
        name = ns.encode() if isinstance(ns, str) else bytes(ns)
        at = self._place(name)
        if at is not None:
            old = self.COUNTS.unpack_from(self._ring, at)
            self.COUNTS.pack_into(self._ring, at, old[0] + asked, old[1] + found, old[2] + missed, len(name))

    def _place(self, name: bytes) -> int | None:
        room = self.BYTES - self.COUNTS.size
        for at in range(self._first, self._end if 0 < len(name) <= room else 0, self.BYTES):
            text = at + self.COUNTS.size
            length = self.COUNTS.unpack_from(self._ring, at)[3]
            if length == len(name) and self._ring[text : text + length] == name:
                return at
            if not length:
                self._ring[text : text + len(name)] = name
                return at
        return None
