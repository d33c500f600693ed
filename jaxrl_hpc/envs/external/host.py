"""The host's side of external environments: simulators that stay alive between calls, and their faults.

The program holds a ticket per copy (the first seed of the reset that made them), and the host finds the
simulator by it. An unknown ticket comes from a checkpoint: the simulator is created again and its unfinished
episodes are cut: truncated at the last observation, counted as dropped, and excluded from averages.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.envs.external.caller import Caller, Hung
from jaxrl_hpc.envs.external.simulator import ExternalConfig, Simulator, StepOutcome, describe_exception
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Env, EnvSpec

log = logging.getLogger(__name__)
MAKING_SECONDS = 600.0  # longest time to make and reset a simulator, unless a step may take even longer
STARTS = 3  # how often starting a simulator is tried under on_error=reset


class SimulatorFailed(Exception):
    """Ends the calling program; `simulator_failures_told` turns it into a sentence for the user."""


class StartFailed(Exception):
    """A simulator could not be made or reset. `final`: trying again would take long or change nothing."""

    def __init__(self, text: str, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


class Alive(NamedTuple):
    """A simulator and its thread."""

    simulator: Simulator
    call: Caller
    copies: int


class Host:
    """Simulators of one environment. `keep` is how many may be alive: more than one only for shards."""

    divisible = True  # works when a program calls it from several places and for parts of the copies

    def __init__(
        self, spec: EnvSpec, make: Callable[[int], Simulator], config: ExternalConfig, keep: int = 64
    ) -> None:
        self.spec, self.make, self.config, self.keep = spec, make, config, keep
        self.alive: OrderedDict[int, Alive] = OrderedDict()
        self.seed = 0  # of the run, for simulators that are seeded when they are made
        self.steps = 0
        self.dropped = 0  # episodes given up because of errors
        self.next_report = 1  # number of dropped episodes at which to report them again
        self.restarted = 0  # episodes given up because the run was resumed
        self.elsewhere = np.zeros(2, np.int64)  # both, of ranks that act for this one
        self.failure: str | None = None
        _log_own_failures_once()

    # -- called by the program ------------------------------------------------

    def reset(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tickets [B], obs [B, …]). An unneeded simulator with the same number of copies is reused."""
        ticket, copies = int(seeds[0]), len(seeds)
        alive = self.alive.pop(ticket, None)
        if alive is None and len(self.alive) >= self.keep:
            _, alive = self.alive.popitem(last=False)
        if alive is not None and alive.copies != copies:
            self._end(alive)
            alive = None
        alive, obs = self._begin(alive, seeds)
        self.alive[ticket] = alive
        return np.full(copies, ticket, np.uint32), obs

    def step(self, ticket: np.ndarray, seeds: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """obs, final_obs, reward, terminated, truncated, dropped; final_obs of dropped ones means nothing."""
        self.steps += 1
        number = int(ticket[0])
        if number not in self.alive:
            alive, obs = self._begin(None, seeds)
            self.alive[number] = alive
            self.restarted += len(seeds)
            return self._cut(obs, range(len(seeds)))
        alive = self.alive[number]
        try:
            outcome: StepOutcome = alive.call(
                lambda: alive.simulator.step(action), self.config.deadline_seconds
            )
        except Exception as error:
            text = describe_exception(error)
            if isinstance(error, Hung):
                text = f"did not return within env.deadline_seconds = {self.config.deadline_seconds:g}"
            busy = alive.simulator.busy
            blamed = range(alive.copies) if busy is None else [busy]
            self._trouble(dict.fromkeys(blamed, text), alive.copies)
            return self._all_anew(number, seeds)
        if not outcome.troubles:
            return (*outcome[:5], np.zeros(alive.copies, np.float32))
        broken = sorted(outcome.troubles)
        alone = alive.simulator.restarts_alone
        self._trouble(outcome.troubles, len(broken) if alone else alive.copies)
        if not alone:
            return self._all_anew(number, seeds)
        obs = outcome.obs.copy()
        obs[broken] = self._restarted(alive, broken, seeds[broken])
        return self._cut(obs, broken, outcome)

    # -- details ----------------------------------------------------------------

    def _all_anew(self, number: int, seeds: np.ndarray) -> tuple[np.ndarray, ...]:
        """Replace a simulator whose internal state is unknown; all its episodes are cut."""
        self._end(self.alive.pop(number))
        self.alive[number], obs = self._begin(None, seeds)
        return self._cut(obs, range(len(seeds)))

    def _begin(self, alive: Alive | None, seeds: np.ndarray) -> tuple[Alive, np.ndarray]:
        """A simulator at the start of new episodes."""
        for attempt in itertools.count(1):
            try:
                alive = alive or self._made(len(seeds))
                reset = functools.partial(alive.simulator.reset, seeds)
                return alive, self._guarded(alive.call, reset, "resetting {}", alive.simulator)
            except StartFailed as error:
                if alive is not None:
                    self._end(alive)
                alive, seeds = None, self._another_try(error, attempt, seeds)
        raise AssertionError

    def _made(self, copies: int) -> Alive:
        call = Caller()
        try:
            return Alive(self._guarded(call, lambda: self.make(copies), "making {}"), call, copies)
        except StartFailed:
            call.end()
            raise

    def _restarted(self, alive: Alive, broken: list[int], seeds: np.ndarray) -> np.ndarray:
        """First observations of restarted copies; the others are unchanged."""
        for attempt in itertools.count(1):
            try:
                again = functools.partial(alive.simulator.restart, broken, seeds)
                return self._guarded(alive.call, again, "starting {} again", alive.simulator)
            except StartFailed as error:
                seeds = self._another_try(error, attempt, seeds)
        raise AssertionError

    def _another_try(self, error: StartFailed, attempt: int, seeds: np.ndarray) -> np.ndarray:
        """Start with other seeds, in case the start state is the problem; or end the run."""
        if error.final or self.config.on_error == "stop" or attempt == STARTS:
            self._fail(str(error))
        log.warning("%s; trying again", error)
        return seeds + np.uint32(1)

    def _guarded(
        self, call: Caller, question: Callable[[], Any], doing: str, simulator: Simulator | None = None
    ) -> Any:
        """The answer, or StartFailed."""
        limit = max(MAKING_SECONDS, self.config.deadline_seconds)
        final = False
        try:
            return call(question, limit)
        except UserError as error:
            raise StartFailed(str(error), final=True) from None
        except Hung:
            text, final = f"did not end within {limit:g} s", True
        except Exception as error:
            text = describe_exception(error)
        busy = None if simulator is None else simulator.busy
        whom = "it" if busy is None else f"copy {busy}"
        raise StartFailed(self._sentence(f"{doing.format(whom)} {text}"), final)

    def _end(self, alive: Alive) -> None:
        try:
            alive.call(alive.simulator.close, 1.0)
        except Exception:
            # a simulator with its own processes can be ended from here, even while its thread hangs
            getattr(alive.simulator, "kill", lambda: None)()
        alive.call.end()

    def _cut(
        self, obs: np.ndarray, copies: Any, outcome: StepOutcome | None = None
    ) -> tuple[np.ndarray, ...]:
        """The step with some copies' episodes cut, all others as in `outcome`."""
        number = len(obs)
        chosen = np.zeros(number, bool)
        chosen[list(copies)] = True
        if outcome is None:
            nothing = np.zeros(number, bool)
            outcome = StepOutcome(obs, obs, np.zeros(number, np.float32), nothing, nothing, {})
        return (
            obs,
            outcome.final_obs,
            np.where(chosen, np.float32(0), outcome.reward),
            outcome.terminated & ~chosen,
            outcome.truncated | chosen,
            chosen.astype(np.float32),
        )

    def _trouble(self, troubles: dict[int, str], given_up: int) -> None:
        """Stop, or count dropped episodes and report them: the first, then less and less often."""
        copies = sorted(troubles)
        which = f"copy {copies[0]}" if len(copies) == 1 else f"copies {', '.join(map(str, copies))}"
        reasons = "; ".join(dict.fromkeys(troubles[i] for i in copies))
        text = self._sentence(f"{which} {reasons}")
        if self.config.on_error == "stop":
            self._fail(f"{text}; env.on_error=reset drops such episodes and continues")
        self.dropped += given_up
        if self.dropped >= self.next_report:
            log.warning("%s; dropped (%d episodes so far)", text, self.dropped)
        while self.next_report <= self.dropped:
            self.next_report *= 2

    def _sentence(self, what: str) -> str:
        return f"env {self.spec.name!r}: {what} (step {self.steps}, rank {world().rank})"

    def _fail(self, text: str) -> Any:
        self.failure = text
        raise SimulatorFailed(text)

    def counts(self) -> dict[str, int]:
        """Episodes that did not end by their own rules, since the start of the run."""
        dropped, restarted = (int(x) for x in self.elsewhere + np.array([self.dropped, self.restarted]))
        return {"dropped_episodes": dropped, "restarted_episodes": restarted}

    def resume(self, counts: dict[str, int]) -> str:
        """Continue the counts of a checkpoint -> a note for the user."""
        self.forget()
        self.dropped, self.restarted = counts["dropped_episodes"], counts["restarted_episodes"]
        return (
            f"env {self.spec.name!r} runs outside the program, with one seed per process, and is not "
            "part of checkpoints: it is created again, and unfinished episodes are cut, counted "
            "(restarted_episodes) and restarted"
        )

    def forget(self) -> None:
        """Forget simulators made while compiling: none of them belongs to the checkpoint."""
        self.close()

    def close(self) -> None:
        while self.alive:
            self._end(self.alive.popitem()[1])


def hosts_of(env: Env) -> list[Any]:
    """The hosts behind an environment: of training, of evaluation."""
    pair = (env, env.host.for_evaluation)
    found = [e.host.simulators for e in pair if e is not None and e.host.simulators is not None]
    return found[:1] if len(found) == 2 and found[0] is found[1] else found


def given_up_counts(env: Env) -> dict[str, int]:
    """Dropped episodes of external simulators, including evaluations; empty for other environments."""
    every = [host.counts() for host in hosts_of(env)]
    return {name: sum(counts[name] for counts in every) for name in every[0]} if every else {}


def count_given_up_elsewhere(env: Env, dropped: int, restarted: int) -> None:
    """Add episodes that another rank, which acts for this one, has dropped."""
    env.host.simulators.elsewhere += (dropped, restarted)


@contextlib.contextmanager
def simulator_failures_told(env: Env) -> Iterator[None]:
    """Reports errors of programs that a failing simulator has ended as failures of the simulator."""
    try:
        yield
    except Exception:
        for host in hosts_of(env):
            if host.failure is not None:
                raise UserError(host.failure) from None
        raise


class _OwnFailures(logging.Filter):
    """Filters the traceback that JAX logs for every exception in a callback; `simulator_failures_told`
    reports ours in one sentence."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], SimulatorFailed))


@functools.cache
def _log_own_failures_once() -> None:
    logging.getLogger("jax._src.callback").addFilter(_OwnFailures())
