"""TensorBoard event files: the mean over seeds of every metric, against environment steps.

One curve per metric, `train/…` and `eval/…`; the single seeds are in the Parquet metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensorboardX import SummaryWriter

from jaxrl_hpc.metrics.parquet import Row
from jaxrl_hpc.metrics.trackers import means


class TensorBoardWriter:
    """A metrics Writer. `resume_env_steps`: hide what an earlier process logged after that step."""

    def __init__(self, run_dir: str | Path, resume_env_steps: int | None = None) -> None:
        purge_step = None if resume_env_steps is None else resume_env_steps + 1
        self._writer = SummaryWriter(str(Path(run_dir) / "tensorboard"), purge_step=purge_step)

    def append(self, rows: Sequence[Row]) -> None:
        for step, values in means(rows).items():
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
