"""The sharded workflow: its settings, and its programs on the devices of a layout."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import model_validator

from jaxrl_hpc.checkpoint.checkpointer import state_bytes
from jaxrl_hpc.comm.collectives import Collectives, compare_replicas, ordered_sum
from jaxrl_hpc.comm.distributed import gloo_lines_hidden
from jaxrl_hpc.comm.layout import Layout, make_layout
from jaxrl_hpc.comm.ranks import Ranks, world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.rollout import Episodes
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import (
    Agent,
    Array,
    Env,
    Job,
    LearnerState,
    Metrics,
    Placement,
    PyTree,
    Replay,
    Role,
    Store,
    Workflow,
)
from jaxrl_hpc.workflows.base import WorkflowBase
from jaxrl_hpc.workflows.config import WAITING, Resources, WaitingMode, WorkflowConfig
from jaxrl_hpc.workflows.sharded.execution import (
    DIVIDED,
    SAME,
    CollectiveMessage,
    Driver,
    Once,
    placed,
)
from jaxrl_hpc.workflows.sharded.stages import Stages, make_init, make_stages
from jaxrl_hpc.workflows.sharded.state import IterationWork, ShardedSettings, ShardedState, ShardWork
from jaxrl_hpc.workflows.sharded.store import ShardStore

MAX_SHARDS = 4096
MAX_DEVICES = 256  # of one process


class Config(WorkflowConfig):
    """The sharded workflow's settings. Sizes are those of all shards together."""

    uses_ranks: ClassVar[bool] = True

    name: Literal["sharded"] = "sharded"
    num_envs: int = static(24, "environment copies", per_shard="exact", ge=1)
    shards: int = static(
        12,
        "logical shards: a multiple of ranks × devices that divides copies, batch and capacity",
        ge=1,
        le=MAX_SHARDS,
    )
    devices: int = static(
        0,
        "devices per process; 0: its share of the node's, or one on a CPU",
        changeable=True,
        ge=0,
        le=MAX_DEVICES,
    )
    engine: Literal["auto", "mpi", "jax"] = static(
        "auto",
        "what connects processes: mpi4jax, with one device each, or JAX itself; auto: jax with GPUs, with "
        "several devices per process, or without mpi4jax, else mpi",
        changeable=True,
    )
    deterministic: bool = static(
        False,
        "the same bits on any number of ranks and devices, at some cost in speed; else equal within rounding",
    )
    replay: Literal["global", "local"] = static(
        "global",
        "prioritised batches: global: drawn from all shards as one memory; local: by each shard from its own",
    )
    draw_ahead: bool = static(
        False,
        "replay: global: draw the next batch before this one's priorities are known, so that its rows are "
        "sent while the gradient is computed; priorities are one update old",
    )
    deadline_seconds: float = static(
        300.0,
        "a job of several ranks ends if one of them makes no progress for this many seconds; 0: never",
        changeable=True,
        ge=0,
    )
    waiting: WaitingMode = static("auto", WAITING, changeable=True)

    @model_validator(mode="after")
    def _devices_hold_shards(self) -> Self:
        """Checked before JAX makes the devices, which takes memory and time."""
        if self.devices and self.shards % self.devices:
            raise ValueError(f"devices: {self.devices:,} cannot hold equal parts of {self.shards:,} shards")
        return self

    def resources(self) -> Resources:
        return Resources(
            total_copies=self.num_envs,
            devices=self.devices,
            shards=self.shards,
            deterministic=self.deterministic,
            mpi_in_programs=True,
            engine=self.engine,
            deadline_seconds=self.deadline_seconds,
            waiting=self.waiting,
        )


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    """`agent` and `replay` are made for one shard's part of batch and capacity (runtime/build.py)."""
    config.check_priorities(agent, replay)
    if config.draw_ahead and not (replay and replay.shared and config.replay == "global"):
        raise UserError(
            "workflow.draw_ahead: only batches of a prioritised replay over all shards are sent; "
            "set it to false, or use replay.name=prioritised and workflow.replay=global"
        )
    ranks = world()
    layout = make_layout(config.shards, config.devices, ranks)
    if layout.ranks > 1 and len(layout.devices) > 1 and not layout.spans_processes:
        raise UserError(
            f"workflow.engine: mpi has one device per process, but this one has {len(layout.devices)}; set "
            "workflow.engine=jax, or workflow.devices=1"
        )
    check_external(env, config, len(layout.program_devices))
    settings = ShardedSettings(
        shards=config.shards,
        copies=config.num_envs // config.shards,
        unroll_length=config.unroll_length,
        updates=config.updates_per_iteration,
        total_env_steps=total_env_steps,
        deterministic=config.deterministic,
        sample_globally=config.replay == "global",
        draw_ahead=config.draw_ahead,
        actor_priorities=config.actor_priorities,
    )
    return Sharded(settings, layout, ranks, env, agent, replay)


def check_external(env: Env, config: Config, devices: int) -> None:
    """External simulators belong to a process, and are called once for all its copies."""
    if not env.external:
        return
    if devices > 1 or config.deterministic:
        raise UserError(
            f"workflow: env {env.spec.name!r} runs outside the program and is called for all copies of a "
            "process at once: set workflow.devices=1, workflow.deterministic=false and, with several "
            "processes, workflow.engine=mpi"
        )
    if not env.host.simulators.divisible:
        raise UserError(
            f"env.interface: {env.spec.name} cannot be divided into shards by envpool's XLA interface; "
            "set env.interface=callback"
        )


def iterate(
    driver: Driver, stages: Stages, work: IterationWork, local: ShardWork
) -> tuple[IterationWork, ShardWork]:
    """Act once, learn K times; the same code for every layout."""
    work, local, _ = driver.chain(stages.acting, work, local)

    def update(work: IterationWork, local: ShardWork) -> tuple[IterationWork, ShardWork]:
        if not stages.has_minibatches:
            chain = [*stages.sampling, *stages.learning, *stages.settling]
            work, local, _ = driver.chain(chain, work, local)
            return work, local
        work, local, _ = driver.chain(stages.sampling, work, local)
        parts = local.data.batches.weight.shape[1]
        work, local = driver.repeat(parts, lambda w, l: driver.chain(stages.learning, w, l)[:2], work, local)
        work, local, _ = driver.chain(stages.settling, work, local)
        return work, local

    return driver.repeat(stages.updates, update, work, local)


def begin(state: ShardedState, sums: Metrics) -> tuple[IterationWork, ShardWork]:
    """Distinct arrays, since they may be donated."""
    ended = Episodes(*(jnp.zeros(state.own.shard.shape, jnp.float32) for _ in range(3)))
    update, part, done = (jnp.int32(0) for _ in range(3))
    return IterationWork(state.shared, sums, done, update, part), ShardWork(state.own, ended)


class Sharded(WorkflowBase):
    """The workflow. Its programs are compiled for this process's devices when first called."""

    def __init__(
        self,
        settings: ShardedSettings,
        layout: Layout,
        ranks: Ranks,
        env: Env,
        agent: Agent,
        replay: Replay | None,
    ) -> None:
        self.settings, self.layout, self.ranks = settings, layout, ranks
        self.steps_per_iteration = settings.steps_per_iteration
        per_shard = settings.copies * settings.unroll_length
        self.warmup_iterations = -(-replay.min_steps // per_shard) if replay else 0
        self.warmup_steps = self.warmup_iterations * self.steps_per_iteration
        self.stages = make_stages(settings, env, agent, replay)
        over_mpi = None if layout.spans_processes else ranks.programs
        self.collectives = Collectives(layout, over_mpi, settings.deterministic)
        self._first: tuple[Array, PyTree] | None = None  # key and hypers of the first seed
        self._names: list[str] | None = None
        states: Any = ShardedState(SAME, DIVIDED)  # type: ignore[arg-type]
        fresh = make_init(settings, env, agent, replay)
        compiled = functools.partial(placed, layout, as_written=settings.deterministic)
        self._init = compiled(fresh, (SAME, SAME, DIVIDED), states)
        driver = Driver(self.collectives)
        run, fill = functools.partial(self._run, driver), functools.partial(self._fill, driver)
        self._step = compiled(run, (states, SAME, SAME), (states, SAME), (0,))
        self._warmup = compiled(fill, (states,), states, (0,))

    # -- the contract --------------------------------------------------------

    @property
    def device(self) -> jax.Device:
        return self.layout.devices[0]

    def join(self, job: Job) -> Role:
        self._first = job.key, job.hypers
        return Role(True, self.ranks)

    def compile(self, shape: PyTree) -> None:
        """And run no iterations of a fresh state."""
        assert self._first is not None, "join comes first"
        self._run_nothing(self.init(*self._first))

    def _run_nothing(self, state: ShardedState) -> ShardedState:
        """Run no iterations, to synchronise processes and compare their learners.

        Gloo fails if a process arrives half a minute later than another, so all compile before.
        """
        self._step.compile(state, *self._chunk(state, 0))
        if self.warmup_steps:
            self._warmup.compile(state)
        self.ranks.barrier()
        with gloo_lines_hidden():
            state, metrics = self.step(state, 0)
            self.host_metrics(jax.device_get(metrics))
        return state

    def placement(self, shape: ShardedState) -> Placement:
        """Shared state on every device, and each device's part of the shards."""
        workers = self.layout.ranks * len(self.layout.devices)
        per_shard = state_bytes(shape.own) / shape.own.shard.shape[0]
        size = state_bytes(shape.shared) + int(per_shard * self.layout.shards / workers)
        return Placement(size, len(self.layout.devices), workers)

    def start(self, state: ShardedState) -> ShardedState:
        """On this process's devices. Refuses learners that are not the same on all devices and ranks."""
        placed_state = ShardedState(
            self.layout.place(state.shared), self.layout.place(state.own, divided=True)
        )
        return self._run_nothing(placed_state)

    def host_metrics(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Without fingerprints of the learner, which must agree."""
        marks = metrics.pop("replicas")
        compare_replicas(self.layout, marks)
        return metrics

    def counters(self, state: ShardedState) -> dict[str, Array]:
        shared = state.shared
        return {
            "iteration": shared.iteration,
            "env_steps": shared.env_steps,
            "updates": shared.learner.step,
        }

    def learner(self, state: ShardedState) -> LearnerState:
        """The learner as it stands on the first device."""

        def first(x: Any) -> Any:
            real = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
            return x.addressable_data(0) if real else x

        learner: LearnerState = jax.tree.map(first, state.shared.learner)
        return learner

    def store(self, directory: Path, keep: int) -> Store:
        return ShardStore(self.layout, self.ranks, directory, keep)

    def describe(self) -> str:
        return self.layout.describe()

    def init(self, key: Array, hypers: PyTree) -> ShardedState:
        """A fresh state: of this process's shards, of all of them if programs span processes."""
        layout = self.layout
        shards = np.arange(layout.first, layout.first + layout.local, dtype=np.int32)
        state: ShardedState = self._init(*layout.place((key, hypers)), layout.place(shards, divided=True))
        return state

    def warmup(self, state: ShardedState) -> ShardedState:
        state = self._warmup(state)
        return state

    def step(self, state: ShardedState, iterations: Any) -> tuple[ShardedState, Metrics]:
        """Iterations of all shards; metrics are those of all ranks."""
        state, metrics = self._step(state, *self._chunk(state, iterations))
        return state, metrics

    def _chunk(self, state: ShardedState, iterations: Any) -> PyTree:
        """Arguments of the program besides the state."""
        sums = {name: np.float32(0) for name in self._metric_names(state)}
        return self.layout.place((sums, np.int32(iterations)))

    def _metric_names(self, state: ShardedState) -> list[str]:
        """Metrics of the agent."""
        if self._names is None:
            self._names, _ = self.dry_run(state)
        return self._names

    def dry_run(self, state: ShardedState) -> tuple[list[str], list[CollectiveMessage]]:
        """Names of the metrics and all messages of an iteration, from shapes alone."""
        alone = Layout(self.settings.shards, 1, 0, self.layout.devices[:1])
        driver = Once(Collectives(alone, None, self.settings.deterministic))
        shared = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state.shared)
        own = jax.tree.map(lambda x: jax.ShapeDtypeStruct((alone.shards, *x.shape[1:]), x.dtype), state.own)
        work, _ = jax.eval_shape(
            lambda s: iterate(driver, self.stages, *begin(s, {})), ShardedState(shared, own)
        )
        return sorted(work.sums), driver.messages

    def _fill(self, driver: Driver, state: ShardedState) -> ShardedState:
        def gather(work: IterationWork, local: ShardWork) -> tuple[IterationWork, ShardWork]:
            work, local, _ = driver.chain(self.stages.acting, work, local)
            return work, local._replace(data=())

        work, local = driver.repeat(self.warmup_iterations, gather, *begin(state, {}))
        if self.settings.draw_ahead:
            work, local, rows = driver.chain(self.stages.drawing, work, local)
            work = work._replace(shared=work.shared._replace(ahead=rows))
        return ShardedState(work.shared, local.own)

    def _run(
        self, driver: Driver, state: ShardedState, sums: Metrics, iterations: Any
    ) -> tuple[ShardedState, Metrics]:
        work, local = driver.repeat(
            iterations, functools.partial(iterate, driver, self.stages), *begin(state, sums)
        )
        work, local, (everyone, marks, drawable) = driver.chain(self.stages.reporting, work, local)
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
        if jax.tree.leaves(drawable):
            metrics["drawable"] = ordered_sum(drawable) / self.settings.shards
        return ShardedState(work.shared, local.own), metrics
