"""Lanes of a workflow that runs programs of its own, on many devices and ranks.

The same interface as `Fleet`: what differs is that the workflow's functions are called as they are, that the
state is divided into logical shards, and that copies of the learner on all devices are compared.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.build import Parts
from jaxrl_hpc.comm.layout import Layout
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.fleet import TRAIN_STREAM, Fleet, Lane
from jaxrl_hpc.io.shards import ShardedCheckpointer
from jaxrl_hpc.types import Array, PyTree


class HostedFleet(Fleet):
    """Lanes one after the other, each on all devices. Evaluation happens on the first device of rank 0."""

    def __init__(self, parts: Parts, lanes: Sequence[Lane], episodes: int) -> None:
        self.layout: Layout = parts.workflow.programs.layout
        super().__init__(parts, lanes, "solo", episodes, self.layout.devices[:1])
        self.ranks = world()

    def state_shape(self) -> PyTree:
        keys, hypers = self._arguments(self.groups[0])
        return jax.eval_shape(self.parts.workflow.init, keys, hypers)

    def compile(self, training: bool = True) -> None:
        """Evaluation where it will happen; the others by running no iterations of a fresh state."""
        if self.ranks.first:
            super().compile(training=False)
        start = time.perf_counter()
        if training:
            _, metrics = self.parts.workflow.step(self._fresh(0), 0)
            jax.block_until_ready(metrics)
        self.compile_seconds += time.perf_counter() - start

    def _fresh(self, lane: int) -> PyTree:
        key, hypers = self._arguments(self.groups[lane])
        return self.parts.workflow.init(self._stream(key, TRAIN_STREAM), hypers)

    def initialise(self) -> None:
        warmup = self.parts.workflow.warmup
        fresh = [self._fresh(lane) for lane in range(len(self.lanes))]
        self.states = [warmup(state) if warmup else state for state in fresh]
        self.check()

    def load(self, states: Sequence[PyTree]) -> None:
        """Copied: a donated buffer must not be NumPy's memory."""
        self.states = [
            type(state)(
                jax.device_put(jax.tree.map(jnp.copy, state.shared), self.layout.replicated),
                jax.device_put(jax.tree.map(jnp.copy, state.own), self.layout.divided),
            )
            for state in states
        ]
        self.check()

    def check(self) -> None:
        """Refuse to go on with learners that are not the same on all devices and ranks."""
        self.per_lane(self.step(0))

    def step(self, iterations: int) -> list[dict[str, Array]]:
        metrics = []
        for i, state in enumerate(self.states):
            self.states[i], values = self.parts.workflow.step(state, iterations)
            metrics.append(values)
        return metrics

    def per_lane(self, results: Sequence[PyTree]) -> list[PyTree]:
        """Results on the host; those of training have been checked for copies that differ."""
        host = super().per_lane(results)
        for lane in host:
            if isinstance(lane, dict):
                compare_replicas(self.layout, lane.pop("replicas"))
        return host

    def place(self) -> str:
        return self.layout.describe()

    def checkpointer(self, directory: Path, keep: int = 2) -> Any:
        return ShardStore(self, directory, keep)


def compare_replicas(layout: Layout, marks: np.ndarray) -> None:
    """Fingerprints [S] of the learner that computed with each shard must agree."""
    values, counts = np.unique(marks, return_counts=True)
    if len(values) == 1:
        return
    usual = values[counts == counts.max()]
    expected = marks[0] if marks[0] in usual else usual[0]
    per_device = layout.local // len(layout.devices)
    odd = {
        (layout.rank_of(int(s)), int(s) % layout.local // per_device)
        for s in np.flatnonzero(marks != expected)
    }
    where = ", ".join(f"rank {rank} device {device}" for rank, device in sorted(odd))
    usual_rank = layout.rank_of(int(np.argmax(marks == expected)))
    raise RuntimeError(
        f"the learners have drifted apart: {where} not as rank {usual_rank}; "
        "a device computes wrongly or a program is not deterministic; resume from the last checkpoint"
    )


class ShardStore:
    """A fleet's checkpoints by logical shard; see `io/shards.py`. A shard's part holds it of all lanes."""

    def __init__(self, fleet: HostedFleet, directory: Path, keep: int) -> None:
        self.fleet, layout = fleet, fleet.layout
        self.numbers = range(layout.first, layout.first + layout.local)
        self._files = ShardedCheckpointer(directory, self.numbers, fleet.ranks, keep)

    def latest(self) -> int | None:
        return self._files.latest()

    def wait(self) -> None:
        """Saves are not in the background."""

    def save(self, step: int, states: Sequence[PyTree], host: dict[str, Any]) -> None:
        shared = [jax.tree.map(lambda x: x.addressable_data(0), state.shared) for state in states]
        parts = {
            number: [part_of(self.fleet.layout, state.own, i) for state in states]
            for i, number in enumerate(self.numbers)
        }
        self._files.save(step, shared, parts, host)

    def restore(self, shapes: Sequence[PyTree]) -> tuple[int, list[PyTree], dict[str, Any]]:
        def one(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)

        shared = [state.shared for state in shapes]
        part = [jax.tree.map(one, state.own) for state in shapes]
        step, shared, parts, host = self._files.restore(shared, part)
        states = []
        for lane, like in enumerate(shapes):
            mine = [parts[number][lane] for number in self.numbers]
            own = jax.tree.map(lambda *leaves: stack(leaves), *mine)
            states.append(type(like)(shared[lane], own))
        return step, states, host


def stack(leaves: Sequence[Any]) -> Any:
    """NumPy arrays on the host, typed keys where they are."""
    return np.stack(leaves) if isinstance(leaves[0], np.ndarray) else jnp.stack(leaves)


def part_of(layout: Layout, own: PyTree, local: int) -> PyTree:
    """One shard's part, without its axis: on a CPU a view of the same memory."""
    device, place = divmod(local, layout.local // len(layout.devices))

    def take(leaf: Array) -> Any:
        data = leaf.addressable_data(device)
        plain = not jnp.issubdtype(data.dtype, jax.dtypes.prng_key)
        return np.asarray(data)[place] if plain and layout.devices[0].platform == "cpu" else data[place]

    return jax.tree.map(take, own)
