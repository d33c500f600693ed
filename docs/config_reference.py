"""Writes the reference of every config field from the schemas: type, range, default and meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxrl_hpc.config.files import json_schema


def allowed(field: dict[str, Any]) -> str:
    """A field's type and range in words."""
    if "enum" in field or "const" in field:
        return " or ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('.')[2]}`"
    if options := field.get("anyOf"):
        return " or ".join(allowed(option) for option in options)
    kind = "list" if field.get("type") == "array" else str(field.get("type", "any value"))
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {field[name]:g}" for name, sign in bounds.items() if name in field]
    return ", ".join([kind, *limits])


def line(name: str, field: dict[str, Any], required: bool) -> str:
    default = "required" if required else f"`{field['default']}`" if "default" in field else "–"
    meaning = " ".join(str(field.get("description", "")).split())
    cells = [f"`{name}`", allowed(field), default, meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reference() -> str:
    lines = ["# Config fields", "", "Made from the schemas when the site is built.", ""]
    for title, definition in sorted(json_schema()["$defs"].items()):
        fields = definition.get("properties")
        if fields:
            lines += [
                f"## `{title}`",
                "",
                "| field | type and range | default | meaning |",
                "|---|---|---|---|",
            ]
            required = definition.get("required", [])
            lines += [line(name, field, name in required) for name, field in fields.items()]
            lines += [""]
    return "\n".join(lines)


def write_reference(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    text = reference()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
