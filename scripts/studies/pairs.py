"""The table of configs in docs/agents.md: which agent is ready for which environment.

Run it after adding a config: python scripts/studies/pairs.py
With --missing it lists the configs that no command on a page of docs/results/ trains.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import page_table  # beside this file

from jaxrl_hpc import config as configs
from jaxrl_hpc.config import registry

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "agents.md"
BEGIN = "<!-- table: made by scripts/studies/pairs.py -->"


def table() -> str:
    """Names of configs in configs/, by environment and agent."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        config: Any = configs.load(path)
        agents = found.setdefault(config.env.name, {})
        agents.setdefault(config.agent.name, []).append(f"[`{path.stem}`](../configs/{path.name})")
    lines = ["| environment | configs |", "|---|---|"]
    for env, agents in sorted(found.items()):
        names = [name for agent in registry.AGENTS for name in agents.get(agent, [])]
        lines.append(f"| `{env}` | {', '.join(names)} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The page with the present table."""
    return page_table.replaced(text, BEGIN, table())


def without_run() -> list[str]:
    """Names of configs in configs/ without a recorded run."""
    pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "results").glob("*.md")))
    trained = set(re.findall(r"jaxrl-hpc train (\S+)", pages))
    return [path.stem for path in sorted((ROOT / "configs").glob("*.yaml")) if path.stem not in trained]


if __name__ == "__main__":
    if "--missing" in sys.argv[1:]:
        print("\n".join(without_run()))
        sys.exit()
    PAGE.write_text(with_table(PAGE.read_text()))
    print(f"written to {PAGE}")
