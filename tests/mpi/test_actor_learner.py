"""Actors and learners on real ranks: the same run as `fused` in lock-step, repeatable, resumable, elastic.

Each job does several things, because starting jobs is what takes time. The run `dqn-elastic` is handed from
one to the next: begun with two actors, continued with one, and in the slow tier with three.
"""

import json
from collections import Counter

import numpy as np
import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.runtime.train import train
from tests.mpi import actor_learner_jobs, launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
RECORD = "run.record_schedule=true"
ELASTIC = f"dqn-elastic:{RECORD};run.total_env_steps=8192"
MAX_LAG = 3
BOUNDED = f"workflow.max_lag={MAX_LAG}"


def start(ranks, folder, *texts):
    return launch.cases("tests.mpi.actor_learner_jobs", ranks, folder, *texts)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("apart")


@pytest.fixture(scope="module")
def three(folder):
    """One learner, two actors."""
    return start(
        3,
        folder,
        f"a2c-record:{RECORD};{BOUNDED};@behind=1:4;@meet=2",
        f"a2c-replay:{BOUNDED};run.replay_schedule=FOLDER/a2c-record;run.profile=true",
        f"{ELASTIC};@signal=2:30;@meet=30;@behind=0:1",
        f"a2c-broken:{actor_learner_jobs.BROKEN};@meet=4",
    )


@pytest.fixture(scope="module")
def two(folder, three):
    """One learner, one actor."""
    lock = "workflow.lockstep=true"
    return start(
        2,
        folder,
        f"dqn-lock:{lock};workflow.actor_priorities=true",
        f"dqn-cut:{lock};workflow.actor_priorities=true;@signal=1:20",
        f"+dqn-cut:{lock};workflow.actor_priorities=true",
        f"+{ELASTIC};@signal=1:60",
    )


def test_a_large_message_of_a_busy_actor_holds_up_nobody(tmp_path):
    """Without copies across processes (CMA) data moves only while its sender calls MPI, as over networks."""
    status, output = launch.run(3, "-m", "tests.mpi.rendezvous", str(tmp_path), MPIR_CVAR_CH4_CMA_ENABLE="0")
    assert status == 0, output
    assert "[1, 0]" in output


def test_episodes_that_actors_give_up_are_counted(three):
    (found,) = three["a2c-broken"]
    assert found["finished"]
    assert found["rows"][-1]["dropped_episodes"] == 2  # one of each actor
    assert found["summary"]["dropped_episodes"] == 3  # one of the last evaluation too
    assert found["summary"]["restarted_episodes"] == 0


def check_as_fused(found, folder, case, change):
    """Within 1e-6 by contract; on one kind of machine the bits are the same."""
    config = actor_learner_jobs.config_of(case, ["workflow.name=fused", f"workflow.{change}"])
    fused = train(config, folder / "fused", say=lambda _: None).summary
    _, leaves, _ = actor_learner_jobs.Checkpointer(folder / "fused" / "checkpoints").load()
    params = [np.ravel(x) for name, x in leaves.items() if ".learner.params" in name]
    np.testing.assert_allclose(found["params"], np.concatenate(params), rtol=1e-6, atol=1e-6)
    assert found["summary"]["updates"] == fused["updates"]
    assert found["summary"]["env_steps"] == fused["env_steps"]
    expected = [row for row in read_metrics(folder / "fused").to_pylist() if row["kind"] == "train"]
    for row, other in zip(found["rows"], expected, strict=True):
        for name in set(row) & set(other) - {"wall_seconds", "kind"}:
            np.testing.assert_allclose(row[name], other[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_in_lock_step_it_is_the_fused_run(two, tmp_path):
    (found,) = two["dqn-lock"]
    check_as_fused(found, tmp_path, "dqn-lock", "actor_priorities=true")
    assert all(row["lag_max"] == 0 for row in found["rows"])


def test_a_profile_shows_all_ranks(three, folder):
    events = json.loads((folder / "a2c-replay" / "trace.json").read_text())["traceEvents"]
    phases = {rank: {e["name"] for e in events if e["pid"] == rank and e["ph"] == "X"} for rank in range(3)}
    assert {"computing", "saving"} <= phases[0]
    assert "acting" in phases[1] & phases[2]


@pytest.mark.slow
def test_with_injected_lag_too(four, tmp_path):
    (found,) = four["a2c-lag"]
    check_as_fused(found, tmp_path, "a2c-lag", "actor_lag=3")
    assert all(row["lag_max"] == 3 for row in found["rows"])


@pytest.mark.full
def test_a_run_in_lock_step_that_was_interrupted_has_the_same_bits(two):
    first, resumed = two["dqn-cut"]
    assert not first["finished"] and resumed["finished"]
    assert 0 < first["taken"] < resumed["taken"]
    assert resumed["params"] == two["dqn-lock"][0]["params"]


def test_a_replayed_run_has_the_same_bits(three, folder):
    (recorded,), (replayed,) = three["a2c-record"], three["a2c-replay"]
    assert len({actor for actor, *_ in recorded["schedule"]}) == 2
    assert recorded["summary"]["params_sha256"] == replayed["summary"]["params_sha256"]
    tables = [without_clock(read_metrics(folder / name)) for name in ("a2c-record", "a2c-replay")]
    assert str(tables[0].to_pylist()) == str(tables[1].to_pylist())
    used = [entry for entry in recorded["schedule"] if entry[3]]
    assert len(used) == 2048 // (4 * 8)


def test_a_slow_actor_does_not_hold_the_other_up_and_what_is_too_old_is_dropped(three):
    (found,) = three["a2c-record"]
    counts = Counter(actor for actor, *_ in found["schedule"])
    assert counts[0] > 3 * counts[1]
    version = 0
    for _, _, made, used in found["schedule"]:
        assert (version - made <= MAX_LAG) == bool(used)
        version += used
    assert version == 2048 // (4 * 8), "as many as the budget says, whatever is dropped"
    dropped = sum(not used for *_, used in found["schedule"])
    assert found["dropped"] == dropped == sum(row["dropped_unrolls"] for row in found["rows"])


@pytest.mark.full
def test_nothing_is_lost_at_a_checkpoint_nor_with_fewer_actors(three, two):
    """Every unroll made before a state was saved is learned from once: before the end, or when resumed."""
    (begun,), (resumed,) = three["dqn-elastic"], two["dqn-elastic"]
    assert not begun["finished"] and not resumed["finished"]
    assert begun["ids"] == resumed["ids"] == [0, 1], "the state of the actor that is not there is kept"
    assert begun["lost"] == resumed["lost"] == 0
    for found in (begun, resumed):
        assert found["taken"] == len(found["schedule"])
    assert resumed["schedule"][: begun["taken"]] == begun["schedule"]
    for actor in (0, 1):
        numbers = [sequence for a, sequence, *_ in resumed["schedule"] if a == actor]
        assert numbers == list(range(len(numbers))) and numbers
    before = sum(a == 1 for a, *_ in begun["schedule"])
    after = sum(a == 1 for a, *_ in resumed["schedule"])
    assert after <= before + begun["pending"], "of the actor that has gone only what it had sent"


@pytest.mark.parametrize(
    "change, text",
    [
        ("run.seeds=2", "one seed"),
        ("workflow.lockstep=true", "this is a job of 1 rank"),
        ("workflow.learners=3", "need 4"),
    ],
)
def test_jobs_that_cannot_be(change, text, tmp_path):
    with pytest.raises(UserError, match=text):
        train(actor_learner_jobs.config_of("a2c", [change]), tmp_path / "run", say=lambda _: None)


@pytest.fixture(scope="module")
def four(folder, two):
    """Several learners; and the elastic run goes on with more actors than ever."""
    shared = "workflow.learners=2;workflow.learner_mode=shared"
    pair = start(3, folder, f"dqn-pair:{shared};workflow.lockstep=true;workflow.actor_priorities=true")
    pair |= start(2, folder, "a2c-lag:workflow.lockstep=true;workflow.actor_lag=3")
    return pair | start(
        4,
        folder,
        f"+{ELASTIC}",
        f"a2c-own:workflow.learners=2;{RECORD};@signal=3:12",
        f"+a2c-own:workflow.learners=2;{RECORD}",
        "a2c-again:workflow.learners=2;run.replay_schedule=FOLDER/a2c-own",
    )


@pytest.mark.slow
def test_more_actors_than_before(two, four):
    (before,), (found,) = two["dqn-elastic"], four["dqn-elastic"]
    assert found["finished"] and found["ids"] == [0, 1, 2] and found["lost"] == 0
    assert found["schedule"][: before["taken"]] == before["schedule"]
    for actor in range(3):
        numbers = [sequence for a, sequence, *_ in found["schedule"] if a == actor]
        assert numbers == list(range(len(numbers))) and numbers
    assert sum(a == 1 for a, *_ in found["schedule"]) > sum(a == 1 for a, *_ in before["schedule"])


@pytest.mark.slow
def test_two_learners_that_share_batches_are_one_learner(two, four):
    """Half a batch each, and the mean of their gradients: the same up to the order of sums."""
    (one,), (pair,) = two["dqn-lock"], four["dqn-pair"]
    assert pair["summary"]["learners"] == 2 and pair["summary"]["updates"] == one["summary"]["updates"]
    np.testing.assert_allclose(pair["params"], one["params"], rtol=2e-3, atol=2e-4)
    for row, other in zip(pair["rows"], one["rows"], strict=True):
        np.testing.assert_allclose(row["loss"], other["loss"], rtol=2e-3)


@pytest.mark.slow
def test_learners_with_actors_of_their_own_can_be_resumed_and_replayed(folder, four):
    begun, resumed = four["a2c-own"]
    (again,) = four["a2c-again"]
    assert not begun["finished"] and resumed["finished"]
    assert resumed["summary"]["params_sha256"] == again["summary"]["params_sha256"]
    for learner in (0, 1):
        entries = actor_learner_jobs.schedule(folder / "a2c-own", learner)
        assert [entry[:2] for entry in entries] == [[learner, number] for number in range(len(entries))]


@pytest.mark.slow
def test_a_simulator_that_never_answers_ends_the_job_with_who_waits_for_whom(tmp_path):
    case = "a2c-hang:workflow.deadline_seconds=4;@hang=0:5"
    status, output = launch.run(2, "-m", "tests.mpi.actor_learner_jobs", str(tmp_path), case)
    assert status == 76, output
    named = "watchdog of rank 1 (acting, chunk 5): no progress" in output
    assert named or "watchdog of rank 0 (waiting for unrolls of actors on rank 1" in output, output


@pytest.mark.full
def test_a_replay_that_takes_several_unrolls_at_once_is_repeatable(tmp_path):
    lazy = "workflow.batch_trajectories=4"
    found = start(
        3,
        tmp_path,
        f"dqn-lazy:{lazy};{RECORD}",
        f"dqn-again:{lazy};run.replay_schedule=FOLDER/dqn-lazy",
    )
    (first,), (again,) = found["dqn-lazy"], found["dqn-again"]
    assert first["taken"] == 64 and first["summary"]["env_steps"] == 2048
    assert first["params"] == again["params"]


@pytest.mark.full
def test_sac_in_lock_step_is_the_fused_run(tmp_path):
    (found,) = start(2, tmp_path, "sac-lock:workflow.lockstep=true")["sac-lock"]
    check_as_fused(found, tmp_path, "sac-lock", "num_envs=4")
    assert found["summary"]["updates"] > 100


@pytest.mark.full
def test_planners_of_mbpo_are_repeatable(tmp_path):
    """Two planners and an actor; that planners are equal at the end of every chunk is checked there."""
    replayed = "run.replay_schedule=FOLDER/mbpo-planned"
    found = start(3, tmp_path, f"mbpo-planned:{RECORD}", f"mbpo-again:{replayed}")
    (first,), (again,) = found["mbpo-planned"], found["mbpo-again"]
    assert first["finished"] and first["params"] == again["params"]
    assert first["summary"]["updates"] > 100
    assert 0 < first["rows"][-1]["simulated_used"] < 1.001


@pytest.mark.full
@pytest.mark.parametrize("how", ["workflow.average_every=3", "workflow.overlap=true"])
def test_learners_that_average_otherwise_are_equal_and_repeatable(tmp_path, how):
    """That they are equal at the end of every chunk is checked there (`compare_replicas`)."""
    often = f"workflow.learners=2;{how}"
    found = start(
        4,
        tmp_path,
        f"a2c-averaged:{often};{RECORD}",
        f"a2c-again:{often};run.replay_schedule=FOLDER/a2c-averaged",
    )
    (first,), (again,) = found["a2c-averaged"], found["a2c-again"]
    assert first["finished"] and again["finished"]
    assert first["summary"]["params_sha256"] == again["summary"]["params_sha256"]
