"""Everything that a config can name. Adding a component is one line here."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from jaxrl_hpc.agents import a2c, ddpg, dqn, dyna_q, ppo, recurrent_dqn, td3
from jaxrl_hpc.envs import cahn_hilliard, dotted, exabooster, gymnax_bridge, jumanji_env, probes
from jaxrl_hpc.envs.outside import envpool_env, gymnasium_env, mpi_program
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay import prioritised, sequence, uniform
from jaxrl_hpc.schema import Schema
from jaxrl_hpc.workflows import (
    asynchronous,
    central_inference,
    dyna,
    fused,
    parameter_server,
    rma,
    rma_queue,
    sharded,
)


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
    "async": _component(asynchronous),
    "central_inference": _component(central_inference),
    "dyna": _component(dyna),
    "fused": _component(fused),
    "parameter_server": _component(parameter_server),
    "rma": _component(rma),
    "rma_queue": _component(rma_queue),
    "sharded": _component(sharded),
}
ENVS: dict[str, Component] = {
    **{name: _component(gymnax_bridge) for name in gymnax_bridge.NAMES},
    **{name: Component(exabooster.ExaBoosterConfig, exabooster.make_env) for name in exabooster.NAMES},
    **{name: _component(probes) for name in probes.NAMES},
    **{name: Component(envpool_env.LanderConfig, envpool_env.make_lander) for name in envpool_env.LANDERS},
    **{name: Component(envpool_env.AtariConfig, envpool_env.make_atari) for name in envpool_env.GAMES},
    cahn_hilliard.NAME: _component(cahn_hilliard),
    "gymnasium": _component(gymnasium_env),
    "jumanji": _component(jumanji_env),
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


def find(section: str, name: str) -> Component:
    """The component that `section.name` means."""
    known = SECTIONS[section]
    if section == "env" and ":" in name:  # a class of the user's own
        return _component(dotted)
    if name not in known:
        raise UserError(f"{section}.name: there is no {section} {name!r}{nearest(name, list(known))}")
    return known[name]
