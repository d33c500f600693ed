"""Proximal policy optimisation with a clipped objective (Schulman et al. 2017).

    r = pi(a|s) / mu(a|s)
    loss = -min(r A, clip(r, 1 - eps, 1 + eps) A) + value_coef (v - V(s))^2 / 2 - entropy_coef H(pi)

`minibatches` computes GAE once per unroll and divides its rows into epochs x minibatches, shuffled for each
epoch; with an LSTM it shuffles whole environment copies, so that sequences stay together.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from pydantic import model_validator

from jaxrl_hpc.agents import normalise
from jaxrl_hpc.agents.actor_critic import ActorCriticConfig, View, check_standardised, make_core, raw_action
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import advantages, optimise
from jaxrl_hpc.ops.shuffle import random_orders
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, Metrics, PyTree, Unrolls, UpdateInfo


class Config(ActorCriticConfig):
    """PPO's settings."""

    suitable_unroll: ClassVar[int] = 128
    name: Literal["ppo"] = "ppo"
    epochs: int = static(4, "passes over each unroll", ge=1)
    minibatches: int = static(4, "updates per pass", ge=1)
    clip: float = traced(0.2, "clip range of the probability ratio", gt=0)
    clip_value: bool = static(False, "also clip the value to within `clip_value_range` of its old value")
    clip_value_range: float = traced(0.2, "clip_value: the range", gt=0)
    normalise_advantage: bool = static(True, "standardise advantages over each minibatch")
    acting_values: bool = static(
        False, "compute advantages from the values at acting time, without another pass over the unroll"
    )
    kl_stop: bool = static(False, "skip the remaining updates of an unroll once `kl_limit` is exceeded")
    kl_limit: float = traced(0.02, "kl_stop: largest mean KL divergence from the acting policy", gt=0)
    learning_rate: float = traced(2.5e-4, "Adam step size", gt=0)

    @property
    def keeps_values(self) -> bool:
        return self.acting_values

    @model_validator(mode="after")
    def _no_memory(self) -> Config:
        if self.acting_values and self.lstm:
            raise ValueError("acting_values: not with an LSTM, whose memory is computed anew from the unroll")
        return self


class Rows(NamedTuple):
    """Data of each step for an update: leading axes [N], or [T, N] with an LSTM."""

    obs: PyTree
    raw: Array  # the action as drawn
    log_prob: Array  # of the behaviour
    advantage: Array
    target: Array  # of the value
    value: Array  # before the first update
    memory: PyTree  # LSTM: (last [T, N], carry before the unroll [N, H]), else ()


def _deal(rows: PyTree, order: Array, axis: int) -> PyTree:
    """Rows in the given order [M, n] along an axis -> leaves [M, …, n, …]."""

    def deal(leaf: Array) -> Array:
        def minibatch(index: Array) -> Array:
            return leaf.at[(slice(None),) * axis + (index,)].get(mode="promise_in_bounds")

        return jax.vmap(minibatch)(order)

    return jax.tree.map(deal, rows)


def _orders(key: Array, epochs: int, shape: tuple[int, ...], whole_copies: bool) -> Array:
    """One random order per epoch, [epochs, N], of all steps or of whole environment copies."""
    length, copies = shape
    return random_orders(key, epochs, copies if whole_copies else length * copies)


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    del num_envs
    core = make_core(config, spec)
    distribution = core.distribution
    updates_per_unroll = config.epochs * config.minibatches

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        state = core.init(key, hypers)
        return state._replace(aux={"stopped": jnp.bool_(False)}) if config.kl_stop else state

    def minibatches(state: LearnerState, batch: Batch, key: Array) -> Batch:
        data, hypers = batch.data, state.hypers
        if config.acting_values:
            view = View(jnp.zeros(0), data.extras["value"], ())
        else:
            view = core.view(state.params, data.obs, core.memory(data))
        following = core.next_value(state.params, data, view)
        goal = advantages.gae(
            data.reward,
            data.discount,
            data.last,
            view.value,
            following,
            hypers["gamma"],
            hypers["gae_lambda"],
        )
        rows = Rows(
            data.obs, raw_action(data), data.extras["log_prob"], goal.advantage, goal.value, view.value, ()
        )
        if not config.lstm:
            rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        orders = _orders(key, config.epochs, data.reward.shape, whole_copies=config.lstm > 0)
        count = orders.shape[1]
        if count % config.minibatches:
            kind = "environment copies" if config.lstm else "steps"
            raise UserError(
                f"agent.minibatches: {config.minibatches} does not divide the unroll's {count} {kind}"
            )
        size = data.reward.size // config.minibatches
        if config.normalise_advantage:
            check_standardised(size, "agent.minibatches: each")
        orders = orders.reshape(updates_per_unroll, count // config.minibatches)
        dealt = _deal(rows, orders, 1 if config.lstm else 0)
        if config.lstm:
            start, starts = core.memory(data)
            dealt = dealt._replace(memory=(_deal(start, orders, 0), _deal(starts, orders, 1)))
        return Batch(dealt, jnp.ones(updates_per_unroll), jnp.zeros((updates_per_unroll, 0), jnp.int32))

    def stops(state: LearnerState, kl: Array) -> Array:
        """Whether an update is skipped because of its KL divergence, or that of one before it."""
        fresh = state.step % updates_per_unroll == 0  # a new unroll: its first update always counts
        beyond = jnp.logical_or(state.aux["stopped"], kl > state.hypers["kl_limit"])
        return jnp.logical_and(jnp.logical_not(fresh), beyond)

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        rows: Any = batch.data
        hypers = state.hypers
        advantage = rows.advantage
        if config.normalise_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        def loss(params: PyTree) -> tuple[Array, Metrics]:
            view = core.view(params, rows.obs, rows.memory)
            log_ratio = distribution.log_prob(view.outputs, rows.raw) - rows.log_prob
            ratio = jnp.exp(log_ratio)
            within = jnp.clip(ratio, 1.0 - hypers["clip"], 1.0 + hypers["clip"])
            policy_loss = -jnp.minimum(ratio * advantage, within * advantage).mean()
            square = jnp.square(view.value - rows.target)
            if config.clip_value:
                reach = hypers["clip_value_range"]
                near = rows.value + jnp.clip(view.value - rows.value, -reach, reach)
                square = jnp.maximum(square, jnp.square(near - rows.target))
            value_loss = 0.5 * square.mean()
            entropy = distribution.entropy(view.outputs, key).mean()
            total = policy_loss + hypers["value_coef"] * value_loss - hypers["entropy_coef"] * entropy
            return total, {
                "loss": total,
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": entropy,
                "kl": jnp.mean(ratio - 1.0 - log_ratio),  # never negative (Schulman 2020)
                "clipped": jnp.mean(jnp.abs(ratio - 1.0) > hypers["clip"], dtype=jnp.float32),
            }

        grads, metrics = jax.grad(loss, has_aux=True)(state.params)
        if config.kl_stop:
            metrics["updates_used"] = 1.0 - stops(state, metrics["kl"]).astype(jnp.float32)
            # with the gradients, so that all shards stop at the same mean
            return {"params": grads, "kl": metrics["kl"]}, UpdateInfo(metrics, jnp.zeros((0,)))
        return grads, UpdateInfo(metrics, jnp.zeros((0,)))

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        step = state.step + 1

        def updated(grads: PyTree) -> tuple[PyTree, PyTree]:
            return optimise.update(config, state.hypers, state.progress, state.params, state.opt, grads)

        if not config.kl_stop:
            params, opt = updated(grads)
            return state._replace(params=params, opt=opt, step=step)
        stopped = stops(state, grads["kl"])
        old = (state.params, state.opt)
        params, opt = jax.tree.map(lambda o, n: jnp.where(stopped, o, n), old, updated(grads["params"]))
        return state._replace(params=params, opt=opt, step=step, aux={"stopped": stopped})

    agent = Agent(
        needs=Unrolls(),
        init=init,
        actor=core.actor,
        carry=core.carry,
        act=core.act,
        gradient=gradient,
        apply=apply,
        minibatches=minibatches,
        stochastic=True,
    )
    return normalise.wrap(config.normalise, spec, agent)
