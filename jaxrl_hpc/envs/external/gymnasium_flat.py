"""A Gymnasium environment with any observation space, flattened to one Box (envs/layout.py).

Dict and Tuple observations, nested or not, become one vector, Discrete and MultiDiscrete ones one-hot. A mask
of actions may come as the part `action_mask` of an observation, or with every step in `info["action_mask"]`
(`mask_from_info`), as in Gymnasium's Taxi.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl_hpc.envs import layout
from jaxrl_hpc.envs.external.simulator import Wrong
from jaxrl_hpc.envs.layout import Leaf
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Part


def leaves_of(space: Any, path: tuple[Any, ...] = ()) -> list[tuple[Leaf, Any]]:
    """Parts of a space and their own spaces, in Gymnasium's order."""
    inside: list[tuple[Any, Any]]
    if isinstance(space, spaces.Dict):
        inside = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        inside = list(enumerate(space.spaces))
    elif isinstance(space, spaces.Box):
        return [(Leaf(path, tuple(space.shape)), space)]
    elif isinstance(space, spaces.Discrete):
        return [(Leaf(path, (int(space.n),), one_hot=int(space.start) == 0), space)]
    elif isinstance(space, spaces.MultiBinary | spaces.MultiDiscrete):
        return [(Leaf(path, (int(spaces.flatdim(space)),)), space)]
    else:
        where = f" at {'/'.join(map(str, path))}" if path else ""
        raise UserError(
            f"has observations of type {type(space).__name__}{where}; Box, Discrete, MultiDiscrete, "
            "MultiBinary, and Dict and Tuple of these are supported"
        )
    return [found for key, child in inside for found in leaves_of(child, (*path, key))]


def choices(space: Any) -> int:
    """Flags that a mask of these actions has."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(spaces.flatdim(space)) if isinstance(space, spaces.MultiDiscrete) else 0


class Flat(gymnasium.Wrapper):
    """The wrapper; `layout` gives the place of every part."""

    def __init__(self, env: Any, mask_from_info: bool = False) -> None:
        super().__init__(env)
        found = leaves_of(env.observation_space)
        self._spaces = {leaf.path: space for leaf, space in found}
        leaves = [leaf for leaf, _ in found]
        if mask_from_info:
            if len(leaves) == 1 and leaves[0].path == ():  # a single array gets a name beside the mask
                leaves = [leaves[0]._replace(path=("observation",))]
            leaves.append(Leaf((layout.MASK,), (choices(env.action_space),)))
        self._mask_from_info = mask_from_info
        self._leaves, self.layout = layout.arranged(leaves)
        self.observation_space = spaces.Box(-np.inf, np.inf, (layout.size(self.layout),), np.float32)

    def _flat(self, observation: Any, info: Any) -> np.ndarray:
        rows = []
        for leaf in self._leaves:
            if self._mask_from_info and leaf.path == (layout.MASK,):
                if layout.MASK not in info:
                    raise Wrong("returned no info['action_mask'], which env.mask_from_info asks for")
                rows.append(np.asarray(info[layout.MASK], np.float32).ravel())
                continue
            path = () if () in self._spaces else leaf.path
            part = layout.look_up(observation, path)
            rows.append(np.asarray(spaces.flatten(self._spaces[path], part), np.float32).ravel())
        return np.concatenate(rows)

    def reset(self, **arguments: Any) -> Any:
        observation, info = self.env.reset(**arguments)
        return self._flat(observation, info), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._flat(observation, info), reward, terminated, truncated, info


def flattened(env: Any, mask_from_info: bool, name: str) -> tuple[Any, tuple[Part, ...]]:
    """The environment with one Box as observation, and the layout of that; () where nothing was done."""
    if isinstance(env.observation_space, spaces.Box) and not mask_from_info:
        return env, ()
    try:
        flat = Flat(env, mask_from_info)
    except UserError as error:
        raise UserError(f"env {name!r} {error}") from None
    return flat, flat.layout
