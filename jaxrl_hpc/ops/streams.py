"""Random streams beside those of a split.

In JAX `split(key, n)[i]` and `fold_in(key, i)` are the same key. A separate stream from a key that others
split or fold with small numbers therefore needs a number that none of them uses: a tag.
"""

from __future__ import annotations

import jax

from jaxrl_hpc.types import Array

# beyond all counts of updates, parts, shards and copies
EXTRA_SAMPLES = 0x9E3779B1  # of planners between two unrolls
RESET_AFTER_FAULT = 0x85EBCA77  # of an environment's copy in the middle of a step


def stream(key: Array, tag: int) -> Array:
    """The stream with this tag."""
    return jax.random.fold_in(key, jax.numpy.uint32(tag))
