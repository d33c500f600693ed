"""List what a config can name, and the available configs. PATTERN is part of a name, or has wildcards.

examples:
  jaxrl-hpc list                          how many there are of everything
  jaxrl-hpc list configs                  all of them
  jaxrl-hpc list configs cartpole         with cartpole in the name, environment or agent
  jaxrl-hpc list configs 'workflows/*'
  jaxrl-hpc list envs                     a line per family
  jaxrl-hpc list envs minatar             all names of it
  jaxrl-hpc list agents
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jaxrl_hpc.cli.table import described, table
from jaxrl_hpc.errors import UserError

KINDS = ("agents", "envs", "replays", "workflows", "configs", "sweeps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", choices=KINDS, nargs="?", help="what to list; without it, the number of each kind"
    )
    parser.add_argument("pattern", nargs="?", default="", metavar="PATTERN", help="only what matches")


def run(args: argparse.Namespace) -> int:
    if args.kind is None:
        print(numbers())
    elif args.kind == "configs":
        print(configs(args.pattern))
    elif args.kind == "sweeps":
        print(sweeps(args.pattern))
    elif args.kind == "envs":
        print(envs(args.pattern))
    else:
        print(components(args.kind, args.pattern))
    return 0


def numbers() -> str:
    """How many there are of everything."""
    from jaxrl_hpc.config.registry import SECTIONS, plugins
    from jaxrl_hpc.config.sources import config_files

    counts = {"configs": len(config_files()), "sweeps": len(config_files("sweeps"))}
    for kind in ("agents", "envs", "replays", "workflows"):
        section = kind.removesuffix("s")
        counts[kind] = len(SECTIONS[section].places) + len(plugins(section))
    rows = [(kind, str(count), f"jaxrl-hpc list {kind} [PATTERN]") for kind, count in counts.items()]
    return table([("", "number", ""), *rows], "<><")


def matches(pattern: str, *texts: str) -> bool:
    pattern = pattern.lower()
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(text.lower(), pattern) for text in texts)
    return any(pattern in text.lower() for text in texts)


def chosen(rows: list[Any], kind: str, pattern: str) -> list[Any]:
    if not rows:
        raise UserError(f"nothing matches {pattern!r}; jaxrl-hpc list {kind} shows all")
    return rows


def configs(pattern: str) -> str:
    """A line per config. Those in folders show their workflow, since the name already states the
    environment."""
    from jaxrl_hpc.config.sources import config_files

    top: list[tuple[str, ...]] = []
    inner: list[tuple[str, ...]] = []
    for name, path in config_files().items():
        agent, env, flow, steps = _parts(path)
        if matches(pattern, name, env, agent, flow):
            (inner if "/" in name else top).append((name, agent, flow if "/" in name else env, steps))
    chosen([*top, *inner], "configs", pattern)
    parts = []
    if top:
        parts.append(table([("name", "agent", "environment", "steps"), *top], "<<<>", shrink=0))
    if inner:
        parts.append(table([("name", "agent", "workflow", "steps"), *inner], "<<<>", shrink=0))
    parts.append("jaxrl-hpc show NAME has all settings of one, jaxrl-hpc train NAME trains it")
    return "\n\n".join(parts)


def _parts(path: Path) -> tuple[str, str, str, str]:
    """Agent, environment, workflow and steps of a config file; what cannot be read is a question mark."""
    from jaxrl_hpc.metrics.units import count
    from jaxrl_hpc.read_files import read_yaml

    try:
        data = read_yaml(path)
    except UserError:
        data = None
    sections = data if isinstance(data, dict) else {}

    def of(section: str, key: str, default: Any) -> Any:
        inner = sections.get(section)
        return inner.get(key, default) if isinstance(inner, dict) else default

    env = of("env", "id", of("env", "name", "?"))
    steps = of("run", "total_env_steps", 100_000)
    shown = count(steps) if isinstance(steps, int) else "?"
    return str(of("agent", "name", "?")), str(env), str(of("workflow", "name", "fused")), shown


def sweeps(pattern: str) -> str:
    from jaxrl_hpc.config.sources import config_files

    files = config_files("sweeps")
    rows = [(name, summary_of(path)) for name, path in files.items() if matches(pattern, name)]
    return described(chosen(rows, "sweeps", pattern))


def envs(pattern: str) -> str:
    """A line per family; with a pattern, the names in it."""
    from jaxrl_hpc.config.registry import plugins
    from jaxrl_hpc.envs.names import FAMILIES

    added = plugins("env")
    if pattern:
        found = [
            (name, family.note or family.title)
            for family in FAMILIES
            for name in family.names
            if matches(pattern, name, family.title)
        ]
        found += [(name, f"installed: {target}") for name, target in added.items() if matches(pattern, name)]
        return table([("name", "family"), *chosen(found, "envs", pattern)])
    rows = [("family", "", "env.name"), *((f.title, str(len(f.names)), _names(f)) for f in FAMILIES)]
    rows += [("installed", "1", f"{name}: {target}") for name, target in added.items()]
    return (
        f"{table(rows, '<><')}\n\n"
        "jaxrl-hpc list envs FAMILY has all names of one. A class of your own, Gymnasium\n"
        "or gymnax, is env.name=module:Class."
    )


def _names(family: Any) -> str:
    """As many names of a family as fit beside its title, with the common ending written once."""
    if family.note:
        return f"{family.names[0]}: {family.note}"
    ending = family.names[0].partition("-")[2]
    shared = ending and all(name.endswith(f"-{ending}") for name in family.names) and len(family.names) > 4
    names = [name.removesuffix(f"-{ending}") for name in family.names] if shared else list(family.names)
    tail = f" (…-{ending})" if shared else ""
    text, room = names[0], 56 - len(tail)
    for name in names[1:]:
        if len(f"{text}, {name}") > room - 3:
            return f"{text}, …{tail}"
        text += f", {name}"
    return text + tail


def components(kind: str, pattern: str) -> str:
    """Agents, replays or workflows with the first sentence of their module."""
    from jaxrl_hpc.config.registry import SECTIONS, plugins
    from jaxrl_hpc.config.sources import PACKAGE

    section = kind.removesuffix("s")
    rows = []
    for name, place in SECTIONS[section].places.items():
        path = PACKAGE / place.module.replace(".", "/")
        package = path / "__init__.py"
        source = package if package.is_file() else path.with_suffix(".py")
        text = ast.get_docstring(ast.parse(source.read_text())) or ""
        rows.append((name, first_sentence(text.split("\n"))))
    rows += [(name, f"installed: {target}") for name, target in plugins(section).items()]
    found = [row for row in rows if matches(pattern, row[0])]
    return described(chosen(found, kind, pattern))


def summary_of(path: Path) -> str:
    """The first sentence of a config's comment, without the line for editors."""
    lines = [line[1:].removeprefix(" ") for line in path.read_text().splitlines() if line.startswith("#")]
    return first_sentence([line for line in lines if not line.startswith("yaml-language-server")])


def first_sentence(lines: Sequence[str]) -> str:
    """First sentence of the first paragraph, which indented examples end too."""
    words: list[str] = []
    for line in lines:
        if not line.strip() or (words and line.startswith("  ")):
            break
        words.append(line.strip())
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(words))[0].removesuffix(":")
