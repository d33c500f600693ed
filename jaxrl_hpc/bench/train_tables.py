"""Results of `bench train` as tables for the terminal and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

MEGABYTE = 2**20


def tables(report: dict[str, Any]) -> list[Table]:
    found = [_cases(report)] if report["cases"] else []
    if "slots" in report:
        found.append(_slots(report))
    if "priorities" in report:
        found.append(_priorities(report))
    if "returns" in report:
        found.append(_returns(report))
    return found


def times(spread: dict[str, float]) -> str:
    middle = f"{spread['median']:.1f}×"
    if spread["low"] == spread["high"]:  # of one round, or of a record that has no extremes
        return middle
    return f"{middle} ({spread['low']:.1f}–{spread['high']:.1f})"


def megabytes(result: dict[str, Any]) -> str:
    """Peak memory; older measurements do not have it."""
    return f"{result['peak_bytes'] / MEGABYTE:,.0f}" if "peak_bytes" in result else "–"


def compile_seconds(result: dict[str, Any]) -> str:
    return f"{result['compile_seconds']:.1f}" if "compile_seconds" in result else "–"


def _cases(report: dict[str, Any]) -> Table:
    table = Table(box=None)
    for name in ("work", "started", "library"):
        table.add_column(name)
    for name in (
        "steps/s",
        "updates/s",
        "CPU µs/update",
        "cores",
        "peak MB",
        "compile s",
        "our rate",
        "our CPU",
    ):
        table.add_column(name, justify="right")
    for case in report["cases"]:
        against = {(c["peer"], c["mode"]): c for c in case["comparisons"]}
        for result in case["results"]:
            shown = [case["title"], result["mode"], result["library"]]
            shown += [f"{result['env_steps_per_second']:,.0f}", f"{result['updates_per_second']:,.0f}"]
            shown += [f"{result['cpu_microseconds_per_update']:,.0f}", f"{result['cores']:.1f}"]
            shown += [megabytes(result), compile_seconds(result)]
            found = against.get((result["library"], result["mode"]))
            if found:
                shown += [times(found["rate"]), times(found["cpu"])]
            table.add_row(*shown)
    return table


def _slots(report: dict[str, Any]) -> Table:
    table = Table("replay slots", "library", "updates/s", "slowdown", box=None)
    for library in ("ours", "rejax"):
        for line in report["slots"].get(library, []):
            rate, slowdown = line["updates_per_second"], line["slowdown"]["median"]
            table.add_row(f"{line['slots']:,}", library, f"{rate:,.0f}", f"{slowdown:.2f}×")
    return table


def _priorities(report: dict[str, Any]) -> Table:
    table = Table("replay slots", "uniform, CPU µs/update", "prioritised", "cost", box=None)
    for line in report["priorities"]["lines"]:
        figures = (f"{line['uniform']:,.0f}", f"{line['prioritised']:,.0f}", f"{line['cost']:.2f}×")
        table.add_row(f"{line['slots']:,}", *figures)
    return table


def _returns(report: dict[str, Any]) -> Table:
    table = Table("work", "library", "steps", "updates", "returns, one per seed", box=None)
    for line in report["returns"]:
        reached = ", ".join(f"{value:,.0f}" for value in line["returns"])
        counts = (f"{line['env_steps']:,}", f"{line['updates']:,}")
        table.add_row(line["title"], line["library"], *counts, reached)
    return table


def draw(report: dict[str, Any], path: Path) -> None:
    """How many times each peer's CPU time per update and seconds per step ours are, on a logarithmic axis."""
    import matplotlib
    from matplotlib.figure import Figure

    from jaxrl_hpc.report.style import MATPLOTLIB, color

    rows = [
        (f"{case['title']}\n{c['peer'].replace('_', '-')}, {c['mode']}", c)
        for case in report["cases"]
        for c in case["comparisons"]
    ]
    # the same data are the same file
    with matplotlib.rc_context({**MATPLOTLIB, "svg.hashsalt": "bench"}):
        figure = Figure(figsize=(8.0, 1.2 + 0.45 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for index, (kind, label) in enumerate((("rate", "environment steps/s"), ("cpu", "CPU time"))):
            middle = [c[kind]["median"] for _, c in rows]
            low = [m - c[kind]["low"] for m, (_, c) in zip(middle, rows, strict=True)]
            high = [c[kind]["high"] - m for m, (_, c) in zip(middle, rows, strict=True)]
            places = [i + 0.16 * (2 * index - 1) for i in range(len(rows))]
            axes.errorbar(middle, places, xerr=[low, high], fmt="o", color=color(index), label=label)
        axes.axvline(1.0, color="0.5", linewidth=1.0)
        axes.set_xscale("log")
        low_end, high_end = axes.get_xlim()
        shown = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low_end <= tick <= high_end]
        axes.set_xticks(shown, [f"{tick:g}×" for tick in shown])
        axes.minorticks_off()
        axes.set_yticks(range(len(rows)), [title for title, _ in rows], fontsize=7)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("Ours to the peer, median and extremes of rounds (right of 1×: ours is ahead)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=2)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
