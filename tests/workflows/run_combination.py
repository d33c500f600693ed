"""Runs a combination for a moment, and says what is wrong with what came out.

python -m tests.workflows.run_combination FOLDER COMBINATION…  on the ranks of a job

Combinations are written as by `str`. A job runs several, since starting is what takes time.
"""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runtime import build as building
from jaxrl_hpc.runtime.acting import act
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.runtime.evaluation import load_run
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.types import Array, Batch, LearnerState
from jaxrl_hpc.workflows.emulated import steps_in
from tests.datasets.made import random_file
from tests.telling import tell
from tests.workflows import combinations
from tests.workflows.combinations import Combination

ITERATIONS = 24
ROWS = 2_000  # of a dataset: as many as learning begins with by default
FEW_ROWS = 200  # what the smallest replay holds
RUN = {"log_every": 1, "eval_every": 0, "final_eval_episodes": 1, "eval_episodes": 1, "tensorboard": False}


def config_of(found: Combination) -> configs.Config:
    """Long episodes, so that only unrolls end windows; as few iterations as show what is learned."""
    long_episodes = "Pendulum-v1" if found.agent_name in combinations.CONTINUOUS else "MountainCar-v0"
    data = combinations.data(found, long_episodes)
    if data["workflow"].get("dataset") == "made":
        rows = ROWS if "default" in (found.sizes, found.replay) else FEW_ROWS
        data["workflow"]["dataset"] = str(random_file(long_episodes, rows, copies=1))  # of long episodes too
    if "replay" in data and found.sizes == "default":
        data["replay"] |= {"min_size": 240}
    return configs.from_dict(data)


def shortened(config: configs.Config) -> configs.Config:
    """So many iterations after the warm-up."""
    flow = build(config).workflow
    steps = flow.warmup_steps + ITERATIONS * flow.steps_per_iteration
    run = {**RUN, "total_env_steps": steps, "log_every": steps}
    return configs.from_dict(config.to_dict() | {"run": run})


@contextlib.contextmanager
def batches_seen() -> Iterator[set[int]]:
    """Steps of every batch that a gradient is made of, noted while programs are traced."""
    seen: set[int] = set()
    make = building._make

    def noting(section: str, *args: Any, **kwargs: Any) -> Any:
        made = make(section, *args, **kwargs)
        if section != "agent":
            return made

        def gradient(state: LearnerState, batch: Batch, key: Array) -> Any:
            seen.add(steps_in(batch))
            return made.gradient(state, batch, key)

        return made._replace(gradient=gradient)

    with mock.patch.object(building, "_make", noting):
        yield seen


def wrong_batches(config: configs.Config, seen: set[int]) -> list[str]:
    """Learners that share a batch have an equal part of it each."""
    whole_config = config.to_dict()
    flow = whole_config["workflow"]
    learners = flow["learners"] if flow.get("learner_mode") == "shared" else 1
    if config.replay is None:
        whole = flow["num_envs"] * flow["unroll_length"] * config.workflow.unrolls_per_add
        whole //= whole_config["agent"].get("minibatches", 1)
    else:
        whole = config.agent.batch_size * config.agent.window
    claimed = whole // (config.workflow.resources().shards * learners)
    return [] if seen == {claimed} else [f"batches of {sorted(seen)} steps, not of {claimed}"]


def faults(config: configs.Config, metrics: dict[str, float], before: Any, after: Any) -> list[str]:
    """Sentences; none if the run did what its config claims."""
    found = []
    for (path, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        old, new = np.asarray(old), np.asarray(new)
        if not np.isfinite(new).all():
            found.append(f"{jax.tree_util.keystr(path)} is not finite")
        elif (old == new).all():
            found.append(f"{jax.tree_util.keystr(path)} did not move")
    found += [
        f"{n} is {v}" for n, v in metrics.items() if math.isinf(v) or (math.isnan(v) and "episode" not in n)
    ]
    if config.replay is None:
        return found
    window, length = config.agent.window, config.workflow.unroll_length
    cut = config.workflow.cuts_windows
    expected = window - window * (window - 1) / (2 * length) if cut else window
    within = getattr(config.replay, "episodes", "") == "within"
    expected = window if within else expected
    used = metrics.get("window_used", 1.0)
    if abs(used - expected) > 0.1 * window:
        found.append(f"window_used is {used}, not {expected}")
    share = (length - window + 1) / length if within and cut else 1.0
    if abs(metrics["drawable"] - share) > 0.1:
        found.append(f"drawable is {metrics['drawable']}, not {share}")
    if metrics["updates_used"] != 1:
        found.append(f"updates_used is {metrics['updates_used']}")
    return found


@contextlib.contextmanager
def compiled_quickly() -> Iterator[None]:
    """Nearly all of a combination's time is compilation, and its programs run for a moment."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def here(found: Combination) -> list[str]:
    """In this process, for workflows that need no ranks."""
    with compiled_quickly(), batches_seen() as seen:
        config = shortened(config_of(found))
        wrong = with_an_actor(config) if config.workflow.name == "elastic" else run_here(config)
    return wrong + wrong_batches(config, seen)


def traced(found: Combination) -> list[str]:
    """The same without compiling or running anything: batches, shapes and types. Workflows that compile their
    own programs are only built."""
    with batches_seen() as seen:
        config = shortened(config_of(found))
        flow = build(config).workflow
        if not flow.traceable:
            return []
        hypers = jax.tree.map(jnp.float32, hypers_of(config))

        def whole(key: Array) -> Any:
            state = flow.init(key, hypers)
            state = flow.warmup(state) if flow.has_warmup else state
            return flow.step(state, jnp.int32(ITERATIONS))[1]

        jax.eval_shape(whole, jax.random.key(0))
    return wrong_batches(config, seen)


def with_an_actor(config: configs.Config) -> list[str]:
    """A learner, and an actor in a thread beside it."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        run = Path(folder) / "run"
        actor = pool.submit(act, run, 600.0, say=lambda _: None)
        train(config, run, say=lambda _: None)
        assert actor.result() == 0
        return left_in(run)


def run_here(config: configs.Config) -> list[str]:
    flow = build(config).workflow
    hypers = jax.tree.map(jnp.float32, hypers_of(config))
    compiled: Any = jax.jit if flow.traceable else lambda function: function
    state = compiled(flow.init)(jax.random.key(0), hypers)
    before = jax.device_get(flow.learner(state).params)
    state = compiled(flow.warmup)(state) if flow.has_warmup else state
    state, metrics = compiled(flow.step)(state, jnp.int32(ITERATIONS))
    metrics = flow.host_metrics(jax.device_get(metrics))
    after = jax.device_get(flow.learner(state).params)
    return faults(config, {name: float(value) for name, value in metrics.items()}, before, after)


def left_in(folder: Path) -> list[str]:
    """The same of a run that a job left in a folder."""
    config, runner = load_run(folder)
    *_, row = (row for row in read_metrics(folder).to_pylist() if row["kind"] == "train")
    metrics = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
    key, hypers = runner.first_arguments()
    fresh = runner.parts.agent.init(jax.random.split(key, 3)[0], hypers["agent"])  # as all workflows begin
    learner = runner.parts.workflow.learner(runner.states[0])
    return faults(config, metrics, fresh.params, learner.params)


def main() -> None:
    folder = Path(sys.argv[1])
    with world().guard():
        for number, text in enumerate(sys.argv[2:]):
            refused, wrong = "", []
            try:
                with compiled_quickly(), batches_seen() as seen:
                    config = shortened(config_of(Combination(*text.split(" / "))))
                    train(config, folder / str(number), say=lambda _: None)
                wrong = wrong_batches(config, seen) if seen else []  # a rank that does not learn has none
            except UserError as error:
                refused = str(error)
            result = {"rank": world().rank, "case": text, "refused": refused, "batches": wrong}
            tell(result)


if __name__ == "__main__":
    main()
