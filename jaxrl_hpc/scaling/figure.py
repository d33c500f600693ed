"""The picture and the table of a scaling study."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from jaxrl_hpc.report.style import MATPLOTLIB, color, legend_under


def table(report: dict[str, Any]) -> str:
    """Markdown: measurements, and predictions for more nodes."""
    lines = [
        "| ranks × devices | ms per iteration | separate runs side by side, ms | communication, ms "
        "| waiting for the slowest, ms | unexplained, ms | core time, ms | steps/s | efficiency "
        "| against one alone |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        lines.append(f"| {label_of(row)} | " + " | ".join(_cells(row, report["mode"])) + " |")
    lines += [
        "",
        "| nodes | communication, ms | waiting for the slowest, ms | efficiency | with waiting |",
        "|---|---|---|---|---|",
    ]
    for row in report["extrapolation"]:
        lines.append(
            f"| {row['nodes']} | {row['communication_milliseconds']:.3f} | {row['waiting_milliseconds']:.3f} "
            f"| {100 * row['efficiency']:.0f} % | {100 * row['efficiency_with_waiting']:.0f} % |"
        )
    return "\n".join(lines)


def label_of(row: dict[str, Any]) -> str:
    engine = f", {row['engine']}" if row.get("engine") else ""
    return f"{row['ranks']} × {row['devices']}{engine}" + (
        "" if row["pinned"] else " (more workers than cores)"
    )


def _cells(row: dict[str, Any], mode: str) -> list[str]:
    """Times of an iteration; the rest is not explained by separate runs, messages and waiting."""
    beside, waiting = row.get("beside_milliseconds"), row.get("waiting_milliseconds")
    talk, time = row["communication_milliseconds"], row["milliseconds"]
    workers = row["ranks"] * row["devices"]
    cells = [f"{time:.3f}"]
    if beside is None or waiting is None:
        cells += ["", f"{talk:.3f}" if workers > 1 else "", "", ""]
    else:
        share = beside if mode == "weak" else beside / workers
        waited = waiting if mode == "weak" else waiting / workers
        cells += [f"{share:.3f}", f"{talk:.3f}", f"{waited:.3f}", f"{time - share - talk - waited:.3f}"]
    cells += [f"{row.get('core_milliseconds', math.nan):.3f}", f"{row['env_steps_per_second']:,.0f}"]
    against = row.get("efficiency_beside")
    cells.append("" if against is None else f"{100 * against:.0f} %")
    return [*cells, f"{100 * row['efficiency']:.0f} %"]


def traced(row: dict[str, Any], part: str) -> float:
    """Milliseconds of an iteration that workers wait or exchange data."""
    return float(row["trace"][part] * row["trace"]["milliseconds"])


def trace_table(report: dict[str, Any]) -> str:
    """Markdown: what workers did in traced iterations; empty without a trace."""
    lines = [
        "| ranks × devices, traced | waiting for the others, ms | exchange, ms | rest of an iteration, ms "
        "| recording, ms |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        if "trace" in row:
            time, parts = row["milliseconds"], [traced(row, part) for part in ("waiting", "exchange")]
            values = [*parts, time - sum(parts), row["trace"]["milliseconds"] - time]
            lines.append(f"| {label_of(row)} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    return "\n".join(lines) if len(lines) > 2 else ""


def collectives_table(report: dict[str, Any]) -> str:
    """Markdown: an allreduce inside the compiled loop beside the library's own."""
    lines = ["| ranks | bytes | in the loop, µs | mpi4py, µs | ratio |", "|---|---|---|---|---|"]
    for ranks, both in report["collectives"].items():
        for size, inside in both["inside"].items():
            raw = both["raw"].get(size)
            beside = f"{1e6 * raw:.1f} | {inside / raw:.2f}" if raw else " | "
            lines.append(f"| {ranks} | {int(size):,} | {1e6 * inside:.1f} | {beside} |")
    return "\n".join(lines)


def draw(report: dict[str, Any], path: Path) -> None:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(11.0, 4.0), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        rows = [(f"{row['ranks']}×{row['devices']}", row.get("engine", "")) for row in report["rows"]]
        labels = ["\n".join(filter(None, row)) for row in rows]
        places = range(len(labels))
        times = [row["milliseconds"] for row in report["rows"]]
        logarithmic = max(times) > 10 * min(times)  # where a bar would have no base
        if logarithmic:
            left.plot(places, times, "s", markersize=8, color=color(0), label="measured")
            left.set_yscale("log")
        else:
            left.bar(places, times, color=color(0), label="measured")
        predicted = [row["predicted_milliseconds"] for row in report["rows"]]
        left.plot(places, predicted, "o", color=color(1), label="predicted")
        left.set_xticks(list(places), labels)
        left.set_xlabel("Ranks × devices")
        left.set_ylabel("Time per iteration (ms)")
        left.set_title(f"{report['mode'].capitalize()} scaling, this machine")
        legend_under(left, 2, below=0.28 if any(engine for _, engine in rows) else 0.2)
        for index, (ranks, both) in enumerate(report["collectives"].items()):
            for name, style in (("inside", "o-"), ("raw", "s--")):
                if not both[name]:
                    continue
                sizes = [int(size) for size in both[name]]
                label = f"{ranks} ranks, {'in the loop' if name == 'inside' else 'mpi4py'}"
                middle.loglog(
                    sizes, [1e6 * t for t in both[name].values()], style, color=color(index), label=label
                )
        middle.set_xlabel("Size of an allreduce (bytes)")
        middle.set_ylabel("Time (µs)")
        middle.set_title("Collectives")
        if report["collectives"]:
            legend_under(middle, 2)
        nodes = [row["nodes"] for row in report["extrapolation"]]
        for index, (name, label) in enumerate(
            (
                ("efficiency", "communication"),
                ("efficiency_with_waiting", "communication and stragglers"),
            )
        ):
            values = [100 * row[name] for row in report["extrapolation"]]
            right.semilogx(nodes, values, "o-", base=2, color=color(index), label=label)
        right.set_ylim(0, 105)
        right.set_xticks(nodes, [str(number) for number in nodes])
        right.minorticks_off()
        right.set_xlabel("Nodes")
        right.set_ylabel("Efficiency (%)")
        right.set_title("Model, not measured")
        legend_under(right)
        figure.savefig(path)
