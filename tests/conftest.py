"""Shared by all tests: one XLA thread, and compiled programs kept for the whole test run."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("NPROC", "1")
# subprocesses find the same programs; a folder of our own keeps tests apart from the user's cache
os.environ.setdefault("JAXRL_HPC_CACHE", str(Path(tempfile.gettempdir()) / "jaxrl_hpc_test_cache"))

import jax
import pytest

from jaxrl_hpc import machine


@pytest.fixture(scope="session", autouse=True)
def _compilation_cache():
    machine.enable_compilation_cache()


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Compiled programs of a finished module are of no more use and take gigabytes in the end."""
    yield
    jax.clear_caches()
