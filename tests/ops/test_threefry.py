"""The compiled hash against JAX's own words, in programs of all shapes; exports do without it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from jaxrl_hpc.ops import threefry


def words(shape: tuple[int, ...], seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (1000,)])
def test_written_out_and_compiled_agree(shape: tuple[int, ...]) -> None:
    assert threefry.install(), "the library was not compiled"
    arguments = (words((), 0), words(shape, 1), words(shape, 2), words(shape, 3))
    for a, b in zip(jax.jit(threefry.compiled)(*arguments), threefry.written_out(*arguments), strict=True):
        np.testing.assert_array_equal(a, jnp.broadcast_to(b, shape))


def test_known_answers() -> None:
    """From the Random123 distribution's known-answer tests for threefry2x32 with 20 rounds."""
    cases = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    for key, count, wanted in cases:
        arguments = [jnp.uint32(word) for word in (*key, *count)]
        for hash_ in (threefry.written_out, jax.jit(threefry.compiled)):
            assert tuple(int(word) for word in hash_(*arguments)) == wanted
        assert tuple(int(w) for w in threefry_2x32(tuple(arguments[:2]), jnp.stack(arguments[2:]))) == wanted


def draws(key: jax.Array) -> list[jax.Array]:
    keys = jax.random.split(jax.random.fold_in(key, 3), 5)
    return [jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys), jax.random.permutation(key, 11)]


def test_programs_call_it_and_exports_do_not() -> None:
    threefry.install()
    key = jax.random.key(0)
    lowered = jax.jit(lambda key: draws(key)).lower(key)
    assert threefry.TARGET in lowered.as_text()
    exported = jax.export.export(jax.jit(lambda data: draws(jax.random.wrap_key_data(data))))(
        jax.random.key_data(key)
    )
    assert threefry.TARGET not in exported.mlir_module()
    for a, b in zip(lowered.compile()(key), exported.call(jax.random.key_data(key)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", [0, 1, 12_345, 2**31 - 1])
def test_keys_made_on_the_host_are_those_of_jax(seed: int) -> None:
    key = jax.random.key(seed)
    for streams in ((), (0,), (1,), (2**31 - 1, 7)):
        wanted = key
        for stream in streams:
            wanted = jax.random.fold_in(wanted, stream)
        found = threefry.host_key(seed, *streams)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(wanted))
