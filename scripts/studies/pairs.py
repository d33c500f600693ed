"""The table of configs in docs/agents.md: which agent is ready for which environment.

Run it after adding a config: python scripts/studies/pairs.py
With --missing it lists the configs, also of configs/workflows/, that no page of docs/results/ has a run of.
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


def without_run(results: Path = ROOT / "docs" / "results") -> list[str]:
    """Names of configs that no page has a command of; those of workflows are named on pages without one."""
    pages = "\n".join(page.read_text() for page in sorted(results.glob("*.md")) if page.stem != "index")
    trained = set(re.findall(r"jaxrl-hpc train ([\w/]+)", pages)) | set(re.findall(r"workflows/\w+", pages))
    folder = ROOT / "configs"
    files = [*sorted(folder.glob("*.yaml")), *sorted((folder / "workflows").glob("*.yaml"))]
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in files]
    return [name for name in names if name not in trained]


if __name__ == "__main__":
    if "--missing" in sys.argv[1:]:
        print("\n".join(without_run()))
        sys.exit()
    PAGE.write_text(with_table(PAGE.read_text()))
    print(f"written to {PAGE}")
