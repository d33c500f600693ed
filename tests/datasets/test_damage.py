"""Damaged files of recorded transitions: whatever is wrong with one is one sentence that names it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxrl_hpc import datasets
from jaxrl_hpc.datasets import hdf5, parquet
from jaxrl_hpc.errors import UserError
from tests.datasets.made import counting
from tests.datasets.test_files import ABOUT, SPEC

D4RL = ("observations", "actions", "rewards", "terminals", "timeouts")


def refusal(path: str | Path) -> str:
    """Of a file that cannot be read."""
    with pytest.raises(UserError) as caught:
        datasets.check_fits(datasets.open_dataset(path), SPEC)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text
    return text


# -- Parquet -----------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path):
    parquet.write(tmp_path / "file.parquet", counting(20, 5), SPEC, ABOUT)
    return tmp_path / "file.parquet"


def described(path: Path, change: Any) -> None:
    """Write the file anew with another description: text, or parts that replace those of the spec."""
    table = pq.read_table(path)
    if isinstance(change, dict):
        about = json.loads(table.schema.metadata[parquet.KEY])
        inside = change.pop("env", about["env"])
        change = json.dumps(about | {"env": inside, "spec": about["spec"] | change})
    pq.write_table(table.replace_schema_metadata({parquet.KEY: change}), path)


DESCRIPTIONS: dict[str, tuple[Any, str]] = {
    "env is a text": ({"env": "x"}, "env: Input should be an object"),
    "env is null": ({"env": None}, "env: Input should be an object"),
    "endless": ({"max_episode_steps": float("inf")}, "spec.max_episode_steps"),
    "no steps": ({"max_episode_steps": 0}, "spec.max_episode_steps"),
    "huge": ({"max_episode_steps": 2**40}, "should fit in 32 bits"),
    "objects": ({"obs_dtype": "O"}, "spec.obs_dtype"),
    "dates": ({"obs_dtype": "datetime64[s]"}, "spec.obs_dtype"),
    "negative shape": ({"obs_shape": [-1]}, "spec.obs_shape.0"),
    "bounds of another shape": ({"action_low": [-1.0, -1.0]}, "bounds of actions should have shape"),
    "ragged bounds": ({"action_low": [[1], [1, 2]]}, "damaged"),
    "bounds that are none": ({"action_high": None}, "bounds of actions should have shape"),
    "swapped bounds": ({"action_low": [2.0]}, "the lower ones first"),
    "discrete": ({"num_actions": 3}, "action_shape is not that of discrete actions"),
    "fractions": ({"num_actions": 3, "action_shape": []}, "1 numbers per row|discrete, but they hold float"),
    "bytes": ({"obs_dtype": "uint8"}, "observations hold float32, but should be uint8"),
    "nested": (b"[" * 100_000 + b"]" * 100_000, "damaged"),
    "nested env": (b'{"format": 1, "env": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "damaged"),
    "not text": (b'{"format": 1, "env": {"name": "\xff"}}', "damaged"),
    "a list": (b"[1]", "damaged"),
}


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_damaged_descriptions(kind, recorded) -> None:
    change, message = DESCRIPTIONS[kind]
    described(recorded, dict(change) if isinstance(change, dict) else change)
    text = refusal(recorded)
    assert any(part in text for part in message.split("|")), text


def test_actions_beyond_32_bits_do_not_wrap(recorded) -> None:
    columns = counting(20, 5)._replace(action=np.full(20, 2**32 + 1))
    spec = SPEC._replace(num_actions=3, action_shape=(), action_low=None, action_high=None)
    parquet.write(recorded, columns, spec, ABOUT)
    assert "actions go from 4294967297 to 4294967297" in refusal(recorded)


def test_numbers_beyond_float32_are_not_finite(recorded) -> None:
    reward = np.ones(20)
    reward[7] = 1e300
    parquet.write(recorded, counting(20, 5)._replace(reward=reward), SPEC, ABOUT)
    assert "reward is not a finite number in row 7" in refusal(recorded)


def test_columns_with_invalid_names(recorded) -> None:
    content = recorded.read_bytes().replace(b"next_observation", b"next_obs\xff\xfeation")
    recorded.write_bytes(content)
    refusal(recorded)


def test_a_few_bytes_that_stand_for_more_numbers_than_fit_are_not_decoded(recorded, monkeypatch) -> None:
    monkeypatch.setattr(datasets.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
    rows = 1_000_000
    columns = {name: pa.array(np.zeros(rows, np.float32)) for name in ("reward", "terminated", "truncated")}
    columns |= {name: pa.array(np.zeros(rows)) for name in ("observation", "action", "next_observation")}
    pq.write_table(pa.table(columns), recorded, compression="zstd")
    assert recorded.stat().st_size < 2**18
    assert "GiB of numbers, too many for the" in refusal(recorded)


@pytest.mark.parametrize("kind", ["parquet", "hdf5", "minari"])
def test_bits_and_bytes_that_are_wrong(kind, tmp_path) -> None:
    """What is damaged is refused, or was in a place that nothing is read from."""
    if kind != "parquet":
        pytest.importorskip("h5py")
    path = tmp_path / f"a.{'parquet' if kind == 'parquet' else 'hdf5'}"
    write = {"parquet": write_parquet, "hdf5": write_d4rl, "minari": write_episodes}[kind]
    write(path)
    content, dice, refused = path.read_bytes(), random.Random(7), 0
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(dice.choice((1, 3, 30))):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        try:
            datasets.check_fits(datasets.open_dataset(path), SPEC)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 20


# -- HDF5 --------------------------------------------------------------------------------------------------


def write_parquet(path: Path) -> None:
    parquet.write(path, counting(20, 5), SPEC, ABOUT)


def write_d4rl(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, value in zip(D4RL, counting(20, 5), strict=False):
            file[name] = value


def write_episodes(path: Path, number: int = 4) -> None:
    import h5py

    columns = counting(5 * number, 5)
    with h5py.File(path, "w") as file:
        for episode in range(number):
            rows, group = slice(5 * episode, 5 * episode + 5), file.create_group(f"episode_{episode}")
            group["observations"] = np.concatenate([columns.obs[rows], columns.next_obs[rows][-1:]])
            group["actions"], group["rewards"] = columns.action[rows], columns.reward[rows]
            group["terminations"], group["truncations"] = columns.terminated[rows], columns.truncated[rows]


def replace(file: Any, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


def dates(file: Any) -> None:
    import h5py

    replace(file, "rewards", np.zeros(20, "S8"))
    file["observations"].attrs["x"] = h5py.Empty("f")


def huge(file: Any) -> None:
    del file["observations"]
    file.create_dataset("observations", (20, 10**13), "f4", chunks=(1, 1000))


def long(file: Any) -> None:
    """It would be found to be wrong anyway, but only after 4 GB were read."""
    del file["observations"]
    file.create_dataset("observations", (10**9, 1), "f4", chunks=(10**6, 1))


def external_storage(file: Any) -> None:
    del file["rewards"]
    place = Path(file.filename).with_name("secret")
    file.create_dataset("rewards", (20,), "f4", external=[(str(place), 0, 80)])


def virtual(file: Any) -> None:
    import h5py

    del file["rewards"]
    layout = h5py.VirtualLayout(shape=(20,), dtype="f4")
    layout[:] = h5py.VirtualSource(str(Path(file.filename).with_name("other.hdf5")), "rewards", shape=(20,))
    file.create_virtual_dataset("rewards", layout)


def linked(file: Any) -> None:
    import h5py

    replace(file, "rewards", h5py.ExternalLink("other.hdf5", "rewards"))


def soft(file: Any) -> None:
    import h5py

    replace(file, "rewards", h5py.SoftLink("/observations"))


D4RL_FAULTS = {
    "scalar": (lambda file: replace(file, "rewards", 1.0), "rewards is not an array"),
    "another length": (
        lambda file: replace(file, "terminals", np.zeros(7, bool)),
        "(observations 20, actions 20, rewards 20, terminals 7, timeouts 20)",
    ),
    "two rewards": (lambda file: replace(file, "rewards", np.zeros((20, 2))), "rewards 40"),
    "observations": (
        lambda file: replace(file, "observations", np.zeros((7, 2))),
        "observations 7, actions 20",
    ),
    "no numbers": (lambda file: replace(file, "observations", np.zeros((20, 0))), "obs has no numbers"),
    "texts": (dates, "rewards holds |S8, not numbers"),
    "huge": (huge, "GiB of numbers, too many"),
    "long": (long, "arrays have different numbers of steps (observations 1,000,000,000, actions 20"),
    "external link": (linked, "rewards is a link; only numbers in the file itself are read"),
    "soft link": (soft, "rewards is a link"),
    "external storage": (external_storage, "rewards is kept in other files"),
    "virtual": (virtual, "rewards is kept in other files"),
}


@pytest.mark.parametrize("kind", D4RL_FAULTS)
def test_damaged_d4rl(kind, tmp_path) -> None:
    h5py = pytest.importorskip("h5py")
    path, other = tmp_path / "a.hdf5", tmp_path / "other.hdf5"
    write_d4rl(path)
    write_d4rl(other)  # links lead to something that could be read
    (tmp_path / "secret").write_bytes(bytes(80))
    change, message = D4RL_FAULTS[kind]
    with h5py.File(path, "a") as file:
        change(file)
    assert message in refusal(path)


def link_first_episode(file: Any) -> None:
    import h5py

    replace(file, "episode_0", h5py.ExternalLink("other.hdf5", "episode_0"))


MINARI_FAULTS = {
    "name": (lambda file: file.create_group("episode_x"), "'episode_x' is no name of an episode"),
    "an array": (lambda file: replace(file, "episode_1", np.zeros(3)), "/episode_1 is not a group"),
    "a part": (
        lambda file: replace(file, "episode_1/truncations", np.zeros(3)),
        "arrays of episode_1 have different numbers of steps",
    ),
    "no actions": (lambda file: file["episode_2"].pop("actions"), "it has no episode_2/actions"),
    "external link": (link_first_episode, "episode_0 is a link"),
}


@pytest.mark.parametrize("kind", MINARI_FAULTS)
def test_damaged_minari(kind, tmp_path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.hdf5"
    write_episodes(path)
    write_episodes(tmp_path / "other.hdf5")
    change, message = MINARI_FAULTS[kind]
    with h5py.File(path, "a") as file:
        change(file)
    assert message in refusal(path)


METADATA = {
    "not text": b"\xff\xfe",
    "cut": b'{"env_spec": "{',
    "a list": b"[1]",
    "no object": json.dumps({"env_spec": [1]}).encode(),
    "no json inside": json.dumps({"env_spec": "{"}).encode(),
    "a number": json.dumps({"env_spec": {"id": 5}}).encode(),
    "nested": b'{"env_spec": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested inside": json.dumps({"env_spec": "[" * 100_000}).encode(),
}


@pytest.mark.parametrize("kind", METADATA)
def test_damaged_metadata_of_minari(kind, tmp_path, monkeypatch) -> None:
    pytest.importorskip("h5py")
    monkeypatch.setenv(hdf5.MINARI_FOLDER, str(tmp_path))
    folder = tmp_path / "counter" / "data"
    folder.mkdir(parents=True)
    write_episodes(folder / "main_data.hdf5")
    assert datasets.open_dataset("minari:counter").recorded_in == "", "without metadata anything fits"
    (folder / "metadata.json").write_bytes(METADATA[kind])
    with pytest.raises(UserError) as caught:
        datasets.open_dataset("minari:counter")
    assert "metadata.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_extra_stays_one(monkeypatch, tmp_path) -> None:
    """It is not the file's fault."""
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError):
        datasets.open_dataset(tmp_path / "a.hdf5")
