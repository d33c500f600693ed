"""Config files before validation: finding them and applying overrides. No JAX."""

from __future__ import annotations

import difflib
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.read_files import parse_yaml, read_yaml
from jaxrl_hpc.user_code import NAME, search_in

SECTION_NAMES = ("agent", "env", "replay", "workflow", "run")
PACKAGE = Path(str(importlib.resources.files("jaxrl_hpc")))
CHECKOUT = PACKAGE.parent
# the working directory first; then what a wheel carries, or the folder beside the package in a checkout
CONFIG_DIRS = (
    Path("configs"),
    PACKAGE / "configs",
    *([CHECKOUT / "configs"] if (CHECKOUT / "pyproject.toml").is_file() else []),
)


def nearest(name: str, known: Sequence[str]) -> str:
    """'; did you mean X?' or the list of known names."""
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(str(name).lower(), list(folded), n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]}?" if close else f"; known are {', '.join(known)}"


def find_file(name: str | Path) -> Path:
    """A config by path, or by name in configs/ (with or without .yaml)."""
    candidates = [Path(name)]
    for folder in CONFIG_DIRS:
        candidates += [folder / str(name), folder / f"{name}.yaml"]
    for path in candidates:
        if path.is_file():
            return path
    close = difflib.get_close_matches(str(name).removesuffix(".yaml"), list(config_files()), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "jaxrl-hpc list configs shows them all"
    raise UserError(f"there is no config file {str(name)!r}; {hint}")


def config_files(kind: str = "") -> dict[str, Path]:
    """Name -> file of every config in the config folders; `kind` "sweeps" for sweeps."""
    found: dict[str, Path] = {}
    for folder in CONFIG_DIRS:
        top = folder / kind
        for path in sorted(top.rglob("*.yaml")) if top.is_dir() else []:
            name = path.relative_to(top).with_suffix("").as_posix()
            if kind or not name.startswith("sweeps/"):
                found.setdefault(name, path)
    return found


def apply_override(data: dict[str, Any], text: str) -> None:
    """Put `a.b=value` into nested data, in place."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise UserError(f"override {text!r} is not of the form section.key=value, such as agent.gamma=0.98")
    parsed = parse_yaml(value, f"override {path}")
    try:
        put(data, path.strip(), parsed)
    except UserError as error:
        raise UserError(f"override {error}") from None


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value of a dotted name in nested data, in place."""
    parts = path.split(".")
    if parts[0] not in SECTION_NAMES:
        raise UserError(f"{path}: there is no section {parts[0]!r}{nearest(parts[0], SECTION_NAMES)}")
    if len(parts) == 1:
        raise UserError(f"{path!r} is a whole section; name a key in it, such as {path}.name=…")
    node = data
    for part in parts[:-1]:
        inner = node.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UserError(f"{path}: {part!r} holds a value, not keys")
        node = inner
    node[parts[-1]] = value


def read_source(path: str | Path, overrides: Sequence[str] = ()) -> tuple[Path, dict[str, Any]]:
    """A config file, and its plain data with `section.key=value` overrides."""
    source = find_file(path)
    data = read_yaml(source)
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise UserError(f"{source}: a config holds sections (agent, env, …), not {type(data).__name__}")
    for text in overrides:
        apply_override(data, text)
    search_beside(source.parent, data)
    return source, data


def search_beside(folder: Path, data: Mapping[str, Any]) -> None:
    """Allow a config to name modules in its folder."""
    sections = [data.get(section) for section in SECTION_NAMES]
    names = [str(content.get("name")) for content in sections if isinstance(content, Mapping)]
    if any(re.match(NAME, name) for name in names):
        search_in([folder])


def name_run(data: dict[str, Any], source: Path) -> bool:
    """Name the run after its file unless it has a name, in place -> whether it had one."""
    if data.get("run") is None:
        data["run"] = {}
    if not isinstance(data["run"], dict) or "name" in data["run"]:
        return True
    data["run"]["name"] = source.stem
    return False
