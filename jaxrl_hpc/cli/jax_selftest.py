"""Test of the engine `jax`, run in every process by `doctor` and scripts/slurm/mpi.sbatch.

    srun -n 4 python -m jaxrl_hpc.cli.jax_selftest 4         also under mpiexec, with or without MPI in Slurm
    python -m jaxrl_hpc.cli.jax_selftest 2 HOST:PORT 0       by hand: process 0 of 2

Process 0 prints one JSON object per line, as mpi_selftest does: {"step": …, "ok": …, "text": …}. The last one
has the flags to train with. These processes end after the test, so that a hang or crash affects nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_hpc.comm import launch
from jaxrl_hpc.comm.distributed import gloo_lines_hidden
from jaxrl_hpc.comm.ranks import Ranks, join, world
from jaxrl_hpc.runtime import engine

LOOPS = 3


class Seen(NamedTuple):
    """The processes and devices that a process sees."""

    process: int
    host: str
    gpus: tuple[str, ...]  # visible, before they are shared out
    shared_out: bool  # this process takes all that it sees
    devices: int  # that JAX uses here
    kind: str


def check_devices(everyone: list[Seen]) -> str:
    """Check that all processes have the same number of devices and share no GPU."""
    numbers = sorted({seen.devices for seen in everyone})
    if len(numbers) > 1:
        where = ", ".join(f"process {s.process} on {s.host}: {s.devices}" for s in everyone)
        raise RuntimeError(f"processes have different numbers of devices ({where})")
    for host in sorted({seen.host for seen in everyone}):
        here = [seen for seen in everyone if seen.host == host]
        together = {s.gpus for s in here if s.gpus and s.shared_out and len(s.gpus) < len(here)}
        if len(here) > 1 and "SLURM_GPUS_PER_TASK" not in os.environ and len(together) == 1:
            raise RuntimeError(
                f"{len(here)} processes on {host} see the same {len(here[0].gpus)} GPU(s): start at most one "
                "process per GPU, or bind them (srun --gpus-per-task=1)"
            )
    first = everyone[0]
    return f"{first.devices} per process, {first.devices * len(everyone)} in all, {first.kind}"


def sum_over_devices() -> str:
    mesh = Mesh(np.array(jax.devices()), ("device",))
    size = len(jax.devices())

    def body(_: Any, x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "device") / size

    loop = jax.shard_map(
        lambda x: jax.lax.fori_loop(0, LOOPS, body, x),
        mesh=mesh,
        in_specs=PartitionSpec("device"),
        out_specs=PartitionSpec("device"),
        check_vma=False,
    )
    start = jax.make_array_from_callback(
        (size,), NamedSharding(mesh, PartitionSpec("device")), lambda at: np.arange(1.0, size + 1)[at]
    )
    with gloo_lines_hidden():
        result = jax.jit(loop)(start.astype(jnp.float32))
        found = float(np.asarray(result.addressable_data(0)).ravel()[0])
    if found != (size + 1) / 2:
        raise RuntimeError(f"the mean over devices is {found} instead of {(size + 1) / 2}")
    return f"psum over {size} devices of {jax.process_count()} processes inside jit"


def flags(ranks: Ranks, devices: int, on_gpus: bool) -> str:
    """The command that trains with the launcher of this test."""
    train = "jaxrl-hpc train CONFIG workflow.engine=jax" + ("" if on_gpus else f" workflow.devices={devices}")
    if ranks.comm is not None:
        return f"under the same launcher: {train}"
    if launch.slurm_step(os.environ):
        gpus = f" --gpus-per-task={devices}" if on_gpus else ""
        return f"srun -K1 -n {ranks.size}{gpus} {train}"
    return f"{train} --coordinator HOST:PORT --processes {ranks.size} --process I, once per process"


def steps(expected: int) -> Iterator[tuple[str, bool, str]]:
    ranks = Ranks()

    def attempt(name: str, function: Callable[[], str]) -> tuple[str, bool, str]:
        try:
            return name, True, function()
        except Exception as error:  # any error is a result of the test
            return name, False, f"{type(error).__name__}: {error}"

    def connect() -> str:
        nonlocal ranks
        if world().size == 1 and (found := launch.found()):
            join(found.connect())
        ranks = world()
        if ranks.size != expected:
            raise RuntimeError(f"{ranks.size} of {expected} processes in the job")
        engine.connect(ranks)
        by = "MPI" if ranks.comm is not None else "TCP alone"
        assert ranks.connection is not None
        return f"{ranks.size} processes, found by {by} at {ranks.connection.hub_host}"

    def devices() -> str:
        visible = tuple(engine.visible_gpus())
        own = engine.own_gpus(list(visible), ranks.local_rank, ranks.local_size, os.environ)
        here = jax.local_devices()
        assert ranks.connection is not None
        host = ranks.connection.members[ranks.rank].host
        seen = Seen(ranks.rank, host, visible, own is None, len(here), here[0].device_kind)
        everyone: list[Any] = ranks.gather(tuple(seen))
        return check_devices([Seen(*each) for each in everyone])

    yield attempt("connect", connect)
    if not jax.distributed.is_initialized():
        return
    yield attempt("devices", devices)
    yield attempt("sum", sum_over_devices)
    local = jax.local_devices()
    yield "flags", True, flags(ranks, len(local), local[0].platform != "cpu")


def main(expected: int) -> int:
    for name, ok, text in steps(expected):
        if not ok or (jax.distributed.is_initialized() and jax.process_index() == 0):
            # one write: print makes two of it if Python does not buffer, and ranks may share the pipe
            sys.stdout.write(json.dumps({"step": name, "ok": ok, "text": text}) + "\n")
            sys.stdout.flush()
        if not ok:
            sys.stdout.flush()
            os._exit(1)  # others may wait in the step that failed: notify them
    return 0


if __name__ == "__main__":
    count = int(sys.argv[1])
    if len(sys.argv) > 2:
        launch.by_hand(sys.argv[2], count, int(sys.argv[3]))
    sys.exit(main(count))
