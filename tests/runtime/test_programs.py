"""Compiled programs: one compile each, nothing as large as the replay is copied, CUDA can have them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.config.registry import find
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.runtime.seeds import Lane, SeedRunner
from tests import hlo, small
from tests.tiers import quick

CAPACITY = 2**16
REPLAYS = ["uniform", "prioritised"]


def config_with(replay):
    return small.config(replay={"name": replay, "capacity": CAPACITY, "min_size": 64})


def shapes(parts, config, lanes=None):
    hypers = jax.tree.map(jnp.float32, hypers_of(config))
    key = jax.random.key(0)
    if lanes is None:
        return jax.eval_shape(parts.workflow.init, key, hypers)
    stack = lambda x: jnp.stack([x] * lanes)  # noqa: E731
    return jax.eval_shape(jax.vmap(parts.workflow.init), stack(key), jax.tree.map(stack, hypers))


def test_the_reader_sees_copies():
    """A program that must copy: the old array is still needed after the update."""
    text = jax.jit(lambda x: (x.at[3].set(1.0), x)).lower(jnp.zeros(CAPACITY)).compile().as_text()
    assert hlo.copies_of_at_least(text, CAPACITY)


@pytest.mark.parametrize("lanes", quick([None, 4], [4]))
@pytest.mark.parametrize("replay", quick(REPLAYS, ["prioritised"]))
def test_no_copy_as_large_as_the_replay(replay, lanes):
    config = config_with(replay)
    parts = build(config)
    step = parts.workflow.step if lanes is None else jax.vmap(parts.workflow.step, in_axes=(0, None))
    state = shapes(parts, config, lanes)
    compiled = jax.jit(step, donate_argnums=0).lower(state, jax.ShapeDtypeStruct((), jnp.int32)).compile()
    assert not hlo.copies_of_at_least(compiled.as_text(), CAPACITY)
    # all of the state is passed on in place, and working memory does not grow with the replay
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= 0.99 * memory.argument_size_in_bytes
    assert memory.temp_size_in_bytes < CAPACITY * (lanes or 1)


@pytest.mark.parametrize("replay", quick(REPLAYS, ["prioritised"]))
def test_warmup_is_in_place_too(replay):
    config = config_with(replay)
    parts = build(config)
    compiled = jax.jit(parts.workflow.warmup, donate_argnums=0).lower(shapes(parts, config)).compile()
    assert not hlo.copies_of_at_least(compiled.as_text(), CAPACITY)


def test_one_compile_per_program_whatever_the_chunk():
    config = small.config()
    parts = build(config)
    traced = {"step": 0, "init": 0, "warmup": 0}

    def counted(name):
        function = getattr(parts.workflow, name)

        def call(*args):
            traced[name] += 1
            return function(*args)

        return call

    functions = {"fill" if name == "warmup" else name: counted(name) for name in traced}
    flow = dataclasses.replace(parts.workflow, **functions)
    runner = SeedRunner(
        parts._replace(workflow=flow),
        [Lane(s, hypers_of(config)) for s in (0, 1)],
        "solo",
        4,
        jax.devices()[:1],
    )
    runner.compile()
    runner.initialise()
    for count in (5, 5, 3, 1):
        runner.per_lane(runner.step(count))
    runner.per_lane(runner.evaluate(1))
    assert traced["step"] == 1 and traced["warmup"] == 1
    assert traced["init"] <= 2  # once for shapes, once to compile


def test_an_iteration_is_traced_once():
    """Tracing it takes as long as all imports; the loop and its metrics need the same."""
    config = small.config()
    parts = build(config)
    traced = []

    def gradient(*args):
        traced.append(1)
        return parts.agent.gradient(*args)

    counted = parts.agent._replace(gradient=gradient)
    flow = find("workflow", "fused").make(
        config.workflow, parts.env, counted, parts.replay, config.run.total_env_steps
    )
    runner = SeedRunner(
        parts._replace(workflow=flow), [Lane(0, hypers_of(config))], "solo", 4, jax.devices()[:1]
    )
    runner.compile()
    assert len(traced) == 1


@pytest.mark.parametrize("replay", quick(REPLAYS, ["prioritised"]))
def test_lowers_for_cuda(replay):
    """Running on a GPU is untested; the program for it can be made, without a call that only a CPU has."""
    config = config_with(replay)
    parts = build(config)
    step = jax.jit(parts.workflow.step, donate_argnums=0)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    exported = jax.export.export(step, platforms=["cuda"])(shapes(parts, config), number)
    text = exported.mlir_module()
    assert exported.platforms == ("cuda",)
    for name in ("jaxrl", "cpu", "lapack"):
        assert f"custom_call @{name}" not in text


def test_vmapped_seeds_equal_solo_ones_within_tolerance():
    config = small.config()
    parts = build(config)
    lanes = [Lane(s, hypers_of(config)) for s in range(3)]
    results = {}
    for mode in ("solo", "vmap"):
        runner = SeedRunner(parts, lanes, mode, 4, jax.devices()[:1])
        runner.compile()
        runner.initialise()
        results[mode] = runner.per_lane(runner.step(50))
    for solo, stacked in zip(results["solo"], results["vmap"], strict=True):
        for name in solo:
            np.testing.assert_allclose(solo[name], stacked[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_lanes_with_their_own_hyperparameters():
    """Traced values: two learning rates in one program, each as if alone."""
    config = small.config()
    parts = build(config)
    slow, fast = hypers_of(config), hypers_of(config)
    fast["agent"] = fast["agent"] | {"learning_rate": 1e-2}
    losses = []
    for lanes in ([Lane(0, slow), Lane(0, fast)], [Lane(0, fast)]):
        runner = SeedRunner(parts, lanes, "solo", 4, jax.devices()[:1])
        runner.compile()
        runner.initialise()
        losses.append([float(m["loss"]) for m in runner.per_lane(runner.step(60))])
    assert losses[0][1] == losses[1][0]
    assert losses[0][0] != losses[0][1]
