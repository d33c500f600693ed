"""Everything that a config can name. Adding a component is one line here; others are named `module:make`."""

from __future__ import annotations

import difflib
import functools
import re
import typing
from collections.abc import Callable
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
    base = BASES[section]
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(
            f"{field}: the first parameter of {name} needs the annotation of its settings, a class that "
            f"derives from {base.__module__}.{base.__name__}"
        )
    # the name in a config is the dotted one, whatever the class itself is called by
    named = create_model(found.__name__, __base__=found, __module__=found.__module__, name=(str, name))
    return Component(named, make)


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
    raise UserError(f"{section}.name: there is no {section} {name!r}{nearest(name, list(known))}")
