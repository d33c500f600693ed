"""What jobs of actors and learners run in tests; rank 0 tells what came out, one line a case.

python -m tests.mpi.actor_learner_jobs FOLDER CASE…

A case is NAME or NAME:key=value;key=value, where keys are dotted config keys; see CASES. `+` before a name
resumes the run that the case of this name left in FOLDER. Hooks stand in for what happens to real jobs:
`@signal=RANK:UNROLL` sends SIGUSR1 to a rank at or after an unroll, `@slow=ACTOR:SECONDS` makes unrolls slow,
`@hang=ACTOR:UNROLL` lets an unroll never end, `@windows=REASON` makes the self-test of one-sided memory fail,
`@behind=ACTOR:TIMES` lets an actor make one unroll when the others have made TIMES as many,
`@meet=UNROLLS` keeps actors side by side over the first unrolls, so that none is late for a short run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.comm.rma import transport
from jaxrl_hpc.comm.rma.selftest import Verdict, examine
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.workflows.actor_learner import actor as acting
from jaxrl_hpc.workflows.actor_learner.arrival_log import file_of
from tests.telling import tell

RUN = {
    "log_every": 512, "eval_every": 0, "eval_episodes": 4, "final_eval_episodes": 4,
    "checkpoint_seconds": 1000.0, "tensorboard": False,
}  # fmt: skip
DQN: dict[str, Any] = {
    "agent": {
        "name": "dqn",
        "batch_size": 16,
        "network": {"hidden": [16]},
        "n_step": 2,
        "learning_rate": 0.003,
    },
    "env": {"name": "CartPole-v1"},
    "replay": {"name": "prioritised", "capacity": 2048, "min_size": 64},
    "workflow": {"name": "async", "num_envs": 4, "unroll_length": 8, "updates_per_iteration": 2},
    "run": {"total_env_steps": 2048, **RUN},
}
A2C: dict[str, Any] = {
    "agent": {"name": "a2c", "network": {"hidden": [16]}, "normalise": {"observation": True}},
    "env": {"name": "CartPole-v1"},
    "workflow": {"name": "async", "num_envs": 4, "unroll_length": 8},
    "run": {"total_env_steps": 2048, **RUN},
}
SAC: dict[str, Any] = {
    "agent": {"name": "sac", "network": {"hidden": [16]}, "batch_size": 16, "n_step": 2},
    "env": {"name": "Pendulum-v1"},
    "replay": {"name": "prioritised", "capacity": 2048, "min_size": 64},
    "workflow": {"name": "async", "num_envs": 4, "unroll_length": 8, "updates_per_iteration": 2},
    "run": {"total_env_steps": 2048, **RUN},
}
MBPO: dict[str, Any] = {
    "agent": {"name": "mbpo", "network": {"hidden": [16]}, "batch_size": 16, "model_hidden": [8]}
    | {"planning_updates": 2, "model_tolerance": 100.0, "max_disagreement": 10.0},  # trusted from the start
    "env": {"name": "Pendulum-v1"},
    "replay": {"name": "uniform", "capacity": 2048, "min_size": 64},
    "workflow": {
        "name": "dyna",
        "num_envs": 4,
        "unroll_length": 8,
        "learners": 2,
        "updates_per_iteration": 2,
    },
    "run": {"total_env_steps": 2048, **RUN},
}
# the third copy of every process fails once, at its fourth step
BROKEN = "env.name=tests.envs.broken:Broken;env.kwargs.how=raise;env.on_error=reset;run.total_env_steps=1024"
CASES = {"dqn": DQN, "a2c": A2C, "sac": SAC, "mbpo": MBPO}
FUSED = ("name", "num_envs", "unroll_length", "updates_per_iteration", "actor_lag", "actor_priorities")


def config_of(name: str, changes: list[str]) -> configs.Config:
    data = json.loads(json.dumps(CASES[name.split("-")[0]]))
    for text in changes:
        configs.apply_override(data, text)
    if data["workflow"]["name"] == "fused":
        data["workflow"] = {k: v for k, v in data["workflow"].items() if k in FUSED}
    return configs.from_dict(data)


def meet(folder: Path, number: int, actors: int, unroll: int) -> None:
    """An actor begins an unroll when all others have begun the one before."""
    folder.mkdir(exist_ok=True)
    mine = folder / f"{number}"
    mine.with_suffix(".new").write_text(str(unroll))
    os.replace(mine.with_suffix(".new"), mine)
    others = [folder / f"{other}" for other in range(actors)]
    deadline = time.monotonic() + 3000
    while any(not path.exists() or int(path.read_text()) < unroll - 1 for path in others):
        assert time.monotonic() < deadline, f"actor {number} met nobody at unroll {unroll}"
        time.sleep(0.001)


def fall_behind(actor: acting.Actor, folder: Path, slow: int, times: int) -> None:
    """The slow actor waits until the others have made as many, or the learner wants something of it."""
    number, unroll = actor.roles.number, int(actor.state.sequence)
    folder.mkdir(exist_ok=True)
    mine = folder / f"pace-{number}"
    mine.with_suffix(".new").write_text(str(unroll))
    os.replace(mine.with_suffix(".new"), mine)
    others = [folder / f"pace-{other}" for other in range(actor.roles.actors) if other != slow]
    while number == slow and actor.stopped is None and actor.snapshot is None:
        paces = [int(path.read_text()) if path.exists() else 0 for path in others]
        if min(paces) >= times * unroll:
            return
        if (note := actor.control.receive()) is not None:
            actor.obey(note)
        time.sleep(0.002)  # between looks


def hooks(rendezvous: Path, texts: list[str]) -> None:
    """Replaces the actor's `act` by one to which things happen; `rendezvous` is a folder for `@meet`."""
    plain = acting.Actor.__dict__.get("_plain", acting.Actor.act)
    acting.Actor._plain = plain  # type: ignore[attr-defined]
    told = dict(text[1:].split("=") for text in texts)
    sent = []
    failing = Verdict(False, False, told.get("windows", ""))
    transport.examine = (lambda _: failing) if failing.text else examine

    def act(self: acting.Actor) -> None:
        rank, number = (told.get("signal") or "-1:0").split(":")
        if self.roles.rank == int(rank) and self.state.sequence >= int(number) and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGUSR1))
        if self.state.sequence < int(told.get("meet", 0)):
            meet(rendezvous, self.roles.number, self.roles.actors, int(self.state.sequence))
        if "behind" in told:
            fall_behind(self, rendezvous, *map(int, told["behind"].split(":")))
        actor, seconds = (told.get("slow") or "-1:0").split(":")
        if self.roles.number == int(actor):
            time.sleep(float(seconds))  # a slow simulator
        actor, number = (told.get("hang") or "-1:0").split(":")
        if self.roles.number == int(actor) and self.state.sequence == int(number):
            self.watchdog.at("acting", self.state.sequence)
            time.sleep(1000)  # a simulator that never answers
        plain(self)

    acting.Actor.act = act  # type: ignore[method-assign]


def schedule(folder: Path, learner: int = 0) -> list[list[int]]:
    path = file_of(folder, learner)
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return [[int(x) for x in line.split(",")] for line in lines]


def kept(folder: Path, learner: int = 0) -> dict[str, Any]:
    """What the newest checkpoint knows of actors."""
    _, leaves, numbers = Checkpointer(folder / "checkpoints" / f"actors-{learner:04d}").load()
    return {name.strip("[']"): leaf for name, leaf in leaves.items()} | numbers


def params(folder: Path) -> list[float]:
    """Of the newest checkpoint's learner, one after the other."""
    _, leaves, _ = Checkpointer(folder / "checkpoints" / "shared").load()
    chosen = [np.ravel(leaf) for name, leaf in leaves.items() if name.startswith(".learner.params")]
    return np.concatenate(chosen).tolist()


def run(folder: Path, text: str) -> dict[str, Any]:
    name, _, rest = text.lstrip("+").partition(":")
    words = rest.split(";") if rest else []
    hooks(folder / f"rendezvous-{name}", [word for word in words if word.startswith("@")])
    config = config_of(name, [word.replace("FOLDER", str(folder)) for word in words if word[0] != "@"])
    outcome = train(config, folder / name, resume=text.startswith("+"), say=lambda _: None)
    if world().rank:
        return {"rank": world().rank, "finished": outcome.finished}
    saved = kept(folder / name)
    return {
        "rank": 0,
        "finished": outcome.finished,
        "summary": outcome.summary,
        "schedule": schedule(folder / name),
        "pending": len(saved["pending"]),
        "ids": saved["ids"].tolist(),
        "lost": saved["lost"],
        "dropped": saved["dropped"],
        "taken": saved["taken"],
        "params": params(folder / name),
        "rows": [row for row in read_metrics(folder / name).to_pylist() if row["kind"] == "train"],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    with world().guard():
        for text in sys.argv[2:]:
            found = run(folder, text)
            tell(found | {"case": text.lstrip("+").partition(":")[0]})


if __name__ == "__main__":
    main()
