"""Long runs of the generator under the regulator, and the published statistics of the recording."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.envs.exabooster import generator
from jaxrl_hpc.envs.exabooster.channels import ERROR_AUTOCORRELATION, NAMES, VIMIN_CENTRE
from jaxrl_hpc.envs.exabooster.generator import Plant
from jaxrl_hpc.types import Array

WARM_UP = 300  # ticks of the regulator before anything is recorded


@partial(jax.jit, static_argnames=("chains", "ticks"))
def _simulate(key: Array, plant: Plant, dither: Array, chains: int, ticks: int) -> tuple[Array, Array]:
    start_key, run_key, dither_key = jax.random.split(key, 3)

    def tick(carry, keys):
        machine, loop, beta = carry
        run_key, dither_key, dither = keys
        v, beta = generator.regulate(generator.measured(loop.error), beta)
        v = v + dither * jax.random.normal(dither_key)
        vimin, set_point = machine.set_point + v, machine.set_point
        machine, signals = generator.advance(run_key, machine, plant)
        loop = generator.respond(plant, loop, vimin, set_point, signals)
        row = jnp.stack(
            [vimin, generator.measured(loop.error), signals.linac, signals.current, signals.mdat40]
        )
        return (machine, loop, beta), (row, machine.set_point)

    def steps(carry, t):
        def keys(key):
            return jax.random.split(jax.random.fold_in(key, t), chains)

        return jax.vmap(tick)(carry, (keys(run_key), keys(dither_key), dither))

    machine = jax.vmap(generator.initial_machine, (0, None))(jax.random.split(start_key, chains), plant)
    rest = jax.tree.map(lambda x: jnp.zeros((chains,)), generator.initial_loop())
    carry, _ = jax.lax.scan(
        lambda c, t: (steps(c, t)[0], None), (machine, rest, jnp.zeros(chains)), jnp.arange(WARM_UP)
    )
    return jax.lax.scan(steps, carry, WARM_UP + jnp.arange(ticks))[1]


def simulate(
    key: Array, plant: Plant, chains: int, ticks: int, dither: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The log of independent regulated runs: rows [ticks, chains, 5] in the order of NAMES (VIMIN the value
    sent before the error of the same row) and B_VIMIN [ticks, chains]. `dither` [chains] is the standard
    deviation of noise added to v."""
    spread = jnp.zeros(chains) if dither is None else jnp.asarray(dither, jnp.float32)
    rows, set_point = jax.device_get(_simulate(key, plant, spread, chains, ticks))
    rows = rows.astype(np.float64)
    rows[..., 0] += VIMIN_CENTRE
    return rows, set_point.astype(np.float64) + VIMIN_CENTRE


def autocorrelation(x: np.ndarray, lags: int) -> np.ndarray:
    """[ticks, chains] -> lags 1…n, about the mean over everything."""
    x = x - x.mean()
    variance = np.mean(x * x)
    return np.array([np.mean(x[lag:] * x[:-lag]) / variance for lag in range(1, lags + 1)])


def _high_pass_std(x: np.ndarray) -> float:
    total = np.cumsum(np.concatenate([np.zeros((1, x.shape[1])), x]), axis=0)
    mean = (total[15:] - total[:-15]) / 15
    return float(np.std(x[7:-7] - mean, axis=0).mean())


def channel_statistics(x: np.ndarray) -> dict[str, float]:
    """[ticks, chains] of one channel -> the three numbers published for each."""
    minutes = x[: len(x) // 900 * 900].reshape(-1, 900, x.shape[1]).mean(axis=1)
    step = np.abs(np.diff(x, axis=0))
    return {
        "high_pass_std": _high_pass_std(x),
        "minute_std": float(np.std(minutes)),
        "median_step": float(np.median(step[step > 1e-6])),
    }


def error_statistics(rows: np.ndarray) -> dict[str, Any]:
    """rows [ticks, chains, 5] -> the statistics of B:IMINER that are compared."""
    error = rows[..., 1]
    low, high = np.percentile(error, [25, 75])
    correlation = {
        name: float(np.corrcoef(error.ravel(), rows[..., i].ravel())[0, 1])
        for i, name in enumerate(NAMES)
        if name != "B:IMINER"
    }
    returns = -np.abs(error[: len(error) // 100 * 100]).reshape(-1, 100, error.shape[1]).sum(axis=1)
    acf = autocorrelation(error, 21)
    return {
        "mean_abs": float(np.abs(error).mean()),
        "std": float(error.std()),
        "iqr": float(high - low),
        "max_abs": float(np.abs(error).max(axis=0).mean()),
        "autocorrelation": acf,
        "autocorrelation_rmse": float(np.sqrt(np.mean((acf - ERROR_AUTOCORRELATION) ** 2))),
        "correlation": correlation,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
    }
