"""A learned plant: an LSTM that predicts the next tick from the log so far.

As in EXARL (St. John et al., PRAB 24, 104601, 2021): rows of five channels, with VIMIN the value sent after
the row's error, go through stacked LSTM layers and a linear layer, which also sees the row itself, to VIMIN,
IMINER and LINFRQ one tick ahead. The environment takes IMINER from it and channels that no action controls
from the generator. A prediction is a mean; free runs add Gaussian noise with the size of the validation
residual, without which the error would shrink.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import serialization, struct

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.envs.exabooster.channels import SCALE
from jaxrl_hpc.envs.exabooster.generator import Loop, Signals, measured
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Array, PyTree

OUTPUTS = 3  # VIMIN, IMINER, LINFRQ
INPUTS = 5
MAX_SIZE = 16_384  # units of a layer, and layers


class Network(nn.Module):
    """Stacked LSTM and a linear layer, one tick at a time."""

    width: int
    layers: int

    @nn.compact
    def __call__(self, memory: tuple, row: Array) -> tuple[tuple, Array]:
        """memory: one (c, h) per layer; row […, 5] standardised -> […, 3] standardised."""
        hidden, kept = row, []
        for carry in memory:
            carry, hidden = nn.OptimizedLSTMCell(self.width)(carry, hidden)
            kept.append(carry)
        return tuple(kept), nn.Dense(OUTPUTS)(jnp.concatenate([hidden, row], axis=-1))


@struct.dataclass
class Surrogate:
    """A fitted network."""

    variables: PyTree
    noise: Array  # [] std of the one-step error of IMINER
    width: int = struct.field(pytree_node=False)
    layers: int = struct.field(pytree_node=False)

    def memory(self, shape: tuple[int, ...] = ()) -> tuple:
        """An empty memory."""
        zero = jnp.zeros((*shape, self.width))
        return tuple((zero, zero) for _ in range(self.layers))

    def predict(self, memory: tuple, row: Array) -> tuple[tuple, Array]:
        output: Any = Network(self.width, self.layers).apply(self.variables, memory, row)
        return output

    def follow(self, memory: tuple, rows: Array) -> tuple[tuple, Array]:
        """rows [T, …, 5] -> memory after them, predictions [T, …, 3] of the following ticks."""
        return jax.lax.scan(self.predict, memory, rows)


def initial(key: Array, width: int, layers: int) -> Surrogate:
    """An untrained network."""
    blank = Surrogate({}, jnp.zeros(()), width, layers)
    variables = Network(width, layers).init(key, blank.memory(), jnp.zeros(INPUTS))
    return Surrogate(variables, jnp.zeros(()), width, layers)


def respond_learned(
    surrogate: Surrogate, loop: Loop, vimin: Array, set_point: Array, exogenous: Array, signals: Signals
) -> Loop:
    """The learned plant's tick, in place of generator.respond.

    exogenous [3]: standardised LINFRQ, IB, MDAT40 of the tick in which vimin is sent.
    """
    sent = vimin * np.float32(1 / SCALE[0])
    error = measured(loop.error) * np.float32(1 / SCALE[1])
    memory, prediction = surrogate.predict(
        loop.memory, jnp.concatenate([jnp.stack([sent, error]), exogenous])
    )
    mean = prediction[1] * np.float32(SCALE[1])
    return Loop(
        error=mean + surrogate.noise * signals.noise - 10 * signals.set_point_change,
        inputs=(vimin - set_point, *loop.inputs[:2]),
        vimin=vimin,
        memory=memory,
    )


def save(path: Path | str, surrogate: Surrogate, report: dict) -> None:
    """One file: a line of JSON (sizes, how it was fitted, gate results), then the weights in msgpack."""
    header = {"width": surrogate.width, "layers": surrogate.layers, "report": report}
    weights = serialization.to_bytes({"variables": surrogate.variables, "noise": surrogate.noise})
    write_atomically(Path(path), json.dumps(header).encode() + b"\n" + weights)


def load(path: Path | str) -> tuple[Surrogate, dict]:
    """Load a file of `save`. Only UserError is raised if it is missing, damaged or of another format."""
    if not Path(path).is_file():
        raise UserError(
            f"surrogate {path}: no such file; make one with `jaxrl-hpc surrogate fit --out {path}`"
        )
    try:
        header_bytes, weights = Path(path).read_bytes().split(b"\n", 1)
        header = json.loads(header_bytes)
        width, layers, report = header["width"], header["layers"], header["report"]
        sizes_fit = all(type(size) is int and 1 <= size <= MAX_SIZE for size in (width, layers))
        if not sizes_fit or not isinstance(report, dict):
            raise ValueError(f"width {width!r}, layers {layers!r}")
        blank = jax.eval_shape(lambda: initial(jax.random.key(0), width, layers))
        expected = {"variables": blank.variables, "noise": blank.noise}
        filled = serialization.from_bytes(expected, weights)
        shapes = jax.tree.map(lambda leaf, want: np.shape(leaf) == want.shape, filled, expected)
        if not jax.tree.all(shapes):
            raise ValueError("weights of other shapes")
        filled = jax.tree.map(lambda leaf, want: jnp.asarray(leaf, want.dtype), filled, expected)
    except OSError:
        raise
    except Exception as error:  # msgpack, Flax and JSON each have their own
        raise UserError(f"surrogate {path}: damaged, or not a file of `jaxrl-hpc surrogate fit`") from error
    return Surrogate(filled["variables"], filled["noise"], width, layers), report
