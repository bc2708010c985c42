"""vLLM's layerwise connector: KV goes between the engine's layers and a rank while the engine computes.

The scheduler's side asks which blocks the rank has, in the very step that uses them. The worker's side loads each layer before its
attention and stores it after that. No exception leaves this module once the engine is up: a fault of the cache is a miss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config

from . import Client, RegionRefused
from .layers import Copied, Mover, Plan, Step
from .layout import Layout
from .vllm import JOB_TIMEOUT, LOOKUP_TIMEOUT, _Complaints, _contained, _hints, _layout, _namespace, logger
from .worth import SETTING

STAGING_BYTES = 256 << 20
_SETTINGS = ("password_file", "server_uids")


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


class CascadeConnector(KVConnectorBase_V1):
    """A rank of CASCADE on this node as a store of KV that is loaded and stored layer by layer.

    Named in kv_transfer_config as {"kv_connector": "CascadeConnector", "kv_connector_module_path": "cascade_kv.vllm"}, with
    "kv_load_failure_policy": "recompute". kv_connector_extra_config has socket, tenant, password_file, server_uids and
    prefill_tokens_per_second as CascadeTier has them, and staging_bytes: memory by way of which KV goes, 256 MiB if it is not given. ring: it
    is memory that the disks of the rank's node (nvme.paths) read into, without a copy in the rank's; false if it is not given.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        if transfer.kv_load_failure_policy != "recompute":
            raise ValueError('CascadeConnector: set "kv_load_failure_policy": "recompute": any block may be gone when it is loaded')
        extra = transfer.kv_connector_extra_config
        self._complain = _Complaints("CascadeConnector")
        self._staging_bytes = int(extra.get("staging_bytes", STAGING_BYTES))
        self._ring = bool(extra.get("ring", False))
        self._blocks = kv_cache_config.num_blocks
        self._plan: Plan | None = None
        self._mover: Mover | None = None
        self._number: dict[str, int] = {}
        self._unloaded: set[int] = set()
        why = _unfit(vllm_config, kv_cache_config)
        if why:
            logger.error("CascadeConnector: nothing is loaded or stored: %s", why)
            return
        (group,) = kv_cache_config.kv_cache_groups
        self._number = {name: i for i, name in enumerate(group.layer_names)}
        config = build_offloading_config(vllm_config, kv_cache_config)
        tokens = config.groups[0].tokens_per_block
        self._ns = _namespace(config, group.kv_cache_spec.page_size_bytes, extra.get("tenant", ""), form="layers")
        whole = _layout(config)
        self._layout = Layout(tokens=tokens, layers=1, dtype=whole.dtype)
        options = {k: extra[k] for k in _SETTINGS if k in extra}
        worker = role == KVConnectorRole.WORKER
        self._client = Client(extra["socket"], log=logger, timeout=JOB_TIMEOUT if worker else LOOKUP_TIMEOUT, **options)
        if not worker:
            self._plan = Plan(self._client, self._ns, len(self._number), tokens, extra.get(SETTING))
            logger.info("CascadeConnector: rank at %s, namespace %s, %d layers", extra["socket"], self._ns, len(self._number))

    # The scheduler's side.

    @_contained(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._plan is None:
            return 0, False
        prompt = request.num_prompt_tokens
        names = [bytes(h) + b"\0\0\0\0" for h in request.block_hashes[: prompt // self._layout.tokens]]  # the number of the group, as in the tier
        return self._plan.matched(request.request_id, names, prompt, num_computed_tokens, _hints(request)[0]), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._plan is not None:
            self._plan.allocated(request.request_id, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        out = Metadata()
        if self._plan is None:
            return out
        scheduled = scheduler_output.num_scheduled_tokens
        for new in scheduler_output.scheduled_new_reqs:
            self._plan.schedule(out.step, new.req_id, new.block_ids[0], True, new.num_computed_tokens, scheduled[new.req_id])
        old = scheduler_output.scheduled_cached_reqs
        for i, req_id in enumerate(old.req_ids):
            blocks = old.new_block_ids[i]
            anew = req_id in old.resumed_req_ids
            self._plan.schedule(out.step, req_id, blocks[0] if blocks else [], anew, old.num_computed_tokens[i], scheduled[req_id])
        self._plan.planned(out.step)
        return out

    @_contained(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        if self._plan is not None and connector_output.invalid_block_ids:
            self._plan.failed()

    @_contained(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """The blocks may be freed at once: what is stored of them was copied in the step that computed it."""
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
            self._mover = Mover(self._client, self._ns, layers, size, self._staging_bytes, layout, ring=self._ring)
        except (KeyError, ValueError, OSError, RegionRefused) as e:
            logger.error("CascadeConnector: nothing is loaded or stored: %s", e)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        step = connector_metadata.step
        if self._mover is None:
            # The scheduler's side offered what this one cannot load.
            self._unloaded.update(b for run in step.loads for b in run.blocks)
        self._guarded(lambda m: m.begin(step))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """vLLM calls this before the model computes if the step loads anything, and after it otherwise."""
        self._guarded(lambda m: m.load())

    def wait_for_layer_load(self, layer_name: str) -> None:
        if layer_name in self._number:
            self._guarded(lambda m: m.wait(self._number[layer_name]))

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """The layer goes to the rank at once where it is copied at once; where a stream copies it, in a later call or step."""
        if layer_name in self._number:
            self._guarded(lambda m: m.save(self._number[layer_name]))

    def wait_for_save(self) -> None:
        self._guarded(lambda m: m.end())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """No request waits for the rank. Called in every step, also in those without a forward pass."""
        self._guarded(lambda m: m.advance())
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self._unloaded = self._unloaded, set()
        if self._mover is not None:
            bad |= self._mover.take_failed()
        return bad

    def shutdown(self) -> None:
        mover, self._mover = self._mover, None
        if mover is not None:
            logger.info(
                "CascadeConnector: %d layers of blocks loaded, %d lost, %d stored, %d not stored", mover.loaded, mover.lost, mover.stored, mover.dropped
            )
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
    """Why KV of this engine is not kept, or "".

    A layer that one worker cannot load spoils what all others compute, and no worker learns of the failures of another one.
    Of the groups of a hybrid model vLLM takes no failures by block.
    """
    if vllm_config.parallel_config.world_size != 1:
        return "it is for engines of one worker; use CascadeTier"
    if len(kv_cache_config.kv_cache_groups) != 1:
        return "the model has several groups of layers; use CascadeTier"
    return ""
