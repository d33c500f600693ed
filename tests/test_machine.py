"""Setting up threads and devices: what a user is told when it comes too late."""

import jax
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc import machine


@pytest.mark.parametrize("devices, told", [(1, True), (3, False)])
def test_seeds_that_must_share_a_device_are_told_of(monkeypatch, devices, told):
    jax.devices()  # JAX is up, as in a notebook that has computed something
    monkeypatch.setattr(machine, "available_cores", lambda: 3)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1] * devices)
    hint = machine.prepare(configs.load("cartpole_dqn", ["run.seeds=4"]), lanes=4)
    assert bool(hint) == told
    assert not told or "4 seeds do not use all 3 cores" in hint
    assert not machine.prepare(configs.load("cartpole_dqn", ["run.seeds_mode=vmap"]), lanes=4)
