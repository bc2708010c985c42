"""How fast pages of SGLang's go in and out, beside its own file backend on /dev/shm and a Redis server. Run by the Python of
SGLang's environment:

    python -m engines.sglang.speed PROGRAM WORK [ROUNDS] > figures.json

A page is 64 tokens of Llama-3.1-8B, 8 MiB, and a call has 32 of them. The stores take turns, and every page that comes back is
compared. Each store is called as SGLang's controller calls it: the file backend gets and gives tensors, the others are told where
pages are. The client of Redis is the shortest one there can be: it sends the pool's memory as it is and receives into it.
"""

import contextlib
import json
import logging
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time

_out = os.dup(1)
os.dup2(2, 1)  # standard output is for the figures alone

import cascade_cpu
import torch

from engines import Failed
from engines.rank import Rank
from engines.sglang import pools
from engines.sglang.stack import PAGE

PAGES = 32
SHAPE = {"layers": 32, "heads": 8, "head_dim": 128}


class Cascade:
    def __init__(self, pool, config, rank):
        from cascade_kv.sglang import CascadeHiCache

        self._backend = CascadeHiCache(config({"socket": str(rank.path), "interface_v1": 1}), {})
        self._backend.register_mem_pool_host(pool)

    def set(self, keys, indices):
        return all(self._backend.batch_set_v1(keys, indices))

    def get(self, keys, indices):
        return all(self._backend.batch_get_v1(keys, indices))

    def clear(self):
        self._backend.clear()


class File:
    def __init__(self, pool, config, folder):
        from sglang.srt.mem_cache.hicache_storage import HiCacheFile

        self._pool, self._folder = pool, folder
        self._backend = HiCacheFile(config({}), file_path=str(folder))

    def set(self, keys, indices):
        return self._backend.batch_set(keys, [self._pool.get_data_page(i) for i in indices[::PAGE].tolist()])

    def get(self, keys, indices):
        pages = self._backend.batch_get(keys, [self._pool.get_dummy_flat_data_page() for _ in keys])
        for i, page in zip(indices[::PAGE].tolist(), pages):
            self._pool.set_from_flat_data_page(i, page)
        return True

    def clear(self):
        self._backend.clear()


class Redis:
    def __init__(self, pool, path):
        self._pool = pool
        self._memory = memoryview(pool.kv_buffer.view(torch.uint8).reshape(-1).numpy())
        self._base = pool.kv_buffer.data_ptr()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._answers = self._socket.makefile("rb")

    def _parts(self, keys, indices):
        pointers, sizes = self._pool.get_page_buffer_meta(indices)
        each = len(pointers) // len(keys)
        for i, (pointer, size) in enumerate(zip(pointers, sizes)):
            at = pointer - self._base
            yield f"{keys[i // each]}.{i % each}".encode(), self._memory[at:at + size]

    def set(self, keys, indices):
        for key, part in self._parts(keys, indices):
            self._socket.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, len(part)))
            self._socket.sendall(part)
            self._socket.sendall(b"\r\n")
            if self._answers.readline() != b"+OK\r\n":
                return False
        return True

    def get(self, keys, indices):
        for key, part in self._parts(keys, indices):
            self._socket.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key))
            if self._answers.readline() != b"$%d\r\n" % len(part) or self._answers.readinto(part) != len(part):
                return False
            self._answers.readline()
        return True

    def clear(self):
        self._socket.sendall(b"FLUSHALL SYNC\r\n")
        self._answers.readline()


@contextlib.contextmanager
def redis_server(work):
    program = shutil.which("redis-server")
    if not program:
        raise Failed("redis-server is missing: apt-get install redis-server")
    path = str(work / "redis.sock")
    child = subprocess.Popen([program, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", str(work)],
                             stdout=subprocess.DEVNULL)
    try:
        while not os.path.exists(path):
            time.sleep(0.05)
        yield path
    finally:
        child.terminate()
        child.wait()


def host_pool():
    pools.SHAPES["llama8b"] = SHAPE
    return pools.host_pool(pools.device_pool("llama8b", PAGE, PAGE), PAGE, "page_first", PAGES, allocator="shm")


def measure(name, store, pool, keys, indices, seed):
    """GB/s of one set and one get of all pages; raises if a byte is wrong."""
    size = pool.size_per_token * PAGE
    starts = indices[::PAGE].tolist()
    for i in starts:
        pool.set_from_flat_data_page(i, pools.pattern(size, seed + i).view(pool.dtype))
    store.clear()
    start = time.perf_counter()
    stored = store.set(keys, indices)
    middle = time.perf_counter()
    pool.kv_buffer.view(torch.uint8).fill_(0xEE)
    again = time.perf_counter()
    loaded = store.get(keys, indices)
    end = time.perf_counter()
    if not stored or not loaded:
        raise Failed(f"{name}: stored {stored}, loaded {loaded}")
    for i in starts:
        if not torch.equal(pools.as_bytes(pool.get_data_page(i)), pools.pattern(size, seed + i)):
            raise Failed(f"{name}: page {i // PAGE} came back with other bytes")
    total = size * len(keys) / 1e9
    return {"set": total / (middle - start), "get": total / (end - again)}


def main():
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    program, work = map(pathlib.Path, sys.argv[1:3])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    logging.basicConfig(level=logging.WARNING)
    cascade_cpu.patch()

    def config(extra):
        return HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False,
            is_page_first_layout=True, model_name="speed", extra_config=extra)

    pool = host_pool()
    indices = torch.arange(PAGES * PAGE, dtype=torch.int64)
    files = pathlib.Path(f"/dev/shm/cascade-speed-{os.getpid()}")
    with Rank(work, 1 << 30, program=program) as rank, redis_server(work) as path:
        try:
            stores = {"cascade": Cascade(pool, config, rank), "file": File(pool, config, files), "redis": Redis(pool, path)}
            runs = {name: [] for name in stores}
            for i in range(rounds + 1):
                for name in sorted(stores, reverse=i % 2 == 1):
                    keys = [f"{i * PAGES + k:064x}" for k in range(PAGES)]
                    figures = measure(name, stores[name], pool, keys, indices, (i + 1) << 20)
                    if i:  # the first round is for memory that was never touched
                        runs[name].append(figures)
        finally:
            shutil.rmtree(files, ignore_errors=True)
    out = {"page_bytes": pool.size_per_token * PAGE, "pages": PAGES, "rounds": rounds, "unit": "GB/s"}
    for what in ("set", "get"):
        median = {name: statistics.median(r[what] for r in rs) for name, rs in runs.items()}
        best = [max(runs["file"][i][what], runs["redis"][i][what]) for i in range(rounds)]
        ratios = [runs["cascade"][i][what] / b for i, b in enumerate(best)]
        out[what] = {**median, "ratio_to_better": statistics.median(ratios), "ratios": ratios}
    with os.fdopen(_out, "w") as stream:
        json.dump(out, stream, indent=2)


if __name__ == "__main__":
    main()
