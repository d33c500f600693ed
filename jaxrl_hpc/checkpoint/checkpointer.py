"""Checkpoints of a whole run: exact, atomic, and as cheap as what changed.

    checkpointer = Checkpointer(run / "checkpoints")
    checkpointer.save(step, state, {"env_steps": 4096, "metrics": writer.commit()})
    step, state, host = checkpointer.restore(jax.eval_shape(init, key))

`state` is any pytree of arrays, typed keys and scalars, usually a dict with one entry per seed, trial
or logical shard. Its structure is not stored, only leaves by path; `restore` takes it from `like`.

A directory holds, for save number N, `N.rows` (new replay rows, see rings.py), `N.arrays` (changed
blocks, see arrays.py) and `N.manifest`, which is renamed into place last and lists every file it
needs with checksums. Files that none of the `keep` newest checkpoints needs are deleted after each
commit. Whatever happens while saving, the previous checkpoint stays intact. Ranks of a job use one
directory each and agree on a step that all of them have (`restore(like, step=…)`).

With keep > 1, two checkpoints in a row share no file, so that one damaged byte cannot spoil both: a save
builds on the last checkpoint but one. So rows are written twice and take twice the space. Data is read back
before the manifest is written. Files of a checkpoint that could not be read are not deleted but moved to
`damaged/` when the next one is saved.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_hpc.checkpoint import DAMAGED
from jaxrl_hpc.checkpoint.arrays import plan_arrays, read_arrays
from jaxrl_hpc.checkpoint.blocks import (
    BrokenCheckpoint,
    DataFile,
    NoGoodCheckpoint,
    PieceReader,
    sync_directory,
)
from jaxrl_hpc.checkpoint.leaves import Signature, check_match, from_host, full_paths, split
from jaxrl_hpc.checkpoint.leaves import state_bytes as state_bytes
from jaxrl_hpc.checkpoint.manifest import (
    OURS,
    Manifest,
    manifest_path,
    pieces_of,
    read_manifest,
    sequences,
    write_manifest,
)
from jaxrl_hpc.checkpoint.rings import plan_ring, read_ring
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import PyTree

logger = logging.getLogger(__name__)


class Saved(NamedTuple):
    """Statistics of a save."""

    step: int
    data_bytes: int  # written to data files
    seconds: float  # that the caller had to wait


class Checkpointer:
    """Saves to and restores from one directory. One writer per directory at a time."""

    def __init__(self, directory: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        self.directory = Path(directory)
        self.keep = keep
        self._kept: list[Manifest] | None = None  # checkpoints to keep, oldest first; None: not known yet
        self._history: list[Manifest] = []  # the last two that the present state comes from, oldest first
        self.damaged = False  # there are files that could not be read: the next save does not delete them

    def save(self, step: int, state: PyTree, host: dict[str, Any]) -> Saved:
        """Write a checkpoint. When it returns, it is on disk, and `state` may be donated or changed.

        Args:
          step: number of the checkpoint.
          state: a pytree of arrays, typed keys and Rings.
          host: what else belongs to it, as JSON.
        """
        began = time.perf_counter()
        self._make_directory()
        sequence = max(sequences(self.directory, "all"), default=-1) + 1
        rows = DataFile(self.directory / f"{sequence:08d}.rows")
        arrays = DataFile(self.directory / f"{sequence:08d}.arrays")
        if self._kept is None:
            self._keep_found()
        base = self._base()
        leaves, rings = split(state)
        ring_entries = {
            path: plan_ring(path, ring, base["rings"].get(path) if base else None, rows, arrays)
            for path, ring in rings.items()
        }
        array_entries, small = plan_arrays(leaves, base, arrays)
        manifest: Manifest = {"step": int(step), "sequence": sequence, "host": host}
        manifest["previous"] = self._history[-1]["sequence"] if self._history else None
        manifest |= {"leaves": array_entries, "rings": ring_entries, "small": small}
        sizes = (base["files"] if base else {}) | {file.path.name: file.size for file in (rows, arrays)}
        needed = {piece[0] for piece in pieces_of(manifest)}
        manifest["files"] = {name: sizes[name] for name in sorted(needed)}
        self._commit(manifest, rows, arrays)
        return Saved(int(step), rows.size + arrays.size, time.perf_counter() - began)

    def latest(self) -> int | None:
        """Step of the newest checkpoint with an intact manifest and files of the right size."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """Steps that can be restored judged by manifests and file sizes, oldest first."""
        found = []
        for sequence in sequences(self.directory):
            try:
                found.append(read_manifest(self.directory, sequence)["step"])
            except BrokenCheckpoint as problem:
                logger.debug("%s", problem)
        return found

    def restore(
        self, like: PyTree, step: int | None = None, place: Callable[[Any], Any] | None = None
    ) -> tuple[int, PyTree, dict[str, Any]]:
        """The newest good checkpoint (or that of `step`) as (step, state, host).

        `like` is a state, or ShapeDtypeStructs of one. Leaves are NumPy arrays without other references, and
        typed keys; `place`, e.g. jnp.array, is applied to each as it is read. A damaged checkpoint is logged
        and the previous one used. UserError if there is none or the structure differs.
        """
        manifest, arrays, signatures = self._load(step)
        check_match(signatures, like, f"checkpoint of iteration {manifest['step']} in {self.directory}")
        paths, structure = full_paths(like)
        place = place or (lambda leaf: leaf)
        # pop: a placed leaf's host copy is freed before the next is placed
        state = [place(from_host(arrays.pop(path), signatures[path].key)) for path in paths]
        self._adopt(manifest)
        return manifest["step"], jax.tree.unflatten(structure, state), manifest["host"]

    def load(self, step: int | None = None) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Like `restore`, without a structure: leaves by path (jax.tree_util.keystr). For re-sharding."""
        manifest, arrays, signatures = self._load(step)
        self._adopt(manifest)
        leaves = {path: from_host(array, signatures[path].key) for path, array in arrays.items()}
        return manifest["step"], leaves, manifest["host"]

    def _load(self, step: int | None) -> tuple[Manifest, dict[str, np.ndarray], dict[str, Signature]]:
        problems: list[str] = []
        for sequence in reversed(sequences(self.directory)):
            try:
                manifest = read_manifest(self.directory, sequence)
                if step is not None and manifest["step"] != step:
                    continue
                arrays, signatures = _read(self.directory, manifest)
            except BrokenCheckpoint as problem:
                self.damaged = True
                problems.append(str(problem))
                continue
            for text in problems:
                logger.warning("%s; falling back to an older checkpoint", text)
            return manifest, arrays, signatures
        wanted = "checkpoint" if step is None else f"checkpoint of iteration {step}"
        if problems:
            raise NoGoodCheckpoint(f"no good {wanted} in {self.directory}: {'; '.join(problems)}")
        raise NoGoodCheckpoint(f"there is no {wanted} in {self.directory}")

    def _adopt(self, newest: Manifest) -> None:
        """Continue from a restored checkpoint: it and good older ones are kept, newer ones are not."""
        self._keep_found(newest["sequence"])
        assert self._kept is not None
        # after damage the next checkpoint is written in full: it must not build on unread files
        before = [m for m in self._kept if m["sequence"] == newest.get("previous") and not self.damaged]
        self._history = [*before, newest]
        self._kept = [*self._kept, newest][-self.keep :]

    def _keep_found(self, before: int | None = None) -> None:
        """Keep the good checkpoints that are there (older than number `before`)."""
        self._kept = []
        for sequence in sequences(self.directory):
            if before is None or sequence < before:
                try:
                    self._kept.append(read_manifest(self.directory, sequence))
                except BrokenCheckpoint as problem:
                    logger.debug("%s", problem)
                    self.damaged = True

    def _base(self) -> Manifest | None:
        """The checkpoint whose files the next one may use: not those of the one just before it."""
        if self.keep == 1:
            return self._history[-1] if self._history else None
        return self._history[-2] if len(self._history) == 2 else None

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the checkpoint directory {self.directory}: {error}") from error

    def _commit(self, manifest: Manifest, rows: DataFile, arrays: DataFile) -> None:
        try:
            rows.write()
            arrays.write()
            sync_directory(self.directory)  # the files' names, before anything refers to them
            write_manifest(self.directory, manifest)
            read_manifest(self.directory, manifest["sequence"])
        except (OSError, BrokenCheckpoint) as error:
            # the manifest first, should it have been renamed already: it must not outlive its files
            for path in (manifest_path(self.directory, manifest["sequence"]), rows.path, arrays.path):
                path.unlink(missing_ok=True)
            what = error.strerror if isinstance(error, OSError) else f"read back, {error}"
            raise UserError(f"cannot write a checkpoint to {self.directory}: {what}") from error
        self._kept = [*(self._kept or []), manifest][-self.keep :]
        self._history = [*self._history, manifest][-2:]
        self._collect(self._kept)

    def _collect(self, kept: list[Manifest]) -> None:
        """Delete our files that no kept checkpoint needs, leftovers of crashes included."""
        needed = {name for manifest in kept for name in manifest["files"]}
        needed |= {manifest_path(self.directory, m["sequence"]).name for m in kept}
        unneeded = [p for p in self.directory.iterdir() if OURS.fullmatch(p.name) and p.name not in needed]
        # manifests first: a crash here must not leave one whose files are gone
        for path in sorted(unneeded, key=lambda p: p.suffix != ".manifest"):
            if self.damaged:
                (self.directory / DAMAGED).mkdir(exist_ok=True)
                os.replace(path, self.directory / DAMAGED / path.name)
            else:
                path.unlink(missing_ok=True)
        self.damaged = False


def _read(directory: Path, manifest: Manifest) -> tuple[dict[str, np.ndarray], dict[str, Signature]]:
    """All leaves by path, those of rings too, and their signatures."""
    with PieceReader(directory) as reader:
        arrays = read_arrays(manifest, reader)
        signatures = {
            path: Signature(tuple(entry["shape"]), entry["dtype"], entry["key"])
            for path, entry in manifest["leaves"].items()
        }
        for path, entry in manifest["rings"].items():
            leaves, written = read_ring(entry, reader)
            arrays[f"{path}.written"] = written
            signatures[f"{path}.written"] = Signature(written.shape, written.dtype.name, None)
            for name, array in leaves.items():
                shape, dtype, key = entry["leaves"][name]
                arrays[f"{path}.data{name}"] = array
                signatures[f"{path}.data{name}"] = Signature(tuple(shape), dtype, key)
    return arrays, signatures
