"""Pre-generated start windows: the regulator's loop after a warm-up, with the generator or a recording.

An episode draws a start and then its own noise. The key is fixed, so that start states are the same for all
agents.
"""

from __future__ import annotations

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.envs.exabooster import channels, generator
from jaxrl_hpc.envs.exabooster.environment import Start, standard_row
from jaxrl_hpc.envs.exabooster.generator import PLANTS, Loop, Machine, Plant
from jaxrl_hpc.envs.exabooster.recording import LOOK_BACK, RecordedInputs, Recording, window_ends
from jaxrl_hpc.envs.exabooster.statistics import WARM_UP
from jaxrl_hpc.envs.exabooster.surrogate import Surrogate
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Array

SEED = 20200310  # the day of the recording


def stacked_plants() -> Plant:
    """The three fits, leaves [3]."""
    return jax.tree.map(lambda *leaves: jnp.asarray(leaves, jnp.float32), *PLANTS)


@lru_cache(maxsize=8)
def generated(plants: tuple[int, ...], stack: int, size: int) -> Start:
    """A bank of the generator, the plants in turn."""
    plant = jnp.asarray(np.resize(np.array(plants, np.int32), size))
    key = jax.random.key(SEED, impl="threefry2x32")
    return jax.block_until_ready(_generate(key, plant, stack)[0])


def learned(surrogate: Surrogate, stack: int, size: int) -> Start:
    """A bank of the generator whose loops carry the surrogate's memory of the warm-up."""
    key = jax.random.key(SEED, impl="threefry2x32")
    bank, rows = _generate(key, jnp.zeros(size, jnp.int32), stack)
    # The network's row t holds the VIMIN of the log's row t + 1; its last input waits for the first action.
    shifted = jnp.concatenate([rows[1:, :, :1], rows[:-1, :, 1:]], axis=-1)
    memory = _remember(surrogate, shifted)
    return bank.replace(loop=bank.loop.replace(memory=memory))


@jax.jit
def _remember(surrogate: Surrogate, rows: Array) -> tuple:
    return surrogate.follow(surrogate.memory(rows.shape[1:2]), rows)[0]


@partial(jax.jit, static_argnames=("stack",))
def _generate(key: Array, plant_index: Array, stack: int) -> tuple[Start, Array]:
    """Also the standardised rows [WARM_UP, size, 5]."""
    size = plant_index.shape[0]
    plants = jax.tree.map(lambda leaf: leaf[plant_index], stacked_plants())
    start_key, run_key = jax.random.split(key)

    def tick(key: Array, plant: Plant, machine: Machine, loop: Loop, beta: Array) -> tuple[tuple, tuple]:
        v, beta = generator.regulate(generator.measured(loop.error), beta)
        set_point = machine.set_point
        machine, signals = generator.advance(key, machine, plant)
        loop = generator.respond(plant, loop, set_point + v, set_point, signals)
        return (machine, loop, beta), (standard_row(loop, signals), loop.vimin)

    def ticks(carry: tuple, t: Array) -> tuple[tuple, tuple]:
        keys = jax.random.split(jax.random.fold_in(run_key, t), size)
        return jax.vmap(tick)(keys, plants, *carry)

    machine = jax.vmap(generator.initial_machine)(jax.random.split(start_key, size), plants)
    loop = jax.tree.map(lambda leaf: jnp.zeros((size,)), generator.initial_loop())
    carry = (machine, loop, jnp.zeros(size))
    (machine, loop, beta), (rows, vimin) = jax.lax.scan(ticks, carry, jnp.arange(WARM_UP))
    bank = Start(
        machine=machine,
        loop=loop,
        beta=beta,
        window=jnp.swapaxes(rows[-stack:], 0, 1).reshape(size, -1),
        plant=plant_index,
        vimin_low=vimin[-LOOK_BACK:].min(axis=0),
        vimin_high=vimin[-LOOK_BACK:].max(axis=0),
    )
    return bank, rows


def recorded(recording: Recording, stack: int, size: int, horizon: int) -> Start:
    """Starts spread evenly over the stretches of a recording without gaps."""
    ends = window_ends(recording.joined, before=LOOK_BACK, after=horizon + 1)
    if not len(ends):
        raise UserError(
            f"recording: no stretch of {LOOK_BACK + horizon + 1} ticks without a gap; "
            "give more rows (recording_rows) or a shorter horizon"
        )
    ends = ends[np.linspace(0, len(ends) - 1, min(size, len(ends))).round().astype(int)]
    vimin, error = recording.rows[:, 0] - channels.VIMIN_CENTRE, recording.rows[:, 1]
    inputs = recording.rows[:, 0] - recording.set_point
    past = ends[:, None] + np.arange(-LOOK_BACK + 1, 1)  # [starts, LOOK_BACK]
    rows = channels.standardise(recording.rows)[past[:, -stack:]]

    def leaf(x: np.ndarray) -> Array:
        return jnp.asarray(x, jnp.float32)

    return Start(
        machine=RecordedInputs(jnp.asarray(ends, jnp.int32)),
        loop=Loop(
            error=leaf(error[ends]),
            inputs=(leaf(inputs[ends]), leaf(inputs[ends - 1]), leaf(inputs[ends - 2])),
            vimin=leaf(vimin[ends]),
        ),
        beta=leaf(-inputs[ends] - generator.PROPORTIONAL * error[ends - 1]),
        window=leaf(rows.reshape(len(ends), -1)),
        plant=jnp.zeros(len(ends), jnp.int32),
        vimin_low=leaf(vimin[past].min(axis=1)),
        vimin_high=leaf(vimin[past].max(axis=1)),
    )
