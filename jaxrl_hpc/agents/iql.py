"""Implicit Q-learning (Kostrikov et al. 2022): learns from recorded actions without evaluating any other
action.

    value    w |tau - 1(u < 0)| u^2,  u = min_i Q_i_target(s, a) - V(s)
    critics  w sum_i (R_k + gamma^k d V(s_k) - Q_i(s, a))^2 / 2
    policy   -min(exp(beta u), c) log pi(a|s),  pi = N(tanh m(s), sigma), sigma one number per dimension

k is n, or less where the episode ends inside the window; d is 0 where it terminated. Networks see actions in
[-1, 1]; the density is that of an action before clipping to its bounds. All gradients are taken at the same
parameters, so that one reduction over devices and ranks covers them. The importance weights w of a
prioritised replay correct both regressions; the policy's loss has none, as in TD3.
"""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp

from jaxrl_hpc.agents import normalise
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.agents.settings import WindowAgentConfig
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.critic import Critics
from jaxrl_hpc.networks.policy import DeterministicActor
from jaxrl_hpc.networks.torso import NetworkConfig, as_features, make_torso
from jaxrl_hpc.ops import noise, optimise
from jaxrl_hpc.ops.returns import fold_window, take_step
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, PyTree, UpdateInfo, Windows

LOG_STD_RANGE = (-5.0, 1.0)


class Config(WindowAgentConfig):
    """IQL's settings."""

    name: Literal["iql"] = "iql"
    network: NetworkConfig = NetworkConfig(hidden=(256, 256))
    learning_rate: float = traced(3e-4, "Adam step size of critics and value", gt=0)
    actor_learning_rate: float = traced(3e-4, "Adam step size of the policy", gt=0)
    max_grad_norm: float = traced(0.0, "gradients are scaled down to this global norm; 0: never", ge=0)
    expectile: float = traced(
        0.7,
        "tau: 0.5 estimates the mean value of the recorded actions, near 1 that of the best ones",
        gt=0,
        lt=1,
    )
    advantage_scale: float = traced(
        3.0, "beta: 0 imitates all actions equally, larger values favour the better ones", ge=0
    )
    max_weight: float = traced(100.0, "c: upper bound on the weight of an imitated action", gt=0)
    log_std: float = static(-1.0, "initial log standard deviation", ge=-5, le=1)
    n_step: int = static(1, "length of the return before bootstrapping", ge=1, le=64)
    batch_size: int = static(256, "transitions per update", per_shard="exact", ge=1)
    gamma: float = traced(0.99, "discount", ge=0, le=1)
    target_rate: float = traced(
        0.005, "soft updates: fraction of the way to the online networks per update", gt=0, le=1
    )
    normalise: NormaliseConfig = NormaliseConfig()


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    del num_envs
    if spec.discrete:
        raise UserError(f"agent 'iql' needs continuous actions; env {spec.name!r} has discrete ones: use dqn")
    scale = noise.action_scale(spec)
    size = math.prod(spec.action_shape)
    policy_net = DeterministicActor(make_torso(config.network, spec), size)
    critic_net = Critics(config.network, spec, 2)
    value_net = Critics(config.network, spec, 1)  # of no action: a value of the state

    def features(obs: Array) -> Array:
        return as_features(obs, spec, config.network.torso)

    def mean_action(params: PyTree, obs: Array) -> Array:  # [N, …] -> [N, A] in [-1, 1]
        return policy_net.apply(params["mean"], features(obs))  # type: ignore[return-value]

    def log_std(params: PyTree) -> Array:  # [A]
        return jnp.clip(params["log_std"], *LOG_STD_RANGE)

    def critics(params: PyTree, obs: Array, unit: Array) -> Array:  # -> [2, N]
        return critic_net.apply(params, features(obs), unit)  # type: ignore[return-value]

    def value(params: PyTree, obs: Array) -> Array:  # -> [N]
        found: Array = value_net.apply(params, features(obs), jnp.zeros((obs.shape[0], 0)))[0]
        return found

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        policy_key, critic_key, value_key = jax.random.split(key, 3)
        obs = features(jnp.zeros((1, *spec.obs_shape), spec.obs_dtype))
        params = {
            "policy": {"mean": policy_net.init(policy_key, obs), "log_std": jnp.full(size, config.log_std)},
            "critic": critic_net.init(critic_key, obs, jnp.zeros((1, size))),
            "value": value_net.init(value_key, obs, jnp.zeros((1, 0))),
        }
        target = jax.tree.map(jnp.copy, params["critic"])  # a buffer of its own: both are donated
        opt = {name: optimise.init(config, hypers, part) for name, part in params.items()}
        return LearnerState(params, target, opt, hypers, (), jnp.int32(0), jnp.float32(0))

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        unit = mean_action(actor_params, obs)
        if not greedy:
            drawn = unit + jnp.exp(log_std(actor_params)) * noise.gaussian(key, size)
            unit = jnp.clip(drawn, -1.0, 1.0)
        return scale.to_env(unit), carry, ()

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        del key
        data, h = batch.data, state.hypers
        folded = fold_window(data.reward, data.discount, data.last, h["gamma"])
        obs = jax.tree.map(lambda x: x[0], data.obs)
        unit = scale.to_unit(data.action[0])
        goal = folded.reward + folded.discount * value(
            state.params["value"], take_step(data.next_obs, folded.final)
        )
        taken = critics(state.target, obs, unit).min(axis=0)  # [N]

        def critic_loss(params: PyTree) -> tuple[Array, tuple[Array, Array]]:
            values = critics(params, obs, unit)
            error = goal - values
            return jnp.mean(batch.weight * 0.5 * jnp.square(error).sum(axis=0)), (error, values)

        def value_loss(params: PyTree) -> tuple[Array, Array]:
            advantage = taken - value(params, obs)
            side = jnp.where(advantage < 0, 1.0 - h["expectile"], h["expectile"])
            return jnp.mean(batch.weight * side * jnp.square(advantage)), advantage

        (loss, (error, values)), critic_grads = jax.value_and_grad(critic_loss, has_aux=True)(
            state.params["critic"]
        )
        (value_error, advantage), value_grads = jax.value_and_grad(value_loss, has_aux=True)(
            state.params["value"]
        )
        weight = jnp.minimum(jnp.exp(h["advantage_scale"] * advantage), h["max_weight"])

        def policy_loss(params: PyTree) -> Array:
            spread = log_std(params)
            distance = (unit - mean_action(params, obs)) * jnp.exp(-spread)
            log_prob = (-0.5 * jnp.square(distance) - spread - 0.5 * math.log(2 * math.pi)).sum(axis=-1)
            return -jnp.mean(weight * log_prob)

        policy_grads = jax.grad(policy_loss)(state.params["policy"])
        size_of_error = jnp.abs(error).mean(axis=0)
        metrics = {
            "loss": loss,
            "value_loss": value_error,
            "q_value": values[0].mean(),
            "td_error": size_of_error.mean(),
            "advantage_weight": weight.mean(),
        }
        grads = {"critic": critic_grads, "value": value_grads, "policy": policy_grads}
        return grads, UpdateInfo(metrics, size_of_error)

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        h = state.hypers
        rates = dict.fromkeys(("critic", "value"), h["learning_rate"]) | {"policy": h["actor_learning_rate"]}
        params, opt = {}, {}
        for name, part in state.params.items():
            hypers = {**h, "learning_rate": rates[name]}
            params[name], opt[name] = optimise.update(
                config, hypers, state.progress, part, state.opt[name], grads[name]
            )
        target = jax.tree.map(lambda t, p: t + h["target_rate"] * (p - t), state.target, params["critic"])
        return state._replace(params=params, target=target, opt=opt, step=state.step + 1)

    agent = Agent(
        needs=Windows(config.window, config.batch_size),
        init=init,
        actor=lambda state: state.params["policy"],
        carry=lambda env_ids: (),
        act=act,
        gradient=gradient,
        apply=apply,
        stochastic=True,
    )
    return normalise.wrap(config.normalise, spec, agent)
