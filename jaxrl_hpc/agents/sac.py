"""Soft actor-critic (Haarnoja et al. 2018): a stochastic policy with an entropy bonus.

    a' ~ pi(.|s_k),   y = R_k + gamma^k d (min_{i in M} Q_i_target(s_k, a') - alpha log pi(a'|s_k))
    critics      w sum_i (y - Q_i(s, a))^2 / 2
    policy       alpha log pi(a|s) - min_i Q_i(s, a),  a = tanh(m(s) + sigma(s) n)
    temperature  log alpha (H - target),  H = -log pi(a|s): alpha rises while the entropy is below its target

k is n, or less where the episode ends inside the window; d is 0 where it terminated; entropy counts at step k
only. Networks see actions in [-1, 1], and log-probabilities are of these. All gradients are taken at the same
parameters, so that one reduction over devices and ranks covers them. The importance weights w of a
prioritised replay correct the critics only, as in TD3. Successors of SAC are combinations of its options:

    REDQ (Chen et al. 2021)     critics: 10, target_subset: 2, policy_value: mean, policy_delay: G,
                                and G updates per step (workflow.updates_per_iteration)
    DroQ (Hiraoka et al. 2022)  dropout: 0.01, critic_network.layer_norm, policy_value: mean, G as above
    CrossQ (Bhatt et al. 2024)  batch_norm: no target network; one pass over (s, a) and (s_k, a') together,
                                each normalised by the moments of both

`aux` holds the running moments of batch norm, which the policy's loss uses. Where a batch is divided over
shards, each shard normalises by the moments of its part, and the running moments track their mean.
"""

from __future__ import annotations

import math
from typing import Literal, Self

import jax
import jax.numpy as jnp
from pydantic import model_validator

from jaxrl_hpc.agents import normalise
from jaxrl_hpc.agents.action_space import check_continuous
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.agents.settings import WindowAgentConfig
from jaxrl_hpc.networks.critic import STATISTICS, Critics
from jaxrl_hpc.networks.policy import GaussianActor
from jaxrl_hpc.networks.torso import NetworkConfig, as_features, make_torso
from jaxrl_hpc.ops import noise, optimise
from jaxrl_hpc.ops.distributions import squashed_draw
from jaxrl_hpc.ops.returns import fold_window, take_step
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, PyTree, UpdateInfo, Windows


class Config(WindowAgentConfig):
    """SAC's settings."""

    name: Literal["sac"] = "sac"
    network: NetworkConfig = NetworkConfig(hidden=(256, 256))
    critic_network: NetworkConfig | None = static(None, "network of the critics; null: the same as `network`")
    learning_rate: float = traced(1e-3, "Adam step size of the critics", gt=0)
    actor_learning_rate: float = traced(3e-4, "Adam step size of the policy", gt=0)
    max_grad_norm: float = traced(0.0, "gradients are scaled down to this global norm; 0: never", ge=0)
    learn_temperature: bool = static(True, "adjust the temperature to hold the entropy at its target")
    temperature: float = traced(1.0, "weight of the entropy; its initial value if it is learned", gt=0)
    temperature_learning_rate: float = traced(3e-4, "Adam step size of the temperature", gt=0)
    target_entropy: float = traced(
        -1.0, "entropy target per action dimension, in half ranges; 0.69: uniform", le=0.69
    )
    log_std: float = static(0.0, "initial log standard deviation", ge=-5, le=2)
    critics: int = static(2, "independent critics", ge=1, le=64)
    target_subset: int = static(
        0, "targets use the minimum over this many randomly chosen critics (REDQ); 0: all", ge=0
    )
    policy_value: Literal["min", "mean"] = static(
        "min", "the policy maximises this statistic over the critics"
    )
    policy_delay: int = static(1, "critic updates per update of policy and temperature", ge=1)
    dropout: float = static(0.0, "dropout rate of the critics' hidden units (DroQ)", ge=0, lt=1)
    batch_norm: bool = static(False, "batch norm in the critics and no target networks (CrossQ)")
    n_step: int = static(1, "length of the return before bootstrapping", ge=1, le=64)
    batch_size: int = static(256, "transitions per update", per_shard="exact", ge=1)
    gamma: float = traced(0.99, "discount", ge=0, le=1)
    target_rate: float = traced(
        0.005, "soft updates: fraction of the way to the online networks per update", gt=0, le=1
    )
    noise_memory: float = traced(
        0.0, "correlation of exploration from step to step; 0: independent draws", ge=0, lt=1
    )
    random_fraction: float = traced(
        0.0, "fraction of the run, from its start, with uniformly random actions", ge=0, le=1
    )
    normalise: NormaliseConfig = NormaliseConfig()

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        return (self.critic_network or self.network).hidden

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.target_subset > self.critics:
            raise ValueError(f"target_subset is {self.target_subset}: there are {self.critics} critics")
        if self.batch_norm and (self.dropout or (self.critic_network or self.network).layer_norm):
            raise ValueError("batch_norm: leave out dropout and the critics' layer_norm")
        return self


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    del num_envs
    check_continuous(spec, "sac")
    scale = noise.action_scale(spec)
    size = math.prod(spec.action_shape)
    policy_net = GaussianActor(make_torso(config.network, spec), size, config.log_std)
    critic_config = config.critic_network or config.network
    critic_net = Critics(critic_config, spec, config.critics, config.dropout, config.batch_norm)

    def policy(params: PyTree, obs: Array) -> Array:  # [N, …] -> [N, 2 A]
        return policy_net.apply(params, as_features(obs, spec, config.network.torso))  # type: ignore[return-value]

    def draw(params: PyTree, obs: Array, key: Array) -> tuple[Array, Array]:  # -> [N, A] in [-1, 1], [N]
        outputs = policy(params, obs)
        return squashed_draw(outputs, jax.random.normal(key, (outputs.shape[0], size)))

    def critics(params: PyTree, moments: PyTree, obs: Array, unit: Array, key: Array) -> Array:
        """[critics, N], batch norm by its running moments."""
        variables = params | ({STATISTICS: moments} if config.batch_norm else {})
        rngs = {"dropout": key} if config.dropout else None
        features = as_features(obs, spec, critic_config.torso)
        return critic_net.apply(variables, features, unit, rngs=rngs)  # type: ignore[return-value]

    def critics_by_batch(params: PyTree, moments: PyTree, obs: Array, unit: Array) -> tuple[Array, PyTree]:
        """[critics, N] by the moments of this batch, and the running moments after it."""
        features = as_features(obs, spec, critic_config.torso)
        variables = params | {STATISTICS: moments}
        values, new = critic_net.apply(variables, features, unit, train=True, mutable=[STATISTICS])
        return values, new[STATISTICS]

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        policy_key, critic_key = jax.random.split(key)
        obs = jnp.zeros((1, *spec.obs_shape), spec.obs_dtype)
        variables = critic_net.init(
            critic_key, as_features(obs, spec, critic_config.torso), jnp.zeros((1, size))
        )
        params: dict[str, PyTree] = {
            "policy": policy_net.init(policy_key, as_features(obs, spec, config.network.torso)),
            "critic": {"params": variables["params"]},
        }
        if config.learn_temperature:
            params["temperature"] = jnp.log(hypers["temperature"])
        # a buffer of its own: both are donated
        target = () if config.batch_norm else jax.tree.map(jnp.copy, params["critic"])
        opt = {name: optimise.init(config, hypers, part) for name, part in params.items()}
        moments = variables[STATISTICS] if config.batch_norm else ()
        return LearnerState(params, target, opt, hypers, moments, jnp.int32(0), jnp.float32(0))

    def actor(state: LearnerState) -> PyTree:
        h = state.hypers
        return {
            "params": state.params["policy"],
            "memory": h["noise_memory"],
            "random": state.progress < h["random_fraction"],
        }

    def carry(env_ids: Array) -> PyTree:
        copies = env_ids.shape[0]
        return {"noise": jnp.zeros((copies, size)), "begun": jnp.zeros(copies)}

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        outputs = policy(actor_params["params"], obs)
        if greedy:
            return scale.to_env(jnp.tanh(outputs[:, :size])), carry, ()
        split = jax.vmap(jax.random.split)(key)
        # of unit variance from the first step on: each action alone is distributed as the policy says
        memory = (actor_params["memory"] * carry["begun"])[:, None]
        normal = memory * carry["noise"] + jnp.sqrt(1.0 - memory**2) * noise.gaussian(split[:, 0], size)
        unit, _ = squashed_draw(outputs, normal)
        unit = jnp.where(actor_params["random"], noise.uniform(split[:, 1], size), unit)
        return scale.to_env(unit), {"noise": normal, "begun": jnp.ones_like(carry["begun"])}, ()

    def temperature(state: LearnerState) -> Array:
        if config.learn_temperature:
            return jnp.exp(state.params["temperature"])
        return state.hypers["temperature"]

    def smallest(values: Array, key: Array) -> Array:  # [critics, N] -> [N]
        if 0 < config.target_subset < config.critics:
            values = values[jax.random.permutation(key, config.critics)[: config.target_subset]]
        return values.min(axis=0)

    def due(step: Array) -> Array:
        return (step + 1) % config.policy_delay == 0

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        data, h, alpha = batch.data, state.hypers, temperature(state)
        next_key, subset_key, target_key, value_key, policy_key, judge_key = jax.random.split(key, 6)
        folded = fold_window(data.reward, data.discount, data.last, h["gamma"])
        obs = jax.tree.map(lambda x: x[0], data.obs)
        unit = scale.to_unit(data.action[0])
        next_obs = take_step(data.next_obs, folded.final)
        next_unit, next_log_prob = draw(state.params["policy"], next_obs, next_key)

        def goal(next_values: Array) -> Array:  # [critics, N] -> [N]
            soft = smallest(next_values, subset_key) - alpha * next_log_prob
            return jax.lax.stop_gradient(folded.reward + folded.discount * soft)

        def values_and_goal(params: PyTree) -> tuple[Array, Array, PyTree]:
            if config.batch_norm:
                both_obs, both_unit = jnp.concatenate([obs, next_obs]), jnp.concatenate([unit, next_unit])
                both, moments = critics_by_batch(params, state.aux, both_obs, both_unit)
                values, next_values = jnp.split(both, 2, axis=1)
                return values, goal(next_values), moments
            wanted = goal(critics(state.target, (), next_obs, next_unit, target_key))
            return critics(params, (), obs, unit, value_key), wanted, ()

        def critic_loss(params: PyTree) -> tuple[Array, tuple[Array, Array, PyTree]]:
            values, wanted, moments = values_and_goal(params)
            error = wanted - values
            loss = jnp.mean(batch.weight * 0.5 * jnp.square(error).sum(axis=0))
            return loss, (error, values, moments)

        def policy_loss(params: PyTree) -> tuple[Array, Array]:
            drawn, log_prob = draw(params, obs, policy_key)
            values = critics(state.params["critic"], state.aux, obs, drawn, judge_key)
            value = values.min(axis=0) if config.policy_value == "min" else values.mean(axis=0)
            return jnp.mean(alpha * log_prob - value), -log_prob.mean()

        def policy_gradient(params: PyTree) -> PyTree:
            grads, entropy = jax.grad(policy_loss, has_aux=True)(params["policy"])
            found = {"policy": grads}
            if config.learn_temperature:
                found["temperature"] = entropy - size * h["target_entropy"]
            return found

        (loss, (error, values, moments)), critic_grads = jax.value_and_grad(critic_loss, has_aux=True)(
            state.params["critic"]
        )
        others = {name: part for name, part in state.params.items() if name != "critic"}
        now = due(state.step)
        if config.policy_delay == 1:
            grads = policy_gradient(others)
        else:  # zero, and not computed, in updates without a policy step
            grads = jax.lax.cond(
                now, policy_gradient, lambda params: jax.tree.map(jnp.zeros_like, params), others
            )
        distance = jnp.abs(error).mean(axis=0)
        metrics = {
            "loss": loss,
            "q_value": values[0].mean(),
            "td_error": distance.mean(),
            "entropy": -next_log_prob.mean(),
            "temperature": alpha,
        }
        statistics = {"number": jnp.float32(1), "moments": moments} if config.batch_norm else ()
        # sent with the gradients: they may be applied at a later step
        sent = {"params": grads | {"critic": critic_grads}, "due": now.astype(jnp.float32)}
        return sent, UpdateInfo(metrics, distance, statistics)

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        h = state.hypers
        rates = {
            "critic": h["learning_rate"],
            "policy": h["actor_learning_rate"],
            "temperature": h["temperature_learning_rate"],
        }
        params, opt = {}, {}
        for name, part in state.params.items():
            hypers = {**h, "learning_rate": rates[name]}
            params[name], opt[name] = optimise.update(
                config, hypers, state.progress, part, state.opt[name], grads["params"][name]
            )
            if name != "critic" and config.policy_delay > 1:
                now = grads["due"] > 0.5  # a mean of equal values
                params[name], opt[name] = jax.tree.map(
                    lambda new, old, now=now: jnp.where(now, new, old),
                    (params[name], opt[name]),
                    (part, state.opt[name]),
                )
        target, aux = state.target, state.aux
        if config.batch_norm:
            aux = jax.tree.map(lambda total: total / statistics["number"], statistics["moments"])
        else:
            target = jax.tree.map(lambda t, p: t + h["target_rate"] * (p - t), target, params["critic"])
        return state._replace(params=params, target=target, opt=opt, aux=aux, step=state.step + 1)

    agent = Agent(
        needs=Windows(config.window, config.batch_size),
        init=init,
        actor=actor,
        carry=carry,
        act=act,
        gradient=gradient,
        apply=apply,
        stochastic=True,
    )
    return normalise.wrap(config.normalise, spec, agent)
