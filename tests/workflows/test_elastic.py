"""Learners whose actors come and go: exact accounts whatever happens, and one sentence for what is wrong."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from jaxrl_hpc import config as configs
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs import address
from jaxrl_hpc.runtime.acting import act
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.train import train
from tests.holding import Hold
from tests.workflows import elastic_jobs
from tests.workflows.elastic_jobs import accounts, disturb, learner, lives, processes

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
    assert outcome.finished and said[-1] == "the run is finished" and said[0].startswith("actor 0 of ")
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


def test_what_actors_are_told(tmp_path):
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
    address.write_own(other, 1, "k" * 40, "t")
    with pytest.raises(UserError, match=r"actors cannot join a run of workflow 'async'"):
        act(other, 0.0)
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
    with pytest.raises(UserError, match=r"waited 0 s for .* cannot be reached at"):
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
    made = data(total_env_steps=total * STEPS)
    folder = tmp_path / "run"
    with processes() as started:
        started.append(learner(written(tmp_path, made), folder))
        disturb(folder, fates, started, at_once=3, seconds=1500)
        output = started[0].communicate(timeout=600)[0]
        assert started[0].returncode == 0, output
        for process in started[-3:]:
            assert process.communicate(timeout=60)[0] and process.returncode == 0
    summary = accounts(folder, STEPS)
    assert summary["lost_actors"] == 20 and summary["joined_actors"] == 27 and summary["left_actors"] == 7
    assert summary["learned_unrolls"] == total
    assert output.count("was lost") == 20 and output.count("has joined") == 27


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_learner_is_killed_and_another_goes_on(tmp_path):
    """The actors wait for it, and are given their streams as the checkpoint has them."""
    made = data(total_env_steps=200 * STEPS, checkpoint_seconds=0.001)
    config, folder = written(tmp_path, made), tmp_path / "run"
    hold = Hold(tmp_path / "hold", env_steps=50 * STEPS)  # of 200
    with processes() as started:
        started.append(learner(config, folder, **hold.environment))
        actors = [elastic_jobs.actor(folder) for _ in range(2)]
        started += actors
        until(lambda: progress(folder) >= 50 * STEPS, started[0])
        started[0].send_signal(signal.SIGKILL)
        started[0].communicate()
        assert (folder / address.NAME).exists()
        started.append(learner(config, folder, "--resume"))
        output = started[-1].communicate(timeout=900)[0]
        assert started[-1].returncode == 0, output
        assert "resumed at" in output
        for actor in actors:
            text = actor.communicate(timeout=60)[0]
            assert actor.returncode == 0, text
            assert "has ended" in text and text.count("actor ") >= 2, text
    summary = accounts(folder, STEPS)
    assert summary["learned_unrolls"] == 200
    assert summary["joined_actors"] >= 2


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_signals_to_the_learner_and_to_actors(tmp_path):
    """A learner that nobody sends anything to saves; so does one in the midst, whose actors end with 75."""
    made = data(total_env_steps=100_000 * STEPS, checkpoint_seconds=0.001)
    config, folder = written(tmp_path, made), tmp_path / "run"
    with processes() as started:
        first = learner(config, folder)
        started.append(first)
        until(lambda: (folder / address.NAME).exists(), first)
        first.send_signal(signal.SIGTERM)
        output = first.communicate(timeout=300)[0]
        assert first.returncode == 75 and "SIGTERM: saved at" in output, output
        again = learner(config, folder, "--resume")
        actor = elastic_jobs.actor(folder)
        started += [again, actor]
        until(lambda: progress(folder) > 0, again)
        again.send_signal(signal.SIGUSR1)
        output = again.communicate(timeout=300)[0]
        assert again.returncode == 75 and "SIGUSR1: saved at" in output, output
        text = actor.communicate(timeout=300)[0]
        assert actor.returncode == 75 and "asked to stop" in text, text
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
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"not within {seconds} s"
        threading.Event().wait(0.02)  # between looks
