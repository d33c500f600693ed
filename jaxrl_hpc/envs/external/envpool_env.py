"""LunarLander, MuJoCo's robots and Atari games by envpool: the real simulators."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

import numpy as np

from jaxrl_hpc.envs import render
from jaxrl_hpc.envs.external.bridge import env_of, make_external
from jaxrl_hpc.envs.external.envpool_simulator import Pool, PoolTask
from jaxrl_hpc.envs.external.envpool_xla import PoolHost, env_of_pool
from jaxrl_hpc.envs.external.host import Host
from jaxrl_hpc.envs.external.simulator import ExternalConfig
from jaxrl_hpc.envs.names import Game, Lander, Robot
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Env, EnvSpec

ACTIONS = {"BeamRider-Atari": 9, "Breakout-Atari": 4, "Qbert-Atari": 6, "SpaceInvaders-Atari": 6}


class RobotSizes(NamedTuple):
    """Sizes of a MuJoCo task."""

    observation: int
    action: int
    bound: float = 1.0  # of every action, on both sides
    limit: int = 1_000  # steps


ROBOTS: dict[Robot, RobotSizes] = {
    "Ant-v5": RobotSizes(105, 8),
    "HalfCheetah-v5": RobotSizes(17, 6),
    "Hopper-v5": RobotSizes(11, 3),
    "Humanoid-v5": RobotSizes(348, 17, 0.4),
    "InvertedDoublePendulum-v5": RobotSizes(9, 1),
    "InvertedPendulum-v5": RobotSizes(4, 1, 3.0),
    "Pusher-v5": RobotSizes(23, 7, 2.0, 100),
    "Reacher-v5": RobotSizes(10, 2, limit=50),
    "Swimmer-v5": RobotSizes(8, 2),
    "Walker2d-v5": RobotSizes(17, 6),
}


class PoolConfig(ExternalConfig):
    """Settings of all envpool environments."""

    max_episode_steps: int = static(1_000, "time limit", ge=1)
    interface: Literal["xla", "callback"] = static(
        "xla", "steps in training: by envpool's foreign function calls, or by Python callbacks"
    )
    threads: int = static(
        1,
        "simulator threads; results do not depend on them; 0: as many as the program has (`run.threads`)",
        changeable=True,
        ge=0,
    )

    def pool_settings(self) -> dict[str, int]:
        threads = self.threads or int(os.environ.get("NPROC", "1"))  # XLA's own name for its pool's size
        return {"max_episode_steps": self.max_episode_steps, "num_threads": threads}


class LanderConfig(PoolConfig):
    """Landing softly between two flags."""

    name: Lander = "LunarLander-v3"


class RobotConfig(ExternalConfig):
    """A robot of Gymnasium's MuJoCo tasks."""

    name: Robot = "HalfCheetah-v5"
    max_episode_steps: int = static(0, "time limit; 0: the task's own", ge=0)


class AtariConfig(PoolConfig):
    """An Atari game with the preprocessing of Mnih et al. (2015): four greyscale frames of 84 x 84."""

    name: Game = "Breakout-Atari"
    frame_skip: int = static(
        4, "frames for which an action is repeated; the observation is the maximum of the last two", ge=1
    )
    frame_stack: int = static(4, "greyscale frames of 84 x 84 per observation", ge=1)
    life_loss: bool = static(
        True, "a lost life ends the episode for the learner; scores are those of whole games"
    )
    clip_reward: bool = static(True, "the learner gets the sign of rewards; scores are raw")
    no_op_starts: int = static(30, "upper bound on no-op steps at the start of a game", ge=1)
    fire_start: bool = static(True, "press fire after a reset, in games that require it")
    sticky_actions: float = static(
        0.0, "probability that an action is repeated; Machado et al. (2018) ask for 0.25", ge=0, lt=1
    )
    max_episode_steps: int = static(27_000, "time limit of a game, in actions", ge=1)
    threads: int = static(
        0,
        "emulator threads; results do not depend on them; 0: as many as the program has (`run.threads`)",
        changeable=True,
        ge=0,
    )


def _assembled(config: PoolConfig, spec: EnvSpec, learning: PoolTask, scoring: PoolTask) -> Env:
    spec = spec._replace(info_keys=("dropped",))
    if config.interface == "xla":
        training = env_of_pool(PoolHost(learning, spec, config))
    else:
        training = env_of(Host(spec, lambda copies: Pool(learning, spec, copies), config))
    evaluating = env_of(Host(spec, lambda copies: Pool(scoring, spec, copies), config, keep=1))
    draw = render.find(spec.name)
    return training.with_hooks(draw=draw, for_evaluation=evaluating.with_hooks(draw=draw))


def make_lander(config: LanderConfig) -> Env:
    limit, observation = config.max_episode_steps, ((8,), np.dtype(np.float32))
    if config.name == "LunarLander-v3":
        spec = EnvSpec(config.name, *observation, 4, (), None, None, limit)
    else:
        bound = np.ones(2, np.float32)
        spec = EnvSpec(config.name, *observation, None, (2,), -bound, bound, limit)
    task = PoolTask(config.name, config.pool_settings())
    return _assembled(config, spec, task, task)


def make_robot(config: RobotConfig) -> Env:
    """By callbacks: observations have 64 bits, which envpool's foreign calls cannot pass to a 32-bit program,
    and a physics step takes longer than a callback."""
    sizes = ROBOTS[config.name]
    limit, bound = config.max_episode_steps or sizes.limit, np.full(sizes.action, sizes.bound, np.float32)
    observation = ((sizes.observation,), np.dtype(np.float32))
    spec = EnvSpec(config.name, *observation, None, (sizes.action,), -bound, bound, limit)
    task = PoolTask(config.name, {"max_episode_steps": limit})
    return make_external(spec, lambda copies: Pool(task, spec, copies), config)


def make_atari(config: AtariConfig) -> Env:
    shape = (84, 84, config.frame_stack)
    limit = config.max_episode_steps
    spec = EnvSpec(config.name, shape, np.dtype(np.uint8), ACTIONS[config.name], (), None, None, limit)
    settings = {
        **config.pool_settings(),
        "frame_skip": config.frame_skip,
        "stack_num": config.frame_stack,
        "noop_max": config.no_op_starts,
        "use_fire_reset": config.fire_start,
        "repeat_action_probability": config.sticky_actions,
        "episodic_life": config.life_loss,
        "reward_clip": config.clip_reward,
    }
    name = config.name.replace("-Atari", "-v5")
    learning = PoolTask(name, settings, channels_last=True)
    # lives still end in a reset, which presses fire: a greedy policy may never have learned to
    scoring = PoolTask(name, {**settings, "reward_clip": False}, channels_last=True, whole_games=True)
    return _assembled(config, spec, learning, scoring)
