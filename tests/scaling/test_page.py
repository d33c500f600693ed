"""The page of the scaling study says which goals are missed, and by what."""

import pytest

from tests.test_docs import study

scaling = study("scaling")


def report(**rows: float) -> dict:
    """Efficiency by engine of two ranks."""
    common = {"ranks": 2, "devices": 1, "efficiency": 0.5}
    parts = {"computing": 0.875, "waiting": 0.075, "exchange": 0.05}
    return {
        "machine": {"load": 1.0, "cores": 2},
        "rows": [
            common
            | {"engine": e, "efficiency_beside": found, "milliseconds": 2 / found}
            | {"trace": parts | {"milliseconds": 4 / found}}  # recording doubles it
            for e, found in rows.items()
        ],
    }


@pytest.mark.parametrize(
    ("mpi", "verdict", "sentence"),
    [
        (0.96, "| met |", "jax: of an iteration of 4.000 ms 50.0 % is lost"),
        (
            0.70,
            "| **missed** by 25.0 points |",
            "for 10.0 %; for 5.0 % it computes what separate runs do not",
        ),
    ],
)
def test_the_better_engine_decides_and_what_is_lost_is_divided(mpi, verdict, sentence) -> None:
    reports = {"ppo_weak": report(mpi=mpi, jax=0.5)}
    (goal,) = (line for line in scaling.goals(reports | collectives(reports)) if "1 → 2 ranks" in line)
    assert goal.endswith(verdict)
    lines = scaling.losses(reports)
    assert any(sentence in line for line in lines)
    assert len([line for line in lines if line.startswith("- ")]) == 1 + (mpi < 0.95)
    assert any(
        f"in 1 of 1 cases (jax / mpi from {mpi / 0.5:.2f}" in line for line in scaling.engines(reports)
    )


def collectives(reports: dict) -> dict:
    times = {str(size): 1e-5 for size in (8, 10_000_000)}
    return {"ppo_weak": reports["ppo_weak"] | {"collectives": {"2 × 1 mpi": {"inside": times, "raw": times}}}}


def test_two_cores_are_compared_with_fused_on_one() -> None:
    rows = [
        {"shards": shards, "devices": devices, "seconds": [time], "core_seconds": [time * devices]}
        | {"steps_per_iteration": 9}
        for shards, devices, time in [(0, 1, 2.0), (2, 1, 2.5), (2, 2, 1.25)]
    ]
    case = {"title": "A", "config": "a", "num_envs": 16, "unroll_length": 8, "rows": rows}
    weak = {"compute_milliseconds": 9.0, "rows": [{"ranks": 2, "beside_milliseconds": 10.0}]}
    lines = scaling.on_cores({"cases": [case]}, weak)
    assert any("| 2 | 2 | 7 | 1.60 |" in line for line in lines)
    assert any("each other (1.80 × one alone)" in line for line in lines)
    assert any("A 1.60 ×. That is 1.5 × or more for A." in line for line in lines)
