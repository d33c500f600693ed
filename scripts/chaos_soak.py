"""Soak for scripts/chaos.py: long runs whose replay is full from early on; resident memory stays flat."""

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

WORKFLOWS = ("fused", "async", "rma_queue")
TOLERANCE = 0.01
SAMPLE_SECONDS = 2.0


def soak(workflow: str, minutes: float, work: Path) -> Outcome:
    """The first quarter is start-up: compiling, the first saves, filling the replay."""
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
        if not job.wait_until_it_trains():
            return outcome("HANG", f"it did not begin: {job.text()[-500:]}")
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            time.sleep(SAMPLE_SECONDS)
            if job.process.poll() is not None:
                return outcome("LOST", f"it ended with {job.process.returncode}: {job.text()[-800:]}")
            for pid in job.pids():
                samples.setdefault(pid, []).append(psutil.Process(pid).memory_info().rss / 2**20)
        job.process.send_signal(signal.SIGUSR1)
        code = job.ended(300)
        if code != 75:
            return outcome("HANG" if code is None else "LOST", f"code {code}: {job.text()[-500:]}")
    finally:
        job.close()
    verdict, texts = "ok", []
    for rank, rss in enumerate(samples.values()):
        settled = rss[len(rss) // 4 :]
        third = max(1, len(settled) // 3)
        early, late = statistics.median(settled[:third]), statistics.median(settled[-third:])
        texts.append(f"process {rank}: {early:.1f} MiB, then {late:.1f} MiB")
        if late > early * (1 + TOLERANCE):
            verdict = "LOST"
    shutil.rmtree(folder)
    return outcome(verdict, f"{minutes:g} minutes; " + "; ".join(texts))
