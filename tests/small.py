"""A run small enough for tests: everything on, seconds long."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.runtime.seeds import SeedRunner

DQN: dict[str, Any] = {
    "agent": {"name": "dqn", "batch_size": 16, "network": {"hidden": [16]}, "n_step": 2},
    "env": {"name": "CartPole-v1"},
    "replay": {"name": "prioritised", "capacity": 2048, "min_size": 64},
    "workflow": {"name": "fused", "num_envs": 4},
    "run": {
        "name": "small",
        "total_env_steps": 4000,
        "log_every": 400,
        "eval_every": 1200,
        "eval_episodes": 4,
        "final_eval_episodes": 8,
        "checkpoint_seconds": 1000.0,
    },
}


def data(**sections: dict[str, Any]) -> dict[str, Any]:
    """The small config as plain data, with changes: data(run={"seeds": 2})."""
    merged = copy.deepcopy(DQN)
    for name, changes in sections.items():
        if "name" in changes and changes["name"] != merged.get(name, {}).get("name"):
            merged[name] = dict(changes)
        else:
            merged.setdefault(name, {}).update(changes)
    return merged


def config(**sections: dict[str, Any]) -> configs.Config:
    return configs.from_dict(data(**sections))


def signal_at_chunk(monkeypatch: pytest.MonkeyPatch, chunk: int, number: int = signal.SIGTERM) -> None:
    """The chunk-th chunk that this process trains from now on (of any run) is interrupted by a signal."""
    chunks, step = 0, SeedRunner.step

    def step_after_signal(self: SeedRunner, iterations: int) -> Any:
        nonlocal chunks
        chunks += 1
        if chunks == chunk:
            os.kill(os.getpid(), number)
        return step(self, iterations)

    monkeypatch.setattr(SeedRunner, "step", step_after_signal)
