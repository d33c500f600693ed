"""The performance model finds what it was made from; the study multiplies and divides configs rightly."""

import json
import math
import subprocess

import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.cli.main import main
from jaxrl_hpc.scaling import figure, model, study, trace

CONFIG = configs.load("workflows/cartpole_dqn_sharded")
NETWORK = model.NetworkModel(latency=2e-6, bandwidth=1e10)
MESSAGES = [
    {"kind": "gather", "length": 1, "times": 2},
    {"kind": "total", "length": 500, "times": 2},
    {"kind": "add", "length": 10_000, "times": 2},
]


def test_fit_finds_latency_and_bandwidth():
    true = model.LatencyBandwidth(5e-6, 2e9)
    found = model.fit({str(size): true.time(size) for size in (8, 1_000, 100_000, 10_000_000)})
    assert found.latency == pytest.approx(5e-6) and found.bandwidth == pytest.approx(2e9)
    rng = np.random.default_rng(0)
    noisy = {str(s): true.time(s) * rng.uniform(0.9, 1.1) for s in (8, 1_000, 100_000, 10_000_000)}
    assert model.fit(noisy).latency == pytest.approx(5e-6, rel=0.2)


def test_network_time_grows_with_the_logarithm_and_with_bytes():
    assert NETWORK.time(1e6, 1, 1e-6) == 0
    assert NETWORK.time(0, 1024, 0) == pytest.approx(20 * 2e-6)
    assert NETWORK.time(1e6, 2, 0) == pytest.approx(2 * 2e-6 + 1e6 / 1e10)
    assert NETWORK.time(1e6, 1024, 0) > NETWORK.time(1e6, 16, 0)


def test_what_is_gathered_grows_with_the_shards_and_rows_with_the_batch():
    add = MESSAGES[2]
    assert model.bytes_of(add, 12, deterministic=False) == 40_000
    assert model.bytes_of(add, 12, deterministic=True) == 6 * 40_000
    rows = [MESSAGES[1]]
    two, many = (model.over_network(rows, NETWORK, n, 0.0, 12, False) for n in (2, 1024))
    assert many > 500 * (two - 2 * 2 * 2e-6)


def test_waiting_for_the_slowest_is_that_of_normal_delays():
    rng = np.random.default_rng(1)
    slowest = rng.normal(size=(20_000, 128)).max(axis=1).mean()
    assert slowest < model.waiting(1.0, 128) < 1.25 * slowest
    chunks = rng.normal(1.0, 0.1, size=(4000, 25)).mean(axis=1)
    assert model.jitter(chunks, 25) == pytest.approx(0.1, rel=0.05)


def test_weak_multiplies_and_strong_leaves_the_config():
    weak = study.config_for(CONFIG, "weak", 2, 2)
    assert weak["workflow"]["shards"] == 48 and weak["workflow"]["num_envs"] == 48
    assert weak["agent"]["batch_size"] == 4 * 192 and weak["replay"]["capacity"] == 4 * 61_440
    strong = study.config_for(CONFIG, "strong", 2, 2)
    assert strong["workflow"]["shards"] == 12 and strong["agent"]["batch_size"] == 192
    assert strong["workflow"]["devices"] == 2
    configs.from_dict(weak)


def test_report_of_made_up_measurements(tmp_path, monkeypatch):
    """Two ranks that lose exactly what the model says they lose."""
    monkeypatch.setattr(study, "available_cores", lambda: 2)
    line = model.LatencyBandwidth(1e-5, 1e9)
    inside = {str(size): line.time(size) for size in (8, 1_000, 100_000)}
    talk = model.communication(MESSAGES, line, 24, False)
    common = {"devices": 1, "pinned": True, "iterations": 10, "messages": MESSAGES}
    results = [
        common | {"ranks": 1, "seconds": [1e-3, 1e-3, 1e-3], "steps_per_iteration": 12},
        common
        | {
            "ranks": 2,
            "seconds": [1e-3 + talk] * 3,
            "steps_per_iteration": 24,
            "inside": inside,
            "raw": inside,
        },
    ]
    request = study.Request(CONFIG, [1, 2], [1], "weak", 1.0, 1, "mpiexec", NETWORK)
    report = study.analyse(request, results)
    one, two = report["rows"]
    assert one["efficiency"] == pytest.approx(1.0)
    assert two["milliseconds"] == pytest.approx(two["predicted_milliseconds"])
    assert two["efficiency"] == pytest.approx(1e-3 / (1e-3 + talk))
    efficiencies = [row["efficiency"] for row in report["extrapolation"]]
    assert [row["nodes"] for row in report["extrapolation"]] == list(study.NODES)
    assert efficiencies[0] == 1 and efficiencies == sorted(efficiencies, reverse=True)
    assert math.isclose(report["jitter_milliseconds"], 0, abs_tol=1e-12)
    assert "| 1024 |" in figure.table(report)
    assert "| 2 × 1 | 100,000 |" in figure.collectives_table(report)
    figure.draw(report, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000
    json.dumps(report)


def test_separate_runs_side_by_side_are_the_measure(monkeypatch):
    """Two workers together lose what messages and waiting cost; the cores' own slowdown is no loss."""
    monkeypatch.setattr(study, "available_cores", lambda: 2)
    rng = np.random.default_rng(2)
    late = np.maximum(*rng.normal(0.0, 1e-4, (2, 20_000))).mean()
    runs = [{"short": {"iterations": 4, "seconds": list(rng.normal(1e-3, 5e-5, 20_000))}} for _ in range(2)]
    assert study.waiting_of(runs) == pytest.approx(late, rel=0.05)
    runs[1]["short"]["seconds"].pop()  # workers whose iterations are long may have measured fewer chunks
    assert study.waiting_of(runs) == pytest.approx(late, rel=0.05)
    alone = {"engine": "", "ranks": 1, "devices": 1, "pinned": True, "iterations": 10, "messages": MESSAGES}
    pair = alone | {
        "engine": "jax",
        "ranks": 2,
        "seconds": [1.5e-3] * 3,
        "steps_per_iteration": 24,
        "beside": {"seconds": [1.2e-3] * 6, "waiting": [1e-4] * 3},
    }
    request = study.Request(CONFIG, [1, 2], [1], "weak", 1.0, 1, "mpiexec", NETWORK, ["jax"])
    report = study.analyse(request, [alone | {"seconds": [1e-3] * 3, "steps_per_iteration": 12}, pair])
    row = report["rows"][1]
    assert row["efficiency_beside"] == pytest.approx(0.8) and row["efficiency"] == pytest.approx(2 / 3)
    assert report["jitter_milliseconds"] == pytest.approx(0.1 * math.sqrt(math.pi))
    assert "| 2 × 1, jax | 1.500 | 1.200 | 0.000 | 0.100 | 0.200 |" in figure.table(report)


def test_traced_shares_add_up_to_the_whole():
    """Two workers: the second is late for one collective, and the first for the next."""
    first = np.array([[0, 10], [30, 60], [90, 100]], float)
    second = np.array([[0, 10], [50, 60], [80, 100]], float)
    found = trace.shares([first, second])
    assert found == pytest.approx(
        {"computing": (20 + 30 + 40 + 20) / 180, "waiting": 30 / 180, "exchange": 40 / 180}
    )
    assert sum(found.values()) == pytest.approx(1)
    with pytest.raises(RuntimeError, match=r"\[2, 3\]"):
        trace.shares([first[:2], second])


def test_one_rank_is_held_to_a_core_that_this_process_may_use(monkeypatch):
    """A batch system gives any cores; the first of the machine need not be among them."""
    seen = []

    def run(command, **_):
        seen.append(command)
        return subprocess.CompletedProcess(command, 0, "{}", "")

    monkeypatch.setattr(study.os, "sched_getaffinity", lambda _: {5, 3})
    monkeypatch.setattr(study.subprocess, "run", run)
    request = study.Request(CONFIG, [1], [1], "weak", 1.0, 1, "mpiexec", NETWORK)
    assert study.measure(request, study.JobLayout("", 1, 1), collectives=False)["pinned"]
    assert seen[0][:3] == ["taskset", "-c", "3"]


def test_layouts_of_both_engines():
    request = study.Request(CONFIG, [1, 2], [1, 2], "weak", 1.0, 1, "mpiexec", NETWORK, ["mpi", "jax"])
    found = [tuple(layout) for layout in study.layouts_of(request)]
    assert found == [("", 1, 1), ("mpi", 2, 1), ("jax", 2, 1), ("", 1, 2), ("jax", 2, 2)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["workflows/cartpole_dqn_sharded", "--engines", "tcp"], "--engines: should be mpi, jax or both"),
        (["cartpole_dqn"], "use a config with workflow.name=sharded"),
        (
            ["workflows/cartpole_dqn_sharded", "--mode", "strong", "--ranks", "5"],
            "workflow.shards is 12, which 5 × 1 workers do not divide",
        ),
    ],
)
def test_scaling_refuses_what_cannot_be(capsys, arguments, message):
    assert main(["scaling", *arguments]) == 2
    assert message in capsys.readouterr().err
