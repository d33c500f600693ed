"""Workers that act and learn alone, and share parameters: pull, H iterations, push.

    worker w:  get parameters → H × ( unroll, K × learn ) → give the change ─┐
        ↑──────────── parameters with everybody's changes ←── rule ←─────────┘

Nobody waits for another worker's work. The rule says how changes come together (comm/exchange.py,
comm/servers.py), the optimiser is each worker's own or at the server (workflows/schemes.py). Parallel DQN as
in Gorila (Nair et al. 2015), A3C (Mnih et al. 2016), Hogwild! (Recht et al. 2011). Workers take their next
share of a chunk from a counter, so a slow one does less and holds nobody up; chunks end together.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import Agent, Env, LearnerState, Replay, Workflow
from jaxrl_hpc.workflows import learner
from jaxrl_hpc.workflows.schemes import deltas, gradients
from jaxrl_hpc.workflows.worker import State, Worker
from jaxrl_hpc.workflows.workshop import Workshop


class Config(Schema):
    """The parameter server's settings. Sizes are those of one worker."""

    name: Literal["parameter_server"] = "parameter_server"
    rule: Literal["lock", "hogwild", "accumulate", "server"] = static(
        "lock", "how changes come together: one at a time, by plain stores, number by number, at server ranks"
    )
    servers: int = static(1, "rule server: the last ranks, each with a shard of the parameters", ge=1)
    workers: int = static(0, "ranks that act and learn, checked against the job; 0: all others", ge=0)
    optimiser: Literal["worker", "server"] = static(
        "worker", "whose it is: workers give changes of parameters, or gradients for one optimiser"
    )
    local_updates: int = static(1, "H, iterations between exchanges", ge=1, le=10_000)
    num_envs: int = static(8, "environment copies of each worker", ge=1)
    unroll_length: int = static(1, "steps of every copy per iteration", ge=1)
    updates_per_iteration: int = static(1, "replay samples learned from per iteration", ge=1)
    actor_priorities: bool = static(False, "new steps are rated by the acting network, not by the maximum")
    replay: Literal["local", "global"] = static(
        "local", "each worker remembers its own steps, or everybody's"
    )
    max_lag: int | None = static(None, "changes older than so many exchanges are dropped", ge=0)
    deadline_seconds: float = static(
        300.0, "the job is ended when one of its ranks stands still for so long; 0: never", ge=0
    )

    @property
    def all_copies(self) -> int:
        """Environment copies of all workers: what exploration with an epsilon per copy is spread over."""
        return self.num_envs * self.workers_of(world().size)

    def workers_of(self, ranks: int) -> int:
        return self.workers or max(1, ranks - self.serving)

    @property
    def serving(self) -> int:
        return self.servers if self.rule == "server" else 0


def check(config: Config, agent: Agent, replay: Replay | None) -> None:
    """What does not fit together, one sentence each."""
    if config.actor_priorities and (replay is None or agent.priority is None):
        raise UserError(
            "workflow.actor_priorities: this agent's actors cannot rate their steps; set it to false"
        )
    if config.replay == "global" and replay is None:
        raise UserError("workflow.replay=global: this agent has no replay; set it to local")
    if config.optimiser == "server" and config.rule in ("hogwild", "accumulate"):
        raise UserError(
            f"workflow.rule={config.rule} can only add changes: set workflow.optimiser=worker, or rule=lock"
        )
    if config.optimiser == "server" and config.rule == "server" and config.servers > 1:
        raise UserError(
            "workflow.servers: gradients are clipped by their norm over all parameters, which no shard "
            "knows; set it to 1, or workflow.optimiser=worker"
        )
    if config.servers > 1 and config.rule != "server":
        raise UserError(f"workflow.servers: rule {config.rule!r} has none; use workflow.rule=server")


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    check(config, agent, replay)
    settings = learner.Settings(
        copies=config.num_envs,
        length=config.unroll_length,
        updates=config.updates_per_iteration,
        batch=1,
        total_env_steps=total_env_steps,
        priorities=config.actor_priorities,
        continuous=config.replay == "local",
        served=1,
    )
    warmup = -(-replay.min_steps // settings.steps_per_iteration) if replay else 0
    everyone = config.replay == "global"
    several = config.workers_of(world().size)
    per_exchange = config.local_updates * settings.steps_per_iteration
    warmup_steps = several * warmup * settings.steps_per_iteration

    def make_worker(hypers: dict) -> Worker:
        shape: LearnerState = jax.eval_shape(agent.init, jax.random.key(0), hypers)
        scheme = (deltas if config.optimiser == "worker" else gradients)(agent, shape)
        return Worker(settings, env, replay, scheme, config.local_updates, warmup, everyone)

    shop = Workshop(config, make_worker, agent, several, warmup_steps, per_exchange, total_env_steps)

    def learner_of(state: State) -> LearnerState:
        learner = shop.worker.scheme.install(state.own.state.learner, state.shared.central)
        progress = (warmup_steps + state.shared.number * per_exchange) / total_env_steps
        return learner._replace(progress=jnp.float32(progress))

    return Workflow(
        init=shop.init,
        warmup=shop.warmup if warmup else None,
        step=shop.step,
        counters=lambda s: {
            "iteration": s.shared.number,
            "env_steps": warmup_steps + s.shared.number * per_exchange,
            "updates": s.shared.updates,
        },
        learner=learner_of,
        steps_per_iteration=per_exchange,
        warmup_steps=warmup_steps,
        pure=False,
        programs=shop,
    )
