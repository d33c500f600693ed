"""The passes of a convolution as compiled calls on CPUs, several times faster than XLA's own.

    forward   y[n, p]  = b + scale Σ_u x[n, s p + u] W[u]
    weights   dW[u]    = scale Σ_np x[n, s p + u] dy[n, p]
    inputs    dx[n, q] = Σ_{s p + u = q} W[u] dy[n, p]

Every pass has an equivalent in plain operations, for exported programs: the library may be missing where they
are loaded. Results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxrl_hpc.ops.ffi import register
from jaxrl_hpc.types import Array

LIBRARY = Path(__file__).with_name("libconvolution.so")
PREFIX = "jaxrl_hpc_convolution_"
SYMBOLS = {"forward": "ConvolutionForward", "weights": "ConvolutionWeights", "inputs": "ConvolutionInputs"}
AVX2, AVX512, BFLOAT16 = 1, 2, 3  # instruction sets
VECTOR = 16  # numbers of filters, or of channels of dx, must be multiples of this


class Settings(NamedTuple):
    """Settings of a layer, fixed when a program is traced."""

    stride: int
    scale: float  # of x
    half: bool  # operands are rounded to bfloat16
    level: int  # the highest level of instructions to use


@functools.cache
def level() -> int:
    """The instruction set to use on this processor; 0: the library is missing, or does not support it."""
    if not register(LIBRARY, {PREFIX + name: symbol for name, symbol in SYMBOLS.items()}):
        return 0
    return int(ctypes.cdll.LoadLibrary(str(LIBRARY)).ConvolutionLevel())


def suits(x: Array, kernel: Array, stride: int, half: bool) -> bool:
    """Whether to use the library for a layer: x [N, H, W, C], kernel [k, k, C, F]."""
    side, _, channels, filters = kernel.shape
    if min(x.shape[1:3]) < side or filters % VECTOR or side % stride or (half and channels % 2):
        return False
    if x.dtype not in (jnp.uint8, jnp.float32) or jax.default_backend() != "cpu":
        return False
    return level() >= (BFLOAT16 if half else AVX2)


@functools.cache
def one_pass(name: str, plain: Callable[..., Array]) -> Callable[..., Array]:
    """(operands, settings: Settings, …) -> what `plain` computes of the same arguments, by the library."""
    primitive = Primitive(f"convolution_{name}")

    def by_call(*operands: Array, settings: Settings, **more: Any) -> Array:
        shape = jax.eval_shape(functools.partial(plain, settings=settings, **more), *operands)
        attributes: dict[str, Any] = {"stride": np.int64(settings.stride), "half": settings.half}
        attributes["level"] = np.int64(settings.level)
        if name != "inputs":
            attributes["scale"] = np.float32(settings.scale)
        target: Callable[..., Array] = jax.ffi.ffi_call(PREFIX + name, shape)
        return target(*operands, **attributes)

    def shape_of(*operands: Any, **settings: Any) -> Any:
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
        found = jax.eval_shape(functools.partial(plain, **settings), *structs)
        return jax.core.ShapedArray(found.shape, found.dtype)

    call = mlir.lower_fun(by_call, multiple_results=False)
    written_out = mlir.lower_fun(plain, multiple_results=False)

    def lower(context: Any, *operands: Any, **settings: Any) -> Any:
        exported = context.module_context.lowering_parameters.for_export
        return (written_out if exported else call)(context, *operands, **settings)

    primitive.def_impl(lambda *x, **settings: jax.jit(functools.partial(primitive.bind, **settings))(*x))
    primitive.def_abstract_eval(shape_of)
    mlir.register_lowering(primitive, written_out)
    mlir.register_lowering(primitive, lower, platform="cpu")

    def bind(*operands: Array, **settings: Any) -> Array:
        def once(*operands: Array) -> Array:
            found: Array = primitive.bind(*operands, **settings)
            return found

        one_by_one: Callable[..., Array] = jax.custom_batching.sequential_vmap(once)  # when mapped
        return one_by_one(*operands)

    return bind
