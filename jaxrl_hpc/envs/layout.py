"""Observations of several parts as one vector, with a record of the layout.

A mapping, a tuple or a nest of both becomes a float32 vector: parts in the order of their names (of a tuple:
in its order), whole numbers of a Discrete space one-hot. A part named `action_mask` is the last one; agents
take it as the mask of their actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import EnvSpec, Part

MASK = "action_mask"


class Leaf(NamedTuple):
    """A part before it has a place."""

    path: tuple[Any, ...]  # keys and indices that lead to it
    shape: tuple[int, ...]
    one_hot: bool = False

    @property
    def name(self) -> str:
        return "/".join(map(str, self.path))


def arranged(leaves: Sequence[Leaf]) -> tuple[tuple[Leaf, ...], tuple[Part, ...]]:
    """The leaves with the mask last, and the place of each in the vector."""
    order = sorted(leaves, key=lambda leaf: leaf.name == MASK)  # stable: the others keep their order
    parts, start = [], 0
    for leaf in order:
        parts.append(Part(leaf.name, leaf.shape, start, leaf.one_hot))
        start += math.prod(leaf.shape)
    return tuple(order), tuple(parts)


def size(layout: Sequence[Part]) -> int:
    return sum(math.prod(part.shape) for part in layout)


def look_up(observation: Any, path: Sequence[Any]) -> Any:
    """The part that a path leads to, in mappings, tuples and objects with named fields."""
    for key in path:
        observation = getattr(observation, key) if _is_field(observation, key) else observation[key]
    return observation


def _is_field(observation: Any, key: Any) -> bool:
    """Whether `key` is a field of a NamedTuple or dataclass, and no key of a mapping."""
    return isinstance(key, str) and not isinstance(observation, dict) and hasattr(observation, key)


def flatten(
    observation: Any, leaves: Sequence[Leaf], library: Any, one_hot: Callable[[Any, int], Any]
) -> Any:
    """One observation as its vector; `library` is numpy or jax.numpy."""
    rows = []
    for leaf in leaves:
        value = look_up(observation, leaf.path)
        value = one_hot(value, leaf.shape[0]) if leaf.one_hot else value
        rows.append(library.ravel(library.asarray(value)).astype(library.float32))
    return library.concatenate(rows)


def with_mask(spec: EnvSpec) -> EnvSpec:
    """The spec, with a mask if its layout has one; UserError if the mask has the wrong size."""
    masks = [part for part in spec.layout if part.name == MASK]
    if not masks:
        return spec
    count = math.prod(masks[0].shape)
    if not spec.discrete:
        raise UserError(
            f"env {spec.name!r} has an action_mask, but continuous actions: give that part another name"
        )
    if count != spec.choices:
        raise UserError(
            f"env {spec.name!r} has an action_mask of {count} numbers for {spec.choices} choices: it needs "
            "one for each"
        )
    return spec._replace(action_mask=True)
