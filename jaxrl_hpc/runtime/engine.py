"""The engine that connects the processes of a `sharded` run: MPI (mpi4jax), or JAX itself.

    auto:   jax   if processes see GPUs, have several devices each, or have no mpi4jax
            mpi   otherwise: one device per CPU rank, where it is the faster one (measured in turns on both
                  engines: docs/results/scaling.md, "The two engines")

A fixed rule of config and machine, without timing. The choice is written into the run's config, and a resumed
run with `auto` keeps it where possible.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import jax

from jaxrl_hpc.comm import distributed
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.config import Config
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.extras import installed

Engine = Literal["", "auto", "mpi", "jax"]
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin")


def choose(wanted: Engine, devices: int, gpus: bool, has_mpi: bool, has_mpi4jax: bool) -> Engine:
    """The engine of several processes.

    Args:
      wanted: by the config, or by the run that is resumed.
      devices: per process, as in the config.
      gpus: whether processes see any.
      has_mpi: whether MPI started them.
    """
    if wanted == "mpi" and not has_mpi:
        raise UserError("workflow.engine: mpi needs an MPI launcher (mpirun, srun --mpi=…); set it to jax")
    if wanted == "mpi" and devices > 1:
        raise UserError(
            f"workflow.engine: mpi has one device per process, but workflow.devices is {devices}; set "
            "workflow.engine=jax"
        )
    if wanted != "auto":
        return wanted
    return "jax" if gpus or devices > 1 or not (has_mpi and has_mpi4jax) else "mpi"


def settle(config: Config, ranks: Ranks, recorded: Engine = "auto") -> Config:
    """The config with the engine that the run uses; together with all ranks.

    Args:
      recorded: that the resumed run used.
    """
    resources = config.workflow.resources()
    if not resources.engine:
        return config
    engine: Engine = recorded if resources.engine == "auto" else resources.engine
    if ranks.size > 1:
        facts = resources.devices, bool(visible_gpus()), ranks.comm is not None, installed("mpi4jax")
        try:
            mine = choose(engine, *facts)
        except UserError:
            if resources.engine != "auto":
                raise
            mine = choose("auto", *facts)  # the recorded engine cannot be kept
        engine = ranks.share(mine)
    return config.model_copy(update={"workflow": config.workflow.model_copy(update={"engine": engine})})


def start(config: Config, ranks: Ranks) -> None:
    """Connect JAX's processes if the config's engine wants that; before JAX looks at its devices."""
    if ranks.size == 1 or distributed.started():
        return
    resources = settle(config, ranks).workflow.resources()
    if resources.engine == "jax":
        connect(ranks, resources.deadline_seconds)


def connect(ranks: Ranks, deadline: float = 0.0) -> None:
    """Connect JAX's processes, each with the GPUs that belong to it."""
    own = own_gpus(visible_gpus(), ranks.local_rank, ranks.local_size, os.environ)
    if own is not None:
        for name in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
            jax.config.update(name, ",".join(map(str, own)))
    distributed.start(ranks, deadline)


def visible_gpus(
    environment: Mapping[str, str] = os.environ,
    devices: Path = Path("/dev"),
    platforms: str | None = None,
) -> list[str]:
    """GPUs that JAX would use, without starting it."""
    if platforms is None:
        platforms = str(jax.config.values.get("jax_platforms") or "")
    if platforms and not {"cuda", "rocm", "gpu"} & set(platforms.split(",")):
        return []
    if not any(installed(plugin) for plugin in PLUGINS):
        return []
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environment:
            return [entry for entry in environment[name].split(",") if entry not in ("", "-1", "NoDevFiles")]
    cards = [path.name for path in devices.glob("nvidia[0-9]*")]
    return sorted(cards or [path.name for path in devices.glob("dri/renderD*")])


def own_gpus(
    visible: list[str], local_rank: int, local_size: int, environment: Mapping[str, str]
) -> list[int] | None:
    """Which of the visible GPUs belong to this process; None: all of them.

    With --gpus-per-task every process sees only its own. Otherwise the processes of a node see all of them,
    and take equal parts in order.
    """
    shared_out = "SLURM_GPUS_PER_TASK" in environment or len(visible) < local_size
    if local_size == 1 or shared_out:
        return None
    count = len(visible) // local_size
    return list(range(local_rank * count, (local_rank + 1) * count))
