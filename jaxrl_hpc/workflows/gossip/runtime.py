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
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.params.peers import Peers, PeerVector
from jaxrl_hpc.comm.ranks import world
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
from jaxrl_hpc.workflows.gossip.config import Config, check, check_ranks
from jaxrl_hpc.workflows.gossip.replica import Consensus, GossipState, ReplicaState, replicas
from jaxrl_hpc.workflows.gossip.schedule import ExchangeRecord, GossipRecorder, GossipReplay
from jaxrl_hpc.workflows.gossip.topology import average, neighbours
from jaxrl_hpc.workflows.parameter_server.chunk_metrics import ChunkMetrics
from jaxrl_hpc.workflows.parameter_server.worker import WorkerPrograms
from jaxrl_hpc.workflows.parameter_server.worker_runtime import WorkerRuntime
from jaxrl_hpc.workflows.rank_store import RankStore


class Gossip(WorkerRuntime):
    """The workflow."""

    title = "gossip"
    members = "ranks"

    def __init__(
        self, config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int
    ) -> None:
        size = world().size
        check_ranks(config, size)
        super().__init__(config, env, agent, replay, total_env_steps, config.local_updates, size)
        self.config = config
        self.exchanges = 1 if config.staleness is None else size  # of an iteration
        self.steps_per_iteration = self.exchanges * self.steps_per_exchange
        self.peers: Peers
        self.recorder: GossipRecorder | None = None
        self.replayed: GossipReplay | None = None
        self._seed = 0  # of random neighbours
        self._seen: list[int] = []  # newest version of each rank that was averaged
        self._num_params = 0

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
        self._check_seeds(job)
        self.job, self.ranks = job, job.ranks
        self._seed = int(np.asarray(jax.random.key_data(job.key)).ravel()[-1])
        return Role(True, self.ranks)

    def describe(self) -> str:
        return f"{self.ranks.size} rank{'s' if self.ranks.size > 1 else ''}, {self.config.topology} gossip"

    def start(self, state: GossipState) -> GossipState:
        """Publish the replicas and connect the ranks."""
        if self.job is None:
            return state
        job, comm = self.job, self.ranks.communicator("workflow gossip")
        done = [int(n) for n in self.ranks.everyone(int(state.own.worker.exchanges))[:, 0]]
        degree = len(self._neighbours(0))
        if job.replay_schedule:
            self.replayed = GossipReplay(job.replay_schedule, self.ranks.rank, done, degree)
        if job.record_schedule:
            self.recorder = GossipRecorder(job.folder, self.ranks.rank, done[self.ranks.rank], degree)
        self.peers = Peers(comm, self.worker.scheme.size, self.deadline)
        self.peers.publish(np.asarray(state.own.published), done[self.ranks.rank])
        self._seen = done  # parameters published before this job count as averaged
        self._share_claims(comm)
        self.ranks.barrier()
        return state

    def _disconnect(self, finished: bool) -> None:
        self.peers.close()

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
        self._compile_worker(state.own.worker)
        install = self.worker.scheme.install
        self._programs["install"] = jax.jit(
            lambda learner, mean: jax.tree.map(jnp.copy, install(learner, mean))
        )

    def warmup(self, state: GossipState) -> GossipState:
        return state._replace(own=state.own._replace(worker=self._programs["warmup"](state.own.worker)))

    # -- a chunk -------------------------------------------------------------

    def step(self, state: GossipState, iterations: int) -> tuple[GossipState, Metrics]:
        begin, own = int(state.shared.iteration) * self.exchanges, state.own
        end = begin + iterations * self.exchanges
        chunk = self._begin_chunk(begin)
        for number in self._shares(begin, end):
            own = self._exchange(own, number, chunk)
        self._end_chunk(end, chunk)
        if self.recorder:
            self.recorder.flush()
        worker = self._merge_statistics(own.worker)
        mean, distance = self._consensus(np.asarray(worker.central))
        updates = int(self.ranks.add(np.array([int(worker.state.learner.step)]))[0])
        learned = self._programs["install"](worker.state.learner, mean)
        learned = learned._replace(progress=jnp.float32(self._steps(end) / self.total_env_steps))
        metrics = self._metrics(chunk, worker)
        metrics["exchanges_alone"] = metrics.pop("dropped_changes")  # no neighbour had new parameters
        metrics["consensus_distance"] = jnp.float32(distance)
        shared = Consensus(learned, state.shared.iteration + iterations, jnp.int32(updates))
        return GossipState(shared, own._replace(worker=worker)), metrics | {"updates": jnp.int32(updates)}

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
            self._check_repeated(mine, begin, end)
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
        self.watchdog.at("working", done, often=True)
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
            self.watchdog.at(f"waiting for rank {rank}", version, often=True)
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
