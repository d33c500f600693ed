"""Workers, and servers if the rule has them, as a Workflow.

Before `join`, a process can only inspect shapes (as `evaluate` does); `join` makes it a worker or a server of
its job, `start` stores the parameters centrally. A chunk is a number of exchanges, by any workers. At its end
all workers synchronise: nothing is in flight, and the shared parameters can be saved. One seed per job; rank
0 evaluates and writes. A run may continue with more workers, which start fresh copies from the current
parameters, or with fewer, dropping the states of the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.buffers import BufferLayout
from jaxrl_hpc.comm.params.exchange import Exchange, ExchangeSettings, WindowExchange
from jaxrl_hpc.comm.params.exchange_log import ExchangeLog
from jaxrl_hpc.comm.params.server import Client, Server
from jaxrl_hpc.comm.ranks import Ranks, world
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
    StopRequest,
    Store,
    Workflow,
)
from jaxrl_hpc.workflows.actor_learner import learner
from jaxrl_hpc.workflows.actor_learner.arrival_log import (
    ArrivalEntry,
    ArrivalRecorder,
    ArrivalReplay,
    file_of,
)
from jaxrl_hpc.workflows.parameter_server import exchange_schemes
from jaxrl_hpc.workflows.parameter_server.chunk_metrics import ChunkMetrics
from jaxrl_hpc.workflows.parameter_server.config import Config, check
from jaxrl_hpc.workflows.parameter_server.worker import (
    CentralState,
    ParameterServerState,
    WorkerPrograms,
    WorkerState,
    WorkResult,
)
from jaxrl_hpc.workflows.parameter_server.worker_runtime import WorkerRuntime
from jaxrl_hpc.workflows.rank_store import RankStore


class ParameterServer(WorkerRuntime):
    """The workflow."""

    title = "a parameter server"
    members = "workers"

    def __init__(
        self, config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int
    ) -> None:
        self.config = config
        self.num_workers = config.acting_ranks(world().size)
        super().__init__(config, env, agent, replay, total_env_steps, config.local_updates, self.num_workers)
        self.steps_per_iteration = self.steps_per_exchange  # an iteration is an exchange
        self.number = 0  # of this worker
        self.exchange: Exchange
        self.client: Client | None = None  # the same, if there are servers
        self.recorder: ArrivalRecorder | None = None
        self.turns: list[int] | None = None  # replayed: the exchanges that are this worker's
        self.exchange_log: ExchangeLog | None = None

    def _make_worker(self, hypers: PyTree) -> WorkerPrograms:
        config = self.config
        shape: LearnerState = jax.eval_shape(self.agent.init, jax.random.key(0), hypers)
        if config.optimiser == "worker":
            scheme = exchange_schemes.deltas(self.agent, shape)
        else:
            programs = learner.LearnerPrograms(self.sizes, self.env, self.agent, self.replay)
            scheme = exchange_schemes.gradients(self.agent, shape, programs.grads_shape(shape))
        everyone = config.replay == "global"
        return WorkerPrograms(
            self.sizes, self.env, self.replay, scheme, config.local_updates, self.warmup_iterations, everyone
        )

    def init(self, key: Array, hypers: PyTree) -> ParameterServerState:
        if self._worker is None:
            self._worker = self._make_worker(hypers["agent"])
        worker, number, several = self._worker, jnp.int32(self.number), self.num_workers > 1
        init = jax.jit(lambda key, hypers: worker.init(key, hypers, number, several))
        state: ParameterServerState = init(key, hypers)
        return state

    def learner(self, state: ParameterServerState) -> LearnerState:
        """The learner with the central parameters."""
        found = self.worker.scheme.install(state.own.state.learner, state.shared.central)
        steps = self.warmup_steps + state.shared.number * self.steps_per_iteration
        return found._replace(progress=jnp.float32(steps / self.total_env_steps))

    def counters(self, state: ParameterServerState) -> dict[str, Array]:
        shared = state.shared
        return {
            "iteration": shared.number,
            "env_steps": self.warmup_steps + shared.number * self.steps_per_iteration,
            "updates": shared.updates,
        }

    def fresh(self) -> ParameterServerState:
        assert self.job is not None, "join comes first"
        return self.init(self.job.key, self.job.hypers)

    # -- roles ---------------------------------------------------------------

    def join(self, job: Job) -> Role:
        """Become a worker or a server of the job."""
        config, serving, ranks = self.config, self.config.serving, job.ranks
        self._check_seeds(job)
        workers = ranks.size - serving
        if workers < 1 or (config.workers and config.workers != workers):
            wanted = f"workflow.workers={config.workers or '1 or more'}"
            wanted += f" and workflow.servers={serving}" if serving else ""
            raise UserError(f"{wanted} do not fit a job of {ranks.size} rank(s): start as many")
        self.job, self.number = job, min(ranks.rank, workers - 1)
        self._worker = self._make_worker(job.hypers["agent"])
        self.everyone = ranks.communicator("workflow parameter_server")
        works = ranks.rank < workers
        if ranks.size > 1:
            self.ranks = Ranks(ranks.comm.Split(0 if works else 1, ranks.rank))
        assert self.worker.scheme.combine is not None
        self.settings = ExchangeSettings(
            stored=self.worker.scheme.packing.nbytes,
            change=exchange_schemes.change_bytes(self.worker.scheme),
            combine=self.worker.scheme.combine(job.hypers["agent"], self._progress),
            max_lag=config.max_lag,
            seconds=self.deadline,
            ordered=False,
        )
        return Role(works, self.ranks)

    def _progress(self, number: int) -> float:
        """Progress of the run after exchange `number`."""
        return self._steps(number + 1) / self.total_env_steps

    def describe(self) -> str:
        workers = f"{self.ranks.size} worker{'s' if self.ranks.size > 1 else ''}"
        servers = f" and {self.config.serving} server(s)" if self.config.serving else ""
        return f"{workers}{servers}, rule {self.config.rule}"

    def assist(self, stop: StopRequest) -> bool:
        """Serve the shard of this rank until worker 0 releases it."""
        assert self.job is not None, "join comes first"
        server = self._server(self.job)
        finished = server.serve(self.watchdog, stop)
        self.watchdog.at("finishing", server.number, armed=False)
        return finished

    def _server(self, job: Job) -> Server:
        shard, schedule = self.ranks.rank, None
        if job.replay_schedule:
            schedule = ArrivalReplay(file_of(job.replay_schedule, shard), 0)
        recorder: list[ArrivalRecorder] = []

        def note(worker: int, number: int, used: bool) -> None:
            if job.record_schedule and not recorder:
                recorder.append(ArrivalRecorder(file_of(job.folder, shard), number))
            if recorder:
                recorder[0].add(ArrivalEntry(worker, number, number, int(used)))
                recorder[0].flush()

        def turn() -> int | None:
            if schedule is None:
                return None
            schedule.position = server.number
            return schedule.next().actor

        server = Server(self.everyone, shard, self.config.servers, self.settings, note, turn)
        return server

    def start(self, state: ParameterServerState) -> ParameterServerState:
        """Store the parameters centrally and connect the workers."""
        if self.job is None:
            return state
        config, comm = self.config, self.ranks.communicator("workflow parameter_server")
        folder, record, replayed = self.job.folder, self.job.record_schedule, self.job.replay_schedule
        if (record or replayed) and config.rule == "hogwild":
            raise UserError("run.record_schedule: hogwild's stores race by design and cannot be repeated")
        self.settings = self.settings._replace(ordered=bool(record or replayed))
        if config.rule == "server":
            servers = list(range(self.ranks.size, self.ranks.size + config.servers))
            self.client = Client(self.everyone, servers, self.settings, self.watchdog)
            self.exchange = self.client
        else:
            self.exchange = WindowExchange(comm, config.rule, self.settings)
        self._share_claims(comm)
        if self.ranks.first:
            data = exchange_schemes.bytes_of(self.worker.scheme, state.shared.central)
            self.exchange.load(data, int(state.shared.number))
        if replayed:
            self.turns = self._turns(replayed)
        if record and config.rule != "server":
            self.recorder = ArrivalRecorder(file_of(folder, self.number), int(state.own.exchanges))
        if config.replay == "global":
            self.exchange_log = ExchangeLog(comm, self._unrolls.nbytes, self.watchdog)
            self.exchange_log.begin(int(state.shared.number))
        self.ranks.barrier()
        return state

    def _turns(self, replayed: str) -> list[int]:
        if self.config.rule == "server":
            schedule = ArrivalReplay(file_of(replayed, 0), 0)
            if schedule.actors() > self.ranks.size:
                raise UserError(f"run.replay_schedule: start {schedule.actors()} workers, as {replayed} had")
            return [place for place, entry in enumerate(schedule.entries) if entry.actor == self.number]
        return [entry.version for entry in ArrivalReplay(file_of(replayed, self.number), 0).entries]

    def stop_request(self) -> tuple[int, int]:
        return self.client.signal if self.client else (0, 0)

    def _disconnect(self, finished: bool) -> None:
        """Release the servers too."""
        if self.client:
            self.client.finished = finished
        self.exchange.close()

    def store(self, directory: Path, keep: int) -> Store:
        return RankStore(self.ranks, directory, keep, own="own", new=self._new_worker)

    def _new_worker(self, state: ParameterServerState) -> WorkerState:
        """A worker that the checkpoint does not have: fresh copies, the present parameters."""
        fresh = self.fresh()
        own = fresh.own._replace(central=state.shared.central, since=state.shared.number)
        return self.warmup(fresh._replace(own=own)).own if self.warmup_steps else own

    # -- programs ------------------------------------------------------------

    def compile(self, state: ParameterServerState) -> None:
        """Programs for a state of these shapes."""
        worker = self.worker
        self._compile_worker(state.own)
        one = worker.learning.unroll_shape(state.own.state.learner, 1)
        several = jax.tree.map(lambda x: jax.ShapeDtypeStruct((worker.iterations, *x.shape), x.dtype), one)
        self._unrolls = BufferLayout.of(several)
        if worker.everyone:
            self._programs["absorb"] = (
                jax.jit(worker.absorb, donate_argnums=0).lower(state.own, several).compile()
            )

    def warmup(self, state: ParameterServerState) -> ParameterServerState:
        return state._replace(own=self._programs["warmup"](state.own))

    def step(self, state: ParameterServerState, exchanges: int) -> tuple[ParameterServerState, Metrics]:
        """A chunk of exchanges, by any workers."""
        begin, own = int(state.shared.number), state.own
        end = begin + exchanges
        chunk = self._begin_chunk(begin)
        for turn in self._shares(begin, end):
            self.watchdog.at("working", int(own.since))
            own = self._exchange(own, turn, chunk)
        self._end_chunk(end, chunk)
        own = self._merge_statistics(self._absorb(own, end))
        central = exchange_schemes.central_of(self.worker.scheme, self.exchange.read())
        if self.recorder:
            self.recorder.flush()
        step = getattr(central, "step", None)  # of the optimiser at the server
        mine = int(own.state.learner.step)
        updates = int(step) if step is not None else int(self.ranks.add(np.array([mine]))[0])
        shared = CentralState(central, jnp.int32(end), jnp.int32(updates))
        metrics = self._metrics(chunk, own)
        return ParameterServerState(shared, own), metrics | {"updates": jnp.int32(updates)}

    def _shares(self, begin: int, end: int) -> Iterator[int | None]:
        """This worker's exchanges of a chunk: claimed from a counter, or those of a schedule."""
        if self.turns is None:
            while self.claims.add(1) < end:
                yield None
            return
        mine = [turn for turn in self.turns if begin <= turn < end]
        self._check_repeated(mine, begin, end)
        yield from mine

    def _exchange(self, own: WorkerState, turn: int | None, chunk: ChunkMetrics) -> WorkerState:
        """Learn locally, push the change, pull the result."""
        began = time.perf_counter()
        since = int(own.since)
        result: WorkResult
        own, result = self._programs["work"](own, chunk.sums, np.int32(self._steps(since)))
        change = exchange_schemes.change_of(self.worker.scheme, result.change)
        worked = time.perf_counter()
        answer = self.exchange.swap(change, since, turn)
        chunk.idle += time.perf_counter() - worked
        chunk.busy += worked - began
        chunk.add(answer.number - since, answer.used, result)
        if self.recorder:
            entry = ArrivalEntry(self.number, int(own.exchanges), answer.number, int(answer.used))
            self.recorder.add(entry)
        if self.exchange_log:
            data = self._unrolls.empty()
            self._unrolls.pack(result.unrolls, data)
            self.exchange_log.give(answer.number, data)
            own = self._absorb(own, answer.number)
        return own._replace(
            central=exchange_schemes.central_of(self.worker.scheme, answer.data),
            since=jnp.int32(answer.number + 1),
            exchanges=own.exchanges + 1,
        )

    def _absorb(self, own: WorkerState, before: int) -> WorkerState:
        """Add other workers' unrolls of earlier exchanges to the replay."""
        if self.exchange_log:
            for data in self.exchange_log.take(before):
                own = self._programs["absorb"](own, self._unrolls.unpack(data))
        return own


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    check(config, agent, replay)
    return ParameterServer(config, env, agent, replay, total_env_steps)
