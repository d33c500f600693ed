"""Requests to stop are noted; who presses Ctrl-C at a terminal is told, and can end at once."""

import os
import pty
import signal
from types import SimpleNamespace

import pytest

from jaxrl_hpc.runtime import signals
from jaxrl_hpc.runtime.signals import StopSignals


@pytest.fixture
def terminal(monkeypatch):
    """The other end of a terminal that standard error is."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)  # what is not there is an error
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(signals, "sys", SimpleNamespace(stderr=stream))
        yield ours
    os.close(ours)


@pytest.fixture
def before():
    """What Ctrl-C does without a run."""
    pressed = []
    old = signal.signal(signal.SIGINT, lambda *_: pressed.append("before"))
    yield pressed
    signal.signal(signal.SIGINT, old)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_at_a_terminal_the_second_time_ends_at_once(terminal, before, monkeypatch):
    monkeypatch.setattr(signals, "AGAIN_SECONDS", 600.0)
    with StopSignals() as stop:
        press()
        assert (stop.received, before) == ("SIGINT", [])
        word = os.read(terminal, 1000).decode()
        assert "saving after the current step" in word and len(word.strip()) <= 80
        press()  # as a launcher passes it on
        assert before == []
        monkeypatch.setattr(signals, "AGAIN_SECONDS", 0.0)
        press()
        assert before == ["before"]
    press()
    assert before == ["before"] * 2


def test_elsewhere_signals_are_noted_without_a_word(before, capsys):
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(2):
            press()
        assert (stop.received, stop.number, before) == ("SIGINT", signal.SIGINT, [])
    assert capsys.readouterr().err == ""
