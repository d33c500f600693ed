"""A policy as one program of plain arrays: (weights, carry, obs [B, …], seed []) -> (action [B, …], carry).

Weights and carry are dictionaries from names to arrays. The traced program shows which of them actions depend
on, now or in later steps; the others are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax.interpreters import partial_eval

from jaxrl_hpc.types import Agent, Array, EnvSpec, PyTree

Named = dict[str, Any]  # name -> array or shape


class PolicyFunctions(NamedTuple):
    """Agent, parameters and spec."""

    agent: Agent
    params: PyTree  # as from agent.actor
    spec: EnvSpec

    def observations(self, number: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((number, *self.spec.obs_shape), self.spec.obs_dtype)


def named(tree: PyTree) -> Named:
    """Leaves by their path, such as params/Dense_0/kernel."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


class PolicyProgram:
    """An agent's policy, greedy or not, reduced to what it needs."""

    def __init__(self, acting: PolicyFunctions, greedy: bool) -> None:
        self.acting, self.greedy = acting, greedy
        self.all_weights = jax.tree.map(np.asarray, named(acting.params))
        start = acting.agent.carry(jnp.zeros(1, jnp.int32))
        self.all_carry = jax.tree.map(np.asarray, named(start))
        self._params_tree = jax.tree.structure(acting.params)
        self._carry_tree = jax.tree.structure(start)
        weights, carry = self._needed()
        self.weights = {name: self.all_weights[name] for name in weights}
        self.carry = {name: self.all_carry[name] for name in carry}  # leaves [1, …]

    def _whole(self, weights: Named, carry: Named, obs: Array, seed: Array) -> tuple[Array, Named]:
        """With all weights and all of the carry. `seed` [] int32 is the only source of randomness."""
        params = jax.tree.unflatten(self._params_tree, list(weights.values()))
        before = jax.tree.unflatten(self._carry_tree, list(carry.values()))
        copies = jnp.arange(obs.shape[0], dtype=jnp.int32)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), copies)
        action, after, _ = self.acting.agent.act(params, before, obs, keys, self.greedy)
        return action, named(after)

    def _needed(self) -> tuple[list[str], list[str]]:
        """Names of weights and carry that actions depend on: the smallest closed set."""

        def flat(*leaves: Array) -> list[Array]:
            split = len(self.all_weights)
            weights = dict(zip(self.all_weights, leaves[:split], strict=True))
            carry = dict(zip(self.all_carry, leaves[split:-2], strict=True))
            action, after = self._whole(weights, carry, *leaves[-2:])
            return [action, *after.values()]

        obs, seed = self.acting.observations(1), jax.ShapeDtypeStruct((), jnp.int32)
        jaxpr = jax.make_jaxpr(flat)(*self.all_weights.values(), *self.all_carry.values(), obs, seed).jaxpr
        kept = [False] * len(self.all_carry)
        while True:
            _, used = partial_eval.dce_jaxpr(jaxpr, [True, *kept])
            weights = [name for name, u in zip(self.all_weights, used, strict=False) if u]
            found = list(used[len(self.all_weights) : -2])
            if found == kept:
                return weights, [name for name, keep in zip(self.all_carry, kept, strict=True) if keep]
            kept = found

    def __call__(self, weights: Named, carry: Named, obs: Array, seed: Array) -> tuple[Array, Named]:
        """The exported function. Dropped inputs are replaced by unused constants."""
        batch = obs.shape[0]
        every = {name: weights.get(name, value) for name, value in self.all_weights.items()}
        start = {
            name: carry.get(name, jnp.zeros((batch, *value.shape[1:]), value.dtype))
            for name, value in self.all_carry.items()
        }
        action, after = self._whole(every, start, obs, seed)
        return action, {name: after[name] for name in self.carry}

    def serialise(self, platforms: Sequence[str]) -> bytes:
        """StableHLO for any batch size on these platforms."""
        (batch,) = jax_export.symbolic_shape("batch")
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self.weights)
        carry = {
            name: jax.ShapeDtypeStruct((batch, *value.shape[1:]), value.dtype)
            for name, value in self.carry.items()
        }
        seed = jax.ShapeDtypeStruct((), jnp.int32)
        exported = jax_export.export(jax.jit(self.__call__), platforms=platforms)
        return bytes(exported(shapes, carry, self.acting.observations(batch), seed).serialize())
