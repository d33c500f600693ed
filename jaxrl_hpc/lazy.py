"""Names of a package that are imported when they are first used (PEP 562): it imports nothing itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, which lists these names only.

    Args:
      package: its `__name__`.
      homes: full name of a module -> names that the package takes from it. If it is a module of the package,
        its own name is one too.
    """
    places = {name: home for home, names in homes.items() for name in names}
    modules = {home.rpartition(".")[2]: home for home in homes if home.rpartition(".")[0] == package}

    def find(name: str) -> Any:
        if name in places:
            value = getattr(importlib.import_module(places[name]), name)
        elif name in modules:
            value = importlib.import_module(modules[name])
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*places, *modules})

    return find, names
