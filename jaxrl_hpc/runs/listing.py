"""Run directories below a folder, read from their small files alone: no JAX, no arrays."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs.files import TRASH, is_marked
from jaxrl_hpc.runs.lock import holder_of

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where it is there


class RunEntry(NamedTuple):
    """One run. None: not known, or its file cannot be read."""

    path: str
    name: str | None  # run.name of the config
    agent: str | None
    env: str | None
    state: str  # finished, training, stopped, or damaged (a file cannot be read)
    env_steps: int | None  # of the newest checkpoint
    total_env_steps: int | None
    score: float | None  # eval_return_score, or the last evaluation of an unfinished run
    age_seconds: float  # since something was last written


def listing(folder: str | Path) -> list[RunEntry]:
    """All runs in a folder and below it, newest first. Trials of sweeps are not listed with other runs."""
    root = _there(folder)
    return sorted((_entry(path) for path in _runs(root)), key=lambda entry: entry.age_seconds)


def sweeps_in(folder: str | Path) -> list[Path]:
    """Folders of sweeps in a folder and below it, by name."""
    root = Path(folder)
    return sorted(path for path in _folders(root) if path != root and (path / "plans").is_dir())


def is_folder_of_runs(folders: Sequence[Path]) -> bool:
    """Whether this is one folder that is neither a run nor a sweep."""
    return (
        len(folders) == 1
        and folders[0].is_dir()
        and not (folders[0] / "config.yaml").is_file()
        and not (folders[0] / "plans").is_dir()
        and bool(listing(folders[0]) or sweeps_in(folders[0]))
    )


def trash_folders(folder: str | Path) -> list[Path]:
    """The trash of a folder and of those below it."""
    root = _there(folder)
    found = (path / TRASH for path in _folders(root))
    return [trash for trash in found if trash.is_dir() and not trash.is_symlink()]


def _there(folder: str | Path) -> Path:
    root = Path(folder)
    if not root.is_dir():
        raise UserError(
            f"there is no folder {folder}: training makes one in the working directory; "
            "jaxrl-hpc runs FOLDER looks elsewhere"
        )
    return root


def _folders(root: Path) -> Iterator[Path]:
    """A folder and all below it that may hold runs."""
    stack = [root]
    while stack:
        folder = stack.pop()
        yield folder
        if _is_run(folder) or (folder != root and (folder / "plans").is_dir()):
            continue
        try:
            with os.scandir(folder) as entries:
                stack += [
                    Path(entry.path)
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
                ]
        except OSError:
            continue  # not ours to read


def _runs(root: Path) -> Iterator[Path]:
    return (folder for folder in _folders(root) if _is_run(folder))


def _is_run(folder: Path) -> bool:
    return is_marked(folder) or ((folder / "config.yaml").is_file() and (folder / "metrics").is_dir())


def _entry(path: Path) -> RunEntry:
    config, config_fine = _read(path / "config.yaml")
    summary, summary_fine = _read(path / "summary.json")
    progress, progress_fine = _read(path / "progress.json")
    run = _section(config, "run")
    steps = summary.get("env_steps", progress.get("env_steps"))
    if not (config_fine and summary_fine and progress_fine):
        state = "damaged"
    elif summary:
        state = "finished"
    else:
        state = "training" if holder_of(path / "run.lock") else "stopped"
    names = ("run.lock", "config.yaml", "summary.json", "progress.json", "metrics", "checkpoints")
    newest = max((_mtime(path / name) for name in names), default=0.0)
    return RunEntry(
        path=str(path),
        name=run.get("name"),
        agent=_section(config, "agent").get("name"),
        env=_section(config, "env").get("name"),
        state=state,
        env_steps=steps,
        total_env_steps=progress.get("total_env_steps", run.get("total_env_steps")),
        score=summary.get("eval_return_score", progress.get("eval_return")),
        age_seconds=max(0.0, time.time() - (newest or _mtime(path))),
    )


def _read(path: Path) -> tuple[dict[str, Any], bool]:
    """A small file's content, and whether it could be read; a missing file is no error."""
    try:
        text = path.read_text()
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, LOADER)
    except FileNotFoundError:
        return {}, True
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}, False
    return (content, True) if isinstance(content, dict) else ({}, False)


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
