"""Configs: YAML files with dotted overrides, validated into frozen objects.

A config has five sections: agent, env, replay, workflow and run. The `name` in a section selects the
component, whose Config class defines the other keys. Only agent and env are required: missing settings are
filled in to suit the agent and saved with the run.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from jaxrl_hpc.config.registry import SECTIONS, find, find_config
from jaxrl_hpc.config.run import RunConfig
from jaxrl_hpc.config.sources import name_run, nearest, read_source
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay.sizes import ReplayConfig
from jaxrl_hpc.schema import AgentConfig, ComponentConfig, Schema
from jaxrl_hpc.user_code import NAME, check_same_module, folder_of, search_in
from jaxrl_hpc.workflows.config import WorkflowConfig

ClassOf = Callable[[str, str], type[Schema]]  # section, name -> config class


class Config(Schema):
    """A whole run. Sections hold the Config of the component they name."""

    agent: AgentConfig
    env: ComponentConfig
    replay: ReplayConfig | None = None
    workflow: WorkflowConfig
    run: RunConfig

    def to_dict(self) -> dict[str, Any]:
        """Plain data with all defaults filled in, as saved with a run."""
        sections = ("agent", "env", "replay", "workflow", "run")
        present = {name: getattr(self, name) for name in sections}
        return {k: v.model_dump(mode="json") for k, v in present.items() if v is not None}


def _describe(error: Any, section: str, cls: type[Schema]) -> str:
    """A pydantic error as one sentence with the field, its value and the allowed values."""
    path = ".".join(filter(None, [section, *(str(p) for p in error["loc"])]))
    if error["type"] == "extra_forbidden":
        owner = cls
        for part in error["loc"][:-1]:
            if str(part) in owner.model_fields:  # else a key of a mapping, whose values `owner` is already
                owner = _schema_in(owner.model_fields[str(part)].annotation) or owner
        return f"{path}: unknown key{nearest(str(error['loc'][-1]), list(owner.model_fields))}"
    value = error.get("input")
    message = error["msg"]
    message = message.removeprefix("Value error, ").replace("Input should be", "should be")
    # errors about several keys do not repeat all values
    shown = "" if isinstance(value, Mapping) else f" (it is {_shown(value)})"
    return f"{path + ': ' if path else ''}{message[0].lower()}{message[1:]}{shown}"


def _shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out huge integers
        return f"a number of {value.bit_length()} bits"
    return text if len(text) <= 120 else f"{text[:100]}… of {len(text)} characters"


def _schema_in(annotation: Any) -> type[Schema] | None:
    """The config class in a field's type: itself, one of a union, or the values of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Schema):
        return annotation
    return next((found for part in get_args(annotation) if (found := _schema_in(part))), None)


def validate(section: str, cls: type[Schema], data: Any, problems: list[str]) -> Any:
    """Plain data as a config class, or None and a sentence per problem; `section` "" is the top."""
    if not isinstance(data, Mapping):
        problems.append(f"{section}: should hold keys, such as name (it is {_shown(data)})")
        return None
    try:
        # JSON mode: strict about types, but lists may become tuples
        return cls.model_validate_json(json.dumps(data))
    except ValidationError as error:
        found = error.errors(include_url=False)
        inner = {e["loc"][:length] for e in found for length in range(1, len(e["loc"]))}
        # a list of wrong values is also reported as too short
        problems.extend(_describe(e, section, cls) for e in found if e["loc"] not in inner)
    except (TypeError, ValueError, RecursionError) as error:  # not representable in JSON: dates, cycles
        problems.append(f"{section}: {error}")
    return None


def from_dict(data: Mapping[str, Any]) -> Config:
    """Validate plain data into a Config; every problem is reported, one sentence each."""
    if "jax" not in sys.modules:
        settings_of(data)  # report mistakes before it is imported
    return _from_dict(data, lambda section, name: find(section, name).config)


def settings_of(data: Mapping[str, Any]) -> Config:
    """The same without importing JAX, for inspection only (config/classes.py)."""
    return _from_dict(data, find_config)


def _from_dict(data: Mapping[str, Any], class_of: ClassOf) -> Config:
    if not isinstance(data, Mapping):
        raise UserError("a config needs the sections agent, env, workflow and run")
    problems: list[str] = []
    for key in data:
        if key not in (*SECTIONS, "run"):
            problems.append(f"{key}: there is no such section{nearest(str(key), [*SECTIONS, 'run'])}")
    parts: dict[str, Any] = {}
    run, wrong_in_run = data.get("run"), list[str]()
    parts["run"] = validate("run", RunConfig, {} if run is None else run, wrong_in_run)
    if parts["run"] and parts["run"].code_dirs:
        search_in(parts["run"].code_dirs)
    for section in SECTIONS:
        content = data.get(section)
        if content is None:
            if section == "workflow":
                content = {"name": "fused"}
            elif section == "replay":
                continue
            else:
                problems.append(f"{section}: this section is missing; it needs at least a name")
                continue
        if not isinstance(content, Mapping):
            problems.append(f"{section}: should hold keys, such as name (it is {_shown(content)})")
            continue
        if "name" not in content:
            problems.append(f"{section}.name: is missing; known are {', '.join(SECTIONS[section])}")
            continue
        try:
            if parts["run"] and re.match(NAME, str(content["name"])):
                check_same_module(str(content["name"]), parts["run"].code_dirs, f"{section}.name")
            found = class_of(section, str(content["name"]))
        except UserError as error:
            problems.append(str(error))
            continue
        parts[section] = validate(section, found, content, problems)
    problems += wrong_in_run
    if problems:
        raise UserError("\n".join(problems))
    return Config.model_construct(**completed(with_code_dirs(parts), class_of))


def with_code_dirs(parts: dict[str, Any]) -> dict[str, Any]:
    """Sections with the folders of the user's own code in `run`, so that it is found from anywhere."""
    names = [parts[section].name for section in SECTIONS if parts.get(section) is not None]
    found = [folder_of(name) for name in names if re.match(NAME, name)]
    run = parts["run"]
    folders = tuple(dict.fromkeys([*run.code_dirs, *(folder for folder in found if folder)]))
    if folders == run.code_dirs:
        return parts
    return parts | {"run": run.model_copy(update={"code_dirs": folders})}


def completed(parts: dict[str, Any], class_of: ClassOf) -> dict[str, Any]:
    """Sections completed to suit the agent: the replay, the unroll length."""
    agent, flow = parts["agent"], parts["workflow"]
    if agent.suitable_replay and parts.get("replay") is None:
        parts = parts | {"replay": class_of("replay", agent.suitable_replay)()}
    if flow.unroll_length == 0:
        steps = agent.suitable_unroll or flow.replay_unroll
        if flow.cuts_windows:
            steps = max(steps, agent.window)
        parts = parts | {"workflow": flow.model_copy(update={"unroll_length": steps})}
    return parts


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """A config file with `section.key=value` overrides, validated."""
    source, data = read_source(path, overrides)
    name_run(data, source)
    with mistakes_located(source, overrides):
        return from_dict(data)


@contextlib.contextmanager
def mistakes_located(source: Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Prefix every line of a UserError with the file, or the override that set the value."""
    try:
        yield
    except UserError as error:
        given = [text.partition("=")[0].strip() for text in overrides]

        def located(line: str) -> str:
            field = line.partition(":")[0]
            brought = any(f"{field}.".startswith(f"{n}.") or n.startswith(f"{field}.") for n in given)
            return f"override {line}" if brought else line if str(source) in line else f"{source}: {line}"

        raise UserError("\n".join(located(line) for line in str(error).splitlines())) from None


def _definition(cls: type[Schema], definitions: dict[str, Any]) -> dict[str, str]:
    """Puts a config class among the definitions; a reference to it."""
    title = f"{cls.__module__}.{cls.__name__}"
    definitions[title] = cls.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(definitions[title].pop("$defs", {}))
    return {"$ref": f"#/$defs/{title}"}


def json_schema() -> dict[str, Any]:
    """A JSON schema of all configs, for editors."""
    from jaxrl_hpc.envs import user_env

    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for section, components in SECTIONS.items():
        choices: list[dict[str, Any]] = []
        for cls in {component.config for component in components.values()}:
            choices.append(_definition(cls, definitions))
        choices.sort(key=lambda c: str(c["$ref"]))
        own = {"type": "string", "pattern": NAME}  # code of the user's own
        known: dict[str, Any] = {"anyOf": [{"enum": sorted(components)}, own]}
        if section == "env":
            choices.append(_definition(user_env.Config, definitions))
        else:
            choices.append({"properties": {"name": own}, "required": ["name"]})
        names = {"properties": {"name": known}, "required": ["name"]}
        properties[section] = {"allOf": [names, {"anyOf": choices}]}
    definitions["RunConfig"] = RunConfig.model_json_schema()
    properties["run"] = {"$ref": "#/$defs/RunConfig"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "jaxrl_hpc config",
        "type": "object",
        "properties": properties,
        "required": ["agent", "env"],
        "additionalProperties": False,
        "$defs": dict(sorted(definitions.items())),
    }
