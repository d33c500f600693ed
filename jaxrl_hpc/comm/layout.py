"""The placement of logical shards.

A run is divided into a fixed number S of logical shards; ranks and devices only hold them:

    rank r of R:    shards [r S/R, (r + 1) S/R)
    its device d of D:    the d-th part of those, L = S / (R D) shards

Everything that belongs to a shard (environment copies, replay, keys) is keyed by the shard's number, so
any layout computes the same run. Arrays that belong to shards have a leading axis of shards, divided
over the devices of a program; everything else is the same on all devices. A program has the devices of its
process, or those of all processes if JAX has connected them (`distributed.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import PyTree

DEVICE = "device"  # the mesh axis


class Layout(NamedTuple):
    """The place of one process among all shards."""

    shards: int
    ranks: int
    rank: int
    devices: tuple[jax.Device, ...]  # of this process
    everywhere: tuple[jax.Device, ...] = ()  # of all processes, in order of ranks, if programs span them

    @property
    def spans_processes(self) -> bool:
        return len(self.everywhere) > len(self.devices)

    @property
    def program_devices(self) -> tuple[jax.Device, ...]:
        """Devices that a program runs on."""
        return self.everywhere or self.devices

    @property
    def local(self) -> int:
        """Shards of this process."""
        return self.shards // self.ranks

    @property
    def first(self) -> int:
        """The first of them."""
        return self.rank * self.local

    @property
    def mesh(self) -> Mesh:
        return Mesh(np.array(self.program_devices), (DEVICE,))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def divided(self) -> NamedSharding:
        """Along the leading axis of shards."""
        return NamedSharding(self.mesh, PartitionSpec(DEVICE))

    def place(self, tree: PyTree, *, divided: bool = False) -> PyTree:
        """The process's part of a tree, placed on the program's devices.

        Args:
          tree: the same in all processes; if divided, leaves [local shards, …] of this one.
        """
        sharding = self.divided if divided else self.replicated
        if not self.spans_processes:
            return jax.device_put(tree, sharding)

        def put(leaf: Any) -> Any:
            if isinstance(leaf, jax.core.Tracer):
                return leaf  # only shapes are looked at
            if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
                return leaf  # it is already there
            return jax.make_array_from_process_local_data(sharding, leaf)

        return jax.tree.map(put, tree)

    def rank_of(self, shard: int) -> int:
        return shard // self.local

    def describe(self) -> str:
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        devices = f"{len(self.devices)} device{'s' if len(self.devices) > 1 else ''}"
        return f"{self.shards} shards on {ranks} × {devices}"


def choose_devices(
    found: list[jax.Device], wanted: int, local_rank: int, local_size: int
) -> tuple[jax.Device, ...]:
    """The devices that a process uses.

    Processes on one node share out its accelerators evenly; host devices belong to their process alone.
    With `wanted` = 0 a process takes all accelerators of its share, or one host device.
    """
    if found[0].platform == "cpu":
        share, wanted = found, wanted or 1
    else:
        count = max(1, len(found) // local_size)
        begin = local_rank * count % len(found)
        share, wanted = found[begin : begin + count], wanted or count
    if wanted > len(share):
        advice = (
            "on a CPU they must be made before JAX starts, as jaxrl-hpc train does, or by "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
            if found[0].platform == "cpu"
            else "start fewer ranks per node or lower it"
        )
        raise UserError(f"workflow.devices is {wanted}, but this process has {len(share)}: {advice}")
    return tuple(share[:wanted])


def make_layout(shards: int, devices: int, ranks: Ranks) -> Layout:
    """The layout of this job; `devices` as in the config, 0 for as many as there are."""
    connected = jax.process_count() > 1
    place = (0, 1) if connected else (ranks.local_rank, ranks.local_size)  # a process sees only its own then
    chosen = choose_devices(jax.local_devices(), devices, *place)
    workers = ranks.size * len(chosen)
    if shards % workers:
        raise UserError(
            f"workflow.shards is {shards}: it must be a multiple of ranks × devices = "
            f"{ranks.size} × {len(chosen)}"
        )
    everywhere: tuple[jax.Device, ...] = ()
    if connected:
        numbers = ranks.everyone(len(chosen))[:, 0].tolist()
        if len(set(numbers)) > 1:
            raise UserError(
                f"workflow.devices: processes have {', '.join(map(str, numbers))} devices, but all must have "
                f"as many: set workflow.devices={min(numbers)}"
            )
        by_rank = [[d for d in jax.devices() if d.process_index == rank] for rank in range(ranks.size)]
        everywhere = tuple(device for found in by_rank for device in found[: len(chosen)])
    return Layout(shards, ranks.size, ranks.rank, chosen, everywhere)
