"""The watchdog's verdicts, by a clock that the test turns."""

import json

import pytest

from jaxrl_hpc.comm import watchdog
from jaxrl_hpc.comm.ranks import Ranks


class Clock:
    """Looks of the watching thread: how long each takes, and what happens in between."""

    def __init__(self, monkeypatch, steps):
        self.now, self.steps = 100.0, list(steps)
        monkeypatch.setattr(watchdog.time, "monotonic", lambda: self.now)

    def wait(self, interval):
        if not self.steps:
            return True
        seconds, happens = self.steps.pop(0)
        self.now += seconds
        happens()
        return False


@pytest.fixture
def guard(tmp_path):
    ranks = Ranks()
    ranks.size = 2
    found = watchdog.Watchdog(ranks, tmp_path, deadline=8.0)
    found.findings = []
    found._end = found.findings.append
    return found


def neighbour(guard, count):
    record = {"rank": 1, "host": "node7", "pid": 42, "phase": "acting", "chunk": 3, "count": count}
    (guard.folder / "1.json").write_text(json.dumps(record))


def test_a_neighbour_that_stands_still_is_named(monkeypatch, guard):
    neighbour(guard, 1)
    guard._stop = Clock(monkeypatch, [(1.0, lambda: None)] * 10)
    guard._watch()
    assert (
        "rank 1 (process 42 on node7, last acting, chunk 3) has not been heard from for" in guard.findings[0]
    )


def test_no_progress_here_is_found(monkeypatch, guard):
    guard._stop = Clock(monkeypatch, [(1.0, lambda n=n: neighbour(guard, n)) for n in range(13)])
    guard.at("waiting for unrolls of actors on rank 1", 5)
    guard._watch()
    assert "no progress for 12 s, while rank 1" in guard.findings[0]


def test_phases_that_may_take_long_end_too(monkeypatch, guard):
    hour = watchdog.LONG_SECONDS
    steps = [(2.0, lambda n=n: neighbour(guard, n)) for n in range(int(hour / 2) + 6)]
    guard._stop = Clock(monkeypatch, steps)
    guard.at("waiting for the learner, rank 0, to start", 0, armed=False)
    guard._watch()
    assert f"no progress for {hour + 4:.0f} s, while rank 1" in guard.findings[0]


def test_of_a_stopped_rank_and_those_that_wait_for_it_the_former_is_named(monkeypatch, guard):
    """Progress ended two looks before the neighbour's last sign of life was seen."""
    steps = [(1.0, lambda: None), (1.0, lambda: neighbour(guard, 7))] + [(1.0, lambda: None)] * 9
    guard._stop = Clock(monkeypatch, steps)
    guard.at("saving", 5)
    guard._watch()
    assert "has not been heard from for" in guard.findings[0]


def test_time_asleep_does_not_count(monkeypatch, guard):
    """The whole job was suspended for an hour; its neighbour needs a moment to write again."""
    steps = [(1.0, lambda n=n: neighbour(guard, n)) for n in range(3)]
    steps += [(3600.0, lambda: None), (1.0, lambda: None), (1.0, lambda: neighbour(guard, 9))]
    guard._stop = Clock(monkeypatch, steps)
    guard.at("learning", 5)
    guard._watch()
    assert guard.findings == []


def test_a_disk_that_cannot_be_written_is_said_once_and_the_watch_goes_on(monkeypatch, guard, caplog):
    guard.folder = guard.folder / "missing"
    guard._stop = Clock(monkeypatch, [(1.0, lambda: None)] * 10)
    guard._watch()
    assert caplog.text.count("rank 0 cannot write its heartbeat") == 1
    assert "has not been heard from" in guard.findings[0]
