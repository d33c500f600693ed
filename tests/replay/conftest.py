"""Unrolls whose every number tells where it came from."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.types import Transition


def transition(time: np.ndarray, copy: np.ndarray, last: np.ndarray) -> Transition:
    """Transitions of step `time` of environment `copy`."""
    stamp = np.stack([time, copy], axis=-1)
    # Before the reset: at an episode's end not what the next step sees.
    following = stamp + np.array([1, 0]) + last[..., None] * np.array([0, 10_000])
    return Transition(
        obs={
            "stamp": jnp.asarray(stamp, jnp.int32),
            "frame": jnp.asarray(stamp % 251, jnp.uint8),
        },
        action=jnp.asarray(time + 1000 * copy, jnp.float32),
        reward=jnp.asarray(time, jnp.float32) * 0.5,
        discount=jnp.asarray(1.0 - last, jnp.float32),
        last=jnp.asarray(last, bool),
        next_obs={
            "stamp": jnp.asarray(following, jnp.int32),
            "frame": jnp.asarray(following % 251, jnp.uint8),
        },
        extras=jnp.asarray(-time, jnp.float32),
    )


@pytest.fixture
def unroll() -> Callable[..., Transition]:
    def build(first: int, steps: int, copies: int, last_every: int = 7) -> Transition:
        time, copy = np.meshgrid(np.arange(first, first + steps), np.arange(copies), indexing="ij")
        return transition(time, copy, (time + copy) % last_every == last_every - 1)

    return build


@pytest.fixture
def example() -> Transition:
    zero = np.zeros((), np.int64)
    return transition(zero, zero, zero)
