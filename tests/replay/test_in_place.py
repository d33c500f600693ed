"""Compiled programs change the replay in place: no operation makes a second array of its size."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.replay import native, prioritised, sequence, uniform
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Transition

CAPACITY, T, B, N, UPDATES = 2**14, 4, 8, 32, 2
SHAPED = re.compile(r"(?:ROOT )?%?([\w.-]+) = \w+\[([\d,]*)\]\S* ([\w-]+)\((.*)$")
# Operations that hand a buffer on or change it where it lies.
IN_PLACE = {
    "parameter",
    "get-tuple-element",
    "bitcast",
    "dynamic-update-slice",
    "scatter",
    "custom-call",
    "while",
    "tuple",
    "constant",
}


def large_operations(text: str, elements: int) -> list[str]:
    """Instructions of compiled HLO that produce a new array of at least so many elements."""
    roots: dict[str, str] = {}
    computation = ""
    for line in text.splitlines():
        if line.endswith("{") and "->" in line:
            computation = line.split()[1 if line.startswith("ENTRY") else 0].lstrip("%")
        elif line.strip().startswith("ROOT"):
            match = re.search(r"\]\S* ([\w-]+)\(", line)
            roots[computation] = match.group(1) if match else "tuple"
    found = []
    inside_fusion = False
    for line in text.splitlines():
        if line.endswith("{") and "->" in line:
            inside_fusion = "fused_computation" in line or "wrapped" in line
        match = SHAPED.match(line.strip())
        if match is None or inside_fusion:
            continue
        dims, operation, rest = match.group(2), match.group(3), match.group(4)
        if not dims or math.prod(map(int, dims.split(","))) < elements:
            continue
        if operation in ("fusion", "call"):
            called = re.search(r"(?:calls|to_apply)=%?([\w.-]+)", rest)
            operation = roots[called.group(1)] if called else operation
        if operation not in IN_PLACE:
            found.append(line.strip()[:160])
    return found


def training_program(module, options: dict, seeds: int):
    config = module.Config(capacity=CAPACITY, min_size=64, **options)
    replay = module.make(config, num_envs=B, unroll_length=T, window=3, batch_size=N)
    hypers = {name: jnp.float32(value) for name, value in traced_values(config).items()}
    observation = jnp.zeros((6, 6), jnp.uint8)
    example = Transition(
        obs=observation,
        action=jnp.int32(0),
        reward=jnp.float32(0),
        discount=jnp.float32(1),
        last=jnp.zeros((), bool),
        next_obs=observation,
        extras=(),
    )

    def iteration(carry, step):
        state, key, parameter = carry
        key, data_key = jax.random.split(key)
        unroll = jax.tree.map(
            lambda x: jax.random.uniform(data_key, (T, B, *x.shape)).astype(x.dtype), example
        )
        state = replay.add(state, unroll, None)
        norm = jnp.float32(0)
        for _ in range(UPDATES):
            key, sample_key = jax.random.split(key)
            batch = replay.sample(state, sample_key, step / 100)
            error = jnp.mean(batch.data.obs, (0, 2, 3)) + batch.data.reward.sum(0) - parameter
            parameter = parameter + 0.01 * jnp.mean(batch.weight * error)
            norm = norm + batch.weight.sum()  # a metric that nothing else depends on
            state = replay.prioritise(state, batch.index, jnp.abs(error))
        return (state, key, parameter), norm

    def run(carry, steps):
        def body(step, inner):
            carry, total = inner
            carry, norm = iteration(carry, step.astype(jnp.float32))
            return carry, total + norm

        return jax.lax.fori_loop(0, steps, body, (carry, jnp.float32(0)))

    def start(key):
        return replay.init(example, hypers), key, jnp.float32(0)

    if seeds:
        keys = jax.random.split(jax.random.key(0), seeds)
        return jax.vmap(run, (0, None)), jax.vmap(start)(keys)
    return run, start(jax.random.key(0))


CASES = [
    pytest.param(uniform, {"store_next": "by_index"}, 0, id="uniform-by-index"),
    pytest.param(uniform, {"store_next": "always"}, 4, id="uniform-vmap", marks=pytest.mark.full),
    pytest.param(prioritised, {"kernel": "jax"}, 0, id="prioritised-jax", marks=pytest.mark.full),
    pytest.param(prioritised, {"kernel": "auto"}, 0, id="prioritised-auto"),
    pytest.param(prioritised, {"kernel": "auto", "store_next": "by_index"}, 4, id="prioritised-vmap"),
    pytest.param(sequence, {"kernel": "auto", "stride": 2, "episodes": "within"}, 0, id="sequence"),
    pytest.param(prioritised, {"kernel": "jax"}, 4, id="prioritised-jax-vmap", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("module", "options", "seeds"), CASES)
def test_no_array_of_the_replays_size_is_made(module, options, seeds) -> None:
    run, carry = training_program(module, options, seeds)
    compiled = jax.jit(run, donate_argnums=0).lower(carry, 3).compile()
    assert large_operations(compiled.as_text(), CAPACITY) == []
    memory = compiled.memory_analysis()
    state_bytes = sum(x.nbytes for x in jax.tree.leaves(carry[0]))
    assert memory.temp_size_in_bytes < state_bytes / 2


def test_a_copy_would_be_seen() -> None:
    def run(tree, steps):
        def body(step, carry):
            tree, old = carry
            return tree.at[step].set(1.0), old + tree  # reads all of it: cannot be done in place

        return jax.lax.fori_loop(0, steps, body, (tree, tree))

    text = jax.jit(run).lower(jnp.zeros(CAPACITY), 3).compile().as_text()
    assert large_operations(text, CAPACITY) != []


@pytest.mark.parametrize("kernel", ["jax", "auto"])
def test_programs_can_be_exported_for_gpus(kernel: str) -> None:
    run, carry = training_program(prioritised, {"kernel": kernel}, 0)
    leaves, treedef = jax.tree.flatten(carry)

    def flat(leaves, steps):
        return jax.tree.leaves(run(treedef.unflatten(leaves), steps))

    exported = jax.export.export(jax.jit(flat), platforms=["cuda"])(leaves, 3)
    assert "jaxrl_hpc_sum_tree_" not in exported.mlir_module()


@pytest.mark.skipif(not native.available(), reason="the compiled sum tree was not built")
def test_both_kernels_and_vmap_give_the_same_bits() -> None:
    results = []
    for kernel in ("jax", "native"):
        run, carry = training_program(prioritised, {"kernel": kernel}, 3)
        results.append(jax.tree.map(np.asarray, jax.jit(run)(carry, 30)[0][0].tree))
    np.testing.assert_array_equal(*results)
