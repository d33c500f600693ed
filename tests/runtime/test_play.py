"""Pictures of episodes: what is drawn is what happened."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.envs import render
from jaxrl_hpc.envs.gymnax import Config, make
from jaxrl_hpc.envs.names import GYMNAX
from jaxrl_hpc.runtime.play import PlayedEpisode, spread, write_pictures
from jaxrl_hpc.runtime.train import train
from tests import small

QUICK = {"total_env_steps": 800, "log_every": 400, "eval_every": 0, "final_eval_episodes": 4}
DRAWN = [name for name in GYMNAX if render.find(name)]


def drawn(draw, obs) -> np.ndarray:
    figure = Figure(figsize=(2, 2), dpi=50)
    canvas = FigureCanvasAgg(figure)
    draw(figure.add_axes((0, 0, 1, 1)), np.asarray(obs))
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def test_which_can_be_drawn() -> None:
    assert len(DRAWN) == 10 and sum(name.endswith("MinAtar") for name in DRAWN) == 5


@pytest.mark.parametrize("name", DRAWN)
def test_every_observation_can_be_drawn_and_differs_from_a_later_one(name: str) -> None:
    env = make(Config(name=name))
    keys = jax.random.split(jax.random.key(0), 1)
    state, obs = env.reset(keys)
    shape = (1, *env.spec.action_shape)
    first = drawn(env.host.draw, obs[0])
    action = np.ones(shape, env.spec.action_dtype)
    step = jax.jit(env.step)
    for _ in range(12):
        state, result = step(keys, state, action)
    assert (drawn(env.host.draw, result.obs[0]) != first).any()


def tip(draw, obs, shade) -> tuple[float, float]:
    """The far end of the last rod of a colour."""
    axes = Figure().add_axes((0, 0, 1, 1))
    draw(axes, np.asarray(obs, np.float32))
    line = [line for line in axes.lines if line.get_color() == shade and line.get_linewidth() == 7][-1]
    return float(line.get_xdata()[1]), float(line.get_ydata()[1])


def test_angles_are_drawn_the_right_way_round() -> None:
    assert tip(render.cartpole, [1, 0, 0, 0], render.WARM) == pytest.approx((1, 1.15))
    assert tip(render.cartpole, [0, 0, 0.2, 0], render.WARM)[0] > 0.1  # a positive angle leans right
    assert tip(render.pendulum, [1, 0, 0], render.ACCENT) == pytest.approx((0, 1))  # upright
    assert tip(render.pendulum, [-1, 0, 0], render.ACCENT) == pytest.approx((0, -1))
    assert tip(render.acrobot, [1, 0, 1, 0, 0, 0], "#12a17b") == pytest.approx((0, -2))  # hanging
    assert tip(render.acrobot, [-1, 0, 1, 0, 0, 0], "#12a17b") == pytest.approx((0, 2), abs=1e-6)


def test_the_film_has_a_picture_per_moment(tmp_path: Path) -> None:
    episode = PlayedEpisode(np.linspace([-1, 0, 0, 0], [1, 0, 0.2, 0], 31), np.ones(30))
    film, strip = write_pictures([episode, episode], render.find("CartPole-v1"), "CartPole", tmp_path, 20)
    with Image.open(film) as image:
        assert image.n_frames == 20 and image.size == (320, 240)
    with Image.open(strip) as image:
        assert image.size == (4 * 320, 2 * 240)
    np.testing.assert_array_equal(spread(5, 10), range(5))
    assert list(spread(100, 3)) == [0, 50, 99] or list(spread(100, 3)) == [0, 49, 99]


def test_the_command(tmp_path: Path, capsys) -> None:
    train(small.config(run={**QUICK, "seeds": 2}), tmp_path / "run", say=lambda _: None)
    capsys.readouterr()
    assert main(["play", str(tmp_path / "run"), "--frames", "6", "--run-seed", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("wrote") == 2 and "episode.gif" in out
    with Image.open(tmp_path / "run" / "plots" / "episode.gif") as image:
        assert image.n_frames == 6
    for arguments, message in [
        (["--run-seed", "9"], "has no seed 9; it has 0, 1"),
        (["--episodes", "0"], "--episodes: should be from 1 to 1,000 (it is 0)"),
        (["--out", str(tmp_path / "run" / "config.yaml")], "cannot make"),
    ]:
        assert main(["play", str(tmp_path / "run"), *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_what_cannot_be_drawn_says_so(tmp_path: Path, capsys) -> None:
    train(small.config(run=QUICK, env={"name": "Catch-bsuite"}), tmp_path / "run", say=lambda _: None)
    capsys.readouterr()
    assert main(["play", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "Catch-bsuite has no picture" in error and "CartPole-v1" in error and error.count("\n") == 1


@pytest.mark.full
def test_exabooster_makes_its_own_picture(tmp_path: Path) -> None:
    train(small.config(run=QUICK, env={"name": "ExaBooster-v0"}), tmp_path / "run", say=lambda _: None)
    assert main(["play", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert list((tmp_path / "out").glob("*.png"))
