"""How much of what is stored an engine loads: what it computes faster is not loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .client import Client
from .layout import Layout

SETTING: Final = "prefill_tokens_per_second"


class Worth:
    """With how many tokens a second an engine computes; without that all that is stored is loaded."""

    def __init__(self, prefill_tokens_per_second: Any = None) -> None:
        self._rate = 0.0
        if prefill_tokens_per_second is not None:
            self._rate = float(prefill_tokens_per_second)
            if not 0 < self._rate < float("inf"):
                raise ValueError(f"{SETTING}: {prefill_tokens_per_second} is no number above 0")

    def judges(self, layout: Layout | None) -> bool:
        """Whether anything is known to judge by: blocks of a layout may have any number of tokens."""
        return self._rate > 0 and layout is not None and layout.tokens > 0

    def leading(self, client: Client, ns: str, keys: Sequence[bytes | str], layout: Layout | None) -> int:
        """How many blocks to load of a chain of such blocks, from the first on."""
        if layout is None or not self.judges(layout):
            return client.probe(ns, keys).hits
        return client.advise(ns, keys, layout.tokens / self._rate).blocks
