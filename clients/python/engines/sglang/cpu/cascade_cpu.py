"""SGLang's hierarchical cache without an accelerator, as a plugin that every process of SGLang loads.

Replaced is only what moves KV between device and host, and the pinning of host memory; nothing of the storage side. With this
folder first on PYTHONPATH the plugin is found by its dist-info, and sgl_kernel is the stand-in beside it.
"""


def register():
    from sglang.srt.mem_cache.pool_host import base

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # small machines have no 10 GiB to spare
    patch()


def patch():
    """Host pools that are not pinned and that copy by plain indexing. May be called twice."""
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    for pool in (MHATokenToKVPoolHost, MLATokenToKVPoolHost):
        if pool.backup_from_device_all_layer is _backup:
            continue
        defaults = list(pool.__init__.__defaults__)
        defaults[defaults.index(True)] = False  # pin_memory
        pool.__init__.__defaults__ = tuple(defaults)
        pool.backup_from_device_all_layer = _backup
        pool.load_to_device_per_layer = _load


def _layers(pool):
    """For each layer its host buffers, K and V or the one of MLA, indexed by token or by page and token."""
    if hasattr(pool, "k_data_refs"):
        return list(zip(pool.k_data_refs, pool.v_data_refs))
    buffer = pool.kv_buffer
    if pool.layout in ("page_first", "page_first_direct"):
        buffer = buffer.transpose(0, 1)
    return [(buffer[i],) for i in range(pool.layer_num)]


def _device(pool, layer):
    if hasattr(pool, "device_k_buffers"):
        return (pool.device_k_buffers[layer], pool.device_v_buffers[layer])
    return (pool.device_kv_buffers[layer],)


def _at(pool, indices):
    if pool.layout == "page_first_direct":
        return indices // pool.page_size, indices % pool.page_size
    return (indices,)


def _backup(self, device_pool, host_indices, device_indices, io_backend):
    where = _at(self, host_indices.cpu())
    for layer, buffers in enumerate(_layers(self)):
        for host, device in zip(buffers, _device(self, layer)):
            host[where] = device[device_indices.cpu()].view(host.dtype).reshape(host[where].shape)


def _load(self, device_pool, host_indices, device_indices, layer_id, io_backend, *, is_draft=False):
    if not 0 <= layer_id < self.layer_num:
        return
    where = _at(self, host_indices.cpu())
    for host, device in zip(_layers(self)[layer_id], _device(self, layer_id)):
        rows = host[where]
        device[device_indices.cpu()] = rows.reshape((rows.shape[0],) + device.shape[1:])
