"""Workflows over windows on real ranks: the run of `async` by other means, with the same guarantees.

What is between ranks is tested in test_one_sided.py, the workflow in test_actor_learner.py.
"""

import json
import os
import signal
import sys
import time
from collections import Counter

import numpy as np
import pytest
import yaml

from jaxrl_hpc.runtime.train import train
from tests.mpi import actor_learner_jobs, launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
LOCK = "workflow.lockstep=true;workflow.actor_priorities=true"
RANDOM = "workflow.name=rma;workflow.learners=2;workflow.selection=random"


def start(ranks, folder, *texts):
    """(results of rank 0 by case, output)"""
    return launch.cases("tests.mpi.actor_learner_jobs", ranks, folder, *texts)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """One learner, one actor."""
    return start(
        2,
        tmp_path_factory.mktemp("windows"),
        f"dqn-rma:workflow.name=rma;{LOCK};@signal=1:20",
        f"+dqn-rma:workflow.name=rma;{LOCK}",
        f"dqn-queue:workflow.name=rma_queue;{LOCK}",
        f"dqn-without:workflow.name=rma;{LOCK};@windows=rank 1 says no",
    )


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """(summary, parameters) of the same run in one process."""
    folder = tmp_path_factory.mktemp("fused") / "run"
    config = actor_learner_jobs.config_of("dqn", ["workflow.name=fused", "workflow.actor_priorities=true"])
    summary = train(config, folder, say=lambda _: None).summary
    _, leaves, _ = actor_learner_jobs.Checkpointer(folder / "checkpoints").load()
    params = [np.ravel(x) for name, x in leaves.items() if ".learner.params" in name]
    return summary, np.concatenate(params)


@pytest.mark.full
@pytest.mark.parametrize("case", ["dqn-rma", "dqn-queue", "dqn-without"])
def test_in_lock_step_it_is_the_fused_run(two, fused, case):
    """Within 1e-6 by contract. That of rma was interrupted and resumed."""
    found, (summary, params) = two[0][case][-1], fused
    np.testing.assert_allclose(found["params"], params, rtol=1e-6, atol=1e-6)
    assert found["finished"] and found["summary"]["env_steps"] == summary["env_steps"]
    assert all(row["lag_max"] == 0 for row in found["rows"])


@pytest.mark.full
def test_a_run_that_is_interrupted_goes_on(two):
    first, resumed = two[0]["dqn-rma"]
    assert not first["finished"] and 0 < first["taken"] < resumed["taken"]
    assert resumed["params"] == two[0]["dqn-queue"][0]["params"]


@pytest.mark.full
def test_without_windows_it_says_so_once_and_goes_on_with_messages(two):
    said = [line for line in two[1].splitlines() if "one-sided memory" in line]
    assert said == ["one-sided memory cannot be used here (rank 1 says no); using two-sided messages instead"]


def accounts(folder, learners):
    """(unrolls made by all actors, learned from or too old, kept, lost), from the newest checkpoint."""
    kept = [actor_learner_jobs.kept(folder, learner) for learner in range(learners)]
    made = sum(int(state[-64:-56].view(np.int64)[0]) for one in kept for state in one["states"])
    rest = np.array([[one["taken"], len(one["pending"]), one["lost"]] for one in kept])
    return made, *rest.sum(axis=0).tolist()


@pytest.mark.slow
def test_several_learners_take_from_anyone_and_every_unroll_is_accounted_for(tmp_path):
    random = f"a2c-random:{RANDOM}"
    drop = f"a2c-drop:{RANDOM};workflow.when_full=drop_oldest;workflow.in_flight=1"
    more = "run.total_env_steps=6144"
    found, _ = start(
        5,
        tmp_path,
        f"{random};{more};@signal=3:20",
        f"{random};{more}".replace("a2c", "+a2c", 1),
        f"{drop};{more}",
        "dqn-help:workflow.name=rma_queue;workflow.learners=2;@slow=1:0.25",
        f"a2c-slow:workflow.name=rma;run.record_schedule=true;{more};@slow=1:0.25",
        f"a2c-replay:workflow.name=rma;{more};run.replay_schedule=FOLDER/a2c-slow",
    )
    assert [run["finished"] for run in found["a2c-random"]] == [False, True]
    for name in ("a2c-random", "a2c-drop", "dqn-help"):
        made, taken, pending, lost = accounts(tmp_path / name, 2)
        assert made == taken + pending + lost, name
        assert (lost > 0) == (name == "a2c-drop")
        assert found[name][-1]["finished"]
    assert "collisions" in found["a2c-random"][-1]["rows"][-1]
    assert sum(row["helped"] for row in found["dqn-help"][-1]["rows"]) > 0
    counts = Counter(actor for actor, *_ in found["a2c-slow"][0]["schedule"])
    assert 2 * counts[1] < counts.total() / 4, "a slow actor holds nobody up"
    recorded, replayed = (found[name][0]["params"] for name in ("a2c-slow", "a2c-replay"))
    assert recorded == replayed, "the same bits when its schedule is replayed"


@pytest.mark.slow
def test_a_killed_actor_ends_the_job_and_is_named_and_the_run_goes_on(tmp_path):
    data = json.loads(json.dumps(actor_learner_jobs.A2C))
    data["workflow"] |= {"name": "rma_queue"}
    data["run"] |= {"total_env_steps": 65_536, "checkpoint_seconds": 0.5}
    config, folder = tmp_path / "queue.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(data))
    restart = str(launch.ROOT / "scripts" / "mpi_restart.py")
    command = ["-m", "jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder)]
    process = launch.start(1, restart, "-n", "3", sys.executable, *command)
    store, record = (
        actor_learner_jobs.Checkpointer(folder / "checkpoints" / "shared"),
        folder / "ranks" / "2.json",
    )
    while not (record.exists() and store.latest()):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    pid = json.loads(record.read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    status, output = launch.finish(process, 900)
    assert status == 0, output
    assert f"rank 2 (process {pid} on" in output and "died while" in output, output
    made, taken, pending, lost = accounts(folder, 1)
    assert made == taken + pending and lost == 0 and taken == 65_536 // 32
