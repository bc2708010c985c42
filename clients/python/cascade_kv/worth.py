"""How much of what is stored an engine loads: what it computes faster is not loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .advice import MAX_RATE
from .client import Client
from .layout import Layout

SETTING: Final = "prefill_tokens_per_second"
AUTO: Final = "auto"


class Worth:
    """With how many tokens a second an engine computes; without that all that is stored is loaded. AUTO: as the rank learns it."""

    def __init__(self, prefill_tokens_per_second: Any = None) -> None:
        self._rate = 0.0
        self.learns = prefill_tokens_per_second == AUTO  # then the rank is to be asked for what is missing too
        if prefill_tokens_per_second is not None and not self.learns:
            self._rate = float(prefill_tokens_per_second)
            if not 0 < self._rate < float("inf"):
                raise ValueError(f"{SETTING}: {prefill_tokens_per_second} is neither a number above 0 nor {AUTO!r}")

    @property
    def judges(self) -> bool:
        """Whether anything is known to judge by."""
        return self.learns or self._rate > 0

    def leading(self, client: Client, ns: str, keys: Sequence[bytes | str], layout: Layout | None) -> int:
        """How many blocks to load of a chain, from the first on. Where the engine does not know how many tokens a block has, the rank may."""
        if not self.judges:
            return client.probe(ns, keys).hits
        if self.learns:
            return client.advise(ns, keys).blocks
        if layout is None or not layout.tokens:
            return client.advise(ns, keys, tokens_per_second=min(self._rate, MAX_RATE)).blocks
        return client.advise(ns, keys, layout.tokens / self._rate).blocks
