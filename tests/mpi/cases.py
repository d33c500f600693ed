"""What ranks run in tests: small configs, trained for a few chunks; prints what came out.

python -m tests.mpi.cases DEVICES CASE…
"""

from __future__ import annotations

import json
import sys
from typing import Any

from jaxrl_hpc import config as configs
from jaxrl_hpc import machine
from jaxrl_hpc.build import build
from jaxrl_hpc.summary import params_hash
from jaxrl_hpc.train import lanes_of, make_fleet
from tests import small

PPO: dict[str, Any] = {
    "agent": {
        "name": "ppo",
        "network": {"hidden": [16]},
        "epochs": 2,
        "minibatches": 2,
        "learning_rate": 0.003,
        "normalise": {"observation": True, "reward": True},
    },
    "env": {"name": "CartPole-v1"},
    "workflow": {"name": "sharded", "num_envs": 24, "unroll_length": 8},
    "run": {"total_env_steps": 24 * 8 * 40},
}
DQN = small.data(
    agent={"batch_size": 24, "n_step": 2, "learning_rate": 0.003, "target_every": 20},
    replay={"capacity": 2400, "min_size": 96},
    workflow={"name": "sharded", "num_envs": 24},
    run={"total_env_steps": 4800},
)
CASES = {"ppo": PPO, "dqn": DQN}


def config_of(case: str, devices: int = 0) -> configs.Config:
    """`ppo`, `dqn`: the same bits on every layout; `ppo-fast`, `dqn-fast`: within rounding."""
    name, _, fast = case.partition("-")
    data = json.loads(json.dumps(CASES[name]))
    data["workflow"] |= {"deterministic": not fast, "devices": devices}
    return configs.from_dict(data)


def train(case: str, devices: int) -> dict[str, Any]:
    """Two chunks: where it ran, parameters' hash, metrics."""
    config = config_of(case, devices)
    machine.prepare(config, 1)
    parts = build(config)
    fleet = make_fleet(config, parts, lanes_of(config))
    fleet.initialise()
    fleet.step(10)
    (metrics,) = fleet.per_lane(fleet.step(15))
    params = [parts.workflow.learner(state).params for state in fleet.states]
    return {
        "case": case,
        "place": fleet.place(),
        "params": params_hash(params),
        "metrics": {name: float(value) for name, value in metrics.items()},
        "first": fleet.ranks.first,
    }


def main() -> None:
    devices, cases = int(sys.argv[1]), sys.argv[2:]
    for case in cases:
        result = train(case, devices)
        if result.pop("first"):
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
