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

import calls
import compare
import numpy as np
from servers import Children, Missing
from stores import STORES


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--json", type=pathlib.Path, required=True, help="file that gets the figures")
    p.add_argument("--rounds", type=int, default=7, help="rounds in which everything is measured once")
    p.add_argument("--stores", default="", help="stores of the table, with commas (default: all that are here; none: no table)")
    p.add_argument("--sizes", default="42,256,1024,2048,8192", help="KiB of the table's blocks, with commas")
    p.add_argument("--mib", type=int, default=16, help="MiB of blocks at each point of the table")
    p.add_argument("--table-rounds", type=int, default=3, help="rounds of the table")
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
    out["table"], out["absent"] = compare.table(names, [int(k) for k in args.sizes.split(",")], args.mib, args.table_rounds)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(out, indent=2) + "\n")
    for name in ("probe_speedup", "view_speedup", "contains_us_a_key", "get_42k_us", "get_2m_us", "get_2m_of_memcpy"):
        print(f"{name:20} {out[name]:.2f}")
    print(compare.show(out["table"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
