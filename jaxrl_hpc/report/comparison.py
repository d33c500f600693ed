"""The report's section that compares runs: performance profiles, probability of improvement.

Within one environment the figures are final returns. Where the same agents ran in several environments they
are also pooled: in each environment 0 is the worst seed of all and 1 the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxrl_hpc.ops.comparison import normalised, performance_profile, probability_of_improvement
from jaxrl_hpc.ops.statistics import FEW, score
from jaxrl_hpc.report.charts import Chart, Places, StripRow, short, strip_chart
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.sections import Section, table_html
from jaxrl_hpc.report.style import color_index, title, words

THRESHOLDS = 101
PAIRS = 15  # longer tables are not read
Figures = dict[str, list[np.ndarray]]  # name -> final figures in each environment


def comparison(runs: Sequence[RunData], places: Places) -> Section | None:
    charts, lines = [], []
    environments = list(dict.fromkeys(run.env for run in runs))
    for position, env in enumerate(environments):
        figures = {run.name: [run.final_values()] for run in runs if run.env == env and run.summary}
        figures = {name: found for name, found in figures.items() if len(found[0]) > 1}
        if len(figures) > 1:
            charts.append(_profile(f"profile-{position}", env, title("eval_return"), figures, places))
            lines += _pairs(figures, places, env)
    if pooled := _pooled(runs, environments):
        own = dict(zip(pooled, color_index(list(pooled)), strict=True))
        where = f"{len(environments)} environments"
        charts.append(_profile("profile-pooled", where, "Normalised return", pooled, own))
        charts.append(_pooled_scores(pooled, own, where))
        lines += _pairs(pooled, own, where)
    if not charts:
        return None
    columns = ["Better?", "Against", "Environment", "Probability of improvement", "95 % interval"]
    note = (
        "Profile: share of seeds that end above a return; higher is better. Probability of improvement: how "
        "likely a seed of the first ends better than one of the second; no interval with fewer than "
        f"{FEW} seeds. Intervals are not corrected for the number of comparisons."
    )
    left = len(lines) - PAIRS
    note += f" The first {PAIRS} of {len(lines)} pairs are listed." if left > 0 else ""
    html = table_html(columns, lines[:PAIRS], "Probability of improvement")
    return Section("comparison", "Comparison", html, charts, note, "pair")


def _profile(identity: str, where: str, unit: str, figures: Figures, places: Places) -> Chart:
    everything = np.concatenate([part for parts in figures.values() for part in parts])
    low, high = float(everything.min()), float(everything.max())
    margin = 0.02 * ((high - low) or 1.0)
    thresholds = np.linspace(low - margin, high + margin, THRESHOLDS)
    series = []
    for name, parts in figures.items():
        strata = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        profile = performance_profile(np.concatenate(parts), thresholds, strata)
        entry = {"run": name, "color": places[name], "x": short(thresholds), "y": short(100 * profile.share)}
        if not np.isnan(profile.low).any():
            entry |= {"low": short(100 * profile.low), "high": short(100 * profile.high)}
        series.append(entry)
    data = {"y": "Seeds above (%)", "x": unit, "zero": True, "fixed": True, "series": series}
    return Chart(identity, f"Performance profile, {where}", "lines", data)


def _pairs(figures: Figures, places: Places, where: str) -> list[tuple[int | None, list[str]]]:
    """Each pair once, the better one first."""
    names = list(figures)
    lines: list[tuple[int | None, list[str]]] = []
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            pairs = list(zip(figures[first], figures[second], strict=True))
            found, ahead, behind = probability_of_improvement(pairs), first, second
            if found.value < 0.5:
                found = probability_of_improvement([(other, one) for one, other in pairs])
                ahead, behind = second, first
            bounds = "–" if math.isnan(found.low) else f"{100 * found.low:.0f} to {100 * found.high:.0f} %"
            lines.append((places[ahead], [ahead, behind, where, f"{100 * found.value:.0f} %", bounds]))
    return lines


def _pooled(runs: Sequence[RunData], environments: Sequence[str]) -> Figures:
    """Normalised figures by agent, where every agent has one run in every environment."""
    cells = {(run.agent, run.env): run.final_values() for run in runs if run.summary}
    agents = list(dict.fromkeys(run.agent for run in runs))
    complete = len(cells) == len(runs) == len(agents) * len(environments)
    if not complete or len(agents) < 2 or len(environments) < 2 or not all(map(len, cells.values())):
        return {}
    figures: Figures = {words(agent): [] for agent in agents}
    for env in environments:
        for agent, values in zip(agents, normalised([cells[agent, env] for agent in agents]), strict=True):
            figures[words(agent)].append(values)
    return figures


def _pooled_scores(figures: Figures, places: Places, where: str) -> Chart:
    rows = []
    for name, parts in figures.items():
        strata = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        found = score(np.concatenate(parts), strata)
        rows.append(StripRow(name, places[name], list(np.concatenate(parts)), *map(float, found)))
    return strip_chart(
        "pooled", f"Normalised final return, {where}", "Normalised return (0 worst, 1 best)", rows
    )
