"""The learners of a job whose other ranks act: the interface of `Fleet` on top of workflows/engine.py.

One seed per job. Rank 0 evaluates and writes; all learners take every step together. A checkpoint is one
moment of the whole job: learner, replay, the actors' environment copies by actor number, and the unrolls that
were sent and not yet learned from. With fewer actors than before, the states of the others are kept for
later; new actors start fresh copies with keys of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_hpc.build import Parts
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config
from jaxrl_hpc.fleet import Lane
from jaxrl_hpc.hosted import compare_replicas
from jaxrl_hpc.io.checkpoint import Checkpointer
from jaxrl_hpc.io.shards import ShardedCheckpointer
from jaxrl_hpc.io.trace import Trace
from jaxrl_hpc.job_fleet import JobFleet
from jaxrl_hpc.types import PyTree
from jaxrl_hpc.workflows.engine import Engine
from jaxrl_hpc.workflows.kept import Kept


class Crew(JobFleet):
    """The learners, and what ranks that act do."""

    kind = "actors on ranks of their own"

    def __init__(self, config: Config, parts: Parts, lanes: Sequence[Lane], episodes: int) -> None:
        super().__init__(config, parts, lanes, episodes)
        self.engine: Engine = self.programs
        self.job = Ranks()  # all ranks
        self.seconds_before = 0.0  # of earlier jobs of the run
        self.kept: Kept | None = None  # of the checkpoint that is being continued
        self.last: Kept | None = None  # of actors that have gone home
        self.left_out = np.zeros(2)  # unrolls of the whole run that were dropped and lost

    def join(self, ranks: Ranks, watchdog: Watchdog, folder: Path) -> bool:
        """Become part of the job, together with all ranks -> whether this one learns."""
        self.job = ranks
        roles = self.engine.connect(ranks, jax.eval_shape(lambda: self._arguments(self.groups[0]))[1])
        self.ranks, self.watchdog, self.folder = self.engine.ranks, watchdog, folder
        return roles.learns

    def act(self, signal: Any) -> bool:
        """What a rank that acts does until its learner sends it home -> whether the run is finished."""
        assert self.watchdog is not None
        trace = Trace(self.job.rank, self.config.run.profile)
        actor = self.engine.actor(self.watchdog, trace, bool(self.config.run.replay_schedule))
        actor.begin(self._key())
        finished = actor.serve(signal)
        self.watchdog.at("going home", actor.state.sequence, armed=False)
        self.engine.close(finished)
        if self.config.run.profile:
            trace.write(self.folder)
        self.job.barrier()
        return finished

    def _open(self, state: PyTree) -> None:
        assert self.watchdog is not None
        run = self.config.run
        self.engine.open(
            state,
            self.kept,
            self.watchdog,
            self.folder,
            record=run.record_schedule,
            replayed=run.replay_schedule,
            seconds_before=self.seconds_before,
        )

    def per_lane(self, results: Sequence[PyTree]) -> list[PyTree]:
        """Results on the host; those of training have been checked for learners that differ."""
        host = super().per_lane(results)
        for lane in host:
            if isinstance(lane, dict):
                compare_replicas(self.engine.layout, lane.pop("replicas"))
        return host

    def place(self) -> str:
        return self.engine.roles.describe()

    def asked(self) -> tuple[int, int]:
        """(signal, rank): a request to stop that an actor got; zeros if none."""
        return self.engine.mailbox.signal if self.engine.mailbox else (0, 0)

    def rest(self, finished: bool) -> None:
        """The run is over: actors' last states are kept for the checkpoint, and they go home."""
        if self.last is None:
            self.last = self.snapshot()
            self.left_out = self.ranks.add(np.array([self.last.dropped, self.last.lost]))
            self.engine.close(finished)
            self.job.barrier()  # actors' traces are there

    def remarks(self) -> dict[str, Any]:
        roles, (dropped, lost) = self.engine.roles, self.left_out
        return {
            "learners": roles.learners,
            "actors": roles.actors,
            "dropped_unrolls": int(dropped),  # too old to be used
            "lost_unrolls": int(lost),  # by the transport's rule on full
        }

    def snapshot(self) -> Kept:
        if self.last is not None:
            return self.last
        mailbox = self.engine.mailbox
        return mailbox.snapshot() if mailbox else Kept.nothing(self.engine.acting)

    def checkpointer(self, directory: Path, keep: int = 2) -> Any:
        return CrewStore(self, directory, keep)


class CrewStore:
    """Checkpoints of a crew: learners' states (io/shards.py), and beside them actors and messages."""

    def __init__(self, crew: Crew, directory: Path, keep: int) -> None:
        self.crew, number = crew, crew.ranks.rank
        self._files = ShardedCheckpointer(directory, [number], crew.ranks, keep)
        self._actors = Checkpointer(directory / f"actors-{number:04d}", keep + 1)

    def latest(self) -> int | None:
        return self._files.latest()

    def wait(self) -> None:
        """Saves are not in the background."""

    def save(self, step: int, states: Sequence[PyTree], host: dict[str, Any]) -> None:
        """Actors first: the learners' manifest is the commit mark."""
        kept, (state,) = self.crew.snapshot(), states
        arrays = {name: value for name, value in kept._asdict().items() if isinstance(value, np.ndarray)}
        numbers = {name: int(value) for name, value in kept._asdict().items() if name not in arrays}
        self.crew.ranks.all_succeed(lambda: self._actors.save(step, arrays, numbers))
        self._files.save(step, state._replace(replay=()), {self.crew.ranks.rank: state.replay}, host)

    def restore(self, shapes: Sequence[PyTree]) -> tuple[int, list[PyTree], dict[str, Any]]:
        (shape,) = shapes
        step, shared, parts, host = self._files.restore(shape._replace(replay=()), shape.replay)
        arrays: dict[str, Any] = {}
        numbers: dict[str, Any] = {}
        self.crew.seconds_before = host["wall_seconds"]
        if self.crew.watchdog is not None:  # to train on, not only to look at the learner
            _, leaves, numbers = self.crew.ranks.all_succeed(lambda: self._actors.load(step))
            arrays = {name: leaves[f"['{name}']"] for name in Kept._fields if name not in numbers}
            self.crew.kept = Kept(**arrays, **numbers)
        return step, [shared._replace(replay=parts[self.crew.ranks.rank])], host
