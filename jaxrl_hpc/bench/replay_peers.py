"""The other libraries in `bench replay`, on the same work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.bench.replay_cases import (
    ADDED,
    ReplayCase,
    compiled_loop,
    filled,
    new_priority,
    python_calls,
    repeats_for,
    transitions,
)


def flashbax_cases(capacity: int, batch: int, ops: tuple[str, ...]) -> Iterator[ReplayCase]:
    """flashbax's binary tree, updated the way its own buffers do on CPU."""
    from flashbax.buffers import sum_tree as peer

    def start() -> Any:
        values = np.random.default_rng(0).exponential(size=capacity).astype(np.float32)
        tree = peer.set_batch_bincount(peer.init(capacity), jnp.arange(capacity), jnp.asarray(values))
        spread = (np.arange(batch) * 7919 % capacity).astype(np.int32)
        return tree, jnp.asarray(spread), jnp.ones(batch)

    def add(state: Any, key: Any, i: Any) -> Any:
        place = (i * ADDED + jnp.arange(ADDED)) % capacity
        return (peer.set_batch_scan(state[0], place, jnp.ones(ADDED)), *state[1:])

    def sample(state: Any, key: Any, i: Any) -> Any:
        index = peer.stratified_sample(state[0], batch, key)
        return state[0], index, peer.get(state[0], index)

    def update(state: Any, key: Any, i: Any) -> Any:
        index = (state[1] + 997) % capacity
        return peer.set_batch_scan(state[0], index, state[2]), index, state[2]

    def cycle(state: Any, key: Any, i: Any) -> Any:
        tree, index, mass = sample(add(state, key, i), key, i)
        return peer.set_batch_scan(tree, index, new_priority(mass, i)), index, mass

    steps = {"add": add, "sample": sample, "update": update, "cycle": cycle}
    for op in ops:
        yield ReplayCase(
            "flashbax", op, capacity, batch, 2, compiled_loop(steps[op], start(), repeats_for(batch) // 2)
        )


def payload_flashbax(capacity: int, batch: int) -> Iterator[ReplayCase]:
    import flashbax

    buffer = flashbax.make_prioritised_item_buffer(
        max_length=capacity, min_length=1, sample_batch_size=batch, add_batches=True
    )
    data = jax.tree.map(lambda x: jnp.asarray(x[:, 0]), transitions(ADDED)._asdict())
    empty = buffer.init(jax.tree.map(lambda x: x[0], data))
    held = [filled(lambda state: buffer.add(state, data), empty, capacity)]
    add = jax.jit(buffer.add, donate_argnums=0)
    sample = jax.jit(buffer.sample)
    update = jax.jit(buffer.set_priorities, donate_argnums=0)
    key = jax.random.key(0)
    indices = sample(held[0], key).indices
    priority = jnp.ones(batch)

    def run_add() -> Any:
        held[0] = add(held[0], data)
        return held[0].current_index

    def run_update() -> Any:
        held[0] = update(held[0], indices, priority)
        return held[0].current_index

    for op, run in {"add": run_add, "sample": lambda: sample(held[0], key), "update": run_update}.items():
        yield ReplayCase("flashbax", f"payload {op}", capacity, batch, 2, python_calls(run, 50))


def payload_cpprb(capacity: int, batch: int) -> Iterator[ReplayCase]:
    import cpprb

    fields = {name: {"shape": 4} for name in ("obs", "next_obs")}
    fields |= {name: {} for name in ("action", "reward", "discount", "last")}
    buffer = cpprb.PrioritizedReplayBuffer(capacity, fields)
    data = {name: x[:, 0] for name, x in transitions(ADDED)._asdict().items() if name in fields}
    many = {name: np.resize(x, (capacity // 4, *x.shape[1:])) for name, x in data.items()}
    for _ in range(4):
        buffer.add(**many)
    index, priority = buffer.sample(batch)["indexes"].copy(), np.ones(batch)
    runs = {
        "add": lambda: buffer.add(**data),
        "sample": lambda: buffer.sample(batch),
        "update": lambda: buffer.update_priorities(index, priority),
    }
    for op, run in runs.items():
        yield ReplayCase("cpprb", f"payload {op}", capacity, batch, 2, python_calls(run, 50))


def payload_numba(capacity: int, batch: int) -> Iterator[ReplayCase]:
    """A plain binary tree in arrays, compiled by numba, with one array per field."""
    import numba

    leaves = 1 << (capacity - 1).bit_length()
    tree = np.zeros(2 * leaves)

    @numba.njit
    def update(tree: Any, index: Any, priority: Any) -> None:
        for i in range(index.size):
            node = index[i] + leaves
            tree[node] = priority[i]
            while node > 1:
                node //= 2
                tree[node] = tree[2 * node] + tree[2 * node + 1]

    @numba.njit
    def find(tree: Any, index: Any) -> None:
        for i in range(index.size):
            mass = (i + np.random.random()) / index.size * tree[1]  # noqa: NPY002 (numba's own generator)
            node = 1
            while node < leaves:
                node *= 2
                if mass >= tree[node]:
                    mass -= tree[node]
                    node += 1
            index[i] = node - leaves

    data = {k: x[:, 0] for k, x in transitions(ADDED)._asdict().items() if k != "extras"}
    fields = {k: np.zeros((capacity, *x.shape[1:]), x.dtype) for k, x in data.items()}
    update(tree, np.arange(capacity), np.ones(capacity))
    head, index, priority = [0], np.zeros(batch, np.int64), np.ones(batch)

    def add() -> None:
        place = (head[0] + np.arange(ADDED)) % capacity
        for name, array in fields.items():
            array[place] = data[name]
        update(tree, place, np.ones(ADDED))
        head[0] += ADDED

    def sample() -> dict[str, np.ndarray]:
        find(tree, index)
        return {name: array[index] for name, array in fields.items()}

    runs: dict[str, Callable] = {
        "add": add,
        "sample": sample,
        "update": lambda: update(tree, index, priority),
    }
    for op, run in runs.items():
        yield ReplayCase("numba", f"payload {op}", capacity, batch, 2, python_calls(run, 50))


def payload_torchrl(capacity: int, batch: int) -> Iterator[ReplayCase]:
    """torchrl's C++ tree without payload, which favours it."""
    import torch
    from torchrl._torchrl import SumSegmentTreeFp32

    tree = SumSegmentTreeFp32(capacity)
    tree[torch.arange(capacity)] = torch.ones(capacity)
    head, priority = [0], torch.ones(batch)

    def sample() -> Any:
        mass = torch.rand(batch) * tree.query(0, capacity)
        return tree.scan_lower_bound(mass)

    def add() -> None:
        tree[(head[0] + torch.arange(ADDED)) % capacity] = torch.ones(ADDED)
        head[0] += ADDED

    index = sample()

    def update() -> None:
        tree[index] = priority

    for op, run in {"add": add, "sample": sample, "update": update}.items():
        yield ReplayCase("torchrl (tree only)", f"payload {op}", capacity, batch, 2, python_calls(run, 50))


PAYLOAD: dict[str, Callable[[int, int], Iterator[ReplayCase]]] = {
    "flashbax": payload_flashbax,
    "cpprb": payload_cpprb,
    "numba": payload_numba,
    "torchrl": payload_torchrl,
}


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
