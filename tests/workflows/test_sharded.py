"""The sharded workflow in one process: every agent, the fused run's twin, no copies, clear refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.comm.layout import Layout
from jaxrl_hpc.config.registry import AGENTS
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.runtime.train import lanes_of, make_runner
from jaxrl_hpc.workflows.sharded.execution import SAME, placed
from tests import hlo, small
from tests.tiers import quick

RUN = {"total_env_steps": 40_000}
REPLAY = {"name": "prioritised", "capacity": 1200, "min_size": 48}
DISCRETE, CONTINUOUS = {"name": "CartPole-v1"}, {"name": "Pendulum-v1"}
SMALL = {"network": {"hidden": [8]}}
BATCH = {**SMALL, "batch_size": 24}
SETTINGS = {
    "a2c": ({**SMALL, "normalise": {"observation": True}}, DISCRETE, None),
    "ddpg": (BATCH, CONTINUOUS, {"name": "uniform", "capacity": 1200, "min_size": 48}),
    "dqn": ({**BATCH, "n_step": 3, "returns": "c51", "atoms": 5, "noisy": True}, DISCRETE, REPLAY),
    "dyna_q": ({**BATCH, "planning_updates": 2, "model_hidden": [8]}, DISCRETE, REPLAY),
    "iql": (BATCH, CONTINUOUS, REPLAY),
    "mbpo": ({**BATCH, "planning_updates": 2, "model_hidden": [8]}, CONTINUOUS, REPLAY),
    "mbpo_td3": ({**BATCH, "planning_updates": 2, "model_hidden": [8]}, CONTINUOUS, REPLAY),
    "ppo": ({**SMALL, "minibatches": 2, "epochs": 2, "kl_stop": True}, CONTINUOUS, None),
    "pqn": ({**SMALL, "minibatches": 2, "epochs": 2}, DISCRETE, None),
    "recurrent_dqn": (
        {**BATCH, "lstm": 8, "burn_in": 1, "length": 3},
        DISCRETE,
        {**REPLAY, "name": "sequence", "stride": 2},
    ),
    "sac": ({**BATCH, "batch_norm": True, "policy_delay": 2}, CONTINUOUS, REPLAY),
    "td3": (BATCH, CONTINUOUS, REPLAY),
}


def config_of(name, **workflow):
    agent, env, replay = SETTINGS[name]
    data = {"agent": {"name": name, **agent}, "env": env, "run": RUN}
    data["workflow"] = {"name": "sharded", "num_envs": 24, "unroll_length": 4, "shards": 6, **workflow}
    if replay:
        data["replay"] = replay
    return small.configs.from_dict(data)


def started(config):
    runner = make_runner(config, build(config), lanes_of(config))
    runner.initialise()
    return runner


def test_there_is_a_setting_for_every_agent():
    assert set(SETTINGS) == set(AGENTS)


@pytest.mark.parametrize("name", quick(SETTINGS, ["dqn"]))
def test_every_agent_learns_in_shards(name):
    config = config_of(name, updates_per_iteration=2 if SETTINGS[name][2] else 1)
    runner = started(config)
    before = jax.device_get(runner.parts.workflow.learner(runner.states[0]).params)
    (metrics,) = runner.per_lane(runner.step(3))
    after = jax.device_get(runner.parts.workflow.learner(runner.states[0]).params)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
    assert any(jax.tree.leaves(moved))
    assert np.isfinite(metrics["loss"])
    counters = runner.counters()
    assert counters["env_steps"] == runner.parts.workflow.warmup_steps + 3 * 24 * 4
    per_update = {"ppo": 4, "pqn": 4, "dyna_q": 3, "mbpo": 3, "mbpo_td3": 3}.get(name, 1) * (
        2 if SETTINGS[name][2] else 1
    )
    assert counters["updates"] == metrics["updates"] == 3 * per_update


@pytest.mark.parametrize("shards", quick([1, 6], [6]))
def test_equals_the_fused_run(shards):
    """A2C has no randomness of its own: the mean over shards is the gradient of the whole unroll."""
    sharded = started(config_of("a2c", shards=shards))
    fused_config = config_of("a2c")
    data = fused_config.to_dict()
    data["workflow"] = {"name": "fused", "num_envs": 24, "unroll_length": 4}
    fused_config = small.configs.from_dict(data)
    fused = make_runner(fused_config, build(fused_config), lanes_of(fused_config))
    fused.compile()
    fused.initialise()
    (ours,), (theirs,) = (runner.per_lane(runner.step(30)) for runner in (sharded, fused))
    assert ours["episodes"] == theirs["episodes"] > 0
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_programs_compiled_as_written_divide_where_it_says_divide():
    """Otherwise XLA multiplies by reciprocals here and there, by how many devices a program is for."""
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    scales = np.random.default_rng(1).random(1000).astype(np.float32) + 0.1
    layout = Layout(1, 1, 0, (jax.local_devices()[0],))

    def divide(x, y):
        return x / 12.0, x / jnp.broadcast_to(y[:, None], (1000, 1))[:, 0], x[None] / y[:5, None]

    found = placed(layout, divide, (SAME, SAME), SAME, as_written=True)
    expected = values / np.float32(12), values / scales, values[None] / scales[:5, None]
    for got, exact in zip(found(values, scales), expected, strict=True):
        np.testing.assert_array_equal(got, exact)
    assert jax.eval_shape(found, values, scales)[0].shape == (1000,)  # also where options are not allowed


@pytest.mark.parametrize("replay", quick(["global", "local"], ["global"]))
def test_no_copy_as_large_as_the_replay(replay):
    """A shard's memory is 2^16 bytes or more; the tree 2^14."""
    capacity = 12 * 2**14
    settings = {"name": "prioritised", "capacity": capacity, "min_size": 96}
    config = small.config(
        agent={"batch_size": 24},
        replay=settings,
        workflow={"name": "sharded", "num_envs": 24, "replay": replay},
    )
    parts = build(config)
    programs = parts.workflow
    hypers = jax.tree.map(jnp.float32, hypers_of(config))
    state = jax.eval_shape(parts.workflow.init, jax.random.key(0), hypers)
    names, messages = programs.dry_run(state)
    sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
    compiled = programs._step.jitted.lower(state, sums, jax.ShapeDtypeStruct((), jnp.int32)).compile()
    assert not hlo.copies_of_at_least(compiled.as_text(), capacity)
    kinds = [message.kind for message in messages]
    assert kinds == (["gather", "total", "add"] if replay == "global" else ["add"])


def test_batches_drawn_ahead_do_not_depend_on_what_the_replay_holds_now():
    """An update learns from rows that were drawn before it, and draws those of the next one."""
    runner = started(config_of("dqn", draw_ahead=True))
    flow, copied = runner.parts.workflow, jax.tree.map(jnp.copy, runner.states[0])
    memory = jax.tree.map(jnp.copy, copied.own.replay)
    emptied = dataclasses.replace(memory, tree=jnp.zeros_like(memory.tree))
    before = np.asarray(copied.shared.ahead)
    assert before[:, 2:].any(), "the warm-up drew the first batch"
    other = jax.tree.map(jnp.copy, copied)
    empty, _ = flow.step(other._replace(own=other.own._replace(replay=emptied)), 1)
    full, _ = flow.step(copied, 1)
    for one, two in zip(*(jax.tree.leaves(s.shared.learner.params) for s in (empty, full)), strict=True):
        np.testing.assert_array_equal(one, two)
    assert (np.asarray(full.shared.ahead) != before).any()
    assert (np.asarray(full.shared.ahead) != np.asarray(empty.shared.ahead)).any()


def test_nothing_is_drawn_ahead_where_shards_draw_alone():
    with pytest.raises(UserError, match=r"workflow\.draw_ahead: only batches of a prioritised replay"):
        build(config_of("dqn", draw_ahead=True, replay="local"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"workflow": {"num_envs": 25}}, "workflow.num_envs is 25: it must be a multiple of workflow.shards"),
        (
            {"agent": {"batch_size": 25}},
            "agent.batch_size is 25: it must be a multiple of workflow.shards",
        ),
        ({"replay": {"capacity": 2401}}, "replay.capacity is 2401: it must be a multiple of workflow.shards"),
        ({"replay": {"capacity": 12 * 2**29}}, r"replay.capacity: should be less than 2147483648"),
        ({"workflow": {"devices": 12}}, "workflow.devices is 12, but this process has"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(changes, message):
    sections = {
        "agent": {"batch_size": 24},
        "replay": {"capacity": 2400},
        "workflow": {"name": "sharded", "num_envs": 24},
    }
    sections = {name: values | changes.get(name, {}) for name, values in sections.items()}
    with pytest.raises(UserError, match=message):
        build(small.config(**sections))
