"""The base of every config class: frozen, strict, no unknown keys, and a mark for traced fields.

A field that sets a shape (batch size, capacity, widths) is static: changing it recompiles. A field
declared with `traced(...)` is a number that enters the compiled program as an argument, so that a
sweep over it trains many values in one program.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Schema(BaseModel):
    """Frozen, validated settings of one component."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False
    )


def traced(default: float, description: str, **bounds: Any) -> Any:
    """A float field that is a traced hyperparameter, with pydantic bounds (gt, ge, lt, le)."""
    return Field(default, description=description, json_schema_extra={"traced": True}, **bounds)


def static(default: Any, description: str, **bounds: Any) -> Any:
    """A field that is fixed at compile time."""
    return Field(default, description=description, **bounds)


def traced_names(config: Schema | type[Schema]) -> tuple[str, ...]:
    """Names of the traced fields, in order of declaration."""
    cls = config if isinstance(config, type) else type(config)
    return tuple(
        name
        for name, field in cls.model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("traced")
    )


def traced_values(config: Schema) -> dict[str, float]:
    """The traced hyperparameters of a component as plain floats."""
    return {name: float(getattr(config, name)) for name in traced_names(config)}
