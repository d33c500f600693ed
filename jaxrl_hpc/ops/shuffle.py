"""Random orders of n numbers, mostly without sorting.

A sort of random numbers is slow on CPUs and accelerators alike. Where n = rows x columns is about a square,
each round rotates every column of that grid by its own random amount, then every row by its own random
amount: a bijection made of additions and lookups in small tables (a Feistel network with truly random round
functions). After `ROUNDS` rounds pairs of cells are uniformly distributed (tests compare frequencies with
those of true permutations). A long, thin grid would not mix: n without such factors, and small n, are sorted.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl_hpc.types import Array

ROUNDS = 4
SMALLEST_SIDE = 16  # of a grid; fewer numbers are sorted as quickly
LONGEST_RATIO = 4  # of its sides


def random_orders(key: Array, count: int, size: int) -> Array:
    """`count` independent random orders of the numbers 0 … size - 1, as [count, size] int32.

    Args:
      key: consumed.
      count: how many orders.
      size: how many numbers; any, the faster the closer to a product of two similar factors.
    """
    rows, columns = grid_of(size)
    if rows < SMALLEST_SIDE or columns > LONGEST_RATIO * rows:
        return jnp.argsort(jax.random.bits(key, (count, size)), axis=-1).astype(jnp.int32)
    return _grid_orders(key, count, rows, columns)


def grid_of(size: int) -> tuple[int, int]:
    """The two factors of `size` that are closest to each other, the smaller first."""
    rows = next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)
    return rows, size // rows


def _grid_orders(key: Array, count: int, rows: int, columns: int) -> Array:
    draws = jax.random.uniform(key, (count, ROUNDS, columns + rows))

    def table(uniform: Array, size: int) -> Array:
        return jnp.minimum((uniform * size).astype(jnp.int32), size - 1)

    def look_up(table: Array, place: Array) -> Array:
        found: Array = table.at[place].get(mode="promise_in_bounds")
        return found

    by_column, by_row = table(draws[..., :columns], rows), table(draws[..., columns:], columns)

    def turn(cell: tuple[Array, Array], by: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        row, column = cell
        row = row + look_up(by[0], column)
        row = jnp.where(row >= rows, row - rows, row)
        column = column + look_up(by[1], row)
        return (row, jnp.where(column >= columns, column - columns, column)), None

    def one(by_column: Array, by_row: Array) -> Array:
        row = jnp.repeat(jnp.arange(rows, dtype=jnp.int32), columns)
        column = jnp.tile(jnp.arange(columns, dtype=jnp.int32), rows)
        # a loop, so that XLA does not compute the orders anew for everything that is put into this order
        (row, column), _ = jax.lax.scan(turn, (row, column), (by_column, by_row))
        return row * columns + column

    return jax.vmap(one)(by_column, by_row)
