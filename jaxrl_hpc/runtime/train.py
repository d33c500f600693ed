"""Train a config: set up the machine, build, compile, start or resume, run, summarise."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config
from jaxrl_hpc.config.compare import check_same_config
from jaxrl_hpc.envs.external.host import simulator_failures_told
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.progress import Compiling, Progress
from jaxrl_hpc.metrics.trace import merge
from jaxrl_hpc.metrics.trackers import check_installed
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime import engine, machine
from jaxrl_hpc.runtime.build import Parts, build, hypers_of
from jaxrl_hpc.runtime.memory import check_memory
from jaxrl_hpc.runtime.seeds import Lane, SeedRunner, choose_mode
from jaxrl_hpc.runtime.signals import StopSignals
from jaxrl_hpc.runtime.trainer import Segment, Trainer
from jaxrl_hpc.types import Job
from jaxrl_hpc.user_code import remember_trusted


class TrainResult(NamedTuple):
    """Result of a call of train."""

    finished: bool  # False: stopped by a signal after saving
    summary: dict[str, Any] | None


def lanes_of(config: Config) -> list[Lane]:
    """One lane per seed, all with the config's hyperparameters."""
    return [Lane(config.run.seed + i, hypers_of(config)) for i in range(config.run.seeds)]


def make_runner(
    config: Config, parts: Parts, lanes: Sequence[Lane], episodes: int | None = None
) -> SeedRunner:
    """Lanes on this machine's devices, according to the config."""
    episodes = episodes or config.run.eval_episodes
    if not parts.workflow.traceable:
        return SeedRunner(parts, lanes, "solo", episodes, [parts.workflow.device])
    if parts.env.external:  # one simulator, one program at a time
        return SeedRunner(parts, lanes, "solo", episodes, jax.local_devices()[:1])
    mode = choose_mode(config.run.seeds_mode, len(lanes), jax.default_backend())
    devices = jax.local_devices()
    if jax.default_backend() == "cpu":
        devices = devices[: machine.executors_for(config, len(lanes))]
    return SeedRunner(parts, lanes, mode, episodes, devices)


def with_seeds_mode(config: Config, mode: str) -> Config:
    """The config with the mode that the run uses in place of `auto`."""
    if config.run.seeds_mode != "auto":
        return config
    return config.model_copy(update={"run": config.run.model_copy(update={"seeds_mode": mode})})


def check_seeds_mode(config: Config, saved: dict[str, Any]) -> None:
    """Refuse to change the mode of seeds: it determines the structure of the states."""
    modes = config.run.seeds_mode, saved.get("run", {}).get("seeds_mode", "auto")
    if "auto" not in modes and modes[0] != modes[1]:
        raise UserError(f"run.seeds_mode: the run was started with {modes[1]!r}; keep it, or use auto")


def _number(lanes: Sequence[Lane], what: str) -> str:
    return f"one {what}" if len(lanes) == 1 else f"{len(lanes)} {what}s"


def check_one_seed(parts: Parts, lanes: Sequence[Lane]) -> None:
    """External simulators cannot be shared by the lanes of one process."""
    if parts.env.external and len(lanes) > 1:
        raise UserError(
            f"run.seeds: env {parts.env.spec.name!r} runs outside the program, with one seed per process, "
            f"but this process is to train {len(lanes)}: set run.seeds=1 and start one process per run.seed "
            "(of a sweep: trials_per_task: 1)"
        )
    if parts.env.external:
        parts.env.host.simulators.seed = lanes[0].seed


def train(
    config: Config,
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    lanes: Sequence[Lane] | None = None,
    segment: Segment | None = None,
    say: Callable[[str], None] = print,
    progress: type[Progress] = Progress,
    on_summary: Callable[[dict[str, Any]], None] = lambda _: None,
) -> TrainResult:
    """Train as the config says, in `run_dir` or runs/<name>.

    `overwrite` moves an earlier run of this folder to the trash once the new one has been checked.

    In a job of several ranks all of them call this; rank 0 writes files and output. `say` gets lines of text,
    `progress` displays the run's progress, `on_summary` gets the summary once it is written, before pictures
    are drawn.
    """
    lanes = lanes_of(config) if lanes is None else lanes
    ranks = machine.ranks_of(config)
    say = say if ranks.first else lambda _: None
    folder = Path(run_dir or Path("runs") / config.run.name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ranks.guard())
        resume = ranks.share(resume)  # a later rank might see the folder that rank 0 has just made

        def claim() -> tuple[RunDirectory, dict[str, Any], dict[str, Any] | None]:
            run = RunDirectory.open(folder, resume=resume, overwrite=overwrite)
            stack.enter_context(run.lock())
            if overwrite or not run.config_path.exists():
                return run, {}, None
            saved = run.read_config()
            check_same_config(config, saved)
            check_seeds_mode(config, saved)
            return run, saved, run.read_summary()

        run, saved, summary = ranks.first_does(claim)
        if summary is not None:
            say(f"{run.path} is already finished")
            if ranks.first:
                on_summary(summary)
            return TrainResult(True, summary)
        ranks.first_does(lambda: check_installed(config.run.trackers))
        config = engine.settle(config, ranks, saved.get("workflow", {}).get("engine", "auto"))
        config = with_seeds_mode(config, ranks.share(saved.get("run", {}).get("seeds_mode", "auto")))
        stop = stack.enter_context(StopSignals())
        deadline = config.workflow.resources().deadline_seconds
        watchdog = stack.enter_context(Watchdog(ranks, run.path / "ranks", deadline))
        if hint := machine.prepare(config, len(lanes)):
            say(hint)
        if hint := machine.choose_waiting(config, ranks):
            say(hint)
        parts = build(config)
        check_one_seed(parts, lanes)
        stack.enter_context(simulator_failures_told(parts.env))
        runner = make_runner(config, parts, lanes)
        config = with_seeds_mode(config, runner.mode)
        job = Job(
            ranks,
            watchdog,
            run.path,
            len(lanes),
            *runner.first_arguments(),
            record_schedule=config.run.record_schedule,
            replay_schedule=config.run.replay_schedule,
            profile=config.run.profile,
            stop=stop,
        )
        learns = ranks.all_succeed(lambda: runner.join(job))
        ranks.all_succeed(lambda: check_memory(config, runner) if learns else 0)
        if overwrite and (moved := ranks.first_does(run.move_aside)):
            say(f"the earlier run has been moved to {moved}")
        ranks.first_does(lambda: run.write_config(config.to_dict()))
        if segment is None:  # else part of a sweep, which records its results at the end
            ranks.first_does(lambda: remember_trusted(run.path, config.to_dict()))
        if not learns:
            finished = parts.workflow.assist(stop)
            ranks.barrier()
            return TrainResult(finished, None)
        what = "trial" if lanes[0].name else "seed"
        quiet = None if ranks.first else stack.enter_context(open(os.devnull, "w"))
        with Compiling(f"for {_number(lanes, what)} on {runner.describe()}", say, quiet) as compiling:
            runner.compile(tell=compiling.tell)
        trainer = Trainer(config, parts, runner, run, say, segment)
        trainer.watchdog = watchdog
        trainer.begin(resume)
        trainer.progress = progress(
            trainer.total_env_steps,
            config.run.name,
            start=trainer.env_steps if trainer.iterations else 0,
            seeds=len(lanes),
            unit=f"{what}s",
            interval=config.run.progress_seconds,
            stream=quiet,
        )
        with trainer.progress:
            finished = trainer.loop(stop)
            summary = trainer.finish() if finished else None
        for writer in trainer.writers:
            writer.close()
        if summary is not None:
            results = summary

            def conclude() -> None:
                on_summary(results)
                trainer.draw(results)

            trainer.ranks.first_does(conclude)  # of those that learn: others wait at the barrier below
        if config.run.profile:
            trainer.trace.write(run.path)
            runner.ranks.barrier()
            runner.ranks.first_does(lambda: merge(run.path))
        if not finished:
            done = f"{trainer.stopped_by}: saved at {trainer.env_steps:,} steps"
            say(f"{done}; continue with the same command, --run-dir {run.path} and --resume")
        ranks.barrier()  # a launcher may end the others as soon as one has exited
        return TrainResult(finished, summary)
