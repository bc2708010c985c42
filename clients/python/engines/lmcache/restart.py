"""LMCache's multiprocess server, stopped and started again with an empty L1: what it serves then comes from the rank."""

from engines.daemon import check
from engines.lmcache.server import CHUNKS, Server
from engines.rank import Rank

SHAPE = "(2,256,16,8,128):bfloat16:32"  # 32 MiB for a chunk of 256 tokens
REQUESTS = 2


def test(work, program=None):
    with Rank(work, 1 << 30, program=program) as rank:
        (first, sums), _ = once(rank, work, "first")
        (second, again), l1 = once(rank, work, "second")
    check(first == [0] * REQUESTS, "the first server finds nothing")
    check(second == [CHUNKS] * REQUESTS, "the second, with an empty L1, finds both chunks of each request")
    check(sums == again, "checksums of what both served are equal")
    return {"requests": REQUESTS, "l1": l1}


def once(rank, work, name):
    with Server(rank, work, name, SHAPE, REQUESTS) as server:
        told = server.ask()
        server.settle()
        server.calm()
        return told, server.l1()
