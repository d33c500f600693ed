"""The parts of gymnax that we use, imported without its plotting libraries and without gymnasium.

gymnax imports matplotlib and seaborn, and with them pandas and scipy.stats, to draw its games, and gymnasium
to translate spaces, which takes most of its import time. During its import here, placeholders replace them,
which load them on first use.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

SPACES = ("gymnasium", "gymnasium.spaces")
PLOTTING = ("seaborn", "matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.colors")


class _Deferred(types.ModuleType):
    """Placeholder for a module until it is used."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # of the import system, which looks at modules that it finds
            raise AttributeError(attribute)
        if sys.modules.get(self.__name__) is self:  # still being imported: an annotation
            return Any
        return getattr(importlib.import_module(self.__name__), attribute)


@contextlib.contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Context in which importing these modules is deferred until they are used.

    Parents come before their submodules. Loaded modules are not replaced.
    """
    missing = [name for name in names if name.partition(".")[0] not in sys.modules]
    for name in missing:
        sys.modules[name] = _Deferred(name)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, sys.modules[name])
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


with deferred(*SPACES, *PLOTTING):
    from gymnax import make as make
    from gymnax.environments import environment as environment
    from gymnax.environments import spaces as spaces
