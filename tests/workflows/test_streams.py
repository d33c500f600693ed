"""Every random key that a workflow gives away, and all that its receiver may split it into, are used once; no
agent uses one twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import rollout
from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.envs.check_finite import check_finite
from jaxrl_hpc.envs.external.simulator import ExternalConfig
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.types import (
    Agent,
    Batch,
    Env,
    EnvSpec,
    EnvStep,
    LearnerState,
    Replay,
    Transition,
    Unrolls,
    UpdateInfo,
    Windows,
)
from jaxrl_hpc.workflows import fused, sharded
from jaxrl_hpc.workflows.actor_learner import dyna
from jaxrl_hpc.workflows.actor_learner.learner import LearnerGroup, LearnerPrograms, LearnerSettings
from jaxrl_hpc.workflows.actor_learner.messages import make_acting
from jaxrl_hpc.workflows.parameter_server.exchange_schemes import deltas
from jaxrl_hpc.workflows.parameter_server.worker import WorkerPrograms
from tests.tiers import quick
from tests.workflows import combinations, run_combination
from tests.workflows.combinations import Combination

SPEC = EnvSpec("made up", (2,), np.dtype(np.float32), 2, (), None, None, 10)
CHILDREN = 8  # of every key: splits into as many
HYPERS: dict[str, dict[str, Any]] = {"agent": {}, "replay": {}}
SEEN: dict[str, list[bytes]] = defaultdict(list)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    SEEN.clear()
    yield


def see(place: str, keys: jax.Array) -> None:
    jax.debug.callback(
        lambda data: SEEN[place].extend(row.tobytes() for row in np.asarray(data).reshape(-1, 2)),
        jax.random.key_data(keys),
    )


def no_two_alike(places: set[str]) -> None:
    jax.effects_barrier()
    assert set(SEEN) == places
    words = [np.frombuffer(word, np.uint32) for words in SEEN.values() for word in words]
    keys = jax.random.wrap_key_data(jnp.asarray(np.stack(words)))
    below = jax.jit(jax.vmap(lambda key: jax.random.split(key, CHILDREN)))(keys)
    everything = np.concatenate([words, np.asarray(jax.random.key_data(below)).reshape(-1, 2)])
    assert len(np.unique(everything, axis=0)) == len(everything)


def env() -> Env:
    def reset(keys: jax.Array):
        see("reset", keys)
        return jnp.zeros(keys.shape[0]), jnp.zeros((keys.shape[0], 2))

    def step(keys: jax.Array, state: jax.Array, action: jax.Array):
        see("step", keys)
        obs, no = jnp.zeros((keys.shape[0], 2)), jnp.zeros(keys.shape[0], bool)
        return state + 1, EnvStep(obs, obs, jnp.zeros(keys.shape[0]), no, no, {})

    return Env(SPEC, reset, step)


def agent(trajectories: bool = False, planned: bool = True) -> Agent:
    def init(key: jax.Array, hypers: dict) -> LearnerState:
        see("init", key)
        return LearnerState(jnp.zeros(3), (), (), hypers, (), jnp.int32(0), jnp.float32(0))

    def act(params: Any, carry: Any, obs: jax.Array, key: jax.Array, greedy: bool):
        see("act", key)
        return jnp.zeros(obs.shape[0], jnp.int32), carry, ()

    def minibatches(state: LearnerState, batch: Batch, key: jax.Array) -> Batch:
        see("plan", key)
        return jax.tree.map(lambda x: jnp.stack([x, x]), batch)

    def gradient(state: LearnerState, batch: Batch, key: jax.Array):
        see("gradient", key)
        return state.params, UpdateInfo({"loss": jnp.float32(0)}, jnp.ones(batch.weight.shape))

    return Agent(
        needs=Unrolls() if trajectories else Windows(1, 4),
        init=init,
        actor=lambda state: state.params,
        carry=lambda ids: (),
        act=act,
        gradient=gradient,
        apply=lambda state, grads, statistics: state._replace(
            params=state.params + grads, step=state.step + 1
        ),
        minibatches=minibatches if planned else None,
    )


def replay() -> Replay:
    def sample(state: Any, key: jax.Array, progress: jax.Array) -> Batch:
        see("sample", key)
        one = jnp.zeros((1, 4))
        obs = jnp.zeros((1, 4, 2))
        data = Transition(obs, one.astype(jnp.int32), one, one, one > 0, obs, ())
        return Batch(data, jnp.ones(4), jnp.zeros(4, jnp.int32))

    return Replay(
        init=lambda example, hypers: jnp.float32(0),
        add=lambda state, unroll, priority: state,
        sample=sample,
        prioritise=lambda state, index, priority: state,
        min_steps=0,
    )


ALL = {"init", "reset", "act", "step", "sample", "plan", "gradient"}


@pytest.mark.parametrize("updates", [1, 3])
def test_fused(updates: int) -> None:
    config = fused.Config(num_envs=3, unroll_length=2, updates_per_iteration=updates)
    flow = fused.make(config, env(), agent(), replay(), 1000)
    state = jax.jit(flow.init)(jax.random.key(0), HYPERS)
    jax.jit(flow.step)(state, jnp.int32(3))
    no_two_alike(ALL)


@pytest.mark.parametrize("trajectories", [False, True])
def test_sharded(trajectories: bool) -> None:
    config = sharded.Config(num_envs=4, unroll_length=2, updates_per_iteration=2, shards=2, replay="local")
    memory = None if trajectories else replay()
    flow = sharded.make(config, env(), agent(trajectories), memory, 1000)
    state = flow.init(jax.random.key(0), HYPERS)
    flow.step(state, 3)
    no_two_alike(ALL - {"sample"} if trajectories else ALL)


def settings(updates: int, served: int) -> LearnerSettings:
    return LearnerSettings(3, 2, updates, 1, 1000, False, False, served)


@pytest.mark.parametrize(("learners", "updates"), [(1, 1), (2, 3)])
def test_learners_with_extra_samples_and_actors(learners: int, updates: int) -> None:
    """What `async`, `rma`, `rma_queue` and `dyna` do, with two actors."""
    made = agent()
    learning = LearnerPrograms(settings(updates, learners), env(), made, replay())
    config = dyna.Config(num_envs=3, unroll_length=2, updates_per_iteration=updates, max_updates=updates + 3)
    acting = make_acting(env(), made, {}, copies=3, length=2, priorities=False)
    SEEN.clear()
    unrolls = []
    for actor in range(2):
        running = acting.start(jax.random.key(0), np.int32(actor))
        for _ in range(2):
            running, _, trajectory, _ = acting.unroll(jnp.zeros(3), running)
            unrolls.append((trajectory, ()))
    for number in range(learners):
        group = LearnerGroup(learners, number, False, None)
        flow = dyna.Dyna(config, TWO_SIDED, learning, 0)
        flow.group = group
        state = jax.jit(lambda key, group=group: learning.init(key, HYPERS, group))(jax.random.key(0))
        if number:  # all learners begin alike
            jax.effects_barrier()
            del SEEN["init"][-1]
        iterate = jax.jit(lambda s, u, group=group: learning.iterate(s, {}, [u], group))
        plan = jax.jit(flow._plan)
        for unroll in unrolls[:2]:
            state, sums = iterate(state, unroll)
            for extra in range(1, 4):
                state, sums = plan(state, sums, jnp.int32(extra))
    no_two_alike(ALL)


def test_workers_of_a_parameter_server() -> None:
    made = agent()
    shape = jax.eval_shape(made.init, jax.random.key(0), {})
    worker = WorkerPrograms(settings(2, 1), env(), replay(), deltas(made, shape), 2, 0, False)
    init = jax.jit(lambda key, number: worker.init(key, HYPERS, number, True))
    work = jax.jit(worker.work)
    for number in range(2):
        sums = {name: jnp.float32(0) for name in ("loss", "grad_norm", "updates_used")}
        work(init(jax.random.key(0), jnp.int32(number)).own, sums, jnp.int32(0))
    jax.effects_barrier()
    del SEEN["init"][-1]  # all workers begin alike
    no_two_alike(ALL)


def test_a_copy_that_begins_again_after_a_fault() -> None:
    made = check_finite(env(), ExternalConfig(on_error="reset"))

    @jax.jit
    def run(keys: jax.Array) -> Any:
        state, _ = made.reset(keys[:2])
        return made.step(keys[2:], state, jnp.zeros(2, jnp.int32))

    run(jax.random.split(jax.random.key(3), 4))
    no_two_alike({"reset", "step"})


def test_evaluation() -> None:
    rollout.evaluate(env(), agent(), jnp.zeros(3), jax.random.key(0), 3)
    no_two_alike({"reset", "act", "step"})


def traced_whole(agent: str) -> Any:
    """key -> metrics of a whole run of the agent, from its first parameters to its updates."""
    replay = {"recurrent_dqn": "sequence"}.get(agent, "prioritised")
    given = ("default", "auto") if agent.split()[0] in combinations.ON_POLICY else (replay, "always")
    config = run_combination.config_of(Combination(agent, "fused", *given, "small"))
    flow = build(config).workflow
    hypers = jax.tree.map(jnp.float32, hypers_of(config))

    def run(key: jax.Array) -> Any:
        return flow.step(flow.warmup(flow.init(key, hypers)), jnp.int32(3))[1]

    return run


@pytest.mark.parametrize("name", quick(combinations.AGENTS, ["dqn rainbow", "ppo lstm"]))
def test_agents_use_keys_once(name: str) -> None:
    """Nothing here computes: JAX follows the keys through the traced program."""
    check = pytest.importorskip("jax.experimental.key_reuse._core").check_key_reuse
    check(traced_whole(name), jax.random.key(0))


def test_a_key_that_an_agent_uses_twice_is_found() -> None:
    check = pytest.importorskip("jax.experimental.key_reuse._core").check_key_reuse
    made = agent()

    def gradient(state: LearnerState, batch: Batch, key: jax.Array):
        grads, info = made.gradient(state, batch, key)
        return grads + jax.random.normal(key) + jax.random.uniform(key), info

    flow = fused.make(fused.Config(unroll_length=1), env(), made._replace(gradient=gradient), replay(), 1000)
    with pytest.raises(jax.errors.KeyReuseError):
        check(lambda key: flow.step(flow.init(key, HYPERS), jnp.int32(3))[1], jax.random.key(0))
