"""Imports point one way (docs/architecture.md), so that every layer can be understood without those above."""

import ast
import json
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "jaxrl_hpc"
# a module may import its own layer and lower ones
LAYERS = [
    ["types", "errors", "extras", "lazy", "schema", "user_code", "read_files"],
    ["ops", "comm", "checkpoint", "metrics", "runs", "report", "datasets"],
    ["networks"],
    ["agents", "envs", "replay"],
    ["rollout"],
    ["workflows"],
    ["config"],
    ["runtime"],
    ["sweeps", "export", "scaling", "bench"],
    ["api"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# parts that stand side by side: a part on the left does not know those on the right
FILES = ["checkpoint", "metrics", "runs", "report", "datasets"]
APART = {
    "agents": ["envs", "replay", "comm", *FILES],
    "envs": ["agents", "replay"],
    "replay": ["agents", "envs", "comm", *FILES],
    "ops": ["comm", *FILES],
    "comm": FILES,
    "checkpoint": ["comm", "metrics", "runs", "report"],
    "metrics": ["comm", "runs", "report"],
    "runs": ["comm", "metrics", "report"],
    "report": ["comm"],
}
TYPES_ONLY = {"types"}  # these may name classes of higher layers in annotations


def without_type_checking(tree: ast.Module) -> ast.Module:
    tree.body = [
        node
        for node in tree.body
        if not (
            isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        )
    ]
    return tree


def imported(source: str, part: str) -> set[str]:
    """Parts that a module imports anywhere, inside functions too."""
    tree = ast.parse(source)
    if part in TYPES_ONLY:
        tree = without_type_checking(tree)
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {n.split(".")[1] for n in names if n.startswith("jaxrl_hpc.")} & set(LEVEL)


def forbidden(source: str, part: str) -> list[str]:
    return sorted(
        other
        for other in imported(source, part)
        if LEVEL[other] > LEVEL[part] or other in APART.get(part, [])
    )


def test_every_part_has_a_place():
    parts = {p.stem if p.suffix else p.name for p in ROOT.iterdir() if p.suffix in ("", ".py")}
    assert parts - {"__init__", "__pycache__"} == set(LEVEL)


def test_imports_point_one_way():
    wrong = []
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part != "__init__":
            found = forbidden(path.read_text(), part)
            wrong += [f"{path.relative_to(ROOT)} imports {other}" for other in found]
    assert not wrong, wrong


def test_parts_of_a_layer_do_not_import_each_other_in_turns():
    graph: dict[str, set[str]] = {part: set() for part in LEVEL}
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part in graph:
            graph[part] |= imported(path.read_text(), part) - {part}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle


def test_what_counts_as_an_import():
    hidden = "if TYPE_CHECKING:\n    from jaxrl_hpc.comm import ranks\n"
    assert forbidden(hidden, "types") == [] and forbidden(hidden, "agents") == ["comm"]
    assert forbidden("from jaxrl_hpc import rollout\n", "rollout") == []
    assert forbidden("def f():\n    import jaxrl_hpc.cli.main\n", "sweeps") == ["cli"]
    assert forbidden("from jaxrl_hpc.replay.sizes import ReplayConfig\n", "agents") == ["replay"]


# Imports every module of the package and prints what that changed. Libraries may do as they like: only what
# our own modules register counts, and what everybody shares.
IMPORT_ALL = """
import atexit, importlib, json, logging, pkgutil, signal, sys, threading

registered, register = [], atexit.register

def recording(function, *args, **kwargs):
    registered.append(sys._getframe(1).f_globals.get("__name__", ""))
    return register(function, *args, **kwargs)

def shared():
    loggers = [logging.root, *map(logging.getLogger, logging.root.manager.loggerDict)]
    return {
        "path": list(sys.path),
        "hooks": [repr(hook) for hook in (sys.exit, sys.excepthook, threading.excepthook)],
        "signals": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "threads": [thread.name for thread in threading.enumerate()],
        "logging": [repr((log.name, log.filters)) for log in loggers if log.filters],
    }

before, atexit.register = shared(), recording
import jaxrl_hpc
names = [module.name for module in pkgutil.walk_packages(jaxrl_hpc.__path__, "jaxrl_hpc.")]
peers = "jaxrl_hpc.bench.peers."  # scripts for a Python that has other libraries, and their protocol
for name in names:
    scripts = name.startswith(peers) and name != peers + "serve"
    if not name.rpartition(".")[2].startswith("lib") and not scripts:  # lib: shared libraries
        importlib.import_module(name)
after = shared()
print(json.dumps({
    "modules": len(names),
    "changed": {name: after[name] for name in after if after[name] != before[name]},
    "registered": [name for name in registered if name.startswith("jaxrl_hpc")],
    "fakes": [n for n, module in sys.modules.items() if type(module).__module__.startswith("jaxrl_hpc")],
}))
"""


def test_nothing_happens_on_import():
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("modules") > 200
    # the package itself is of a class of its own: its `agents` and so on are those of the API
    assert found == {"changed": {}, "registered": [], "fakes": ["jaxrl_hpc"]}
