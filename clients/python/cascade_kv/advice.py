"""How much of a chain is cached, what of it is worth loading, and what is declared of it: as the operations of ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .errors import Refused
from .index import Run
from .link import LinkState, Request
from .ops import NO_COMMAND, Op, batches, hints, integer, items, text
from .resp import Keys, Word, as_map, head, keys_bytes, words

MAX_BLOCK_US: Final = 3_600_000_000  # that a client may say that a block takes to compute
MAX_RATE: Final = 1e12  # tokens a second that it may say it computes


@dataclass(frozen=True, slots=True)
class Probe:
    """How much of a chain is cached: leading blocks, their bytes, and how many of them each tier would serve."""

    hits: int = 0
    bytes: int = 0
    tiers: dict[str, int] = field(default_factory=dict)
    load_seconds: float = field(default=0.0, compare=False)  # that loading all of them takes, by estimate; 0: not known
    runs: tuple[Run, ...] = field(default=(), compare=False)  # the same in the order of the chain, for each prefix: see Run


@dataclass(frozen=True, slots=True)
class Advice(Probe):
    """A Probe, and how many of these blocks to load and to compute the rest, so that all are there soonest."""

    blocks: int = 0
    seconds: float = 0.0  # that loading them takes, by estimate; 0: not known
    tokens: int | None = None  # that these blocks have, if they are whole; None: not known


def probe(state: LinkState, ns: Word, keys: Keys) -> Op[Probe]:
    found = yield from _chain(keys, lambda a, b: (words("CASCADE.PROBE", ns), 2))
    return Probe(found.hits, found.bytes, found.tiers, found.load_seconds, found.runs)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client declares when it asks for advice: how fast it computes, and how the chain will be used."""

    block_seconds: float | None = None
    tokens_per_second: float | None = None
    shared: int = 0
    due: float | None = None

    def __post_init__(self) -> None:
        rate = self.tokens_per_second
        if rate is not None and not 0 < rate <= MAX_RATE:
            raise ValueError(f"{rate} tokens a second: it must be above 0 and at most {MAX_RATE:g}")

    @property
    def by_words(self) -> bool:
        """Whether the rank has to answer, and in the form that not all ranks have."""
        return self.tokens_per_second is not None or self.shared > 0 or self.due is not None

    def options(self, a: int, b: int) -> list[str]:
        """For the keys from a to b."""
        speed = ["BLOCK", self.block] if self.tokens_per_second is None else ["PREFILL", repr(float(self.tokens_per_second))]
        return speed + hints(self.shared, self.due, a, b) + ["KEYS"]

    @property
    def block(self) -> str:
        return "auto" if self.block_seconds is None else str(min(max(round(self.block_seconds * 1e6), 0), MAX_BLOCK_US))


def advise(state: LinkState, ns: Word, keys: Keys, to: Ask) -> Op[Advice]:
    """A rank that does not give such advice, or has learned nothing, is of another version: then all that there is is to be loaded."""

    def by_words(a: int, b: int) -> tuple[bytes, int]:
        options = to.options(a, b)
        return words("CASCADE.ADVISE", ns, *options), 2 + len(options)

    try:
        if to.by_words:
            return (yield from _chain(keys, by_words))
        return (yield from _chain(keys, lambda a, b: (words("CASCADE.ADVISE", ns, to.block), 3)))
    except Refused as e:
        if NO_COMMAND not in str(e) and to.block_seconds is not None and not to.by_words:
            raise
    if to.by_words:
        advice = yield from advise(state, ns, keys, Ask(to.block_seconds))
        yield from hint(state, ns, keys, to.shared, to.due)
        return advice
    found = yield from probe(state, ns, keys)
    return Advice(found.hits, found.bytes, found.tiers, found.load_seconds, found.runs, found.hits)


def hint(state: LinkState, ns: Word, keys: Keys, shared: int, due: float | None) -> Op[int]:
    """A rank that takes no hints is of another version."""
    reached = 0
    for a, b in batches(keys):
        options = hints(shared, due, a, b)
        if not options:
            break
        try:
            request = head(3 + len(options) + b - a) + words("CASCADE.HINT", ns, *options, "KEYS") + keys_bytes(keys[a:b])
            reached += integer((yield Request(request)))
        except Refused as e:
            if NO_COMMAND not in str(e):
                raise
            break
    return reached


def _chain(keys: Keys, before: Callable[[int, int], tuple[bytes, int]]) -> Op[Advice]:
    """What is found of a chain, with a command of which before gives what is before keys, and how many words that are."""
    hits = size = blocks = us = load = 0
    tiers: dict[str, int] = {}
    runs: list[Run] = []
    tokens: int | None = 0
    for a, b in batches(keys):
        start, n = before(a, b)
        reply = as_map((yield Request(head(n + b - a) + start + keys_bytes(keys[a:b]))))
        some, advised = integer(reply.get(b"hits")), integer(reply.get(b"blocks", 0))
        if blocks == hits:  # else what comes is behind what is computed
            blocks, us = blocks + advised, us + integer(reply.get(b"blocks_us", 0))
            of = integer(reply.get(b"load_tokens", -1))
            tokens = None if tokens is None or of < 0 else tokens + of
        for run in items(reply.get(b"runs", [])):
            tier, *numbers = items(run, 4)
            of_run, of_bytes, until = map(integer, numbers)
            runs.append(Run(text(tier), of_run, of_bytes, (load + until) / 1e6))
        hits += some
        size += integer(reply.get(b"bytes"))
        load += integer(reply.get(b"load_us", 0))
        for tier, count in as_map(reply.get(b"tiers")).items():
            tiers[text(tier)] = tiers.get(text(tier), 0) + integer(count)
        if some < b - a:
            break
    return Advice(hits, size, tiers, load / 1e6, tuple(runs), blocks, us / 1e6, tokens)
