"""Torsos: networks that turn observations into features.

An MLP for vectors; for images with channels last convolutions and then an MLP. The default convolution
is that of Young & Tian (2019) for MinAtar, 16 filters of 3 x 3; their one hidden layer of 128 units is
`hidden: [128]`, as in the configs for MinAtar. Two stacks for large images have names: `nature`, that of DQN
(Mnih et al. 2015, usually with `hidden: [512]`), and `impala`, the deep residual one (Espeholt et al. 2018,
`hidden: [256]`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import flax.linen as nn
import jax.numpy as jnp
from pydantic import Field, model_validator

from jaxrl_hpc.networks.convolution import Convolution
from jaxrl_hpc.networks.dense import hidden_dense
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


IMAGE_TORSOS = ("cnn", "nature", "impala")
IMPALA = (16, 32, 32)


class NetworkConfig(Schema):
    """The network's body."""

    torso: Literal["auto", "mlp", "cnn", "nature", "impala"] = static(
        "auto",
        "auto: cnn for observations [H, W, C], else mlp; nature, impala: the convolutions of these papers",
    )
    hidden: tuple[Width, ...] = static(
        (64, 64), "widths of the hidden layers", min_length=1, max_length=1_000
    )
    activation: Activation = static("relu", "activation between layers")
    filters: tuple[Width, ...] = static((16,), "cnn: filters per convolution", min_length=1, max_length=1_000)
    kernel: Side | tuple[Side, ...] = static(3, "cnn: kernel side, of all convolutions or of each")
    stride: Side | tuple[Side, ...] = static(1, "cnn: stride, of all convolutions or of each")
    layer_norm: bool = static(False, "layer normalisation after each hidden layer")
    dtype: Literal["float32", "bfloat16"] = static(
        "float32",
        "type of the operands of hidden layers' products; parameters, sums and everything else are float32",
    )

    @model_validator(mode="after")
    def _one_each(self) -> NetworkConfig:
        if self.torso in ("nature", "impala") and (self.filters, self.kernel, self.stride) != ((16,), 3, 1):
            raise ValueError(
                f"torso {self.torso!r} has filters, kernels and strides of its own; leave filters, kernel "
                "and stride out, or set torso to cnn"
            )
        for name in ("kernel", "stride"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != len(self.filters):
                raise ValueError(f"{name} has {len(value)} numbers for {len(self.filters)} filters")
        return self


class MLP(nn.Module):
    """Dense layers, each followed by the activation. Dropout is active where a key `dropout` is given."""

    hidden: Sequence[int]
    activation: str = "relu"
    layer_norm: bool = False
    dropout: float = 0.0
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in self.hidden:
            x = hidden_dense(width, self.dtype)(x)
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
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for filters, kernel, stride in zip(self.filters, self.kernel, self.stride, strict=True):
            x = Convolution(filters, kernel, stride, self.dtype)(x)
            x = ACTIVATIONS[self.activation](x)
        x = x.reshape(*x.shape[:-3], -1)
        return MLP(self.hidden, self.activation, self.layer_norm, dtype=self.dtype)(x)


class ResidualCNN(nn.Module):
    """Stages of a convolution, a pool that halves the sides, and two residual blocks; then an MLP."""

    filters: Sequence[int]
    hidden: Sequence[int]
    activation: str = "relu"
    layer_norm: bool = False
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [..., H, W, C]
        activation = ACTIVATIONS[self.activation]

        def convolve(x: Array, filters: int) -> Array:  # 3 x 3, sides stay
            sides = [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)]
            return Convolution(filters, 3, 1, self.dtype)(jnp.pad(x, sides))

        x = as_floats(x)
        for filters in self.filters:
            x = halved(convolve(x, filters))
            for _ in range(2):
                x = x + convolve(activation(convolve(activation(x), filters)), filters)
        x = activation(x)
        x = x.reshape(*x.shape[:-3], -1)
        return MLP(self.hidden, self.activation, self.layer_norm, dtype=self.dtype)(x)


def halved(x: Array) -> Array:
    """Maxima of 3 x 3 at every second place: [..., H, W, C] -> [..., ceil(H / 2), ceil(W / 2), C]."""
    lead = x.shape[:-3]
    pooled: Array = nn.max_pool(x.reshape(-1, *x.shape[-3:]), (3, 3), (2, 2), "SAME")
    return pooled.reshape(*lead, *pooled.shape[1:])


def make_torso(config: NetworkConfig, spec: EnvSpec, rank: int | None = None) -> nn.Module:
    """The torso for observations as `spec` describes them."""
    rank = len(spec.obs_shape) if rank is None else rank
    kind = config.torso
    if kind == "auto":
        kind = "cnn" if rank == 3 else "mlp"
    if kind == "nature":
        stack = (32, 64, 64), (8, 4, 3), (4, 2, 1), config.hidden
        return CNN(*stack, config.activation, config.layer_norm, config.dtype)
    if kind == "impala":
        return ResidualCNN(IMPALA, config.hidden, config.activation, config.layer_norm, config.dtype)
    if kind == "cnn":
        depth = len(config.filters)
        kernel, stride = (v if isinstance(v, tuple) else (v,) * depth for v in (config.kernel, config.stride))
        sizes = config.filters, kernel, stride, config.hidden
        return CNN(*sizes, config.activation, config.layer_norm, config.dtype)
    return MLP(config.hidden, config.activation, config.layer_norm, dtype=config.dtype)


def as_features(obs: Array, spec: EnvSpec, torso: str = "auto") -> Array:
    """Observation as float32, flattened unless a CNN reads it; images of bytes stay what they are, because
    torsos turn them into floats inside their first layer."""
    rank = len(spec.obs_shape)
    if torso in IMAGE_TORSOS or (torso == "auto" and rank == 3):
        return obs if obs.dtype == jnp.uint8 else obs.astype(jnp.float32)
    obs = as_floats(obs)
    return obs.reshape(*obs.shape[: obs.ndim - rank], -1)


def as_floats(obs: Array) -> Array:
    """Bytes to [0, 1], booleans to 0/1."""
    return obs.astype(jnp.float32) / 255.0 if obs.dtype == jnp.uint8 else obs.astype(jnp.float32)
