"""CASCADE's StorageAdapter (paper, III-G): the interface behind which its evaluation compares stores, and the rank behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from . import ops
from .client import Client
from .layout import Layout


class StorageAdapter(ABC):
    """What a store of KV blocks must do to be compared. Blocks are named by what engines ask for, and have two parts."""

    @abstractmethod
    def initialize(self, config: Mapping[str, Any]) -> bool:
        """Whether the store can be used now."""

    @abstractmethod
    def put(self, key: str, key_data: Any, value_data: Any) -> bool:
        """Whether the block is stored. Both parts are anything with bytes in one piece."""

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, bytes] | None:
        """Both parts, copied, or None."""

    @abstractmethod
    def contains(self, key: str) -> bool: ...

    @abstractmethod
    def clear(self) -> None:
        """Deletes all blocks of this adapter."""

    def layout(self) -> Layout | None:
        """How the blocks are made, or None from a store that does not keep it."""
        return None


class CascadeAdapter(StorageAdapter):
    """The rank of this node. A block is key_data and then value_data, and its id that of the two together.

    Which share of a block is key_data is part of the namespace's layout, which the rank keeps. The first put declares it, as that block has
    it, and with the same share all other blocks are put and taken apart. It stays when the blocks are cleared: another share needs another
    namespace, or Client.set_layout before adapters are initialized. Blocks of a namespace without a layout are two halves.

    A rank that ends before it has written a layout to its cold tier forgets it, but not always the blocks; the next put declares it again.
    Until then readers take blocks for halves: where they are not, and that matters, give key_bytes.

    Configuration: "socket"; "namespace" (default "storage"); "timeout" in seconds; "password_file" if the rank wants a password;
    "server_uids" if it is of another user; "key_bytes", the bytes of every block's key_data, overrides the layout: then all who read
    the namespace need it too, unless its blocks are of one size.
    """

    def __init__(self) -> None:
        self._client: Client | None = None
        self._ns = ""
        self._key_bytes: int | None = None
        self._layout: Layout | None = None  # of the namespace, once its share of keys is known

    def initialize(self, config: Mapping[str, Any]) -> bool:
        self.close()
        who = {name: config.get(name) for name in ("password_file", "server_uids")}
        self._client = Client(str(config["socket"]), timeout=float(config.get("timeout", 5.0)), **who)
        self._ns = str(config.get("namespace", "storage"))
        self._key_bytes = config.get("key_bytes")
        self._layout = None
        return self._client.up

    def put(self, key: str, key_data: Any, value_data: Any) -> bool:
        """As StorageAdapter.put. ValueError if key_data is another share of the block than the namespace has."""
        k, v = memoryview(key_data).cast("B"), memoryview(value_data).cast("B")
        size = k.nbytes + v.nbytes
        if self._key_bytes is not None and k.nbytes != min(self._key_bytes, size):
            raise ValueError(f"key_data of {k.nbytes} bytes in a block of {size}: key_bytes was {self._key_bytes} when initializing")
        if self._layout is not None:
            self._open._declare(self._ns, self._layout)  # a rank that was started again may have lost it
        layout = self._known(Layout(bytes=size, key_bytes=k.nbytes))
        if self._key_bytes is None:
            if layout is None:
                return False
            if k.nbytes != _keys_of(layout, size):
                raise ValueError(f"key_data of {k.nbytes} bytes in a block of {size}: {self._remedy(layout)}")
        return self._open.put(self._ns, key, b"".join((k, v)))

    def get(self, key: str) -> tuple[bytes, bytes] | None:
        """As StorageAdapter.get. None also for a block that the namespace's layout can not divide: it was put by other means."""
        block = self._open.get(self._ns, key)
        if block is None:
            return None
        n = self._split(len(block))
        return None if n is None else (block[:n], block[n:])

    def contains(self, key: str) -> bool:
        return bool(self._open.contains(self._ns, [key])[0])

    def clear(self) -> None:
        self._open.clear(self._ns)

    def layout(self) -> Layout | None:
        """The namespace's, as the rank has it. None also where nobody declared one, and from a rank that is away."""
        return self._open.layout(self._ns)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _split(self, size: int) -> int | None:
        """How many bytes of a block are key_data. Asked for after the block came, for a layout is declared before blocks are put."""
        if self._key_bytes is not None:
            return min(self._key_bytes, size)
        layout = self._known()
        return None if layout is None else _keys_of(layout, size)

    def _known(self, first: Layout = Layout()) -> Layout | None:
        """The namespace's layout, or None without an answer. Where it does not say the share of the keys yet, first does so.

        The rank is asked until it has the share, which stays the same then.
        """
        if self._layout is not None:
            return self._layout
        nothing: Layout | None = None
        layout = self._open._run(lambda s: ops.share_layout(s, self._ns, first), nothing)
        if layout is not None and layout.bytes:
            self._layout = layout
        return layout

    def _remedy(self, layout: Layout) -> str:
        by_key_bytes = "say so by key_bytes when initializing, here and wherever blocks are read"
        if not layout.bytes:
            return f"the rank keeps no layout of namespace {self._ns}, so readers would take half of the block; {by_key_bytes}"
        return f"in namespace {self._ns} it is {layout.key_bytes} of {layout.bytes}; use another namespace, or {by_key_bytes}"

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise ValueError("not initialized")
        return self._client


def _keys_of(layout: Layout, size: int) -> int | None:
    """As Layout.keys_of, but half of the block where the layout does not say it."""
    return layout.keys_of(size) if layout.bytes else size // 2
