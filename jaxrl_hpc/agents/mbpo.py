"""Model-based policy optimisation (Janner et al. 2019): SAC or TD3 that also learns from short rollouts in a
learned ensemble.

Each batch of real steps is followed by `planning_updates` simulated batches, which bounds the ratio of
simulated to real data. They come from rollouts of `rollout_length` steps that branch off from the batch's
real states and follow the agent's exploring policy; a random member of the ensemble predicts each step.

A simulated step is used only where the ensemble agrees on it (as in AE-DYNA, Hirlaender & Bruchon 2020),

    sqrt( mean over outputs of the members' variance ) <= max_disagreement

in units of the standard deviation of the targets; where it does not, and where the model ends the episode,
the rollout restarts from its real state. Simulated data is ignored until the model's error on new steps
(model_error) is below model_tolerance. The model learns from real batches only. For vector observations.
"""

from __future__ import annotations

import math
from typing import Literal, Self

import jax
import jax.numpy as jnp
from pydantic import model_validator

from jaxrl_hpc.agents import sac, world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.world_model import WorldModel
from jaxrl_hpc.ops import noise, optimise
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
)


class PlanningConfig(world.WorldModelConfig):
    """Settings that MBPO adds to an agent for continuous actions."""

    ensemble: int = static(5, "world models", ge=1, le=16)
    rollout_length: int = static(2, "length of a simulated rollout from a real state", ge=1, le=64)
    max_disagreement: float = traced(
        0.3, "simulated steps on which the ensemble disagrees more than this are ignored", gt=0
    )
    n_step: int = static(
        1, "length of the return; only 1, so that model errors do not accumulate", ge=1, le=1
    )

    @model_validator(mode="after")
    def _whole_rollouts(self) -> Self:
        if self.planning_updates % self.rollout_length:
            raise ValueError(
                f"planning_updates is {self.planning_updates}: it must be a multiple of rollout_length = "
                f"{self.rollout_length}"
            )
        return self


class Config(PlanningConfig, sac.Config):
    """MBPO with SAC."""

    name: Literal["mbpo"] = "mbpo"  # type: ignore[assignment]


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    check_spaces(config.name, spec)
    return wrap(config, config, spec, sac.make(config, spec, num_envs=num_envs))


def check_spaces(name: str, spec: EnvSpec) -> None:
    if spec.discrete:
        raise UserError(
            f"agent {name!r} needs continuous actions; env {spec.name!r} has discrete ones: use dyna_q"
        )
    if len(spec.obs_shape) > 1:
        raise UserError(
            f"agent {name!r} needs vector observations; env {spec.name!r} has {spec.obs_shape}: use sac"
        )


def wrap(config: PlanningConfig, optimiser: optimise.OptimiserConfig, spec: EnvSpec, agent: Agent) -> Agent:
    """The agent with a world model. Its own parts of the learner's state stay: `params` and `opt` beside the
    model's, `aux` under "agent"."""
    scale = noise.action_scale(spec)
    state_size = math.prod(spec.obs_shape)
    model = WorldModel(config.ensemble, config.model_hidden, state_size)
    updates_per_batch = config.planning_updates + 1
    branches = config.planning_updates // config.rollout_length

    def without_model(parts: PyTree) -> PyTree:
        return {name: part for name, part in parts.items() if name != "model"}

    def own(state: LearnerState) -> LearnerState:
        """The state in the form of the wrapped agent."""
        return state._replace(
            params=without_model(state.params), opt=without_model(state.opt), aux=state.aux["agent"]
        )

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        agent_key, model_key = jax.random.split(key)
        state = agent.init(agent_key, hypers)
        action = jnp.zeros((1, math.prod(spec.action_shape)))
        params = model.init(model_key, jnp.zeros((1, state_size)), action)
        return state._replace(
            params=state.params | {"model": params},
            opt=state.opt | {"model": optimise.init(optimiser, hypers, params)},
            aux={"agent": state.aux, "world": world.unknown(state_size)},
        )

    def trusted(state: LearnerState) -> Array:
        """Whether simulated steps count; the same for all batches of a plan."""
        good: Array = state.aux["world"].error < state.hypers["model_tolerance"]
        return good

    def rollouts(state: LearnerState, start: Array, key: Array) -> tuple[Transition, Array]:
        """Steps [H, R] from real states [R, D], and which of them count [H, R]."""
        known, actor = state.aux["world"], agent.actor(own(state))
        carry = agent.carry(jnp.zeros(start.shape[0], jnp.int32))

        def one(obs: Array, step_key: Array) -> tuple[Array, tuple[Transition, Array]]:
            act_key, world_key = jax.random.split(step_key)
            keys = jax.random.split(act_key, obs.shape[0])
            action, _, _ = agent.act(actor, carry, obs, keys, greedy=False)
            found = world.predict(model, state.params["model"], known, obs, scale.to_unit(action))
            next_obs, reward, discount = world.simulate(known, found, obs, world_key)
            last = discount < 0.5
            agreed = world.disagreement(found) <= state.hypers["max_disagreement"]
            step = Transition(obs, action, reward, discount, last, next_obs, ())
            goes_on = (agreed & ~last)[:, None]
            return jnp.where(goes_on, next_obs, start), (step, agreed)

        _, (steps, agreed) = jax.lax.scan(one, start, jax.random.split(key, config.rollout_length))
        return steps, agreed

    def minibatches(state: LearnerState, batch: Batch, key: Array) -> Batch:
        """Simulated batches, then the real one, whose priorities the replay gets."""
        rollout_key, shuffle_key = jax.random.split(key)
        real = batch.data
        count = real.reward.shape[1]  # batch_size, or a learner's share of it
        steps, agreed = rollouts(state, jnp.tile(real.obs[0], (branches, 1)), rollout_key)
        order = jax.random.permutation(shuffle_key, config.planning_updates * count)

        def divided(x: Array) -> Array:  # [H, R, …] -> [M, 1, N, …], steps of all depths in each batch
            flat = x.reshape(-1, *x.shape[2:])[order]
            return flat.reshape(config.planning_updates, 1, count, *flat.shape[1:])

        simulated = jax.tree.map(divided, steps._replace(extras=()))
        # extras of real steps do not apply to simulated ones, but must be present
        extras = jax.tree.map(lambda x: jnp.repeat(x[None], config.planning_updates, axis=0), real.extras)
        simulated = simulated._replace(extras=extras)
        data = jax.tree.map(lambda s, r: jnp.concatenate([s, r[None].astype(s.dtype)]), simulated, real)
        weight = (divided(agreed)[:, 0] & trusted(state)).astype(jnp.float32)
        index = jnp.broadcast_to(batch.index, (updates_per_batch, count))
        return Batch(data, jnp.concatenate([weight, batch.weight[None]]), index)

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        sent, info = agent.gradient(own(state), batch, key)
        known = state.aux["world"]
        real = (state.step + 1) % updates_per_batch == 0  # the last of a plan
        steps = jax.tree.map(lambda x: x[0], batch.data._replace(extras=()))

        def model_loss(params: PyTree) -> Array:
            found = world.predict(model, params, known, steps.obs, scale.to_unit(steps.action))
            square, entropy = world.errors(known, found, steps.obs, steps)
            return (square + entropy).mean(axis=1).sum()  # each member as if it were alone

        model_grads = jax.lax.cond(  # only real steps teach the model
            real,
            jax.grad(model_loss),
            lambda params: jax.tree.map(jnp.zeros_like, params),
            state.params["model"],
        )
        used = jnp.where(real, 0.0, (batch.weight > 0).mean())
        metrics = info.metrics | {
            "model_error": known.error,
            "model_wrong_ends": known.mistaken,
            # of the simulated steps; the mean over a plan has one real batch among its updates
            "simulated_used": used * (updates_per_batch / config.planning_updates),
        }
        flags = {"real": real.astype(jnp.float32), "counts": (real | trusted(state)).astype(jnp.float32)}
        params = sent["params"] | {"model": model_grads}
        return sent | {"params": params} | flags, info._replace(metrics=metrics)

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        h, before = state.hypers, own(state)
        inside = {n: part for n, part in grads.items() if n not in ("real", "counts")}
        after = agent.apply(before, inside | {"params": without_model(grads["params"])}, statistics)
        learned = optimise.update(
            optimiser,
            {**h, "learning_rate": h["model_learning_rate"]},
            state.progress,
            state.params["model"],
            state.opt["model"],
            grads["params"]["model"],
        )

        def where(flag: Array, new: PyTree, old: PyTree) -> PyTree:
            # a zero gradient is not enough: Adam's momentum and soft target updates would continue
            return jax.tree.map(lambda n, o: jnp.where(flag > 0.5, n, o), new, old)

        after = where(grads["counts"], after._replace(step=before.step), before)
        params, opt = where(grads["real"], learned, (state.params["model"], state.opt["model"]))
        new: LearnerState = after._replace(
            params=after.params | {"model": params},
            opt=after.opt | {"model": opt},
            aux=state.aux | {"agent": after.aux},
            step=state.step + 1,
        )
        return new

    def statistics(state: LearnerState, steps: Transition) -> PyTree:
        inside: PyTree = () if agent.statistics is None else agent.statistics(own(state), steps)
        new = world.fresh(model, state.params["model"], state.aux["world"], steps, scale.to_unit)
        return {"agent": inside, "world": new}

    def update_statistics(state: LearnerState, new: PyTree) -> LearnerState:
        aux = state.aux | {"world": world.learn(state.aux["world"], new["world"])}
        if agent.update_statistics is not None:
            aux["agent"] = agent.update_statistics(own(state), new["agent"]).aux
        return state._replace(aux=aux)

    return agent._replace(
        init=init,
        actor=lambda state: agent.actor(own(state)),
        gradient=gradient,
        apply=apply,
        minibatches=minibatches,
        statistics=statistics,
        update_statistics=update_statistics,
    )
