"""The tests that a surrogate must pass before it replaces the plant.

Its one-step error must be near the noise floor; a free run under the regulator for ten supercycles must have
the statistics of the data; and it must respond to an action as the plant does, which a low one-step error
does not imply.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.envs.exabooster import bank, generator, statistics
from jaxrl_hpc.envs.exabooster.channels import SCALE
from jaxrl_hpc.envs.exabooster.environment import standard_row
from jaxrl_hpc.envs.exabooster.fitting import Data, one_step_error
from jaxrl_hpc.envs.exabooster.generator import PLANTS, SUPERCYCLE, Loop, Machine
from jaxrl_hpc.envs.exabooster.recording import LOOK_BACK
from jaxrl_hpc.envs.exabooster.surrogate import Surrogate, respond_learned
from jaxrl_hpc.types import Array

STEP = 0.01
MSE_LIMIT = 3.5e-4
CHAINS = 16


class Gate(NamedTuple):
    """One check."""

    name: str
    value: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        return bool(self.low <= self.value <= self.high)


@jax.jit
def _free_run(key: Array, network: Surrogate, carry: tuple) -> Array:
    """The measured error [ticks, chains] of ten supercycles under the regulator."""
    plant = jax.tree.map(jnp.asarray, PLANTS[0])
    chains = carry[2].shape[0]

    def tick(key: Array, machine: Machine, loop: Loop, beta: Array, exogenous: Array) -> tuple[tuple, Array]:
        v, beta = generator.regulate(generator.measured(loop.error), beta)
        set_point = machine.set_point
        machine, signals = generator.advance(key, machine, plant)
        loop = respond_learned(network, loop, set_point + v, set_point, exogenous, signals)
        return (machine, loop, beta, standard_row(loop, signals)[-3:]), generator.measured(loop.error)

    def ticks(carry: tuple, t: Array) -> tuple[tuple, Array]:
        keys = jax.random.split(jax.random.fold_in(key, t), chains)
        return jax.vmap(tick)(keys, *carry)

    return jax.lax.scan(ticks, carry, jnp.arange(10 * SUPERCYCLE))[1]


def free_run(key: Array, network: Surrogate, chains: int = CHAINS) -> np.ndarray:
    """Ten supercycles of the surrogate under the regulator: B:IMINER [ticks, chains]."""
    start = bank.learned(network, 1, chains)
    carry = (start.machine, start.loop, start.beta, start.window[:, -3:])
    return np.asarray(_free_run(key, network, carry), np.float64)


def step_response(network: Surrogate, data: Data) -> np.ndarray:
    """Mean change of the predicted e on the first three ticks after VIMIN is raised by STEP and held [3]."""
    rows = jnp.asarray(data.validation)
    at = min(LOOK_BACK, rows.shape[0] - 4)
    return np.asarray(_step_response(network, rows[:at], rows[at : at + 3]), np.float64) * SCALE[1]


@jax.jit
def _step_response(network: Surrogate, before: Array, tail: Array) -> Array:
    memory, _ = network.follow(network.memory(before.shape[1:2]), before)
    raised = tail.at[..., 0].add(STEP / SCALE[0])
    # The recorded errors stay right in both: an action shows only on the third tick.
    difference = network.follow(memory, raised)[1] - network.follow(memory, tail)[1]
    return difference[..., 1].mean(axis=1)


def describe(error: np.ndarray) -> dict[str, Any]:
    """Statistics by which free runs are compared. error [ticks, chains]."""
    low, high = np.percentile(error, [25, 75])
    step = np.abs(np.diff(error, axis=0))
    return {
        "std": float(error.std()),
        "iqr": float(high - low),
        "median_step": float(np.median(step[step > 1e-6])),
        "autocorrelation": statistics.autocorrelation(error, 21),
    }


def check(key: Array, network: Surrogate, data: Data, reference: np.ndarray) -> list[Gate]:
    """All gates. reference: B:IMINER [ticks, chains] of the data under the regulator. Consumes key."""
    ours, theirs = describe(free_run(key, network)), describe(reference)
    rmse = np.sqrt(np.mean((ours["autocorrelation"] - theirs["autocorrelation"]) ** 2))
    response = step_response(network, data)
    expected = 10 * float(PLANTS[0].gain_2) * STEP
    return [
        Gate("one-step MSE (min–max units)", one_step_error(network, data)["mse"], 0.0, MSE_LIMIT),
        Gate("free run: ACF RMSE, lags 1–21", float(rmse), 0.0, 0.08),
        *(
            Gate(f"free run: {name} / data", float(ours[name] / theirs[name]), 0.9, 1.1)
            for name in ("std", "iqr", "median_step")
        ),
        Gate("held +0.01 step: e on ticks 1 and 2", float(np.abs(response[:2]).max()), 0.0, 0.2 * expected),
        Gate("held +0.01 step: e on tick 3", float(response[2]), 0.8 * expected, 1.2 * expected),
    ]


def table(gates: list[Gate]) -> str:
    """A Markdown table."""
    lines = ["| gate | value | accepted | passed |", "|---|---|---|---|"]
    for gate in gates:
        passed = "yes" if gate.passed else "no"
        lines.append(f"| {gate.name} | {gate.value:.4g} | {gate.low:.3g} to {gate.high:.3g} | {passed} |")
    return "\n".join(lines)
