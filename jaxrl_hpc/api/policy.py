"""A trained policy: observations in, actions out.

    policy = run.policy()
    action = policy(obs)                 # obs [*obs_shape], or [B, *obs_shape] for B actions
    policy.reset()                       # at the start of an episode, for agents with memory

`policy.act(obs, carry)` is the same without internal state.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.export.loader import as_vector
from jaxrl_hpc.types import Agent, Array, EnvSpec, PyTree


class Policy:
    """The policy of an agent, compiled once per batch size.

    Args:
      agent: the agent that acts.
      params: as from `agent.actor`.
      spec: of the environment.
      greedy: the best action; False: with the agent's exploration.
      seed: for an agent that explores.
    """

    def __init__(self, agent: Agent, params: PyTree, spec: EnvSpec, greedy: bool = True, seed: int = 0):
        self.spec, self.greedy = spec, greedy
        self._agent, self._params = agent, params
        self._act = jax.jit(functools.partial(self._acting, greedy=greedy))
        self._key = jax.random.key(seed)
        self._steps = 0
        self._carry: PyTree = None

    @property
    def has_memory(self) -> bool:
        """Whether actions depend on earlier observations."""
        return bool(jax.tree.leaves(self._agent.carry(jnp.zeros(1, jnp.int32))))

    def __call__(self, obs: Any) -> np.ndarray:
        """An action, or one per observation. Keeps the recurrent state until `reset`."""
        action, self._carry = self.act(obs, self._carry)
        return np.asarray(action)

    def reset(self) -> None:
        """Start a new episode: clears the recurrent state."""
        self._carry = None

    def act(self, obs: Any, carry: PyTree = None, key: Array | None = None) -> tuple[Array, PyTree]:
        """(action, carry) from an observation and the carry before it; None at the start of an episode.

        Args:
          obs: [*obs_shape], or [B, *obs_shape]; observations of several parts also as a mapping or tuple.
          carry: as returned by the previous call.
          key: randomness of an agent that explores; by default the policy's own.
        """
        if self.spec.layout:
            try:
                obs = as_vector(obs, [part._asdict() for part in self.spec.layout])
            except ValueError as error:
                raise UserError(f"obs: {error}") from None
        obs = jnp.asarray(obs if isinstance(obs, jax.Array) else np.asarray(obs), self.spec.obs_dtype)
        shape = self.spec.obs_shape
        single = obs.shape == shape
        if not single and obs.shape[1:] != shape:
            raise UserError(
                f"obs: has shape {list(obs.shape)}, but observations of {self.spec.name} have {list(shape)}: "
                "give one, or a batch with a leading axis"
            )
        rows = obs[None] if single else obs
        if carry is None:
            carry = self._agent.carry(jnp.arange(rows.shape[0], dtype=jnp.int32))
        elif (known := jax.tree.leaves(carry)) and known[0].shape[0] != rows.shape[0]:
            raise UserError(
                f"obs: a batch of {rows.shape[0]}, but the policy remembers {known[0].shape[0]} episodes: "
                "call policy.reset() when episodes begin"
            )
        if key is None:
            key = jax.random.fold_in(self._key, self._steps)
            self._steps += 1
        action, carry = self._act(self._params, carry, rows, key)
        return (action[0] if single else action), carry

    def _acting(
        self, params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree]:
        keys = jax.random.split(key, obs.shape[0])
        action, carry, _ = self._agent.act(params, carry, obs, keys, greedy)
        return action, carry

    def __repr__(self) -> str:
        kind = "greedy" if self.greedy else "exploring"
        return f"Policy({self.spec.name!r}, {kind}{', with memory' if self.has_memory else ''})"
