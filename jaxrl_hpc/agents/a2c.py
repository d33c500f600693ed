"""Advantage actor-critic, synchronous (Mnih et al. 2016), with optional V-trace (Espeholt et al. 2018).

    loss = -A log pi(a|s) + value_coef (v - V(s))^2 / 2 - entropy_coef H(pi)

A and v are GAE or V-trace estimates over the unroll, one update per unroll. V-trace corrects for acting with
older parameters: with asynchronous actors this agent is A3C or IMPALA. `extras` carries the log-probability
under the behaviour policy.
"""

from __future__ import annotations

from typing import Literal, Self

import jax
import jax.numpy as jnp
from pydantic import model_validator

from jaxrl_hpc.agents import normalise
from jaxrl_hpc.agents.actor_critic import ActorCriticConfig, check_standardised, make_core, raw_action
from jaxrl_hpc.ops import advantages, optimise
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, Metrics, PyTree, Unrolls, UpdateInfo


class Config(ActorCriticConfig):
    """A2C's settings."""

    name: Literal["a2c"] = "a2c"
    vtrace: bool = static(True, "correct for the difference between the acting and the current policy")
    rho_bar: float = traced(1.0, "V-trace: upper bound on the importance weight of a step", gt=0)
    c_bar: float = traced(
        1.0, "V-trace: upper bound on the weight with which errors propagate back over a step", gt=0
    )
    normalise_advantage: bool = static(False, "standardise advantages over the unroll")
    learning_rate: float = traced(1e-3, "Adam step size", gt=0)

    @model_validator(mode="after")
    def _bars_in_order(self) -> Self:
        if self.vtrace and self.c_bar > self.rho_bar:
            raise ValueError(
                f"c_bar is {self.c_bar:g}: V-trace needs it to be no larger than rho_bar = {self.rho_bar:g}"
            )
        return self


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    del num_envs
    core = make_core(config, spec)
    distribution = core.distribution

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        data, hypers = batch.data, state.hypers

        def loss(params: PyTree) -> tuple[Array, Metrics]:
            view = core.view(params, data.obs, core.memory(data))
            log_prob = distribution.log_prob(view.outputs, raw_action(data))
            log_rho = jax.lax.stop_gradient(log_prob) - data.extras["log_prob"]
            value = jax.lax.stop_gradient(view.value)
            known = (data.reward, data.discount, data.last, value, core.next_value(params, data, view))
            decay = (hypers["gamma"], hypers["gae_lambda"])
            if config.vtrace:
                goal = advantages.vtrace(*known, log_rho, *decay, hypers["rho_bar"], hypers["c_bar"])
            else:
                goal = advantages.gae(*known, *decay)
            advantage = goal.advantage
            if config.normalise_advantage:
                check_standardised(advantage.size, "workflow.unroll_length: an unroll")
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = -jnp.mean(advantage * log_prob)
            value_loss = 0.5 * jnp.mean(jnp.square(goal.value - view.value))
            entropy = distribution.entropy(view.outputs, key).mean()
            total = policy_loss + hypers["value_coef"] * value_loss - hypers["entropy_coef"] * entropy
            return total, {
                "loss": total,
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": entropy,
                "value": value.mean(),
                "rho": jnp.exp(log_rho).mean(),
                "rho_clipped": jnp.mean(jnp.exp(log_rho) > hypers["rho_bar"]),
            }

        grads, metrics = jax.grad(loss, has_aux=True)(state.params)
        return grads, UpdateInfo(metrics, jnp.zeros((0,)))

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        params, opt = optimise.update(config, state.hypers, state.progress, state.params, state.opt, grads)
        return state._replace(params=params, opt=opt, step=state.step + 1)

    agent = Agent(
        needs=Unrolls(),
        init=core.init,
        actor=core.actor,
        carry=core.carry,
        act=core.act,
        gradient=gradient,
        apply=apply,
        stochastic=True,
    )
    return normalise.wrap(config.normalise, spec, agent)
