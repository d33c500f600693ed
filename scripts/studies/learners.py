"""More learners on emulated accelerators: speed, time to solve and learning by number of learners.

    python scripts/studies/learners.py run goals central      cells that the goals name, and parameter
                                                              servers beside gossip; missing ones only
    python scripts/studies/learners.py run speed tail solve convergence exabooster   the rest: many hours
    python scripts/studies/learners.py run speed --match "async own 8+16 20ms"
    python scripts/studies/learners.py list                   all cells, and which are measured
    python scripts/studies/learners.py page                   write docs/results/learners.md

One cell at a time; each is a job of its own whose result goes into docs/data/learners.json at once, so that a
study can be stopped at any time and continues where it stopped. A cell's record says how many cores other
work used meanwhile; `--calm CORES` measures cells anew during which it used more.

Settings, fixed before measuring: A2C with V-trace on CartPole, 8 copies per rank that acts, unrolls of 16
steps, one unroll per learner and iteration, so that every environment step is learned from once whatever the
number of learners. An environment step of all copies takes 2 ms, learning from one unroll 0, 5 or 20 ms, and
neither uses a core. Speed: 60 s a cell (`--seconds`; a record says how long its cell was measured), counted
from the first row of metrics on, before which programs are compiled, and without the first fifth. In
`parameter_server` and `gossip` every worker acts and learns, one after the other; their cells have as many
workers as others have ranks that act.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from jaxrl_hpc import config as configs
from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runs.directory import code_version
from jaxrl_hpc.runtime.seeds import SeedRunner
from jaxrl_hpc.runtime.train import train

ROOT = Path(__file__).resolve().parents[2]
DATA, COSTS = (ROOT / "docs" / "data" / f"{name}.json" for name in ("learners", "workflows"))
COPIES, LENGTH, STEP = 8, 16, 0.002
TAIL = 1.5  # shape of the Pareto law: a mean, no variance
EVERYONE_ACTS: tuple[tuple[str, tuple[str, ...]], ...] = (  # and learns
    ("parameter_server", ("rule=lock",)),
    ("parameter_server", ("rule=hogwild",)),
    ("parameter_server", ("rule=server",)),
    ("gossip", ()),
)
TARGETS = {"CartPole-v1": ("eval_return", 475.0), "ExaBooster-v0": ("eval_improvement", 1.3)}


class Cell(NamedTuple):
    """One measurement."""

    group: str
    workflow: str
    learners: int  # workers of parameter_server and gossip
    actors: int
    update: float = 0.0  # seconds
    mode: str = "own"
    tail: float = 0.0
    env: str = "CartPole-v1"
    seed: int = 0
    rate: float = 1.0  # × the learning rate
    extra: tuple[str, ...] = ()  # settings of the workflow
    step: float = STEP
    steps: int = 0  # of the environment in all; 0: as many as the time allows

    @property
    def ranks(self) -> int:
        return self.learners + self.actors + ("rule=server" in self.extra)

    @property
    def name(self) -> str:
        shape = f"{self.learners}+{self.actors}" if self.actors else f"{self.learners}"
        words = [self.workflow, *([self.mode] if self.actors else []), shape, f"{1e3 * self.update:g}ms"]
        words += [f"tail{self.tail:g}"] if self.tail else []
        words += [self.env] if self.env != "CartPole-v1" else []
        words += [f"rate{self.rate:g}"] if self.rate != 1 else []
        words += [f"seed{self.seed}"] if self.steps else []
        return " ".join([self.group if self.steps else "speed", *words, *self.extra])


def speed(learners: int, actors: int, update: float, workflow: str = "async", **other: Any) -> Cell:
    return Cell("speed", workflow, learners, actors, update, **other)


def goals() -> Iterator[Cell]:
    """What the published figures are compared with, and what else was asked for."""
    yield from (speed(*shape, 0.02) for shape in ((1, 8), (8, 8), (8, 16)))
    yield from (speed(1, 8, 0.0, workflow) for workflow in ("async", "rma_queue"))
    yield speed(2, 8, 0.0)
    yield from (speed(1, 8, 0.0, workflow, tail=TAIL) for workflow in ("async", "rma_queue"))
    yield from (speed(*shape, 0.02) for shape in ((1, 16), (2, 8), (4, 8)))


def everything() -> Iterator[Cell]:
    for update, learners, actors in itertools.product((0.02, 0.005, 0.0), (1, 2, 4, 8), (8, 16)):
        for workflow, mode in (("async", "own"), ("rma_queue", "own"), ("rma", "own"), ("async", "shared")):
            if mode == "own" or learners > 1:
                yield speed(learners, actors, update, workflow, mode=mode)
    for update, workers in itertools.product((0.02, 0.005, 0.0), (1, 8, 16)):
        yield from (speed(workers, 0, update, workflow, extra=extra) for workflow, extra in EVERYONE_ACTS)


def central() -> Iterator[Cell]:
    """What exchanges cost by a lock, without one, at a server, and without a centre."""
    yield from (speed(8, 0, 0.0, workflow, extra=extra) for workflow, extra in EVERYONE_ACTS)


def tails() -> Iterator[Cell]:
    for workflow, (learners, actors) in itertools.product(
        ("async", "rma", "rma_queue"), ((1, 8), (1, 16), (2, 8))
    ):
        yield from (speed(learners, actors, 0.005, workflow, tail=tail) for tail in (0.0, TAIL))


def solve() -> Iterator[Cell]:
    shapes = ((1, 8), (2, 8), (8, 8), (8, 16))
    for seed, shape, workflow in itertools.product(range(5), shapes, ("async", "rma_queue")):
        yield Cell("solve", workflow, *shape, 0.02, seed=seed, steps=150_000)


def exabooster() -> Iterator[Cell]:
    for seed, shape, workflow in itertools.product(range(3), ((1, 8), (8, 8)), ("async", "rma_queue")):
        yield Cell("solve", workflow, *shape, 0.005, env="ExaBooster-v0", seed=seed, steps=500_000)


def convergence() -> Iterator[Cell]:
    """Equal environment steps, as fast as they come: what more learners do to learning alone."""
    for seed, learners in itertools.product(range(3), (1, 2, 4, 8)):
        for mode, rate in itertools.product(("own", "shared"), (1.0, 2.0, 4.0)):
            if learners > 1 or (mode, rate) == ("own", 1.0):
                yield Cell("convergence", "async", learners, 8, mode=mode, rate=rate, seed=seed,
                           step=0.0, steps=200_000)  # fmt: skip
        if learners > 1:
            every = ("average_every=8",)
            yield Cell("convergence", "async", learners, 8, seed=seed, extra=every, step=0.0, steps=200_000)
            for workflow, extra in EVERYONE_ACTS:
                yield Cell("convergence", workflow, learners, 0, seed=seed, extra=extra,
                           step=0.0, steps=200_000)  # fmt: skip


GROUPS = {
    "goals": goals, "central": central, "speed": everything, "tail": tails, "solve": solve,
    "exabooster": exabooster, "convergence": convergence,
}  # fmt: skip


def config_of(cell: Cell, seconds: float) -> configs.Config:
    flow = [f"name={cell.workflow}", f"num_envs={COPIES}", f"unroll_length={LENGTH}", *cell.extra]
    per_iteration = COPIES * LENGTH
    if cell.actors:
        shared = cell.mode == "shared"
        flow += [f"learners={cell.learners}", f"learner_mode={cell.mode}"]
        # the first learner shares out as many unrolls as others would have together
        flow += [f"batch_trajectories={cell.learners}"] if shared else []
        per_iteration *= cell.learners
    update = cell.update * (cell.learners if cell.mode == "shared" else 1)  # of the whole batch
    limits = [(cell.actors or cell.learners) * COPIES / STEP]
    limits += [cell.learners * COPIES * LENGTH / cell.update] if cell.update else []
    steps = cell.steps or int(2 * seconds * min(limits))
    every = max(per_iteration, int(min(limits) / 4) if not cell.steps else 6_400)
    run = [
        f"seed={cell.seed}", f"step_seconds={cell.step}", f"step_tail={cell.tail}",
        f"update_seconds={update}", f"total_env_steps={steps}", f"log_every={every}",
        "tensorboard=false", "checkpoint_seconds=1e6",
        f"eval_every={9_600 if cell.steps else 0}", "final_eval_episodes=32", "eval_episodes=16",
    ]  # fmt: skip
    changes = [f"env.name={cell.env}", "agent.vtrace=true", *(f"workflow.{w}" for w in flow)]
    base = "exabooster_a2c" if cell.env == "ExaBooster-v0" else "cartpole_a2c"
    if cell.env == "CartPole-v1":
        changes += [f"agent.learning_rate={3e-3 * cell.rate}", "agent.normalise.reward=false"]
    return configs.load(base, [*changes, *(f"run.{w}" for w in run)])


def on_ranks(cell: Cell, seconds: float, folder: Path) -> None:
    """In a job: one run, stopped by a signal so many seconds after its first chunk."""
    plain, chunks = SeedRunner.step, itertools.count()

    def step(self: SeedRunner, iterations: int) -> Any:
        # programs with MPI inside, and those of actors, are compiled during the first chunk
        if next(chunks) == 1 and not cell.steps:
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.daemon = True
            timer.start()
        return plain(self, iterations)

    SeedRunner.step = step  # type: ignore[method-assign]
    train(config_of(cell, seconds), folder, say=lambda _: None)


def facts(cell: Cell, folder: Path) -> dict[str, Any]:
    table = read_metrics(folder).to_pylist()
    rows = [row for row in table if row["kind"] == "train"]
    if len(rows) < 3:
        raise SystemExit(f"{cell.name}: {len(rows)} row(s) of metrics; give it more --seconds")
    begin = max(1, len(rows) // 5)
    first, last, late = rows[begin - 1], rows[-1], rows[begin:]
    elapsed = last["wall_seconds"] - first["wall_seconds"]
    steps = last["env_steps"] - first["env_steps"]
    found: dict[str, Any] = {
        "steps_per_second": steps / elapsed,
        "updates_per_step": (last["updates"] - first["updates"]) / steps,
        "seconds": elapsed,
        "env_steps": last["env_steps"],
    }
    for name in ("learner_idle", "actor_idle", "lag_mean", "consensus_distance"):
        values = [row[name] for row in late if row.get(name) is not None]
        found[name] = sum(values) / len(values) if values else None
    metric, target = TARGETS[cell.env]
    curve = [(row["env_steps"], row["wall_seconds"] - rows[0]["wall_seconds"], row[metric])
             for row in table if row["kind"] == "eval" and row.get(metric) is not None]  # fmt: skip
    if cell.steps:
        solved = next(((steps, at) for steps, at, value in curve if value >= target), None)
        found |= {"curve": [(steps, value) for steps, _, value in curve], "solved": solved}
    return found


def other_seconds() -> float:
    """CPU time of this machine so far, without that of finished jobs of this process."""
    every, ours = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return every.user + every.system + every.nice + every.irq + every.softirq - ours.ru_utime - ours.ru_stime


def measure(cell: Cell, seconds: float) -> dict[str, Any]:
    begin, others = time.monotonic(), other_seconds()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        work = [sys.executable, __file__, "--ranks", json.dumps(cell), str(seconds), str(place)]
        command = [str(find_mpiexec()), "-n", str(cell.ranks), *work] if cell.ranks > 1 else work
        environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"NPROC": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode not in (0, 75) or not place.is_dir():  # 75: stopped by the signal
            raise SystemExit(f"{cell.name} failed:\n{done.stdout[-1500:]}{done.stderr[-3000:]}")
        found = facts(cell, place)
    other_cores = (other_seconds() - others) / (time.monotonic() - begin)
    return {"cell": cell._asdict(), "other_cores": other_cores, "code": code_version(), **found}


def known() -> dict[str, Any]:
    return json.loads(DATA.read_text()) if DATA.exists() else {"cells": {}}


def run(options: argparse.Namespace) -> None:
    end = time.monotonic() + 60 * options.minutes
    for group in options.groups:
        for cell in GROUPS[group]():
            before = known()["cells"].get(cell.name)
            if options.match not in cell.name or (before and before["other_cores"] <= options.calm):
                continue
            if time.monotonic() > end:
                return
            print(f"+ {cell.name}", flush=True)
            result = measure(cell, options.seconds)
            data = known()  # another process may have added to it
            data["machine"] = machine_facts()
            data["cells"][cell.name] = result
            DATA.write_text(json.dumps(data, indent=1) + "\n")
            busy = f"other work used {result['other_cores']:.2f} cores"
            print(f"  {result['steps_per_second']:,.0f} steps/s, {busy}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--ranks"]:
        data = json.loads(sys.argv[2])
        cell = Cell(*(tuple(value) if isinstance(value, list) else value for value in data))
        on_ranks(cell, float(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "list", "page"))
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--match", default="", help="only cells whose name has this in it")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a speed cell")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so many")
    parser.add_argument(
        "--calm", type=float, default=float("inf"), help="measure anew what had more cores of other work"
    )
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if options.what == "run":
        run(options)
    elif options.what == "list":
        measured = known()["cells"]
        for group, cells in GROUPS.items():
            for cell in cells():
                print(f"{group:12} {'done' if cell.name in measured else '-   '} {cell.name}")
    else:
        from learners_page import write  # beside this file

        data = known()
        data["costs"] = json.loads(COSTS.read_text())["costs"]  # of the pieces alone, measured there
        write(data)


if __name__ == "__main__":
    main()
