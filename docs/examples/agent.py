"""A complete agent in one file: REINFORCE (Williams 1992), the simplest policy gradient.

    G_t = r_t + gamma d_t G_{t+1},   loss = -mean_t log pi(a_t | s_t) (G_t - mean G) / std G

In this folder:

    jaxrl-hpc train agent.yaml
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.heads import QNetwork
from jaxrl_hpc.networks.torso import NetworkConfig, as_features, make_torso
from jaxrl_hpc.ops import distributions, optimise
from jaxrl_hpc.schema import traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, PyTree, Unrolls, UpdateInfo


class Config(optimise.OptimiserConfig):
    """What a config may set. `traced` fields can differ between the seeds and trials of one program."""

    network: NetworkConfig = NetworkConfig(hidden=(64,), activation="tanh")
    learning_rate: float = traced(3e-3, "Adam step size", gt=0)
    gamma: float = traced(0.98, "discount", ge=0, le=1)

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        return self.network.hidden  # from which threads and memory are estimated


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    if spec.num_actions is None:
        raise UserError(f"agent 'reinforce' needs discrete actions, but env {spec.name!r} has none: use ppo")
    network = QNetwork(make_torso(config.network, spec), spec.num_actions)  # here its outputs are logits
    policy = distributions.categorical(spec.num_actions)

    def logits(params: PyTree, obs: Array) -> Array:
        return network.apply(params, as_features(obs, spec, config.network.torso))  # type: ignore[return-value]

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        example = jnp.zeros((1, *spec.obs_shape), spec.obs_dtype)
        params = network.init(key, as_features(example, spec, config.network.torso))
        opt = optimise.init(config, hypers, params)
        return LearnerState(params, (), opt, hypers, (), jnp.int32(0), jnp.float32(0))

    def act(params: PyTree, carry: PyTree, obs: Array, key: Array, greedy: bool):
        outputs = logits(params, obs)
        action = policy.mode(outputs) if greedy else policy.sample(outputs, key)
        return policy.to_action(action), carry, ()

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        data = batch.data  # [T, B, …]
        goes_on = state.hypers["gamma"] * (1.0 - data.last)

        def backwards(later: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, discount = step
            value = reward + discount * later
            return value, value

        zeros = jnp.zeros(data.reward.shape[1])
        _, returns = jax.lax.scan(backwards, zeros, (data.reward, goes_on), reverse=True)
        advantage = (returns - returns.mean()) / (returns.std() + 1e-6)

        def loss(params: PyTree) -> Array:
            return -jnp.mean(policy.log_prob(logits(params, data.obs), data.action) * advantage)

        value, grads = jax.value_and_grad(loss)(state.params)
        return grads, UpdateInfo({"loss": value, "mean_return_to_go": returns.mean()}, jnp.zeros(0))

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        params, opt = optimise.update(config, state.hypers, state.progress, state.params, state.opt, grads)
        return state._replace(params=params, opt=opt, step=state.step + 1)

    return Agent(
        needs=Unrolls(),
        init=init,
        actor=lambda state: state.params,
        carry=lambda env_ids: (),
        act=act,
        gradient=gradient,
        apply=apply,
        stochastic=True,
    )
