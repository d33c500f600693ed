"""The packing study's page says what its data say."""

import json

import pytest

from tests.test_docs import DOCS, study


def made(packed, separate, trials):
    rows = []
    for seconds, whole, training, process in (
        (0.1, packed, packed - 4.0, separate),
        (60, 500.0, 496.0, 130.0),
    ):
        row = {"seconds": seconds, "steps": 4000}
        row["packed"] = {
            "seconds": whole,
            "training_seconds": training,
            "trials": trials,
            "peak_bytes": 2**30,
        }
        row["packed"] |= {"core_seconds": whole * 1.5, "cores": 2}
        row["separate"] = {"seconds": process, "core_seconds": 2 * process, "trials": 16, "peak_bytes": 2**30}
        row["separate"]["training_seconds"] = seconds
        row["alone"] = {"seconds": 8.0, "core_seconds": 8.0, "trials": 1, "peak_bytes": 2**29}
        row["alone"]["training_seconds"] = seconds
        row["load"] = 1.0
        rows.append(row)
    rows[0]["vmap"] = rows[0]["packed"]
    return {"rows": rows, "cores": 2, "steps_per_second": 4000.0, "commit": "ab" * 20}


def test_what_was_not_measured_is_multiplied_and_said():
    packing = study("packing")
    report = made(packed=10.0, separate=60.0, trials=32)
    first = report["rows"][0]
    assert packing.for_all(first["packed"], "packed") == pytest.approx(4 + 6 * 2)  # the start only once
    assert packing.for_all(first["packed"], "packed", "core_seconds") == pytest.approx(15 + 2 * 6)
    assert packing.for_all(first["separate"], "separate") == pytest.approx(240)
    text = packing.page(report)
    assert "(32 measured: 10 s)" in text and "**15.0 ×**" in text
    assert "never slower than separate processes: **missed**" in text  # 60 s trials: 996 s against 520 s
    assert "where the start dominates: met" in text


def test_page_is_made_from_its_data():
    data = DOCS / "results" / "packing.json"
    assert (
        study("packing").page(json.loads(data.read_text())) == (DOCS / "results" / "packing.md").read_text()
    )
