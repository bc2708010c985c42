"""LMCache's multiprocess server, stopped and started again with an empty L1: what it serves then comes from the rank."""

import json
import pathlib
import re
import time

from engines import daemon
from engines.daemon import check
from engines.lmcache import bench, install
from engines.rank import Rank

START_SECONDS = 300
SHAPE = "(2,256,16,8,128):bfloat16:32"  # 32 MiB for a chunk of 256 tokens, two chunks a request
REQUESTS = 2


def test(work, program=None):
    command = install.home() / "bin" / "lmcache"
    with Rank(work, 1 << 30, program=program) as rank:
        first = once(command, rank, work, "first")
        second = once(command, rank, work, "second")
    check(first["cold"] == [0] * REQUESTS, "the first server finds nothing")
    check(second["cold"] == [2] * REQUESTS, "the second, with an empty L1, finds both chunks of each request")
    check(len(first["sums"]) == REQUESTS and first["sums"] == second["sums"], "checksums of what both served are equal")
    return {"requests": REQUESTS, "l1": second["l1"]}


def once(command, rank, work, name):
    """Starts a server, sends it the requests, stops it. What the first look-ups found, and checksums."""
    port, http = daemon.free_port(), daemon.free_port()
    log = work / f"{name}.log"
    shm = f"{work.name}-{name}"
    arguments = ["server", "--host", "127.0.0.1", "--port", port, "--http-host", "127.0.0.1", "--http-port", http, "--supported-transfer-mode", "auto",
                 "--shm-name", shm, "--no-l1-use-lazy", "--l1-size-gb", "1", "--l1-init-size-gb", "1", "--eviction-policy", "LRU",
                 "--l2-adapter", json.dumps(bench.plugin(rank))]
    server = daemon.start([command, *arguments], log, env=daemon.engine_env(), cwd=work)
    try:
        daemon.ready(server, f"http://127.0.0.1:{http}/healthcheck", log, seconds=START_SECONDS, what="lmcache server")
        told = daemon.run([command, "bench", "server", "--rpc-url", f"tcp://127.0.0.1:{port}", "--url", f"http://127.0.0.1:{http}", "--mode", "cpu",
                           "--kvcache-shape-spec", SHAPE, "--start", "0", "--end", REQUESTS],
                          timeout=300, what="lmcache bench server", env=daemon.engine_env(), cwd=work)
        time.sleep(2)  # stores to L2 are behind the answers
    finally:
        daemon.end(server)
        for left in pathlib.Path("/dev/shm").glob(f"*{shm}*"):
            left.unlink(missing_ok=True)
    l1 = re.search(r"rank at [^,]+, L1 ([a-z ,']+)", log.read_text(errors="replace"))
    return {"cold": [int(n) for n in re.findall(r"seq \d+/cold\] LOOKUP: (\d+)/2 chunks hit", told)],
            "sums": re.findall(r"seq (\d+)/warm\] CHECKSUM: (\w+)", told), "l1": l1 and l1[1]}
