"""The table as a picture: how fast each store reads and writes batches, by the size of a block, and what that costs in CPU time."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

PANELS = (
    ("get_many_mb_s", 1e-3, "batched reads, GB/s"),
    ("put_many_mb_s", 1e-3, "batched writes, GB/s"),
    ("get_many_cpu_s_gb", 1.0, "CPU seconds per GB read"),
    ("put_many_cpu_s_gb", 1.0, "CPU seconds per GB written"),
)


def draw(rows: Sequence[dict[str, Any]], file: pathlib.Path) -> None:
    """Writes the picture in the form that the file's suffix names. ImportError where matplotlib is missing."""
    import matplotlib

    matplotlib.use("Agg")  # no screen is needed
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text, for who searches in it
    from matplotlib import pyplot, ticker

    stores = list(dict.fromkeys(r["store"] for r in rows))
    sizes = sorted({r["kib"] for r in rows})
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 9), sharex=True, layout="constrained")
    for axis, (what, scale, title) in zip(axes.flat, PANELS, strict=True):
        for i, store in enumerate(stores):
            own = sorted((r for r in rows if r["store"] == store), key=lambda r: r["kib"])
            axis.plot([r["kib"] for r in own], [scale * r[what] for r in own], **style(i, own[0]))
        axis.set_title(title)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(sizes, [f"{k} KiB" if k < 1024 else f"{k >> 10} MiB" for k in sizes])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, title="dashed: lost with the engine's process")
    figure.savefig(file)
    pyplot.close(figure)


def style(i: int, row: dict[str, Any]) -> dict[str, Any]:
    """How the line of a store looks: ours stands out, and what does not outlive the engine's process is dashed."""
    ours = row["store"] == "cascade"
    return {
        "label": row["store"],
        "color": "black" if ours else f"C{i % 10}",
        "linewidth": 3.0 if ours else 1.2,
        "linestyle": "-" if row["outlives"] else "--",
        "marker": "o" if i < 10 else "s",
        "markersize": 4,
    }
