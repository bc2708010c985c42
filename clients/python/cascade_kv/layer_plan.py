"""Which blocks an engine loads and stores layer by layer. Nothing here needs an engine, or is safe for threads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from .client import Client
from .layers import Group, Run, Step, key_of
from .layout import Layout
from .worth import Worth


class _Request:
    __slots__ = ("blocks", "computed", "external", "lost", "names", "shared")

    def __init__(self, names: Sequence[Sequence[bytes]], computed: int, shared_tokens: int, lost: bool) -> None:
        self.names = names  # of the whole blocks of the prompt, by group
        self.computed = computed  # tokens, when it was asked what can be loaded
        self.shared = shared_tokens
        self.lost = lost  # what it waited for was lost: never again, or it would wait for ever
        self.blocks: list[list[int]] = [[] for _ in names]
        self.external = 0  # tokens that are to be loaded in the request's next step


class Plan:
    """Which blocks to load and to store, as the scheduler sees it.

    spaces: a namespace for each worker. ahead: requests wait for what they load, as they must with several groups or a window. rate: prefill
    tokens a second of the engine, "auto" or None, see Worth; for one group without a window. ValueError if these do not fit.
    """

    def __init__(
        self, client: Client, spaces: Sequence[str], groups: Sequence[Group], ahead: bool = False, rate: float | str | None = None
    ) -> None:
        layers = sum(len(g.layers) for g in groups)
        # An object is one layer of a block of one worker, so it takes that much less time to compute.
        self._worth = Worth(float(rate) * layers * len(spaces) if isinstance(rate, int | float) else rate)
        self._client, self._spaces, self._groups, self._ahead = client, spaces, groups, ahead
        self._plain = len(groups) == 1 and groups[0].window is None
        if not self._plain and (self._worth.judges or not ahead):
            raise ValueError("several groups and windows are loaded ahead, and whole or not at all")
        self._unit = math.lcm(*(g.tokens for g in groups))
        self._requests: dict[str, _Request] = {}
        self._begun: dict[str, list[Run]] = {}  # what requests wait for that no step has yet

    def matched(self, request: str, names: Sequence[Sequence[bytes]], prompt: int, computed: int, shared_tokens: int = 0) -> int:
        """How many tokens after those computed can be loaded. names: of the blocks of each group.

        At least one token of the prompt is left, for which the engine computes.
        """
        before = self._requests.get(request)
        known = self._requests[request] = _Request(names, computed, shared_tokens, before is not None and before.lost)
        last = (prompt - 1) // self._unit * self._unit
        if known.lost or computed % self._unit or last <= computed:
            return 0
        if self._plain:
            return self._leading(names[0][computed // self._unit : last // self._unit]) * self._unit
        return self._whole(known, last)

    def _leading(self, names: Sequence[bytes]) -> int:
        """How many blocks to load, from the first on."""
        layers = self._groups[0].layers
        for ns in self._spaces:
            keys = [key_of(n, i) for n in names for i in layers]
            names = names[: self._worth.leading(self._client, ns, keys, Layout(tokens=self._unit)) // len(layers) if keys else 0]
        return len(names)

    def _whole(self, known: _Request, last: int) -> int:
        """The most tokens, up to last, after which every group can go on."""
        missing = []  # for each group, how many blocks are missing before each one after those computed
        for group, names in zip(self._groups, known.names, strict=True):
            wanted = names[known.computed // group.tokens : last // group.tokens]
            keys = [key_of(n, i) for n in wanted for i in group.layers]
            there = np.ones(len(wanted), np.bool_)
            for ns in self._spaces:
                there &= self._client.contains(ns, keys).reshape(len(wanted), len(group.layers)).all(axis=1)
            missing.append(np.concatenate([[0], np.cumsum(~there)]))
        for end in range(last, known.computed, -self._unit):
            for group, gone in zip(self._groups, missing, strict=True):
                base = known.computed // group.tokens
                first, after = max(group.first(end) - base, 0), end // group.tokens - base
                if after >= len(gone) or gone[after] != gone[first]:
                    break
            else:
                return end - known.computed
        return 0

    def allocated(self, request: str, external_tokens: int, blocks: Sequence[Sequence[int | None]] = ()) -> None:
        """The engine has given the request blocks for what matched said, or for less.

        blocks: of the request, by group, None for one that the engine does not need; only if requests wait.
        """
        known = self._requests.get(request)
        if known is None or external_tokens <= 0:
            return
        if not self._ahead:
            known.external = external_tokens
            return
        runs, end = self._begun.setdefault(request, []), known.computed + external_tokens
        for number, (group, names, ids) in enumerate(zip(self._groups, known.names, blocks, strict=True)):
            here = [(i, b) for i, b in enumerate(ids[: end // group.tokens]) if i >= known.computed // group.tokens and b is not None]
            if here:
                runs.append(Run([b for _, b in here], [names[i] for i, _ in here], group=number))

    def begun(self, step: Step) -> None:
        """Adds to the step what requests begin to wait for."""
        step.ahead, self._begun = self._begun, {}

    def schedule(self, step: Step, request: str, blocks: Sequence[Sequence[int]], anew: bool, computed: int, scheduled: int) -> None:
        """Adds to the step what the request has in it.

        blocks: that it got, by group, or all of its blocks if anew. Of tokens, how many were computed before, and are in this step.
        """
        known = self._requests.get(request)
        if known is None:
            return
        for number, group in enumerate(self._groups):
            got = blocks[number] if blocks else ()
            have = known.blocks[number] = [*got] if anew else [*known.blocks[number], *got]
            done = computed // group.tokens
            if known.external:
                step.loads.append(self._run(known, number, done - known.external // group.tokens, done))
            full = min((computed + scheduled) // group.tokens, len(known.names[number]), len(have))
            if done < full:
                step.stores.append(self._run(known, number, done, full))
        known.external = 0

    def lost(self, requests: Iterable[str]) -> None:
        """Of what these requests waited for, something could not be loaded."""
        for request in requests:
            known = self._requests.get(request)
            if known is not None:
                known.lost = True

    def finished(self, request: str, due: float | None) -> None:
        known = self._requests.pop(request, None)
        if known is None or (known.shared <= 0 and due is None):
            return
        for group, names in zip(self._groups, known.names, strict=True):
            shared = min(max(known.shared // group.tokens, 0), len(names))
            for ns in self._spaces if names else ():
                for layer in group.layers:
                    self._client.hint(ns, [key_of(n, layer) for n in names], shared=shared, due=due)

    def _run(self, r: _Request, number: int, first: int, last: int) -> Run:
        names = r.names[number]
        shared = min(max(r.shared // self._groups[number].tokens - first, 0), last - first)
        return Run(r.blocks[number][first:last], [*names[first:last]], names[first - 1] if first else None, shared, number)
