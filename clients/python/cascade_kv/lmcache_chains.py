"""Which chunk comes before which, as far as LMCache lets know: its keys are hashes that say nothing of each other."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Chains", "Run"]

MOST = 1 << 16  # chunks whose parents are kept: some 20 MiB


class Run(NamedTuple):
    """Names that are stored with one command: a chain behind its parent, which may be None, or such as have nothing to do with each other."""

    parent: bytes | None
    chain: bool
    places: list[int]


class Chains:
    """Parents of chunks, from look-ups, which name the chunks of a prompt in order. Safe for several threads.

    What is stored without having been looked for has no parent. That costs no hit: the rank evicts it like a block that stands
    alone.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._parents: OrderedDict[bytes, bytes] = OrderedDict()

    def learn(self, names: Sequence[bytes], have: Sequence[bool]) -> None:
        """names are chunks of one prompt in order, and have is which of them the rank has: only the others will be stored."""
        with self._lock:
            for (parent, name), there in zip(pairwise(names), have[1:]):
                if not there and parent != name:
                    self._parents[name] = parent
                    self._parents.move_to_end(name)
            while len(self._parents) > self._most:
                self._parents.popitem(last=False)

    def runs(self, names: Sequence[bytes]) -> list[Run]:
        """All names, parents before their children. Each name's parent is forgotten by that."""
        with self._lock:
            parents = [self._parents.pop(n, None) for n in names]
        at = {n: i for i, n in enumerate(names)}
        children: dict[int, list[int]] = {}
        heads = []
        for i, parent in enumerate(parents):
            before = at.get(parent) if parent is not None else None
            if before is None or before == i:
                heads.append(i)
            else:
                children.setdefault(before, []).append(i)
        alone = [i for i in heads if parents[i] is None and i not in children]
        heads = [i for i in heads if parents[i] is not None or i in children]
        out = [Run(None, False, alone)] if alone else []
        left = set(range(len(names))).difference(alone)
        while left:
            # Without a head that is left there is a circle: chunks that were looked for in two orders.
            i = heads.pop() if heads else min(left)
            if i not in left:
                continue
            left.remove(i)
            run = [i]
            while following := [j for j in children.get(run[-1], ()) if j in left]:
                heads += following[1:]
                left.remove(following[0])
                run.append(following[0])
            out.append(Run(parents[i], True, run))
        return out
