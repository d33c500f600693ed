"""Do two checkouts compute the same, and as fast?

    python scripts/compare_checkouts.py BEFORE AFTER [--only runs|speed] [--rounds 9] [--out FILE.json]

BEFORE and AFTER are folders with the package in them, both compiled (make install). Short runs of every
agent and every workflow, the asynchronous ones in lock-step or by a replayed schedule, are made in turns in
both, and must end with the same parameters and the same metrics. Then the cases of `jaxrl-hpc bench train`
run in turns on one pinned core: CPU time per update, the median of the ratios over rounds and its 95 %
interval.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as parquet
import yaml

from jaxrl_hpc.bench.cases import CASES as CASES_OF_BENCH
from jaxrl_hpc.bench.interleave import affinity
from jaxrl_hpc.metrics.parquet import without_clock

RUN = {
    "total_env_steps": 4096, "log_every": 1024, "eval_every": 2048, "eval_episodes": 4,
    "final_eval_episodes": 8, "tensorboard": False,
}  # fmt: skip
NETWORK = {"hidden": [32, 32]}
PRIORITISED = {"name": "prioritised", "capacity": 2048, "min_size": 256}
SEQUENCE = {"name": "sequence", "capacity": 2048, "min_size": 256}
DISCRETE, CONTINUOUS = {"name": "CartPole-v1"}, {"name": "Pendulum-v1"}
SMALL = {"num_envs": 4, "unroll_length": 8}
SPEED_CASES = ("dqn_1", "dqn_8", "ppo_16", "ppo_64", "td3")


def config(
    agent: dict[str, Any], env: dict[str, Any], workflow: dict[str, Any], replay: dict[str, Any] | None = None
) -> dict[str, Any]:
    sections = {"agent": {"network": NETWORK} | agent, "env": env, "workflow": SMALL | workflow, "run": RUN}
    return sections | ({"replay": replay} if replay else {})


DQN = {"name": "dqn", "n_step": 3, "batch_size": 24}
A2C = {"name": "a2c", "normalise": {"observation": True, "reward": True}}
PPO = {"name": "ppo", "epochs": 2, "minibatches": 2}
FUSED = {"name": "fused"}
EXACT = {"name": "sharded", "num_envs": 24, "shards": 4, "deterministic": True}
LOCKSTEP = {"lockstep": True}


class Case(NamedTuple):
    """A short run."""

    ranks: int
    config: dict[str, Any]
    recorded: bool = False  # BEFORE records a schedule, which both then replay


CASES = {
    "dqn": Case(1, config(DQN, DISCRETE, FUSED, PRIORITISED)),
    "recurrent_dqn": Case(1, config({"name": "recurrent_dqn", "batch_size": 8}, DISCRETE, FUSED, SEQUENCE)),
    "dyna_q": Case(1, config({"name": "dyna_q", "batch_size": 24}, DISCRETE, FUSED, PRIORITISED)),
    "td3": Case(1, config({"name": "td3", "batch_size": 24}, CONTINUOUS, FUSED, PRIORITISED)),
    "ddpg": Case(1, config({"name": "ddpg", "batch_size": 24}, CONTINUOUS, FUSED, PRIORITISED)),
    "a2c": Case(1, config(A2C, DISCRETE, FUSED)),
    "sac": Case(1, config({"name": "sac", "batch_size": 24}, CONTINUOUS, FUSED, PRIORITISED)),
    "iql": Case(1, config({"name": "iql", "batch_size": 24}, CONTINUOUS, FUSED, PRIORITISED)),
    "mbpo": Case(1, config({"name": "mbpo", "batch_size": 24}, CONTINUOUS, FUSED, PRIORITISED)),
    "pqn": Case(1, config({"name": "pqn"}, DISCRETE, FUSED | {"unroll_length": 32})),
    "ppo": Case(1, config(PPO, CONTINUOUS, FUSED | {"unroll_length": 32})),
    "sharded, 1 rank": Case(1, config(DQN, DISCRETE, EXACT, PRIORITISED)),
    "sharded, 2 ranks": Case(2, config(DQN, DISCRETE, EXACT, PRIORITISED)),
    "sharded ppo, 2 ranks": Case(2, config(PPO, DISCRETE, EXACT | {"unroll_length": 32})),
    "async": Case(2, config(DQN, DISCRETE, {"name": "async"} | LOCKSTEP, PRIORITISED)),
    "async, replayed": Case(3, config(A2C, DISCRETE, {"name": "async"}), recorded=True),
    "rma": Case(2, config(A2C, DISCRETE, {"name": "rma"} | LOCKSTEP)),
    "rma_queue": Case(2, config(DQN, DISCRETE, {"name": "rma_queue"} | LOCKSTEP, PRIORITISED)),
    "central_inference": Case(2, config(A2C, DISCRETE, {"name": "central_inference"} | LOCKSTEP)),
    "parameter_server": Case(3, config(A2C, DISCRETE, {"name": "parameter_server"}), recorded=True),
    "gossip": Case(3, config(A2C, DISCRETE, {"name": "gossip"}), recorded=True),
    "dyna": Case(
        2, config({"name": "dyna_q", "batch_size": 24}, DISCRETE, {"name": "dyna"} | LOCKSTEP, PRIORITISED)
    ),
}


def environment(checkout: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS", "OMP_NUM_THREADS")}
    return kept | {"PYTHONPATH": str(checkout)}


def train(checkout: Path, case: Case, folder: Path, overrides: Sequence[str]) -> None:
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(case.config))
    launcher = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    command = [str(launcher), "-n", str(case.ranks)] if case.ranks > 1 else []
    command += [sys.executable, "-m", "jaxrl_hpc.cli.main", "train", str(file), "--run-dir", str(folder)]
    done = subprocess.run(
        [*command, *overrides], cwd=folder.parent, env=environment(checkout), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(
            f"{checkout}: {' '.join(command)} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
        )


def result(folder: Path) -> tuple[str, str]:
    """Hash of the parameters, and all metrics but clocks as text."""
    summary = json.loads((folder / "summary.json").read_text())
    table = parquet.read_table(folder / "metrics")
    rows = without_clock(table).to_pylist()
    return summary["params_sha256"], str([dict(sorted(row.items())) for row in rows])


def compare_runs(before: Path, after: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            case = CASES[name]
            folders = [Path(place) / f"{name.replace(' ', '_').replace(',', '')}-{i}" for i in range(3)]
            overrides: list[str] = []
            if case.recorded:
                train(before, case, folders[2], ["run.record_schedule=true"])
                overrides = [f"run.replay_schedule={folders[2]}"]
            for checkout, folder in zip((before, after), folders, strict=False):
                train(checkout, case, folder, overrides)
            (old, old_rows), (new, new_rows) = (result(folder) for folder in folders[:2])
            found[name] = {"params": old == new, "metrics": old_rows == new_rows, "sha256": new[:12]}
            good = "same" if old == new and old_rows == new_rows else f"DIFFERENT {found[name]}"
            print(f"{name:24} {good}  {new[:12]}", flush=True)
    return found


class Worker:
    """`jaxrl_hpc.bench.worker` of one checkout, pinned to one core."""

    def __init__(self, checkout: Path, case: str) -> None:
        work = next(known.work for known in CASES_OF_BENCH if known.name == case)
        fields = work._asdict().items()  # without those that an earlier version may not know
        told = {name: value for name, value in fields if value != work._field_defaults.get(name)}
        command = [sys.executable, "-m", "jaxrl_hpc.bench.worker", "pinned", json.dumps(told)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with affinity("pinned"):
            self.process = subprocess.Popen(
                command, env=environment(checkout), cwd="/", stderr=subprocess.DEVNULL, **pipes
            )
        self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def cpu_per_update(self, seconds: float) -> float:
        assert self.process.stdin is not None
        print(f"seconds {seconds}", file=self.process.stdin, flush=True)
        found = self.answer()
        return found["cpu_seconds"] / found["updates"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare_speed(
    before: Path, after: Path, cases: Sequence[str], rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    """CPU time per update of AFTER over that of BEFORE."""
    found, rng = {}, np.random.default_rng(0)
    for case in cases:
        workers = [Worker(checkout, case) for checkout in (before, after)]
        samples = []
        for number in range(rounds):
            order = workers if number % 2 == 0 else workers[::-1]
            times = {id(worker): worker.cpu_per_update(seconds) for worker in order}
            samples.append([times[id(worker)] for worker in workers])
        for worker in workers:
            worker.close()
        ratios = np.array([new / old for old, new in samples])
        draws = np.median(rng.choice(ratios, (2000, rounds)), axis=1)
        low, high = np.percentile(draws, [2.5, 97.5])
        old, new = (1e6 * statistics.median(pair[i] for pair in samples) for i in range(2))
        found[case] = {"before_us": old, "after_us": new, "ratio": float(np.median(ratios))}
        found[case] |= {"low": float(low), "high": float(high)}
        ratio = found[case]["ratio"]
        print(
            f"{case:12} {old:9.1f} → {new:9.1f} µs/update  ratio {ratio:.3f} [{low:.3f}, {high:.3f}]",
            flush=True,
        )
    return found


def commit(checkout: Path) -> str:
    done = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip()[:12] or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=lambda text: Path(text).resolve())
    parser.add_argument("after", type=lambda text: Path(text).resolve())
    parser.add_argument("--only", choices=("runs", "speed"))
    parser.add_argument("--case", action="append", choices=[*CASES, *SPEED_CASES], help="may be given again")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one round")
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    args = parser.parse_args()
    report: dict[str, Any] = {"before": commit(args.before), "after": commit(args.after)}
    wanted = args.case or [*CASES, *SPEED_CASES]
    if args.only != "speed":
        report["runs"] = compare_runs(args.before, args.after, [name for name in CASES if name in wanted])
    if args.only != "runs":
        cases = [name for name in SPEED_CASES if name in wanted]
        report["speed"] = compare_speed(args.before, args.after, cases, args.rounds, args.seconds)
    if args.out:
        args.out.write_text(json.dumps(copy.deepcopy(report), indent=1) + "\n")
    different = [n for n, r in report.get("runs", {}).items() if not (r["params"] and r["metrics"])]
    sys.exit(f"different: {', '.join(different)}" if different else 0)


if __name__ == "__main__":
    main()
