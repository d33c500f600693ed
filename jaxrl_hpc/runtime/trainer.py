"""The loop of one run directory: chunks, metrics, evaluations, checkpoints.

The device works in chunks of iterations. While it computes one chunk, the host records the results of the
previous one; an evaluation is queued behind its chunk and fetched later. Nothing that the host does (logging,
evaluating, saving, being killed and resumed) changes a bit of the run.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.checkpoint.blocks import NoGoodCheckpoint
from jaxrl_hpc.comm import waiting
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config
from jaxrl_hpc.envs.external.host import given_up_counts
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.extras import how_to_install, installed
from jaxrl_hpc.metrics.parquet import MetricsWriter, NoMetrics, Writer
from jaxrl_hpc.metrics.progress import Progress
from jaxrl_hpc.metrics.trace import Trace
from jaxrl_hpc.metrics.trackers import make_tracker
from jaxrl_hpc.rollout import Evaluation
from jaxrl_hpc.runs.directory import RunDirectory, code_version
from jaxrl_hpc.runs.verify import refuse_unreadable, what_to_do
from jaxrl_hpc.runtime.build import Parts
from jaxrl_hpc.runtime.episodes import draw_run
from jaxrl_hpc.runtime.machine import ranks_of
from jaxrl_hpc.runtime.profile import shares_of
from jaxrl_hpc.runtime.seeds import SeedRunner, states_of_earlier_run
from jaxrl_hpc.runtime.signals import StopSignals
from jaxrl_hpc.runtime.summary import describe, params_hash, spread_over_seeds, summaries_of_lanes

log = logging.getLogger(__name__)
PUBLISH_SECONDS = 10.0  # at least, between parts of metrics that readers see before the next checkpoint
PUBLISH_SHARE = 0.01  # and this share of the time that the process has run: long runs write few parts
LEAST_DRAWABLE = 0.2  # a warning is given if a smaller share of the replay's windows can be drawn
FINAL_EVALUATION = -1  # instead of an iteration: start states that no earlier evaluation used


class Segment(NamedTuple):
    """A segment of a run, for callers that divide runs."""

    until: int | None  # environment steps where it ends; None: the whole budget
    previous: Path | None  # directory of the finished run that it continues, matched by lanes' names


class ChunkSchedule(NamedTuple):
    """The run in iterations after the warm-up."""

    total: int
    chunk: int
    evaluate_every: int  # iterations, a multiple of chunk; 0: only at the end

    @classmethod
    def of(cls, config: Config, parts: Parts, until: int | None = None) -> ChunkSchedule:
        """The config's schedule, or its beginning: whole chunks up to `until` environment steps."""
        per = parts.workflow.steps_per_iteration
        run = config.run
        total = -(-(run.total_env_steps - parts.workflow.warmup_steps) // per)
        chunk = max(1, min(run.log_every // per, total))
        every = max(1, round(run.eval_every / (chunk * per))) * chunk if run.eval_every else 0
        if until is not None and until < run.total_env_steps:
            chunks = round((until - parts.workflow.warmup_steps) / (per * chunk))
            total = min(total, max(1, chunks) * chunk)
        return cls(total, chunk, every)


def idle_learning(lanes: Sequence[dict[str, Any]]) -> str:
    """A warning if updates get no data, or if most of the replay cannot be drawn."""
    used, drawable = (min(lane.get(name, 1.0) for lane in lanes) for name in ("updates_used", "drawable"))
    if used == 0:
        return (
            "nothing was learned since the last row of metrics: no window in the replay could be drawn "
            "(metric updates_used); with replay.episodes=within, a window must fit into an episode"
        )
    if drawable < LEAST_DRAWABLE:
        return (
            f"only {drawable:.0%} of the windows in the replay can be drawn (metric drawable): raise "
            "replay.final_capacity or set replay.store_next=always; with replay.episodes=within, take "
            "shorter windows"
        )
    return ""


class Trainer:
    """One run directory being trained."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        runner: SeedRunner,
        run: RunDirectory,
        say: Callable[[str], None],
        segment: Segment | None = None,
    ):
        self.config, self.parts, self.runner, self.run, self.say = config, parts, runner, run, say
        self.segment = segment
        self.trials = bool(runner.lanes[0].name)  # lanes are trials of a sweep, not seeds of one run
        self.schedule = ChunkSchedule.of(config, parts, segment.until if segment else None)
        self.ranks = runner.ranks
        self.checkpointer = runner.store(run.checkpoints, config.run.keep_checkpoints)
        self.metrics = MetricsWriter(run.path) if self.ranks.first else NoMetrics()
        self.writers: list[Writer] = [self.metrics]
        self.iterations = 0  # after the warm-up
        self.seconds_before = 0.0  # of earlier processes of this run
        self.started = self.published = time.perf_counter()
        self.pending: tuple[int, Any, Any] | None = None
        self.progress: Progress
        self.watchdog = Watchdog(self.ranks, run.path / "ranks", 0.0)  # until the caller sets a real one
        self.saved = False  # a checkpoint has been committed
        self.last_eval: float | None = None  # mean over seeds
        self.stopped_by = ""
        self.warned = False  # warnings about missing data
        self.trace = Trace(self.ranks.rank, config.run.profile)

    # -- state ---------------------------------------------------------------

    def begin(self, resume: bool) -> None:
        """Fresh states, or those of the newest good checkpoint."""
        resumed = resume and self.checkpointer.latest() is not None
        if resume and not resumed:
            self.ranks.first_does(lambda: refuse_unreadable(self.run, self.trials))
            if not self.segment:
                self.say(f"there is no checkpoint in {self.run.path} yet: training starts from the beginning")
        self.saved = resumed
        steps_done = None
        if resumed:
            shapes = [self.runner.state_shape()] * len(self.runner.groups)
            try:
                _, states, host = self.checkpointer.restore(shapes)
            except NoGoodCheckpoint as problem:
                raise UserError(f"{problem}. {what_to_do(self.run, self.trials)}") from problem
            self.runner.load(states)
            self.iterations, self.seconds_before = host["iterations"], host["wall_seconds"]
            self.metrics.restore(host["metrics"])
            self.ranks.first_does(self.run.end_first_save)
            steps_done = self.env_steps
            where = f"iteration {self.iterations:,}, {steps_done:,} environment steps"
            self.say(f"resumed at {where}, from {self.run.checkpoints}")
            if self.parts.env.external:
                mine = {name: number * self.ranks.first for name, number in host["outside"].items()}
                self.say(self.parts.env.host.simulators.resume(mine))
        elif self.segment and self.segment.previous:
            self.metrics.restore(None)
            states, host = states_of_earlier_run(self.segment.previous, self.runner)
            self.runner.load(states)
            self.iterations, self.seconds_before = host["iterations"], host["wall_seconds"]
        else:
            self.metrics.restore(None)
            self.runner.initialise()
        if self.config.run.tensorboard and self.ranks.first:
            self.add_tensorboard(steps_done)
        alone = self.ranks.first and not self.trials  # the mean over a sweep's trials is meaningless
        for name in self.config.run.trackers if alone else ():
            self.writers.append(make_tracker(name, self.run.path, self.config.to_dict(), resumed))
        if self.config.run.profile:
            self.trace.shares = shares_of(self.runner)
        self.started = time.perf_counter()
        self.trace.begin(self.seconds_before)

    def add_tensorboard(self, steps_done: int | None) -> None:
        """Event files are written by default, so a missing library is only a remark."""
        if not installed("tensorboardX"):
            self.say(f"no TensorBoard files, tensorboardX is not installed: {how_to_install('tensorboard')}")
            return
        from jaxrl_hpc.metrics.tensorboard import TensorBoardWriter

        self.writers.append(TensorBoardWriter(self.run.path, steps_done))

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
        """Save everything, including metrics, as one checkpoint."""
        self.digest()
        self.watchdog.at("saving", self.iterations // self.schedule.chunk)
        host: dict[str, Any] = {"iterations": self.iterations, "wall_seconds": self.wall_seconds}
        host["outside"] = self.given_up()
        with self.trace.span("saving", env_steps=self.env_steps):
            if not self.saved:
                self.ranks.first_does(self.run.begin_first_save)
            host["metrics"] = self.metrics.commit()
            self.checkpointer.save(self.iterations, self.runner.states, host)
            if not self.saved:
                self.ranks.first_does(self.run.end_first_save)
            self.saved = True
            self.ranks.first_does(self.write_progress)

    def write_progress(self) -> None:
        """Progress for `jaxrl-hpc runs`."""
        progress = {"env_steps": self.env_steps, "total_env_steps": self.total_env_steps}
        self.run.write_progress(progress | {"eval_return": self.last_eval, "wall_seconds": self.wall_seconds})

    def given_up(self) -> dict[str, int]:
        """Dropped episodes of external simulators on all ranks; collective."""
        mine = given_up_counts(self.parts.env)
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
            for lane, value in zip(self.runner.lanes, values, strict=True)
        ]

    def digest(self) -> None:
        """Record the results of the last chunk; waits for it."""
        if self.pending is None:
            return
        iterations, metrics, evaluation = self.pending
        self.pending = None
        with self.trace.span("computing", iteration=iterations):
            lanes = self.runner.metrics_per_lane(metrics)
        train = [{k: np.asarray(v).item() for k, v in lane.items()} for lane in lanes]
        updates = [lane["updates"] for lane in train]
        if self.ranks.first and not self.warned and (warning := idle_learning(train)):
            log.warning(warning)
            self.warned = True
        results = []
        if evaluation is not None:
            with self.trace.span("evaluating", iteration=iterations):
                results = [describe(self.parts, e) for e in self.runner.per_lane(evaluation)]
            for result, count in zip(results, updates, strict=True):
                result["updates"] = count
            self.last_eval = float(np.mean([result["eval_return"] for result in results]))
        times = self.trace.take()
        times |= self.given_up()
        rows = self.rows("train", iterations, [lane | times for lane in train])
        rows += self.rows("eval", iterations, results) if results else []
        with self.trace.span("logging"):
            for writer in self.writers:
                writer.append(rows)
            self.publish()
            self.show(rows)

    def publish(self) -> None:
        """Write rows between checkpoints, for `jaxrl-hpc report --watch`; a resumed run drops them again."""
        now = time.perf_counter()
        least = max(PUBLISH_SECONDS, PUBLISH_SHARE * (now - self.started))
        if not self.ranks.first or self.trials or now - self.published < least:
            return
        self.published = now
        try:
            if not self.saved:
                self.run.begin_first_save()
            self.metrics.flush()
        except (OSError, UserError) as problem:  # the next checkpoint needs these rows, and fails if it must
            log.debug("metrics are not written yet: %s", problem)

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
                self.parts.workflow.close(finished=False)
                self.save()
                return False
            if saving:
                self.save()
                last_save = time.perf_counter()
            self.watchdog.at("training", self.iterations // schedule.chunk, armed=chunks > 1)
            chunks += 1
            # a chunk that was broken off is completed first: evaluations keep their places
            count = min(schedule.chunk - self.iterations % schedule.chunk, schedule.total - self.iterations)
            with self.trace.span("dispatching"):
                metrics = self.runner.step(count)
            made = self.parts.workflow.made(count)
            if made == 0:
                continue
            self.iterations += made
            evaluation = None
            evaluating = schedule.evaluate_every and self.iterations % schedule.evaluate_every == 0
            if evaluating and self.ranks.first:
                evaluation = self.runner.evaluate(self.iterations)
            self.digest()  # of the previous chunk, while the device computes this one
            self.pending = (self.iterations, metrics, evaluation)
        self.digest()
        return True

    def agree(self, stop: StopSignals, due: bool) -> tuple[bool, bool]:
        """(stop?, save?), the same on all ranks: whether any rank got a signal, and whether a save is due on
        rank 0."""
        number, rank = (stop.number, self.ranks.rank) if stop.number else self.parts.workflow.stop_request()
        votes = self.ranks.everyone(number, rank, due)
        asked = votes[votes[:, 0] > 0]
        if len(asked):
            ranks = ", ".join(str(rank) for rank in asked[:, 1])
            where = f" on rank {ranks}" if self.ranks.size > 1 or rank else ""
            self.stopped_by = signal.Signals(asked[0, 0]).name + where
        return len(asked) > 0, bool(votes[0, 2])

    def finish(self) -> dict[str, Any]:
        """Final evaluation, checkpoint and summary."""
        self.parts.workflow.close(finished=True)
        self.watchdog.at("finishing", self.iterations // self.schedule.chunk, armed=False)
        final: list[Evaluation] = []
        if self.ranks.first:
            with self.trace.span("final evaluation"):
                final = self.runner.evaluate_many(self.config.run.final_eval_episodes, FINAL_EVALUATION)
        wall = self.wall_seconds
        self.save()
        self.watchdog.at("finishing", self.iterations // self.schedule.chunk, armed=False)
        given_up = self.given_up()
        return self.ranks.first_does(lambda: self.conclude(final, wall, given_up))

    def conclude(self, final: Sequence[Evaluation], wall: float, given_up: dict[str, int]) -> dict[str, Any]:
        """The summary, written down."""
        summary = self.summarise(final, wall, given_up)
        if self.trials:
            summary["trials"] = summaries_of_lanes(self.parts, self.runner, final)
        self.run.write_summary(summary)
        return summary

    def draw(self, summary: dict[str, Any]) -> None:
        """Pictures of the finished run, none of a sweep's trials. matplotlib's import takes half a second."""
        if self.trials:
            return
        if installed("matplotlib"):
            draw_run(self.runner, self.config.agent.name, self.run, summary)
        else:
            self.say(f"no pictures, matplotlib is not installed: {how_to_install('plots')}")

    def summarise(self, final: Sequence[Evaluation], wall: float, given_up: dict[str, int]) -> dict[str, Any]:
        counters, lanes = self.runner.counters(), len(self.runner.lanes)
        per_lane = [describe(self.parts, e) for e in final]
        return {
            "agent": self.config.agent.name,
            "env": self.parts.env.spec.name,
            "workflow": self.config.workflow.name,
            "seeds": lanes,
            "env_steps": counters["env_steps"],
            "updates": counters["updates"],
            "wall_seconds": wall,
            "compile_seconds": self.runner.compile_seconds,
            "env_steps_per_second": counters["env_steps"] * lanes / wall,
            "updates_per_second": counters["updates"] * lanes / wall,
            **given_up,
            **spread_over_seeds(self.parts, per_lane, final),
            **{
                f"{name}_per_seed": {
                    str(lane.seed): v[name] for lane, v in zip(self.runner.lanes, per_lane, strict=True)
                }
                for name in (per_lane[0] if per_lane else ())
            },
            "params_sha256": params_hash([self.parts.workflow.learner(s).params for s in self.runner.states]),
            **self.parts.workflow.summary_extras() | self._waiting() | code_version(),
        }

    def _waiting(self) -> dict[str, Any]:
        """Statistics of waiting between the ranks of the job."""
        if ranks_of(self.config).size == 1:
            return {}
        choice = waiting.chosen()
        return {"waiting": choice.mode, "ranks_per_core": choice.ranks_per_core}
