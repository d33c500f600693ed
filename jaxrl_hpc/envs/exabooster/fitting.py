"""Fitting the surrogate: its data and its training. `gates` decides whether it may be used.

Data are trajectories with time as the recurrent axis, cut from the generator's log under the regulator or
from a recording. Under the regulator v is a function of past errors, so the response to an action could not
be identified; every other generated trajectory therefore dithers v. Training takes crops: the network fills
its memory for the first ticks, then every prediction counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_hpc.envs.exabooster import recording, statistics, surrogate
from jaxrl_hpc.envs.exabooster.channels import SCALE, standardise
from jaxrl_hpc.envs.exabooster.generator import PLANTS, SUPERCYCLE
from jaxrl_hpc.envs.exabooster.recording import EXARL_SCALING, Recording, Scaling
from jaxrl_hpc.envs.exabooster.surrogate import OUTPUTS, Surrogate
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Array, PyTree

DITHER = 0.005  # standard deviation
TRAIN_PART = 0.7  # chronological, as in EXARL


class Data(NamedTuple):
    """Standardised trajectories [ticks, trajectories, 5] with VIMIN the value sent after the row's error."""

    train: np.ndarray
    validation: np.ndarray
    scaling: Scaling  # in whose units the error is reported


class Settings(NamedTuple):
    """How to train."""

    width: int = 64
    layers: int = 1
    updates: int = 3000
    batch: int = 32  # trajectories in an update
    crop: int = 224  # ticks of each
    burn_in: int = 96  # of them without loss
    learning_rate: float = 4e-3


def generated_data(key: Array, ticks: int, length: int = 1250) -> Data:
    """Trajectories of the generator."""
    count = max(ticks // length, 8)
    dither = np.where(np.arange(count) % 2 == 0, DITHER, 0.0)
    rows, _ = statistics.simulate(key, PLANTS[0], count, length + 1, dither)
    shifted = np.concatenate([rows[1:, :, :1], rows[:-1, :, 1:]], axis=-1)
    split = int(TRAIN_PART * count)
    rows = standardise(shifted)
    return Data(rows[:, :split], rows[:, split:], EXARL_SCALING)


def recorded_data(log: Recording, length: int = 450) -> Data:
    """Pieces of a recording without gaps; the first part trains."""
    rows = standardise(recording.shifted_rows(log))
    ends = recording.window_ends(log.joined, before=length - 1, after=0)
    pieces, free = [], 0
    for end in ends:
        if end - length + 1 >= free:
            pieces.append(rows[end - length + 1 : end + 1])
            free = end + 1
    split = int(TRAIN_PART * len(pieces))
    if split < 1 or split == len(pieces):
        raise UserError(
            f"recording: only {len(pieces)} stretches of {length} ticks without a gap; give more rows"
        )
    stacked = np.stack(pieces, axis=1)
    return Data(stacked[:, :split], stacked[:, split:], recording.scaling(log))


def _with(network: Surrogate, variables: PyTree, noise: Array | float = 0.0) -> Surrogate:
    return Surrogate(variables, jnp.asarray(noise, jnp.float32), network.width, network.layers)


def _mean_square(network: Surrogate, rows: Array, burn_in: int) -> Array:
    """Standardised squared one-step error per output [3], after the burn-in. rows [T, N, 5]."""
    _, prediction = network.follow(network.memory(rows.shape[1:2]), rows[:-1])
    return jnp.mean((prediction - rows[1:, :, :OUTPUTS])[burn_in:] ** 2, axis=(0, 1))


def train(
    key: Array, data: Data, settings: Settings, report: Callable[[str], None] = lambda line: None
) -> tuple[Surrogate, dict]:
    """A fitted surrogate and the history of the fit. Consumes key."""
    init_key, crop_key = jax.random.split(key)
    network = surrogate.initial(init_key, settings.width, settings.layers)
    warmup = settings.updates // 20 + 1
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, settings.learning_rate, warmup, max(settings.updates, warmup + 1)
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    rows = jnp.asarray(data.train)
    length, count = rows.shape[:2]
    crop = min(settings.crop, length)
    burn_in = min(settings.burn_in, crop // 2)

    @jax.jit
    def many(variables: PyTree, opt: PyTree, steps: Array) -> tuple[PyTree, PyTree, Array]:
        def update(carry: tuple, step: Array) -> tuple[tuple, Array]:
            variables, opt = carry
            start_key, pick_key = jax.random.split(jax.random.fold_in(crop_key, step))
            start = jax.random.randint(start_key, (settings.batch,), 0, length - crop + 1)
            pick = jax.random.randint(pick_key, (settings.batch,), 0, count)
            batch = rows[start + jnp.arange(crop)[:, None], pick]  # [crop, batch, 5]

            def loss(variables: PyTree) -> Array:
                return jnp.mean(_mean_square(_with(network, variables), batch, burn_in))

            value, gradient = jax.value_and_grad(loss)(variables)
            change, opt = optimizer.update(gradient, opt, variables)
            return (optax.apply_updates(variables, change), opt), value

        (variables, opt), losses = jax.lax.scan(update, (variables, opt), steps)
        return variables, opt, jnp.mean(losses)

    variables, opt = network.variables, optimizer.init(network.variables)
    begin, chunk, history = time.perf_counter(), max(settings.updates // 20, 1), []
    for first in range(0, settings.updates, chunk):
        steps = jnp.arange(first, min(first + chunk, settings.updates))
        variables, opt, value = many(variables, opt, steps)
        error = one_step_error(_with(network, variables), data)
        history.append({"updates": int(steps[-1]) + 1, "loss": float(value), "mse": error["mse"]})
        report(f"update {history[-1]['updates']}: loss {float(value):.4f}, one-step MSE {error['mse']:.3e}")
    error = one_step_error(_with(network, variables), data)
    fitted = _with(network, variables, noise=error["error_std"])
    return fitted, {
        "settings": settings._asdict(),
        "seconds": time.perf_counter() - begin,
        "train_ticks": int(length * count),
        "history": history,
        **error,
    }


@jax.jit
def _validate(network: Surrogate, rows: Array) -> Array:
    return _mean_square(network, rows, min(recording.LOOK_BACK, rows.shape[0] // 2))


def one_step_error(network: Surrogate, data: Data) -> dict[str, float]:
    """On the validation trajectories: mean squared error in min–max units, and IMINER's own std."""
    square = np.asarray(_validate(network, jnp.asarray(data.validation)), np.float64)
    in_units = square * (SCALE[:OUTPUTS] / data.scaling.span()[:OUTPUTS]) ** 2
    return {"mse": float(in_units.mean()), "error_std": float(np.sqrt(square[1]) * SCALE[1])}


def load_data(key: Array, csv: str | None, ticks: int) -> tuple[Data, np.ndarray]:
    """Training data, and B:IMINER [ticks, chains] under the regulator to compare free runs with."""
    data_key, reference_key = jax.random.split(key)
    if csv is None:
        rows, _ = statistics.simulate(reference_key, PLANTS[0], 16, 10 * SUPERCYCLE)
        return generated_data(data_key, ticks), rows[..., 1]
    data = recorded_data(recording.read(csv, ticks, need_set_point=False))
    whole = np.concatenate([data.train, data.validation], axis=1)
    return data, whole[..., 1].astype(np.float64) * SCALE[1]
