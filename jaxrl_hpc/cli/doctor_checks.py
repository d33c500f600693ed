"""The checks of `jaxrl-hpc doctor`: each tests one thing and says how to fix it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from jaxrl_hpc import __version__
from jaxrl_hpc.comm import leftovers
from jaxrl_hpc.extras import INSTALL_MPI, how_to_install
from jaxrl_hpc.runtime import host, machine

OK, NOTE, BROKEN = "ok", "note", "broken"


class Check(NamedTuple):
    """Result of a check."""

    name: str
    status: str  # ok; note: optional part missing; broken: a required part does not work
    finding: str
    advice: str = ""


def installed(package: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def devices() -> Check:
    import jax
    import jax.numpy as jnp

    try:
        found = jax.devices()
        total = float(jax.jit(lambda x: (x * x).sum())(jnp.arange(4.0)))
    except Exception as error:
        return Check("devices", BROKEN, f"JAX cannot compute: {error}", "Try again with JAX_PLATFORMS=cpu.")
    if total != 14.0:
        return Check("devices", BROKEN, f"a sum of squares is {total} instead of 14", "Reinstall jaxlib.")
    kinds = ", ".join(f"{d.platform}:{d.id} ({d.device_kind})" for d in found)
    if found[0].platform == "cpu" and (shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists()):
        return Check(
            "devices",
            NOTE,
            f"{kinds}; JAX does not use the NVIDIA GPU of this machine",
            'To use the GPU: pip install "jax[cuda12]" (programs are compiled for CUDA in tests, '
            "but have not been run on a GPU).",
        )
    return Check("devices", OK, kinds)


def versions() -> Check:
    required = importlib.metadata.requires("jaxrl-hpc") if installed("jaxrl-hpc") else None
    names = [re.split(r"[^\w.-]", line)[0] for line in required or ["jax"] if "extra ==" not in line]
    missing = [name for name in names if installed(name) is None]
    shown = ("jax", "jaxlib", "flax", "optax", "gymnax", "numpy")
    text = f"jaxrl_hpc {__version__}, Python {platform.python_version()}, " + ", ".join(
        f"{name} {installed(name)}" for name in shown if installed(name)
    )
    if missing:
        return Check(
            "versions", BROKEN, f"{text}; missing: {', '.join(missing)}", "Run: pip install jaxrl-hpc"
        )
    if required is None:
        return Check("versions", NOTE, f"{text}; not installed as a package", "Run: pip install -e .")
    return Check("versions", OK, text)


def threads() -> Check:
    cores = host.available_cores()
    settings = ("NPROC", "OMP_NUM_THREADS", "XLA_FLAGS", "SLURM_CPUS_PER_TASK")
    given = [f"{name}={os.environ[name]}" for name in settings if os.environ.get(name)]
    text = (
        f"{cores} of {os.cpu_count()} cores usable; seeds train {cores} at a time, one XLA thread each; "
        f"a single run with layers of {machine.WIDE_LAYER} or wider gets more threads"
    )
    text += f"; set: {', '.join(given)}" if given else ""
    busy = os.getloadavg()[0]
    if busy > cores * 1.5:
        advice = "Other load slows runs down; timings are unreliable now."
        return Check("threads", NOTE, f"{text}; the machine is busy (load {busy:.1f})", advice)
    return Check("threads", OK, text)


def memory() -> Check:
    free, total = host.available_memory(), psutil.virtual_memory().total
    text = f"{free / 2**30:.1f} GiB free for this process, {total / 2**30:.1f} GiB in the machine"
    if free < 2**30:
        return Check("memory", NOTE, text, "Lower replay.capacity or run.seeds, or ask for more memory.")
    return Check("memory", OK, text)


def compilation_cache() -> Check:
    import jax

    machine.enable_compilation_cache()
    folder = Path(str(jax.config.values["jax_compilation_cache_dir"]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".doctor-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        advice = "Set JAXRL_HPC_CACHE to a folder that can be written; without it every start recompiles."
        return Check("compilation cache", NOTE, f"{folder}: {error.strerror}", advice)
    files = [f for f in folder.iterdir() if f.is_file()]
    size = sum(f.stat().st_size for f in files) / 2**20
    return Check("compilation cache", OK, f"{folder}: {len(files)} files, {size:.0f} MiB")


def compiled_parts() -> Check:
    from jaxrl_hpc.comm import polling
    from jaxrl_hpc.envs.external import pulse
    from jaxrl_hpc.networks import native as convolution
    from jaxrl_hpc.ops import pause, threefry
    from jaxrl_hpc.replay import native

    parts = [
        (native.available(), "the sum tree (prioritised replay uses the slower pure JAX one, same results)"),
        (threefry.LIBRARY.exists(), "random numbers (they take longer, same results)"),
        (convolution.LIBRARY.exists(), "convolutions (they take longer)"),
        (pulse.available(), "step deadlines (a hanging step of LunarLander or an Atari game is not noticed)"),
        (polling.LIBRARY.exists(), "polling collectives (ranks that wait in programs keep their cores busy)"),
        (pause.available(), "pauses (run.step_seconds and run.update_seconds are refused)"),
    ]
    missing = [text for there, text in parts if not there]
    if not missing:
        names = [text.partition(" (")[0] for _, text in parts]
        return Check("compiled parts", OK, ", ".join(names))
    advice = "With a C++ compiler: pip install -e . --no-build-isolation"
    return Check("compiled parts", NOTE, f"missing: {', '.join(missing)}", advice)


def slurm(seconds: float = 10.0) -> Check:
    """Asks the controller: installed commands alone do not make a cluster."""
    here = [name for name in ("sbatch", "srun", "scontrol") if shutil.which(name)]
    if not here:
        return Check("Slurm", NOTE, "not installed; only batch jobs need it")
    advice = (
        "Batch jobs need slurm.conf (or SLURM_CONF) and a running slurmctld; everything else works without."
    )
    found = f"{', '.join(here)} found"
    try:
        asked = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=seconds)
    except OSError:
        return Check("Slurm", NOTE, f"{found}, but no scontrol", advice)
    except subprocess.TimeoutExpired:
        return Check("Slurm", NOTE, f"{found}, but no answer within {seconds:.0f} s", advice)
    lines = [line.strip() for line in (asked.stdout + "\n" + asked.stderr).splitlines() if line.strip()]
    up = [line for line in lines if re.search(r"\bis UP\b", line)]
    if not up:
        return Check("Slurm", NOTE, f"{found}, but it does not work: {(lines or ['no message'])[0]}", advice)
    job = os.environ.get("SLURM_JOB_ID")
    return Check("Slurm", OK, f"{found}; {up[0]}" + (f"; inside job {job}" if job else ""))


def shared_memory(clean: bool = False) -> Check:
    """Segments that killed jobs left in /dev/shm."""
    if clean and (removed := leftovers.remove_leftovers()):
        return Check("shared memory", OK, f"removed {leftovers.describe(removed)} that killed jobs left")
    if found := leftovers.leftovers():
        text = f"{leftovers.describe(found)} in {leftovers.FOLDER} left by killed jobs of yours"
        return Check("shared memory", NOTE, text, "Remove them with: jaxrl-hpc doctor --clean")
    return Check("shared memory", OK, "no leftovers of killed jobs")


def extras() -> Check:
    groups = {
        "MPI": ("mpi4py", "mpi4jax"),
        "outside simulators": ("gymnasium", "envpool", "ale-py"),
        "elastic runs": ("pyzmq",),
        "benchmark peers": ("rejax", "flashbax", "cpprb"),
    }
    text = "; ".join(
        f"{group}: {', '.join(f'{n} {installed(n)}' if installed(n) else f'no {n}' for n in names)}"
        for group, names in groups.items()
    )
    complete = all(installed(name) for names in groups.values() for name in names)
    commands = [how_to_install(extra) for extra in ("external", "elastic", "peers")]
    advice = "" if complete else f"Install extras with: {', '.join(commands)}; MPI with: {INSTALL_MPI}"
    return Check("extras", OK if complete else NOTE, text, advice)


def local_checks(clean: bool = False) -> Iterator[Check]:
    """All checks that need no ranks."""
    for check in (versions, devices, threads, memory, compilation_cache, compiled_parts, extras, slurm):
        yield check()
    yield shared_memory(clean)


def find_mpiexec() -> str | None:
    """The launcher of the MPI in this environment, else the one on the PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.is_file() else shutil.which("mpiexec") or shutil.which("mpirun")
