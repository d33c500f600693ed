"""What ranks run in tests; tells what came out, one line a rank or case.

python -m tests.mpi.cases ENGINE DEVICES WHAT…
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.collectives import Collectives
from jaxrl_hpc.comm.layout import make_layout
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.replay import prioritised
from jaxrl_hpc.runtime import machine
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.summary import params_hash
from jaxrl_hpc.runtime.train import lanes_of, make_runner
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Transition
from jaxrl_hpc.workflows.sharded.execution import DIVIDED, SAME, placed
from jaxrl_hpc.workflows.sharded.store import part_of
from tests import small
from tests.telling import tell

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


def changed(base: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return base | {name: base.get(name, {}) | changes for name, changes in sections.items()}


# One copy per shard, odd sizes, quotients and products of every kind
ONE_COPY = changed(
    PPO,
    agent={"clip_value": True, "kl_stop": True, "kl_limit": 0.005, "distribution": "tanh", "minibatches": 3},
    env={"name": "Pendulum-v1"},
    workflow={"num_envs": 12, "unroll_length": 27},
)
LSTM = changed(PPO, agent={"lstm": 8, "minibatches": 1}, workflow={"unroll_length": 9})
A2C = changed(PPO, workflow={"num_envs": 36, "unroll_length": 5}) | {
    "agent": {"name": "a2c", "network": {"hidden": [16]}, "normalise_advantage": True}
}
TD3 = changed(DQN, env={"name": "Pendulum-v1"}) | {
    "agent": {"name": "td3", "batch_size": 36, "network": {"hidden": [16, 16]}, "n_step": 3}
}
RECURRENT = changed(DQN, workflow={"unroll_length": 8, "replay": "local"}) | {
    "agent": {
        "name": "recurrent_dqn",
        "batch_size": 24,
        "network": {"hidden": [16]},
        "lstm": 8,
        "burn_in": 2,
        "length": 4,
    },
    "replay": {"name": "sequence", "capacity": 2400, "min_size": 96},
}
RAINBOW = changed(
    DQN,
    agent={
        "returns": "c51",
        "atoms": 7,
        "noisy": True,
        "dueling": True,
        "dueling_hidden": [8],
        "network": {"hidden": [16]},
    },
)
DYNA_Q = changed(DQN) | {
    "agent": {
        "name": "dyna_q",
        "batch_size": 24,
        "network": {"hidden": [16]},
        "model_hidden": [8],
        "n_step": 3,
        "ensemble": 2,
        "model_tolerance": 100.0,
    }
}
PQN = changed(PPO) | {
    "agent": {"name": "pqn", "epochs": 2, "minibatches": 2, "network": {"hidden": [16], "layer_norm": True}}
}


def continuous(name: str, **options: Any) -> dict[str, Any]:
    agent = {"name": name, "batch_size": 36, "network": {"hidden": [16]}, **options}
    return changed(DQN, env={"name": "Pendulum-v1"}) | {"agent": agent}


AHEAD = changed(DQN, workflow={"draw_ahead": True, "updates_per_iteration": 2})
CASES = {
    "ahead": AHEAD,
    "ppo": PPO,
    "dqn": DQN,
    "one_copy": ONE_COPY,
    "lstm": LSTM,
    "a2c": A2C,
    "td3": TD3,
    "recurrent": RECURRENT,
    "rainbow": RAINBOW,
    "dyna_q": DYNA_Q,
    "pqn": PQN,
    "iql": continuous("iql", n_step=2),
    "crossq": continuous("sac", batch_norm=True, policy_delay=2, normalise={"observation": True}),
    "droq": continuous("sac", dropout=0.1, critics=3, target_subset=2, policy_value="mean"),
    "mbpo": continuous("mbpo", model_hidden=[8], model_tolerance=100.0, max_disagreement=10.0),
}


SLOW = {"step_seconds": 0.002, "update_seconds": 0.02}


def config_of(case: str, devices: int = 0, engine: str = "auto") -> configs.Config:
    """A case's name: the same bits on every layout; with `-fast` after it: the same within rounding; with
    `-slow`: the same bits, but steps and updates sleep."""
    name, _, how = case.partition("-")
    data = json.loads(json.dumps(CASES[name]))
    data["workflow"] |= {"deterministic": how != "fast", "devices": devices, "engine": engine}
    data["run"] |= SLOW if how == "slow" else {}
    return configs.from_dict(data)


def train(case: str, devices: int, engine: str) -> dict[str, Any]:
    """Two chunks: where it ran, parameters' hash, metrics; if it sleeps, seconds of the second one."""
    config = config_of(case, devices, engine)
    machine.prepare(config, 1)
    parts = build(config)
    runner = make_runner(config, parts, lanes_of(config))
    runner.initialise()
    runner.metrics_per_lane(runner.step(10))
    begin = time.perf_counter()
    (metrics,) = runner.metrics_per_lane(runner.step(15))
    seconds = time.perf_counter() - begin
    params = [parts.workflow.learner(state).params for state in runner.states]
    return {
        "rank": world().rank,
        "place": runner.describe(),
        "processes": jax.process_count(),
        "params": params_hash(params),
        "metrics": {name: float(value) for name, value in metrics.items()},
        **({"seconds": seconds} if case.endswith("-slow") else {}),
    }


def hashes(runner: Any) -> dict[int, str]:
    """Of everything that belongs to each logical shard here: copies, replay, keys."""
    layout = runner.parts.workflow.layout
    parts = {layout.first + i: part_of(layout, runner.states[0].own, i) for i in range(layout.local)}

    def plain(leaf: Any) -> Any:
        is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    return {shard: params_hash([jax.tree.map(plain, part)]) for shard, part in parts.items()}


def stretch(case: str, devices: int, engine: str, folder: str) -> dict[str, Any]:
    """Goes on from the newest checkpoint, if there is one, for one chunk, and saves."""
    config = config_of(case, devices, engine)
    machine.prepare(config, 1)
    parts = build(config)
    runner = make_runner(config, parts, lanes_of(config))
    store = runner.store(Path(folder))
    done = store.latest()
    if done is None:
        runner.initialise()
    else:
        runner.load(store.restore([runner.state_shape()])[1])
    before = hashes(runner)
    runner.metrics_per_lane(runner.step(10))
    store.save((done or 0) + 10, runner.states, {"iterations": (done or 0) + 10})
    params = [parts.workflow.learner(state).params for state in runner.states]
    return {
        "rank": world().rank,
        "begun": done,
        "before": before,
        "after": hashes(runner),
        "params": params_hash(params),
        "counters": runner.counters(),
    }


def drift(devices: int, engine: str) -> dict[str, Any]:
    """One rank's learner gets one wrong bit; the next chunk must find out."""
    config = config_of("ppo", devices, engine)
    machine.prepare(config, 1)
    runner = make_runner(config, build(config), lanes_of(config))
    runner.initialise()
    state = runner.states[0]
    if world().rank == world().size - 1:
        learner = state.shared.learner
        wrong = jax.tree.map(lambda x: x.at[(0,) * x.ndim].add(1e-6), learner.params)
        runner.states[0] = state._replace(
            shared=state.shared._replace(learner=learner._replace(params=wrong))
        )
    try:
        runner.metrics_per_lane(runner.step(1))
    except RuntimeError as error:
        return {"rank": world().rank, "error": str(error)}
    return {"rank": world().rank, "error": ""}


def sampling(devices: int, engine: str, rounds: int = 400) -> dict[str, Any]:
    """Draws of all shards from one replay with known priorities, over devices and ranks."""
    config = config_of("dqn", devices, engine)
    machine.prepare(config, 1)
    ranks = world()
    layout = make_layout(12, devices, ranks)
    per_shard, batch = 64, 8  # half of it in use
    settings = prioritised.Config(capacity=per_shard, min_size=1, alpha=1.0, sampling="independent")
    replay = prioritised.make(settings, num_envs=2, unroll_length=16, window=1, batch_size=batch)
    collectives = Collectives(layout, ranks.programs, True)
    hypers = {name: jnp.float32(value) for name, value in traced_values(settings).items()}
    everything = priorities()
    mine = everything[layout.first : layout.first + layout.local].reshape(-1, 16, 2)
    numbers = jnp.arange(layout.first, layout.first + layout.local, dtype=jnp.int32)
    zeros = jnp.zeros((16, 2))
    steps = Transition(zeros, zeros, zeros, zeros, zeros > 1, zeros, ())
    example = jax.tree.map(lambda x: x[0, 0], steps)

    def draw(shards, given, seeds):
        state = jax.vmap(lambda p: replay.add(replay.init(example, hypers), steps, p))(given)

        def one(carry, seed):
            masses = collectives("gather", jax.vmap(replay.shared.mass)(state)[1])
            key = jax.random.fold_in(jax.random.key(3), seed)
            rows = replay.shared.offer(state, shards, masses, key)[None]
            first = jax.tree.map(lambda x: x[0], state)
            whole = replay.shared.assemble(first, collectives("total", rows), jnp.float32(1))
            return carry, whole.index

        return jax.lax.scan(one, 0, seeds)[1]

    program = placed(layout, draw, (DIVIDED, DIVIDED, SAME), SAME)
    index = program(*jax.device_put((numbers, jnp.asarray(mine)), layout.divided), jnp.arange(rounds))
    counts = np.bincount(np.asarray(index).reshape(-1), minlength=12 * per_shard).reshape(12, per_shard)
    assert not counts[:, 32:].any(), "empty slots were drawn"
    return {"rank": ranks.rank, "counts": counts[:, :32].reshape(-1).tolist()}


def priorities() -> np.ndarray:
    """[12, 32], very different from shard to shard."""
    rng = np.random.default_rng(5)
    values = rng.exponential(size=(12, 32)) + 0.3
    return (values * (1 + np.arange(12)[:, None] % 4)).astype(np.float32)


def main() -> None:
    """What to do: `drift`, `sampling`, FOLDER/ to stretch a run there, or cases."""
    engine, devices = sys.argv[1], int(sys.argv[2])
    for what in sys.argv[3:]:
        if what.endswith("/"):
            result = stretch("dqn", devices, engine, what)
        elif what in ("drift", "sampling"):
            result = {"drift": drift, "sampling": sampling}[what](devices, engine)
        else:
            result = train(what, devices, engine)
        tell(result | {"what": what})


if __name__ == "__main__":
    main()
