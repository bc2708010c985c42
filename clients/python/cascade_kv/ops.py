"""What the clients can ask, once for both: each operation is a generator that yields requests and is sent their answers.

An error line is thrown into the generator as Refused. A request that wants a descriptor is sent (answer, descriptor).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import ProtocolError, Refused
from .index import Index, open_index
from .layout import Layout, dtype_bytes, parse
from .link import LinkState, Request
from .peer import is_owned
from .region import Region
from .ring import WORDS, Ring
from .resp import Keys, Word, as_map, head, keys_bytes, word, words
from .view import Arena, Lease, View

Statuses = NDArray[np.uint8]
Extents = NDArray[np.uint64]
T = TypeVar("T")
Op = Generator[Request, Any, T]

# All arguments of a command together may have 4 MiB, each counted with 32 bytes more than it has.
BUDGET: Final = 3 << 20
MAX_KEY: Final = 1024
MAX_WAIT_MS: Final = 5000
MAX_DUE_MS: Final = 86_400_000
NO_REGION: Final = "has no region"  # in the error line for a region that the rank does not know
NO_OPTION: Final = "syntax error"  # in that for an option that it does not know
NO_COMMAND: Final = "unknown command"  # in that for a command that the rank does not serve
LAYOUT: Final = "CASCADE.LAYOUT"
MAX_DECLARED: Final = 4096  # namespaces of which a rank keeps a layout


class Event(NamedTuple):
    kind: str  # stored or removed
    namespace: str
    key: bytes
    bytes: int


class Events(NamedTuple):
    next: int  # where to go on
    lost: int  # wanted, and forgotten by the rank
    events: list[Event]


def batches(keys: Keys, each: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges of keys that fit into one command, with so many bytes more for each key."""
    n = len(keys)
    if n * (MAX_KEY + 32 + each) <= BUDGET:
        if n:
            yield 0, n
        return
    start, room = 0, BUDGET
    for i, k in enumerate(keys):
        size = (len(k) if isinstance(k, bytes) else 4 * len(k)) + 32 + each
        if size > room and i > start:
            yield start, i
            start, room = i, BUDGET
        room -= size
    yield start, n


def bulk(reply: Any, size: int) -> bytes:
    if not isinstance(reply, bytes) or len(reply) != size:
        raise ProtocolError(f"a reply that should be {size} bytes is not")
    return reply


def integer(reply: Any) -> int:
    if not isinstance(reply, int):
        raise ProtocolError("a reply that should be a number is none")
    return reply


def text(reply: Any) -> str:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "replace")
    if not isinstance(reply, str):
        raise ProtocolError("a reply that should be text is none")
    return reply


def items(reply: Any, size: int | None = None) -> list[Any]:
    if not isinstance(reply, list) or size is not None and len(reply) != size:
        raise ProtocolError("a reply is not the array that it should be")
    return reply


PING: Final = head(1) + words("PING")


def hello(state: LinkState, password: str = "") -> Op[bool]:
    """Whether the commands of engines are served."""
    auth: list[Word] = ["AUTH", "default", password.encode("utf-8", "surrogateescape")] if password else []
    reply = as_map((yield Request(head(2 + len(auth)) + words("HELLO", "2", *auth))))
    for module in items(reply.get(b"modules", [])):
        m = as_map(module)
        if m.get(b"name") == b"cascade":
            return integer(m.get(b"ver", 0)) >= 2
    return False


def contains(state: LinkState, ns: Word, keys: Keys) -> Op[NDArray[np.bool_]]:
    out = np.zeros(len(keys), dtype=np.bool_)
    prefix = words("CASCADE.CONTAINS", ns)
    for a, b in batches(keys):
        reply = yield Request(head(2 + b - a) + prefix + keys_bytes(keys[a:b]))
        out[a:b] = np.frombuffer(bulk(reply, b - a), dtype=np.uint8) != 0
    return out


def hints(shared: int, due: float | None, a: int, b: int) -> list[str]:
    """The words for what is declared of a chain, with the keys from a to b of it."""
    of = min(max(shared - a, 0), b - a)
    out = ["SHARED", str(of)] if of else []
    return out if due is None else [*out, "DUE", str(min(max(round(due * 1000), 0), MAX_DUE_MS))]


def get(state: LinkState, ns: Word, key: Word) -> Op[bytes | None]:
    reply = yield Request(head(4) + words("CASCADE.GET", "NS", ns, key))
    if reply is not None and not isinstance(reply, bytes):
        raise ProtocolError("a value that is no bulk")
    return reply


def put(state: LinkState, ns: Word, key: Word, value: memoryview, parent: Word | None, prefix: bool, generated: bool = False) -> Op[bool]:
    options: list[Word] = ["NS", ns]
    if parent is not None:
        options += ["PARENT", parent]
    if prefix:
        options.append("PREFIX")
    if generated:
        options.append("GENERATED")
    data = head(3 + len(options)) + words("CASCADE.PUT", key) + b"$%d\r\n" % value.nbytes
    reply = yield Request(data, value, b"\r\n" + words(*options))
    return isinstance(reply, bytes)


def delete(state: LinkState, ns: Word, keys: Keys) -> Op[int]:
    n = 0
    prefix = words("CASCADE.DEL", ns)
    for a, b in batches(keys):
        n += integer((yield Request(head(2 + b - a) + prefix + keys_bytes(keys[a:b]))))
    return n


def clear(state: LinkState, ns: Word) -> Op[bool]:
    reply = yield Request(head(2) + words("CASCADE.CLEAR", ns))
    return bool(reply == "OK")


def layout(state: LinkState, ns: Word) -> Op[Layout | None]:
    """How the blocks of the namespace are made; None also from a rank that keeps no layouts."""
    try:
        reply = yield Request(head(2) + words(LAYOUT, ns))
    except Refused as e:
        if NO_COMMAND not in str(e):
            raise
        return None
    return None if reply is None else parse(as_map(reply))


def set_layout(state: LinkState, ns: Word, new: Layout) -> Op[bool]:
    """Whether the rank keeps it from here on."""
    fields: list[Word | int] = ["BYTES", new.bytes, "KEYBYTES", new.key_bytes, "TOKENS", new.tokens, "LAYERS", new.layers]
    fields += ["HEADS", new.heads, "HEADDIM", new.head_dim, "DTYPE", dtype_bytes(new)]
    try:
        reply = yield Request(head(2 + len(fields)) + words(LAYOUT, ns, *fields))
    except Refused as e:
        if NO_COMMAND not in str(e):
            raise
        return False
    return bool(reply == "OK")


def share_layout(state: LinkState, ns: str, first: Layout) -> Op[Layout]:
    """The layout of the namespace. Where it does not say the share of the keys yet, first's is declared, if the rank takes it."""
    known = (yield from layout(state, ns)) or Layout()
    if known.bytes or not first.bytes:
        return known
    new = replace(known, bytes=first.bytes, key_bytes=first.key_bytes)
    return new if (yield from declare(state, ns, new)) else known


def declare(state: LinkState, ns: str, new: Layout) -> Op[bool]:
    """As set_layout, but once for a connection, whatever comes of it."""
    if len(state.declared) >= MAX_DECLARED:
        state.declared.clear()
    state.declared[ns] = new
    try:
        return (yield from set_layout(state, ns, new))
    except Refused:
        return False


def stats(state: LinkState) -> Op[dict[str, Any]]:
    reply = yield Request(head(1) + words("CASCADE.STATS"))
    if not isinstance(reply, bytes):
        raise ProtocolError("statistics that are no bulk")
    try:
        return dict(json.loads(reply))
    except (ValueError, TypeError) as e:
        raise ProtocolError(f"statistics that are no JSON object: {e}") from e


def events(state: LinkState, since: int, most: int | None, wait_ms: int) -> Op[Events]:
    args: list[Word | int] = ["CASCADE.EVENTS", since]
    if most is not None:
        args += ["MAX", most]
    if wait_ms:
        args += ["WAIT", wait_ms]
    reply = items((yield Request(head(len(args)) + words(*args), extra=wait_ms / 1000)), 3)
    out = []
    for e in items(reply[2]):
        kind, ns, key, size = items(e, 4)
        out.append(Event(text(kind), text(ns), word(key), integer(size)))
    return Events(integer(reply[0]), integer(reply[1]), out)


def attach(state: LinkState, region: Region) -> Op[None]:
    if region.number in state.regions or region.closed:
        return None
    args: list[Word | int] = ["CASCADE.REGION", "FD"] if region.path is None else ["CASCADE.REGION", "PATH", region.path]
    if region.notifies:
        args.append("NOTIFY")
    reply = yield Request(head(len(args)) + words(*args), fds=region.fds)
    state.regions[region.number] = integer(reply)
    return None


def ring(state: LinkState, made: Ring) -> Op[None]:
    args: list[Word | int] = ["CASCADE.REGION", "RING", made.size]
    if made.write:
        args.append("WRITE")
    if made.notifies:
        args.append("NOTIFY")
    reply = yield Request(head(len(args)) + words(*args), fds=made.fds)
    made.made(state)
    state.regions[made.number] = integer(reply)
    return None


def detach(state: LinkState, region: Region) -> Op[None]:
    number = state.regions.pop(region.number, None)
    if number is not None:
        yield Request(head(3) + words("CASCADE.REGION", "DETACH", number))
    return None


@dataclass(slots=True)
class Move:
    """One STORE or LOAD: which bytes of a region are which blocks."""

    command: str
    ns: Word
    region: Region
    keys: Keys
    extents: Extents
    options: list[Word] = field(default_factory=list)
    parent: Word | None = None
    chain: bool = False
    job: int | None = None
    shared: int = 0
    due: float | None = None
    after: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.after is not None and (self.job is None or not 1 <= self.after[0] <= WORDS):
            raise ValueError(f"after {self.after}: it is of jobs, and its word 1 to {WORDS}")
        e = np.asarray(self.extents)
        if e.ndim == 2 and e.shape[-1:] == (2,) and len(e) == len(self.keys):
            e = e[:, np.newaxis, :]
        if e.ndim != 3 or e.shape[0] != len(self.keys) or e.shape[2] != 2 or e.shape[1] == 0 and len(self.keys):
            raise ValueError(f"extents of shape {e.shape} for {len(self.keys)} keys: it must be (keys, extents of each, 2)")
        if e.dtype.kind not in "ui":
            raise ValueError(f"extents of type {e.dtype}: they must be integers")
        self.extents = np.ascontiguousarray(e, dtype="<u8")

    @property
    def each(self) -> int:
        """Bytes that the extents of one key have in a request."""
        return int(self.extents.shape[1]) * 16

    @property
    def one_command(self) -> bool:
        return sum(1 for _ in batches(self.keys, self.each)) == 1

    def request(self, number: int, a: int, b: int) -> Request:
        args: list[Word | int] = [*self.options, *hints(self.shared, self.due, a, b)]
        parent = self.keys[a - 1] if a and self.chain else self.parent
        if parent is not None:
            args += ["PARENT", parent]
        if self.chain:
            args.append("CHAIN")
        if self.job is not None:
            args += ["JOB", self.job]
        if self.after is not None:
            args += ["AFTER", self.after[0], self.after[1] & 0xFFFFFFFF]
        data = b"".join(
            (
                head(5 + len(args) + b - a),
                words(self.command, number, self.ns, self.extents[a:b].tobytes(), *args, "KEYS"),
                keys_bytes(self.keys[a:b]),
            )
        )
        return Request(data)


def ask(state: LinkState, m: Move, number: int, a: int, b: int) -> Op[Any]:
    """The answer to a part of a move. A rank that was upgraded under the connection is told of the region anew, one of before of no hints."""
    try:
        return (yield m.request(number, a, b))
    except Refused as e:
        if NO_OPTION in str(e) and (m.shared > 0 or m.due is not None):
            m.shared, m.due = 0, None
            return (yield from ask(state, m, number, a, b))
        if NO_REGION not in str(e) or isinstance(m.region, Ring):
            raise
    state.regions.pop(m.region.number, None)
    yield from attach(state, m.region)
    return (yield m.request(state.regions[m.region.number], a, b))


def move(state: LinkState, m: Move) -> Op[Statuses]:
    """Statuses. All 0 where the region is not attached."""
    out = np.zeros(len(m.keys), dtype=np.uint8)
    number = state.regions.get(m.region.number)
    if number is None:
        return out
    for a, b in batches(m.keys, m.each):
        reply = yield from ask(state, m, state.regions.get(m.region.number, number), a, b)
        out[a:b] = np.frombuffer(bulk(reply, b - a), dtype=np.uint8)
    return out


def queue(state: LinkState, m: Move) -> Op[bool]:
    """Whether the job was queued. Its statuses are told by done."""
    number = state.regions.get(m.region.number)
    if number is None or m.job is None or m.job in state.jobs:
        return False
    state.jobs[m.job] = len(m.keys)
    try:
        reply = yield from ask(state, m, number, 0, len(m.keys))
    except Refused as e:
        del state.jobs[m.job]
        if e.code == "BUSY":
            return False
        raise
    if reply != "QUEUED":
        raise ProtocolError("a job that was not queued")
    return True


def done(state: LinkState, wait_ms: int) -> Op[list[tuple[int, Statuses]]]:
    """Jobs that are finished, with their statuses."""
    if not state.jobs:
        return []
    args: list[Word | int] = ["CASCADE.DONE"]
    if wait_ms:
        args.append(wait_ms)
    reply = yield Request(head(len(args)) + words(*args), extra=wait_ms / 1000)
    out: list[tuple[int, Statuses]] = []
    for entry in items(reply):
        job, statuses = items(entry, 2)
        n = state.jobs.pop(integer(job), None)
        if n is None:
            raise ProtocolError(f"job {job} is done, which was not queued")
        out.append((job, np.frombuffer(bulk(statuses, n), dtype=np.uint8)))
    return out


def cancel(state: LinkState, job: int) -> Op[bool]:
    if job not in state.jobs:
        return False
    return integer((yield Request(head(2) + words("CASCADE.CANCEL", job)))) == 1


def read(state: LinkState, ns: Word, key: Word, large: bool, give_back: Callable[[LinkState], None]) -> Op[View | bytes | None]:
    """A block as what is had fastest: a view of a large one, unless views hold too much already, or else its bytes."""
    if large:
        try:
            (view,) = yield from views(state, ns, [key], give_back)
        except Refused:
            view = None  # there is no arena that this process may map
        if view is not None:
            return view
    return (yield from get(state, ns, key))


def copy(target: NDArray[np.uint8], block: NDArray[np.uint8]) -> int:
    """Copies a block to the front of a buffer. NumPy lets other threads run meanwhile."""
    if len(block) > len(target):
        raise ValueError(f"a block of {len(block)} bytes does not fit into {len(target)}")
    np.copyto(target[: len(block)], block)
    return len(block)


def drop(state: LinkState, size: int, give_back: Callable[[LinkState], None], number: int) -> None:
    """Has the rank told that a view of so many bytes is not needed any more."""
    if state.ours:
        state.dropped.append((number, size))
        give_back(state)


def release(numbers: list[int]) -> bytes:
    return head(1 + len(numbers)) + words("CASCADE.RELEASE", *numbers)


def owned(state: LinkState, fd: int, what: str) -> None:
    """Raises Refused for a file that another user than the rank's could change."""
    if not is_owned(fd, state.server):
        raise Refused(f"the {what} that the rank (uid {state.server}) sent belongs to uid {os.fstat(fd).st_uid}: it is not mapped")


def mapped(state: LinkState, reply: Any, fd: int | None) -> Arena:
    """The arena that came as a descriptor, which is closed here."""
    if fd is None:
        raise ProtocolError("an arena without a descriptor")
    try:
        owned(state, fd, "arena")
        size = integer(items(reply, 1)[0])
        if not 0 < size <= os.fstat(fd).st_size:
            raise ProtocolError(f"an arena of {size} bytes in a smaller file")
        return Arena(fd, size)
    except OSError as e:
        raise Refused(f"the arena can not be mapped: {e}") from e
    finally:
        os.close(fd)


def arena_of(state: LinkState) -> Op[Arena]:
    """The arena as it is now, mapped once for a connection. Refused where there is none."""
    reply, fd = yield Request(head(1) + words("CASCADE.ARENA"), wants_fd=True)
    arena, known = mapped(state, reply, fd), state.arena
    if known is None or known.file != arena.file or known.size != arena.size:
        known = state.arena = arena
    return known


def index(state: LinkState) -> Op[Index | None]:
    """The shared index; None from a rank that has none, and where this process can not read it.

    The arena is asked for after the table: as long as the table is in use both are of the same rank's process.
    """
    arena: Arena | None = None
    fds: list[int] = []
    try:
        for what in ([], ["TOUCHES"]):
            _, fd = yield Request(head(1 + len(what)) + words("CASCADE.INDEX", *what), wants_fd=True)
            if fd is None:
                raise ProtocolError("an index without a descriptor")
            fds.append(fd)
            owned(state, fd, "shared index")
        try:
            arena = yield from arena_of(state)
        except Refused:
            pass  # its memory is in no file
        return open_index(fds[0], fds[1], arena)
    except Refused:
        return None
    finally:
        for fd in fds:
            os.close(fd)


def index_holds(state: LinkState, index: Index) -> Op[None]:
    """Asks for what the connection may hold by its index, once. Where that is refused views are asked for."""
    index.wants_holds = False
    try:
        _, fd = yield Request(head(2) + words("CASCADE.INDEX", "HOLDS"), wants_fd=True)
    except Refused:
        return
    if fd is None:
        raise ProtocolError("holds without a descriptor")
    try:
        owned(state, fd, "table of holds")
        index.take_holds(state, fd)
    except Refused:
        return
    finally:
        os.close(fd)


def views(state: LinkState, ns: Word, keys: Keys, give_back: Callable[[LinkState], None]) -> Op[list[View | None]]:
    """A view for each key, None for those that are absent or find no room in memory."""
    arena = state.arena or (yield from arena_of(state))
    out: list[View | None] = []
    prefix = words("CASCADE.GETSHM", ns)
    for a, b in batches(keys):
        reply = yield Request(head(2 + b - a) + prefix + keys_bytes(keys[a:b]))
        for entry in items(reply, b - a):
            if entry is None:
                out.append(None)
                continue
            number, offset, size, crc, tier = items(entry, 5)
            if not 0 <= integer(offset) <= offset + integer(size) <= arena.size:
                raise ProtocolError("a view outside the arena")
            lease = Lease(state, arena, partial(drop, state, size, give_back), integer(number), offset, size)
            out.append(View(lease, size, integer(crc), text(tier)))
    return out
