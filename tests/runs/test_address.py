"""The learner's address: readable by its owner only, whole, and believed only if it is."""

import json
import os
import stat

import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs import address, files


def write(folder, token="t"):
    address.write_own(folder, 4321, "key", token)
    return folder / address.NAME


def test_it_is_the_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        path = write(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == [address.NAME], "nothing else is left"
    found = address.read(tmp_path)
    assert (found.port, found.public_key, found.token, found.pid) == (4321, "key", "t", os.getpid())
    assert found.where()[0] == "127.0.0.1" and f"process {os.getpid()} on" in str(found)
    assert files.KNOWN.fullmatch(address.NAME) and files.KNOWN.fullmatch(f"{address.NAME}.17.tmp")
    assert len({address.new_token() for _ in range(100)}) == 100


def test_elsewhere_the_learners_names_are_tried(tmp_path):
    write(tmp_path)
    there = address.read(tmp_path)._replace(host="elsewhere", hosts=("elsewhere", "10.0.0.7"))
    assert there.where() == ("elsewhere", "10.0.0.7")


def test_only_its_own_is_taken_away(tmp_path):
    path = write(tmp_path, "first")
    write(tmp_path, "second")
    address.remove(tmp_path, "first")
    assert path.exists()
    address.remove(tmp_path, "second")
    assert address.read(tmp_path) is None
    address.remove(tmp_path, "second")


def test_one_that_cannot_be_read_keeps_no_run_from_ending(tmp_path):
    path = write(tmp_path, "first")
    path.chmod(0o640)
    address.remove(tmp_path, "first")
    path.write_text("{")
    path.chmod(0o600)
    address.remove(tmp_path, "first")
    assert path.exists(), "it may be a later learner's"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_one_that_others_may_know_is_refused(tmp_path, mode):
    write(tmp_path).chmod(mode)
    with pytest.raises(UserError, match=f"is not yours alone .* mode {mode:o}"):
        address.read(tmp_path)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / address.NAME).symlink_to(write(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="it is a link"):
        address.read(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_owners_is_refused(tmp_path):
    os.chown(write(tmp_path), 12345, -1)
    with pytest.raises(UserError, match=r"is not yours alone \(owner 12345"):
        address.read(tmp_path)


GOOD = {"hosts": ["h"], "port": 1, "public_key": "k", "token": "t", "host": "h", "pid": 1}


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "[" * 50_000]
    + [
        json.dumps(GOOD | change)
        for change in (
            {"port": 0},
            {"port": "1"},
            {"port": True},
            {"port": 1.5},
            {"token": 7},
            {"hosts": 3},
            {"hosts": "h"},
            {"pid": "1"},
            {"x": 1},
            {"host": "h" * 300},
            {"hosts": ["h\udc00"]},
        )
    ],
)
def test_a_damaged_one(tmp_path, content):
    path = tmp_path / address.NAME
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(UserError, match="is damaged: start the learner again"):
        address.read(tmp_path)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_one_that_is_no_file(tmp_path, make):
    make(tmp_path / address.NAME)
    with pytest.raises(UserError, match="it is not a file"):
        address.read(tmp_path)


def test_a_learner_ends_whatever_became_of_its_address(tmp_path, caplog):
    path = write(tmp_path, "t")
    path.write_text("{")
    address.remove(tmp_path, "t")
    assert path.read_text() == "{" and "is damaged" in caplog.text and "was not removed" in caplog.text
