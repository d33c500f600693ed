"""Shared by all tests: one XLA thread, and compiled programs kept for the whole test run."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("NPROC", "1")
# subprocesses find the same programs; a folder of our own keeps tests apart from the user's cache
os.environ.setdefault("JAXRL_HPC_CACHE", str(Path(tempfile.gettempdir()) / "jaxrl_hpc_test_cache"))

from tests import compiling  # before JAX: it reads these settings when it is imported

import jax  # isort: skip
import pytest  # isort: skip

compiling.share()


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Compiled programs of a finished module are of no more use and take gigabytes in the end."""
    yield
    jax.clear_caches()
