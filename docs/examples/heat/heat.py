"""A parallel C program as an environment: hold the middle of a rod at a temperature by heating its end.

The rod (heat.c) is divided over the ranks of a communicator, and this file builds it with mpicc when it is
first used. Run it in this folder, one rank that learns and two that are the rod:

    mpirun -n 3 jaxrl-hpc train heat_ppo.yaml
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SENSORS = 8


def build(comm) -> ctypes.CDLL:
    """The compiled library: the first rank builds it, all load it."""
    folder = Path(tempfile.gettempdir()) / f"heat_{os.getuid()}"
    source, library = HERE / "heat.c", folder / "heat.so"
    if comm.Get_rank() == 0 and not (library.exists() and library.stat().st_mtime > source.stat().st_mtime):
        folder.mkdir(exist_ok=True)
        compiler = shutil.which("mpicc", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        if compiler is None:
            raise RuntimeError("mpicc not found: load an MPI module, or pip install mpich")
        made = folder / f"heat.{os.getpid()}.so"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        made.replace(library)  # all at once: another job may be loading it
    comm.Barrier()
    found = ctypes.CDLL(str(library))
    found.rod_new.restype = ctypes.c_void_p
    return found


class Heat:
    """See the module. Observation: eight sensors along the rod, the wanted temperature, the room's."""

    observation_shape = (SENSORS + 2,)
    actions = ([-1.0], [1.0])  # the temperature of the heated end
    max_episode_steps = 60

    def __init__(self, comm, cells: int = 32) -> None:
        self.comm, self.library = comm, build(comm)
        self.rod = ctypes.c_void_p(self.library.rod_new(comm.py2f(), cells))
        self.steps = cells * cells // 50  # about 1/125 of the time that heat takes through the rod
        self.wanted = self.room = 0.0

    def _advance(self, heated: float, steps: int) -> np.ndarray:
        seen = (ctypes.c_double * SENSORS)()
        ends = ctypes.c_double(heated), ctypes.c_double(self.room)
        self.library.rod_step(self.rod, *ends, steps, ctypes.c_double(0.4), SENSORS, seen)
        return np.array([*seen, self.wanted, self.room], np.float32)

    def reset(self, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)  # the same on all ranks
        self.room, self.wanted = rng.uniform(-0.5, 0.5), rng.uniform(-0.3, 0.3)
        self.library.rod_fill(self.rod, ctypes.c_double(self.room))
        return self._advance(self.room, 0)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool]:
        obs = self._advance(float(action[0]), self.steps)
        middle = (obs[SENSORS // 2 - 1] + obs[SENSORS // 2]) / 2
        return obs, -abs(float(middle) - self.wanted), False

    def close(self) -> None:
        self.library.rod_free(self.rod)
        self.comm.Free()
