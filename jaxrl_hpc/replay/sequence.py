"""Prioritised replay of sequences for recurrent agents.

A sequence is a window of burn-in + length steps (the agent says how many) of one environment copy.
Sequences start every `stride` steps and overlap when the stride is smaller than the window. The agent's
recurrent carry at each step travels in `extras`; the first one of a window starts the burn-in. Paper:
Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning" (R2D2).

episodes = "across": a sequence may continue into the copy's next episode; the agent resets its carry after
`last`, as during acting, and no data is lost when episodes are short. episodes = "within": only sequences of
one episode are sampled; episodes shorter than the window are never sampled, and while there is no longer one
all weights of a batch are zero.
"""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.replay import prioritised
from jaxrl_hpc.replay.sizes import replay_sizes
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Replay


class Config(prioritised.Config):
    """Settings of the sequence replay."""

    name: Literal["sequence"] = "sequence"  # type: ignore[assignment]
    stride: int = static(1, "steps between the starts of two sequences", ge=1)
    episodes: Literal["across", "within"] = static(
        "across", "across: a sequence may continue into the next episode; within: it may not"
    )


def make(config: Config, *, num_envs: int, unroll_length: int, window: int, batch_size: int) -> Replay:
    sizes = replay_sizes(
        config, num_envs=num_envs, unroll_length=unroll_length, window=window, batch_size=batch_size
    )
    # The first sequence starts at time 0, so one is there as soon as a window is.
    return prioritised.build(config, sizes, stride=config.stride, within=config.episodes == "within")
