"""What one call costs: beside redis-py on redis-server, in turns, on the same machine at the same time."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from servers import Children, redis_py

KEYS = 512
VIEW = 2 << 20
SMALL = 42 << 10


def seconds(call: Callable[[], object], times: int) -> float:
    """The median of so many calls."""
    out = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        out.append(time.perf_counter() - began)
    return statistics.median(out)


def in_turns(ours: Callable[[], object], theirs: Callable[[], object], rounds: int, times: tuple[int, int]) -> dict[str, float]:
    """Both in each round, the first one changing. The speedup is the median of the rounds' ratios."""
    a, b = [], []
    for i in range(rounds):
        if i % 2:
            b.append(seconds(theirs, times[1]))
            a.append(seconds(ours, times[0]))
        else:
            a.append(seconds(ours, times[0]))
            b.append(seconds(theirs, times[1]))
    ratios = [y / x for x, y in zip(a, b)]
    return {"ours_us": 1e6 * statistics.median(a), "theirs_us": 1e6 * statistics.median(b), "speedup": statistics.median(ratios),
            "least": min(ratios), "most": max(ratios)}  # fmt: skip


def measure(children: Children, rounds: int) -> dict[str, object]:
    socket, _ = children.rank(1 << 30)
    redis_socket, _ = children.redis()
    from cascade_kv import Client

    redis = redis_py().Redis(unix_socket_path=redis_socket, socket_timeout=30)
    with Client(socket) as client:
        return {**probe(client, redis, rounds), **views(client, redis, rounds), **copies(client, rounds)}


def probe(client, redis, rounds: int) -> dict[str, object]:
    """A prompt of 512 blocks: CASCADE.PROBE against EXISTS for each key, as LMCache asks."""
    keys = [f"{i:064x}" for i in range(KEYS)]
    for k in keys:
        redis.set(k, b"x" * 1000)
        client.put("probe", k, k.encode())

    def ours() -> None:
        assert client.probe("probe", keys).hits == KEYS

    def theirs() -> None:
        for k in keys:
            assert redis.exists(k) == 1

    p = in_turns(ours, theirs, rounds, (20, 2))
    c = in_turns(lambda: client.contains("probe", keys), theirs, rounds, (20, 1))
    return {"probe_speedup": p["speedup"], "probe": p, "contains_us_a_key": c["ours_us"] / KEYS}


def views(client, redis, rounds: int) -> dict[str, object]:
    """A block of 2 MiB: a view against GET; the bytes are compared outside of the time."""
    value = os.urandom(VIEW)
    redis.set("view", value)
    client.put("views", "view", value)
    with client.view("views", "view") as v:
        if v.array.tobytes() != value or redis.get("view") != value:
            raise RuntimeError("wrong bytes")

    def ours() -> None:
        with client.view("views", "view"):
            pass

    v = in_turns(ours, lambda: redis.get("view"), rounds, (50, 20))
    return {"view_speedup": v["speedup"], "view": v}


def copies(client, rounds: int) -> dict[str, object]:
    """Gets with a copy: 42 KiB, and 2 MiB against memcpy of it."""
    small, large = os.urandom(SMALL), os.urandom(VIEW)
    client.put("copies", "small", small)
    client.put("copies", "large", large)
    a, b = bytearray(SMALL), bytearray(VIEW)
    source, target = np.frombuffer(large, np.uint8), np.frombuffer(bytearray(VIEW), np.uint8)
    m = in_turns(lambda: client.get_into("copies", "large", b), lambda: np.copyto(target, source), rounds, (50, 50))
    small_us = 1e6 * statistics.median(seconds(lambda: client.get_into("copies", "small", a), 200) for _ in range(rounds))
    if a != small or b != large:
        raise RuntimeError("wrong bytes")
    return {"get_42k_us": small_us, "get_2m_us": m["ours_us"], "get_2m_of_memcpy": m["speedup"]}
