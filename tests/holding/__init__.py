"""Runs in other processes that last until a test tells them to go on.

A test that strikes a run in the middle cannot rely on its length: the run may have finished before, on a fast
machine or when the test itself had to wait for a core. A held run trains up to a number of environment steps,
saves, and waits there: for a signal, or until the test moves the limit.

    hold = Hold(tmp_path / "hold")         # waits after its first save
    start(..., env=os.environ | hold.environment)
    ...                                    # wait for what is recorded, then strike
    hold.release()
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

FILE = "JAXRL_HPC_TEST_HOLD"
HERE = Path(__file__).resolve().parent
NOW, NEVER = 0, 2**62


class Hold:
    """The limit is in a file that the run reads again and again."""

    def __init__(self, path: Path, env_steps: int = NOW) -> None:
        self.path = path
        self.at(env_steps)
        # sitecustomize.py in this folder is imported by every Python process that finds it on its path
        paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        self.environment = {FILE: str(path), "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def at(self, env_steps: int) -> None:
        """Saves at or after so many steps wait."""
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(str(env_steps))
        os.replace(new, self.path)

    def release(self) -> None:
        self.at(NEVER)


def install(path: Path) -> None:
    """In the process of the run: `Trainer.save` returns when the limit allows it or a signal came."""
    from jaxrl_hpc.runtime.signals import StopSignals
    from jaxrl_hpc.runtime.trainer import Trainer

    save, note = Trainer.save, StopSignals._note
    signals: list[int] = []

    def noting(self: StopSignals, number: int, frame: Any) -> None:
        signals.append(number)
        note(self, number, frame)

    def saving(self: Trainer) -> None:
        save(self)
        while not signals and self.env_steps >= int(path.read_text()):
            self.watchdog.at("held", self.iterations // self.schedule.chunk)
            time.sleep(0.02)

    StopSignals._note = noting  # type: ignore[method-assign]
    Trainer.save = saving  # type: ignore[method-assign]
