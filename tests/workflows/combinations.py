"""Every combination of agent, workflow, replay, storage and sizes, as plain configs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

NETWORK = {"network": {"hidden": [8]}}
AGENTS: dict[str, dict[str, Any]] = {  # by name, and options of the same agent after it
    "a2c": {},
    "ppo": {},
    "pqn": {},
    "ppo lstm": {"lstm": 4},
    "dqn": {},
    "dqn rainbow": {"returns": "c51", "noisy": True, "dueling": True, "dueling_hidden": [8], "atoms": 11},
    "dqn quantile": {"returns": "quantile", "atoms": 5},
    "recurrent_dqn": {"lstm": 4},
    "dyna_q": {"model_hidden": [8]},
    "td3": {},
    "ddpg": {},
    "sac": {},
    "iql": {},
    "mbpo": {"model_hidden": [8]},
    "mbpo_td3": {"model_hidden": [8]},
    "sac crossq": {"batch_norm": True},
    "sac droq": {"dropout": 0.1, "critics": 3, "network": {"hidden": [8], "layer_norm": True}},
}
CONTINUOUS = ("td3", "ddpg", "sac", "iql", "mbpo", "mbpo_td3")
ONE_STEP = ("mbpo", "mbpo_td3")
ON_POLICY = ("a2c", "ppo", "pqn")
WORKFLOWS: dict[str, dict[str, Any]] = {
    "fused": {"name": "fused"},
    "fused rated": {"name": "fused", "actor_priorities": True},
    "sharded": {"name": "sharded"},
    "sharded local": {"name": "sharded", "replay": "local"},
    "async": {"name": "async"},
    "async one actor": {"name": "async", "actors": 1},
    "async lockstep": {"name": "async", "lockstep": True},
    "async two learners": {"name": "async", "learners": 2, "learner_mode": "shared"},
    "rma": {"name": "rma"},
    "rma_queue": {"name": "rma_queue"},
    "central_inference": {"name": "central_inference"},
    "dyna": {"name": "dyna"},
    "elastic": {"name": "elastic"},
    "gossip": {"name": "gossip"},
    "gossip together": {"name": "gossip", "topology": "complete", "staleness": 0},
    "offline": {"name": "offline", "dataset": "made"},
    "offline then online": {"name": "offline", "dataset": "made", "online_after": 12},
    "parameter_server": {"name": "parameter_server"},
    "parameter_server global": {"name": "parameter_server", "replay": "global"},
    "parameter_server gradients": {"name": "parameter_server", "optimiser": "server"},
}
REPLAYS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "uniform": {"name": "uniform"},
    "prioritised": {"name": "prioritised"},
    "sequence": {"name": "sequence"},
    "sequence within": {"name": "sequence", "episodes": "within"},
}
STORES = ("always", "by_index")  # auto is one of them
SIZES = ("default", "small", "odd")


class Combination(NamedTuple):
    """Names from the tables above."""

    agent: str
    workflow: str
    replay: str
    store: str
    sizes: str

    @property
    def agent_name(self) -> str:
        return self.agent.split()[0]

    def __str__(self) -> str:
        return " / ".join(self)


def everything() -> Iterator[Combination]:
    """What differs in no setting of the config comes once: storage by default, without a replay section."""
    for agent, workflow, replay, sizes in itertools.product(AGENTS, WORKFLOWS, REPLAYS, SIZES):
        for store in STORES if REPLAYS[replay] else ("auto",):
            yield Combination(agent, workflow, replay, store, sizes)


def data(found: Combination, env: str = "") -> dict[str, Any]:
    """The combination as plain data."""
    agent = {"name": found.agent_name, **NETWORK, **AGENTS[found.agent]}
    workflow, replay = dict(WORKFLOWS[found.workflow]), REPLAYS[found.replay]
    if found.sizes != "default":
        small = found.sizes == "small"
        shards = 2 if small else 3
        agent |= _sizes_of_agent(found.agent_name, small, shards)
        workflow |= {"num_envs": 2 if small else 3, "unroll_length": _unroll_of(found.agent_name, small)}
        if workflow["name"] == "sharded":
            workflow["shards"] = shards
    if replay is not None:
        replay = {**replay, "store_next": found.store}
        if found.sizes != "default":
            replay |= {"capacity": 240 if found.sizes == "small" else 339, "min_size": 24}
        if "online_after" in workflow:
            replay |= {"capacity": 3_000}  # the recording stays in it
    sections: dict[str, Any] = {
        "agent": agent,
        "env": {"name": env or ("Pendulum-v1" if found.agent_name in CONTINUOUS else "CartPole-v1")},
        "workflow": workflow,
        "run": {"total_env_steps": 20_000},
    }
    return sections | ({"replay": replay} if replay is not None else {})


def _sizes_of_agent(agent: str, small: bool, shards: int) -> dict[str, Any]:
    if agent in ("ppo", "pqn"):
        return {"epochs": 1, "minibatches": 1} if small else {"epochs": 2, "minibatches": 3}
    if agent == "a2c":
        return {}
    sizes: dict[str, Any] = {"batch_size": 4 if small else 3 * shards}
    if agent == "recurrent_dqn":
        return sizes | ({"burn_in": 0, "length": 2} if small else {"burn_in": 1, "length": 3, "n_step": 2})
    return sizes | {"n_step": 1 if small or agent in ONE_STEP else 3}


def _unroll_of(agent: str, small: bool) -> int:
    if agent in ON_POLICY:
        return 8 if small else 27
    return 1 if small else 5
