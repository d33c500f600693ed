"""Fitted Q evaluation (Le et al. 2019): estimates a policy's return from recorded transitions.

    y = r + gamma d Q_target(s', pi(s')),   loss (y - Q(s, a))^2,   return from a start: Q(s_0, pi(s_0))

The estimate is a discounted return over an infinite horizon. For actions that were not recorded the network
extrapolates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_hpc.datasets import Dataset
from jaxrl_hpc.networks.dense import Dense
from jaxrl_hpc.networks.torso import MLP
from jaxrl_hpc.types import Array, EnvSpec, PyTree, Transition

TARGET_RATE = 0.01


class FittedQSettings(NamedTuple):
    gamma: float
    updates: int
    batch_size: int
    hidden: Sequence[int]
    learning_rate: float


class _Value(nn.Module):
    """Q(s, a) of flat, standardised observations and coded actions."""

    hidden: Sequence[int]

    @nn.compact
    def __call__(self, obs: Array, action: Array) -> Array:  # [N, D], [N, A] -> [N]
        return Dense(1)(MLP(self.hidden, "silu")(jnp.concatenate([obs, action], axis=-1)))[..., 0]


def code_actions(spec: EnvSpec, action: Array) -> Array:
    """[N, …] -> [N, A]: one-hot, or in [-1, 1]."""
    if spec.num_actions is not None:
        return jax.nn.one_hot(action, spec.num_actions)
    low, high = spec.action_low, spec.action_high
    assert low is not None and high is not None
    return ((action - (low + high) / 2) / ((high - low) / 2)).reshape(action.shape[0], -1)


def estimator(
    dataset: Dataset, settings: FittedQSettings
) -> Callable[[Callable[[PyTree, Array], Array], Array, int], Array]:
    """(act(obs [N, …], keys [N]) -> actions, key, number) -> returns [number] from recorded starts."""
    data, spec, net = dataset.data, dataset.spec, _Value(settings.hidden)
    starts = np.flatnonzero(dataset.first)
    flat = np.asarray(data.obs, np.float32).reshape(dataset.rows, -1)
    centre, spread = flat.mean(axis=0), flat.std(axis=0) + 1e-3
    # keeps values near one: rewards are divided by a bound on their sum
    unit = float(np.sqrt(np.mean(np.square(data.reward))) / (1.0 - settings.gamma)) or 1.0
    adam = optax.adam(settings.learning_rate)

    def seen(obs: Array) -> Array:
        return (obs.reshape(obs.shape[0], -1).astype(jnp.float32) - centre) / spread

    def rows(index: Array) -> Transition:
        """Transitions [N] from the host: as constants of the program they would be compiled with it."""
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((index.shape[0], *x.shape[1:]), x.dtype), data)
        found: Transition = jax.pure_callback(
            lambda i: jax.tree.map(lambda x: x[np.asarray(i)], data),
            shapes,
            index,
            vmap_method="broadcast_all",
        )
        return found

    def estimate(act: Callable[[PyTree, Array], Array], key: Array, number: int) -> Array:
        init_key, loop_key, start_key = jax.random.split(key, 3)

        def value(params: PyTree, obs: Array, action: Array) -> Array:
            return net.apply(params, seen(obs), code_actions(spec, action))  # type: ignore[return-value]

        def by_policy(params: PyTree, obs: Array, act_key: Array) -> Array:
            return value(params, obs, act(obs, jax.random.split(act_key, obs.shape[0])))

        def update(i: Array, carry: PyTree) -> PyTree:
            params, target, opt = carry
            draw_key, act_key = jax.random.split(jax.random.fold_in(loop_key, i))
            batch = rows(jax.random.randint(draw_key, (settings.batch_size,), 0, dataset.rows))
            following = by_policy(target, batch.next_obs, act_key)
            goal = batch.reward / unit + settings.gamma * batch.discount * following
            grads = jax.grad(lambda p: jnp.square(goal - value(p, batch.obs, batch.action)).mean())(params)
            changes, opt = adam.update(grads, opt, params)
            params = optax.apply_updates(params, changes)
            target = jax.tree.map(lambda t, p: t + TARGET_RATE * (p - t), target, params)
            return params, target, opt

        first = rows(jnp.zeros(1, jnp.int32))
        params = net.init(init_key, seen(first.obs), code_actions(spec, first.action))
        carry = (params, params, adam.init(params))
        params, _, _ = jax.lax.fori_loop(0, settings.updates, update, carry)
        draw_key, act_key = jax.random.split(start_key)
        chosen = jnp.asarray(starts)[jax.random.randint(draw_key, (number,), 0, len(starts))]
        return unit * by_policy(params, rows(chosen.astype(jnp.int32)).obs, act_key)

    return estimate
