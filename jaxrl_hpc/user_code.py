"""Code that a config names as `module:attribute`: how it is imported, and which configs are trusted.

A config given on the command line, or to a function, is trusted. The config in a run directory may be
somebody else's, and evaluating it would import the code that it names. So runs that this user trained are
recorded in the user's state folder; any other run directory whose config names code is refused without
`--trust`.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.errors import UserError

NAME = r"^[\w.]+:\w+$"
CODE = re.compile(r"[^\W\d][\w.]*:.+", re.DOTALL)  # also ids of Gymnasium, such as ale_py:ALE/Pong-v5
SECTIONS = ("agent", "env", "replay", "workflow")  # of a config: what may name code
PACKAGE = "jaxrl_hpc"
TRUST_HELP = "import code named by the config in the folder, even if somebody else made it"


def in_one_line(error: BaseException) -> str:
    """'ValueError: text'."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300] or 'no message'}"


_appended: list[str] = []  # what this module has added to sys.path


def search_in(folders: Iterable[str | Path]) -> None:
    """Search these folders and the working directory for modules, in this order, after all other places.
    Folders of earlier calls come after them."""
    found = [os.path.abspath(folder) for folder in (*folders, os.getcwd())]
    ours = list(dict.fromkeys([*found, *_appended]))
    kept = [path for path in sys.path if path not in _appended]
    _appended[:] = [path for path in ours if path not in kept]
    sys.path[:] = [*kept, *_appended]


def search_working_directory() -> None:
    """Search the working directory for modules too, after the installed packages."""
    if os.getcwd() not in sys.path:
        search_in(())


def folder_of(name: str) -> str | None:
    """The folder from which `module:attribute` is imported; None if it is installed or missing.

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
    """Refuse a different module with the same name as the one in the folders of a run."""
    root = name.partition(":")[0].partition(".")[0]
    meant = [f for f in folders if any(os.path.exists(os.path.join(f, r)) for r in (root, f"{root}.py"))]
    if meant and (found := folder_of(name)) not in meant:
        raise UserError(
            f"{field}: module {root!r} comes from {found or 'the installed packages'}, but the run was made "
            f"with the one in {meant[0]}: use a new process, and other names for different modules"
        )


def working_directory_last() -> None:
    """For commands: `python -m` puts the working directory first, where any file could hide a package."""
    here = os.getcwd()
    if sys.path[:1] in ([""], [here]):
        sys.path[:] = [*sys.path[1:], here]


def import_module(name: str, field: str) -> Any:
    """A module by its dotted name; the working directory is searched last.

    Args:
      name: of the module.
      field: of the config that names it, for error messages.
    """
    search_working_directory()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not (name == missing or name.startswith(f"{missing}.")):
            raise UserError(f"{field}: {name} needs module {missing!r}, which is missing") from None
        raise UserError(
            f"{field}: there is no module {missing!r}; a file {missing.split('.')[0]}.py is looked for in "
            f"{', '.join(dict.fromkeys([*_appended, os.getcwd()]))} and among the installed packages"
        ) from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{field}: importing {name} raised {in_one_line(error)}") from error


def import_attribute(name: str, field: str, kind: type | tuple[type, ...] = object) -> Any:
    """Resolve `module:attribute`; hints for an unknown attribute suggest others of this `kind`."""
    module_name, _, attribute = name.partition(":")
    module = import_module(module_name, field)
    if not hasattr(module, attribute):
        known = [n for n, value in vars(module).items() if isinstance(value, kind) and not n.startswith("_")]
        close = difflib.get_close_matches(attribute, known, n=1, cutoff=0.3)
        hint = f"; did you mean {module_name}:{close[0]}?" if close else ""
        raise UserError(f"{field}: module {module_name!r} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def named_code(config: Mapping[str, Any], parts: Sequence[str] = SECTIONS) -> dict[str, str]:
    """Dotted name of a setting -> `module:attribute`, for all code outside of this package.

    Inspects plain data, validated or not, and imports nothing. Any string of that form counts, since some
    settings are passed to other libraries. `parts`: the keys of the config to look into.
    """
    code = {name: text for part in parts for name, text in _code_in(config.get(part), part)}
    run = config.get("run")
    if isinstance(run, Mapping) and run.get("code_dirs"):
        code |= _code_in({"code_dirs": run["code_dirs"]}, "run")
    return dict(sorted(code.items()))


def _code_in(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "code_dirs" and inner:  # modules may be imported from there
                yield f"{name}.{key}", str(inner if isinstance(inner, str) else list(inner))
            else:
                yield from _code_in(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _code_in(inner, f"{name}.{index}")
    elif isinstance(value, str) and CODE.fullmatch(value):
        module = value.partition(":")[0]
        if module != PACKAGE and not module.startswith(f"{PACKAGE}."):
            yield name, value


def check_trusted(
    folder: str | Path, config: Mapping[str, Any], trust: bool = False, parts: Sequence[str] = SECTIONS
) -> None:
    """UserError if the config of a directory names code that is trusted neither by `trust` nor by its
    record."""
    code = named_code(config, parts)
    if not code or trust or _entry(folder, code).is_file():
        return
    field, name = next(iter(code.items()))
    others = f" (and {len(code) - 1} more)" if len(code) > 1 else ""
    raise UserError(
        f"{folder}: {field} imports the module {name.partition(':')[0]!r}{others}, code from outside of this "
        "package, and you did not make this run yourself: if you trust it, repeat the command with --trust"
    )


def remember_trusted(folder: str | Path, config: Mapping[str, Any], parts: Sequence[str] = SECTIONS) -> None:
    """Record a directory that this user made. One file per entry, so that writers do not conflict.

    Where the state folder cannot be written, later commands need --trust.
    """
    code = named_code(config, parts)
    if not code:
        return
    entry = _entry(folder, code)
    if entry.is_file():
        return
    text = json.dumps({"path": str(Path(folder).resolve()), "code": code}, indent=1)
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = entry.with_name(f"{entry.name}.{os.getpid()}.tmp")
        written.write_text(text + "\n")
        os.replace(written, entry)


def trusted_folder() -> Path:
    """The folder of entries: below XDG_STATE_HOME, by default ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / PACKAGE / "trusted"


def _entry(folder: str | Path, code: Mapping[str, str]) -> Path:
    """Identifies a directory and the code that its config names: a config changed later is not trusted."""
    key = json.dumps([str(Path(folder).resolve()), dict(code)], sort_keys=True)
    return trusted_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"
