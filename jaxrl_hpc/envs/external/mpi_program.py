"""A parallel program as an environment: it spans MPI ranks and owns a communicator.

    class Program:
        observation_shape = (9,)          # float32
        actions = 3                       # or ([low, …], [high, …]) for continuous ones
        max_episode_steps = 100           # the time limit, kept by the bridge

        def __init__(self, comm, **kwargs): ...             # all of these are called
        def reset(self, seed: int): ...                      # by all ranks of comm
        def step(self, action): ...                          # together
        def close(self): ...

`reset` returns an observation, `step` (observation, reward, terminated); the values of the communicator's
first rank are used. `mpi_ranks.py` divides the ranks.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

import numpy as np
from pydantic import Field

from jaxrl_hpc.envs.external import mpi_ranks
from jaxrl_hpc.envs.external.bridge import make_external
from jaxrl_hpc.envs.external.simulator import (
    ExternalConfig,
    StepOutcome,
    Wrong,
    conform,
    conform_flag,
    describe_exception,
    in_one_line,
)
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Env, EnvSpec

Setting = int | float | bool | str
_numbers = itertools.count()


class Config(ExternalConfig):
    """A parallel program."""

    name: Literal["mpi_program"] = "mpi_program"
    program: str = static("my_module:Program", "module and class, as module:Class", pattern=r"^[\w.]+:\w+$")
    kwargs: dict[str, Setting] = Field(default_factory=dict, description="arguments of the class")
    ranks_per_copy: int = static(0, "ranks per copy; 0: all but the learner's", ge=0)


class Programs:
    """A `Simulator` whose copies are parallel programs, distributed over groups of ranks."""

    busy: int | None = None
    restarts_alone = True

    def __init__(self, config: Config, spec: EnvSpec, copies: int) -> None:
        self.spec, self.copies, self.number = spec, copies, next(_numbers)
        self.groups = mpi_ranks.groups(config.ranks_per_copy)
        self.steps = np.zeros(copies, int)
        self.rng = np.random.default_rng()
        parts = [list(range(g, copies, self._count)) for g in range(self._count)]
        items = [[(numbers, config.program, dict(config.kwargs))] for numbers in parts]
        for ((_, problem),) in self.groups.order("make", self.number, items):
            if problem:
                raise Wrong(problem)

    @property
    def _count(self) -> int:
        return len(self.groups.members)

    def _ask(self, what: str, values: dict[int, Any]) -> dict[int, tuple[Any, str]]:
        """Send a command for some copies -> copy -> (answer, problem)."""
        items: list[list[Any]] = [[] for _ in range(self._count)]
        for copy, value in values.items():
            items[copy % self._count].append((copy, value))
        answers = self.groups.order(what, self.number, items)
        return {
            copy: answer
            for mine, found in zip(items, answers, strict=True)
            for (copy, _), answer in zip(mine, found, strict=True)
        }

    def _observation(self, value: Any) -> np.ndarray:
        return conform(value, self.spec.obs_shape, self.spec.obs_dtype, "an observation")

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.rng = np.random.default_rng(seeds)
        return self.restart(list(range(self.copies)), seeds)

    def restart(self, copies: list[int], seeds: np.ndarray) -> np.ndarray:
        answers = self._ask("reset", {copy: int(seed) for copy, seed in zip(copies, seeds, strict=True)})
        self.steps[copies] = 0
        for copy, (_, problem) in answers.items():
            self.busy = copy
            if problem:
                raise Wrong(problem)
        found = []
        for copy in copies:
            self.busy = copy
            found.append(self._observation(answers[copy][0]))
        self.busy = None
        return np.stack(found)

    def step(self, action: np.ndarray) -> StepOutcome:
        answers = self._ask("step", dict(enumerate(action)))
        final = np.zeros((self.copies, *self.spec.obs_shape), self.spec.obs_dtype)
        reward, terminated = np.zeros(self.copies, np.float32), np.zeros(self.copies, bool)
        troubles: dict[int, str] = {}
        for copy, (answer, problem) in answers.items():
            try:
                if problem:
                    raise Wrong(problem)
                obs, gain, failed = answer
                final[copy] = self._observation(obs)
                reward[copy] = conform(gain, (), np.dtype(np.float32), "a reward")
                terminated[copy] = conform_flag(failed, "terminated")
            except Exception as error:
                troubles[copy] = describe_exception(error)
        self.steps += 1
        truncated = (self.steps >= self.spec.max_episode_steps) & ~terminated
        obs, done = final.copy(), np.flatnonzero(terminated | truncated).tolist()
        done = [copy for copy in done if copy not in troubles]
        if done:
            obs[done] = self.restart(done, self.rng.integers(2**32, size=len(done)))
        return StepOutcome(obs, final, reward, terminated, truncated, troubles)

    def close(self) -> None:
        self.groups.order("close", self.number, [[] for _ in range(self._count)])


def spec_of(config: Config) -> EnvSpec:
    """The spec, from attributes of the class."""
    name, dtype = config.program, np.dtype(np.float32)
    try:
        cls = mpi_ranks.load_program(config.program)
        shape, actions, limit = tuple(cls.observation_shape), cls.actions, int(cls.max_episode_steps)
        if isinstance(actions, int):
            return EnvSpec(name, shape, dtype, actions, (), None, None, limit)
        low, high = (np.asarray(bound, np.float32) for bound in actions)
    except (Exception, SystemExit) as error:
        text = error if isinstance(error, ImportError | AttributeError) else in_one_line(error)
        raise UserError(
            f"env.program: {config.program} must name a class with observation_shape, actions and "
            f"max_episode_steps ({text})"
        ) from None
    return EnvSpec(name, shape, dtype, None, low.shape, low, high, limit)


def make(config: Config) -> Env:
    spec = spec_of(config)
    mpi_ranks.groups(config.ranks_per_copy)  # refuses a job that is too small before anything is compiled
    return make_external(spec, lambda copies: Programs(config, spec, copies), config)
