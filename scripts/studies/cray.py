"""The experiments of "Scalable Reinforcement Learning on Cray XC" (Kommaraju et al. 2020) at the
size of one or two cores.

    python scripts/studies/cray.py products      workers × games × cores at a constant product, and actors
    python scripts/studies/cray.py scaling       PPO on one rank and on two, for the model of more nodes
    python scripts/studies/cray.py resize        PPO on Qbert on 4, then 2, then 1 ranks
    python scripts/studies/cray.py page          write docs/results/cray.md from what is recorded

Each part replaces what docs/data/cray.json has of it, and uses the cores that it is given (`taskset`). Runs
of the games are recorded by atari.py, those of actors that come and go by elastic.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import atari  # these are beside this file
import numpy as np
import stretch
from matplotlib.figure import Figure

from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.runs.directory import code_version
from jaxrl_hpc.runtime.host import available_cores
from jaxrl_hpc.scaling import model

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DATA = ROOT / "docs" / "results", ROOT / "docs" / "data" / "cray.json"
SHARDED, IMPALA = "workflows/atari_breakout_ppo_sharded", "workflows/atari_breakout_impala"


def read() -> dict[str, Any]:
    return json.loads(DATA.read_text()) if DATA.exists() else {}


def keep(part: str, found: dict[str, Any]) -> None:
    DATA.write_text(json.dumps(read() | {part: found}, indent=1) + "\n")


def circumstances(begun: float) -> dict[str, Any]:
    """Where, how busy it was, and how long it took."""
    facts = machine_facts()
    known = {name: facts[name] for name in ("processor", "cores", "load")}
    return known | {"machine_cores": os.cpu_count(), "took": time.time() - begun} | code_version()


# -- workers x games x cores -------------------------------------------------

GAMES_TOGETHER = 16
ROUNDS, ITERATIONS = 2, 4  # of a measurement; the first iteration is left out


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


SPLITS = tuple(
    Split(kind, workers, cores)
    for kind in ("learning", "acting")
    for cores in (1, 2)
    for workers in (1, 2, 4)
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
    """Splits that need more cores than there are stay unmeasured."""
    begun = time.time()
    splits = [split for split in SPLITS if split.cores <= available_cores()]
    rates: dict[str, list[float]] = {split.name: [] for split in splits}
    for turn in range(ROUNDS):
        for split in splits:
            rates[split.name].append(rate_of(split))
            print(f"round {turn + 1}: {split.name}: {rates[split.name][-1]:.0f}/s", flush=True)
            keep("products", {"rates": rates, **circumstances(begun)})


# -- one rank and two, and the model -----------------------------------------

LATENCIES = (2e-6, 2e-5, 2e-4, 2e-3)  # seconds: a cluster's network, Ethernet, and far too much
NODES = (1, 2, 4, 8, 16)


def scaling() -> None:
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        words = ["scaling", SHARDED, "--ranks", "1,2", "--engines", "mpi", "--rounds", "1", "--out", folder]
        subprocess.run([sys.executable, "-m", "jaxrl_hpc.cli.main", *words], check=True)
        keep("scaling", json.loads((Path(folder) / "scaling.json").read_text()) | circumstances(begun))


def overhead_of(report: dict[str, Any]) -> float:
    """Seconds that an allreduce of nothing takes between two ranks with a core each.

    Ranks that share a core mostly wait for their turn on it: then it is what was measured for CartPole.
    """
    if report["machine"]["cores"] < 2:
        report = json.loads((DATA.parent / "scaling_ppo_weak.json").read_text())
    return float(next(iter(report["lines"].values()))["latency"])


def compute_of(report: dict[str, Any]) -> float:
    """Seconds of an iteration on one rank: of CPU time where other work may have used the core as well."""
    if report["machine"]["cores"] < 2:
        return next(row["core_milliseconds"] for row in report["rows"] if row["ranks"] == 1) / 1e3
    return float(report["compute_milliseconds"]) / 1e3


def modelled(report: dict[str, Any], latency: float, nodes: int, waits: bool) -> float:
    """Share of the actions per second that so many separate nodes would have together."""
    network = model.NetworkModel(latency, report["network"]["bandwidth"])
    flow = report["config"]["workflow"]
    talk = model.over_network(
        report["messages"], network, nodes, overhead_of(report), flow["shards"], flow["deterministic"]
    )
    compute = compute_of(report)
    wait = model.waiting(report["jitter_milliseconds"] / 1e3, nodes) if waits else 0.0
    return compute / (compute + talk + wait)


# -- a run that changes its size ---------------------------------------------

PHASES = (4, 2, 1)
BUDGET = 250_000
CHUNK, COPIES = 10_240, 8  # of the config
QBERT = [
    *(SHARDED, "env.name=Qbert-Atari", f"run.total_env_steps={BUDGET}", "run.eval_every=61_440"),
    *("run.seed=1", "run.name=cray.resize", "run.tensorboard=false"),
]


def resize(folder: Path) -> None:
    """Phases that are done are not repeated; one that was stopped is resumed."""
    rows: list[dict[str, Any]] = read().get("resize", {}).get("phases", [])
    if rows and not folder.exists():
        sys.exit(f"{folder} is gone: remove `resize` from {DATA.name} to begin again")
    chunks = BUDGET // CHUNK
    for number, ranks in enumerate(PHASES[len(rows) :], len(rows)):
        last = number + 1 == len(PHASES)
        until = None if last else chunks * (number + 1) // len(PHASES)
        begun = time.time()
        stretch.phase(folder, ranks, until, QBERT)
        run = load_run(folder)
        steps, seconds = (max(run.table[name].to_pylist()) for name in ("env_steps", "wall_seconds"))
        if not run.summary if until is None else steps < until * CHUNK:
            sys.exit(f"stopped; the same command resumes {folder}")
        rows.append({"ranks": ranks, "env_steps": int(steps), "seconds": seconds, **circumstances(begun)})
        keep("resize", {"phases": rows})
    (curve,) = run.seed_curves("eval", "eval_return")
    kept = ("env_steps", "restarted_episodes", "dropped_episodes", "eval_return_score", "wall_seconds")
    found = {name: run.summary[name] for name in kept}
    points = {name: getattr(curve, name).tolist() for name in ("steps", "minutes", "values")}
    last_phase = {name: rows[-1][name] for name in ("processor", "cores", "load", "machine_cores", "commit")}
    took = sum(row["took"] for row in rows)
    keep("resize", {"phases": rows, **points, **found, **last_phase, "took": took})


def resize_figure(found: dict[str, Any], qbert: dict[str, Any]) -> Figure:
    one = {"0": {name: found[name] for name in ("steps", "minutes", "values")}}
    runs = {"4 → 2 → 1 ranks": atari.as_run("qbert_ppo", one)}
    if qbert:
        runs["one process"] = atari.as_run("qbert_ppo", qbert)
    named = {name: RunData(name, run.path, run.config, {}, run.table) for name, run in runs.items()}
    return stretch.drawn("Qbert-Atari · PPO", {"": named}, [row["env_steps"] for row in found["phases"][:-1]])


# -- the page ----------------------------------------------------------------

BUSY = (
    "**The core was shared with other work**, and Linux gives each rank of a job as large a share as another "
    "job: that alone makes several workers faster than one here, and the rows cannot be compared with each "
    "other. Ranks compared by their CPU time are below. "
)
PAPER = '"Scalable Reinforcement Learning on Cray XC" (Kommaraju, Maschhoff, Ringenburg and Robbins, 2020)'


def cores_of(found: dict[str, Any]) -> str:
    return "one core" if found["cores"] == 1 else f"{found['cores']} cores"


def under(found: dict[str, Any]) -> str:
    """On what, how busy it was at the end, and for how long."""
    return (
        f"{found['processor']}, {cores_of(found)} of {found['machine_cores']}; load {found['load']:.1f} at "
        f"the end; commit `{str(found['commit'])[:10]}`; took {duration(found['took'])} in all."
    )


def summary_section(found: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """A row per figure and table of the paper."""
    resized, products, scaled = (found.get(part, {}) for part in ("resize", "products", "scaling"))
    ranks = " → ".join(map(str, PHASES))
    played = "breakout_a2c" in record["runs"]
    rows = (
        (
            "figure 3",
            "128 → 64 → 32 workers within one run, 84 minutes",
            f"{ranks} ranks, {count(resized['env_steps'])} actions, {resized['wall_seconds'] / 60:.0f} min"
            if "wall_seconds" in resized
            else "not run",
        ),
        (
            "figures 6, 7",
            "A2C against PPO, 10M actions",
            "500k actions" if played else "not run",
        ),
        (
            "table III, figure 8",
            "workers × games × cores at a constant product",
            f"{GAMES_TOGETHER} games on 1, 2 and 4 workers, {cores_of(products)}" if products else "not run",
        ),
        (
            "figure 11",
            "1 to 16 nodes: close to linear up to 4, flatter beyond 8, by the network's latency",
            f"1 and 2 ranks measured on {cores_of(scaled['machine'])}, up to 16 nodes modelled"
            if scaled
            else "not run",
        ),
    )
    return [
        "| in the paper | shows | here |",
        "|---" * 3 + "|",
        *(f"| {name} | {shows} | {here} |" for name, shows, here in rows),
        "",
    ]


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
    below = []
    for name in ("breakout_ppo", "breakout_a2c", "breakout_impala", "breakout_apex"):
        rows, agent = record["runs"].get(name, {}), atari.ENTRIES[name].agent
        game, ours = "", "not run"
        if rows:
            ours = atari.spread((row["returns"] for row in rows.values()), 1)
            if np.mean([row["returns"] for row in rows.values()]) < rllib[agent]:
                below.append(f"{agent} ({len(rows)} seed{'s' * (len(rows) > 1)})")
        elif name == "breakout_ppo":  # the same program takes as long for another game
            rows, game, ours = record["runs"].get("qbert_ppo", {}), " (Qbert)", atari.earlier()
        cells = [agent, ours, f"{rllib[agent]:.1f}"]
        for key, scale in (("wall_seconds", 60), ("env_steps_per_second", 1)):
            values = [row[key] / scale for row in rows.values()]
            cells.append(f"{np.mean(values):,.0f}{game}" if values else "")
        lines.append("| " + " | ".join(cells) + " |")
    behind = f"Below RLlib's: {', '.join(below)}. " if below else ""
    return [*lines, "", f"{behind}All games and runs: [atari.md](atari.md).", ""]


def products_section(found: dict[str, Any]) -> list[str]:
    rounds = min(map(len, found["rates"].values()))
    several = f"medians of {rounds} runs in turns, and the extremes" if rounds > 1 else "one run each"
    lines = [
        "## Workers × games × cores (its table III and figure 8)",
        "",
        f"{GAMES_TOGETHER} games of Breakout, shared by the workers; actions per second of all together, "
        f"{several}. *Learning*: PPO, every worker plays and learns (`sharded`). *Acting*: IMPALA, workers "
        "play beside one learner (`async`), which takes an unroll of each per update.",
        "",
        "| workers | games per worker | cores | what workers do | actions per second |",
        "|---" * 5 + "|",
    ]
    for split in SPLITS:
        rates = found["rates"].get(split.name)
        if rates:
            extremes = f" ({min(rates):,.0f}–{max(rates):,.0f})" if len(rates) > 1 else ""
            lines.append(
                f"| {split.workers} | {split.games} | {split.cores} | {split.kind} "
                f"| {np.median(rates):,.0f}{extremes} |"
            )
    lines += [""]
    if found["cores"] == 1:
        lines += [
            "Only one core was available, so the number of cores does not vary, and more workers are not "
            "faster by themselves. "
            + BUSY
            * (found["load"] > found["machine_cores"] + 1)
            + "Copies on more ranks whose steps sleep are "
            "in [workflows.md](workflows.md#the-same-number-of-copies-on-more-ranks).",
            "",
        ]
    return [*lines, under(found), ""]


def resize_section(found: dict[str, Any], record: dict[str, Any], published: dict[str, Any]) -> list[str]:
    changes = len(PHASES) - 1
    lines = [
        "## A run that changes its size (its figure 3)",
        "",
        f"PPO on Qbert, {found['env_steps']:,} actions on {' → '.join(map(str, PHASES))} ranks, seed 1: at a "
        "third and at two thirds of the budget a signal makes all ranks save the same step and stop, and "
        "half as many continue (the paper: 128 → 64 → 32 workers).",
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
        "counters continue: with an environment inside the program the run has the same bits as an "
        "uninterrupted one ([a run on a changing number of ranks](stretch.md)).",
        "",
        f"Score at the end: {found['eval_return_score']:,.0f}; unchanged runs of one process, 500k actions: "
        + (
            atari.spread(row["returns"] for row in record["runs"]["qbert_ppo"].values())
            if "qbert_ppo" in record["runs"]
            else "not run"
        )
        + f"; random play: {atari.random_text(record, 'qbert')}; RLlib's PPO at 500k actions: "
        f"{published['2M frames']['RLlib']['scores']['qbert']['PPO']:,.0f}. The ranks shared "
        f"{cores_of(found)}: times do not measure speed. {under(found)}",
        "",
    ]
    return lines


def measured_text(report: dict[str, Any]) -> str:
    """Two ranks beside one."""
    rows = {row["ranks"]: row for row in report["rows"]}
    one, two = rows[1], rows[2]
    text = f"Measured: one rank {one['env_steps_per_second']:,.0f} actions per second, two ranks "
    if "efficiency_beside" in two:
        return (
            f"{text}{two['env_steps_per_second']:,.0f}, which is {100 * two['efficiency_beside']:.0f} % of "
            "two separate runs side by side."
        )
    actions = one["env_steps_per_second"] * one["milliseconds"] / one["core_milliseconds"]
    return (
        f"{text}on the same core {two['env_steps_per_second']:,.0f} together, while the core did other work "
        f"too. In CPU time, which that hardly changes, an iteration takes {one['core_milliseconds']:,.0f} ms "
        f"({actions:,.0f} actions per second of a core), and {two['core_milliseconds'] / 2:,.0f} ms on each "
        "of two ranks. What a second core brings was not measured for images; for CartPole it is on "
        "[scaling.md](scaling.md)."
    )


def scaling_section(report: dict[str, Any]) -> list[str]:
    size = sum(4 * m["times"] * m["length"] for m in report["messages"])
    alone = report["machine"]["cores"] < 2
    lines = [
        "## One node to sixteen (its figure 11)",
        "",
        f"PPO on Breakout, 8 games per rank. {measured_text(report)} An iteration sends "
        f"{sum(m['times'] for m in report['messages'])} messages, {size / 1e6:.1f} MB in all per rank.",
        "",
        f"Modelled, with iterations of {compute_of(report):.2f} s: actions per second of n nodes of "
        "one rank each, as a share of n separate ones, by the latency of the network "
        f"({report['network']['bandwidth'] / 1e9:.1f} GB/s each). A "
        f"message costs {1e6 * overhead_of(report):.0f} µs besides"
        + (" (measured for CartPole between two ranks with a core each)" if alone else "")
        + (
            ". Waiting for the slowest node comes on top: delays on a shared core do not show how much."
            if alone
            else ". The last row adds waiting for the slowest node, whose delays are as those measured "
            "between two ranks here."
        ),
        "",
        "| latency | " + " | ".join(f"{nodes} node{'s' * (nodes > 1)}" for nodes in NODES) + " |",
        "|---" * (1 + len(NODES)) + "|",
    ]
    for latency in LATENCIES:
        shares = " | ".join(f"{100 * modelled(report, latency, nodes, False):.1f} %" for nodes in NODES)
        lines.append(f"| {1e6 * latency:,.0f} µs | {shares} |")
    if not alone:
        shares = " | ".join(f"{100 * modelled(report, LATENCIES[0], nodes, True):.0f} %" for nodes in NODES)
        lines.append(f"| {1e6 * LATENCIES[0]:,.0f} µs and waiting | {shares} |")
    loses = [
        f"{100 - 100 * modelled(report, latency, NODES[-1], False):.0f} % at {1e6 * latency:,.0f} µs"
        for latency in LATENCIES[1:]
    ]
    return [
        *lines,
        "",
        "The paper reports scaling that is close to linear up to 4 nodes and flattens beyond 8, and names "
        "the latency of the network as the cause. Synchronous PPO sends few messages, so that only slow "
        f"networks matter: {NODES[-1]} nodes lose {', '.join(loses)}. {under(report | report['machine'])}",
        "",
    ]


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
        "# The Cray XC paper's experiments, small",
        "",
        "Made by `python scripts/studies/cray.py page`.",
        "",
        f"{PAPER} trains RLlib's IMPALA, Ape-X, A2C and PPO on BeamRider, Breakout, Qbert and SpaceInvaders "
        "for 10M actions on 1 to 16 nodes. Here: the same games and agents, 500k actions, and what one core "
        f"does in {duration(sum(found[part].get('took', 0) for part in found))} beside the learning runs of "
        "[atari.md](atari.md), which take 10 to 20 minutes each.",
        "",
        *summary_section(found, record),
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
        "- Its workers × games × cores fill a node of dozens of cores; here 16 games share what the table "
        "names.",
        "- The 84 minutes of its run on 128, 64 and 32 workers: ours has 4, 2 and 1 ranks on a shared core.",
        "- The values in its figures: only its text was available, so no point of a curve is repeated here.",
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
