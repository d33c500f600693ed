"""Whether a run may be continued with a config: differences from the config it was started with."""

from __future__ import annotations

from typing import Any

from jaxrl_hpc.config.files import Config, from_dict
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import changeable_names
from jaxrl_hpc.user_code import named_code

_CHANGED = (
    "--resume continues a run exactly, but its config has changed: {}. "
    "Undo that, or start a new run with another --run-dir"
)


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Dotted names of values that differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new})
        inner = [differences(old.get(k), new.get(k), f"{path}.{k}" if path else k) for k in keys]
        return [line for lines in inner for line in lines]
    return [] if old == new else [f"{path} was {old!r} and is {new!r}"]


def changeable(config: Config) -> set[str]:
    """Dotted names of the settings that may differ between a run and its continuation."""
    sections = {"agent": config.agent, "env": config.env, "workflow": config.workflow, "run": config.run}
    return {f"{name}.{field}" for name, part in sections.items() for field in changeable_names(part)}


def completed(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved config with today's defaults for fields that were not there yet when it was saved."""
    try:
        return from_dict(saved).to_dict()
    except UserError:  # it has fields that no longer exist: reported as a difference
        return saved


def check_same_config(config: Config, saved: dict[str, Any]) -> None:
    """Refuse to continue a run whose result the changes would alter.

    Code named only by the saved config is not imported, because it is not trusted.
    """
    given = config.to_dict()
    if (code := named_code(saved)) != named_code(given):
        there, here = (sorted(named.items()) for named in (code, named_code(given)))
        changed = [f"{name} was {text!r}" for name, text in there if (name, text) not in here]
        changed += [f"{name} is {text!r}" for name, text in here if (name, text) not in there]
        raise UserError(_CHANGED.format("; ".join(changed)))
    free = changeable(config)
    changed = [d for d in differences(completed(saved), given) if d.split(" ")[0] not in free]
    if changed:
        raise UserError(_CHANGED.format("; ".join(changed)))
    if config.replay is not None and from_dict(saved).workflow.cuts_windows != config.workflow.cuts_windows:
        raise UserError(
            "--resume: windows of the replay cross unrolls with workflow.actors = 1 only; leave it at "
            f"{saved['workflow']['actors']}, or start a new run with another --run-dir"
        )
