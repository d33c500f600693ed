"""What we use of gymnax, imported without its plotting libraries.

gymnax imports seaborn, and with it pandas and scipy.stats, to draw one of its games: most of the time that
its own import takes. While it is imported here, a placeholder stands for seaborn, which loads it when it is
used.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


class _Deferred(types.ModuleType):
    """Stands for a module until something of it is used."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self.__name__), attribute)


@contextlib.contextmanager
def deferred(name: str) -> Iterator[None]:
    """Inside, `import name` costs nothing; what imported it gets the module once it uses it."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = _Deferred(name)
    try:
        yield
    finally:
        del sys.modules[name]


with deferred("seaborn"):
    from gymnax import make as make
    from gymnax.environments import environment as environment
    from gymnax.environments import spaces as spaces
