"""Which engine connects the processes of a run, and which GPUs belong to a process."""

import pytest

from jaxrl_hpc.comm.distributed import heartbeat_seconds, reachable
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime import engine
from tests import small


@pytest.mark.parametrize(
    "devices, gpus, has_mpi, has_mpi4jax, expected",
    [
        (0, False, True, True, "mpi"),
        (1, False, True, True, "mpi"),
        (2, False, True, True, "jax"),
        (0, True, True, True, "jax"),
        (0, False, True, False, "jax"),
        (0, False, False, True, "jax"),
    ],
)
def test_the_rule(devices, gpus, has_mpi, has_mpi4jax, expected):
    assert engine.choose("auto", devices, gpus, has_mpi, has_mpi4jax) == expected


def test_what_mpi_cannot_do_is_refused():
    with pytest.raises(UserError, match="one device per process"):
        engine.choose("mpi", 2, False, True, True)
    with pytest.raises(UserError, match="needs an MPI launcher"):
        engine.choose("mpi", 1, False, False, True)


class Pair(Ranks):
    """As seen by the first of two processes."""

    def __init__(self, comm):
        super().__init__()
        self.comm, self.size = comm, 2


def config(**workflow):
    return small.config(
        agent={"batch_size": 24},
        replay={"capacity": 2400},
        workflow={"name": "sharded", "num_envs": 24, **workflow},
    )


def test_the_choice_is_kept_where_it_can_be():
    def settled(comm, recorded, **workflow):
        return engine.settle(config(**workflow), Pair(comm), recorded).workflow.engine

    assert settled("MPI", "jax") == "jax"
    assert settled("MPI", "mpi", engine="jax") == "jax"  # what is asked for comes first
    assert settled("MPI", "mpi", devices=2) == "jax"  # cannot be kept
    assert settled(None, "mpi") == "jax"
    with pytest.raises(UserError, match="one device per process"):
        settled("MPI", "auto", engine="mpi", devices=2)
    alone = engine.settle(config(), Ranks(), "mpi").workflow.engine
    assert alone == "mpi"  # for the next one; a process alone needs neither


@pytest.mark.parametrize(
    "visible, rank, size, environment, expected",
    [
        (4, 1, 2, {}, [2, 3]),
        (4, 3, 4, {}, [3]),
        (1, 3, 4, {}, None),  # --gpus-per-task=1
        (2, 1, 2, {"SLURM_GPUS_PER_TASK": "2"}, None),
        (4, 0, 1, {}, None),
        (0, 1, 2, {}, None),
    ],
)
def test_gpus_of_a_process(visible, rank, size, environment, expected):
    assert engine.own_gpus([str(i) for i in range(visible)], rank, size, environment) == expected


def test_gpus_are_counted_without_starting_jax(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "installed", lambda name: True)
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert engine.visible_gpus({}, tmp_path, "") == ["nvidia0", "nvidia1"]
    assert engine.visible_gpus({"CUDA_VISIBLE_DEVICES": "3"}, tmp_path, "") == ["3"]
    assert engine.visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path, "") == []
    assert engine.visible_gpus({}, tmp_path, "cpu") == []


def test_jax_waits_longer_than_the_watchdog():
    assert heartbeat_seconds(300.0) == 900 and heartbeat_seconds(1.0) == 60
    assert heartbeat_seconds(0.0) > 86_400


def test_addresses_by_which_processes_are_reached():
    local = [("127.0.0.1", "127.0.0.1")] * 2
    assert reachable(1, local) == "127.0.0.1"
    spread = [("127.0.0.1", "127.0.0.1"), ("10.0.0.2", "10.0.0.1")]
    assert [reachable(i, spread) for i in (0, 1)] == ["10.0.0.1", "10.0.0.2"]
