"""SGLang's real KV pools in CPU memory, and patterns to tell their pages apart."""

import torch

# Layers, heads and head size; for MLA, rank of the compressed KV and size of the rotary part.
SHAPES = {
    "mha": {"layers": 3, "heads": 2, "head_dim": 32},
    "mla": {"layers": 2, "kv_lora_rank": 512, "rope": 64},
    "draft": {"layers": 1, "heads": 2, "head_dim": 16},
}


def device_pool(kind, page_size, tokens, dtype=torch.bfloat16):
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    shape = SHAPES[kind]
    common = dict(size=tokens, page_size=page_size, dtype=dtype, layer_num=shape["layers"], device="cpu", enable_memory_saver=False)
    if "heads" in shape:
        return MHATokenToKVPool(head_num=shape["heads"], head_dim=shape["head_dim"], **common)
    return MLATokenToKVPool(kv_lora_rank=shape["kv_lora_rank"], qk_rope_head_dim=shape["rope"], **common)


def host_pool(device, page_size, layout, pages, allocator="default"):
    """A host pool of so many pages for a device pool."""
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    info = device.get_device_pool_infos()[0].buffer_info
    common = dict(host_to_device_ratio=1.0, host_size=0, page_size=page_size, layout=layout, pin_memory=False, device="cpu",
                  allocator_type=allocator, device_capacity_tokens=device.size, start_layer=device.start_layer,
                  end_layer=device.end_layer, host_token_capacity=pages * page_size)
    with host_memory_budget_scope(1 << 42):  # SGLang would leave 10 GiB of the machine alone
        if isinstance(device, MLATokenToKVPool):
            return MLATokenToKVPoolHost(info, target_layer_num=device.layer_num, override_kv_cache_dim=device.kv_cache_dim, **common)
        return get_mha_host_pool_cls(info)(info, **common)


def as_bytes(t):
    return t.contiguous().view(torch.uint8).reshape(-1)


_random = None


def pattern(size, seed):
    """So many bytes that differ with seed: a piece of one random block, with the seed at both ends."""
    global _random
    if _random is None or _random.numel() < size + 4096:
        draw = torch.Generator().manual_seed(20261121)
        _random = torch.randint(0, 256, (max(size, 1 << 20) + 4096,), dtype=torch.uint8, generator=draw)
    start = (seed * 2654435761) % 4096
    out = _random[start:start + size].clone()
    mark = torch.tensor([seed, ~seed], dtype=torch.int64).view(torch.uint8)
    out[:8], out[-8:] = mark[:8], mark[8:]
    return out
