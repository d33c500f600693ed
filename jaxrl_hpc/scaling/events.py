"""A small discrete-event simulation: processes are generators, time is a number.

    def customer(simulation, counter):
        yield 1.5                              # sleep
        yield from counter.use(0.3)            # queue for a place, keep it for 0.3, leave

A process yields seconds to sleep, or nothing to be parked until it is resumed. Resources:
`Station` (places with one queue, first come first served), `EventStore` (items, bounded), `Barrier`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from typing import Any

Process = Generator[float | None, Any, Any]


class Simulation:
    """A clock and a queue of events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.current: Process
        self.halted = False
        self._due: list[tuple[float, int, Process, Any]] = []
        self._number = 0

    def start(self, process: Process, delay: float = 0.0, value: Any = None) -> None:
        """Resume a new or parked process after a delay; equal times in order of these calls."""
        self._number += 1
        heapq.heappush(self._due, (self.now + delay, self._number, process, value))

    def run(self, until: float = float("inf")) -> None:
        """Run until that time, a halt, or an empty queue."""
        due = self._due
        while due and not self.halted and due[0][0] <= until:
            self.now, _, process, value = heapq.heappop(due)
            self.current = process
            try:
                seconds = process.send(value)
            except StopIteration:
                continue
            if seconds is not None:
                self.start(process, seconds)
        if not self.halted and until != float("inf"):
            self.now = until

    def halt(self) -> None:
        self.halted = True


class Station:
    """Places of service with one queue. No places: all are served at once."""

    def __init__(self, simulation: Simulation, places: int) -> None:
        self.simulation, self.places = simulation, places
        self.taken = 0
        self.served = 0
        self.work = 0.0  # seconds of service given
        self.waited = 0.0  # seconds in the queue
        self._queue: deque[Process] = deque()

    def use(self, seconds: float) -> Process:
        yield from self.enter()
        yield seconds
        self.leave(seconds)

    def enter(self) -> Process:
        simulation = self.simulation
        if self.places and self.taken >= self.places:
            since = simulation.now
            self._queue.append(simulation.current)
            yield None  # the place is handed over on leaving
            self.waited += simulation.now - since
        else:
            self.taken += 1

    def leave(self, seconds: float) -> None:
        self.served += 1
        self.work += seconds
        if self._queue:
            self.simulation.start(self._queue.popleft())
        else:
            self.taken -= 1


class EventStore:
    """Items in order. `put` waits while it is full (capacity 0: never), `get` while it is empty."""

    def __init__(self, simulation: Simulation, capacity: int = 0) -> None:
        self.simulation, self.capacity = simulation, capacity
        self.items: deque[Any] = deque()
        self.given = self.taken = 0
        self._getting: deque[Process] = deque()
        self._putting: deque[tuple[Process, Any]] = deque()

    def put(self, item: Any) -> Process:
        if self.capacity and len(self.items) >= self.capacity:
            self._putting.append((self.simulation.current, item))
            yield None  # whoever makes room stores it
        else:
            self.put_now(item)

    def put_now(self, item: Any) -> None:
        self.given += 1
        if self._getting:
            self.taken += 1
            self.simulation.start(self._getting.popleft(), value=item)
        else:
            self.items.append(item)

    def get(self) -> Process:
        if not self.items:
            self._getting.append(self.simulation.current)
            return (yield None)
        item = self.items.popleft()
        self.taken += 1
        if self._putting:
            process, waiting = self._putting.popleft()
            self.put_now(waiting)
            self.simulation.start(process)
        return item


class Barrier:
    """A barrier: no process passes before all have arrived."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation, self.number = simulation, number
        self.meetings = 0  # so far
        self._here = 0
        self._parked: list[Process] = []

    def wait(self) -> Process:
        if not self.come():
            self._parked.append(self.simulation.current)
            yield None

    def come(self) -> bool:
        """Arrive without being parked -> whether all are there. Otherwise `meetings` shows when they are."""
        self._here += 1
        if self._here < self.number:
            return False
        self._here, self.meetings = 0, self.meetings + 1
        for process in self._parked:
            self.simulation.start(process)
        self._parked = []
        return True
