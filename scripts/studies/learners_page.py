"""Writes docs/results/learners.md from what learners.py measured: tables, goals, model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from learners import GROUPS, STEP
from workflows_page import NETWORK, base_costs, plan_of, scaled

from jaxrl_hpc.scaling.costs import Costs, JobPlan
from jaxrl_hpc.scaling.model import LatencyBandwidth
from jaxrl_hpc.scaling.workflow_models import simulate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "learners.md"
CALM = 0.2  # cores used by other work above which a cell was measured on a busy machine
Cells = dict[str, dict[str, Any]]


def shape(cell: dict[str, Any]) -> str:
    return f"{cell['learners']} + {cell['actors']}" if cell["actors"] else str(cell["learners"])


GOALS = (  # ours, what it is compared with, what both have, published (EXARL), least ratio of steps/s
    ("async 8+8", "async 1+8", "20ms", "+43.4 % throughput", 1.434),
    ("async 8+16", "async 1+8", "20ms", "−31 % time", 1 / 0.69),
    ("async 8+16", "async 1+16", "20ms", "–", 5.0),
    ("async 2+8", "async 1+8", "0ms", "–", 0.95),
    ("rma_queue 1+8", "async 1+8", "0ms", "−25 % time", 1.0),
    ("rma_queue 1+8", "async 1+8", "0ms tail1.5", "–", 1.0),
)


def in_published_words(ratio: float) -> str:
    """As EXARL says it: more throughput, or less time for as many steps."""
    return f"{100 * (ratio - 1):+.1f} % throughput, {100 * (1 / ratio - 1):+.1f} % time".replace("-", "−")


def goals_table(cells: Cells, costs: Costs | None) -> list[str]:
    """Ours beside EXARL's, where both cells of a ratio are measured."""
    lines = ["| what | published (EXARL) | goal | here | verdict |", "|---|---|---|---|---|"]
    for ours, base, same, theirs, goal in GOALS:
        names = [f"speed {one.replace(' ', ' own ')} {same}" for one in (ours, base)]
        found = [cells[name] for name in names if name in cells]
        value, verdict = "not measured", "–"
        if len(found) == 2:
            ratio = found[0]["steps_per_second"] / found[1]["steps_per_second"]
            others = max(one["other_cores"] for one in found)
            value = f"{ratio:.2f} ×: {in_published_words(ratio)}"
            verdict = "met" if ratio >= goal else "missed"
            if others > CALM:
                verdict = f"undecided: other work used up to {others:.1f} cores"
        conditions = "no update time" if same.startswith("0ms") else "updates of 20 ms"
        conditions += ", heavy-tailed steps" if "tail" in same else ""
        what = f"{ours} against {base}, {conditions}"
        lines.append(f"| {what} | {theirs} | ≥ {goal:.2f} × | {value} | {verdict} |")
    value = "not measured"
    if costs:
        far = [far_speed(costs, *plan) for plan in (("rma_queue", 20, 120), ("async", 1, 120))]
        value = f"not measured (140 ranks); model: {in_published_words(far[0] / far[1])}"
    text = "rma_queue 20+120 against async 1+120, updates of 20 ms"
    return [*lines, f"| {text} | −77 % time | – | {value} | – |"]


def speed_table(cells: Cells, predicted: dict[str, float]) -> list[str]:
    lines = [
        "| workflow | mode | learners + actors | update | steps/s | × 1 learner | updates/step "
        "| learners idle | actors idle | lag | model | other work, cores |",
        "|---" * 12 + "|",
    ]
    for name, found in cells.items():
        cell = found["cell"]
        if cell["steps"]:
            continue
        one = next(
            (c["steps_per_second"] for c in cells.values()
             if not c["cell"]["steps"] and c["cell"]["learners"] == 1 and c["cell"]["mode"] == "own"
             and all(c["cell"][k] == cell[k] for k in ("workflow", "actors", "update", "tail", "extra"))),
            None,
        )  # fmt: skip
        speed, model = found["steps_per_second"], predicted.get(name)
        tail = f", tail {cell['tail']:g}" if cell["tail"] else ""
        idle = [
            f"{100 * found[k]:.0f} %" if found[k] is not None else "–" for k in ("learner_idle", "actor_idle")
        ]
        beside = f"{model:,.0f} ({100 * (model / speed - 1):+.0f} %)" if model else "–"
        lag = "–" if found["lag_mean"] is None else f"{found['lag_mean']:.1f}"
        name_and_rule = " ".join([cell["workflow"], *cell["extra"]])
        lines.append(
            f"| {name_and_rule} | {cell['mode'] if cell['actors'] else '–'} | {shape(cell)} "
            f"| {1e3 * cell['update']:g} ms{tail} | {speed:,.0f} | {f'{speed / one:.2f}' if one else '–'} "
            f"| {found['updates_per_step']:.4f} | {idle[0]} | {idle[1]} | {lag} | {beside} "
            f"| {found['other_cores']:.2f} |"
        )
    return lines


def solve_tables(cells: Cells) -> list[str]:
    """By group and split: how many seeds solved it, when, and the last evaluation of all."""
    lines = [
        "| group | env | workflow | learners + actors | rate | seeds | solved | median seconds "
        "| median steps | last evaluation |",
        "|---" * 10 + "|",
    ]
    learned = [c for c in cells.values() if c["cell"]["steps"]]

    def kind(found: dict[str, Any]) -> tuple[Any, ...]:
        cell = found["cell"]
        words = [cell["workflow"], *([cell["mode"]] if cell["actors"] else []), *cell["extra"]]
        return cell["group"], cell["env"], " ".join(words), shape(cell), cell["rate"]

    for key, several in itertools.groupby(sorted(learned, key=kind), key=kind):
        runs = list(several)
        times = np.array([run["solved"] or (np.inf, np.inf) for run in runs], float)
        steps, seconds = np.median(times, axis=0)
        last = [run["curve"][-1][1] for run in runs if run["curve"]]
        cells_of_row = [*key[:4], f"{key[4]:g} ×", len(runs), int(np.isfinite(times[:, 0]).sum())]
        cells_of_row += [f"{seconds:.0f}" if np.isfinite(seconds) else "–"]
        cells_of_row += [f"{steps:,.0f}" if np.isfinite(steps) else "–"]
        cells_of_row += [f"{np.mean(last):.4g} ({min(last):.4g} to {max(last):.4g})" if last else "–"]
        lines.append("| " + " | ".join(map(str, cells_of_row)) + " |")
    return lines


def modelled(cells: Cells) -> Cells:
    """Speed cells of a calm machine that the model knows: it has no shared batches and no heavy tails."""

    def known(found: dict[str, Any]) -> bool:
        cell = found["cell"]
        plain = not cell["steps"] and not cell["tail"] and cell["mode"] == "own"
        return plain and found["other_cores"] <= CALM

    return {name: found for name, found in cells.items() if known(found)}


def prediction(costs: Costs, cell: dict[str, Any], unrolls: int | None = None) -> float:
    return simulate(costs._replace(accelerator=cell["update"]), plan_of(cell), unrolls).steps_per_second


def fit(costs: Costs, cells: Cells) -> tuple[dict[str, float], str]:
    """Fitted to cells with one learner, checked against the others -> (steps/s by name, sentence)."""
    known = modelled(cells)
    small = {n: c for n, c in known.items() if c["cell"]["learners"] == 1}
    if len(small) < 3:
        return {}, "Cells of a calm machine to fit the model to are missing."
    best, least = costs, np.inf
    for slow, late, handle in itertools.product(
        (1.0, 1.5, 2.0, 3.0), (0.0, 2e-4, 4e-4, 8e-4), (1e-4, 5e-4, 2e-3)
    ):
        tried = scaled(costs, slow, late, handle)
        errors = [
            np.log(prediction(tried, c["cell"], 200) / c["steps_per_second"]) ** 2 for c in small.values()
        ]
        if sum(errors) < least:
            best, least = tried, sum(errors)
    predicted = {name: prediction(best, found["cell"]) for name, found in known.items()}
    off = [
        abs(predicted[n] / c["steps_per_second"] - 1) for n, c in known.items() if c["cell"]["learners"] > 1
    ]
    text = "Cells with several learners are missing."
    if off:
        text = (
            f"Fitted to {len(small)} cells with one learner; on {len(off)} cells with several, none "
            f"fitted to, its error is {100 * np.median(off):.0f} % in the median and {100 * max(off):.0f} % "
            "at worst (goal: 10 % and 40 %)."
        )
    return predicted, text


def far_speed(costs: Costs, workflow: str, learners: int, actors: int) -> float:
    """Steps per second by the model: a core per rank, a real network, updates of 20 ms."""
    apart = costs._replace(cores=0, message=LatencyBandwidth(*NETWORK), accelerator=0.02)
    return simulate(apart, JobPlan(workflow, learners, actors, in_flight=1)).steps_per_second


def far_table(costs: Costs) -> list[str]:
    lines = ["| workflow | 1 + 8 | 8 + 8 | 8 + 16 | 20 + 120 | 100 + 10,000 |", "|---" * 6 + "|"]
    for workflow in ("async", "rma", "rma_queue"):
        sizes = ((1, 8), (8, 8), (8, 16), (20, 120), (100, 10_000))
        row = [f"{far_speed(costs, workflow, *size):,.0f}" for size in sizes]
        lines.append(f"| {workflow} | " + " | ".join(row) + " |")
    return lines


def recorded_table(cells: Cells) -> list[str]:
    """How much of the grid there is."""
    lines = ["| group | cells | recorded | not recorded |", "|---|---|---|---|"]
    for group, of_group in GROUPS.items():
        names = {cell.name for cell in of_group()}
        done = len(names & set(cells))
        lines.append(f"| `{group}` | {len(names)} | {done} | {len(names) - done} |")
    return lines


def write(data: dict[str, Any]) -> None:
    cells: Cells = dict(sorted(data["cells"].items()))
    wanted = {cell.name for cells_of in GROUPS.values() for cell in cells_of()}
    speed = [found for found in cells.values() if not found["cell"]["steps"]]
    busy = [name for name, found in cells.items() if found["other_cores"] > CALM]
    costs = base_costs(data, STEP)
    predicted, verdict = fit(costs, cells)
    cores = data["machine"]["cores"]
    lines = [
        "# Several learners on emulated accelerators",
        "",
        "A2C with V-trace on CartPole, 8 copies per rank that acts, unrolls of 16 steps, one unroll per "
        "learner and iteration: every step is learned from once whatever the number of learners. A step of "
        "all copies takes 2 ms and learning from an unroll the time said; neither uses a core, so that many "
        f"ranks share {cores} cores. Times are emulated: published figures beside them are of real networks "
        "on real nodes. Made by `python scripts/studies/learners.py`, one cell at a time.",
        "",
        f"**{len(wanted & set(cells))} of {len(wanted)} cells are recorded**; what follows says nothing "
        f"about the others (`python scripts/studies/learners.py run {' '.join(GROUPS)}` measures them). "
        "Cells of several groups are counted in each.",
        "",
        *recorded_table(cells),
        "",
    ]
    if speed:
        seconds = [found["seconds"] for found in speed]
        lines += [
            f"Speed was measured over {min(seconds):.0f} to {max(seconds):.0f} s per cell instead of 60 s, "
            "once per cell.",
            "",
        ]
    if busy:
        lines += [
            f"During {len(busy)} cells other work used more than {CALM:g} cores; they decide nothing about "
            "speed.",
            "",
        ]
    lines += ["## Goals", "", "Ratios of steps per second.", "", *goals_table(cells, costs), ""]
    if speed:
        lines += ["## Speed", "", *speed_table(cells, predicted), ""]
    learned = [*solve_tables(cells)] if len(speed) < len(cells) else ["Not measured."]
    lines += ["## Learning and time to solve", "", *learned, ""]
    lines += [
        "## The model",
        "",
        verdict,
        "",
        "Steps per second by the model with the costs of a process alone, a core per rank, updates of 20 ms; "
        "not measured:",
        "",
        *far_table(costs),
        "",
    ]
    commits = sorted({str(found["code"]["commit"])[:10] for found in cells.values()})
    lines += [f"Commits: {', '.join(f'`{commit}`' for commit in commits)}.", ""] if commits else []
    PAGE.write_text("\n".join(lines).rstrip() + "\n")
    print(f"wrote {PAGE}")
