"""Writes docs/results/workflows.md from what workflows.py measured: tables, model, pictures."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from workflows import STEPS

from jaxrl_hpc import config as configs
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.report.style import MATPLOTLIB, MUTED, color, words
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.scaling import measure
from jaxrl_hpc.scaling.costs import Costs, JobPlan, SimulatedResult
from jaxrl_hpc.scaling.model import LatencyBandwidth, NetworkModel
from jaxrl_hpc.scaling.workflow_models import simulate
from jaxrl_hpc.types import Batch, Transition

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
FITTED = (1, 2)  # ranks that act in the runs that the model is fitted to; larger ones check it
MANY = (1, 4, 16, 64, 120, 400, 1_000, 10_000)
NETWORK = NetworkModel(2e-6, 12.5e9)
PUBLISHED = """\
| published | comparison | result |
|---|---|---|
| EXARL 2021 | RMA queue against async, 1 learner, 4 nodes | 25 % less time |
| EXARL 2021 | RMA queue, 20 learners and 120 actors, against async with one learner | 77 % less time |
| EXARL 2021 | async with 8 learners and 8 actors against one learner | + 43.4 % throughput |
| EXARL 2021 | Bellman targets on 4 processes | 3.30 × |
| A3C (Mnih et al. 2016) | 16 threads against one, time to a score | 24.1 × (1-step Q), 12.5 × (A3C) |
| concurrent-RL study | lock, Hogwild!, parameter servers on one machine | 4–8 threads best |"""


def bellman(known: dict[str, Any]) -> dict[str, float]:
    """Seconds of DQN's targets and errors for a batch: in one call, and sample by sample; measured once."""
    if "bellman" not in known:
        config = configs.load("cartpole_dqn")
        parts = build(config)
        agent, hypers = parts.agent, jax.tree.map(jnp.float32, hypers_of(config))
        params = agent.actor(agent.init(jax.random.key(0), hypers["agent"]))
        obs = jax.random.normal(
            jax.random.key(1), (agent.needs.length, agent.needs.batch_size, *parts.env.spec.obs_shape)
        )
        number = jnp.ones(obs.shape[:2], jnp.float32)
        data = Transition(obs, number.astype(jnp.int32), number, number, number > 1, obs, ())
        whole = Batch(data, number[0], jnp.arange(agent.needs.batch_size))
        ones = [jax.tree.map(lambda x, i=i: x[..., i : i + 1, :] if x.ndim == 3 else x[..., i : i + 1], whole)
                for i in range(agent.needs.batch_size)]  # fmt: skip
        program = jax.jit(agent.priority)
        known["bellman"] = {
            "batch": agent.needs.batch_size,
            "together": measure.timed(lambda: program(params, whole)),
            "one_by_one": measure.timed(lambda: [program(params, one) for one in ones]),
        }
    return known["bellman"]


def plan_of(run: dict[str, Any]) -> JobPlan:
    rule = next((word.split("=")[1] for word in run["extra"] if word.startswith("rule=")), "lock")
    return JobPlan(run["workflow"], run["learners"], run["actors"], in_flight=1, rule=rule)  # type: ignore[arg-type]


def base_costs(known: dict[str, Any], sleep: float) -> Costs:
    """What the pieces cost alone in a process here; measured once and kept with the runs."""
    if "costs" not in known:
        words = ["workflow.name=async", "workflow.num_envs=8", "workflow.unroll_length=16"]
        config = configs.load("cartpole_a2c", words)
        found = measure.costs_of(config, build(config), NETWORK, 0)
        known["costs"] = {k: list(v) if isinstance(v, tuple) else v for k, v in found._asdict().items()}
    plain = {k: LatencyBandwidth(*v) if isinstance(v, list) else v for k, v in known["costs"].items()}
    return Costs(**plain)._replace(sleep=sleep, cores=known["machine"]["cores"])


class Fit(NamedTuple):
    """What is not measured by itself."""

    slow: float  # all work, times what it takes in a process alone
    late: float  # seconds that a step takes longer than the sleep asked for: a callback, a timer
    handle: dict[str, float]  # by variant: a core's seconds per message or copy


def scaled(costs: Costs, slow: float, late: float, handle: float) -> Costs:
    policy = LatencyBandwidth(slow * costs.inference.latency, costs.inference.bandwidth / slow)
    return costs._replace(
        compute=slow * costs.compute, inference=policy, update=slow * costs.update, handle=handle,
        sleep=costs.sleep + late,
        copy=LatencyBandwidth(handle, costs.copy.bandwidth),
        reduce=LatencyBandwidth(handle, costs.reduce.bandwidth),
    )  # fmt: skip


def error(costs: Costs, runs: list[dict[str, Any]]) -> float:
    """Squared errors of the logarithm of speed, and of the share of time that learners are idle."""
    total = 0.0
    for run in runs:
        found = simulate(costs, plan_of(run), unrolls=80)
        total += np.log(found.steps_per_second / run["steps_per_second"]) ** 2
        if run["learner_idle"] is not None:
            total += (found.learner_idle - run["learner_idle"]) ** 2
    return float(total)


def fit(costs: Costs, runs: list[dict[str, Any]]) -> Fit:
    """To the small runs: what all have in common, and one message cost per variant."""
    small = [run for run in runs if is_fitted(run)]
    names = sorted({run["variant"] for run in small})
    best, least = Fit(1.0, 0.0, {}), np.inf
    for slow, late in itertools.product((1.0, 1.5, 2.0, 3.0), (0.0, 1e-4, 2e-4, 3e-4, 4e-4)):
        total, handles = 0.0, {}
        for name in names:
            mine = [run for run in small if run["variant"] == name]
            tried = {float(h): error(scaled(costs, slow, late, h), mine) for h in np.geomspace(5e-5, 6e-3, 9)}
            handles[name] = min(tried, key=lambda h: tried[h])
            total += tried[handles[name]]
        if total < least:
            best, least = Fit(slow, late, handles), total
    return best


def acting(run: dict[str, Any]) -> int:
    return run["actors"] or run["learners"]


def is_fitted(run: dict[str, Any]) -> bool:
    """Few ranks act, and one learns: the model is fitted to these and checked against the others."""
    return acting(run) in FITTED and (run["learners"] == 1 or not run["actors"])


def shape(run: dict[str, Any]) -> str:
    return f"{run['learners']} + {run['actors']}" if run["actors"] else str(run["learners"])


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def speed_table(runs: list[dict[str, Any]], predicted: dict[str, SimulatedResult]) -> list[str]:
    alone = next((r["steps_per_second"] for r in runs if r["variant"] == "sharded" and r["ranks"] == 1), None)
    lines = [
        "| workflow | learners + actors | steps/s | × one process | learners idle | actors idle | lag "
        "| model | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        model = predicted.get(key(run))
        gain = f"{run['steps_per_second'] / alone:.2f}" if alone else "–"
        lag = "–" if run["lag_mean"] is None else f"{run['lag_mean']:.1f} (at most {run['lag_max']:.0f})"
        beside = "– | –"
        if model:
            off = model.steps_per_second / run["steps_per_second"] - 1
            role = "fitted" if is_fitted(run) else "**not fitted**"
            beside = f"{model.steps_per_second:,.0f} | {100 * off:+.0f} % {role}"
        lines.append(
            f"| {run['variant']} | {shape(run)} | {run['steps_per_second']:,.0f} | {gain} "
            f"| {percent(run['learner_idle'])} | {percent(run['actor_idle'])} | {lag} | {beside} |"
        )
    return lines


def held_out(
    runs: list[dict[str, Any]], predicted: dict[str, SimulatedResult], spinning: dict[str, SimulatedResult]
) -> str:
    """How far the model is from what it was not fitted to; `spinning`: told that learners spin."""

    def errors(several: bool, model: dict[str, SimulatedResult]) -> list[float]:
        return [
            100 * abs(model[key(run)].steps_per_second / run["steps_per_second"] - 1)
            for run in runs
            if not is_fitted(run) and several == (run["learners"] > 1 and bool(run["actors"]))
        ]

    def summary(found: list[float]) -> str:
        return f"{np.median(found):.0f} % in the median and {max(found):.0f} % at most"

    alone, several = errors(False, predicted), errors(True, predicted)
    if not alone or not several:
        return "Runs to check it against are missing."
    return (
        f"On {len(alone)} runs that it was not fitted to it errs by {summary(alone)}. With several learners "
        f"({len(several)} runs, none fitted to) it errs by {summary(several)}. These runs are of version "
        "0.1.0, whose learners waited for each other in MPI's collectives on a core; with that in the model "
        f"it errs by {summary(errors(True, spinning))}: that does not explain them."
    )


def key(run: dict[str, Any]) -> str:
    return f"{run['variant']} {shape(run)}"


def many_plan(variant: str, number: int, learners: int = 1) -> JobPlan:
    name, *rule = variant.split()
    if name in ("sharded", "parameter_server"):
        return JobPlan(name, number, rule=rule[0] if rule else "lock")  # type: ignore[arg-type]
    return JobPlan(name, learners, number, in_flight=1)


def extrapolated(costs: dict[str, Costs]) -> dict[str, dict[int, SimulatedResult]]:
    """A core per rank and a real network; one learner or server, as many acting ranks as said."""
    found: dict[str, dict[int, SimulatedResult]] = {}
    for variant, cost in costs.items():
        apart = cost._replace(cores=0, message=LatencyBandwidth(*NETWORK))
        found[variant] = {n: simulate(apart, many_plan(variant, n)) for n in MANY}
    return found


def saturation(curve: dict[int, SimulatedResult]) -> tuple[str, str]:
    """Where more ranks stop to help, and what is busy there."""
    most = max(o.steps_per_second for o in curve.values())
    first = next(n for n, o in curve.items() if o.steps_per_second >= 0.9 * most)
    if first == max(curve):
        return f"not by {max(curve):,}", "–"
    return f"{first:,}", curve[max(curve)].bottleneck  # where it is plain


def far_table(costs: dict[str, Costs], curves: dict[str, dict[int, SimulatedResult]]) -> list[str]:
    lines = [
        "| workflow | a message | 120 | 20 learners, 120 actors | 1,000 | 10,000 | saturates at "
        "| because of |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for variant, curve in curves.items():
        where, why = saturation(curve)
        twenty = "–"
        if many_plan(variant, 120).actors:
            apart = costs[variant]._replace(cores=0, message=LatencyBandwidth(*NETWORK))
            twenty = f"{simulate(apart, many_plan(variant, 120, 20), 1200).steps_per_second:,.0f}"
        cells = [f"{curve[n].steps_per_second:,.0f}" for n in (120, 1_000, 10_000)]
        message = f"{1e3 * costs[variant].handle:.2f} ms"
        lines.append(
            f"| {variant} | {message} | {cells[0]} | {twenty} | {cells[1]} | {cells[2]} | {where} | {why} |"
        )
    return lines


def by_seed(runs: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Runs that differ in their seed only: (environment, variant, learners + actors) -> runs."""
    ordered = sorted(runs, key=lambda r: (r["env"], acting(r), key(r)))
    found = itertools.groupby(ordered, key=lambda r: (r["env"], r["variant"], shape(r)))
    return {name: list(items) for name, items in found}


def in_words(variant: str) -> str:
    """`parameter_server lock` -> parameter server: lock"""
    name, _, how = variant.partition(" ")
    return f"{words(name)}: {how}" if how else words(name)


def draw_solve(runs: list[dict[str, Any]]) -> str:
    """A dot for every seed that solved its environment, a line at the median of all; the page's line."""
    grouped = by_seed(runs)
    names = list(dict.fromkeys(env for env, *_ in grouped))
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(10.0, 0.3 * len(grouped) + 1.5), layout="constrained")
        sizes = [sum(env == name for env, *_ in grouped) for name in names]
        panels = figure.subplots(len(names), 1, squeeze=False, height_ratios=sizes)[:, 0]
        for panel, name in zip(panels, names, strict=True):
            mine = {k: several for k, several in grouped.items() if k[0] == name}
            counts = []
            for place, several in enumerate(mine.values()):
                times = [run.get("solved_seconds", np.inf) for run in several]
                kept = [seconds for seconds in times if np.isfinite(seconds)]
                counts.append(f"{len(kept)} of {len(times)} solved")
                panel.plot(kept, [place] * len(kept), "o", color=color(0), alpha=0.6)
                if np.isfinite(np.median(times)):
                    panel.plot([np.median(times)], [place], "|", color="black", markersize=14)
            labels = [
                f"{in_words(variant)}, {ranks}: {count}"
                for (_, variant, ranks), count in zip(mine, counts, strict=True)
            ]
            panel.set_yticks(range(len(mine)), labels, fontsize=8)
            panel.set_ylim(len(mine) - 0.5, -0.5)
            panel.set_title(name)
            panel.set_xlim(left=-0.01 * panel.get_xlim()[1])
        panels[-1].set_xlabel("Time to solve (s): seeds that solved it (dots), median of all seeds (bar)")
        figure.savefig(RESULTS / "workflows_solve.png", dpi=110)
    return "![time to solve](workflows_solve.png)"


def solve_table(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| env | workflow | learners + actors | seeds | solved | median time | fastest to slowest "
        "| × one process | median episodes | time per episode | of the budget |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]

    def middle(several: list[dict[str, Any]], what: str) -> float:
        """Over seeds; a seed that never solved it counts as for ever."""
        return float(np.median([run.get(what, np.inf) for run in several]))

    grouped = by_seed(runs)
    for (env, variant, ranks), several in grouped.items():
        solved = sum("solved_seconds" in run for run in several)
        seconds, episodes = (middle(several, f"solved_{what}") for what in ("seconds", "episodes"))
        alone = grouped.get((env, "sharded", "1"))
        gain = middle(alone, "solved_seconds") / seconds if alone and np.isfinite(seconds) else np.nan
        row = [env, variant, ranks, str(len(several)), str(solved)]
        if np.isfinite(seconds):
            times = [run.get("solved_seconds", np.inf) for run in several]
            slowest = duration(max(times)) if np.isfinite(max(times)) else "never"
            row += [duration(seconds), f"{duration(min(times))} to {slowest}"]
            row += [f"{gain:.2f}" if np.isfinite(gain) else "–"]
            row += [count(episodes), f"{1e3 * seconds / episodes:.1f} ms"]
        else:
            row += ["–"] * 5
        ended = [run for run in several if "solved_seconds" in run]
        spent = [run["solved_seconds"] * run["steps_per_second"] for run in ended]
        row.append(percent(float(np.median(spent)) / STEPS[several[0]["group"], env]) if spent else "–")
        lines.append("| " + " | ".join(row) + " |")
    return lines


def budget_table(runs: list[dict[str, Any]]) -> list[str]:
    """How many seeds solve it, and after which share of their steps."""
    lines = ["| workflow | learners + actors | seeds | solved | of the budget |", "|---|---|---|---|---|"]
    for (env, variant, ranks), several in by_seed(runs).items():
        ended = [run for run in several if "solved_seconds" in run]
        spent = [run["solved_seconds"] * run["steps_per_second"] / STEPS["budget", env] for run in ended]
        share = ", ".join(percent(part) for part in sorted(spent)) or "–"
        lines.append(f"| {variant} | {ranks} | {len(several)} | {len(ended)} | {share} |")
    return lines


def simple_table(runs: list[dict[str, Any]], what: str) -> list[str]:
    """Speed by workers; the first row of each kind is what the others are compared with."""
    lines = [f"| {what} | learners + actors | copies each | steps/s | × the first |", "|---|---|---|---|---|"]
    first: dict[str, float] = {}
    for run in sorted(runs, key=lambda r: (r["agent"], r["variant"], acting(r), r["learners"])):
        kind = f"{run['agent']}, {run['variant']}"
        alone = first.setdefault(kind, run["steps_per_second"])
        lines.append(
            f"| {kind} | {shape(run)} | {run['copies']} | {run['steps_per_second']:,.0f} "
            f"| {run['steps_per_second'] / alone:.2f} |"
        )
    return lines


def length_of(runs: list[dict[str, Any]]) -> str:
    shortest, longest = (f(run["seconds"] for run in runs) for f in (min, max))
    return (
        f"One run each, of {shortest:.0f} to {longest:.0f} s: too short to tell small differences, and a "
        "factor above the number of cores is not explained by scaling."
    )


def spread_table(runs: list[dict[str, Any]]) -> list[str]:
    """How far repeats of one run are apart."""
    lines = [
        "| rule | repeats | different parameters | norm of the parameters | final return |",
        "|---|---|---|---|---|",
    ]
    for variant in sorted({run["variant"] for run in runs}):
        mine = [run for run in runs if run["variant"] == variant]
        norms, finals = [run["norm"] for run in mine], [run["final"] for run in mine]
        lines.append(
            f"| {variant.split()[-1]} | {len(mine)} | {len(set(norms))} "
            f"| {min(norms):.3f} to {max(norms):.3f} | {min(finals):.0f} to {max(finals):.0f} |"
        )
    return lines


def split_text(runs: list[dict[str, Any]], predicted: dict[str, SimulatedResult]) -> list[str]:
    """The model's advice for four ranks, and what was measured."""
    speeds = {shape(r): r["steps_per_second"] for r in runs if r["variant"] == "async" and r["ranks"] == 4}
    advice = {split: predicted[f"async {split}"].steps_per_second for split in speeds}
    if len(speeds) < 2:
        return []
    best, real = max(advice, key=lambda s: advice[s]), max(speeds, key=lambda s: speeds[s])
    verdict = "as measured" if best == real else f"measured was {real} the fastest"
    cells = ", ".join(f"{s}: {speeds[s]:,.0f} (model {advice[s]:,.0f})" for s in sorted(speeds))
    return [
        f"Split of four ranks of `async`, steps per second: {cells}. The model recommends {best}, {verdict}.",
        "",
    ]


def published_ratios(runs: list[dict[str, Any]]) -> list[str]:
    """What of the published comparisons can be formed from runs here."""
    speed = {key(run): run["steps_per_second"] for run in runs}
    lines = []
    for text, ours, theirs in (
        ("`rma_queue` against `async`, 1 learner and 4 actors", "rma_queue 1 + 4", "async 1 + 4"),
        ("`async` with 8 actors: 2 learners against one", "async 2 + 8", "async 1 + 8"),
        ("`rma_queue` with 8 actors: 2 learners against one", "rma_queue 2 + 8", "rma_queue 1 + 8"),
        ("`async`: 8 actors against one", "async 1 + 8", "async 1 + 1"),
        (
            "`parameter_server lock`: 8 workers against one",
            "parameter_server lock 8",
            "parameter_server lock 1",
        ),
    ):
        if ours in speed and theirs in speed:
            lines.append(f"- {text}: {speed[ours] / speed[theirs]:.2f} × the steps per second")
    return ["Here, 2 ms steps:", "", *lines, ""] if lines else []


def draw(runs: list[dict[str, Any]], predicted: dict[str, SimulatedResult], curves: dict[str, Any]) -> None:
    """A small panel per workflow, on the same axes: lines of nine workflows in one panel hide each other."""
    variants = sorted({run["variant"] for run in runs})
    with matplotlib.rc_context(MATPLOTLIB):
        rows = -(-len(variants) // 3)
        figure = Figure(figsize=(10.0, 2.2 * rows + 0.6), layout="constrained")
        panels = figure.subplots(rows, 3, sharex=True, sharey=True, squeeze=False)
        for panel in panels.flat[len(variants) :]:
            panel.set_visible(False)
        for panel, variant in zip(panels.flat, variants, strict=False):
            mine = [r for r in runs if r["variant"] == variant and (r["learners"] == 1 or not r["actors"])]
            mine.sort(key=acting)
            sizes = [acting(run) for run in mine]
            speeds = [outcome.steps_per_second for outcome in curves[variant].values()]
            panel.loglog(
                list(curves[variant]), speeds, "--", color=MUTED, linewidth=1.2,
                label="model, a core per rank (not measured)",
            )  # fmt: skip
            model = [predicted[key(r)].steps_per_second for r in mine]
            panel.loglog(sizes, model, "-", color=color(0), label="model of this machine")
            measured = [r["steps_per_second"] for r in mine]
            panel.loglog(sizes, measured, "o", color=color(1), markersize=5, label="measured")
            panel.set_title(in_words(variant), fontsize=10)
        for panel in panels[-1]:
            panel.set_xlabel("Acting ranks")
        figure.supylabel("Environment steps per second", fontsize=10)
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.savefig(RESULTS / "workflows.png", dpi=110)


SECTIONS = (
    (
        "product",
        "The same number of copies on more ranks",
        "The Cray paper's table III asks how to divide workers × environments. 32 copies whose steps take "
        "0.25 ms each, one after the other within a rank.",
        lambda runs: simple_table(runs, "workflow"),
    ),
    (
        "lander",
        "LunarLander by workers",
        "The real simulator, 8 copies per rank that acts, no sleep: all ranks share the cores, so that more "
        "of them cannot gain more than the cores give. Dyna-Q: one rank acts, the others learn and plan.",
        lambda runs: [*simple_table(runs, "agent, workflow"), "", length_of(runs)],
    ),
    (
        "spread",
        "Nondeterminism",
        "The same run with the same seed, four workers, 50k steps of CartPole. Hogwild's stores race by "
        "design; with a lock only the order of exchanges is left to chance, and "
        "`run.replay_schedule` repeats it. Final return: the interquartile mean over the episodes of the "
        "one seed, which leaves out its worst and best quarter.",
        spread_table,
    ),
    (
        "solve",
        "Time to solve",
        "Whole runs with steps of 1 ms: the first evaluation of at least 475 (CartPole) or of an improvement "
        "factor of 1.3 (ExaBooster), within 120k and 250k steps. Times count from the first "
        "6,400 steps on, before which programs are compiled. Medians over all seeds; one that never solved "
        "it counts as infinite. Of the budget: the share of these steps that seeds which solved it needed, "
        "in the median.",
        lambda runs: [*solve_table(runs), "", draw_solve(runs)],
    ),
    (
        "budget",
        "ExaBooster with twice the budget",
        "Why seeds under `parameter_server` and `rma_queue` did not solve ExaBooster above is not known. "
        "They may have lacked steps: seeds that solved it needed most of theirs, and A2C alone meets 1.45 "
        "after [786k steps](exabooster.md). Here they have 500k steps, over which the learning rate falls to "
        "zero.",
        budget_table,
    ),
)


def write(known: dict[str, Any]) -> None:
    """The page; costs that had to be measured for it are added to `known`."""
    runs = [run for run in known["runs"].values() if run["group"] == "speed"]
    facts = known["machine"]
    lines = [
        "# Workflows compared",
        "",
        "The same agent (A2C with V-trace, 8 copies per rank that acts, unrolls of 16 steps) in every "
        "workflow, with environment steps that sleep for 2 ms: acting overlaps with learning although "
        f"{facts['cores']} cores are shared by all ranks. Made by `python scripts/studies/workflows.py`.",
        "",
    ]
    if runs:
        costs = base_costs(known, 0.002)
        found = fit(costs, runs)
        runs = [run for run in runs if run["variant"] in found.handle]
        fitted = {name: scaled(costs, found.slow, found.late, h) for name, h in found.handle.items()}
        predicted, spinning = (
            {key(r): simulate(fitted[r["variant"]]._replace(spins=spins), plan_of(r)) for r in runs}
            for spins in (False, True)
        )
        curves = extrapolated(fitted)
        draw(runs, predicted, curves)
        lines += ["![speed](workflows.png)", "", "## Speed", "", *speed_table(runs, predicted), ""]
        lines += split_text(runs, predicted)
        lines += [
            "The model ([the simulation](../guides/choose_a_workflow.md#performance-model)) has the measured "
            "costs of acting and learning in a process alone. Three things are fitted to speed and idle "
            f"learners of the runs with {' and '.join(map(str, FITTED))} acting ranks: how much longer work "
            f"takes among other ranks ({found.slow:g} ×), how much longer a step sleeps than it should "
            f"({1e3 * found.late:.1f} ms), and a core's time per message of each workflow (below). "
            + held_out(runs, predicted, spinning),
            "",
            "## Where each saturates, by the model",
            "",
            "Steps per second with a core per rank and a network of 2 µs and 12.5 GB/s, by ranks that act; "
            "one learner unless stated otherwise.",
            "",
            *far_table(fitted, curves),
            "",
        ]
    for group, title, text, table in SECTIONS:
        mine = [run for run in known["runs"].values() if run["group"] == group]
        lines += [f"## {title}", "", text, "", *(table(mine) if mine else ["Not run yet."]), ""]
    targets = bellman(known)
    ratio = targets["one_by_one"] / targets["together"]
    lines += [
        "## Bellman targets",
        "",
        f"DQN's targets for {targets['batch']} samples take {1e6 * targets['together']:,.0f} µs in one "
        f"call, {1e6 * targets['one_by_one']:,.0f} µs one by one, {ratio:.0f} times as long; spread over "
        "four processes EXARL gained 3.30 ×.",
        "",
    ]
    lines += ["## Beside published numbers", "", PUBLISHED, "", *published_ratios(runs)]
    commits = sorted({run["commit"] for run in known["runs"].values() if run["commit"]})
    lines += [f"Commits of the runs: {', '.join(f'`{c}`' for c in commits)}."]
    (RESULTS / "workflows.md").write_text("\n".join(lines) + "\n")
    print(f"wrote {RESULTS / 'workflows.md'}")
