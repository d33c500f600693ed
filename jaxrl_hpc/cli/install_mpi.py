"""Install mpi4py and mpi4jax for the MPI in use.

mpi4jax is compiled against one MPI library, so no wheel of it fits everywhere. Where a compiler wrapper
`mpicc` is found (an MPI module is loaded), both are built with it. Otherwise MPICH is installed as a wheel,
and mpi4jax is built against it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from jaxrl_hpc.errors import UserError


def install_mpi() -> None:
    """Run the commands, one after the other; UserError with the end of pip's output if one fails."""
    folder = Path(sys.executable).parent  # where the mpicc of an installed MPICH is
    variables = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    variables["CUDA_PATH"] = "/dev/null"  # nvcc without CUDA headers breaks mpi4jax's build
    mpicc = shutil.which("mpicc", path=variables["PATH"])
    print(f"building for the MPI of {mpicc}" if mpicc else "no mpicc found: installing MPICH as a wheel")
    for command in commands(pip(), mpicc is not None and not mpicc.startswith(str(folder))):
        print(f"  {' '.join(_short(word) for word in command)}", flush=True)
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
            raise UserError("--install-mpi: that failed:\n" + "\n".join(lines[-12:]))


def pip() -> list[str]:
    """pip of this environment, or uv for it."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise UserError("--install-mpi: this environment has no pip; run: python -m ensurepip")


def commands(pip: list[str], cluster: bool) -> list[list[str]]:
    """Commands to run. `cluster`: there is an MPI outside of this environment."""
    wanted = requirements("mpi")
    names = ["mpi4py"] if cluster else ["mpi4py", "mpich"]
    first = [*pip, *requirements("build").values(), *(wanted[name] for name in names)]
    if cluster:
        first += ["--no-binary", "mpi4py"]  # its wheel is built for another MPI
    # the build needs the mpi4py and the jax that are installed here; a cached build may be of another MPI
    return [first, [*pip, "--no-build-isolation", "--no-cache-dir", wanted["mpi4jax"]]]


def requirements(extra: str) -> dict[str, str]:
    """Name -> requirement of an extra, as the installed package declares it."""
    found = {}
    for line in importlib.metadata.requires("jaxrl-hpc") or []:
        requirement, _, marker = line.partition(";")
        if re.search(rf"extra == [\"']{extra}[\"']", marker):
            found[re.split(r"[^\w.-]", requirement)[0]] = requirement.strip()
    return found


def _short(word: str) -> str:
    return "python" if word == sys.executable else word
