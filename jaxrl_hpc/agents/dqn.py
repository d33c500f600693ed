"""DQN (Mnih et al. 2015) with its standard options: double (van Hasselt et al. 2016), dueling,
n-step targets, prioritised replay (Schaul et al. 2016), hard or soft target updates.

    y = sum_{i<k} gamma^i r_i + gamma^k d Q_target(s_k, argmax_a Q(s_k, a)),  loss = w huber(y - Q(s, a))

k is n, or less where the episode ends inside the window; d is 0 where it terminated. With `returns` the
network models the distribution of y instead of its mean (C51, QR-DQN: ops/value_distributions.py). With
`noisy` exploration comes from noisy layers: each copy draws its own noise in each step, and an update draws
one for its batch. All options together make Rainbow (Hessel et al. 2018).
"""

from __future__ import annotations

from typing import Literal, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from pydantic import model_validator

from jaxrl_hpc.agents import normalise
from jaxrl_hpc.agents.action_space import one_choice
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.agents.settings import WindowAgentConfig
from jaxrl_hpc.networks.heads import QNetwork
from jaxrl_hpc.networks.noisy import streams
from jaxrl_hpc.networks.torso import Width, as_features, make_torso
from jaxrl_hpc.ops import masks, optimise, value_distributions
from jaxrl_hpc.ops.exploration import epsilon_greedy, epsilon_ladder, linear_decay
from jaxrl_hpc.ops.returns import fold_window, take_step
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, PyTree, UpdateInfo, Windows


class DQNOptions(WindowAgentConfig):
    """Settings shared by the DQN family."""

    dueling: bool = static(False, "separate value and advantage streams")
    dueling_hidden: tuple[Width, ...] = static((), "dueling: widths of each stream's hidden layers")
    double: bool = static(
        True, "double DQN: the online network selects the action, the target network evaluates it"
    )
    n_step: int = static(1, "length of the return before bootstrapping", ge=1, le=64)
    batch_size: int = static(128, "transitions per update", per_shard="exact", ge=1)
    gamma: float = traced(0.99, "discount", ge=0, le=1)
    epsilon_start: float = traced(1.0, "initial epsilon", ge=0, le=1)
    epsilon_end: float = traced(0.05, "final epsilon, from epsilon_fraction of the run on", ge=0, le=1)
    epsilon_fraction: float = traced(0.2, "fraction of the run over which epsilon decays", gt=0, le=1)
    exploration: Literal["schedule", "ladder"] = static(
        "schedule", "ladder: every copy keeps its own epsilon, from ladder_base down (Ape-X)"
    )
    ladder_base: float = traced(0.4, "ladder: largest epsilon", gt=0, lt=1)
    ladder_power: float = traced(7.0, "ladder: exponent, alpha of Ape-X", ge=0)
    huber_delta: float = traced(1.0, "Huber loss: linear beyond this error", gt=0)
    target_every: int = static(
        250, "updates between hard copies to the target network; 0: soft updates", ge=0
    )
    target_rate: float = traced(
        0.005, "soft updates: fraction of the way to the online network per update", gt=0, le=1
    )

    def q_network(self, torso: nn.Module, num_actions: int) -> QNetwork:
        return QNetwork(torso, num_actions, self.dueling, self.dueling_hidden, self.network.activation)


class Config(DQNOptions):
    """DQN's settings."""

    name: Literal["dqn"] = "dqn"
    returns: value_distributions.Kind = static(
        "value", "what is learned about returns: the mean, probabilities of fixed returns, or quantiles"
    )
    atoms: int = static(51, "c51 and quantile: numbers per action", ge=2, le=1_000)
    return_low: float = traced(-10.0, "c51: the smallest return")
    return_high: float = traced(10.0, "c51: the largest return")
    noisy: bool = static(False, "noisy layers in the head; usually with epsilon_start = epsilon_end = 0")
    noise_size: float = static(0.5, "noisy: initial standard deviation of a weight, times √inputs", gt=0)
    normalise: NormaliseConfig = NormaliseConfig()

    @model_validator(mode="after")
    def _returns_in_order(self) -> Self:
        if self.return_low >= self.return_high:
            raise ValueError(f"return_low is {self.return_low:g}: it must be below return_high")
        return self


def identity(config: DQNOptions, env_ids: Array) -> PyTree:
    """Exploration state of an environment copy."""
    return {"id": env_ids} if config.exploration == "ladder" else {}


def exploration(state: LearnerState) -> PyTree:
    """Exploration data that actors need."""
    h = state.hypers
    epsilon = linear_decay(state.progress, h["epsilon_start"], h["epsilon_end"], h["epsilon_fraction"])
    return {"epsilon": epsilon, "ladder": (h["ladder_base"], h["ladder_power"])}


def explore(
    config: DQNOptions,
    num_envs: int,
    by: PyTree,
    carry: PyTree,
    values: Array,
    key: Array,
    mask: Array | None = None,
) -> Array:
    """Epsilon-greedy actions [B] from values [B, A]. Consumes key [B]; mask [B, A]: what is allowed."""
    epsilon = by["epsilon"]
    if config.exploration == "ladder":
        epsilon = epsilon_ladder(carry["id"], num_envs, *by["ladder"])
    return epsilon_greedy(key, values, epsilon, mask)


def move_target(config: DQNOptions, state: LearnerState, params: PyTree, update: Array) -> PyTree:
    """The target after update number `update`, from 1 on, which led to `params`."""
    if config.target_every:
        sync = update % config.target_every == 0
        return jax.tree.map(lambda t, p: jnp.where(sync, p, t), state.target, params)
    rate = state.hypers["target_rate"]
    return jax.tree.map(lambda t, p: t + rate * (p - t), state.target, params)


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    network = QNetwork(
        make_torso(config.network, spec),
        one_choice(spec, "dqn", "td3", masks=True),
        config.dueling,
        config.dueling_hidden,
        config.network.activation,
        0 if config.returns == "value" else config.atoms,
        config.noise_size if config.noisy else 0.0,
    )
    model = value_distributions.make(config.returns, config.atoms)

    def outputs(params: PyTree, obs: Array, key: Array | None) -> Array:  # [N, …] -> [N, A, *K]
        """The key is that of the noise: [] for all rows, or one per row [N]."""
        return network.apply(params, as_features(obs, spec, config.network.torso), key)  # type: ignore[return-value]

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        params = network.init(
            key, as_features(jnp.zeros((1, *spec.obs_shape), spec.obs_dtype), spec, config.network.torso)
        )
        target = jax.tree.map(jnp.copy, params)  # a buffer of its own: both are donated
        opt = optimise.init(config, hypers, params)
        return LearnerState(params, target, opt, hypers, (), jnp.int32(0), jnp.float32(0))

    def actor(state: LearnerState) -> PyTree:
        by = {name: state.hypers[name] for name in ("gamma", "huber_delta", "return_low", "return_high")}
        return {"params": state.params, "by": by, "explore": exploration(state)}

    def carry(env_ids: Array) -> PyTree:
        return identity(config, env_ids)

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        params, by, mask = actor_params["params"], actor_params["by"], masks.allowed(spec, obs)
        if greedy:
            values = masks.forbid(model.value(outputs(params, obs, None), by), mask)
            return jnp.argmax(values, axis=-1).astype(jnp.int32), carry, ()
        noise_key = None
        if config.noisy:
            split = jax.vmap(jax.random.split)(key)
            key, noise_key = split[:, 0], split[:, 1]
        values = model.value(outputs(params, obs, noise_key), by)
        return explore(config, num_envs, actor_params["explore"], carry, values, key, mask), carry, ()

    def compare(
        params: PyTree, target: PyTree, by: dict[str, Array], batch: Batch, key: Array | None
    ) -> tuple[Array, Array, Array]:
        """Losses, errors of the mean and values, each [N]; the key is that of the noise."""
        data, keys = batch.data, streams(key)
        folded = fold_window(data.reward, data.discount, data.last, by["gamma"])
        next_obs = take_step(data.next_obs, folded.final)
        next_target = outputs(target, next_obs, next(keys))
        chooser = next_target
        if config.double:
            chooser = outputs(jax.lax.stop_gradient(params), next_obs, next(keys))
        choice = jnp.argmax(masks.forbid(model.value(chooser, by), masks.allowed(spec, next_obs)), axis=-1)
        following = jax.lax.stop_gradient(value_distributions.take(next_target, choice))
        obs = jax.tree.map(lambda x: x[0], data.obs)
        taken = value_distributions.take(outputs(params, obs, next(keys)), data.action[0])
        value = model.value(taken, by)
        error = folded.reward + folded.discount * model.value(following, by) - value
        return model.loss(taken, following, folded.reward, folded.discount, by), error, value

    def urgency(losses: Array, error: Array) -> Array:
        """Replay priorities: errors of values, losses of distributions."""
        return jnp.abs(error) if config.returns == "value" else jnp.maximum(losses, 0.0)

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        noise_key = key if config.noisy else None

        def loss(params: PyTree) -> tuple[Array, tuple[Array, Array, Array]]:
            losses, error, value = compare(params, state.target, state.hypers, batch, noise_key)
            return jnp.mean(batch.weight * losses), (losses, error, value)

        (total, (losses, error, value)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        metrics = {"loss": total, "q_value": value.mean(), "td_error": jnp.abs(error).mean()}
        return grads, UpdateInfo(metrics, urgency(losses, error))

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        params, opt = optimise.update(config, state.hypers, state.progress, state.params, state.opt, grads)
        target = move_target(config, state, params, state.step + 1)
        return state._replace(params=params, target=target, opt=opt, step=state.step + 1)

    def priority(actor_params: PyTree, batch: Batch) -> Array:
        # an actor has no target network: the online one replaces it (Ape-X), without noise
        params = actor_params["params"]
        losses, error, _ = compare(params, params, actor_params["by"], batch, None)
        return urgency(losses, error)

    agent = Agent(
        needs=Windows(config.window, config.batch_size),
        init=init,
        actor=actor,
        carry=carry,
        act=act,
        gradient=gradient,
        apply=apply,
        priority=priority,
    )
    return normalise.wrap(config.normalise, spec, agent)
