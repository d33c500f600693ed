"""Reads untrusted text, JSON and YAML: any problem is one UserError that names the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from jaxrl_hpc.errors import UserError, os_error_sentence

MAX_DEPTH = 40  # levels of YAML
MAX_VALUES = 1_000_000  # in YAML, aliases written out


def read_text(path: Path | str) -> str:
    """The text of a file in UTF-8; UserError if it is missing or not text."""
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise UserError(f"cannot read {os_error_sentence(error)}") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from error


def read_json(path: Path | str) -> Any:
    """The content of a JSON file; UserError names the file if it is damaged."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: it is not valid JSON ({error})") from error


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 5e-4 as a string; people mean a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?\d[\d_]*$"), list("-+0123456789"))
# the resolver tried first wins, and PyYAML tries in order of registration: put int before float
for _first in "-+0123456789":
    _rules = _Loader.yaml_implicit_resolvers[_first]
    _rules.sort(key=lambda rule: rule[0] != "tag:yaml.org,2002:int")


def _expanded(node: yaml.Node, sizes: dict[int, int], depth: int = 1) -> int:
    """Number of values of a node with aliases expanded; refuses too many, deep nesting and cycles."""
    if depth > MAX_DEPTH:
        raise _not_yaml(f"nested deeper than {MAX_DEPTH} levels", node)
    known = sizes.setdefault(id(node), 0)
    if known:
        return known
    if isinstance(node, yaml.ScalarNode):
        inner: list[yaml.Node] = []
    elif isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
    else:
        inner = node.value
    for part in inner:
        if sizes.get(id(part)) == 0:
            raise _not_yaml("an anchor refers to itself", part)
    sizes[id(node)] = total = 1 + sum(_expanded(part, sizes, depth + 1) for part in inner)
    if total > MAX_VALUES:
        raise _not_yaml(f"more than {MAX_VALUES:,} values with aliases expanded", node)
    return total


def _not_yaml(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _check_keys(node: yaml.Node, seen: set[int]) -> None:
    """Refuse duplicate keys in a mapping: YAML would silently use the last one."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise _not_yaml(f"{key[1]!r} appears twice", node.value[index][0])
        for pair in node.value:
            for part in pair:
                _check_keys(part, seen)
    else:
        for part in node.value:
            _check_keys(part, seen)


def parse_yaml(text: str, source: str) -> Any:
    """Plain data from YAML; UserError names the source and the line of a problem."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _expanded(node, {})
        _check_keys(node, set())
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{source}{where}: not valid YAML ({problem})") from None
    except RecursionError:
        raise UserError(f"{source}: not valid YAML (nested deeper than {MAX_DEPTH} levels)") from None
    except ValueError as error:  # numbers with thousands of digits, invalid dates
        raise UserError(f"{source}: not valid YAML ({error})") from None
    finally:
        if loader is not None:
            loader.dispose()


def read_yaml(path: Path) -> Any:
    """Plain data from a YAML file."""
    return parse_yaml(read_text(path), str(path))
