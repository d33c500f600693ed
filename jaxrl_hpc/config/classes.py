"""Config classes without the programs in the same modules.

A component is one module with its settings and its programs, and programs need JAX, which takes seconds to
import. The classes alone are enough to validate a config and list its settings. So they are extracted from
the module's source: a class, its bases, and the names that its fields and validators use, in this module and
in those it imports them from. Other methods exist, but names used only by them do not.

Such a class validates as the real one does (tests/config/test_classes.py compares all of them). Its objects
serve to inspect settings; runs use the real classes.

The plain way, a module without JAX for the settings of each of some forty components, would be longer than
this file. It would part an algorithm's options from its programs, and make components of the package unlike
those of one's own, which are one module.
"""

from __future__ import annotations
import __future__

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = __name__.partition(".")[0]
ANNOTATIONS = __future__.annotations.compiler_flag


def config_class(module: str, name: str) -> Any:
    """A class by the full name of its module: the real one if that is loaded."""
    return getattr(_part(module), name)


def _part(module: str) -> ModuleType:
    return sys.modules.get(module) or PartOfModule.of(module)


class PartOfModule(ModuleType):
    """A module of which only the definitions that are asked for are executed."""

    @staticmethod
    @functools.cache
    def of(module: str) -> PartOfModule:
        return PartOfModule(module)

    def __init__(self, module: str) -> None:
        super().__init__(f"{module}#settings")
        path = _source(module)
        if path is None:
            raise ModuleNotFoundError(module)
        self.__file__ = str(path)
        self._definitions: dict[str, ast.stmt] = {}
        for statement in ast.parse(path.read_text(), path).body:
            self._definitions |= dict.fromkeys(_defined(statement), statement)
        sys.modules[self.__name__] = self  # where pydantic resolves type names

    def __getattr__(self, name: str) -> Any:
        statement = self.__dict__.get("_definitions", {}).get(name)
        if statement is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(PACKAGE):
            (given,) = (alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            self.__dict__[name] = _member(str(statement.module), given)
        else:
            for used in _used(statement):
                if used != name and used in self._definitions and used not in self.__dict__:
                    getattr(self, used)
            tree = ast.Module([statement], type_ignores=[])
            exec(compile(tree, str(self.__file__), "exec", ANNOTATIONS, dont_inherit=True), self.__dict__)
        return self.__dict__[name]


def _member(module: str, name: str) -> Any:
    """`from module import name`."""
    inner = f"{module}.{name}"
    return _part(inner) if _source(inner) else getattr(_part(module), name)


def _source(module: str) -> Path | None:
    """The file of a module of the package."""
    path = ROOT.joinpath(*module.split(".")[1:])
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def _defined(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement at the top of a module defines."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _used(statement: ast.stmt) -> Iterator[str]:
    """Names that executing a statement, or a validator in it, looks up."""
    parts: list[ast.AST] = [statement]
    if isinstance(statement, ast.ClassDef):
        parts = [*statement.bases, *statement.keywords, *statement.decorator_list]
        for inner in statement.body:
            if isinstance(inner, ast.FunctionDef) and not _validates(inner):
                parts += inner.decorator_list
            else:
                parts.append(inner)
    names = (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Name))
    yield from (node.id for node in names if isinstance(node.ctx, ast.Load))


def _validates(method: ast.FunctionDef) -> bool:
    return any("validator" in ast.unparse(decorator) for decorator in method.decorator_list)
