"""Checks of the cache stack on a rank. Run by the Python of SGLang's environment:

    python -m engines.sglang.checks PROGRAM WORK > figures.json

PROGRAM is the rank's daemon, WORK an empty folder. Ends with 1 if a check failed; the figures name it.
"""

import json
import logging
import os
import pathlib
import sys
import time
import traceback

# Standard output is for the figures alone; SGLang and what it compiles print too.
_out = os.dup(1)
os.dup2(2, 1)

from engines.rank import Rank
from engines.sglang import pools
from engines.sglang.stack import PAGE, Stack

LAYOUTS = ("layer_first", "page_first", "page_first_direct")
MODES = {"plain": {}, "v1": {"interface_v1": 1}, "v1+memfd": {"interface_v1": 1, "allocator": "shm"}}
PAGES = 40


class Wrong(Exception):
    pass


def expect(what, got, want):
    if got != want:
        raise Wrong(f"{what}: {got}, not {want}")


def stack(rank, mode, **more):
    extra = {"backend_name": "cascade", "module_path": "cascade_kv.sglang", "class_name": "CascadeHiCache", "socket": str(rank.path),
             "hicache_storage_pass_prefix_keys": True, **MODES[mode]}
    return Stack(extra=extra, **more)


def tokens(pages=PAGES, first=0):
    return list(range(first, first + pages * PAGE))


def fetched(s, toks, seed):
    """Fetches, compares every byte that came, and returns how many pages came from storage."""
    s.forget()
    loaded, slots = s.fetch(toks)
    expect("pages with wrong bytes", s.wrong_pages(slots, seed), 0)
    expect("slots for tokens from storage", len(slots), loaded)
    expect("all threads alive", s.threads_alive(), True)
    return loaded // PAGE


def declared(kind, layout, mode):
    """The layout of KV pages. Keys come first in them but where SGLang tells the memory of each layer."""
    from cascade_kv import Layout

    shape = pools.SHAPES[kind]
    known = {"tokens": PAGE, "layers": shape["layers"], "dtype": "bfloat16"}
    if kind == "mla":
        return Layout(**known)
    keys = 2 * PAGE * shape["layers"] * shape["heads"] * shape["head_dim"]
    share = {} if layout == "layer_first" and mode != "plain" else {"bytes": 2 * keys, "key_bytes": keys}
    return Layout(**known, **share, heads=shape["heads"], head_dim=shape["head_dim"])


def round_trip(rank, kind, layout, mode, draft=False):
    """Stores and loads, first a part of a prompt and then the whole. Before that nothing is there, but for the memfd: it reads
    what the same interface wrote from other memory, and everything written in another layout is somewhere else."""
    s = stack(rank, mode, kind=kind, layout=layout, draft=draft, model=f"{kind}{draft}")
    try:
        expect("the pool is in the rank's reach", s.backend._pools["kv"][0].direct, mode == "v1+memfd")
        before = fetched(s, tokens(), 7)
        expect("pages before any was stored", before, PAGES if mode == "v1+memfd" else 0)
        s.forget()
        s.put(tokens(PAGES // 2), 7)
        expect("what the rank knows of the pages", s.backend._look.layout(s.backend._kv_namespace()), declared(kind, layout, mode))
        expect("half of the pages, then all", fetched(s, tokens(), 7), PAGES if before else PAGES // 2)
        s.forget()
        s.put(tokens(), 7)
        expect("pages", fetched(s, tokens(), 7), PAGES)
        # Longer than one batch of SGLang's.
        long = tokens(60, 100_000)
        s.forget()
        s.put(long, 1000)
        expect("pages of a second prompt", fetched(s, long, 1000), 60)
    finally:
        s.close()
    return {"pages_before": before, "pages": PAGES, "wrong": 0}


def tensor_parallel_sharded(rank, mode):
    """Two ranks with KV of their own: each finds its own, and nothing before it has written."""
    model = f"tp-mha-{mode}"
    for me, seed in ((0, 100), (1, 500)):
        s = stack(rank, mode, tp=(me, 2), model=model)
        expect(f"rank {me}, pages before it wrote", fetched(s, tokens(), seed), 0)
        s.forget()
        s.put(tokens(), seed)
        s.close()
    for me, seed in ((0, 100), (1, 500)):
        s = stack(rank, mode, tp=(me, 2), model=model)
        expect(f"rank {me}, pages", fetched(s, tokens(), seed), PAGES)
        s.close()
    return {"pages": 2 * PAGES, "wrong": 0}


def tensor_parallel_whole(rank, mode):
    """MLA: all ranks have the same KV. Rank 0 writes, both read, and so does an engine of another size."""
    model = f"tp-mla-{mode}"
    s = stack(rank, mode, kind="mla", tp=(1, 2), model=model)
    names = rank.stored()
    s.put(tokens(), 100)
    expect("names after rank 1 had a backup", rank.stored(), names)
    s.close()
    s = stack(rank, mode, kind="mla", tp=(0, 2), model=model)
    s.put(tokens(), 100)
    s.close()
    for tp in ((0, 2), (1, 2), (0, 1), (3, 4)):
        s = stack(rank, mode, kind="mla", tp=tp, model=model)
        expect(f"rank {tp}, pages", fetched(s, tokens(), 100), PAGES)
        s.close()
    return {"pages": 4 * PAGES, "wrong": 0}


def killed(rank, mode):
    """The rank is killed and comes back, with what it finds in its arena; the stack is the same all the time."""
    s = stack(rank, mode, model=f"killed-{mode}")
    try:
        s.put(tokens(), 7)
        expect("pages", fetched(s, tokens(), 7), PAGES)
        rank.kill()
        expect("pages while the rank is away", fetched(s, tokens(), 7), 0)
        s.forget()
        s.put(tokens(), 7)  # is stored nowhere, and harms nobody
        expect("pages while the rank is away", fetched(s, tokens(), 7), 0)
        rank.start()
        time.sleep(2.5)  # clients try again after 2 s at most
        back = fetched(s, tokens(), 7)
        s.forget()
        s.put(tokens(), 7)
        expect("pages after the rank came back", fetched(s, tokens(), 7), PAGES)
    finally:
        s.close()
    return {"pages": PAGES, "pages_while_away": 0, "pages_when_back": back, "wrong": 0}


def flipped(rank, mode):
    """Bits of the arena change while pages are stored: a few at a time, so that other pages are still found, then many. The arena
    is a small one of its own, so that bits do not get lost in what nobody asks for."""
    work = rank.work / f"flipped-{mode}"
    work.mkdir()
    bits, found = 0, []
    with Rank(work, 32 << 20, program=rank.program) as own:
        s = stack(own, mode, model="flipped")
        try:
            for i in range(21):
                expect("clear", s.backend.clear(), True)
                s.forget()
                s.put(tokens(), 7)
                n = 2 if i < 20 else 960
                own.flip(n, i)
                bits += n
                found.append(fetched(s, tokens(), 7))
        finally:
            s.close()
        expect("the rank lives", own.alive(), True)
    expect("some flip was noticed, and some pages were found", 0 < sum(found) < PAGES * len(found), True)
    return {"bits": bits, "pages_found": found, "pages": PAGES, "wrong": 0}


def refusals(rank):
    """What the constructor does not take, and that nothing else raises."""
    import torch
    from cascade_kv.sglang import CascadeHiCache
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName, PoolTransfer

    usual = {"tp_rank": 0, "tp_size": 2, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": True,
             "enable_storage_metrics": True, "is_page_first_layout": True, "model_name": "m",
             "extra_config": {"socket": str(rank.path), "interface_v1": 1}}

    def config(**more):
        return HiCacheStorageConfig(**{**usual, **more})

    refused = 0
    for bad in ({"dcp_size": 2, "logical_page_size": 64}, {"is_mla_model": False, "should_split_heads": True, "tp_lcm_size": 4},
                {"extra_config": {}}, {"extra_config": None}, {"extra_config": {"socket": str(rank.path), "timeout": 0}}):
        try:
            CascadeHiCache(config(**bad), {})
        except ValueError as e:
            refused += str(e).startswith("CascadeHiCache")
    expect("refused", refused, 5)

    b = CascadeHiCache(config(), {})
    keys, indices = ["a" * 64, "b" * 64, "c" * 64], torch.arange(3)
    transfer = PoolTransfer(name=PoolName.DRAFT, host_indices=indices, keys=keys)
    for state in ("without a pool", "closed"):
        expect(f"{state}, batch_get_v1", b.batch_get_v1(keys, indices), [False] * 3)
        expect(f"{state}, batch_set_v1", b.batch_set_v1(keys, None), [False] * 3)
        expect(f"{state}, batch_get_v2", b.batch_get_v2([transfer]), {PoolName.DRAFT: [False] * 3})
        expect(f"{state}, batch_set_v2", b.batch_set_v2([transfer]), {PoolName.DRAFT: [False] * 3})
        expect(f"{state}, batch_get_v2 of nothing", b.batch_get_v2([]), {})
        expect(f"{state}, batch_exists", b.batch_exists(keys), 0)
        expect(f"{state}, batch_exists_v2", b.batch_exists_v2(keys, [transfer]).kv_hit_pages, 0)
        expect(f"{state}, batch_get", b.batch_get(keys, [torch.zeros(8)] * 2), [None] * 3)
        expect(f"{state}, batch_set", b.batch_set(keys, [torch.zeros(8)] * 3), False)
        expect(f"{state}, exists", b.exists(keys[0]), False)
        expect(f"{state}, metrics", b.get_stats().backup_pgs, [])
        b.register_mem_pool_host(object())
        b.on_host_pools_registered()
        b.close()
    return {"refused": refused}


def checks():
    """Names, and what to call with the rank."""
    for kind in ("mha", "mla"):
        for layout in LAYOUTS:
            for mode in MODES:
                yield f"{kind}, {layout}, {mode}", round_trip, (kind, layout, mode)
            for mode in MODES:
                yield f"{kind} with a draft pool, {layout}, {mode}", round_trip, (kind, layout, mode, True)
    for mode in MODES:
        yield f"two ranks, mha, {mode}", tensor_parallel_sharded, (mode,)
        yield f"two ranks, mla, {mode}", tensor_parallel_whole, (mode,)
        yield f"bits flipped, {mode}", flipped, (mode,)
        yield f"killed, {mode}", killed, (mode,)
    yield "refusals", refusals, ()


def main():
    program, work = map(pathlib.Path, sys.argv[1:3])
    only = sys.argv[3:]
    logging.basicConfig(level=logging.WARNING)
    figures, failed = {}, 0
    with Rank(work, 512 << 20, program=program) as rank:
        for name, check, how in checks():
            if only and not any(o in name for o in only):
                continue
            start = time.monotonic()
            try:
                figures[name] = check(rank, *how)
            except Exception as e:
                traceback.print_exc()
                figures[name], failed = {"failed": f"{type(e).__name__}: {e}"}, failed + 1
            figures[name]["seconds"] = round(time.monotonic() - start, 2)
            print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
    with os.fdopen(_out, "w") as out:
        json.dump(figures, out, indent=2)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
