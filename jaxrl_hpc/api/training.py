"""Train a config from Python."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl_hpc import config as configs
from jaxrl_hpc.api import notebook
from jaxrl_hpc.api.parts import nested, override, plain
from jaxrl_hpc.api.run import Run
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.config import Config
from jaxrl_hpc.config.registry import SECTIONS
from jaxrl_hpc.config.sources import name_run, read_source
from jaxrl_hpc.envs.external import mpi_ranks
from jaxrl_hpc.errors import UserError, os_errors_told
from jaxrl_hpc.runs.naming import claim_folder, in_batch_job, release_folder
from jaxrl_hpc.runtime import train as runtime

SHORT = {"seeds": "run.seeds", "seed": "run.seed", "steps": "run.total_env_steps", "name": "run.name"}


def train(
    config: str | Path | Mapping[str, Any] | Config,
    *,
    seeds: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    name: str | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train, and return the run.

    Args:
      config: the name of a shipped config (`jaxrl-hpc list configs`), a path to a YAML file, or the same as a
        mapping: {"agent": {"name": "dqn"}, "env": {"name": "CartPole-v1"}}.
      seeds: how many to train side by side.
      steps: environment steps of each.
      seed: the first of them.
      name: of the run, hence of its folder: runs/<name>. By default that of the config, with a number if
        there is such a run already; in a batch job, or in several processes, an existing run is refused.
      run_dir: another folder.
      resume: continue the run in that folder, exactly, if there is one.
      overwrite: move an earlier run of that folder to the trash.
      quiet: print nothing.
      overrides: any setting, by its dotted name, **{"agent.n_step": 3}, or by sections, agent={"n_step": 3}.

    Returns:
      the run. If it was interrupted it is saved, `finished` is False, and `resume=True` continues it.
    """
    if resume and overwrite:
        raise UserError("resume continues a run, overwrite replaces it: choose one of them")
    short = {"seeds": seeds, "steps": steps, "seed": seed, "name": name}
    given = {SHORT[key]: value for key, value in short.items() if value is not None}
    settings, named = configured(config, overrides | given)
    ranks, say = world(), notebook.voice(quiet)
    with ranks.guard(), os_errors_told(), contextlib.ExitStack() as stack:
        _check_job(settings, ranks.size)
        folder = Path(run_dir or Path("runs") / settings.run.name)
        if not (run_dir or named or resume or overwrite or ranks.size > 1 or in_batch_job()):
            folder = claim_folder(folder.parent, folder.name)
            stack.callback(release_folder, folder)  # if no run starts there
            say(f"run directory {folder}")
        runtime.train(
            settings,
            folder,
            resume=resume,
            overwrite=overwrite,
            say=say,
            progress=notebook.progress(quiet),
        )
    return Run(folder)


def configured(
    config: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any]
) -> tuple[Config, bool]:
    """A validated config with overrides, and whether the run's name was given explicitly."""
    changes = flat(overrides)
    if isinstance(config, str | Path):
        texts = [override(key, value) for key, value in changes.items()]
        source, data = read_source(config, texts)
        named = name_run(data, source)
        with configs.mistakes_located(source, texts):
            return configs.from_dict(data), named
    data = config.to_dict() if isinstance(config, Config) else copy.deepcopy(plain(config))
    if not isinstance(data, dict):
        raise UserError(
            f"config: should be a name, a path or a mapping with agent and env (it is {config!r:.60})"
        )
    for key, value in changes.items():
        configs.put(data, key, value)
    made = configs.from_dict(data)
    if "name" in (data.get("run") or {}):
        return made, True
    name = re.sub(r"[^\w.+=-]", "_", f"{made.env.name}_{made.agent.name}")
    return made.model_copy(update={"run": made.run.model_copy(update={"name": name})}), False


def flat(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted name; whole sections may be given as mappings."""
    changes: dict[str, Any] = {}
    for key, value in overrides.items():
        if "." in key:
            changes[key] = plain(value)
        elif key in (*SECTIONS, "run") and isinstance(value, Mapping):
            changes |= _dotted(key, nested(value))
        else:
            raise UserError(f"{key}: there is no such argument{_meant(key, value)}")
    return changes


def _dotted(path: str, value: Any) -> dict[str, Any]:
    """Only what a mapping names is changed, at any depth."""
    if not (isinstance(value, dict) and value):
        return {path: value}
    parts = [_dotted(f"{path}.{key}", item) for key, item in value.items()]
    return {key: item for part in parts for key, item in part.items()}


def _meant(key: str, value: Any) -> str:
    """The setting of that name, if there is one."""
    if key in (*SECTIONS, "run"):
        return f'; give the section as a mapping, such as {key}={{"name": …}}'
    owners = {"run": [configs.Config.model_fields["run"].annotation]}
    owners |= {section: [c.config for c in known.values()] for section, known in SECTIONS.items()}
    for section, classes in owners.items():
        if any(key in getattr(cls, "model_fields", {}) for cls in classes):
            return f'; did you mean **{{"{section}.{key}": {value!r}}}?'
    return '; settings are given by dotted names, such as **{"agent.gamma": 0.98}'


def _check_job(config: Config, ranks: int) -> None:
    """Refuse jobs that only the command can start."""
    if mpi_ranks.are_wanted(config.env):
        raise UserError(
            "env.name: a parallel program needs the ranks of a job, which `mpirun … jaxrl-hpc train` gives it"
        )
    if ranks > 1 and not config.workflow.uses_ranks:
        raise UserError(
            f"workflow {config.workflow.name!r} runs in one process, but this is a job of {ranks}: "
            "start it without mpirun, or use workflow.name=sharded"
        )
