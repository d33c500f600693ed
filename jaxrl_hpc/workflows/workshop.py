"""What runs the workers of a parameter server: roles, programs, chunks.

At first a process can only be looked at (as `evaluate` does); `connect` makes it a worker or a server of its
job, `open` gives it the parameters. A chunk is a number of exchanges, whoever makes them. At its end all
workers meet: nothing is under way then, and what is kept for all can be saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.circulation import Circulation
from jaxrl_hpc.comm.counter import Counter
from jaxrl_hpc.comm.exchange import Exchange, Settings, Windowed
from jaxrl_hpc.comm.packing import Packing
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.servers import Client, Server
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.comm.windows import Window
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Agent, Array, Metrics, PyTree
from jaxrl_hpc.workflows import schemes
from jaxrl_hpc.workflows.chunks import Chunk
from jaxrl_hpc.workflows.meeting import reconcile
from jaxrl_hpc.workflows.schedules import Entry, Recorder, Replayed, file_of
from jaxrl_hpc.workflows.worker import ALONE, Own, Result, Shared, State, Worker

FOREVER = 1e9  # seconds


class Workshop:
    """The workflow's functions."""

    def __init__(
        self,
        config: Any,
        make_worker: Callable[[PyTree], Worker],
        agent: Agent,
        several: int,
        warmup_steps: int,
        per_exchange: int,
        total_env_steps: int,
    ) -> None:
        self.config, self.agent, self.several = config, agent, several
        self.warmup_steps, self.per_exchange, self.total = warmup_steps, per_exchange, total_env_steps
        self._make_worker = make_worker
        self._worker: Worker | None = None
        self.ranks = Ranks()  # of the workers
        self.number = 0  # of this worker
        self.exchange: Exchange
        self.client: Client | None = None  # the same, if there are servers
        self.watchdog: Watchdog
        self.recorder: Recorder | None = None
        self.turns: list[int] | None = None  # replayed: the exchanges that are this worker's
        self.claims: Counter
        self.circulation: Circulation | None = None
        self._programs: dict[str, Any] = {}
        self._names: list[str] = []
        self._windows: list[Window] = []

    @property
    def worker(self) -> Worker:
        assert self._worker is not None, "init comes first"
        return self._worker

    def init(self, key: Array, hypers: PyTree) -> State:
        if self._worker is None:
            self._worker = self._make_worker(hypers["agent"])
        return self._worker.init(key, hypers, jnp.int32(self.number), self.several > 1)

    # -- roles ---------------------------------------------------------------

    def connect(self, ranks: Ranks, hypers: PyTree, watchdog: Watchdog) -> bool:
        """Become a worker (True) or a server of the job; together with all ranks."""
        config, serving = self.config, self.config.serving
        workers = ranks.size - serving
        if workers < 1 or (config.workers and config.workers != workers):
            wanted = f"workflow.workers={config.workers or '1 or more'}"
            wanted += f" and workflow.servers={serving}" if serving else ""
            raise UserError(f"{wanted} do not fit a job of {ranks.size} rank(s): start as many")
        self.watchdog, self.number = watchdog, min(ranks.rank, workers - 1)
        self._worker = self._make_worker(hypers["agent"])
        self.everyone = ranks.communicator("workflow parameter_server")
        works = ranks.rank < workers
        if ranks.size > 1:
            self.ranks = Ranks(ranks.comm.Split(0 if works else 1, ranks.rank))
        self.settings = Settings(
            stored=self.worker.scheme.packing.nbytes,
            change=schemes.change_bytes(self.worker.scheme),
            combine=self.worker.scheme.combine(hypers["agent"], self._progress),
            max_lag=config.max_lag,
            seconds=config.deadline_seconds or FOREVER,
            ordered=False,
        )
        return works

    def _progress(self, number: int) -> float:
        """Of the run after exchange `number`."""
        return (self.warmup_steps + (number + 1) * self.per_exchange) / self.total

    def describe(self) -> str:
        workers = f"{self.ranks.size} worker{'s' if self.ranks.size > 1 else ''}"
        servers = f" and {self.config.serving} server(s)" if self.config.serving else ""
        return f"{workers}{servers}, rule {self.config.rule}"

    def server(self, folder: Path, record: bool, replayed: str) -> Server:
        """For ranks that serve: the shard of this one."""
        shard, schedule = self.ranks.rank, None
        if replayed:
            schedule = Replayed(file_of(replayed, shard), 0)
        recorder: list[Recorder] = []

        def note(worker: int, number: int, used: bool) -> None:
            if record and not recorder:
                recorder.append(Recorder(file_of(folder, shard), number))
            if recorder:
                recorder[0].add(Entry(worker, number, number, int(used)))
                recorder[0].flush()

        def turn() -> int | None:
            if schedule is None:
                return None
            schedule.position = server.number
            return schedule.next().actor

        server = Server(self.everyone, shard, self.config.servers, self.settings, note, turn)
        return server

    def open(self, state: State, folder: Path, record: bool, replayed: str) -> None:
        """Parameters to where all workers find them; what is needed for schedules."""
        config, comm = self.config, self.ranks.communicator("workflow parameter_server")
        if (record or replayed) and config.rule == "hogwild":
            raise UserError("run.record_schedule: hogwild's stores race by design and cannot be repeated")
        self.settings = self.settings._replace(ordered=bool(record or replayed))
        if config.rule == "server":
            servers = list(range(self.ranks.size, self.ranks.size + config.servers))
            self.client = Client(self.everyone, servers, self.settings, self.watchdog)
            self.exchange = self.client
        else:
            self.exchange = Windowed(comm, config.rule, self.settings)
        self._windows = [Window(comm, Counter.NBYTES)]
        self.claims = Counter(self._windows[0], 0, 0)
        if self.ranks.first:
            data = schemes.bytes_of(self.worker.scheme, state.shared.central)
            self.exchange.load(data, int(state.shared.number))
        if replayed:
            self.turns = self._turns(replayed)
        if record and config.rule != "server":
            self.recorder = Recorder(file_of(folder, self.number), int(state.own.exchanges))
        if config.replay == "global":
            self.circulation = Circulation(comm, self._unrolls.nbytes, self.watchdog)
            self.circulation.begin(int(state.shared.number))
        self.ranks.barrier()

    def _turns(self, replayed: str) -> list[int]:
        if self.config.rule == "server":
            schedule = Replayed(file_of(replayed, 0), 0)
            if schedule.actors() > self.ranks.size:
                raise UserError(f"run.replay_schedule: start {schedule.actors()} workers, as {replayed} had")
            return [place for place, entry in enumerate(schedule.entries) if entry.actor == self.number]
        return [entry.version for entry in Replayed(file_of(replayed, self.number), 0).entries]

    def asked(self) -> tuple[int, int]:
        """A signal that a server got, and its rank."""
        return self.client.signal if self.client else (0, 0)

    def close(self, finished: bool) -> None:
        """The run is over; together with all workers."""
        if self.client:
            self.client.finished = finished
        self.exchange.close()
        for window in self._windows:
            window.free()

    # -- programs ------------------------------------------------------------

    def compile(self, state: State) -> None:
        """Programs for a state of these shapes."""
        worker, learning = self.worker, self.worker.learning
        one = learning.unroll_shape(state.own.state.learner, 1)
        rated: PyTree = ()
        if worker.settings.priorities:
            rated = jax.ShapeDtypeStruct(one.last.shape, jnp.float32)
        names = jax.eval_shape(
            lambda s, u: learning.iterate(s, {}, [u], ALONE)[1], state.own.state, (one, rated)
        )
        self._names = sorted(names)
        sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in self._names}
        steps = jax.ShapeDtypeStruct((), jnp.int32)
        several = jax.tree.map(lambda x: jax.ShapeDtypeStruct((worker.iterations, *x.shape), x.dtype), one)
        self._unrolls = Packing.of(several)
        self._programs["work"] = (
            jax.jit(worker.work, donate_argnums=(0, 1)).lower(state.own, sums, steps).compile()
        )
        if worker.warmup_iterations:
            self._programs["warmup"] = jax.jit(worker.warmup, donate_argnums=0).lower(state.own).compile()
        if worker.everyone:
            self._programs["absorb"] = (
                jax.jit(worker.absorb, donate_argnums=0).lower(state.own, several).compile()
            )

    def warmup(self, state: State) -> State:
        return state._replace(own=self._programs["warmup"](state.own))

    def step(self, state: State, exchanges: int) -> tuple[State, Metrics]:
        """So many exchanges of all workers together."""
        begin, own = int(state.shared.number), state.own
        end = begin + exchanges
        chunk = Chunk({name: jnp.float32(0) for name in self._names})
        if self.ranks.first:
            self.claims.replace(begin)
        self.ranks.barrier()
        for turn in self._shares(begin, end):
            self.watchdog.at("working", int(own.since))
            own = self._exchange(own, turn, chunk)
        waited = time.perf_counter()
        self.watchdog.at("waiting for the other workers at the end of a chunk", end)
        self.ranks.barrier()
        chunk.idle += time.perf_counter() - waited
        own = self._meet(self._absorb(own, end))
        central = schemes.central_of(self.worker.scheme, self.exchange.read())
        if self.recorder:
            self.recorder.flush()
        step = getattr(central, "step", None)  # of the optimiser at the server
        mine = int(own.state.learner.step)
        updates = int(step) if step is not None else int(self.ranks.add(np.array([mine]))[0])
        shared = Shared(central, jnp.int32(end), jnp.int32(updates))
        metrics = chunk.metrics(self.ranks, self.worker.iterations)
        return State(shared, own), metrics | {"updates": jnp.int32(updates)}

    def _meet(self, own: Own) -> Own:
        """All workers go on with the running statistics of all."""
        known = reconcile(self.ranks, own.state.learner.aux, own.met)
        state = own.state._replace(learner=own.state.learner._replace(aux=known))
        return own._replace(state=state, met=jax.tree.map(jnp.copy, known))

    def _shares(self, begin: int, end: int) -> Iterator[int | None]:
        """This worker's exchanges of a chunk: as many as it gets to, or those of a schedule."""
        if self.turns is None:
            while self.claims.add(1) < end:
                yield None
            return
        mine = [turn for turn in self.turns if begin <= turn < end]
        if int(self.ranks.add(np.array([len(mine)]))[0]) != end - begin:
            raise UserError(
                f"run.replay_schedule: it does not have exchanges {begin} to {end}: replay a run of the same "
                "config with as many workers"
            )
        yield from mine

    def _exchange(self, own: Own, turn: int | None, chunk: Chunk) -> Own:
        """Work, give the change, get what is there now."""
        began = time.perf_counter()
        since = int(own.since)
        steps = np.int32(self.warmup_steps + since * self.per_exchange)
        result: Result
        own, result = self._programs["work"](own, chunk.sums, steps)
        change = schemes.change_of(self.worker.scheme, result.change)
        worked = time.perf_counter()
        answer = self.exchange.swap(change, since, turn)
        chunk.idle += time.perf_counter() - worked
        chunk.busy += worked - began
        chunk.add(answer.number - since, answer.used, result)
        if self.recorder:
            entry = Entry(self.number, int(own.exchanges), answer.number, int(answer.used))
            self.recorder.add(entry)
        if self.circulation:
            data = self._unrolls.empty()
            self._unrolls.pack(result.unrolls, data)
            self.circulation.give(answer.number, data)
            own = self._absorb(own, answer.number)
        return own._replace(
            central=schemes.central_of(self.worker.scheme, answer.data),
            since=jnp.int32(answer.number + 1),
            exchanges=own.exchanges + 1,
        )

    def _absorb(self, own: Own, before: int) -> Own:
        """Others' unrolls of exchanges before this one."""
        if self.circulation:
            for data in self.circulation.take(before):
                own = self._programs["absorb"](own, self._unrolls.unpack(data))
        return own
