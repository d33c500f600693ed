"""The harness of random faults: a fixed part of it finds nothing, and it would find what there is."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.append(str(SCRIPTS))

import chaos_inputs  # noqa: E402
import chaos_record  # noqa: E402


@pytest.mark.full
def test_a_fixed_part_of_it(tmp_path):
    command = [sys.executable, str(SCRIPTS / "chaos.py"), "--slice", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    (entry,) = json.loads((tmp_path / "chaos.json").read_text())
    counts = {group: sum(row["cases"] for row in kinds.values()) for group, kinds in entry["groups"].items()}
    assert counts["bad inputs"] >= 100 and counts["kills"] == 1 and entry["cases"] == []
    assert "0 faults of the program" in done.stdout and "| none |" in (tmp_path / "chaos.md").read_text()


def guarded(ask):
    return chaos_inputs._guarded(ask)[0]


def test_answers_are_classified():
    from jaxrl_hpc.errors import UserError

    def fail(error):
        raise error

    assert guarded(lambda: None) == "ok"
    assert guarded(lambda: fail(UserError("no"))) == "refused"
    assert guarded(lambda: fail(FileNotFoundError(2, "gone", "x"))) == "refused"
    assert guarded(lambda: fail(UserError(""))) == "TRACEBACK"
    assert guarded(lambda: fail(KeyError("x"))) == "TRACEBACK"


def test_a_case_is_always_the_same(tmp_path):
    for kind in ("bytes", "text"):
        damage = getattr(chaos_inputs, f"damage_{kind}")
        content = b"agent: {name: dqn}\n" * 9
        content = content if kind == "bytes" else content.decode()
        made = [[damage(random.Random(seed), content) for seed in range(40)] for _ in range(2)]
        assert made[0] == made[1] and len(set(made[0])) > 20
    drawn = [chaos_inputs.drawn_configs(3, 10) for _ in range(2)]
    assert str(drawn[0]) == str(drawn[1]) and len(drawn[0]) == 10


def test_the_record_grows(tmp_path):
    good = chaos_record.Outcome(
        "kills", "fused", "fused:1", "equal bits", 3.0, faults=("SIGKILL", "SIGKILL", "slow rank")
    )
    bad = chaos_record.Outcome(
        "kills", "fused", "fused:2", "LOST", 5.0, "metrics differ", ("SIGSTOP", "SIGKILL")
    )
    for outcomes in ([good], [good, bad]):
        chaos_record.write(tmp_path, chaos_record.entry_of(outcomes, 1, 0.1, "abc"))
    page = (tmp_path / "chaos.md").read_text()
    assert "| in | SIGKILL | SIGSTOP | slow rank | all |" in page
    assert "| fused | 5 | 1 | 2 | 8 |" in page
    assert "| fused | 3 | 8 | 1 LOST, 2 equal bits | 5.0 |" in page
    assert "fused:2 LOST" in page and len(json.loads((tmp_path / "chaos.json").read_text())) == 2
    assert "| fused:2 | LOST | abc | metrics differ | open: not repeated |" in page
    assert chaos_record.open_cases(tmp_path) == ["fused:2"]
    mended = bad._replace(group=chaos_record.AGAIN, verdict="equal bits")
    chaos_record.write(tmp_path, chaos_record.entry_of([mended], 1, 0.1, "def"))
    page = (tmp_path / "chaos.md").read_text()
    assert "| fused:2 | LOST | abc | metrics differ | equal bits at def |" in page
    assert "| fused | 3 | 8 |" in page, "repeated cases are not counted twice"
    assert chaos_record.open_cases(tmp_path) == []
    assert str(tmp_path) not in page and os.sep + "home" not in page


def test_records_from_before_kinds_were_counted():
    row = {"cases": 1, "faults": 2, "verdicts": {"ok": 1}, "slowest": 1.0}
    soak = {"case": "soak:async", "verdict": "ok", "text": "20 minutes, 7 environment steps; rank 0: 1 MiB"}
    entry = {"command": "x", "commit": "abc", "seed": 1, "minutes": 1.0, "cases": [soak],
             "groups": {"kills": {"rma": row}, "full disks": {"tmpfs": row}}}  # fmt: skip
    page = chaos_record.page([entry])
    assert "| in | full disk | kind not recorded | all |" in page
    assert "| rma |  | 2 | 2 |" in page and "| full disks | 2 |  | 2 |" in page
    assert "| soak:async | abc | ok | 20 | 10 | 7 | rank 0: 1 MiB |" in page


@pytest.mark.parametrize(("kind", "ways"), [("dataset", 20), ("actors.json", 8)])
def test_generated_files_are_damaged_in_many_ways(kind, ways, tmp_path):
    """And each is refused, or damaged where nothing is read from it."""
    samples = chaos_inputs.Samples(tmp_path / "samples")
    samples.folder.mkdir()
    samples.make_datasets()
    inputs = chaos_inputs.Inputs(samples, tmp_path / "scratch")
    answers = [inputs.answer(kind, seed) for seed in range(60)]
    assert {verdict for verdict, *_ in answers} <= {"ok", "refused"}, answers
    assert len({text for verdict, text, _ in answers if verdict == "refused"}) > ways
