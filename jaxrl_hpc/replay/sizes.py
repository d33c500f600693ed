"""The static sizes that all replay memories share, and their checks."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import ComponentConfig, static

StoreNext = Literal["auto", "always", "by_index"]


class ReplayConfig(ComponentConfig):
    """Settings of every replay."""

    capacity: int = static(
        65_536, "transitions kept; rounded up to whole unrolls", per_shard="exact", ge=2, lt=2**31
    )
    min_size: int = static(1_000, "windows stored before learning starts", per_shard="rounded", ge=1)
    store_next: StoreNext = static(
        "auto", "next observations: always in the row, or by index; auto: by index if they are large"
    )
    final_capacity: int = static(
        0,
        "final observations stored when by index; 0: a sixteenth of the capacity",
        per_shard="rounded",
        ge=0,
    )

    def with_cut_unrolls(self, window: int, unroll_length: int, num_envs: int, at_once: int = 1) -> Self:
        """For unrolls that all end an episode, `at_once` of them per add: each end needs a final observation,
        or the oldest steps could not be drawn."""
        if self.final_capacity:
            return self
        ends = -(-self.capacity // unroll_length) + self.capacity // 16
        finals = max(ends, (window + at_once * unroll_length) * num_envs)
        return self.model_copy(update={"final_capacity": finals})


class ReplaySizes(NamedTuple):
    """Sizes in slots (time steps of all copies) unless stated otherwise."""

    slots: int
    num_envs: int
    unroll_length: int
    window: int  # consecutive slots of one sample
    batch_size: int
    ready_slots: int  # slots written when learning may begin

    @property
    def capacity(self) -> int:
        return self.slots * self.num_envs

    @property
    def min_steps(self) -> int:
        return self.ready_slots * self.num_envs


def replay_sizes(
    config: ReplayConfig, *, num_envs: int, unroll_length: int, window: int, batch_size: int
) -> ReplaySizes:
    """Rounds the capacity up to whole unrolls."""
    capacity, min_size = config.capacity, config.min_size
    sizes = {
        "num_envs": num_envs,
        "unroll_length": unroll_length,
        "window": window,
        "batch_size": batch_size,
    }
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"{name} is {value}: a replay needs at least 1")
    slots = -(-capacity // (num_envs * unroll_length)) * unroll_length
    if slots < window + unroll_length:
        raise UserError(
            f"replay.capacity is {capacity}: windows of {window} steps and unrolls of {unroll_length} "
            f"steps of {num_envs} copies need at least {(window + unroll_length) * num_envs}"
        )
    if slots * num_envs >= 2**30:
        raise UserError(f"replay.capacity is {capacity}: it must stay below 2^30")
    most = (slots - window + 1) * num_envs
    if min_size > most:
        raise UserError(f"replay.min_size is {min_size}: a replay of this capacity holds {most} windows")
    needed = -(-min_size // num_envs) + window - 1
    ready = -(-needed // unroll_length) * unroll_length
    return ReplaySizes(slots, num_envs, unroll_length, window, batch_size, ready)
