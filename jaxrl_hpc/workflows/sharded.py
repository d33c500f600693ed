"""The fused iteration over all devices of a process and all ranks of a job, synchronously.

    shard s of S:   unroll [T, B/S] → add to its replay → K × ( its part of a batch → gradient ) ┐
                         ↑───────────── parameters, the same everywhere ←── apply ←── mean of all ┘

Environment copies, replay, keys and batch are divided into S logical shards; ranks and devices hold
shards, and which holds which changes nothing (`comm/layout.py`). Parameters are the same everywhere: each
device applies the same mean. Ranks come from the launcher: `mpirun -n N jaxrl-hpc train …` or `srun`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxrl_hpc.comm.collectives import Collectives, ordered_sum
from jaxrl_hpc.comm.layout import Layout, make_layout
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.rollout import Episodes
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import Agent, Array, Env, LearnerState, Metrics, PyTree, Replay, Workflow
from jaxrl_hpc.workflows.drivers import DIVIDED, SAME, Driver, HostDriven, Message, Once, OneProgram, placed
from jaxrl_hpc.workflows.shards import Local, Settings, State, Work
from jaxrl_hpc.workflows.stages import Stages, make_init, make_stages


class Config(Schema):
    """The sharded workflow's settings. Sizes are those of all shards together."""

    name: Literal["sharded"] = "sharded"
    num_envs: int = static(24, "environment copies", ge=1)
    unroll_length: int = static(1, "steps of every copy per iteration", ge=1)
    updates_per_iteration: int = static(1, "replay samples learned from per iteration", ge=1)
    shards: int = static(
        12, "logical shards: a multiple of ranks × devices that divides copies, batch and capacity", ge=1
    )
    devices: int = static(0, "devices per process; 0: its share of the node's, or one on a CPU", ge=0)
    deterministic: bool = static(
        False, "the same bits on every number of ranks and devices, for some speed; else within rounding"
    )
    replay: Literal["global", "local"] = static(
        "global", "prioritised batches are drawn from all shards as one memory, or each shard's from its own"
    )
    actor_priorities: bool = static(False, "actors rate what they add to the replay, instead of the maximum")
    deadline_seconds: float = static(
        300.0, "a job of several ranks is ended when one of them stands still for so long; 0: never", ge=0
    )


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    """`agent` and `replay` are made for one shard's part of batch and capacity (see build.py)."""
    if config.actor_priorities and (replay is None or agent.priority is None):
        raise UserError(
            "workflow.actor_priorities: this agent's actors cannot rate their steps; set it to false"
        )
    ranks = world()
    layout = make_layout(config.shards, config.devices, ranks)
    check_outside(env, config, len(layout.devices))
    settings = Settings(
        shards=config.shards,
        copies=config.num_envs // config.shards,
        unroll_length=config.unroll_length,
        updates=config.updates_per_iteration,
        total_env_steps=total_env_steps,
        deterministic=config.deterministic,
        sample_globally=config.replay == "global",
        actor_priorities=config.actor_priorities,
    )
    warmup_iterations = -(-replay.min_steps // (settings.copies * config.unroll_length)) if replay else 0
    programs = Programs(settings, layout, ranks.programs, env, agent, replay, warmup_iterations)
    return Workflow(
        init=programs.init,
        warmup=programs.warmup if warmup_iterations else None,
        step=programs.step,
        counters=lambda s: {
            "iteration": s.shared.iteration,
            "env_steps": s.shared.env_steps,
            "updates": s.shared.learner.step,
        },
        learner=learner_of,
        steps_per_iteration=settings.steps_per_iteration,
        warmup_steps=warmup_iterations * settings.steps_per_iteration,
        pure=False,
        programs=programs,
    )


def check_outside(env: Env, config: Config, devices: int) -> None:
    """Outside simulators belong to a process, and are called once for all its copies."""
    if not env.external:
        return
    if devices > 1 or config.deterministic:
        raise UserError(
            f"workflow: env {env.spec.name!r} runs outside of the program and is called for all copies of a "
            "process at once: set workflow.devices=1 and workflow.deterministic=false"
        )
    if not env.host.divisible:
        raise UserError(
            f"env.interface: {env.spec.name} cannot be divided into shards by envpool's XLA interface; "
            "set env.interface=callback"
        )


def learner_of(state: State) -> LearnerState:
    """The learner as it stands on the first device."""

    def first(x: Any) -> Any:
        real = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
        return x.addressable_data(0) if real else x

    return jax.tree.map(first, state.shared.learner)


def iterate(driver: Driver, stages: Stages, work: Work, local: Local) -> tuple[Work, Local]:
    """Act once, learn K times; the same words for every layout."""
    work, local, _ = driver.chain(stages.acting, work, local)

    def update(work: Work, local: Local) -> tuple[Work, Local]:
        if not stages.planned:
            chain = [*stages.sampling, *stages.learning, *stages.settling]
            work, local, _ = driver.chain(chain, work, local)
            return work, local
        work, local, _ = driver.chain(stages.sampling, work, local)
        parts = local.data.batches.weight.shape[1]
        work, local = driver.repeat(parts, lambda w, l: driver.chain(stages.learning, w, l)[:2], work, local)
        work, local, _ = driver.chain(stages.settling, work, local)
        return work, local

    return driver.repeat(stages.updates, update, work, local)


def begin(state: State, sums: Metrics) -> tuple[Work, Local]:
    """An array each, none twice: they may be donated."""
    ended = Episodes(*(jnp.zeros(state.own.shard.shape, jnp.float32) for _ in range(3)))
    update, part, done = (jnp.int32(0) for _ in range(3))
    return Work(state.shared, sums, done, update, part), Local(state.own, ended)


class Programs:
    """The workflow's functions, compiled for this process's devices when first called."""

    def __init__(
        self,
        settings: Settings,
        layout: Layout,
        comm: Any,
        env: Env,
        agent: Agent,
        replay: Replay | None,
        warmup_iterations: int,
    ) -> None:
        self.settings, self.layout = settings, layout
        self.stages = make_stages(settings, env, agent, replay)
        self.warmup_iterations = warmup_iterations
        self.collectives = Collectives(layout, comm, settings.deterministic)
        self._names: list[str] | None = None
        states: Any = State(SAME, DIVIDED)  # type: ignore[arg-type]
        start = make_init(settings, env, agent, replay)
        self._init = placed(layout, start, (SAME, SAME, DIVIDED), states)
        if layout.ranks > 1 and len(layout.devices) > 1:
            host = HostDriven(self.collectives)
            self._step: Callable = functools.partial(self._run, host)
            self._warmup: Callable = functools.partial(self._fill, host)
        else:
            inside = OneProgram(self.collectives)
            self._step = placed(
                layout, functools.partial(self._run, inside), (states, SAME, SAME), (states, SAME), (0,)
            )
            self._warmup = placed(layout, functools.partial(self._fill, inside), (states,), states, (0,))

    def init(self, key: Array, hypers: PyTree) -> State:
        """A fresh state of this process's shards."""
        layout = self.layout
        shards = jnp.arange(layout.first, layout.first + layout.local, dtype=jnp.int32)
        key, hypers = jax.device_put((key, hypers), layout.replicated)
        return self._init(key, hypers, jax.device_put(shards, layout.divided))

    def warmup(self, state: State) -> State:
        return self._warmup(state)

    def step(self, state: State, iterations: Any) -> tuple[State, Metrics]:
        """Iterations of all shards; metrics are those of all ranks."""
        sums = {name: jnp.float32(0) for name in self._metric_names(state)}
        sums, count = jax.device_put((sums, jnp.int32(iterations)), self.layout.replicated)
        return self._step(state, sums, count)

    def _metric_names(self, state: State) -> list[str]:
        """What the agent reports."""
        if self._names is None:
            self._names, _ = self.dry_run(state)
        return self._names

    def dry_run(self, state: State) -> tuple[list[str], list[Message]]:
        """Names of the metrics and all messages of an iteration, from shapes alone."""
        alone = Layout(self.settings.shards, 1, 0, self.layout.devices[:1])
        driver = Once(Collectives(alone, None, self.settings.deterministic))
        shared = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state.shared)
        own = jax.tree.map(lambda x: jax.ShapeDtypeStruct((alone.shards, *x.shape[1:]), x.dtype), state.own)
        work, _ = jax.eval_shape(lambda s: iterate(driver, self.stages, *begin(s, {})), State(shared, own))
        return sorted(work.sums), driver.messages

    def _fill(self, driver: Driver, state: State) -> State:
        def gather(work: Work, local: Local) -> tuple[Work, Local]:
            work, local, _ = driver.chain(self.stages.acting, work, local)
            return work, local._replace(data=())

        work, local = driver.repeat(self.warmup_iterations, gather, *begin(state, {}))
        return State(work.shared, local.own)

    def _run(self, driver: Driver, state: State, sums: Metrics, iterations: Any) -> tuple[State, Metrics]:
        work, local = driver.repeat(
            iterations, functools.partial(iterate, driver, self.stages), *begin(state, sums)
        )
        work, local, (everyone, marks) = driver.chain(self.stages.reporting, work, local)
        episodes = Episodes(*(ordered_sum(x) for x in everyone))
        count = jnp.maximum(episodes.number, 1.0)
        learner = work.shared.learner
        metrics = {name: total / jnp.maximum(work.done, 1) for name, total in work.sums.items()} | {
            "updates": learner.step + 0,  # a buffer of its own: the state's is donated to the next chunk
            "episodes": episodes.number,
            "episode_return": jnp.where(episodes.number > 0, episodes.returns / count, jnp.nan),
            "episode_length": jnp.where(episodes.number > 0, episodes.length / count, jnp.nan),
            "replicas": marks,
        }
        return State(work.shared, local.own), metrics
