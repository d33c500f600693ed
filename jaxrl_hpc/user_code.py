"""Code that a config names as `module:attribute`, from installed packages or the working directory."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any

from jaxrl_hpc.errors import UserError

NAME = r"^[\w.]+:\w+$"


def in_one_line(error: BaseException) -> str:
    """'ValueError: text'."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300] or 'no message'}"


def search_working_directory() -> None:
    """Modules are looked for in the working directory too, after all other places."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def import_module(name: str, field: str) -> Any:
    """A module by its dotted name; the working directory is searched last.

    Args:
      name: of the module.
      field: of the config that names it, for the sentence that says what is wrong.
    """
    search_working_directory()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not (name == missing or name.startswith(f"{missing}.")):
            raise UserError(f"{field}: {name} needs module {missing!r}, which is not there") from None
        raise UserError(
            f"{field}: there is no module {missing!r}; a file {missing.split('.')[0]}.py is looked for in "
            f"{os.getcwd()} and among the installed packages"
        ) from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{field}: importing {name} raised {in_one_line(error)}") from error


def import_attribute(name: str, field: str, kind: type | tuple[type, ...] = object) -> Any:
    """What `module:attribute` means; `kind` is what a hint may suggest instead of an unknown attribute."""
    module_name, _, attribute = name.partition(":")
    module = import_module(module_name, field)
    if not hasattr(module, attribute):
        known = [n for n, value in vars(module).items() if isinstance(value, kind) and not n.startswith("_")]
        close = difflib.get_close_matches(attribute, known, n=1, cutoff=0.3)
        hint = f"; did you mean {module_name}:{close[0]}?" if close else ""
        raise UserError(f"{field}: module {module_name!r} has no {attribute!r}{hint}")
    return getattr(module, attribute)
