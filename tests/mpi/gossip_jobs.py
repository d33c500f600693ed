"""What jobs of gossip run in tests; rank 0 tells what came out, one line a case.

python -m tests.mpi.gossip_jobs FOLDER CASE…      cases as in tests/mpi/actor_learner_jobs.py
`sharded-…` cases run the sharded workflow. `@signal=RANK:EXCHANGE` sends SIGUSR1 to a rank after so many
exchanges of its own, `@stuck=RANK` lets an exchange of the second chunk take until the others have made all
the rest.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.workflows.gossip.runtime import Gossip
from tests.mpi import actor_learner_jobs, parameter_server_jobs

FLOW = {"name": "gossip", "num_envs": 4, "unroll_length": 8}
# plain SGD with step size 0.05: Adam without memory, whose denominator is its offset
SGD = {"learning_rate": 5e6, "adam_epsilon": 1e8, "adam_beta1": 0.0, "adam_beta2": 0.0, "max_grad_norm": 0.0}


def config_of(name: str, changes: list[str]) -> configs.Config:
    kind, _, case = name.partition("-")
    data = json.loads(json.dumps(actor_learner_jobs.CASES["dqn" if kind == "dqn" else "a2c"]))
    data["workflow"] = FLOW | ({"updates_per_iteration": 2} if kind == "dqn" else {})
    if kind == "sharded":
        ranks = world().size
        data["workflow"] = {"name": "sharded", "num_envs": 4 * ranks, "unroll_length": 8, "shards": ranks}
    if case.startswith("sgd"):
        data["agent"] |= SGD
        del data["agent"]["normalise"]
    for text in changes:
        configs.apply_override(data, text)
    return configs.from_dict(data)


def hooks(told: dict[str, str]) -> None:
    rank, number = (told.get("signal") or "-1:0").split(":")
    stuck = int(told.get("stuck", -1))
    plain = Gossip.__dict__.get("_plain", Gossip._exchange)
    Gossip._plain = plain  # type: ignore[attr-defined]

    def exchange(self: Gossip, own: Any, claim: int, chunk: Any) -> Any:
        if world().rank == int(rank) and int(own.worker.exchanges) == int(number):
            os.kill(os.getpid(), signal.SIGUSR1)
        if world().rank == stuck and claim >= self.test_chunk:  # type: ignore[attr-defined]
            deadline = time.monotonic() + 300
            while self.claims.read() < 2 * self.test_chunk:  # type: ignore[attr-defined]
                assert time.monotonic() < deadline, "the others do not go on without this rank"
                time.sleep(0.001)  # between looks
        return plain(self, own, claim, chunk)

    Gossip._exchange = exchange  # type: ignore[method-assign]
    Gossip.test_chunk = 512 // 32  # type: ignore[attr-defined]


if __name__ == "__main__":
    parameter_server_jobs.main(config_of, hooks)
