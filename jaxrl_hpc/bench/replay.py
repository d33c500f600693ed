"""`jaxrl-hpc bench replay`: the sum tree and the whole replay compared with other libraries.

All cases are compiled first and then measured in turns, so that other load on the machine affects all of them
alike; a cell is the median over rounds of CPU time per operation. The bound is the traffic that a cycle
cannot avoid: the distinct cache lines that B random leaves and their ancestors lie on, read once and written
once, at the copy bandwidth measured on an array of the tree's size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_hpc.bench import replay_peers
from jaxrl_hpc.bench.replay_cases import ReplayCase, insertion_cases, payload_ours, tree_cases
from jaxrl_hpc.replay import sum_tree

CAPACITIES = (2**14, 2**17, 2**20)
BATCHES = (32, 256, 1024)
FANOUTS = (2, 4, 8, 16, 32, 64)
DEFAULT_FANOUT = 8
INSERTED = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="about two minutes: cycles at the default fan-out"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of which the median is taken")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows here")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write the picture here (png or svg)")


def run(args: argparse.Namespace) -> int:
    cases = list(_cases(args.quick))
    rows = measure(cases, args.rounds)
    rows += [bound_row(c, b) for c in CAPACITIES for b in BATCHES]
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    if args.plot:
        plot(rows, args.plot)
    return 0


def _cases(quick: bool) -> Any:
    ops = ("cycle",) if quick else ("add", "sample", "update", "cycle")
    largest, batch = CAPACITIES[-1], BATCHES[-1]
    for capacity in CAPACITIES:
        for size in BATCHES:
            fanouts = (DEFAULT_FANOUT,) if quick else FANOUTS
            for fanout in fanouts:
                chosen = ops if fanout == DEFAULT_FANOUT else ("cycle",)
                yield from tree_cases("auto", capacity, size, fanout, chosen)
            if not quick:
                yield from tree_cases("jax", capacity, size, DEFAULT_FANOUT, ("cycle",))
            if replay_peers.installed("flashbax"):
                yield from replay_peers.flashbax_cases(capacity, size, ops)
    yield from payload_ours(largest, batch)
    for name, make in replay_peers.PAYLOAD.items():
        if replay_peers.installed(name):
            yield from make(largest, batch)
    yield from insertion_cases(largest, INSERTED)


def measure(cases: list[ReplayCase], rounds: int) -> list[dict[str, Any]]:
    """Rows {impl, op, capacity, batch, fanout, median_us}."""
    times: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds):
        for case, values in zip(cases, times, strict=True):
            values.append(case.measure())
    return [
        {
            **{k: v for k, v in case._asdict().items() if k != "measure"},
            "median_us": round(statistics.median(values), 3),
        }
        for case, values in zip(cases, times, strict=True)
    ]


def bound_row(capacity: int, batch: int) -> dict[str, Any]:
    shape = sum_tree.layout(capacity, DEFAULT_FANOUT)
    lines = 0.0
    for count in shape.counts:
        level = -(-count // sum_tree.CACHE_LINE)
        lines += level * (1 - (1 - 1 / level) ** batch)
    microseconds = 2 * 64 * lines / _copy_bandwidth(4 * shape.size)
    return {
        "impl": "memory bound",
        "op": "cycle",
        "capacity": capacity,
        "batch": batch,
        "fanout": DEFAULT_FANOUT,
        "median_us": round(microseconds, 3),
    }


def _copy_bandwidth(size: int) -> float:
    """Bytes read and written per microsecond when arrays of `size` bytes are copied."""
    source, target = np.ones(size, np.uint8), np.empty(size, np.uint8)
    repeats = max(2**26 // size, 1)
    times = []
    for _ in range(7):
        before = time.process_time()
        for _ in range(repeats):
            np.copyto(target, source)
        times.append((time.process_time() - before) / repeats)
    return 2 * size / statistics.median(times) / 1e6


def cell(rows: list[dict[str, Any]], **wanted: Any) -> float | None:
    for row in rows:
        if all(row[name] == value for name, value in wanted.items()):
            return row["median_us"]
    return None


def _cells(values: list[float | None]) -> str:
    return "| " + " | ".join("–" if v is None else f"{v:.3g}" for v in values) + " |"


def _line(name: str, values: list[float | None]) -> str:
    return f"| {name} {_cells(values)}"


def table(rows: list[dict[str, Any]]) -> str:
    """All of it as Markdown."""
    grid = [(c, b) for c in CAPACITIES for b in BATCHES]
    heads = [f"2^{c.bit_length() - 1}, B {b}" for c, b in grid]
    lines = ["Tree only, inside a compiled loop, median CPU µs.", ""]
    lines += ["| tree | " + " | ".join(heads) + " |", "|---" * (len(grid) + 1) + "|"]
    for op in ("cycle", "add", "sample", "update"):
        kinds = sorted({(r["impl"], r["fanout"]) for r in rows if r["op"] == op}, key=str)
        for impl, fanout in kinds:
            values = [cell(rows, impl=impl, fanout=fanout, op=op, capacity=c, batch=b) for c, b in grid]
            lines.append(_line(f"{op}: {impl}, K {fanout}", values))
    ours = [
        cell(rows, impl="jaxrl_hpc", op="cycle", fanout=DEFAULT_FANOUT, capacity=c, batch=b) for c, b in grid
    ]
    for other in ("flashbax", "memory bound"):
        theirs = [cell(rows, impl=other, op="cycle", capacity=c, batch=b) for c, b in grid]
        ratios = [t / o if t and o else None for t, o in zip(theirs, ours, strict=True)]
        lines.append(_line(f"cycle: {other} / jaxrl_hpc K {DEFAULT_FANOUT}", ratios))
    heads = ["add 16", f"sample {BATCHES[-1]}", f"update {BATCHES[-1]}", "sum"]
    lines += ["", "With payload, called from Python, 2^20 slots, median CPU µs.", ""]
    lines += ["| library | " + " | ".join(heads) + " |", "|---" * 5 + "|"]
    for impl in dict.fromkeys(r["impl"] for r in rows if r["op"] == "payload add"):
        values = [cell(rows, impl=impl, op=f"payload {op}") for op in ("add", "sample", "update")]
        lines.append(_line(impl, [*values, sum(v for v in values if v is not None)]))
    both = [cell(rows, op=op) for op in ("insert one by one", "insert at once")]
    if None not in both:
        lines += [
            "",
            f"Adding {INSERTED} unrolls of one step to 2^20 slots, median CPU µs for all of them.",
            "",
        ]
        lines += ["| one by one | at once |", "|---|---|", _cells(both)]
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time of a cycle against the batch, a panel per capacity: other fan-outs than the default in grey."""
    import matplotlib
    from matplotlib.figure import Figure

    from jaxrl_hpc.report.style import LINE, MATPLOTLIB, color

    cases = sorted({(r["impl"], r["fanout"]) for r in rows if r["op"] == "cycle"}, key=str)
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        axes = figure.subplots(1, len(CAPACITIES), sharey=True, squeeze=False)[0]
        for axis, capacity in zip(axes, CAPACITIES, strict=True):
            here = [r for r in rows if r["op"] == "cycle" and r["capacity"] == capacity]
            shades = iter(range(1, len(cases) + 1))
            for impl, fanout in cases:
                points = sorted(
                    (r["batch"], r["median_us"]) for r in here if (r["impl"], r["fanout"]) == (impl, fanout)
                )
                if impl == "jaxrl_hpc" and fanout != DEFAULT_FANOUT:
                    style = {"color": LINE, "linewidth": 1.2, "zorder": 1}
                    label = "jaxrl_hpc, other K (2 to 64)"
                elif impl == "memory bound":
                    style, label = {"linestyle": "--", "color": "black"}, impl
                else:
                    shade = color(0 if impl == "jaxrl_hpc" else next(shades))
                    style, label = {"marker": "o", "markersize": 4, "color": shade}, f"{impl}, K = {fanout}"
                if points:
                    axis.plot(*zip(*points, strict=True), label=label, **style)
            axis.set(xscale="log", yscale="log", xlabel="Batch size")
            axis.set_title(f"$2^{{{capacity.bit_length() - 1}}}$ slots")
        axes[0].set_ylabel("CPU time of a cycle (µs)")
        once = {
            label: handle
            for axis in axes
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(once.values(), once.keys(), loc="outside lower left", ncols=3)
        figure.savefig(path)


if __name__ == "__main__":
    command = argparse.ArgumentParser(prog="python -m jaxrl_hpc.bench.replay", description=__doc__)
    add_arguments(command)
    sys.exit(run(command.parse_args()))
