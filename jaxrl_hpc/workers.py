"""The workers of a job with a parameter server: the interface of `Fleet` on top of workflows/workshop.py.

One seed per job. Rank 0 evaluates and writes. A checkpoint is made between chunks, when nothing is under way:
what is kept for all, and each worker by its number. With more workers than before the new ones start fresh
copies from the present parameters; the state of workers that are not there any more is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.build import Parts
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config
from jaxrl_hpc.fleet import Lane
from jaxrl_hpc.io.checkpoint import Checkpointer
from jaxrl_hpc.io.shards import ShardedCheckpointer, shard_folder
from jaxrl_hpc.job_fleet import JobFleet
from jaxrl_hpc.types import PyTree
from jaxrl_hpc.workflows.workshop import Workshop


class WorkerFleet(JobFleet):
    """The workers, and what ranks that serve do."""

    kind = "a parameter server"

    def __init__(self, config: Config, parts: Parts, lanes: Sequence[Lane], episodes: int) -> None:
        super().__init__(config, parts, lanes, episodes)
        self.shop: Workshop = self.programs
        self._gone = False

    def join(self, ranks: Ranks, watchdog: Watchdog, folder: Path) -> bool:
        works = self.shop.connect(ranks, self._arguments(self.groups[0])[1], watchdog)
        self.ranks, self.watchdog, self.folder = self.shop.ranks, watchdog, folder
        return works

    def act(self, signal: Any) -> bool:
        """What a rank that serves does until worker 0 sends it home -> whether the run is finished."""
        assert self.watchdog is not None
        run = self.config.run
        server = self.shop.server(self.folder, run.record_schedule, run.replay_schedule)
        finished = server.serve(self.watchdog, signal)
        self.watchdog.at("going home", server.number, armed=False)
        return finished

    def _open(self, state: PyTree) -> None:
        run = self.config.run
        self.shop.open(state, self.folder, run.record_schedule, run.replay_schedule)

    def place(self) -> str:
        return self.shop.describe()

    def asked(self) -> tuple[int, int]:
        return self.shop.asked()

    def rest(self, finished: bool) -> None:
        """The run is over, and servers go home."""
        if not self._gone:
            self._gone = True
            self.shop.close(finished)

    def checkpointer(self, directory: Path, keep: int = 2) -> Any:
        return WorkerStore(self, directory, keep)


class WorkerStore:
    """Checkpoints: what is kept for all, and a part per worker."""

    def __init__(self, fleet: WorkerFleet, directory: Path, keep: int) -> None:
        self.fleet, self.directory, self.keep = fleet, directory, keep
        self._files = ShardedCheckpointer(directory, [fleet.ranks.rank], fleet.ranks, keep)
        self._shared = ShardedCheckpointer(directory, [], fleet.ranks, keep)

    def latest(self) -> int | None:
        return self._files.latest()

    def wait(self) -> None:
        """Saves are not in the background."""

    def save(self, step: int, states: Sequence[PyTree], host: dict[str, Any]) -> None:
        (state,) = states
        self._files.save(step, state.shared, {self.fleet.ranks.rank: state.own}, host)

    def restore(self, shapes: Sequence[PyTree]) -> tuple[int, list[PyTree], dict[str, Any]]:
        """A worker without a part of this step begins anew, with the present parameters."""
        (shape,) = shapes
        step, shared, _, host = self._shared.restore(shape.shared, ())
        mine = Checkpointer(shard_folder(self.directory, self.fleet.ranks.rank), self.keep + 1)
        if step in mine.steps():
            own = self.fleet.ranks.all_succeed(lambda: mine.restore(shape.own, step)[1])
        else:
            fresh = self.fleet.ranks.all_succeed(self.fleet.fresh)
            own = fresh.own._replace(central=shared.central, since=shared.number)
            if self.fleet.parts.workflow.warmup:
                own = self.fleet.parts.workflow.warmup(fresh._replace(own=own)).own
        return step, [shape._replace(shared=shared, own=own)], host
