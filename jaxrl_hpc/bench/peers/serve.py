"""The protocol of every library's worker: report when ready, run on request, count.

Input, a line each: `seconds S` runs for about S seconds, `steps N` until N environment steps are done in
all and then evaluates. Answers are JSON. Only the standard library is needed.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Loop(NamedTuple):
    """A library that is ready to train."""

    run: Callable[[int], None]  # so many chunks, waited for
    counters: Callable[[], tuple[int, int]]  # (environment steps, updates) so far, by the library's own count
    evaluate: Callable[[], float]  # mean return of greedy episodes
    compile_seconds: float


def measure(loop: Loop, chunks: int) -> dict[str, float]:
    """Run, and report the work done and its cost."""
    steps, updates = loop.counters()
    start, busy = time.perf_counter(), time.process_time()
    loop.run(chunks)
    elapsed, busy = time.perf_counter() - start, time.process_time() - busy
    steps_after, updates_after = loop.counters()
    return {
        "seconds": elapsed,
        "cpu_seconds": busy,
        "env_steps": steps_after - steps,
        "updates": updates_after - updates,
        "chunks": chunks,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def learn(loop: Loop, steps: int) -> dict[str, float]:
    """Train until `steps` environment steps are done, then evaluate."""
    while loop.counters()[0] < steps:
        loop.run(1)
    done, updates = loop.counters()
    return {"env_steps": done, "updates": updates, "return": loop.evaluate()}


def serve(make: Callable[[], Loop]) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # whatever else is printed goes elsewhere
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    loop = make()
    answer({"ready": True, "compile_seconds": loop.compile_seconds})
    rate = 0.0  # chunks per second
    for line in sys.stdin:
        word, number = line.split()
        if word == "steps":
            answer(learn(loop, int(number)))
            continue
        if not rate:  # the second time with a good guess of the rate
            first = measure(loop, 1)
            again = measure(loop, max(1, round(0.2 / first["seconds"])))
            rate = again["chunks"] / again["seconds"]
        result = measure(loop, max(1, round(float(number) * rate)))
        rate = result["chunks"] / result["seconds"]
        answer(result)
