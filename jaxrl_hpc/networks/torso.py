"""Torsos: what turns an observation into features.

An MLP for vectors; for images with channels last convolutions and then an MLP. The default convolution
is that of Young & Tian (2019) for MinAtar, 16 filters of 3 x 3; their one hidden layer of 128 units is
`hidden: [128]`, as in the configs for MinAtar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import flax.linen as nn
import jax.numpy as jnp
from pydantic import Field, model_validator

from jaxrl_hpc.networks.convolution import Convolution
from jaxrl_hpc.networks.dense import Dense
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import Array, EnvSpec

Side = Annotated[int, Field(ge=1, le=1_000)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
Activation = Literal["relu", "tanh", "silu", "gelu"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": nn.tanh,
    "silu": nn.silu,
    "gelu": nn.gelu,
}


class NetworkConfig(Schema):
    """The network's body."""

    torso: Literal["auto", "mlp", "cnn"] = static("auto", "auto: cnn for observations [H, W, C], else mlp")
    hidden: tuple[Width, ...] = static(
        (64, 64), "widths of the hidden layers", min_length=1, max_length=1_000
    )
    activation: Activation = static("relu", "activation between layers")
    filters: tuple[Width, ...] = static((16,), "cnn: filters per convolution", min_length=1, max_length=1_000)
    kernel: Side | tuple[Side, ...] = static(3, "cnn: kernel side, of all convolutions or of each")
    stride: Side | tuple[Side, ...] = static(1, "cnn: stride, of all convolutions or of each")
    layer_norm: bool = static(False, "layer normalisation after each hidden layer")

    @model_validator(mode="after")
    def _one_each(self) -> NetworkConfig:
        for name in ("kernel", "stride"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != len(self.filters):
                raise ValueError(f"{name} has {len(value)} numbers for {len(self.filters)} filters")
        return self


class MLP(nn.Module):
    """Dense layers, each followed by the activation. Dropout is at work where a key `dropout` is given."""

    hidden: Sequence[int]
    activation: str = "relu"
    layer_norm: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in self.hidden:
            x = Dense(width, kernel_init=nn.initializers.orthogonal(2**0.5))(x)
            if self.dropout:
                x = nn.Dropout(self.dropout, deterministic=not self.has_rng("dropout"))(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            x = ACTIVATIONS[self.activation](x)
        return x


class CNN(nn.Module):
    """Convolutions, then an MLP on the flattened features."""

    filters: Sequence[int]
    kernel: Sequence[int]
    stride: Sequence[int]
    hidden: Sequence[int]
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for filters, kernel, stride in zip(self.filters, self.kernel, self.stride, strict=True):
            x = Convolution(filters, kernel, stride)(x)
            x = ACTIVATIONS[self.activation](x)
        x = x.reshape(*x.shape[:-3], -1)
        return MLP(self.hidden, self.activation, self.layer_norm)(x)


def make_torso(config: NetworkConfig, spec: EnvSpec, rank: int | None = None) -> nn.Module:
    """The torso for observations as `spec` describes them."""
    rank = len(spec.obs_shape) if rank is None else rank
    kind = config.torso
    if kind == "auto":
        kind = "cnn" if rank == 3 else "mlp"
    if kind == "cnn":
        depth = len(config.filters)
        kernel, stride = (v if isinstance(v, tuple) else (v,) * depth for v in (config.kernel, config.stride))
        return CNN(config.filters, kernel, stride, config.hidden, config.activation, config.layer_norm)
    return MLP(config.hidden, config.activation, config.layer_norm)


def as_features(obs: Array, spec: EnvSpec, torso: str = "auto") -> Array:
    """Observation as float32: bytes to [0, 1], booleans to 0/1; flattened unless a CNN reads it."""
    rank = len(spec.obs_shape)
    if obs.dtype == jnp.uint8:
        obs = obs.astype(jnp.float32) / 255.0
    else:
        obs = obs.astype(jnp.float32)
    if torso == "cnn" or (torso == "auto" and rank == 3):
        return obs
    return obs.reshape(*obs.shape[: obs.ndim - rank], -1)
