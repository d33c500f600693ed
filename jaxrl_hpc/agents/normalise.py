"""Observation and reward normalisation around any agent.

Raw data is stored. Running statistics live in `LearnerState.aux`; `moments` gives their increments as sums
that workflows add over shards. Observations are standardised per element; rewards are divided by the standard
deviation of the discounted return so far, R_t = gamma R_{t-1} + r_t, restarted with each episode (Engstrom et
al. 2020). R is part of the agent's carry, so it restarts with its environment copy; `moments` reads it from
the extras. Actors get the statistics with the parameters, so that evaluation normalises as training does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_hpc.ops import running_stats
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, PyTree, Transition, UpdateInfo


class NormaliseConfig(Schema):
    """Normalisation of observations and rewards."""

    observation: bool = static(False, "standardise observations by their running mean and variance")
    reward: bool = static(False, "divide rewards by the running standard deviation of the discounted return")
    observation_clip: float = static(10.0, "standardised observations are clipped to ± this", gt=0)
    reward_clip: float = static(10.0, "scaled rewards are clipped to ± this", gt=0)


def wrap(config: NormaliseConfig, spec: EnvSpec, agent: Agent) -> Agent:
    """Wrap an agent to normalise its data. Scaling rewards needs a traced hyperparameter `gamma`."""
    if not (config.observation or config.reward):
        return agent
    assert agent.after_step is None, "one wrapper follows returns, not two"

    def inner(state: LearnerState) -> LearnerState:
        return state._replace(aux=state.aux["agent"])

    def scales(aux: PyTree) -> dict[str, Array]:
        found = {}
        if config.observation:
            statistics = aux["observation"]
            found["shift"] = statistics.mean
            found["scale"] = jax.lax.rsqrt(running_stats.variance(statistics) + 1e-8)
            if spec.action_mask:  # stays as it is
                found["shift"] = found["shift"].at[-spec.choices :].set(0.0)
                found["scale"] = found["scale"].at[-spec.choices :].set(1.0)
        if config.reward:
            found["reward"] = jax.lax.rsqrt(running_stats.variance(aux["return"]) + 1e-8)
        return found

    def see(by: dict[str, Array], obs: Array) -> Array:
        if not config.observation:
            return obs
        standard = (obs.astype(jnp.float32) - by["shift"]) * by["scale"]
        return jnp.clip(standard, -config.observation_clip, config.observation_clip)

    def prepare(by: dict[str, Array], batch: Batch) -> Batch:
        data = batch.data._replace(obs=see(by, batch.data.obs), next_obs=see(by, batch.data.next_obs))
        if config.reward:
            scaled = jnp.clip(data.reward * by["reward"], -config.reward_clip, config.reward_clip)
            data = data._replace(reward=scaled, extras=data.extras["agent"])
        return batch._replace(data=data)

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        state = agent.init(key, hypers)
        aux = {"agent": state.aux}
        if config.observation:
            aux["observation"] = running_stats.empty(spec.obs_shape)
        if config.reward:
            aux["return"] = running_stats.empty(())
        return state._replace(aux=aux)

    def actor(state: LearnerState) -> PyTree:
        return {"agent": agent.actor(inner(state)), "by": scales(state.aux), "gamma": state.hypers["gamma"]}

    def carry(env_ids: Array) -> PyTree:
        own = agent.carry(env_ids)
        return {"agent": own, "return": jnp.zeros(env_ids.shape[0])} if config.reward else own

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        own = carry["agent"] if config.reward else carry
        seen = see(actor_params["by"], obs)
        action, own, extras = agent.act(actor_params["agent"], own, seen, key, greedy)
        if not config.reward:
            return action, own, extras
        so_far = carry["return"]
        return action, {"agent": own, "return": so_far}, {"agent": extras, "return": so_far}

    def after_step(actor_params: PyTree, carry: PyTree, step: Transition) -> tuple[PyTree, PyTree]:
        so_far = actor_params["gamma"] * carry["return"] + step.reward
        return carry | {"return": so_far}, step.extras | {"return": so_far}

    def minibatches(state: LearnerState, batch: Batch, key: Array) -> Batch:
        assert agent.minibatches is not None
        return agent.minibatches(inner(state), prepare(scales(state.aux), batch), key)

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        if agent.minibatches is None:  # otherwise it has been prepared with them
            batch = prepare(scales(state.aux), batch)
        return agent.gradient(inner(state), batch, key)

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        new = agent.apply(inner(state), grads, statistics)
        return new._replace(aux=state.aux | {"agent": new.aux})

    def priority(actor_params: PyTree, batch: Batch) -> Array:
        assert agent.priority is not None
        return agent.priority(actor_params["agent"], prepare(actor_params["by"], batch))

    def statistics(state: LearnerState, trajectory: Transition) -> PyTree:
        new = {}
        if config.observation:
            new["observation"] = running_stats.sums(state.aux["observation"], trajectory.obs)
        if config.reward:
            new["return"] = running_stats.sums(state.aux["return"], trajectory.extras["return"])
        own: PyTree = ()
        if agent.statistics is not None:
            seen = prepare(scales(state.aux), Batch(trajectory, (), ())).data  # type: ignore[arg-type]
            own = agent.statistics(inner(state), seen)
        return {"agent": own, "statistics": new}

    def update_statistics(state: LearnerState, new: PyTree) -> LearnerState:
        aux = {n: running_stats.merge(state.aux[n], sums) for n, sums in new["statistics"].items()}
        if agent.update_statistics is not None:
            aux["agent"] = agent.update_statistics(inner(state), new["agent"]).aux
        return state._replace(aux=state.aux | aux)

    return agent._replace(
        init=init,
        actor=actor,
        carry=carry,
        act=act,
        gradient=gradient,
        apply=apply,
        minibatches=minibatches if agent.minibatches is not None else None,
        priority=priority if agent.priority is not None else None,
        statistics=statistics,
        update_statistics=update_statistics,
        after_step=after_step if config.reward else None,
    )
