"""Pictures that an environment makes of an episode of its own accord, such as ExaBooster's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_hpc.fleet import Fleet


def draw_episode(fleet: Fleet, lane: int, label: str, key: Any, folder: Path) -> None:
    """An episode of one lane as the environment's own picture. `key` is consumed."""
    env, agent, actor = fleet.parts.env, fleet.parts.agent, fleet.actor(lane)
    assert env.picture is not None

    def act(carry: Any, obs: Any, key: Any) -> tuple[Any, Any]:
        one = jax.tree.map(lambda x: x[None], (carry, obs, key))
        action, carry, _ = agent.act(actor, *one, True)
        return action[0], jax.tree.map(lambda x: x[0], carry)

    carry = jax.tree.map(lambda x: x[0], agent.carry(jnp.zeros(1, jnp.int32)))
    env.picture(act, carry, key, label.upper().replace("_", " "), folder)
