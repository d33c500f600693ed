"""Everything that a config can name. Adding a component is one line here; others are named `module:make`."""

from __future__ import annotations

import functools
import importlib
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import create_model

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
        "ppo": Place("agents.ppo"),
        "recurrent_dqn": Place("agents.recurrent_dqn"),
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
        "central_inference": Place("workflows.central_inference.workflow"),
        "dyna": Place("workflows.actor_learner.dyna"),
        "fused": Place("workflows.fused"),
        "parameter_server": Place("workflows.parameter_server"),
        "rma": Place("workflows.actor_learner.rma"),
        "rma_queue": Place("workflows.actor_learner.rma_queue"),
        "sharded": Place("workflows.sharded.workflow"),
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


@functools.cache
def user_component(section: str, name: str) -> Component:
    """A component of one's own, `module:make`.

    Its config class is what the first parameter of `make` is annotated with, or the module's `Config`.
    """
    field = f"{section}.name"
    make = import_attribute(name, field)
    if not callable(make):
        raise UserError(f"{field}: {name} is no function that makes {_ARTICLE[section]} {section}")
    module = import_module(name.partition(":")[0], field)
    try:
        hints = list(typing.get_type_hints(make).values())
    except NameError:
        hints = []
    found = next((h for h in hints[:1] if isinstance(h, type)), getattr(module, "Config", None))
    base = _base_config(section)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(
            f"{field}: the first parameter of {name} needs the annotation of its settings, a class that "
            f"derives from {base.__module__}.{base.__name__}"
        )
    # the name in a config is the dotted one, whatever the class itself is called by
    named = create_model(found.__name__, __base__=found, __module__=found.__module__, name=(str, name))
    return Component(named, make)


def _base_config(section: str) -> type[Schema]:
    """What the config class of a component of one's own derives from."""
    names = {
        "agent": ("schema", "AgentConfig"),
        "env": ("schema", "ComponentConfig"),
        "replay": ("replay.sizes", "ReplayConfig"),
        "workflow": ("workflows.base", "WorkflowConfig"),
    }
    module, name = names[section]
    base: type[Schema] = getattr(importlib.import_module(f"jaxrl_hpc.{module}"), name)
    return base


_ARTICLE = {"agent": "an", "env": "an", "replay": "a", "workflow": "a"}


def find(section: str, name: str) -> Component:
    """The component that `section.name` means."""
    known = SECTIONS[section]
    if name in known:
        return known[name]
    if re.match(NAME, name):
        return USER_ENV[""] if section == "env" else user_component(section, name)
    raise UserError(f"{section}.name: there is no {section} {name!r}{nearest(name, list(known))}")
