"""Which 95 % interval of an interquartile mean of few runs holds its truth most nearly 95 % of the time?

    python scripts/studies/intervals.py [--page]

Many small studies are simulated from returns whose true IQM is known: normal, skewed and two-peaked (a seed
solves the task or fails). Writes docs/results/intervals.md, .json and .png; `ops/statistics.py` uses the
method whose coverage deviates least from 95 % on average.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from jaxrl_hpc.ops.statistics import expanded_tail, interquartile_mean, t_quantile
from jaxrl_hpc.report.style import MATPLOTLIB, color

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
RUNS = (3, 5, 6, 8, 10, 16, 32)
FEWEST = 5  # runs of which the pages give an interval
STUDIES, RESAMPLES = 2000, 1000
POOLED = ((3, 3), (4, 5), (4, 8))  # environments, seeds in each
NOMINAL = 0.95
SOLVING = (0.6, 0.75, 0.9)  # probabilities that a seed solves the task

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Bounds = tuple[np.ndarray, np.ndarray]


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.normal(size=shape)


def skewed(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Most seeds near the best return, a long tail below: a mirrored log-normal."""
    return -generator.lognormal(0.0, 0.8, shape)


def two_peaked(solving: float) -> Draw:
    def draw(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        solved = generator.random(shape) < solving
        return solved + generator.normal(0, 0.05, shape)

    return draw


SHAPES: dict[str, tuple[Draw, ...]] = {
    "normal": (normal,),
    "skewed": (skewed,),
    "two-peaked": tuple(two_peaked(share) for share in SOLVING),
}


def winsorised_error(values: np.ndarray) -> np.ndarray:
    """Standard error of the IQM along the last axis, from the winsorised variance."""
    runs = values.shape[-1]
    cut = runs // 4
    ordered = np.sort(values, axis=-1)
    ordered[..., :cut] = ordered[..., cut : cut + 1]
    ordered[..., runs - cut :] = ordered[..., runs - cut - 1 : runs - cut]
    return ordered.std(axis=-1, ddof=1) / ((1 - 2 * cut / runs) * np.sqrt(runs))


def resampled(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """[studies, runs] -> [studies, resamples, runs]; every study draws on its own."""
    studies, runs = values.shape
    index = generator.integers(runs, size=(studies, RESAMPLES, runs))
    return np.take_along_axis(values[:, None, :], index, axis=2)


def percentile(values: np.ndarray, draws: np.ndarray) -> Bounds:
    low, high = np.percentile(interquartile_mean(draws, 2), [2.5, 97.5], axis=1)
    return low, high


def expanded(values: np.ndarray, draws: np.ndarray) -> Bounds:
    """Percentiles moved outwards by what a t interval is wider than a normal one (Hesterberg, 2015)."""
    tail = 100 * expanded_tail(np.zeros(values.shape[1]))
    low, high = np.percentile(interquartile_mean(draws, 2), [tail, 100 - tail], axis=1)
    return low, high


def bca(values: np.ndarray, draws: np.ndarray) -> Bounds:
    """Bias-corrected and accelerated (Efron, 1987)."""
    phi, inverse = np.vectorize(NormalDist().cdf), np.vectorize(NormalDist().inv_cdf)
    statistic, found = interquartile_mean(draws, 2), interquartile_mean(values, 1)
    below = (statistic < found[:, None]).mean(1) + 0.5 * (statistic == found[:, None]).mean(1)
    bias = inverse(np.clip(below, 0.5 / RESAMPLES, 1 - 0.5 / RESAMPLES))
    runs = values.shape[1]
    left_out = np.stack([interquartile_mean(np.delete(values, i, 1), 1) for i in range(runs)], 1)
    gaps = left_out.mean(1, keepdims=True) - left_out
    squares = (gaps**2).sum(1)
    acceleration = (gaps**3).sum(1) / np.where(squares > 0, 6 * squares**1.5, 1)
    bounds = []
    for z in (-1.959964, 1.959964):
        level = phi(bias + (bias + z) / (1 - acceleration * (bias + z)))
        ordered = np.sort(statistic, 1)
        position = np.clip((level * RESAMPLES).astype(int), 0, RESAMPLES - 1)
        bounds.append(np.take_along_axis(ordered, position[:, None], 1)[:, 0])
    return bounds[0], bounds[1]


def bootstrap_t(values: np.ndarray, draws: np.ndarray) -> Bounds:
    """Studentised: quantiles of (IQM* - IQM) / error*, times the error; constant resamples are left out."""
    found, error = interquartile_mean(values, 1), winsorised_error(values)
    errors = winsorised_error(draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = (interquartile_mean(draws, 2) - found[:, None]) / errors
    quotient = np.where(errors > 0, quotient, np.nan)
    few, many = np.nan_to_num(np.nanpercentile(quotient, [2.5, 97.5], axis=1))
    return found - many * error, found - few * error


def trimmed_t(values: np.ndarray, draws: np.ndarray) -> Bounds:
    """A t-test of the trimmed mean (Tukey and McLaughlin, 1963)."""
    runs = values.shape[1]
    margin = t_quantile(max(1, runs - 2 * (runs // 4) - 1)) * winsorised_error(values)
    center = interquartile_mean(values, 1)
    return center - margin, center + margin


METHODS = {
    "percentile bootstrap": percentile,
    "expanded percentile": expanded,
    "BCa bootstrap": bca,
    "bootstrap t": bootstrap_t,
    "trimmed t": trimmed_t,
}
USED = "expanded percentile"  # by ops/statistics.py


def true_iqm(draw: Draw) -> float:
    """Mean between the quartiles, from four million draws: an error of about 0.001 standard deviations."""
    return float(interquartile_mean(draw(np.random.default_rng(1), (4_000_000,))))


def coverage(draw: Draw, runs: int, generator: np.random.Generator) -> dict[str, tuple[float, float]]:
    """(share of intervals that hold the truth, median width in standard deviations) of each method."""
    truth, values = true_iqm(draw), draw(generator, (STUDIES, runs))
    bounds: dict[str, list[Bounds]] = {name: [] for name in METHODS}
    for part in np.array_split(values, max(1, STUDIES * runs * RESAMPLES // 8_000_000)):
        draws = resampled(part, generator)
        for name, method in METHODS.items():
            bounds[name].append(method(part, draws))
    found = {}
    for name, pieces in bounds.items():
        low, high = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
        held = float(np.mean((low <= truth) & (truth <= high)))
        found[name] = (held, float(np.median(high - low) / values.std()))
    return found


def pooled_coverage(draw: Draw, environments: int, seeds: int, generator: np.random.Generator) -> float:
    """Of the method in use, over environments whose returns lie apart, drawn within each of them."""
    shift = np.repeat(np.linspace(0, 2, environments), seeds)
    labels = np.repeat(np.arange(environments), seeds)
    whole = (
        draw(np.random.default_rng(1), (environments, 1_000_000)) + np.linspace(0, 2, environments)[:, None]
    )
    truth, tail = float(interquartile_mean(whole.ravel())), 100 * expanded_tail(labels)
    held = []
    for _ in range(STUDIES // 100):
        values = draw(generator, (100, environments * seeds)) + shift
        index = generator.integers(seeds, size=(100, RESAMPLES, environments * seeds)) + labels * seeds
        statistic = interquartile_mean(np.take_along_axis(values[:, None], index, 2), 2)
        low, high = np.percentile(statistic, [tail, 100 - tail], axis=1)
        held.append(np.mean((low <= truth) & (truth <= high)))
    return float(np.mean(held))


def difference_coverage(draw: Draw, seeds: int, generator: np.random.Generator) -> float:
    """Of the method in use, for the difference of two sets of seeds without one."""
    tail = 100 * expanded_tail(np.repeat([0, 1], seeds))
    held = []
    for _ in range(STUDIES // 100):
        one, other = (
            interquartile_mean(resampled(draw(generator, (100, seeds)), generator), 2) for _ in range(2)
        )
        low, high = np.percentile(one - other, [tail, 100 - tail], axis=1)
        held.append(np.mean((low <= 0) & (high >= 0)))
    return float(np.mean(held))


def measure() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    cases, pooled, differences = [], [], []
    for shape, draws in SHAPES.items():
        for runs in RUNS:
            found = [coverage(draw, runs, generator) for draw in draws]
            for name in METHODS:
                held, width = np.mean([one[name] for one in found], axis=0)
                case = {"method": name, "shape": shape, "runs": runs}
                cases.append(case | {"coverage": round(float(held), 4), "width": round(float(width), 3)})
            print(shape, runs, flush=True)
        for environments, seeds in POOLED:
            held = np.mean([pooled_coverage(draw, environments, seeds, generator) for draw in draws])
            case = {"shape": shape, "environments": environments, "seeds": seeds}
            pooled.append(case | {"coverage": round(float(held), 4)})
        for seeds in (5, 8, 16):
            held = np.mean([difference_coverage(draw, seeds, generator) for draw in draws])
            differences.append({"shape": shape, "seeds": seeds, "coverage": round(float(held), 4)})
    facts = {"studies": STUDIES, "resamples": RESAMPLES, "solving": SOLVING, "nominal": NOMINAL}
    return facts | {"cases": cases, "pooled": pooled, "differences": differences}


def chosen_of(data: dict[str, Any], method: str) -> dict[tuple[str, int], float]:
    return {(c["shape"], c["runs"]): c["coverage"] for c in data["cases"] if c["method"] == method}


def deviation(data: dict[str, Any], method: str) -> float:
    """Mean distance of the coverage from 95 %, every shape and number of runs alike."""
    found = [abs(c - NOMINAL) for (_, runs), c in chosen_of(data, method).items() if runs >= FEWEST]
    return float(np.mean(found))


def figure_of(data: dict[str, Any]) -> Figure:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 3.4), layout="constrained")
        panels = figure.subplots(1, len(SHAPES), sharey=True)
        for panel, shape in zip(panels, SHAPES, strict=True):
            for index, method in enumerate(METHODS):
                found = [(r, 100 * c) for (s, r), c in chosen_of(data, method).items() if s == shape]
                used = method == USED
                panel.plot(
                    *zip(*found, strict=True), color=color(index), marker="o", markersize=4 if used else 3,
                    linewidth=2.4 if used else 1.2, label=method, zorder=3 if used else 2,
                )  # fmt: skip
            panel.axhline(100 * NOMINAL, color="#5b6270", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
            panel.set_xscale("log", base=2)
            panel.set_xticks(RUNS, [str(runs) for runs in RUNS], minor=False)
            panel.set(title=shape.capitalize() + " returns", xlabel="Seeds", ylim=(60, 100))
        panels[0].set_ylabel("Coverage (%)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=9)
    return figure


def page(data: dict[str, Any]) -> str:
    used = [c for (_, runs), c in chosen_of(data, USED).items() if runs >= FEWEST]
    shapes = list(SHAPES)
    head = "| method | seeds | " + " | ".join(shapes) + " |"
    rows = []
    for method in METHODS:
        found = chosen_of(data, method)
        for runs in RUNS:
            cells = " | ".join(f"{100 * found[shape, runs]:.1f} %" for shape in shapes)
            rows.append(f"| {method} | {runs} | {cells} |")
    ranking = sorted(METHODS, key=lambda method: deviation(data, method))
    assert ranking[0] == USED, f"ops/statistics.py should use {ranking[0]}"
    lines = [
        "# Interval coverage with few seeds",
        "",
        "Made by `python scripts/studies/intervals.py`.",
        "",
        f"A 95 % interval should contain the true score in 95 of 100 studies. Here {data['studies']:,} "
        "studies of every kind were simulated from returns whose true interquartile mean (IQM) is known: "
        "normal; skewed, with a long tail of bad seeds (mirrored log-normal); and two-peaked, where a seed "
        f"solves the task with a probability of {', '.join(f'{p:g}' for p in data['solving'][:-1])} or "
        f"{data['solving'][-1]:g} (averaged) or fails. Each bootstrap drew {data['resamples']:,} times.",
        "",
        "![coverage](intervals.png)",
        "",
        f"From {FEWEST} seeds on, pages and reports give the {USED} bootstrap (Hesterberg, 2015): its "
        f"coverage is nearest to 95 % on average, between {100 * min(used):.0f} % and "
        f"{100 * max(used):.0f} %. With fewer seeds they show the seeds and their range.",
        "",
        "Mean distance from 95 %, five seeds and more: "
        + ", ".join(f"{method} {100 * deviation(data, method):.1f}" for method in ranking)
        + " percentage points.",
        "",
        head,
        "|---" * (2 + len(shapes)) + "|",
        *rows,
        "",
        "## Pooled over environments",
        "",
        "Seeds are resampled within each environment, with the same method. Pages pool only where every "
        f"environment has {FEWEST} seeds or more.",
        "",
        "| environments | seeds in each | " + " | ".join(shapes) + " |",
        "|---" * (2 + len(shapes)) + "|",
        *_lines(data["pooled"], ("environments", "seeds")),
        "",
        "## Differences of two sets of seeds",
        "",
        "Both sets come from the same distribution: how often the interval contains zero.",
        "",
        "| seeds on each side | " + " | ".join(shapes) + " |",
        "|---" * (1 + len(shapes)) + "|",
        *_lines(data["differences"], ("seeds",)),
    ]
    return "\n".join(lines) + "\n"


def _lines(cases: list[dict[str, Any]], keys: tuple[str, ...]) -> list[str]:
    rows: dict[tuple[int, ...], list[str]] = {}
    for case in cases:
        rows.setdefault(tuple(case[key] for key in keys), []).append(f"{100 * case['coverage']:.1f} %")
    return ["| " + " | ".join([*map(str, key), *cells]) + " |" for key, cells in rows.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="from the stored numbers")
    stored = RESULTS / "intervals.json"
    data = json.loads(stored.read_text()) if parser.parse_args().page else measure()
    stored.write_text(json.dumps(data, indent=1) + "\n")
    figure_of(data).savefig(RESULTS / "intervals.png", dpi=110)
    (RESULTS / "intervals.md").write_text(page(data))
    print("wrote docs/results/intervals.md")


if __name__ == "__main__":
    main()
