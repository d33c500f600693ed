"""How ranks wait: chosen by ranks per core, and polls become rare."""

import pytest

from jaxrl_hpc.comm import waiting


@pytest.fixture(autouse=True)
def as_before():
    before = waiting.chosen()
    yield
    waiting._choice = before


@pytest.mark.parametrize(
    ("wanted", "ranks_per_core", "mode"),
    [("auto", 1.0, "spin"), ("auto", 1.5, "sleep"), ("spin", 8.0, "spin"), ("sleep", 0.5, "sleep")],
)
def test_it_is_chosen_by_ranks_per_core_unless_told(wanted, ranks_per_core, mode):
    choice = waiting.choose(wanted, ranks_per_core, programs_can_poll=True)
    assert choice == waiting.chosen()
    assert (choice.mode, choice.programs_poll) == (mode, mode == "sleep")


def test_programs_do_not_poll_where_they_cannot():
    assert not waiting.choose("sleep", 2.0, programs_can_poll=False).programs_poll


def test_naps_grow_with_the_time_waited(monkeypatch):
    clock, naps = [0.0], []
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(waiting.time, "sleep", lambda s: (naps.append(s), clock.__setitem__(0, clock[0] + s)))
    monkeypatch.setattr(waiting.os, "sched_yield", lambda: clock.__setitem__(0, clock[0] + 1e-5))
    waiting.choose("sleep", 4.0, programs_can_poll=False)
    backoff = waiting.Backoff()
    for _ in range(200):
        backoff.pause()
    assert naps == sorted(naps)
    assert naps[0] == waiting.PACES["sleep"].shortest_nap and naps[-1] == waiting.PACES["sleep"].longest_nap
    backoff.reset()
    assert backoff.seconds == pytest.approx(clock[0]) and not backoff.waiting
