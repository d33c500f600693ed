"""Random orders of the cells of a grid, without sorting.

A sort of random numbers is slow on CPUs and accelerators alike. Here each round turns every column by
a random amount of its own, then every row by a random amount of its own: a bijection of the grid, for
any shape, made of additions and lookups in small tables. Every cell goes everywhere with the same
probability after one round; after `ROUNDS` rounds pairs of cells do too (tests compare frequencies
with those of true shuffles).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_hpc.types import Array

ROUNDS = 4


def grid_orders(key: Array, count: int, rows: int, columns: int) -> Array:
    """`count` random orders of the numbers 0 … rows * columns - 1, as [count, rows * columns] int32.

    Args:
      key: consumed.
      count: how many orders.
      rows, columns: shape of the grid; any two factors, the closer to a square the better mixed.
    """
    draws = jax.random.uniform(key, (count, ROUNDS, columns + rows))

    def table(uniform: Array, size: int) -> Array:
        return jnp.minimum((uniform * size).astype(jnp.int32), size - 1)

    by_column, by_row = table(draws[..., :columns], rows), table(draws[..., columns:], columns)

    def one(by_column: Array, by_row: Array) -> Array:
        row = jnp.repeat(jnp.arange(rows, dtype=jnp.int32), columns)
        column = jnp.tile(jnp.arange(columns, dtype=jnp.int32), rows)
        for i in range(ROUNDS):
            row = row + by_column[i][column]
            row = jnp.where(row >= rows, row - rows, row)
            column = column + by_row[i][row]
            column = jnp.where(column >= columns, column - columns, column)
        return row * columns + column

    return jax.vmap(one)(by_column, by_row)
