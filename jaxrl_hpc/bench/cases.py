"""The work of `bench train`, as each library is told to do it.

CartPole-v1 (TD3: Pendulum-v1), MLP 64 x 64, batch 128, replay of 65,536, Adam, double DQN with soft target
updates. Both sides get the same sizes, activation and number of updates; evaluation is left out.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

FOREVER = 2**31 - 1  # budget: schedules must not end while the clock runs


class Case(NamedTuple):
    """One line of the table."""

    name: str
    title: str
    ours: dict[str, Any]  # a config
    rejax: tuple[str, dict[str, Any]] | None  # (algorithm, arguments)
    goal: float | None  # how many times rejax's rate ours should be
    pinned: bool = False  # also measured with each library held to one core
    seeds: int = 1


def dqn_config(num_envs: int, capacity: int = 65_536, width: int = 64, seeds: int = 1) -> dict[str, Any]:
    """Our DQN on one update per `num_envs` steps; the replay is filled before the clock starts."""
    return {
        "agent": {
            "name": "dqn",
            "network": {"hidden": [width, width], "activation": "relu"},
            "batch_size": 128,
            "target_every": 0,
        },
        "env": {"name": "CartPole-v1"},
        "replay": {"name": "uniform", "capacity": capacity, "min_size": capacity * 7 // 8},
        "workflow": {"name": "fused", "num_envs": num_envs},
        "run": {"total_env_steps": FOREVER, "seeds": seeds},
    }


def _rejax_dqn(num_envs: int, capacity: int = 65_536) -> tuple[str, dict[str, Any]]:
    return "DQN", {
        "env": "CartPole-v1",
        "num_envs": num_envs,
        "buffer_size": capacity,
        "fill_buffer": 1_000,
        "batch_size": 128,
        "target_update_freq": 1,
        "polyak": 0.995,
        "agent_kwargs": {"activation": "relu"},
        "total_timesteps": FOREVER,
    }


def _ppo_config(num_envs: int) -> dict[str, Any]:
    network = {"hidden": [64, 64], "activation": "tanh"}
    return {
        "agent": {"name": "ppo", "network": network, "epochs": 4, "minibatches": 4},
        "env": {"name": "CartPole-v1"},
        "workflow": {"name": "fused", "num_envs": num_envs, "unroll_length": 128},
        "run": {"total_env_steps": FOREVER},
    }


def _rejax_ppo(num_envs: int) -> tuple[str, dict[str, Any]]:
    return "PPO", {
        "env": "CartPole-v1",
        "num_envs": num_envs,
        "num_steps": 128,
        "num_epochs": 4,
        "num_minibatches": 4,
        "agent_kwargs": {"activation": "tanh"},
        "total_timesteps": FOREVER,
    }


def _td3_config() -> dict[str, Any]:
    config = copy.deepcopy(dqn_config(1))
    config["agent"] = {
        "name": "td3",
        "network": {"hidden": [64, 64], "activation": "relu"},
        "batch_size": 128,
    }
    config["env"] = {"name": "Pendulum-v1"}
    return config


def _rejax_td3() -> tuple[str, dict[str, Any]]:
    _, arguments = _rejax_dqn(1)
    del arguments["agent_kwargs"]
    relu = {"activation": "relu"}
    return "TD3", {**arguments, "env": "Pendulum-v1", "actor_kwargs": dict(relu), "critic_kwargs": dict(relu)}


CASES = (
    Case("dqn_1", "DQN, 1 environment : 1 update", dqn_config(1), _rejax_dqn(1), 2.9, pinned=True),
    Case("dqn_8", "DQN, 8 environments : 1 update", dqn_config(8), _rejax_dqn(8), 5.6, pinned=True),
    Case(
        "dqn_8_seeds_16",
        "DQN, 8 : 1, 16 seeds in all",
        dqn_config(8, seeds=16),
        _rejax_dqn(8),
        11.7,
        seeds=16,
    ),
    Case("ppo_16", "PPO, 16 environments × 128 steps", _ppo_config(16), _rejax_ppo(16), 2.1),
    Case("ppo_64", "PPO, 64 environments × 128 steps", _ppo_config(64), _rejax_ppo(64), 2.4),
    Case("td3", "TD3 on Pendulum, 1 : 1", _td3_config(), _rejax_td3(), 3.0),
)

# the replay's size must not matter: (slots, measure rejax there too)
SLOTS = ((4_096, True), (65_536, True), (262_144, True), (2**20, False))
SLOTS_GOAL = 1.3  # largest slowdown from the first to the last
SLOT_CASES = tuple(
    Case(
        f"slots_{slots}",
        f"{slots:,} slots",
        dqn_config(8, slots),
        _rejax_dqn(8, slots) if peer else None,
        None,
    )
    for slots, peer in SLOTS
)

# what prioritised replay costs: the same work with uniform and with prioritised replay
PRIORITY_GOAL = 1.2  # largest CPU time of an update, relative to uniform replay


def _prioritised(capacity: int) -> dict[str, Any]:
    config = dqn_config(8, capacity)
    config["replay"]["name"] = "prioritised"
    return config


PRIORITY_CASES = tuple(
    Case(f"{kind}_{slots}", f"{kind} replay, {slots:,} slots", config, None, None)
    for slots in (65_536, 2**20)
    for kind, config in (("uniform", dqn_config(8, slots)), ("prioritised", _prioritised(slots)))
)

WIDTHS = (64, 128, 256, 512, 1024)


def width_case(width: int, threads: int) -> Case:
    """A single run of DQN 8 : 1 with wider layers and a given number of XLA threads."""
    config = dqn_config(8, capacity=8_192, width=width)
    config["run"]["threads"] = threads
    return Case(f"width_{width}_threads_{threads}", f"width {width}", config, None, None)


def find(name: str) -> Case:
    if name.startswith("width_"):
        _, width, _, threads = name.split("_")
        return width_case(int(width), int(threads))
    return next(case for case in (*CASES, *SLOT_CASES, *PRIORITY_CASES) if case.name == name)
