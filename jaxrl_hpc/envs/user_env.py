"""An environment of your own by a dotted path, `my_package.my_env:MyEnv`: no registration needed.

The name refers to a class in an importable module, including modules in the working directory. A gymnax
`Environment` becomes part of the compiled program; a Gymnasium `Env` runs outside of it.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
from pydantic import Field

from jaxrl_hpc.envs.external.simulator import ExternalConfig, in_one_line
from jaxrl_hpc.envs.gymnax import from_gymnax, with_params
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Env, Part
from jaxrl_hpc.user_code import NAME, import_attribute

Setting = int | float | bool | str


class Config(ExternalConfig):
    """A user's class."""

    name: str = static("my_module:MyEnv", "module and class, as module:Class", pattern=NAME)
    kwargs: dict[str, Setting] = Field(default_factory=dict, description="arguments of the class")
    params: dict[str, Setting] = Field(
        default_factory=dict, description="gymnax: parameters to override, such as max_steps_in_episode"
    )
    max_episode_steps: int = static(0, "Gymnasium: time limit; 0: the environment's own", ge=0)
    mask_from_info: bool = static(
        False, "Gymnasium: use info['action_mask'] of every step as the mask of allowed actions"
    )
    check_finite: bool = static(
        True, "gymnax: check rewards and observations for NaN; false: faster, unchecked"
    )


def _made(cls: Any, config: Config) -> Any:
    try:
        return cls(**config.kwargs)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"env {config.name!r}: {cls.__name__}(**env.kwargs) raised {in_one_line(error)}"
        ) from error


def make(config: Config, target: str = "") -> Env:
    """The environment of the class `target`, by default the config's name."""
    from jaxrl_hpc.envs.gymnax_api import environment

    cls = import_attribute(target or config.name, "env.name", type)
    if isinstance(cls, type) and issubclass(cls, environment.Environment):
        return make_jittable(config, cls)
    if isinstance(cls, type) and _is_gymnasium(cls):
        return make_outside_env(config, cls)
    raise UserError(
        f"env.name: {config.name} is not a class derived from gymnax.environments.environment.Environment "
        "or gymnasium.Env"
    )


def make_jittable(config: Config, cls: Any) -> Env:
    """A gymnax environment; its functions are traced on shapes, so that mistakes show here."""
    from jaxrl_hpc.envs.check_finite import check_finite

    if config.max_episode_steps:
        raise UserError(
            f"env.max_episode_steps: {config.name} is a gymnax environment, which has its time limit among "
            "its parameters: set env.params.max_steps_in_episode"
        )
    if config.mask_from_info:
        raise UserError(
            f"env.mask_from_info: {config.name} is a gymnax environment: its observation can be a dictionary "
            "with a part action_mask"
        )
    if config.on_error == "reset" and not config.check_finite:
        raise UserError("env.on_error=reset needs env.check_finite=true, by which faults are found")
    env = _made(cls, config)
    doing = "describing it"
    try:
        params = with_params(config.name, env.default_params, config.params)
        made = from_gymnax(env, params, config.name)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
        doing = "reset"
        state, obs = jax.eval_shape(made.reset, keys)
        doing = "step"
        spec = made.spec
        action = jax.ShapeDtypeStruct((2, *spec.action_shape), spec.action_dtype)
        after, step = jax.eval_shape(made.step, keys, state, action)
    except UserError:
        raise
    except NotImplementedError as error:
        raise UserError(f"env {config.name!r}: a method is missing ({doing}: {error})") from error
    except Exception as error:
        text = str(error).strip().splitlines()
        raise UserError(
            f"env {config.name!r}: {doing} raised {type(error).__name__}: {text[0] if text else ''}"
        ) from error
    _same(config.name, "observations", obs, step.final_obs)
    _same(config.name, "states", state, after)
    return check_finite(made, config) if config.check_finite else made


def _same(name: str, what: str, before: Any, after: Any) -> None:
    """Checks that outputs have the structure, shapes and dtypes of inputs, as a loop requires."""
    one_tree, other_tree = (str(jax.tree.structure(tree)) for tree in (before, after))
    if one_tree != other_tree:
        raise UserError(f"env {name!r}: {what} of reset and of step are of different structure")
    leaves = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    for i, (one, other) in enumerate(leaves):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            raise UserError(
                f"env {name!r}: {what} of reset and of step differ (part {i}: "
                f"{one.dtype}{list(one.shape[1:])} and {other.dtype}{list(other.shape[1:])}); make them alike"
            )


def _is_gymnasium(cls: type) -> bool:
    if "gymnasium" not in sys.modules:  # then nothing can derive from it
        return False
    import gymnasium

    return issubclass(cls, gymnasium.Env)


def make_outside_env(config: Config, cls: Any) -> Env:
    """An unregistered Gymnasium environment."""
    import gymnasium

    from jaxrl_hpc.envs.external.bridge import make_external
    from jaxrl_hpc.envs.external.gymnasium_copies import Copies
    from jaxrl_hpc.envs.external.gymnasium_flat import flattened
    from jaxrl_hpc.envs.external.gymnasium_spaces import spec_of

    if config.params:
        raise UserError(
            f"env.params: {config.name} is a Gymnasium environment, which has none; env.kwargs are the "
            "arguments of its class"
        )
    if not config.check_finite:
        raise UserError(
            f"env.check_finite: {config.name} is a Gymnasium environment, which is always checked: "
            "leave it out"
        )

    def made() -> tuple[Any, tuple[Part, ...]]:
        env = _made(cls, config)
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                raise UserError(f"env.name: {config.name} needs {name}, a space of gymnasium.spaces")
        if config.max_episode_steps:
            env = gymnasium.wrappers.TimeLimit(env, config.max_episode_steps)
        return flattened(env, config.mask_from_info, config.name)

    example, parts = made()
    limit = config.max_episode_steps
    spec = spec_of(config.name, example.observation_space, example.action_space, limit, parts)
    example.close()
    return make_external(spec, lambda copies: Copies(lambda: made()[0], spec, copies), config)
