"""jaxrl_hpc: accelerator-first, exactly reproducible reinforcement learning in JAX.

    import jaxrl_hpc as rl

    run = rl.train("cartpole_dqn", seeds=4, **{"agent.n_step": 3})
    run.plot()

    env = rl.envs.make("CartPole-v1")
    agent = rl.agents.dqn(env.spec, n_step=3)
    flow = rl.workflows.fused(env, agent, num_envs=8)

Names are imported when they are first used (PEP 562): the package alone imports nothing else, JAX included.
docs/api.md shows all of them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from jaxrl_hpc.lazy import lazy_names

__version__ = "0.2.0"

if TYPE_CHECKING:
    from jaxrl_hpc import config as config
    from jaxrl_hpc import networks as networks
    from jaxrl_hpc import ops as ops
    from jaxrl_hpc import rollout as rollout
    from jaxrl_hpc import scaling as scaling
    from jaxrl_hpc.api import agents as agents
    from jaxrl_hpc.api import envs as envs
    from jaxrl_hpc.api import replay as replay
    from jaxrl_hpc.api import workflows as workflows
    from jaxrl_hpc.api.policy import Policy as Policy
    from jaxrl_hpc.api.run import Comparison as Comparison
    from jaxrl_hpc.api.run import Run as Run
    from jaxrl_hpc.api.run import compare as compare
    from jaxrl_hpc.api.run import load as load
    from jaxrl_hpc.api.sweep import Sweep as Sweep
    from jaxrl_hpc.api.sweep import sweep as sweep
    from jaxrl_hpc.api.training import train as train
    from jaxrl_hpc.errors import UserError as UserError
    from jaxrl_hpc.types import Agent as Agent
    from jaxrl_hpc.types import Env as Env
    from jaxrl_hpc.types import Replay as Replay
    from jaxrl_hpc.types import Transition as Transition
    from jaxrl_hpc.types import Workflow as Workflow

_HOMES = {
    "jaxrl_hpc.api.training": ("train",),
    "jaxrl_hpc.api.run": ("load", "compare", "Run", "Comparison"),
    "jaxrl_hpc.api.sweep": ("sweep", "Sweep"),
    "jaxrl_hpc.api.policy": ("Policy",),
    "jaxrl_hpc.errors": ("UserError",),
    "jaxrl_hpc.types": ("Agent", "Env", "Replay", "Transition", "Workflow"),
    # names themselves
    "jaxrl_hpc.config": (),
    "jaxrl_hpc.networks": (),
    "jaxrl_hpc.ops": (),
    "jaxrl_hpc.rollout": (),
    "jaxrl_hpc.scaling": (),
}

__all__ = [
    "Agent",
    "Comparison",
    "Env",
    "Policy",
    "Replay",
    "Run",
    "Sweep",
    "Transition",
    "UserError",
    "Workflow",
    "agents",
    "compare",
    "config",
    "envs",
    "load",
    "networks",
    "ops",
    "replay",
    "rollout",
    "scaling",
    "sweep",
    "train",
    "workflows",
]


if not TYPE_CHECKING:  # for type checkers, only the names above exist
    __getattr__, _ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _part(name: str) -> property:
    return property(
        lambda package: importlib.import_module(f"{__name__}.api.{name}"),
        # importing the package of that name would bind it here
        lambda package, value: None,
    )


class _Package(ModuleType):
    """This module, on which `agents`, `envs`, `replay` and `workflows` are those of the API.

    Packages of the same names hold the implementations, and the import system binds a package to its parent
    when it is imported. `from jaxrl_hpc.agents import dqn` finds the implementation all the same, since it
    does not look at this module.
    """

    agents = _part("agents")
    envs = _part("envs")
    replay = _part("replay")
    workflows = _part("workflows")


sys.modules[__name__].__class__ = _Package
