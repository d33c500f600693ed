"""The benchmark's parts at a small size."""

import json

from jaxrl_hpc.bench import replay, replay_peers
from jaxrl_hpc.bench.replay_cases import insertion_cases, payload_ours, tree_cases


def test_rows_table_and_picture(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(replay, "CAPACITIES", (64,))
    monkeypatch.setattr(replay, "BATCHES", (8,))
    cases = [
        *tree_cases("auto", 64, 8, 8, ("cycle",)),
        *replay_peers.flashbax_cases(64, 8, ("cycle",)),
        *payload_ours(64, 8),
        *insertion_cases(64, 8),
    ]
    rows = [*replay.measure(cases, 2), replay.bound_row(64, 8)]
    assert {"impl", "op", "capacity", "batch", "fanout", "median_us"} == set(rows[0])
    assert all(row["median_us"] >= 0 for row in json.loads(json.dumps(rows)))
    text = replay.table(rows)
    assert "cycle: jaxrl_hpc, K 8" in text and "cycle: flashbax, K 2" in text
    replay.plot(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_the_bound_grows_with_the_batch() -> None:
    assert replay.bound_row(2**14, 1024)["median_us"] > replay.bound_row(2**14, 32)["median_us"]
