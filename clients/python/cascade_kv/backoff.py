"""When to try a rank again, and how often to say that it is away."""

from __future__ import annotations

import time
from typing import Final

FIRST_SECONDS: Final = 0.05
MOST_SECONDS: Final = 2.0
WARN_SECONDS: Final = 10.0


def socket_path(name: str) -> str:
    """The path in a path or a unix:// URL."""
    path = name.removeprefix("unix://")
    if not path or "://" in path:
        raise ValueError(f"{name!r} is neither a path nor unix:///path")
    return path


class Backoff:
    """0.05 s after the first failure, doubling to 2 s. A connection that worked starts it anew."""

    def __init__(self) -> None:
        self._pause = FIRST_SECONDS
        self._next = 0.0
        self._warned: dict[str, float] = {}  # by kind

    def over(self) -> bool:
        return time.monotonic() >= self._next

    def failed(self) -> None:
        self._next = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, MOST_SECONDS)

    def worked(self) -> None:
        self._pause, self._next = FIRST_SECONDS, 0.0

    def may_warn(self, kind: str = "") -> bool:
        """Whether the last warning of this kind was long enough ago. An engine asks thousands of times a second."""
        now = time.monotonic()
        if now - self._warned.get(kind, -WARN_SECONDS) < WARN_SECONDS:
            return False
        self._warned[kind] = now
        return True
