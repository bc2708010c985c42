"""SHA-256 by the CPU, as context for what a block's id costs: one thread and one for each core, over blocks of 8 MiB."""

import concurrent.futures
import hashlib
import os
import time

import kit

report = kit.Report()
data = [os.urandom(8 * kit.MIB) for _ in range(os.cpu_count())]
for threads in (1, os.cpu_count()):
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        n, t = 4 * threads, time.monotonic()
        list(pool.map(lambda i: hashlib.sha256(data[i % len(data)]).digest(), range(n)))
        report.put(**{f"sha256_{threads}_threads_gb_s": round(n * 8 * kit.MIB / (time.monotonic() - t) / 1e9, 2)})
