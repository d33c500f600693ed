"""Our cases of `bench replay`, and how everything is timed.

Tree only, inside a compiled loop: add 16 priorities, sample B, update B, and the three as one cycle. With
payload, called from Python: transitions of a small task (two observations of 4 numbers, action, reward,
two flags), add 16, sample B, update B.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_hpc.replay import kernels, prioritised, sum_tree
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Replay, Transition

ADDED = 16


class ReplayCase(NamedTuple):
    """One cell of the table. `measure` runs it once and gives CPU microseconds per operation."""

    impl: str
    op: str
    capacity: int
    batch: int
    fanout: int  # 0 where it has none
    measure: Callable[[], float]


def _cpu_microseconds(run: Callable[[], Any], repeats: int) -> float:
    before = time.process_time()
    run()
    return (time.process_time() - before) / repeats * 1e6


def compiled_loop(step: Callable, state: Any, repeats: int) -> Callable[[], float]:
    """Times `repeats` of step(state, key, i) -> state inside one compiled, donated loop."""

    def run(state: Any, key: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            state, key = carry
            key, step_key = jax.random.split(key)
            return step(state, step_key, i), key

        return lax.fori_loop(0, repeats, body, (state, key))

    program = jax.jit(run, donate_argnums=0)
    held = [jax.block_until_ready(program(state, jax.random.key(0)))]

    def measure() -> float:
        def once() -> None:
            held[0] = jax.block_until_ready(program(*held[0]))

        return _cpu_microseconds(once, repeats)

    return measure


def repeats_for(batch: int) -> int:
    return 2_000 if batch <= 64 else 400


def tree_cases(
    kernel: kernels.Kernel, capacity: int, batch: int, fanout: int, ops: tuple[str, ...]
) -> Iterator[ReplayCase]:
    """Our tree: kernel "auto" (compiled on CPU) or "jax"."""
    shape = sum_tree.layout(capacity, fanout)
    operation = kernels.operations(shape, kernel, number=batch, stratified=True)

    def start() -> Any:
        values = np.random.default_rng(0).exponential(size=capacity).astype(np.float32)
        spread = (np.arange(batch) * 7919 % capacity).astype(np.int32)
        return sum_tree.build(shape, jnp.asarray(values)), jnp.asarray(spread), jnp.ones(batch)

    def add(state: Any, key: Any, i: Any) -> Any:
        return (operation.assign(state[0], i * ADDED % capacity, jnp.ones(ADDED)), *state[1:])

    def sample(state: Any, key: Any, i: Any) -> Any:
        return (state[0], *operation.sample(state[0], sum_tree.seed(key)))

    def update(state: Any, key: Any, i: Any) -> Any:
        index = (state[1] + 997) % capacity
        return operation.update(state[0], index, state[2]), index, state[2]

    def cycle(state: Any, key: Any, i: Any) -> Any:
        tree, index, mass = sample(add(state, key, i), key, i)
        return operation.update(tree, index, new_priority(mass, i)), index, mass

    name = "jaxrl_hpc" if kernel == "auto" else "jaxrl_hpc (pure JAX)"
    steps = {"add": add, "sample": sample, "update": update, "cycle": cycle}
    for op in ops:
        repeats = repeats_for(batch) // (4 if kernel == "jax" else 1)
        yield ReplayCase(name, op, capacity, batch, fanout, compiled_loop(steps[op], start(), repeats))


def new_priority(mass: Any, i: Any) -> Any:
    return mass * 0.9 + 0.01 * (i % 7).astype(jnp.float32)


def transitions(number: int) -> Transition:
    rng = np.random.default_rng(1)
    observation = rng.normal(size=(number, 1, 4)).astype(np.float32)
    fields: dict[str, Any] = {
        "obs": observation,
        "action": np.zeros((number, 1), np.int32),
        "reward": np.ones((number, 1), np.float32),
        "discount": np.ones((number, 1), np.float32),
        "last": np.zeros((number, 1), bool),
        "next_obs": observation + 1,
        "extras": (),
    }
    return Transition(**fields)


def python_calls(run: Callable[[], Any], repeats: int) -> Callable[[], float]:
    run()

    def measure() -> float:
        def many() -> None:
            result = None
            for _ in range(repeats):
                result = run()
            jax.block_until_ready(result)

        return _cpu_microseconds(many, repeats)

    return measure


def filled(add: Callable, state: Any, capacity: int) -> Any:
    """A memory after `capacity` items were added."""
    fill = jax.jit(lambda s: lax.fori_loop(0, capacity // ADDED, lambda _, s: add(s), s), donate_argnums=0)
    return jax.block_until_ready(fill(state))


def payload_ours(capacity: int, batch: int) -> Iterator[ReplayCase]:
    config = prioritised.Config(capacity=capacity, min_size=1)
    replay = prioritised.make(config, num_envs=1, unroll_length=ADDED, window=1, batch_size=batch)
    hypers = {name: jnp.float32(value) for name, value in traced_values(config).items()}
    data = jax.tree.map(jnp.asarray, transitions(ADDED))
    example = jax.tree.map(lambda x: x[0, 0], data)
    add = jax.jit(lambda state, data: replay.add(state, data, None), donate_argnums=0)
    sample = jax.jit(replay.sample)
    update = jax.jit(replay.prioritise, donate_argnums=0)
    held = [filled(lambda state: replay.add(state, data, None), replay.init(example, hypers), capacity)]
    key, progress = jax.random.key(0), jnp.float32(0.5)
    batch_now = sample(held[0], key, progress)
    priority = jnp.ones(batch)

    def run_add() -> Any:
        held[0] = add(held[0], data)
        return held[0].highest

    def run_update() -> Any:
        held[0] = update(held[0], batch_now.index, priority)
        return held[0].highest

    runs = {"add": run_add, "sample": lambda: sample(held[0], key, progress), "update": run_update}
    for op, run in runs.items():
        yield ReplayCase("jaxrl_hpc", f"payload {op}", capacity, batch, 8, python_calls(run, 200))


def insertion_cases(capacity: int, unrolls: int) -> Iterator[ReplayCase]:
    """Adding unrolls one by one, or all of them at once; microseconds for all of them."""
    config = prioritised.Config(capacity=capacity, min_size=1)
    data = jax.tree.map(jnp.asarray, transitions(unrolls))
    example = jax.tree.map(lambda x: x[0, 0], data)

    def replay(length: int) -> Replay:
        return prioritised.make(config, num_envs=1, unroll_length=length, window=1, batch_size=32)

    single, whole = replay(1), replay(unrolls)

    def each(state: Any, key: Any, i: Any) -> Any:
        def one(j: Any, state: Any) -> Any:
            unroll = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, j, 1), data)
            return single.add(state, unroll, None)

        return lax.fori_loop(0, unrolls, one, state)

    def together(state: Any, key: Any, i: Any) -> Any:
        return whole.add(state, data, None)

    for name, memory, step in (("insert one by one", single, each), ("insert at once", whole, together)):
        hypers = {key: jnp.float32(value) for key, value in traced_values(config).items()}  # donated
        start = memory.init(example, hypers)
        yield ReplayCase("jaxrl_hpc", name, capacity, unrolls, config.fanout, compiled_loop(step, start, 100))
