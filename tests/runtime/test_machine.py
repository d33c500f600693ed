"""Setting up threads and devices: what a user is told when it comes too late."""

import jax
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.ops import threefry
from jaxrl_hpc.runtime import host, machine


@pytest.mark.parametrize("devices, told", [(1, True), (3, False)])
def test_seeds_that_must_share_a_device_are_told_of(monkeypatch, devices, told):
    jax.devices()  # JAX is up, as in a notebook that has computed something
    monkeypatch.setattr(machine, "available_cores", lambda: 3)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1] * devices)
    hint = machine.prepare(configs.load("cartpole_dqn", ["run.seeds=4"]), lanes=4)
    assert bool(hint) == told
    assert not told or "4 seeds do not use all 3 cores" in hint
    assert not machine.prepare(configs.load("cartpole_dqn", ["run.seeds_mode=vmap"]), lanes=4)


def test_keys_are_of_one_kind_whatever_jax_was_told():
    """Layouts of messages are made from a key of JAX's default kind, runs from one made on the host."""
    before = jax.config.jax_default_prng_impl
    jax.config.update("jax_default_prng_impl", "rbg")  # as JAX_DEFAULT_PRNG_IMPL does
    try:
        machine.prepare(configs.load("cartpole_dqn"), lanes=1)
        assert jax.random.key(0).dtype == threefry.host_key(0).dtype
    finally:
        jax.config.update("jax_default_prng_impl", before)


def test_limits_of_a_job_and_of_what_it_is_in_are_looked_at(tmp_path):
    groups = tmp_path / "cgroup"
    groups.write_text("12:cpu:/slurm\n9:memory:/slurm/job_7\n0::/system.slice/job_7/step_0\n")
    found = [str(path.relative_to(tmp_path)) for path in host.memory_limit_files(groups, tmp_path)]
    assert found == [
        "memory/slurm/job_7/memory.limit_in_bytes",
        "memory/slurm/memory.limit_in_bytes",
        "memory/memory.limit_in_bytes",
        "system.slice/job_7/step_0/memory.max",
        "system.slice/job_7/memory.max",
        "system.slice/memory.max",
        "memory.max",
    ]


def test_the_tightest_limit_counts(tmp_path, monkeypatch):
    for name, text in (("a", "max"), ("b", str(2**62)), ("c", str(2**33))):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host, "memory_limit_files", lambda: [tmp_path / name for name in "abcd"])
    assert host.available_memory() <= 2**33
