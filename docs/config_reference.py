"""Writes the reference of every config field from the schemas: type, range, default and meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxrl_hpc.config.files import json_schema
from jaxrl_hpc.envs.names import FAMILIES

INTRODUCTION = """\
# Config fields

A config has the sections `agent`, `env`, `replay`, `workflow` and `run`; only `agent` and `env` are required.
The `name` in a section chooses a component, whose settings are the other keys:

```yaml
agent: {name: dqn, learning_rate: 1e-3, network: {hidden: [64, 64]}}
env: {name: CartPole-v1}
run: {total_env_steps: 100_000}
```
`jaxrl-hpc show CONFIG` lists the settings of one config with their values. Not listed are those of
[your own components](../architecture.md#adding-one-thing). Made from the schemas when the site is built.
"""
SECTIONS = {
    "run": ("RunConfig",),
    "agent": ("jaxrl_hpc.agents.",),
    "env": ("jaxrl_hpc.envs.",),
    "replay": ("jaxrl_hpc.replay.",),
    "workflow": ("jaxrl_hpc.workflows.",),
    "nested settings": ("NetworkConfig", "NormaliseConfig"),
}
LARGE = {2**31 - 1: "2³¹ − 1", 2**31: "2³¹"}


def number(value: float) -> str:
    if value in LARGE:
        return LARGE[int(value)]
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def shown(value: Any) -> str:
    """As in YAML; an empty text in quotes."""
    return value if isinstance(value, str) and value else json.dumps(value)


def allowed(field: dict[str, Any]) -> str:
    """A field's type and range in words."""
    if "enum" in field or "const" in field:
        return " or ".join(f"`{shown(value)}`" for value in field.get("enum", [field.get("const")]))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := field.get("anyOf"):
        return " or ".join(allowed(option) for option in options)
    kind = "list" if field.get("type") == "array" else str(field.get("type", "any value"))
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {number(field[name])}" for name, sign in bounds.items() if name in field]
    return ", ".join([kind, *limits])


def nested_default(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """What differs from the defaults of the settings inside."""
    inner = definitions[field["$ref"].rpartition("/")[2]]["properties"]
    own = {k: v for k, v in (field["default"] or {}).items() if v != inner[k].get("default")}
    return "`" + ", ".join(f"{k}: {shown(v)}" for k, v in own.items()) + "`" if own else "–"


def line(name: str, field: dict[str, Any], required: bool, definitions: dict[str, Any]) -> str:
    if required or "default" not in field:
        default = "required" if required else "–"
    else:
        default = nested_default(field, definitions) if "$ref" in field else f"`{shown(field['default'])}`"
    inner = definitions[field["$ref"].rpartition("/")[2]] if "$ref" in field else {}
    meaning = " ".join(str(field.get("description", inner.get("description", ""))).split())
    cells = [f"`{name}`", allowed(field), default, meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def heading(title: str, definition: dict[str, Any]) -> str:
    """What a config class is for, in the words of a config."""
    if "." not in title:
        return title
    section = next(name for name, starts in SECTIONS.items() if title.startswith(starts))
    name = definition["properties"].get("name", {})
    names = name.get("enum", [name["const"]] if "const" in name else [])
    if section != "env":
        return f"{section}: {names[0]}"
    families = [
        f.title for f in FAMILIES if set(f.names) & set(names) or title.endswith(f".{f.module}.Config")
    ]
    return f"env: {', '.join(families) or 'a class of your own'}"


def reference() -> str:
    definitions = {title: d for title, d in sorted(json_schema()["$defs"].items()) if d.get("properties")}
    lines = [INTRODUCTION]
    for section, starts in SECTIONS.items():
        lines += [f"## {section}", ""]
        for title in [title for title in definitions if title.startswith(starts)]:
            fields, required = definitions[title]["properties"], definitions[title].get("required", [])
            if title != "RunConfig":
                lines += [f"### {heading(title, definitions[title])}", ""]
            lines += ["| field | type and range | default | meaning |", "|---|---|---|---|"]
            lines += [line(name, field, name in required, definitions) for name, field in fields.items()]
            lines += [""]
    return "\n".join(lines)


def write_reference(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    text = reference()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
