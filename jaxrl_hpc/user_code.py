"""Code that a config names as `module:attribute`, from installed packages or the working directory."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxrl_hpc.errors import UserError

NAME = r"^[\w.]+:\w+$"


def in_one_line(error: BaseException) -> str:
    """'ValueError: text'."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300] or 'no message'}"


_appended: list[str] = []  # what this module has added to sys.path


def search_in(folders: Iterable[str | Path]) -> None:
    """Modules are looked for in these folders and in the working directory, in this order, after all other
    places. Folders of earlier calls come after them."""
    found = [os.path.abspath(folder) for folder in (*folders, os.getcwd())]
    ours = list(dict.fromkeys([*found, *_appended]))
    kept = [path for path in sys.path if path not in _appended]
    _appended[:] = [path for path in ours if path not in kept]
    sys.path[:] = [*kept, *_appended]


def search_working_directory() -> None:
    """Modules are looked for in the working directory too, after the installed packages."""
    if os.getcwd() not in sys.path:
        search_in(())


def folder_of(name: str) -> str | None:
    """The folder from which `module:attribute` is imported; None if it is installed, or not there.

    Nothing is imported.
    """
    root = name.partition(":")[0].partition(".")[0]
    search_working_directory()
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    if not places and spec.origin and os.path.isfile(spec.origin):
        places = [Path(spec.origin)]
    installed = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [os.path.abspath(place.parent) for place in places]
    return next((folder for folder in folders if folder not in installed), None)


def check_same_module(name: str, folders: Iterable[str], field: str) -> None:
    """Refuse another module of the same name than the one in the folders that a run was made with."""
    root = name.partition(":")[0].partition(".")[0]
    meant = [f for f in folders if any(os.path.exists(os.path.join(f, r)) for r in (root, f"{root}.py"))]
    if meant and (found := folder_of(name)) not in meant:
        raise UserError(
            f"{field}: module {root!r} comes from {found or 'the installed packages'}, but the run was made "
            f"with that in {meant[0]}: use a new process, and other names for different modules"
        )


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
            f"{', '.join(dict.fromkeys([*_appended, os.getcwd()]))} and among the installed packages"
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


def trust_code_of(run_dir: str | Path) -> None:
    """The user vouches for the code that the config of a run names (`rl.load(path, trust=True)`)."""
    del run_dir  # code is found by its name, whoever trained the run
