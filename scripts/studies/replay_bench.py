"""Measures the replay and writes docs/results/replay.md with its picture, and the picture of the layout.

python scripts/studies/replay_bench.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from jaxrl_hpc.bench import replay as bench
from jaxrl_hpc.replay import native, sum_tree
from jaxrl_hpc.report.style import INK, LINE, MATPLOTLIB, MUTED, color

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results"


def layout_picture(path: Path) -> None:
    """A tree of 20 leaves with K = 4 as it lies in memory."""
    with matplotlib.rc_context({**MATPLOTLIB, "axes.grid": False}):
        draw_layout(Figure(figsize=(9.2, 2.5), layout="constrained")).savefig(path)


def draw_layout(figure: Figure) -> Figure:
    shape = sum_tree.layout(20, 4)
    axis = figure.subplots()
    colours = ("#bcd3f7", "#f4c9a2", "#a9dccb")
    for level, (count, offset) in enumerate(zip(shape.counts, shape.offsets, strict=True)):
        end = [*shape.offsets, shape.size][level + 1]
        for place in range(offset, end):
            used = place - offset < count
            colour = colours[level % 3] if used else "white"
            axis.add_patch(Rectangle((place, 0), 1, 1, facecolor=colour, edgecolor=LINE, linewidth=0.5))
        for group in range(offset, offset + count, shape.fanout):
            width = min(shape.fanout, end - group)
            axis.add_patch(Rectangle((group, 0), width, 1, fill=False, edgecolor=INK, linewidth=1.5))
            if level + 1 < len(shape.counts):
                parent = shape.offsets[level + 1] + (group - offset) // shape.fanout
                axis.annotate(
                    "",
                    (parent + 0.5, 1),
                    (group + width / 2, 1),
                    arrowprops={
                        "arrowstyle": "->",
                        "connectionstyle": "arc3,rad=-0.35",
                        "linewidth": 0.7,
                        "color": MUTED,
                    },
                )
        axis.text(offset + 0.4, -0.75, f"level {level}: {count} nodes", fontsize=8.5, color=MUTED)
    for line in range(0, shape.size + 1, sum_tree.CACHE_LINE):
        axis.plot([line, line], [-0.4, 1.4], color=color(4), linewidth=1.2, linestyle=":")
    axis.set(xlim=(-0.5, shape.size + 0.5), ylim=(-1.1, 6), xticks=[], yticks=[])
    axis.axis("off")
    axis.set_title(
        "K = 4, 20 leaves, one float32 array. Frames: the children of one node; dotted: cache lines",
        fontsize=9.5,
        fontweight="normal",
        loc="left",
    )
    return figure


def verdict(rows: list[dict]) -> str:
    """The goals and whether they are met, from the rows."""

    def cycle(impl: str, capacity: int, batch: int) -> float:
        value = bench.cell(rows, impl=impl, op="cycle", capacity=capacity, batch=batch) or float("nan")
        if impl == "jaxrl_hpc":
            value = bench.cell(
                rows, impl=impl, op="cycle", capacity=capacity, batch=batch, fanout=bench.DEFAULT_FANOUT
            ) or float("nan")
        return value

    grid = [(c, b) for c in bench.CAPACITIES for b in bench.BATCHES]
    ratios = [cycle("flashbax", c, b) / cycle("jaxrl_hpc", c, b) for c, b in grid]
    bounds = [cycle("jaxrl_hpc", c, b) / cycle("memory bound", c, b) for c, b in grid]
    payload = {
        impl: sum(bench.cell(rows, impl=impl, op=f"payload {op}") or 0 for op in ("add", "sample", "update"))
        for impl in dict.fromkeys(r["impl"] for r in rows if r["op"] == "payload add")
    }
    best = min((v, k) for k, v in payload.items() if not k.startswith("jaxrl_hpc"))
    factor = best[0] / payload["jaxrl_hpc"]
    last = cycle("jaxrl_hpc", *grid[-1]) / cycle("memory bound", *grid[-1])

    def met(good: bool) -> str:
        return "met" if good else "missed"

    return "\n".join(
        [
            "| goal | measured | verdict |",
            "|---|---|---|",
            f"| tree only, at least 3 times as fast as flashbax in every cell | {min(ratios):.2f} to "
            f"{max(ratios):.2f} times | {met(min(ratios) >= 3)} |",
            f"| with payload at 2^20, at least twice the best peer | {factor:.2f} times {best[1]} | "
            f"{met(factor >= 2)} |",
            f"| within 3 times the memory bound at 2^20, B 1024 | {last:.1f} times; {min(bounds):.1f} to "
            f"{max(bounds):.1f} over all cells | {met(last <= 3)} |",
        ]
    )


def fanout_note(rows: list[dict]) -> str:
    """Which fan-out is fastest, as the geometric mean over all cells."""
    lines = ["| K | cycle relative to the fastest K, geometric mean over the nine cells |", "|---|---|"]
    grid = [(c, b) for c in bench.CAPACITIES for b in bench.BATCHES]
    means = {}
    for fanout in bench.FANOUTS:
        product = 1.0
        for c, b in grid:
            value = bench.cell(rows, impl="jaxrl_hpc", op="cycle", fanout=fanout, capacity=c, batch=b)
            if value is None:
                return ""
            product *= value
        means[fanout] = product ** (1 / len(grid))
    fastest = min(means.values())
    lines += [f"| {k} | {v / fastest:.2f} |" for k, v in means.items()]
    return "\n".join([*lines, "", "K = 2 and 4 take the kernel's scalar path; from 8 on it has vectors."])


def measured(quick: bool) -> list[dict]:
    """Rows of a run in a process of its own with one XLA thread."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "jaxrl_hpc.bench.replay", "--json", str(file)]
        environment = {**os.environ, "NPROC": "1"}
        subprocess.run([*command, *(["--quick"] if quick else [])], check=True, env=environment)
        return json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="rows of an earlier run on this machine")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    layout_picture(DOCS / "replay_layout.svg")
    if args.rows:
        rows = json.loads(args.rows.read_text())
    else:
        rows = measured(args.quick)
        (RESULTS / "replay.json").write_text(json.dumps(rows, indent=1) + "\n")
    bench.plot(rows, RESULTS / "replay.svg")
    kernel = "compiled (AVX2 where the processor has it)" if native.available() else "pure JAX"
    parts = [
        "# Replay performance",
        "Written by `python scripts/studies/replay_bench.py`; do not edit. Rows: [replay.json](replay.json).",
        "CPU time of the sum tree and of the whole replay beside other libraries. "
        f"{platform.machine()}, {os.cpu_count()} cores, jax {jax.__version__}, one XLA thread, kernel: "
        f"{kernel}. Cases take turns; a cell is the median over rounds of CPU time.",
        "![cycle against batch](replay.svg)",
        "## Goals",
        verdict(rows),
        "## Tables",
        bench.table(rows),
    ]
    note = fanout_note(rows)
    if note:
        parts += ["## Which fan-out", note]
    (RESULTS / "replay.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
