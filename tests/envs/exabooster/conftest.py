"""A short recording, made by the statistical generator: `TICKS` rows, with a gap before row `GAP`."""

import jax
import numpy as np
import pytest

from jaxrl_hpc.envs.exabooster import recording, statistics
from jaxrl_hpc.envs.exabooster.generator import PLANTS


@pytest.fixture(scope="module")
def log(request):
    rows, set_point = statistics.simulate(jax.random.key(0), PLANTS[0], 1, request.module.TICKS)
    return rows[:, 0], set_point[:, 0]


@pytest.fixture
def path(request, log, tmp_path):
    seconds = np.arange(request.module.TICKS) / 15
    seconds[request.module.GAP :] += 7.0  # missing
    recording.write(tmp_path / "log.csv", *log, seconds)
    return tmp_path / "log.csv"
