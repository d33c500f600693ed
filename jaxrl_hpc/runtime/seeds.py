"""Many runs of one workflow: a lane per seed (or per trial of a sweep), each with its own hypers.

A traceable workflow is compiled here. Solo mode keeps one program per lane and spreads the lanes over devices
(on a CPU: one per core), so that a lane computes exactly what it would compute alone. Vmap mode stacks all
lanes into one program on one device, equal within float tolerance: products and sums keep their bits, but XLA
fuses element-wise work of stacked lanes differently, and a fused multiply-add rounds once instead of twice.
Other workflows compile their own programs, and their lanes take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxrl_hpc import rollout
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import threefry
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.build import Hypers, Parts
from jaxrl_hpc.runtime.host import available_cores
from jaxrl_hpc.types import Array, Job, LearnerState, PyTree, Store

TRAIN_STREAM, EVAL_STREAM = 0, 1
SeedsMode = Literal["solo", "vmap"]


def choose_mode(wanted: Literal["auto", "solo", "vmap"], lanes: int, platform: str) -> SeedsMode:
    """How lanes run: a fixed rule of config and platform, without timing.

    Args:
      wanted: `run.seeds_mode`.
      lanes: how many there are.
      platform: that programs run on, such as "cpu".
    """
    if wanted != "auto":
        return wanted
    return "solo" if platform == "cpu" or lanes == 1 else "vmap"


class Lane(NamedTuple):
    """One run among many."""

    seed: int
    hypers: Hypers
    name: str = ""  # the trial of a sweep that it is


def _float(values: Any) -> Array:
    return jnp.asarray(np.asarray(values, np.float32))


class Program:
    """A jitted function, compiled once per device, with the time that took."""

    def __init__(self, name: str, function: Callable[..., Any], donate: bool = False):
        self.name = name
        self.jitted = jax.jit(function, donate_argnums=(0,) if donate else ())
        self.compiled: dict[jax.Device, Callable[..., PyTree]] = {}

    def compile(self, device: jax.Device, *shapes: PyTree) -> None:
        if device not in self.compiled:
            place = SingleDeviceSharding(device)
            placed = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place), shapes)
            self.compiled[device] = self.jitted.lower(*placed).compile()

    def __call__(self, device: jax.Device, *args: PyTree) -> PyTree:
        return self.compiled[device](*args)


class HostFunction:
    """A function of a workflow that compiles its own programs, called like a Program."""

    name = "training"

    def __init__(self, function: Callable[..., Any]):
        self.jitted = function

    def compile(self, device: jax.Device, *shapes: PyTree) -> None:
        """The workflow compiles it in its own `compile`."""

    def __call__(self, device: jax.Device, *args: PyTree) -> PyTree:
        return self.jitted(*args)


class Group(NamedTuple):
    """Lanes that share a program instance: one in solo mode, all of them in vmap mode."""

    device: jax.Device
    lanes: tuple[int, ...]


class SeedRunner:
    """Lanes on devices. Calls return at once; results are fetched on access.

    Args:
      parts: the workflow, and the agent and environment to evaluate it with.
      lanes: the runs.
      mode: "solo" or "vmap".
      episodes: of one evaluation program.
      devices: lanes of a traceable workflow are assigned to these in turn.
    """

    def __init__(
        self,
        parts: Parts,
        lanes: Sequence[Lane],
        mode: SeedsMode,
        episodes: int,
        devices: Sequence[jax.Device],
    ):
        self.parts, self.lanes = parts, tuple(lanes)
        self.mode, self.stacked = mode, mode == "vmap"
        everything = tuple(range(len(lanes)))
        self.groups = (
            [Group(devices[0], everything)]
            if self.stacked
            else [Group(devices[i % len(devices)], (i,)) for i in everything]
        )
        flow = parts.workflow
        over = jax.vmap if self.stacked else lambda f, **_: f
        self._init: Program | HostFunction
        self._warmup: Program | HostFunction
        self._step: Program | HostFunction
        if flow.traceable:
            self._init = Program("init", over(flow.init))
            self._warmup = Program("warmup", over(flow.warmup), donate=True)
            self._step = Program("step", over(flow.step, in_axes=(0, None)), donate=True)
        else:
            self._init, self._warmup = HostFunction(flow.init), HostFunction(flow.warmup)
            self._step = HostFunction(flow.step)
        self.episodes = episodes
        self._evaluate = Program("evaluate", over(self._evaluation(), in_axes=(0, 0, None, None)))
        self.compile_seconds = 0.0
        self.states: list[PyTree] = []
        self.ranks = Ranks()  # that learn together; of one process until it joins a job

    def join(self, job: Job) -> bool:
        """Become part of a job, together with all its processes -> whether this one learns."""
        role = self.parts.workflow.join(job)
        self.ranks = role.ranks
        return role.learns

    def first_arguments(self) -> tuple[Array, dict[str, dict[str, Array]]]:
        """Key and hypers of the first lane, for `Workflow.init`."""
        lane = self.lanes[0]
        return threefry.host_key(lane.seed, TRAIN_STREAM), jax.tree.map(_float, lane.hypers)

    def _evaluation(self) -> Callable[..., rollout.Evaluation]:
        parts = self.parts

        def run(learner: LearnerState, key: Array, iteration: Array, part: Array) -> rollout.Evaluation:
            key = jax.random.fold_in(jax.random.fold_in(key, iteration), part)
            env = parts.env.host.for_evaluation or parts.env
            return rollout.evaluate(env, parts.agent, parts.agent.actor(learner), key, self.episodes)

        return run

    def _arguments(self, group: Group, stream: int) -> tuple[Array, dict[str, dict[str, Array]]]:
        """Keys of a stream and hypers of a group, with a leading axis in vmap mode."""
        lanes = [self.lanes[i] for i in group.lanes]
        keys = [threefry.host_key(lane.seed, stream) for lane in lanes]
        if not self.stacked:
            return keys[0], jax.tree.map(_float, lanes[0].hypers)
        return jnp.stack(keys), jax.tree.map(lambda *values: _float(values), *(x.hypers for x in lanes))

    def state_shape(self) -> PyTree:
        """Shapes of one group's state, without computing anything."""
        return jax.eval_shape(self._init.jitted, *self._arguments(self.groups[0], TRAIN_STREAM))

    def compile(self, training: bool = True, tell: Callable[[Sequence[str]], None] = lambda _: None) -> None:
        """Compile every program (or only evaluation) for every device in use, all at the same time.

        `tell` gets the names of those that are not done yet.
        """
        start = time.perf_counter()
        flow, state = self.parts.workflow, self.state_shape()
        keys, hypers = jax.eval_shape(lambda: self._arguments(self.groups[0], TRAIN_STREAM))
        number = jax.ShapeDtypeStruct((), jnp.int32)
        programs: list[tuple[Program | HostFunction, tuple[PyTree, ...]]] = []  # the longest first
        if training:
            programs += [(self._step, (state, number)), (self._init, (keys, hypers))]
            programs += [(self._warmup, (state,))] if flow.has_warmup else []
        if self.ranks.first:  # the only one that evaluates
            learner = jax.eval_shape(flow.learner, state)
            programs.insert(1, (self._evaluate, (learner, keys, number, number)))
        devices = dict.fromkeys(group.device for group in self.groups)
        with ThreadPoolExecutor(available_cores()) as pool:
            jobs = {pool.submit(p.compile, d, *shapes): p.name for d in devices for p, shapes in programs}
            waiting = set(jobs)
            while waiting:
                tell(tuple(dict.fromkeys(jobs[job] for job in jobs if job in waiting)))
                done, waiting = futures.wait(waiting, return_when=futures.FIRST_COMPLETED)
                for job in done:
                    job.result()
        if training and not flow.traceable:
            tell((HostFunction.name,))
            flow.compile(state)
        self.compile_seconds += time.perf_counter() - start

    def initialise(self) -> None:
        """Fresh states, with enough data in the replay to start learning."""
        flow, self.states = self.parts.workflow, []
        for group in self.groups:
            keys, hypers = self._arguments(group, TRAIN_STREAM)
            if flow.traceable:
                keys, hypers = jax.device_put((keys, hypers), group.device)
            state = flow.start(self._init(group.device, keys, hypers))
            self.states.append(self._warmup(group.device, state) if flow.has_warmup else state)

    def load(self, states: Sequence[PyTree]) -> None:
        """States from a checkpoint. Copied: a donated buffer must not be NumPy's memory."""
        flow, copies = self.parts.workflow, [jax.tree.map(jnp.copy, state) for state in states]
        if flow.traceable:
            groups = zip(copies, self.groups, strict=True)
            copies = [jax.device_put(state, group.device) for state, group in groups]
        self.states = [flow.start(state) for state in copies]

    def step(self, iterations: int) -> list[dict[str, Array]]:
        """Advance every lane; metrics per group, not yet waited for."""
        metrics = []
        for i, group in enumerate(self.groups):
            count: int | Array = iterations
            if self.parts.workflow.traceable:
                count = jax.device_put(np.int32(iterations), group.device)
            self.states[i], values = self._step(group.device, self.states[i], count)
            metrics.append(values)
        return metrics

    def metrics_per_lane(self, metrics: Sequence[dict[str, Array]]) -> list[dict[str, Any]]:
        """Metrics of a chunk on the host, one mapping per lane; waits for them."""
        return [self.parts.workflow.host_metrics(lane) for lane in self.per_lane(metrics)]

    def evaluate(self, iteration: int, part: int = 0) -> list[rollout.Evaluation]:
        """Greedy episodes with every lane's current parameters; per group, not yet waited for.

        (iteration, part) selects the start states.
        """
        results = []
        for state, group in zip(self.states, self.groups, strict=True):
            keys, _ = self._arguments(group, EVAL_STREAM)
            placed = jax.device_put((keys, np.int32(iteration), np.int32(part)), group.device)
            learner = self.parts.workflow.learner(state)
            results.append(self._evaluate(group.device, learner, *placed))
        return results

    def evaluate_many(self, episodes: int, iteration: int) -> list[rollout.Evaluation]:
        """At least `episodes` episodes per lane, as many programs of fewer; waits for them."""
        parts = -(-episodes // self.episodes)
        results = [self.per_lane(self.evaluate(iteration, part)) for part in range(parts)]
        return [jax.tree.map(lambda *x: np.concatenate(x), *lane) for lane in zip(*results, strict=True)]

    def actor(self, lane: int) -> PyTree:
        """The actor parameters of one lane, on this process's first device."""
        number = next(i for i, group in enumerate(self.groups) if lane in group.lanes)
        learner = self.parts.workflow.learner(self.states[number])
        if self.stacked:
            learner = jax.tree.map(lambda x: x[lane], learner)
        return jax.device_put(self.parts.agent.actor(learner), jax.local_devices()[0])

    def per_lane(self, results: Sequence[PyTree]) -> list[PyTree]:
        """Group results as one host pytree per lane."""
        host: list[PyTree] = jax.device_get(list(results))
        if not self.stacked:
            return host
        return [jax.tree.map(lambda x, i=i: x[i], host[0]) for i in range(len(self.lanes))]

    def store(self, directory: Path, keep: int = 2) -> Store:
        """The store that saves and restores `states`."""
        return self.parts.workflow.store(directory, keep)

    def describe(self) -> str:
        """Description of the lanes' devices."""
        number = len({group.device for group in self.groups})
        return self.parts.workflow.describe() or ("one device" if number == 1 else f"{number} devices")

    def wait(self) -> None:
        jax.block_until_ready(self.states)

    def counters(self) -> dict[str, int]:
        """Counters of the first lane (all lanes advance together)."""
        values = jax.device_get(self.parts.workflow.counters(self.states[0]))
        return {name: int(np.asarray(value).reshape(-1)[0]) for name, value in values.items()}


def states_of_earlier_run(folder: Path, runner: SeedRunner) -> tuple[list[PyTree], dict[str, Any]]:
    """States of the runner's lanes, and the host data of a checkpoint, from the end of a run with more
    lanes."""
    run = RunDirectory(folder)
    summary = run.read_summary()
    if summary is None:
        raise UserError(f"{folder} has not finished")
    order = [entry["trial"] for entry in summary["trials"]]
    chosen = [order.index(lane.name) for lane in runner.lanes]
    one = runner.state_shape()
    shapes = [one] * len(order)
    if runner.stacked:
        shapes = [jax.tree.map(lambda s: jax.ShapeDtypeStruct((len(order), *s.shape[1:]), s.dtype), one)]
    _, states, host = runner.store(run.checkpoints).restore(shapes)
    if runner.stacked:
        index = np.asarray(chosen)
        return [jax.tree.map(lambda x: x[index], states[0])], host
    return [states[i] for i in chosen], host
