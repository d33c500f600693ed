"""TD3 (Fujimoto et al. 2018): deterministic policy gradient with twin critics, a delayed policy and
smoothed target actions. With these three off it is DDPG (Lillicrap et al. 2016; see ddpg.py).

    a' = clip(pi_target(s_k) + clip(noise, -c, c)),   y = R_k + gamma^k d min_i Q_i_target(s_k, a')
    critics: w sum_i (y - Q_i(s, a))^2 / 2            policy, every `policy_delay` updates: -Q_1(s, pi(s))

With `behaviour_cloning` it is TD3+BC (Fujimoto & Gu 2021), for recorded actions: the policy stays near them,
by a loss that normalises values by their magnitude,

    policy: -lambda Q_1(s, pi(s)) + mean (pi(s) - a)^2,   lambda = bc_alpha / mean |Q_1(s, pi(s))|

and bc_alpha = 0 is behaviour cloning alone.

k is n, or less where the episode ends inside the window; d is 0 where it terminated. Networks see
actions in [-1, 1]; the environment gets them stretched to its true bounds. Both gradients are taken
at the same parameters, so that one reduction over devices and ranks serves both. The importance weights w
of a prioritised replay correct the critics' regression only; the policy's loss has none, as in D4PG
(Barth-Maron et al. 2018, algorithm 1).
"""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp

from jaxrl_hpc.agents import normalise
from jaxrl_hpc.agents.action_space import check_continuous
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.agents.settings import WindowAgentConfig
from jaxrl_hpc.networks.critic import Critics
from jaxrl_hpc.networks.policy import DeterministicActor
from jaxrl_hpc.networks.torso import NetworkConfig, as_features, make_torso
from jaxrl_hpc.ops import noise, optimise
from jaxrl_hpc.ops.returns import fold_window, take_step
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, PyTree, UpdateInfo, Windows


class TD3Options(WindowAgentConfig):
    """Settings shared by TD3 and DDPG."""

    network: NetworkConfig = NetworkConfig(hidden=(256, 256))
    learning_rate: float = traced(1e-3, "Adam step size of the critics", gt=0)
    actor_learning_rate: float = traced(1e-3, "Adam step size of the policy", gt=0)
    max_grad_norm: float = traced(0.0, "gradients are scaled down to this global norm; 0: never", ge=0)
    twin: bool = static(True, "two critics; targets use the smaller value")
    policy_delay: int = static(2, "critic updates per update of the policy and the targets", ge=1)
    smoothing: float = traced(0.2, "noise on target actions, in half ranges of the action", ge=0)
    smoothing_clip: float = traced(0.5, "the noise on target actions is clipped to this", ge=0)
    n_step: int = static(1, "length of the return before bootstrapping", ge=1, le=64)
    batch_size: int = static(128, "transitions per update", per_shard="exact", ge=1)
    gamma: float = traced(0.99, "discount", ge=0, le=1)
    target_rate: float = traced(
        0.005, "soft updates: fraction of the way to the online networks per update", gt=0, le=1
    )
    noise: Literal["gaussian", "ou"] = static("gaussian", "exploration: independent, or correlated over time")
    noise_scale: float = traced(
        0.1, "standard deviation of exploration noise per step, in half ranges of the action", ge=0
    )
    noise_theta: float = traced(0.15, "ou: rate at which the noise decays to zero per step", gt=0, le=1)
    random_fraction: float = traced(
        0.0, "fraction of the run, from its start, with uniformly random actions", ge=0, le=1
    )
    behaviour_cloning: bool = static(False, "keep the policy near the recorded actions (TD3+BC)")
    bc_alpha: float = traced(2.5, "weight of the value term against imitation; 0: imitation only", ge=0)
    bc_fraction: float = traced(
        1.0, "fraction of the run during which the imitation term is used", ge=0, le=1
    )
    normalise: NormaliseConfig = NormaliseConfig()


class Config(TD3Options):
    """TD3's settings."""

    name: Literal["td3"] = "td3"


def make(config: TD3Options, spec: EnvSpec, *, num_envs: int) -> Agent:
    del num_envs
    check_continuous(spec, "td3")
    scale = noise.action_scale(spec)
    action_size = math.prod(spec.action_shape)
    policy_net = DeterministicActor(make_torso(config.network, spec), action_size)
    critic_net = Critics(config.network, spec, 2 if config.twin else 1)
    first_critic = Critics(config.network, spec, 1)  # the policy follows this one alone

    def features(obs: Array) -> Array:
        return as_features(obs, spec, config.network.torso)

    def policy(params: PyTree, obs: Array) -> Array:  # [N, …] -> [N, A] in [-1, 1]
        return policy_net.apply(params, features(obs))  # type: ignore[return-value]

    def critics(params: PyTree, obs: Array, unit: Array) -> Array:  # -> [critics, N]
        return critic_net.apply(params, features(obs), unit)  # type: ignore[return-value]

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        policy_key, critic_key = jax.random.split(key)
        obs = features(jnp.zeros((1, *spec.obs_shape), spec.obs_dtype))
        params = {
            "policy": policy_net.init(policy_key, obs),
            "critic": critic_net.init(critic_key, obs, jnp.zeros((1, action_size))),
        }
        target = jax.tree.map(jnp.copy, params)  # a buffer of its own: both are donated
        opt = {name: optimise.init(config, hypers, part) for name, part in params.items()}
        return LearnerState(params, target, opt, hypers, (), jnp.int32(0), jnp.float32(0))

    def actor(state: LearnerState) -> PyTree:
        h = state.hypers
        return {
            "params": state.params["policy"],
            "noise": (h["noise_theta"], h["noise_scale"]),
            "random": state.progress < h["random_fraction"],
        }

    def carry(env_ids: Array) -> PyTree:
        return {"noise": jnp.zeros((env_ids.shape[0], action_size))} if config.noise == "ou" else ()

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        unit = policy(actor_params["params"], obs)
        if greedy:
            return scale.to_env(unit), carry, ()
        split = jax.vmap(jax.random.split)(key)
        theta, size = actor_params["noise"]
        disturbance = noise.gaussian(split[:, 0], action_size)
        if config.noise == "ou":
            disturbance = noise.ornstein_uhlenbeck(carry["noise"], disturbance, theta, size)
            carry = {"noise": disturbance}
        else:
            disturbance = size * disturbance
        noisy = jnp.clip(unit + disturbance, -1.0, 1.0)
        unit = jnp.where(actor_params["random"], noise.uniform(split[:, 1], action_size), noisy)
        return scale.to_env(unit), carry, ()

    def goal(state: LearnerState, batch: Batch, key: Array) -> Array:  # [N]
        data, h = batch.data, state.hypers
        folded = fold_window(data.reward, data.discount, data.last, h["gamma"])
        next_obs = take_step(data.next_obs, folded.final)
        unit = policy(state.target["policy"], next_obs)
        disturbance = h["smoothing"] * jax.random.normal(key, unit.shape)
        unit = unit + jnp.clip(disturbance, -h["smoothing_clip"], h["smoothing_clip"])
        next_value = critics(state.target["critic"], next_obs, jnp.clip(unit, -1.0, 1.0)).min(axis=0)
        return folded.reward + folded.discount * next_value

    def policy_due(step: Array) -> Array:
        return (step + 1) % config.policy_delay == 0

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        obs = jax.tree.map(lambda x: x[0], batch.data.obs)
        unit, wanted = scale.to_unit(batch.data.action[0]), goal(state, batch, key)

        def critic_loss(params: PyTree) -> tuple[Array, tuple[Array, Array]]:
            values = critics(params, obs, unit)
            error = wanted - values
            return jnp.mean(batch.weight * 0.5 * jnp.square(error).sum(axis=0)), (error, values)

        def policy_loss(params: PyTree) -> Array:
            chosen = policy(params, obs)
            values: Array = first_critic.apply(state.params["critic"], features(obs), chosen)[0]
            if not config.behaviour_cloning:
                return -values.mean()
            size = jax.lax.stop_gradient(jnp.abs(values).mean()) + 1e-6
            imitates = state.progress <= state.hypers["bc_fraction"]
            distance = jnp.where(imitates, jnp.square(chosen - unit).mean(), 0.0)
            return distance - state.hypers["bc_alpha"] / size * values.mean()

        (loss, (error, values)), critic_grads = jax.value_and_grad(critic_loss, has_aux=True)(
            state.params["critic"]
        )
        policy_params, due = state.params["policy"], policy_due(state.step)
        policy_grads = jax.lax.cond(  # zero, and not computed, in updates without a policy step
            due,
            jax.grad(policy_loss),
            lambda params: jax.tree.map(jnp.zeros_like, params),
            policy_params,
        )
        size = jnp.abs(error).mean(axis=0)
        metrics = {"loss": loss, "q_value": values[0].mean(), "td_error": size.mean()}
        grads = {"critic": critic_grads, "policy": policy_grads}
        # sent with the gradients: they may be applied at a later step
        return {"params": grads, "due": due.astype(jnp.float32)}, UpdateInfo(metrics, size)

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        h = state.hypers
        rates = {"critic": h["learning_rate"], "policy": h["actor_learning_rate"]}
        params, opt = {}, {}
        for name, rate in rates.items():
            hypers = {**h, "learning_rate": rate}
            params[name], opt[name] = optimise.update(
                config, hypers, state.progress, state.params[name], state.opt[name], grads["params"][name]
            )
        due = grads["due"] > 0.5  # a mean of equal values

        def when_due(new: PyTree, old: PyTree) -> PyTree:
            return jax.tree.map(lambda n, o: jnp.where(due, n, o), new, old)

        params["policy"] = when_due(params["policy"], state.params["policy"])
        opt["policy"] = when_due(opt["policy"], state.opt["policy"])
        moved = jax.tree.map(lambda t, p: t + h["target_rate"] * (p - t), state.target, params)
        return state._replace(
            params=params, target=when_due(moved, state.target), opt=opt, step=state.step + 1
        )

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
