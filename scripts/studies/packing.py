"""Does packing pay? The same trials as one packed task, as separate pinned processes, and one after another.

    python scripts/studies/packing.py            measure (about twelve minutes) and write the page
    python scripts/studies/packing.py --quick    tiny, to see that everything works; writes nothing
    python scripts/studies/packing.py --page     write docs/results/packing.md again from packing.json

A trial is CartPole-v1 by DQN, cut to a number of steps that takes a given time of one core. Packed: one
task of `jaxrl-hpc sweep run`. Separate: a `jaxrl-hpc train` process per trial, each pinned to a core, as
many at a time as there are cores. One after another: the same processes, one at a time, free to use every
core. Separate processes cost the same each, so some of them are measured and the rest is multiplied.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import psutil
import yaml
from matplotlib.figure import Figure

from jaxrl_hpc import machine
from jaxrl_hpc.build import build, hypers_of
from jaxrl_hpc.fleet import Lane
from jaxrl_hpc.io.run import code_version
from jaxrl_hpc.io.style import MATPLOTLIB, color
from jaxrl_hpc.io.units import count, duration
from jaxrl_hpc.machine import available_cores
from jaxrl_hpc.sweeps.plan import Plan, make_plan
from jaxrl_hpc.sweeps.spec import load_spec
from jaxrl_hpc.train import make_fleet

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
TRIALS = 64
BASE = {"run.eval_every": 0, "run.final_eval_episodes": 8, "run.tensorboard": False}


class Length(NamedTuple):
    """A length of trial, and how many of them are measured."""

    seconds: float  # of one core
    packed: int
    separate: int
    alone: int


LENGTHS = (Length(0.1, 64, 8, 2), Length(1, 64, 8, 2), Length(10, 16, 4, 1), Length(60, 2, 2, 1))
QUICK = (Length(0.1, 4, 2, 1),)


def plan_of(folder: Path, steps: int, trials: int, mode: str = "solo") -> tuple[Path, Plan]:
    """A sweep over step sizes."""
    axis = {"grid": [3e-4, 3e-3], "points": trials, "log": True} if trials > 1 else [1e-3]
    data: dict[str, Any] = {"base": "cartpole_dqn", "budget": steps, "trials_per_task": trials}
    data |= {"axes": {"agent.learning_rate": axis}, "overrides": BASE | {"run.seeds_mode": mode}}
    path = folder / f"packing-{steps}-{trials}-{mode}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path, make_plan(load_spec(path))


class Watch:
    """Processes of ours, the time they take, and the most memory that they hold together."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.running: list[psutil.Popen] = []
        self.peak = 0

    def start(self, command: list[str], cores: list[int]) -> None:
        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # inherited by what is started now
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        os.sched_setaffinity(0, ours)
        self.running.append(process)

    def poll(self) -> list[psutil.Popen]:
        """Those that have ended since the last look."""
        total = 0
        for process in self.running:
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        self.peak = max(self.peak, total)
        ended = [process for process in self.running if process.poll() is not None]
        for process in ended:
            assert process.returncode == 0, f"{process.args} ended with {process.returncode}"
            self.running.remove(process)
        return ended

    def finish(self) -> dict[str, float]:
        while self.running:
            self.poll()
            time.sleep(0.02)
        return {"seconds": time.perf_counter() - self.began, "peak_bytes": self.peak}


def packed(folder: Path, steps: int, trials: int, mode: str = "solo") -> dict[str, Any]:
    path, _ = plan_of(folder, steps, trials, mode)
    where = folder / f"sweep-{steps}-{trials}-{mode}"
    watch = Watch()
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "sweep", "run", str(path), "--dir", str(where)]
    watch.start(command, sorted(os.sched_getaffinity(0)))
    result = watch.finish() | {"trials": trials}
    summaries = [json.loads(p.read_text()) for p in (where / "trials").glob("*/summary.json")]
    assert len(summaries) == trials and all(s["status"] == "finished" for s in summaries)
    return result | {"training_seconds": summaries[0]["wall_seconds"]}


def separate(folder: Path, steps: int, trials: int, at_once: int) -> dict[str, Any]:
    """Processes that are pinned to a core each, or one at a time with all cores."""
    _, plan = plan_of(folder, steps, max(trials, 2))
    cores = sorted(os.sched_getaffinity(0))
    free = [[core] for core in cores[:at_once]] if at_once > 1 else [cores]
    watch, held = Watch(), {}
    todo = []
    for trial in plan.trials[:trials]:
        config = folder / f"{trial.id}-{at_once}.yaml"
        config.write_text(yaml.safe_dump(trial.config.to_dict()))
        todo.append((config, folder / f"run-{trial.id}-{at_once}"))
    runs = [where for _, where in todo]
    while todo or watch.running:
        while todo and free:
            config, where = todo.pop(0)
            place = free.pop()
            command = [
                sys.executable,
                "-m",
                "jaxrl_hpc.cli.main",
                "train",
                str(config),
                "--run-dir",
                str(where),
            ]
            watch.start(command, place)
            held[watch.running[-1].pid] = place
        free += [held.pop(process.pid) for process in watch.poll()]
        time.sleep(0.02)
    training = [json.loads((where / "summary.json").read_text())["wall_seconds"] for where in runs]
    return watch.finish() | {"trials": trials, "training_seconds": sum(training) / len(training)}


def compile_only(sweep_file: str) -> None:
    """Put the programs of a packed task into the compilation cache, on every core, and train nothing."""
    trials = make_plan(load_spec(sweep_file)).trials
    config = trials[0].config
    machine.prepare(config, len(trials))
    make_fleet(config, build(config), [Lane(t.seed, hypers_of(t.config), t.id) for t in trials]).compile()


def warm_up(folder: Path, steps: int, trials: int, mode: str = "solo") -> None:
    path, _ = plan_of(folder, steps, trials, mode)
    command = [sys.executable, __file__, "--compile", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def calibrate(folder: Path) -> float:
    """Steps per second of one trial on one core while the others work too."""
    steps = 40_000
    warm_up(folder, steps, 2)
    return steps / separate(folder, steps, 2, available_cores())["training_seconds"]


def measure(lengths: tuple[Length, ...], folder: Path) -> dict[str, Any]:
    rate = calibrate(folder)
    print(f"{rate:,.0f} steps/s on one core", flush=True)
    rows = []
    for length in lengths:
        steps = max(1400, round(length.seconds * rate))  # the replay fills for 1000 steps first
        row: dict[str, Any] = {"seconds": length.seconds, "steps": steps}
        warm_up(folder, steps, 2)
        row["packed"] = packed(folder, steps, length.packed)
        if length.seconds <= 1:
            warm_up(folder, steps, length.packed, "vmap")
            row["vmap"] = packed(folder, steps, length.packed, "vmap")
        row["separate"] = separate(folder, steps, length.separate, available_cores())
        row["alone"] = separate(folder, steps, length.alone, 1)
        rows.append(row)
        print(json.dumps(row), flush=True)
    made = {
        "cores": available_cores(),
        "steps_per_second": rate,
        "load": os.getloadavg()[0],
        **code_version(),
    }
    return made | {"rows": rows}


def for_all(result: dict[str, Any], kind: str) -> float:
    """Seconds that TRIALS trials take, from as many as were measured."""
    share = TRIALS / result["trials"]
    if kind in ("separate", "alone"):
        return result["seconds"] * share
    start_up = result["seconds"] - result["training_seconds"]
    return start_up + result["training_seconds"] * share


KINDS = {"packed": "packed", "separate": "separate, pinned", "alone": "one after another"}


def time_line(row: dict[str, Any]) -> str:
    times = {kind: for_all(row[kind], kind) for kind in KINDS}
    cells = [f"{row['seconds']:g} s ({count(row['steps'])} steps)"]
    for kind in KINDS:
        number = row[kind]["trials"]
        mark = "" if number == TRIALS else f" ({number} measured: {duration(row[kind]['seconds'])})"
        cells.append(f"{duration(times[kind])}{mark}")
    cells += [f"**{times['separate'] / times['packed']:.1f} ×**", f"{times['alone'] / times['packed']:.1f} ×"]
    return "| " + " | ".join(cells) + " |"


def memory_line(row: dict[str, Any], cores: int) -> str:
    whole, trials = row["packed"]["peak_bytes"] / 2**20, row["packed"]["trials"]
    process = row["separate"]["peak_bytes"] / cores / 2**20
    share = whole / trials
    return f"| {row['seconds']:g} s | {whole:.0f} MiB for {trials} | {share:.0f} MiB | {process:.0f} MiB |"


def page(report: dict[str, Any]) -> str:
    rows = report["rows"]
    gains = [for_all(row["separate"], "separate") / for_all(row["packed"], "packed") for row in rows]
    verdicts = ["met" if good else "**missed**" for good in (min(gains) >= 1, max(gains) >= 10)]
    stacked = [
        f"{row['seconds']:g} s: {duration(for_all(row['vmap'], 'vmap'))}" for row in rows if "vmap" in row
    ]
    rate = count(report["steps_per_second"])
    head = " | ".join(
        ["a trial takes, of one core", *KINDS.values(), "packed against separate", "against the last"]
    )
    return f"""\
# Packing trials

Made by `python scripts/studies/packing.py`.

{TRIALS} trials as one packed task, as separate pinned processes, and one after another, against the length
of a trial.

![wall time against trial length](packing.png)

| {head} |
|---|---|---|---|---|---|
{chr(10).join(time_line(row) for row in rows)}

Where fewer than {TRIALS} trials were measured the rest is multiplied: processes cost the same each; of a
packed task only the training grows with the number of trials, the start does not.

- Goal: never slower than separate pinned processes: {verdicts[0]} (least {min(gains):.2f} ×).
- Goal: ten times faster where the start dominates: {verdicts[1]} (most {max(gains):.1f} ×).

## Memory

| trial | a packed task | of it a trial | a separate process |
|---|---|---|---|
{chr(10).join(memory_line(row, report["cores"]) for row in rows)}

## Trials stacked in one program

With `run.seeds_mode: vmap` all trials are one stacked program on one core, and equal the solo ones within
float tolerance instead of bit for bit. {TRIALS} trials of {", of ".join(stacked)}.

{report["cores"]} cores; CartPole-v1 by DQN (`cartpole_dqn`), {rate} steps/s on one core, one evaluation at
the end; compiled programs were in the cache for all of them. Load average at the end {report["load"]:.1f}.
Commit `{str(report["commit"])[:10]}`.
"""


def draw(report: dict[str, Any], path: Path) -> None:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        x = [row["seconds"] for row in report["rows"]]
        times = {kind: [for_all(row[kind], kind) for row in report["rows"]] for kind in KINDS}
        for index, (kind, name) in enumerate(KINDS.items()):
            left.loglog(x, times[kind], marker="o", color=color(index), label=name)
        left.set_xlabel("length of a trial (s of one core)")
        left.set_ylabel(f"wall time of {TRIALS} trials (s)")
        left.legend()
        gain = [b / a for a, b in zip(times["packed"], times["separate"], strict=True)]
        right.semilogx(x, gain, marker="o", color=color(0))
        right.axhline(1, color="#b8bec9", linewidth=1)
        right.set_ylim(bottom=0)
        right.set_xlabel("length of a trial (s of one core)")
        right.set_ylabel("times faster than separate processes")
        figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes; the page is printed, not written")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--compile", metavar="SWEEP", help="only compile the programs of a sweep file")
    args = parser.parse_args()
    if args.compile:
        return compile_only(args.compile)
    data = RESULTS / "packing.json"
    if args.page:
        report = json.loads(data.read_text())
    else:
        folder = Path(tempfile.mkdtemp(prefix="packing-"))
        try:
            report = measure(QUICK if args.quick else LENGTHS, folder)
        finally:
            shutil.rmtree(folder)
    if args.quick:
        print(page(report))
        return
    data.write_text(json.dumps(report, indent=1) + "\n")
    draw(report, RESULTS / "packing.png")
    (RESULTS / "packing.md").write_text(page(report))
    print("wrote docs/results/packing.md")


if __name__ == "__main__":
    main()
