"""The loop of one run directory: chunks, metrics, evaluations, checkpoints.

The device works in chunks of iterations. While it computes one chunk, the host writes down what the
chunk before gave; an evaluation is queued behind the chunk it belongs to and fetched later. Nothing
that the host does (logging, evaluating, saving, being killed and resumed) changes a bit of the run.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.build import Parts
from jaxrl_hpc.config import Config
from jaxrl_hpc.fleet import Fleet
from jaxrl_hpc.io.checkpoint import Checkpointer
from jaxrl_hpc.io.metrics import MetricsWriter, Writer
from jaxrl_hpc.io.plots import write_plots
from jaxrl_hpc.io.progress import Progress
from jaxrl_hpc.io.run import RunDirectory, code_version
from jaxrl_hpc.io.tensorboard import TensorBoardWriter
from jaxrl_hpc.ops.statistics import bootstrap_interval, interquartile_mean
from jaxrl_hpc.rollout import Evaluation
from jaxrl_hpc.signals import StopSignals

FINAL_EVALUATION = -1  # instead of an iteration: start states that no earlier evaluation used


class Schedule(NamedTuple):
    """The run in iterations after the warm-up."""

    total: int
    chunk: int
    evaluate_every: int  # iterations, a multiple of chunk; 0: only at the end

    @classmethod
    def of(cls, config: Config, parts: Parts) -> Schedule:
        per = parts.workflow.steps_per_iteration
        run = config.run
        total = -(-(run.total_env_steps - parts.workflow.warmup_steps) // per)
        chunk = max(1, min(run.log_every // per, total))
        every = max(1, round(run.eval_every / (chunk * per))) * chunk if run.eval_every else 0
        return cls(total, chunk, every)


class Trainer:
    """One run directory being trained."""

    def __init__(
        self, config: Config, parts: Parts, fleet: Fleet, run: RunDirectory, say: Callable[[str], None]
    ):
        self.config, self.parts, self.fleet, self.run, self.say = config, parts, fleet, run, say
        self.schedule = Schedule.of(config, parts)
        self.checkpointer = Checkpointer(run.checkpoints, keep=config.run.keep_checkpoints)
        self.metrics = MetricsWriter(run.path)
        self.writers: list[Writer] = [self.metrics]
        self.iterations = 0  # after the warm-up
        self.seconds_before = 0.0  # of earlier processes of this run
        self.started = time.perf_counter()
        self.pending: tuple[int, Any, Any] | None = None
        self.progress: Progress

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
        else:
            self.metrics.restore(None)
            self.fleet.initialise()
        if self.config.run.tensorboard:
            self.writers.append(TensorBoardWriter(self.run.path, steps_done))

        self.started = time.perf_counter()

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
        host = {"iterations": self.iterations, "wall_seconds": self.wall_seconds}
        self.checkpointer.save(self.iterations, self.fleet.states, host | {"metrics": self.metrics.commit()})
        self.checkpointer.wait()

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
            fixed | {"seed": lane.seed, "updates": int(value.pop("updates"))} | value
            for lane, value in zip(self.fleet.lanes, values, strict=True)
        ]

    def digest(self) -> None:
        """Write down what the last chunk gave; waits for it."""
        if self.pending is None:
            return
        iterations, metrics, evaluation = self.pending
        self.pending = None
        train = [{k: np.asarray(v).item() for k, v in lane.items()} for lane in self.fleet.per_lane(metrics)]
        updates = [lane["updates"] for lane in train]
        rows = self.rows("train", iterations, train)
        if evaluation is not None:
            results = [describe(self.parts, e) for e in self.fleet.per_lane(evaluation)]
            for result, count in zip(results, updates, strict=True):
                result["updates"] = count
            rows += self.rows("eval", iterations, results)
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
        while self.iterations < schedule.total:
            if stop.received:
                self.save()
                return False
            count = min(schedule.chunk, schedule.total - self.iterations)
            metrics = self.fleet.step(count)
            self.iterations += count
            evaluation = None
            if schedule.evaluate_every and self.iterations % schedule.evaluate_every == 0:
                evaluation = self.fleet.evaluate(self.iterations)
            self.digest()  # of the chunk before, while the device computes this one
            self.pending = (self.iterations, metrics, evaluation)
            if time.perf_counter() - last_save > run.checkpoint_seconds:
                self.save()
                last_save = time.perf_counter()
        self.digest()
        return True

    def finish(self) -> dict[str, Any]:
        """Final evaluation, checkpoint and summary."""
        episodes = self.config.run.final_eval_episodes
        final = self.fleet.evaluate_many(episodes, FINAL_EVALUATION)
        wall = self.wall_seconds
        self.save()
        summary = self.summarise(final, wall)
        self.draw()
        self.run.write_summary(summary)
        return summary

    def draw(self) -> None:
        """Learning curve and, where the environment can, an episode of the first lane."""
        self.run.plots.mkdir(exist_ok=True)
        write_plots(self.run.path)
        env, agent = self.parts.env, self.parts.agent
        if env.picture is None:
            return
        group = self.fleet.groups[0]
        state = self.fleet.states[0]
        if len(group.lanes) > 1:
            state = jax.tree.map(lambda x: x[0], state)
        actor = jax.device_put(agent.actor(self.parts.workflow.learner(state)), jax.local_devices()[0])

        def act(carry: Any, obs: Any, key: Any) -> tuple[Any, Any]:
            one = jax.tree.map(lambda x: x[None], (carry, obs, key))
            action, carry, _ = agent.act(actor, *one, True)
            return action[0], jax.tree.map(lambda x: x[0], carry)

        carry = jax.tree.map(lambda x: x[0], agent.carry(jnp.zeros(1, jnp.int32)))
        name = getattr(self.config.agent, "name", "agent").upper().replace("_", " ")
        env.picture(act, carry, jax.random.key(self.fleet.lanes[0].seed), name, self.run.plots)

    def summarise(self, final: Sequence[Evaluation], wall: float) -> dict[str, Any]:
        config: Any = self.config
        counters, lanes = self.fleet.counters(), len(self.fleet.lanes)
        per_lane = [describe(self.parts, e) for e in final]

        return {
            "agent": config.agent.name,
            "env": config.env.name,
            "workflow": config.workflow.name,
            "seeds": lanes,
            "env_steps": counters["env_steps"],
            "updates": counters["updates"],
            "wall_seconds": wall,
            "compile_seconds": self.fleet.compile_seconds,
            "env_steps_per_second": counters["env_steps"] * lanes / wall,
            "updates_per_second": counters["updates"] * lanes / wall,
            **spread_over_seeds(self.parts, per_lane, final),
            "eval_return_per_seed": {
                str(lane.seed): v["eval_return"] for lane, v in zip(self.fleet.lanes, per_lane, strict=True)
            },
            "params_sha256": params_hash(self.parts, self.fleet.states),
            **code_version(),
        }


def describe(parts: Parts, evaluation: Evaluation) -> dict[str, Any]:
    """One lane's evaluation as scalars."""
    return {
        "eval_return": float(evaluation.returns.mean()),
        "eval_return_std": float(evaluation.returns.std()),
        "eval_length": float(evaluation.length.mean()),
        "eval_finished": float(evaluation.finished.mean()),
    } | summaries(parts, evaluation)


def summaries(parts: Parts, evaluation: Evaluation) -> dict[str, float]:
    """The environment's own figures of merit over some episodes."""
    if parts.env.summarise is None:
        return {}
    extra = parts.env.summarise({name: np.asarray(total) for name, total in evaluation.info.items()})
    return {f"eval_{name}": float(np.mean(value)) for name, value in extra.items()}


def spread_over_seeds(
    parts: Parts, per_lane: Sequence[dict[str, Any]], results: Sequence[Evaluation]
) -> dict[str, Any]:
    """IQM and 95 % bootstrap interval of every evaluation metric over seeds.

    A single seed shows the spread of its episodes instead.
    """
    spread: dict[str, Any] = {}
    names = [n for n in per_lane[0] if n not in ("eval_return_std", "eval_length", "eval_finished")]
    resampled = _resampled_episodes(parts, results[0]) if len(per_lane) == 1 else []
    for name in names:
        samples = np.array([values[name] for values in per_lane])
        if resampled and name != "eval_return":
            low, high = np.percentile([values[name] for values in resampled], [2.5, 97.5])
        else:
            if len(per_lane) == 1:
                samples = np.asarray(results[0].returns)
            low, high = bootstrap_interval(samples)
        spread[f"{name}_iqm"] = float(interquartile_mean(samples))
        spread[f"{name}_ci95"] = [float(low), float(high)]
    return spread


def _resampled_episodes(parts: Parts, evaluation: Evaluation, times: int = 1000) -> list[dict[str, float]]:
    """The figures of merit of episodes drawn again and again with replacement."""
    if parts.env.summarise is None:
        return []
    episodes = len(evaluation.returns)
    draws = np.random.default_rng(0).integers(episodes, size=(times, episodes))
    return [summaries(parts, jax.tree.map(lambda x, i=draw: np.asarray(x)[i], evaluation)) for draw in draws]


def params_hash(parts: Parts, states: Sequence[Any]) -> str:
    """SHA-256 over the learners' parameters, lane after lane, in the order of the tree."""
    digest = hashlib.sha256()
    for state in states:
        for leaf in jax.tree.leaves(jax.device_get(parts.workflow.learner(state).params)):
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()
