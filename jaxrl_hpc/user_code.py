"""Code that a config names as `module:attribute`: how it is imported, and whose configs may name it.

Whoever gives a config on the command line, or to a function, trusts it. The config in a run directory may be
somebody else's, and evaluating it would import what it names. So a run that this user trained is entered in
the user's state folder; any other run directory whose config names code is refused without `--trust`.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.errors import UserError

NAME = r"^[\w.]+:\w+$"
CODE = re.compile(r"[^\W\d][\w.]*:.+", re.DOTALL)  # also ids of Gymnasium, such as ale_py:ALE/Pong-v5
SECTIONS = ("agent", "env", "replay", "workflow")  # of a config: what may name code
PACKAGE = "jaxrl_hpc"
TRUST_HELP = "import code that the config in the folder names, also if somebody else made it"


def in_one_line(error: BaseException) -> str:
    """'ValueError: text'."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300] or 'no message'}"


def search_working_directory() -> None:
    """Modules are looked for in the working directory too, after all other places."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def working_directory_last() -> None:
    """For commands: `python -m` puts the working directory first, where any file could hide a package."""
    here = os.getcwd()
    if sys.path[:1] in ([""], [here]):
        sys.path[:] = [*sys.path[1:], here]


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


def named_code(config: Mapping[str, Any], parts: Sequence[str] = SECTIONS) -> dict[str, str]:
    """Dotted name of a setting -> `module:attribute`, for all code outside of this package.

    Looks at plain data, validated or not, and imports nothing. Any text of that form counts, since some
    settings are handed on to other libraries. `parts`: the keys of the config to look into.
    """
    return dict(sorted((name, text) for part in parts for name, text in _code_in(config.get(part), part)))


def _code_in(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
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
    """UserError if the config of a directory names code, and neither `trust` nor this user vouches for it."""
    code = named_code(config, parts)
    if not code or trust or _entry(folder, code).is_file():
        return
    field, name = next(iter(code.items()))
    others = f" (and {len(code) - 1} more)" if len(code) > 1 else ""
    raise UserError(
        f"{folder}: {field} imports the module {name.partition(':')[0]!r}{others}, code from outside of this "
        "package, and you did not start this here yourself: if you trust it, repeat the command with --trust"
    )


def remember_trusted(folder: str | Path, config: Mapping[str, Any], parts: Sequence[str] = SECTIONS) -> None:
    """Enter a directory that this user made. One file per entry, so that writers do not meet.

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
    """Where entries are: XDG_STATE_HOME, by default ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / PACKAGE / "trusted"


def _entry(folder: str | Path, code: Mapping[str, str]) -> Path:
    """By where the directory is and what its config names: a config changed later is not trusted."""
    key = json.dumps([str(Path(folder).resolve()), dict(code)], sort_keys=True)
    return trusted_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"
