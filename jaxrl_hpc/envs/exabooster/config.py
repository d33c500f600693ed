"""Settings of the ExaBooster environments."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator, model_validator

from jaxrl_hpc.schema import ComponentConfig, static


class ExaBoosterConfig(ComponentConfig):
    """Settings of the environment; `docs/exabooster.md` explains each choice."""

    name: Literal["ExaBooster-v0", "ExaBoosterContinuous-v0"] = static(
        "ExaBooster-v0", "discrete changes of VIMIN, or a continuous one"
    )
    actions: str = static("quantile:30", "discrete action map: quantile:N or fixed7")
    delta_max: float = static(0.03, "continuous: VIMIN change of an action of 1", gt=0, le=0.5)
    model: Literal["generator", "surrogate", "residual"] = static(
        "generator", "the plant: fitted generator, learned network, or residuals of a recording"
    )
    surrogate: str | None = static(None, "file of `jaxrl-hpc surrogate fit`, for model=surrogate")
    recording: str | None = static(None, "BOOSTR CSV file, for model=residual")
    recording_rows: int = static(250_000, "rows read from the recording", ge=1000)
    observation: Literal["stack", "compat"] = static(
        "stack", "stack: standardised last ticks; compat: the last tick only, min–max scaled as in EXARL"
    )
    stack: int = static(15, "ticks in an observation", ge=1, le=150)
    reward: Literal["abs", "exp", "exp_minus_one"] = static("abs", "−|e|, exp(−5|e|) or exp(−5|e|) − 1")
    horizon: int = static(100, "ticks in an episode", ge=1)
    legacy: bool = static(False, "EXARL's exit rule: leaving the start window's VIMIN range ends the episode")
    fixed_start: bool = static(False, "every episode starts from the same window, as in EXARL")
    fit: Literal[0, 1, 2] = static(0, "which of the three plant fits")
    domain_randomisation: bool = static(False, "draw one of the three plant fits per episode")
    bank_size: int = static(8192, "pre-generated start windows", ge=1, le=1_000_000)

    @field_validator("actions")
    @classmethod
    def _known_actions(cls, value: str) -> str:
        match = re.fullmatch(r"quantile:([0-9]+)", value)
        if value != "fixed7" and (match is None or int(match[1]) < 2):
            raise ValueError(f"actions={value!r}: use 'fixed7' or 'quantile:N' with N of at least 2")
        return value

    @model_validator(mode="after")
    def _needs_file(self) -> ExaBoosterConfig:
        if self.model == "surrogate" and self.surrogate is None:
            raise ValueError("model=surrogate needs surrogate=FILE, made by `jaxrl-hpc surrogate fit`")
        if self.model == "residual" and self.recording is None:
            raise ValueError("model=residual needs recording=FILE, a CSV in BOOSTR's format")
        if self.model == "residual" and self.domain_randomisation:
            raise ValueError("domain_randomisation needs model=generator: a recording has one plant")
        if self.model == "surrogate" and (self.domain_randomisation or self.fit != 0):
            raise ValueError(
                "fit and domain_randomisation do not apply to model=surrogate: it is its own plant"
            )
        return self

    @property
    def continuous(self) -> bool:
        return self.name == "ExaBoosterContinuous-v0"

    @property
    def plants(self) -> tuple[int, ...]:
        """Indices of the plant fits that episodes draw from."""
        return (0, 1, 2) if self.domain_randomisation else (self.fit,)
