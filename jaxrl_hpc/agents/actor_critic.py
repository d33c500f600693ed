"""The common parts of A2C and PPO: policy and value networks, acting, and evaluating an unroll."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.agents.settings import NetworkAgentConfig
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.policy import ActorCritic, PolicyHead
from jaxrl_hpc.networks.recurrent import initial_carry, starts_of
from jaxrl_hpc.networks.torso import NetworkConfig, as_features, make_torso
from jaxrl_hpc.ops import advantages, distributions, masks, optimise
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Array, EnvSpec, LearnerState, PyTree, Transition

FEWEST_STEPS = 8  # over which advantages may be standardised


class ActorCriticConfig(NetworkAgentConfig):
    """Settings of every agent with a policy and a value function."""

    suitable_unroll: ClassVar[int] = 16  # steps of every copy: what it learns from is the unroll
    network: NetworkConfig = NetworkConfig(activation="tanh")
    share_torso: bool = static(False, "policy and value share a torso (always so with an LSTM)")
    lstm: int = static(0, "width of an LSTM between torso and heads; 0: no memory", ge=0)
    distribution: Literal["gaussian", "tanh"] = static(
        "gaussian", "continuous actions: a Gaussian clipped to the bounds, or squashed into them by tanh"
    )
    log_std: float = static(0.0, "continuous actions: initial log standard deviation", ge=-5, le=2)
    state_std: bool = static(False, "continuous actions: the deviation depends on the state")
    gamma: float = traced(0.99, "discount", ge=0, le=1)
    gae_lambda: float = traced(
        0.95, "decay of multi-step errors; 1: n-step returns over the unroll", ge=0, le=1
    )
    entropy_coef: float = traced(0.01, "weight of the entropy bonus", ge=0)
    value_coef: float = traced(0.5, "weight of the value loss", ge=0)
    adam_epsilon: float = traced(1e-5, "Adam's denominator offset", gt=0)
    max_grad_norm: float = traced(0.5, "gradients are scaled down to this global norm; 0: never", ge=0)
    normalise: NormaliseConfig = NormaliseConfig()

    @property
    def keeps_values(self) -> bool:
        """Whether transitions contain the values of the acting network."""
        return False

    @property
    def recurrent_width(self) -> int:
        return self.lstm


class View(NamedTuple):
    """Outputs of the current network over an unroll."""

    outputs: Array  # [T, B, P] of the policy
    value: Array  # [T, B]
    memory: PyTree  # leaves [T, B, H] after each step, () without an LSTM


class Core(NamedTuple):
    """The functions that A2C and PPO have in common; the first four are those of an Agent."""

    init: Callable[[Array, dict[str, Array]], LearnerState]
    actor: Callable[[LearnerState], PyTree]
    carry: Callable[[Array], PyTree]
    act: Callable[..., tuple[Array, PyTree, PyTree]]
    distribution: distributions.Distribution
    memory: Callable[[Transition], PyTree]  # where an unroll's memory starts and restarts, () without
    view: Callable[[PyTree, Array, PyTree], View]  # (params, obs [T, B, …], memory)
    next_value: Callable[[PyTree, Transition, View], Array]  # [T, B] V(s'_t), without a gradient


def check_standardised(steps: int, what: str) -> None:
    """Refuse to standardise over a handful of advantages: their statistics are noise, and learning fails
    silently."""
    if steps < FEWEST_STEPS:
        raise UserError(
            f"{what} has {steps} step(s), too few to standardise advantages over: it needs {FEWEST_STEPS} or "
            "more (longer unrolls, more copies), or agent.normalise_advantage=false"
        )


def raw_action(data: Transition) -> Array:
    """The draw that log-probabilities are computed from."""
    raw: Array = data.extras.get("raw", data.action)
    return raw


def make_core(config: ActorCriticConfig, spec: EnvSpec) -> Core:
    try:
        distribution = distributions.for_spec(spec, config.distribution == "tanh")
    except ValueError as error:
        raise UserError(f"agent.distribution: env {spec.name!r}: {error}") from None
    separate = not (config.share_torso or config.lstm)
    network = ActorCritic(
        torso=make_torso(config.network, spec),
        critic_torso=make_torso(config.network, spec) if separate else None,
        head=PolicyHead(distribution.num_outputs, not spec.discrete, config.state_std, config.log_std),
        lstm_width=config.lstm,
    )

    def forward(params: PyTree, obs: Array, carry: PyTree, starts: Array | None) -> View:
        features = as_features(obs, spec, config.network.torso)
        view = View(*network.apply(params, features, carry, starts))
        return view._replace(outputs=masks.forbid(view.outputs, masks.allowed(spec, obs)))

    def one_step(params: PyTree, obs: Array, carry: PyTree) -> View:
        """obs [B, …] -> a View without the time axis."""
        if not config.lstm:
            return forward(params, obs, (), None)
        view = forward(params, obs[None], carry, jnp.zeros((1, obs.shape[0]), bool))
        first: View = jax.tree.map(lambda x: x[0], view)
        return first

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        obs = as_features(jnp.zeros((1, 1, *spec.obs_shape), spec.obs_dtype), spec, config.network.torso)
        params = network.init(key, obs, carry(jnp.zeros(1, jnp.int32)), jnp.zeros((1, 1), bool))
        opt = optimise.init(config, hypers, params)
        return LearnerState(params, (), opt, hypers, (), jnp.int32(0), jnp.float32(0))

    def carry(env_ids: Array) -> PyTree:
        return initial_carry(env_ids.shape[0], config.lstm) if config.lstm else ()

    def act(
        actor_params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, PyTree]:
        view = one_step(actor_params, obs, carry)
        raw = distribution.mode(view.outputs) if greedy else distribution.sample(view.outputs, key)
        extras = {"log_prob": distribution.log_prob(view.outputs, raw)}
        if config.keeps_values:
            extras["value"] = view.value
        if not spec.discrete:
            extras["raw"] = raw
        if config.lstm:
            extras["carry"] = carry  # before the step: a learner starts its unroll from it
        return distribution.to_action(raw), view.memory, extras

    def memory(data: Transition) -> PyTree:
        if not config.lstm:
            return ()
        return jax.tree.map(lambda x: x[0], data.extras["carry"]), starts_of(data.last)

    def view(params: PyTree, obs: Array, memory: PyTree) -> View:
        return forward(params, obs, *(memory if config.lstm else ((), None)))

    def next_value(params: PyTree, data: Transition, view: View) -> Array:
        params = jax.lax.stop_gradient(params)
        rows = (data.next_obs, view.memory)
        return advantages.next_values(
            view.value, data.discount, data.last, rows, lambda row: one_step(params, *row).value
        )

    return Core(init, lambda state: state.params, carry, act, distribution, memory, view, next_value)
