"""Copies between device and host, by the kind of host memory, the size of a block and the way to enqueue; what registering costs."""

import ctypes
import os
import random
import time

import numpy as np

import kit
from kit import GIB, KIB, MIB

from cascade_kv import memory

TOTAL = (16 if kit.FAKE else 512) * MIB
ROUNDS = 2 if kit.FAKE else 5
STREAMS = 4

cu, lib, report = kit.Driver(), kit.helper(), kit.Report()
lib.kit_load(kit.LIBRARY.encode())
streams = [cu.stream() for _ in range(STREAMS)]
done = cu.event(1)
arena = kit.WORK / "copies.arena" if kit.FAKE else f"/dev/shm/kit-{os.getpid()}.arena"
keep = []


def shared(path, size, read_only=False):
    """Memory of a memfd, or of a file as a rank has its arena in. read_only: in a mapping as a client has it."""
    fd = os.memfd_create("kit") if path is None else os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    array = memory.map_file(fd, size, write=True)
    array[::4096] = 1
    if read_only:
        array = memory.map_file(fd, size)
    os.close(fd)
    if path is not None:
        os.unlink(path)
    keep.append(array)
    return array.ctypes.data


def register(at, size, pieces, flags):
    part, t = size // pieces, time.monotonic()
    same = all([cu.register(at + i * part, part, flags) == at + i * part for i in range(pieces)])
    middle = time.monotonic()
    for i in range(pieces):
        cu.cuMemHostUnregister(at + i * part)
    return {"register_s": round(middle - t, 4), "unregister_s": round(time.monotonic() - middle, 4), "same_address": same}


def registering():
    """Seconds for a GiB, its pages there before, and in pieces of 64 MiB."""
    size = 64 * MIB if kit.FAKE else GIB
    found = {"bytes": size}
    for name, path, flags in (("memfd", None, kit.HOST_SIDE), ("dev_shm", arena, kit.HOST_SIDE), ("dev_shm_read_only", arena, kit.HOST_SIDE | kit.READ_ONLY)):
        at = shared(path, size)
        for pieces in (1, size // (64 * MIB)):
            try:
                found[f"{name}_{pieces}_pieces"] = register(at, size, pieces, flags)
            except kit.CudaError as e:
                found[f"{name}_{pieces}_pieces"] = str(e)
        keep.pop()
    return found


def run(way, up, device, host, size):
    """Seconds from the first call until all is there."""
    n = len(device)
    t = time.monotonic()
    if way == "each":
        error = lib.kit_copies(int(up), kit.p(device), kit.p(host), ctypes.c_uint64(n), ctypes.c_uint64(size), ctypes.c_void_p(streams[0]))
        if error:
            raise RuntimeError(f"copy: {error}")
        cu.cuStreamSynchronize(streams[0])
    else:
        use = streams[:int(way[5:])]
        sizes = np.full(n, size, np.uint64)
        for i, s in enumerate(use):
            to, source = (device, host) if up else (host, device)
            part = slice(i * n // len(use), (i + 1) * n // len(use))
            if part.stop > part.start:
                cu.batch(to[part], source[part], sizes[part], s)
        for s in use:
            cu.cuStreamSynchronize(s)
    return time.monotonic() - t


def rates():
    memories = {"pinned": cu.host_alloc(TOTAL), "memfd": shared(None, TOTAL), "arena": shared(arena, TOTAL), "read_only": shared(arena, TOTAL, True), "pageable": shared(None, TOTAL)}
    for name in ("memfd", "arena"):
        cu.register(memories[name], TOTAL)
    try:
        cu.register(memories["read_only"], TOTAL, kit.HOST_SIDE | kit.READ_ONLY)
    except kit.CudaError as e:
        del memories["read_only"]
        report.put(read_only_error=str(e))
    device = cu.alloc(TOTAL)
    figures = {}
    for size in (64 * KIB, 256 * KIB, MIB, 4 * MIB):
        order = list(range(TOTAL // size))
        random.Random(size).shuffle(order)
        offsets = np.array(order, np.uint64) * np.uint64(size)
        ways = [(m, w, up) for m in memories for w in ("each", "batch1", "batch4") for up in (True, False)
                if (m != "pageable" or w == "each") and (m != "read_only" or up)]
        seen = {}
        for turn in range(ROUNDS + 1):  # in turns; the first warms up
            for m, w, up in ways:
                try:
                    s = run(w, up, device + offsets, memories[m] + offsets[::-1].copy(), size)
                except (kit.CudaError, AttributeError) as e:
                    figures.setdefault("errors", {})[f"{m}/{w}"] = str(e)
                    continue
                if turn:
                    seen.setdefault((m, w, up), []).append(TOTAL / s / 1e9)
        table = {f"{m}/{w}/{'h2d' if up else 'd2h'}": kit.median(v) for (m, w, up), v in seen.items()}
        figures[f"{size // KIB}_kib"] = table
        kit.say(f"{size // KIB} KiB {table}")
        report.put(gb_s=figures)
    whole = {}
    for way in ("h2d", "d2h"):
        ratio = [figures[k].get(f"arena/{w}/{way}", 0) / figures[k].get(f"pinned/{w}/{way}", 1) for k in figures if k.endswith("_kib") for w in ("each", "batch4")]
        whole[f"arena_over_pinned_{way}_min"] = round(min(ratio), 3)
    return whole


report.attempt("register", registering)
report.attempt("ratios", rates)
