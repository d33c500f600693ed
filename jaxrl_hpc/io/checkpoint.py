"""Checkpoints of a whole run: exact, atomic, and as cheap as what changed.

    checkpointer = Checkpointer(run / "checkpoints")
    checkpointer.save(step, state, {"env_steps": 4096, "metrics": writer.commit()})
    step, state, host = checkpointer.restore(jax.eval_shape(init, key))

`state` is any pytree of arrays, typed keys and scalars, usually a dict with one entry per seed, trial
or logical shard. Its structure is not stored, only leaves by path; `restore` takes it from `like`.

A directory holds, for save number N, `N.rows` (new replay rows, see rings.py), `N.arrays` (changed
blocks, see arrays.py) and `N.manifest`, which is renamed into place last and lists every file it
needs with checksums. Files that none of the `keep` newest checkpoints needs are deleted after each
commit. Whatever happens while saving, the checkpoint before it stays whole. Ranks of a job use one
directory each and agree on a step that all of them have (`restore(like, step=…)`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.io.arrays import plan_arrays, read_arrays
from jaxrl_hpc.io.blocks import BrokenCheckpoint, DataFile, PieceReader, sync_directory
from jaxrl_hpc.io.leaves import Signature, check_match, from_host, full_paths, split
from jaxrl_hpc.io.leaves import state_bytes as state_bytes
from jaxrl_hpc.io.manifest import OURS, Manifest, manifest_path, read_manifest, sequences, write_manifest
from jaxrl_hpc.io.rings import plan_ring, read_ring
from jaxrl_hpc.types import PyTree

logger = logging.getLogger(__name__)


class Saved(NamedTuple):
    """What a save did. With background=True the manifest's bytes are not yet known and left out."""

    step: int
    data_bytes: int  # written to data files
    seconds: float  # that the caller had to wait


class Checkpointer:
    """Saves to and restores from one directory. One writer per directory at a time."""

    def __init__(self, directory: str | Path, keep: int = 2, background: bool = False) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        self.directory = Path(directory)
        self.keep = keep
        self.background = background
        self._chain: list[Manifest] = []  # the newest good checkpoints, oldest first
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, step: int, state: PyTree, host: dict[str, Any]) -> Saved:
        """Write a checkpoint. When it returns, `state` may be donated or changed: it is on disk, or
        with background=True what changed of it has been copied. `host` must be JSON-able."""
        began = time.perf_counter()
        self.wait()
        self._make_directory()
        sequence = max(sequences(self.directory, "all"), default=-1) + 1
        rows = DataFile(self.directory / f"{sequence:08d}.rows", copy=self.background)
        arrays = DataFile(self.directory / f"{sequence:08d}.arrays", copy=self.background)
        base = self._chain[-1] if self._chain else None
        leaves, rings = split(state)
        ring_entries = {
            path: plan_ring(path, ring, base["rings"].get(path) if base else None, rows, arrays)
            for path, ring in rings.items()
        }
        array_entries, small = plan_arrays(leaves, base, arrays)
        manifest: Manifest = {"step": int(step), "sequence": sequence, "host": host}
        manifest |= {"leaves": array_entries, "rings": ring_entries, "small": small}
        sizes = (base["files"] if base else {}) | {file.path.name: file.size for file in (rows, arrays)}
        manifest["files"] = {name: sizes[name] for name in _needed(manifest)}
        if self.background:
            self._thread = threading.Thread(target=self._try_commit, args=(manifest, rows, arrays))
            self._thread.start()
        else:
            self._commit(manifest, rows, arrays)
        return Saved(int(step), rows.size + arrays.size, time.perf_counter() - began)

    def wait(self) -> None:
        """Until the background save is on disk; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def latest(self) -> int | None:
        """Step of the newest checkpoint with an intact manifest and files of the right size."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """Steps that can be restored as far as manifests and file sizes tell, oldest first."""
        self.wait()
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
        """The newest good checkpoint (or the one of `step`) as (step, state, host).

        `like` is a state, or ShapeDtypeStructs of one. Leaves are NumPy arrays that nobody else holds,
        and typed keys; `place`, e.g. jnp.array, is applied to each as it comes. A broken checkpoint
        is logged and the one before it used. UserError if there is none or the structure differs.
        """
        manifest, arrays, signatures = self._load(step)
        check_match(signatures, like, f"checkpoint of step {manifest['step']} in {self.directory}")
        paths, structure = full_paths(like)
        place = place or (lambda leaf: leaf)
        # pop: a placed leaf's host copy is freed before the next is placed
        state = [place(from_host(arrays.pop(path), signatures[path].key)) for path in paths]
        self._adopt(manifest)
        return manifest["step"], jax.tree.unflatten(structure, state), manifest["host"]

    def load(self, step: int | None = None) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """As restore, without a structure: leaves by path (jax.tree_util.keystr). For re-sharding."""
        manifest, arrays, signatures = self._load(step)
        leaves = {path: from_host(array, signatures[path].key) for path, array in arrays.items()}
        return manifest["step"], leaves, manifest["host"]

    def _load(self, step: int | None) -> tuple[Manifest, dict[str, np.ndarray], dict[str, Signature]]:
        self.wait()
        problems: list[str] = []
        for sequence in reversed(sequences(self.directory)):
            try:
                manifest = read_manifest(self.directory, sequence)
                if step is not None and manifest["step"] != step:
                    continue
                arrays, signatures = _read(self.directory, manifest)
            except BrokenCheckpoint as problem:
                problems.append(str(problem))
                continue
            for text in problems:
                logger.warning("%s; using the checkpoint of step %d instead", text, manifest["step"])
            return manifest, arrays, signatures
        wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
        if problems:
            raise UserError(f"no good {wanted} in {self.directory}: {'; '.join(problems)}")
        raise UserError(f"there is no {wanted} in {self.directory}")

    def _adopt(self, newest: Manifest) -> None:
        """Continue from a restored checkpoint: it and good older ones are kept, newer ones are not."""
        self._chain = []
        for sequence in sequences(self.directory):
            if sequence < newest["sequence"]:
                try:
                    self._chain.append(read_manifest(self.directory, sequence))
                except BrokenCheckpoint as problem:
                    logger.debug("%s", problem)
        self._chain = [*self._chain, newest][-self.keep :]

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the checkpoint directory {self.directory}: {error}") from error

    def _try_commit(self, manifest: Manifest, rows: DataFile, arrays: DataFile) -> None:
        try:
            self._commit(manifest, rows, arrays)
        except BaseException as failure:  # handed to the caller by wait()
            self._failure = failure

    def _commit(self, manifest: Manifest, rows: DataFile, arrays: DataFile) -> None:
        try:
            rows.write()
            arrays.write()
            sync_directory(self.directory)  # the files' names, before anything refers to them
            write_manifest(self.directory, manifest)
        except OSError as error:
            # the manifest first, should it have been renamed already: it must not outlive its files
            for path in (manifest_path(self.directory, manifest["sequence"]), rows.path, arrays.path):
                path.unlink(missing_ok=True)
            raise UserError(f"cannot write a checkpoint to {self.directory}: {error.strerror}") from error
        self._chain = [*self._chain, manifest][-self.keep :]
        self._collect()

    def _collect(self) -> None:
        """Delete our files that no kept checkpoint needs, leftovers of crashes included."""
        needed = {name for manifest in self._chain for name in manifest["files"]}
        needed |= {manifest_path(self.directory, m["sequence"]).name for m in self._chain}
        unneeded = [p for p in self.directory.iterdir() if OURS.fullmatch(p.name) and p.name not in needed]
        # manifests first: a crash here must not leave one whose files are gone
        for path in sorted(unneeded, key=lambda p: p.suffix != ".manifest"):
            path.unlink(missing_ok=True)


def _needed(manifest: Manifest) -> list[str]:
    """Names of the data files that a manifest refers to."""
    pieces = [manifest["small"]]
    pieces += [piece for entry in manifest["leaves"].values() for piece in entry.get("blocks", ())]
    for ring in manifest["rings"].values():
        for lane in ring["lanes"]:
            pieces += [segment[2] for segment in lane["segments"]]
            pieces += [lane["blank"]] if lane["blank"] else []
    return sorted({piece[0] for piece in pieces})


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
