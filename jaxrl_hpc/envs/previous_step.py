"""An environment that also shows the previous action and its reward, for agents with a memory.

    observation' = (observation, one-hot or scaled previous action, previous reward)

At the first step of an episode both are zero. Agents with memory can use this where reward or action carry
information that the observation lacks (R2D2, Kapturowski et al. 2019; RL², Duan et al. 2016). It is part of
the observation, not of the agent, so that all agents and exported policies see the same.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import noise
from jaxrl_hpc.types import Array, Env, EnvStep, PyTree


def wrap(env: Env) -> Env:
    """The environment with longer observations."""
    spec = env.spec
    if len(spec.obs_shape) != 1:
        raise UserError(
            f"env.previous_step: env {spec.name!r} has observations {spec.obs_shape}; the previous action "
            "and reward can be appended to vectors only: leave it out"
        )
    if spec.action_mask or spec.action_sizes:
        raise UserError(
            f"env.previous_step: env {spec.name!r} has action masks or several choices per step: leave it out"
        )
    size = spec.num_actions or math.prod(spec.action_shape)
    scale = None if spec.discrete else noise.action_scale(spec)

    def encode(action: Array) -> Array:  # [B, …] -> [B, size], of order one
        return jax.nn.one_hot(action, size) if scale is None else scale.to_unit(action)

    def join(obs: Array, previous: Array) -> Array:
        return jnp.concatenate([obs.astype(jnp.float32), previous], axis=-1)

    def reset(key: Array) -> tuple[PyTree, PyTree]:
        state, obs = env.reset(key)
        return state, join(obs, jnp.zeros((obs.shape[0], size + 1)))

    def step(key: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        state, found = env.step(key, state, action)
        previous = jnp.concatenate([encode(action), found.reward[:, None]], axis=-1)
        begins = jnp.logical_or(found.terminated, found.truncated)[:, None]
        obs = join(found.obs, jnp.where(begins, 0.0, previous))
        return state, found._replace(obs=obs, final_obs=join(found.final_obs, previous))

    draw, length = env.host.draw, spec.obs_shape[0]
    longer = spec._replace(obs_shape=(length + size + 1,), obs_dtype=np.dtype(np.float32))
    wrapped = Env(longer, reset, step, env.host)
    return wrapped.with_hooks(draw=draw and (lambda axes, obs: draw(axes, obs[:length])))
