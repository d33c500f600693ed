"""Shared memory of killed jobs is removed; what a process maps, others own or a job has just made is not."""

import mmap
import os
import time

from jaxrl_hpc.comm.leftovers import describe, leftovers, remove_leftovers


def segment(folder, name, age=3600.0):
    path = folder / name
    path.write_bytes(b"\0" * 4096)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_only_what_nobody_maps(tmp_path):
    mapped, left = segment(tmp_path, "mpich_shm_1_0"), segment(tmp_path, "mpich_shm_2_0")
    young, other = segment(tmp_path, "mpich_shm_3_0", age=0.0), segment(tmp_path, "psm_2")
    (tmp_path / "mpich_shm_4_0").symlink_to(other)
    with open(mapped, "r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert [found.path for found in leftovers(tmp_path)] == [left]
        removed = remove_leftovers(tmp_path)
        assert describe(removed) == "1 segment of 0.0 MB"
    assert not left.exists() and mapped.exists() and young.exists() and other.exists()
    assert [found.path for found in remove_leftovers(tmp_path)] == [mapped]  # no longer mapped


def test_what_cannot_be_told_is_left(tmp_path):
    segment(tmp_path, "mpich_shm_1_0")
    assert leftovers(tmp_path, proc=tmp_path / "none") == []
    assert leftovers(tmp_path / "none") == []


def test_other_users_segments(tmp_path, monkeypatch):
    segment(tmp_path, "mpich_shm_1_0")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert leftovers(tmp_path) == []
