"""Soak for scripts/chaos.py: long runs with a full replay; resident memory stays flat.

What is judged is a trend, not a moment: saves, evaluations and merged metrics take memory for an instant and
give it back, so that single readings jump by several MiB. The median of the first third of the readings is
compared with that of the last third, process by process.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
import yaml
from chaos_kills import DQN, PRIORITISED, RUN, Job
from chaos_record import Outcome

from jaxrl_hpc.metrics.parquet import read_metrics

WORKFLOWS = ("fused", "async", "rma_queue")
FULL = (
    2 * PRIORITISED["capacity"]
)  # environment steps after which the replay is full, n-step windows included
TOLERANCE = 0.01
SAMPLE_SECONDS = 2.0


def soak(workflow: str, minutes: float, work: Path) -> Outcome:
    """The run lasts until a signal stops it. A quarter of the time comes first for what is done once:
    compiling, filling the replay, the first saves and evaluations, allocators' free lists. Not judged."""
    folder = work / f"soak-{workflow}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    flow: dict[str, Any] = {"name": workflow, "num_envs": 4}
    if workflow != "fused":
        flow |= {"unroll_length": 8, "updates_per_iteration": 2, "deadline_seconds": 300.0}
    run = RUN | {"total_env_steps": 2**31 - 1, "eval_every": 20_000, "log_every": 4000, "tensorboard": True,
                 "checkpoint_seconds": 5.0}  # fmt: skip
    data = {"agent": DQN, "env": {"name": "CartPole-v1"}, "replay": PRIORITISED, "workflow": flow, "run": run}
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(data))
    began = time.monotonic()
    job = Job(config, folder / "run", 1 if workflow == "fused" else 3)

    def outcome(verdict: str, text: str) -> Outcome:
        return Outcome("soak", workflow, f"soak:{workflow}", verdict, time.monotonic() - began, text)

    samples: dict[int, list[float]] = {}
    try:
        if not job.wait_until_it_trains() or not full(job):
            return outcome("HANG", f"it did not begin: {job.text()[-500:]}")
        settled = time.monotonic() + 15 * minutes
        end = settled + 45 * minutes
        while time.monotonic() < end:
            time.sleep(SAMPLE_SECONDS)
            if job.process.poll() is not None:
                return outcome("LOST", f"it ended with {job.process.returncode}: {job.text()[-800:]}")
            for pid in job.pids() if time.monotonic() > settled else ():
                samples.setdefault(pid, []).append(psutil.Process(pid).memory_info().rss / 2**20)
        job.process.send_signal(signal.SIGUSR1)
        code = job.ended(300)
        if code != 75:
            return outcome("HANG" if code is None else "LOST", f"code {code}: {job.text()[-500:]}")
    finally:
        job.close()
    steps = env_steps(folder / "run")
    verdict, texts = "ok", []
    for rank, rss in enumerate(samples.values()):
        third = max(1, len(rss) // 3)
        early, late = statistics.median(rss[:third]), statistics.median(rss[-third:])
        texts.append(f"rank {rank}: {early:.1f} MiB, then {late:.1f} MiB ({100 * (late / early - 1):+.2f} %)")
        if late > early * (1 + TOLERANCE):
            verdict = "LOST"
    shutil.rmtree(folder)
    return outcome(verdict, f"{minutes:g} minutes, {steps} environment steps; " + "; ".join(texts))


def env_steps(run: Path) -> int:
    """According to its metrics."""
    return max((row["env_steps"] for row in read_metrics(run).select(["env_steps"]).to_pylist()), default=0)


def full(job: Job) -> bool:
    """Waits until the replay is full; False if the job ends before."""
    while job.process.poll() is None:
        if env_steps(job.folder) >= FULL:
            return True
        time.sleep(SAMPLE_SECONDS)  # between looks
    return False
