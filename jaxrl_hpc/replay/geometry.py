"""The static sizes that all replay memories share, and their checks."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl_hpc.errors import UserError


class Geometry(NamedTuple):
    """Sizes in slots (time steps of all copies) unless said otherwise."""

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


def geometry(
    *, capacity: int, min_size: int, num_envs: int, unroll_length: int, window: int, batch_size: int
) -> Geometry:
    """Rounds the capacity up to whole unrolls."""
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
    return Geometry(slots, num_envs, unroll_length, window, batch_size, ready)
