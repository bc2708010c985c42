"""CascadeConnector as docs/vllm.md sets it up: vLLM stores layer by layer in one process and loads so in a fresh one, whose rank is then
damaged and killed; and so with a rank whose memory is too small for it, and which has the rest on a disk below."""

import json
import time

from engines import daemon, snippets
from engines.daemon import check
from engines.rank import Rank
from engines.vllm import engine, install, pair
from engines.vllm.pair import CHUNK, FEW, MORE, PREFIX, SEEDS, cached, tokens

LAYERS = 4
HYBRID = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 256}
# What a model's configuration differs in, by how many workers it is computed, prompts and tokens of one, and what vLLM's log says of loads.
CASES = {
    "one": ({}, 1, 4, PREFIX, "loaded layer by layer"),
    "workers": ({}, 2, 2, 512, "loaded before their requests are computed: what other workers"),
    "groups": (HYBRID, 1, 4, PREFIX, "loaded before their requests are computed: vLLM takes no failures"),
}


def kv_transfer(socket):
    (text,) = snippets.of(daemon.ROOT / "docs" / "vllm.md", "json")
    kv = json.loads(text)
    kv["kv_connector_extra_config"]["socket"] = str(socket)
    return kv


def test(work, program=None):
    figures = {}
    for name, case in CASES.items():
        folder = work.with_name(f"{work.name}-{name}")
        folder.mkdir()
        figures[name] = proof(folder, program, *case)
    figures["disk"] = disk(work, program)
    figures["by_ring"] = by_ring(work, program)
    return figures


def proof(work, program, config, workers, prompts, prefix, how):
    seeds, more = SEEDS[:prompts], MORE[: prompts // 2]
    with Rank(work, 1 << 30, program=program, cold=True) as rank:
        kv = kv_transfer(rank.path)
        with engine.Engine(install.home(), work, "store", kv, config, workers) as first:
            check(how in first.said, f"they are {how}")
            reference = first.ask(seeds + more, prefix)
            check(cached(reference) == [0] * len(seeds + more), "the first process finds nothing and computes")
            objects = len(seeds + more) * prefix // CHUNK * LAYERS * workers
            stored(rank, objects)
            made = [{"tokens": 128, "layers": 1, "dtype": "float32"}] * workers
            check(rank.layouts() == made, f"the rank knows how they are made: {rank.layouts()}")
        with engine.Engine(install.home(), work, "load", kv, config, workers) as second:
            loaded = second.ask(seeds, prefix)
            check(cached(loaded) == [prefix] * prompts, f"a fresh process finds {prefix} tokens of each prompt")
            check(tokens(loaded) == tokens(reference)[:prompts], f"its tokens equal those computed, {len(tokens(loaded)[0])} of each")
            counted = loaded["metrics"]
            wanted = prompts * prefix // CHUNK * LAYERS * workers
            if config:  # of the layers with a window, the blocks within it
                wanted -= prompts * (prefix - config["sliding_window"]) // CHUNK * LAYERS // 2 * workers
            check(counted.get("vllm:cascade_layers_loaded") == wanted, f"{wanted} objects were loaded: {counted}")
            rank.flip(FEW, FEW)
            found = second.ask(seeds, prefix, reset=True)
            right = tokens(found) == tokens(reference)[:prompts]
            check(right, f"{FEW} bits of the arena flipped: {sum(cached(found))} of {prefix * prompts} tokens are loaded, and what is computed from them is right")
            pair.killed(rank, second, tokens(reference), seeds, more, prefix)
    return {"prompts": prompts, "objects": objects, "cached_of_each": prefix, "equal_of_each": len(tokens(loaded)[0]), "found_after_flips": cached(found)}


def disk(work, program):
    """Stored are 96 MiB, of which the rank's memory holds a third. A fresh process loads them by a ring from a fresh rank, which has its disks alone."""
    work = work / "disk"
    work.mkdir()
    with Rank(work, 32 << 20, program=program, nvme_bytes=512 << 20) as rank:
        kv = kv_transfer(rank.path)
        with engine.Engine(install.home(), work, "store", kv) as first:
            reference = first.ask(SEEDS + MORE)
            stored(rank, len(SEEDS + MORE) * PREFIX // CHUNK * LAYERS)
        for i in range(48):  # what is in memory leaves for the disks
            rank.do("CASCADE.PUT", f"fill{i}", bytes([i]) * (1 << 20))
        rank.stop()
        rank.arena.unlink(missing_ok=True)
        rank.start()
        kv["kv_connector_extra_config"]["ring"] = True
        with engine.Engine(install.home(), work, "load", kv) as second:
            loaded = second.ask(SEEDS)
            check(cached(loaded) == [PREFIX] * 4, f"a fresh process finds {PREFIX} tokens of each prompt on the disks of a fresh rank")
            check(tokens(loaded) == tokens(reference)[:4], f"its tokens equal those computed, {len(tokens(loaded)[0])} of each")
            memory, disks = json.loads(rank.ask("CASCADE.STATS"))["tiers"]
            wanted = len(SEEDS) * PREFIX // CHUNK * LAYERS
            came = disks["hits"] == wanted and memory["usage"]["Blocks"] == 0
            check(came, f"all {wanted} objects came from the disks, none through memory: {disks['hits']}, {memory['usage']['Blocks']}")
            rank.kill()
            away = second.ask(SEEDS, reset=True)
            check(cached(away) == [0] * 4 and tokens(away) == tokens(reference)[:4], "with the rank killed the engine computes, and its tokens are right")
            rank.arena.unlink(missing_ok=True)
            rank.start()
            for _ in range(10):  # a client tries again after at most two seconds
                back = second.ask(SEEDS, reset=True)
                check(tokens(back) == tokens(reference)[:4], f"started again without its memory: {sum(cached(back))} of {pair.ALL} tokens are found, all tokens are right")
                if sum(cached(back)) > 0:
                    break
            check(sum(cached(back)) > 0, "what the disks kept is found")
    return disks["hits"]


def by_ring(work, program):
    """What is computed goes by a ring to the disks, and from there to a fresh process, none of it through the rank's memory."""
    work = work / "ring"
    work.mkdir()
    with Rank(work, 32 << 20, program=program, nvme_bytes=2 << 30) as rank:
        deadline = time.monotonic() + 300
        while levels(rank)[1]["usage"]["Missing"] and time.monotonic() < deadline:
            time.sleep(0.2)
        kv = kv_transfer(rank.path)
        kv["kv_connector_extra_config"] |= {"ring": True, "ring_stores": True}
        objects = len(SEEDS + MORE) * PREFIX // CHUNK * LAYERS
        with engine.Engine(install.home(), work, "store", kv) as first:
            reference = first.ask(SEEDS + MORE)
            stored(rank, objects)
            memory, disks = (t["usage"]["Blocks"] for t in levels(rank))
            check((memory, disks) == (0, objects), f"all {objects} objects went to the disks, none through memory: {disks}, {memory}")
        rank.stop()
        rank.arena.unlink(missing_ok=True)
        rank.start()
        with engine.Engine(install.home(), work, "load", kv) as second:
            loaded = second.ask(SEEDS)
            check(cached(loaded) == [PREFIX] * 4, f"a fresh process finds {PREFIX} tokens of each prompt on the disks of a fresh rank")
            check(tokens(loaded) == tokens(reference)[:4], f"its tokens equal those computed, {len(tokens(loaded)[0])} of each")
            memory, disks = levels(rank)
            wanted = len(SEEDS) * PREFIX // CHUNK * LAYERS
            came = disks["hits"] == wanted and memory["usage"]["Blocks"] == 0
            check(came, f"all {wanted} objects came from the disks, none through memory: {disks['hits']}, {memory['usage']['Blocks']}")
    return {"stored": objects, "loaded": wanted}


def levels(rank):
    return json.loads(rank.ask("CASCADE.STATS"))["tiers"]


def stored(rank, objects):
    deadline = time.monotonic() + 60
    while rank.stored() < objects and time.monotonic() < deadline:
        time.sleep(0.1)
    check(rank.stored() == objects, f"each layer of each block is an object of its own for each worker, {objects} in all: {rank.stored()}")
