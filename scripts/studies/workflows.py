"""Every way to share work, on the same agent and environments whose steps take time.

    python scripts/studies/workflows.py                 run what is missing, then write the page
    python scripts/studies/workflows.py --only speed    one group of runs
    python scripts/studies/workflows.py --page          only write the page

Groups: `speed` (short runs: throughput, idle times, lag), `product` (the same number of copies on more and
more ranks), `lander` (DQN, A3C and Dyna-Q on LunarLander, by workers), `spread` (the same run again and
again, where the order of writes is left to chance), `solve` (whole runs until CartPole or ExaBooster is
solved), `budget` (ExaBooster with twice the steps). Runs of one number of ranks are one job, one after the
other; finished ones are skipped, broken ones resumed. Runs go to runs/studies/workflows/<group>/<case>; what
the page needs of them is kept in docs/data/workflows.json. The page is docs/results/workflows.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.evaluation import load_run
from jaxrl_hpc.runtime.train import train

ROOT = Path(__file__).resolve().parents[2]
RUNS, DATA = ROOT / "runs" / "studies" / "workflows", ROOT / "docs" / "data" / "workflows.json"
COPIES, LENGTH = 8, 16  # of an actor, of an unroll
SLEEP = 0.002  # seconds of a step of all copies
COPY_SECONDS = 0.00025  # `product`: of a step of one copy, where copies are stepped one after the other
PRODUCT = 32  # ranks that act × copies of each
GROUPS = ("speed", "product", "lander", "spread", "solve", "budget")
TARGETS = {"CartPole-v1": ("eval_return", 475.0), "ExaBooster-v0": ("eval_improvement", 1.3)}


class Case(NamedTuple):
    """One run."""

    group: str
    workflow: str
    learners: int  # workers of sharded and parameter_server
    actors: int
    seed: int = 0
    env: str = "CartPole-v1"
    extra: tuple[str, ...] = ()  # settings of the workflow
    servers: int = 0
    copies: int = COPIES  # of a rank that acts
    agent: str = "a2c"
    repeat: int = 0

    @property
    def acting(self) -> int:
        return self.actors or self.learners

    @property
    def ranks(self) -> int:
        return self.learners + self.actors + self.servers

    @property
    def variant(self) -> str:
        """The workflow and what is special about it."""
        rules = [word.split("=")[1] for word in self.extra if word.startswith(("rule=", "servers="))]
        return " ".join([self.workflow, *rules])

    @property
    def name(self) -> str:
        shape = f"{self.learners}+{self.actors}" if self.actors else f"{self.learners}"
        apart = [f"x{self.copies}"] if self.group == "product" else []
        apart += [self.agent] if self.agent != "a2c" else []
        apart += [f"repeat{self.repeat}"] if self.repeat else []
        return "_".join([self.env, self.variant.replace(" ", "-"), shape, str(self.seed), *apart])


def variants(group: str, sizes: tuple[int, ...], seeds: int) -> list[Case]:
    """Every workflow on every number of ranks that act."""
    found = []
    for seed in range(seeds):
        for size in sizes:
            for name in ("async", "rma", "rma_queue", "central_inference"):
                found.append(Case(group, name, 1, size, seed))
            for rule in ("lock", "hogwild", "accumulate"):
                found.append(Case(group, "parameter_server", size, 0, seed, extra=(f"rule={rule}",)))
            found.append(Case(group, "parameter_server", size, 0, seed, extra=("rule=server",), servers=1))
        found.append(Case(group, "sharded", 1, 0, seed))  # one process: what others exceed
        found += [Case(group, name, 2, 4, seed) for name in ("async", "rma_queue")]
    return found


def cases() -> list[Case]:
    lock = ("rule=lock",)
    found = variants("speed", (1, 2, 4), 1)
    found += [Case("speed", name, learners, actors) for name in ("async", "rma_queue")
              for learners, actors in ((1, 3), (2, 2), (1, 8), (2, 8), (4, 4))]  # fmt: skip
    found += [Case("speed", "parameter_server", 8, 0, extra=lock), Case("speed", "central_inference", 1, 8)]
    found += [Case("product", "async", 1, n, copies=PRODUCT // n) for n in (1, 2, 4, 8)]
    found += [
        Case("product", "parameter_server", n, 0, extra=lock, copies=PRODUCT // n) for n in (1, 2, 4, 8)
    ]
    for number in (1, 2, 4, 8):
        for agent in ("dqn", "a2c"):
            found.append(
                Case("lander", "parameter_server", number, 0, 0, "LunarLander-v3", lock, agent=agent)
            )
        if number > 1:  # one rank acts, the others plan
            found.append(Case("lander", "dyna", number - 1, 1, 0, "LunarLander-v3", agent="dyna_q"))
    found += [Case("spread", "parameter_server", 4, 0, extra=(f"rule={rule}",), repeat=number)
              for rule in ("hogwild", "lock") for number in range(5)]  # fmt: skip
    found += variants("solve", (4,), 5)
    for seed in range(3):
        found.append(Case("solve", "sharded", 1, 0, seed, "ExaBooster-v0"))
        found += [Case("solve", name, 1, 4, seed, "ExaBooster-v0") for name in ("async", "rma_queue")]
        found.append(Case("solve", "parameter_server", 4, 0, seed, "ExaBooster-v0", lock))
        found.append(Case("budget", "rma_queue", 1, 4, seed, "ExaBooster-v0"))
        found.append(Case("budget", "parameter_server", 4, 0, seed, "ExaBooster-v0", lock))
    return found


STEPS = {  # in all; of short runs, per rank that acts
    ("speed", "CartPole-v1"): 6_400,
    ("product", "CartPole-v1"): 8_000,
    ("lander", "LunarLander-v3"): 8_000,
    ("spread", "CartPole-v1"): 50_000,
    ("solve", "CartPole-v1"): 120_000,
    ("solve", "ExaBooster-v0"): 250_000,
    ("budget", "ExaBooster-v0"): 500_000,
}
BASES = {"a2c": "cartpole_a2c", "dqn": "cartpole_dqn", "dyna_q": "cartpole_dyna_q"}


def config_of(case: Case) -> configs.Config:
    """The same agent everywhere (A2C with V-trace, but for `lander`): what differs is how work is shared."""
    short = case.group in ("speed", "product", "lander")
    words = [f"name={case.workflow}", f"num_envs={case.copies}", f"unroll_length={LENGTH}", *case.extra]
    if case.actors:
        words.append(f"learners={case.learners}")
    if case.workflow == "sharded":
        words.append(f"shards={case.learners}")
    exabooster = case.env == "ExaBooster-v0"
    steps = STEPS[case.group, case.env] * (1 + case.acting if short else 1)
    whole = case.group in ("solve", "budget")
    sleeps = {"product": COPY_SECONDS * case.copies, "lander": 0.0, "solve": SLEEP / 2, "budget": SLEEP / 2}
    sleep = sleeps.get(case.group, SLEEP)
    every = 1_280 * (1 if case.actors else case.learners) if short else 6_400  # workers meet for every row
    run = [
        f"seed={case.seed}", f"step_seconds={sleep}", f"total_env_steps={steps}", "tensorboard=false",
        f"log_every={every}", "checkpoint_seconds=600.0",
        f"eval_every={9_600 if whole else 0}", "final_eval_episodes=16", "eval_episodes=16",
    ]  # fmt: skip
    changes = [f"workflow.{w}" for w in words] + [f"run.{w}" for w in run]
    if case.agent == "a2c":
        changes.append("agent.vtrace=true")
        if not exabooster:  # what the recorded runs had
            changes += ["agent.learning_rate=3e-3", "agent.normalise.reward=false"]
    changes += ["agent.batch_size=63"] if case.agent == "dyna_q" else []  # 1, 3 and 7 planners divide it
    base = "exabooster_a2c" if exabooster else BASES[case.agent]
    return configs.load(base, [f"env.name={case.env}", *changes])


def folder_of(case: Case) -> Path:
    return RUNS / case.group / case.name


def finished(case: Case) -> bool:
    folder = folder_of(case)
    return folder.is_dir() and RunDirectory(folder).read_summary() is not None


def work(group: str, ranks: int) -> None:
    """In a job of so many ranks: all of its cases that are missing."""
    for case in cases():
        if case.group == group and case.ranks == ranks and not finished(case):
            print(f"+ {case.group} {case.name}", flush=True)
            train(config_of(case), folder_of(case), resume=True, say=lambda _: None)


def launch(group: str, ranks: int) -> None:
    missing = [case for case in cases() if case.group == group and case.ranks == ranks and not finished(case)]
    if not missing:
        return
    command = [sys.executable, str(Path(__file__)), "--work", group, str(ranks)]
    if ranks > 1:
        command = [str(find_mpiexec()), "-n", str(ranks), *command]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"NPROC": "1"}
    print(f"{group}: {len(missing)} runs of {ranks} rank(s)", flush=True)
    subprocess.run(command, check=False, cwd=ROOT, env=environment)


def facts(case: Case) -> dict[str, Any]:
    """What the page needs of a run. Speed without its first fifth: programs are compiled and caches cold."""
    table = read_metrics(folder_of(case)).to_pylist()
    rows = [row for row in table if row["kind"] == "train"]
    late = rows[max(1, len(rows) // 5) :]
    first, last = rows[max(1, len(rows) // 5) - 1], rows[-1]
    speed = (last["env_steps"] - first["env_steps"]) / (last["wall_seconds"] - first["wall_seconds"])

    def mean(name: str) -> float | None:
        values = [row[name] for row in late if row.get(name) is not None]
        return float(np.mean(values)) if values else None

    summary = RunDirectory(folder_of(case)).read_summary() or {}
    found = case._asdict() | {
        "variant": case.variant,
        "ranks": case.ranks,
        "steps_per_second": speed,
        **{name: mean(name) for name in ("learner_idle", "actor_idle", "lag_mean")},
        "lag_max": max((row["lag_max"] for row in late if row.get("lag_max") is not None), default=0),
        "commit": str(summary.get("commit", ""))[:10],
        "seconds": summary.get("wall_seconds"),
    }
    if case.group == "spread":
        found["final"] = summary["eval_return_score"]
        found["norm"] = norm(folder_of(case))
    return found | solved(case, table)


def solved(case: Case, table: list[dict[str, Any]]) -> dict[str, float]:
    """When it first was; counted from the first row on, before which actors compile their programs."""
    metric, target = TARGETS.get(case.env, ("", 0.0))
    start = next(row for row in table if row["kind"] == "train")
    episodes = 0.0
    for row in table:
        episodes += row["episodes"] if row["kind"] == "train" else 0
        if row["kind"] == "eval" and row.get(metric) is not None and row[metric] >= target:
            seconds = row["wall_seconds"] - start["wall_seconds"]
            return {"solved_seconds": seconds, "solved_episodes": episodes - start["episodes"]}
    return {}


def norm(folder: Path) -> float:
    """Of the parameters at the end: two runs that are the same in bits have the same."""
    _, runner = load_run(folder)
    return float(
        np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(runner.actor(0))))
    )


def collect() -> dict[str, Any]:
    """Facts of all finished runs, beside those that are known already."""
    known = json.loads(DATA.read_text()) if DATA.exists() else {"runs": {}, "machine": machine_facts()}
    for case in cases():
        key = f"{case.group}/{case.name}"
        if key not in known["runs"] and finished(case):
            known["runs"][key] = facts(case)
    DATA.write_text(json.dumps(known, indent=1) + "\n")
    return known


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, help="some groups")
    parser.add_argument("--ranks", type=int, help="only jobs of so many ranks")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--work", nargs=2, metavar=("GROUP", "RANKS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work[0], int(options.work[1]))
        return
    for group in () if options.page else options.only:
        for ranks in sorted({case.ranks for case in cases() if case.group == group}):
            if options.ranks in (None, ranks):
                launch(group, ranks)
    from workflows_page import write  # beside this file; draws and fits

    known = collect()
    write(known)
    DATA.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
