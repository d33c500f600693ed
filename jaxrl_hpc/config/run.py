"""The `run` section: budget, seeds, evaluation, logging, checkpoints."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from jaxrl_hpc.schema import Schema, folder_name, static


class RunConfig(Schema):
    """Settings of the run itself."""

    name: str = folder_name("run", "name of the run's folder under runs/")
    total_env_steps: int = static(100_000, "budget per seed, in environment steps", ge=1, le=2**31 - 1)
    seed: int = static(0, "first seed", ge=0, lt=2**31)
    seeds: int = static(1, "number of seeds to train, starting at `seed`", ge=1, le=100_000)
    seeds_mode: Literal["auto", "solo", "vmap"] = static(
        "auto",
        "solo: one program per seed, bit-identical to single runs; vmap: all in one program; auto: solo on "
        "CPUs and for one seed, else vmap; the run's config records which",
        changeable=True,
    )
    executors: int = static(
        0, "solo: seeds that train at the same time; 0: one per core", ge=0, le=4096, changeable=True
    )
    threads: int = static(
        0,
        "XLA threads of a run on CPU; 0: one, or more if the network is wide",
        ge=0,
        le=4096,
        changeable=True,
    )
    log_every: int = static(2_000, "environment steps between rows of training metrics", ge=1)
    eval_every: int = static(10_000, "environment steps between evaluations; 0: only at the end", ge=0)
    eval_episodes: int = static(32, "episodes of one evaluation", ge=1, le=1_000_000)
    final_eval_episodes: int = static(128, "episodes of the evaluation at the end", ge=1, le=1_000_000)
    checkpoint_seconds: float = static(
        300.0, "seconds between checkpoints; one is always made at the end", ge=0, changeable=True
    )
    keep_checkpoints: int = static(2, "checkpoints kept", ge=1, changeable=True)
    tensorboard: bool = static(
        True, "also write TensorBoard event files (extra: tensorboard)", changeable=True
    )
    trackers: tuple[Literal["wandb", "mlflow"], ...] = static(
        (),
        "also log to Weights & Biases or MLflow (extra: tracking), offline by default",
        changeable=True,
    )
    profile: bool = static(
        False, "time the phases of the run: columns time/… of the metrics, trace.json", changeable=True
    )
    record_schedule: bool = static(
        False,
        "asynchronous workflows: record the order of arrivals in schedule-*.csv in the run's folder",
        changeable=True,
    )
    replay_schedule: str = static(
        "",
        "asynchronous workflows: replay the order of arrivals recorded by the run in this folder; empty: no",
    )
    step_seconds: float = static(
        0.0, "sleep this many seconds in every environment step, to emulate a costly simulator", ge=0
    )
    step_tail: float = static(
        0.0,
        "Pareto distribution of step times with this shape and mean step_seconds; 0: constant, else > 1",
        ge=0,
    )
    update_seconds: float = static(
        0.0,
        "sleep this many seconds when learning from a batch, to emulate an accelerator; parts in proportion",
        ge=0,
    )
    code_dirs: tuple[str, ...] = static(
        (),
        "folders to search for your own modules, after installed packages; filled in when a config names one",
        changeable=True,
    )
    progress_seconds: float = static(
        10.0, "seconds between progress lines in a batch log", gt=0, changeable=True
    )

    @model_validator(mode="after")
    def _step_times_have_a_mean(self) -> Self:
        if 0 < self.step_tail <= 1:
            raise ValueError(f"step_tail: {self.step_tail} has no mean; set it above 1, or to 0")
        return self
