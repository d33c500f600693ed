"""Two ways to run the same stages.

OneProgram: stages and collectives are traced into one program with its loops; for one device per rank, and
for many devices of one process. HostDriven: for many devices and many ranks at once, where MPI cannot be
part of a program; every run of stages up to a collective is a program, the host calls one after the other
and does the part over ranks between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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


class Driver(Protocol):
    """What an iteration is written with."""

    def chain(
        self, stages: Sequence[Stage], work: IterationWork, local: ShardWork
    ) -> tuple[IterationWork, ShardWork, PyTree]:
        """Stages with the collectives after them; also what the last collective brought."""
        ...

    def repeat(
        self, count: Any, body: Body, work: IterationWork, local: ShardWork
    ) -> tuple[IterationWork, ShardWork]: ...


class OneProgram:
    """To be called while a program is traced."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives

    def chain(
        self, stages: Sequence[Stage], work: IterationWork, local: ShardWork
    ) -> tuple[IterationWork, ShardWork, PyTree]:
        received: PyTree = ()
        for stage in stages:
            work, local, sent = stage.run(work, local, received)
            received = self.exchange(stage.then, sent) if stage.then else ()
        return work, local, received

    def exchange(self, kind: Kind, sent: PyTree) -> PyTree:
        """What a stage has sent, as all shards receive it."""
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


class Once(OneProgram):
    """Every loop body once: enough to see shapes, and what is sent how often."""

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


class HostDriven:
    """Calls one program per stage; the overhead is the price of this layout."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives
        self._across = {
            kind: jax.jit(lambda x, kind=kind: collectives.across(kind, x))
            for kind in ("add", "gather", "total")
        }
        self._programs: dict[tuple[Stage, ...], list[tuple[Callable[..., Any], Kind | None]]] = {}

    def chain(
        self, stages: Sequence[Stage], work: IterationWork, local: ShardWork
    ) -> tuple[IterationWork, ShardWork, PyTree]:
        key = tuple(stages)
        if key not in self._programs:
            self._programs[key] = self._make(stages)
        message: PyTree = ()
        for program, kind in self._programs[key]:
            work, local, message = program(work, local, message)
            if kind is not None:
                over_ranks = self._across[kind](message.addressable_data(0))
                message = jax.device_put(over_ranks, self.collectives.layout.replicated)
        return work, local, message

    def repeat(
        self, count: Any, body: Body, work: IterationWork, local: ShardWork
    ) -> tuple[IterationWork, ShardWork]:
        for _ in range(int(count)):
            work, local = body(work, local)
        return work, local

    def _make(self, stages: Sequence[Stage]) -> list[tuple[Callable[..., Any], Kind | None]]:
        """Programs: each begins with what a collective brought and ends with what the next one sends."""
        groups: list[list[Stage]] = [[]]
        for stage in stages:
            groups[-1].append(stage)
            if stage.then:
                groups.append([])
        programs: list[tuple[Callable[..., Any], Kind | None]] = []
        before: tuple[Kind, dict[str, PyTree]] | None = None
        for group in groups:
            then = group[-1].then if group else None
            sent_shape: dict[str, PyTree] = {}
            function = self._piece(group, before, then, sent_shape)
            programs.append((self._program(function), then))
            before = (then, sent_shape) if then else None
        return programs

    def _piece(
        self,
        group: list[Stage],
        before: tuple[Kind, dict[str, PyTree]] | None,
        then: Kind | None,
        sent_shape: dict[str, PyTree],
    ) -> Callable[[IterationWork, ShardWork, PyTree], tuple[IterationWork, ShardWork, PyTree]]:
        collectives = self.collectives

        def piece(
            work: IterationWork, local: ShardWork, message: PyTree
        ) -> tuple[IterationWork, ShardWork, PyTree]:
            received: PyTree = ()
            if before:  # its shapes are known: the program before this one has been traced
                received = collectives.finish(before[0], message, before[1]["like"])
            for stage in group:
                work, local, received = stage.run(work, local, received)
            if then:
                sent_shape["like"] = shape_of_one(received)
                received = collectives.local(then, received)
            return work, local, received

        return piece

    def _program(self, piece: Callable[..., Any]) -> Callable[..., Any]:
        specs = (SAME, DIVIDED, SAME)
        collectives = self.collectives
        return placed(collectives.layout, piece, specs, specs, (0, 1), as_written=collectives.deterministic)


def placed(
    layout: Layout,
    function: Callable[..., Any],
    inputs: Any,
    outputs: Any,
    donate: tuple[int, ...] = (),
    *,
    as_written: bool = False,
) -> Callable[..., Any]:
    """The function compiled for the devices of this process; specs say what is divided over them.

    Args:
      as_written: arithmetic is rounded as the function has it, whatever the layout (on CPUs).
    """
    if len(layout.devices) > 1:
        # Results are the same on all devices by construction, which the checker cannot always see.
        function = jax.shard_map(
            function, mesh=layout.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )
    program = jax.jit(function, donate_argnums=donate)
    if not as_written or layout.devices[0].platform != "cpu":
        return program
    exact = jax.jit(function, donate_argnums=donate, compiler_options=AS_WRITTEN)

    def call(*args: PyTree) -> Any:
        # inside another program, or for shapes alone, there is nothing to compile and no option allowed
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))
        return (program if traced else exact)(*args)

    return call
