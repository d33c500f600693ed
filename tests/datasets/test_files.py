"""Datasets as files: what is written comes back, and whatever is wrong is one sentence."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxrl_hpc import datasets
from jaxrl_hpc.datasets import hdf5, parquet
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import EnvSpec
from tests.datasets.made import counting

ONE = np.ones(1, np.float32)
SPEC = EnvSpec("counter", (2,), np.dtype(np.float32), None, (1,), -ONE, ONE, 5)
ABOUT = {"env": {"name": "counter"}}


@pytest.fixture
def path(tmp_path):
    parquet.write(tmp_path / "file.parquet", counting(20, 5), SPEC, ABOUT)
    return tmp_path / "file.parquet"


def rewritten(path, change) -> None:
    table = change(pq.read_table(path))
    pq.write_table(table, path)


def test_what_is_written_comes_back(path) -> None:
    columns, found = counting(20, 5), datasets.open_dataset(path)
    np.testing.assert_array_equal(found.data.obs, columns.obs)
    np.testing.assert_array_equal(found.data.next_obs, columns.next_obs)
    np.testing.assert_array_equal(found.data.reward, columns.reward)
    np.testing.assert_array_equal(found.data.discount, 1.0 - columns.terminated)
    np.testing.assert_array_equal(np.flatnonzero(found.data.last), [4, 9, 14, 19])
    np.testing.assert_array_equal(np.flatnonzero(found.first), [0, 5, 10, 15])
    assert found.spec._replace(action_low=None, action_high=None) == SPEC._replace(
        action_low=None, action_high=None
    )
    assert found.recorded_in == "counter"
    datasets.check_fits(found, SPEC)
    scores = datasets.behaviour(found)
    assert scores == {"episodes": 4.0, "return": columns.reward.sum() / 4}


def test_consecutive_rows_give_next_observations(path) -> None:
    """Terminated ends stay (nothing follows them), cut ones go: what they led to is not known."""
    rewritten(path, lambda t: t.drop_columns(["next_observation"]))
    found = datasets.open_dataset(path)
    kept = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18]
    np.testing.assert_array_equal(found.data.reward, kept)
    np.testing.assert_array_equal(found.data.reward[found.data.last], [4, 8, 14, 18])
    inside = found.data.discount == 1
    np.testing.assert_array_equal(found.data.next_obs[inside], found.data.obs[inside] + np.array([1, -1]))
    np.testing.assert_array_equal(found.data.reward[found.first], [0, 5, 10, 15])


def test_files_without_a_description_describe_themselves(path) -> None:
    rewritten(path, lambda t: t.replace_schema_metadata(None))
    found = datasets.open_dataset(path)
    assert (found.spec.obs_shape, found.spec.action_shape, found.spec.max_episode_steps) == ((2,), (1,), 5)
    assert not found.spec.discrete and found.spec.action_low == -1


def replaced(name, values):
    return lambda t: t.set_column(t.column_names.index(name), name, values)


NAN = pa.array([[0.0, 0.0]] * 3 + [[np.nan, 0.0]] + [[0.0, 0.0]] * 16, pa.list_(pa.float32(), 2))
WRONG = {
    "missing": (lambda t: t.drop_columns(["reward"]), "missing column reward"),
    "no episodes": (
        lambda t: t.drop_columns(["episode", "next_observation"]),
        r"missing column episode \(or next_observation\)",
    ),
    "nan": (replaced("observation", NAN), "obs is not a finite number in row 3"),
    "null": (replaced("reward", pa.array([None] * 20, pa.float32())), "column reward has 20 empty entries"),
    "text": (replaced("reward", pa.array(["a"] * 20)), "reward holds string, not numbers"),
    "ragged": (
        replaced("action", pa.array([[0.0]] * 19 + [[0.0, 1.0]])),
        "column action has lists of different lengths",
    ),
    "shape": (replaced("observation", pa.array([[0.0]] * 20)), "1 numbers per row, its shape is"),
    "empty": (lambda t: t.slice(0, 0), "it has no rows"),
    "format": (
        lambda t: t.replace_schema_metadata({parquet.KEY: json.dumps({"format": 9})}),
        "it has format 9",
    ),
    "damaged": (lambda t: t.replace_schema_metadata({parquet.KEY: b"{"}), "its description .* is damaged"),
    "damaged spec": (
        lambda t: t.replace_schema_metadata({parquet.KEY: json.dumps({"format": 1, "spec": {"name": 3}})}),
        r"its description .* is damaged \(spec.name: Input should be a valid string",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_files_are_one_sentence(kind, path) -> None:
    change, message = WRONG[kind]
    rewritten(path, change)
    with pytest.raises(UserError, match=message) as caught:
        datasets.open_dataset(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["file.parquet", "file.hdf5"])
@pytest.mark.parametrize("content", ["", "cut", "text", "absent"])
def test_files_that_are_none_are_one_sentence(name, content, path) -> None:
    if name.endswith("hdf5"):
        pytest.importorskip("h5py")
    bad = path.parent / ("bad." + name.split(".")[1])
    if content != "absent":
        bad.write_bytes({"": b"", "cut": path.read_bytes()[:-40], "text": b"hello " * 20}[content])
    with pytest.raises(UserError, match=r"no such file|not a readable") as caught:
        datasets.open_dataset(bad)
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_is_found(path) -> None:
    rows = pq.ParquetFile(path).metadata.row_group(0)
    columns = [rows.column(number) for number in range(rows.num_columns)]
    for column in columns:
        start = column.dictionary_page_offset or column.data_page_offset
        content = bytearray(path.read_bytes())
        content[start + column.total_compressed_size - 1] ^= 1
        bad = path.with_name("bad.parquet")
        bad.write_bytes(content)
        with pytest.raises(UserError, match="it is not a readable Parquet file"):
            datasets.open_dataset(bad)


def test_a_file_that_cannot_be_written_is_one_sentence_and_leaves_nothing(path) -> None:
    target = path.parent / "folder.parquet"
    target.mkdir()
    for wrong in (target, path.parent / "none" / "a.parquet"):
        with pytest.raises(UserError, match=f"^cannot write {wrong}: ") as caught:
            parquet.write(wrong, counting(20, 5), SPEC, ABOUT)
        assert "\n" not in str(caught.value)
    assert sorted(p.name for p in path.parent.iterdir()) == ["file.parquet", "folder.parquet"]


FOREIGN = {
    "other env": (SPEC._replace(name="Pendulum-v1"), "recorded in counter, but the config's env is Pendulum"),
    "observations": (
        SPEC._replace(obs_shape=(3,)),
        r"observations have shape \(2,\), but counter has \(3,\)",
    ),
    "kind": (SPEC._replace(num_actions=3), "actions are continuous, but those of counter are discrete"),
    "actions": (SPEC._replace(action_shape=(2,)), "actions have shape"),
    "bounds": (SPEC._replace(action_high=ONE / 4), "beyond the bounds of counter"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_datasets_of_other_environments_are_refused(kind, path) -> None:
    spec, message = FOREIGN[kind]
    with pytest.raises(UserError, match=message):
        datasets.check_fits(datasets.open_dataset(path), spec)


def test_discrete_actions_beyond_the_environments_are_refused(tmp_path) -> None:
    columns = counting(20, 5)._replace(action=np.arange(20, dtype=np.int32))
    spec = SPEC._replace(num_actions=20, action_shape=(), action_low=None, action_high=None)
    parquet.write(tmp_path / "a.parquet", columns, spec, ABOUT)
    found = datasets.open_dataset(tmp_path / "a.parquet")
    datasets.check_fits(found, spec)
    with pytest.raises(UserError, match="actions go from 0 to 19, but those of counter from 0 to 2"):
        datasets.check_fits(found, spec._replace(num_actions=3))


def test_d4rl_files_are_read(tmp_path) -> None:
    h5py = pytest.importorskip("h5py")
    columns = counting(20, 5)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        for name, value in zip(names, columns, strict=False):
            file[name] = value
        file["infos/qpos"] = columns.obs
    found = datasets.open_dataset(tmp_path / "a.hdf5")
    assert found.rows == 18  # the two cut ends have no next observation
    np.testing.assert_array_equal(found.data.reward[found.first], [0, 5, 10, 15])
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["next_observations"] = columns.next_obs
        del file["timeouts"]
    found = datasets.open_dataset(tmp_path / "a.hdf5")
    assert found.rows == 20 and (found.data.next_obs == columns.next_obs).all()
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["rewards"]
    with pytest.raises(UserError, match="it has no rewards; the layouts of D4RL and Minari are read"):
        datasets.open_dataset(tmp_path / "a.hdf5")


def test_minari_files_are_read(tmp_path, monkeypatch) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.setenv(hdf5.MINARI_FOLDER, str(tmp_path))
    folder = tmp_path / "counter" / "v0" / "data"
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text(json.dumps({"env_spec": json.dumps({"id": "counter"})}))
    columns = counting(60, 5)
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number in range(12):  # episode_10 comes after episode_9
            rows = slice(5 * number, 5 * number + 5)
            group = file.create_group(f"episode_{number}")
            group["observations"] = np.concatenate([columns.obs[rows], columns.next_obs[rows][-1:]])
            group["actions"], group["rewards"] = columns.action[rows], columns.reward[rows]
            group["terminations"], group["truncations"] = columns.terminated[rows], columns.truncated[rows]
    found = datasets.open_dataset("minari:counter/v0")
    np.testing.assert_array_equal(found.data.reward, columns.reward)
    np.testing.assert_array_equal(found.data.discount, 1.0 - columns.terminated)
    np.testing.assert_array_equal(found.data.next_obs[4::5], columns.next_obs[4::5])
    assert found.recorded_in == "counter"
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_3/observations"]
        file["episode_3/observations"] = columns.obs[:3]
    with pytest.raises(
        UserError, match=r"of episode_3 have different numbers of steps \(observations 2, actions 5"
    ):
        datasets.open_dataset("minari:counter/v0")
    with pytest.raises(UserError, match="no such file"):
        datasets.open_dataset("minari:nothing")
