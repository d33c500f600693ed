"""Programs of the tests are compiled once, by the process that needs them first; others wait and load them.

JAX's persistent cache alone does not do that: the ranks of a job need the same programs at the same time, so
that none finds them there and all compile. Here a program is compiled under a lock of its own, and looked up
again when the lock is held. Small programs are kept too: there are hundreds of them in every process.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import tempfile
from pathlib import Path
from typing import Any

FOLDER = os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(os.environ.get("JAXRL_HPC_CACHE") or tempfile.gettempdir()) / "jaxrl_hpc_test_programs"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def share() -> None:
    """From now on, in this process."""
    from jax._src import compiler

    takes_callbacks = "host_callbacks" in inspect.signature(compiler._cache_read).parameters  # since JAX 0.11
    compile_anew = compiler._compile_and_write_cache
    if (
        compile_anew.__module__ == __name__
    ):  # shared already; a second lock of the same program would wait for ever
        return

    def compile_once(
        backend: Any, computation: Any, devices: Any, options: Any, callbacks: Any, name: str, key: str
    ) -> Any:
        locks = Path(FOLDER) / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with open(locks / key[-64:], "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            found, _ = compiler._cache_read(
                name, key, options, backend, devices, *([callbacks] * takes_callbacks)
            )
            if found is not None:
                return found
            return compile_anew(backend, computation, devices, options, callbacks, name, key)

    compiler._compile_and_write_cache = compile_once
