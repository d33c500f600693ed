"""The pictures of docs/environments.md, and its list of environments.

    python scripts/studies/environments.py             docs/images/environments.png and the table
    python scripts/studies/environments.py --table     only print the table

Every picture is a moment of an episode with random actions, drawn from the environment as it is trained in.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import matplotlib
import numpy as np
import page_table  # beside this file
from matplotlib.figure import Figure

from jaxrl_hpc.config import registry
from jaxrl_hpc.envs import gymnax, names, render
from jaxrl_hpc.report.style import MATPLOTLIB

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "docs" / "images" / "environments.png"
PAGE = ROOT / "docs" / "environments.md"
BEGIN = "<!-- table: made by scripts/studies/environments.py -->"
STEPS = 40
DRAWN = [
    "CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0",
    "Breakout-MinAtar", "SpaceInvaders-MinAtar", "Asterix-MinAtar", "Freeway-MinAtar",
    "CahnHilliard-v0", "ExaBooster-v0", "LunarLander-v3",
    "Breakout-Atari", "Qbert-Atari", "BeamRider-Atari", "SpaceInvaders-Atari",
]  # fmt: skip
GROUPS = {
    "classic control": lambda n: n in render.CLASSIC and not n.startswith("Lunar"),
    "MinAtar games": lambda n: n.endswith("-MinAtar"),
    "bsuite": lambda n: n.endswith("-bsuite"),
    "other small ones": lambda n: n.endswith("-misc"),
    "ExaBooster": lambda n: n.startswith("ExaBooster"),
    "Cahn–Hilliard annealing": lambda n: n.startswith("CahnHilliard"),
    "LunarLander": lambda n: n.startswith("LunarLander"),
    "MuJoCo robots": lambda n: n in get_args(names.Robot),
    "Atari games": lambda n: n.endswith("-Atari"),
    "probes": lambda n: n.startswith("Probe"),
    "your own": lambda n: n in ("gymnasium", "jumanji", "mpi_program"),
    "recorded data": lambda n: n == "dataset",
}
WORDS = {
    "recorded data": "a file of transitions in place of an environment ([offline.md](offline.md))",
    "classic control": "gymnax, in the program; see [gymnax](https://github.com/RobertTLange/gymnax)",
    "MinAtar games": "gymnax, in the program",
    "bsuite": "gymnax, in the program",
    "other small ones": "gymnax, in the program",
    "ExaBooster": "ours, in the program: [exabooster.md](exabooster.md)",
    "Cahn–Hilliard annealing": "ours, in the program: below",
    "LunarLander": "envpool's simulator, called from the program by foreign function calls: below",
    "MuJoCo robots": "envpool's simulator, by callbacks: below",
    "Atari games": "envpool's simulator, called from the program by foreign function calls: below",
    "probes": "ours, in the program: tiny, with known values, for tests of agents",
    "your own": "any Gymnasium or Jumanji environment, any MPI program: below",
}


def random_observation(name: str) -> np.ndarray:
    """What is seen after some random steps of a gymnax environment."""
    import jax

    env = gymnax.make(gymnax.Config(name=name))
    keys = jax.random.split(jax.random.key(1), 1)

    def one(carry: Any, key: Any) -> tuple[Any, Any]:
        spec = env.spec
        action = (
            jax.random.randint(key, (1,), 0, spec.num_actions)
            if spec.discrete
            else jax.random.uniform(key, (1, *spec.action_shape), minval=-1.0, maxval=1.0)
        )
        state, step = env.step(key[None], carry, action)
        return state, step.obs[0]

    state, _ = env.reset(keys)
    return np.asarray(jax.lax.scan(one, state, jax.random.split(jax.random.key(2), STEPS // 2))[1][-1])


def film() -> Callable[[Any], None]:
    import jax

    from jaxrl_hpc.envs.cahn_hilliard.environment import first_field
    from jaxrl_hpc.envs.cahn_hilliard.solver import advance, film

    field = first_field(jax.random.key(0), 128)
    for temperature in np.linspace(0.95, 0.5, 10):
        field = advance(field, film(float(temperature)), 67)
    return lambda axes: axes.imshow(np.asarray(field), cmap="RdBu_r", vmin=-1, vmax=1)


def booster() -> Callable[[Any], None]:
    """The observation's window of the magnet's error."""
    import jax

    config: Any = registry.find("env", "ExaBooster-v0").config(name="ExaBooster-v0")
    env = registry.find("env", "ExaBooster-v0").make(config)
    _, obs = env.reset(jax.random.split(jax.random.key(0), 1))
    rows = np.asarray(obs[0]).reshape(-1, 5)

    def draw(axes: Any) -> None:
        for i, label in enumerate(("VIMIN", "IMINER", "LINFRQ", "IB", "MDAT40")):
            axes.plot(rows[:, i] - 4 * i, linewidth=1.2)
            axes.text(-0.6, rows[0, i] - 4 * i, label, fontsize=6, color="#5b6270", ha="right", va="center")
        axes.set_xlim(left=-4.5)

    return draw


def lander() -> Callable[[Any], None]:
    import gymnasium

    env = gymnasium.make("LunarLander-v3", render_mode="rgb_array")
    env.reset(seed=3)
    env.action_space.seed(3)
    for _ in range(STEPS):
        env.step(env.action_space.sample())
    frame = env.render()
    env.close()
    return lambda axes: axes.imshow(frame)


def game(name: str) -> Callable[[Any], None]:
    config: Any = registry.find("env", name).config(name=name)
    env = registry.find("env", name).make(config).host.for_evaluation
    simulator = env.host.simulators.make(1)
    simulator.reset(np.array([7], np.uint32))
    rng = np.random.default_rng(0)
    for _ in range(2 * STEPS):
        outcome = simulator.step(rng.integers(env.spec.num_actions, size=1).astype(np.int32))
    simulator.close()
    return lambda axes: axes.imshow(outcome.obs[0][..., -1], cmap="gray", vmin=0, vmax=255)


def painter(name: str) -> Callable[[Any], None]:
    """(axes) -> None for an environment."""
    if name == "CahnHilliard-v0":
        return film()
    if name == "ExaBooster-v0":
        return booster()
    if name == "LunarLander-v3":
        return lander()
    if name.endswith("-Atari"):
        return game(name)
    draw, obs = render.find(name), random_observation(name)
    assert draw is not None
    return lambda axes: draw(axes, obs)


def gallery() -> Figure:
    with matplotlib.rc_context(MATPLOTLIB):
        columns = 5
        rows = -(-len(DRAWN) // columns)
        figure = Figure(figsize=(9.6, 2.05 * rows), layout="constrained")
        for axes, name in zip(figure.subplots(rows, columns).flat, DRAWN, strict=True):
            painter(name)(axes)
            axes.set_anchor("N")  # titles of a row in one line
            axes.set_xticks([])
            axes.set_yticks([])
            for side in axes.spines.values():
                side.set_visible(False)
            axes.set_title(name, fontsize=8, fontweight="normal", color="#5b6270")
    return figure


def table() -> str:
    """All names that a config can have, by kind."""
    lines = ["| environments | `env.name` | what runs |", "|---|---|---|"]
    left = list(registry.ENVS)
    for title, belongs in GROUPS.items():
        these = [name for name in left if belongs(name)]
        left = [name for name in left if name not in these]
        lines.append(f"| {title} | {', '.join(f'`{n}`' for n in these)} | {WORDS[title]} |")
    if left:
        raise SystemExit(f"environments without a group in {__file__}: {', '.join(left)}")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The page with the present table."""
    return page_table.replaced(text, BEGIN, table())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="only print the table")
    if parser.parse_args().table:
        print(table())
        return
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    gallery().savefig(IMAGE, dpi=100)
    PAGE.write_text(with_table(PAGE.read_text()))
    print(f"written to {IMAGE} and {PAGE}")


if __name__ == "__main__":
    main()
