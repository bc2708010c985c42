"""CascadeConnector as docs/vllm.md sets it up: vLLM stores layer by layer in one process and loads so in a fresh one, whose rank is then
damaged and killed."""

import json
import time

from engines import daemon, snippets
from engines.daemon import check
from engines.rank import Rank
from engines.vllm import engine, install, pair
from engines.vllm.pair import ALL, CHUNK, FEW, MORE, PREFIX, SEEDS, cached, tokens

LAYERS = 4


def kv_transfer(socket):
    (text,) = snippets.of(daemon.ROOT / "docs" / "vllm.md", "json")
    kv = json.loads(text)
    kv["kv_connector_extra_config"]["socket"] = str(socket)
    return kv


def test(work, program=None):
    with Rank(work, 1 << 30, program=program, cold=True) as rank:
        kv = kv_transfer(rank.path)
        with engine.Engine(install.home(), work, "store", kv) as first:
            reference = first.ask(SEEDS + MORE)
            check(cached(reference) == [0] * 6, "the first process finds nothing and computes")
            objects = len(SEEDS + MORE) * PREFIX // CHUNK * LAYERS
            stored(rank, objects)
            check(rank.layouts() == [{"tokens": 128, "layers": 1, "dtype": "float32"}], f"the rank knows how they are made: {rank.layouts()}")
        with engine.Engine(install.home(), work, "load", kv) as second:
            loaded = second.ask(SEEDS)
            check(cached(loaded) == [PREFIX] * 4, f"a fresh process finds {PREFIX} tokens of each prompt")
            check(tokens(loaded) == tokens(reference)[:4], f"its tokens equal those computed, {len(tokens(loaded)[0])} of each")
            rank.flip(FEW, FEW)
            found = second.ask(SEEDS, reset=True)
            check(tokens(found) == tokens(reference)[:4], f"{FEW} bits of the arena flipped: {sum(cached(found))} of {ALL} tokens are loaded, and what is computed from them is right")
            pair.killed(rank, second, tokens(reference))
    folder = work.with_name(work.name + "-ring")
    folder.mkdir()
    from_disks = ringed(folder, program, tokens(reference), objects)
    return {"prompts": len(SEEDS), "from_disks": from_disks, "objects": objects, "cached_of_each": PREFIX, "equal_of_each": len(tokens(loaded)[0]), "found_after_flips": cached(found)}


def ringed(work, program, reference, objects):
    """The same by a ring, of a rank whose memory is too small and which then has its disks alone. How many objects the ring has read."""
    with Rank(work, 32 << 20, program=program) as rank:
        rank.stop()
        rank.command += ["--nvme-paths", str(work / "disk"), "--nvme-bytes", "512MiB", "--nvme-file-bytes", "256KiB"]
        rank.start()
        kv = kv_transfer(rank.path)
        kv["kv_connector_extra_config"]["ring"] = True
        with engine.Engine(install.home(), work, "store", kv) as first:
            check(tokens(first.ask(SEEDS + MORE)) == reference, "with a ring the first process computes what it computed without")
            stored(rank, objects)
        for i in range(48):  # what is in memory leaves for the disks
            rank.do("CASCADE.PUT", f"fill{i}", bytes([i]) * (1 << 20))
        rank.stop()
        rank.arena.unlink(missing_ok=True)
        rank.start()
        with engine.Engine(install.home(), work, "load", kv) as second:
            loaded = second.ask(SEEDS)
            check(cached(loaded) == [PREFIX] * 4, f"a fresh process finds {PREFIX} tokens of each prompt on the disks of a fresh rank")
            check(tokens(loaded) == reference[:4], "its tokens equal those computed")
            memory, disks = json.loads(rank.ask("CASCADE.STATS"))["tiers"]
            wanted = len(SEEDS) * PREFIX // CHUNK * LAYERS
            check(disks["hits"] == wanted and memory["usage"]["Blocks"] == 0, f"all {wanted} objects came from the disks, none through memory: {disks['hits']}, {memory['usage']['Blocks']}")
    return disks["hits"]


def stored(rank, objects):
    deadline = time.monotonic() + 60
    while len(rank.parents()) < objects and time.monotonic() < deadline:
        time.sleep(0.1)
    check(len(rank.parents()) == objects, f"each of {LAYERS} layers of each block is an object of its own, {objects} in all: {len(rank.parents())}")
