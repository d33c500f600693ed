"""The experiments of "Scalable Reinforcement Learning on Cray XC" (Kommaraju et al. 2020) at the
size of two cores.

    python scripts/studies/cray.py products      workers × games × cores at a constant product, and actors
    python scripts/studies/cray.py scaling       PPO on one rank and on two, for the model of more nodes
    python scripts/studies/cray.py resize        PPO on Qbert on 4, then 2, then 1 ranks
    python scripts/studies/cray.py page          write docs/results/cray.md from what is recorded

Each part replaces what docs/data/cray.json has of it. Runs of the games are recorded by atari.py, those of
actors that come and go by elastic.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import atari  # these are beside this file
import numpy as np
import stretch
from matplotlib.figure import Figure

from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.runs.directory import code_version
from jaxrl_hpc.scaling import model

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DATA = ROOT / "docs" / "results", ROOT / "docs" / "data" / "cray.json"
SHARDED, IMPALA = "workflows/atari_breakout_ppo_sharded", "workflows/atari_breakout_impala"


def read() -> dict[str, Any]:
    return json.loads(DATA.read_text()) if DATA.exists() else {}


def keep(part: str, found: dict[str, Any]) -> None:
    DATA.write_text(json.dumps(read() | {part: found}, indent=1) + "\n")


def circumstances() -> dict[str, Any]:
    facts = machine_facts()
    return {name: facts[name] for name in ("processor", "cores", "load")} | code_version()


# -- workers x games x cores -------------------------------------------------

GAMES_TOGETHER = 16
ROUNDS, ITERATIONS = 3, 8  # of a measurement; the first is left out


class Split(NamedTuple):
    """So many workers that share the games and the cores."""

    kind: str  # learning: all workers act and learn; acting: beside one learner
    workers: int
    cores: int

    @property
    def games(self) -> int:
        return GAMES_TOGETHER // self.workers

    @property
    def name(self) -> str:
        return f"{self.kind} {self.workers} x {self.games} on {self.cores}"


SPLITS = (
    Split("learning", 1, 1),
    Split("learning", 1, 2),
    Split("learning", 2, 2),
    Split("learning", 4, 2),
    Split("acting", 1, 2),
    Split("acting", 2, 2),
    Split("acting", 4, 2),
)


def settings_of(split: Split) -> list[str]:
    if split.kind == "learning":
        per_iteration = GAMES_TOGETHER * 128
        threads = max(1, split.cores // split.workers)
        own = [SHARDED, f"workflow.num_envs={GAMES_TOGETHER}", f"run.threads={threads}"]
    else:
        per_iteration = GAMES_TOGETHER * 20
        own = [IMPALA, f"workflow.num_envs={split.games}", f"workflow.batch_trajectories={split.workers}"]
        per_iteration *= 8  # short ones: as many actions in a chunk
    return [
        *own,
        f"run.total_env_steps={ITERATIONS * per_iteration}",
        f"run.log_every={per_iteration}",
        "run.eval_every=0",
        "run.final_eval_episodes=1",
        "env.max_episode_steps=200",  # the evaluation at the end is not measured
        "run.tensorboard=false",
    ]


def rate_of(split: Split) -> float:
    """Actions per second between the first and the last row of the metrics."""
    ranks = split.workers + (split.kind == "acting")
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[: split.cores])
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        launcher = [str(find_mpiexec()), "-n", str(ranks)] if ranks > 1 else []
        train = [
            sys.executable,
            "-m",
            "jaxrl_hpc.cli.main",
            "train",
            *settings_of(split),
            "--run-dir",
            str(run),
        ]
        subprocess.run(["taskset", "-c", cores, *launcher, *train], check=True, capture_output=True)
        (curve,) = load_run(run).seed_curves("train", "updates")
    return float((curve.steps[-1] - curve.steps[0]) / (curve.minutes[-1] - curve.minutes[0]) / 60)


def products() -> None:
    rates: dict[str, list[float]] = {split.name: [] for split in SPLITS}
    for turn in range(ROUNDS):
        for split in SPLITS:
            rates[split.name].append(rate_of(split))
            print(f"round {turn + 1}: {split.name}: {rates[split.name][-1]:.0f}/s", flush=True)
            keep("products", {"rates": rates, **circumstances()})


# -- one rank and two, and the model -----------------------------------------

LATENCIES = (2e-6, 2e-5, 2e-4, 2e-3)  # seconds: a cluster's network, Ethernet, and far too much
NODES = (1, 2, 4, 8, 16)


def scaling() -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = ["scaling", SHARDED, "--ranks", "1,2", "--engines", "mpi", "--rounds", "2", "--out", folder]
        subprocess.run([sys.executable, "-m", "jaxrl_hpc.cli.main", *words], check=True)
        keep("scaling", json.loads((Path(folder) / "scaling.json").read_text()) | code_version())


def modelled(report: dict[str, Any], latency: float, nodes: int, waits: bool) -> float:
    """Share of the actions per second that so many separate nodes would have together."""
    network = model.NetworkModel(latency, report["network"]["bandwidth"])
    flow = report["config"]["workflow"]
    overhead = next(iter(report["lines"].values()))["latency"]
    talk = model.over_network(
        report["messages"], network, nodes, overhead, flow["shards"], flow["deterministic"]
    )
    compute = report["compute_milliseconds"] / 1e3
    wait = model.waiting(report["jitter_milliseconds"] / 1e3, nodes) if waits else 0.0
    return compute / (compute + talk + wait)


# -- a run that changes its size ---------------------------------------------

QBERT = [SHARDED, "env.name=Qbert-Atari", "run.name=cray.resize", "run.tensorboard=false"]
PHASES = (4, 2, 1)
CHUNK, BUDGET, COPIES = 10_240, 500_000, 8  # of the config


def resize(folder: Path) -> None:
    """Phases that are done are not repeated; one that was stopped goes on."""
    rows: list[dict[str, Any]] = read().get("resize", {}).get("phases", [])
    if rows and not folder.exists():
        sys.exit(f"{folder} is gone: remove `resize` from {DATA.name} to begin again")
    chunks = BUDGET // CHUNK
    for number, ranks in enumerate(PHASES[len(rows) :], len(rows)):
        last = number + 1 == len(PHASES)
        until = None if last else chunks * (number + 1) // len(PHASES)
        stretch.phase(folder, ranks, until, QBERT)
        run = load_run(folder)
        steps, seconds = (max(run.table[name].to_pylist()) for name in ("env_steps", "wall_seconds"))
        if not run.summary if until is None else steps < until * CHUNK:
            sys.exit(f"stopped; the same command goes on from {folder}")
        rows.append({"ranks": ranks, "env_steps": int(steps), "seconds": seconds})
        keep("resize", {"phases": rows, **circumstances()})
    (curve,) = run.seed_curves("eval", "eval_return")
    kept = ("env_steps", "restarted_episodes", "dropped_episodes", "eval_return_score", "wall_seconds")
    found = {name: run.summary[name] for name in kept}
    points = {name: getattr(curve, name).tolist() for name in ("steps", "minutes", "values")}
    keep("resize", {"phases": rows, **points, **found, **circumstances()})


def resize_figure(found: dict[str, Any], qbert: dict[str, Any]) -> Figure:
    one = {"0": {name: found[name] for name in ("steps", "minutes", "values")}}
    runs = {"4 → 2 → 1 ranks": atari.as_run("qbert_ppo", one)}
    if qbert:
        runs["one process"] = atari.as_run("qbert_ppo", qbert)
    named = {name: RunData(name, run.path, run.config, {}, run.table) for name, run in runs.items()}
    return stretch.figure_of(named, [row["env_steps"] for row in found["phases"][:-1]])


# -- the page ----------------------------------------------------------------

PAPER = "Kommaraju, Maschhoff, Ringenburg, Robbins: Scalable Reinforcement Learning on Cray XC (2020)"


def under(found: dict[str, Any]) -> str:
    """On what, and how busy."""
    busy = ", while other work ran on them" if found["load"] > found["cores"] + 1 else ""
    return f"{found['processor']}, {found['cores']} cores{busy}; commit `{str(found['commit'])[:10]}`."


def agents_section(record: dict[str, Any], published: dict[str, Any]) -> list[str]:
    """Its figures 6 and 7."""
    rllib = published["2M frames"]["RLlib"]["scores"]["breakout"]
    lines = [
        "## A2C against PPO (its figures 6 and 7), and the others",
        "",
        "Breakout, 500k actions. RLlib's scores at as many actions are of its own published runs "
        "([source](atari.md)), since the paper's agents are RLlib's.",
        "",
        "| agent | score, ours | score, RLlib | minutes, one core | actions per second, one core |",
        "|---" * 5 + "|",
    ]
    for name in ("breakout_ppo", "breakout_a2c", "breakout_impala", "breakout_apex"):
        rows, agent = record["runs"].get(name), atari.ENTRIES[name].agent
        if rows:
            ours = atari.spread((row["returns"] for row in rows.values()), 1)
            minutes = np.mean([row["wall_seconds"] for row in rows.values()]) / 60
            rate = np.mean([row["env_steps_per_second"] for row in rows.values()])
            lines.append(f"| {agent} | {ours} | {rllib[agent]:.1f} | {minutes:.0f} | {rate:,.0f} |")
        else:
            lines.append(f"| {agent} | not run | {rllib[agent]:.1f} | | |")
    return [*lines, "", "All games and runs: [atari.md](atari.md).", ""]


def products_section(found: dict[str, Any]) -> list[str]:
    lines = [
        "## Workers × games × cores (its table III and figure 8)",
        "",
        f"{GAMES_TOGETHER} games of Breakout, shared by the workers; actions per second of all together, "
        f"median of "
        f"{len(next(iter(found['rates'].values())))} runs in turns. *Learning*: PPO, every worker plays and "
        f"learns "
        "(`sharded`). *Acting*: IMPALA, workers play beside one learner (`async`), which takes an unroll of "
        "each "
        "per update.",
        "",
        "| workers | games per worker | cores | what workers do | actions per second | slowest, fastest |",
        "|---" * 6 + "|",
    ]
    for split in SPLITS:
        rates = found["rates"][split.name]
        if rates:
            lines.append(
                f"| {split.workers} | {split.games} | {split.cores} | {split.kind} | {np.median(rates):,.0f} "
                f"| {min(rates):,.0f}, {max(rates):,.0f} |"
            )
    return [*lines, "", under(found), ""]


def resize_section(found: dict[str, Any], record: dict[str, Any], published: dict[str, Any]) -> list[str]:
    changes = len(PHASES) - 1
    lines = [
        "## A run that changes its size (its figure 3)",
        "",
        f"PPO on Qbert, {found['env_steps']:,} actions on {' → '.join(map(str, PHASES))} ranks: at a third "
        f"and at "
        "two thirds of the budget a signal makes all ranks save the same step and stop, and half as many go "
        "on "
        "(the paper: 128 → 64 → 32 workers).",
        "",
        "![curves](cray_resize.png)",
        "",
        "| ranks | actions at the end of the phase | minutes of training so far |",
        "|---|---|---|",
        *(
            f"| {row['ranks']} | {row['env_steps']:,} | {row['seconds'] / 60:.1f} |"
            for row in found["phases"]
        ),
        "",
        f"Episodes in progress that were given up, counted in the summary: {found['restarted_episodes']} "
        f"({COPIES} games, {changes} changes: {COPIES * changes} expected); others lost: "
        f"{found['dropped_episodes']}. Parameters, Adam's state, the schedule of the step size and all "
        f"counts go "
        "on: with an environment inside the program the run even has the same bits as one that nobody "
        "touched "
        "([a run on a changing number of ranks](stretch.md)).",
        "",
        f"Score at the end: {found['eval_return_score']:,.0f}; unchanged runs of one process: "
        + (
            atari.spread(row["returns"] for row in record["runs"]["qbert_ppo"].values())
            if "qbert_ppo" in record["runs"]
            else "not run"
        )
        + f"; random play: {atari.random_text(record, 'qbert')}; RLlib's PPO at as many actions: "
        f"{published['2M frames']['RLlib']['scores']['qbert']['PPO']:,.0f}. The ranks shared "
        f"{found['cores']} "
        f"core{'s' * (found['cores'] > 1)}: times say nothing of speed. {under(found)}",
        "",
    ]
    return lines


def scaling_section(report: dict[str, Any]) -> list[str]:
    rows = {row["ranks"]: row for row in report["rows"]}
    one, two = rows[1], rows[2]
    size = sum(4 * m["times"] * m["length"] for m in report["messages"])
    lines = [
        "## One node to sixteen (its figure 11)",
        "",
        f"PPO on Breakout, 8 games per rank. Measured: one rank {one['env_steps_per_second']:,.0f} actions "
        f"per second, "
        f"two ranks {two['env_steps_per_second']:,.0f}, which is {100 * two['efficiency_beside']:.0f} % of "
        f"two separate "
        f"runs side by side. An iteration takes {report['compute_milliseconds'] / 1e3:.2f} s and sends "
        f"{sum(m['times'] for m in report['messages'])} messages, {size / 1e6:.1f} MB in all per shard.",
        "",
        "Modelled: actions per second of so many nodes of one rank each, as a share of as many separate "
        "ones, by "
        f"the latency of the network ({report['network']['bandwidth'] / 1e9:.1f} GB/s each). The last row "
        f"adds "
        "waiting for the slowest node, whose delays are as those measured between two ranks here.",
        "",
        "| latency | " + " | ".join(f"{nodes} node{'s' * (nodes > 1)}" for nodes in NODES) + " |",
        "|---" * (1 + len(NODES)) + "|",
    ]
    for latency in LATENCIES:
        shares = " | ".join(f"{100 * modelled(report, latency, nodes, False):.1f} %" for nodes in NODES)
        lines.append(f"| {1e6 * latency:,.0f} µs | {shares} |")
    shares = " | ".join(f"{100 * modelled(report, LATENCIES[0], nodes, True):.0f} %" for nodes in NODES)
    lines += [
        f"| {1e6 * LATENCIES[0]:,.0f} µs and waiting | {shares} |",
        "",
        "The paper reports scaling that is close to linear up to 4 nodes and flattens beyond 8, and names "
        "the "
        "latency of the network as the cause. In this model latency is not what limits synchronous PPO: an "
        "iteration takes seconds and sends few messages; waiting for the slowest node costs more. "
        + under(report["machine"] | {"commit": report["commit"]}),
        "",
    ]
    return lines


def elastic_section() -> list[str]:
    page = RESULTS / "elastic.md"
    if not page.exists():
        return []
    return [
        "## Actors that come and go",
        "",
        "Not in the paper, which stops the job to change its size. CartPole with 20 kills per run, accounts "
        "and "
        "scores: [elastic.md](elastic.md).",
        "",
    ]


def page(found: dict[str, Any], record: dict[str, Any], published: dict[str, Any]) -> str:
    lines = [
        "# The Cray XC paper's experiments on two cores",
        "",
        "Made by `python scripts/studies/cray.py page`.",
        "",
        f"{PAPER} trains RLlib's IMPALA, Ape-X, A2C and PPO on BeamRider, Breakout, Qbert and SpaceInvaders "
        f"for 10M "
        "actions on 1 to 16 nodes. Here: the same games and agents, 500k actions, two cores.",
        "",
        *agents_section(record, published),
    ]
    if "products" in found:
        lines += products_section(found["products"])
    if "env_steps" in found.get("resize", {}):
        lines += resize_section(found["resize"], record, published)
    if "scaling" in found:
        lines += scaling_section(found["scaling"])
    missing = [part for part in ("products", "resize", "scaling") if part not in found]
    lines += [
        *elastic_section(),
        "## What cannot be compared",
        "",
        "- Scores at 10M actions: ours are at 500k; [atari.md](atari.md) has RLlib's at both.",
        "- Times and rates: the paper's are of the CPU and GPU nodes of a Cray XC.",
        "- Nodes: one machine has no network. Everything over 2 ranks is the model's.",
        "- The 84 minutes of its run on 128, 64 and 32 workers: ours has 4, 2 and 1 ranks on shared cores.",
        "- Its figures' own values: only its text was at hand, so that no point of a curve is repeated here.",
        *([f"- Not yet measured: {', '.join(missing)}."] if missing else []),
    ]
    return "\n".join(lines) + "\n"


def write_page() -> None:
    found, record = read(), atari.read_record()
    published = json.loads(atari.PUBLISHED.read_text())
    if "values" in found.get("resize", {}):
        qbert = record["runs"].get("qbert_ppo", {})
        resize_figure(found["resize"], qbert).savefig(RESULTS / "cray_resize.png", dpi=110)
    (RESULTS / "cray.md").write_text(page(found, record, published))
    print("wrote docs/results/cray.md")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["products", "scaling", "resize", "page"])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "studies" / "cray")
    args = parser.parse_args()
    if args.part == "page":
        write_page()
    elif args.part == "resize":
        args.runs.mkdir(parents=True, exist_ok=True)
        resize(args.runs / "resize")
    else:
        {"products": products, "scaling": scaling}[args.part]()


if __name__ == "__main__":
    main()
