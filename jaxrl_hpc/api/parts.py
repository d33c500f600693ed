"""Components with plain arguments: settings are keyword arguments, checked as in a config.

Numbers that a compiled program takes as arguments (`traced` settings) take their values from the settings
unless others are given: `agent.init(key)`, or `agent.init(key, {"learning_rate": 1e-4})`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel

from jaxrl_hpc import config as configs
from jaxrl_hpc.config.registry import SECTIONS, Component, find, nearest, plugins
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import AgentConfig, ComponentConfig, Schema, traced_values
from jaxrl_hpc.types import Agent, Array, EnvSpec

F = TypeVar("F", bound=Callable[..., Any])


class AgentOrigin(NamedTuple):
    """Records how an agent was made."""

    config: AgentConfig
    spec: EnvSpec
    num_envs: int


def plain(value: Any) -> Any:
    """Settings as a config file has them: mappings, lists and scalars."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic | jax.Array) else value


def override(key: str, value: Any) -> str:
    """`key=value`, as commands take it."""
    try:
        return f"{key}={json.dumps(plain(value))}"
    except (TypeError, ValueError):
        raise UserError(
            f"{key}: should be a number, a text, a list or a mapping (it is {value!r:.60})"
        ) from None


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as nested mappings: {"network.hidden": [64]} -> {"network": {"hidden": [64]}}."""
    data: dict[str, Any] = {}
    for key, value in settings.items():
        *above, name = key.split(".")
        node = data
        for part in above:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise UserError(f"{key}: {part!r} holds a value, not keys")
        node[name] = plain(value)
    return data


def settings_of(section: str, name: str, settings: Mapping[str, Any]) -> tuple[Component, Any]:
    """A component and its settings, validated."""
    component = find(section, name)
    problems: list[str] = []
    config = configs.validate(section, component.config, {"name": name} | nested(settings), problems)
    if problems:
        raise UserError("\n".join(problems))
    return component, config


def numbers(config: Schema, given: Mapping[str, Any] | None) -> dict[str, Array]:
    """Traced settings as arrays: those of the config, replaced by those given."""
    values: dict[str, Any] = traced_values(config)
    for name in given or {}:
        if name not in values:
            raise UserError(f"hypers: {name!r} is not a traced setting{nearest(name, list(values))}")
    return {name: jnp.asarray(value, jnp.float32) for name, value in (values | dict(given or {})).items()}


def with_numbers(agent: Agent, origin: AgentOrigin) -> Agent:
    """An agent whose `init` needs no hypers."""
    init = agent.init

    @functools.wraps(init)
    def init_with_numbers(key: Array, hypers: Mapping[str, Any] | None = None) -> Any:
        return init(key, numbers(origin.config, hypers))

    return agent._replace(init=init_with_numbers, origin=origin)


def documented(section: str, package: str) -> Callable[[F], F]:
    """Decorates a function named after a component: its signature and help show the component's settings.

    It also has the attributes of the component's module, such as `rl.agents.dqn.Config`.
    """

    def decorate(function: F) -> F:
        module = importlib.import_module(f"jaxrl_hpc.{package}.{function.__name__}")
        fields = SECTIONS[section][function.__name__].config.model_fields
        signature = inspect.signature(function)
        fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {"name", *(p.name for p in fixed)}
        settings = {name: field for name, field in fields.items() if name not in taken}
        extra = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
            for name, field in settings.items()
        ]
        lines = [
            f"  {name}: {field.description or _first_line(field.annotation)} ({_short(field.default)})"
            for name, field in settings.items()
        ]
        public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Settings:", *lines])
        function.__signature__ = signature.replace(parameters=[*fixed, *extra])  # type: ignore[attr-defined]
        vars(function).update(public)
        return function

    return decorate


def _first_line(annotation: Any) -> str:
    return (inspect.getdoc(annotation) or "").partition("\n")[0].rstrip(".").lower()


def _short(value: Any) -> str:
    if isinstance(value, ComponentConfig | Schema):
        return ", ".join(f"{name}={getattr(value, name)!r}" for name in type(value).model_fields)
    return repr(value)


def attribute_of(module: str, section: str, package: str, make: Callable[..., Any], name: str) -> Any:
    """Resolves `rl.agents.NAME` for other names: a plug-in's component, or a module of the package.

    Args:
      module: that was asked.
      section: of a config.
      package: of the implementations, whose other modules can be reached through the API.
      make: (component's name, …) makes a component of this section.
      name: of the attribute.
    """
    hint = ""
    if not name.startswith("_"):
        found = _submodule(f"jaxrl_hpc.{package}", name)
        if found is not None:
            return found
        added = plugins(section)
        if name in added:
            return functools.partial(make, name)
        hint = nearest(name, [*sys.modules[module].__all__, *added])
    raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def _submodule(package: str, name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.{name}":
            raise
        return None
