"""vLLM on a rank: the tier alone, fresh processes and a rank that is damaged and killed, the same with the next vLLM and layer by layer, a server whose
own caches are too small, docs/vllm.md, the matrix of faults, a level that is slower than computing, and batch jobs under Slurm."""

from engines import daemon
from engines.faults import built
from engines.vllm import docs, engine, faults, layerwise, pair, serve, slow, slurm
from engines.vllm import install as environments

PROOFS = ("tier", "pair", "next", "layerwise", "serve", "docs", "faults", "slow", "slurm")


def add_options(parser):
    parser.add_argument("--vllm-only", choices=PROOFS, help="vllm: one proof alone")


def install():
    return environments.next_home()  # which lies over the other one


def prove(args, work):
    figures = {}
    only = "faults" if args.faults else args.vllm_only
    for name, proof in zip(PROOFS, (tier, pair.test, pair.test_next, layerwise.test, serve.test, docs.test, failing, slowed, slurm.test)):
        if only in (None, name):
            folder = work / f"{work.name}-{name}"  # the arena in /dev/shm is called after it
            folder.mkdir()
            figures[name] = proof(folder, args.rank)
    return figures


def failing(work, _):
    return faults.test(work, built())


def slowed(work, _):
    return slow.test(work, built())


def tier(work, program):
    """The tests of tier.py, which import vLLM."""
    for home in (environments.home(), environments.next_home()):
        folder = work.with_name(f"{work.name}-{home.name}")
        folder.mkdir()
        daemon.run([home / "bin" / "python", engine.HERE / "tier.py", program, folder], timeout=600, what=f"tier.py with {home.name}", env=engine.env())
    return {"passed": [environments.VERSION, environments.NEXT]}
