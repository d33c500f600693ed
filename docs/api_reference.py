"""Writes the reference of the Python API from signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jaxrl_hpc as rl

ENTRY = ("train", "load", "compare", "sweep")
CLASSES = ("Run", "Policy", "Comparison", "Sweep")
CONTRACTS = ("Env", "Transition", "Agent", "Replay", "Workflow")
SECTIONS = re.compile(r"^(Args|Returns|Raises|Yields):$")


def reference() -> str:
    lines = [
        "# API: every name",
        "",
        "Made from signatures and docstrings when the site is built. [The guide](../api.md)",
    ]
    lines += ["shows how the names belong together.", "", "## Runs and sweeps", ""]
    for name in ENTRY:
        lines += entry(f"rl.{name}", getattr(rl, name))
    for name in CLASSES:
        lines += whole_class(f"rl.{name}", getattr(rl, name))
    for title, module in (("Parts", None), ("Operations", rl.ops), ("Networks", rl.networks)):
        lines += [f"## {title}", ""]
        if module is None:
            for part in ("envs", "agents", "replay", "workflows"):
                api = importlib.import_module(f"jaxrl_hpc.api.{part}")
                for name in api.__all__:
                    lines += entry(f"rl.{part}.{name}", getattr(api, name), settings=True)
        else:
            for name in public(module):
                lines += entry(f"rl.{module.__name__.rpartition('.')[2]}.{name}", getattr(module, name))
    lines += ["## Acting", ""]
    for name in ("start", "unroll", "evaluate"):
        lines += entry(f"rl.rollout.{name}", getattr(rl.rollout, name))
    lines += ["## Contracts", ""]
    for name in CONTRACTS:
        lines += contract(f"rl.{name}", getattr(rl, name))
    return "\n".join(lines) + "\n"


def public(module: ModuleType) -> list[str]:
    """Names that the package offers, without its own modules and imports."""
    values = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    own = {name for name, value in values.items() if getattr(value, "__module__", "").startswith("jaxrl_hpc")}
    return sorted(own)


def entry(name: str, item: Any, level: int = 3, settings: bool = False) -> list[str]:
    """A function: signature and docstring; the settings of a part are a link, not repeated."""
    text = inspect.getdoc(item) or ""
    if settings and (config := getattr(item, "Config", None)) is not None:
        text = text.partition("\n\nSettings")[0].partition("\n\nArgs:")[0]
        known = f"{config.__module__}.{config.__qualname__}"
        text += f"\n\nSettings: `{known.removeprefix('jaxrl_hpc.')}` in [config fields](config.md)."
    return [f"{'#' * level} `{name}`", "", *signature(name, item), *prose(text), ""]


def signature(name: str, item: Any) -> list[str]:
    try:
        found = inspect.signature(item)
    except (TypeError, ValueError):
        return []
    bare = found.replace(return_annotation=inspect.Signature.empty)
    shown = f"{name}{bare}"
    if len(shown) > 88:
        inner = ",\n    ".join(_parameters(found))
        shown = f"{name}(\n    {inner},\n)"
    if found.return_annotation is not inspect.Signature.empty:
        shown += f" -> {_name(found.return_annotation)}"
    plain = re.sub(r": '([^']*)'", r": \1", shown.replace("jaxrl_hpc.types.", ""))  # annotations are texts
    return ["```python", plain, "```", ""]


def _parameters(found: inspect.Signature) -> list[str]:
    """As texts, with the star before those that are given by name only."""
    texts: list[str] = []
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        texts.append(str(parameter))
    return texts


def _name(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def whole_class(name: str, item: type) -> list[str]:
    lines = entry(name, item)
    for attribute, value in vars(item).items():
        if attribute.startswith("_") or not inspect.getdoc(value):
            continue
        if isinstance(value, property):
            lines += [f"#### `{name}.{attribute}`", "", *prose(inspect.getdoc(value) or ""), ""]
        elif callable(value):
            lines += entry(f"{name}.{attribute}", value, 4)
    return lines


def contract(name: str, item: type) -> list[str]:
    """A protocol or tuple: what it is, and its source, whose comments have the shapes."""
    source = inspect.getsource(item)
    return [
        f"### `{name}`",
        "",
        *prose(inspect.getdoc(item) or ""),
        "",
        "```python",
        source.rstrip(),
        "```",
        "",
    ]


def prose(text: str) -> list[str]:
    """A docstring as Markdown: sections in bold, arguments as a list, indented examples as code."""
    lines: list[str] = []
    section, code = False, False
    for raw in text.splitlines():
        line = raw if raw.startswith("    ") and not section else raw.replace("<", "\\<")
        if SECTIONS.match(line):
            lines += ["```", ""] if code else []
            section, code = True, False
            lines += ["", f"**{line.rstrip(':')}**", ""]
            continue
        indented = line.startswith("  ")
        if section and indented:
            argument = re.match(r"  (\*{0,2}\w+): (.*)", line)
            lines.append(f"- `{argument[1]}`: {argument[2]}" if argument else f"  {line.strip()}")
            continue
        if not section and line.startswith("    ") and not code:
            code = True
            lines += ["", "```text"]
        elif code and line and not line.startswith("    "):
            code = False
            lines += ["```", ""]
        section = section and (indented or not line)
        lines.append(line[4:] if code else line)
    return [*lines, "```"] if code else lines


def write_reference(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    text = reference()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
