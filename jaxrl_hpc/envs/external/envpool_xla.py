"""envpool inside the compiled program, without Python: its XLA interface.

    step    a foreign function call into envpool steps all copies (microseconds, not a callback's hundreds)
    ends    when an episode has ended, a callback starts the next one of its copy at once, so that no step
            of all copies is needed for that

A pool is made, with its seed, when the program is traced, and its address is part of the program: so the
number of copies is that of the trace. Evaluation has pools of its own (`envpool_simulator.py`). A step that
hangs cannot be interrupted or dropped, as it can with `env.interface=callback`: it ends the run (`pulse.py`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.envs.external.envpool_simulator import PoolTask, go_on, make_pool, reset_some
from jaxrl_hpc.envs.external.host import MAKING_SECONDS, Host
from jaxrl_hpc.envs.external.pulse import Call, Pulse
from jaxrl_hpc.envs.external.simulator import FAULTS, ExternalConfig, describe_exception
from jaxrl_hpc.types import Array, Env, EnvSpec, EnvStep, HostHooks


class PoolState(NamedTuple):
    """The compiled program's view of the pool."""

    ticket: Array  # [] uint32: which process's pool; another after a resume
    handle: Array  # [8] uint8: envpool's, through every call, so that they stay in order
    obs: Array  # [B, …] the last observations, for episodes that are cut
    steps: Array  # [] int32 so far: the host, which is not called for every step, cannot count them


class TracedPool(NamedTuple):
    """A pool and the program's constants for it."""

    pool: Any
    ticket: int
    handle: np.ndarray
    step: Any


class PoolHost(Host):
    """Pools by number of copies. `seed` is set before anything is traced."""

    divisible = False  # a pool belongs to one place of one program

    def __init__(self, task: PoolTask, spec: EnvSpec, config: ExternalConfig) -> None:
        super().__init__(spec, lambda copies: None, config)  # type: ignore[arg-type, return-value]
        self.task = task
        self.pools: dict[int, TracedPool] = {}
        self.pulse = Pulse(config.deadline_seconds, self._hung)

    def pool(self, copies: int) -> TracedPool:
        if copies not in self.pools:
            self.pulse.start()
            words = np.random.SeedSequence([self.seed, world().rank]).generate_state(1)
            made = make_pool(self.task, copies, int(words[0]))
            handle, _, _, step = made.xla()
            ticket = int.from_bytes(os.urandom(4), "little")
            self.pools[copies] = TracedPool(made, ticket, np.asarray(handle), step)
        return self.pools[copies]

    def raw(self, copies: int) -> jax.ShapeDtypeStruct:
        """Observations in envpool's format."""
        shape = self.spec.obs_shape
        shape = (shape[-1], *shape[:-1]) if self.task.channels_last else shape
        return jax.ShapeDtypeStruct((copies, *shape), self.spec.obs_dtype)

    def start_all(self, copies: int) -> np.ndarray:
        """Reset all copies; each time further along their random streams."""
        with self._telling("resetting it"):
            return reset_some(self.pools[copies].pool, np.ones(copies, bool))

    def resume_all(self, copies: int, steps: Any) -> np.ndarray:
        """The same, further than any start so far: the first reset is how the run began."""
        self.steps = int(steps)
        self.restarted += copies
        for _ in range(1 + self.restarted // copies):
            obs = self.start_all(copies)
        return obs

    def attend(self, done: np.ndarray, sane: np.ndarray, steps: Any) -> np.ndarray:
        """Restart copies that have finished or failed -> their observations; zeros for others."""
        self.steps = int(steps)
        if not sane.all():
            wrong = {int(i): "returned numbers that are not finite" for i in np.flatnonzero(~sane)}
            self._trouble(wrong, len(wrong))
        pool, ended = self.pools[len(done)].pool, done & sane
        raw = self.raw(len(done))
        rows = np.zeros(raw.shape, raw.dtype)
        with self._telling("starting copies again"):
            if ended.any():
                rows[ended] = go_on(pool, ended, self.spec)
            if not sane.all():
                rows[~sane] = reset_some(pool, ~sane)
        return rows

    @contextlib.contextmanager
    def _telling(self, doing: str) -> Iterator[None]:
        """Turn faults into one sentence: the traceback of a callback does not help the user."""
        try:
            with self.pulse.busy(doing, max(MAKING_SECONDS, self.config.deadline_seconds)):
                yield
        except FAULTS as error:
            self._fail(self._sentence(f"{doing} {describe_exception(error)}"))

    def _hung(self, call: Call, step: int) -> None:
        """In the watching thread: only ending the job can free the program."""
        if call.doing:
            text = f"{call.doing} did not end within {call.seconds:g} s"
        else:
            self.steps = step
            text = f"its copies did not return within env.deadline_seconds = {call.seconds:g}"
        advice = "env.interface=callback with env.on_error=reset drops such episodes and continues"
        print(f"error: {self._sentence(text)}; {advice}", file=sys.stderr)
        world().abort(2)

    def forget(self) -> None:
        """Does nothing: tickets belong to this process, and the pools are part of its programs."""

    def close(self) -> None:
        self.pulse.close()
        while self.pools:
            self.pools.popitem()[1].pool.close()


def rows_like(flags: Array, like: Array) -> Array:
    """Flags [B] that broadcast against [B, …]."""
    return flags.reshape(-1, *([1] * (like.ndim - 1)))


def env_of_pool(host: PoolHost) -> Env:
    """The training environment."""
    spec, task = host.spec, host.task

    def arrange(obs: Array) -> Array:
        return jnp.moveaxis(obs, 1, -1) if task.channels_last else obs

    def reset(keys: Array) -> tuple[PoolState, Array]:
        copies = keys.shape[0]
        pool = host.pool(copies)
        obs = arrange(io_callback(lambda: host.start_all(copies), host.raw(copies), ordered=True))
        return PoolState(jnp.uint32(pool.ticket), jnp.asarray(pool.handle), obs, jnp.int32(0)), obs

    def step(keys: Array, state: PoolState, action: Array) -> tuple[PoolState, EnvStep]:
        copies = action.shape[0]
        pool = host.pool(copies)
        yes, no = jnp.ones(copies, bool), jnp.zeros(copies, bool)
        steps = state.steps + 1

        def advance() -> tuple[PoolState, EnvStep]:
            marked = host.pulse.begin(state.handle, steps)
            handle, (obs, reward, failed, limit, _) = pool.step(marked, action)
            handle = host.pulse.end(handle, steps)
            done, sane = failed | limit, jnp.isfinite(reward)
            if jnp.issubdtype(obs.dtype, jnp.floating):
                sane &= jnp.isfinite(obs.reshape(copies, -1)).all(axis=1)

            def attend() -> Array:
                def call(*args: Any) -> np.ndarray:
                    return host.attend(*(np.asarray(x) for x in args))

                fresh = io_callback(call, host.raw(copies), done, sane, steps, ordered=True)
                return jnp.where(rows_like(done | ~sane, obs), fresh, obs)

            following = jax.lax.cond((done | ~sane).any(), attend, lambda: obs)
            following, final = arrange(following), arrange(obs)
            final = jnp.where(rows_like(sane, final), final, state.obs)
            info = {"dropped": 1.0 - sane.astype(jnp.float32)}
            reward, failed, limit = jnp.where(sane, reward, 0.0), failed & sane, limit | ~sane
            outcome = EnvStep(following, final, reward.astype(jnp.float32), failed, limit, info)
            return PoolState(state.ticket, handle, following, steps), outcome

        def begin_again() -> tuple[PoolState, EnvStep]:
            resume_all = functools.partial(host.resume_all, copies)
            obs = arrange(io_callback(resume_all, host.raw(copies), steps, ordered=True))
            info = {"dropped": yes.astype(jnp.float32)}
            outcome = EnvStep(obs, state.obs, jnp.zeros(copies, jnp.float32), no, yes, info)
            return PoolState(jnp.uint32(pool.ticket), jnp.asarray(pool.handle), obs, steps), outcome

        return jax.lax.cond(state.ticket == jnp.uint32(pool.ticket), advance, begin_again)

    return Env(spec, reset, step, HostHooks(simulators=host, external=True))
