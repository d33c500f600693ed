"""Windows of a replay over unrolls: uncut where they continue each other, else refused, told and drawable."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.config.compare import check_same_config
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay import uniform
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.types import Batch, Transition, Windows
from jaxrl_hpc.workflows import update
from jaxrl_hpc.workflows.actor_learner import dyna
from jaxrl_hpc.workflows.actor_learner.learner import LearnerGroup, LearnerPrograms
from tests.workflows.test_streams import HYPERS, agent, env

WINDOW = 4
GLOBAL = {"name": "parameter_server", "replay": "global"}


def config(agent: dict[str, Any], workflow: dict[str, Any], **replay: Any) -> configs.Config:
    return configs.from_dict(
        {
            "agent": {"network": {"hidden": [8]}, **agent},
            "env": {"name": "CartPole-v1"},
            "replay": {"name": "uniform", "capacity": 512, "min_size": 32, **replay},
            "workflow": {"num_envs": 2, **workflow},
            "run": {"total_env_steps": 10_000},
        }
    )


@pytest.mark.parametrize(
    ("agent", "workflow", "replay"),
    [
        ({"name": "dqn", "n_step": 8}, {"name": "async", "unroll_length": 4}, {}),
        (
            {"name": "dqn", "n_step": 8},
            {"name": "parameter_server", "replay": "global", "unroll_length": 4},
            {},
        ),
        (
            {"name": "recurrent_dqn"},
            {"name": "async", "unroll_length": 16},
            {"name": "sequence", "episodes": "within"},
        ),
        ({"name": "dyna_q", "n_step": 8}, {"name": "dyna", "max_lag": 3, "unroll_length": 4}, {}),
    ],
)
def test_windows_longer_than_the_unrolls_that_end_them_are_refused(agent, workflow, replay) -> None:
    with pytest.raises(UserError, match="windows of the replay end with their unroll"):
        build(config(agent, workflow, **replay))
    fits = config(agent, {k: v for k, v in workflow.items() if k != "unroll_length"}, **replay)
    assert fits.workflow.unroll_length >= fits.agent.window
    build(fits)


def test_the_remedy_is_one_that_the_workflow_has() -> None:
    """An elastic run has no single actor whose unrolls continue each other."""
    with pytest.raises(UserError, match=r"set it to 8 or more$"):
        build(config({"name": "dqn", "n_step": 8}, {"name": "elastic", "unroll_length": 4}))


def test_a_cut_is_told(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        build(config({"name": "dqn", "n_step": 8}, {"name": "async", "unroll_length": 32}))
        assert "of 8 steps they have 7.1" in caplog.text
        caplog.clear()
        build(config({"name": "dqn", "n_step": 2}, {"name": "async", "unroll_length": 32}))
        build(config({"name": "dyna_q", "n_step": 8}, {"name": "dyna", "unroll_length": 1}))
    assert not caplog.text


@pytest.mark.parametrize(
    ("workflow", "cut"),
    [
        ({"name": "async"}, True),
        ({"name": "async", "actors": 1}, False),
        ({"name": "async", "actors": 1, "batch_trajectories": 2}, False),
        ({"name": "async", "actors": 1, "learners": 2, "learner_mode": "shared"}, False),
        ({"name": "async", "actors": 1, "max_lag": 4}, True),
        ({"name": "async", "actors": 2}, True),
        ({"name": "rma", "actors": 1}, False),
        ({"name": "rma", "actors": 1, "when_full": "drop_oldest"}, True),
        ({"name": "rma_queue", "actors": 1}, False),
    ],
)
def test_windows_continue_where_one_actor_sends_everything(workflow, cut) -> None:
    found = config({"name": "dqn", "n_step": 8}, {**workflow, "unroll_length": 4 if not cut else 8})
    assert found.workflow.cuts_windows == cut
    assert build(found).workflow.learning.settings.continuous != cut


def test_a_resumed_run_keeps_its_windows() -> None:
    one, two = (config({"name": "dqn"}, {"name": "async", "actors": actors}) for actors in (1, 2))
    with pytest.raises(UserError, match=r"cross unrolls with workflow.actors = 1 only; leave it at 1"):
        check_same_config(two, one.to_dict())
    data = one.to_dict() | {"agent": {"name": "a2c"}, "replay": None}
    alone = configs.from_dict(data)  # learns from unrolls: nothing to cross
    data["workflow"] = data["workflow"] | {"actors": 2}
    check_same_config(configs.from_dict(data), alone.to_dict())


@pytest.mark.parametrize(("max_lag", "used"), [(None, WINDOW), (3, 1)])
def test_windows_continue_over_the_unrolls_of_the_one_actor_of_dyna(max_lag, used) -> None:
    made = agent()._replace(needs=Windows(WINDOW, 4))
    memory = uniform.make(
        uniform.Config(capacity=64, min_size=8), num_envs=3, unroll_length=1, window=WINDOW, batch_size=4
    )
    length = 1 if max_lag is None else WINDOW  # else it is refused
    flow = dyna.make(
        dyna.Config(num_envs=3, unroll_length=length, max_lag=max_lag), env(), made, memory, 1000
    )
    settings = flow.learning.settings._replace(length=1)
    learner = LearnerPrograms(settings, env(), made, memory)
    group = LearnerGroup(1, 0, False, None)
    obs = jnp.zeros((1, 3, 2))
    one = jnp.zeros((1, 3))
    unroll = Transition(obs, one.astype(jnp.int32), one, one + 1, one > 0, obs, ())

    @jax.jit
    def run(key: jax.Array) -> dict[str, jax.Array]:
        state = learner.init(key, HYPERS, group)
        state = jax.lax.fori_loop(0, 12, lambda _, s: learner.fill(s, [(unroll, ())], group), state)
        return update.replay_metrics(made, memory.sample(state.replay, key, jnp.float32(0)))

    assert float(run(jax.random.key(0))["window_used"]) == used


def test_steps_used_are_counted_up_to_the_first_end() -> None:
    last = jnp.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], bool)
    batch = Batch(Transition(*[()] * 4, last, (), ()), jnp.ones(4), ())  # type: ignore[arg-type]
    found = update.replay_metrics(agent()._replace(needs=Windows(3, 4)), batch)["window_used"]
    np.testing.assert_allclose(found, (3 + 1 + 2 + 3) / 4)


@pytest.mark.parametrize("length", [1, 4])
def test_ends_of_unrolls_leave_every_step_drawable(length) -> None:
    """Next observations by index: every marked end takes a row of the side ring."""
    found = config({"name": "dqn"}, {"name": "async", "unroll_length": length}, store_next="by_index")
    replay: Any = build(found).replay
    obs, one = jnp.zeros((length, 2, 4)), jnp.zeros((length, 2))
    ends = (one > 0).at[-1].set(True)
    unroll = Transition(obs, one.astype(jnp.int32), one, one, ends, obs, ())

    @jax.jit
    def fill(start: Any) -> Any:
        return jax.lax.fori_loop(0, 3 * 256 // length, lambda _, s: replay.add(s, unroll, None), start)

    memory = fill(replay.init(jax.tree.map(lambda x: x[0, 0], unroll), {})).memory
    slots = 256
    assert int(memory.ring.written) == 3 * slots
    assert int(memory.valid_from) <= 2 * slots
