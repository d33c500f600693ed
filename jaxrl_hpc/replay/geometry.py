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
    span: int  # slots that must be there before a window can be sampled
    batch_size: int
    ready_slots: int  # slots written when learning may begin

    @property
    def capacity(self) -> int:
        return self.slots * self.num_envs

    @property
    def min_steps(self) -> int:
        return self.ready_slots * self.num_envs


def geometry(
    *,
    capacity: int,
    min_size: int,
    num_envs: int,
    unroll_length: int,
    window: int,
    batch_size: int,
    lookahead: int = 0,
) -> Geometry:
    """Rounds the capacity up to whole unrolls; `lookahead` more slots complete a window."""
    for name, value in dict(num_envs=num_envs, unroll_length=unroll_length, window=window).items():
        if value < 1:
            raise UserError(f"{name} is {value}: it must be at least 1")
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}: a replay needs at least 1")
    span = window + lookahead
    slots = -(-capacity // (num_envs * unroll_length)) * unroll_length
    if slots < span + unroll_length:
        least = (span + unroll_length) * num_envs
        raise UserError(
            f"replay.capacity is {capacity}: windows of {window} steps and unrolls of {unroll_length} "
            f"steps of {num_envs} copies need at least {least}"
        )
    if slots * num_envs >= 2**30:
        raise UserError(f"replay.capacity is {capacity}: it must stay below 2^30")
    most = (slots - span + 1) * num_envs
    if min_size > most:
        raise UserError(f"replay.min_size is {min_size}: a replay of this capacity holds {most} windows")
    needed = max(-(-min_size // num_envs), 1) + span - 1
    ready = -(-needed // unroll_length) * unroll_length
    return Geometry(slots, num_envs, unroll_length, window, span, batch_size, ready)
