"""Everything that a config can name. Adding a component is one line here; others are named `module:make`.

Installed packages add names of their own by entry points (docs/examples/plugin):

    [project.entry-points."jaxrl_hpc.agents"]
    reinforce = "my_package.reinforce:make"
"""

from __future__ import annotations

import functools
import importlib
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple

from pydantic import create_model

from jaxrl_hpc.config.classes import config_class
from jaxrl_hpc.config.sources import nearest as nearest
from jaxrl_hpc.envs.names import FAMILIES
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import Schema
from jaxrl_hpc.user_code import NAME, import_attribute, import_module


class Component(NamedTuple):
    """A module's one Config and one make."""

    config: type[Schema]
    make: Callable[..., Any]


class Place(NamedTuple):
    """Where a component is found: a module of the package, and the names of its class and function there."""

    module: str
    config: str = "Config"
    make: str = "make"


class Components(Mapping[str, Component]):
    """Name -> component. A component's module is imported when it is looked up."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self.places = places

    def __getitem__(self, name: str) -> Component:
        place = self.places[name]
        module = importlib.import_module(f"jaxrl_hpc.{place.module}")
        return Component(getattr(module, place.config), getattr(module, place.make))

    def config(self, name: str) -> type[Schema]:
        """Its settings alone, without JAX: a class for inspection, not for making the component."""
        place = self.places[name]
        found: type[Schema] = config_class(f"jaxrl_hpc.{place.module}", place.config)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:  # a Mapping's own would import
        return name in self.places


AGENTS = Components(
    {
        "a2c": Place("agents.a2c"),
        "ddpg": Place("agents.ddpg"),
        "dqn": Place("agents.dqn"),
        "dyna_q": Place("agents.dyna_q"),
        "iql": Place("agents.iql"),
        "mbpo": Place("agents.mbpo"),
        "mbpo_td3": Place("agents.mbpo_td3"),
        "ppo": Place("agents.ppo"),
        "pqn": Place("agents.pqn"),
        "recurrent_dqn": Place("agents.recurrent_dqn"),
        "sac": Place("agents.sac"),
        "td3": Place("agents.td3"),
    }
)
REPLAYS = Components(
    {
        "prioritised": Place("replay.prioritised"),
        "sequence": Place("replay.sequence"),
        "uniform": Place("replay.uniform"),
    }
)
WORKFLOWS = Components(
    {
        "async": Place("workflows.actor_learner.async_"),
        "central_inference": Place("workflows.central_inference"),
        "dyna": Place("workflows.actor_learner.dyna"),
        "elastic": Place("workflows.actor_learner.elastic"),
        "fused": Place("workflows.fused"),
        "gossip": Place("workflows.gossip"),
        "offline": Place("workflows.offline"),
        "parameter_server": Place("workflows.parameter_server"),
        "rma": Place("workflows.actor_learner.rma"),
        "rma_queue": Place("workflows.actor_learner.rma_queue"),
        "sharded": Place("workflows.sharded"),
    }
)
ENVS = Components(
    {
        name: Place(f"envs.{family.module}", family.config, family.make)
        for family in FAMILIES
        for name in family.names
    }
)
USER_ENV = Components({"": Place("envs.user_env")})
SECTIONS = {"agent": AGENTS, "env": ENVS, "replay": REPLAYS, "workflow": WORKFLOWS}


ENTRY_POINTS = {section: f"jaxrl_hpc.{section}s" for section in SECTIONS}  # groups, by section


def plugins(section: str) -> dict[str, str]:
    """Names that installed packages add to a section -> `module:make` (of environments `module:Class`)."""
    found = metadata.entry_points(group=ENTRY_POINTS[section])
    return {point.name: point.value for point in found if point.name not in SECTIONS[section]}


@functools.cache
def user_component(section: str, target: str, name: str = "") -> Component:
    """A user-defined component, `module:make`.

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
        raise UserError(f"{field}: {target} is not a function that makes {_ARTICLE[section]} {section}")
    module = import_module(target.partition(":")[0], field)
    try:
        hints = list(typing.get_type_hints(make).values())
    except NameError:
        hints = []
    found = next((h for h in hints[:1] if isinstance(h, type)), getattr(module, "Config", None))
    base = _base_config(section)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(
            f"{field}: the first parameter of {target} needs the annotation of its settings, a class that "
            f"derives from {base.__module__}.{base.__name__}"
        )
    # the name in a config must find it again, whatever the class calls itself
    named = create_model(found.__name__, __base__=found, __module__=found.__module__, name=(str, name))
    return Component(named, make)


def _base_config(section: str) -> type[Schema]:
    """The base class for configs of user-defined components."""
    names = {
        "agent": ("schema", "AgentConfig"),
        "env": ("schema", "ComponentConfig"),
        "replay": ("replay.sizes", "ReplayConfig"),
        "workflow": ("workflows.config", "WorkflowConfig"),
    }
    module, name = names[section]
    base: type[Schema] = getattr(importlib.import_module(f"jaxrl_hpc.{module}"), name)
    return base


def _named_environment(target: str, name: str) -> Component:
    """A class of a plug-in package under a name of its own."""
    from jaxrl_hpc.envs import user_env

    named = create_model("Config", __base__=user_env.Config, __module__=user_env.__name__, name=(str, name))
    return Component(named, lambda config: user_env.make(config, target))


_ARTICLE = {"agent": "an", "env": "an", "replay": "a", "workflow": "a"}


def find(section: str, name: str) -> Component:
    """The component that `section.name` means."""
    known = SECTIONS[section]
    if name in known:
        return known[name]
    if re.match(NAME, name):
        return USER_ENV[""] if section == "env" else user_component(section, name)
    added = plugins(section)
    if name in added:
        return user_component(section, added[name], name)
    raise UserError(f"{section}.name: there is no {section} {name!r}{nearest(name, [*known, *added])}")


def find_config(section: str, name: str) -> type[Schema]:
    """The settings of the component that `section.name` means, without JAX if it is one of the package's."""
    known = SECTIONS[section]
    if name in known:
        return known.config(name)
    if section == "env" and re.match(NAME, name):
        return USER_ENV.config("")
    return find(section, name).config
