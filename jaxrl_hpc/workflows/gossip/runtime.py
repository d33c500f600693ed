"""Gossip as a Workflow.

Before `join`, a process can only inspect shapes (as `evaluate` does); `start` connects the ranks. An
iteration is an exchange of any rank: ranks claim them from a counter, so that a slow one makes fewer and does
not delay others. With bounded `staleness` it is an exchange of every rank. At the end of a chunk all ranks
synchronise: running statistics are merged, and the mean of all replicas, which is evaluated, is computed
together with their distance from it. One seed per job; rank 0 evaluates and writes. Unless staleness is
bounded, a run may continue with more ranks, which start fresh copies from that mean, or with fewer, dropping
the states of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.params.peers import Peers, PeerVector
from jaxrl_hpc.comm.ranks import Ranks, world
from jaxrl_hpc.comm.rma.atomics import AtomicCounter
from jaxrl_hpc.comm.rma.window import Window
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import (
    Agent,
    Array,
    Env,
    Job,
    LearnerState,
    Metrics,
    PyTree,
    Replay,
    Role,
    Store,
    Workflow,
)
from jaxrl_hpc.workflows.actor_learner import learner
from jaxrl_hpc.workflows.base import WorkflowBase
from jaxrl_hpc.workflows.gossip.config import Config, check, check_ranks
from jaxrl_hpc.workflows.gossip.replica import Consensus, GossipState, ReplicaState, replicas
from jaxrl_hpc.workflows.gossip.schedule import ExchangeRecord, GossipRecorder, GossipReplay
from jaxrl_hpc.workflows.gossip.topology import average, neighbours
from jaxrl_hpc.workflows.parameter_server.chunk_metrics import ChunkMetrics
from jaxrl_hpc.workflows.parameter_server.merge_statistics import reconcile
from jaxrl_hpc.workflows.parameter_server.worker import WorkerPrograms, WorkerState
from jaxrl_hpc.workflows.rank_store import RankStore

FOREVER = 1e9  # seconds


class Gossip(WorkflowBase):
    """The workflow."""

    def __init__(
        self, config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int
    ) -> None:
        self.config, self.env, self.agent, self.replay = config, env, agent, replay
        self.ranks = Ranks()  # of the job, once it has been joined
        size = world().size
        check_ranks(config, size)
        self.sizes = learner.LearnerSettings.of_one_rank(config, total_env_steps)
        per_iteration = self.sizes.steps_per_iteration
        self.steps_per_exchange = config.local_updates * per_iteration
        self.exchanges = 1 if config.staleness is None else size  # of an iteration
        self.steps_per_iteration = self.exchanges * self.steps_per_exchange
        self.warmup_iterations = -(-replay.min_steps // per_iteration) if replay else 0
        self.warmup_steps = size * self.warmup_iterations * per_iteration
        self.total_env_steps = total_env_steps
        self.job: Job | None = None  # None: this process only inspects
        self.peers: Peers
        self.claims: AtomicCounter
        self.recorder: GossipRecorder | None = None
        self.replayed: GossipReplay | None = None
        self._seed = 0  # of random neighbours
        self._seen: list[int] = []  # newest version of each rank that was averaged
        self._worker: WorkerPrograms | None = None
        self._num_params = 0
        self._programs: dict[str, Callable[..., PyTree]] = {}
        self._names: list[str] = []
        self._window: Window
        self._closed = False

    @property
    def worker(self) -> WorkerPrograms:
        assert self._worker is not None, "init comes first"
        return self._worker

    def init(self, key: Array, hypers: PyTree) -> GossipState:
        if self._worker is None:
            shape: LearnerState = jax.eval_shape(self.agent.init, jax.random.key(0), hypers["agent"])
            scheme, self._num_params = replicas(self.agent, shape, self.config.moments)
            iterations = self.config.local_updates, self.warmup_iterations
            self._worker = WorkerPrograms(self.sizes, self.env, self.replay, scheme, *iterations, False)
        worker, rank, several = self._worker, jnp.int32(self.ranks.rank), self.ranks.size > 1

        def fresh(key: Array, hypers: PyTree) -> GossipState:
            own = worker.init(key, hypers, rank, several).own
            mean = jax.tree.map(jnp.copy, own.state.learner)  # buffers of their own: a worker's are donated
            published = jnp.copy(own.central)
            zeros = [jnp.int32(0) for _ in range(2)]
            return GossipState(Consensus(mean, *zeros), ReplicaState(own, published))

        state: GossipState = jax.jit(fresh)(key, hypers)
        return state

    def learner(self, state: GossipState) -> LearnerState:
        """The mean of all replicas."""
        return state.shared.learner

    def counters(self, state: GossipState) -> dict[str, Array]:
        shared = state.shared
        return {
            "iteration": shared.iteration,
            "env_steps": self.warmup_steps + shared.iteration * self.steps_per_iteration,
            "updates": shared.updates,
        }

    # -- the job -------------------------------------------------------------

    def join(self, job: Job) -> Role:
        if job.seeds > 1:
            raise UserError(
                f"run.seeds is {job.seeds}: with gossip a job trains one seed; start a job per seed with "
                "run.seed=…"
            )
        self.job, self.ranks = job, job.ranks
        self._seed = int(np.asarray(jax.random.key_data(job.key)).ravel()[-1])
        return Role(True, self.ranks)

    def describe(self) -> str:
        return f"{self.ranks.size} rank{'s' if self.ranks.size > 1 else ''}, {self.config.topology} gossip"

    def _at(self, phase: str, number: int) -> None:
        assert self.job is not None, "join comes first"
        self.job.watchdog.at(phase, number, often=True)

    def start(self, state: GossipState) -> GossipState:
        """Publish the replicas and connect the ranks."""
        if self.job is None:
            return state
        job, config, comm = self.job, self.config, self.ranks.communicator("workflow gossip")
        done = [int(n) for n in self.ranks.everyone(int(state.own.worker.exchanges))[:, 0]]
        degree = len(self._neighbours(0))
        if job.replay_schedule:
            self.replayed = GossipReplay(job.replay_schedule, self.ranks.rank, done, degree)
        if job.record_schedule:
            self.recorder = GossipRecorder(job.folder, self.ranks.rank, done[self.ranks.rank], degree)
        self.peers = Peers(comm, self.worker.scheme.size, config.deadline_seconds or FOREVER)
        self.peers.publish(np.asarray(state.own.published), done[self.ranks.rank])
        self._seen = done  # parameters published before this job count as averaged
        self._window = Window(comm, AtomicCounter.NBYTES)
        self.claims = AtomicCounter(self._window, 0, 0)
        self.ranks.barrier()
        return state

    def close(self, finished: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self.peers.close()
        self._window.free()

    def store(self, directory: Path, keep: int) -> Store:
        new = self._new_rank if self.config.staleness is None else None
        return RankStore(self.ranks, directory, keep, own="own", new=new, inspects=self.job is None)

    def _new_rank(self, state: GossipState) -> ReplicaState:
        """A rank that the checkpoint does not have: fresh copies, the mean of the others' replicas."""
        assert self.job is not None, "join comes first"
        fresh = self.init(self.job.key, self.job.hypers)
        if self.warmup_steps:
            fresh = self.warmup(fresh)
        mean = jax.jit(self.worker.scheme.first)(state.shared.learner)
        learned = fresh.own.worker.state._replace(learner=state.shared.learner)
        merged = jax.tree.map(jnp.copy, learned.learner.aux)
        worker = fresh.own.worker._replace(state=learned, central=mean, merged=merged)
        return ReplicaState(jax.tree.map(jnp.copy, worker), mean)

    # -- programs ------------------------------------------------------------

    def compile(self, state: GossipState) -> None:
        """Programs for a state of these shapes."""
        worker, own = self.worker, state.own.worker
        steps = jax.ShapeDtypeStruct((), jnp.int32)
        self._names = worker.metric_names(own)
        sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in self._names}
        self._programs["work"] = jax.jit(worker.work, donate_argnums=(0, 1)).lower(own, sums, steps).compile()
        self._programs["install"] = jax.jit(
            lambda learner, mean: jax.tree.map(jnp.copy, worker.scheme.install(learner, mean))
        )
        if worker.replay and worker.replay.drawable:
            share = worker.replay.drawable
            self._programs["drawable"] = jax.jit(lambda own: share(own.state.replay)).lower(own).compile()
        if worker.warmup_iterations:
            self._programs["warmup"] = jax.jit(worker.warmup, donate_argnums=0).lower(own).compile()

    def warmup(self, state: GossipState) -> GossipState:
        return state._replace(own=state.own._replace(worker=self._programs["warmup"](state.own.worker)))

    # -- a chunk -------------------------------------------------------------

    def step(self, state: GossipState, iterations: int) -> tuple[GossipState, Metrics]:
        begin, own = int(state.shared.iteration) * self.exchanges, state.own
        end = begin + iterations * self.exchanges
        chunk = ChunkMetrics({name: jnp.float32(0) for name in self._names})
        if self.ranks.first:
            self.claims.replace(begin)
        self.ranks.barrier()
        for number in self._shares(begin, end):
            own = self._exchange(own, number, chunk)
        waited = time.perf_counter()
        self._at("waiting for the other ranks at the end of a chunk", end)
        self.ranks.barrier()
        chunk.idle += time.perf_counter() - waited
        if self.recorder:
            self.recorder.flush()
        worker = self._merge_statistics(own.worker)
        mean, distance = self._consensus(np.asarray(worker.central))
        updates = int(self.ranks.add(np.array([int(worker.state.learner.step)]))[0])
        learned = self._programs["install"](worker.state.learner, mean)
        learned = learned._replace(progress=jnp.float32(self._steps(end) / self.total_env_steps))
        metrics = chunk.metrics(self.ranks, self.config.local_updates)
        metrics["exchanges_alone"] = metrics.pop("dropped_changes")  # no neighbour had new parameters
        metrics["consensus_distance"] = jnp.float32(distance)
        if "drawable" in self._programs:
            mine = float(self._programs["drawable"](worker))
            metrics["drawable"] = self.ranks.add(np.array([mine]))[0] / self.ranks.size
        shared = Consensus(learned, state.shared.iteration + iterations, jnp.int32(updates))
        return GossipState(shared, own._replace(worker=worker)), metrics | {"updates": jnp.int32(updates)}

    def _steps(self, exchanges: int) -> int:
        """Environment steps of all ranks after so many exchanges."""
        return self.warmup_steps + exchanges * self.steps_per_exchange

    def _merge_statistics(self, worker: WorkerState) -> WorkerState:
        known = reconcile(self.ranks, worker.state.learner.aux, worker.merged)
        state = worker.state._replace(learner=worker.state.learner._replace(aux=known))
        return worker._replace(state=state, merged=jax.tree.map(jnp.copy, known))

    def _consensus(self, mine: np.ndarray) -> tuple[np.ndarray, float]:
        """(mean of all replicas [P], √(mean over ranks of ‖x_i − mean‖²) of their parameters); collective."""
        mean = self.ranks.add(mine) / self.ranks.size
        away = np.sum(np.square(mine[: self._num_params] - mean[: self._num_params]))
        total = self.ranks.add(np.array([away]))[0]
        return mean.astype(np.float32), float(np.sqrt(total / self.ranks.size))

    def _shares(self, begin: int, end: int) -> Iterator[int]:
        """This rank's exchanges of a chunk."""
        if self.replayed is not None:
            mine = self.replayed.shares(begin, end)
            if int(self.ranks.add(np.array([len(mine)]))[0]) != end - begin:
                raise UserError(
                    f"run.replay_schedule: it does not have exchanges {begin} to {end}: replay a run of the "
                    "same config with as many ranks"
                )
            yield from mine
        elif self.config.staleness is not None:
            yield from range(begin + self.ranks.rank, end, self.ranks.size)
        else:
            while (number := self.claims.add(1)) < end:
                yield number

    def _exchange(self, own: ReplicaState, number: int, chunk: ChunkMetrics) -> ReplicaState:
        """Learn locally, publish the replica, average it with neighbours'."""
        began = time.perf_counter()
        worker = own.worker
        done = int(worker.exchanges)
        self._at("working", done)
        worker, result = self._programs["work"](worker, chunk.sums, np.int32(self._steps(number)))
        mine = np.asarray(result.change)
        worked = time.perf_counter()
        found = self._meet(mine, done)
        new = average(mine, {r: x.numbers for r, x in found.items() if x}, self.ranks.rank, self.config.rate)
        chunk.idle += time.perf_counter() - worked
        chunk.busy += worked - began
        lags = [max(done + 1 - x.version, 0) for x in found.values() if x]
        chunk.add(max(lags, default=0), bool(lags) or not found, result)
        if self.recorder:
            versions = {rank: x.version if x else None for rank, x in found.items()}
            self.recorder.add(done, ExchangeRecord(number, versions))
        worker = worker._replace(
            central=jnp.asarray(new), since=jnp.int32(number + 1), exchanges=jnp.int32(done + 1)
        )
        return ReplicaState(worker, result.change)

    def _meet(self, mine: np.ndarray, done: int) -> dict[int, PeerVector | None]:
        """Publish version `done` + 1 -> what is new of each neighbour."""
        version = done + 1
        if self.replayed is not None:
            self.peers.publish(mine, version, self.replayed.reads_before(version))
            wanted = self.replayed.exchange(done).versions
            return {r: self.peers.repeat(r, v) if v is not None else None for r, v in wanted.items()}
        self.peers.publish(mine, version)
        return {rank: self._read(rank, version) for rank in self._neighbours(done)}

    def _read(self, rank: int, version: int) -> PeerVector | None:
        bound = self.config.staleness
        if bound is None:
            found = self.peers.read(rank, self._seen[rank] + 1)
        else:
            self._at(f"waiting for rank {rank}", version)
            found = self.peers.wait_for(rank, version - bound, exact=bound == 0)
            if found.version <= self._seen[rank]:
                return None
        if found is not None:
            self._seen[rank] = found.version
        return found

    def _neighbours(self, done: int) -> list[int]:
        return neighbours(self.config.topology, self.ranks.rank, self.ranks.size, done, self._seed)


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    check(config, agent, replay)
    return Gossip(config, env, agent, replay, total_env_steps)
