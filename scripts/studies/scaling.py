"""How synchronous training scales: measured on this machine, modelled beyond it.

    python scripts/studies/scaling.py [--measure] [--only ppo_weak cores]

--measure runs `jaxrl-hpc scaling` for each case and keeps its report as docs/data/scaling_<case>.json, and
compares one run on one core and on two (case `cores`); without it the page docs/results/scaling.md and its
pictures are made anew from these files. A case takes two to six minutes on a calm machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_hpc import config as configs
from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.scaling import figure, study
from jaxrl_hpc.scaling.model import NetworkModel

ROOT = Path(__file__).resolve().parents[2]
DATA, RESULTS = ROOT / "docs" / "data", ROOT / "docs" / "results"
PPO, DQN = "workflows/cartpole_ppo_sharded", "workflows/cartpole_dqn_sharded"
CASES = {
    "ppo_weak": ("PPO, weak", [PPO, "--ranks", "1,2", "--rounds", "3"]),
    "dqn_weak": ("DQN with one prioritised replay, weak", [DQN, "--ranks", "1,2", "--rounds", "3"]),
    "dqn_ahead": (
        "DQN with one prioritised replay and draw_ahead, weak",
        [DQN, "workflow.draw_ahead=true", "--ranks", "1,2", "--rounds", "2"],
    ),
    "ppo_strong": (
        "PPO, strong, all layouts",
        [PPO, "--ranks", "1,2", "--devices", "1,2", "--mode", "strong", "--rounds", "2", "--seconds", "2"],
    ),
}


class Goal(NamedTuple):
    """What a row of a case should reach, counted against separate runs side by side."""

    case: str
    ranks: int
    devices: int
    least: float
    text: str


GOALS = (
    Goal("ppo_weak", 2, 1, 0.95, "PPO, weak, 1 → 2 ranks"),
    Goal("ppo_strong", 2, 1, 0.90, "PPO, strong, 1 → 2 ranks"),
    Goal("ppo_strong", 1, 2, 0.85, "PPO, strong, 1 × 2 devices"),
    Goal("dqn_weak", 2, 1, 0.80, "DQN with one prioritised replay, weak, 1 → 2 ranks"),
    Goal("dqn_ahead", 2, 1, 0.80, "DQN with one prioritised replay and draw_ahead, weak, 1 → 2 ranks"),
)
# one run on one core and on two: config, settings, and how many shards are many
ON_CORES = {
    "PPO on CartPole": ("cartpole_ppo", ["workflow.num_envs=24"], 12),
    "PPO on ExaBooster": ("exabooster_ppo", [], 16),
    "A2C on CartPole": ("cartpole_a2c", [], 16),
    "PPO on MinAtar's Breakout": ("breakout_ppo", [], 16),
}
ROUNDS, SECONDS = 2, 1.0
PAYS = 1.5  # times the speed of `fused` from which two cores for one run are worth a default
SMALL = 100_000  # bytes up to which the goal for collectives holds


def data_file(case: str) -> Path:
    return DATA / f"scaling_{case}.json"


def measure(case: str) -> None:
    if case == "cores":
        for found in measure_cores():
            data_file(case).write_text(json.dumps(found, indent=1) + "\n")
        return
    folder = ROOT / "runs" / "studies" / "scaling" / case
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "scaling", *CASES[case][1], "--out", str(folder)]
    subprocess.run(command, check=True)
    data_file(case).write_text((folder / "scaling.json").read_text())


def variants_of(many: int) -> list[tuple[str, int, int]]:
    """Workflow, shards and devices of the ways to run a config."""
    return [("fused", 0, 1), *(("sharded", shards, devices) for shards in (2, many) for devices in (1, 2))]


def measure_cores() -> Iterator[dict[str, Any]]:
    """Every config in all variants, in turns; what there is after each config."""
    cases: list[dict[str, Any]] = []
    for title, (name, settings, many) in ON_CORES.items():
        rows: list[dict[str, Any]] = [
            {"workflow": flow, "shards": shards, "devices": devices, "seconds": [], "core_seconds": []}
            for flow, shards, devices in variants_of(many)
        ]
        for turn in range(ROUNDS):
            for row in rows:
                variant = [f"workflow.name={row['workflow']}"]
                variant += [f"workflow.shards={row['shards']}"] if row["shards"] else []
                config = configs.load(name, [*settings, *variant])
                request = study.Request(config, [1], [1], "strong", SECONDS, 1, "", NetworkModel(0.0, 1.0))
                result = study.measure(request, study.JobLayout("", 1, row["devices"]), collectives=False)
                row["seconds"] += result["seconds"]
                row["core_seconds"].append(result["core_seconds"])
                row |= {key: result[key] for key in ("steps_per_iteration", "trace") if key in result}
                print(
                    f"round {turn + 1} of {ROUNDS}: {title}, {variant}, {row['devices']} devices", flush=True
                )
        flow = config.to_dict()["workflow"]
        sizes = {key: flow[key] for key in ("num_envs", "unroll_length")}
        cases.append({"title": title, "config": name, **sizes, "rows": rows})
        yield {"machine": machine_facts(), "cases": cases}


def disturbed(report: dict[str, Any]) -> bool:
    """Whether more was running than the layouts themselves explain."""
    facts = report["machine"]
    workers = max(row["ranks"] * row["devices"] for row in report["rows"])
    return facts["load"] > max(facts["cores"], workers) + 1


Report = dict[str, Any]


def reached(reports: dict[str, Report], goal: Goal) -> list[dict[str, Any]]:
    """Rows of the goal's layout, on each engine."""
    rows = reports[goal.case]["rows"] if goal.case in reports else []
    return [row for row in rows if (row["ranks"], row["devices"]) == (goal.ranks, goal.devices)]


def engine_of(row: dict[str, Any]) -> str:
    return row["engine"] or "one process"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def goals(reports: dict[str, Report]) -> list[str]:
    """The goals of the project beside what was found."""
    lines = ["| goal | found | verdict |", "|---|---|---|"]
    for goal in GOALS:
        rows = reached(reports, goal)
        if not rows:
            continue
        best = max(row["efficiency_beside"] for row in rows)
        found = ", ".join(f"{engine_of(row)} {percent(row['efficiency_beside'])}" for row in rows)
        alone = ", ".join(percent(row["efficiency"]) for row in rows)
        missing = 100 * (goal.least - best)
        verdict = "met" if missing <= 0 else f"**missed** by {missing:.1f} points"
        if disturbed(reports[goal.case]):
            verdict += ", while other work ran"
        lines.append(
            f"| {goal.text} ≥ {100 * goal.least:.0f} % | {found} (against one alone: {alone}) | {verdict} |"
        )
    if "ppo_weak" in reports:
        both = reports["ppo_weak"]["collectives"]["2 × 1 mpi"]
        ratios = {int(s): both["inside"][s] / both["raw"][s] for s in both["inside"]}
        worst = max(ratio for size, ratio in ratios.items() if size <= SMALL)
        verdict = "met" if worst <= 2 else "**missed**"
        lines.append(
            f"| a collective in the loop ≤ 2 × mpi4py up to 100 KB | at most {worst:.2f} × | {verdict} |"
        )
        lines.append(f"| 10 MB: reported | {ratios[10_000_000]:.2f} × | |")
    return lines


def losses(reports: dict[str, Report]) -> list[str]:
    """By what goals are missed: traced shares of an iteration; the rest is slower computing."""
    lines = []
    for goal in GOALS:
        for row in reached(reports, goal):
            if row["efficiency_beside"] >= goal.least or "trace" not in row:
                continue
            time = row["milliseconds"]
            waiting, exchange = (figure.traced(row, part) / time for part in ("waiting", "exchange"))
            rest = 1 - row["efficiency_beside"] - waiting - exchange
            slower = (
                f"for {percent(rest)} it computes what separate runs do not"
                if rest > 0
                else f"{percent(-rest)} more than is lost, since recording also adds to waiting"
            )
            lines.append(
                f"- {goal.text}, {engine_of(row)}: of an iteration of {time:.3f} ms "
                f"{percent(1 - row['efficiency_beside'])} is lost. A worker waits for the others for "
                f"{percent(waiting)} of it and exchanges data for {percent(exchange)}; {slower}."
            )
    return ["## Where goals are missed", "", *lines, ""] if lines else []


def engines(reports: dict[str, Report]) -> list[str]:
    """The measurement behind the rule of `workflow.engine: auto`."""
    lines = ["| case | mpi, ms per iteration | jax, ms per iteration | jax / mpi |", "|---|---|---|---|"]
    ratios = []
    for case, report in reports.items():
        times = {(r["engine"], r["ranks"], r["devices"]): r["milliseconds"] for r in report["rows"]}
        for (engine, ranks, devices), jax in times.items():
            mpi = times.get(("mpi", ranks, devices))
            if engine == "jax" and mpi:
                ratios.append(jax / mpi)
                name = f"{CASES[case][0]}, {ranks} × {devices}"
                lines.append(f"| {name} | {mpi:.3f} | {jax:.3f} | {jax / mpi:.2f} |")
    faster = sum(ratio > 1 for ratio in ratios)
    return [
        "## The two engines",
        "",
        *lines,
        "",
        f"With one device per CPU rank `mpi` is the faster one in {faster} of {len(ratios)} cases (jax / mpi "
        f"from {min(ratios):.2f} to {max(ratios):.2f}), and `workflow.engine: auto` takes it there. Each "
        "rank was held to one core, which `jax` shares with the threads of gloo, its transport. Several "
        "devices per process are possible with `jax` alone.",
        "",
    ]


def one_message(report: Report) -> list[str]:
    """What joining the messages of an update would bring."""
    row = next(row for row in report["rows"] if row["engine"] == "mpi" and row["ranks"] == 2)
    latency = 1e3 * report["lines"]["2 × 1 mpi"]["latency"]
    return [
        "## One message instead of three",
        "",
        "An update of DQN from one prioritised replay sends masses of shards, sampled rows and gradients, "
        "and each needs what the one before has brought: the draw depends on all masses, the gradient on the "
        "rows. With `draw_ahead` rows and gradients could travel together, but rows are added as words and "
        "gradients as floats, which is not one reduction; gathering both would send every shard's to all. "
        "Joining all three "
        f"would save two latencies, 2 × {1e3 * latency:.1f} µs between these ranks or "
        f"{percent(2 * latency / row['milliseconds'])} of an iteration, for masses that are older still. So "
        "there are three messages.",
        "",
    ]


def on_cores(report: Report, weak: Report | None) -> list[str]:
    """One run on one core and on two, and whether that should be a default."""
    beside = next((row["beside_milliseconds"] for row in weak["rows"] if row["ranks"] == 2), 0) if weak else 0
    seeds = f" ({2 * weak['compute_milliseconds'] / beside:.2f} × one alone)" if weak and beside else ""
    lines = [
        "| run | shards | cores | steps/s | × `fused` | core time, µs per step | waiting | exchange |",
        "|---|---|---|---|---|---|---|---|",
    ]
    speed: dict[str, float] = {}
    for case in report["cases"]:
        rates = [row["steps_per_iteration"] / statistics.median(row["seconds"]) for row in case["rows"]]
        for row, rate in zip(case["rows"], rates, strict=True):
            row["milliseconds"] = 1e3 * statistics.median(row["seconds"])
            parts = ("waiting", "exchange") if "trace" in row else ()
            core = 1e6 * statistics.median(row["core_seconds"]) / row["steps_per_iteration"]
            cells = [
                f"{case['title']}, {case['num_envs']} copies, unrolls of {case['unroll_length']}",
                str(row["shards"] or "`fused`"),
                str(row["devices"]),
                f"{rate:,.0f}",
                f"{rate / rates[0]:.2f}",
                f"{core:.2f}",
                *(percent(figure.traced(row, part) / row["milliseconds"]) for part in parts),
                *([""] * (2 - len(parts))),
            ]
            lines.append("| " + " | ".join(cells) + " |")
            if (row["shards"], row["devices"]) == (2, 2):
                speed[case["title"]] = rate / rates[0]
    absent = [title for title in ON_CORES if title not in {case["title"] for case in report["cases"]}]
    pays = [title for title, factor in speed.items() if factor >= PAYS]
    found = (
        "Two cores bring " + ", ".join(f"{title} {factor:.2f} ×" for title, factor in speed.items()) + ". "
    )
    return [
        "## One run on several cores",
        "",
        "The same config as one program on one core (`fused`), and divided into shards on one device and on "
        "two (`workflow.name=sharded workflow.shards=2 workflow.devices=2`), in turns. The number of shards "
        "belongs to the config and determines the result, cores do not (with `deterministic` bit for bit).",
        "",
        *lines,
        "",
        found
        + (f"That is {PAYS} × or more for {', '.join(pays)}. " if pays else f"None reaches {PAYS} ×. ")
        + "Shipped configs keep `fused`: results need several seeds, and two runs side by side use two cores "
        f"without waiting for each other{seeds}. For a single run in a hurry `sharded` is the option.",
        "",
        *([f"Not measured: {', '.join(absent)}.", ""] if absent else []),
    ]


def describe(name: str, report: dict[str, Any]) -> list[str]:
    flow, network = report["config"]["workflow"], report["network"]
    per_iteration = report["rows"][0]["env_steps_per_second"] * report["rows"][0]["milliseconds"] / 1e3
    sent = ", ".join(
        f"{m['times']} × {m['kind']} of {4 * m['length']:,} bytes a shard" for m in report["messages"]
    )
    facts, noisy = report["machine"], disturbed(report)
    lines = [
        f"One worker alone: {report['compute_milliseconds']:.3f} ms for an iteration of "
        f"{per_iteration:,.0f} steps; standard deviation of one iteration "
        f"{report['jitter_milliseconds']:.3f} ms. It sends {sent}.",
        "",
        figure.table(report),
        "",
        f"The second table is the model's: nodes with one such worker each and {flow['shards']} more shards "
        f"per node, a network with {1e6 * network['latency']:.1f} µs and "
        f"{network['bandwidth'] / 1e9:.1f} GB/s. Nothing of it was measured.",
        "",
        figure.trace_table(report),
        "",
        f"Measured on {facts['processor']}, {facts['cores']} cores, load {facts['load']:.1f} at the end"
        + (": **other work ran at the same time; measure again on a quiet machine**." if noisy else "."),
    ]
    return [f"## {name}", "", *lines, ""]


def page(reports: dict[str, Report], cores: Report | None) -> str:
    lines = [
        "# Scaling of synchronous training",
        "",
        "Made by `python scripts/studies/scaling.py --measure`.",
        "",
        "The workflow `sharded` on one and more ranks and devices of one machine, on both engines, in turns, "
        "medians over chunks; collectives measured alone, inside a compiled loop and by the MPI library "
        "itself; and what a model fitted to that expects of more nodes.",
        "",
        "Efficiency is counted against as many separate one-worker runs side by side on the same cores: two "
        "busy cores are worth less than twice one, whatever runs on them. Beside it stands efficiency "
        "against one run alone. Waiting for the slowest is measured on the separate runs: by how much one "
        "of them is later than their mean from one moment to the next, which is time that synchronous runs "
        "wait without any message being slow. Core time is that of all ranks; ranks that wait keep their "
        "core busy.",
        "",
        *goals(reports),
        "",
        "Traces are by XLA's profiler: an exchange begins when the last worker arrives, and what the "
        "others spend before that is waiting. Recording itself takes time, which a last column shows.",
        "",
        *losses(reports),
        *engines(reports),
        *(one_message(reports["dqn_weak"]) if "dqn_weak" in reports else []),
        *(on_cores(cores, reports.get("ppo_weak")) if cores else []),
    ]
    for case, report in reports.items():
        heading, blank, *rest = describe(CASES[case][0], report)
        lines += [heading, blank, f"![{CASES[case][0]}](scaling_{case}.png)", "", *rest]
    if "ppo_weak" in reports:
        lines += ["## Collectives", "", figure.collectives_table(reports["ppo_weak"]), ""]
        lines += [
            "In the loop means an allreduce by the engine and a scaling of the result, inside `fori_loop`; "
            "mpi4py does the same to a NumPy array in place. Large messages pay for a copy: the compiled "
            "program's allreduce is not in place.",
            "",
        ]
    lines += ["More workers than cores take turns; efficiency against one alone then counts cores."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--only", nargs="+", choices=[*CASES, "cores"], help="measure only these cases")
    options = parser.parse_args()
    for case in (options.only or [*CASES, "cores"]) if options.measure else []:
        measure(case)
    reports = {c: json.loads(data_file(c).read_text()) for c in CASES if data_file(c).exists()}
    cores = json.loads(data_file("cores").read_text()) if data_file("cores").exists() else None
    # without separate runs side by side there is nothing to count efficiency by: to be measured again
    reports = {c: report for c, report in reports.items() if "engine" in report["rows"][0]}
    for case, report in reports.items():
        figure.draw(report, RESULTS / f"scaling_{case}.png")
    (RESULTS / "scaling.md").write_text(page(reports, cores))
    print(f"wrote {RESULTS / 'scaling.md'}")


if __name__ == "__main__":
    main()
