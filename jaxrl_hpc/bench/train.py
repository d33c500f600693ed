"""Training speed: ours and other libraries on the same work, in one interleaved run.

examples:
  jaxrl-hpc bench train --quick
  jaxrl-hpc bench train --json bench_train.json --plot bench_train.svg
  jaxrl-hpc bench train --only dqn_8 td3
  jaxrl-hpc bench train --peer-path ../purejaxrl --only ppo_16
  jaxrl-hpc bench train --only returns

The peers are rejax, sbx and stable-baselines3, from an environment of their own (`make bench` makes it), and
purejaxrl from a checkout (--peer-path). Atari (`--only atari_ppo`) is measured only when requested. Every
library runs in a process of its own, started as it is by default; where the table says pinned, with one core
from the start, and a pinned process that uses more ends the measurement. Steps and updates are counted by the
libraries themselves. Compilation is measured separately and without a cache, evaluation is excluded. Rounds
alternate between the libraries, so that other load on the machine affects all alike: trust the ratios, not
the rates. `returns` trains every library for the same number of steps and compares what they reach. A --json
file that exists keeps the cases that are not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jaxrl_hpc.bench.cases import (
    ATARI_CASES,
    CASES,
    PRIORITY_CASES,
    PRIORITY_GOAL,
    SLOT_CASES,
    SLOTS_GOAL,
    Case,
)
from jaxrl_hpc.bench.interleave import Entry, Peers, cpu_ratio, learn, machine_facts, ratio, take_turns
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.read_files import read_json
from jaxrl_hpc.runtime.host import available_cores

EXTRA = ("slots", "priorities", "returns")
ATARI = tuple(case.name for case in ATARI_CASES)
NAMES = (*(case.name for case in CASES), *ATARI, *EXTRA)
PEER_PYTHON = Path(".venv-bench/bin/python")
PACKAGES = ("rejax", "sbx", "stable_baselines3")
RETURN_SEEDS = 3

Say = Callable[[str], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look")
    parser.add_argument("--only", nargs="+", metavar="CASE", help=f"some of: {', '.join(NAMES)}")
    parser.add_argument("--json", metavar="FILE", help="also write the results here")
    parser.add_argument("--plot", metavar="FILE", help="also draw the ratios here (SVG, PNG or PDF)")
    parser.add_argument("--rounds", type=int, help="turns of every library (9; quick: 3)")
    parser.add_argument("--seconds", type=float, help="of a turn (2; quick: 0.5)")
    parser.add_argument("--peer-path", metavar="DIR", help="a checkout of purejaxrl")
    parser.add_argument(
        "--peer-python",
        metavar="FILE",
        help=f"the Python that has the peers ({PEER_PYTHON} if it is there, else this one)",
    )


def find_peers(python: str | None, path: str | None) -> tuple[Peers, dict[str, str]]:
    """The peers' Python, and the versions of those that can be used."""
    chosen = python or (str(PEER_PYTHON) if PEER_PYTHON.exists() else sys.executable)
    script = (
        "import importlib.metadata as m, importlib.util as u, json\n"
        f"have = [n for n in {PACKAGES} if u.find_spec(n)]\n"
        "names = {'sbx': 'sbx-rl'}\n"
        "print(json.dumps({n: m.version(names.get(n, n)) for n in have}))"
    )
    try:
        asked = subprocess.run([chosen, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"--peer-python: {chosen} does not run: {error}") from None
    versions: dict[str, str] = json.loads(asked.stdout)
    paths = {}
    if path is not None:
        if not (Path(path) / "purejaxrl" / "dqn.py").exists():
            raise UserError(f"--peer-path: {path} has no purejaxrl/dqn.py: give a checkout of it")
        paths["purejaxrl"] = path
        command = ["git", "-C", path, "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        versions["purejaxrl"] = commit or "unknown commit"
    return Peers(chosen, paths), versions


class Bench:
    """The cases and libraries to measure, and the settings of the measurement."""

    def __init__(self, peers: Peers, available: Sequence[str], seconds: float, rounds: int, say: Say):
        self.peers, self.available = peers, available
        self.seconds, self.rounds, self.say = seconds, rounds, say

    def take_turns(self, entries: Sequence[Entry], title: str) -> list[dict[str, Any]]:
        return take_turns(
            entries, self.seconds, self.rounds, lambda text: self.say(f"{title}: {text}"), self.peers
        )

    def libraries(self, case: Case) -> list[str]:
        return ["ours", *(peer for peer in case.peers if peer in self.available)]

    def case(self, case: Case) -> dict[str, Any]:
        """One part of the table: every library and way of starting it."""
        libraries = self.libraries(case)
        modes = ("default", "pinned") if case.pinned else ("default",)
        entries = [Entry(lib, case.name, case.work, mode) for mode in modes for lib in libraries]
        results = self.take_turns(entries, case.title)
        found = {(r["library"], r["mode"]): r for r in results}
        comparisons = [
            {
                "mode": mode,
                "peer": peer,
                "rate": ratio(found["ours", mode], found[peer, mode]),
                "cpu": cpu_ratio(found["ours", mode], found[peer, mode]),
            }
            for mode in modes
            for peer in libraries[1:]
        ]
        check_equal_work(case, results)
        described = {"name": case.name, "title": case.title, "work": case.work._asdict()}
        goals = {"goal": case.goal, "pinned_goal": case.pinned_goal}
        return described | goals | {"results": results, "comparisons": comparisons}

    def slots(self) -> dict[str, Any]:
        """Our update at every size of the replay in turns; then rejax's."""
        lines = {}
        for library in ("ours", "rejax"):
            cases = [case for case in SLOT_CASES if library in self.libraries(case)]
            if not cases:
                continue
            results = self.take_turns([Entry(library, c.name, c.work) for c in cases], "replay sizes")
            lines[library] = [
                {"slots": case.work.capacity, "slowdown": ratio(results[0], result), **result}
                for case, result in zip(cases, results, strict=True)
            ]
        return {"goal": SLOTS_GOAL, **lines}

    def priorities(self) -> dict[str, Any]:
        """Uniform and prioritised replay in turns, at two sizes; the cost is that of CPU time."""
        entries = [Entry("ours", case.name, case.work) for case in PRIORITY_CASES]
        results = self.take_turns(entries, "priorities")
        lines = []
        for case, uniform, prioritised in zip(PRIORITY_CASES[::2], results[::2], results[1::2], strict=True):
            cpu = [result["cpu_microseconds_per_update"] for result in (uniform, prioritised)]
            slots = case.work.capacity
            lines.append({"slots": slots, "uniform": cpu[0], "prioritised": cpu[1], "cost": cpu[1] / cpu[0]})
        return {"goal": PRIORITY_GOAL, "lines": lines}

    def returns(self, seeds: int) -> list[dict[str, Any]]:
        """Returns of each library after the same number of steps; one process per core at a time."""
        lines = []
        for case in CASES:
            for library in self.libraries(case) if case.learning else ():
                works = [
                    case.work._replace(budget=case.learning, warm=False, seed=seed) for seed in range(seeds)
                ]
                with ThreadPoolExecutor(available_cores()) as pool:
                    jobs = [
                        pool.submit(
                            learn, Entry(library, case.name, work), case.learning, self.peers, self.say
                        )
                        for work in works
                    ]
                    found = [job.result() for job in jobs]
                lines.append(
                    {
                        "case": case.name,
                        "title": case.title,
                        "library": library,
                        "env_steps": found[0]["env_steps"],
                        "updates": found[0]["updates"],
                        "returns": [result["return"] for result in found],
                    }
                )
        return lines


def check_equal_work(case: Case, results: Sequence[dict[str, Any]]) -> None:
    """Check that all libraries made the same number of updates per environment step, by their own counts."""
    wanted = case.work.num_envs * case.work.unroll_length / (case.work.epochs * case.work.minibatches)
    for result in results:
        taken = result["steps_per_update"]
        if abs(taken / wanted - 1) > 0.02:  # some collect before the first update
            raise UserError(
                f"bench: {result['library']} on {case.name} took {taken:.2f} environment steps per update, "
                f"not {wanted:.2f}: the work is not the same"
            )


def measure(
    only: Sequence[str] | None,
    quick: bool,
    say: Say = lambda text: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
    *,
    peer_python: str | None = None,
    peer_path: str | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """All that is asked for, as plain data; saved after every case, since the whole takes a while."""
    chosen = list(only or (name for name in NAMES if name not in ATARI))
    for name in chosen:
        if name not in NAMES:
            raise UserError(f"--only: there is no case {name!r}; known are {', '.join(NAMES)}")
    peers, versions = find_peers(peer_python, peer_path)
    seconds, rounds = seconds or (0.5 if quick else 2.0), rounds or (3 if quick else 9)
    bench = Bench(peers, list(versions), seconds, rounds, say)
    report: dict[str, Any] = {"quick": quick, "seconds": seconds, "rounds": rounds, "peers": versions}
    report["machine"] = machine_facts()
    report["cases"] = []

    def keep() -> None:
        report["machine"]["load_after"] = machine_facts()["load"]
        save(report)

    for case in (*CASES, *ATARI_CASES):
        if case.name in chosen:
            report["cases"].append(bench.case(case))
            keep()
    parts: dict[str, Callable[[], Any]] = {
        "slots": bench.slots,
        "priorities": bench.priorities,
        "returns": lambda: bench.returns(1 if quick else RETURN_SEEDS),
    }
    for name, part in parts.items():
        if name in chosen:
            report[name] = part()
            keep()
    return report


FACTS = ("quick", "seconds", "rounds", "peers", "machine")  # of a measurement: on what, and how


def facts_of(report: dict[str, Any], name: str) -> dict[str, Any]:
    """On what and how a case or part of a merged report was measured."""
    return report.get("earlier", {}).get(name, {key: report[key] for key in FACTS})


def record(path: Path) -> dict[str, Any]:
    """An earlier report of this command."""
    found = read_json(path)
    if not isinstance(found, dict) or not {"cases", *FACTS} <= found.keys():
        raise UserError(f"--json: {path} is there, and no record of `bench train`: give another file")
    return found


def merge(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """`now`, and from `before` what `now` has not measured; `earlier` has the facts of that."""
    new = {case["name"] for case in now["cases"]} | now.keys()
    kept = [case for case in before["cases"] if case["name"] not in new]
    parts = {name: before[name] for name in EXTRA if name in before and name not in new}
    earlier = {name: facts_of(before, name) for name in (*(case["name"] for case in kept), *parts)}
    order = [*(case.name for case in (*CASES, *ATARI_CASES)), *(case["name"] for case in kept)]
    cases = sorted((*kept, *now["cases"]), key=lambda case: order.index(case["name"]))
    return now | parts | {"cases": cases} | ({"earlier": earlier} if earlier else {})


def verdict(ratio: float, goal: float | None) -> str:
    if goal is None:
        return ""
    return "reached" if ratio >= goal else "missed"


def closest(case: dict[str, Any], mode: str, kind: str) -> dict[str, Any] | None:
    """The comparison with the best peer. `kind`: rate or cpu."""
    found = [c for c in case["comparisons"] if c["mode"] == mode]
    return min(found, key=lambda c: c[kind]["median"]) if found else None


def goals(case: dict[str, Any]) -> list[str]:
    """Goals of a case and whether they were reached, in words."""
    verdicts = []
    for mode, kind, goal in (("default", "rate", case["goal"]), ("pinned", "cpu", case["pinned_goal"])):
        best = closest(case, mode, kind)
        if goal is not None and best is not None:
            reached = best[kind]["median"]
            what = "rate" if kind == "rate" else "CPU time, pinned"
            verdicts.append(
                f"{what} {reached:.2f}× of {best['peer']}, goal {goal}×: {verdict(reached, goal)}"
            )
    return verdicts


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from jaxrl_hpc.bench import train_tables

    console = Console()
    target = Path(args.json) if args.json else None
    before = record(target) if target and target.exists() else None

    def merged(report: dict[str, Any]) -> dict[str, Any]:
        return merge(before, report) if before else report

    def save(report: dict[str, Any]) -> None:
        if target:
            target.write_text(json.dumps(merged(report), indent=1) + "\n")

    with console.status("starting …") as status:
        report = measure(
            args.only,
            args.quick,
            status.update,
            save,
            peer_python=args.peer_python,
            peer_path=args.peer_path,
            rounds=args.rounds,
            seconds=args.seconds,
        )
    for table in train_tables.tables(report):
        console.print(table)
    for case in report["cases"]:
        for line in goals(case):
            console.print(f"{case['title']}: {line}")
    missing = [name for name in (*PACKAGES, "purejaxrl") if name not in report["peers"]]
    if missing:
        console.print(f"not measured: {', '.join(missing)} (`make bench` installs peers, see --help)")
    facts = report["machine"]
    console.print(
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']:.1f} before and "
        f"{facts['load_after']:.1f} after; {report['rounds']} rounds of {report['seconds']} s, medians"
        + (" (quick: a first look)" if report["quick"] else "")
    )
    if args.json:
        console.print(f"written to {args.json}")
    if args.plot:
        train_tables.draw(merged(report), Path(args.plot))
        console.print(f"drawn to {args.plot}")
    return 0
