"""Recurrent DQN: an LSTM learned from stored sequences (R2D2, Kapturowski et al. 2019).

A sample is a sequence of burn_in + length consecutive steps of one environment copy, with the recurrent state
that the actor had before its first step. The current network replays the first burn_in steps without a
gradient, to refresh that state, and learns from the remaining steps:

    y_t = sum_{i<k} gamma^i r_{t+i} + gamma^k d Q_target(m_{t+k-1}, s_{t+k}, argmax_a Q(m, s_{t+k}, a))

k is n, or less where the episode or the sequence ends; after that the memory is the actor's again. The
value of what a step led to is one step of the LSTM from the memory after it, so that a truncated
episode is bootstrapped from its own last observation. With `rescale` the network learns h(Q) instead of Q,
and y_t is h(… h⁻¹(Q_target) …). Priority of a sequence: eta max_t |e_t| + (1 - eta) mean_t |e_t|.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxrl_hpc.agents import dqn, normalise
from jaxrl_hpc.agents.action_space import one_choice
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.networks.heads import RecurrentQNetwork
from jaxrl_hpc.networks.recurrent import Carry, initial_carry, starts_of
from jaxrl_hpc.networks.torso import MLP, as_features, make_torso
from jaxrl_hpc.ops import optimise
from jaxrl_hpc.ops.losses import huber, select_action
from jaxrl_hpc.ops.returns import rescale, sequence_returns, unrescale
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import (
    Agent,
    Array,
    Batch,
    EnvSpec,
    LearnerState,
    PyTree,
    Transition,
    UpdateInfo,
    Windows,
)


class Config(dqn.DQNOptions):
    """Recurrent DQN's settings."""

    suitable_replay: ClassVar[str] = "sequence"
    name: Literal["recurrent_dqn"] = "recurrent_dqn"
    lstm: int = static(64, "width of the LSTM", ge=1)
    burn_in: int = static(4, "steps that only refresh the recurrent state", ge=0)
    length: int = static(16, "steps of a sequence that are learned from", ge=1)
    batch_size: int = static(32, "sequences per update", per_shard="exact", ge=1)
    rescale: bool = static(False, "learn square roots of values, h(Q), as R2D2 does with unscaled rewards")
    priority_mix: float = traced(
        0.9, "weight of the largest error, against the mean error, in a sequence's priority", ge=0, le=1
    )
    normalise: NormaliseConfig = NormaliseConfig()

    @property
    def window(self) -> int:
        return self.burn_in + self.length

    @property
    def recurrent_width(self) -> int:
        return self.lstm


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    num_actions = one_choice(spec, "recurrent_dqn", "a2c")
    head = config.q_network(MLP(config.network.hidden[-1:], config.network.activation), num_actions)
    network = RecurrentQNetwork(make_torso(config.network, spec), config.lstm, head)

    def look(
        params: PyTree, obs: Array, memory: Carry, starts: Array, restart: Carry | None = None
    ) -> tuple[Array, Carry]:
        features = as_features(obs, spec, config.network.torso)
        return network.apply(params, features, memory, starts, restart)  # type: ignore[return-value]

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        obs = as_features(jnp.zeros((1, 1, *spec.obs_shape), spec.obs_dtype), spec, config.network.torso)
        params = network.init(key, obs, initial_carry(1, config.lstm), jnp.zeros((1, 1), bool))
        target = jax.tree.map(jnp.copy, params)  # a buffer of its own: both are donated
        opt = optimise.init(config, hypers, params)
        return LearnerState(params, target, opt, hypers, (), jnp.int32(0), jnp.float32(0))

    def actor(state: LearnerState) -> PyTree:
        return {"params": state.params, "explore": dqn.exploration(state)}

    def carry(env_ids: Array) -> PyTree:
        return {"memory": initial_carry(env_ids.shape[0], config.lstm), **dqn.identity(config, env_ids)}

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        before = carry["memory"]
        values, after = look(actor_params["params"], obs[None], before, jnp.zeros((1, obs.shape[0]), bool))
        carry = carry | {"memory": jax.tree.map(lambda x: x[0], after)}
        if greedy:
            action = jnp.argmax(values[0], axis=-1).astype(jnp.int32)
        else:
            action = dqn.explore(config, num_envs, actor_params["explore"], carry, values[0], key)
        return action, carry, {"memory": before}

    def replayed(params: PyTree, data: Transition) -> tuple[Array, Carry]:
        """Values [length, N, A] and memories of the steps learned from; no gradient through burn-in.

        After `last` the memory is what the actor had: zero in a new episode, but not where a workflow only
        cut the sequence because the next unroll is another actor's.
        """
        stored: Carry = data.extras["memory"]
        starts, cut = starts_of(data.last), config.burn_in

        def part(rows: slice) -> tuple[Array, Array, Carry]:
            return data.obs[rows], starts[rows], jax.tree.map(lambda x: x[rows], stored)

        memory = jax.tree.map(lambda x: x[0], stored)
        if cut:
            obs, begins, other = part(slice(cut))
            _, warm = look(jax.lax.stop_gradient(params), obs, memory, begins, other)
            memory = jax.tree.map(lambda x: x[-1], warm)
        obs, begins, other = part(slice(cut, None))
        return look(params, obs, memory, begins, other)

    def next_values(params: PyTree, next_obs: Array, memory: Carry) -> Array:
        """Q(s'_t, .) [length, N, A]: one step from every memory, all at once."""

        def flat(x: Array) -> Array:
            return x.reshape(-1, *x.shape[2:])

        count = next_obs.shape[0] * next_obs.shape[1]
        values, _ = look(
            params, flat(next_obs)[None], jax.tree.map(flat, memory), jnp.zeros((1, count), bool)
        )
        return values.reshape(*next_obs.shape[:2], -1)

    def td_error(params: PyTree, target: PyTree, gamma: Array, data: Transition) -> tuple[Array, Array]:
        learned = jax.tree.map(lambda x: x[config.burn_in :], data._replace(extras=()))
        values, memory = replayed(params, data)
        next_target = next_values(target, learned.next_obs, replayed(target, data)[1])
        chooser = next_target
        if config.double:
            chooser = next_values(*jax.lax.stop_gradient((params, learned.next_obs, memory)))
        next_value = select_action(next_target, jnp.argmax(chooser, axis=-1))
        if config.rescale:
            next_value = unrescale(next_value)
        goal = sequence_returns(
            learned.reward, learned.discount, learned.last, next_value, gamma, config.n_step
        )
        goal = rescale(goal) if config.rescale else goal
        value = select_action(values, learned.action)
        return jax.lax.stop_gradient(goal) - value, value

    def mixed(error: Array, mix: Array) -> Array:  # [length, N] -> [N]
        size = jnp.abs(error)
        return mix * size.max(axis=0) + (1.0 - mix) * size.mean(axis=0)

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        del key
        h = state.hypers

        def loss(params: PyTree) -> tuple[Array, tuple[Array, Array]]:
            error, value = td_error(params, state.target, h["gamma"], batch.data)
            return jnp.mean(batch.weight * huber(error, h["huber_delta"]).mean(axis=0)), (error, value)

        (value_loss, (error, value)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        metrics = {"loss": value_loss, "q_value": value.mean(), "td_error": jnp.abs(error).mean()}
        return grads, UpdateInfo(metrics, mixed(error, h["priority_mix"]))

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        params, opt = optimise.update(config, state.hypers, state.progress, state.params, state.opt, grads)
        target = dqn.move_target(config, state, params, state.step + 1)
        return state._replace(params=params, target=target, opt=opt, step=state.step + 1)

    agent = Agent(
        needs=Windows(config.window, config.batch_size),
        init=init,
        actor=actor,
        carry=carry,
        act=act,
        gradient=gradient,
        apply=apply,
    )
    return normalise.wrap(config.normalise, spec, agent)
