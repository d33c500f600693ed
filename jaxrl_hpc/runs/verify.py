"""Which checkpoints of a run are good: every checksum of every file that they need. Needs no JAX.

    for verdict in verify_run("runs/cartpole_dqn"): …         # newest first

A checkpoint of a run on many ranks is good if its shared part, all its other parts and the actors' snapshots
of its step, if any, are good.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_hpc.checkpoint.blocks import BrokenCheckpoint, PieceReader
from jaxrl_hpc.checkpoint.manifest import Manifest, manifest_path, pieces_of, read_manifest, sequences
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runs.files import FIRST_SAVE

FOLDER = re.compile(r"shared|shard-\d+|actors-\d+")


class CheckpointVerdict(NamedTuple):
    """One checkpoint."""

    step: int | None  # None: its manifest cannot be read
    problems: tuple[str, ...]  # none: it is good
    bytes: int  # of the files it needs

    @property
    def good(self) -> bool:
        return not self.problems


class _Stored(NamedTuple):
    """A manifest in a folder, and problems of it or its files."""

    manifest: Manifest | None
    problem: str | None


def folders_of(checkpoints: Path) -> list[Path]:
    """The folders of a run that hold manifests: checkpoints/ itself or, of many ranks, those in it."""
    if not checkpoints.is_dir():
        return []
    inner = [p for p in sorted(checkpoints.iterdir()) if p.is_dir() and FOLDER.fullmatch(p.name)]
    return [p for p in (checkpoints, *inner) if sequences(p, "all")]


def verify_run(path: str | Path) -> list[CheckpointVerdict]:
    """All checkpoints of a run directory, newest first."""
    checkpoints = RunDirectory.existing(path).checkpoints
    try:
        folders = folders_of(checkpoints)
        found = {folder.relative_to(checkpoints).as_posix(): _verify(folder) for folder in folders}
    except OSError as error:
        raise UserError(f"{checkpoints} cannot be read: {error}") from error
    actors = [name for name in found if name.startswith("actors-")]
    verdicts = []
    for stored in reversed(found.get(".", []) + found.get("shared", [])):
        if stored.manifest is None:
            verdicts.append(CheckpointVerdict(None, (str(stored.problem),), 0))
            continue
        host = stored.manifest["host"]
        parts = range(host.get("parts", 0)) if "shared" in found else ()
        kinds = ("shard", "actors") if actors or host.get("actors") else ("shard",)
        names = [f"{kind}-{n:04d}" for kind in kinds for n in parts]
        verdicts.append(_together(checkpoints, stored, {name: found.get(name, []) for name in names}))
    return verdicts


def what_to_do(run: RunDirectory, of_sweep: bool = False) -> str:
    """With a run of which no checkpoint can be read; `of_sweep`: it is the work of a sweep's task."""
    again = "start again with --overwrite, which moves the run to .trash"
    if of_sweep:
        again = f"remove {run.path} to train it again"
    return f"Nothing was changed. Put the files back and check with jaxrl-hpc verify {run.path}, or {again}"


def refuse_unreadable(run: RunDirectory, of_sweep: bool = False) -> None:
    """UserError if a run without a readable checkpoint has saved anything: it must not start from scratch."""
    if (run.checkpoints / FIRST_SAVE).exists():
        return  # killed during its first save: nothing has been committed
    problems: list[str] = []
    for folder in folders_of(run.checkpoints):
        numbers = sequences(folder)
        problems += [] if numbers else [f"{folder} has files of checkpoints but no manifest"]
        for number in reversed(numbers):
            try:
                read_manifest(folder, number)
            except BrokenCheckpoint as problem:
                problems.append(str(problem))
    if not problems and folders_of(run.checkpoints):
        problems = [f"{run.checkpoints / 'shared'} has no manifest"]
    if not problems and any(run.metrics.glob("part-*.parquet")):
        problems = [f"{run.metrics} has rows, but {run.checkpoints} is empty"]
    if problems:
        raise UserError(
            f"{run.path} cannot be resumed, because no checkpoint can be read: {'; '.join(problems)}. "
            f"{what_to_do(run, of_sweep)}"
        )


def _verify(folder: Path) -> list[_Stored]:
    """All manifests of a folder, oldest first, except those that a running process deletes meanwhile."""
    known: dict[tuple[Any, ...], str | None] = {}  # checkpoints share pieces
    found = []
    for sequence in sequences(folder):
        manifest: Manifest | None = None
        problem: str | None = None
        try:
            manifest = read_manifest(folder, sequence, check_files=False)
            read_manifest(folder, sequence)
            with PieceReader(folder) as reader:
                problem = _check(manifest, reader, known)
        except BrokenCheckpoint as error:
            problem = str(error)
        if problem is None or manifest_path(folder, sequence).exists():
            found.append(_Stored(manifest, problem))
    return found


def _check(manifest: Manifest, reader: PieceReader, known: dict[tuple[Any, ...], str | None]) -> str | None:
    problems: dict[str, str] = {}  # the first of each file
    for piece in pieces_of(manifest):
        key = tuple(piece)
        if key not in known:
            known[key] = None
            try:
                reader.check(piece)
            except BrokenCheckpoint as error:
                known[key] = str(error)
        if problem := known[key]:
            problems.setdefault(piece[0], problem)
    return "; ".join(problems.values()) or None


def _together(checkpoints: Path, stored: _Stored, parts: dict[str, Iterable[_Stored]]) -> CheckpointVerdict:
    """A checkpoint with the parts of its step."""
    assert stored.manifest is not None
    step, size = stored.manifest["step"], sum(stored.manifest["files"].values())
    problems = [stored.problem] if stored.problem else []
    for name, entries in parts.items():
        of_step = [entry for entry in entries if entry.manifest and entry.manifest["step"] == step]
        if not of_step:
            broken = [entry.problem for entry in entries if entry.manifest is None and entry.problem]
            problems += broken or [f"{checkpoints / name} has nothing of iteration {step}"]
        elif of_step[-1].problem:
            problems.append(of_step[-1].problem)
        size += sum(sum(e.manifest["files"].values()) for e in of_step[-1:] if e.manifest)
    return CheckpointVerdict(step, tuple(problems), size)
