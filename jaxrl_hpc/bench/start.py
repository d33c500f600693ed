"""How long a short run takes from the prompt, with an empty and with a full cache of compiled programs.

examples:
  jaxrl-hpc bench start --quick
  jaxrl-hpc bench start --before ../jaxrl_hpc-0.1 --json bench_start.json

Repeats `jaxrl-hpc train CONFIG` and measures the time until its summary is printed and until the command
ends; pictures are drawn in between. On a busy machine trust CPU time more than seconds. Seconds of compiling
are those that the run reports. With --before a checkout of an earlier version, compiled in place, takes turns
with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jaxrl_hpc
from jaxrl_hpc.bench.interleave import THREAD_SETTINGS, machine_facts
from jaxrl_hpc.errors import UserError

SUMMARY_LINE = "results in "  # of what `train` prints
FIGURES = ("summary_seconds", "summary_cpu_seconds", "seconds", "cpu_seconds", "compile_seconds")
GOALS = {("cartpole_ppo", "warm"): 3.0}  # seconds until the summary


class Case(NamedTuple):
    """A short run of a config."""

    config: str
    steps: int


CASES = (Case("cartpole_ppo", 20_000), Case("exabooster_ppo", 65_536), Case("cartpole_dqn", 20_000))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="one round of the first config, for a first look"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of every case (default: 5)")
    parser.add_argument("--before", type=Path, metavar="DIR", help="a checkout of an earlier version")
    parser.add_argument("--json", metavar="FILE", help="also write the results here")


def start(checkout: Path, case: Case, cache: Path) -> dict[str, float]:
    """One run by the package in a folder, with this cache of compiled programs."""
    kept = {k: v for k, v in os.environ.items() if k not in THREAD_SETTINGS}
    environment = kept | {"PYTHONPATH": str(checkout), "JAXRL_HPC_CACHE": str(cache)}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "train", case.config]
        command += [f"run.total_env_steps={case.steps}", "--run-dir", f"{folder}/run"]
        begin, summary = time.perf_counter(), (0.0, 0.0)
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                if line.startswith(SUMMARY_LINE):
                    summary = time.perf_counter() - begin, cpu_of(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        whole = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or not summary[0]:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["no message"]
            raise UserError(f"bench: {case.config} in {checkout} ended: {last[0]}")
        compiling = json.loads(Path(folder, "run", "summary.json").read_text())["compile_seconds"]
    return dict(zip(FIGURES, (*summary, whole, used.ru_utime + used.ru_stime, compiling), strict=True))


def cpu_of(process: int) -> float:
    """CPU seconds of a running process and its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    cases: Sequence[Case], checkouts: dict[str, Path], rounds: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Every case with both caches: medians over rounds in which the checkouts take turns."""
    lines = []
    with tempfile.TemporaryDirectory() as caches:
        for case in cases:
            samples: dict[tuple[str, str], list[dict[str, float]]] = {}
            for number in range(rounds):
                for name, checkout in checkouts.items():
                    cache = Path(caches) / f"{case.config}-{name}-{number}"
                    for state in ("cold", "warm"):  # what is compiled in the first is found by the second
                        say(f"{case.config}, {name}, {state}: round {number + 1} of {rounds}")
                        samples.setdefault((state, name), []).append(start(checkout, case, cache))
            for (state, name), found in samples.items():
                medians = {figure: statistics.median(s[figure] for s in found) for figure in FIGURES}
                rest = {"steps": case.steps, "cache": state, "version": name, "rounds": found}
                lines.append({"config": case.config} | rest | medians)
    return lines


def goals(lines: Sequence[dict[str, Any]]) -> list[str]:
    """The goals and whether this version reaches them."""
    verdicts = []
    for line in lines:
        limit = GOALS.get((line["config"], line["cache"]))
        if limit and line["version"] == "now":
            met = "reached" if line["summary_seconds"] <= limit else "missed"
            cpu = line["summary_cpu_seconds"]
            verdicts.append(
                f"{line['config']}, {line['steps']:,} steps, {line['cache']}: "
                f"{line['summary_seconds']:.2f} s to the summary ({cpu:.2f} s of CPU), "
                f"goal {limit:g} s: {met}"
            )
    return verdicts


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    here = Path(jaxrl_hpc.__file__).resolve().parents[1]
    checkouts = {"now": here} if args.before is None else {"before": args.before.resolve(), "now": here}
    if args.before and not (args.before / "jaxrl_hpc").is_dir():
        raise UserError(f"--before: there is no jaxrl_hpc in {args.before}")
    rounds = 1 if args.quick else args.rounds
    report: dict[str, Any] = {"machine": machine_facts(), "rounds": rounds, "quick": args.quick}
    with console.status("starting …") as status:
        lines = measure(CASES[:1] if args.quick else CASES, checkouts, rounds, status.update)
    report["lines"] = lines
    report["machine"]["load_after"] = machine_facts()["load"]
    table = Table(
        "config", "cache", "version", "summary s", "CPU s", "end s", "CPU s", "compiling s", box=None
    )
    for line in lines:
        figures = (f"{line[figure]:.2f}" for figure in FIGURES)
        table.add_row(line["config"], line["cache"], line["version"], *figures)
    console.print(table)
    for text in goals(lines):
        console.print(text)
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
        console.print(f"written to {args.json}")
    return 0
