"""Parquet metrics: each row once, whatever happens; TensorBoard event files."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from jaxrl_hpc.checkpoint import blocks
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics import parquet
from jaxrl_hpc.metrics.parquet import CORE_SCHEMA, MAX_PARTS, MetricsWriter, read_metrics, without_clock
from jaxrl_hpc.metrics.tensorboard import TensorBoardWriter


@pytest.fixture(autouse=True)
def no_sync(monkeypatch) -> None:
    monkeypatch.setattr(blocks.os, "fsync", lambda handle: None)


def row(point: int, seed: int = 0, kind: str = "train", **more):
    core = {"iteration": point, "env_steps": 10 * point, "updates": 2 * point, "seed": seed, "kind": kind}
    return {**core, "wall_seconds": 0.5 * point, **more}


def iterations(directory: Path) -> list[int]:
    return read_metrics(directory)["iteration"].to_pylist()


def test_rows_come_back_with_types_and_late_columns(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    assert read_metrics(tmp_path).schema == CORE_SCHEMA
    writer.append([row(0, loss=jnp.float32(0.1), count=np.int32(3)), row(0, 1, loss=2)])
    assert writer.commit() == {"rows": 2}
    writer.append(
        [row(1, kind="eval", episode_return=np.float64(0.1), count=2.5, nan=float("nan"), note="x")]
    )
    assert writer.commit() == {"rows": 3}
    table = read_metrics(tmp_path)
    assert table.column_names[:6] == list(CORE_SCHEMA.names)
    assert table["loss"].to_pylist() == [float(np.float32(0.1)), 2.0, None]
    assert table["count"].to_pylist() == [3.0, None, 2.5]  # a column that turned out not to be whole
    assert table["episode_return"].to_pylist() == [None, None, 0.1]
    assert np.isnan(table["nan"].to_pylist()[2]) and table["note"].to_pylist()[2] == "x"
    assert table["kind"].to_pylist() == ["train", "train", "eval"]


@pytest.mark.parametrize(
    ("bad", "message"), [({"seed": 0}, "lacks iteration"), (row(0, x=np.ones(2)), "scalar")]
)
def test_bad_rows_are_refused(tmp_path: Path, bad, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetricsWriter(tmp_path).append([bad])


def test_many_parts_are_merged_in_order(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for point in range(200):
        writer.append([row(point, **{f"column {point % 40}": point})])
        writer.flush()
        assert len(list((tmp_path / "metrics").iterdir())) <= MAX_PARTS
    assert iterations(tmp_path) == list(range(200))
    assert read_metrics(tmp_path)["column 3"].drop_null().to_pylist() == [3, 43, 83, 123, 163]


def test_parts_of_many_rows_are_not_merged(tmp_path: Path, monkeypatch) -> None:
    """Merging reads both parts: without a bound memory would grow with the length of the run."""
    monkeypatch.setattr(parquet, "WHOLE_ROWS", 8)
    writer = MetricsWriter(tmp_path)
    for point in range(300):
        writer.append([row(point)])
        writer.flush()
        assert all(part.rows < 2 * 8 for part in writer._parts)
        assert sum(part.rows < 8 for part in writer._parts) <= MAX_PARTS
    assert iterations(tmp_path) == list(range(300))


def test_kill_and_resume_never_loses_or_doubles_a_row(tmp_path: Path) -> None:
    """Kills between any two file operations, in random runs that go back to a remembered commit."""
    randomness = random.Random(1)
    commits = [(0, None)]  # (points that are part of it, token)
    for _ in range(30):
        writer = MetricsWriter(tmp_path)
        point, token = commits[-1] if randomness.random() < 0.7 else randomness.choice(commits[-3:])
        writer.restore(token)
        del commits[[c[0] for c in commits].index(point) + 1 :]
        assert iterations(tmp_path) == list(range(point))
        for _ in range(randomness.randrange(12)):
            writer.append([row(point)])
            point += 1
            if randomness.random() < 0.3:
                writer.flush()
            if randomness.random() < 0.4:
                commits.append((point, writer.commit()))
        seen = iterations(tmp_path)  # what is not flushed is lost with the process
        assert seen == list(range(len(seen))) and len(seen) >= commits[-1][0]


@pytest.mark.parametrize("failing", ["replace", "unlink"])
def test_crash_inside_a_merge(tmp_path: Path, failing: str, monkeypatch) -> None:
    writer = MetricsWriter(tmp_path)
    for point in range(MAX_PARTS):
        writer.append([row(point)])
        writer.flush()
    writer.append([row(MAX_PARTS)])
    with monkeypatch.context() as patch:
        if failing == "unlink":
            patch.setattr(Path, "unlink", lambda self: 1 / 0)
        else:
            count = iter(range(10))
            replace = blocks.os.replace
            patch.setattr(blocks.os, "replace", lambda a, b: 1 / 0 if next(count) else replace(a, b))
        with pytest.raises(ZeroDivisionError):
            writer.flush()
    assert iterations(tmp_path) == list(range(MAX_PARTS + 1))
    writer = MetricsWriter(tmp_path)
    writer.restore({"rows": MAX_PARTS})
    writer.append([row(99)])
    writer.commit()
    assert iterations(tmp_path) == [*range(MAX_PARTS), 99]
    assert not list(tmp_path.rglob("*.tmp"))


def test_reading_while_writing(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)

    def write() -> None:
        for point in range(120):
            writer.append([row(point)])
            writer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    reads = 0
    while thread.is_alive():
        seen = iterations(tmp_path)
        assert seen == list(range(len(seen)))
        reads += 1
    thread.join()
    assert reads > 3 and iterations(tmp_path) == list(range(120))


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not the directory of a run"):
        read_metrics(tmp_path)
    writer = MetricsWriter(tmp_path)
    for point in range(3):
        writer.append([row(point)])
        writer.flush()
    first, second, _ = sorted((tmp_path / "metrics").iterdir())
    content = first.read_bytes()
    first.write_bytes(content[:50])
    with pytest.raises(UserError, match=first.name):
        read_metrics(tmp_path)
    first.write_bytes(content)
    second.unlink()
    with pytest.raises(UserError, match="rows from 1"):
        read_metrics(tmp_path)
    with pytest.raises(UserError, match="rows from 1"):
        MetricsWriter(tmp_path)


def test_a_commit_of_rows_that_are_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 0 rows, but the checkpoint was made with 5"):
        MetricsWriter(tmp_path).restore({"rows": 5})


def test_clock_columns_can_be_left_out(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    writer.append([row(1, loss=1.0, env_steps_per_second=5.0, **{"time/acting": 0.1})])
    writer.close()
    left = without_clock(read_metrics(tmp_path)).column_names
    assert left == ["iteration", "env_steps", "updates", "seed", "kind", "loss"]
    assert set(parquet.CLOCK_COLUMNS).isdisjoint(left)


def events(directory: Path) -> list[tuple[str, int, float]]:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    found: list[tuple[str, int, float]] = []
    for path in sorted(directory.glob("tensorboard/events*")):
        content, position = path.read_bytes(), 0
        while position < len(content):
            length = int.from_bytes(content[position : position + 8], "little")
            assert int.from_bytes(content[position + 8 : position + 12], "little") == masked_crc32c(
                content[position : position + 8]
            )
            event = Event.FromString(content[position + 12 : position + 12 + length])
            position += 16 + length
            if event.session_log.status == 1:  # START: TensorBoard drops what is at or after this step
                found = [item for item in found if item[1] < event.step]
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def test_tensorboard_shows_the_mean_over_seeds_and_forgets_on_resume(tmp_path: Path, monkeypatch) -> None:
    times = iter(range(1000, 2000))
    monkeypatch.setattr("time.time", lambda: float(next(times)))  # event files are named by the second
    writer = TensorBoardWriter(tmp_path)
    writer.append([row(1, 0, loss=1.0, note="text"), row(1, 1, loss=3.0)])
    writer.append([row(2, 0, loss=5.0), row(2, 1, loss=float("nan")), row(2, 0, "eval", eval_return=7.0)])
    writer.flush()
    writer.close()
    assert {e for e in events(tmp_path) if "updates" not in e[0]} == {
        ("train/loss", 10, 2.0),
        ("train/loss", 20, 5.0),
        ("eval/return", 20, 7.0),
    }
    writer = TensorBoardWriter(tmp_path, resume_env_steps=10)
    writer.append([row(2, 0, loss=6.0)])
    writer.close()
    assert [e for e in events(tmp_path) if e[0] == "train/loss"] == [
        ("train/loss", 10, 2.0),
        ("train/loss", 20, 6.0),
    ]


def test_files_of_others_beside_the_parts_are_left_alone(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    names = ["part-1.parquet", "part-0000000000-0000000001.parquet.bak", "part-a-b.parquet", "notes.txt"]
    for name in names:
        (writer.directory / name).write_text("mine")
    half = writer.directory / "part-0000000000-0000000001.parquet.77.tmp"
    half.write_text("a crash left this")
    writer.append([row(0)])
    writer.flush()
    writer.restore(None)
    assert sorted(path.name for path in writer.directory.iterdir()) == sorted(names)


def test_a_part_without_rows_does_not_hang_the_reader(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    (writer.directory / "part-0000000000-0000000000.parquet").write_text("")
    assert read_metrics(tmp_path).num_rows == 0


def test_rows_that_cannot_be_read_are_not_removed(tmp_path: Path) -> None:
    """Going back to the middle of a damaged part is refused before anything is deleted."""
    writer = MetricsWriter(tmp_path)
    for points in (range(4), range(4, 8)):
        writer.append([row(point) for point in points])
        writer.flush()
    first, second = sorted(writer.directory.iterdir())
    content = bytearray(first.read_bytes())
    content[-100:-8] = bytes(92)  # the footer
    first.write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged"):
        MetricsWriter(tmp_path).restore({"rows": 2})
    assert first.read_bytes() == content and second.exists()


def test_going_back_finds_damage_in_parts_that_stay(tmp_path: Path) -> None:
    """Found when a run is resumed, before it trains on, and not when it ends."""
    writer = MetricsWriter(tmp_path)
    for number in range(2):
        writer.append([row(number)])
        committed = writer.commit()
    first = min((tmp_path / "metrics").iterdir())
    content = bytearray(first.read_bytes())
    content[20] ^= 1  # inside of a page
    first.write_bytes(content)
    held = sorted(path.name for path in (tmp_path / "metrics").iterdir())
    with pytest.raises(UserError, match=f"{first.name} is damaged"):
        MetricsWriter(tmp_path).restore(committed)
    assert sorted(path.name for path in (tmp_path / "metrics").iterdir()) == held


MANY_ROWS = """
import sys
import pyarrow
from jaxrl_hpc.metrics.parquet import MetricsWriter

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

writer = MetricsWriter(sys.argv[1])
for i in range(8001):
    counts = {"iteration": i, "env_steps": i, "updates": i, "seed": 0, "kind": "train", "wall_seconds": 1.5}
    writer.append([counts | {f"loss/{k}": i / (k + 1) for k in range(35)}])
    if i % 10 == 0:
        writer.flush()
    if i == 2000:
        early = resident()
print(pyarrow.default_memory_pool().backend_name, (resident() - early) / 2**20)
"""


@pytest.mark.full
def test_writing_rows_all_day_takes_no_more_memory(tmp_path: Path) -> None:
    """pyarrow's own allocator keeps up to 10 MiB over these 6,000 rows, one time more than another."""
    run = subprocess.run([sys.executable, "-c", MANY_ROWS, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    allocator, grown = run.stdout.split()
    assert allocator == "system"
    assert float(grown) < 4.0


def test_columns_are_those_of_pyarrow() -> None:
    columns: list[list[Any]] = [
        [1, None, -3], [0.5, 2, None], [None, None, None], ["train", None, "é"], [True, None, False],
        [float("nan"), float("inf"), 1.0], [None, *range(20)],
    ]  # fmt: skip
    for values in columns:
        kind = pa.float64() if float in map(type, values) else None
        found = parquet.arrow_column(values, None)
        found.validate(full=True)
        assert found.type == pa.array(values, kind).type and str(found) == str(pa.array(values, kind))
    assert parquet.arrow_column([3, None], pa.float64()).to_pylist() == [3.0, None]


def test_writing_and_reading_metrics_leave_pandas_alone(tmp_path: Path) -> None:
    """It takes longer to import than a short run to train."""
    code = (
        "import sys\nfrom jaxrl_hpc.metrics.parquet import MetricsWriter, read_metrics\n"
        "counts = {'iteration': 1, 'env_steps': 2, 'updates': 3, 'seed': 0, 'kind': 'train'}\n"
        "writer = MetricsWriter(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    writer.append([counts | {'wall_seconds': 1.0, 'loss': 0.5}])\n    writer.flush()\n"
        "assert read_metrics(sys.argv[1]).num_rows == 20\nassert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
