"""Sweeps from Python: many trials of one config.

    sweep = rl.sweep("cartpole_dqn", axes={"agent.learning_rate": [3e-4, 1e-3]}, seeds=3)
    sweep.standings, sweep.table, sweep.report()
    run = rl.train("cartpole_dqn", seed=100, seeds=8, **sweep.best)

`rl.Sweep(folder)` opens an existing sweep, finished or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jaxrl_hpc.api import notebook
from jaxrl_hpc.api.parts import override, plain
from jaxrl_hpc.api.training import flat
from jaxrl_hpc.errors import UserError, os_errors_told
from jaxrl_hpc.sweeps import local
from jaxrl_hpc.sweeps.collect import Standing, rows, standings, to_table
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan, make_plan
from jaxrl_hpc.sweeps.run import check_metric, run_task
from jaxrl_hpc.sweeps.spec import SweepSpec, load_spec, spec_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 10  # combinations in a notebook


class Sweep:
    """The folder of a sweep.

    Args:
      path: its folder.
      trust: import the code that its configs name, even if somebody else made it.
    """

    def __init__(self, path: str | Path, *, trust: bool = False) -> None:
        if not Path(path).is_dir():
            raise UserError(f"there is no folder {path} of a sweep")
        self._directory = SweepDirectory(path)
        self._directory.trust = self._trust = trust
        self._plan = make_plan(load_spec(path, trust=trust))

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._directory.path

    @property
    def trials(self) -> int:
        """Number of trials requested."""
        return len(self._plan.trials)

    @property
    def finished(self) -> bool:
        """Whether every trial has a result."""
        return not local.unfinished(self._plan, self._directory)

    @property
    def table(self) -> pa.Table:
        """A row per trial: axis values, seed, status, scores; `.to_pandas()` where pandas is installed."""
        return to_table(rows(self._plan, self._directory))

    @property
    def standings(self) -> list[Standing]:
        """Combinations of values over their seeds, best first: metric, low, high, values."""
        return standings(self._plan, self._directory)

    @property
    def best(self) -> dict[str, Any]:
        """Settings of the best combination by dotted name, as `rl.train(…, **sweep.best)` takes them."""
        found = self.standings
        if not found:
            raise UserError(f"{self.path} has no finished trial yet")
        trial = next(trial for trial in self._plan.trials if trial.id == found[0].trial)
        return dict(trial.values)

    def plot(self) -> Figure:
        """Combinations with their intervals, best first, as a matplotlib figure."""
        import matplotlib
        from matplotlib.figure import Figure

        from jaxrl_hpc.report.style import MATPLOTLIB, color, title

        found = self.standings
        if not found:
            raise UserError(f"{self.path} has no finished trial yet")
        found = found[:30]
        with matplotlib.rc_context(MATPLOTLIB):
            figure = Figure(figsize=(7.5, 0.34 * len(found) + 1.1), layout="constrained")
            axes = figure.subplots()
            for place, entry in enumerate(found):
                axes.plot([entry.low, entry.high], [place] * 2, color=color(0), linewidth=5, alpha=0.3)
                axes.plot(entry.metric, place, "o", color=color(0))
            axes.set_yticks(range(len(found)), [_settings(entry.values) for entry in found])
            axes.invert_yaxis()
            axes.set(xlabel=title(self._plan.spec.metric))
        return figure

    def report(self, output: str | Path | None = None) -> Path:
        """One interactive HTML page; by default report.html in the sweep's folder."""
        from jaxrl_hpc.sweeps.report import write_sweep_report

        target = Path(output) if output else self._directory.report
        write_sweep_report(self.path, target, trust=self._trust)
        return target

    def _done(self) -> int:
        return sum(self._directory.result(trial.id) is not None for trial in self._plan.trials)

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r}, {self._done()} of {self.trials} trials done)"

    def _repr_html_(self) -> str:
        keys = list(self._plan.spec.axes)
        entries = [
            [*(entry.values[key] for key in keys), entry.metric, entry.low, entry.high, entry.seeds]
            for entry in self.standings[:SHOWN]
        ]
        head = f"{self.path}: {self._done()} of {self.trials} trials done"
        names = [*keys, self._plan.spec.metric, "low", "high", "seeds"]
        return notebook.titled(head, notebook.table(names, entries))


def _settings(values: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{key.partition('.')[2]}={notebook.text(value)}" for key, value in values.items())
        or "base"
    )


def sweep(
    config: str | Path | Mapping[str, Any],
    *,
    axes: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    steps: int | None = None,
    samples: int | None = None,
    name: str | None = None,
    run_dir: str | Path | None = None,
    jobs: int | None = None,
    quiet: bool = False,
    **overrides: Any,
) -> Sweep:
    """Run all trials of a sweep on this machine, and return it. Calling it again continues unfinished trials.

    Args:
      config: with `axes` a config, as for `rl.train`; else a sweep: its file, its name in configs/sweeps/,
        or the same as a mapping.
      axes: dotted name -> list of values, or {"log_uniform": [1e-4, 1e-2]} and the like (docs/sweeps.md).
      seeds: of every combination.
      steps: environment steps of every trial.
      samples: draws of random axes.
      name: of the sweep, hence of its folder: runs/sweeps/<name>.
      run_dir: another folder.
      jobs: tasks at the same time; by default as many as there are cores.
      quiet: print nothing.
      overrides: settings of all trials, as for `rl.train`.
    """
    spec, source = _spec(config, axes, flat(overrides), _given(seeds, steps, samples, name))
    plan = make_plan(spec)
    default = Path("runs") / "sweeps" / spec.name
    directory = SweepDirectory.of(spec, run_dir, source) if source else SweepDirectory(run_dir or default)
    say = notebook.voice(quiet)
    with os_errors_told():
        if len(plan.tasks) > 1:
            _run_all(plan, directory, jobs, quiet)
        else:
            directory.freeze(plan)
            say(run_task(plan, directory, 0, say, notebook.progress(quiet)).text)
    return Sweep(directory.path)


def _given(
    seeds: int | None, steps: int | None, samples: int | None, name: str | None
) -> dict[str, int | str]:
    keys = {"seeds": seeds, "budget": steps, "samples": samples, "name": name}
    return {key: value for key, value in keys.items() if value is not None}


def _spec(
    config: str | Path | Mapping[str, Any],
    axes: Mapping[str, Any] | None,
    overrides: dict[str, Any],
    given: dict[str, Any],
) -> tuple[SweepSpec, str | Path | None]:
    """A validated sweep, and the file or folder that it came from, if any."""
    if axes is not None:
        for key, values in axes.items():
            if not isinstance(values, Mapping | Sequence) or isinstance(values, str):
                raise UserError(
                    f"axes: {key} should be a list of values, or a mapping such as "
                    f'{{"log_uniform": [1e-4, 1e-2]}} (it is {values!r:.60})'
                )
        base = str(config) if isinstance(config, Path) else plain(config)
        name = Path(base).stem if isinstance(base, str) else "sweep"
        data = {"base": base, "axes": plain(axes), "name": name, "overrides": overrides}
        return spec_of(data | given, Path()), None
    if isinstance(config, str | Path):
        texts = tuple(override(key, value) for key, value in overrides.items())
        return load_spec(config, texts, given), config
    data = plain(config)
    return spec_of(data | given | {"overrides": data.get("overrides", {}) | overrides}, Path()), None


def _run_all(plan: SweepPlan, directory: SweepDirectory, jobs: int | None, quiet: bool) -> None:
    """Tasks in processes of their own; UserError if one fails."""
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs: should be at least 1 (it is {jobs})")
    check_metric(plan, plan.trials[0].config)
    plan_file = directory.freeze(plan)
    hidden = quiet or notebook.in_notebook()  # a kernel's own output is not shown below the cell
    code = local.run_all(plan, plan_file, directory, notebook.voice(quiet), jobs, hidden)
    if code == 1:
        todo = ", ".join(str(task.index) for task in local.unfinished(plan, directory))
        raise UserError(
            f"{directory.path}: not every trial has a result (task {todo}); see why with: "
            f"jaxrl-hpc sweep run {directory.path} --task {todo.partition(',')[0]}"
        )
