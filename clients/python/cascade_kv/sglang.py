"""CASCADE as a storage backend of SGLang's hierarchical cache (HiCache).

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
      '{"backend_name":"cascade","module_path":"cascade_kv.sglang","class_name":"CascadeHiCache",
        "interface_v1":1,"allocator":"shm","socket":"/path/of/the/rank.sock"}'

SGLang trusts its backend: it compares no bytes, and what it does with an answer is decided by its form. So here
- a page is said to be loaded only if the rank said so, and the rank compares checksums while it copies;
- lists have an entry for each key, whatever happens: SGLang takes an empty list for success;
- nothing but the constructor raises. A rank that is away is a rank that has nothing.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

from . import Client, Layout, namespace, versions, weights
from .sglang_pages import Carrier, DirectPages, HostPool, LogicalPages, Pages, TensorPages, layout_of
from .worth import SETTING, Worth

versions.check("sglang")

_log = logging.getLogger(__name__)

# Goes up when pages of an earlier version of this file must not be read.
_FORMAT: Final = "1"
_KV: Final = PoolName.KV.value
_KNOWN: Final = {"backend_name", "module_path", "class_name", "interface_v1", "allocator", "socket", "timeout", "tenant", "password_file",
                 "server_uids", SETTING}
_QUIET_SECONDS: Final = 60.0
# Pools that are cut by attention head, on every rank of tensor parallelism its own part, even beside KV that all ranks have whole.
_SHARDED: Final = {"MHATokenToKVPoolHost", "MHATokenToKOnlyPoolHost", "MambaPoolHost"}


def _harmless(otherwise: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Methods that answer otherwise(their arguments) instead of raising."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: CascadeHiCache, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as e:
                self._complain(method.__name__, e)
                return otherwise(*args, **kwargs)

        return call

    return wrap


def _no(keys: Sequence[str], *_: Any, **__: Any) -> list[bool]:
    return [False] * len(keys)


def _no_pages(keys: Sequence[str], *_: Any, **__: Any) -> list[None]:
    return [None] * len(keys)


def _no_transfers(transfers: Sequence[PoolTransfer] | None, *_: Any, **__: Any) -> dict[str, list[bool]]:
    return {t.name: [False] * len(t.keys or ()) for t in transfers or ()}


class CascadeHiCache(HiCacheStorage):  # type: ignore[misc]  # SGLang has no types to check against
    """Pages of SGLang's host pools in a rank of CASCADE. SGLang calls it from several threads at a time.

    One connection looks pages up, one reads and one writes, so that a backup never makes a request wait.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = dict(storage_config.extra_config or {})
        socket = extra.get("socket")
        if not isinstance(socket, str) or not socket:
            raise ValueError('CascadeHiCache: the extra config has no "socket": give the path of the rank\'s unix socket')
        _refuse(storage_config)
        timeout = float(extra.get("timeout", 5.0))
        if not timeout > 0:
            raise ValueError(f'CascadeHiCache: "timeout": {timeout:g} is no number of seconds above 0')
        unknown = sorted(set(extra) - _KNOWN)
        if unknown:
            _log.warning("CascadeHiCache takes no notice of %s in the extra config", ", ".join(unknown))
        self._config = storage_config
        self._said: dict[str, float] = {}
        self._identity = _identity(storage_config, str(extra.get("tenant", "")))
        client = functools.partial(Client, socket, timeout=timeout, log=_log, password_file=extra.get("password_file"),
                                   server_uids=extra.get("server_uids"))
        self._look = client()
        self._worth = Worth(extra.get(SETTING))
        self._reader = Carrier(client(), _log)
        self._writer = Carrier(client(), _log)
        self._pools: dict[str, tuple[HostPool, str]] = {}  # by name: the pool and its pages' namespace
        self._flat = ""  # the namespace of KV pages in the plain interface, once the pool is known
        self._layouts: dict[str, Layout] = {}  # by namespace
        self._metrics = _Metrics() if storage_config.enable_storage_metrics else None

    # Registration

    @_harmless(lambda *_, **__: None)
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._register(_KV, mem_pool_host)

    @_harmless(lambda *_, **__: None)
    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(_name(host_pool_name), host_pool)

    def on_host_pools_registered(self) -> None:
        """Pools are taken as they come; some come later than this."""

    def _register(self, name: str, pool: Any) -> None:
        known = self._pools.get(name)
        if known is not None and known[0].pool is pool:
            return
        if name == _KV:
            self._flat = self._namespace(name, pool, {**_geometry(pool), "form": "flat"})
            self._layouts[self._flat] = layout_of(pool, _flat_parts(pool))
        taken = HostPool(pool)
        for carrier in (self._reader, self._writer):
            carrier.attach(taken)
        ns = self._namespace(name, pool, {**taken.fields(), "form": taken.form})
        self._pools[name] = (taken, ns)
        self._layouts[ns] = taken.layout()
        way = "copied by the rank itself" if taken.direct else 'copied twice: "allocator":"shm" in the inline extra config saves one'
        if taken.form == "logical":
            way = "marks without bytes"
        _log.info("CASCADE: pages of pool %s, %d bytes each, are %s (namespace %s)", name, taken.page_bytes, way, ns)

    def _namespace(self, name: str, pool: Any, fields: dict[str, str]) -> str:
        c = self._config
        whole = c.is_mla_model and not any(base.__name__ in _SHARDED for base in type(pool).__mro__)
        tp = "whole" if whole else f"{c.tp_rank}of{c.tp_size}"
        return namespace(**self._identity, **fields, pool=name, tp=tp)

    # Look-up

    @_harmless(lambda *_, **__: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many leading pages are stored, and worth loading."""
        return self._worthy(keys)

    @_harmless(lambda *_, **__: False)
    def exists(self, key: str) -> bool:
        return self._leading(self._kv_namespace(), [key]) == 1

    @_harmless(lambda *_, **__: PoolTransferResult.empty())
    def batch_exists_v2(
        self, keys: list[str], pool_transfers: list[PoolTransfer] | None = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """The longest prefix that every pool can give, and all shorter ones that it could be cut to."""
        pages = self._worthy(keys)
        hits = {PoolName.KV: pages} if pages else {}
        lengths = set(range(1, pages + 1))
        for t in pool_transfers or ():
            if not lengths:
                break
            pool = self._pools.get(_name(t.name))
            restorable = set() if pool is None else self._restorable(t, pool[1], keys[:pages])
            if restorable is None:
                continue
            if restorable:
                hits[t.name] = max(restorable)
            lengths &= restorable
        return PoolTransferResult(max(lengths, default=0), hits, sorted(lengths))

    def _restorable(self, t: PoolTransfer, ns: str, keys: list[str]) -> set[int] | None:
        """The lengths of prefixes of these keys for which the pool has what it needs; None if the pool has no say."""
        if t.hit_policy == PoolHitPolicy.ALL_PAGES:
            return set(range(1, self._leading(ns, keys) + 1))
        if t.hit_policy != PoolHitPolicy.TRAILING_PAGES:
            return None
        tail, run, lengths = max(1, len(t.keys or ())), 0, set()
        for i, here in enumerate(self._look.contains(ns, keys).tolist()):
            run = run + 1 if here else 0
            if run >= min(tail, i + 1):
                lengths.add(i + 1)
        return lengths

    def _leading(self, ns: str, keys: Sequence[str]) -> int:
        if not keys:
            return 0
        return max(0, min(int(self._look.probe(ns, keys).hits), len(keys)))

    def _worthy(self, keys: Sequence[str]) -> int:
        ns = self._kv_namespace()
        return max(0, min(self._worth.leading(self._look, ns, keys, self._layouts.get(ns)), len(keys))) if keys else 0

    def _kv_namespace(self) -> str:
        """Where the interface that SGLang was told to use keeps KV pages."""
        return self._pools[_KV][1] if (self._config.extra_config or {}).get("interface_v1") else self._flat

    # Interface v1: pages are where SGLang's indices say

    @_harmless(_no)
    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._load(_KV, keys, host_indices)

    @_harmless(_no)
    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._store(_KV, keys, host_indices, extra_info)

    # Interface v2: pools by name

    @_harmless(_no_transfers)
    def batch_get_v2(self, transfers: list[PoolTransfer], extra_info: Any = None) -> dict[str, list[bool]]:
        return {t.name: self._each(self._load, t) for t in transfers or ()}

    @_harmless(_no_transfers)
    def batch_set_v2(self, transfers: list[PoolTransfer], extra_info: Any = None) -> dict[str, list[bool]]:
        return {t.name: self._each(self._store, t, extra_info) for t in transfers or ()}

    def _each(self, move: Callable[..., list[bool]], t: PoolTransfer, *more: Any) -> list[bool]:
        """One transfer. What is wrong with it does not touch the others."""
        try:
            return move(_name(t.name), t.keys or [], t.host_indices, *more)
        except Exception as e:
            self._complain(f"pool {_name(t.name)}", e)
            return [False] * len(t.keys or ())

    def _load(self, name: str, keys: list[str], indices: torch.Tensor | None) -> list[bool]:
        if not keys:
            return []
        pool, ns = self._pools[name]
        start = time.perf_counter()
        done = self._reader.load(ns, keys, pool.pages(indices, len(keys)))
        self._count("prefetch", sum(done), pool.page_bytes, start)
        return done

    def _store(self, name: str, keys: list[str], indices: torch.Tensor | None, extra_info: Any = None) -> list[bool]:
        if not keys:
            return []
        pool, ns = self._pools[name]
        start = time.perf_counter()
        done = self._write(ns, keys, pool.pages(indices, len(keys)), _parent(extra_info))
        self._count("backup", sum(done), pool.page_bytes, start)
        return done

    def _write(self, ns: str, keys: list[str], pages: Pages | DirectPages, parent: str | None) -> list[bool]:
        layout = self._layouts.get(ns)
        if layout is not None:
            self._writer.client._declare(ns, layout)  # once for a connection
        return self._writer.store(ns, keys, pages, parent)

    # The plain interface: SGLang copies pages itself, and gives and takes them as tensors

    @_harmless(_no_pages)
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        """The tensors of target_locations, filled; None for each page that is not stored."""
        if not keys or not self._flat or target_locations is None or len(target_locations) != len(keys):
            return [None] * len(keys)
        start, pages = time.perf_counter(), _tensor_pages(target_locations)
        done = self._reader.load(self._flat, keys, pages)
        self._count("prefetch", sum(done), pages.page_bytes, start)
        return [t if ok else None for t, ok in zip(target_locations, done)]

    @_harmless(lambda *_, **__: False)
    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        """Whether all pages are stored. Values may be views of the host pool: nothing reads them after the answer."""
        if not self._flat or values is None or len(values) != len(keys):
            return False
        start, pages = time.perf_counter(), _tensor_pages(values)
        done = self._write(self._flat, keys, pages, None)
        self._count("backup", sum(done), pages.page_bytes, start)
        return all(done)

    @_harmless(lambda *_, **__: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location])[0]

    @_harmless(lambda *_, **__: False)
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return bool(self.batch_set([key], [value]))

    # The rest

    @_harmless(lambda *_, **__: False)
    def clear(self) -> bool:
        """Deletes this engine's pages: its namespaces, those of this rank of tensor parallelism."""
        spaces = {ns for _, ns in self._pools.values()} | {self._flat} - {""}
        cleared = [self._look.clear(ns) for ns in sorted(spaces)]
        return all(cleared)

    @_harmless(lambda *_, **__: None)
    def get_stats(self) -> Any:
        """What was moved since the last call, as SGLang's metrics want it; None if metrics are off."""
        return None if self._metrics is None else self._metrics.take()

    @_harmless(lambda *_, **__: None)
    def close(self) -> None:
        """Ends the connections. Later calls answer that there is nothing."""
        for part in (self._look, self._reader, self._writer):
            part.close()

    def _count(self, kind: str, pages: int, page_bytes: int, start: float) -> None:
        if self._metrics is not None and pages:
            self._metrics.add(kind, pages, page_bytes, time.perf_counter() - start)

    def _complain(self, what: str, error: Exception) -> None:
        """Says so in the log, with the place once and then at most once a minute for each kind of error."""
        kind, now = f"{what}: {type(error).__name__}", time.monotonic()
        last = self._said.get(kind)
        if last is None or now - last >= _QUIET_SECONDS:
            self._said[kind] = now
            _log.warning("CASCADE, %s: %r: taken for a miss", what, error, exc_info=error if last is None else None)


class _Metrics:
    """Pages and GB/s of each call since they were last asked for."""

    def __init__(self) -> None:
        from sglang.srt.observability.metrics_collector import StorageMetrics

        self._new = StorageMetrics
        self._now = StorageMetrics()

    def add(self, kind: str, pages: int, page_bytes: int, seconds: float) -> None:
        now = self._now
        getattr(now, f"{kind}_pgs").append(pages)
        getattr(now, f"{kind}_bandwidth").append(pages * page_bytes / max(seconds, 1e-9) / 1e9)

    def take(self) -> Any:
        taken, self._now = self._now, self._new()
        return taken


def _name(pool: Any) -> str:
    return str(getattr(pool, "value", pool))


def _tensor_pages(tensors: Sequence[torch.Tensor]) -> Pages:
    pages = TensorPages(tensors)
    return pages if pages.page_bytes else LogicalPages(len(tensors))


def _parent(extra_info: Any) -> str | None:
    """The page before the first of a call. SGLang tells it only with hicache_storage_pass_prefix_keys."""
    before = getattr(extra_info, "prefix_keys", None)
    return before[-1] if before else None


def _geometry(pool: Any) -> dict[str, str]:
    """HostPool.fields of a pool whose parts are not asked for: SGLang copies the pages."""
    out = {"class": type(pool).__name__}
    for field, name in (("layout", "layout"), ("dtype", "dtype"), ("page", "page_size"), ("token", "size_per_token"),
                        ("layer_num", "layer_num"), ("start_layer", "start_layer"), ("end_layer", "end_layer"),
                        ("head_num", "head_num"), ("head_dim", "head_dim")):
        out[field] = str(getattr(pool, name, ""))
    return out


def _flat_parts(pool: Any) -> list[int]:
    """The bytes of the keys and of the values of a page that SGLang copies, where they are known to come one after the other: in every
    layout of this class, for keys or values is the first dimension of its buffer.
    """
    if type(pool).__name__ != "MHATokenToKVPoolHost":
        return []
    return [int(pool.page_size) * int(pool.size_per_token) // 2] * 2


def _refuse(config: HiCacheStorageConfig) -> None:
    if config.dcp_size > 1:
        raise ValueError(
            f"CascadeHiCache does not store the shards of decode context parallelism (size {config.dcp_size}): "
            "start SGLang without it, or with another storage backend"
        )
    if config.should_split_heads:
        raise ValueError(
            f"CascadeHiCache does not split pages by heads (tp_lcm_size {config.tp_lcm_size} with tensor parallelism {config.tp_size} "
            "and layout page_head): remove tp_lcm_size from the extra config"
        )


def _identity(config: HiCacheStorageConfig, tenant: str) -> dict[str, str]:
    """What the KV of all pools depends on. SGLang's page keys are hashes of tokens and of the request's cache salt alone."""
    out = {
        "engine": "sglang", "format": _FORMAT, "model": config.model_name or "", "tenant": tenant,
        "pp": f"{config.pp_rank}of{config.pp_size}", "cp": f"{config.attn_cp_rank}of{config.attn_cp_size}",
    }
    try:
        from sglang.srt.runtime_context import get_server_args

        args = get_server_args()
        # Pools of 8-bit floats say uint8, whichever float it is.
        for name in ("revision", "quantization", "kv_cache_dtype", "load_format"):
            out[name] = str(getattr(args, name, None))
        out["weights"] = weights.fingerprint(args.model_path)
    except Exception as e:  # outside an engine there are no arguments
        _log.warning("CASCADE: SGLang does not tell its arguments (%r): pages are told apart by the served model name", e)
    return out
