"""vLLM's layerwise connector: KV goes between the engine's layers and a rank while the engine computes.

The scheduler's side asks which blocks the rank has. The worker's side loads each layer before its attention, or, where that is not safe
(see _whole_first), all that a request loads before vLLM computes anything of it. It stores each layer after its attention. No exception
leaves this module once the engine is up: a fault of the cache is a miss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

from . import Client, RegionRefused
from .layer_plan import Plan
from .layers import Copied, Counts, Group, Mover, Step
from .layout import Layout
from .vllm import JOB_TIMEOUT, LOOKUP_TIMEOUT, _Complaints, _contained, _hints, _layout, _namespace, logger
from .worth import SETTING

STAGING_BYTES = 256 << 20
_SETTINGS = ("password_file", "server_uids")
# Names and descriptions of the metrics, by their fields of Counts. An object is one layer of one block of one worker.
_METRICS = {
    "loaded": ("vllm:cascade_layers_loaded", "Layers of blocks that came from the rank."),
    "lost": ("vllm:cascade_layers_lost", "Layers of blocks that were found and could not be loaded, or were loaded with one that could not."),
    "stored": ("vllm:cascade_layers_stored", "Layers of blocks that the rank has taken or had."),
    "not_stored": ("vllm:cascade_layers_not_stored", "Layers of blocks that neither the staging memory nor the rank had room for."),
    "bubble_seconds": ("vllm:cascade_bubble_seconds", "Seconds that workers waited for layers in their steps."),
}


@dataclass
class Metadata(KVConnectorMetadata):
    step: Step = field(default_factory=Step)


class TensorLayer:
    """One layer's tensors, with the dimension of blocks in front. On a device, copies go in the order of its current stream."""

    def __init__(self, tensors: Sequence[torch.Tensor], blocks: int) -> None:
        self._parts = [_by_block(t, blocks) for t in tensors]
        self._sizes = [p[0].numel() * p.element_size() for p in self._parts]
        self.bytes = sum(self._sizes)
        # Where keys and values are apart, all keys of a block come first.
        self.key_bytes = self.bytes // 2 if len(tensors) == 1 and tensors[0].shape[0] == 2 and self._parts[0].shape[1] == 2 else 0

    def read(self, blocks: Sequence[int], into: NDArray[np.uint8]) -> Copied:
        rows, at = torch.from_numpy(into), 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            ids = torch.tensor(blocks, device=part.device)
            got = part[ids].reshape(len(blocks), -1).contiguous().view(torch.uint8)
            rows[:, at : at + size].copy_(got, non_blocking=True)
            at += size
        return self._mark()

    def write(self, blocks: Sequence[int], out_of: NDArray[np.uint8]) -> Copied:
        rows, at = torch.from_numpy(out_of), 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            ids = torch.tensor(blocks, device=part.device)
            got = rows[:, at : at + size].to(part.device, non_blocking=True).contiguous()
            part[ids] = got.view(part.dtype).reshape(len(blocks), *part.shape[1:])
            at += size
        return self._mark()

    def _mark(self) -> Copied:
        if self._parts[0].device.type == "cpu":
            return None
        event = torch.cuda.Event()
        event.record()
        done: Callable[[], bool] = event.query
        return done


def _by_block(tensor: torch.Tensor, blocks: int) -> torch.Tensor:
    """A view with a block's memory at each index of its first dimension, whichever dimension the engine has it in."""
    for dim in (0, 1):
        if dim < tensor.ndim and tensor.shape[dim] >= blocks and tensor.shape[dim] % blocks == 0:
            # A kernel's blocks may be parts of the engine's.
            return tensor.unflatten(dim, (blocks, tensor.shape[dim] // blocks)).movedim(dim, 0)
    raise ValueError(f"a layer of shape {tuple(tensor.shape)} has no dimension of {blocks} blocks")


class PromMetrics(KVConnectorPromMetrics):
    """Counters of vLLM's /metrics."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[Any]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters: dict[tuple[int, str], Any] = {}
        for name, text in _METRICS.values():
            counter = self._counter_cls(name=name, documentation=text, labelnames=labelnames)
            for engine, values in per_engine_labelvalues.items():
                self._counters[engine, name] = counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in OffloadingConnectorStats(data=transfer_stats_data).reduce().items():
            self._counters[engine_idx, name].inc(value)


class CascadeConnector(KVConnectorBase_V1, SupportsHMA):
    """A rank of CASCADE on this node as a store of KV that is loaded and stored layer by layer.

    Named in kv_transfer_config as {"kv_connector": "CascadeConnector", "kv_connector_module_path": "cascade_kv.vllm"}, with
    "kv_load_failure_policy": "recompute". kv_connector_extra_config has socket, tenant, password_file, server_uids and
    prefill_tokens_per_second as CascadeTier has them, and staging_bytes: memory of each worker by way of which KV goes, 256 MiB if it is
    not given. ring: it is memory that the disks of the rank's node (nvme.paths) read into, without a copy in the rank's; false if it is not
    given. ring_stores: with ring, they also write out of it; false if it is not given.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        if transfer.kv_load_failure_policy != "recompute":
            raise ValueError('CascadeConnector: set "kv_load_failure_policy": "recompute": any block may be gone when it is loaded')
        extra = transfer.kv_connector_extra_config
        self._complain = _Complaints("CascadeConnector")
        self._staging_bytes = int(extra.get("staging_bytes", STAGING_BYTES))
        self._rings = {k: bool(extra.get(k, False)) for k in ("ring", "ring_stores")}
        self._blocks = kv_cache_config.num_blocks
        self._plan: Plan | None = None
        self._mover: Mover | None = None
        self._number: dict[str, int] = {}
        self._unloaded: set[int] = set()
        self._unwaited: set[str] = set()
        self._told = Counts()
        why = _unfit(vllm_config, kv_cache_config)
        if why:
            logger.error("CascadeConnector: nothing is loaded or stored: %s", why)
            return
        self._number = {name: i for i, name in enumerate(n for g in kv_cache_config.kv_cache_groups for n in g.layer_names)}
        config = build_offloading_config(vllm_config, kv_cache_config)
        self._groups = _groups(config, kv_cache_config)
        self._hashes = [g.tokens // config.cache.tokens_per_hash for g in self._groups]  # in a block
        tokens = {g.tokens for g in self._groups}
        self._layout = Layout(tokens=tokens.pop() if len(tokens) == 1 else 0, layers=1, dtype=_layout(config).dtype)
        spaces = [_space(config, kv_cache_config, extra, rank) for rank in range(config.parallel.world_size)]
        options = {k: extra[k] for k in _SETTINGS if k in extra}
        worker = role == KVConnectorRole.WORKER
        self._client = Client(extra["socket"], log=logger, timeout=JOB_TIMEOUT if worker else LOOKUP_TIMEOUT, **options)
        self._ns = spaces[config.parallel.rank]
        why = _whole_first(vllm_config, self._groups)
        self._ahead = bool(why)
        if not worker:
            self._plan = Plan(self._client, spaces, self._groups, self._ahead, _rate(extra, self._groups))
            how = f"loaded before their requests are computed: {why}" if why else "loaded layer by layer"
            logger.info("CascadeConnector: rank at %s, namespace %s, %d layers, %s", extra["socket"], self._ns, len(self._number), how)

    # The scheduler's side.

    @_contained(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._plan is None:
            return 0, False
        prompt, hashes = request.num_prompt_tokens, request.block_hashes
        # A block is named by the last hash in it and the number of its group, as in the tier.
        names = [
            [bytes(h) + i.to_bytes(4, "big") for h in hashes[n - 1 : prompt // g.tokens * n : n]]
            for i, (g, n) in enumerate(zip(self._groups, self._hashes, strict=True))
        ]
        tokens = self._plan.matched(request.request_id, names, prompt, num_computed_tokens, _hints(request)[0])
        return tokens, self._ahead and tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._plan is not None and num_external_tokens > 0:
            ids = [[None if b.is_null else b.block_id for b in group] for group in blocks.blocks] if self._ahead else []
            self._plan.allocated(request.request_id, num_external_tokens, ids)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        out = Metadata()
        if self._plan is None:
            return out
        scheduled = scheduler_output.num_scheduled_tokens
        out.step.computes = bool(scheduled)
        self._plan.begun(out.step)
        for new in scheduler_output.scheduled_new_reqs:
            self._plan.schedule(out.step, new.req_id, new.block_ids, True, new.num_computed_tokens, scheduled[new.req_id])
        old = scheduler_output.scheduled_cached_reqs
        for i, req_id in enumerate(old.req_ids):
            blocks = old.new_block_ids[i]
            anew = req_id in old.resumed_req_ids
            self._plan.schedule(out.step, req_id, blocks or [], anew, old.num_computed_tokens[i], scheduled[req_id])
        return out

    @_contained(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        if self._plan is not None:
            self._plan.lost(connector_output.failed_recving)

    @_contained(lambda: (False, None))
    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """The blocks may be freed at once: what is stored of them was copied in the step that computed it. vLLM keeps those of loads."""
        if self._plan is not None:
            self._plan.finished(request.request_id, _hints(request)[1])
        return False, None

    def reset_cache(self) -> bool | None:
        """Nothing is kept here: what the rank has stays right."""
        return True

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A graph of the whole model would leave no place between its layers."""
        return True

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if not self._number:
            return
        try:
            layers = []
            for name in self._number:
                tensors = kv_caches[name]
                layers.append(TensorLayer(tensors if isinstance(tensors, list | tuple) else [tensors], self._blocks))
            sizes = {layer.bytes for layer in layers}
            if len(sizes) != 1:
                raise ValueError(f"layers of {sorted(sizes)} bytes a block")
            size, layout = sizes.pop(), self._layout
            if layers[0].key_bytes:
                layout = dataclasses.replace(layout, bytes=size, key_bytes=layers[0].key_bytes)
            self._mover = Mover(self._client, self._ns, layers, size, self._staging_bytes, layout, self._groups, **self._rings)
        except (KeyError, ValueError, OSError, RegionRefused) as e:
            logger.error("CascadeConnector: nothing is loaded or stored: %s", e)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        step = connector_metadata.step
        if self._mover is None:
            # The scheduler's side offered what this one cannot load.
            self._unloaded.update(b for run in step.loads for b in run.blocks)
            self._unwaited.update(step.ahead)
        self._guarded(lambda m: m.begin(step))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """vLLM calls this before the model computes if the step loads anything, and after it otherwise."""
        self._guarded(lambda m: m.load())

    def wait_for_layer_load(self, layer_name: str) -> None:
        if layer_name in self._number:
            self._guarded(lambda m: m.wait(self._number[layer_name]))

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """The layer goes to the rank when nothing is loaded, at the end of the step at the latest; where a stream copies it, when that has ended."""
        if layer_name in self._number:
            self._guarded(lambda m: m.save(self._number[layer_name]))

    def wait_for_save(self) -> None:
        self._guarded(lambda m: m.end())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Requests that wait no more for what they load. Called in every step, also in those without a forward pass."""
        self._guarded(lambda m: m.advance())
        bad, self._unwaited = self._unwaited, set()
        ended, lost = self._mover.take_waited() if self._mover is not None else (set(), set())
        return KVConnectorTransferResults(finished_recving=ended | bad, failed_recving=lost | bad)

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self._unloaded = self._unloaded, set()
        if self._mover is not None:
            bad |= self._mover.take_failed()
        return bad

    def get_kv_connector_stats(self) -> OffloadingConnectorStats | None:
        """What has changed since the last call."""
        if self._mover is None:
            return None
        stats, now = OffloadingConnectorStats(), dataclasses.replace(self._mover.counts)
        for field_name, (name, _) in _METRICS.items():
            more = getattr(now, field_name) - getattr(self._told, field_name)
            if more:
                stats.increase_counter(name, more)
        self._told = now
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> OffloadingConnectorStats:
        return OffloadingConnectorStats() if data is None else OffloadingConnectorStats(data=data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[Any]]
    ) -> KVConnectorPromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        mover, self._mover = self._mover, None
        if mover is not None:
            c = mover.counts
            text = "CascadeConnector: %d layers of blocks loaded, %d lost, %d stored, %d not stored"
            logger.info(text, c.loaded, c.lost, c.stored, c.not_stored)
            mover.close()
        elif self._number:
            self._client.close()

    def _guarded(self, what: Callable[[Mover], None]) -> None:
        """A fault makes misses of what the step loads: its KV must not be used."""
        if self._mover is None:
            return
        try:
            what(self._mover)
        except Exception:
            self._complain("a step of the cache failed; the engine goes on without it", trace=True)
            self._mover.fail()


def _unfit(vllm_config: Any, kv_cache_config: Any) -> str:
    """Why KV of this engine is not kept, or ""."""
    parallel = vllm_config.parallel_config
    if parallel.world_size != parallel.tensor_parallel_size or parallel.decode_context_parallel_size != 1:
        return "it is for engines whose workers have the same layers and tokens (tensor parallel alone); use CascadeTier"
    for group in kv_cache_config.kv_cache_groups:
        kind = type(group.kv_cache_spec)
        if kind not in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec):
            # Of states that are not of blocks of tokens vLLM moves the blocks of a request about.
            return f"{kind.__name__}: it is for attention to all tokens and with a sliding window; use CascadeTier"
        if getattr(group, "is_eagle_group", False) and len(kv_cache_config.kv_cache_groups) > 1:
            return "layers of a draft model have a group of their own; use CascadeTier"
    return ""


def _whole_first(vllm_config: Any, groups: Sequence[Group]) -> str:
    """Why all that a request loads must be there before anything of it is computed, or "" if its layers may come while it is computed.

    After a layer is lost, what the step has computed is wrong, and vLLM has to compute it again. It does that right for one group of layers,
    by the numbers of blocks, and not with what follows here.
    """
    if len(groups) > 1 or groups[0].window is not None:
        return "vLLM takes no failures of blocks for several groups of layers or windows"
    if vllm_config.parallel_config.world_size > 1:
        return "what other workers compute and store after a failure of one is wrong too"
    if vllm_config.scheduler_config.async_scheduling:
        return "with asynchronous scheduling vLLM goes on from what it computed before it hears of a failure"
    if getattr(vllm_config, "use_v2_model_runner", False):
        return "vLLM's second model runner goes on from the wrong token after a failure"
    return ""


def _groups(config: Any, kv_cache_config: Any) -> list[Group]:
    out: list[Group] = []
    at = 0
    for offloaded, group in zip(config.groups, kv_cache_config.kv_cache_groups, strict=True):
        spec, window = group.kv_cache_spec, None
        if isinstance(spec, SlidingWindowSpec):
            window = spec.sliding_window + getattr(spec, "extra_retained_tokens", 0)
        out.append(Group(offloaded.tokens_per_block, range(at, at + len(group.layer_names)), window))
        at += len(group.layer_names)
    return out


def _space(config: Any, kv_cache_config: Any, extra: dict[str, Any], rank: int) -> str:
    """The namespace of a worker."""
    config = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, rank=rank))
    specs = [g.kv_cache_spec for g in kv_cache_config.kv_cache_groups]
    windows = [str(s.sliding_window) for s in specs if isinstance(s, SlidingWindowSpec)]
    form = ":".join(["layers", *windows])
    return _namespace(config, sum(s.page_size_bytes for s in specs), extra.get("tenant", ""), form=form)


def _rate(extra: dict[str, Any], groups: Sequence[Group]) -> Any:
    rate = extra.get(SETTING)
    if rate is not None and (len(groups) > 1 or groups[0].window is not None):
        logger.warning("CascadeConnector: %s has no effect on models with several groups of layers or windows", SETTING)
        return None
    return rate
