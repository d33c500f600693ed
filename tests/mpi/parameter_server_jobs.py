"""What jobs with a parameter server run in tests; rank 0 tells what came out, one line a case.

python -m tests.mpi.parameter_server_jobs FOLDER CASE…      cases as in tests/mpi/actor_learner_jobs.py
`@signal=RANK:EXCHANGE` sends SIGUSR1 to a rank after so many exchanges of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.params import server
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runtime.evaluation import load_run
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.workflows.actor_learner.arrival_log import file_of
from jaxrl_hpc.workflows.parameter_server import runtime
from tests.mpi import actor_learner_jobs
from tests.telling import tell

FLOW = {"name": "parameter_server", "num_envs": 4, "unroll_length": 8}
FUSED = {"name": "fused", "num_envs": 4, "unroll_length": 8}
COLUMNS = ("env_steps", "lag_mean", "lag_max", "dropped_changes", "consensus_distance", "exchanges_alone")


def config_of(name: str, changes: list[str], flow: dict[str, Any] = FLOW) -> configs.Config:
    case = name.split("-")[0]
    data = json.loads(json.dumps(actor_learner_jobs.CASES[case]))
    data["workflow"] = flow | ({"updates_per_iteration": 2} if case == "dqn" else {})
    for text in changes:
        configs.apply_override(data, text)
    return configs.from_dict(data)


def params(folder: Path) -> np.ndarray:
    """Of the newest checkpoint, as evaluation sees them."""
    _, runner = load_run(folder)
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(runner.actor(0))])


def hooks(told: dict[str, str]) -> None:
    """Signals in the middle of a run, to a worker or to a server."""
    rank, number = (told.get("signal") or "-1:0").split(":")

    def after(original: Any, count: Any) -> Any:
        def wrapped(self: Any, *arguments: Any) -> Any:
            if world().rank == int(rank) and count(self, *arguments) == int(number):
                os.kill(os.getpid(), signal.SIGUSR1)
            return original(self, *arguments)

        return wrapped

    plain = runtime.ParameterServer.__dict__.get("_plain", runtime.ParameterServer._exchange)
    runtime.ParameterServer._plain = plain  # type: ignore[attr-defined]
    runtime.ParameterServer._exchange = after(plain, lambda _, own, *__: int(own.exchanges))  # type: ignore
    served = server.Server.__dict__.get("_plain", server.Server._combine)
    server.Server._plain = served  # type: ignore[attr-defined]
    server.Server._combine = after(served, lambda self, _: self.number)  # type: ignore[method-assign]


def run(
    folder: Path,
    text: str,
    config_of: Callable[[str, list[str]], configs.Config],
    hooks: Callable[[dict[str, str]], None],
) -> dict[str, Any]:
    name, _, rest = text.lstrip("+").partition(":")
    words = rest.split(";") if rest else []
    hooks(dict(word[1:].split("=") for word in words if word[0] == "@"))
    config = config_of(name, [word.replace("FOLDER", str(folder)) for word in words if word[0] != "@"])
    outcome = train(config, folder / name, resume=text.startswith("+"), say=lambda _: None)
    if world().rank:
        return {"rank": world().rank, "finished": outcome.finished}
    rows = [row for row in read_metrics(folder / name).to_pylist() if row["kind"] == "train"]
    return {
        "rank": 0,
        "case": name,
        "finished": outcome.finished,
        "summary": outcome.summary,
        "rows": [{k: row[k] for k in COLUMNS if k in row} for row in rows],
        "entries": [
            len(path.read_text().splitlines()) - 1
            for path in (file_of(folder / name, i) for i in range(world().size))
            if path.exists()
        ],
    }


def main(
    config_of: Callable[[str, list[str]], configs.Config], hooks: Callable[[dict[str, str]], None]
) -> None:
    for case in sys.argv[2:]:
        tell(run(Path(sys.argv[1]), case, config_of, hooks))


if __name__ == "__main__":
    main(config_of, hooks)
