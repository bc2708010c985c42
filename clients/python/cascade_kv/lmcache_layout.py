"""How LMCache's objects are made, as far as their metadata tells."""

from __future__ import annotations

from dataclasses import fields
from math import prod
from typing import Any

from .layout import MAX_DTYPE, Layout

__all__ = ["common", "layout_of"]


def layout_of(obj: Any) -> Layout:
    """The layout of an object. Its shapes are (2, layers, tokens, hidden), or without the 2 where keys and values are one (MLA).

    Heads and their size are in hidden together, so neither is known. Keys come first in an object of one shape, so their share is known. It
    is left out for an object of several shapes, each of which has keys and values, and for what a serializer made.
    """
    shapes = [tuple(s) for s in obj.meta.shapes or [obj.meta.shape]]
    dtypes = list(obj.meta.dtypes or [obj.meta.dtype])
    dtype = "+".join(dict.fromkeys(str(d).removeprefix("torch.") for d in dtypes))[:MAX_DTYPE]
    if any(len(s) not in (3, 4) or len(s) == 4 and s[0] not in (1, 2) for s in shapes):
        return Layout(dtype=dtype)
    tokens = {s[-2] for s in shapes}
    size = obj.get_size()
    halves = len(shapes) == 1 and len(shapes[0]) == 4 and shapes[0][0] == 2 and prod(shapes[0]) * dtypes[0].itemsize == size
    return Layout(
        bytes=size if halves else 0,
        key_bytes=size // 2 if halves else 0,
        tokens=tokens.pop() if len(tokens) == 1 else 0,
        layers=sum(s[-3] for s in shapes),
        dtype=dtype,
    )


def common(a: Layout, b: Layout) -> Layout:
    """What is true of both: LMCache keeps objects of different kinds in one namespace, those of groups of layers."""
    same = {f.name: getattr(a, f.name) for f in fields(Layout) if getattr(a, f.name) == getattr(b, f.name)}
    if "bytes" not in same:
        same.pop("key_bytes", None)
    return Layout(**same)
