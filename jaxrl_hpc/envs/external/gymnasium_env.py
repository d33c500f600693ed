"""Any Gymnasium environment by its id: LunarLander, a MuJoCo robot, or a registered one of your own."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import Field

from jaxrl_hpc.envs.external.bridge import make_external
from jaxrl_hpc.envs.external.gymnasium_copies import Copies
from jaxrl_hpc.envs.external.gymnasium_spaces import spec_of
from jaxrl_hpc.envs.external.gymnasium_vector import Ones, Vector, rule_of
from jaxrl_hpc.envs.external.simulator import ExternalConfig, Simulator, in_one_line
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.extras import how_to_install
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Env, EnvSpec, Part
from jaxrl_hpc.user_code import search_working_directory

Setting = int | float | bool | str


class Config(ExternalConfig):
    """A Gymnasium environment."""

    name: Literal["gymnasium"] = "gymnasium"
    id: str = static("CartPole-v1", "the environment's id; `module:Name-v0` imports the module first")
    kwargs: dict[str, Setting] = Field(default_factory=dict, description="arguments of gymnasium.make")
    copies: Literal["here", "processes", "vector"] = static(
        "here",
        "here: one after the other; processes: each in a separate process; vector: the id's own vector class",
    )
    max_episode_steps: int = static(0, "time limit; 0: the id's own", ge=0)
    mask_from_info: bool = static(
        False, "use info['action_mask'] of every step as the mask of allowed actions"
    )


def library() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise UserError(
            f"env.name: gymnasium environments need gymnasium: {how_to_install('external')}"
        ) from None
    return gymnasium


def check_id(config: Config) -> None:
    """UserError for an unknown id, with the nearest known one."""
    gymnasium = library()
    module, _, name = config.id.rpartition(":")
    if module:
        search_working_directory()
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            text = error if isinstance(error, ImportError) else in_one_line(error)
            raise UserError(
                f"env.id: {config.id!r} names a module that cannot be imported ({text})"
            ) from None
    try:
        gymnasium.spec(name)
        return
    except gymnasium.error.Error as error:
        known = list(gymnasium.registry)
        close = difflib.get_close_matches(config.id, known, n=1, cutoff=0.4)
        if config.id.startswith("ALE/"):  # its package registers them when it is imported
            close = [f"ale_py:{config.id}"]
        hint = f"; did you mean {close[0]}?" if close else ""
        text = str(error).split(".")[0].replace("`", "")
        raise UserError(f"env.id: there is no Gymnasium environment {config.id!r}{hint} ({text})") from None


def _arguments(config: Config) -> dict[str, Any]:
    limit = {"max_episode_steps": config.max_episode_steps} if config.max_episode_steps else {}
    return dict(config.kwargs) | limit


@contextlib.contextmanager
def _making(config: Config) -> Iterator[None]:
    """Turn any error of an environment's constructor into a sentence that names the setting."""
    gymnasium = library()
    try:
        yield
    except UserError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"env.id: {config.id!r} needs more packages: {error}") from None
    except (Exception, SystemExit) as error:
        text = str(error) if isinstance(error, TypeError) else in_one_line(error)
        field, them = ("env.kwargs", "with them") if config.kwargs else ("env.id", "")
        raise UserError(f"{field}: {config.id!r} cannot be made {them}".rstrip() + f": {text}") from error


def made_one(config: Config) -> tuple[Any, tuple[Part, ...]]:
    """One copy, whose observation is one array, and the layout of that where it had several parts."""
    gymnasium = library()
    from jaxrl_hpc.envs.external.gymnasium_flat import flattened  # derives from Gymnasium's classes

    with _making(config):
        env = gymnasium.make(config.id, disable_env_checker=True, **_arguments(config))
        return flattened(env, config.mask_from_info, config.id)


def make_one(config: Config) -> Any:
    return made_one(config)[0]


def make_vector(config: Config, copies: int) -> Any:
    gymnasium = library()
    if gymnasium.spec(config.id.rpartition(":")[2]).vector_entry_point is None:
        raise UserError(
            f"env.copies: {config.id!r} has no vector environment of its own; "
            "use env.copies=here or env.copies=processes"
        )
    with _making(config):
        return gymnasium.make_vec(config.id, copies, "vector_entry_point", **_arguments(config))


def describe(config: Config) -> tuple[EnvSpec, Callable[[int], Simulator]]:
    """Its spec, and a function that makes copies of it."""
    check_id(config)
    name = f"gymnasium/{config.id}"
    if config.copies == "vector":
        if config.mask_from_info:
            raise UserError("env.mask_from_info: not with env.copies=vector; use here or processes")
        env = make_vector(config, 1)
        limit = env.spec.max_episode_steps if env.spec else None
        spec = spec_of(name, env.single_observation_space, env.single_action_space, limit)
        rule = rule_of(env)
        env.close()
        if rule == "NextStep":
            return spec, lambda copies: Ones(lambda: make_vector(config, 1), spec, copies)
        return spec, lambda copies: Vector(make_vector(config, copies), spec)
    env, parts = made_one(config)
    spec = spec_of(name, env.observation_space, env.action_space, env.spec.max_episode_steps, parts)
    env.close()
    one = functools.partial(make_one, config)
    if config.copies == "processes":
        from jaxrl_hpc.envs.external.gymnasium_processes import Processes  # derives from Gymnasium's classes

        return spec, lambda copies: Processes(one, spec, copies)
    return spec, lambda copies: Copies(one, spec, copies)


def make(config: Config) -> Env:
    spec, simulators = describe(config)
    return make_external(spec, simulators, config)
