"""Central inference as a Workflow: learners are servers, actors are environment ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.buffers import BufferLayout
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.trace import Trace
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Env, Job, Metrics, PyTree, Replay, Workflow
from jaxrl_hpc.workflows.actor_learner.config import ActorLearnerConfig, make_learning
from jaxrl_hpc.workflows.actor_learner.learner import ActorLearnerState
from jaxrl_hpc.workflows.actor_learner.messages import Link
from jaxrl_hpc.workflows.actor_learner.runtime import ActorLearner
from jaxrl_hpc.workflows.central_inference.env_client import EnvClient, ServerConnection, advance
from jaxrl_hpc.workflows.central_inference.server import (
    Hello,
    InferenceRules,
    InferenceServer,
    MessageLayouts,
    StepReport,
)
from jaxrl_hpc.workflows.central_inference.server_state import InferencePrograms, known_of


class Config(ActorLearnerConfig):
    """Central inference: learners are servers, actors are environment ranks."""

    name: Literal["central_inference"] = "central_inference"
    inference_batch: int = static(0, "environment ranks answered at once; 0: all of a server's", ge=0)
    inference_seconds: float = static(
        1e-3, "time limit in which the first rank of a batch waits for others", ge=0
    )


class CentralInference(ActorLearner):
    """Actors and learners, with a server in place of a transport."""

    config: Config

    def connect(self, roles: Roles) -> Any:
        learning, settings, config = self.learning, self.learning.settings, self.config
        running = jax.eval_shape(self.acting.start, jax.random.key(0), jax.ShapeDtypeStruct((), jnp.int32))
        layouts, known = self._layouts(running)
        if not roles.learns:
            return ServerConnection(roles, layouts)
        inference = InferencePrograms(learning.agent, settings.length, settings.priorities)
        rules = InferenceRules(
            config.inference_batch, config.inference_seconds, config.in_flight, config.lockstep
        )
        return InferenceServer(self.acting, inference, layouts, roles, rules, known)

    def _layouts(self, running: PyTree) -> tuple[MessageLayouts, PyTree]:
        """Layouts of messages from the shape of a rank's copies."""
        env, spec = self.learning.env, self.learning.env.spec
        copies = self.learning.settings.copies
        known = jax.eval_shape(known_of, running)
        action = jax.ShapeDtypeStruct((copies, *spec.action_shape), spec.action_dtype)
        _, step = jax.eval_shape(lambda state, action: advance(env, state, action), running, action)
        layouts = MessageLayouts(
            hello=BufferLayout.of(Hello(known, np.int64(0))),
            step=BufferLayout.of(StepReport(step, np.float64(0), np.float64(0))),
            action=BufferLayout.of(action),
            carry=BufferLayout.of(running.carry),
        )
        return layouts, known

    def make_actor(self, job: Job, trace: Trace) -> EnvClient:
        return EnvClient(
            self.acting,
            Link(self.roles, self.channel, self.control, job.watchdog),
            trace,
            lag=0,
            lockstep=self.config.lockstep,
            replayed=bool(job.replay_schedule),
            given_up=self._given_up,
            env=self.learning.env,
            length=self.learning.settings.length,
        )

    def check_schedules(self, job: Job, resumed: bool) -> None:
        super().check_schedules(job, resumed)
        if (job.record_schedule or job.replay_schedule) and resumed:
            raise UserError(
                "run.record_schedule, run.replay_schedule: a resumed run restarts unfinished "
                "unrolls, which are not part of a schedule; start a new run"
            )

    def start(self, state: ActorLearnerState) -> ActorLearnerState:
        if self.job is not None and self.group.has_data:
            self.check_schedules(self.job, resumed=self.restored is not None)
            name, replayed = f"inference-{self.roles.number}.csv", self.job.replay_schedule
            record = self.job.folder / name if self.job.record_schedule else None
            self.channel.keep_order(record, Path(replayed) / name if replayed else None)
        return super().start(state)

    def _metrics(self, state: ActorLearnerState, sums: Metrics, iterations: int) -> Metrics:
        """Inference does not count as idle time, though the learner waits for unrolls meanwhile."""
        before = self._clock[1]
        metrics = super()._metrics(state, sums, iterations)
        elapsed = (self._clock[1] - before) * self.learning.settings.served
        busy = 1e-6 * metrics.pop("inference_microseconds") / max(elapsed, 1e-9)
        idle = jnp.maximum(metrics["learner_idle"] - busy, 0.0)
        return metrics | {"learner_idle": idle, "inference_share": busy}

    def publish(self, state: ActorLearnerState, version: int) -> None:
        """The server acts with the learner's own parameters."""
        if self.mailbox is not None:
            self.channel.publish(version, self._programs["params"](state))


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    if config.actor_lag:
        raise UserError("workflow.actor_lag: with central inference no rank has old parameters; set it to 0")
    return CentralInference(config, TWO_SIDED, *make_learning(config, env, agent, replay, total_env_steps))
