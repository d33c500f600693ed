"""What a config can name.

examples:
  jaxrl-hpc list agents
  jaxrl-hpc list configs
  jaxrl-hpc list sweeps
"""

from __future__ import annotations

import argparse
import re

KINDS = ("agents", "envs", "replays", "workflows", "configs", "sweeps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS)


def _first_sentence(lines: list[str]) -> str:
    """Of the first paragraph; examples, which are indented, end it too."""
    words: list[str] = []
    for line in lines:
        if not line.strip() or (words and line.startswith("  ")):
            break
        words.append(line.strip())
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(words))[0].removesuffix(":")


def _comment(text: str) -> list[str]:
    """Lines of a config's comment, without the one for editors."""
    lines = [line[1:].removeprefix(" ") for line in text.splitlines() if line.startswith("#")]
    return [line for line in lines if not line.startswith("yaml-language-server")]


def run(args: argparse.Namespace) -> int:
    import sys

    from rich.console import Console
    from rich.table import Table

    from jaxrl_hpc import config
    from jaxrl_hpc.config import registry

    table = Table("name", "what it is", box=None, pad_edge=False)
    if args.kind in ("configs", "sweeps"):
        seen = set()
        for top in config.CONFIG_DIRS:
            folder = top / "sweeps" if args.kind == "sweeps" else top
            for path in sorted(folder.rglob("*.yaml")) if folder.is_dir() else []:
                name = str(path.relative_to(folder).with_suffix(""))
                if name not in seen and not name.startswith("sweeps"):
                    seen.add(name)
                    table.add_row(name, _first_sentence(_comment(path.read_text())))
    else:
        section = {"agents": "agent", "envs": "env", "replays": "replay", "workflows": "workflow"}[args.kind]
        for name, component in registry.SECTIONS[section].items():
            module = sys.modules[component.config.__module__]
            table.add_row(name, _first_sentence((module.__doc__ or "").strip().splitlines()))
    Console().print(table)
    return 0
