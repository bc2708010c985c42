"""The same blocks through every store, in turns; every byte that is read is compared with what was put."""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from servers import Children, Missing
from stores import STORES, Memory, Store

BATCH = 16
LEAST = 4  # blocks at a point, however large
MIB = 1 << 20


class Wrong(Exception):
    """A store that returns other bytes than it was given is named and left out."""


def table(names: Sequence[str], kib: Sequence[int], mib: int, rounds: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows, one for each store and size, and why stores, or some sizes of them, are not among them."""
    memory, absent, failed = Memory(max(blocks(k * 1024, mib) * k * 1024 for k in kib)), {}, set()
    samples: dict[tuple[str, int], list[dict[str, float]]] = {}
    stores: list[Store] = []
    with Children() as children:
        for name in names:
            store = STORES[name]()
            try:
                store.initialize({"memory": memory, "children": children, "capacity": max(512 * MIB, 4 * memory.half)})
                stores.append(store)
            except (Missing, RuntimeError) as e:
                absent[name] = str(e)
                print(f"SKIP: {name}: {e}", file=sys.stderr)
        try:
            for size in (k * 1024 for k in kib):
                for i in range(rounds):
                    for store in stores[i % len(stores) :] + stores[: i % len(stores)]:
                        if (store.name, size) in failed:
                            continue
                        try:
                            samples.setdefault((store.name, size), []).append(point(store, size, blocks(size, mib), i))
                        except Exception as e:  # a store that fails at a size is named, and what else there is goes on
                            failed |= {(store.name, k * 1024) for k in kib} if isinstance(e, Wrong) else {(store.name, size)}
                            absent[store.name] = f"at {size >> 10} KiB: {type(e).__name__}: {e}"
                            print(f"FAIL: {store.name} {absent[store.name]}", file=sys.stderr)
        finally:
            for store in stores:
                store.close()
    rows = []
    for (name, size), some in samples.items():
        if (name, size) not in failed:
            figures = {k: statistics.median(s[k] for s in some) for k in some[0]}
            rows.append({"store": name, "what": STORES[name].what, "outlives": STORES[name].outlives, "kib": size >> 10, **figures})
    return rows, absent


def blocks(size: int, mib: int) -> int:
    return max(mib * MIB // size, LEAST)


def point(store: Store, size: int, n: int, turn: int) -> dict[str, float]:
    """Every operation once, over n blocks."""
    memory = store.memory
    source, target = memory.array[: n * size], memory.array[memory.half : memory.half + n * size]
    rng = np.random.default_rng(turn * 1000 + size)
    source[:] = np.frombuffer(rng.bytes(n * size), np.uint8)
    keys = [f"{turn:02d}-{size:08x}-{i:053d}" for i in range(n)]
    at = [i * size for i in range(n)]
    into = [memory.half + o for o in at]
    batches = [slice(i, i + BATCH) for i in range(0, n, BATCH)]
    out: dict[str, float] = {}

    def timed(what: str, calls: Sequence[Callable[[], Any]]) -> None:
        cpu, each = cpu_seconds(store.pids), []
        for call in calls:
            began = time.perf_counter()
            call()
            each.append(time.perf_counter() - began)
        gb = n * size / 1e9
        out[f"{what}_mb_s"] = 1000 * gb / sum(each)
        out[f"{what}_us"] = 1e6 * statistics.median(each)
        out[f"{what}_cpu_s_gb"] = (cpu_seconds(store.pids) - cpu) / gb

    def read(what: str, calls: Sequence[Callable[[], Any]]) -> None:
        target[:] = 0
        timed(what, calls)
        if not np.array_equal(source, target):
            raise Wrong(f"{what}: other bytes than were put")

    store.prepare(size)
    store.clear()
    timed("put", [lambda i=i: store.write([keys[i]], [at[i]], size) for i in range(n)])
    store.clear()
    timed("put_many", [lambda b=b: store.write(keys[b], at[b], size) for b in batches])
    read("get", [lambda i=i: store.read([keys[i]], [into[i]], size) for i in range(n)])
    read("get_many", [lambda b=b: store.read(keys[b], into[b], size) for b in batches])
    began = time.perf_counter()
    present = store.has(keys)
    out["contains_us_a_key"] = 1e6 * (time.perf_counter() - began) / n
    if not all(present):
        raise Wrong("contains: a block that was put is not there")
    store.clear()
    if any(store.has(keys[:BATCH])):
        raise Wrong("contains: a block that was cleared is there")
    return out


def cpu_seconds(pids: Sequence[int]) -> float:
    """Of this process and a store's, all threads."""
    total = 0
    for pid in (os.getpid(), *pids):
        for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except OSError:
                pass  # a thread that ended
    return total / 1e9


def show(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text, sizes apart, the fastest batched reads first."""
    columns = (
        "put_mb_s",
        "put_many_mb_s",
        "get_mb_s",
        "get_many_mb_s",
        "get_us",
        "contains_us_a_key",
        "put_many_cpu_s_gb",
        "get_many_cpu_s_gb",
    )
    lines = []
    for kib in sorted({r["kib"] for r in rows}):
        lines.append(f"{kib} KiB".ljust(16) + " ".join(c.rjust(18) for c in columns))
        for r in sorted((r for r in rows if r["kib"] == kib), key=lambda r: -r["get_many_mb_s"]):
            mark = "" if r["outlives"] else " *"
            lines.append((r["store"] + mark).ljust(16) + " ".join(f"{r[c]:.2f}".rjust(18) for c in columns))
    lines.append("* is lost with the engine's process")
    return "\n".join(lines)
