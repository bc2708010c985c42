"""SGLang's cache stack in one process without an engine around it: UnifiedRadixCache, its controller with the four storage
threads, real pools and a real storage backend. Device memory is CPU memory (cpu/cascade_cpu.py), and ranks of tensor
parallelism are told to the stack instead of being processes.
"""

import atexit
import json
import time
from array import array

import cascade_cpu
import torch

from . import pools

PAGE = 64
WAIT_SECONDS = 120


class Stack:
    def __init__(self, *, kind="mha", layout="page_first", pages=64, backend="dynamic", extra=None, model="test/model", tp=(0, 1), draft=False):
        cascade_cpu.patch()
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
        from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
        from sglang.srt.runtime_context import get_parallel
        from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

        rank, size = tp
        self._parallel = get_parallel().override(tp_rank=rank, tp_size=size, attn_tp_rank=rank, attn_tp_size=size, moe_tp_size=size,
                                                 pp_rank=0, pp_size=1)
        self._parallel.__enter__()
        args = ServerArgs(
            model_path="dummy", served_model_name=model, page_size=PAGE, device="cpu", enable_hierarchical_cache=True,
            hicache_ratio=2, hicache_io_backend="direct" if layout == "page_first_direct" else "kernel", hicache_mem_layout=layout,
            hicache_write_policy="write_through", hicache_storage_backend=backend,
            hicache_storage_backend_extra_config=json.dumps(extra or {}), hicache_storage_prefetch_policy="wait_complete")
        set_global_server_args_for_scheduler(args)
        self.device = pools.device_pool(kind, PAGE, pages * PAGE)
        self._slots = PagedTokenToKVPoolAllocator(size=pages * PAGE, page_size=PAGE, dtype=self.device.dtype, device="cpu",
                                                  kvcache=self.device, need_sort=False)
        requests = ReqToTokenPool(size=8, max_context_len=pages * PAGE, device="cpu", enable_memory_saver=False)
        params = CacheInitParams(disable=False, req_to_token_pool=requests, token_to_kv_pool_allocator=self._slots, page_size=PAGE,
                                 tree_components=(ComponentType.FULL,))
        self.cache = UnifiedRadixCache(params=params)
        with host_memory_budget_scope(1 << 42):
            self.cache.init_hicache(args, params)
        self.controller = self.cache.cache_controller
        self.cache.load_back_threshold = 0
        self._requests = 0
        self._draft = self._draft_host = None
        if draft:
            self._add_draft(pages, layout)

    def _add_draft(self, pages, layout):
        """The pool of a draft model: it shares the KV's page indices, and makes SGLang use the v2 methods."""
        from sglang.srt.mem_cache.hicache_storage import PoolName, SidecarPoolSpec
        from sglang.srt.mem_cache.pool_host import PoolEntry

        self._draft = pools.device_pool("draft", PAGE, pages * PAGE)
        self._draft_host = pools.host_pool(self._draft, PAGE, layout, self.host.page_num)
        layers = self._draft.layer_num
        self.cache.register_sidecar_pool(
            SidecarPoolSpec(PoolName.DRAFT, PoolName.KV),
            PoolEntry(name=PoolName.DRAFT, host_pool=self._draft_host, device_pool=self._draft,
                      layer_mapper=lambda layer: layer if layer < layers else None))

    @property
    def host(self):
        return self.controller.storage_host_pool

    @property
    def backend(self):
        return self.controller.storage_backend

    def threads_alive(self):
        c = self.controller
        return all(t.is_alive() for t in (c.prefetch_thread, c.prefetch_io_aux_thread, c.prefetch_sync_thread, c.backup_thread))

    # Device memory: a page is all its layers, K then V, of the target and of the draft.

    def _buffers(self):
        out = []
        for pool in (self.device, self._draft):
            if pool is not None:
                out += [*pool.k_buffer, *pool.v_buffer] if hasattr(pool, "k_buffer") else list(pool.kv_buffer)
        return out

    def _write_page(self, slots, seed):
        buffers = self._buffers()
        sizes = [b[slots].numel() * b.element_size() for b in buffers]
        data = pools.pattern(sum(sizes), seed)
        for buffer, piece in zip(buffers, data.split(sizes)):
            buffer[slots] = piece.clone().view(buffer.dtype).reshape(buffer[slots].shape)

    def _read_page(self, slots):
        return torch.cat([pools.as_bytes(b[slots]) for b in self._buffers()])

    def wrong_pages(self, slots, seed):
        """How many of the pages in these slots are not those that put wrote with this seed."""
        wrong = 0
        for i, page in enumerate(slots.split(PAGE) if len(slots) else ()):
            got = self._read_page(page)
            wrong += not torch.equal(got, pools.pattern(got.numel(), seed + i))
        return wrong

    # A request's life.

    def put(self, tokens, seed):
        """A finished request: its KV enters the tree, is written through to the host pool, and backed up to storage."""
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams

        slots = self._slots.alloc(len(tokens) // PAGE * PAGE)
        assert slots is not None, "the device pool is full"
        for i, page in enumerate(slots.split(PAGE)):
            self._write_page(page, seed + i)
        self.cache.insert(InsertParams(key=self._key(tokens), value=slots))
        self._pump(lambda: not self.cache.ongoing_write_through and not self.cache.ongoing_backup and self.controller.backup_queue.empty(), "backup")

    def fetch(self, tokens):
        """What the scheduler does for a request: storage to host, host to device. The tokens from storage, and the slots."""
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        self._requests += 1
        request = CacheRequestHandle(f"r{self._requests}", 0)
        self.cache.prefetch_from_storage(request, self.cache.root_node_handle(), array("q", tokens), None, None)
        self._pump(lambda: self.cache.check_prefetch_progress(request), "prefetch")
        self.cache.check_hicache_events()
        loaded = self.cache.prefetch_loaded_tokens_by_reqid.get(request, 0)
        return loaded, self._load_back(tokens)

    def _load_back(self, tokens):
        found = self._match(tokens)
        if found.host_hit_length:
            assert self.cache.load_back(found.best_match_node), "the device pool is full"
            self.cache.ready_to_load_host_cache()
            self._pump(lambda: not self.cache.ongoing_load_back, "load back")
            found = self._match(tokens)
        return self.cache.path_device_indices(found.last_device_node)

    def _match(self, tokens):
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self.cache.match_prefix(MatchPrefixParams(key=self._key(tokens)))

    def _key(self, tokens):
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(array("q", tokens))

    def forget(self):
        """Drops all that is above the storage, and overwrites the memory it was in."""
        self.cache.reset()
        self._slots.clear()
        buffers = [*self._buffers(), self.host.kv_buffer]
        if self._draft_host is not None:
            buffers.append(self._draft_host.kv_buffer)
        for buffer in buffers:
            buffer.view(torch.uint8).fill_(0xEE)

    def _pump(self, done, what):
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            self.cache.check_hicache_events()
            if done():
                return
            time.sleep(0.001)
        raise TimeoutError(what)

    def close(self):
        atexit.unregister(self.cache.shutdown)
        if self.cache.enable_storage:
            self.cache.detach_storage_backend()
        self._parallel.__exit__(None, None, None)
