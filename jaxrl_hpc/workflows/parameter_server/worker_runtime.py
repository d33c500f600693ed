"""Ranks that act and learn alone between exchanges: the shared base of the parameter server's and gossip's
runtimes.

A chunk is a number of exchanges. Workers claim them from a counter, so that a slow one makes fewer and delays
no other; a repeated run takes them from its schedule. At the end of a chunk all workers synchronise, and
merge their running statistics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.rma.atomics import AtomicCounter
from jaxrl_hpc.comm.rma.window import Window
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Agent, Env, Job, Metrics, Replay
from jaxrl_hpc.workflows.actor_learner.learner import LearnerSettings
from jaxrl_hpc.workflows.base import WorkflowBase
from jaxrl_hpc.workflows.config import DistributedConfig
from jaxrl_hpc.workflows.parameter_server.chunk_metrics import ChunkMetrics
from jaxrl_hpc.workflows.parameter_server.merge_statistics import reconcile
from jaxrl_hpc.workflows.parameter_server.worker import WorkerPrograms, WorkerState

FOREVER = 1e9  # seconds


class WorkerRuntime(WorkflowBase):
    """The part of a workflow that runs one worker."""

    title: ClassVar[str]  # of the workflow, in a sentence
    members: ClassVar[str]  # its name for the ranks that exchange

    def __init__(
        self,
        config: DistributedConfig,
        env: Env,
        agent: Agent,
        replay: Replay | None,
        total_env_steps: int,
        local_updates: int,
        workers: int,
    ) -> None:
        self.env, self.agent, self.replay = env, agent, replay
        self.sizes = LearnerSettings.of_one_rank(config, total_env_steps)
        per_iteration = self.sizes.steps_per_iteration
        self.warmup_iterations = -(-replay.min_steps // per_iteration) if replay else 0
        self.warmup_steps = workers * self.warmup_iterations * per_iteration
        self.steps_per_exchange = local_updates * per_iteration
        self.total_env_steps = total_env_steps
        self.deadline = config.deadline_seconds or FOREVER
        self.ranks = Ranks()  # that exchange, once the job has been joined
        self.job: Job | None = None  # None: this process only inspects
        self.claims: AtomicCounter
        self._worker: WorkerPrograms | None = None
        self._programs: dict[str, Callable[..., Any]] = {}
        self._names: list[str] = []  # of metrics
        self._window: Window  # of the counter
        self._closed = False

    @property
    def worker(self) -> WorkerPrograms:
        assert self._worker is not None, "init comes first"
        return self._worker

    @property
    def watchdog(self) -> Watchdog:
        assert self.job is not None, "join comes first"
        return self.job.watchdog

    def _steps(self, exchanges: int) -> int:
        """Environment steps of all workers after this number of exchanges."""
        return self.warmup_steps + exchanges * self.steps_per_exchange

    def _check_seeds(self, job: Job) -> None:
        if job.seeds > 1:
            raise UserError(
                f"run.seeds is {job.seeds}: with {self.title} a job trains one seed; start a job per seed "
                "with run.seed=…"
            )

    def _share_claims(self, comm: Any) -> None:
        """Make the shared counter of exchanges; making and freeing it is collective."""
        self._window = Window(comm, AtomicCounter.NBYTES)
        self.claims = AtomicCounter(self._window, 0, 0)

    def close(self, finished: bool) -> None:
        if not self._closed:
            self._closed = True
            self._disconnect(finished)
            self._window.free()

    def _disconnect(self, finished: bool) -> None:
        """Disconnect from the exchange of parameters; collective."""
        raise NotImplementedError

    def _compile_worker(self, own: WorkerState) -> None:
        """Programs for a worker of these shapes."""
        worker = self.worker
        self._names = worker.metric_names(own)
        sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in self._names}
        steps = jax.ShapeDtypeStruct((), jnp.int32)
        self._programs["work"] = jax.jit(worker.work, donate_argnums=(0, 1)).lower(own, sums, steps).compile()
        if worker.replay and worker.replay.drawable:
            share = worker.replay.drawable
            self._programs["drawable"] = jax.jit(lambda own: share(own.state.replay)).lower(own).compile()
        if worker.warmup_iterations:
            self._programs["warmup"] = jax.jit(worker.warmup, donate_argnums=0).lower(own).compile()

    # -- a chunk -------------------------------------------------------------

    def _begin_chunk(self, begin: int) -> ChunkMetrics:
        if self.ranks.first:
            self.claims.replace(begin)
        self.ranks.barrier()
        return ChunkMetrics({name: jnp.float32(0) for name in self._names})

    def _end_chunk(self, end: int, chunk: ChunkMetrics) -> None:
        waited = time.perf_counter()
        self.watchdog.at(f"waiting for the other {self.members} at the end of a chunk", end)
        self.ranks.barrier()
        chunk.idle += time.perf_counter() - waited

    def _check_repeated(self, mine: Sequence[int], begin: int, end: int) -> None:
        """Refuse a schedule that lacks exchanges of a chunk; collective."""
        if int(self.ranks.add(np.array([len(mine)]))[0]) != end - begin:
            raise UserError(
                f"run.replay_schedule: it does not have exchanges {begin} to {end}: replay a run of the same "
                f"config with as many {self.members}"
            )

    def _merge_statistics(self, own: WorkerState) -> WorkerState:
        """The running statistics of all workers."""
        known = reconcile(self.ranks, own.state.learner.aux, own.merged)
        state = own.state._replace(learner=own.state.learner._replace(aux=known))
        return own._replace(state=state, merged=jax.tree.map(jnp.copy, known))

    def _metrics(self, chunk: ChunkMetrics, own: WorkerState) -> Metrics:
        """Means over workers; collective."""
        metrics = chunk.metrics(self.ranks, self.worker.iterations)
        if "drawable" in self._programs:
            mine = float(self._programs["drawable"](own))
            metrics["drawable"] = self.ranks.add(np.array([mine]))[0] / self.ranks.size
        return metrics
