"""LMCache's L2 in a rank: the adapter that the multiprocess server of LMCache loads as a plugin.

{"type": "plugin", "module_path": "cascade_kv.lmcache", "class_name": "CascadeL2Adapter", "adapter_params": {"socket": S}}

LMCache's L1 is memory of its server. Where that is shared memory (--shm-name) the rank maps it too and copies objects itself.
Where it is private, the adapter copies them into the rank's arena and out of it: one copy all the same, but in this process.

LMCache's controllers submit tasks and wait for event descriptors. Nothing here makes them wait: each kind of task has a thread
and a connection of its own. What goes wrong is a failed store, a miss, or an object that is not loaded.
"""

from __future__ import annotations

import functools
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
from numpy.typing import NDArray

from . import Client, Layout, namespace, versions
from .lmcache_chains import Chains
from .lmcache_layout import common, layout_of
from .lmcache_memory import Mover, mover
from .worth import SETTING, Worth

__all__ = ["CascadeL2Adapter"]

versions.check("lmcache", getattr(lmcache, "__version__", None))

logger = logging.getLogger("lmcache.cascade_kv")

QUICK_TIMEOUT = 0.05  # the longest that a controller of LMCache is kept, and then not again for a while
LOOKUP_TIMEOUT = 2.0
JOB_TIMEOUT = 10.0


class _Lane:
    """A thread that does tasks of one kind in order, their results, and the descriptor that tells of them."""

    def __init__(self, name: str) -> None:
        self._event = create_event_notifier()
        self._lock = threading.Lock()
        self._results: dict[int, Any] = {}
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], int, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"cascade-{name}", daemon=True)
        self._thread.start()

    def do(self, number: int, task: Callable[[], Any], failed: Any) -> int:
        """Does the task later. Its result, or failed if it raises, can be taken under this number."""
        self._tasks.put((task, number, failed))
        return number

    def _run(self) -> None:
        while (entry := self._tasks.get()) is not None:
            task, number, result = entry
            try:
                result = task()
            except Exception:
                logger.exception("a task failed")
            del entry, task  # they hold LMCache's objects
            self.put(number, result)

    def put(self, number: int, result: Any) -> int:
        """The result of a task that needed no thread."""
        with self._lock:
            self._results[number] = result
        self._event.notify()
        return number

    def take(self, number: int) -> Any:
        """The result, once; None as long as there is none."""
        with self._lock:
            return self._results.pop(number, None)

    def take_all(self) -> dict[int, Any]:
        with self._lock:
            results, self._results = self._results, {}
        return results

    def fileno(self) -> int:
        return int(self._event.fileno())

    def close(self) -> None:
        """Returns when all tasks given so far are done."""
        self._tasks.put(None)
        self._thread.join()
        self._event.close()


class CascadeL2Adapter(L2AdapterInterface):
    """A rank of CASCADE on this node as an L2 of LMCache.

    adapter_params: socket, the path of the rank's unix socket (required); tenant, any text: servers with
    different ones share nothing; password_file, if the rank wants a password; server_uids, if the rank is of another user;
    prefill_tokens_per_second, how fast the engine computes: chunks that it computes faster than they are loaded are not offered.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        if not isinstance(params.get("socket"), str) or not params["socket"]:
            raise ValueError('adapter_params needs "socket", the path of the rank\'s unix socket')
        self._socket: str = params["socket"]
        self._tenant = str(params.get("tenant", ""))
        who: dict[str, Any] = {name: params.get(name) for name in ("password_file", "server_uids")}
        client = functools.partial(Client, self._socket, log=logger, **who)
        self._quick = client(timeout=QUICK_TIMEOUT)
        self._asker = client(timeout=LOOKUP_TIMEOUT)
        self._out: Mover = mover(client(timeout=JOB_TIMEOUT), l1_memory_desc, stores=True)
        self._in: Mover = mover(client(timeout=JOB_TIMEOUT), l1_memory_desc, stores=False)
        logger.info("rank at %s, L1 %s", self._socket, self._out)
        self._ids = itertools.count(1)
        self._storing, self._looking, self._loading = (_Lane(n) for n in ("store", "lookup", "load"))
        self._kinds: dict[tuple[str, int], tuple[str, int]] = {}  # model and group to what their objects are
        self._namespaces: dict[tuple[str, str, str], str] = {}
        self._layouts: dict[str, Layout] = {}  # by namespace
        self._worth = Worth(params.get(SETTING))
        self._chains = Chains()
        self._closed = False

    def get_store_event_fd(self) -> int:
        return self._storing.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._looking.fileno()

    def get_load_event_fd(self) -> int:
        return self._loading.fileno()

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._storing.do(next(self._ids), lambda: self._store(keys, objects), L2StoreResult(False, 0))

    def _store(self, keys: list[Any], objects: list[Any]) -> Any:
        good = np.zeros(len(keys), dtype=np.bool_)
        for ns, some in self._by_namespace(keys, objects):
            names = [_name(keys[i]) for i in some]
            self._declare(ns, objects[some[0]])
            for run in self._chains.runs(names):
                of = [some[j] for j in run.places]
                good[of] = self._out.store(ns, [names[j] for j in run.places], [objects[i] for i in of], run.parent, run.chain)
        sizes = [o.get_size() for o in objects]
        stored = np.flatnonzero(good).tolist()
        if stored:
            self._notify_keys_stored([keys[i] for i in stored], [sizes[i] for i in stored])
        whole = len(stored) == len(keys)
        return L2StoreResult(whole, sum(sizes) if whole else 0)

    def _declare(self, ns: str, obj: Any) -> None:
        """Has the rank know how objects of the namespace are made, once for a connection, and again when other ones come."""
        try:
            seen, known = layout_of(obj), self._layouts.get(ns)
            layout = seen if known is None or known == seen else common(known, seen)
            self._layouts[ns] = layout
            self._asker._declare(ns, layout)
        except Exception:
            logger.debug("the layout of %s is not declared", ns, exc_info=True)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return self._storing.take_all()

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        """Asked at once, and only if the rank takes long, again by the thread: the way there and back costs more than the answer."""
        number = next(self._ids)
        try:
            found = self._lookup(self._quick, keys, group_layout_descs)
            if found is not None:
                return self._looking.put(number, found)
        except Exception:
            logger.exception("a look-up failed")
        return self._looking.do(number, lambda: self._look_again(keys, group_layout_descs), Bitmap(len(keys)))

    def _look_again(self, keys: list[Any], layouts: dict[int, Any]) -> Any:
        found = self._lookup(self._asker, keys, layouts)
        return Bitmap(len(keys)) if found is None else found

    def _lookup(self, asker: Client, keys: list[Any], layouts: dict[int, Any]) -> Any:
        """The hits, or None without an answer.

        A hit needs no lock of its own: what a rank evicts goes a tier down, and an object that is gone all the same is one
        that is not loaded, which LMCache takes for a miss.
        """
        bits = Bitmap(len(keys))
        for ns, some in self._by_namespace(keys, None, layouts):
            names = [_name(keys[i]) for i in some]
            answer = _contains(asker, ns, names)
            if answer is None:
                return None
            hits = answer.tolist()
            worthy = self._worthy(asker, ns, [keys[i] for i in some], names, hits)
            bits.batched_set([i for i, hit in zip(some[:worthy], hits, strict=False) if hit])
            if not all(hits):
                self._learn([keys[i] for i in some], names, hits)
        return bits

    def _worthy(self, asker: Client, ns: str, keys: list[Any], names: list[bytes], hits: list[bool]) -> int:
        """How many of these to offer, from the first on. Where a prompt is in several parts, all are: it takes all parts to load it."""
        layout = self._layouts.get(ns)
        if not (hits[0] or self._worth.learns) or not self._worth.judges or len({(k.kv_rank, k.object_group_id) for k in keys}) > 1:
            return len(keys)
        return self._worth.leading(asker, ns, names, layout)

    def _learn(self, keys: list[Any], names: list[bytes], hits: list[bool]) -> None:
        """A prompt's chunks are looked for head first, each in the parts that parallel ranks and groups of layers have of it."""
        parts: dict[tuple[int, int], list[int]] = {}
        for i, k in enumerate(keys):
            parts.setdefault((k.kv_rank, k.object_group_id), []).append(i)
        for part in parts.values():
            self._chains.learn([names[i] for i in part], [hits[i] for i in part])

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._looking.take(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Nothing to do, since nothing is locked."""

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._loading.do(next(self._ids), lambda: self._load(keys, objects), Bitmap(len(keys)))

    def _load(self, keys: list[Any], objects: list[Any]) -> Any:
        bits = Bitmap(len(keys))
        loaded: list[int] = []
        for ns, some in self._by_namespace(keys, objects):
            good = self._in.load(ns, [_name(keys[i]) for i in some], [objects[i] for i in some])
            loaded += [i for i, ok in zip(some, good.tolist(), strict=True) if ok]
        bits.batched_set(loaded)
        if loaded:
            self._notify_keys_accessed([keys[i] for i in loaded])
        return bits

    def query_load_result(self, task_id: int) -> Any:
        return self._loading.take(task_id)

    def delete(self, keys: list[Any]) -> None:
        try:
            for ns, some in self._by_namespace(keys, None):
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
        for lane in (self._storing, self._looking, self._loading):
            lane.close()
        self._out.close()
        self._in.close()
        self._asker.close()
        self._quick.close()

    def _by_namespace(
        self, keys: Sequence[Any], objects: Sequence[Any] | None, layouts: dict[int, Any] | None = None
    ) -> list[tuple[str, list[int]]]:
        """Places in keys by namespace. Almost always there is one."""
        out: dict[str, list[int]] = {}
        some: list[int] = []
        last: Any = None
        for i, k in enumerate(keys):
            of = (k.model_name, k.cache_salt, k.object_group_id)
            if of != last:
                last = of
                if objects is not None:
                    self._kinds[k.model_name, k.object_group_id] = (_dtypes(objects[i]), objects[i].get_size())
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
            fields = {"engine": "lmcache", "model": key.model_name, "dtypes": dtypes, "salt": key.cache_salt, "tenant": self._tenant}
            ns = self._namespaces[of] = namespace(**{k: v for k, v in fields.items() if v})
        return ns


def _contains(client: Client, ns: str, names: list[bytes]) -> NDArray[np.bool_] | None:
    """Client.contains, but None is no answer: a rank that is slow is not one that has nothing."""
    return client._contained(ns, names)


def _name(key: Any) -> bytes:
    return b"%08x%x@%b" % (key.kv_rank, key.object_group_id, key.chunk_hash)


def _dtypes(obj: Any) -> str:
    return _text(obj.meta.dtypes or [obj.meta.dtype])


def _text(dtypes: Sequence[Any]) -> str:
    return "+".join(str(d).removeprefix("torch.") for d in dtypes)
