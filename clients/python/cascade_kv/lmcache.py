"""LMCache's L2 in a rank: the adapter that the multiprocess server of LMCache loads as a plugin.

{"type": "plugin", "module_path": "cascade_kv.lmcache", "class_name": "CascadeL2Adapter", "adapter_params": {"socket": S}}

LMCache's L1 is memory of its server. Where that is shared memory (--shm-name) the rank maps it too and copies objects itself.
Where it is private, objects pass through memory that the adapter shares with the rank: one copy here, one in the rank.

LMCache's controllers submit tasks and wait for event descriptors. Nothing here makes them wait: each kind of task has a thread
and a connection of its own. What goes wrong is a failed store, a miss, or an object that is not loaded.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import lmcache
import numpy as np
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from . import Client, namespace, versions
from .lmcache_memory import Mover, mover

__all__ = ["CascadeL2Adapter"]

versions.check("lmcache", getattr(lmcache, "__version__", None))

logger = logging.getLogger("lmcache.cascade_kv")

LOOKUP_TIMEOUT = 2.0
JOB_TIMEOUT = 10.0
STAGING_BYTES = 128 << 20  # of each direction, if L1 is private


class _Lane:
    """A thread that does tasks of one kind in order. A task gives its answer itself, whatever happens."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"cascade-{name}", daemon=True)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                logger.exception("a task failed")
            del task  # it holds LMCache's objects

    def close(self) -> None:
        """Returns when all tasks given so far are done."""
        self._tasks.put(None)
        self._thread.join()


class CascadeL2Adapter(L2AdapterInterface):
    """A rank of CASCADE on this node as an L2 of LMCache.

    adapter_params: socket, the path of the rank's unix socket (required); namespace, text that separates what else equals, such
    as a revision of the weights; staging_mb, memory for each direction if L1 is private.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        if not isinstance(params.get("socket"), str) or not params["socket"]:
            raise ValueError('adapter_params needs "socket", the path of the rank\'s unix socket')
        self._socket: str = params["socket"]
        self._extra = str(params.get("namespace", ""))
        staging = int(params.get("staging_mb", STAGING_BYTES >> 20)) << 20
        if staging <= 0:
            raise ValueError("staging_mb must be positive")
        self._asker = Client(self._socket, timeout=LOOKUP_TIMEOUT, log=logger)
        self._out: Mover = mover(Client(self._socket, timeout=JOB_TIMEOUT, log=logger), l1_memory_desc, staging)
        self._in: Mover = mover(Client(self._socket, timeout=JOB_TIMEOUT, log=logger), l1_memory_desc, staging)
        logger.info("rank at %s, L1 %s", self._socket, self._out)
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._stored: dict[int, Any] = {}
        self._found: dict[int, Any] = {}
        self._loaded: dict[int, Any] = {}
        self._store_event, self._lookup_event, self._load_event = (create_event_notifier() for _ in range(3))
        self._store_lane, self._lookup_lane, self._load_lane = (_Lane(n) for n in ("store", "lookup", "load"))
        self._kinds: dict[tuple[str, int], tuple[str, int]] = {}  # model and group to what their objects are
        self._namespaces: dict[tuple[str, str, str], str] = {}
        self._closed = False

    def get_store_event_fd(self) -> int:
        return self._store_event.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookup_event.fileno()

    def get_load_event_fd(self) -> int:
        return self._load_event.fileno()

    # Storing

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        task = next(self._ids)
        self._store_lane.do(lambda: self._store(task, keys, objects))
        return task

    def _store(self, task: int, keys: list[Any], objects: list[Any]) -> None:
        good = np.zeros(len(keys), dtype=np.bool_)
        sizes = [o.get_size() for o in objects]
        try:
            for ns, some in self._sorted(keys, objects):
                good[some] = self._out.store(ns, [_name(keys[i]) for i in some], [objects[i] for i in some])
            if good.any():
                stored = np.flatnonzero(good).tolist()
                self._notify_keys_stored([keys[i] for i in stored], [sizes[i] for i in stored])
        finally:
            whole = bool(good.all())
            self._tell(self._stored, task, L2StoreResult(whole, sum(sizes) if whole else 0), self._store_event)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        with self._lock:
            done, self._stored = self._stored, {}
        return done

    # Looking up

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        task = next(self._ids)
        self._lookup_lane.do(lambda: self._lookup(task, keys, group_layout_descs))
        return task

    def _lookup(self, task: int, keys: list[Any], layouts: dict[int, Any]) -> None:
        """A hit needs no lock of its own: what a rank evicts goes a tier down, and an object that is gone all the same is one
        that is not loaded, which LMCache takes for a miss."""
        bits = Bitmap(len(keys))
        try:
            for ns, some in self._sorted(keys, None, layouts):
                hits = self._asker.contains(ns, [_name(keys[i]) for i in some])
                bits.batched_set([i for i, hit in zip(some, hits.tolist(), strict=True) if hit])
        finally:
            self._tell(self._found, task, bits, self._lookup_event)

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        with self._lock:
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Nothing to do, since nothing is locked."""

    # Loading

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        task = next(self._ids)
        self._load_lane.do(lambda: self._load(task, keys, objects))
        return task

    def _load(self, task: int, keys: list[Any], objects: list[Any]) -> None:
        bits = Bitmap(len(keys))
        try:
            loaded: list[int] = []
            for ns, some in self._sorted(keys, objects):
                good = self._in.load(ns, [_name(keys[i]) for i in some], [objects[i] for i in some])
                loaded += [i for i, ok in zip(some, good.tolist(), strict=True) if ok]
            bits.batched_set(loaded)
            if loaded:
                self._notify_keys_accessed([keys[i] for i in loaded])
        finally:
            self._tell(self._loaded, task, bits, self._load_event)

    def query_load_result(self, task_id: int) -> Any:
        with self._lock:
            return self._loaded.pop(task_id, None)

    # The rest

    def delete(self, keys: list[Any]) -> None:
        try:
            for ns, some in self._sorted(keys, None):
                self._asker.delete(ns, [_name(keys[i]) for i in some])
            self._notify_keys_deleted(keys, [self._kinds.get((k.model_name, k.object_group_id), ("", 0))[1] for k in keys])
        except Exception:
            logger.exception("deleting %d keys failed", len(keys))

    def report_status(self) -> dict[str, Any]:
        return {"is_healthy": self._asker.up, "type": type(self).__name__, "socket": self._socket, "l1": str(self._out)}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for lane in (self._store_lane, self._lookup_lane, self._load_lane):
            lane.close()
        self._out.close()
        self._in.close()
        self._asker.close()
        for event in (self._store_event, self._lookup_event, self._load_event):
            event.close()

    def _tell(self, where: dict[int, Any], task: int, result: Any, event: Any) -> None:
        with self._lock:
            # pop_completed_store_tasks takes the dictionary away and leaves a new one.
            (self._stored if event is self._store_event else where)[task] = result
        event.notify()

    def _sorted(self, keys: Sequence[Any], objects: Sequence[Any] | None, layouts: dict[int, Any] | None = None) -> list[tuple[str, list[int]]]:
        """Places in keys by namespace. Almost always there is one."""
        out: dict[str, list[int]] = {}
        last: Any = None
        for i, k in enumerate(keys):
            of = (k.model_name, k.cache_salt, k.object_group_id)
            if of != last or objects is not None and objects[i].get_size() != size:
                last = of
                if objects is not None:
                    size = objects[i].get_size()
                    self._kinds[k.model_name, k.object_group_id] = (_dtypes(objects[i]), size)
                some = out.setdefault(self._namespace(k, layouts), [])
            some.append(i)
        return list(out.items())

    def _namespace(self, key: Any, layouts: dict[int, Any] | None) -> str:
        """LMCache's keys name model, parallel rank and tokens, but not the type of the numbers.

        What the objects were that came last for this model and group decides, and before the first what LMCache announces: a
        serializer in between makes other objects than it announces.
        """
        kind = self._kinds.get((key.model_name, key.object_group_id))
        if kind is not None:
            dtypes = kind[0]
        else:
            layout = (layouts or {}).get(key.object_group_id)
            dtypes = _text(layout.dtypes) if layout is not None and layout.dtypes else "uint8"
        of = (key.model_name, key.cache_salt, dtypes)
        ns = self._namespaces.get(of)
        if ns is None:
            fields = {"engine": "lmcache", "model": key.model_name, "dtypes": dtypes, "salt": key.cache_salt, "extra": self._extra}
            ns = self._namespaces[of] = namespace(**{k: v for k, v in fields.items() if v})
        return ns


def _name(key: Any) -> bytes:
    return b"%08x%x@" % (key.kv_rank, key.object_group_id) + key.chunk_hash


def _dtypes(obj: Any) -> str:
    return _text(obj.meta.dtypes or [obj.meta.dtype])


def _text(dtypes: Sequence[Any]) -> str:
    return "+".join(str(d).removeprefix("torch.") for d in dtypes)
