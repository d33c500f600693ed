"""Folders that hold no policy, or a damaged one: loading raises one exception type."""

import json

import numpy as np
import pytest

from jaxrl_hpc.export import loader

METADATA = {
    "format": loader.FORMAT,
    "version": loader.VERSION,
    "env": "CartPole-v1",
    "agent": "dqn",
    "observation": {"shape": [4], "dtype": "float32"},
    "programs": {"greedy": {"file": "greedy.bin", "weights": ["w"], "carry": []}},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "metadata.json").write_text(json.dumps(METADATA))
    np.savez(tmp_path / "weights.npz", **{"weights/w": np.zeros(3)})
    (tmp_path / "greedy.bin").write_bytes(b"no program")
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [{}, {"version": "new"}, {"version": None}, {"programs": 5}, {"programs": {"greedy": None}},
     {"observation": {}}, {"observation": {"shape": 4, "dtype": "what"}}, {"env": None, "programs": {}}],
)  # fmt: skip
def test_metadata(change, folder):
    (folder / "metadata.json").write_text(json.dumps(METADATA | change))
    with pytest.raises(loader.PolicyError, match=str(folder)):
        loader.load(folder)


def test_a_program_with_a_wrong_bit(folder):
    programs = {"greedy": METADATA["programs"]["greedy"] | {"sha256": "0" * 64}}
    (folder / "metadata.json").write_text(json.dumps(METADATA | {"programs": programs}))
    with pytest.raises(loader.PolicyError, match=r"checksum of greedy\.bin is wrong"):
        loader.load(folder)


@pytest.mark.parametrize("name", ["metadata.json", "weights.npz"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 10_000, b"PK\x03\x04" + b"\0" * 40, b"[]"])
def test_files(name, content, folder):
    (folder / name).write_bytes(content)
    with pytest.raises(loader.PolicyError, match=str(folder)):
        loader.load(folder)
