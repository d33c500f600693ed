"""Which files belong to a run directory, and how they are moved aside or deleted.

A run directory carries a marker file. Only files that a run is known to write are moved or deleted, and only
if the marker exists. Links are not followed, and other files stay in place.

An overwritten run is moved to `<parent>/.trash/<name>`; the last one of each name is kept there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxrl_hpc.checkpoint import DAMAGED
from jaxrl_hpc.errors import UserError

MARKER = ".jaxrl-hpc-run"
TRASH = ".trash"
FIRST_SAVE = "first-save"  # in checkpoints/: no checkpoint has been committed yet, see Trainer.save

# needed by the process that holds the run while it moves the rest aside
LIVE = re.compile(rf"{re.escape(MARKER)}|run\.lock|ranks/\d+(\.\d+)?\.(json|tmp)")
KNOWN = re.compile(
    r"(config\.yaml|actors\.json|summary\.json|progress\.json|trace\.json|report\.html|planning\.csv"
    r"|(schedule|inference)-\d+\.csv"
    r"|metrics/part-\d+-\d+\.parquet"
    rf"|checkpoints/((shared|shard-\d+|actors-\d+)/)?({DAMAGED}/)?\d{{8}}\.(manifest|rows|arrays)"
    rf"|checkpoints/{FIRST_SAVE}"
    r"|tensorboard/events\.out\.tfevents\.[^/]+"
    r"|tracking/(wandb|mlflow)\.json"
    r"|trace_parts/rank-\d+\.json"
    r"|plots/(learning_curve|episode)\.(png|gif)"
    r"|export/(policy\.py|weights\.npz|metadata\.json|\w+\.stablehlo)"
    r"|(wandb|mlruns)/.+"
    r")(\.\d+\.tmp)?",
    re.DOTALL,
)
FOLDERS = re.compile(
    r"metrics|checkpoints(/(shared|shard-\d+|actors-\d+))?|tensorboard|tracking|trace_parts|plots|export|ranks"
    r"|wandb|mlruns"
)


class Emptied(NamedTuple):
    """Result of emptying a trash folder."""

    runs: list[str]
    files: int
    bytes: int
    left: list[Path]  # not written by a run: not deleted


def is_marked(path: Path) -> bool:
    marker = path / MARKER
    return marker.is_file() and not marker.is_symlink()


def mark(path: Path) -> None:
    """Declare a folder a run directory."""
    (path / MARKER).write_text("A run directory of jaxrl-hpc. Files of the run in it may be overwritten.\n")


def check_may_overwrite(path: Path) -> None:
    """UserError unless this folder is a run directory itself, not a link to one."""
    if path.is_symlink():
        raise UserError(f"--overwrite: {path} is a link; name the folder itself, or choose another --run-dir")
    if not is_marked(path):
        raise UserError(
            f"--overwrite: {path} has no file {MARKER}, so it is not known to be a run directory; "
            "nothing was removed: remove it yourself, or choose another --run-dir"
        )
    for name in _links(path):
        if FOLDERS.fullmatch(name):
            raise UserError(
                f"--overwrite: {path / name} is a link, which is not followed; remove it, or choose "
                "another --run-dir"
            )


def move_aside(path: Path) -> Path | None:
    """Move a run's files to the trash beside it; the caller holds its lock. None if there were none.

    config.yaml is moved first: while it exists, the run is complete. The next move continues an interrupted
    one.
    """
    path = Path(os.path.abspath(path))
    check_may_overwrite(path)
    files = [name for name in known_files(path) if not LIVE.fullmatch(name)]
    if not files:
        return None
    target = path.parent / TRASH / path.name
    for folder in (target.parent, target):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UserError(f"--overwrite: {folder} is not a folder: the run cannot be moved there")
    try:
        if target.is_dir() and any(target.iterdir()) and not is_marked(target):
            raise UserError(f"--overwrite: {target} does not hold a run: move it away")
        if "config.yaml" in files and is_marked(target):
            discard(target)
        target.mkdir(parents=True, exist_ok=True)
        mark(target)
        for name in sorted(files, key=lambda name: name != "config.yaml"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(path / name, target / name)
        _remove_empty(path, files)
    except OSError as error:
        raise UserError(f"--overwrite: cannot move {path} to {target}: {error.strerror}") from error
    return target


def discard(path: Path) -> tuple[int, int]:
    """Delete the files of a marked run directory, and it itself if nothing else is in it: (files, bytes)."""
    if path.is_symlink() or not is_marked(path):
        raise UserError(f"{path} is not known to be a run directory: it is not deleted")
    names = list(known_files(path))
    size = 0
    for name in sorted(names, key=lambda name: name == MARKER):  # the marker last: repeatable
        size += (path / name).lstat().st_size
        (path / name).unlink()
    _remove_empty(path, names)
    if not any(path.iterdir()):
        path.rmdir()
    return len(names), size


def empty_trash(trash: Path) -> Emptied:
    """Delete the overwritten runs in one trash folder."""
    runs, left, files, size = [], [], 0, 0
    try:
        for entry in sorted(trash.iterdir()):
            if entry.is_dir() and not entry.is_symlink() and is_marked(entry):
                count, freed = discard(entry)
                runs.append(entry.name)
                files, size = files + count, size + freed
            if os.path.lexists(entry):
                left.append(entry)
        if not left:
            trash.rmdir()
    except OSError as error:
        raise UserError(f"cannot empty {trash}: {error.strerror}: {error.filename}") from error
    return Emptied(runs, files, size, left)


def known_files(path: Path) -> Iterator[str]:
    """Relative names of the files in a folder that a run writes."""
    for name in _walk(path):
        if KNOWN.fullmatch(name) or LIVE.fullmatch(name):
            yield name


def _walk(path: Path) -> Iterator[str]:
    """Relative names of everything that is not a folder; links are not followed."""
    for folder, folders, files in os.walk(path, followlinks=False):
        inside = Path(folder).relative_to(path)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*files, *links]:
            yield (inside / name).as_posix()


def _links(path: Path) -> Iterator[str]:
    return (name for name in _walk(path) if (path / name).is_symlink())


def _remove_empty(path: Path, files: list[str]) -> None:
    """Remove folders inside a run directory from which these files went and in which nothing is left."""
    folders = {parent for name in files for parent in Path(name).parents if parent != Path()}
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        if (path / folder).is_dir() and not any((path / folder).iterdir()):
            (path / folder).rmdir()
