"""The base of every config class: frozen, strict, no unknown keys, and a mark for traced fields.

A field that sets a shape (batch size, capacity, widths) is static: changing it recompiles. A field
declared with `traced(...)` is a number that enters the compiled program as an argument, so that a
sweep over it trains many values in one program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jaxrl_hpc.errors import UserError


class Schema(BaseModel):
    """Frozen, validated settings of one component."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _whole_numbers_fit(self) -> Self:
        """Sizes, counts and indices of programs have 32 bits; bounds of a field may be tighter."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and not -(2**31) <= number < 2**31:
                    bits = number.bit_length()
                    figure = f"is {number:,}" if bits < 200 else f"has {bits:,}"
                    raise ValueError(f"{name}: should fit in 32 bits (it {figure})")
        return self


class ComponentConfig(Schema):
    """Settings of a component that a config names."""

    name: str = ""  # of the component; a section of a config always has one


class AgentConfig(ComponentConfig):
    """Settings of an agent, and its defaults for other sections."""

    suitable_replay: ClassVar[str] = ""  # its usual replay; empty: it learns from trajectories
    suitable_unroll: ClassVar[int] = 0  # steps of every copy per iteration; 0: the workflow's choice

    @property
    def window(self) -> int:
        """Length of the windows of consecutive steps that it learns from."""
        return 1

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """Layer widths of its network, to estimate threads and memory; () if unknown."""
        return ()

    @property
    def recurrent_width(self) -> int:
        """Width of its recurrent cell; 0: it has none."""
        return 0


S = TypeVar("S", bound=Schema)


def traced(default: float, description: str, **bounds: Any) -> Any:
    """A float field that is a traced hyperparameter, with pydantic bounds (gt, ge, lt, le)."""
    return Field(default, description=description, json_schema_extra={"traced": True}, **bounds)


def static(
    default: Any,
    description: str,
    *,
    changeable: bool = False,
    per_shard: Literal["", "exact", "rounded"] = "",
    **bounds: Any,
) -> Any:
    """A field that is fixed at compile time.

    Args:
      changeable: it may differ between a run and its continuation.
      per_shard: each of S equal parts of a run gets 1/S of it: it must be a multiple of S ("exact"), or the
        part is rounded up.
      bounds: as in pydantic (gt, ge, lt, le, …).
    """
    marks = {"changeable": changeable, "per_shard": per_shard}
    extra: dict[str, Any] = {name: value for name, value in marks.items() if value}
    return Field(default, description=description, json_schema_extra=extra or None, **bounds)


def _marked(config: Schema | type[Schema], mark: str) -> dict[str, Any]:
    """Fields with a mark, in order of declaration -> its value."""
    cls = config if isinstance(config, type) else type(config)
    extras = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
    return {name: extra[mark] for name, extra in extras.items() if isinstance(extra, dict) and mark in extra}


def changeable_names(config: Schema) -> tuple[str, ...]:
    """Fields that may differ between a run and its continuation."""
    return tuple(_marked(config, "changeable"))


def per_shard(config: S, shards: int, section: str) -> S:
    """A component's config for one of `shards` equal parts of a run."""
    parts = {}
    for name, kind in _marked(config, "per_shard").items():
        value = getattr(config, name)
        if kind == "exact" and value % shards:
            raise UserError(
                f"{section}.{name} is {value}: it must be a multiple of workflow.shards = {shards}"
            )
        parts[name] = -(-value // shards)
    return config.model_copy(update=parts)


FOLDER_NAME = r"^[\w+=-][\w.+=-]*$"  # one plain path component, not hidden


def folder_name(default: str, description: str, max_length: int = 100) -> Any:
    """A field that names a folder: one plain path component, not hidden, so neither "." nor ".."."""
    return Field(default, description=description, pattern=FOLDER_NAME, max_length=max_length)


def traced_names(config: Schema | type[Schema]) -> tuple[str, ...]:
    """Names of the traced fields, in order of declaration."""
    return tuple(_marked(config, "traced"))


def traced_values(config: Schema) -> dict[str, float]:
    """The traced hyperparameters of a component as plain floats."""
    return {name: float(getattr(config, name)) for name in traced_names(config)}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"agent": {"name": "dqn"}} -> {"agent.name": "dqn"}."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        inside = isinstance(value, Mapping)
        found |= flatten(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return found
