"""Watch a trained run: episodes as an animated GIF and as a strip of pictures.

An episode is drawn from its observations alone (`HostHooks.draw`); environments with their own pictures
(`HostHooks.picture`, such as ExaBooster) make those instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import rollout
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.episodes import draw_episode
from jaxrl_hpc.runtime.evaluation import load_run
from jaxrl_hpc.runtime.seeds import SeedRunner
from jaxrl_hpc.types import Agent, Array, Env, PyTree

STRIP = 8  # pictures in a strip
TITLE = 26  # letters


class PlayedEpisode(NamedTuple):
    """Observations and rewards of an episode."""

    observations: np.ndarray  # [T + 1, *obs_shape]
    rewards: np.ndarray  # [T]


def play_run(
    run_dir: str | Path,
    out: str | Path | None = None,
    episodes: int = 1,
    seed: int = 0,
    frames: int = 240,
    lane_seed: int | None = None,
    *,
    trust: bool = False,
) -> list[Path]:
    """Play and draw; returns the files. `seed` picks start states, `lane_seed` which of the run's agents."""
    run = RunDirectory.existing(run_dir)
    folder = Path(out) if out else run.plots
    config, runner = load_run(run.path, trust=trust)
    known = [lane.seed for lane in runner.lanes]
    lane_seed = known[0] if lane_seed is None else lane_seed
    if lane_seed not in known:
        raise UserError(
            f"--run-seed: {run.path} has no seed {lane_seed}; it has {', '.join(map(str, known))}"
        )
    env, lane = runner.parts.env.host.for_evaluation or runner.parts.env, known.index(lane_seed)
    if env.host.draw is None and env.host.picture is None:
        raise UserError(f"{config.env.name} has no picture: {_drawable()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out: cannot make {folder}: {error.strerror}") from error
    if env.host.picture is not None:
        return _own_pictures(runner, lane, config.agent.name, jax.random.key(seed), folder)
    played = record(env, runner.parts.agent, runner.actor(lane), jax.random.key(seed), episodes)
    return write_pictures(played, env.host.draw, config.env.name, folder, frames)


def _drawable() -> str:
    from jaxrl_hpc.envs import names as known
    from jaxrl_hpc.envs import render

    names = [*render.CLASSIC, "the MinAtar and Atari games", *known.EXABOOSTER]
    return f"there are pictures of {', '.join(names)}"


def _own_pictures(runner: SeedRunner, lane: int, label: str, key: Array, folder: Path) -> list[Path]:
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    draw_episode(runner, lane, label, key, folder)
    return [path for path in sorted(folder.glob("*.png")) if path.stat().st_mtime_ns != before.get(path)]


def record(env: Env, agent: Agent, actor: PyTree, key: Array, episodes: int) -> list[PlayedEpisode]:
    """Greedy episodes from their start to their end. `key` is consumed."""

    def one(state: rollout.RolloutState, _: None) -> tuple[Any, Any]:
        state, transition, _step = rollout.act_and_step(env, agent, actor, state, greedy=True)
        return state, (transition.obs, transition.next_obs, transition.reward, transition.last)

    @jax.jit
    def whole(key: Array) -> Any:
        state = rollout.start(env, agent, key, jnp.arange(episodes, dtype=jnp.int32))
        return jax.lax.scan(one, state, None, env.spec.max_episode_steps)[1]

    obs, after, reward, last = jax.device_get(whole(key))
    found = []
    for i in range(episodes):
        ends = np.flatnonzero(last[:, i])
        length = int(ends[0]) + 1 if len(ends) else len(last)
        seen = np.concatenate([obs[:length, i], after[length - 1 : length, i]])
        found.append(PlayedEpisode(seen, reward[:length, i]))
    return found


def write_pictures(
    episodes: list[PlayedEpisode], draw: Any, name: str, folder: Path, frames: int
) -> list[Path]:
    """episode.gif with all episodes one after the other, episode.png with moments of the first."""
    from PIL import Image

    images = []
    each = max(2, frames // len(episodes))
    for number, episode in enumerate(episodes):
        shown = spread(len(episode.observations), each)
        images += [_image(draw, episode, int(i), f"{name}  episode {number + 1}") for i in shown]
    palette = images[len(images) // 2].quantize(64)  # the same for all, so that still parts cost nothing
    small = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    film, strip = folder / "episode.gif", folder / "episode.png"
    small[0].save(film, save_all=True, append_images=small[1:], duration=40, loop=0, optimize=True)
    moments = [_image(draw, episodes[0], int(i), name) for i in spread(len(episodes[0].observations), STRIP)]
    _grid(moments, columns=4).quantize(128).save(strip)
    return [film, strip]


def spread(length: int, most: int) -> np.ndarray:
    """At most `most` of `length` numbers, the first and the last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))


def _image(draw: Any, episode: PlayedEpisode, step: int, title: str) -> Any:
    """One moment as a picture of 320 x 240 pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(moment_figure(draw, episode, step, title))
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])


def moment_figure(draw: Any, episode: PlayedEpisode, step: int, title: str) -> Any:
    """The drawing of an observation under a title, which is shortened to leave space for step and return."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2, 2.4), dpi=100)
    axes = figure.add_axes((0.02, 0.02, 0.96, 0.86))
    draw(axes, episode.observations[step])
    name = title if len(title) <= TITLE else f"{title[: TITLE - 1]}…"
    figure.text(0.03, 0.92, name, fontsize=8, color="#5b6270")
    score = f"step {step}   return {episode.rewards[:step].sum():.4g}"
    figure.text(0.97, 0.92, score, fontsize=8, color="#5b6270", ha="right")
    return figure


def _grid(images: list[Any], columns: int) -> Any:
    from PIL import Image

    width, height = images[0].size
    rows = -(-len(images) // columns)
    whole = Image.new("RGB", (width * min(columns, len(images)), height * rows), "white")
    for i, image in enumerate(images):
        whole.paste(image, (i % columns * width, i // columns * height))
    return whole
