"""Crashes while saving, and damaged or foreign files."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_hpc.checkpoint import blocks
from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.errors import UserError
from tests.checkpoint.checkpoint_state import state_at
from tests.checkpoint.test_checkpointer import assert_same

REPOSITORY = Path(__file__).parents[2]


def saved_run(directory: Path, steps: int = 5) -> None:
    checkpointer = Checkpointer(directory)
    for step in range(1, steps + 1):
        checkpointer.save(step, state_at(step), {"step": step})


def test_killed_at_random_moments_always_restores_a_whole_state(tmp_path: Path) -> None:
    """The script kills saving processes and compares what is restored with what the step determines."""
    script = Path(__file__).with_name("kill_while_saving.py")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, script, tmp_path / "c", "30"],
        env=environment,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    kills, in_save, last_step = map(int, done.stdout.split())
    assert kills == 30
    assert in_save >= 15  # between a save's begin and its end: those that killed themselves there, at least
    assert last_step > 30


def all_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "delete", "foreign"])
def test_damage_to_any_file_is_seen_and_the_previous_checkpoint_used(
    tmp_path: Path, damage: str, caplog
) -> None:
    """Two checkpoints in a row share no file: whichever is damaged, one of them is whole."""
    original = tmp_path / "original"
    saved_run(original)
    names = all_files(original)
    fell_back = 0
    for name in names:
        copy = tmp_path / f"{damage}-{name}"
        shutil.copytree(original, copy)
        content = bytearray((copy / name).read_bytes())
        if damage == "truncate":
            (copy / name).write_bytes(content[: len(content) // 2])
        elif damage == "empty":
            (copy / name).write_bytes(b"")
        elif damage == "delete":
            (copy / name).unlink()
        elif damage == "foreign":
            (copy / name).write_bytes(b"\x89PNG\r\n" + bytes(100))
        else:
            content[len(content) // 2] ^= 1
            (copy / name).write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            step, state, host = Checkpointer(copy).restore(state_at(0))
        assert step in (4, 5) and host == {"step": step}
        assert_same(state, state_at(step))
        if step == 4:
            fell_back += 1
            if not (damage == "delete" and name.endswith("manifest")):
                assert (
                    str(copy / name) in caplog.text and "falling back to an older checkpoint" in caplog.text
                )
    assert fell_back >= 2  # at least the newest manifest and its own arrays


def test_after_falling_back_saving_goes_on(tmp_path: Path) -> None:
    saved_run(tmp_path)
    newest = sorted(tmp_path.glob("*.manifest"))[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    checkpointer = Checkpointer(tmp_path)
    assert checkpointer.latest() == 4
    assert checkpointer.restore(state_at(0))[0] == 4
    for step in (5, 6):
        checkpointer.save(step, state_at(step), {})
        step_, state, _ = Checkpointer(tmp_path).restore(state_at(0))
        assert step_ == step
        assert_same(state, state_at(step))
    assert not newest.exists()
    assert (tmp_path / "damaged" / newest.name).exists()  # what cannot be read is not deleted
    assert Checkpointer(tmp_path).steps() == [5, 6]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "00000001.manifest.bak", "12.rows", "model.safetensors"):
        (tmp_path / name).write_text("mine")
    leftovers = ["00000007.rows", "00000008.manifest.123.tmp"]
    for name in leftovers:
        (tmp_path / name).write_text("a crash left this")
    saved_run(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "12.rows").read_text() == "mine"
    assert not any((tmp_path / name).exists() for name in leftovers)
    assert Checkpointer(tmp_path).restore(state_at(0))[0] == 5


def test_newer_format_is_named(tmp_path: Path) -> None:
    saved_run(tmp_path, 1)
    (manifest,) = tmp_path.glob("*.manifest")
    manifest.write_bytes(manifest.read_bytes().replace(b'"version": 1', b'"version": 9'))
    with pytest.raises(UserError, match=r"manifest has format version 9, this program reads 1"):
        Checkpointer(tmp_path).restore(state_at(0))


@pytest.mark.parametrize("point", range(6))
def test_full_disk_at_every_sync_leaves_the_previous_one(tmp_path: Path, point: int, monkeypatch) -> None:
    """A save syncs rows, arrays, names, manifest, names: the disk fills up at one of them."""
    saved_run(tmp_path)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.restore(state_at(0))
    calls = iter(range(100))
    sync = os.fsync

    def failing(handle: int) -> None:
        if next(calls) == point:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(blocks.os, "fsync", failing)
    if point < 5:
        with pytest.raises(UserError, match="No space left on device"):
            checkpointer.save(6, state_at(6), {})
    else:
        checkpointer.save(6, state_at(6), {})
    monkeypatch.undo()
    assert Checkpointer(tmp_path).steps() == ([4, 5] if point < 5 else [5, 6])
    step, state, _ = Checkpointer(tmp_path).restore(state_at(0))
    assert step == (5 if point < 5 else 6)
    assert_same(state, state_at(step))
    checkpointer.save(7, state_at(7), {})
    assert_same(Checkpointer(tmp_path).restore(state_at(0))[1], state_at(7))


def flip(path: Path, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def test_after_damage_nothing_is_built_on_files_that_nobody_read(tmp_path: Path) -> None:
    """The damaged file is needed by several checkpoints; two saves later none of them does."""
    saved_run(tmp_path)
    newest = json.loads(sorted(tmp_path.glob("*.manifest"))[-1].read_bytes().splitlines()[1])
    shared = min(name for name in newest["files"] if name.endswith(".rows"))
    flip(tmp_path / shared)
    checkpointer = Checkpointer(tmp_path)
    assert checkpointer.restore(state_at(0))[0] == 4
    for step in (5, 6):
        checkpointer.save(step, state_at(step), {})
    assert not (tmp_path / shared).exists() and (tmp_path / "damaged" / shared).exists()
    for step in (5, 6):
        assert_same(Checkpointer(tmp_path).restore(state_at(0), step)[1], state_at(step))


def test_a_write_that_does_not_read_back_is_refused(tmp_path: Path, monkeypatch) -> None:
    saved_run(tmp_path, 2)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.restore(state_at(0))
    advise = os.posix_fadvise

    def spoil(handle: int, *arguments: int) -> None:
        """A disk that keeps something else than it was given."""
        advise(handle, *arguments)
        os.pwrite(handle, b"\xff", 0)

    monkeypatch.setattr(blocks.os, "posix_fadvise", spoil)
    with pytest.raises(UserError, match=r"cannot write a checkpoint to .*: read back, .*wrong checksum"):
        checkpointer.save(3, state_at(3), {})
    monkeypatch.undo()
    assert Checkpointer(tmp_path).restore(state_at(0))[0] == 2
    checkpointer.save(3, state_at(3), {})
    assert_same(Checkpointer(tmp_path).restore(state_at(0))[1], state_at(3))


def test_loading_leaves_keeps_the_loaded_checkpoint(tmp_path: Path) -> None:
    """A store that loads leaves by path and goes on must not delete what it loaded before it is told to."""
    saved_run(tmp_path)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.load()
    checkpointer.save(6, state_at(6), {})
    assert Checkpointer(tmp_path).steps() == [5, 6]


def test_a_new_writer_keeps_the_checkpoints_that_are_there(tmp_path: Path) -> None:
    saved_run(tmp_path)
    Checkpointer(tmp_path).save(6, state_at(6), {})
    assert Checkpointer(tmp_path).steps() == [5, 6]
    assert_same(Checkpointer(tmp_path).restore(state_at(0), 5)[1], state_at(5))


def test_a_checkpoint_that_is_no_ancestor_is_not_built_on(tmp_path: Path) -> None:
    """A crash can leave a checkpoint of a branch that was given up between two of the present one."""
    checkpointer = Checkpointer(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpointer.save(step, state_at(step), {})
    given_up = {path.name: path.read_bytes() for path in tmp_path.glob("00000002.*")}
    checkpointer = Checkpointer(tmp_path, keep=3)
    checkpointer.restore(state_at(0), step=2)
    other = state_at(3)
    other["seed0"]["replay"].data["obs"][74:111] += 1  # other new rows than those of the branch
    checkpointer.save(3, other, {})
    for name, content in given_up.items():
        (tmp_path / name).write_bytes(content)
    checkpointer = Checkpointer(tmp_path, keep=3)
    checkpointer.restore(state_at(0))
    checkpointer.save(3, other, {})
    assert_same(Checkpointer(tmp_path).restore(state_at(0))[1], other)
