"""Deep Dyna-Q (Sutton 1990): double DQN that also learns from a learned world model.

Each batch of real windows is followed by `planning_updates` simulated batches, which bounds the ratio of
simulated to real data. A simulated window starts in a real state with an arbitrary action and continues
greedily for n steps in the model. Prioritised sweeping (Moore & Atkeson 1993) draws its start, out of all
actions in the batch's states, in proportion to |TD error|^sweep_power: backups go where values are most
wrong.

Simulated data is ignored until the model's error on new steps (metric model_error, in units of the variance
of its targets) is below model_tolerance. An ensemble predicts with a random member per step (Chua et al.
2018). For vector observations and discrete actions.
"""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp

from jaxrl_hpc.agents import dqn, normalise, world
from jaxrl_hpc.agents.action_space import one_choice
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.torso import as_features, make_torso
from jaxrl_hpc.networks.world_model import WorldModel
from jaxrl_hpc.ops import optimise
from jaxrl_hpc.ops.losses import huber, select_action
from jaxrl_hpc.ops.returns import fold_window, take_step
from jaxrl_hpc.schema import traced
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


class Config(world.WorldModelConfig, dqn.DQNOptions):
    """Dyna-Q's settings."""

    name: Literal["dyna_q"] = "dyna_q"
    sweep_power: float = traced(
        0.5, "start actions are drawn by |TD error| to this power; 0: uniformly", ge=0
    )
    normalise: NormaliseConfig = NormaliseConfig()


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    num_actions = one_choice(spec, "dyna_q", "td3")
    if len(spec.obs_shape) > 1:
        raise UserError(
            f"agent 'dyna_q' needs vector observations; env {spec.name!r} has {spec.obs_shape}: use dqn"
        )
    state_size = math.prod(spec.obs_shape)
    q_net = config.q_network(make_torso(config.network, spec), num_actions)
    model = WorldModel(config.ensemble, config.model_hidden, state_size)
    updates_per_batch = config.planning_updates + 1

    def code(action: Array) -> Array:  # [N] -> [N, A]
        return jax.nn.one_hot(action, num_actions)

    def q_values(params: PyTree, obs: Array) -> Array:  # [N, D] -> [N, A]
        return q_net.apply(params, as_features(obs, spec, config.network.torso))  # type: ignore[return-value]

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        q_key, model_key = jax.random.split(key)
        obs = jnp.zeros((1, state_size))
        params = {
            "q": q_net.init(q_key, obs),
            "model": model.init(model_key, obs, jnp.zeros((1, num_actions))),
        }
        target = jax.tree.map(jnp.copy, params["q"])  # a buffer of its own: both are donated
        opt = {name: optimise.init(config, hypers, part) for name, part in params.items()}
        known = world.unknown(state_size)
        return LearnerState(params, target, opt, hypers, known, jnp.int32(0), jnp.float32(0))

    def actor(state: LearnerState) -> PyTree:
        return {"params": state.params["q"], "explore": dqn.exploration(state)}

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        values = q_values(actor_params["params"], obs)
        if greedy:
            return jnp.argmax(values, axis=-1).astype(jnp.int32), carry, ()
        return dqn.explore(config, num_envs, actor_params["explore"], carry, values, key), carry, ()

    def td_error(state: LearnerState, params: PyTree, data: Transition) -> tuple[Array, Array]:
        folded = fold_window(data.reward, data.discount, data.last, state.hypers["gamma"])
        next_obs = take_step(data.next_obs, folded.final)
        next_target = q_values(state.target, next_obs)
        chooser = q_values(jax.lax.stop_gradient(params), next_obs) if config.double else next_target
        next_value = select_action(next_target, jnp.argmax(chooser, axis=-1))
        goal = jax.lax.stop_gradient(folded.reward + folded.discount * next_value)
        value = select_action(q_values(params, data.obs[0]), data.action[0])
        return goal - value, value

    def imagine(state: LearnerState, obs: Array, action: Array, key: Array, length: int) -> Transition:
        """Windows [length, N] that start with the given actions [N] in states [N, D].

        Discounts are continuation probabilities, so that a likely end reduces the value in proportion.
        """
        steps = []
        for step_key in jax.random.split(key, length):
            found = world.predict(model, state.params["model"], state.aux, obs, code(action))
            next_obs, reward, discount = world.simulate(state.aux, found, obs, step_key)
            steps.append(Transition(obs, action, reward, discount, discount < 0.5, next_obs, ()))
            obs = next_obs
            action = jnp.argmax(q_values(state.params["q"], obs), axis=-1).astype(jnp.int32)
        simulated: Transition = jax.tree.map(lambda *leaves: jnp.stack(leaves), *steps)
        return simulated

    def sweep(state: LearnerState, obs: Array, key: Array) -> tuple[Array, Array]:
        """Starts (states, actions) of all simulated windows, [planning_updates, N, …]."""
        imagine_key, draw_key = jax.random.split(key)
        count = obs.shape[0]
        every_obs = jnp.repeat(obs, num_actions, axis=0)  # [N A, D]
        every_action = jnp.tile(jnp.arange(num_actions, dtype=jnp.int32), count)
        error, _ = td_error(state, state.params["q"], imagine(state, every_obs, every_action, imagine_key, 1))
        logits = state.hypers["sweep_power"] * jnp.log(jnp.abs(error) + 1e-6)
        race = logits + jax.random.gumbel(draw_key, (config.planning_updates, count * num_actions))
        _, chosen = jax.lax.top_k(race, count)  # Gumbel race: draws without replacement
        return every_obs[chosen], every_action[chosen]

    def minibatches(state: LearnerState, batch: Batch, key: Array) -> Batch:
        """Simulated batches, then the real one, whose priorities the replay gets."""
        sweep_key, imagine_key = jax.random.split(key)
        real = batch.data._replace(extras=())
        count = real.reward.shape[1]  # batch_size, or a learner's share of it
        obs, action = sweep(state, real.obs[0], sweep_key)
        rows = config.planning_updates * count
        windows = imagine(
            state, obs.reshape(rows, state_size), action.reshape(rows), imagine_key, config.n_step
        )
        shape = (config.n_step, config.planning_updates, count)
        simulated = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(*shape, *x.shape[2:]), 0, 1), windows)
        data = jax.tree.map(lambda s, r: jnp.concatenate([s, r[None].astype(s.dtype)]), simulated, real)
        weight = jnp.full((config.planning_updates, count), trusted(state).astype(jnp.float32))
        index = jnp.broadcast_to(batch.index, (updates_per_batch, count))
        return Batch(data, jnp.concatenate([weight, batch.weight[None]]), index)

    def is_real(step: Array) -> Array:
        return (step + 1) % updates_per_batch == 0  # the last of a plan

    def trusted(state: LearnerState) -> Array:
        """Whether simulated steps count; the same for all batches of a plan."""
        good: Array = state.aux.error < state.hypers["model_tolerance"]
        return good

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        del key
        steps = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.data)  # all n N of them

        def q_loss(params: PyTree) -> tuple[Array, tuple[Array, Array]]:
            error, value = td_error(state, params, batch.data)
            return jnp.mean(batch.weight * huber(error, state.hypers["huber_delta"])), (error, value)

        def model_loss(params: PyTree) -> Array:
            found = world.predict(model, params, state.aux, steps.obs, code(steps.action))
            square, entropy = world.errors(state.aux, found, steps.obs, steps)
            return (square + entropy).mean(axis=1).sum()  # each member as if it were alone

        (loss, (error, value)), q_grads = jax.value_and_grad(q_loss, has_aux=True)(state.params["q"])
        model_grads = jax.lax.cond(  # only real steps teach the model
            is_real(state.step),
            jax.grad(model_loss),
            lambda params: jax.tree.map(jnp.zeros_like, params),
            state.params["model"],
        )
        metrics = {
            "loss": loss,
            "q_value": value.mean(),
            "td_error": jnp.abs(error).mean(),
            "model_error": state.aux.error,
            "model_wrong_ends": state.aux.mistaken,
        }
        return {"q": q_grads, "model": model_grads}, UpdateInfo(metrics, jnp.abs(error))

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        h = state.hypers
        params, opt = {}, {}
        for name, rate in {"q": h["learning_rate"], "model": h["model_learning_rate"]}.items():
            hypers = {**h, "learning_rate": rate}
            params[name], opt[name] = optimise.update(
                config, hypers, state.progress, state.params[name], state.opt[name], grads[name]
            )
        # a zero gradient is not enough: Adam's momentum and soft target updates would continue
        real = is_real(state.step)
        counts = {"model": real, "q": real | trusted(state)}

        def kept(new: PyTree, old: PyTree, name: str) -> PyTree:
            return jax.tree.map(lambda n, o: jnp.where(counts[name], n, o), new, old)

        params = {name: kept(part, state.params[name], name) for name, part in params.items()}
        opt = {name: kept(part, state.opt[name], name) for name, part in opt.items()}
        # Adam's counter excludes updates by a model that is not trusted: they must not trigger a target copy
        target = dqn.move_target(config, state, params["q"], opt["q"].count)
        target = kept(target, state.target, "q")
        return state._replace(params=params, target=target, opt=opt, step=state.step + 1)

    agent = Agent(
        needs=Windows(config.window, config.batch_size),
        init=init,
        actor=actor,
        carry=lambda env_ids: dqn.identity(config, env_ids),
        act=act,
        gradient=gradient,
        apply=apply,
        minibatches=minibatches,
        statistics=lambda state, steps: world.fresh(model, state.params["model"], state.aux, steps, code),
        update_statistics=lambda state, new: state._replace(aux=world.learn(state.aux, new)),
    )
    return normalise.wrap(config.normalise, spec, agent)
