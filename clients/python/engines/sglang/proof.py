"""SGLang: its cache stack on a rank, every byte compared, the whole engine twice through each of its interfaces, the matrix of faults, and a
level that is slower than computing."""

import json
import subprocess
import sys

from .. import Failed, daemon, environment
from ..faults import built
from . import docs, faults, slow, whole

VERSION = "0.5.23"
STACK_SECONDS = 1800


def add_options(p):
    p.add_argument("--sglang-prompts", type=int, default=32, help="sglang: prompts of each engine")
    p.add_argument("--sglang-prompt-tokens", type=int, default=400, help="sglang: tokens of a prompt")
    p.add_argument("--sglang-modes", nargs="*", default=list(whole.MODES), choices=list(whole.MODES), help="sglang: interfaces of the whole engine")
    p.add_argument("--sglang-no-stack", action="store_true", help="sglang: without the checks of the cache stack")
    p.add_argument("--sglang-no-docs", action="store_true", help="sglang: without docs/sglang.md")
    p.add_argument("--sglang-no-faults", action="store_true", help="sglang: without the matrix of faults")
    p.add_argument("--sglang-no-slow", action="store_true", help="sglang: without the level that is slower than computing")


def install():
    return environment.make("sglang", VERSION, size="10 GB", works=imports)


def prove(args, work):
    python = install() / "bin" / "python"
    figures = {"config": {"sglang": VERSION, "prompts": args.sglang_prompts, "prompt_tokens": args.sglang_prompt_tokens}}
    failed = []
    if args.faults:
        args.sglang_no_slow, args.sglang_no_stack, args.sglang_no_docs, args.sglang_modes = True, True, True, []
    if not args.sglang_no_faults:
        failing(python, work, {"faults": faults.test, "faults-side": faults.test_side}, figures, failed)
    if not args.sglang_no_slow:
        failing(python, work, {"slow": slow.test}, figures, failed)
    if not args.sglang_no_stack:
        figures["stack"] = stack(python, args, work / "stack", failed)
    for mode in args.sglang_modes:
        folder = work / mode
        folder.mkdir()
        try:
            figures[mode] = whole.run_mode(python, args.rank, folder, mode, args, daemon.free_port(), trials=mode == "v1+memfd")
        except Failed as e:
            figures[mode] = {**(e.figures or {}), "failed": str(e)}
            failed.append(f"{mode}: {e}")
    if not args.sglang_no_docs:
        try:
            (work / f"{work.name}-docs").mkdir()
            figures["docs"] = docs.test(python, args.rank, work / f"{work.name}-docs", daemon.free_port())
        except Failed as e:
            failed.append(f"docs: {e}")
    if failed:
        raise Failed("; ".join(failed), figures)
    return figures


def failing(python, work, tests, figures, failed):
    """Tests with a daemon of which steps fail or wait."""
    program = built()
    for name, test in tests.items():
        folder = work / f"{work.name}-{name}"  # the arenas in /dev/shm are called after it
        folder.mkdir()
        try:
            figures[name] = test(python, folder, program)
        except Failed as e:
            figures[name] = {**(e.figures or {}), "failed": str(e)}
            failed.append(f"{name}: {e}")


def imports(home):
    """Whether the environment has all that SGLang imports without an accelerator."""
    program = home / "bin" / "python"
    return program.exists() and subprocess.run([program, "-c", "import sglang.srt.mem_cache.hicache_storage"], env=whole.environ(),
                                               stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode == 0


def stack(python, args, work, failed):
    """The checks of the cache stack, in a process of SGLang's environment."""
    work.mkdir()
    run = subprocess.run([python, "-m", "engines.sglang.checks", args.rank.resolve(), work], env=whole.environ(), cwd=work,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=STACK_SECONDS)
    try:
        figures = json.loads(run.stdout)
    except ValueError:
        raise Failed(f"the checks of the cache stack ended with {run.returncode} and no figures") from None
    failed += [f"{name}: {f['failed']}" for name, f in figures.items() if "failed" in f]
    if run.returncode != 0 and not failed:
        failed.append(f"the checks of the cache stack ended with {run.returncode}")
    return figures
