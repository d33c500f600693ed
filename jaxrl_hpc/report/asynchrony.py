"""The report's section on asynchronous runs: staleness of data and idle times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrl_hpc.report.charts import Chart, Places, curve_chart, short
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.sections import Section

BINS = "lag/"  # columns of the histogram
CURVES = (
    "lag_mean", "lag_max", "queue_depth", "learner_idle", "actor_idle", "dropped_unrolls", "rho_clipped",
    "actors", "joined_actors", "left_actors", "lost_actors", "acknowledged_unrolls", "discarded_unrolls",
)  # fmt: skip


def asynchrony(runs: Sequence[RunData], places: Places) -> Section | None:
    asynchronous = [run for run in runs if "lag_mean" in run.columns("train")]
    if not asynchronous:
        return None
    charts = [lag_histogram(asynchronous, places)]
    for column in CURVES:
        chart = curve_chart(f"asynchrony-{column}", asynchronous, places, "train", column)
        if chart:
            charts.append(chart)
    note = "Lag = learner's version at consumption − version that produced the unroll."
    return Section("asynchrony", "Actors and learners", charts=charts, note=note, layout="small")


def lag_histogram(runs: Sequence[RunData], places: Places) -> Chart:
    """Over the whole of each run."""
    columns = {name for run in runs for name in run.columns("train") if name.startswith(BINS)}
    names = sorted(columns, key=lambda name: int(name.removeprefix(BINS).split("_")[0]))
    labels = [name.removeprefix(BINS).replace("_up", "+").replace("_", "–") for name in names]
    series = []
    for run in runs:
        shares = [
            100 * float(np.mean([y.mean() for _, y in run.per_seed("train", name, "env_steps")] or [0.0]))
            for name in names
        ]
        series.append({"run": run.name, "color": places[run.name], "y": short(shares)})
    data = {"x": "Lag (learner iterations)", "y": "Unrolls (%)", "labels": labels, "series": series}
    return Chart("lag-histogram", "Lag of the unrolls", "columns", data)
