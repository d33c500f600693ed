"""Everything that a config can name. Adding a component is one line here; others are named `module:make`.

Installed packages add names of their own by entry points (docs/examples/plugin):

    [project.entry-points."jaxrl_hpc.agents"]
    reinforce = "my_package.reinforce:make"
"""

from __future__ import annotations

import difflib
import functools
import re
import typing
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any, NamedTuple

from pydantic import create_model

from jaxrl_hpc.agents import a2c, ddpg, dqn, dyna_q, ppo, recurrent_dqn, td3
from jaxrl_hpc.envs import cahn_hilliard, exabooster, gymnax, jumanji, probes, user_env
from jaxrl_hpc.envs.external import envpool_env, gymnasium_env, mpi_program
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay import prioritised, sequence, uniform
from jaxrl_hpc.replay.sizes import ReplayConfig
from jaxrl_hpc.schema import AgentConfig, ComponentConfig, Schema
from jaxrl_hpc.user_code import NAME, import_attribute, import_module
from jaxrl_hpc.workflows import central_inference, fused, parameter_server, sharded
from jaxrl_hpc.workflows.actor_learner import async_, dyna, rma, rma_queue
from jaxrl_hpc.workflows.base import WorkflowConfig


class Component(NamedTuple):
    """A module's one Config and one make."""

    config: type[Schema]
    make: Callable[..., Any]


def _component(module: ModuleType) -> Component:
    return Component(module.Config, module.make)


AGENTS: dict[str, Component] = {
    "a2c": _component(a2c),
    "ddpg": _component(ddpg),
    "dqn": _component(dqn),
    "dyna_q": _component(dyna_q),
    "ppo": _component(ppo),
    "recurrent_dqn": _component(recurrent_dqn),
    "td3": _component(td3),
}
REPLAYS: dict[str, Component] = {
    "prioritised": _component(prioritised),
    "sequence": _component(sequence),
    "uniform": _component(uniform),
}
WORKFLOWS: dict[str, Component] = {
    "async": _component(async_),
    "central_inference": _component(central_inference),
    "dyna": _component(dyna),
    "fused": _component(fused),
    "parameter_server": _component(parameter_server),
    "rma": _component(rma),
    "rma_queue": _component(rma_queue),
    "sharded": _component(sharded),
}
ENVS: dict[str, Component] = {
    **{name: _component(gymnax) for name in gymnax.NAMES},
    **{name: Component(exabooster.ExaBoosterConfig, exabooster.make_env) for name in exabooster.NAMES},
    **{name: _component(probes) for name in probes.NAMES},
    **{name: Component(envpool_env.LanderConfig, envpool_env.make_lander) for name in envpool_env.LANDERS},
    **{name: Component(envpool_env.AtariConfig, envpool_env.make_atari) for name in envpool_env.GAMES},
    cahn_hilliard.NAME: _component(cahn_hilliard),
    "gymnasium": _component(gymnasium_env),
    "jumanji": _component(jumanji),
    "mpi_program": _component(mpi_program),
}

SECTIONS: dict[str, dict[str, Component]] = {
    "agent": AGENTS,
    "env": ENVS,
    "replay": REPLAYS,
    "workflow": WORKFLOWS,
}


def nearest(name: str, known: list[str]) -> str:
    """'; did you mean X?' or the list of what there is."""
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(str(name).lower(), list(folded), n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]}?" if close else f"; known are {', '.join(known)}"


ENTRY_POINTS = {section: f"jaxrl_hpc.{section}s" for section in SECTIONS}  # groups, by section


def plugins(section: str) -> dict[str, str]:
    """Names that installed packages add to a section -> `module:make` (of environments `module:Class`)."""
    found = metadata.entry_points(group=ENTRY_POINTS[section])
    return {point.name: point.value for point in found if point.name not in SECTIONS[section]}


@functools.cache
def user_component(section: str, target: str, name: str = "") -> Component:
    """A component of one's own, `module:make`.

    Its config class is what the first parameter of `make` is annotated with, or the module's `Config`.

    Args:
      section: of a config.
      target: module and function.
      name: what configs call it; the target itself unless a plug-in package names it.
    """
    name = name or target
    field = f"{section}.name"
    make = import_attribute(target, field)
    if section == "env" and isinstance(make, type):
        return _named_environment(target, name)
    if not callable(make):
        raise UserError(f"{field}: {target} is no function that makes {_ARTICLE[section]} {section}")
    module = import_module(target.partition(":")[0], field)
    try:
        hints = list(typing.get_type_hints(make).values())
    except NameError:
        hints = []
    found = next((h for h in hints[:1] if isinstance(h, type)), getattr(module, "Config", None))
    base = BASES[section]
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(
            f"{field}: the first parameter of {target} needs the annotation of its settings, a class that "
            f"derives from {base.__module__}.{base.__name__}"
        )
    # the name in a config is the one that finds it again, whatever the class itself is called by
    named = create_model(found.__name__, __base__=found, __module__=found.__module__, name=(str, name))
    return Component(named, make)


def _named_environment(target: str, name: str) -> Component:
    """A class of a plug-in package under a name of its own."""
    named = create_model("Config", __base__=user_env.Config, __module__=user_env.__name__, name=(str, name))
    return Component(named, lambda config: user_env.make(config, target))


BASES: dict[str, type[ComponentConfig]] = {
    "agent": AgentConfig,
    "env": ComponentConfig,
    "replay": ReplayConfig,
    "workflow": WorkflowConfig,
}
_ARTICLE = {"agent": "an", "env": "an", "replay": "a", "workflow": "a"}


def find(section: str, name: str) -> Component:
    """The component that `section.name` means."""
    known = SECTIONS[section]
    if name in known:
        return known[name]
    if re.match(NAME, name):
        return _component(user_env) if section == "env" else user_component(section, name)
    added = plugins(section)
    if name in added:
        return user_component(section, added[name], name)
    raise UserError(f"{section}.name: there is no {section} {name!r}{nearest(name, [*known, *added])}")
