"""Train a config: set up the machine, build, compile, start or resume, run, sum up."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_hpc import machine
from jaxrl_hpc.build import Parts, build, hypers_of
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config, from_dict
from jaxrl_hpc.crew import Crew
from jaxrl_hpc.envs.outside.host import telling
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.fleet import Fleet, Lane
from jaxrl_hpc.hosted import HostedFleet
from jaxrl_hpc.io.checkpoint import state_bytes
from jaxrl_hpc.io.metrics import warm_up
from jaxrl_hpc.io.progress import Progress
from jaxrl_hpc.io.run import RunDirectory
from jaxrl_hpc.io.trace import merge
from jaxrl_hpc.io.tracking import check_installed
from jaxrl_hpc.signals import StopSignals
from jaxrl_hpc.trainer import Stretch, Trainer
from jaxrl_hpc.workers import WorkerFleet
from jaxrl_hpc.workflows.engine import Engine
from jaxrl_hpc.workflows.workshop import Workshop

EXIT_SAVED = 75  # stopped by a signal, state saved: start again with --resume
# what may differ between a run and its continuation
HARMLESS = (
    "run.checkpoint_seconds", "run.keep_checkpoints", "run.progress_seconds", "run.tensorboard",
    "run.trackers", "run.profile", "run.executors", "run.threads", "run.record_schedule", "workflow.devices",
    "workflow.deadline_seconds", "workflow.actors", "workflow.workers", "workflow.one_sided",
    "workflow.progress_thread",
)  # fmt: skip


class Outcome(NamedTuple):
    """How a call of train ended."""

    finished: bool  # False: stopped by a signal after saving
    summary: dict[str, Any] | None
    speaks: bool = True  # False on ranks that leave talking to rank 0


def lanes_of(config: Config) -> list[Lane]:
    """One lane per seed, all with the config's hyperparameters."""
    return [Lane(config.run.seed + i, hypers_of(config)) for i in range(config.run.seeds)]


def make_fleet(config: Config, parts: Parts, lanes: Sequence[Lane], episodes: int | None = None) -> Fleet:
    """Lanes on this machine's devices, as the config wants them."""
    if isinstance(parts.workflow.programs, Engine):
        return Crew(config, parts, lanes, episodes or config.run.eval_episodes)
    if isinstance(parts.workflow.programs, Workshop):
        return WorkerFleet(config, parts, lanes, episodes or config.run.eval_episodes)
    if not parts.workflow.pure:
        return HostedFleet(parts, lanes, episodes or config.run.eval_episodes)
    mode = config.run.seeds_mode
    if parts.env.external:  # one simulator, one program at a time
        return Fleet(parts, lanes, "solo", episodes or config.run.eval_episodes, jax.local_devices()[:1])
    if mode == "auto":
        mode = "solo" if jax.default_backend() == "cpu" else "vmap"
    devices = jax.local_devices()
    if jax.default_backend() == "cpu":
        devices = devices[: machine.executors_for(config, len(lanes))]
    return Fleet(parts, lanes, mode, episodes or config.run.eval_episodes, devices)


def check_one_seed(parts: Parts, lanes: Sequence[Lane]) -> None:
    """Outside simulators cannot be shared by the lanes of one process."""
    if parts.env.external and len(lanes) > 1:
        raise UserError(
            f"run.seeds: env {parts.env.spec.name!r} runs outside of the program, with one seed per process, "
            f"but this process is to train {len(lanes)}: set run.seeds=1 and start one process per run.seed "
            "(of a sweep: trials_per_task: 1)"
        )
    if parts.env.external:
        parts.env.host.seed = lanes[0].seed


def check_memory(fleet: Fleet) -> int:
    """Peak bytes of the run; UserError if they cannot fit."""
    state = state_bytes(fleet.state_shape()) * len(fleet.groups)
    needed = int(state * 1.1) + 2**28  # one tenth and the runtime itself on top
    free = machine.available_memory()
    if needed > free:
        raise UserError(
            f"the run needs {needed / 2**30:.1f} GiB ({state / 2**30:.1f} GiB of it state of "
            f"{len(fleet.lanes)} seeds), but {free / 2**30:.1f} GiB are free: "
            "lower replay.capacity or run.seeds (of a sweep trials_per_task)"
        )
    return needed


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Dotted names of values that differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new})
        inner = [differences(old.get(k), new.get(k), f"{path}.{k}" if path else k) for k in keys]
        return [line for lines in inner for line in lines]
    return [] if old == new else [f"{path} was {old!r} and is {new!r}"]


def completed(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved config with today's defaults for fields that were not there yet when it was saved."""
    try:
        return from_dict(saved).to_dict()
    except UserError:  # it has what is no longer there: told as a difference
        return saved


def check_same_config(config: Config, saved: dict[str, Any]) -> None:
    found = differences(completed(saved), config.to_dict())
    changed = [d for d in found if d.split(" ")[0] not in HARMLESS]
    if changed:
        raise UserError(
            f"--resume continues a run exactly, but its config has changed: {'; '.join(changed)}. "
            "Undo that, or start a new run with another --run-dir"
        )


def train(
    config: Config,
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    lanes: Sequence[Lane] | None = None,
    stretch: Stretch | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Train as the config says, in runs/<name> unless told otherwise.

    In a job of several ranks all of them call this; rank 0 writes and speaks for all.
    """
    lanes = lanes_of(config) if lanes is None else lanes
    ranks = machine.ranks_of(config)
    say = say if ranks.first else lambda _: None
    folder = Path(run_dir or Path("runs") / config.run.name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ranks.guard())
        resume = ranks.share(resume)  # a rank that looked later may see the folder that rank 0 has just made

        def claim() -> tuple[RunDirectory, dict[str, Any] | None]:
            run = RunDirectory.open(folder, resume=resume)
            stack.enter_context(run.lock())
            if not run.config_path.exists():
                return run, None
            check_same_config(config, run.read_config())
            return run, run.read_summary()

        run, summary = ranks.first_does(claim)
        if summary is not None:
            say(f"{run.path} is finished already")
            return Outcome(True, summary, ranks.first)
        ranks.first_does(lambda: check_installed(config.run.trackers))
        stop = stack.enter_context(StopSignals())
        deadline = getattr(config.workflow, "deadline_seconds", 0.0)
        watchdog = stack.enter_context(Watchdog(ranks, run.path / "ranks", deadline))
        if hint := machine.prepare(config, len(lanes)):
            say(hint)
        parts = build(config)
        check_one_seed(parts, lanes)
        stack.enter_context(telling(parts.env))
        fleet = make_fleet(config, parts, lanes)
        learns = not isinstance(fleet, Crew | WorkerFleet) or ranks.all_succeed(
            lambda: fleet.join(ranks, watchdog, run.path)
        )
        ranks.all_succeed(lambda: check_memory(fleet) if learns else 0)
        ranks.first_does(lambda: run.write_config(config.to_dict()))
        if isinstance(fleet, Crew | WorkerFleet) and not learns:
            finished = fleet.act(stop)
            ranks.barrier()
            return Outcome(finished, None, speaks=False)
        what = "trial" if stretch else "seed"
        say(f"compiling for {len(lanes)} {what}(s) on {fleet.place()} …")
        # while the compiler works, so that the first checkpoint does not have to wait for it
        warming = threading.Thread(target=warm_up, daemon=True)
        warming.start()
        fleet.compile()
        warming.join()
        trainer = Trainer(config, parts, fleet, run, say, stretch)
        trainer.watchdog = watchdog
        trainer.begin(resume)
        trainer.progress = Progress(
            trainer.total_env_steps,
            config.run.name,
            start=trainer.env_steps if trainer.iterations else 0,
            seeds=len(lanes),
            unit=f"{what}s",
            interval=config.run.progress_seconds,
            stream=None if ranks.first else stack.enter_context(open(os.devnull, "w")),
        )
        with trainer.progress:
            finished = trainer.loop(stop)
            summary = trainer.finish() if finished else None
        for writer in trainer.writers:
            writer.close()
        if config.run.profile:
            trainer.trace.write(run.path)
            fleet.ranks.barrier()
            fleet.ranks.first_does(lambda: merge(run.path))
        if not finished:
            done = f"{trainer.stopped_by}: saved at {trainer.env_steps:,} steps"
            say(f"{done}; continue with the same command and --resume (run directory {run.path})")
        ranks.barrier()  # a launcher may end the others as soon as one has gone
        return Outcome(finished, summary, ranks.first)
