"""Sets up threads and devices for a run, before JAX starts.

On a CPU one XLA thread per run is fastest for small networks, and each of several runs needs its own thread.
One host device per core, with a pool of as many threads, provides this inside one process: programs on
different devices run at the same time and do not share work.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import jax

from jaxrl_hpc.comm import launch, polling, waiting
from jaxrl_hpc.comm.ranks import Ranks, join, world
from jaxrl_hpc.config import Config
from jaxrl_hpc.ops import threefry
from jaxrl_hpc.runtime import engine
from jaxrl_hpc.runtime.host import available_cores

# Without fused multiply-add a product and a sum are rounded one by one, whichever way XLA fuses them; with it
# programs for one and for several devices, which it fuses differently, would differ in last bits.
ROUND_TWICE = "--xla_cpu_max_isa=AVX"
# XLA's default is 256 bits; activations of PPO take a tenth less with 512 where the processor has them
WIDE_VECTORS = "--xla_cpu_prefer_vector_width=512"
# from about this width a second thread speeds up a single run; `jaxrl-hpc bench threads` measures it
WIDE_LAYER = 256


def executors_for(config: Config, lanes: int) -> int:
    """How many lanes train at the same time on a CPU."""
    wanted = config.run.executors or available_cores()
    return max(1, min(wanted, lanes))


def prepare(config: Config, lanes: int) -> str:
    """Set threads, devices and the compilation cache. Has no effect on devices already in use.

    Returns a note for the user, usually empty.
    """
    resources = config.workflow.resources()
    executors = 1 if config.run.seeds_mode == "vmap" else executors_for(config, lanes)
    if config.workflow.uses_ranks:
        executors = max(1, resources.devices)
    threads = config.run.threads
    exact = resources.deterministic
    if not threads:
        wide = executors == 1 and not exact and max(config.agent.hidden_widths, default=0) >= WIDE_LAYER
        threads = available_cores() if wide and not resources.shares_cores else 1
    hint = ""
    if backend_is_up():
        devices = len(jax.local_devices())
        if jax.default_backend() == "cpu" and devices < executors and not config.workflow.uses_ranks:
            hint = (
                f"JAX was already running with {devices} device(s), so that {lanes} seeds do not use all "
                f"{executors} cores: start a new process, or call jaxrl_hpc.runtime.machine.prepare(config, "
                f"{lanes}) before anything of JAX is computed"
            )
    else:
        os.environ["NPROC"] = str(max(threads, 1))  # XLA's own name for the size of its pool
        if executors > 1:
            jax.config.update("jax_num_cpu_devices", executors)
        if platform.machine() in ("x86_64", "AMD64"):
            add_xla_flag(ROUND_TWICE if exact else WIDE_VECTORS)
    jax.config.update("jax_default_prng_impl", "threefry2x32")  # as `threefry.host_key`
    threefry.install()
    if config.workflow.uses_ranks:
        engine.start(config, world())
    enable_compilation_cache()
    return hint


def add_xla_flag(flag: str) -> None:
    """One more flag for XLA, unless the user has set it."""
    flags = os.environ.get("XLA_FLAGS", "")
    if flag.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()


def choose_waiting(config: Config, ranks: Ranks) -> str:
    """Decide how ranks wait for each other; collective, before programs are traced.

    Returns a note for the user, usually empty.
    """
    per_core = ranks.ranks_per_core()
    problem = polling.problem() if ranks.size > 1 else "there is one rank"
    all_can = not ranks.everyone(int(problem is not None)).any()
    choice = waiting.choose(config.workflow.resources().waiting, per_core, all_can)
    if ranks.size == 1 or choice.mode == "spin" or all_can:
        return ""
    return (
        f"{per_core:.3g} ranks per core: while they wait for each other inside programs they keep cores "
        f"busy, because collectives that sleep cannot be used here ({problem or 'on another rank'})"
    )


def ranks_of(config: Config) -> Ranks:
    """The job of the run; this process alone if the workflow uses only one.

    Waits for the other processes if they were started without MPI.
    """
    if not config.workflow.uses_ranks:
        return Ranks()
    if world().size == 1 and config.workflow.resources().engine and (found := launch.found()):
        join(found.connect())
    return world()


def backend_is_up() -> bool:
    from jax._src import xla_bridge  # no public way to ask without starting it

    return xla_bridge.backends_are_initialized()


def enable_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, for a fast next start."""
    if jax.config.values.get("jax_compilation_cache_dir"):
        return
    base = os.environ.get("JAXRL_HPC_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(base) / "jaxrl_hpc" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
