"""vLLM on a rank: fresh processes, a rank that is killed, and a server whose own caches are too small."""

from engines.vllm import pair, serve


def add_options(parser):
    parser.add_argument("--vllm-only", choices=("pair", "serve"), help="vllm: one proof alone")


def prove(args, work):
    figures = {}
    for name, proof in (("pair", pair), ("serve", serve)):
        if args.vllm_only in (None, name):
            folder = work / f"{work.name}-{name}"  # the arena in /dev/shm is called after it
            folder.mkdir()
            figures[name] = proof.test(folder, args.rank)
    return figures
