"""Imported by Python at its start when this folder is on PYTHONPATH: holds the runs of this process."""

import os
from pathlib import Path

if path := os.environ.get("JAXRL_HPC_TEST_HOLD"):
    from tests.holding import install

    install(Path(path))
