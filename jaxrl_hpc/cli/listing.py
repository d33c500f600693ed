"""What a config can name.

examples:
  jaxrl-hpc list agents
  jaxrl-hpc list configs
  jaxrl-hpc list sweeps
"""

from __future__ import annotations

import argparse

KINDS = ("agents", "envs", "replays", "workflows", "configs", "sweeps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS)


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if text else ""


def run(args: argparse.Namespace) -> int:
    import sys

    from rich.console import Console
    from rich.table import Table

    from jaxrl_hpc import config, registry

    table = Table("name", "what it is", box=None, pad_edge=False)
    if args.kind in ("configs", "sweeps"):
        seen = set()
        for top in config.CONFIG_DIRS:
            folder = top / "sweeps" if args.kind == "sweeps" else top
            for path in sorted(folder.rglob("*.yaml")) if folder.is_dir() else []:
                name = str(path.relative_to(folder).with_suffix(""))
                if name not in seen and not name.startswith("sweeps"):
                    seen.add(name)
                    comment = [t[1:].strip() for t in path.read_text().splitlines() if t.startswith("# ")]
                    comment = [t for t in comment if not t.startswith("yaml-language-server")]
                    table.add_row(name, comment[0] if comment else "")
    else:
        section = {"agents": "agent", "envs": "env", "replays": "replay", "workflows": "workflow"}[args.kind]
        for name, component in registry.SECTIONS[section].items():
            module = sys.modules[component.config.__module__]
            table.add_row(name, _first_line(module.__doc__))
    Console().print(table)
    return 0
