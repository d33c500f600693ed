"""A sweep file: a base config, axes that vary it, seeds, a budget, and how to run it.

    base: cartpole_dqn
    budget: 50_000
    seeds: 3
    axes:
      agent.learning_rate: {log_uniform: [1e-4, 1e-2]}
      agent.n_step: [1, 8]
    samples: 16

Lists and grids are crossed; random axes are drawn `samples` times, and every draw is tried with every
combination of the others.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_validator

from jaxrl_hpc import config as configs
from jaxrl_hpc.config.registry import nearest
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import Schema, folder_name, static
from jaxrl_hpc.user_code import check_trusted

Bounds = tuple[float, float]
KINDS = ("values", "grid", "random", "log_uniform", "choice")
RANDOM = ("random", "log_uniform", "choice")
SLURM_NAMES = r"^[\w.,@:+-]+$"  # one name, or several with commas
SPEC_PARTS = ("base", "overrides", "axes")  # what may name code
OWN_KEYS = {"run.seed": "seeds", "run.seeds": "seeds", "run.name": "name"}  # what the sweep itself sets


class Axis(Schema):
    """One varied setting. Exactly one of values, grid, random, log_uniform and choice."""

    values: tuple[Any, ...] | None = static(None, "these values; a plain list means the same", min_length=1)
    grid: Bounds | None = static(None, "evenly spaced values from the first to the second, `points` of them")
    points: int | None = static(None, "grid: how many", ge=2, le=10_000)
    log: bool = static(False, "grid: spaced evenly in the logarithm")
    random: Bounds | None = static(None, "drawn uniformly between two bounds")
    log_uniform: Bounds | None = static(None, "drawn uniformly in the logarithm between two bounds")
    choice: tuple[Any, ...] | None = static(None, "drawn from these values", min_length=1)

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def drawn(self) -> bool:
        return self.kind in RANDOM

    @model_validator(mode="after")
    def _one_kind(self) -> Axis:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"should be a list, or have exactly one of {', '.join(KINDS)}")
        bounds = getattr(self, self.kind) if self.kind in ("grid", "random", "log_uniform") else None
        if bounds and bounds[0] >= bounds[1]:
            raise ValueError(f"{self.kind} goes from a lower bound to a higher one")
        if bounds and (self.kind == "log_uniform" or self.log) and bounds[0] <= 0:
            raise ValueError("a logarithm needs bounds above zero")
        if (self.points is not None) != (self.kind == "grid") or (self.log and self.kind != "grid"):
            raise ValueError("grid needs points (such as points: 5), and only grid has points and log")
        return self


class HalvingConfig(Schema):
    """Successive halving: all trials start, at each rung the best ones continue."""

    rungs: int = static(3, "how often trials are compared, including at the end", ge=2, le=10)
    factor: int = static(3, "one in this many continues; rungs are this factor apart", ge=2, le=10)


class SlurmConfig(Schema):
    """Resources of the job array. Other sbatch options go into `options`."""

    partition: str | None = static(None, "Slurm partition", pattern=SLURM_NAMES)
    account: str | None = static(None, "who pays", pattern=SLURM_NAMES)
    time: str | None = static(
        None, "time limit of a task: minutes, hours:minutes:seconds or days-hours", pattern=r"^[\d:-]+$"
    )
    cpus_per_task: int = static(1, "cores of a task; its trials share them", ge=1)
    mem: str | None = static(None, "memory of a task, such as 8G", pattern=r"^\d+[KMGT]?$")
    at_once: int = static(0, "tasks of the array that may run at the same time; 0: no limit", ge=0)
    signal_seconds: int = static(60, "a task saves and stops this long before its time limit", ge=1)
    requeue: bool = static(True, "a task that had to stop is requeued and continues")
    options: tuple[str, ...] = static((), "further sbatch options, such as --qos=long")
    modules: tuple[str, ...] = static((), "modules to load")
    setup: tuple[str, ...] = static((), "shell lines before the task starts")

    @field_validator("options")
    @classmethod
    def _are_options(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not option.startswith("-") or not option.isprintable():
                raise ValueError(f"{option!r} is not an sbatch option; they begin with a dash")
        return options

    @field_validator("modules")
    @classmethod
    def _are_modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        for name in modules:
            if not name.isprintable() or not name.strip():
                raise ValueError(f"{name!r} is not the name of a module")
        return modules


class SweepSpec(Schema):
    """A whole sweep file."""

    name: str = folder_name("sweep", "name of the folder under runs/sweeps/", max_length=80)
    base: Any = static(None, "a config: its name, its path, or the config itself")
    overrides: dict[str, Any] = static({}, "settings of all trials, by dotted name")
    axes: dict[str, Axis] = static({}, "what varies, by dotted name")
    samples: int | None = static(None, "draws of the random axes", ge=1, le=1_000_000)
    draw_seed: int = static(0, "seed of those draws; more samples keep the earlier ones", ge=0)
    seeds: int = static(1, "seeds of every combination, from the base's run.seed on", ge=1, le=100_000)
    budget: int | None = static(None, "environment steps of a trial (run.total_env_steps)", ge=1)
    metric: str = static("eval_return", "metric of the final evaluation by which trials are compared")
    goal: Literal["maximise", "minimise"] = static(
        "maximise", "whether larger or smaller values of the metric are better"
    )
    trials_per_task: int = static(64, "upper bound on trials that train side by side in one program", ge=1)
    halving: HalvingConfig | None = None
    slurm: SlurmConfig = SlurmConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> SweepSpec:
        for key in (*self.axes, *self.overrides):
            if key in OWN_KEYS:
                raise ValueError(f"{key} is set by the sweep itself; use {OWN_KEYS[key]} instead")
            if key.count(".") < 1:
                raise ValueError(f"{key} should be a dotted name such as agent.learning_rate")
        twice = [key for key in self.axes if key in self.overrides]
        if twice:
            raise ValueError(f"{twice[0]} is both an axis and an override")
        drawn = [key for key, axis in self.axes.items() if axis.drawn]
        if drawn and self.samples is None:
            raise ValueError(f"{drawn[0]} is drawn at random: set the number of draws, such as samples: 16")
        if not drawn and self.samples is not None:
            raise ValueError("samples counts draws of random axes, and there are none")
        return self


def find_spec(name: str | Path) -> Path:
    """A sweep file by path, by name in configs/sweeps/, or the newest plan of a sweep's folder."""
    path = Path(name)
    if path.is_dir():
        plans = sorted((path / "plans").glob("*.yaml"), key=lambda p: p.stat().st_mtime)
        if not plans:
            raise UserError(f"{path} is not the folder of a sweep: it has no plans")
        return plans[-1]
    if path.is_file():
        return path
    for folder in configs.CONFIG_DIRS:
        for candidate in (folder / "sweeps" / path, folder / "sweeps" / f"{path}.yaml"):
            if candidate.is_file():
                return candidate
    known = sorted({p.stem for f in configs.CONFIG_DIRS for p in (f / "sweeps").glob("*.yaml")})
    raise UserError(f"there is no sweep file {str(name)!r}{nearest(path.stem, known)}")


def load_spec(
    name: str | Path,
    overrides: tuple[str, ...] = (),
    changes: Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
) -> SweepSpec:
    """A sweep file with its base config included, so that it depends on no other file.

    Args:
      name: as for `find_spec`.
      overrides: settings of all trials.
      changes: keys of the sweep itself that replace those of the file.
      trust: allow a plan in a sweep's folder to name code, even if somebody else made it; a file given by
        name is trusted.
    """
    source = find_spec(name)
    data = configs.read_yaml(source)
    if not isinstance(data, dict):
        raise UserError(f"{source}: a sweep holds keys (base, axes, seeds, …), not {type(data).__name__}")
    if "agent" in data and "base" not in data:
        raise UserError(f"{source} is a config to train, not a sweep; a sweep file names it as its base")
    if source.resolve().parent.name == "plans":
        check_trusted(source.resolve().parent.parent, data, trust, SPEC_PARTS)
    data.setdefault("name", source.stem)
    with configs.mistakes_located(source, overrides):
        return spec_of(data | dict(changes or {}), source.parent, overrides)


def spec_of(data: dict[str, Any], folder: Path, overrides: tuple[str, ...] = ()) -> SweepSpec:
    """A sweep from plain data, with its base config included. `folder`: base of relative paths."""
    if isinstance(data.get("axes"), dict):  # a plain list is short for its long form
        axes = {k: {"values": v} if isinstance(v, list) else v for k, v in data["axes"].items()}
        data = data | {"axes": axes}
    problems: list[str] = []
    spec = configs.validate("", SweepSpec, data, problems)
    if problems:
        raise UserError("\n".join(problems))
    base = _base(spec, folder, overrides)
    return spec.model_copy(update={"base": base, "overrides": {}, "budget": None})


def _base(spec: SweepSpec, folder: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    """The base config as plain data, with everything that is the same for all trials."""
    if spec.base is None:
        raise UserError("base: is missing; name a config, such as base: cartpole_dqn")
    if isinstance(spec.base, dict):
        data = copy.deepcopy(spec.base)
    elif isinstance(spec.base, str):
        beside = folder / spec.base
        path = beside if beside.is_file() else configs.find_file(spec.base)
        data = configs.read_yaml(path)
        if not isinstance(data, dict):
            raise UserError(f"base: {path} is not a config")
        folder = path.parent
    else:
        raise UserError(f"base: should be the name of a config, a path or a config (it is {spec.base!r})")
    for key, value in spec.overrides.items():
        configs.put(data, key, value)
    if spec.budget is not None:
        configs.put(data, "run.total_env_steps", spec.budget)
    for text in overrides:
        if text.partition("=")[0] in spec.axes or text.partition("=")[0] in OWN_KEYS:
            raise UserError(f"override {text!r}: the sweep sets {text.partition('=')[0]} itself")
        configs.apply_override(data, text)
    configs.search_beside(folder, data)
    config = configs.from_dict(data)  # report mistakes in the base before trials are made
    if config.run.code_dirs:  # tasks may run elsewhere
        configs.put(data, "run.code_dirs", list(config.run.code_dirs))
    return data


def sweep_schema() -> dict[str, Any]:
    """A JSON schema of sweep files, for editors."""
    schema = SweepSpec.model_json_schema()
    axis = schema["properties"]["axes"]["additionalProperties"]
    schema["properties"]["axes"]["additionalProperties"] = {"anyOf": [{"type": "array", "minItems": 1}, axis]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "required": ["base"]}
