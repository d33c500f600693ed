"""TensorBoard event files: the mean over seeds of every metric, against environment steps.

One curve per metric, `train/…` and `eval/…`; the single seeds are in the Parquet metrics.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tensorboardX import SummaryWriter

from jaxrl_hpc.io.metrics import CORE_SCHEMA, Row


class TensorBoardWriter:
    """A metrics Writer. `resume_env_steps`: hide what an earlier process logged after that step."""

    def __init__(self, run_dir: str | Path, resume_env_steps: int | None = None) -> None:
        purge_step = None if resume_env_steps is None else resume_env_steps + 1
        self._writer = SummaryWriter(str(Path(run_dir) / "tensorboard"), purge_step=purge_step)

    def append(self, rows: Sequence[Row]) -> None:
        values: dict[tuple[str, int], list[float]] = defaultdict(list)
        for row in rows:
            shown = {name: value for name, value in row.items() if name not in CORE_SCHEMA.names}
            for name, value in {**shown, "updates": row["updates"]}.items():
                if value is not None and not isinstance(value, str) and math.isfinite(value):
                    tag = f"{row['kind']}/{name.removeprefix('eval_')}"
                    values[tag, int(row["env_steps"])].append(float(value))
        for (tag, step), samples in values.items():
            self._writer.add_scalar(tag, sum(samples) / len(samples), step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
