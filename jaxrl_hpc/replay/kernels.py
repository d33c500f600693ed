"""Which implementation of the sum tree runs: compiled for CPUs, or pure JAX everywhere else.

Both give the same results bit for bit. `auto` decides when a program is lowered, by the platform it is
lowered for: the compiled one on CPU if the library is there, else pure JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import lax

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay import native, sum_tree
from jaxrl_hpc.replay.sum_tree import TreeLayout
from jaxrl_hpc.types import Array

Kernel = Literal["auto", "native", "jax"]


class Operations(NamedTuple):
    """The sum tree's operations; see the functions of the same name in `sum_tree`."""

    find: Callable[[Array, Array], tuple[Array, Array]]  # (tree, words [N, 2])
    sample: Callable[[Array, Array], tuple[Array, Array]]  # (tree, seed [2])
    update: Callable[[Array, Array, Array], Array]  # (tree, index [N], priority [N])
    revive: Callable[[Array, Array, Array], Array]  # the same, also where leaves are empty
    assign: Callable[[Array, Array, Array], Array]  # (tree, start [], priority [M])


def operations(shape: TreeLayout, kernel: Kernel, *, number: int, stratified: bool) -> Operations:
    """The operations on trees of one layout, with `number` draws per sample."""
    if kernel == "native" and not native.available():
        raise UserError(
            "replay.kernel is native, but the compiled sum tree is missing: reinstall the package with a "
            "C++ compiler (pip install . in a checkout), or use kernel auto"
        )
    if kernel == "auto" and not native.available():
        kernel = "jax"

    def pick(compiled: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
        if kernel == "jax":
            return plain
        if kernel == "native":
            return compiled
        return lambda *arguments: lax.platform_dependent(*arguments, cpu=compiled, default=plain)

    def cleaned(operation: Callable[..., Array]) -> Callable[..., Array]:
        # Zero stays zero, everything else is clipped, as the compiled tree requires.
        def call(tree: Array, where: Array, priority: Array) -> Array:
            return operation(tree, where, jnp.where(priority == 0, 0.0, sum_tree.clip(priority)))

        return call

    def bind(name: str, *fixed: object) -> Callable[..., Any]:
        compiled, plain = getattr(native, name), getattr(sum_tree, name)
        return pick(lambda *a: compiled(shape, *a, *fixed), lambda *a: plain(shape, *a, *fixed))

    return Operations(
        find=bind("find"),
        sample=bind("sample", number, stratified),
        update=cleaned(bind("update", False)),
        revive=cleaned(bind("update", True)),
        assign=cleaned(bind("assign")),
    )
