"""The slow tier of the combinations one after the other, in random order, for as long as there is time.

python -m tests.workflows.run_matrix RECORD [MINUTES]

RECORD gets a line of JSON per combination: what it is, how it was checked (run here, in a job, traced), how
that ended (passed, refused, failed), and its seconds. Those that it has already are left out, so that the
whole can be run in several parts. Jobs have several combinations, because starting ranks is what takes time.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from jaxrl_hpc.errors import UserError
from tests.mpi import launch
from tests.workflows import run_combination
from tests.workflows import test_combinations as matrix
from tests.workflows.combinations import Combination

SEED = 21
TOGETHER = 8  # combinations of a job of ranks


def parts() -> list[list[Combination]]:
    """In random order; combinations of one part run together. Those that are only traced come last."""
    chosen, whole = matrix.jobs_of_each_pair(), matrix.runs_whole()
    random.Random(SEED).shuffle(chosen)
    found = [[case] for case in whole]
    for cases in matrix.jobs(chosen).values():
        found += [cases[i : i + TOGETHER] for i in range(0, len(cases), TOGETHER)]
    random.Random(SEED).shuffle(found)
    others = sorted(set(matrix.accepted(alone=True)) - set(whole))
    random.Random(SEED).shuffle(others)
    return found + [[case] for case in others]


def outcome_of(check: Callable[[Combination], list[str]], case: Combination) -> tuple[str, str]:
    """(how it ended, sentences)."""
    try:
        wrong = "; ".join(check(case))
    except UserError as error:
        return "refused" if matrix.SENTENCE.match(str(error)) else "failed", str(error)
    except Exception:  # the others are to run all the same
        return "failed", traceback.format_exc(limit=-3)
    return "failed" if wrong else "passed", wrong


def alone(case: Combination, check: Callable[[Combination], list[str]]) -> Iterator[dict[str, Any]]:
    began = time.process_time()
    outcome, text = outcome_of(check, case)
    jax.clear_caches()
    seconds = round(time.process_time() - began, 1)
    yield {"case": str(case), "how": check.__name__, "outcome": outcome, "text": text, "seconds": seconds}


def together(cases: list[Combination]) -> Iterator[dict[str, Any]]:
    """A job; those that come after one that ended it get another."""
    began = time.perf_counter()
    [(ranks, _)] = matrix.jobs(cases).items()
    with tempfile.TemporaryDirectory() as folder:
        status, output = launch.run(ranks, "-m", "tests.workflows.run_combination", folder, *map(str, cases))
        results = [result for result in launch.results(output) if result["rank"] == 0]
        missing = cases[len(results) :]
        seconds = round((time.perf_counter() - began) / min(len(results) + 1, len(cases)), 1)
        for number, (case, result) in enumerate(zip(cases, results, strict=False)):

            def check(case: Combination, number: int = number, result: dict = result) -> list[str]:
                if result["refused"]:
                    raise UserError(result["refused"])
                left: list[str] = run_combination.left_in(Path(folder) / str(number))
                return left + result["batches"]

            outcome, text = outcome_of(check, case)
            yield {"case": str(case), "how": "job", "outcome": outcome, "text": text, "seconds": seconds}
    if missing:
        text = f"exit code {status}: {output[-1500:]}"
        yield {"case": str(missing[0]), "how": "job", "outcome": "failed", "text": text, "seconds": seconds}
    if missing[1:]:
        yield from together(missing[1:])
    jax.clear_caches()


def main() -> None:
    record, minutes = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
    end = time.monotonic() + 60 * minutes
    lines = record.read_text().splitlines() if record.exists() else []
    known = {json.loads(line)["case"]: json.loads(line)["outcome"] for line in lines}
    every, of_ranks, whole = parts(), set(matrix.accepted(alone=False)), set(matrix.runs_whole())
    for cases in every:
        missing = [case for case in cases if str(case) not in known]
        if not missing or time.monotonic() > end:
            continue
        check = run_combination.here if missing[0] in whole else run_combination.traced
        found = together(missing) if missing[0] in of_ranks else alone(missing[0], check)
        for result in found:
            known[result["case"]] = result["outcome"]
            with record.open("a") as file:
                file.write(json.dumps(result) + "\n")
            if result["outcome"] == "failed":
                print(f"{result['case']}: {result['text']}", flush=True)
    counts, total = Counter(known.values()), sum(map(len, every))
    print(f"{len(known):,} of {total:,} combinations: {dict(counts)}")
    sys.exit(counts["failed"] > 0)


if __name__ == "__main__":
    main()
