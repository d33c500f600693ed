"""Does packing pay? The same trials as packed tasks, as separate pinned processes, and one after another.

    python scripts/studies/packing.py               measure (about twelve minutes) and write the page
    python scripts/studies/packing.py --only 0.1    measure one length of trial again, keep the others
    python scripts/studies/packing.py --quick       tiny, to see that everything works; writes nothing
    python scripts/studies/packing.py --page        write docs/results/packing.md again from packing.json

Separate processes cost the same each, so some of them are measured and the rest is multiplied.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from jaxrl_hpc.bench.packing import Length, calibrate, measure
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.report.style import MATPLOTLIB, color, legend_under
from jaxrl_hpc.runs.directory import code_version
from jaxrl_hpc.runtime.machine import available_cores

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
TRIALS = 64
LENGTHS = (Length(0.1, 64, 4, 2), Length(1, 64, 4, 1), Length(10, 4, 2, 1), Length(60, 2, 2, 1))
QUICK = (Length(0.1, 4, 2, 1),)


def for_all(result: dict[str, Any], kind: str, what: str = "seconds") -> float:
    """Seconds (or core seconds) that TRIALS trials take, from as many as were measured."""
    share = TRIALS / result["trials"]
    if kind in ("separate", "alone"):
        return result[what] * share
    # the start is the same for any number of trials; training a packed task keeps all cores busy
    training = result["training_seconds"] * (result["cores"] if what == "core_seconds" else 1)
    return result[what] + training * (share - 1)


def length_of(row: dict[str, Any]) -> float:
    """Seconds that a trial really took when it had the machine to itself."""
    return row["alone"]["training_seconds"]


KINDS = {"packed": "packed", "separate": "separate, pinned", "alone": "one after another"}


def time_line(row: dict[str, Any]) -> str:
    times = {kind: for_all(row[kind], kind) for kind in KINDS}
    cells = [f"{length_of(row):.2g} s ({count(row['steps'])} steps)"]
    for kind in KINDS:
        number = row[kind]["trials"]
        mark = "" if number == TRIALS else f" ({number} measured: {duration(row[kind]['seconds'])})"
        cells.append(f"{duration(times[kind])}{mark}")
    cells += [f"**{times['separate'] / times['packed']:.1f} ×**", f"{times['alone'] / times['packed']:.1f} ×"]
    return "| " + " | ".join(cells) + " |"


def core_line(row: dict[str, Any]) -> str:
    used = {kind: for_all(row[kind], kind, "core_seconds") for kind in KINDS}
    cells = [f"{length_of(row):.2g} s", *(duration(seconds) for seconds in used.values())]
    return "| " + " | ".join([*cells, f"{used['separate'] / used['packed']:.1f} ×"]) + " |"


def memory_line(row: dict[str, Any], cores: int) -> str:
    whole, trials = row["packed"]["peak_bytes"] / 2**20, row["packed"]["trials"]
    process = row["separate"]["peak_bytes"] / cores / 2**20
    share = whole / trials
    return f"| {length_of(row):.2g} s | {whole:.0f} MiB for {trials} | {share:.0f} MiB | {process:.0f} MiB |"


def training_ratio(row: dict[str, Any], kind: str = "packed") -> float:
    """How fast lanes of packed tasks train, against separate pinned processes, the start left out."""
    rounds = row[kind]["trials"] / row[kind]["cores"]
    return row["separate"]["training_seconds"] * rounds / row[kind]["training_seconds"]


def one_task(rows: Sequence[dict[str, Any]]) -> str:
    """What a single task over all cores loses."""
    found = [f"{training_ratio(row, 'one_task'):.2f}" for row in rows if "one_task" in row]
    if not found:
        return ""
    return (
        f"One task that holds all trials and spreads them over all cores itself trains at "
        f"{', '.join(found)} times that speed (the longer lengths): the devices of one process share XLA's "
        "pool of threads, which hands work of one lane to the other's core. So choose `trials_per_task` such "
        "that there are at least as many tasks as cores."
    )


def disturbed(report: dict[str, Any]) -> str:
    """A warning if the machine was not calm."""
    busy = [row for row in report["rows"] if row["load"] > 1.5 * report["cores"]]
    if not busy:
        return ""
    lengths = ", ".join(f"{length_of(row):.2g} s" for row in busy)
    return f"""
**Other work used the machine** while these lengths were measured: {lengths}. Their wall times are too long,
most of all those of pinned processes; the core times below say more.
"""


def page(report: dict[str, Any]) -> str:
    rows = report["rows"]
    gains = [for_all(row["separate"], "separate") / for_all(row["packed"], "packed") for row in rows]
    verdicts = ["met" if good else "**missed**" for good in (min(gains) >= 1, max(gains) >= 10)]
    stacked = [
        f"{length_of(row):.2g} s: {duration(for_all(row['vmap'], 'vmap'))}" for row in rows if "vmap" in row
    ]
    ratios = ", ".join(f"{training_ratio(row):.2f}" for row in rows)
    rate, loads = count(report["steps_per_second"]), ", ".join(f"{row['load']:.1f}" for row in rows)
    head = " | ".join(
        ["a trial takes, of one core", *KINDS.values(), "packed against separate", "against the last"]
    )
    return f"""\
# Packing trials

Made by `python scripts/studies/packing.py`.

{TRIALS} trials as packed tasks (one per core, each with its share of the trials side by side), as separate
pinned processes, and one after another, against the length of a trial.

![wall time against trial length](packing.png)

| {head} |
|---|---|---|---|---|---|
{chr(10).join(time_line(row) for row in rows)}

Where fewer than {TRIALS} trials were measured the rest is extrapolated: processes cost the same each; of a
packed task only training grows with the number of trials, not the start.

- Goal: never slower than separate processes: {verdicts[0]} at these lengths (at least {min(gains):.2f} ×).
- Goal: ten times faster where the start dominates: {verdicts[1]} (most {max(gains):.1f} ×).

Packing saves the start. Training itself, without the start, ran at
{ratios} times the speed of separate pinned processes in these rows. Like them, a task
has its own core here; at the last length it holds a single trial and does the same work, so that a
factor other than 1 there is noise.

{one_task(rows)}
{disturbed(report)}
## Core time

CPU time of the processes, independent of other load; on a calm machine the wall time of separate
processes is this divided by the number of cores.

| trial | {" | ".join(KINDS.values())} | packed against separate |
|---|---|---|---|---|
{chr(10).join(core_line(row) for row in rows)}

## Memory

| trial | packed tasks | of it a trial | a separate process |
|---|---|---|---|
{chr(10).join(memory_line(row, report["cores"]) for row in rows)}

## Trials stacked in one program

With `run.seeds_mode: vmap` all trials are one stacked program on one core, and equal the solo ones within
float tolerance instead of bit for bit. {TRIALS} trials of {", of ".join(stacked)}.

The length of a trial is its time alone, for training and one evaluation. Trials were cut to
{", ".join(f"{row['seconds']:g}" for row in rows)} s at {rate} steps/s, the speed of one core when the study
began. {report["cores"]} cores; CartPole-v1 by DQN (`cartpole_dqn`); compiled programs were in the cache for
all of them. Load averages after each length: {loads}.
Commit `{str(report["commit"])[:10]}`.
"""


def draw(report: dict[str, Any], path: Path) -> None:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        x = [length_of(row) for row in report["rows"]]
        times = {kind: [for_all(row[kind], kind) for row in report["rows"]] for kind in KINDS}
        for index, (kind, name) in enumerate(KINDS.items()):
            left.loglog(x, times[kind], marker="o", color=color(index), label=name)
        left.set_xlabel("Trial length (core seconds)")
        left.set_ylabel(f"Wall time of {TRIALS} trials (s)")
        legend_under(left, 2)
        gain = [b / a for a, b in zip(times["packed"], times["separate"], strict=True)]
        right.semilogx(x, gain, marker="o", color=color(0))
        right.axhline(1, color="#b8bec9", linewidth=1)
        right.set_ylim(bottom=0)
        right.set_xlabel("Trial length (core seconds)")
        right.set_ylabel("Speed-up over separate processes")
        figure.savefig(path, dpi=110)


def measure_all(lengths: Sequence[Length], earlier: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The report so far after every length; rows of other lengths are taken from an earlier one."""
    folder = Path(tempfile.mkdtemp(prefix="packing-"))
    try:
        rate = earlier["steps_per_second"] if earlier else calibrate(folder)
        print(f"{rate:,.0f} steps/s on one core", flush=True)
        rows = {row["seconds"]: row for row in (earlier["rows"] if earlier else [])}
        made = {"cores": available_cores(), "steps_per_second": rate, **code_version()}
        for length in lengths:
            rows[length.seconds] = measure(length, rate, folder)
            print(json.dumps(rows[length.seconds]), flush=True)
            yield made | {"rows": [rows[seconds] for seconds in sorted(rows)]}
    finally:
        shutil.rmtree(folder)


def write(report: dict[str, Any]) -> None:
    draw(report, RESULTS / "packing.png")
    (RESULTS / "packing.md").write_text(page(report))
    print("wrote docs/results/packing.md", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes; the page is printed, not written")
    parser.add_argument("--only", type=float, metavar="SECONDS", help="this length of trial, keep the others")
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args()
    data = RESULTS / "packing.json"
    if args.quick:
        for report in measure_all(QUICK, None):
            print(page(report))
        return
    earlier = json.loads(data.read_text()) if args.page or args.only else None
    if args.page:
        assert earlier is not None
        write(earlier)
        return
    lengths = [length for length in LENGTHS if args.only in (None, length.seconds)]
    for report in measure_all(lengths, earlier):
        data.write_text(json.dumps(report, indent=1) + "\n")
        write(report)


if __name__ == "__main__":
    main()
