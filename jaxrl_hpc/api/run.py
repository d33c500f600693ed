"""Runs as objects: results, metrics, the trained policy.

    run = rl.load("runs/cartpole_dqn")
    run.summary["eval_return_score"], run.plot(), run.evaluate(), run.policy()
    rl.compare(["runs/a", "runs/b"]).plot()

A Run reads its folder on every access, so it stays up to date while another process trains the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from jaxrl_hpc.api import notebook
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runs.directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxrl_hpc.api.policy import Policy

SHOWN = ("agent", "env", "workflow", "seeds", "env_steps", "updates", "wall_seconds")


class Run:
    """One run directory.

    Args:
      path: its folder.
      trust: import the code that its config names, even if somebody else trained it.
    """

    def __init__(self, path: str | Path, *, trust: bool = False) -> None:
        self._directory = RunDirectory.existing(path)
        self._trust = trust

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._directory.path

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.path.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """All settings of the run; `rl.train(run.config, …)` trains it again."""
        return self._directory.read_config()

    @property
    def finished(self) -> bool:
        """Whether training reached the end of the budget."""
        return self._directory.read_summary() is not None

    @property
    def summary(self) -> dict[str, Any]:
        """Scores, speeds, versions: summary.json. UserError while the run has not finished."""
        summary = self._directory.read_summary()
        if summary is None:
            raise UserError(
                f"{self.path} has not finished: there is no summary yet; continue it with resume=True"
            )
        return summary

    @property
    def metrics(self) -> pa.Table:
        """A row per log point and seed, kind "train" or "eval"; `.to_pandas()` where pandas is installed."""
        return read_metrics(self.path)

    def plot(self, metric: str | None = None) -> Figure:
        """Learning curves over steps and over time, as a matplotlib figure; by default of the return."""
        return Comparison([self]).plot(metric)

    def evaluate(self, episodes: int = 100, seed: int = 1, **overrides: Any) -> dict[str, Any]:
        """Play greedy episodes with keys that training never used.

        Args:
          episodes: per seed of the run.
          seed: which set of start states.
          overrides: settings of the environment, such as **{"env.fit": 1}.

        Returns:
          scores over seeds and per seed, as in `summary`.
        """
        from jaxrl_hpc.api.parts import override
        from jaxrl_hpc.api.training import flat
        from jaxrl_hpc.runtime.evaluation import evaluate_run

        if episodes < 1:
            raise UserError(f"episodes: should be at least 1 (it is {episodes})")
        changes = [override(key, value) for key, value in flat(overrides).items()]
        return evaluate_run(self.path, episodes, seed, changes, trust=self._trust)

    def policy(self, seed: int | None = None, greedy: bool = True) -> Policy:
        """The trained policy: observations in, actions out.

        Args:
          seed: which of the run's seeds; the first by default.
          greedy: the best action; False: with the agent's exploration.
        """
        from jaxrl_hpc.api.policy import Policy
        from jaxrl_hpc.runtime.evaluation import load_run

        _, runner = load_run(self.path, trust=self._trust)
        known = [lane.seed for lane in runner.lanes]
        if seed is not None and seed not in known:
            raise UserError(f"seed: {self.path} has no seed {seed}; it has {', '.join(map(str, known))}")
        lane = 0 if seed is None else known.index(seed)
        return Policy(runner.parts.agent, runner.actor(lane), runner.parts.env.spec, greedy)

    def play(
        self, episodes: int = 1, seed: int = 0, out: str | Path | None = None, frames: int = 240
    ) -> list[Path]:
        """Episodes as GIF and PNG, for environments that can be drawn; returns the files."""
        from jaxrl_hpc.runtime.play import play_run

        return play_run(self.path, out, episodes, seed, frames, trust=self._trust)

    def record(
        self,
        out: str | Path,
        steps: int = 100_000,
        *,
        policy: Literal["exploring", "greedy"] = "exploring",
        random: float = 0.0,
        seed: int = 0,
    ) -> Path:
        """Record the policy's transitions as a dataset (Parquet) for the workflow `offline`.

        Args:
          out: the file.
          steps: transitions.
          policy: "exploring", or "greedy" for its best actions.
          random: fraction of episodes with random actions instead.
          seed: of start states and draws.
        """
        from jaxrl_hpc.runtime.record import record_run

        if steps < 1:
            raise UserError(f"steps: should be at least 1 (it is {steps})")
        if policy not in ("exploring", "greedy"):
            raise UserError(f"policy: should be 'exploring' or 'greedy' (it is {policy!r})")
        if not 0 <= random <= 1:
            raise UserError(f"random: should be from 0 to 1 (it is {random})")
        found = record_run(self.path, out, steps, policy=policy, random=random, seed=seed, trust=self._trust)
        return found.path

    def report(self, output: str | Path | None = None) -> Path:
        """One interactive HTML page; by default report.html in the run's folder."""
        return Comparison([self]).report(output or self._directory.report)

    def export(self, out: str | Path | None = None, seed: int | None = None) -> Path:
        """The policy as a folder that acts without this package; by default export/ in the run's folder."""
        from jaxrl_hpc.export import export_run

        export_run(self.path, out, seed, trust=self._trust)
        return Path(out) if out else self.path / "export"

    def __repr__(self) -> str:
        summary = self._directory.read_summary()
        if summary is None:
            return f"Run({str(self.path)!r}, not finished)"
        score = notebook.text(summary["eval_return_score"])
        return f"Run({str(self.path)!r}, return {score}, {summary['env_steps']:,} steps)"

    def _repr_html_(self) -> str:
        summary = self._directory.read_summary()
        config = self.config
        rows = {name: config.get(name, {}).get("name") for name in ("agent", "env", "workflow")}
        if summary is None:
            state = notebook.facts(rows | {"state": "not finished"})
        else:
            state = notebook.facts({"return": score_text(summary)} | {name: summary[name] for name in SHOWN})
        return notebook.titled(str(self.path), state, self._curve())

    def _curve(self) -> str:
        from jaxrl_hpc.report.data import load_run

        if not self.metrics.num_rows:
            return ""
        data = load_run(self.path)
        for kind, column in (("eval", "eval_return"), ("train", "episode_return")):
            found = data.curve(kind, column)
            if found is not None and len(found.x) > 1:
                return notebook.curve(found.x, found.value, column.replace("_", " "))
        return ""


def score_text(summary: dict[str, Any]) -> str:
    """'431 (402 to 455; over 4 seeds)'."""
    if summary["eval_return_score"] is None:
        return "not a number"
    low, high = summary["eval_return_interval"]
    figures = f"{notebook.text(summary['eval_return_score'])} ({notebook.text(low)} to {notebook.text(high)}"
    return f"{figures}; {summary['eval_spread']})"


class Comparison:
    """Several runs side by side."""

    def __init__(self, runs: Sequence[Run]) -> None:
        if not runs:
            raise UserError("runs: give at least one run or its folder")
        self.runs = list(runs)

    @property
    def table(self) -> pa.Table:
        """A row per run: its summary's scores and speeds; null where a run has none."""
        rows = []
        for run in self.runs:
            summary = run.summary if run.finished else {}
            low, high = summary.get("eval_return_interval") or (None, None)
            rows.append(
                {"run": str(run.path), "finished": run.finished}
                | {name: summary.get(name) for name in SHOWN}
                | {"eval_return": summary.get("eval_return_score"), "low": low, "high": high}
                | {"env_steps_per_second": summary.get("env_steps_per_second")}
            )
        return pa.Table.from_pylist(rows)

    def plot(self, metric: str | None = None) -> Figure:
        """Learning curves over steps and over time, as a matplotlib figure.

        Args:
          metric: a column of `Run.metrics`; by default the evaluation return, or that of training episodes.
        """
        from jaxrl_hpc.config.registry import nearest
        from jaxrl_hpc.report.data import load_runs
        from jaxrl_hpc.report.plots import learning_curves, main_metric

        data = load_runs([run.path for run in self.runs])
        if metric is None:
            return learning_curves(data, *main_metric(data))
        for kind in ("eval", "train"):
            if any(metric in run.columns(kind) for run in data):
                return learning_curves(data, kind, metric)
        known = sorted({name for run in data for kind in ("eval", "train") for name in run.columns(kind)})
        raise UserError(f"metric: nothing logged {metric!r}{nearest(metric, known)}")

    def report(self, output: str | Path | None = None) -> Path:
        """One interactive HTML page; by default comparison.html beside the first run."""
        from jaxrl_hpc.report.page import write_report

        default = self.runs[0].path.parent / "comparison.html"
        return write_report([run.path for run in self.runs], output or default)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(str(run.path) for run in self.runs)})"

    def _repr_html_(self) -> str:
        rows = []
        for run in self.runs:
            found = run.summary if run.finished else None
            figures = [score_text(found), found["env_steps"], found["env_steps_per_second"]] if found else []
            rows.append([str(run.path), *(figures or ["not finished", "–", "–"])])
        return notebook.table(["run", "return", "steps", "steps/s"], rows)


def compare(runs: Sequence[str | Path | Run]) -> Comparison:
    """Several runs side by side: `.plot()`, `.table`, `.report()`.

    Args:
      runs: folders, or results of `rl.train` and `rl.load`.
    """
    if isinstance(runs, str | Path | Run):
        runs = [runs]
    return Comparison([run if isinstance(run, Run) else Run(run) for run in runs])


def load(path: str | Path, *, trust: bool = False) -> Run:
    """A run from its folder. (A sweep: `rl.Sweep("runs/sweeps/cartpole_dqn")`.)

    Args:
      path: such as "runs/cartpole_dqn".
      trust: allow a run that somebody else trained to import the code that its config names.
    """
    if (Path(path) / "plans").is_dir():
        raise UserError(f"{path} is the folder of a sweep: use rl.Sweep({str(path)!r})")
    return Run(path, trust=trust)
