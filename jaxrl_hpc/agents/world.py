"""A learned world model for planning: standardisation, loss, simulation, and error on new data.

The model predicts standardised changes of the state and rewards. Its statistics and its error are updated
from new steps before these are learned from, so the error is a prediction error, not a training error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl_hpc.networks.world_model import Prediction, WorldModel
from jaxrl_hpc.ops import running_stats
from jaxrl_hpc.schema import AgentConfig, static, traced
from jaxrl_hpc.types import Array, PyTree, Transition

ERROR_MEMORY = 0.99  # of the running error, per unroll


class WorldModelConfig(AgentConfig):
    """Settings of every agent that plans with a world model."""

    planning_updates: int = static(4, "simulated batches per real batch", ge=1, le=64)
    ensemble: int = static(1, "world models", ge=1, le=16)
    model_hidden: tuple[int, ...] = static((64, 64), "widths of a world model's layers", min_length=1)
    model_learning_rate: float = traced(1e-3, "Adam step size of the world model", gt=0)
    model_tolerance: float = traced(0.1, "simulated steps are used while model_error is at most this", gt=0)


class Knowledge(NamedTuple):
    """State of the model besides its parameters."""

    state: running_stats.RunningStats  # [D]
    change: running_stats.RunningStats  # [D]
    reward: running_stats.RunningStats  # []
    error: Array  # [] running mean squared error of standardised changes and rewards, of new steps
    mistaken: Array  # [] running share of new steps whose termination was predicted wrongly


class Fresh(NamedTuple):
    """Increments from an unroll, to be summed over shards."""

    state: running_stats.Sums
    change: running_stats.Sums
    reward: running_stats.Sums
    error: Array  # [] summed over steps
    mistaken: Array  # [] summed over steps


def unknown(size: int) -> Knowledge:
    one, many = running_stats.empty(()), running_stats.empty((size,))
    return Knowledge(many, many, one, jnp.float32(1), jnp.float32(1))


def _spread(statistics: running_stats.RunningStats) -> Array:
    return jnp.sqrt(running_stats.variance(statistics)) + 1e-3  # constant elements must not be scaled up


def _standard(statistics: running_stats.RunningStats, x: Array) -> Array:
    return (x - statistics.mean) / _spread(statistics)


def predict(model: WorldModel, params: PyTree, known: Knowledge, state: Array, action: Array) -> Prediction:
    """Predicted standardised change and reward, for states [N, D] and coded actions [N, A]."""
    return model.apply(params, _standard(known.state, state), action)  # type: ignore[return-value]


def errors(known: Knowledge, found: Prediction, state: Array, step: Transition) -> tuple[Array, Array]:
    """Squared errors and cross entropies of termination, [members, N] each; `step` has axes [N]."""
    change = step.next_obs.reshape(state.shape) - state
    square = jnp.square(found.change - _standard(known.change, change)).mean(axis=-1)
    square = square + jnp.square(found.reward - _standard(known.reward, step.reward))
    end = jnp.broadcast_to(1.0 - step.discount, found.end.shape)
    return square, optax.sigmoid_binary_cross_entropy(found.end, end)


def simulate(known: Knowledge, found: Prediction, state: Array, key: Array) -> tuple[Array, Array, Array]:
    """Next states [N, D], rewards [N], continuation probabilities [N], by a random member each. Consumes
    key."""
    member = jax.random.randint(key, (state.shape[0],), 0, found.reward.shape[0])

    def pick(x: Array) -> Array:
        return x[member, jnp.arange(state.shape[0])]

    change = known.change.mean + pick(found.change) * _spread(known.change)
    reward = known.reward.mean + pick(found.reward) * _spread(known.reward)
    return state + change, reward, jax.nn.sigmoid(-pick(found.end))


def disagreement(found: Prediction) -> Array:
    """Root mean square, over changes and reward, of the members' spread: [N], in standardised units."""
    outputs = jnp.concatenate([found.change, found.reward[..., None]], axis=-1)
    return jnp.sqrt(outputs.var(axis=0).mean(axis=-1))


def fresh(
    model: WorldModel,
    params: PyTree,
    known: Knowledge,
    steps: Transition,
    code: Callable[[Array], Array],
) -> Fresh:
    """Increments from an unroll [T, B] that was not learned from yet; `code` makes actions [N, A]."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps._replace(extras=()))
    state = flat.obs.reshape(flat.reward.shape[0], -1)
    change = flat.next_obs.reshape(state.shape) - state
    found = predict(model, params, known, state, code(flat.action))
    square, _ = errors(known, found, state, flat)
    wrong = (found.end > 0) != (flat.discount < 0.5)
    return Fresh(
        running_stats.sums(known.state, state),
        running_stats.sums(known.change, change),
        running_stats.sums(known.reward, flat.reward),
        square.mean(axis=0).sum(),
        wrong.astype(jnp.float32).mean(axis=0).sum(),
    )


def learn(known: Knowledge, new: Fresh) -> Knowledge:
    """The statistics updated by `fresh`."""
    count = jnp.maximum(new.state.number, 1.0)
    keep = ERROR_MEMORY
    return Knowledge(
        running_stats.merge(known.state, new.state),
        running_stats.merge(known.change, new.change),
        running_stats.merge(known.reward, new.reward),
        keep * known.error + (1 - keep) * new.error / count,
        keep * known.mistaken + (1 - keep) * new.mistaken / count,
    )
