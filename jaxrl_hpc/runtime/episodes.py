"""Pictures of a finished run: its learning curve, and an environment's own drawing of an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.seeds import SeedRunner
from jaxrl_hpc.types import Array, PyTree


def draw_run(runner: SeedRunner, agent: str, run: RunDirectory, summary: dict[str, Any]) -> None:
    """Learning curve and, where the environment can, an episode of the first lane."""
    from jaxrl_hpc.report.plots import write_plots  # matplotlib takes a second, and only one rank needs it

    run.plots.mkdir(exist_ok=True)
    write_plots(run.path, summary)
    if runner.parts.env.host.picture is not None:
        draw_episode(runner, 0, agent, jax.random.key(runner.lanes[0].seed), run.plots)


def draw_episode(runner: SeedRunner, lane: int, label: str, key: Array, folder: Path) -> None:
    """An episode of one lane as the environment's own picture. `key` is consumed."""
    env, agent, actor = runner.parts.env, runner.parts.agent, runner.actor(lane)
    assert env.host.picture is not None
    from jaxrl_hpc.report.style import words

    def act(carry: PyTree, obs: PyTree, key: Array) -> tuple[Array, PyTree]:
        one = jax.tree.map(lambda x: x[None], (carry, obs, key))
        action, carry, _ = agent.act(actor, *one, True)
        return action[0], jax.tree.map(lambda x: x[0], carry)

    carry = jax.tree.map(lambda x: x[0], agent.carry(jnp.zeros(1, jnp.int32)))
    env.host.picture(act, carry, key, words(label), folder)
