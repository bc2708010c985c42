"""vLLM's tiered offloading on its CPU platform, where vLLM itself refuses it.

Only the worker is replaced, which copies between the engine's KV and the rows of host memory: plain memory copies instead of a
device's streams. The scheduler's side, the primary tier and the secondary tiers are vLLM's own.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostCopyWorker(OffloadingWorker):
    """Copies blocks between the engine's KV tensors and the rows of the shared file, when a job is submitted."""

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._region = region
        self._per_chunk = blocks_per_chunk
        self._groups = kv_caches.group_data_refs
        self._engine: list[torch.Tensor] = []  # (blocks, bytes of a block), one for each tensor of the engine
        self._host: list[torch.Tensor] = []  # (chunks, bytes of a chunk), where the same tensor lies in each row
        self._done: list[TransferResult] = []
        for tensor in kv_caches.tensors:
            size = tensor.page_size_bytes
            flat = tensor.tensor.view(torch.int8)
            self._engine.append(flat[:, :size] if flat.ndim == 2 else flat.view(-1, size))
            self._host.append(region.create_next_worker_view(size * blocks_per_chunk))

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any, **_: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, **_: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, to_host=False)

    def _copy(self, job_id: int, engine: Any, host: Any, to_host: bool) -> bool:
        began, copied = time.perf_counter(), 0
        block = chunk = 0  # how many of each earlier groups have used
        for group, (blocks, first) in enumerate(zip(engine.group_sizes, engine.block_indices, strict=True)):
            if not blocks:
                continue
            skip = first % self._per_chunk  # the first chunk may be entered in its middle
            chunks = -(-(blocks + skip) // self._per_chunk)
            slots = np.arange(skip, skip + blocks)
            ids = torch.from_numpy(engine.block_ids[block : block + blocks].astype(np.int64))
            rows = torch.from_numpy(host.block_ids[chunk : chunk + chunks].astype(np.int64)[slots // self._per_chunk])
            places = torch.from_numpy(slots % self._per_chunk)
            block, chunk = block + blocks, chunk + chunks
            for ref in self._groups[group]:
                pages = self._engine[ref.tensor_idx]
                slotted = self._host[ref.tensor_idx].unflatten(1, (self._per_chunk, pages.shape[1]))
                if to_host:
                    slotted[rows, places] = pages[ids]
                else:
                    pages[ids] = slotted[rows, places]
                copied += blocks * ref.page_size_bytes
        self._done.append(TransferResult(job_id, True, copied, time.perf_counter() - began))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing to wait for: a job is done when its submission returns."""

    def shutdown(self) -> None:
        self._engine, self._host = [], []
        self._region.cleanup()


class CpuPlatformTieringSpec(TieringOffloadingSpec):
    """TieringOffloadingSpec for machines without a GPU: spec_name CpuPlatformTieringSpec, spec_module_path cascade_kv.vllm."""

    _worker: Any

    def get_worker(self, kv_caches: Any) -> Any:
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostCopyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
