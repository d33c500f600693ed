"""Runs and sweeps as objects: trained, loaded, compared, shown in a notebook."""

import contextlib
import io
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxrl_hpc as rl
from jaxrl_hpc.api import notebook
from jaxrl_hpc.api.training import flat
from jaxrl_hpc.metrics.progress import Progress
from jaxrl_hpc.runs.naming import BATCH_JOBS
from jaxrl_hpc.runtime.evaluation import load_run

SETTINGS = {
    "agent": {"name": "dqn", "n_step": 3, "batch_size": 16, "network": {"hidden": [16]}},
    "env": {"name": "CartPole-v1"},
    "replay": {"name": "uniform", "capacity": 2048, "min_size": 200},
    "workflow": {"name": "fused", "num_envs": 4},
    "run": {
        "log_every": 400,
        "eval_every": 400,
        "eval_episodes": 4,
        "final_eval_episodes": 8,
        "tensorboard": False,
    },
}
SIZES = {"steps": 1200, "seeds": 2}  # always the same, so that all runs share compiled programs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(folder):
    return rl.train(SETTINGS, run_dir=folder / "one", quiet=True, **SIZES, **{"agent.gamma": 0.9})


@pytest.fixture(scope="module")
def other(folder):
    return rl.train(SETTINGS, run_dir=folder / "other", quiet=True, agent={"gamma": 0.5}, **SIZES)


def test_a_run_knows_what_it_was_and_what_it_reached(run, folder):
    assert run.finished and run.path == folder / "one" and run.name == "one"
    assert run.config["agent"]["gamma"] == 0.9 and run.config["run"]["seeds"] == 2
    assert run.summary["env_steps"] == 1200 and "one" in repr(run)
    table = run.metrics
    assert {*table["kind"].to_pylist()} == {"train", "eval"} and {*table["seed"].to_pylist()} == {0, 1}
    assert "eval_return" in table.to_pandas().columns


def test_a_loaded_run_is_the_same(run):
    loaded = rl.load(run.path)
    assert loaded.summary == run.summary and loaded.metrics.equals(run.metrics)


def test_a_run_trained_again_from_its_config_is_equal(run, folder):
    again = rl.train(run.config, run_dir=folder / "again", quiet=True)
    assert again.summary["params_sha256"] == run.summary["params_sha256"]


def test_evaluate_uses_the_environment_that_it_is_told(run):
    found = run.evaluate(4, **{"env.params": {"max_steps_in_episode": 5}})
    assert found["episodes"] == 4 and found["eval_return_score"] <= 5
    with pytest.raises(rl.UserError, match="the environment only"):
        run.evaluate(4, **{"agent.gamma": 0.5})


def test_a_policy_acts_as_the_agent_does(run):
    policy = run.policy(seed=1)
    _, runner = load_run(run.path)
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 5)
    expected, _, _ = runner.parts.agent.act(
        runner.actor(1), runner.parts.agent.carry(np.arange(5)), obs, keys, True
    )
    assert np.array_equal(policy(obs), expected)
    assert [int(policy(row)) for row in obs] == expected.tolist()
    assert not policy.has_memory and policy(obs[0]).shape == ()
    exploring = run.policy(greedy=False)
    assert len({int(action) for _ in range(20) for action in exploring(obs)}) == 2
    for wrong, words in ((np.zeros(3), r"has shape \[3\]"), (np.zeros((2, 2, 4)), r"have \[4\]")):
        with pytest.raises(rl.UserError, match=words):
            policy(wrong)
    with pytest.raises(rl.UserError, match="has no seed 9; it has 0, 1"):
        run.policy(seed=9)


def test_a_policy_plays_in_a_loop_of_gymnasium(run):
    env = gymnasium.make("CartPole-v1")
    policy, (obs, _), done = run.policy(), env.reset(seed=0), False
    while not done:
        obs, _, terminated, truncated, _ = env.step(policy(obs))
        done = terminated or truncated
    env.close()


@pytest.mark.full
def test_a_policy_remembers_until_it_is_reset(tmp_path):
    settings = SETTINGS | {
        "agent": {"name": "recurrent_dqn", "lstm": 8, "length": 4, "network": {"hidden": [8]}}
    }
    settings["replay"] = {"name": "sequence", "capacity": 2048, "min_size": 200}
    policy = rl.train(settings, run_dir=tmp_path / "run", steps=800, quiet=True).policy()
    assert policy.has_memory and "memory" in repr(policy)
    obs = np.ones(4, np.float32)
    policy(obs)
    kept = policy._carry
    first, once = policy.act(obs)
    assert jax.tree.all(jax.tree.map(np.array_equal, kept, once))
    second, twice = policy.act(obs, once)
    assert not jax.tree.all(jax.tree.map(np.array_equal, once, twice)) and first.shape == second.shape == ()
    with pytest.raises(rl.UserError, match="when episodes begin"):
        policy(np.ones((3, 4)))
    policy.reset()
    assert policy(np.ones((3, 4))).shape == (3,)


def test_figures_and_pages(run, other, folder):
    assert isinstance(run.plot(), Figure) and isinstance(run.plot("loss"), Figure)
    with pytest.raises(rl.UserError, match="nothing logged 'los'; did you mean loss"):
        run.plot("los")
    both = rl.compare([run, other.path])
    assert len(both.plot().axes[0].lines) > len(run.plot().axes[0].lines)
    assert both.table["eval_return"].to_pylist() == [r.summary["eval_return_score"] for r in (run, other)]
    assert both.report() == folder / "comparison.html" and both.report().stat().st_size > 10_000
    assert run.report() == run.path / "report.html" and run.report().exists()
    assert {path.suffix for path in run.play(frames=4)} == {".gif", ".png"}
    with pytest.raises(rl.UserError, match="at least one run"):
        rl.compare([])


def test_export_gives_a_folder_that_acts(run):
    folder = run.export()
    assert folder == run.path / "export" and (folder / "policy.py").is_file()


def test_shown_in_a_notebook(run, other):
    page = run._repr_html_()
    assert "<svg" in page and "CartPole-v1" in page and "1,200" in page
    assert str(other.path) in rl.compare([run, other])._repr_html_()
    assert "&lt;" in notebook.facts({"name": "<script>"}) and "<script>" not in notebook.facts(
        {"a": "<script>"}
    )


def test_quiet_prints_nothing(tmp_path):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        rl.train(SETTINGS, run_dir=tmp_path / "quiet", steps=1200, quiet=True)
    assert out.getvalue() == err.getvalue() == ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        rl.train(SETTINGS, run_dir=tmp_path / "loud", steps=1200)
    assert "compiling" in out.getvalue() and "done after" in err.getvalue()


def test_progress_in_a_notebook(monkeypatch):
    """One bar that is drawn anew; its display is a stand-in for a browser's."""
    from IPython import display

    drawn = []

    class Handle:
        def update(self, page):
            drawn.append(page.data)

    monkeypatch.setattr(display, "display", lambda page, display_id: drawn.append(page.data) or Handle())
    with notebook.InNotebook(total=100, name="a <run>") as progress:
        progress.update(50, {"return": 3.0})
        progress.update(100)
    assert [
        f'value="{share}"' in page for share, page in zip(("0.000", "0.500", "1.000"), drawn, strict=False)
    ]
    assert "return 3" in drawn[1] and "a &lt;run&gt;" in drawn[0] and "done" in drawn[-1]
    assert notebook.progress(quiet=False) is Progress and notebook.progress(quiet=True) is notebook.Silent


def test_resume_and_overwrite(run, folder):
    with pytest.raises(rl.UserError, match="exists already"):
        rl.train(run.config, run_dir=run.path, quiet=True)
    assert rl.train(run.config, run_dir=run.path, resume=True, quiet=True).summary == run.summary
    with pytest.raises(rl.UserError, match="choose one of them"):
        rl.train(run.config, run_dir=run.path, resume=True, overwrite=True)
    first = rl.train(SETTINGS, run_dir=folder / "over", steps=1200, quiet=True)
    rl.train(SETTINGS, run_dir=folder / "over", steps=1200, seed=5, overwrite=True, quiet=True)
    assert {*first.summary["eval_return_per_seed"]} == {"5"}  # the object reads its folder


def test_runs_without_a_name_get_a_number(monkeypatch, tmp_path):
    """Training is stood in for by a function that only notes where it is to happen."""
    monkeypatch.chdir(tmp_path)
    for variable in BATCH_JOBS:
        monkeypatch.delenv(variable, raising=False)
    places = []

    def noted(config, folder, **_):
        places.append(folder)
        (folder / "config.yaml").write_text("{}")

    monkeypatch.setattr("jaxrl_hpc.runtime.train.train", noted)
    plain = {section: SETTINGS[section] for section in ("agent", "env", "replay")}
    for config in (plain, plain, "cartpole_dqn", "cartpole_dqn"):
        rl.train(config, quiet=True)
    assert [path.name for path in places] == [
        "CartPole-v1_dqn",
        "CartPole-v1_dqn-2",
        "cartpole_dqn",
        "cartpole_dqn-2",
    ]
    rl.train("cartpole_dqn", name="cartpole_dqn", quiet=True)  # named: training itself refuses it
    rl.train("cartpole_dqn", resume=True, quiet=True)
    monkeypatch.setenv(BATCH_JOBS[0], "7")
    rl.train("cartpole_dqn", quiet=True)
    assert [path.name for path in places[4:]] == ["cartpole_dqn"] * 3

    monkeypatch.setattr("jaxrl_hpc.runtime.train.train", lambda *_, **__: 1 / 0)
    monkeypatch.delenv(BATCH_JOBS[0])
    with pytest.raises(ZeroDivisionError):
        rl.train("cartpole_ppo", quiet=True)
    assert not (tmp_path / "runs" / "cartpole_ppo").exists()


def test_an_unfinished_run_says_so(tmp_path, run):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text((run.path / "config.yaml").read_text())
    (tmp_path / "half" / "metrics").mkdir()
    half = rl.load(tmp_path / "half")
    assert not half.finished and "not finished" in repr(half) and "not finished" in half._repr_html_()
    with pytest.raises(rl.UserError, match="has not finished"):
        half.summary  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cartpole_dq", {}), "there is no config file 'cartpole_dq'; did you mean cartpole_dqn"),
        (("cartpole_dqn", {"n_step": 3}), r'did you mean \*\*{"agent.n_step": 3}'),
        (("cartpole_dqn", {"log_every": 3}), r'did you mean \*\*{"run.log_every": 3}'),
        (("cartpole_dqn", {"agent": 3}), "give the section as a mapping"),
        (("cartpole_dqn", {"nothing": 1}), "there is no such argument; settings are given by dotted names"),
        (("cartpole_dqn", {"agent.n_stp": 3}), "override agent.n_stp: unknown key; did you mean n_step"),
        (("cartpole_dqn", {"seeds": "four"}), "run.seeds: should be a valid integer"),
        (("cartpole_dqn", {"agent.gamma": object()}), "agent.gamma: should be a number, a text, a list"),
        (({"agent": {"name": "dqn"}}, {}), "env: this section is missing"),
        ((3, {}), "should be a name, a path or a mapping"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, words, tmp_path):
    config, settings = arguments
    with pytest.raises(rl.UserError, match=words) as error:
        rl.train(config, run_dir=tmp_path / "run", **settings)
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_a_section_changes_only_what_it_names():
    assert flat({"agent": {"network": {"hidden": (8,)}, "gamma": np.float32(0.5)}}) == {
        "agent.network.hidden": [8],
        "agent.gamma": 0.5,
    }
    assert flat({"env.params": {"a": 1}}) == {"env.params": {"a": 1}}  # as a whole


def test_what_is_not_a_run(tmp_path):
    with pytest.raises(rl.UserError, match="there is no run directory"):
        rl.load(tmp_path / "nothing")
    (tmp_path / "plans").mkdir()
    with pytest.raises(rl.UserError, match=r"use rl\.Sweep"):
        rl.load(tmp_path)
    with pytest.raises(rl.UserError, match="no plans"):
        rl.Sweep(tmp_path)


@pytest.fixture(scope="module")
def swept(folder):
    """Two step sizes and two seeds: one program, so one task, in this process."""
    axes = {"agent.learning_rate": [1e-3, 1e-2]}
    return rl.sweep(SETTINGS, axes=axes, seeds=2, steps=1200, run_dir=folder / "sweep", quiet=True)


def test_a_sweep_of_a_config(swept):
    assert swept.finished and swept.trials == 4 and len(swept.standings) == 2
    assert {*swept.best} == {"agent.learning_rate"}
    assert swept.table.num_rows == 4 and {*swept.table["status"].to_pylist()} == {"finished"}
    assert swept.best["agent.learning_rate"] == swept.standings[0].values["agent.learning_rate"]
    assert isinstance(swept.plot(), Figure) and swept.report().exists()
    assert "4 of 4 trials done" in repr(swept) and "agent.learning_rate" in swept._repr_html_()
    assert rl.Sweep(swept.path).standings == swept.standings


def test_a_sweep_that_is_finished_is_not_run_again(swept, capsys):
    before = {path: path.stat().st_mtime_ns for path in swept.path.rglob("summary.json")}
    axes = {"agent.learning_rate": (1e-3, 1e-2)}
    again = rl.sweep(SETTINGS, axes=axes, seeds=2, steps=1200, run_dir=swept.path)
    assert {path: path.stat().st_mtime_ns for path in again.path.rglob("summary.json")} == before
    assert "all 4 trials have a result" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"axes": {"agent.learning_rates": [1]}},
            "agent.learning_rates: unknown key; did you mean learning_rate",
        ),
        ({"axes": {"gamma": [1]}}, "should be a dotted name"),
        ({"axes": {"agent.gamma": 0.9}}, r"agent.gamma should be a list of values, .* \(it is 0.9\)"),
        ({"axes": {"agent.gamma": {"log_uniform": [0.1, 0.9]}}}, "set the number of draws"),
        ({"axes": {"agent.gamma": [0.9]}, "gamma": 0.9}, r'did you mean \*\*{"agent.gamma": 0.9}'),
        ({"jobs": 0, "axes": {"agent.n_step": [1, 2]}}, "jobs: should be at least 1"),
        ({}, "base: is missing"),
    ],
)
def test_wrong_sweeps_are_one_sentence(arguments, words, tmp_path):
    with pytest.raises(rl.UserError, match=words):
        rl.sweep(SETTINGS if "axes" in arguments else {"seeds": 1}, run_dir=tmp_path / "sweep", **arguments)


def test_a_sweep_has_a_folder_of_its_own(monkeypatch, tmp_path):
    """Nothing is written but in runs/sweeps/<name>. Its task is stood in for by one that fails at once."""
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(
        "jaxrl_hpc.api.sweep.run_task", lambda plan, directory, *_: seen.append(directory) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        rl.sweep(SETTINGS, axes={"agent.gamma": [0.9]}, name="mine", quiet=True)
    assert seen[0].path == Path("runs/sweeps/mine") and [p.name for p in tmp_path.iterdir()] == ["runs"]


@pytest.mark.full
def test_a_sweep_of_several_tasks_runs_in_processes_of_its_own(tmp_path, capfd):
    spec = {"base": SETTINGS, "axes": {"agent.n_step": [1, 2]}, "budget": 600, "name": "tasks"}
    found = rl.sweep(spec, run_dir=tmp_path / "sweep", quiet=True)
    assert found.finished and found.trials == 2 and {*found.best} == {"agent.n_step"}
    text = capfd.readouterr()
    assert text.out == text.err == ""
