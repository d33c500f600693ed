"""Verifying checkpoints of one and many ranks, and refusing to begin anew where something was saved."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl_hpc.checkpoint import blocks
from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.checkpoint.sharded import ShardedCheckpointer
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runs.verify import refuse_unreadable, verify_run
from tests.checkpoint.checkpoint_state import state_at
from tests.checkpoint.test_checkpoint_faults import flip
from tests.checkpoint.test_checkpointer import assert_same


@pytest.fixture(autouse=True)
def no_sync(monkeypatch) -> None:
    monkeypatch.setattr(blocks.os, "fsync", lambda handle: None)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.open(tmp_path / "run", resume=False)
    made.write_config({"agent": {"name": "dqn"}})
    return made


def save_plain(run: RunDirectory, steps: int = 4) -> None:
    checkpointer = Checkpointer(run.checkpoints)
    for step in range(1, steps + 1):
        checkpointer.save(step, state_at(step), {})


SHARED = {"params": np.arange(3.0)}


def sharded(run: RunDirectory, keep: int = 2) -> ShardedCheckpointer:
    return ShardedCheckpointer(run.checkpoints, [0, 1], Ranks(), keep)


def save_sharded(run: RunDirectory, steps: int = 4, actors: bool = False) -> None:
    store = sharded(run)
    snapshots = [Checkpointer(run.checkpoints / f"actors-{n:04d}", 3) for n in range(2)]
    for step in range(1, steps + 1):
        for snapshot in snapshots if actors else ():
            snapshot.save(step, {"x": np.arange(step)}, {})
        store.save(step, SHARED, {0: state_at(step), 1: state_at(step + 7)}, {"iterations": step})


def newest(folder: Path, suffix: str) -> Path:
    return sorted(folder.glob(f"*.{suffix}"))[-1]


def test_good_and_damaged_plain_checkpoints(run: RunDirectory) -> None:
    assert verify_run(run.path) == []
    save_plain(run)
    assert [(v.step, v.good) for v in verify_run(run.path)] == [(4, True), (3, True)]
    flip(newest(run.checkpoints, "arrays"))
    first, second = verify_run(run.path)
    assert (first.step, first.good, second.good) == (4, False, True)
    assert (
        str(newest(run.checkpoints, "arrays")) in first.problems[0] and "wrong checksum" in first.problems[0]
    )
    newest(run.checkpoints, "manifest").write_bytes(b"{")
    assert [(v.step, v.good) for v in verify_run(run.path)] == [(None, False), (3, True)]


@pytest.mark.parametrize("name", ["shared", "shard-0001", "actors-0001"])
def test_every_part_of_a_sharded_checkpoint_counts(run: RunDirectory, name: str) -> None:
    save_sharded(run, actors=True)
    assert [(v.step, v.good) for v in verify_run(run.path)] == [(4, True), (3, True)]
    flip(newest(run.checkpoints / name, "arrays"))
    assert [(v.step, v.good) for v in verify_run(run.path)] == [(4, False), (3, True)]
    for path in (run.checkpoints / name).iterdir():
        path.unlink()
    assert not any(v.good for v in verify_run(run.path))


def test_actors_whose_folder_is_gone_are_missed(run: RunDirectory) -> None:
    """As ActorLearnerStore saves."""
    Checkpointer(run.checkpoints / "actors-0000", 3).save(1, {"x": np.arange(2)}, {})
    store = ShardedCheckpointer(run.checkpoints, [0], Ranks(), 2)
    store.save(1, SHARED, {0: state_at(1)}, {"actors": True})
    assert [v.good for v in verify_run(run.path)] == [True]
    shutil.rmtree(run.checkpoints / "actors-0000")
    (verdict,) = verify_run(run.path)
    assert not verdict.good and "actors-0000 has nothing of iteration 1" in verdict.problems[0]


def test_verifying_needs_no_jax(run: RunDirectory) -> None:
    save_plain(run, 1)
    code = (
        "import sys; from jaxrl_hpc.cli.main import main\n"
        f"assert main(['verify', {str(run.path)!r}]) == 0\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_sharded_store_falls_back_together_and_says_so(run: RunDirectory, caplog) -> None:
    save_sharded(run)
    damaged = newest(run.checkpoints / "shard-0001", "arrays")
    flip(damaged)
    store = sharded(run)
    with caplog.at_level(logging.WARNING):
        step, _, parts, _ = store.restore(SHARED, state_at(0))
    assert step == 3 and str(damaged) in caplog.text and "falling back to an older" in caplog.text
    assert_same(parts[1], state_at(10))
    store.save(4, SHARED, {0: state_at(4), 1: state_at(11)}, {})
    assert (damaged.parent / "damaged" / damaged.name).exists()
    assert [(v.step, v.good) for v in verify_run(run.path)] == [(4, True), (3, True)]


def test_what_else_belongs_to_a_step_decides_too(run: RunDirectory) -> None:
    save_sharded(run)

    def also(step: int) -> None:
        if step == 4:
            raise UserError("no snapshot of step 4")

    assert sharded(run).restore(SHARED, state_at(0), also=also)[0] == 3


def test_a_lost_part_is_damage_and_a_new_one_is_not(run: RunDirectory) -> None:
    save_sharded(run)
    more = ShardedCheckpointer(run.checkpoints, [0, 1, 2], Ranks(), 2)
    assert more.restore(SHARED, state_at(0), new_parts=True)[2][2] is None
    for path in (run.checkpoints / "shard-0001").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="shard-0001"):
        more.restore(SHARED, state_at(0), new_parts=True)


def remove(run: RunDirectory, pattern: str) -> None:
    for path in run.checkpoints.glob(pattern):
        path.unlink()


def cut(run: RunDirectory, pattern: str) -> None:
    for path in run.checkpoints.glob(pattern):
        path.write_bytes(path.read_bytes()[:20])


@pytest.mark.parametrize(
    ("save", "damage", "pattern", "words"),
    [
        (save_plain, remove, "*.manifest", "no manifest"),
        (save_plain, cut, "*.manifest", "not a checkpoint manifest|cut short"),
        (save_plain, cut, "*.rows", "instead of"),
        (save_plain, remove, "*", "metrics has rows"),
        (save_sharded, remove, "shared/*.manifest", "no manifest"),
        (save_sharded, remove, "shared/*", "shared has no manifest"),
        (save_sharded, cut, "shared/*.arrays", "instead of"),
    ],
)
def test_a_run_that_saved_something_does_not_begin_anew(
    run: RunDirectory, save: Callable[..., None], damage: Callable[..., None], pattern: str, words: str
) -> None:
    save(run)
    run.metrics.mkdir()
    (run.metrics / "part-0000000000-0000000001.parquet").write_bytes(b"rows")
    damage(run, pattern)
    before = sorted(run.path.rglob("*"))
    with pytest.raises(UserError, match=words) as caught:
        refuse_unreadable(run)
    assert "--overwrite" in str(caught.value) and "jaxrl-hpc verify" in str(caught.value)
    assert sorted(run.path.rglob("*")) == before


def test_a_run_killed_before_or_in_its_first_save_begins_anew(run: RunDirectory) -> None:
    refuse_unreadable(run)
    run.begin_first_save()
    save_sharded(run, 1)
    remove(run, "shared/*")
    refuse_unreadable(run)
    run.end_first_save()
    with pytest.raises(UserError):
        refuse_unreadable(run)


def test_command(run: RunDirectory, capsys) -> None:
    from jaxrl_hpc.cli.main import main

    def verify() -> tuple[int, dict[str, Any]]:
        code = main(["verify", str(run.path), "--json"])
        return code, json.loads(capsys.readouterr().out)

    assert verify() == (1, {"newest_is_good": False, "checkpoints": []})
    save_plain(run)
    assert verify()[0] == 0
    older = sorted(run.checkpoints.glob("*.arrays"))[-2]
    flip(older)
    code, found = verify()
    assert code == 0 and [c["good"] for c in found["checkpoints"]] == [True, False]
    flip(newest(run.checkpoints, "arrays"))
    assert main(["verify", str(run.path)]) == 1
    assert "no checkpoint is good" in capsys.readouterr().out
    flip(older)
    assert main(["verify", str(run.path)]) == 1
    assert "continues from iteration 3" in capsys.readouterr().out
    assert main(["verify", str(run.path.parent)]) == 2
