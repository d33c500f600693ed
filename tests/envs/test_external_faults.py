"""Faults of outside simulators: nonsense of every kind is found, named by copy and step, and survived."""

import logging

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl_hpc.envs.external import host as hosts
from jaxrl_hpc.envs.external.gymnasium_copies import Copies
from jaxrl_hpc.envs.external.gymnasium_spaces import spec_of
from jaxrl_hpc.envs.external.gymnasium_vector import Ones, Vector
from jaxrl_hpc.envs.external.host import Host, SimulatorFailed
from jaxrl_hpc.envs.external.simulator import ExternalConfig, Wrong, conform, conform_flag, conform_rows

FLOAT = np.dtype(np.float32)
BOX, CHOICE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
SPEC = spec_of("pump", BOX, CHOICE, 10)
COPIES = 3
SEEDS = np.array([5, 6, 7], np.uint32)
ACTION = np.zeros(COPIES, np.int32)


class Pump(gymnasium.Env):
    """Copy 1 does what a test says, `faults` times."""

    observation_space, action_space = BOX, CHOICE
    made, faults, closed = 0, 1, 0

    def __init__(self, where="step", fault=lambda good: good):
        self.where, self.fault = where, fault
        self.doomed = Pump.made == 1
        Pump.made += 1

    def _perhaps(self, where, good):
        if not (self.doomed and self.where == where and Pump.faults):
            return good
        Pump.faults -= 1
        return self.fault(good)

    def reset(self, *, seed=None, options=None):
        return self._perhaps("reset", np.zeros(2, np.float32)), {}

    def step(self, action):
        return self._perhaps("step", (np.zeros(2, np.float32), 1.0, False, False, {}))

    def close(self):
        Pump.closed += 1


def host_of(where, fault, on_error="stop", faults=1, doomed_again=False):
    """Whose second copy goes wrong; copies that are made later do only if asked to."""
    Pump.made, Pump.faults, Pump.closed = 0, faults, 0

    def make():
        pump = Pump(where, fault)
        pump.doomed |= doomed_again and Pump.made > COPIES
        return pump

    return Host(SPEC, lambda copies: Copies(make, SPEC, copies), ExternalConfig(on_error=on_error))


def raising(error):
    def fault(good):
        raise error

    return fault


def replaced(**parts):
    names = ("obs", "reward", "terminated", "truncated", "info")
    return lambda good: tuple(parts.get(name, value) for name, value in zip(names, good, strict=True))


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (replaced(obs=np.array([1e300, 0.0])), "returned an observation that is too large for float32"),
        (replaced(reward=1e300), "returned a reward that is too large for float32"),
        (replaced(reward=-np.inf), "returned a reward that is infinite"),
        (replaced(terminated="no"), "returned terminated = 'no' instead of True or False"),
        (replaced(truncated=np.nan), "returned truncated = 'nan' instead of True or False"),
        (replaced(truncated=None), "returned truncated = 'None' instead of True or False"),
        (raising(SystemExit(3)), r"raised SystemExit: 3 \(test_external_faults.py line \d+\)"),
        (raising(KeyboardInterrupt()), r"raised KeyboardInterrupt: no message \(.*\)"),
        (raising(ValueError("two\n  lines")), r"raised ValueError: two lines \(.*\)"),
    ],
)
def test_a_step_that_goes_wrong(fault, text):
    host = host_of("step", fault)
    tickets, _ = host.reset(SEEDS)
    with pytest.raises(
        SimulatorFailed, match=rf"^env 'pump': copy 1 {text} \(step 1, rank 0\); env.on_error"
    ):
        host.step(tickets, SEEDS, ACTION)
    host = host_of("step", fault, "reset")
    tickets, _ = host.reset(SEEDS)
    dropped = host.step(tickets, SEEDS, ACTION)[-1]
    np.testing.assert_array_equal(dropped, [0, 1, 0])
    assert host.dropped == 1 and host.failure is None and Pump.closed == 1  # the old one was closed
    host.close()


def test_numbers_and_flags():
    with pytest.raises(Wrong, match="an observation that is too large for int32"):
        conform(np.array([2**40]), (1,), np.dtype(np.int32), "an observation")
    with pytest.raises(Wrong, match=r"returned rewards of shape \(2, 1\) instead of \(2,\)"):
        conform_rows(np.zeros((2, 2)), SPEC, 2, np.zeros((2, 1)), {})
    troubles = {}
    conform_rows(np.array([[0, 1e300], [0, 0]]), SPEC, 2, np.array([0.0, 1e300]), troubles)
    assert troubles == {
        0: "returned an observation that is not finite",
        1: "returned a reward that is not finite",
    }
    assert [conform_flag(x, "terminated") for x in (True, np.bool_(False), 1, np.float32(0))] == [1, 0, 1, 0]


def test_a_reset_that_goes_wrong_is_named():
    host = host_of("reset", raising(RuntimeError("stuck")))
    text = r"^env 'pump': resetting copy 1 raised RuntimeError: stuck \(.*\) \(step 0, rank 0\)$"
    with pytest.raises(SimulatorFailed, match=text):
        host.reset(SEEDS)
    assert host.failure is not None


def test_starts_are_tried_a_few_times(caplog):
    """Under on_error=reset, with other seeds each time; then the run ends."""
    host = host_of("reset", raising(RuntimeError("stuck")), "reset", faults=2, doomed_again=True)
    _, obs = host.reset(SEEDS)
    assert obs.shape == (COPIES, 2) and host.failure is None
    assert caplog.text.count("resetting copy") == 2 and "trying again" in caplog.text
    host.close()
    host = host_of("reset", raising(RuntimeError("stuck")), "reset", faults=9, doomed_again=True)
    with pytest.raises(SimulatorFailed, match="raised RuntimeError: stuck"):
        host.reset(SEEDS)
    assert Pump.faults == 9 - hosts.STARTS


def test_a_copy_that_will_not_start_again(caplog):
    host = host_of("reset", raising(RuntimeError("stuck")), "reset", faults=0, doomed_again=True)
    tickets, _ = host.reset(SEEDS)
    Pump.faults = 2
    simulator = host.alive[int(tickets[0])].simulator
    simulator.envs[2].step = raising(ValueError("leak"))
    dropped = host.step(tickets, SEEDS, ACTION)[-1]
    np.testing.assert_array_equal(dropped, [0, 0, 1])
    assert caplog.text.count("starting copy 2 again raised RuntimeError: stuck") == 2
    host.close()


def test_the_limit_that_is_told_is_the_one_that_was_used(monkeypatch):
    monkeypatch.setattr(hosts, "MAKING_SECONDS", 0.1)
    monkeypatch.setattr(hosts.Caller, "__call__", raising_hung)
    host = Host(SPEC, lambda copies: None, ExternalConfig(deadline_seconds=7.5, on_error="reset"))
    with pytest.raises(SimulatorFailed, match=r"making it did not end within 7.5 s \(step 0, rank 0\)"):
        host.reset(SEEDS)


def raising_hung(*_):
    raise hosts.Hung


def test_reports_of_dropped_episodes_do_not_dry_up(caplog):
    host = Host(SPEC, lambda copies: None, ExternalConfig(on_error="reset"))
    with caplog.at_level(logging.WARNING):
        for _ in range(400):
            host._trouble({0: "leaks"}, 3)
    told = [int(record.args[1]) for record in caplog.records]
    assert told == [3, 6, 9, 18, 33, 66, 129, 258, 513, 1026] and host.dropped == 1200


class Team(gymnasium.vector.VectorEnv):
    """A vector environment whose copies end in step 1, with a last observation of copy 1 as given."""

    num_envs = COPIES
    single_observation_space, single_action_space = BOX, CHOICE

    def __init__(self, last, reward=(0.0, 0.0, 0.0), rule="SameStep"):
        self.metadata = {"autoreset_mode": rule}
        self.last, self.gain = last, reward

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        last = np.empty(self.num_envs, object)
        for i in range(self.num_envs):
            last[i] = self.last if i == 1 else np.zeros(2, np.float32)
        obs, ended = np.zeros((self.num_envs, 2), np.float32), np.ones(self.num_envs, bool)
        return obs, np.array(self.gain), ended, ~ended, {"final_obs": last}


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (np.full(2, np.nan), "returned a last observation that is NaN"),
        (np.zeros(3), "returned a last observation of shape (3,) instead of (2,)"),
        (None, "returned a last observation of shape () instead of (2,)"),
    ],
)
def test_last_observations_of_vector_environments_are_checked(last, text):
    simulator = Vector(Team(last), SPEC)
    simulator.reset(SEEDS)
    assert simulator.step(ACTION).troubles == {1: text}
    with pytest.raises(Wrong, match="returned rewards of shape"):
        Vector(Team(np.zeros(2), reward=[[0.0]] * COPIES), SPEC).step(ACTION)


def test_vector_environments_of_one_are_restarted_alone():
    class Single(Team):
        num_envs = 1

    simulator = Ones(lambda: Single(None, [0.0]), SPEC, COPIES)
    simulator.envs[2].gain = [np.nan]
    simulator.reset(SEEDS)
    assert simulator.step(ACTION).troubles == {2: "returned a reward that is not finite"}
    assert simulator.restart([2], SEEDS[2:]).shape == (1, 2) and simulator.busy is None
