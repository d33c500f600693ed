"""A learner's mailbox: arrived unrolls, the order in which they are taken, their staleness.

    drain → queue → take: too old? dropped and counted : learned from

lag = learner's version at consumption − version that produced the unroll. Messages are taken in the order of
arrival, or, when a schedule is replayed, in its order. A snapshot requests the states of all actors; each
answers between two unrolls with the number of unrolls it has sent, and the mailbox drains until all of these
have arrived: those not yet learned from are saved with the checkpoint, so nothing is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxrl_hpc.comm.messaging import ControlMessage, Kind
from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.workflows.actor_learner.arrival_log import ArrivalEntry, ArrivalRecorder, ArrivalReplay
from jaxrl_hpc.workflows.actor_learner.messages import (
    ActorPrograms,
    ActorSnapshot,
    ActorState,
    Link,
    UnrollMessage,
)
from jaxrl_hpc.workflows.actor_learner.staleness import Staleness

ALL = 2**31


class Queued(NamedTuple):
    """A message that has arrived."""

    actor: int
    sequence: int
    buffer: np.ndarray


class MailboxRules(NamedTuple):
    max_lag: int | None  # unrolls older than that are dropped
    history: int  # versions of the parameters to keep, for actors with deliberate lag
    given_up: Callable[[int, int], None]  # called with episodes dropped and restarted by an actor


class ArrivalSchedule(NamedTuple):
    """The order of arrivals: recorded, or replayed."""

    record: ArrivalRecorder | None = None
    replayed: ArrivalReplay | None = None


class Mailbox:
    """The mailbox of one learner: `published` is called after every new version, `take` before every step.

    Args:
      acting: layouts of messages, parameters and states.
      link: to the learner's actors.
      saved: their part of the checkpoint that is resumed.
      rules: what is dropped, and how many versions are kept.
      schedule: to record or to replay.
      add: the sum of an array over all learners.
      seconds_before: of earlier jobs of the run.
    """

    def __init__(
        self,
        acting: ActorPrograms,
        link: Link,
        saved: ActorSnapshot,
        rules: MailboxRules,
        schedule: ArrivalSchedule,
        add: Callable[[np.ndarray], np.ndarray],
        seconds_before: float = 0.0,
    ) -> None:
        roles, self.channel, control, self.watchdog = link
        self.acting, self.roles, self.control = acting, roles, control
        self.max_lag, history, self._given_up = rules
        self.record, self.replayed = schedule
        replayed = self.replayed
        self.history, self._add = history, add
        self.actors = roles.actors_of(roles.rank)
        self.queue: deque[Queued] = deque(self._queued(np.array(message)) for message in saved.pending)
        self.backoff = Backoff()
        self.staleness = Staleness()
        self.signal = (0, 0)  # number and rank of a request to stop that an actor got
        self.taken, self.dropped, self.lost = saved.taken, saved.dropped, saved.lost
        self._lost_before = saved.lost
        self._gaps: list[tuple[int, int, int]] = []  # actor, first and end of the sequences that were lost
        self.versions = {int(v): p for v, p in zip(saved.versions, saved.params, strict=True)}
        self._wanted = replayed.wanted() if replayed else {}
        self._asked: list[tuple[int, int]] = []  # (actor, sequence) whose parameters are not there yet
        states = {int(a): state for a, state in zip(saved.ids, saved.states, strict=True)}
        self.parked = {a: state for a, state in states.items() if a not in self.actors}
        self._next: dict[int, int] = {}  # actor -> sequence number that comes next
        self._received = dict.fromkeys(self.actors, 0)  # since the start of this job
        self._reports: dict[int, ControlMessage] = {}
        self._snapshots = 0
        for actor in self.actors:
            state = states.get(actor)
            self._next[actor] = int(acting.state.unpack(state).sequence) if state is not None else 0
            rank = roles.rank_of(actor)
            for version in sorted(self.versions) if history else ():
                control.send(rank, Kind.PARAMETERS, version, -1, self.versions[version])
            control.send(rank, Kind.START, round(seconds_before * 1000), 0, state)
        self._first = dict(self._next)

    # -- parameters ----------------------------------------------------------

    def published(self, version: int, params: np.ndarray) -> None:
        """Give a new version to actors; keep versions that may be requested later."""
        if self.replayed:
            if self._wanted.get(version):
                self.versions[version] = params
            self._answer()
            return
        self.channel.publish(version, params)
        if self.history:
            self.versions[version] = params
            for old in sorted(self.versions)[: -self.history - 1]:
                del self.versions[old]

    def _answer(self) -> None:
        """Send the parameters that actors of a replayed run have requested, as soon as they exist."""
        assert self.replayed is not None
        waiting = []
        for actor, sequence in self._asked:
            version = self.replayed.versions.get((actor, sequence))
            if version is None or version not in self.versions:
                waiting.append((actor, sequence))
                continue
            rank = self.roles.rank_of(actor)
            self.control.send(rank, Kind.PARAMETERS, version, sequence, self.versions[version])
            self._wanted[version] -= 1
            if not self._wanted[version]:
                del self.versions[version]
        self._asked = waiting

    # -- messages ------------------------------------------------------------

    def take(self, count: int, version: int) -> list[UnrollMessage]:
        """The next unrolls to learn from, as views into buffers of their own. Waits for them."""
        found: list[UnrollMessage] = []
        warned = False  # dropped unrolls are not progress: the wait continues
        while len(found) < count:
            self.poll(count - len(found) - len(self.queue))
            message = self._pick()
            if message is None:
                if not warned:
                    warned = True
                    begun = any(self._received.values())  # actors may have to compile first
                    self.watchdog.at(
                        f"waiting for unrolls of {self._names()}", version, armed=begun, often=True
                    )
                self.backoff.pause()
                continue
            self.backoff.reset()
            header = message.header
            lag = version - int(header.version)
            old = self.max_lag is not None and lag > self.max_lag
            self._note(
                ArrivalEntry(int(header.actor), int(header.sequence), int(header.version), int(not old))
            )
            self.staleness.add(lag, len(self.queue) + self.channel.waiting(), message, old)
            if old:
                self.dropped += 1
            else:
                found.append(message)
                warned = False
        self.watchdog.at("learning", version, often=True)
        return found

    def _names(self) -> str:
        ranks = ", ".join(str(self.roles.rank_of(actor)) for actor in self.actors)
        return f"actors on rank{'s' if len(self.actors) > 1 else ''} {ranks}"

    def _pick(self) -> UnrollMessage | None:
        if not self.replayed:
            return self._unpacked(self.queue.popleft()) if self.queue else None
        wanted = self.replayed.next()
        for place, queued in enumerate(self.queue):
            if queued[:2] == wanted[:2]:
                del self.queue[place]
                return self._unpacked(queued)
        return None

    def _unpacked(self, queued: Queued) -> UnrollMessage:
        message: UnrollMessage = self.acting.message.unpack(queued.buffer)
        return message

    def _queued(self, buffer: np.ndarray) -> Queued:
        header = self.acting.message.unpack(buffer).header
        return Queued(int(header.actor), int(header.sequence), buffer)

    def _note(self, entry: ArrivalEntry) -> None:
        self.taken += 1
        if self.replayed:
            if entry != self.replayed.next():
                raise UserError(
                    f"run.replay_schedule: the run has reached {entry}, but {self.replayed.path} has "
                    f"{self.replayed.next()}: it belongs to another config, or workflow.max_lag was changed"
                )
            self.replayed.position += 1
        if self.record:
            self.record.add(entry)

    def poll(self, room: int) -> None:
        """Receive no more messages than needed: the rest is backpressure on the actors."""
        for arrival in self.channel.drain(ALL if self.replayed else max(0, room)):
            queued = self._queued(arrival.message)
            if self.channel.gone is None:  # else a missing one may be with another learner
                self._lose(queued.actor, self._next[queued.actor], queued.sequence)
                self._next[queued.actor] = queued.sequence + 1
            self._received[queued.actor] = self._received.get(queued.actor, 0) + 1
            self.queue.append(queued)
        while (note := self.control.receive()) is not None:
            actor = note.rank - self.roles.learners
            if note.kind == Kind.STATE:
                self._reports[actor] = note
            elif note.kind == Kind.SIGNAL:
                self.signal = (note.number, note.rank)
            elif note.kind == Kind.GIVEN_UP:
                self._given_up(note.number, note.extra)
            elif note.kind == Kind.WANTED:
                self._asked.append((actor, note.number))
                self._answer()

    # -- snapshots -----------------------------------------------------------

    def snapshot(self) -> ActorSnapshot:
        """All actors' states, and all messages sent before them that have not been learned from."""
        self._snapshots += 1
        self._reports = {}
        for actor in self.actors:
            self.control.send(self.roles.rank_of(actor), Kind.SNAPSHOT, self._snapshots)
        while missing := [a for a in self.actors if not self._complete(a)]:
            self.poll(ALL)
            if not self.backoff.waiting:
                ranks = ", ".join(str(self.roles.rank_of(actor)) for actor in missing)
                self.watchdog.at(f"waiting for the states of actors on rank {ranks}", self._snapshots)
            self.backoff.pause()
        self.backoff.reset()
        states = self.parked | {a: np.array(self._reports[a].payload) for a in self.actors}
        limits = self._limits()
        pending = [q.buffer for q in self.queue if q.sequence < limits.get(q.actor, q.sequence + 1)]
        if self.record:
            self.record.flush()
        params = [self.versions[version] for version in sorted(self.versions)]
        empty = ActorSnapshot.nothing(self.acting)
        return ActorSnapshot(
            ids=np.array(sorted(states), np.int64),
            states=np.stack([states[a] for a in sorted(states)]) if states else empty.states,
            pending=np.stack(pending) if pending else empty.pending,
            versions=np.array(sorted(self.versions), np.int64),
            params=np.stack(params) if params else empty.params,
            taken=self.taken,
            dropped=self.dropped,
            lost=self.lost - self._lost_later(limits),
        )

    def _lose(self, actor: int, first: int, end: int) -> None:
        if end > first:
            self.lost += end - first
            self._gaps.append((actor, first, end))

    def _lost_later(self, limits: dict[int, int]) -> int:
        """Unrolls lost after an actor's state was taken; a resumed actor makes them again."""
        self._gaps = [gap for gap in self._gaps if gap[2] > limits.get(gap[0], gap[2])]
        return sum(end - max(first, limits[actor]) for actor, first, end in self._gaps)

    def _limits(self) -> dict[int, int]:
        """actor -> unrolls sent before its state; of all actors where any of them may send here."""
        own = {a: self._sequence(a) for a in self.actors}
        if self.channel.gone is None:
            return own
        mine, here = np.zeros(self.roles.actors), np.zeros(self.roles.actors)
        mine[list(own)] = list(own.values())
        limits = self._add(mine)
        here[list(self._received)] = list(self._received.values())
        for queued in self.queue:
            if queued.actor < len(limits) and queued.sequence >= limits[queued.actor]:
                here[queued.actor] -= 1  # sent after its state
        arrived = self._add(here)
        missing = [limit - self._first[a] - arrived[a] for a, limit in own.items()]
        self.lost = self._lost_before + int(sum(missing))
        return {actor: int(limit) for actor, limit in enumerate(limits)}

    def _sequence(self, actor: int) -> int:
        state: ActorState = self.acting.state.unpack(self._reports[actor].payload)
        return int(state.sequence)

    def _complete(self, actor: int) -> bool:
        """Whether its state has arrived, and every unroll sent before it that the transport has not lost."""
        if actor not in self._reports:
            return False
        sent, lost = self._sequence(actor), self._reports[actor].extra
        if self.channel.gone is not None:
            return bool(self.channel.gone(actor) >= sent - self._first[actor])
        if self._next[actor] < sent and self._received[actor] + lost >= sent - self._first[actor]:
            self._lose(actor, self._next[actor], sent)  # the newest ones: no later number shows the gap
            self._next[actor] = sent
        return self._next[actor] >= sent

    def stop(self, finished: bool) -> None:
        """Release the actors."""
        for actor in self.actors:
            self.control.send(self.roles.rank_of(actor), Kind.STOP, int(finished))
