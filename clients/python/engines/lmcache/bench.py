"""The L2 benchmark of the real LMCache: a rank, by our plugin or by LMCache's own `resp`, and `resp` on redis-server, in turns.

Every byte is verified by the benchmark. Only ratios are judged: the machine is shared.
"""

import json
import statistics
import sys

from engines import Failed, daemon, say
from engines.lmcache import install
from engines.rank import Rank

PHASES = {"op_0": "store", "op_1": "lookup", "op_2": "load"}
NAMESPACE = "dtypes=uint8,engine=lmcache,model=bench-model"


def plugin(rank):
    return {"type": "plugin", "module_path": "cascade_kv.lmcache", "class_name": "CascadeL2Adapter", "adapter_params": {"socket": str(rank.path)}}


def resp(server):
    return {"type": "resp", "host": "127.0.0.1", "port": server.port, "num_workers": 8}


ENOUGH = 5  # pairs: a median of fewer says little

# How the rank is reached, and what is asked of its throughput to redis-server's, median of pairs.
WAYS = {"resp": (resp, {"store": 1.0, "load": 1.2}), "plugin": (plugin, {"store": 4.0, "lookup": 5.0, "load": 3.0})}


def flush(server):
    # The keys are the same in every run.
    commands = [["FLUSHDB"]] + ([["CASCADE.CLEAR", NAMESPACE]] if server.name == "rank" else [])
    for command in commands:
        answer = server.do(*command)
        if not answer.startswith(b"+OK"):
            raise Failed(f"{server.name} does not flush: {answer!r}")


def measure(command, server, adapter, args, work):
    """One run of the benchmark: throughput by phase."""
    flush(server)
    out = work / "result.json"
    out.unlink(missing_ok=True)
    daemon.run([command, "bench", "l2", "--l2-adapter", json.dumps(adapter), "--num-keys", args.keys, "--data-size-kb", args.size_kib,
                "--rounds", args.rounds, "--warmup-rounds", "1", "--lookup-max-hit-rate", "1.0", "--no-skip-verify",
                "--format", "json", "--output", out, "--quiet"],
               timeout=300, what=f"lmcache bench l2 on {server.name}", env=daemon.engine_env(), cwd=work)
    if not out.exists():
        raise Failed(f"lmcache bench l2 on {server.name} wrote no result")
    metrics = json.loads(out.read_text())["metrics"]
    figures = {}
    for op, phase in PHASES.items():
        m = metrics[op]
        # The benchmark itself only counts what fails.
        if m["total_success"] < m["total_keys"] or m["rounds_timed_out"]:
            raise Failed(f"{phase} on {server.name}: {m['total_success']} of {m['total_keys']} keys, {m['rounds_timed_out']} rounds timed out")
        figures[phase] = m["ops_per_sec_avg"] if phase == "lookup" else m["throughput_avg_mbps"]
    return figures


def pairs(command, rank, adapter, redis, args, work):
    """args.pairs runs on each server, in turns; who goes first changes."""
    turns = ((rank, adapter), (redis, resp(redis)))
    runs = {"rank": [], "redis": []}
    for turn in turns:
        measure(command, *turn, args, work)  # reads the package from disk into memory
    for i in range(args.pairs):
        for server, adapter in (turns, turns[::-1])[i % 2]:
            runs[server.name].append(measure(command, server, adapter, args, work))
            say(f"pair {i + 1} of {args.pairs}, {server.name}: " + ", ".join(f"{p} {v:.0f}" for p, v in runs[server.name][-1].items()))
    return runs["rank"], runs["redis"]


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


def table(phases, limits):
    rows = [("phase", "rank", "redis", "unit", "of medians", "median of pairs", "limit")]
    for phase, p in phases.items():
        rows.append((phase, f"{p['rank']['median']:.0f}", f"{p['redis']['median']:.0f}", p["unit"], f"{p['ratio_of_medians']:.2f}",
                     f"{p['ratio']:.2f}", f"{limits[phase]:.1f}" if phase in limits else "-"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip(), file=sys.stderr)


def test(args, work, way):
    """Figures. Raises Failed, or environment.Missing. args has rank, pairs, keys, size_kib and rounds."""
    adapter, limits = WAYS[way]
    if args.pairs < ENOUGH:
        limits = {}
    command = install.home() / "bin" / "lmcache"
    room = 4 * args.keys * args.size_kib * 1024 * args.rounds + (512 << 20)
    with Rank(work, room, program=args.rank, port=daemon.free_port()) as rank, daemon.redis_server(work, daemon.free_port()) as redis:
        phases = summary(*pairs(command, rank, adapter(rank), redis, args, work))
    table(phases, limits)
    below = [p for p, limit in limits.items() if phases[p]["ratio"] < limit]
    config = {"lmcache": install.VERSION, "pairs": args.pairs, "keys": args.keys, "size_kib": args.size_kib, "rounds": args.rounds}
    figures = {"config": config, "phases": phases, "limits": limits}
    if below:
        raise Failed(f"{way} below the limit: " + ", ".join(f"{p} {phases[p]['ratio']:.2f} < {limits[p]}" for p in below), figures)
    return figures
