"""Record a run's policy: transitions of its newest checkpoint as a dataset (docs/offline.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import datasets, rollout
from jaxrl_hpc.datasets import Columns, parquet
from jaxrl_hpc.envs.external.host import simulator_failures_told
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime import host
from jaxrl_hpc.runtime.evaluation import load_run
from jaxrl_hpc.types import Agent, Array, Env, EnvSpec, PyTree, Transition

PolicyName = Literal["exploring", "greedy"]
COPIES = 16  # environment copies that are recorded side by side, if there are steps for them
ROW = 20  # bytes of the other columns
CHUNK = 1000  # steps of all copies per program call


class Recorded(NamedTuple):
    """Contents of a recording."""

    path: Path
    steps: int
    episodes: int  # whole ones
    mean_return: float  # of these; NaN if there are none


def record_run(
    run_dir: str | Path,
    out: str | Path,
    steps: int,
    *,
    policy: PolicyName = "exploring",
    random: float = 0.0,
    seed: int = 0,
    lane_seed: int | None = None,
    trust: bool = False,
) -> Recorded:
    """Act and record the transitions.

    Args:
      run_dir: of the run whose agent acts.
      out: the Parquet file.
      steps: transitions.
      policy: with the agent's exploration, or its best actions.
      random: fraction of episodes with uniformly random actions instead.
      seed: picks start states and draws.
      lane_seed: which of the run's seeds acts; None: the first.
    """
    out = Path(out)
    if out.suffix != ".parquet":
        raise UserError(f"--out: {out} should end in .parquet")
    if not out.parent.is_dir():
        raise UserError(f"--out: there is no folder {out.parent}")
    if out.exists() and not out.is_file():
        raise UserError(f"--out: {out} is not a file")
    config, runner = load_run(run_dir, trust=trust)
    known = [lane.seed for lane in runner.lanes]
    lane_seed = known[0] if lane_seed is None else lane_seed
    if lane_seed not in known:
        raise UserError(f"--run-seed: {run_dir} has no seed {lane_seed}; it has {', '.join(map(str, known))}")
    env = runner.parts.env.host.for_evaluation or runner.parts.env
    if env.host.recorded is not None:
        raise UserError(f"{run_dir} was trained from recorded data without an environment, so it cannot act")
    check_memory(steps, env.spec)
    agent = mixed(runner.parts.agent, env.spec, random)
    with simulator_failures_told(runner.parts.env):
        columns = act(env, agent, runner.actor(known.index(lane_seed)), jax.random.key(seed), steps, policy)
    settings = config.env.model_dump(mode="json") | {"name": env.spec.name}
    about = {
        "env": settings,
        "run": Path(run_dir).resolve().name,
        "policy": policy,
        "random": random,
        "seed": seed,
    }
    parquet.write(out, columns, env.spec, about)
    found = datasets.behaviour(datasets.from_columns(out, columns, env.spec))
    return Recorded(out, steps, int(found["episodes"]), found["return"])


def check_memory(steps: int, spec: EnvSpec) -> None:
    """A recording is held in memory, while it is put in order for a moment three times."""
    obs = int(np.prod(spec.obs_shape, dtype=np.int64)) * np.dtype(spec.obs_dtype).itemsize
    needed = 3 * steps * (2 * obs + 4 * int(np.prod(spec.action_shape, dtype=np.int64)) + ROW)
    if needed > (free := host.available_memory()):
        raise UserError(
            f"--steps: {steps:,} transitions need {needed / 2**30:,.1f} GiB of memory, but "
            f"{free / 2**30:.1f} GiB are free: record fewer, or in several files"
        )


def mixed(agent: Agent, spec: EnvSpec, share: float) -> Agent:
    """The agent, with uniformly random actions in a fraction of its episodes, drawn at their start."""

    def carry(env_ids: Array) -> PyTree:
        nothing = jnp.zeros(env_ids.shape[0], bool)
        return {"agent": agent.carry(env_ids), "begun": nothing, "random": nothing}

    def act(
        params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        split = jax.vmap(lambda k: jax.random.split(k, 3))(key)
        own, after, _ = agent.act(params, carry["agent"], obs, split[:, 0], greedy)
        drawn = jax.vmap(jax.random.uniform)(split[:, 1]) < share
        random = jnp.where(carry["begun"], carry["random"], drawn)
        any_action = jax.vmap(lambda k: draw_action(spec, k))(split[:, 2])
        chosen = jnp.where(random.reshape(-1, *([1] * (own.ndim - 1))), any_action, own)
        return chosen, {"agent": after, "begun": jnp.ones_like(random), "random": random}, ()

    return agent._replace(carry=carry, act=act, after_step=None)


def draw_action(spec: EnvSpec, key: Array) -> Array:
    """One of all actions, all equally likely."""
    if spec.num_actions is not None:
        return jax.random.randint(key, (), 0, spec.num_actions, jnp.int32)
    if spec.action_sizes:
        return jax.random.randint(key, spec.action_shape, 0, jnp.array(spec.action_sizes), jnp.int32)
    assert spec.action_low is not None and spec.action_high is not None
    return jax.random.uniform(key, spec.action_shape, minval=spec.action_low, maxval=spec.action_high)


def act(env: Env, agent: Agent, actor: PyTree, key: Array, steps: int, policy: PolicyName) -> Columns:
    """`steps` transitions, episode after episode; an unfinished episode at the end is cut."""
    copies = min(COPIES, steps)
    length = -(-steps // copies)

    def one(state: rollout.RolloutState, _: None) -> tuple[rollout.RolloutState, Transition]:
        state, transition, _step = rollout.act_and_step(env, agent, actor, state, policy == "greedy")
        return state, transition._replace(extras=())

    start = jax.jit(lambda key: rollout.start(env, agent, key, jnp.arange(copies, dtype=jnp.int32)))
    advance = jax.jit(lambda state: jax.lax.scan(one, state, None, min(length, CHUNK)))
    state, parts = start(key), []
    for _ in range(-(-length // CHUNK)):
        state, found = advance(state)
        parts.append(jax.device_get(found))
    # [T, B] of each part -> copy after copy, each in order of time
    whole: Any = jax.tree.map(
        lambda *x: np.swapaxes(np.concatenate(x)[:length], 0, 1).reshape(-1, *x[0].shape[2:])[:steps], *parts
    )
    terminated = whole.discount == 0
    cut = np.zeros(steps, bool)
    cut[length - 1 :: length] = True
    cut[-1] = True
    last = whole.last | cut
    episode = np.cumsum(np.append(0, last[:-1]))
    return Columns(
        whole.obs, whole.action, whole.reward, terminated, last & ~terminated, episode, whole.next_obs
    )
