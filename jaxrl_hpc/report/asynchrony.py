"""The report's section on runs whose actors and learners work apart: how old data is, who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from jaxrl_hpc.report.charts import Chart, curve_chart
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.sections import Colors, Section

BINS = "lag/"  # columns of the histogram
CURVES = {
    "lag_mean": "Mean lag (learner iterations)",
    "lag_max": "Largest lag (learner iterations)",
    "queue_depth": "Unrolls waiting when one was taken",
    "learner_idle": "Share of time a learner waited for unrolls",
    "actor_idle": "Share of time an actor waited for its learner",
    "dropped_unrolls": "Unrolls dropped for their age",
    "rho_clipped": "Share of V-trace weights that were clipped",
}


def asynchrony(runs: Sequence[RunData], colors: Colors) -> Section | None:
    asynchronous = [run for run in runs if "lag_mean" in run.columns("train")]
    if not asynchronous:
        return None
    charts = [lag_histogram(asynchronous, colors)]
    for column, heading in CURVES.items():
        chart = curve_chart(f"asynchrony-{column}", asynchronous, colors, "train", column)
        if chart:
            chart.title = heading
            charts.append(chart)
    note = "Lag: how many iterations the learner had made since the parameters that an unroll was made with."
    return Section("asynchrony", "Actors and learners", charts=charts, note=note, layout="small")


def lag_histogram(runs: Sequence[RunData], colors: Colors) -> Chart:
    """Over the whole of each run."""
    columns = {name for run in runs for name in run.columns("train") if name.startswith(BINS)}
    names = sorted(columns, key=lambda name: int(name.removeprefix(BINS).split("_")[0]))
    figure = go.Figure()
    for run in runs:
        shares = [
            float(np.mean([y.mean() for _, y in run.per_seed("train", name, "env_steps")] or [0.0]))
            for name in names
        ]
        labels = [name.removeprefix(BINS).replace("_up", " and more").replace("_", "–") for name in names]
        figure.add_bar(
            x=labels, y=shares, name=run.name, marker_color=colors[run.name],
            hovertemplate="%{y:.1%}", meta={"run": run.name},
        )  # fmt: skip
    figure.update_layout(template="none", showlegend=False, barmode="group", bargap=0.2)
    figure.update_xaxes(type="category", title_text="lag")
    figure.update_yaxes(tickformat=".0%")
    return Chart("lag-histogram", "Age of what was learned from", figure)
