"""World models: (state, action) -> (change of the state, reward, termination), one network or several.

All inputs and outputs are standardised by the caller; the last output is the logit of termination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import chex
import flax.linen as nn
import jax.numpy as jnp

from jaxrl_hpc.networks.dense import Dense
from jaxrl_hpc.networks.torso import MLP
from jaxrl_hpc.types import Array


class Prediction(NamedTuple):
    """Predictions of every member of the ensemble."""

    change: Array  # [members, N, D]
    reward: Array  # [members, N]
    end: Array  # [members, N] logit of termination


class WorldModel(nn.Module):
    """Members share no weights, so that they disagree where data is scarce."""

    members: int
    hidden: Sequence[int]
    state_size: int
    activation: str = "silu"

    @nn.compact
    def __call__(self, state: Array, action: Array) -> Prediction:  # [N, D], [N, A]
        chex.assert_rank([state, action], 2)
        x = jnp.concatenate([state, action], axis=-1)
        outputs = jnp.stack(
            [Dense(self.state_size + 2)(MLP(self.hidden, self.activation)(x)) for _ in range(self.members)]
        )
        return Prediction(outputs[..., :-2], outputs[..., -2], outputs[..., -1])
