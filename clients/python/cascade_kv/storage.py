"""CASCADE's StorageAdapter (paper, III-G): the interface behind which its evaluation compares stores, and the rank behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from .client import Client


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


class CascadeAdapter(StorageAdapter):
    """The rank of this node. A block is key_data and then value_data, and its id that of the two together.

    Configuration: "socket"; "namespace" (default "storage"); "key_bytes", the bytes of every block's key_data (default: half of
    the block); "timeout" in seconds; "password_file" if the rank wants a password; "server_uids" if it is of
    another user.
    """

    def __init__(self) -> None:
        self._client: Client | None = None
        self._ns = ""
        self._key_bytes: int | None = None

    def initialize(self, config: Mapping[str, Any]) -> bool:
        self.close()
        who = {name: config.get(name) for name in ("password_file", "server_uids")}
        self._client = Client(str(config["socket"]), timeout=float(config.get("timeout", 5.0)), **who)
        self._ns = str(config.get("namespace", "storage"))
        self._key_bytes = config.get("key_bytes")
        return self._client.up

    def put(self, key: str, key_data: Any, value_data: Any) -> bool:
        k, v = memoryview(key_data).cast("B"), memoryview(value_data).cast("B")
        if k.nbytes != self._split(k.nbytes + v.nbytes):
            raise ValueError(f"key_data of {k.nbytes} bytes in a block of {k.nbytes + v.nbytes}: say so by key_bytes when initializing")
        return self._open.put(self._ns, key, b"".join((k, v)))

    def get(self, key: str) -> tuple[bytes, bytes] | None:
        block = self._open.get(self._ns, key)
        if block is None:
            return None
        n = self._split(len(block))
        return block[:n], block[n:]

    def contains(self, key: str) -> bool:
        return bool(self._open.contains(self._ns, [key])[0])

    def clear(self) -> None:
        self._open.clear(self._ns)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _split(self, size: int) -> int:
        return size // 2 if self._key_bytes is None else min(self._key_bytes, size)

    @property
    def _open(self) -> Client:
        if self._client is None:
            raise ValueError("not initialized")
        return self._client
