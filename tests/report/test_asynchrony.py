"""The report's section on actors and learners: there for runs that have them, and its numbers."""

from pathlib import Path

import numpy as np

from jaxrl_hpc.metrics.parquet import MetricsWriter
from jaxrl_hpc.report.asynchrony import asynchrony, lag_histogram
from jaxrl_hpc.report.data import RunData, load_run
from tests.report.made_runs import make_run


def with_ages(path: Path) -> RunData:
    """A run whose unrolls are half new, half four to seven versions old."""
    make_run(path, seeds=1, finished=False)
    writer = MetricsWriter(path)
    core = {"iteration": 1, "updates": 1, "seed": 0, "kind": "train"}
    for point, share in enumerate((0.25, 0.75)):
        ages = {"lag/0": share, "lag/4_7": 1 - share, "lag/64_up": 0.0}
        ages |= {"lag_mean": 2.5, "lag_max": 6.0, "queue_depth": 1.0, "learner_idle": 0.1, "actor_idle": 0.2}
        writer.append([core | {"env_steps": 200_000 + point, "wall_seconds": 99.0 + point} | ages])
    writer.close()
    return load_run(path)


def test_histogram_and_curves_of_runs_that_have_staleness(tmp_path: Path) -> None:
    plain, apart = load_run(make_run(tmp_path / "plain")), with_ages(tmp_path / "apart")
    places = {"plain": 0, "apart": 1}
    assert asynchrony([plain], places) is None
    section = asynchrony([plain, apart], places)
    assert section is not None
    assert {"lag-histogram", "asynchrony-lag_mean", "asynchrony-actor_idle"} <= {
        chart.id for chart in section.charts
    }
    data = lag_histogram([apart], places).data
    assert data["labels"] == ["0", "4–7", "64+"]
    np.testing.assert_allclose(data["series"][0]["y"], [50.0, 50.0, 0.0])
