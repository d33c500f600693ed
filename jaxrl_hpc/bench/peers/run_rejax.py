"""rejax: its own training iterations in one compiled loop; seeds by vmap, as it advises."""

from __future__ import annotations

import time
from typing import Any

import gymnax_return
import jax
import rejax
from serve import Loop

CHUNK = 2_000  # environment steps of one call, about


def arguments(work: dict[str, Any]) -> dict[str, Any]:
    """The workload in rejax's settings; its networks have two layers of 64."""
    env, params = gymnax_return.five_results(work["env"])
    common = {
        "env": env,
        "env_params": params,
        "num_envs": work["num_envs"],
        "total_timesteps": work["budget"],
        "learning_rate": work["learning_rate"],
    }
    if work["algorithm"] == "ppo":
        return common | {
            "num_steps": work["unroll_length"],
            "num_epochs": work["epochs"],
            "num_minibatches": work["minibatches"],
            "agent_kwargs": {"activation": "tanh"},
        }
    common |= {
        "buffer_size": work["capacity"],
        "fill_buffer": 1_000,
        "batch_size": work["batch_size"],
        "target_update_freq": 1,
        "polyak": 0.995,
    }
    relu = {"activation": "relu"}
    if work["algorithm"] == "dqn":
        fraction = work["exploration_fraction"]
        return common | {"agent_kwargs": relu, "ddqn": work["double"], "exploration_fraction": fraction}
    return common | {"actor_kwargs": dict(relu), "critic_kwargs": dict(relu)}


def make(library: str, work: dict[str, Any]) -> Loop:
    name, seeds = work["algorithm"].upper(), work["seeds"]
    algorithm = getattr(rejax, name).create(**arguments(work))
    per_iteration = algorithm.num_envs * getattr(algorithm, "num_steps", 1)
    iterations = max(1, CHUNK // per_iteration)
    over = jax.vmap if seeds > 1 else lambda function: function
    keys = jax.random.split(jax.random.key(work["seed"]), seeds)
    start = time.perf_counter()
    state = jax.jit(over(algorithm.init_state))(keys if seeds > 1 else keys[0])

    def loop(state: Any) -> Any:
        return jax.lax.fori_loop(0, iterations, lambda _, s: over(algorithm.train_iteration)(s), state)

    compiled = jax.jit(loop, donate_argnums=0).lower(state).compile()
    seconds = time.perf_counter() - start

    def run(chunks: int) -> None:
        nonlocal state
        for _ in range(chunks):
            state = compiled(state)
        jax.block_until_ready(state)

    def counters() -> tuple[int, int]:
        learned = {"DQN": "q_ts", "TD3": "critic_ts", "PPO": "actor_ts"}[name]
        return int(state.global_step.sum()), int(getattr(state, learned).step.sum())

    def evaluate() -> float:
        first = jax.tree.map(lambda x: x[0], state) if seeds > 1 else state
        return gymnax_return.greedy_return(work["env"], algorithm.make_act(first))

    if work["warm"]:
        run(1 + getattr(algorithm, "fill_buffer", 0) // (iterations * per_iteration))  # until it learns
    return Loop(run, counters, evaluate, seconds)
