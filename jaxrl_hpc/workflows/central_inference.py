"""Environments on ranks of their own, the policy in one place: SEED (Espeholt et al. 2020).

    environment rank:  step ── observation, reward, flags ──→ server:  batch → act ── actions ──→ step
                                                              transitions → unrolls → learn

Environment ranks have no parameters, so nothing is published and nobody acts with an old copy: lag is only
what happens while an unroll is being filled. Recurrent carries live on the server. Everything else, from
several servers (which average gradients) to checkpoints, is as in `async`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.control import Control
from jaxrl_hpc.comm.packing import Packing
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.io.trace import Trace
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Env, Metrics, PyTree, Replay, Workflow
from jaxrl_hpc.workflows.apart import ApartConfig
from jaxrl_hpc.workflows.asynchronous import make_apart
from jaxrl_hpc.workflows.engine import Engine
from jaxrl_hpc.workflows.inference_server import Greeting, InferenceServer, Letters, Rules, Stepped
from jaxrl_hpc.workflows.learner import State
from jaxrl_hpc.workflows.slots import Inference, known_of
from jaxrl_hpc.workflows.stepping import Line, Stepper, advance


class Config(ApartConfig):
    """Central inference: learners are servers, actors are environment ranks."""

    name: Literal["central_inference"] = "central_inference"
    inference_batch: int = static(0, "environment ranks answered at once; 0: all of a server's", ge=0)
    inference_seconds: float = static(1e-3, "the first of a batch waits at most so long for others", ge=0)


class CentralEngine(Engine):
    """The engine with a server in place of a transport."""

    config: Config

    def connect(self, ranks: Ranks, hypers: PyTree) -> Roles:
        roles, learning, settings = self.assign(ranks), self.learning, self.learning.settings
        self._agree_on_acting(roles, hypers)
        running = jax.eval_shape(self.acting.start, jax.random.key(0), jax.ShapeDtypeStruct((), jnp.int32))
        letters, known = self._letters(running)
        if roles.learns:
            inference = Inference(learning.agent, settings.length, settings.priorities)
            config = self.config
            rules = Rules(config.inference_batch, config.inference_seconds, config.in_flight, config.lockstep)
            self.channel = InferenceServer(self.acting, inference, letters, roles, rules, known)
        else:
            self.channel = Line(roles, letters)
        self.control = Control(roles.comm)
        return roles

    def _letters(self, running: PyTree) -> tuple[Letters, PyTree]:
        """Layouts of messages from the shape of a rank's copies."""
        env, spec = self.learning.env, self.learning.env.spec
        copies = self.learning.settings.copies
        known = jax.eval_shape(known_of, running)
        action = jax.ShapeDtypeStruct((copies, *spec.action_shape), spec.action_dtype)
        _, step = jax.eval_shape(lambda state, action: advance(env, state, action), running, action)
        letters = Letters(
            hello=Packing.of(Greeting(known, np.int64(0))),
            step=Packing.of(Stepped(step, np.float64(0), np.float64(0))),
            action=Packing.of(action),
            carry=Packing.of(running.carry),
        )
        return letters, known

    def actor(self, watchdog: Watchdog, trace: Trace, replayed: bool) -> Stepper:
        """For environment ranks."""
        learning, ends = self.learning, (self.channel, self.control, watchdog, trace)
        return Stepper(
            self.acting,
            self.roles,
            *ends,
            lag=0,
            lockstep=self.config.lockstep,
            replayed=replayed,
            given_up=self._given_up,
            env=learning.env,
            length=learning.settings.length,
        )

    def open(self, state: State, kept: Any, watchdog: Any, run: Path, **settings: Any) -> None:
        if self.team.has_data:
            record, replayed = settings["record"], settings["replayed"]
            if (record or replayed) and kept is not None:
                raise UserError(
                    "run.record_schedule, run.replay_schedule: a resumed run begins those unrolls anew that "
                    "were under way, which no schedule shows; start a new run"
                )
            name = f"inference-{self.roles.number}.csv"
            self.channel.keep_order(run / name, record, Path(replayed) / name if replayed else None)
        super().open(state, kept, watchdog, run, **settings)

    def _metrics(self, state: State, sums: Metrics, iterations: int) -> Metrics:
        """Acting for others is no idle time, though the learner waits for unrolls meanwhile."""
        before = self._clock[1]
        metrics = super()._metrics(state, sums, iterations)
        elapsed = (self._clock[1] - before) * self.learning.settings.served
        busy = 1e-6 * metrics.pop("inference_microseconds") / max(elapsed, 1e-9)
        idle = jnp.maximum(metrics["learner_idle"] - busy, 0.0)
        return metrics | {"learner_idle": idle, "inference_share": busy}

    def publish(self, state: State, version: int) -> None:
        """The server acts with the learner's own parameters."""
        if self.mailbox is not None:
            self.channel.publish(version, self._programs["params"](state))


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    if config.actor_lag:
        raise UserError("workflow.actor_lag: with central inference nobody has old parameters; set it to 0")
    plain = make_apart(config, TWO_SIDED, env, agent, replay, total_env_steps)
    made: Engine = plain.programs
    engine = CentralEngine(config, TWO_SIDED, made.learning, made.warmup_iterations)
    return plain._replace(
        init=engine.init,
        warmup=engine.warmup if plain.warmup else None,
        step=engine.step,
        programs=engine,
    )
