"""LMCache on a rank: a server that is started again with an empty L1, one whose rank is damaged and killed, and LMCache's own benchmark
by `resp` and by our plugin; and the matrix of faults."""

from engines import Failed
from engines.faults import built
from engines.lmcache import bench, docs, faults, restart, trials
from engines.lmcache.install import home as install

PROOFS = {
    "restart": lambda args, work: restart.test(work, args.rank),
    "trials": lambda args, work: trials.test(work, args.rank),
    "docs": lambda args, work: docs.test(work, args.rank),
    "faults": lambda args, work: faults.test(work, built()),
    "resp": lambda args, work: bench.test(args, work, "resp"),
    "plugin": lambda args, work: bench.test(args, work, "plugin"),
}


def add_options(p):
    p.add_argument("--lmcache-only", choices=PROOFS, help="lmcache: one proof alone")
    p.add_argument("--pairs", type=int, default=7, help="lmcache: runs on each server; of fewer than 5 only the bytes are judged, not the speed")
    p.add_argument("--keys", type=int, default=32, help="lmcache: keys of one submit")
    p.add_argument("--size-kib", type=int, default=2048, help="lmcache: KiB of one value")
    p.add_argument("--rounds", type=int, default=4, help="lmcache: rounds of each run")


def prove(args, work):
    """Figures of all proofs. One that fails does not keep the next from being tried."""
    figures, failed = {}, []
    only = "faults" if args.faults else args.lmcache_only
    for name, proof in PROOFS.items():
        if only in (None, name):
            folder = work / f"{work.name}-{name}"  # the arena in /dev/shm is called after it
            folder.mkdir()
            try:
                figures[name] = proof(args, folder)
            except Failed as e:
                figures[name] = {**(getattr(e, "figures", None) or {}), "failed": str(e)}
                failed.append(str(e))
    if failed:
        raise Failed("; ".join(failed), figures)
    return figures
