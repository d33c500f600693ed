"""From a sweep file to trials, and from trials to tasks.

A trial is a whole config and a seed; its id is a hash of both, so equal work has the same id in every plan.
Trials whose configs differ only in traced hyperparameters and the seed share a compiled program, and up to
`trials_per_task` of them train side by side as one task. A different static setting needs another program,
hence another task.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxrl_hpc import config as configs
from jaxrl_hpc.config import Config
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import changeable_names, traced_names
from jaxrl_hpc.sweeps import axes
from jaxrl_hpc.sweeps.spec import SweepSpec

TRACED_SECTIONS = ("agent", "replay")
MAX_TRIALS = 100_000


class Trial(NamedTuple):
    """One config with one seed."""

    id: str
    values: dict[str, Any]  # of the axes
    seed: int
    config: Config
    program: str  # trials with the same one may train side by side


@dataclass(frozen=True)
class Task:
    """Trials that train side by side: an element of a job array."""

    index: int
    id: str
    trials: tuple[Trial, ...]


class SweepPlan(NamedTuple):
    """An expanded sweep file."""

    spec: SweepSpec
    trials: tuple[Trial, ...]
    tasks: tuple[Task, ...]
    repeated: int  # combinations that duplicate an earlier one

    @property
    def id(self) -> str:
        """Hash of the trials, their packing and their comparison."""
        halving = self.spec.halving.model_dump() if self.spec.halving else None
        return digest([[t.id for t in self.tasks], halving, self.spec.metric, self.spec.goal])

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self.tasks):
            raise UserError(f"there is no task {index}: the sweep has tasks 0 to {len(self.tasks) - 1}")
        return self.tasks[index]


def digest(data: Any) -> str:
    """A hash of plain data with twelve hexadecimal digits."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_traced(config: Config, key: str) -> bool:
    """Whether this dotted name is an argument of the compiled program."""
    section, _, name = key.partition(".")
    part = getattr(config, section, None) if section in TRACED_SECTIONS else None
    return part is not None and name in traced_names(part)


def _identity(config: Config) -> dict[str, Any]:
    """The settings that determine a trial's result, including the mode of seeds, which affects last bits."""
    data = config.to_dict()
    for name in {*changeable_names(config.run), "name", "seeds"} - {"seeds_mode"}:
        data["run"].pop(name, None)
    return data


def _program(config: Config) -> str:
    data = _identity(config)
    data["run"].pop("seed")
    for section in TRACED_SECTIONS:
        part = getattr(config, section)
        for name in traced_names(part) if part is not None else ():
            data[section].pop(name)
    return digest(data)


def make_trial(spec: SweepSpec, values: dict[str, Any], seed: int) -> Trial:
    data = copy.deepcopy(spec.base)
    try:
        for key, value in values.items():
            configs.put(data, key, value)
        configs.put(data, "run.seed", seed)
        configs.put(data, "run.seeds", 1)
        configs.put(data, "run.name", spec.name)
        config = configs.from_dict(data)
    except UserError as error:
        chosen = ", ".join(f"{key}={value}" for key, value in values.items())
        raise UserError(f"the trial with {chosen}: {str(error).splitlines()[0]}") from None
    if config.workflow.name != "fused":
        raise UserError(f"workflow.name: sweeps train the fused workflow, not {config.workflow.name!r}")
    identity = digest(_identity(config))
    run = config.run.model_copy(update={"name": f"{spec.name}-{identity}"})
    config = config.model_copy(update={"run": run})
    return Trial(identity, values, seed, config, _program(config))


def make_plan(spec: SweepSpec) -> SweepPlan:
    """All trials of a sweep, packed."""
    base = configs.from_dict(spec.base)
    whole = {
        key for key in spec.axes if isinstance(value_of(base, key), int) and value_of(base, key) is not None
    }
    asked = axes.count(spec) * spec.seeds
    if asked > MAX_TRIALS:
        raise UserError(
            f"axes: the sweep has {asked:,} trials, more than {MAX_TRIALS:,}; use fewer values or random axes"
        )
    trials: dict[str, Trial] = {}
    repeated = 0
    for values in axes.combinations(spec, whole):
        for seed in range(base.run.seed, base.run.seed + spec.seeds):
            trial = make_trial(spec, values, seed)
            repeated += trial.id in trials
            trials.setdefault(trial.id, trial)
    ordered = tuple(trials.values())
    return SweepPlan(spec, ordered, pack(ordered, spec.trials_per_task), repeated)


def value_of(config: Config, key: str) -> Any:
    """The base's value of a dotted name; None if it has none (the trial reports that)."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part, None)
    return None if isinstance(value, bool) else value


def pack(trials: Sequence[Trial], per_task: int) -> tuple[Task, ...]:
    """Tasks of about equal size from each group of trials that share a program."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.program, []).append(trial)
    tasks: list[Task] = []
    for members in groups.values():
        count = -(-len(members) // per_task)
        for i in range(count):
            part = members[i * len(members) // count : (i + 1) * len(members) // count]
            tasks.append(Task(len(tasks), digest(sorted(t.id for t in part)), tuple(part)))
    return tuple(tasks)
