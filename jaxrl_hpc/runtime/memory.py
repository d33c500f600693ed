"""Whether a run fits into memory, from shapes alone: nothing is computed and nothing allocated."""

from __future__ import annotations

import jax
import numpy as np

from jaxrl_hpc.checkpoint.checkpointer import state_bytes
from jaxrl_hpc.config import Config
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime import host
from jaxrl_hpc.runtime.seeds import SeedRunner
from jaxrl_hpc.types import Env, EnvSpec

RUNTIME = 2**28  # bytes of the runtime itself


def check_memory(config: Config, runner: SeedRunner, training: bool = True) -> int:
    """Peak bytes of the run; UserError names the largest part if they cannot fit."""
    parts, flow = runner.parts, config.workflow
    lanes = len(runner.lanes)
    at_once = lanes if runner.stacked else len({group.device for group in runner.groups})
    state = state_bytes(runner.state_shape()) * len(runner.groups)
    layers = 4 * _activations(config)
    episode = _copy_bytes(parts.env) + layers
    work = {f"an evaluation of {runner.episodes:,} episodes": runner.episodes * episode}
    if training:
        row = 2 * _observation_bytes(parts.env.spec) + 2 * layers
        copies = flow.resources().total_copies
        work[f"an unroll of {copies:,} copies and {flow.unroll_length:,} steps"] = (
            copies * flow.unroll_length * row
        )
        window, size = parts.agent.needs
        work[f"a batch of {size:,} windows of {window:,} steps"] = size * window * row
    largest = max(work, key=lambda name: work[name])
    needed = int(state * 1.1) + RUNTIME + at_once * work[largest]  # one tenth on top
    free = host.available_memory()
    if needed > free:
        shown = {f"state of {lanes} seeds": state, largest: at_once * work[largest]}
        what, size = max(shown.items(), key=lambda part: part[1])
        raise UserError(
            f"the run needs {needed / 2**30:,.1f} GiB ({size / 2**30:,.1f} GiB of it {what}), but "
            f"{free / 2**30:.1f} GiB are free: lower replay.capacity, agent.network, agent.batch_size, "
            "workflow.num_envs, run.seeds (of a sweep trials_per_task) or the episodes of an evaluation"
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
