"""Environments: gymnax's, our own, and bridges to outside simulators."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _Deferred(types.ModuleType):
    """Stands for a module until something of it is used, then becomes it."""

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        real = importlib.import_module(self.__name__)
        self.__dict__.update(real.__dict__)
        return getattr(real, attribute)


def defer_import(name: str) -> None:
    """Make `import name` free until something of the module is used."""
    sys.modules.setdefault(name, _Deferred(name))


# gymnax imports it to draw one of its games, and with it pandas and scipy.stats: most of its own import
defer_import("seaborn")
