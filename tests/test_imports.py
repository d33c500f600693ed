"""Imports point one way (docs/architecture.md), so that every layer can be understood without those above."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "jaxrl_hpc"
# a module may import its own layer and lower ones
LAYERS = [
    ["types", "schema", "errors"],
    ["ops", "comm", "io"],
    ["networks"],
    ["agents", "envs", "replay"],
    ["rollout"],
    ["workflows"],
    ["registry", "run_config"],
    ["config"],
    ["build", "machine", "signals"],
    ["fleet", "summary", "schedule", "pieces", "pictures"],
    ["hosted", "job_fleet"],
    ["crew", "workers"],
    ["trainer"],
    ["train"],
    ["evaluation", "sweeps"],
    ["export", "play"],
    ["bench"],
    ["scaling"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# parts that stand side by side and do not know each other
APART = [("agents", "envs"), ("agents", "replay"), ("envs", "replay"), ("agents", "comm"), ("comm", "io")]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {n.split(".")[1] for n in names if n.startswith("jaxrl_hpc.")} & set(LEVEL)


def test_every_part_has_a_place():
    parts = {p.stem if p.suffix else p.name for p in ROOT.iterdir() if p.suffix in ("", ".py")}
    assert parts - {"__init__", "__pycache__"} == set(LEVEL)


def test_imports_point_one_way():
    wrong = []
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for other in imported(path):
            sideways = (part, other) in APART or (other, part) in APART
            if LEVEL[other] > LEVEL[part] or sideways:
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not wrong, wrong
