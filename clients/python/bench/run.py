"""make bench-clients: what calls of the client cost, and the same blocks through it and through other stores. One JSON object.

Everything that is compared runs in turns, on this machine, in this run. Standard error has the progress.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import sys
import tempfile
from typing import Any

import calls
import compare
import numpy as np
import plots
from servers import Children, Missing
from stores import STORES

from engines import Failed, daemon, environment
from engines.sglang import proof, whole


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--json", type=pathlib.Path, required=True, help="file that gets the figures")
    p.add_argument("--rounds", type=int, default=7, help="rounds in which everything is measured once")
    p.add_argument("--stores", default="", help="stores of the table, with commas (default: all that are here; none: no table)")
    p.add_argument("--sizes", default="42,256,1024,2048,8192", help="KiB of the table's blocks, with commas")
    p.add_argument("--mib", type=int, default=16, help="MiB of blocks at each point of the table")
    p.add_argument("--sglang-rounds", type=int, default=5, help="rounds of pages in and out of SGLang's host pool (0: none)")
    p.add_argument("--table-rounds", type=int, default=7, help="rounds of the table")
    return p.parse_args()


def main() -> int:
    args = options()
    load = os.getloadavg()[0]
    out: dict[str, object] = {
        "machine": {"cpus": os.cpu_count(), "load_average": load, "python": platform.python_version(), "numpy": np.__version__},
        "rounds": args.rounds,
    }
    try:
        with Children() as children:
            out.update(calls.measure(children, args.rounds))
    except Missing as e:
        print(f"SKIP: bench-clients: {e}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    names = [n for n in (args.stores.split(",") if args.stores else STORES) if n != "none"]
    unknown = set(names) - set(STORES)
    if unknown:
        raise SystemExit(f"no such stores: {', '.join(sorted(unknown))}; there are {', '.join(STORES)}")
    out["table"], out["absent"] = [], {}
    if names:
        out["table"], out["absent"] = compare.table(names, [int(k) for k in args.sizes.split(",")], args.mib, args.table_rounds)
    if args.sglang_rounds:
        out["sglang_pages"] = sglang_pages(args.sglang_rounds)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(out, indent=2) + "\n")
    for name in ("probe_speedup", "view_speedup", "contains_us_a_key", "get_42k_us", "get_2m_us", "get_2m_of_memcpy"):
        print(f"{name:20} {out[name]:.2f}")
    print(compare.show(out["table"]))
    show_pages(out.get("sglang_pages", {}))
    if out["table"]:
        picture = args.json.with_suffix(".svg")
        try:
            plots.draw(out["table"], picture)
            print(f"plots: {picture}")
        except ImportError as e:
            print(f"SKIP: plots: {e}", file=sys.stderr)
            return 1 if os.environ.get("CI") == "true" else 0
    return 0


def sglang_pages(rounds: int) -> dict[str, Any]:
    """What speed.py measures, in SGLang's environment, which `make test-engines` installs: here it is not installed for that."""
    home = environment.folder() / f"sglang-{proof.VERSION}"
    program = daemon.ROOT / "bin" / "cascaded"
    if not (home / "complete").exists():
        return {"absent": f"{home} is not installed: make test-engines"}
    with tempfile.TemporaryDirectory(prefix="cascade-speed-") as work:
        command = [home / "bin" / "python", "-m", "engines.sglang.speed", program, work, rounds]
        try:
            measured: dict[str, Any] = json.loads(daemon.run(command, timeout=1800, what="engines.sglang.speed", env=whole.environ(), cwd=work))
            return measured
        except Failed as e:
            return {"failed": str(e)}


def show_pages(pages: dict[str, Any]) -> None:
    for what in ("set", "get"):
        if what in pages:
            p = pages[what]
            print(f"SGLang pages, {what}: {p['cascade']:.2f} GB/s, file {p['file']:.2f}, redis {p['redis']:.2f}, {p['ratio_to_better']:.2f} of the better")
    for what in ("absent", "failed"):
        if what in pages:
            print(f"SGLang pages: {pages[what]}")


if __name__ == "__main__":
    sys.exit(main())
