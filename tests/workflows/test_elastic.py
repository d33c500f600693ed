"""Learners whose actors come and go: exact accounts whatever happens, and one sentence for what is wrong."""

import contextlib
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import yaml

from jaxrl_hpc import config as configs
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs import address
from jaxrl_hpc.runtime.acting import act
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.workflows.actor_learner.elastic_mailbox import ElasticMailbox, WaitEnded, WaitRules
from tests.holding import Hold
from tests.workflows import elastic_jobs
from tests.workflows.elastic_jobs import (
    ActorProcess,
    LearnerProcess,
    accounts,
    disturb,
    lives,
    processes,
)

pytest.importorskip("zmq")
STEPS = 4 * 8  # of an unroll
RUN = {"log_every": 640, "eval_every": 0, "eval_episodes": 4, "final_eval_episodes": 4, "tensorboard": False}
A2C = {
    "agent": {"name": "a2c", "network": {"hidden": [16]}},
    "env": {"name": "CartPole-v1"},
    "workflow": {"name": "elastic", "num_envs": 4, "unroll_length": 8, "actors": 4},
    "run": {"total_env_steps": 60 * STEPS, "record_schedule": True, **RUN},
}


def data(**changes):
    made = json.loads(json.dumps(A2C))
    for text in changes.pop("also", ()):
        configs.apply_override(made, text)
    made["run"] |= changes
    return made


def written(tmp_path, made):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(made))
    return path


def test_a_learner_and_an_actor(tmp_path):
    """In one process, for once; the actor comes first."""
    said, folder = [], tmp_path / "run"
    with ThreadPoolExecutor(1) as pool:
        actor = pool.submit(act, folder, 300.0, say=said.append)
        outcome = train(configs.from_dict(data()), folder, say=lambda _: None)
        assert actor.result() == 0
    first = "waiting up to 300 s" in said[0]  # or the learner was there before it
    assert outcome.finished and said[-1] == "the run is finished" and said[first].startswith("actor 0 of ")
    summary = accounts(folder, STEPS)
    assert (summary["joined_actors"], summary["left_actors"], summary["learned_unrolls"]) == (1, 1, 60)
    assert not (folder / address.NAME).exists(), "nobody is waited for any more"
    assert act(folder, 0.0, say=said.append) == 0 and said[-1].endswith("there is nothing left to act for")


def test_nobody_comes(tmp_path):
    """The learner saves and says what it waited for; then it goes on."""
    folder, made = tmp_path / "run", data(also=["workflow.deadline_seconds=0.2"])
    outcome = train(configs.from_dict(made), folder, say=lambda _: None)
    assert not outcome.finished
    with ThreadPoolExecutor(1) as pool:
        actor = pool.submit(act, folder, 300.0, say=lambda _: None)
        made["workflow"]["deadline_seconds"] = 300.0
        assert train(configs.from_dict(made), folder, resume=True, say=lambda _: None).finished
        assert actor.result() == 0
    assert accounts(folder, STEPS)["learned_unrolls"] == 60


@pytest.mark.parametrize(
    "there, joined, unroll, text",
    [
        (0, 200, 200, None),
        (0, 301, 301, "no actor is connected"),
        (2, 3000, 3000, None),
        (2, 3601, 3601, "none arrived from 2 connected actors"),
        (0, 1, 3000, None),
        (0, 1, 3601, "waited 3601 s for unrolls, and no actor is connected"),
    ],
)
def test_a_learner_does_not_wait_for_ever(there, joined, unroll, text):
    """Not for actors that compile, nor for ones that join and fail, again and again. Seconds ago."""
    now = time.monotonic()
    channel = SimpleNamespace(
        members=dict.fromkeys(range(there)),
        delivered=False,
        last_event=now - joined,
        last_unroll=now - unroll,
    )
    mailbox = ElasticMailbox.__new__(ElasticMailbox)
    mailbox.channel, mailbox.rules = channel, WaitRules(lambda: 0, 300.0)
    with pytest.raises(WaitEnded, match=text) if text else contextlib.nullcontext():
        mailbox._check(now - 10_000)


class Said(Exception):
    pass


def test_what_actors_are_told(tmp_path):
    def say(text):
        raise Said(text)

    with pytest.raises(
        Said, match=r"none: waiting up to 60 s \(--wait\) for a learner \(there is no such folder\)"
    ):
        act(tmp_path / "none", 60.0, say=say)
    with pytest.raises(UserError, match=r"waited 0 s for a learner \(there is no such folder\)"):
        act(tmp_path / "none", 0.0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"waited 0 s for a learner \(it has no actors\.json\)"):
        act(tmp_path / "empty", 0.0)
    other = tmp_path / "other"
    other.mkdir()
    made = data(also=["workflow.name=async"])
    del made["workflow"]["actors"]
    (other / "config.yaml").write_text(yaml.safe_dump(made))
    with pytest.raises(UserError, match=r"actors cannot join a run of workflow 'async'"):
        act(other, 3600.0)  # at once, not when it has waited for a learner
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.yaml").write_text(yaml.safe_dump(data(also=["agent.name=nowhere.at_all:make"])))
    address.write_own(mine, 1, "k" * 40, "t")
    with pytest.raises(UserError, match=r"repeat the command with --trust"):
        act(mine, 0.0)


def test_the_learner_of_an_address_is_gone(tmp_path):
    """Its file was left behind when it was killed."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(data()))
    address.write_own(tmp_path, 9, "k" * 40, "t")
    with pytest.raises(UserError, match=r"waited 0 s for a learner \(the learner, process"):
        act(tmp_path, 0.0)


@pytest.mark.parametrize(
    "changes, text",
    [
        (["workflow.lockstep=true"], "workflow.lockstep"),
        (["workflow.learners=2"], "workflow.learners"),
        (["workflow.actor_lag=1"], "workflow.actor_lag"),
        (["workflow.listen='a b'"], "workflow.listen"),
        (["workflow.actors=0"], "workflow.actors"),
    ],
)
def test_settings_that_make_no_sense(changes, text):
    with pytest.raises(UserError, match=text):
        build(configs.from_dict(data(also=changes)))


@pytest.mark.parametrize(
    "changes, text",
    [(["run.seeds=2"], "run.seeds is 2"), (["run.replay_schedule=x"], "run.replay_schedule: actors that")],
)
def test_jobs_that_make_no_sense(tmp_path, changes, text):
    with pytest.raises(UserError, match=text):
        train(configs.from_dict(data(also=changes)), tmp_path / "run", say=lambda _: None)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_twenty_kills_and_joins(tmp_path):
    """Kills before, after and in the midst of sending; some leave. They cannot finish the run alone."""
    fates = lives(20, 4, longest=25, seed=int(os.environ.get("ELASTIC_SEED", "1")))
    total = sum(unrolls for unrolls, _ in fates) + 60
    config, folder = written(tmp_path, data(total_env_steps=total * STEPS)), tmp_path / "run"
    with processes() as started:
        learner = LearnerProcess(config, folder)
        started.append(learner)
        staying = disturb(folder, fates, started, at_once=3, seconds=1500)
        assert learner.finish(600) == 0, learner.text
        for actor in staying:
            assert actor.finish(600) == 0, actor.text
        for actor in started[1:]:
            expected = {"leave": 75, "stay": 0}.get(actor.how, -signal.SIGKILL)
            assert actor.finish(600) == expected, f"{actor.how}\n{actor.text}"
    summary = accounts(folder, STEPS)
    assert summary["lost_actors"] == 20 and summary["learned_unrolls"] == total
    assert 24 < summary["joined_actors"] == learner.text.count("has joined") <= 27, "all, but for late ones"
    assert learner.text.count("was lost") == 20


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_learner_is_killed_and_another_goes_on(tmp_path):
    """The actors wait for it, and are given their streams as the checkpoint has them."""
    made = data(total_env_steps=200 * STEPS, checkpoint_seconds=0.001)
    config, folder = written(tmp_path, made), tmp_path / "run"
    hold = Hold(tmp_path / "hold", env_steps=50 * STEPS)  # of 200
    with processes() as started:
        first = LearnerProcess(config, folder, **hold.environment)
        started.append(first)
        actors = [ActorProcess(folder) for _ in range(2)]
        started += actors
        until(lambda: progress(folder) >= 50 * STEPS, first)
        first.signal(signal.SIGKILL)
        first.finish(600)
        assert (folder / address.NAME).exists()
        second = LearnerProcess(config, folder, "--resume")
        started.append(second)
        assert second.finish(900) == 0, second.text
        assert "resumed at" in second.text
        for actor in actors:
            assert actor.finish(600) == 0, actor.text
        assert all("has ended" in actor.text for actor in actors if "(the learner" in actor.text)
        assert sum(actor.text.count("(the learner, process") for actor in actors) >= 2, "they joined again"
    summary = accounts(folder, STEPS)
    assert summary["learned_unrolls"] == 200 and summary["lost_actors"] >= 1


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_signals_to_the_learner_and_to_actors(tmp_path):
    """A learner that nobody sends anything to saves; so does one in the midst, whose actors end with 75."""
    made = data(total_env_steps=100_000 * STEPS, checkpoint_seconds=0.001)
    config, folder = written(tmp_path, made), tmp_path / "run"
    with processes() as started:
        first = LearnerProcess(config, folder)
        started.append(first)
        until(lambda: (folder / address.NAME).exists(), first)
        first.signal(signal.SIGTERM)
        assert first.finish(600) == 75, first.text
        assert "SIGTERM: saved at" in first.text
        again, actor = LearnerProcess(config, folder, "--resume"), ActorProcess(folder)
        started += [again, actor]
        until(lambda: progress(folder) > 0, again)
        again.signal(signal.SIGUSR1)
        assert again.finish(600) == 75, again.text
        assert "SIGUSR1: saved at" in again.text
        assert actor.finish(600) == 75 and "asked to stop" in actor.text, actor.text
    kept = elastic_jobs.saved(folder)
    joined, left, lost, acknowledged, _ = kept["counts"].tolist()
    assert (joined, left, lost) == (1, 1, 0)
    assert acknowledged == kept["taken"] + len(kept["pending"])


def progress(folder):
    path = folder / "progress.json"
    return json.loads(path.read_text())["env_steps"] if path.exists() else 0


def until(condition, process, seconds=600):
    """Poll what is recorded, while a process lives."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, (process.finish(600), process.text)
        assert time.monotonic() < deadline, f"not within {seconds} s"
        threading.Event().wait(0.02)  # between looks
