"""A run small enough for tests: everything on, seconds long."""

from __future__ import annotations

import copy
from typing import Any

from jaxrl_hpc import config as configs

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
