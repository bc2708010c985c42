"""Pages of SGLang's host pools: where their bytes are, and how they get to memory that the rank reaches.

A *page* is what one pool keeps for page_size tokens; its *parts* are the pieces of memory that hold it. A pool is

- direct: one memfd. The rank copies between it and its arena, and no byte of a page passes through this process;
- gathered: other memory. Parts are copied to and from a memfd of the client's own, the *staging*;
- flat: it does not tell where its parts are and copies whole pages, which go through the staging too;
- logical: it has no bytes. Its page is one byte that says that the page was stored.

Pages and Carrier know nothing of keys' meaning or of SGLang's answers. Neither is safe for threads, but for what it says.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch

from . import Client, Layout, Region, memory
from .errors import RegionRefused
from .layout import MAX_DTYPE

# What one command moves at most: a rank that has gone is noticed between commands, and an answer comes well within its time.
COMMAND_BYTES: Final = 64 << 20
COMMAND_KEYS: Final = 1024
STAGING_BYTES: Final = 32 << 20
_SLOT: Final = 4096  # pages begin at multiples of this in the staging
# Classes of pools whose pages have two parts, keys and values, or two for each layer.
_KEYS_FIRST: Final = {"MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost"}


class Pages(Protocol):
    """The pages of one call, in the order of its keys."""

    page_bytes: int

    def __len__(self) -> int: ...

    def read(self, i: int, into: np.ndarray) -> None:
        """Copies page i to memory of page_bytes bytes."""

    def write(self, i: int, data: np.ndarray) -> None:
        """Copies page_bytes bytes to page i."""


class DirectPages:
    """Pages of a pool that is one memfd; extents is of shape (pages, parts, 2): offset and length in it."""

    def __init__(self, fd: int, extents: np.ndarray) -> None:
        self.fd, self.extents = fd, extents
        self.page_bytes = int(extents[0, :, 1].sum()) if len(extents) else 0

    def __len__(self) -> int:
        return len(self.extents)


class GatheredPages:
    """Pages at addresses in this process; parts is of shape (pages, parts, 2): address and length."""

    def __init__(self, parts: np.ndarray) -> None:
        self._parts = parts.tolist()
        self.page_bytes = int(parts[0, :, 1].sum()) if len(parts) else 0

    def __len__(self) -> int:
        return len(self._parts)

    def read(self, i: int, into: np.ndarray) -> None:
        at = into.ctypes.data
        for address, size in self._parts[i]:
            ctypes.memmove(at, address, size)  # gives up the interpreter's lock, as all of ctypes does
            at += size

    def write(self, i: int, data: np.ndarray) -> None:
        at = data.ctypes.data
        for address, size in self._parts[i]:
            ctypes.memmove(address, at, size)
            at += size


class TensorPages:
    """One CPU tensor a page, all of one size."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        sizes = {t.numel() * t.element_size() for t in tensors}
        if len(sizes) > 1:
            raise ValueError(f"pages of {sorted(sizes)} bytes in one call")
        self._tensors = tensors
        self.page_bytes = sizes.pop() if sizes else 0

    def __len__(self) -> int:
        return len(self._tensors)

    def read(self, i: int, into: np.ndarray) -> None:
        into[:] = _bytes(self._tensors[i])

    def write(self, i: int, data: np.ndarray) -> None:
        t = self._tensors[i]
        if t.is_contiguous():
            _bytes(t)[:] = data
        else:
            t.copy_(_tensor(data, t.dtype).reshape(t.shape))


class FlatPages:
    """Pages that the pool copies itself; starts are the indices of their first tokens."""

    def __init__(self, pool: Any, starts: Sequence[int], page_bytes: int) -> None:
        self._pool, self._starts, self.page_bytes = pool, starts, page_bytes

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, i: int, into: np.ndarray) -> None:
        into[:] = _bytes(self._pool.get_data_page(self._starts[i], flat=True))

    def write(self, i: int, data: np.ndarray) -> None:
        self._pool.set_from_flat_data_page(self._starts[i], _tensor(data, self._pool.dtype))


class LogicalPages:
    """Pages without bytes."""

    page_bytes = 1

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def read(self, i: int, into: np.ndarray) -> None:
        into[:] = 1

    def write(self, i: int, data: np.ndarray) -> None:
        pass


def _bytes(t: torch.Tensor) -> np.ndarray:
    """The tensor's own memory if it is contiguous, else a copy."""
    data: np.ndarray = t.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return data


def _tensor(data: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(data.copy()).view(dtype)


class HostPool:
    """A host pool of SGLang's, and what makes its pages different from another one's."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.page_size = int(getattr(pool, "logical_page_size", None) or pool.page_size)
        self.form = "parts"
        self._fd: int | None = None  # of the memfd that the whole pool is in
        self._base = 0  # where the memfd begins in this process
        self._end = 0
        self.part_sizes: list[int] = []
        self.page_bytes = 0
        self._examine()

    def _examine(self) -> None:
        first = range(self.page_size)
        try:
            parts = self._parts(torch.arange(self.page_size, dtype=torch.int64), 1)
        except Exception as e:  # of a pool that has no parts to tell, each class has its own exception
            self._examine_flat(e)
            return
        if parts is None:
            self.form, self.page_bytes = "logical", 1
            return
        self.part_sizes = parts[0, :, 1].tolist()
        self.page_bytes = sum(self.part_sizes)
        size = int(getattr(self.pool, "logical_size", None) or self.pool.size)
        last = self._parts(torch.arange(size - len(first), size, dtype=torch.int64), 1)
        self._fd, self._base, self._end = _memfd_around(self.pool, np.concatenate([parts, last]))

    def _examine_flat(self, why: Exception) -> None:
        try:
            page = self.pool.get_data_page(0, flat=True)
        except Exception:
            raise ValueError(f"{type(self.pool).__name__} gives its pages to no storage: {why}") from why
        self.form, self.page_bytes = "flat", page.numel() * page.element_size()

    def _parts(self, indices: torch.Tensor, pages: int) -> np.ndarray | None:
        meta = self.pool.get_page_buffer_meta(indices)
        if meta is None:
            return None
        pointers, sizes = meta
        if not pointers or len(pointers) % pages or len(sizes) != len(pointers):
            raise ValueError(f"{type(self.pool).__name__}: {len(pointers)} parts for {pages} pages")
        parts = np.empty((pages, len(pointers) // pages, 2), np.uint64)
        parts[:, :, 0] = np.asarray(pointers, np.uint64).reshape(pages, -1)
        parts[:, :, 1] = np.asarray(sizes, np.uint64).reshape(pages, -1)
        return parts

    @property
    def direct(self) -> bool:
        return self._fd is not None

    @property
    def fd(self) -> int | None:
        return self._fd

    def gather(self) -> None:
        """Takes the pool for one that is in no memfd: the rank refused it."""
        self._fd = None

    def pages(self, indices: torch.Tensor | None, count: int) -> Pages | DirectPages:
        """The pages whose tokens are at these indices, page_size for each. Raises ValueError if there are not as many."""
        got = 0 if indices is None else len(indices)
        if got != count * self.page_size:
            raise ValueError(f"{got} indices for {count} pages of {self.page_size} tokens")
        if self.form == "logical":
            return LogicalPages(count)
        assert indices is not None
        if self.form == "flat":
            return FlatPages(self.pool, indices[:: self.page_size].tolist(), self.page_bytes)
        parts = self._parts(indices, count)
        if parts is None or parts[0, :, 1].tolist() != self.part_sizes:
            raise ValueError(f"{type(self.pool).__name__}: its pages are no longer {self.part_sizes} bytes")
        if self._fd is None:
            return GatheredPages(parts)
        addresses = parts[:, :, 0]
        if addresses.min() < self._base or (addresses + parts[:, :, 1]).max() > self._end:
            return GatheredPages(parts)
        addresses -= np.uint64(self._base)
        return DirectPages(self._fd, parts)

    def fields(self) -> dict[str, str]:
        """What must be equal for pages of two pools to be exchanged. SGLang's page keys say none of it."""
        p = self.pool
        sizes = sorted(set(self.part_sizes))
        out = {"class": type(p).__name__, "layout": str(p.layout), "dtype": str(p.dtype), "page": str(self.page_size),
               "token": str(p.size_per_token), "bytes": str(self.page_bytes), "parts": f"{len(self.part_sizes)}x{sizes}"}
        for name in ("layer_num", "start_layer", "end_layer", "head_num", "head_dim", "v_head_dim", "kv_cache_dim"):
            value = getattr(p, name, None)
            if isinstance(value, int):
                out[name] = str(value)
        return out

    def layout(self) -> Layout:
        """How its pages are made, as far as it tells."""
        return layout_of(self.pool, self.part_sizes)


def layout_of(pool: Any, part_sizes: Sequence[int]) -> Layout:
    """How the pages of a pool are made whose parts have so many bytes.

    The share of the keys is known where all of them come first. It is left out where keys and values alternate by layer (layer_first),
    where they are one (MLA), where a page has more (scales), and for classes that are not listed here.
    """

    def number(name: str) -> int:
        value = getattr(pool, name, None)
        return value if isinstance(value, int) else 0

    keys_first = type(pool).__name__ in _KEYS_FIRST and len(part_sizes) == 2
    return Layout(
        bytes=sum(part_sizes) if keys_first else 0,
        key_bytes=part_sizes[0] if keys_first else 0,
        tokens=number("logical_page_size") or number("page_size"),
        layers=number("layer_num"),
        heads=number("head_num"),
        head_dim=number("head_dim") if number("v_head_dim") in (0, number("head_dim")) else 0,
        dtype=str(getattr(pool, "dtype", "")).removeprefix("torch.")[:MAX_DTYPE],
    )


def _memfd_around(pool: Any, parts: np.ndarray) -> tuple[int | None, int, int]:
    """The descriptor of the memfd that all of these parts are in, and where it begins and ends; None if there is none.

    The kernel's list of mappings tells where a descriptor's file is, whatever the pool and its allocator call it.
    """
    low, high = int(parts[:, :, 0].min()), int((parts[:, :, 0] + parts[:, :, 1]).max())
    candidates = [getattr(pool, "fd", None), *getattr(getattr(pool, "allocator", None), "fds", ())]
    for fd in candidates:
        if fd is None:
            continue
        try:
            st = os.fstat(fd)
        except OSError:
            continue
        for base in _mapped_at(st):
            if base <= low and high <= base + st.st_size:
                return fd, base, base + st.st_size
    return None, 0, 0


def _mapped_at(st: os.stat_result) -> set[int]:
    """The addresses that offset 0 of a file is mapped at, or would be."""
    device = f"{os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}"
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, offset, dev, inode, *_ = line.split(maxsplit=5)
            if dev == device and int(inode) == st.st_ino:
                found.add(int(span.split("-")[0], 16) - int(offset, 16))
    return found


class Staging:
    """A memfd that the rank has too."""

    def __init__(self, client: Client, size: int) -> None:
        self.size = size
        fd = os.memfd_create("cascade_staging", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            self.bytes = memory.map_file(fd, size, write=True)
            self.region = client.region(fd=fd)
        finally:
            os.close(fd)


class Carrier:
    """Moves pages over one client, one call at a time; others wait. Safe for threads.

    A call ends at the first command of which anything failed: SGLang uses the leading pages only.
    """

    def __init__(self, client: Client, log: logging.Logger) -> None:
        self.client = client
        self._log = log
        self._lock = threading.Lock()
        self._regions: dict[int, Region] = {}  # by the pool's descriptor
        self._staging: Staging | None = None

    def attach(self, pool: HostPool) -> None:
        """Makes the rank reach the pool's memfd, or the pool be gathered if the rank does not want it."""
        with self._lock:
            if pool.fd is None or pool.fd in self._regions:
                return
            try:
                self._regions[pool.fd] = self.client.region(fd=pool.fd)
            except RegionRefused as e:
                self._log.warning("the rank refuses the host pool (%s): its pages are copied once more", e)
                pool.gather()

    def store(self, ns: str, keys: Sequence[str], pages: Pages | DirectPages, parent: str | None) -> list[bool]:
        """True for each key whose page is stored."""
        with self._lock:
            if isinstance(pages, DirectPages):
                return self._direct(self.client.store, ns, keys, pages, parent)
            return self._staged_store(ns, keys, pages, parent)

    def load(self, ns: str, keys: Sequence[str], pages: Pages | DirectPages) -> list[bool]:
        """True for each key whose page was loaded; the other pages hold anything."""
        with self._lock:
            if isinstance(pages, DirectPages):
                return self._direct(self.client.load, ns, keys, pages, None)
            return self._staged_load(ns, keys, pages)

    def _direct(self, command: Any, ns: str, keys: Sequence[str], pages: DirectPages, parent: str | None) -> list[bool]:
        region, done = self._regions[pages.fd], [False] * len(keys)
        each = max(1, min(COMMAND_BYTES // max(1, pages.page_bytes), COMMAND_KEYS))
        chain: dict[str, Any] = {"chain": True} if command == self.client.store else {}
        for lo in range(0, len(keys), each):
            hi = min(lo + each, len(keys))
            if chain:
                chain["parent"] = parent
            status = command(ns, region, keys[lo:hi], pages.extents[lo:hi], **chain)
            done[lo:hi] = (status == 1).tolist()
            if not all(done[lo:hi]):
                break
            parent = keys[hi - 1]
        return done

    def _staged_store(self, ns: str, keys: Sequence[str], pages: Pages, parent: str | None) -> list[bool]:
        done = [False] * len(keys)
        for lo, hi, staging, extents in self._slots(len(keys), pages.page_bytes):
            for i in range(lo, hi):
                pages.read(i, _slot(staging, extents[i - lo]))
            status = self.client.store(ns, staging.region, keys[lo:hi], extents, parent=parent, chain=True)
            done[lo:hi] = (status == 1).tolist()
            if not all(done[lo:hi]):
                break
            parent = keys[hi - 1]
        return done

    def _staged_load(self, ns: str, keys: Sequence[str], pages: Pages) -> list[bool]:
        done = [False] * len(keys)
        for lo, hi, staging, extents in self._slots(len(keys), pages.page_bytes):
            status = self.client.load(ns, staging.region, keys[lo:hi], extents)
            for i in range(lo, hi):
                if status[i - lo] == 1:
                    pages.write(i, _slot(staging, extents[i - lo]))
                    done[i] = True
            if not all(done[lo:hi]):
                break
        return done

    def _slots(self, count: int, page_bytes: int) -> Any:
        """The batches of a call: first page, last page, the staging, and the extents in it."""
        stride = -(-page_bytes // _SLOT) * _SLOT
        if count == 0 or stride == 0:
            return
        if self._staging is None or self._staging.size < stride:
            if self._staging is not None:
                self._staging.region.detach()
            self._staging = Staging(self.client, max(STAGING_BYTES, stride))
        each = min(self._staging.size // stride, COMMAND_KEYS)
        for lo in range(0, count, each):
            hi = min(lo + each, count)
            extents = np.empty((hi - lo, 1, 2), np.uint64)
            extents[:, 0, 0] = np.arange(hi - lo, dtype=np.uint64) * np.uint64(stride)
            extents[:, 0, 1] = page_bytes
            yield lo, hi, self._staging, extents

    def close(self) -> None:
        with self._lock:
            self.client.close()
            self._staging = None
            self._regions.clear()


def _slot(staging: Staging, extent: np.ndarray) -> np.ndarray:
    offset, size = int(extent[0, 0]), int(extent[0, 1])
    return staging.bytes[offset : offset + size]
