"""The types shared by all parts of the package. Imports no other module of the package.

Letters in shape comments: T time, B environment copies, N replay samples, n window length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import numpy as np
from flax import struct

if TYPE_CHECKING:
    from jaxrl_hpc.comm.ranks import Ranks
    from jaxrl_hpc.comm.watchdog import Watchdog
    from jaxrl_hpc.datasets import Dataset

PyTree = Any
Array = jax.Array
Metrics = dict[str, jax.Array]
Loops = dict[str, tuple[Callable[[jax.Array, PyTree], PyTree], PyTree]]  # name -> (loop body, first carry)


class Part(NamedTuple):
    """A part of an observation that was flattened into one vector."""

    name: str  # the way to it, such as sensors/position
    shape: tuple[int, ...]
    start: int  # its first element in the vector
    one_hot: bool = False  # a whole number below shape[0], one-hot encoded


class EnvSpec(NamedTuple):
    """Description of an environment for agents. Static, hashable up to the numpy bounds."""

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype
    num_actions: int | None  # None: continuous, or several choices (action_sizes)
    action_shape: tuple[int, ...]  # () for one choice
    action_low: np.ndarray | None  # [*action_shape], None when discrete
    action_high: np.ndarray | None
    max_episode_steps: int  # the time limit; bounds an evaluation
    info_keys: tuple[str, ...] = ()  # per-step scalars in EnvStep.info, summed over an episode
    action_sizes: tuple[int, ...] = ()  # MultiDiscrete: the number of choices of each part of an action
    layout: tuple[Part, ...] = ()  # what was flattened into the observation; () if nothing was
    action_mask: bool = False  # the observation's last `choices` elements are the mask of allowed actions

    @property
    def discrete(self) -> bool:
        return self.num_actions is not None or bool(self.action_sizes)

    @property
    def choices(self) -> int:
        """Discrete actions: how many, of all parts together."""
        return self.num_actions or sum(self.action_sizes)

    @property
    def action_dtype(self) -> np.dtype:
        return np.dtype(np.int32 if self.discrete else np.float32)


class EnvStep(NamedTuple):
    """One step of B environment copies that reset themselves."""

    obs: PyTree  # [B, …] to act on next: after a reset where the episode ended
    final_obs: PyTree  # [B, …] observation after the step, BEFORE any reset
    reward: Array  # [B] float32
    terminated: Array  # [B] bool
    truncated: Array  # [B] bool
    info: dict[str, Array]  # name in spec.info_keys -> [B] float32


class HostHooks(NamedTuple):
    """Host functions of an environment, besides its compiled steps. None: not available."""

    simulators: Any = None  # keeps simulators that live outside the program (envs/external/host.py)
    external: bool = False  # they own the copies' state: not saved, never vmapped
    summarise: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    # sums of info over episodes [episodes] -> evaluation metrics per episode or scalar
    picture: Callable[..., None] | None = None
    # (act, carry, key, label, folder) saves PNGs of an episode into a folder, where
    # act(carry, obs, key) -> (action, carry) plays one copy and label names the agent
    draw: Callable[..., None] | None = None  # (matplotlib axes, one observation) draws it
    for_evaluation: Env | None = None  # to evaluate in, with simulators of its own; None: the same one
    recorded: Callable[[], Dataset] | None = None
    # recorded transitions instead of an environment to act in: `estimate` replaces episodes
    estimate: Callable[[Callable[[PyTree, Array], Array], Array, int], Array] | None = None
    # (greedy act(obs [N, …], key [N]) -> action, key, number) -> returns [number] from recorded starts
    read_recording: Callable[[str], Dataset] | None = None  # reads a file in the real machine's own format


class Env(NamedTuple):
    """A batch of environment copies. Jittable ones are a vmap; external simulators batch themselves."""

    spec: EnvSpec
    reset: Callable[[Array], tuple[PyTree, PyTree]]  # keys [B] -> (state, obs)
    step: Callable[[Array, PyTree, Array], tuple[PyTree, EnvStep]]  # keys [B], state, action [B, …]
    host: HostHooks = HostHooks()

    @property
    def external(self) -> bool:
        """Whether the copies' state is outside the program."""
        return self.host.external

    def with_hooks(self, **hooks: Any) -> Env:
        """The same environment with some of its host hooks replaced."""
        return self._replace(host=self.host._replace(**hooks))


class Transition(NamedTuple):
    """Leading axes [T, B] from an unroll, [n, N] from a replay. Built only in rollout.py."""

    obs: PyTree  # […, *obs_shape]
    action: Array  # […, *action_shape]
    reward: Array  # […] float32
    discount: Array  # […] float32: 0 where terminated, else 1; gamma stays in the agent
    last: Array  # […] bool: terminated | truncated; cuts multi-step recursions
    next_obs: PyTree  # […, *obs_shape] BEFORE auto-reset
    extras: PyTree  # what act() returned: behaviour log-probability, recurrent carry, version


class Batch(NamedTuple):
    """Data that an agent learns from."""

    data: Transition
    weight: Array  # [N] importance weights, 1 where sampling was uniform
    index: Array  # type: ignore[assignment]  # [N] int32 replay slots; () for trajectories


class LearnerState(NamedTuple):
    """State of learning."""

    params: PyTree
    target: PyTree  # target networks, () if none
    opt: PyTree
    hypers: dict[str, Array]  # traced scalars: a sweep varies them without recompiling
    aux: PyTree  # running statistics, counters of the agent's own, () if none
    step: Array  # [] int32 updates so far
    progress: Array  # [] float32 elapsed fraction of the run's budget; set by the workflow


class UpdateInfo(NamedTuple):
    """Results of a gradient besides the gradient itself."""

    metrics: Metrics  # scalars
    priority: Array  # [N] new replay priorities (positive, before alpha); () if none
    statistics: PyTree = ()  # sums over the batch, added over shards and given to `apply`; () for most agents


class Windows(NamedTuple):
    """Samples of a replay: batches [n, N] of windows of consecutive steps."""

    length: int  # n
    batch_size: int  # N


class Unrolls(NamedTuple):
    """Whole unrolls [T, B], each learned from once."""

    length: int = 1
    batch_size: int = 0


class Agent(NamedTuple):
    """An algorithm as pure functions. `gradient` and `apply` are separate because the workflow averages
    gradients over devices and ranks between them."""

    needs: Windows | Unrolls  # what it learns from
    init: Callable[..., LearnerState]  # (key, hypers); hypers are optional for agents of `rl.agents`
    actor: Callable[[LearnerState], PyTree]  # the parameters that an actor needs
    carry: Callable[[Array], PyTree]  # env ids [B] -> per-copy actor state [B, …], () if none
    act: Callable[..., tuple[Array, PyTree, PyTree]]
    # (actor_params, carry, obs [B], key [B], greedy: static bool) -> (action, carry, extras)
    gradient: Callable[[LearnerState, Batch, Array], tuple[PyTree, UpdateInfo]]
    # the gradients, or {"params": gradients, …} with scalars on which `apply` depends: it may be called at a
    # later step, elsewhere, with a mean of gradients. Anything that both depend on belongs here, not in the
    # state
    apply: Callable[..., LearnerState]
    # (state, gradients, statistics): means and sums over shards of what `gradient` gave
    minibatches: Callable[[LearnerState, Batch, Array], Batch] | None = None
    # (state, batch, key) -> batches [M, …] learned from one after the other; None: the batch itself
    priority: Callable[[PyTree, Batch], Array] | None = None  # (actor_params, batch) -> [N]
    statistics: Callable[[LearnerState, Transition], PyTree] | None = None
    # sums over an unroll for running statistics; added over shards, then given to update_statistics
    update_statistics: Callable[[LearnerState, PyTree], LearnerState] | None = None
    after_step: Callable[[PyTree, PyTree, Transition], tuple[PyTree, PyTree]] | None = None
    # (actor_params, carry, step [B]) -> (carry, extras) once a step's reward is known; before any reset
    stochastic: bool = False  # the policy is a distribution over actions, from which exports can draw
    origin: Any = None  # settings and sizes it was made with, to check that parts fit (api/parts.py)


@struct.dataclass
class Ring:
    """A ring of rows. A checkpoint writes only rows added since the previous one.

    Row i of every leaf belongs to slot i; slots are written in order, over and over.
    """

    data: PyTree  # leaves [slots, …]
    written: Array  # [] int32 slots written since the beginning (not modulo)


class SharedReplay(NamedTuple):
    """Samples a memory that is divided over S shards as a single one: functions of one shard, or of the L
    shards of a device. The workflow moves data between them. N is the batch of all shards together."""

    mass: Callable[[PyTree], tuple[PyTree, Array]]  # state -> (state, [] share in the whole)
    offer: Callable[[PyTree, Array, Array, Array], Array]
    # (states [L, …], shards [L] that follow each other, masses [S], key of all shards) -> [N, words] uint32,
    # zero where others own the draw
    assemble: Callable[[PyTree, Array, Array], Batch]  # (any state, sum of offers, progress) -> [n, N]
    scale: Callable[[PyTree, Array], Array]  # (any state, priority [N]) -> values [N]
    prioritise: Callable[[PyTree, Array, Array, Array], PyTree]  # (state, shard [], index [N], values [N])


class Replay(NamedTuple):
    """A memory as pure functions, in place under donation."""

    init: Callable[..., PyTree]
    # (one example transition without leading axes, hypers) -> state; those of `rl.replay` know both
    add: Callable[..., PyTree]
    # (state, unroll [T, B], initial priorities [T, B] or None for the maximum so far)
    sample: Callable[..., Batch]  # (state, key, progress) -> windows [n, N]
    prioritise: Callable[[PyTree, Array, Array], PyTree]  # (state, index [N], priority [N])
    min_steps: int  # environment steps after which it may be sampled (static)
    shared: SharedReplay | None = None  # None: independent sampling of shards is equivalent
    drawable: Callable[[PyTree], Array] | None = None
    # state -> [] share of its complete windows that a sample can draw; counts all, so not for every update
    has_priorities: bool = True  # False: it ignores them
    capacity: int = 0  # transitions that it keeps (static); 0: unknown
    origin: Any = None  # settings and sizes it was made with, to check that parts fit (api/parts.py)


class Role(NamedTuple):
    """The part of one process in a job."""

    learns: bool  # False: it assists the processes that do
    ranks: Ranks  # the processes that learn together with this one; the first of them writes and evaluates


class Job(NamedTuple):
    """Arguments of a run for its workflow when all processes of the job join."""

    ranks: Ranks  # all processes
    watchdog: Watchdog  # gets every phase, and progress in it
    folder: Path  # of the run
    seeds: int  # trained in this job
    key: Array  # [] of the first seed, for `Workflow.init`
    hypers: PyTree  # of the first seed, for `Workflow.init`
    record_schedule: bool = False
    replay_schedule: str = ""  # folder of the run whose schedule is replayed; empty: none
    profile: bool = False
    stop: StopRequest | None = None  # for workflows that may wait for long


class StopRequest(Protocol):
    """Whether the run has been requested to stop."""

    number: int  # number of the signal, 0 if none


class Store(Protocol):
    """Checkpoints of a workflow. All methods are collective among processes that learn."""

    def latest(self) -> int | None:
        """The step of the newest checkpoint; None if there is none."""
        ...

    def save(self, step: int, states: Sequence[PyTree], host: dict[str, Any]) -> object:
        """Write a checkpoint atomically.

        Args:
          step: its number, the iterations of the run so far.
          states: one state per seed (or one for all of them if they are stacked).
          host: other data of the run, as JSON.
        """
        ...

    def restore(self, shapes: Sequence[PyTree]) -> tuple[int, list[PyTree], dict[str, Any]]:
        """The newest good checkpoint.

        Args:
          shapes: structure, shapes and dtypes of the states.

        Returns:
          step, states, host: as they were saved.
        """
        ...


class Placement(NamedTuple):
    """How a state is distributed over devices."""

    state: int  # bytes on each of them
    here: int = 1  # devices of this process
    everywhere: int = 1  # devices that share the work


class Workflow(Protocol):
    """How acting and learning share the machine: the interface between a run and its workflow.

    Its state is this process's part of the whole run. A traceable workflow gives pure
    functions, which the runner compiles, donates, places on devices and repeats over seeds. Any other
    compiles its own programs and is called on the host, in this order:

        join ─→ compile ─→ init or Store.restore ─→ start ─→ warmup ─→ step … step ─→ close
          └─→ assist (processes that do not learn)

    A process that only inspects a run (to evaluate or export it) calls init under `jax.eval_shape`, store and
    learner, and never joins. `workflows/base.py` has defaults for everything but init, step, learner and
    counters.
    """

    @property
    def traceable(self) -> bool:
        """Whether init, warmup and step may be traced, vmapped and donated."""
        ...

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one iteration, of all processes."""
        ...

    @property
    def warmup_steps(self) -> int:
        """Environment steps before the first iteration."""
        ...

    @property
    def has_warmup(self) -> bool:
        """Whether `warmup` is to be called on a fresh state."""
        ...

    @property
    def device(self) -> jax.Device:
        """Where this process evaluates."""
        ...

    def join(self, job: Job) -> Role:
        """Become part of a job; collective.

        Returns:
          the role of this process. Only those that learn continue; the others call `assist`.
        """
        ...

    def assist(self, stop: StopRequest) -> bool:
        """Run a process that does not learn until it is released.

        Args:
          stop: requests received by this process, to be forwarded to those that learn.

        Returns:
          whether the run is finished.
        """
        ...

    def compile(self, shape: PyTree) -> None:
        """Compile the programs of a workflow that is not traceable, for a state of these shapes."""
        ...

    def init(self, key: Array, hypers: PyTree) -> PyTree:
        """A fresh state.

        Args:
          key: of the seed; consumed.
          hypers: section (agent, replay) -> name -> traced number.
        """
        ...

    def placement(self, shape: PyTree) -> Placement:
        """How a state of these shapes is distributed over devices; for the estimate of memory."""
        ...

    def start(self, state: PyTree) -> PyTree:
        """Place a fresh or restored state on devices and start training, with helpers if there are any."""
        ...

    def warmup(self, state: PyTree) -> PyTree:
        """Fill the replay of a fresh state before the first step. Called if `has_warmup`."""
        ...

    def step(self, state: PyTree, iterations: Any) -> tuple[PyTree, Metrics]:
        """A chunk of the run.

        Args:
          state: consumed.
          iterations: how many; a traced int32 if the workflow is traceable, else an int.

        Returns:
          the state after them, and scalars: means over the chunk, `updates` so far, episodes that ended.
        """
        ...

    def made(self, asked: int) -> int:
        """Iterations of the last step: fewer than asked if it was broken off, with a request to stop."""
        ...

    def host_metrics(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Metrics of a chunk to log, once they are on the host. May raise to end the run."""
        ...

    def learner(self, state: PyTree) -> LearnerState:
        """The learner, to evaluate it."""
        ...

    def counters(self, state: PyTree) -> dict[str, Array]:
        """iteration, env_steps, updates."""
        ...

    def store(self, directory: Path, keep: int) -> Store:
        """How states are saved and loaded.

        Args:
          directory: of the run's checkpoints.
          keep: how many to keep.
        """
        ...

    def stop_request(self) -> tuple[int, int]:
        """(signal, rank) of a request to stop received by a helper; zeros if none."""
        ...

    def describe(self) -> str:
        """Description of where the run takes place; empty: the runner describes it."""
        ...

    def summary_extras(self) -> dict[str, Any]:
        """More for the run's summary."""
        ...

    def profile(self, state: PyTree) -> Loops:
        """Parts of an iteration that can be timed alone; empty: none."""
        ...

    def close(self, finished: bool) -> None:
        """Release helpers after training has finished or stopped. The last checkpoint is saved afterwards."""
        ...
