"""The loop of one run directory: chunks, metrics, evaluations, checkpoints.

The device works in chunks of iterations. While it computes one chunk, the host writes down what the
chunk before gave; an evaluation is queued behind the chunk it belongs to and fetched later. Nothing
that the host does (logging, evaluating, saving, being killed and resumed) changes a bit of the run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.build import Parts
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config
from jaxrl_hpc.envs.outside.host import outside_counts
from jaxrl_hpc.fleet import Fleet
from jaxrl_hpc.io.metrics import MetricsWriter, NoMetrics, Writer
from jaxrl_hpc.io.progress import Progress
from jaxrl_hpc.io.run import RunDirectory, code_version
from jaxrl_hpc.io.tensorboard import TensorBoardWriter
from jaxrl_hpc.io.trace import Trace
from jaxrl_hpc.io.tracking import make_tracker
from jaxrl_hpc.pictures import draw_run
from jaxrl_hpc.pieces import shares_of
from jaxrl_hpc.rollout import Evaluation
from jaxrl_hpc.schedule import Schedule
from jaxrl_hpc.signals import StopSignals
from jaxrl_hpc.summary import describe, params_hash, spread_over_seeds

FINAL_EVALUATION = -1  # instead of an iteration: start states that no earlier evaluation used


class Stretch(NamedTuple):
    """A part of a run for callers that split runs themselves: from where, how far, what to write down."""

    until: int | None  # environment steps; None: the whole budget
    origin: Callable[[Fleet], tuple[list[Any], dict[str, Any]]] | None  # states and what a checkpoint knows
    describe: Callable[[Trainer, Sequence[Evaluation]], dict[str, Any]]  # more for the summary


class Trainer:
    """One run directory being trained."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        fleet: Fleet,
        run: RunDirectory,
        say: Callable[[str], None],
        stretch: Stretch | None = None,
    ):
        self.config, self.parts, self.fleet, self.run, self.say = config, parts, fleet, run, say
        self.stretch = stretch
        self.schedule = Schedule.of(config, parts, stretch.until if stretch else None)
        self.ranks = fleet.ranks
        self.checkpointer = fleet.checkpointer(run.checkpoints, config.run.keep_checkpoints)
        self.metrics = MetricsWriter(run.path) if self.ranks.first else NoMetrics()
        self.writers: list[Writer] = [self.metrics]
        self.iterations = 0  # after the warm-up
        self.seconds_before = 0.0  # of earlier processes of this run
        self.started = time.perf_counter()
        self.pending: tuple[int, Any, Any] | None = None
        self.progress: Progress
        self.watchdog = Watchdog(self.ranks, run.path / "ranks", 0.0)  # until the caller sets a real one
        self.stopped_by = ""
        self.trace = Trace(self.ranks.rank, config.run.profile)

    # -- state ---------------------------------------------------------------

    def begin(self, resume: bool) -> None:
        """Fresh states, or those of the newest good checkpoint."""
        resumed = resume and self.checkpointer.latest() is not None
        steps_done = None
        if resumed:
            shapes = [self.fleet.state_shape()] * len(self.fleet.groups)
            _, states, host = self.checkpointer.restore(shapes)
            self.fleet.load(states)
            self.iterations, self.seconds_before = host["iterations"], host["wall_seconds"]
            self.metrics.restore(host["metrics"])
            steps_done = self.env_steps
            self.say(f"resumed at {steps_done:,} environment steps from {self.run.checkpoints}")
            if self.parts.env.external:
                mine = {name: number * self.ranks.first for name, number in host["outside"].items()}
                self.say(self.parts.env.host.resume(mine))
        elif self.stretch and self.stretch.origin:
            self.metrics.restore(None)
            states, host = self.stretch.origin(self.fleet)
            self.fleet.load(states)
            self.iterations, self.seconds_before = host["iterations"], host["wall_seconds"]
        else:
            self.metrics.restore(None)
            self.fleet.initialise()
        if self.config.run.tensorboard and self.ranks.first:
            self.writers.append(TensorBoardWriter(self.run.path, steps_done))
        alone = self.ranks.first and not self.stretch  # the mean over a sweep's trials tells nothing
        for name in self.config.run.trackers if alone else ():
            self.writers.append(make_tracker(name, self.run.path, self.config.to_dict(), resumed))
        if self.config.run.profile:
            self.trace.shares = shares_of(self.fleet, self.config.workflow)
        self.started = time.perf_counter()
        self.trace.begin(self.seconds_before)

    @property
    def total_env_steps(self) -> int:
        flow = self.parts.workflow
        return flow.warmup_steps + self.schedule.total * flow.steps_per_iteration

    @property
    def env_steps(self) -> int:
        flow = self.parts.workflow
        return flow.warmup_steps + self.iterations * flow.steps_per_iteration

    @property
    def wall_seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def save(self) -> None:
        """Everything up to now, metrics included, as one checkpoint."""
        self.digest()
        self.watchdog.at("saving", self.iterations // self.schedule.chunk)
        host: dict[str, Any] = {"iterations": self.iterations, "wall_seconds": self.wall_seconds}
        host["outside"] = self.given_up()
        with self.trace.span("saving", env_steps=self.env_steps):
            host["metrics"] = self.metrics.commit()
            self.checkpointer.save(self.iterations, self.fleet.states, host)
            self.checkpointer.wait()

    def given_up(self) -> dict[str, int]:
        """Episodes of outside simulators that were given up on any rank; together with all ranks."""
        mine = outside_counts(self.parts.env)
        total = self.ranks.add(np.array(list(mine.values()))) if mine else ()
        return {name: int(number) for name, number in zip(mine, total, strict=True)}

    # -- metrics -------------------------------------------------------------

    def rows(self, kind: str, iterations: int, values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        flow = self.parts.workflow
        fixed = {
            "iteration": iterations,
            "env_steps": flow.warmup_steps + iterations * flow.steps_per_iteration,
            "kind": kind,
            "wall_seconds": self.wall_seconds,
        }
        return [
            fixed
            | {"seed": lane.seed, "updates": int(value.pop("updates"))}
            | ({"trial": lane.name} if lane.name else {})
            | value
            for lane, value in zip(self.fleet.lanes, values, strict=True)
        ]

    def digest(self) -> None:
        """Write down what the last chunk gave; waits for it."""
        if self.pending is None:
            return
        iterations, metrics, evaluation = self.pending
        self.pending = None
        with self.trace.span("computing", iteration=iterations):
            lanes = self.fleet.per_lane(metrics)
        train = [{k: np.asarray(v).item() for k, v in lane.items()} for lane in lanes]
        updates = [lane["updates"] for lane in train]
        results = []
        if evaluation is not None:
            with self.trace.span("evaluating", iteration=iterations):
                results = [describe(self.parts, e) for e in self.fleet.per_lane(evaluation)]
            for result, count in zip(results, updates, strict=True):
                result["updates"] = count
        times = self.trace.take()
        times |= self.given_up()
        rows = self.rows("train", iterations, [lane | times for lane in train])
        rows += self.rows("eval", iterations, results) if results else []
        with self.trace.span("logging"):
            for writer in self.writers:
                writer.append(rows)
            self.show(rows)

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        """The progress line: mean over seeds of what the newest rows say."""
        values = {}
        for name, label in (("episode_return", "return"), ("eval_return", "eval")):
            numbers = [row[name] for row in rows if name in row and np.isfinite(row[name])]
            if numbers:
                values[label] = float(np.mean(numbers))
        self.progress.update(rows[-1]["env_steps"], values)

    # -- the loop ------------------------------------------------------------

    def loop(self, stop: StopSignals) -> bool:
        """Train to the end (True) or to a signal (False)."""
        schedule, run = self.schedule, self.config.run
        last_save = time.perf_counter()
        chunks = 0
        while self.iterations < schedule.total:
            due = time.perf_counter() - last_save > run.checkpoint_seconds
            with self.trace.span("agreeing"):
                stopping, saving = self.agree(stop, due)
            if stopping:
                self.fleet.rest(finished=False)
                self.save()
                return False
            if saving:
                self.save()
                last_save = time.perf_counter()
            self.watchdog.at("training", self.iterations // schedule.chunk, armed=chunks > 1)
            chunks += 1
            count = min(schedule.chunk, schedule.total - self.iterations)
            with self.trace.span("dispatching"):
                metrics = self.fleet.step(count)
            self.iterations += count
            evaluation = None
            evaluating = schedule.evaluate_every and self.iterations % schedule.evaluate_every == 0
            if evaluating and self.ranks.first:
                evaluation = self.fleet.evaluate(self.iterations)
            self.digest()  # of the chunk before, while the device computes this one
            self.pending = (self.iterations, metrics, evaluation)
        self.digest()
        return True

    def agree(self, stop: StopSignals, due: bool) -> tuple[bool, bool]:
        """(stop?, save?), the same on all ranks: if any rank got a signal, if rank 0 finds it is time."""
        number, rank = (stop.number, self.ranks.rank) if stop.number else self.fleet.asked()
        votes = self.ranks.everyone(number, rank, due)
        asked = votes[votes[:, 0] > 0]
        if len(asked):
            ranks = ", ".join(str(rank) for rank in asked[:, 1])
            where = f" on rank {ranks}" if self.ranks.size > 1 or rank else ""
            self.stopped_by = signal.Signals(asked[0, 0]).name + where
        return len(asked) > 0, bool(votes[0, 2])

    def finish(self) -> dict[str, Any]:
        """Final evaluation, checkpoint and summary."""
        self.fleet.rest(finished=True)
        self.watchdog.at("finishing", self.iterations // self.schedule.chunk, armed=False)
        final: list[Evaluation] = []
        if self.ranks.first:
            with self.trace.span("final evaluation"):
                final = self.fleet.evaluate_many(self.config.run.final_eval_episodes, FINAL_EVALUATION)
        wall = self.wall_seconds
        self.save()
        self.watchdog.at("finishing", self.iterations // self.schedule.chunk, armed=False)
        given_up = self.given_up()
        return self.ranks.first_does(lambda: self.conclude(final, wall, given_up))

    def conclude(self, final: Sequence[Evaluation], wall: float, given_up: dict[str, int]) -> dict[str, Any]:
        """Summary and pictures."""
        summary = self.summarise(final, wall, given_up)
        if self.stretch:
            summary |= self.stretch.describe(self, final)
        else:
            draw_run(self.fleet, getattr(self.config.agent, "name", "agent"), self.run)
        self.run.write_summary(summary)
        return summary

    def summarise(self, final: Sequence[Evaluation], wall: float, given_up: dict[str, int]) -> dict[str, Any]:
        config: Any = self.config
        counters, lanes = self.fleet.counters(), len(self.fleet.lanes)
        per_lane = [describe(self.parts, e) for e in final]
        return {
            "agent": config.agent.name,
            "env": self.parts.env.spec.name,
            "workflow": config.workflow.name,
            "seeds": lanes,
            "env_steps": counters["env_steps"],
            "updates": counters["updates"],
            "wall_seconds": wall,
            "compile_seconds": self.fleet.compile_seconds,
            "env_steps_per_second": counters["env_steps"] * lanes / wall,
            "updates_per_second": counters["updates"] * lanes / wall,
            **given_up,
            **spread_over_seeds(self.parts, per_lane, final),
            "eval_return_per_seed": {
                str(lane.seed): v["eval_return"] for lane, v in zip(self.fleet.lanes, per_lane, strict=True)
            },
            "params_sha256": params_hash([self.parts.workflow.learner(s).params for s in self.fleet.states]),
            **self.fleet.remarks() | code_version(),
        }
