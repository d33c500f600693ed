"""The few types that every part of the package shares. Imports nothing of ours.

Letters in shape comments: T time, B environment copies, N replay samples, n window length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

PyTree = Any
Array = jax.Array
Metrics = dict[str, jax.Array]


class EnvSpec(NamedTuple):
    """What an agent may know of an environment. Static, hashable up to the numpy bounds."""

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype
    num_actions: int | None  # None: continuous
    action_shape: tuple[int, ...]  # () when discrete
    action_low: np.ndarray | None  # [*action_shape], None when discrete
    action_high: np.ndarray | None
    max_episode_steps: int  # the time limit; bounds an evaluation
    info_keys: tuple[str, ...] = ()  # per-step scalars in EnvStep.info, summed over an episode

    @property
    def discrete(self) -> bool:
        return self.num_actions is not None

    @property
    def action_dtype(self) -> np.dtype:
        return np.dtype(np.int32 if self.discrete else np.float32)


class EnvStep(NamedTuple):
    """One step of B environment copies that reset themselves."""

    obs: PyTree  # [B, …] to act on next: after a reset where the episode ended
    final_obs: PyTree  # [B, …] what the step led to: BEFORE any reset
    reward: Array  # [B] float32
    terminated: Array  # [B] bool
    truncated: Array  # [B] bool
    info: dict[str, Array]  # name in spec.info_keys -> [B] float32


class Env(NamedTuple):
    """A batch of environment copies. Jittable ones are a vmap; outside simulators batch themselves."""

    spec: EnvSpec
    reset: Callable[[Array], tuple[PyTree, PyTree]]  # keys [B] -> (state, obs)
    step: Callable[[Array, PyTree, Array], tuple[PyTree, EnvStep]]  # keys [B], state, action [B, …]
    external: bool = False  # state lives outside the program: not saved, never vmapped
    summarise: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    # host function: sums of info over episodes [episodes] -> evaluation metrics per episode or scalar
    picture: Callable[..., None] | None = None
    # host function: (act, carry, key, label, folder) saves PNGs of an episode into a folder, where
    # act(carry, obs, key) -> (action, carry) plays one copy and label names the agent
    draw: Callable[..., None] | None = None  # host function: (matplotlib axes, one observation) draws it
    host: Any = None  # external: the object that keeps the simulators, see envs/outside/host.py
    for_evaluation: Any = None  # an Env to evaluate in, with simulators of its own; None: this one


class Transition(NamedTuple):
    """Leading axes [T, B] out of an unroll, [n, N] out of a replay. Built only in rollout.py."""

    obs: PyTree  # […, *obs_shape]
    action: Array  # […, *action_shape]
    reward: Array  # […] float32
    discount: Array  # […] float32: 0 where terminated, else 1; gamma stays in the agent
    last: Array  # […] bool: terminated | truncated; cuts multi-step recursions
    next_obs: PyTree  # […, *obs_shape] BEFORE auto-reset
    extras: PyTree  # what act() returned: behaviour log-probability, recurrent carry, version


class Batch(NamedTuple):
    """What an agent learns from."""

    data: Transition
    weight: Array  # [N] importance weights, 1 where sampling was uniform
    index: Array  # type: ignore[assignment]  # [N] int32 replay slots; () for trajectories


class LearnerState(NamedTuple):
    """All that learning carries along."""

    params: PyTree
    target: PyTree  # target networks, () if none
    opt: PyTree
    hypers: dict[str, Array]  # traced scalars: a sweep varies them without recompiling
    aux: PyTree  # running statistics, counters of the agent's own, () if none
    step: Array  # [] int32 updates so far
    progress: Array  # [] float32 part of the run's budget that is used up; the workflow sets it


class UpdateInfo(NamedTuple):
    """What one gradient reports."""

    metrics: Metrics  # scalars
    priority: Array  # [N] new replay priorities (positive, before alpha); () if none


class Agent(NamedTuple):
    """An algorithm as pure functions. `gradient` and `apply` are apart because the mean over
    devices and ranks stands between them and belongs to the workflow."""

    data: str  # "transitions" (windows from replay) or "trajectories" ([T, B] unrolls)
    batch_size: int  # N of a replay sample; 0 for trajectories
    window: int  # n of a replay sample; 1 for trajectories
    init: Callable[[Array, dict[str, Array]], LearnerState]  # (key, hypers)
    actor: Callable[[LearnerState], PyTree]  # everything an actor needs, and no more
    carry: Callable[[Array], PyTree]  # env ids [B] -> per-copy actor state [B, …], () if none
    act: Callable[..., tuple[Array, PyTree, PyTree]]
    # (actor_params, carry, obs [B], key [B], greedy: static bool) -> (action, carry, extras)
    gradient: Callable[[LearnerState, Batch, Array], tuple[PyTree, UpdateInfo]]
    apply: Callable[[LearnerState, PyTree], LearnerState]
    plan: Callable[[LearnerState, Batch, Array], Batch] | None = None
    # (state, batch, key) -> batches [M, …] learned from one after the other; None: the batch itself
    priority: Callable[[PyTree, Batch], Array] | None = None  # (actor_params, batch) -> [N]
    moments: Callable[[LearnerState, Transition], PyTree] | None = None
    # sums over an unroll for running statistics; added over shards, then given to observe
    observe: Callable[[LearnerState, PyTree], LearnerState] | None = None
    absorb: Callable[[PyTree, PyTree, Transition], tuple[PyTree, PyTree]] | None = None
    # (actor_params, carry, step [B]) -> (carry, extras) once a step's reward is known; before any reset


@struct.dataclass
class Ring:
    """A ring of rows. A checkpoint writes only rows added since the one before it.

    Row i of every leaf belongs to slot i; slots are written in order, over and over.
    """

    data: PyTree  # leaves [slots, …]
    written: Array  # [] int32 slots written since the beginning (not modulo)


class SharedReplay(NamedTuple):
    """Sampling a memory that is divided over S shards as one: functions of one shard. The workflow moves
    data between them. N is the batch of all shards together."""

    mass: Callable[[PyTree], tuple[PyTree, Array]]  # state -> (state, [] share in the whole)
    offer: Callable[[PyTree, Array, Array, Array], Array]
    # (state, shard [], masses [S], key of all shards) -> [N, words] uint32, zero where others own the draw
    assemble: Callable[[PyTree, Array, Array], Batch]  # (any state, sum of offers, progress) -> [n, N]
    scale: Callable[[PyTree, Array], Array]  # (any state, priority [N]) -> values [N]
    prioritise: Callable[[PyTree, Array, Array, Array], PyTree]  # (state, shard [], index [N], values [N])


class Replay(NamedTuple):
    """A memory as pure functions, in place under donation."""

    init: Callable[[Transition, dict[str, Array]], PyTree]
    # (one example transition without leading axes, hypers) -> state
    add: Callable[[PyTree, Transition, Array | None], PyTree]
    # (state, unroll [T, B], initial priorities [T, B] or None for the maximum so far)
    sample: Callable[[PyTree, Array, Array], Batch]  # (state, key, progress) -> windows [n, N]
    prioritise: Callable[[PyTree, Array, Array], PyTree]  # (state, index [N], priority [N])
    ready: Callable[[PyTree], Array]  # state -> [] bool: may be sampled
    min_steps: int  # environment steps that make it ready (static)
    shared: SharedReplay | None = None  # None: shards that sample alone are as good


class Workflow(NamedTuple):
    """How acting and learning share the machine. `step` does a chunk of the run.

    When `pure`, init, warmup and step are traceable functions that the runner compiles, donates,
    places on devices and repeats over seeds; otherwise they are called on the host as they are.
    """

    init: Callable[[Array, PyTree], PyTree]  # (key, hypers) -> state: the whole of the run
    warmup: Callable[[PyTree], PyTree] | None  # fills the replay before the first step
    step: Callable[[PyTree, Any], tuple[PyTree, Metrics]]  # (state, iterations [] int32)
    counters: Callable[[PyTree], dict[str, Array]]  # env_steps, updates, iterations
    learner: Callable[[PyTree], LearnerState]
    steps_per_iteration: int  # environment steps
    warmup_steps: int  # environment steps
    pure: bool = True
    programs: Any = None  # not pure: the object behind these functions
