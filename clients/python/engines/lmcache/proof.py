"""LMCache's own L2 benchmark on a rank and on redis-server, in turns."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

from .. import Failed, environment, say
from ..environment import Missing

VERSION = "0.5.6"
LIMITS = {"store": 1.0, "load": 1.2}  # of the rank's throughput to redis-server's
PHASES = {"op_0": "store", "op_1": "lookup", "op_2": "load"}
START_SECONDS = 60


def need(program, remedy):
    found = shutil.which(program)
    if not found:
        raise Missing(f"{program} is missing: {remedy}")
    return found


def lmcache():
    """The lmcache command of an environment that is complete."""
    return environment.make("lmcache", VERSION, size="6 GB", works=lambda home: answers(home / "bin" / "lmcache"), say=say) / "bin" / "lmcache"


def answers(command):
    return command.exists() and subprocess.run([command, "bench", "l2", "--help"], capture_output=True).returncode == 0


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Server:
    """A Redis-protocol server as a child process; a context manager."""

    def __init__(self, name, port, command, log):
        self.name, self.port, self.command, self.log = name, port, command, log

    def __enter__(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CASCADE_")}
        with self.log.open("wb") as out:
            self.child = subprocess.Popen(self.command, stdout=out, stderr=out, env=env)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if self.do("PING").startswith(b"+PONG"):
                    return self
            except OSError:
                pass
            if self.child.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise Failed(f"{self.name} does not answer: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(30)
            return
        self.child.kill()
        self.child.wait()

    def do(self, *words):
        """One command on a connection of its own; the start of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as s:
            s.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words))
            return s.recv(4096)

    def flush(self):
        if not self.do("FLUSHDB").startswith(b"+OK"):
            raise Failed(f"{self.name} does not flush")


def servers(work, args):
    values = args.keys * args.size_kib * 1024 * args.rounds
    room = 4 * values + (512 << 20)
    redis_port, rank_port = free_port(), free_port()
    redis = [need("redis-server", "apt-get install redis-server"), "--bind", "127.0.0.1", "--port", str(redis_port), "--save", "",
             "--appendonly", "no", "--dir", str(work)]
    rank = [str(args.rank), "--listen", f"127.0.0.1:{rank_port}", "--socket", str(work / "rank.sock"), "--shm-bytes", str(room),
            "--shm-path", f"/dev/shm/{work.name}.arena", "--lustre-dir=", "--password-file=", "--admin-listen=", "--log-level", "warn"]
    return Server("rank", rank_port, rank, work / "rank.log"), Server("redis", redis_port, redis, work / "redis.log")


def measure(command, server, args, work):
    """One run of the benchmark: throughput by phase."""
    server.flush()  # the keys are the same in every run
    out = work / "result.json"
    out.unlink(missing_ok=True)
    adapter = {"type": "resp", "host": "127.0.0.1", "port": server.port, "num_workers": 8}
    run = subprocess.run(
        [command, "bench", "l2", "--l2-adapter", json.dumps(adapter), "--num-keys", str(args.keys), "--data-size-kb", str(args.size_kib),
         "--rounds", str(args.rounds), "--warmup-rounds", "1", "--lookup-max-hit-rate", "1.0", "--no-skip-verify",
         "--format", "json", "--output", str(out), "--quiet"],
        cwd=work, capture_output=True, text=True, timeout=300)
    if run.returncode != 0 or not out.exists():
        raise Failed(f"lmcache bench l2 on {server.name} ended with {run.returncode}: {(run.stdout + run.stderr)[-3000:]}")
    metrics = json.loads(out.read_text())["metrics"]
    figures = {}
    for op, phase in PHASES.items():
        m = metrics[op]
        # The benchmark itself only counts what fails.
        if m["total_success"] < m["total_keys"] or m["rounds_timed_out"]:
            raise Failed(f"{phase} on {server.name}: {m['total_success']} of {m['total_keys']} keys, {m['rounds_timed_out']} rounds timed out")
        figures[phase] = m["ops_per_sec_avg"] if phase == "lookup" else m["throughput_avg_mbps"]
    return figures


def pairs(command, rank, redis, args, work):
    """args.pairs runs on each server, in turns; who goes first changes."""
    runs = {rank: [], redis: []}
    measure(command, redis, args, work)  # reads the package from disk into memory
    for i in range(args.pairs):
        for server in ((rank, redis), (redis, rank))[i % 2]:
            runs[server].append(measure(command, server, args, work))
            say(f"pair {i + 1} of {args.pairs}, {server.name}: " + ", ".join(f"{p} {v:.0f}" for p, v in runs[server][-1].items()))
    return runs[rank], runs[redis]


def summary(rank, redis):
    out = {}
    for phase in PHASES.values():
        a, b = [r[phase] for r in rank], [r[phase] for r in redis]
        ratios = [x / y for x, y in zip(a, b)]
        out[phase] = {
            "unit": "keys/s" if phase == "lookup" else "MiB/s",
            "rank": {"median": statistics.median(a), "min": min(a), "max": max(a)},
            "redis": {"median": statistics.median(b), "min": min(b), "max": max(b)},
            "ratio_of_medians": statistics.median(a) / statistics.median(b),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
    return out


def table(phases):
    rows = [("phase", "rank", "redis", "unit", "of medians", "median of pairs", "limit")]
    for phase, p in phases.items():
        rows.append((phase, f"{p['rank']['median']:.0f}", f"{p['redis']['median']:.0f}", p["unit"], f"{p['ratio_of_medians']:.2f}",
                     f"{p['ratio']:.2f}", f"{LIMITS[phase]:.1f}" if phase in LIMITS else "-"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip(), file=sys.stderr)


def add_options(p):
    p.add_argument("--pairs", type=int, default=7, help="lmcache: runs on each server, at least 5")
    p.add_argument("--keys", type=int, default=32, help="lmcache: keys of one submit")
    p.add_argument("--size-kib", type=int, default=2048, help="lmcache: KiB of one value")
    p.add_argument("--rounds", type=int, default=4, help="lmcache: rounds of each run")


def prove(args, work):
    if args.pairs < 5:
        raise Failed("--pairs: at least 5, or a median says little")
    command = lmcache()
    rank, redis = servers(work, args)
    try:
        with rank, redis:
            phases = summary(*pairs(command, rank, redis, args, work))
    finally:
        pathlib.Path(f"/dev/shm/{work.name}.arena").unlink(missing_ok=True)
    below = [p for p, limit in LIMITS.items() if phases[p]["ratio"] < limit]
    config = {"lmcache": VERSION, "pairs": args.pairs, "keys": args.keys, "size_kib": args.size_kib, "rounds": args.rounds, "num_workers": 8}
    figures = {"config": config, "phases": phases, "limits": LIMITS}
    table(phases)
    if below:
        raise Failed("below the limit: " + ", ".join(f"{p} {phases[p]['ratio']:.2f} < {LIMITS[p]}" for p in below), figures)
    return figures
