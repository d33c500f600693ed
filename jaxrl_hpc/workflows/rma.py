"""Actors and learners connected by memory that both can reach: every actor has a window, learners fetch.

    actor:  unroll → ring in its memory ←─ fetch ─ learner:  iterate → slot in its memory ←─ read ─ actors

Nobody sends anything: an actor puts unrolls into its ring and looks at the learner's slot for newer
parameters, a learner takes unrolls out of rings. With several learners `selection` says whose rings a learner
reads (comm/picking.py): `range`, its own actors', or `random`, anyone's, where learners may collide.
Everything else is as in `async`.
"""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.comm.picking import one_sided
from jaxrl_hpc.comm.wiring import Options
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Env, Replay, Workflow
from jaxrl_hpc.workflows.apart import ApartConfig
from jaxrl_hpc.workflows.asynchronous import make_apart


class OneSidedConfig(ApartConfig):
    """What workflows over windows have in common."""

    one_sided: Literal["auto", "required", "never"] = static(
        "auto", "windows: if they pass a test at the start, or else messages; or end the job; or never"
    )
    progress_thread: Literal["auto", "always", "never"] = static(
        "auto",
        "a thread per rank by which others reach its memory while it computes; auto: if that is needed",
    )


class Config(OneSidedConfig):
    """The rma workflow's settings: rings in actors' memory."""

    name: Literal["rma"] = "rma"
    selection: Literal["range", "random"] = static(
        "range", "several learners: each reads the rings of its own actors, or of any"
    )
    when_full: Literal["block", "reject", "drop_oldest"] = static(
        "block", "an actor whose ring is full waits, throws the new unroll away, or the oldest"
    )


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    options = Options(
        place="actor",
        rule=config.when_full,
        selection=config.selection,
        one_sided=config.one_sided,
        thread=config.progress_thread,
        deadline_seconds=config.deadline_seconds,
    )
    return make_apart(config, one_sided(options), env, agent, replay, total_env_steps)
