"""Shared by all tests: one XLA thread, and compiled programs kept for the whole test run."""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

# a shell ignores Ctrl-C in jobs that it starts in the background, and tests and what they start inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("NPROC", "1")
# subprocesses find the same programs; a folder of our own keeps tests apart from the user's cache
os.environ.setdefault("JAXRL_HPC_CACHE", str(Path(tempfile.gettempdir()) / "jaxrl_hpc_test_cache"))

# what this user trained is noted there; tests must not write into the real home
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="jaxrl_hpc_state_")

from tests import compiling, tiers  # before JAX: it reads these settings when it is imported

import jax  # isort: skip
import pytest  # isort: skip

compiling.share()
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One more than there are cores: tests also wait, for processes, messages and deadlines."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_modifyitems(items):
    items[:] = tiers.jobs_first(items)


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Compiled programs of a finished module are of no more use and take gigabytes in the end."""
    yield
    jax.clear_caches()
