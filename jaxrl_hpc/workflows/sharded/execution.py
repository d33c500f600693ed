"""Combines stages and collectives into one program with loops: for one device of a rank, or a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.sharding import PartitionSpec

from jaxrl_hpc.comm.collectives import Collectives, Kind, shape_of_one
from jaxrl_hpc.comm.layout import DEVICE, Layout
from jaxrl_hpc.types import PyTree
from jaxrl_hpc.workflows.sharded.state import IterationWork, ShardWork, Stage

Body = Callable[[IterationWork, ShardWork], tuple[IterationWork, ShardWork]]
SAME, DIVIDED = PartitionSpec(), PartitionSpec(DEVICE)
# XLA's algebraic simplifier replaces quotients by products with a reciprocal, and (a b) c by a (b c), where
# the code around them allows it. Programs for one and for several devices reach it in different forms,
# so it would round them differently. `runtime/machine.py` has the other half: no fused multiply-add.
AS_WRITTEN = {"xla_disable_hlo_passes": "algsimp"}


class Driver:
    """Operations of an iteration; called while a program is traced."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives

    def chain(
        self, stages: Sequence[Stage], work: IterationWork, local: ShardWork
    ) -> tuple[IterationWork, ShardWork, PyTree]:
        """Run stages with the collectives after them; also returns the result of the last collective."""
        received: PyTree = ()
        for stage in stages:
            work, local, sent = stage.run(work, local, received)
            received = self.exchange(stage.then, sent) if stage.then else ()
        return work, local, received

    def exchange(self, kind: Kind, sent: PyTree) -> PyTree:
        """The data sent by a stage, as received by all shards."""
        return self.collectives(kind, sent)

    def repeat(
        self, count: Any, body: Body, work: IterationWork, local: ShardWork
    ) -> tuple[IterationWork, ShardWork]:
        if isinstance(count, int) and count == 1:
            return body(work, local)
        work, local = lax.fori_loop(0, count, lambda _, carry: body(*carry), (work, local))
        return work, local


class CollectiveMessage(NamedTuple):
    """A collective of an iteration."""

    kind: Kind
    length: int  # 4-byte numbers of one shard
    times: int  # per iteration


class Once(Driver):
    """Run every loop body once, to obtain shapes and the sizes and numbers of messages."""

    def __init__(self, collectives: Collectives) -> None:
        super().__init__(collectives)
        self.messages: list[CollectiveMessage] = []
        self._times = 1

    def exchange(self, kind: Kind, sent: PyTree) -> PyTree:
        length = sum(leaf.size for leaf in jax.tree.leaves(shape_of_one(sent)))
        self.messages.append(CollectiveMessage(kind, length, self._times))
        return super().exchange(kind, sent)

    def repeat(
        self, count: Any, body: Body, work: IterationWork, local: ShardWork
    ) -> tuple[IterationWork, ShardWork]:
        self._times *= count
        result = body(work, local)
        self._times //= count
        return result


def placed(
    layout: Layout,
    function: Callable[..., Any],
    inputs: Any,
    outputs: Any,
    donate: tuple[int, ...] = (),
    *,
    as_written: bool = False,
) -> PlacedProgram:
    """The function compiled for the devices of the layout; specs say what is divided over them.

    Args:
      as_written: arithmetic is rounded as the function has it, whatever the layout (on CPUs).
    """
    if len(layout.program_devices) > 1:
        # Results are the same on all devices by construction, which the checker cannot always see.
        function = jax.shard_map(
            function, mesh=layout.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )
    exact = as_written and layout.devices[0].platform == "cpu"
    return PlacedProgram(function, donate, AS_WRITTEN if exact else {}, layout.spans_processes)


class PlacedProgram:
    """A function compiled for the devices of a layout, for arguments of one shape."""

    def __init__(
        self, function: Callable[..., Any], donate: tuple[int, ...], options: Any, spans_processes: bool
    ) -> None:
        self.jitted = jax.jit(function, donate_argnums=donate)
        self._exact = jax.jit(function, donate_argnums=donate, compiler_options=options or None)
        self._spans_processes = spans_processes
        self._compiled: jax.stages.Compiled | None = None

    def compile(self, *args: PyTree) -> None:
        """Compile without running, if the program synchronises processes, which compile at different speeds.
        (Programs with mpi4jax cannot be compiled ahead, and wait for each other without a limit.)"""
        if self._spans_processes and self._compiled is None:
            self._compiled = self._exact.lower(*args).compile()

    def __call__(self, *args: PyTree) -> Any:
        # inside another program, or for shapes alone, there is nothing to compile and no option allowed
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return self.jitted(*args)
        return (self._compiled or self._exact)(*args)
