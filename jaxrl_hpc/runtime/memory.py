"""Whether a run fits into memory, from shapes alone: nothing is computed and nothing allocated."""

from __future__ import annotations

import math

import jax
import numpy as np

from jaxrl_hpc.checkpoint.checkpointer import state_bytes
from jaxrl_hpc.config import Config
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime import host
from jaxrl_hpc.runtime.seeds import SeedRunner
from jaxrl_hpc.types import Env, EnvSpec

RUNTIME = 2**28  # bytes of the runtime itself


def free_bytes(device: jax.Device) -> int | None:
    """Memory available to a run: of the accelerator, else of this process; None: unknown."""
    if device.platform == "cpu":
        return host.available_memory()
    stats = device.memory_stats() or {}
    limit = stats.get("bytes_limit")
    return None if limit is None else int(limit) - int(stats.get("bytes_in_use", 0))


def check_memory(config: Config, runner: SeedRunner, training: bool = True) -> int:
    """Peak bytes of the run, in this process or on each accelerator of it; UserError names the largest part
    if they cannot fit."""
    parts, flow = runner.parts, config.workflow
    lanes, device = len(runner.lanes), parts.workflow.device
    at_once = lanes if runner.stacked else len({group.device for group in runner.groups})
    place = parts.workflow.placement(runner.state_shape())
    on_host = device.platform == "cpu"  # whose devices share one memory
    holders = place.here if on_host else 1
    workers = place.everywhere / holders
    state = place.state * holders * len(runner.groups)
    layers = 4 * _activations(config)
    episode = _copy_bytes(parts.env) + layers
    work = {f"an evaluation of {runner.episodes:,} episodes": runner.episodes * episode}
    if training:
        row = 2 * _observation_bytes(parts.env.spec) + 2 * layers
        copies = math.ceil(flow.resources().total_copies / workers)
        work[f"an unroll of {copies:,} copies and {flow.unroll_length:,} steps"] = (
            copies * flow.unroll_length * row
        )
        window, size = parts.agent.needs
        work[f"a batch of {size:,} windows of {window:,} steps"] = size * window * row
    largest = max(work, key=lambda name: work[name])
    needed = int(state * 1.1) + RUNTIME + at_once * work[largest]  # one tenth on top
    free = free_bytes(device)
    if free is not None and needed > free:
        shown = {f"state of {lanes} seeds": state, largest: at_once * work[largest]}
        what, size = max(shown.items(), key=lambda part: part[1])
        where = "" if on_host else f" on each {device.device_kind}"
        raise UserError(
            f"the run needs {needed / 2**30:,.1f} GiB{where} ({size / 2**30:,.1f} GiB of it {what}), but "
            f"{free / 2**30:.1f} GiB are free: lower replay.capacity, agent.network, agent.batch_size, "
            "workflow.num_envs, run.seeds (of a sweep trials_per_task) or the episodes of an evaluation"
            + ("" if on_host else "; or use more devices (workflow.name=sharded)")
        )
    return needed


def _observation_bytes(spec: EnvSpec) -> int:
    return int(np.prod(spec.obs_shape, dtype=np.int64)) * np.dtype(spec.obs_dtype).itemsize


def _copy_bytes(env: Env) -> int:
    """State and observation of one environment copy."""
    if env.external:
        return _observation_bytes(env.spec)
    return state_bytes(jax.eval_shape(lambda: env.reset(jax.random.split(jax.random.key(0), 1))))


def _activations(config: Config) -> int:
    """Outputs of all hidden layers for one observation."""
    return sum(config.agent.hidden_widths) + config.agent.recurrent_width
