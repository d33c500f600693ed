"""Show all settings of a config or a run: values, differences from the defaults, and meanings.

examples:
  jaxrl-hpc show cartpole_dqn
  jaxrl-hpc show cartpole_dqn agent.n_step=3       with overrides, as `train` takes them
  jaxrl-hpc show runs/cartpole_dqn                 of a run
  jaxrl-hpc show cartpole_dqn --json

A * marks a value that differs from the default, a + one that was filled in to suit the agent.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_hpc.cli.table import width
from jaxrl_hpc.user_code import TRUST_HELP, check_trusted

SECTIONS = ("agent", "env", "replay", "workflow", "run")
VALUE_WIDTH = 12  # longer values get a line of their own


class Setting(NamedTuple):
    """One line."""

    key: str
    value: Any
    default: Any
    given: bool  # by the file or an override
    meaning: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a YAML file, the name of one in configs/, or the folder of a run")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings, such as agent.gamma=0.98"
    )
    parser.add_argument("--json", action="store_true", help="print the settings as one JSON object")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.cli.listing import summary_of
    from jaxrl_hpc.config.files import mistakes_located, settings_of
    from jaxrl_hpc.config.sources import name_run, read_source

    saved = Path(args.config) / "config.yaml"
    source, data = read_source(saved if saved.is_file() else args.config, args.overrides)
    if saved.is_file():
        check_trusted(saved.parent, data, args.trust)
    name_run(data, source)
    with mistakes_located(source, args.overrides):
        config = settings_of(data)
    if args.json:
        print(json.dumps(config.to_dict()))
        return 0
    print(f"{source}")
    if text := summary_of(source):
        print("\n".join(textwrap.wrap(text, width())))
    for section in SECTIONS:
        part = getattr(config, section)
        if part is not None:
            given = data.get(section)
            name = f": {part.name}" if section != "run" else ""
            filled_in = " (suits the agent)" if section == "replay" and not given else ""
            print(f"\n{section}{name}{filled_in}")
            for setting in settings(part, None, given if isinstance(given, Mapping) else {}):
                print(line(setting))
    return 0


def settings(part: Any, usual: Any, given: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    """The fields of a config, those of configs inside it by dotted names; `usual` has other defaults."""
    from jaxrl_hpc.schema import Schema

    for name, field in type(part).model_fields.items():
        value, key = getattr(part, name), f"{prefix}{name}"
        inner = given.get(name)
        default = getattr(usual, name) if usual else field.get_default(call_default_factory=True)
        if isinstance(value, Schema):
            yield from settings(value, default, inner if isinstance(inner, Mapping) else {}, f"{key}.")
        elif not (name == "name" and not prefix):
            yield Setting(key, value, default, name in given, field.description or "")


def line(setting: Setting) -> str:
    """Mark, name and value; then the meaning, and the default where it is another."""
    changed = setting.value != setting.default
    mark = " " if not changed else "*" if setting.given else "+"
    value = shown(setting.value)
    left = f"{mark} {setting.key:<22} {value:<{VALUE_WIDTH}} "
    meaning = setting.meaning
    if changed:
        meaning += f" (default: {shown(setting.default)})" if setting.given else " (suits the agent)"
    indent = " " * (26 + VALUE_WIDTH)
    lines = textwrap.wrap(meaning, max(20, width() - len(indent))) or [""]
    if len(left) > len(indent):
        return "\n".join([left.rstrip(), *(indent + text for text in lines if text)])
    return "\n".join(text.rstrip() for text in (left + lines[0], *(indent + text for text in lines[1:])))


def shown(value: Any) -> str:
    """A value in short YAML form."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, tuple | list):
        return f"[{', '.join(shown(item) for item in value)}]"
    if hasattr(value, "model_dump"):
        return json.dumps(value.model_dump(mode="json"))
    return json.dumps(value)
