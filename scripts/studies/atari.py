"""Four Atari games at 500k actions (two million frames): every run is recorded when it ends.

    python scripts/studies/atari.py train qbert_ppo --seed 0      train or resume one run, and record it
    python scripts/studies/atari.py random                        play every game at random, and record that
    python scripts/studies/atari.py pieces                        where the time of an iteration goes
    python scripts/studies/atari.py published DOPAMINE RLLIB      scores from checkouts of google/dopamine and
                                                                  ray-project/rl-experiments
    python scripts/studies/atari.py page                          write docs/results/atari.md from the record

Runs go to runs/studies/atari/<entry>/<seed>, the record is docs/data/atari.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.ops.statistics import bootstrap_interval, score
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.plots import small_multiples
from jaxrl_hpc.runs.directory import RunDirectory, code_version

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DATA = ROOT / "docs" / "results", ROOT / "docs" / "data"
RECORD, PUBLISHED = DATA / "atari.json", DATA / "atari_published.json"
RUNS = ROOT / "runs" / "studies" / "atari"
GAMES = {
    "breakout": "Breakout",
    "beam_rider": "BeamRider",
    "qbert": "Qbert",
    "space_invaders": "SpaceInvaders",
}
RANDOM_EPISODES = 64


class Entry(NamedTuple):
    """A config on so many ranks."""

    config: str
    game: str
    agent: str
    ranks: int = 1


ENTRIES = {
    **{f"{game}_ppo": Entry(f"atari_{game}_ppo", game, "PPO") for game in GAMES},
    "breakout_a2c": Entry("atari_breakout_a2c", "breakout", "A2C"),
    "breakout_impala": Entry("workflows/atari_breakout_impala", "breakout", "IMPALA", 3),
    "breakout_apex": Entry("workflows/atari_breakout_apex", "breakout", "Ape-X", 3),
}


# -- the record --------------------------------------------------------------


def read_record() -> dict[str, Any]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {"runs": {}, "random": {}}


def write_record(record: dict[str, Any]) -> None:
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def command(name: str, seed: int | str) -> list[str]:
    """Without launcher and interpreter, as the page shows it."""
    folder = f"runs/studies/atari/{name}/{seed}"
    settings = [f"run.seed={seed}", f"run.name=atari.{name}", "run.tensorboard=false"]
    return ["train", ENTRIES[name].config, *settings, "--run-dir", folder, "--resume"]


def train(name: str, seed: int) -> int:
    """Exit code; 75 if it was stopped by a signal; the same command resumes it."""
    words = [sys.executable, "-m", "jaxrl_hpc.cli.main", *command(name, seed)]
    if ENTRIES[name].ranks > 1:
        words = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ENTRIES[name].ranks), *words]
    print("+", *words, flush=True)
    status = subprocess.run(words, cwd=ROOT, check=False).returncode
    if status == 0:
        record_run(name, seed)
    return status


def record_run(name: str, seed: int) -> None:
    folder = RUNS / name / str(seed)
    run, directory = load_run(folder), RunDirectory(folder)
    summary = directory.read_summary()
    assert summary is not None
    (curve,) = run.seed_curves("eval", "eval_return")
    kept = ("env_steps", "updates", "wall_seconds", "env_steps_per_second", "commit", "version")
    facts = machine_facts()
    row = {
        "steps": curve.steps.astype(int).tolist(),
        "minutes": np.round(curve.minutes, 2).tolist(),
        "values": np.round(curve.values, 3).tolist(),
        "returns": summary["eval_return_score"],
        "cores": facts["cores"],
        "processor": facts["processor"],
        **{key: summary[key] for key in kept if key in summary},
        **{
            key: summary[key]
            for key in ("dropped_unrolls", "dropped_episodes", "restarted_episodes")
            if key in summary
        },
    }
    lags = [np.mean(one.values) for one in run.seed_curves("train", "lag_mean")]
    row |= {"lag": float(lags[0])} if lags else {}
    record = read_record()
    record["runs"].setdefault(name, {})[str(seed)] = row
    write_record(record)
    print(f"{name}, seed {seed}: {row['returns']:.1f}", flush=True)


# -- random play -------------------------------------------------------------


def play_randomly(game: str) -> list[float]:
    """Returns of whole games with uniform actions, as an evaluation plays them."""
    from jaxrl_hpc import config as configs
    from jaxrl_hpc.config.registry import find

    config: Any = configs.load(f"atari_{game}_ppo")
    env = find("env", config.env.name).make(config.env).host.for_evaluation
    rng = np.random.default_rng(0)
    simulator = env.host.simulators.make(RANDOM_EPISODES)
    simulator.reset(np.arange(1, RANDOM_EPISODES + 1, dtype=np.uint32))
    returns, alive = np.zeros(RANDOM_EPISODES), np.ones(RANDOM_EPISODES, bool)
    for _ in range(env.spec.max_episode_steps):
        action = rng.integers(env.spec.num_actions, size=RANDOM_EPISODES).astype(np.int32)
        outcome = simulator.step(action.astype(env.spec.action_dtype))
        returns += alive * outcome.reward
        alive &= ~(outcome.terminated | outcome.truncated)
        if not alive.any():
            break
    simulator.close()
    return returns.tolist()


# -- where the time of an iteration goes -------------------------------------


def pieces() -> dict[str, Any]:
    """The parts of an iteration with both types of products, in turns."""
    turns = [(kind, pieces_of(kind)) for kind in 2 * ("float32", "bfloat16")]
    best = {
        kind: {name: min(found[name] for k, found in turns if k == kind) for name in turns[0][1]}
        for kind in ("float32", "bfloat16")
    }
    from jaxrl_hpc import config as configs

    config: Any = configs.load("atari_breakout_ppo")
    facts = machine_facts()
    kept = {name: facts[name] for name in ("processor", "cores", "load")}
    actions = config.workflow.num_envs * config.workflow.unroll_length
    return {
        "seconds": best["float32"],
        "bfloat16": best["bfloat16"],
        "actions": actions,
        **kept,
        **code_version(),
    }


def pieces_of(dtype: str) -> dict[str, float]:
    """Seconds of the parts of an iteration of PPO on Breakout, each alone in a loop."""
    import jax
    import jax.numpy as jnp

    from jaxrl_hpc import config as configs
    from jaxrl_hpc import rollout
    from jaxrl_hpc.runtime import machine
    from jaxrl_hpc.runtime.build import build
    from jaxrl_hpc.runtime.profile import timed
    from jaxrl_hpc.runtime.train import lanes_of, make_runner

    config: Any = configs.load("atari_breakout_ppo", (f"agent.network.dtype={dtype}",))
    machine.prepare(config, 1)
    parts = build(config)
    runner = make_runner(config, parts, lanes_of(config))
    state: Any = jax.jit(parts.workflow.init)(*runner.first_arguments())
    copies, length = state.rollout, config.workflow.unroll_length
    actor = parts.agent.actor(state.learner)
    action = jnp.zeros(config.workflow.num_envs, jnp.int32)

    def stepping(_: Any, env_state: Any) -> Any:
        return jax.lax.fori_loop(0, length, lambda _, s: parts.env.step(copies.key, s, action)[0], env_state)

    def choosing(_: Any, carry: Any) -> Any:
        def once(_: Any, carry: Any) -> Any:
            obs, key = carry
            choice = rollout.choose(parts.agent, actor, copies.carry, obs, key, False)
            return jnp.roll(obs, choice.action[0], axis=0), choice.key  # so that no pass is left out

        return jax.lax.fori_loop(0, length, once, carry)

    loops = parts.workflow.profile(state) | {
        "stepping": (stepping, copies.env),
        "choosing": (choosing, (copies.obs, copies.key)),
    }
    return {name: timed(body, jax.tree.map(jnp.copy, start)) for name, (body, start) in loops.items()}


def pieces_section(found: dict[str, Any]) -> list[str]:
    """Also what could be gained by acting for one half of the games while the other half is stepped."""
    seconds, halved = found["seconds"], found["bfloat16"]
    whole = seconds["acting"] + seconds["learning"]
    overlapped = max(seconds["stepping"], seconds["choosing"])
    gain = seconds["stepping"] + seconds["choosing"] - overlapped
    cores = f"{found['cores']} core{'s' * (found['cores'] > 1)}"
    rows = (
        ("playing: games and actions", "acting"),
        ("of it emulators alone", "stepping"),
        ("of it choosing actions alone", "choosing"),
        ("learning: three epochs", "learning"),
    )
    return [
        "## Where the time goes",
        "",
        f"An iteration of PPO on Breakout, {found['actions']:,} actions of 8 games, on {cores} (each part "
        "alone in a loop, the shortest of six), and the same with `agent.network.dtype=bfloat16`:",
        "",
        "| part | seconds | share | bfloat16, seconds |",
        "|---|---|---|---|",
        *(
            f"| {text} | {seconds[name]:.3f} | {100 * seconds[name] / whole:.0f} % | {halved[name]:.3f} |"
            for text, name in rows
        ),
        "",
        "Choosing actions for one half of the games while the other half is stepped could hide the shorter "
        f"of the two, at most {100 * gain / whole:.0f} % of an iteration and only where a core is free for "
        "it; emulators use all threads of a run already. "
        f"{found['processor']}, commit `{str(found['commit'])[:10]}`.",
        "",
    ]


# -- published scores --------------------------------------------------------

DOPAMINE = "DQN (Adam + MSE in JAX)"  # the agent in its files that is nearest to ours
SECOND_MILLION = 1  # its iterations are a million frames each, from 0
RLLIB = {  # the files of a game's run
    "PPO": "atari-ppo/2020-01-21/PPO_{}NoFrameskip-v4_0_use_pytorch=False",
    "A2C": "atari-a2c/results/A2C_{}",
    "IMPALA": "atari-impala/results/IMPALA_{}",
    "Ape-X": "atari-apex/apex-results/APEX_{}",
}
ACTIONS = 500_000


def extract(dopamine: Path, rllib: Path) -> None:
    """Scores after as many frames as ours, from git checkouts of the two repositories."""
    stored = json.loads(PUBLISHED.read_text())
    stored["2M frames"] = {
        "RLlib": {
            "source": f"ray-project/rl-experiments, progress.csv of each run, commit {_commit(rllib)}",
            "scores": {
                game: {agent: _rllib(rllib, title, agent) for agent in RLLIB} for game, title in GAMES.items()
            },
        },
        "Dopamine": {
            "source": f"google/dopamine, baselines/atari/data, commit {_commit(dopamine)}",
            "scores": {game: _dopamine(dopamine, title.lower()) for game, title in GAMES.items()},
        },
    }
    PUBLISHED.write_text(json.dumps(stored, indent=1) + "\n")


def _commit(checkout: Path) -> str:
    return _git(checkout, "rev-parse", "HEAD")[:10]


def _git(checkout: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _rllib(checkout: Path, title: str, agent: str) -> float:
    """Mean of the last 100 training games at the last report before the 500k-th action, one run."""
    files = _git(checkout, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    (file,) = [f for f in files if f.startswith(RLLIB[agent].format(title)) and f.endswith("/progress.csv")]
    rows = csv.DictReader(_git(checkout, "show", f"HEAD:{file}").splitlines())
    known = [(row["timesteps_total"], row["episode_reward_mean"]) for row in rows]
    whole = [
        (int(steps), float(value)) for steps, value in known if steps and value
    ]  # a last line may be cut
    return [value for steps, value in whole if steps <= ACTIONS and not math.isnan(value)][-1]


def _dopamine(checkout: Path, file: str) -> list[float]:
    """Mean training returns over the second million frames, of every seed."""
    rows = json.loads(_git(checkout, "show", f"HEAD:baselines/atari/data/{file}.json"))
    return [row["Value"] for row in rows if (row["Agent"], row["Iteration"]) == (DOPAMINE, SECOND_MILLION)]


# -- the page ----------------------------------------------------------------


def as_run(name: str, rows: dict[str, dict[str, Any]]) -> RunData:
    """The recorded seeds of an entry, as far as figures need them."""
    columns: dict[str, list[Any]] = {
        "seed": [],
        "kind": [],
        "env_steps": [],
        "wall_seconds": [],
        "eval_return": [],
    }
    for seed, row in sorted(rows.items()):
        columns["seed"] += [int(seed)] * len(row["steps"])
        columns["kind"] += ["eval"] * len(row["steps"])
        columns["env_steps"] += row["steps"]
        columns["wall_seconds"] += [60 * minutes for minutes in row["minutes"]]
        columns["eval_return"] += row["values"]
    entry = ENTRIES[name]
    config = {"env": {"name": f"{GAMES[entry.game]}-Atari"}, "agent": {"name": entry.agent}}
    return RunData(f"{GAMES[entry.game]}, {entry.agent}", Path(name), config, {}, pa.table(columns))


def figure_of(record: dict[str, Any]) -> Figure:
    runs = [as_run(name, record["runs"][name]) for name in ENTRIES if name in record["runs"]]
    return small_multiples(runs, "eval", "eval_return", shared=False)


def spread(values: Iterable[float], digits: int = 0) -> str:
    found = score(np.array(list(values), float))
    if found.low == found.high:
        return f"{found.value:,.{digits}f}"
    return f"{found.value:,.{digits}f} [{found.low:,.{digits}f}, {found.high:,.{digits}f}]"


def digits_of(game: str) -> int:
    return 1 if game == "breakout" else 0


def random_text(record: dict[str, Any], game: str) -> str:
    values = np.array(record["random"][game])
    low, high = bootstrap_interval(values, np.mean)
    digits = digits_of(game)
    return f"{values.mean():,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"


def earlier_row() -> list[str]:
    """PPO on Breakout on its own page, of an earlier version."""
    page = (RESULTS / "atari_breakout.md").read_text()
    return next(line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ppo |"))


def earlier() -> str:
    row = earlier_row()
    return f"{row[4]} ([{row[1]} seeds, earlier version](atari_breakout.md))"


def games_table(record: dict[str, Any], published: dict[str, Any]) -> list[str]:
    """A row per game and agent: random play, ours, and what is published at as many frames and at more."""
    rllib = published["2M frames"]["RLlib"]["scores"]
    later = published["40M frames"]["scores"]
    lines = [
        "| game | agent | random play | ours | RLlib | RLlib, 40M frames | Schulman et al., 40M frames |",
        "|---" * 7 + "|",
    ]
    for game, title in GAMES.items():
        digits = digits_of(game)
        for agent in RLLIB:
            name = next((n for n, entry in ENTRIES.items() if (entry.game, entry.agent) == (game, agent)), "")
            rows = record["runs"].get(name, {})
            ours = spread((row["returns"] for row in rows.values()), digits) if rows else ""
            ours = ours or (earlier() if name == "breakout_ppo" else "")
            if not ours:
                continue
            cells = [title, agent, random_text(record, game), ours, f"{rllib[game][agent]:,.{digits}f}"]
            for source in ("RLlib", "Schulman et al."):
                value = later[source].get(agent, {}).get(game)
                cells.append("" if value is None else f"{value:,g}")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def remarks(record: dict[str, Any], published: dict[str, Any]) -> list[str]:
    """What the figures say against us, of every entry: as random play, no rise, below RLlib, one seed."""
    rllib = published["2M frames"]["RLlib"]["scores"]
    lines = []
    for name, entry in ENTRIES.items():
        rows, digits = record["runs"].get(name), digits_of(entry.game)
        if not rows:
            continue
        ours = float(score(np.array([row["returns"] for row in rows.values()])).value)
        _, high = bootstrap_interval(np.array(record["random"][entry.game]), np.mean)
        first, last = (np.mean([row["values"][i] for row in rows.values()]) for i in (0, -1))
        found = []
        if ours <= high:
            found.append("no better than random play: nothing was learned")
        if last <= first:
            values = ", ".join(f"{v:,.{digits}f}" for v in next(iter(rows.values()))["values"])
            found.append(f"evaluations do not rise over the run ({values})")
        if ours < rllib[entry.game][entry.agent]:
            found.append("below RLlib")
        if found:
            seeds = "one seed" if len(rows) == 1 else f"{len(rows)} seeds"
            lines.append(f"- {GAMES[entry.game]}, {entry.agent} ({seeds}): {'; '.join(found)}.")
    return ["What falls short:", "", *lines, ""] if lines else []


def dopamine_text(scores: dict[str, list[float]]) -> str:
    return ", ".join(f"{title} {spread(scores[game], digits_of(game))}" for game, title in GAMES.items())


def runs_table(record: dict[str, Any]) -> list[str]:
    lines = [
        "| game | agent | ranks | seeds | actions | final score | per seed | updates | lag | time | "
        "actions per second | commit |",
        "|---" * 12 + "|",
    ]
    for name, entry in ENTRIES.items():
        rows = record["runs"].get(name)
        if not rows:
            continue
        ordered = [rows[seed] for seed in sorted(rows, key=int)]
        values, digits = [row["returns"] for row in ordered], digits_of(entry.game)
        mean = {
            key: float(np.mean([row[key] for row in ordered]))
            for key in ("wall_seconds", "env_steps_per_second")
        }
        lag = np.mean([row["lag"] for row in ordered]) if "lag" in ordered[0] else None
        cells = [
            GAMES[entry.game],
            entry.agent,
            str(entry.ranks),
            str(len(rows)),
            count(ordered[0]["env_steps"]),
            spread(values, digits),
            ", ".join(f"{value:,.{digits}f}" for value in values),
            count(ordered[0]["updates"]) if "updates" in ordered[0] else "–",
            "–" if lag is None else f"{lag:.1f}",
            duration(mean["wall_seconds"]),
            f"{mean['env_steps_per_second']:,.0f}",
            ", ".join(sorted({f"`{str(row['commit'])[:10]}`" for row in ordered})),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(record: dict[str, Any], published: dict[str, Any]) -> str:
    missing = [name for name in ENTRIES if name not in {*record["runs"], "breakout_ppo"}]
    sources = published["2M frames"]
    processor = next(row["processor"] for rows in record["runs"].values() for row in rows.values())
    cores = sorted({row["cores"] for rows in record["runs"].values() for row in rows.values()})
    lines = [
        "# Four Atari games, two million frames",
        "",
        "Made by `python scripts/studies/atari.py page`.",
        "",
        "500k actions of four frames each. Scores are raw and of whole games: greedy play after the last "
        "update, in separate simulators, 16 games of at most 4,500 actions (five minutes) per seed, after up "
        "to 30 no-op steps, without sticky actions. In training a lost life ends an episode and rewards are "
        "clipped to their sign. Several seeds: mean and range; random play: mean and 95 % interval over "
        f"{RANDOM_EPISODES} games.",
        "",
        "## Beside published scores at the same number of frames",
        "",
        *games_table(record, published),
        "",
        *remarks(record, published),
        f"RLlib ({sources['RLlib']['source']}): the mean of the last 100 games played in training at "
        f"{ACTIONS:,} actions, one run each; PPO with 10 workers, A2C 5, IMPALA 32, Ape-X 8.",
        "",
        "DQN on one process was not trained here. Dopamine's, with Adam, in the second million frames of "
        f"training, five seeds: {dopamine_text(sources['Dopamine']['scores'])} "
        f"({sources['Dopamine']['source']}; sticky actions, games of up to half an hour that a lost "
        "life does not end).",
        "",
        "At twenty times the frames, as an orientation only: RLlib's from "
        f"{published['40M frames']['sources']['RLlib']}; those of Schulman et al. from "
        f"{published['40M frames']['sources']['Schulman et al.']}.",
        "",
        "Published scores are of games played in training, with the chance actions of training; ours are of "
        "greedy games after it.",
        "",
        *(pieces_section(record["pieces"]) if "pieces" in record else []),
        "## What is not built",
        "",
        "Acting for one half of the games while the other half is stepped is not built. Nor is a store that "
        "keeps each frame once: an observation is kept with its four frames, three of which are also in the "
        "one before (a replay with `store_next=by_index` at least stores no next observations).",
        "",
        "## All runs",
        "",
        "![learning curves](atari.png)",
        "",
        *runs_table(record),
        "",
        "Every run had " + " or ".join(f"{n} core{'s' * (n > 1)}" for n in cores) + " of "
        f"{processor} for all its ranks, evaluations included, on a machine that did other work "
        "too: times are upper bounds. Lag: age of the parameters that acted, in updates of the learner. "
        "IMPALA and Ape-X: one learner, two actors. The earlier version took "
        f"{earlier_row()[-1].removesuffix('/s')} actions per second with PPO, on one core as well; the "
        "present one beside stable-baselines3: [performance.md](../performance.md#learning-from-images).",
        *(["", f"Not yet run: {', '.join(missing)}."] if missing else []),
        "",
        "| entry | command, of each seed |",
        "|---|---|",
    ]
    for name in ENTRIES:
        if name in record["runs"]:
            launcher = f"mpirun -n {ENTRIES[name].ranks} " if ENTRIES[name].ranks > 1 else ""
            lines.append(f"| {name} | `{launcher}jaxrl-hpc {' '.join(command(name, 'N'))}` |")
    return "\n".join(lines) + "\n"


def write_page() -> None:
    record = read_record()
    figure_of(record).savefig(RESULTS / "atari.png", dpi=110)
    (RESULTS / "atari.md").write_text(page(record, json.loads(PUBLISHED.read_text())))
    print("wrote docs/results/atari.md")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    training = kinds.add_parser("train")
    training.add_argument("entry", choices=list(ENTRIES))
    training.add_argument("--seed", type=int, default=0)
    kinds.add_parser("random")
    kinds.add_parser("pieces")
    published = kinds.add_parser("published")
    published.add_argument("dopamine", type=Path)
    published.add_argument("rllib", type=Path)
    kinds.add_parser("page")
    args = parser.parse_args()
    if args.kind == "train":
        return train(args.entry, args.seed)
    if args.kind == "random":
        found = {"random": {game: play_randomly(game) for game in GAMES}}
        write_record(read_record() | found)  # read after it: a run may have ended meanwhile
    elif args.kind == "pieces":
        found = {"pieces": pieces()}
        write_record(read_record() | found)
    elif args.kind == "published":
        extract(args.dopamine, args.rllib)
    else:
        write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
