"""Crashes while saving, and damaged or foreign files."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.io import blocks
from jaxrl_hpc.io.checkpoint import Checkpointer
from tests.io.checkpoint_state import state_at
from tests.io.test_checkpoint import assert_same

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
    assert in_save >= 10  # moments between a save's begin and its end
    assert last_step > 30


def all_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "delete", "foreign"])
def test_damage_to_any_file_is_seen_and_the_previous_checkpoint_used(
    tmp_path: Path, damage: str, caplog
) -> None:
    """Files of the newest checkpoint alone lead back to the one before; shared ones to an error."""
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
        try:
            with caplog.at_level(logging.WARNING):
                step, state, host = Checkpointer(copy).restore(state_at(0))
        except UserError as error:
            assert str(copy / name) in str(error)
            continue
        assert step in (4, 5) and host == {"step": step}
        assert_same(state, state_at(step))
        if step == 4:
            fell_back += 1
            if not (damage == "delete" and name.endswith("manifest")):
                assert str(copy / name) in caplog.text and "step 4 instead" in caplog.text
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
