"""How the blocks of a namespace are made: the fields of CASCADE's KVBlock that all blocks of one namespace share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .errors import ProtocolError

MAX_BYTES: Final = 512 << 20  # of a block
MAX_DTYPE: Final = 64  # bytes
_MAX_COUNT: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known of the blocks of a namespace. Zero, or an empty dtype, is: not known. ValueError: no blocks can have this layout."""

    bytes: int = 0  # of a whole block
    key_bytes: int = 0  # of them those of the keys, at the start; the rest are values
    tokens: int = 0  # of a whole block
    layers: int = 0
    heads: int = 0  # of keys and values, on this rank of a tensor-parallel group
    head_dim: int = 0  # elements of a head
    dtype: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.bytes <= MAX_BYTES:
            raise ValueError(f"blocks of {self.bytes} bytes: they have 0 to {MAX_BYTES}")
        if not 0 <= self.key_bytes <= self.bytes:
            raise ValueError(f"{self.key_bytes} bytes of keys in blocks of {self.bytes}")
        for name in ("tokens", "layers", "heads", "head_dim"):
            if not 0 <= getattr(self, name) <= _MAX_COUNT:
                raise ValueError(f"{name} of {getattr(self, name)}: 0 to {_MAX_COUNT}")
        if len(dtype_bytes(self)) > MAX_DTYPE:
            raise ValueError(f"a dtype of {len(dtype_bytes(self))} bytes: {MAX_DTYPE} at most")

    def keys_of(self, size: int) -> int | None:
        """How many bytes of a block of size bytes are keys: that share which they have of a whole block.

        None where that is not known, or no whole number.
        """
        if not self.bytes or not 0 <= size <= MAX_BYTES or size * self.key_bytes % self.bytes:
            return None
        return size * self.key_bytes // self.bytes


def dtype_bytes(layout: Layout) -> bytes:
    """The dtype as the rank has it, which may be any bytes."""
    return layout.dtype.encode("utf-8", "surrogateescape")


def parse(fields: Mapping[Any, Any]) -> Layout:
    """A layout out of the map that a rank answers with. Fields of later ranks are left out."""
    numbers = {name: fields.get(name.encode(), 0) for name in ("bytes", "key_bytes", "tokens", "layers", "heads", "head_dim")}
    try:
        return Layout(**numbers, dtype=fields.get(b"dtype", b"").decode("utf-8", "surrogateescape"))
    except (AttributeError, TypeError, ValueError) as e:
        raise ProtocolError(f"a layout that is none: {e}") from e
