"""vLLM's secondary tier in a rank, and vLLM's tiered offloading on machines without a GPU.

vLLM copies KV between its device and the rows of a file in /dev/shm, its primary tier. CascadeTier attaches that file to the
rank as a region, and the rank copies rows itself: a job is one message, and no KV byte passes through Python.

All methods run in vLLM's scheduler, which waits for them. So look-ups of a whole request are one question, answered at once,
jobs are queued and never waited for, and whatever goes wrong is a miss or a failed job. No exception leaves this module once
the engine is up.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from . import Client, Layout, Region, RegionRefused, memory, namespace, versions, weights
from .layout import MAX_DTYPE
from .vllm_cpu import CpuPlatformTieringSpec
from .worth import SETTING, Worth

if TYPE_CHECKING:
    from .vllm_layers import CascadeConnector

__all__ = ["CascadeConnector", "CascadeTier", "CpuPlatformTieringSpec"]

versions.check("vllm", vllm.__version__)

logger = logging.getLogger("vllm.cascade_kv")

# A look-up makes the scheduler wait. A rank that needs longer than this is treated as one that is away.
LOOKUP_TIMEOUT = 0.5
JOB_TIMEOUT = 2.0
# How long what a look-up said holds for its request. The scheduler asks again in every step while a request waits.
LOOKUP_SECONDS = 0.05
SHARED_TOKENS, DUE_SECONDS = "cascade_shared_tokens", "cascade_due_seconds"  # in a request's kv_transfer_params
# Jobs that may be under way. The rank takes 1024 of a connection; past this many, more would only wait.
MAX_JOBS = 512
# A lost connection is told by done(), not by the eventfd. So done() is asked now and then without a signal.
POLL_SECONDS = 0.1
EVENT_SECONDS = 0.25
SHUTDOWN_SECONDS = 10.0
_WARN_SECONDS = 10.0

_REFUSED = "vllm:cascade_jobs_refused"
_LOST = "vllm:cascade_chunks_lost"
_DROPPED = "vllm:cascade_chunks_not_stored"
_UP = "vllm:cascade_up"


def __getattr__(name: str) -> Any:
    """CascadeConnector, by whose name vLLM looks here, with its module only when it is wanted."""
    if name != "CascadeConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .vllm_layers import CascadeConnector

    return CascadeConnector


def _contained(fallback: Callable[[], Any]) -> Callable[[Any], Any]:
    """The method gives fallback() instead of an exception: a fault of the cache must not stop the engine."""

    def wrap(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception:
                self._complain(f"{method.__name__} failed; the engine goes on without it", trace=True)
                return fallback()

        return call

    return wrap


class _Complaints:
    """Warnings of one part of vLLM, but the same one at most every few seconds: the scheduler may come back here thousands of times."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._last: dict[str, float] = {}

    def __call__(self, text: str, trace: bool = False) -> None:
        now = time.monotonic()
        if now - self._last.get(text, -_WARN_SECONDS) >= _WARN_SECONDS:
            self._last[text] = now
            logger.warning("%s: %s", self._who, text, exc_info=trace)


class _Request:
    """What is known of one request's chunks."""

    __slots__ = ("asked", "context", "known", "lost", "prompt")

    def __init__(self, context: Any) -> None:
        self.context = context
        self.prompt: int | None = None  # the token at which the last whole chunk of the prompt ends, once the request was scheduled
        self.asked = 0.0  # when known was learned
        self.known: dict[bytes, bool] = {}
        self.lost: set[bytes] = set()  # promised once and not loaded: never again for this request, or it would wait for ever


class _Job:
    __slots__ = ("began", "job", "keys")

    def __init__(self, job: Any, keys: list[bytes]) -> None:
        self.job, self.keys, self.began = job, keys, time.monotonic()


class CascadeTier(SecondaryTierManager):
    """A rank of CASCADE on this node as a tier below vLLM's host memory.

    Named in secondary_tiers of kv_connector_extra_config as {"type": "CascadeTier", "module_path": "cascade_kv.vllm", "socket": S}.

    socket: path of the rank's unix socket. tenant: any text; engines with different ones share nothing.
    enable_kv_events: report what this tier stores and loses, if vLLM publishes events. locality: LOCAL or REMOTE, for
    requests that choose tiers. password_file: if the rank wants a password. server_uids: if the rank is of another user.
    prefill_tokens_per_second: how fast the engine computes; chunks that it computes faster than they are loaded are not offered. "auto": as
    the rank learns it.
    """

    medium: ClassVar[Medium] = Medium.STORAGE
    # vLLM 0.33: get_finished_jobs may be called by another thread than the scheduler's, under the manager's lock.
    tolerates_off_thread_polling: ClassVar[bool] = True

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        socket: str,
        tenant: str = "",
        enable_kv_events: bool = False,
        locality: str | None = None,
        password_file: str | None = None,
        server_uids: list[int] | str | None = None,
        prefill_tokens_per_second: float | str | None = None,
        backpressure_detector: Any = None,
        **ignored: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if ignored:
            logger.warning("%s: unknown settings %s", tier_type, ", ".join(sorted(ignored)))
        self.locality = Locality(locality) if locality is not None else None
        self._socket = socket
        self._row = self.block_size_bytes
        self._ns = _namespace(offloading_spec.config, self._row, tenant)
        self._layout = _layout(offloading_spec.config)
        self._worth = Worth(prefill_tokens_per_second)
        if prefill_tokens_per_second is not None and len(offloading_spec.config.groups) != 1:
            logger.warning("%s: %s has no effect on models with several groups of layers", tier_type, SETTING)
            self._worth = Worth()
        client = functools.partial(Client, socket, log=logger, password_file=password_file, server_uids=server_uids)
        self._asker = client(timeout=LOOKUP_TIMEOUT)
        self._mover = client(timeout=JOB_TIMEOUT)
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._complain = _Complaints(tier_type)
        self._region, self._base = self._attach(primary_kv_view)
        self._requests: dict[str, _Request] = {}
        self._jobs: dict[int, _Job] = {}
        self._finished: list[JobResult] = []
        self._polled = 0.0
        self._stats = OffloadingConnectorStats()
        self._was_up: bool | None = None
        self._events: list[OffloadingEvent] | None = None
        self._event_next, self._event_asked = 0, 0.0
        if enable_kv_events:
            if offloading_spec.kv_events_config.enable_kv_cache_events:
                self._events = []
            else:
                logger.warning("%s: enable_kv_events has no effect while vLLM publishes no KV events", tier_type)
        logger.info(
            "%s: rank at %s, namespace %s, %d chunks of %d bytes in host memory",
            tier_type,
            socket,
            self._ns,
            len(primary_kv_view),
            self._row,
        )

    def _attach(self, view: memoryview) -> tuple[Region | None, int]:
        """vLLM's host memory as a region, and where it begins there."""
        rows = np.frombuffer(view, dtype=np.uint8)
        file = memory.backing(int(rows.ctypes.data), rows.nbytes)
        if file is None:
            logger.error(
                "%s: vLLM's host memory is no file that a rank can map, so this tier stays empty; use TieringOffloadingSpec", self.tier_type
            )
            return None, 0
        try:
            return self._mover.region(fd=file.fd, notify=self._signal), file.offset
        except RegionRefused as e:
            logger.error("%s: this tier stays empty, the rank does not take vLLM's host memory: %s", self.tier_type, e)
            return None, 0
        finally:
            os.close(file.fd)

    # Look-ups

    @_contained(lambda: RequestOffloadingContext())
    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._requests[req_context.req_id] = _Request(req_context)
        return RequestOffloadingContext()

    @_contained(lambda: None)
    def on_schedule_end(self, context: Any) -> None:
        """When a request is scheduled for the first time, all chunks that vLLM has noted of it are of its prompt."""
        for req_id in context.new_req_ids:
            request = self._requests.get(req_id)
            if request is not None:
                request.prompt = max(_chunks(request.context).values(), default=0)

    @_contained(lambda: LookupResult.MISS)
    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """HIT or MISS at once. The first question of a request is asked for all its chunks."""
        if self._region is None:
            return LookupResult.MISS
        request = self._requests.get(req_context.req_id)
        if request is None:
            request = self._requests[req_context.req_id] = _Request(req_context)
        if key in request.lost:
            return LookupResult.MISS
        now = time.monotonic()
        if now - request.asked > LOOKUP_SECONDS:
            request.known.clear()
        found = request.known.get(key)
        if found is None:
            self._ask(key, request, req_context)
            request.asked = now
            found = request.known.get(key, False)
        return LookupResult.HIT if found else LookupResult.MISS

    def _ask(self, key: bytes, request: _Request, req_context: Any) -> None:
        chunks = _chunks(req_context)
        keys = [k for k in chunks if k not in request.known] if key in chunks else [key]
        found = self._asker.contains(self._ns, keys).tolist()
        first = keys.index(key)  # what comes before is in the engine's own memory
        if (found[first] or self._worth.learns) and self._worth.judges:
            worthy = first + self._worth.leading(self._asker, self._ns, keys[first:], self._layout)
            found[worthy:] = [False] * (len(keys) - worthy)
        request.known.update(zip(keys, found, strict=True))

    @_contained(lambda: None)
    def on_request_finished(self, req_context: Any) -> None:
        self._requests.pop(req_context.req_id, None)
        shared, due = _hints(req_context)
        if self._region is None or shared <= 0 and due is None:
            return
        chunks = _chunks(req_context)
        for group in {k[-4:] for k in chunks}:
            keys = [k for k in chunks if k[-4:] == group]
            self._asker.hint(self._ns, [bytes(k) for k in keys], shared=_shared(keys, req_context), due=due)

    # Jobs

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(job_metadata, self._store)

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(job_metadata, self._load)

    def _submit(self, job: Any, how: Callable[[Region, int, list[bytes], np.ndarray, Any], bool]) -> None:
        """Queues the job, or fails it at once: the scheduler waits for nobody."""
        queued = False
        try:
            if self._region is not None and len(self._jobs) < MAX_JOBS:
                keys = [bytes(k) for k in job.keys]
                rows = job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids
                entry = self._jobs[job.job_id] = _Job(job, keys)
                queued = how(self._region, job.job_id, keys, self._extents(rows), job.req_context)
                entry.began = time.monotonic()
        except Exception:
            self._complain("a job could not be queued", trace=True)
        if not queued:
            self._jobs.pop(job.job_id, None)
            self._stats.increase_counter(_REFUSED, 1, (self.tier_type,))
            self._fail(job)

    def _extents(self, rows: Any) -> np.ndarray:
        out = np.empty((len(rows), 1, 2), dtype=np.uint64)
        out[:, 0, 0] = np.asarray(rows, dtype=np.uint64) * np.uint64(self._row) + np.uint64(self._base)
        out[:, 0, 1] = self._row
        return out

    def _store(self, region: Region, number: int, keys: list[bytes], extents: np.ndarray, req_context: Any) -> bool:
        parent, chain = _parent(keys, req_context)
        self._mover._declare(self._ns, self._layout)  # once for a connection
        marked = self._generated(keys, req_context)
        shared = _shared(keys, req_context)
        return bool(self._mover.store(self._ns, region, keys, extents, parent=parent, chain=chain, generated=marked, job=number, shared=shared))

    def _generated(self, keys: list[bytes], req_context: Any) -> bool:
        """Whether each of the chunks has generated tokens. What is not known to counts as of the prompt."""
        request, chunks = self._requests.get(req_context.req_id), _chunks(req_context)
        prompt = None if request is None else request.prompt
        return prompt is not None and all(chunks.get(k, 0) > prompt for k in keys)

    def _load(self, region: Region, number: int, keys: list[bytes], extents: np.ndarray, req_context: Any) -> bool:
        return bool(self._mover.load(self._ns, region, keys, extents, job=number))

    def _fail(self, job: Any) -> None:
        if job.is_promotion:
            self._lose(job, job.keys)
        self._finished.append(JobResult(job.job_id, False))

    def _lose(self, job: Any, keys: Iterable[bytes]) -> None:
        """These chunks are misses for the request from now on, whatever the rank says of them."""
        keys = [bytes(k) for k in keys]
        request = self._requests.get(job.req_context.req_id)
        if request is not None:
            request.lost.update(keys)
        self._stats.increase_counter(_LOST, len(keys), (self.tier_type,))

    @_contained(lambda: ())
    def get_finished_jobs(self) -> Iterable[JobResult]:
        if self._jobs and self._signalled():
            self._collect(0.0)
        finished, self._finished = self._finished, []
        return finished

    def _signalled(self) -> bool:
        """Whether a job may be done. Most polls cost one system call and no message."""
        now = time.monotonic()
        try:
            os.eventfd_read(self._signal)
        except BlockingIOError:
            if now - self._polled < POLL_SECONDS:
                return False
        self._polled = now
        return True

    def _collect(self, timeout: float) -> None:
        for number, statuses in self._mover.done(timeout):
            entry = self._jobs.pop(number, None)
            if entry is not None:
                self._finished.append(self._result(entry, np.asarray(statuses) == 1))

    def _result(self, entry: _Job, good: np.ndarray) -> JobResult:
        job, keys = entry.job, entry.keys
        done = keys if good.all() else [k for k, ok in zip(keys, good.tolist(), strict=True) if ok]
        if job.is_promotion:
            if len(done) < len(keys):
                self._lose(job, [k for k, ok in zip(keys, good.tolist(), strict=True) if not ok])
        else:
            if len(done) < len(keys):
                self._stats.increase_counter(_DROPPED, len(keys) - len(done), (self.tier_type,))
            if self._events is not None and done:
                self._events.append(OffloadingEvent(keys=done, medium=self.medium, removed=False, locality=self.locality))
        whole = len(done) == len(keys)
        return JobResult(
            job.job_id,
            whole,
            successful_keys=tuple(done) if job.is_promotion and done and not whole else None,
            transfer_time=time.monotonic() - entry.began,
            transfer_bytes=len(done) * self._row,
        )

    @_contained(lambda: False)
    def has_pending_work(self) -> bool:
        return bool(self._jobs or self._finished)

    def drain_jobs(self) -> None:
        """Waits until the rank has told the end of each job: before that it may still write to vLLM's memory."""
        while self._jobs:
            began = time.monotonic()
            try:
                self._collect(0.5)
            except Exception:
                self._complain("waiting for jobs failed", trace=True)
            if self._jobs and time.monotonic() - began < 0.01:
                time.sleep(0.01)
            if self._jobs:
                self._complain(f"waiting for {len(self._jobs)} jobs of the rank at {self._socket}")

    def shutdown(self) -> None:
        """Ends what is under way, for a limited time, and gives the region back."""
        with contextlib.suppress(Exception):
            for number in list(self._jobs):
                self._mover.cancel(number)
            deadline = time.monotonic() + SHUTDOWN_SECONDS
            while self._jobs and time.monotonic() < deadline:
                self._collect(0.2)
        for client in (self._mover, self._asker):
            with contextlib.suppress(Exception):
                client.close()
        if self._signal >= 0:
            os.close(self._signal)
            self._signal = -1

    # What vLLM is told

    @_contained(lambda: ())
    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events is None:
            return ()
        self._take_removed()
        events, self._events = self._events, []
        return events

    def _take_removed(self) -> None:
        """What the rank has dropped, at any time and for any reason."""
        now = time.monotonic()
        if now - self._event_asked < EVENT_SECONDS:
            return
        self._event_asked = now
        told = self._asker.events(self._event_next)
        if told is None:
            return
        self._event_next = told.next
        gone = [e.key for e in told.events if e.kind == "removed" and e.namespace == self._ns]
        if gone and self._events is not None:
            self._events.append(OffloadingEvent(keys=gone, medium=self.medium, removed=True, locality=self.locality))

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        counters = {
            _REFUSED: "Jobs that the rank did not take: its queue was full or it was away.",
            _LOST: "Chunks that a look-up found and that could not be loaded.",
            _DROPPED: "Chunks that the rank had no room for.",
        }
        out: dict[str, Any] = {name: OffloadingCounterMetadata(documentation=text, labelnames=("tier",)) for name, text in counters.items()}
        out[_UP] = OffloadingGaugeMetadata(documentation="Whether the tier is connected to its rank.", labelnames=("tier",))
        return out

    @_contained(lambda: None)
    def get_stats(self) -> OffloadingConnectorStats | None:
        up = self._mover.up
        if up != self._was_up:
            self._was_up = up
            self._stats.set_gauge(_UP, int(up), (self.tier_type,))
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, OffloadingConnectorStats()
        return stats

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        """vLLM 0.33: names of what config_info tells."""
        return ("socket", "namespace")

    def config_info(self) -> dict[str, str]:
        return {"socket": self._socket, "namespace": self._ns}


def _chunks(req_context: Any) -> dict[bytes, int]:
    """Chunks of the request and the token at which each ends, in order, as the scheduler has noted them."""
    return getattr(req_context, "_offload_key_positions", None) or {}


def _hints(req_context: Any) -> tuple[int, float | None]:
    """What whoever sent the request knows of its prompt: leading tokens that many share, and seconds to the next one that continues it."""
    params = getattr(req_context, "kv_transfer_params", None) or {}
    shared, due = params.get(SHARED_TOKENS), params.get(DUE_SECONDS)
    if not isinstance(due, int | float) or not 0 <= due < float("inf"):
        due = None
    return shared if isinstance(shared, int) else 0, due


def _shared(keys: list[bytes], req_context: Any) -> int:
    """How many of the keys, from the first on, are chunks of a prompt that many share, as whoever sent the request says."""
    chunks, (tokens, _) = _chunks(req_context), _hints(req_context)
    return next((i for i, k in enumerate(keys) if not 0 < chunks.get(k, 0) <= tokens), len(keys))


def _parent(keys: list[bytes], req_context: Any) -> tuple[bytes | None, bool]:
    """The chunk before the first of keys, and whether each key follows the one before it.

    A chunk is named by a hash and its group, and chains are within a group. The rank evicts the ends of chains first.
    """
    chunks = _chunks(req_context)
    if not keys or any(k not in chunks or k[-4:] != keys[0][-4:] for k in keys):
        return None, False
    same = [k for k in chunks if k[-4:] == keys[0][-4:]]
    first = same.index(keys[0])
    if same[first : first + len(keys)] != keys:
        return None, False
    return (same[first - 1] if first else None), True


def _namespace(config: Any, row: int, tenant: str, form: str = "") -> str:
    """Everything that must be equal for the bytes of a chunk to mean the same, and that vLLM tells.

    vLLM's keys have the tokens in them, LoRA and salt too, hashed: those of two hash algorithms are never equal. Revision and quantization of
    a checkpoint in a folder are in its fingerprint. Those of one that vLLM fetches, and a quantization that vLLM does itself, it does
    not tell: for them there is the setting tenant. form: of what the blocks are, if not of rows of host memory.
    """
    p = config.parallel
    # Of workers only vLLM's host memory has the KV in one order.
    portable = not form and bool(p.is_parallelism_agnostic or getattr(config, "replicated_layout", False))
    groups = [f"{g.group_id}:{g.tokens_per_block}:{','.join(g.layer_names)}" for g in config.groups]
    fields: dict[str, Any] = {
        "engine": "vllm",
        "model": config.model.name,
        "weights": weights.fingerprint(config.model.name),
        "dtype": config.model.dtype,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "chunk_bytes": row,
        "groups": hashlib.sha256(";".join(groups).encode()).hexdigest()[:16],
        "layout": getattr(config, "kv_cache_layout", None),
        "canonical": getattr(config, "canonical_layout", False),
        "replicated": getattr(config, "replicated_layout", False),
        "portable": portable,
        "tenant": tenant,
        "form": form,
    }
    if not portable:
        fields.update(rank=p.rank, world=p.world_size, tp=p.tp_size, pp=p.pp_size, pcp=p.pcp_size, dcp=p.dcp_size)
    return namespace(**{k: str(v) for k, v in fields.items() if v not in (None, "")})


def _layout(config: Any) -> Layout:
    """How the rows of a namespace are made, as far as vLLM's configuration of offloading says it.

    It does not have KV heads and their size. The share of the keys is left out, for a row has the layers of all workers one after the
    other, in each of which keys and values come in the order of the attention backend. Left out are also tokens and layers that differ
    between the groups of a hybrid model, and layers where workers have different ones.
    """
    tokens = {g.tokens_per_block * config.cache.blocks_per_chunk for g in config.groups}
    layers = {len(g.layer_names) for g in config.groups}
    return Layout(
        tokens=tokens.pop() if len(tokens) == 1 else 0,
        layers=layers.pop() if len(layers) == 1 and config.parallel.pp_size == 1 else 0,
        dtype=str(config.model.dtype)[:MAX_DTYPE],
    )
