"""purejaxrl from a checkout: its own `make_train`, a whole training as one compiled program.

It was written for older libraries. Its code is unchanged; this file supplies what it needs: `jax.tree_map`,
environments with a single flag for the end of an episode, and empty stand-ins for modules that it imports but
does not need here. Its DQN's layers are 120 and 84 wide: they are replaced by a network of the workload's
width.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import types
from pathlib import Path
from typing import Any

import flax.linen as nn
import gymnax
import gymnax_return
import jax
import jax.numpy as jnp
from gymnax.wrappers import purerl
from serve import Loop

# iterations of one training: long enough that setting up is below a thousandth
ITERATIONS = {"dqn": 20_000, "ppo": 24}


class Flat:
    """Stands in for its wrapper of flat observations: those of the work are flat already."""

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


class Counted(Flat):
    """Returns of finished episodes, as its LogWrapper keeps them."""

    def reset(self, key: Any, params: Any) -> Any:
        obs, state = self.env.reset(key, params)
        return obs, (state, jnp.float32(0), jnp.float32(0))

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        inner, total, last = state
        obs, inner, reward, done, _ = self.env.step(key, inner, action, params)
        total = total + reward
        last, total = jnp.where(done, total, last), total * (1 - done)
        return (
            obs,
            (inner, total, last),
            reward,
            done,
            {"returned_episode_returns": last, "returned_episode": done},
        )


class Network(nn.Module):
    """Replaces its QNetwork: the same layers with other widths."""

    action_dim: int
    width: int = 64

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(2):
            x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(self.action_dim)(x)


def stand_in(name: str, **content: Any) -> None:
    """An importable module with this content, under a name that is not installed or does not fit."""
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def load(path: Path, name: str) -> Any:
    """One of its scripts as a module."""
    jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
    gymnax.make = gymnax_return.five_results
    purerl.FlattenObservationWrapper, purerl.LogWrapper = Flat, Counted
    stand_in("wandb")
    stand_in("wrappers", FlattenObservationWrapper=Flat, LogWrapper=Counted)
    spec = importlib.util.spec_from_file_location(f"purejaxrl_{name}", path / "purejaxrl" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(work: dict[str, Any], iterations: int) -> dict[str, Any]:
    """The workload in its settings."""
    copies = work["num_envs"]
    steps = copies * work["unroll_length"] * iterations
    common = {"ENV_NAME": work["env"], "NUM_ENVS": copies, "TOTAL_TIMESTEPS": steps, "GAMMA": 0.99}
    common["LR"] = work["learning_rate"]
    if work["algorithm"] == "ppo":
        return common | {
            "NUM_STEPS": work["unroll_length"],
            "UPDATE_EPOCHS": work["epochs"],
            "NUM_MINIBATCHES": work["minibatches"],
            "GAE_LAMBDA": 0.95,
            "CLIP_EPS": 0.2,
            "ENT_COEF": 0.01,
            "VF_COEF": 0.5,
            "MAX_GRAD_NORM": 0.5,
            "ACTIVATION": "tanh",
            "ANNEAL_LR": False,
        }
    return common | {
        "BUFFER_SIZE": work["capacity"],
        "BUFFER_BATCH_SIZE": work["batch_size"],
        "EPSILON_START": 1.0,
        "EPSILON_FINISH": 0.05,
        "EPSILON_ANNEAL_TIME": max(1.0, work["exploration_fraction"] * work["budget"]),
        "TARGET_UPDATE_INTERVAL": copies,
        "TAU": 0.005,
        # measured speed: as soon as a batch can be drawn, since each training begins with an empty replay
        "LEARNING_STARTS": work["batch_size"] if work["warm"] else 1_000,
        "TRAINING_INTERVAL": copies,
    }


def make(library: str, work: dict[str, Any], path: str) -> Loop:
    module = load(Path(path), work["algorithm"])
    module.QNetwork = Network
    per_iteration = work["num_envs"] * work["unroll_length"]
    iterations = ITERATIONS[work["algorithm"]] if work["warm"] else -(-work["budget"] // per_iteration)
    start = time.perf_counter()
    train = jax.vmap(module.make_train(settings(work, iterations)))
    key = jax.random.key(work["seed"])
    keys = jax.random.split(key, work["seeds"])
    compiled = jax.jit(train).lower(keys).compile()
    seconds = time.perf_counter() - start
    out: Any = None
    done, updates = 0, 0

    def run(chunks: int) -> None:
        nonlocal out, done, updates
        for number in range(chunks):
            keys = jax.random.split(jax.random.fold_in(key, number), work["seeds"])
            out = jax.block_until_ready(compiled(keys))
            learner = out["runner_state"][0]
            done += iterations * per_iteration * work["seeds"]
            updates += int(learner.step.sum())

    def evaluate() -> float:
        params = jax.tree.map(lambda x: x[0], out["runner_state"][0].params)
        if work["algorithm"] == "dqn":
            values: Any = Network(2).apply
            return gymnax_return.greedy_return(work["env"], lambda obs, _: jnp.argmax(values(params, obs)))
        network = module.ActorCritic(2, activation="tanh")
        return gymnax_return.greedy_return(work["env"], lambda obs, _: network.apply(params, obs)[0].mode())

    return Loop(run, lambda: (done, updates), evaluate, seconds)
