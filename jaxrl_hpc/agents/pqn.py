"""Parallelised Q-network (Gallici et al. 2024): Q-learning from unrolls, without replay and target network.

    R_t = r_t + gamma d_t ((1 - lambda) V(s'_t) + lambda R_{t+1}),   V(s) = max_a Q(s, a)
    loss = (R_t - Q(s_t, a_t))^2 / 2

At a truncation and at the end of the unroll V(s'_t) stands for R_{t+1}. With V as value function these are
the returns of GAE. Layer norm keeps Q stable without a target network: a config that sets `network` must also
set `layer_norm`. Returns are computed once per unroll; its steps are then divided into epochs x minibatches,
shuffled for each epoch, as in PPO.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc.agents import normalise
from jaxrl_hpc.agents.action_space import one_choice
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.agents.settings import NetworkAgentConfig
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.heads import QNetwork
from jaxrl_hpc.networks.torso import NetworkConfig, as_features, make_torso
from jaxrl_hpc.ops import advantages, masks, optimise
from jaxrl_hpc.ops.exploration import epsilon_greedy, linear_decay
from jaxrl_hpc.ops.shuffle import random_orders
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, PyTree, Unrolls, UpdateInfo


class Config(NetworkAgentConfig):
    """PQN's settings."""

    suitable_unroll: ClassVar[int] = 32
    name: Literal["pqn"] = "pqn"
    network: NetworkConfig = NetworkConfig(layer_norm=True)
    epochs: int = static(4, "passes over each unroll", ge=1)
    minibatches: int = static(4, "updates per pass", ge=1)
    gamma: float = traced(0.99, "discount", ge=0, le=1)
    return_lambda: float = traced(0.65, "decay of multi-step errors; 0: one-step targets", ge=0, le=1)
    epsilon_start: float = traced(1.0, "initial epsilon", ge=0, le=1)
    epsilon_end: float = traced(0.05, "final epsilon, from epsilon_fraction of the run on", ge=0, le=1)
    epsilon_fraction: float = traced(0.2, "fraction of the run over which epsilon decays", gt=0, le=1)
    normalise: NormaliseConfig = NormaliseConfig()


class Rows(NamedTuple):
    """Data of each step for an update: leading axis [N]."""

    obs: PyTree
    action: Array
    target: Array


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    del num_envs
    num_actions = one_choice(spec, "pqn", "sac", masks=True)
    network = QNetwork(make_torso(config.network, spec), num_actions)
    updates = config.epochs * config.minibatches

    def q_values(params: PyTree, obs: Array) -> Array:  # […, *obs_shape] -> […, A]
        return network.apply(params, as_features(obs, spec, config.network.torso))  # type: ignore[return-value]

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        obs = jnp.zeros((1, *spec.obs_shape), spec.obs_dtype)
        params = network.init(key, as_features(obs, spec, config.network.torso))
        opt = optimise.init(config, hypers, params)
        return LearnerState(params, (), opt, hypers, (), jnp.int32(0), jnp.float32(0))

    def actor(state: LearnerState) -> PyTree:
        h = state.hypers
        epsilon = linear_decay(state.progress, h["epsilon_start"], h["epsilon_end"], h["epsilon_fraction"])
        return {"params": state.params, "epsilon": epsilon}

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        mask = masks.allowed(spec, obs)
        values = masks.forbid(q_values(actor_params["params"], obs), mask)
        if greedy:
            return jnp.argmax(values, axis=-1).astype(jnp.int32), carry, ()
        return epsilon_greedy(key, values, actor_params["epsilon"], mask), carry, ()

    def minibatches(state: LearnerState, batch: Batch, key: Array) -> Batch:
        data, h = batch.data, state.hypers

        def best(obs: Array) -> Array:
            return masks.forbid(q_values(state.params, obs), masks.allowed(spec, obs)).max(axis=-1)

        value = best(data.obs)
        following = advantages.next_values(value, data.discount, data.last, data.next_obs, best)
        goal = advantages.gae(
            data.reward, data.discount, data.last, value, following, h["gamma"], h["return_lambda"]
        )
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), Rows(data.obs, data.action, goal.value))
        count = data.reward.size
        if count % config.minibatches:
            raise UserError(
                f"agent.minibatches: {config.minibatches} does not divide the unroll's {count} steps"
            )
        order = random_orders(key, config.epochs, count).reshape(updates, count // config.minibatches)
        dealt: Any = jax.tree.map(lambda x: jnp.take(x, order, axis=0, mode="clip"), rows)
        return Batch(dealt, jnp.ones(updates), jnp.zeros((updates, 0), jnp.int32))

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        del key
        rows: Any = batch.data

        def loss(params: PyTree) -> tuple[Array, tuple[Array, Array]]:
            # a masked sum: its derivative is element-wise, that of a gather is a scatter
            taken = rows.action[:, None] == jnp.arange(num_actions)
            value = jnp.where(taken, q_values(params, rows.obs), 0.0).sum(axis=-1)
            error = rows.target - value
            return 0.5 * jnp.square(error).mean(), (error, value)

        (total, (error, value)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        metrics = {"loss": total, "q_value": value.mean(), "td_error": jnp.abs(error).mean()}
        return grads, UpdateInfo(metrics, jnp.zeros((0,)))

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        params, opt = optimise.update(config, state.hypers, state.progress, state.params, state.opt, grads)
        return state._replace(params=params, opt=opt, step=state.step + 1)

    agent = Agent(
        needs=Unrolls(),
        init=init,
        actor=actor,
        carry=lambda env_ids: (),
        act=act,
        gradient=gradient,
        apply=apply,
        minibatches=minibatches,
    )
    return normalise.wrap(config.normalise, spec, agent)
