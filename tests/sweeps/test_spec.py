"""Sweep files: what is refused and how it is said; the values that axes take."""

import numpy as np
import pytest
import yaml

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.sweeps import axes
from jaxrl_hpc.sweeps.spec import Axis, load_spec
from tests.sweeps.made_sweeps import plan_of, write


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"axs": {}}, "axs: unknown key; did you mean axes?"),
        ({"axes": {"agent.gamma": {"grd": [0, 1]}}}, "axes.agent.gamma.grd: unknown key; did you mean grid?"),
        ({"axes": {"agent.gamma": {"grid": [0.1, 0.9]}}}, "axes.agent.gamma: grid needs points"),
        ({"axes": {"agent.gamma": {"random": [0.9, 0.1]}}}, "random goes from a lower bound to a higher one"),
        ({"axes": {"agent.gamma": {"log_uniform": [0.0, 0.1]}}, "samples": 2}, "bounds above zero"),
        ({"axes": {"agent.gamma": {"random": [0.1, 0.9]}}}, "set the number of draws, such as samples: 16"),
        ({"samples": 3}, "samples counts draws of random axes, and there are none"),
        ({"axes": {"agent.gamma": []}}, "axes.agent.gamma.values"),
        ({"axes": {"agent.gamma": {}}}, "exactly one of values, grid, random, log_uniform, choice"),
        ({"axes": {"run.seed": [1, 2]}}, "run.seed is set by the sweep itself; use seeds instead"),
        ({"axes": {"gamma": [0.9]}}, "gamma should be a dotted name such as agent.learning_rate"),
        ({"axes": {"agent.gamma": [0.9]}, "overrides": {"agent.gamma": 0.5}}, "both an axis and an override"),
        ({"axes": {"agent.gama": [0.9]}}, "agent.gama: unknown key; did you mean gamma?"),
        ({"axes": {"agent.gamma": [0.9, 1.5]}}, "trial with agent.gamma=1.5: agent.gamma: should be less"),
        ({"overrides": {"agnt.gamma": 0.5}}, "agnt.gamma: there is no section 'agnt'; did you mean agent?"),
        ({"seeds": 0}, "seeds: should be greater than or equal to 1 (it is 0)"),
        ({"seeds": "many"}, "seeds: should be a valid integer (it is 'many')"),
        ({"base": None}, "base: is missing"),
        ({"base": 3}, "base: should be the name of a config, a path or a config (it is 3)"),
        ({"base": "cartpole_dqm"}, "there is no config file 'cartpole_dqm'; did you mean cartpole_dqn?"),
        ({"halving": {"rungs": 1}}, "halving.rungs: should be greater than or equal to 2 (it is 1)"),
        ({"slurm": {"tme": "1"}}, "slurm.tme: unknown key; did you mean time?"),
        ({"slurm": {"mem": "lots"}}, "slurm.mem"),
        ({"slurm": {"options": ["qos=long"]}}, "'qos=long' is not an sbatch option"),
        ({"name": "a/b"}, "name: "),
    ],
)  # fmt: skip
def test_bad_sweep_files_are_one_sentence(tmp_path, keys, words):
    with pytest.raises(UserError) as caught:
        plan_of(write(tmp_path, "bad", **keys))
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 300


def test_not_a_sweep(tmp_path):
    with pytest.raises(UserError, match="there is no sweep file 'cartpole_dnq'; did you mean cartpole_dqn"):
        load_spec("cartpole_dnq")
    with pytest.raises(UserError, match="is a config to train, not a sweep"):
        load_spec("configs/cartpole_dqn.yaml")
    with pytest.raises(UserError, match="is not the folder of a sweep"):
        load_spec(tmp_path)
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(UserError, match="a sweep holds keys"):
        load_spec(tmp_path / "list.yaml")


def test_base_by_name_beside_the_file_and_overrides(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"agent": {"name": "dqn"}, "env": {"name": "Acrobot-v1"}})
    )
    for base, env in (("cartpole_dqn", "CartPole-v1"), ("mine.yaml", "Acrobot-v1")):
        path = write(tmp_path, base=base, overrides={"agent.gamma": 0.5}, budget=777)
        spec = load_spec(path, ("agent.n_step=3",))
        assert spec.base["env"]["name"] == env and spec.base["run"]["total_env_steps"] == 777
        assert spec.base["agent"]["gamma"] == 0.5 and spec.base["agent"]["n_step"] == 3
    with pytest.raises(UserError, match=r"the sweep sets agent\.gamma itself"):
        load_spec(write(tmp_path, axes={"agent.gamma": [0.9]}), ("agent.gamma=0.5",))


def test_grids():
    assert axes.listed(Axis(grid=(0.0, 1.0), points=5), False) == [0, 0.25, 0.5, 0.75, 1]
    assert axes.listed(Axis(grid=(1e-4, 1e-2), points=3, log=True), False) == [1e-4, 1e-3, 1e-2]
    assert axes.listed(Axis(grid=(1.0, 9.0), points=3), True) == [1, 5, 9]
    narrow = axes.listed(Axis(grid=(0.9999, 0.99999), points=3), False)
    assert narrow == [0.9999, 0.999945, 0.99999]  # rounding must not swallow a narrow range


def test_draws_have_their_distribution_and_stay_when_there_are_more():
    log_axis = Axis(log_uniform=(1e-4, 1e-1))
    values = axes.drawn(log_axis, "agent.learning_rate", 4000, 0, False)
    assert values[:50] == axes.drawn(log_axis, "agent.learning_rate", 50, 0, False)
    assert values[:50] != axes.drawn(log_axis, "agent.gamma", 50, 0, False)
    assert values[:50] != axes.drawn(log_axis, "agent.learning_rate", 50, 1, False)
    share = np.log(np.array(values) / 1e-4) / np.log(1e3)
    # a uniform share: its mean has a standard error of 0.29 / sqrt(4000) = 0.0046
    assert abs(share.mean() - 0.5) < 0.02 and share.min() >= 0 and share.max() <= 1
    whole = axes.drawn(Axis(random=(1.0, 4.0)), "agent.n_step", 4000, 0, True)
    counts = np.bincount(whole, minlength=5)[1:]
    assert set(whole) == {1, 2, 3, 4} and counts.min() > 900  # 1000 each, 27 standard deviation
    chosen = axes.drawn(Axis(choice=("a", "b")), "x", 100, 0, False)
    assert set(chosen) == {"a", "b"}


def test_lists_are_crossed_with_every_draw(tmp_path):
    keys = {"agent.gamma": {"random": [0.5, 0.9]}, "agent.n_step": [1, 2], "agent.double": [True, False]}
    plan = plan_of(write(tmp_path, axes=keys, samples=3, seeds=2))
    combinations = {tuple(trial.values.values()) for trial in plan.trials}
    assert len(combinations) == 12 and len(plan.trials) == 24
    assert len({gamma for gamma, _, _ in combinations}) == 3
